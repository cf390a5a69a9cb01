"""A device that is nearly full: a file that takes the space, or a limit of this process."""

from __future__ import annotations

import os
import resource
from pathlib import Path

__all__ = ["Ballast", "Device", "Limit"]


class Device:
    """Leaves a store's file so many bytes to grow by."""

    def leave(self, store: Path, more: int) -> None:
        """From now on the file of the store may grow by ``more`` bytes."""
        raise NotImplementedError

    def free(self) -> None:
        """As if nothing were the matter."""
        raise NotImplementedError


class Ballast(Device):
    """Fills a small file system with one file."""

    def __init__(self, root: Path) -> None:
        self._file = root / "ballast"

    def leave(self, store: Path, more: int) -> None:
        """Let the ballast have all but ``more`` bytes."""
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT)
        try:
            status = os.fstatvfs(fd)
            room = status.f_bavail * status.f_frsize
            size = os.fstat(fd).st_size + room - more
            size -= size % status.f_frsize
            os.ftruncate(fd, max(0, min(size, os.fstat(fd).st_size)))
            if size > 0:
                os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)

    def free(self) -> None:
        """Drop the ballast."""
        self._file.unlink(missing_ok=True)


class Limit(Device):
    """RLIMIT_FSIZE: needs no privilege, and cuts a write short at any byte."""

    def leave(self, store: Path, more: int) -> None:
        """No file may grow beyond what this one has and ``more`` bytes."""
        size = store.stat().st_size if store.exists() else 0
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + more, hard))

    def free(self) -> None:
        """Lift the limit."""
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
