"""Things that happen to a scope or to the database, chained beside their rows.

Each of these does nothing where the file is not audited, and is a part of its transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memcore.store.base import Txn

__all__ = ["end_scope", "end_session", "record_event"]


def record_event(txn: Txn, scope: int, what: str, details: Mapping[str, Any]) -> None:
    """Chain an event of a scope, 0: of the database.

    Args:
        txn: the transaction that it is a part of.
        scope: whose event it is.
        what: a few words, always the same for the same sort of event.
        details: JSON; never content.
    """
    if txn.audit is not None:
        txn.audit.event(scope, what, dict(details))


def end_session(txn: Txn, scope: int, session: int) -> None:
    """The rows of a session are about to be deleted: its chain ends, and the scope's says where.

    May be called again; its entries may be deleted from here on.
    """
    if txn.audit is not None:
        txn.audit.end((scope, session))


def end_scope(txn: Txn, scope: int) -> None:
    """All that a scope holds is about to be deleted: its own chain ends; the database's says where.

    Its sessions have ended before. Its entries (``keys.audit_care``) may be deleted from here on.
    """
    if txn.audit is not None:
        txn.audit.end((scope, 0))
