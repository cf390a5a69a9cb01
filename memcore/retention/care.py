"""The check of what is kept of holds and erasures."""

from __future__ import annotations

from collections.abc import Callable

from memcore import keys
from memcore.errors import MemcoreError
from memcore.held import counted_holds, holds_in, rows_of
from memcore.keys import Kind
from memcore.retention.pending import all_pending
from memcore.retention.removing import has_rows
from memcore.store.base import ReadTxn
from memcore.tombstone import buried

__all__ = ["cared_for", "check_care"]


def cared_for(txn: ReadTxn) -> list[int]:
    """The scopes that have rows of care."""
    found: list[int] = []
    start, stop = keys.scoped(Kind.CARE, 1), bytes((Kind.CARE + 1,))
    while (row := next(iter(txn.scan(start, stop, limit=1)), None)) is not None:
        found.append(keys.split_scoped(row[0])[0])
        start = keys.after(keys.scoped(Kind.CARE, found[-1]))
    return found


def check_care(txn: ReadTxn, is_shredded: Callable[[int], bool]) -> list[str]:
    """What is wrong with holds and erasures, in words; that one is under way is no finding.

    Args:
        txn: the snapshot.
        is_shredded: whether nobody can read the contents of a scope any more.
    """
    try:
        return [*_erasures(txn), *_holds(txn, is_shredded)]
    except MemcoreError as exc:
        return [f"holds and erasures cannot be checked: {exc}"]


def _erasures(txn: ReadTxn) -> list[str]:
    findings = []
    going = {scope for pending in all_pending(txn) for scope in pending.scopes}
    dead = set(buried(txn))
    for scope in sorted(dead):
        if txn.get(keys.scoped(Kind.SCOPE, scope)) is not None:
            findings.append(f"the erased scope {scope} has a name")
        if scope not in going and has_rows(txn, scope):
            findings.append(f"the erased scope {scope} has rows, and no erasure is under way")
    findings += [f"the erased scope {scope} has no tombstone" for scope in sorted(going - dead)]
    return findings


def _holds(txn: ReadTxn, is_shredded: Callable[[int], bool]) -> list[str]:
    told = counted_holds(txn)
    found = 0
    for scope in cared_for(txn):
        found += holds_in(txn, scope) if is_shredded(scope) else len(rows_of(txn, scope))
    if told == found:
        return []
    return [f"the holds of the database are {found}, its row of them says {told}"]
