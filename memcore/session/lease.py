"""Leases: a single writer at a time, fenced by epochs."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from memcore.errors import InvalidOptionError
from memcore.limits import LEASE_OWNER_CHARS_MAX, LEASE_SECONDS_MAX
from memcore.log import SessionTxn
from memcore.options import checked_bool, refuse_copies
from memcore.rows.head import FLAG_LEASED
from memcore.rows.lifecycle import LeaseRow, read_lease, write_lease
from memcore.session.change import Change, Unchanged
from memcore.session.engine import LeaseToken, fenced, held

if TYPE_CHECKING:
    from memcore.session.engine import SessionRef

__all__ = [
    "Lease",
    "ReleaseLease",
    "RenewLease",
    "TakeLease",
]


_LATEST_MS: Final = 2**63


class Lease:
    """One owner's exclusive right to change a session; ``with session.lease(...)`` releases it.

    It belongs to the handle that took it and to whoever uses that handle. Writes through other
    handles are refused meanwhile.
    """

    __reduce__ = refuse_copies

    def __init__(self, ref: SessionRef, row: LeaseRow, ttl_ms: int) -> None:
        self._ref = ref
        self._row = row
        # Claimed only once the row is committed: with a token that is not stored the handle would
        # be fenced by its own lease.
        self._tenure = ref.lease = LeaseToken(row.owner, row.epoch)
        self.ttl_ms = ttl_ms
        """Milliseconds it lasts from when it is taken or renewed."""

    def __repr__(self) -> str:
        return f"Lease({self.owner!r}, epoch={self.epoch})"

    @property
    def owner(self) -> str:
        """Name of the holder."""
        return self._row.owner

    @property
    def epoch(self) -> int:
        """The fencing token, which increases whenever another owner takes over the session."""
        return self._row.epoch

    @property
    def expires_at(self) -> float:
        """Time from which others may take it unless it is renewed, in seconds since 1970."""
        return self._row.expires_ms / 1000

    def renew(self, ttl_seconds: float | None = None) -> None:
        """Extend it to ``ttl_seconds`` from now (None: the previous duration); same epoch.

        An expired lease can be renewed if nobody has taken it and nobody else has written since.

        Raises:
            FencedError: the lease is no longer valid.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        change = self.renewal(ttl_seconds)
        self.settle(self._ref.engine.store.transact(change))

    def renewal(self, ttl_seconds: float | None = None) -> RenewLease:
        """Return the change of ``renew``; pass its result to ``settle``."""
        if ttl_seconds is not None:
            self.ttl_ms = checked_ttl_ms(ttl_seconds)
        return RenewLease(self._ref, self.tenure, self.ttl_ms)

    def release(self) -> bool:
        """Release it; False if it was no longer valid. The handle then writes like any other.

        Raises:
            ReadOnlyError, ClosedError, StorageError
        """
        done = self._ref.engine.store.transact(self.release_change())
        self.drop()
        return done

    def release_change(self) -> ReleaseLease:
        """Return the change of ``release``; call ``drop`` after it."""
        return ReleaseLease(self._ref, self.tenure)

    def settle(self, row: LeaseRow) -> None:
        """Adopt the stored row."""
        self._row = row

    def drop(self) -> None:
        """Withdraw the handle's claim to it."""
        # The handle may have taken another lease since.
        if self._ref.lease == self.tenure:
            self._ref.lease = None

    @property
    def tenure(self) -> LeaseToken:
        """The token that a handle holding the lease presents."""
        return self._tenure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class TakeLease(Change[LeaseRow]):
    """Take a session's lease, creating the session if it does not exist.

    Args:
        ref: the session.
        owner: 1 to 1,024 characters.
        ttl_seconds: time until it expires unless renewed.
        force: take it even if another owner holds it.

    Raises:
        InvalidOptionError: the owner or the time is out of range.
        LeaseHeldError (when run): another owner holds it.
    """

    __slots__ = ("begun", "force", "owner", "ttl_ms")
    atomic = True
    # The usual check would refuse a takeover by force, and vacate an expired lease that the same
    # owner gets back under its epoch.
    guarded = False

    def __init__(
        self, ref: SessionRef, owner: str, ttl_seconds: float, *, force: bool = False
    ) -> None:
        if not isinstance(owner, str) or not 0 < len(owner) <= LEASE_OWNER_CHARS_MAX:
            msg = f"owner: expected 1 to {LEASE_OWNER_CHARS_MAX} characters, got {owner!r:.80}"
            raise InvalidOptionError(msg)
        self.owner = owner
        self.ttl_ms, self.force = checked_ttl_ms(ttl_seconds), checked_bool("force", force)
        self.begun: LeaseRow | None = None
        """The row of the last run, if it began a new epoch."""
        super().__init__(ref)
        if ref.scope_filter is not None:
            ref.scope_filter.name(owner, "owner of a lease")

    def run(self, session: SessionTxn) -> Unchanged:
        """Write the lease's row, with the next epoch if the owner changes."""
        place, now_ms = session.log.place, self.ref.engine.now_ms()
        row = read_lease(session.txn, *place)
        # Without the flag no writer looked at the row (a head that was rebuilt has none), so
        # whoever it names may have been written past.
        mine = row is not None and session.head.leased and row.owner == self.owner
        if row is not None and not (mine or self.force) and row.is_held(now_ms):
            raise held(row, now_ms, self.ref.name)
        epoch = 0 if row is None else row.epoch
        # A new epoch fences whoever held the lease before, whatever the clocks say; with ``force``
        # also other handles of the same owner.
        epoch = epoch if mine and not self.force else epoch + 1
        new = LeaseRow(epoch, _end(now_ms, self.ttl_ms), self.owner)
        write_lease(session.txn, *place, new)
        _mark(session, leased=True)
        self.begun = new if row is None or epoch != row.epoch else None
        return Unchanged(new)


class RenewLease(Change[LeaseRow]):
    """Extend a lease to some time from now.

    Raises (when run):
        FencedError: the lease is no longer valid.
    """

    __slots__ = ("token", "ttl_ms")
    creates = False
    atomic = True
    guarded = False

    def __init__(self, ref: SessionRef, token: LeaseToken, ttl_ms: int) -> None:
        self.token, self.ttl_ms = token, ttl_ms
        super().__init__(ref)

    def run(self, session: SessionTxn) -> Unchanged:
        """Write the lease's row with a later expiry."""
        row = read_lease(session.txn, *session.log.place)
        if not session.head.leased or not self.token.is_of(row):
            raise fenced(self.token, row, self.ref.name)
        now_ms = self.ref.engine.now_ms()
        new = LeaseRow(self.token.epoch, _end(now_ms, self.ttl_ms), self.token.owner)
        write_lease(session.txn, *session.log.place, new)
        return Unchanged(new)

    def missing(self) -> LeaseRow:
        """Reject the renewal: the session is gone."""
        raise fenced(self.token, None, self.ref.name)


class ReleaseLease(Change[bool]):
    """Release a lease; the result is True if it was still held."""

    __slots__ = ("token",)
    creates = False
    atomic = True
    guarded = False

    def __init__(self, ref: SessionRef, token: LeaseToken) -> None:
        self.token = token
        # Not need_writable: a release must not run the work due on the handle's first use.
        ref.refuse_read_only()
        self.ref = ref

    def run(self, session: SessionTxn) -> Unchanged:
        """Write the lease's row without an owner; the epoch stays."""
        row = read_lease(session.txn, *session.log.place)
        if row is None or not session.head.leased or not self.token.is_of(row):
            return Unchanged(result=False)
        # The row stays, for its epoch: the next owner's has to be greater than all before.
        write_lease(session.txn, *session.log.place, row.vacant())
        _mark(session, leased=False)
        return Unchanged(result=True)

    def missing(self) -> bool:
        """Release nothing."""
        return False


def _mark(session: SessionTxn, *, leased: bool) -> None:
    """Set or clear the head's leased flag; the session is otherwise unchanged."""
    head = session.head
    # An earlier change of this transaction may have found the lease expired; ``finish`` would then
    # clear the flag that is set below.
    session.is_vacated = False
    if head.leased == leased:
        return
    try:
        head.flags = head.flags | FLAG_LEASED if leased else head.flags & ~FLAG_LEASED
        # A lease is no change of the session: neither its revision nor its time moves.
        session.finish(now_ms=head.updated_ms, revised=False)
    except BaseException:
        # The batch shares the draft with the flag, and an atomic change has no mark to restore.
        session.txn.spoil()
        raise


def _end(now_ms: int, ttl_ms: int) -> int:
    """Return the expiry of a lease, clamped to what can be stored, whatever the clock says."""
    return min(max(now_ms + ttl_ms, 1), _LATEST_MS)


def checked_ttl_ms(value: object) -> int:
    """Convert a time to live from seconds to milliseconds.

    Raises:
        InvalidOptionError: not a number above 0, or more than a year.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= LEASE_SECONDS_MAX:  # type: ignore[operator]
        msg = (
            f"ttl_seconds: expected more than 0 and at most {LEASE_SECONDS_MAX}, got {value!r:.40}"
        )
        raise InvalidOptionError(msg)
    return max(round(value * 1000), 1)  # type: ignore[operator]
