"""Rows of care that a salvage keeps: holds, and who opted out of memory."""

from __future__ import annotations

from collections.abc import Iterator

from memcore import keys
from memcore.database.sieve import Sieve
from memcore.held import OPTED_OUT, count_holds
from memcore.keys import Care, Kind
from memcore.store.base import Txn

__all__ = ["cared_rows", "write_hold_count"]


def cared_rows(sieve: Sieve) -> Iterator[tuple[bytes, bytes]]:
    """Holds and opt-outs as they are; erasures were done with, their scopes are left out."""
    for key in _kept(sieve):
        yield key, sieve.value(key)


def write_hold_count(txn: Txn, sieve: Sieve) -> None:
    """Say how many holds there are."""
    count_holds(
        txn, sum(not key.endswith(OPTED_OUT) or len(key) > _OUT_BYTES for key in _kept(sieve))
    )


_OUT_BYTES = len(keys.care_rows(0, Care.HOLD) + OPTED_OUT)


def _kept(sieve: Sieve) -> Iterator[bytes]:
    which = bytes((Care.HOLD,))
    for key in sorted(sieve.chosen):
        scope, rest = keys.split_scoped(key) if key[0] == Kind.CARE else (0, b"")
        if scope and rest[:1] == which:
            yield key
