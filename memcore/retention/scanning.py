"""A raw look for names and markers in the files of a database: the proof of an erasure.

What a file holds of a name beside its rows nobody can tell from a remain of the erased user; what
rows of others hold is theirs (a colleague who mentions the name). So hits are told apart.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from memcore.store.file import newest_meta
from memcore.store.separators import separators
from memcore.store.structure import DamageError, Row, Tree, Walk

__all__ = ["Scan", "checked_probes", "files_beside", "scan_copy", "scan_file"]

_NEEDLE_BYTES_MIN: Final = 5
"""Shorter names stand anywhere by chance."""
_NEEDLES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Scan:
    """What a look at a file found."""

    bytes: int = 0
    needles: int = 0
    hits: int = 0
    in_rows: int = 0
    """Of these, hits in rows that are in use: those of others."""

    @property
    def stray(self) -> int:
        """Hits outside of all rows."""
        return self.hits - self.in_rows


def checked_probes(texts: Iterable[str | bytes]) -> list[bytes]:
    """What to look for, without what is too short to say anything; the longest first."""
    found = {
        text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
        for text in texts
    }
    found |= {text.replace(b"\0", b"\0\xff") for text in found}  # as it stands in a key
    long = sorted((t for t in found if len(t) >= _NEEDLE_BYTES_MIN), key=len, reverse=True)
    return long[:_NEEDLES_MAX]


def scan_file(path: str | os.PathLike[str], needles: list[bytes]) -> int:
    """How often the needles stand in a file."""
    with Path(path).open("rb") as file:
        if not os.fstat(file.fileno()).st_size or not needles:
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return sum(_count(content, needle) for needle in needles)


def _count(content: mmap.mmap | bytes, needle: bytes) -> int:
    count, at = 0, content.find(needle)
    while at >= 0:
        count, at = count + 1, content.find(needle, at + 1)
    return count


def scan_copy(path: str, needles: list[bytes]) -> Scan:
    """A look at a file that nobody changes meanwhile."""
    hits = scan_file(path, needles)
    size = Path(path).stat().st_size
    return Scan(size, len(needles), hits, _hits_in_rows(path, needles) if hits else 0)


def _hits_in_rows(path: str, needles: list[bytes]) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        meta = newest_meta(fd, path)
        walk = Walk(fd, meta.last_page)
        tree = Tree("main tree", meta.main_root, meta.main_depth)
        rows = (
            _bytes_of(fd, walk, row)
            for leaf in walk.leaves(tree)
            for row in leaf
            if row.key[0]  # the store's own rows hold the redo slots
        )
        # Branches of a copy hold beginnings of the keys that there are.
        held = chain(rows, separators(fd, path))
        return sum(_count(content, needle) for content in held for needle in needles)
    except DamageError:
        return 0  # the copy is refused by who proves it
    finally:
        os.close(fd)


def _bytes_of(fd: int, walk: Walk, row: Row) -> bytes:
    if not row.run:
        return row.key + row.value  # they stand side by side
    # Between them stands the page number: no needle can reach across.
    walk.seen.clear()
    at = walk.run(row.run, row.size)
    return row.key + b"\0\0\0\0\0\0\0\0" + os.pread(fd, row.size, at)


def files_beside(path: str) -> list[str]:
    """Files whose names begin with that of the database: backups that a restore left, and others.

    The lock file holds no content.
    """
    own = Path(path)
    beside = (str(each) for each in own.parent.iterdir() if each.is_file())
    known = (str(own), f"{own}-lock")
    return sorted(each for each in beside if each.startswith(str(own)) and each not in known)
