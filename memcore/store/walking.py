"""The walk over the whole structure of a file while others may write."""

from __future__ import annotations

from typing import Final

from memcore.errors import StorageError
from memcore.store import lmdb as binding
from memcore.store.file import inspect, newest_meta

__all__ = ["walked"]

_WALKS: Final = 5


def walked(fd: int, path: str, *, name: str) -> list[str]:
    """What is wrong with the structure of a file, in words; read without a map.

    Nobody is kept from writing: findings count if no commit came in between.

    Args:
        fd: the open file.
        path: what messages call it.
        name: by which name it can be read.
    """
    for _ in range(_WALKS):
        try:
            before = inspect(fd, path).txnid
            findings = binding.verify(name)
            if not findings or newest_meta(fd, path).txnid == before:
                break
        except StorageError as error:
            return [str(error)]
    return findings
