"""Where what leaves is written before it leaves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from memcore.errors import InvalidOptionError
from memcore.files import open_private

__all__ = ["ArchiveTarget", "archive_to"]

ArchiveTarget: TypeAlias = str | os.PathLike[str] | Callable[[bytes], Any]
"""A file that lines are added to, or what is called with each line."""


def archive_to(target: ArchiveTarget) -> Callable[[Iterable[bytes]], int]:
    """What writes lines and makes them durable; it tells how many there were.

    A file is flushed to the device. Of a callable, a method ``flush`` of its own is called, if it
    has one; it is durable then, as far as the callable says. What fails is raised: nothing leaves.

    Raises:
        InvalidOptionError: it is neither a path nor callable.
    """
    if callable(target):
        return _calling(target)
    if not isinstance(target, str | os.PathLike):
        msg = f"archive: expected a path or a callable, got {type(target).__name__}"
        raise InvalidOptionError(msg)
    path = os.fspath(target)

    def write(lines: Iterable[bytes]) -> int:
        with open(path, "ab", opener=open_private) as file:
            count = _put(lines, file.write)
            file.flush()
            os.fsync(file.fileno())
        return count

    return write


def _calling(target: Callable[[bytes], Any]) -> Callable[[Iterable[bytes]], int]:
    flush = getattr(target, "flush", None)

    def write(lines: Iterable[bytes]) -> int:
        count = _put(lines, target)
        if callable(flush):
            flush()
        return count

    return write


def _put(lines: Iterable[bytes], put: Callable[[bytes], Any]) -> int:
    """Whole lines, one call each: an export comes in pieces of any size."""
    count, rest = 0, b""
    for piece in lines:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            put(line + b"\n")
            count += 1
    return count
