"""Private files: created and replaced atomically and durably, accessible to their owner only.

Key files, secrets, anchors, logs and archives are in directories where others may have planted
something: symlinks are never followed, and new content is first written under an unguessable name.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from os import urandom
from typing import Final

__all__ = [
    "absent_directory",
    "give_to",
    "is_same",
    "open_private",
    "put_private",
    "remove_unfinished",
    "sync_directory",
]


_MODE: Final = 0o600
_NAME_BYTES: Final = 8
_UNFINISHED: Final = re.compile(r"\.([0-9]+(-[0-9a-f]{8})?|[0-9a-f]{16})\.tmp")
"""Suffixes of unfinished files; the first alternative matches those of older versions."""


def absent_directory(path: str) -> str:
    """The first directory on the way to a file that is not there; empty if all are."""
    absent, place = "", os.path.dirname(path)
    while place and not os.path.isdir(place):
        absent, place = place, os.path.dirname(place)
    return absent


def open_private(path: str, flags: int) -> int:
    """Serve as ``opener`` for ``open``: new files are owner-only, and no symlink is followed.

    The mode is explicit, so that a permissive umask cannot expose the contents to others.
    """
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)


def put_private(
    path: str,
    content: bytes,
    *,
    new: bool,
    owner: os.stat_result | None = None,
    mode: int = _MODE,
) -> None:
    """Write a file durably, replacing the one at ``path`` atomically or creating it.

    Args:
        path: the destination, with every link resolved.
        content: the complete content.
        new: refuse to replace an existing file.
        owner: the file gets the owner and group of this one, as far as the process may change
            them; None: those of the process, which may be root.
        mode: permission bits; reduced if the group of ``owner`` cannot be set.

    Raises:
        FileExistsError: the file exists, and ``new`` is set.
        OSError: the system refused; the old file is unchanged, unless the sync of its directory
            failed.
    """
    # With a shared temporary name, a writer could modify a file that another has just linked.
    temporary = f"{path}.{urandom(_NAME_BYTES).hex()}.tmp"
    fd = -1
    try:
        try:
            fd = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except OSError as error:  # names what the caller knows
            error.filename = path
            raise
        if owner is None:
            os.fchmod(fd, mode)
        else:
            give_to(fd, owner, mode)
        left = memoryview(content)
        while left:
            left = left[os.write(fd, left) :]
        os.fsync(fd)
        if new:
            os.link(temporary, path)
        else:
            os.replace(temporary, path)
        sync_directory(path)
    finally:
        # C functions only: an interrupt is raised after one returns, and the next still runs.
        try:
            os.unlink(temporary)
        except OSError:
            pass
        finally:
            if fd >= 0:
                os.close(fd)


def give_to(fd: int, owner: os.stat_result, mode: int) -> None:
    """Set a new file's owner and group to those of another file, and set its mode.

    Only root may change the owner. A file written by another account of the group keeps that
    account as its owner and gets the original group. If that group cannot be set either, the file
    keeps its own group, which gets no permissions.

    Raises:
        OSError
    """
    own = os.fstat(fd)
    if (own.st_uid, own.st_gid) != (owner.st_uid, owner.st_gid):
        try:
            os.fchown(fd, owner.st_uid, owner.st_gid)
        except PermissionError:
            if own.st_gid != owner.st_gid:
                try:
                    os.fchown(fd, -1, owner.st_gid)
                except PermissionError:
                    mode &= ~stat.S_IRWXG
    os.fchmod(fd, mode)


def is_same(path: str, other: str) -> bool:
    """Return True if two paths lead to one file, by a link of any kind, or would do so."""
    try:
        return os.path.realpath(path) == os.path.realpath(other) or os.path.samefile(path, other)
    except (OSError, ValueError):  # one is missing, or no path at all
        return False


def remove_unfinished(path: str) -> None:
    """Delete unfinished files left by killed writers of ``path``; no writer may be active."""
    directory, own = os.path.split(path.rstrip("/"))
    for name in os.listdir(directory or "."):
        if name.startswith(own) and _UNFINISHED.fullmatch(name, len(own)):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))


def sync_directory(path: str) -> None:
    """Make the directory entry of ``path`` durable."""
    directory = os.path.dirname(path.rstrip("/")) or "."
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # the file system cannot sync one
            raise
    finally:
        os.close(fd)
