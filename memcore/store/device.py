"""The device under a file: how much it still takes, and how it says that it is full."""

from __future__ import annotations

import errno
import os
import resource
import sys
from typing import Final

__all__ = ["FULL", "is_cramped"]

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors that refuse more bytes: of the device, of a quota, of a limit of the process."""

_ROOM_BYTES: Final = 1024**2


def _room_beyond(fd: int) -> int:
    """Bytes by which the file may grow: what the device has free, or a limit of the process."""
    status = os.fstatvfs(fd)
    # A file system that counts no blocks (ramfs, an unlimited tmpfs) does not tell.
    room = status.f_bavail * status.f_frsize if status.f_blocks else sys.maxsize
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY:
        room = min(room, max(0, limit - os.fstat(fd).st_size))
    return room


def is_cramped(fd: int, more_bytes: int) -> bool:
    """Whether a write of so many bytes may have been cut short: by the device or by a limit."""
    return _room_beyond(fd) < _ROOM_BYTES + more_bytes
