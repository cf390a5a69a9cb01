"""Where a look at a damaged file can begin: its meta pages and its reserved run."""

from __future__ import annotations

import os
from contextlib import suppress

from memcore.errors import StorageError
from memcore.limits import PAGE_BYTES
from memcore.store.file import Meta, meta_page, parse_meta
from memcore.store.run import Run, find_run
from memcore.store.structure import DamageError

__all__ = ["meta_of", "read_soft", "readable_metas", "run_of"]


def read_soft(fd: int, size: int, offset: int) -> bytes:
    """What can be read there; nothing where the device fails."""
    try:
        return os.pread(fd, size, offset)
    except OSError:
        return b""


def readable_metas(fd: int) -> list[Meta]:
    """The meta pages that parse, the newest first: of a damaged file one or none may."""
    found = []
    for page in (0, 1):
        head = bytes(page * PAGE_BYTES) + read_soft(fd, PAGE_BYTES, page * PAGE_BYTES)
        with suppress(DamageError):
            found.append(parse_meta(head, page))
    return sorted(found, key=lambda meta: meta.txnid, reverse=True)


def meta_of(image: bytes) -> Meta | None:
    """The meta page of which ``image`` is kept elsewhere; None if it does not parse."""
    page, raw = meta_page(image)
    with suppress(DamageError):
        return parse_meta(bytes(page * PAGE_BYTES) + raw, page)
    return None


def run_of(fd: int) -> Run | None:
    """The reserved run, if it is where it should be and whole."""
    try:
        return find_run(fd, "")
    except (StorageError, OSError):
        return None
