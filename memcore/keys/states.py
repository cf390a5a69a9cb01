"""Rows of a state: of a session, or of what a scope's sessions share."""

from __future__ import annotations

from typing import Final

from memcore.keys.kinds import Kind, Row
from memcore.keys.numbers import KIND_U64_2, number_of
from memcore.keys.scopes import scoped, split_scoped
from memcore.keys.sessions import session_rows, split_session_prefix
from memcore.keys.texts import malformed, unpack_text

__all__ = [
    "split_state_row",
    "state_field",
    "state_place",
    "state_rows",
]

_SCOPED_BYTES: Final = 9


def state_rows(scope: int, session: int) -> bytes:
    """The prefix of the rows of a session's state; session 0: of the scope's own."""
    if session:
        return session_rows(scope, session, Row.STATE)
    return scoped(Kind.STATE, scope)


def state_place(key: bytes) -> tuple[int, int]:
    """``(scope, session)`` of a row of a state, as ``state_rows`` takes them.

    Raises:
        CorruptValueError: the key is too short for one.
    """
    if key[:1] != bytes((Kind.STATE,)):
        return split_session_prefix(key)
    if len(key) < _SCOPED_BYTES:
        raise malformed(key)
    return split_scoped(key)[0], 0


def state_field(rows: bytes, packed: bytes) -> bytes:
    """The prefix of the versions of a state's field, behind ``state_rows``.

    A longer name that has a NUL there goes on with ``FF``, with which no counter begins.
    """
    return rows + packed


def split_state_row(key: bytes) -> tuple[str, int]:
    """``(field, counter)`` of a version of a state's field.

    Raises:
        CorruptValueError: the key is none of a version.
    """
    rows = _SCOPED_BYTES if key[:1] == bytes((Kind.STATE,)) else KIND_U64_2.size + 1
    field = unpack_text(key[rows:-8])
    if len(key) < rows + 10 or not field:
        raise malformed(key)
    return field, number_of(key)
