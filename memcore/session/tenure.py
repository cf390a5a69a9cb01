"""Who may change a session now: looked up inside the transaction, before its first write."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from memcore.errors import FencedError, LeaseHeldError
from memcore.lease import LeaseRow, read_lease, write_lease
from memcore.log import Draft
from memcore.store.base import Txn

__all__ = ["Tenure", "admit", "admit_raw"]


@dataclass(frozen=True, slots=True)
class Tenure:
    """What a handle says to hold: it is so while the stored row says the same."""

    owner: str
    epoch: int
    process: int = field(default_factory=os.getpid)
    """The child of a fork holds nothing: its parent may go on."""

    def is_of(self, row: LeaseRow | None) -> bool:
        """Whether a stored row is of this tenure, expired or not."""
        return row is not None and (row.owner, row.epoch) == (self.owner, self.epoch)


def admit(txn: Txn, draft: Draft, tenure: Tenure | None, *, now_ms: int, name: str) -> None:
    """Let a change of a draft's session begin, or refuse it.

    Raises:
        LeaseHeldError: somebody else holds the session.
        FencedError: the handle's own lease was taken over, or given up.
        CorruptValueError: the lease's row is damaged.
    """
    draft.is_vacated = admit_raw(txn, draft.log.place, tenure, now_ms=now_ms, name=name)


def admit_raw(
    txn: Txn, place: tuple[int, int], tenure: Tenure | None, *, now_ms: int, name: str
) -> bool:
    """As ``admit``, of a change that is made without a draft.

    Returns:
        Whether nobody holds the session, so that its head need not say that somebody does.
    """
    row = read_lease(txn, *place)
    if tenure is not None and tenure.process == os.getpid():
        if tenure.is_of(row):
            return False
        raise fenced(tenure, row, name)
    if row is None:
        return True
    if row.is_held(now_ms):
        raise held(row, now_ms, name)
    if row.owner:
        # Its owner is not to go on as if nobody had written since: the next one has another epoch.
        write_lease(txn, *place, row.vacant())
    return True


def held(row: LeaseRow, now_ms: int, name: str) -> LeaseHeldError:
    """The error of who comes while somebody else holds the session."""
    msg = (
        f"session {name[:80]!r} is leased to {row.owner[:80]!r} for another "
        f"{(row.expires_ms - now_ms) / 1000:.1f} seconds: take it with session.lease() after that"
    )
    return LeaseHeldError(msg, owner=row.owner, epoch=row.epoch, expires_at=row.expires_ms / 1000)


def fenced(tenure: Tenure, row: LeaseRow | None, name: str) -> FencedError:
    """The error of who goes on with a lease that is not theirs any more."""
    current = 0 if row is None else row.epoch
    said = f": the epoch is {current} now" if current > tenure.epoch else ""
    msg = (
        f"the lease of {tenure.owner[:80]!r} on session {name[:80]!r} (epoch {tenure.epoch}) is "
        f"over{said}; nothing was stored. Read what was written since, then take a new lease with "
        "session.lease()"
    )
    return FencedError(msg, epoch=tenure.epoch, current=current)
