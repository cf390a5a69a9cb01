"""Private files: made and replaced whole and durably, readable by their owner alone.

Key files, secrets, anchors, logs and archives lie where others may have planted something: no link
is followed, and what is written anew has a name beforehand that nobody can guess.
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
    "give_to",
    "open_private",
    "put_private",
    "remove_unfinished",
    "sync_directory",
]


_MODE: Final = 0o600
_NAME_BYTES: Final = 8
_UNFINISHED: Final = re.compile(r"\.([0-9]+(-[0-9a-f]{8})?|[0-9a-f]{16})\.tmp")
"""Suffixes of unfinished files; the first forms are of older versions."""


def open_private(path: str, flags: int) -> int:
    """An ``opener`` for ``open``: a new file is its owner's alone, and no link is followed.

    What holds contents must not lie open to others because of a umask.
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
    """Write a file durably in place of the one at ``path``, or as a new one.

    Args:
        path: where; every link resolved.
        content: all of it.
        new: refuse to replace one.
        owner: it belongs to whom this belongs to, as far as who writes may give it away; None: to
            who writes, which may be root.
        mode: who may read it; fewer, if it cannot be given to the group of ``owner``.

    Raises:
        FileExistsError: there is one, and it is to be a new one.
        OSError: the system refused; what was there is there, unless the flush of its directory
            failed.
    """
    # A writer into a file that another has just linked would change one that is in use.
    temporary = f"{path}.{urandom(_NAME_BYTES).hex()}.tmp"
    fd = -1
    try:
        fd = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
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
        # By functions in C alone: an interrupt comes when one has returned, and the next is done.
        try:
            os.unlink(temporary)
        except OSError:
            pass
        finally:
            if fd >= 0:
                os.close(fd)


def give_to(fd: int, owner: os.stat_result, mode: int) -> None:
    """Have a new file belong to whom another belongs to, and have its mode.

    Only root gives files away. What a second account of a group writes is its own, with the group
    of before. If that is not to be had either, its new group, which is another, has no rights.

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


def remove_unfinished(path: str) -> None:
    """Delete the unfinished files that killed writers of ``path`` left; no writer may be active."""
    directory, own = os.path.split(path)
    for name in os.listdir(directory or "."):
        if name.startswith(own) and _UNFINISHED.fullmatch(name, len(own)):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))


def sync_directory(path: str) -> None:
    """Make the directory entry of ``path`` durable."""
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # no such notion here
            raise
    finally:
        os.close(fd)
