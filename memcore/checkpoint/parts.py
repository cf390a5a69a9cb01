"""What manifests name, and whether it is there: for those who check and those who salvage."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from memcore.checkpoint import rows, threads
from memcore.checkpoint.coding import Typed
from memcore.checkpoint.nodes import ID_BYTES, rows_in, rows_of
from memcore.checkpoint.pool import KEY, KEY_BYTES, Pool, unpack_chunk, unpack_pool
from memcore.checkpoint.rows import CheckpointRow
from memcore.checkpoint.splitting import PAGE
from memcore.errors import CorruptValueError
from memcore.keys import ThreadRow, name_key

__all__ = ["clear_pool", "is_pool_row", "is_thread_row", "rows_of", "walk"]

_PLACE_BYTES: Final = 17
_NAMESPACED_BYTES: Final = 22


def walk(fetch: Callable[[bytes], Typed], node: bytes) -> set[bytes]:
    """The chunks that a manifest names, pages and what these name among them.

    ``fetch`` gives what is stored under an id, or raises CorruptValueError.

    Raises:
        CorruptValueError: one of them is missing or damaged, or the manifest is.
    """
    found: set[tuple[int, bytes]] = set()
    work = list(rows_of(node))
    while work:
        named = work.pop()
        if named in found:
            continue
        found.add(named)
        container, part = named
        kind, content = fetch(part)
        if container:
            if kind != PAGE:
                msg = f"the chunk {part.hex()} is named as a page, but is none"
                raise CorruptValueError(msg, key=part)
            work += rows_in(container, content)
    return {part for _, part in found}


def clear_pool() -> Pool:
    """A pool in place of one whose row is lost; chunks in clear can be read without its key."""
    return Pool(1, 1, sweeping=False, key=(KEY, os.urandom(KEY_BYTES)))


def is_pool_row(key: bytes, value: bytes) -> bool:
    """Whether this is a pool's own row, or a chunk.

    Raises:
        CorruptValueError: it is malformed.
    """
    if len(key) == _PLACE_BYTES:
        return bool(unpack_pool(key, value))
    unpack_chunk(key, value)
    return len(key) == _PLACE_BYTES + ID_BYTES


def is_thread_row(key: bytes, value: bytes) -> bool:
    """Whether this is a row that a thread has.

    Raises:
        CorruptValueError: it is malformed.
    """
    if len(key) <= _PLACE_BYTES:
        return False
    row = key[_PLACE_BYTES]
    if row == ThreadRow.HEAD:
        threads.unpack_head(key, value)
        return len(key) == _PLACE_BYTES + 1
    if row == ThreadRow.NAMESPACE:
        name = threads.unpack_namespace(key, value)[1]
        return key == name_key(key[: _PLACE_BYTES + 1], name)
    return len(key) > _NAMESPACED_BYTES and _is_content(row, key, value)


def _is_content(row: int, key: bytes, value: bytes) -> bool:
    if row == ThreadRow.CHECKPOINT:
        rows.id_in(key)
        return bool(CheckpointRow.unpack(key, value))
    if row not in (ThreadRow.VALUE, ThreadRow.WRITES):
        return False
    kind = rows.NODE if row == ThreadRow.VALUE else rows.WRITES
    for node in rows.clear_nodes(key, value, kind):
        for _ in rows_of(node):
            pass
    return True
