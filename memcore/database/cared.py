"""Rows of care that a salvage keeps: holds, opt-outs, what is memory, what a file demands."""

from __future__ import annotations

from collections.abc import Iterator

from memcore import keys
from memcore.database.admission import DEMAND_KEY
from memcore.database.sieve import Sieve
from memcore.held import count_holds, opted_out_key
from memcore.keys import Care, Kind
from memcore.store.base import Txn

__all__ = ["cared_rows", "write_hold_count"]


def cared_rows(sieve: Sieve) -> Iterator[tuple[bytes, bytes]]:
    """Holds, opt-outs and marks of memory; erasures were done with, their scopes are left out."""
    if DEMAND_KEY in sieve.chosen:
        yield DEMAND_KEY, sieve.value(DEMAND_KEY)
    for which in (Care.HOLD, Care.MEMORY):
        for key in _kept(sieve, which):
            yield key, sieve.value(key)


def write_hold_count(txn: Txn, sieve: Sieve) -> None:
    """Say how many holds there are."""
    kept = list(_kept(sieve, Care.HOLD))
    outs = sum(key == opted_out_key(keys.split_scoped(key)[0]) for key in kept)
    count_holds(txn, len(kept) - outs)


def _kept(sieve: Sieve, which: int) -> Iterator[bytes]:
    for key in sorted(sieve.chosen):
        scope, rest = keys.split_scoped(key) if key[0] == Kind.CARE else (0, b"")
        if scope and rest[:1] == bytes((which,)):
            yield key
