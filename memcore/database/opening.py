"""Opening a database: the options of ``memcore.open``, checked up front."""

from __future__ import annotations

import os
from typing import Any

from memcore.compaction import CompactionRule
from memcore.database.handle import Database
from memcore.errors import InvalidOptionError, NotFoundError
from memcore.formats import policy_name
from memcore.limits import MAP_BYTES_DEFAULT, MAP_BYTES_MAX, MAP_BYTES_MIN
from memcore.options import checked_bool, checked_int
from memcore.session import Backing
from memcore.store import open_store
from memcore.tokens import TokenCounter, get_counter

__all__ = ["open_database"]

_MODES = ("full", "none")


def open_database(
    path: str | os.PathLike[str],
    *,
    durability: str | None = None,
    read_only: bool = False,
    create: bool = True,
    counter: str | TokenCounter | None = None,
    policy: str = "openai_chat",
    compaction: CompactionRule | None = None,
    allow_unsafe: bool = False,
    map_bytes: int = MAP_BYTES_DEFAULT,
    verify: bool = False,
) -> Database:
    """Open a memcore file; made if it is missing.

    Args:
        path: the file, or ``":memory:"`` for a private one that is gone at close.
        durability: ``"full"`` (every acknowledged change is on the device) or ``"none"`` (for
            tests and caches: a power cut may corrupt the file; needs ``allow_unsafe=True``). Fixed
            when the file is made; None follows it, and is ``"full"`` for a new one.
        read_only: look, write nothing, create nothing.
        create: make the file if it is missing.
        counter: what new sessions count tokens with: ``"bytes/4"`` (default), ``"tiktoken:NAME"``
            or a TokenCounter.
        policy: the pair policy of new sessions.
        compaction: the rule that ``needs_compaction`` and ``compact`` start from.
        allow_unsafe: consent to ``durability="none"``.
        map_bytes: virtual address space to map at first; it grows by itself.
        verify: walk the whole file's structure before it is opened (slow).

    Raises:
        InvalidOptionError: an option is of a wrong type or out of range.
        NotFoundError: the file is missing and ``create`` or ``read_only`` forbids to make it.
        StoreFormatError, CorruptStoreError, StoreAccessError, StoreLockedError, StorageError
    """
    file = _checked_path(path)
    for name, value in (
        ("read_only", read_only),
        ("create", create),
        ("verify", verify),
        ("allow_unsafe", allow_unsafe),
    ):
        checked_bool(name, value)
    in_memory = file == ":memory:"
    _check_durability(durability, allow_unsafe=allow_unsafe or in_memory)
    if checked_int("map_bytes", map_bytes, least=MAP_BYTES_MIN) > MAP_BYTES_MAX:
        msg = f"map_bytes: expected at most {MAP_BYTES_MAX}, got {map_bytes}"
        raise InvalidOptionError(msg)
    if compaction is not None and not isinstance(compaction, CompactionRule):
        msg = f"compaction: expected a CompactionRule, got {type(compaction).__name__}"
        raise InvalidOptionError(msg)
    if (read_only or not create) and not in_memory and not os.path.lexists(file):
        msg = f"{file!r}: there is no such file; open it for writing to make it"
        raise NotFoundError(msg)
    by = get_counter(counter)
    preset = policy_name(policy)
    store = open_store(
        file,
        read_only=read_only,
        create=create and not read_only,
        durability=durability,
        map_bytes=map_bytes,
        verify=verify,
    )
    return Database(Backing(store, by, preset), compaction or CompactionRule())


def _check_durability(durability: object, *, allow_unsafe: bool) -> None:
    if durability not in (None, *_MODES):
        msg = f"durability: expected one of {', '.join(map(repr, _MODES))}, got {durability!r}"
        raise InvalidOptionError(msg)
    if durability == "none" and not allow_unsafe:
        msg = (
            "durability='none' may corrupt the file when the power fails: pass allow_unsafe=True "
            "if the file is a cache or a test's, else leave durability out"
        )
        raise InvalidOptionError(msg)


def _checked_path(path: Any) -> str:
    if isinstance(path, str | os.PathLike):
        file = os.fsdecode(os.fspath(path))
        if file and "\0" not in file:
            return file
    msg = f"path: expected a file's path or ':memory:', got {path!r}"
    raise InvalidOptionError(msg)
