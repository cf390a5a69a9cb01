"""The log that ``tests/shim/recorder.c`` writes: read back here, and marked from Python.

A log is the total order of what several processes did to the files of one directory, with marks in
between: what was started, acknowledged, seen by another process.
"""

from __future__ import annotations

import ctypes
import enum
import json
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from shim.flushcount import shim

_HEAD = Struct("<IBBHIIQQ")


class Op(enum.IntEnum):
    """Kinds of records; the numbers are the recorder's."""

    CREATE = 1
    WRITE = 2
    TRUNCATE = 3
    FLUSH_BEGIN = 4
    FLUSH_END = 5
    LINK = 6
    RENAME = 7
    UNLINK = 8
    MARK = 9
    STRANGE = 10


class Flag(enum.IntFlag):
    """What else a record says."""

    DSYNC = 1
    DIRECTORY = 2


class Record(NamedTuple):
    """One record. ``at`` is an offset, a size, or the token that joins the ends of a flush."""

    op: Op
    flags: Flag
    pid: int
    inode: int
    at: int
    content: bytes


def records(log: Path) -> Iterator[Record]:
    """All records in order; one cut short at the end was never finished."""
    whole = log.read_bytes()
    at = 0
    while at + _HEAD.size <= len(whole):
        size, op, flags, _, pid, _, inode, where = _HEAD.unpack_from(whole, at)
        at += _HEAD.size
        if at + size > len(whole):
            return
        yield Record(Op(op), Flag(flags), pid, inode, where, whole[at : at + size])
        at += size


def mark_of(record: Record) -> dict[str, Any]:
    """The fields of a mark."""
    fields: dict[str, Any] = json.loads(record.content)
    return fields


def preloaded() -> dict[str, str]:
    """The environment of a process that is going to record."""
    return {**os.environ, "LD_PRELOAD": str(shim("recorder"))}


class Recorder:
    """The shim in this process; every call fails if it was not preloaded."""

    def __init__(self) -> None:
        self._shim = ctypes.CDLL(None)
        self._shim.recorder_die_after.argtypes = [ctypes.c_longlong]
        self._shim.recorder_slow.argtypes = [ctypes.c_long]
        self._shim.recorder_mark.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

    def start(self, directory: Path, log: Path) -> None:
        """Record what happens to the files of ``directory``, here and in processes forked later."""
        self._shim.recorder_start(os.fsencode(directory.resolve()), os.fsencode(log))

    def stop(self) -> None:
        """Record nothing more."""
        self._shim.recorder_stop()

    def slow(self, flush_us: int) -> None:
        """Make each flush slow, in this process."""
        self._shim.recorder_slow(flush_us)

    def mark(self, kind: str, **fields: Any) -> None:
        """Write a mark into the log; it stands behind all that happened before."""
        text = json.dumps({"kind": kind, **fields}).encode()
        self._shim.recorder_mark(text, len(text))

    def die_after(self, count: int) -> None:
        """SIGKILL this process when it has made so many more records of files."""
        self._shim.recorder_die_after(count)
