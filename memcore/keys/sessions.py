"""Rows of a session: they lie together."""

from __future__ import annotations

from struct import Struct
from typing import Final

from memcore.errors import CorruptValueError
from memcore.keys.kinds import Kind, Row
from memcore.keys.numbers import KIND_U64_2, U64
from memcore.keys.texts import malformed

__all__ = [
    "request_row",
    "row_of",
    "session_prefix",
    "session_row",
    "session_rows",
    "split_session_prefix",
    "split_session_row",
    "split_token_page",
    "token_page",
    "token_pages",
]

_SESSION_ROW: Final = Struct(">BQQBQ")
_TOKEN_PAGE: Final = Struct(">BQQBQQ")


def session_prefix(scope: int, session: int) -> bytes:
    """The prefix of all rows of a session."""
    return KIND_U64_2.pack(Kind.SESSION, scope, session)


def session_rows(scope: int, session: int, row: int) -> bytes:
    """The prefix of one session's rows of one sort."""
    return session_prefix(scope, session) + bytes((row,))


def session_row(scope: int, session: int, row: int, number: int) -> bytes:
    """``05 | scope u64 | session u64 | row u8 | number u64``."""
    return _SESSION_ROW.pack(Kind.SESSION, scope, session, row, number)


def request_row(scope: int, session: int, digest: bytes) -> bytes:
    """``05 | scope u64 | session u64 | 07 | digest``: an idempotency key's row."""
    return session_rows(scope, session, Row.REQUEST) + digest


def token_pages(scope: int, session: int, number: int) -> bytes:
    """The prefix of the token pages of one recount."""
    return session_row(scope, session, Row.TOKENS, number)


def token_page(scope: int, session: int, number: int, first: int) -> bytes:
    """``05 | scope u64 | session u64 | 08 | recount u64 | first position u64``."""
    return token_pages(scope, session, number) + U64.pack(first)


def split_token_page(key: bytes) -> tuple[int, int]:
    """``(recount, first position)`` of a token page.

    Raises:
        CorruptValueError: the key is none of a token page.
    """
    if len(key) != _TOKEN_PAGE.size:
        msg = f"the token counts under key {key.hex()} are of no recount; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    _, _, _, _, number, first = _TOKEN_PAGE.unpack(key)
    return number, first


def split_session_prefix(key: bytes) -> tuple[int, int]:
    """``(scope, session)`` of any row of a session.

    Raises:
        CorruptValueError: the key is too short for one.
    """
    if len(key) < KIND_U64_2.size:
        raise malformed(key)
    _, scope, session = KIND_U64_2.unpack_from(key)
    return scope, session


def split_session_row(key: bytes) -> tuple[int, int, int, int]:
    """``(scope, session, row, number)`` of a session's row.

    Raises:
        CorruptValueError: the key is none of a session's numbered rows.
    """
    if len(key) != _SESSION_ROW.size:
        raise malformed(key)
    _, scope, session, row, number = _SESSION_ROW.unpack(key)
    return scope, session, row, number


def row_of(key: bytes) -> int:
    """Which sort of a session's rows this is."""
    return key[17]
