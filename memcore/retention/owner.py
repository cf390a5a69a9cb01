"""The scopes that a user owns, in one application or in all of them, and their names."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from memcore import keys, names
from memcore.codec import open_value
from memcore.errors import CorruptValueError
from memcore.keys import Kind
from memcore.store.base import ReadTxn, Txn

__all__ = ["drop_names", "drop_names_of", "scopes_of"]

_NAMES = bytes((Kind.SCOPE_NAME,))


def scopes_of(txn: ReadTxn, user: str, app: str | None) -> list[tuple[int, str]]:
    """``(scope, app)`` of a user, without an application in every one: a look at each.

    Raises:
        InvalidOptionError: a name is not legal.
        CorruptValueError: a row of the user's names is damaged, or any whose names do not fit its
            key.
    """
    names.check_name(user, "user")
    if app is not None:
        scope = names.scope_of(txn, app, user)
        return [] if scope is None else [(scope, app)]
    found: dict[int, str] = {}
    start, stop = _NAMES, _NAMES + keys.LONG_NAME
    while (row := next(iter(txn.scan(start, stop, limit=1)), None)) is not None:
        packed = _first_text(row[0][1:])
        each = keys.unpack_text(packed)
        scope = names.scope_of(txn, each, user)
        if scope is not None:
            found[scope] = each
        start = _NAMES + packed + b"\xff"  # a longer name with a NUL there is another one
    for key, value in txn.scan(stop, keys.after(_NAMES)):
        number, texts = names.unpack_name(open_value(key, value)[1])
        if texts[1:] == (user,):
            found[number] = texts[0]
    return sorted(found.items())


def drop_names(txn: Txn, scope: int, app: str, user: str) -> None:
    """Take both rows of a scope's name away; its number is never given out again."""
    txn.delete(keys.name_key(_NAMES, app, user))
    txn.delete(keys.scoped(Kind.SCOPE, scope))


def drop_names_of(txn: Txn, scopes: Iterable[int]) -> dict[str, list[int]]:
    """Take the names of scopes away, damaged ones too; which of the scopes each user had."""
    found: dict[str, list[int]] = {}
    gone = set(scopes)
    named: dict[bytes, tuple[int, str]] = {}
    for key, value in txn.scan(_NAMES, keys.after(_NAMES)):
        with suppress(CorruptValueError):
            number, texts = names.unpack_name(open_value(key, value)[1])
            if number in gone:
                named[key] = number, texts[1]
    for key, (scope, user) in named.items():
        txn.delete(key)
        found.setdefault(user, []).append(scope)
    for scope in gone:
        txn.delete(keys.scoped(Kind.SCOPE, scope))
    return found


def _first_text(packed: bytes) -> bytes:
    """The first of several ``pack_text`` in a row, packed as it is.

    Raises:
        CorruptValueError: they are no packed texts.
    """
    end = packed.find(b"\x00")
    while end >= 0 and packed[end + 1 : end + 2] == b"\xff":
        end = packed.find(b"\x00", end + 2)
    if end < 0:
        msg = f"the name {packed[:80].hex()} is malformed; run 'memcore check'"
        raise CorruptValueError(msg, key=packed)
    return packed[: end + 1]
