"""The names that a file may have: one, and for moments a second one of its making.

A new file is made under ``FINAL.new-PID-HEX``. It keeps that name until its directory is flushed,
so that an opener who meets two names knows that it must flush the directory itself.

LMDB's lock file belongs to a name, not to a file. Through two names of their own two processes
would have two lock files, and each would write over what the other has written.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from secrets import token_hex
from typing import Final

from memcore.errors import StoreAccessError

__all__ = ["LOCK", "MOVING", "leftovers", "need_one_name", "temporary_name"]

LOCK: Final = "-lock"
"""What follows the name of a file in that of LMDB's lock file."""
MOVING: Final = "-name"
"""What follows a temporary name in the one that becomes the final name."""

_MADE: Final = re.compile("([0-9]+)-[0-9a-f]{8}(-name)?")
"""What follows ``FINAL.new-``: a name that only looks alike is somebody's own file."""
_ATTEMPTS: Final = 20


def temporary_name(final: str) -> str:
    """Where this process makes a file that is to be ``final``."""
    return f"{final}.new-{os.getpid()}-{token_hex(4)}"


def leftovers(final: str) -> list[tuple[str, int]]:
    """The temporary names beside ``final`` and the process ids of those who made them."""
    prefix = f"{Path(final).name}.new-"
    found = []
    for name in os.listdir(Path(final).parent):
        made = _MADE.fullmatch(name, len(prefix)) if name.startswith(prefix) else None
        if made is not None:
            found.append((str(Path(final).with_name(name)), int(made[1])))
    return found


def need_one_name(fd: int, path: str) -> bool:
    """Whether the file has a temporary name beside its own.

    Raises:
        StoreAccessError: it has a name that memcore did not give it.
    """
    for _ in range(_ATTEMPTS):  # a temporary name may go while they are counted
        status = os.fstat(fd)
        if status.st_nlink <= 1:
            return False
        known = 1 + sum(_is(name, status) for name, _ in leftovers(path))
        if known >= status.st_nlink:
            return True
    raise StoreAccessError(
        f"{path}: has {status.st_nlink} names (hard links), and through each of them others would"
        " use another lock file and destroy what is written through this one: remove the other"
        " names, or make a copy with memcore backup"
    )


def _is(name: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(name), status)
    except FileNotFoundError:
        return False
