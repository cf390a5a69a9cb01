"""A file of an older format made one of the present one: a proven copy in its place."""

from __future__ import annotations

import os

from memcore.errors import InternalError
from memcore.limits import FORMAT_VERSION, MAP_BYTES_DEFAULT
from memcore.store.copying import Judge
from memcore.store.environment import Environment
from memcore.store.replacing import compact_file

__all__ = ["migrate_file"]

OLDEST_READ = 0
"""Format 0 has the layout of format 1 as it was at the end: nothing but the record differs."""


def migrate_file(path: str, *, keep: str | None, judge: Judge | None, look: bool = False) -> int:
    """Make the file at ``path`` one of the present format; the format that it had.

    Cut short anywhere it leaves the old file or the new one, whole.

    Args:
        path: the file, every link resolved.
        keep: another name for the old file; None: it is given up.
        judge: finds out what is wrong with the copy.
        look: change nothing.

    Raises:
        StoreLockedError: somebody has the file open.
        StoreFormatError: it is no memcore file, or one of a newer format.
        StorageError, OSError
    """
    env = Environment(path, map_bytes=MAP_BYTES_DEFAULT)
    env.oldest = OLDEST_READ
    env.attach(read_only=look)
    try:
        found = env.format
        if found is None:
            raise InternalError("an environment without a format record")
        if look or found.version >= FORMAT_VERSION:
            return found.version
        if keep is not None:
            os.link(path, keep)
        record = found._replace(version=FORMAT_VERSION, reader_version=FORMAT_VERSION)
        env.queue.call(lambda _: compact_file(env, record=record, judge=judge), job=True)
        return found.version
    finally:
        env.shut()
