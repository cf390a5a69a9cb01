"""Rows of the care of a scope or of the database: holds, erasures, terms, audits, quarantine."""

from __future__ import annotations

from typing import Final

from memcore.keys.kinds import Care, Kind, Row
from memcore.keys.numbers import U64
from memcore.keys.scopes import scoped
from memcore.keys.sessions import session_rows

__all__ = [
    "audit_care",
    "audit_mark",
    "audit_rows",
    "care_rows",
]

_AUDIT: Final = bytes((Care.AUDIT,))
_AUDIT_ENTRIES: Final = _AUDIT + b"\x01"
_AUDIT_MARKS: Final = _AUDIT + b"\x02"


def care_rows(scope: int, which: int) -> bytes:
    """``12 | scope u64 | which u8``: rows of the care of a scope; scope 0: of the database."""
    return scoped(Kind.CARE, scope, bytes((which,)))


def audit_rows(scope: int, session: int) -> bytes:
    """The prefix of an audit chain's entries; session 0: the scope's own, scope 0: the database's.

    ``05 | scope | session | 0D`` or ``12 | scope | 04 | 01``; the number of the entry follows.
    """
    if session:
        return session_rows(scope, session, Row.AUDIT)
    return scoped(Kind.CARE, scope, _AUDIT_ENTRIES)


def audit_mark(scope: int, session: int) -> bytes:
    """``12 | scope u64 | 04 | 02 | session u64``: the chain has entries that no anchor covers."""
    return scoped(Kind.CARE, scope, _AUDIT_MARKS, U64.pack(session))


def audit_care(scope: int) -> bytes:
    """The prefix of what a scope keeps of its audit: its own chain, and marks of all its chains."""
    return scoped(Kind.CARE, scope, _AUDIT)
