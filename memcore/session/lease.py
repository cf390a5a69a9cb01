"""Leases: one writer at a time, fenced by epochs."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from memcore.errors import InvalidOptionError
from memcore.limits import LEASE_OWNER_CHARS_MAX, LEASE_SECONDS_MAX
from memcore.log import SessionTxn
from memcore.options import checked_bool
from memcore.rows.head import FLAG_LEASED
from memcore.rows.lifecycle import LeaseRow, read_lease, write_lease
from memcore.session.engine import LeaseToken, fenced, held
from memcore.store.interface import Txn

if TYPE_CHECKING:
    from memcore.session.append import Closure
    from memcore.session.engine import SessionRef

__all__ = [
    "Lease",
    "Leasing",
]


T = TypeVar("T")
_LATEST_MS: Final = 2**63


class Lease:
    """The right of one owner to change a session; ``with session.lease(...)`` gives it up again.

    It is the handle's through which it was taken, and of whatever that handle is given to. What
    others write through other handles is refused meanwhile.
    """

    def __init__(self, leasing: Leasing, row: LeaseRow, ttl_ms: int) -> None:
        self._leasing = leasing
        self._row = row
        self._tenure = LeaseToken(row.owner, row.epoch)
        self.ttl_ms = ttl_ms
        """How long it lasts from when it is taken or renewed."""

    def __repr__(self) -> str:
        return f"Lease({self.owner!r}, epoch={self.epoch})"

    @property
    def owner(self) -> str:
        """Who holds it."""
        return self._row.owner

    @property
    def epoch(self) -> int:
        """The fencing token: one more whenever another owner takes the session over."""
        return self._row.epoch

    @property
    def expires_at(self) -> float:
        """When others may take it unless it is renewed, in seconds since 1970."""
        return self._row.expires_ms / 1000

    def renew(self, ttl_seconds: float | None = None) -> None:
        """Hold it for ``ttl_seconds`` from now on, as long as before without it; same epoch.

        One that has expired can be renewed as long as nobody took it and nobody else wrote.

        Raises:
            FencedError: it is over.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        closure = self.renewing(ttl_seconds)
        self.settle(self._leasing.store(closure))

    def renewing(self, ttl_seconds: float | None = None) -> Closure[LeaseRow]:
        """The closure of ``renew``; ``settle`` takes what it returns."""
        if ttl_seconds is not None:
            self.ttl_ms = checked_ttl_ms(ttl_seconds)
        return self._leasing.renewing(self.tenure, self.ttl_ms)

    def release(self) -> bool:
        """Give it up; False if it was over already. The handle may write as any other then.

        Raises:
            ReadOnlyError, ClosedError, StorageError
        """
        done = self._leasing.store(self.releasing())
        self.drop()
        return done

    def releasing(self) -> Closure[bool]:
        """The closure of ``release``; ``drop`` follows it."""
        return self._leasing.releasing(self.tenure)

    def settle(self, row: LeaseRow) -> None:
        """Take what was stored."""
        self._row = row

    def drop(self) -> None:
        """The handle claims it no more."""
        self._leasing.dropped(self.tenure)

    @property
    def tenure(self) -> LeaseToken:
        """What a handle claims by it."""
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


class Leasing:
    """Makes the closures that take, renew and give up the lease of one session."""

    __slots__ = ("_address",)

    def __init__(self, address: SessionRef) -> None:
        self._address = address

    def take(self, owner: str, ttl_seconds: float, *, force: bool = False) -> Lease:
        """What ``Session.lease`` does."""
        closure, ttl_ms = self.taking(owner, ttl_seconds, force=force)
        return self.taken(self.store(closure), ttl_ms)

    def store(self, closure: Closure[T]) -> T:
        """Commit a closure."""
        return self._address.engine.store.transact(closure)

    def taking(
        self, owner: str, ttl_seconds: float, *, force: bool = False
    ) -> tuple[Closure[LeaseRow], int]:
        """The closure that takes the lease, and how long that lasts; ``taken`` follows it."""
        if not isinstance(owner, str) or not 0 < len(owner) <= LEASE_OWNER_CHARS_MAX:
            msg = f"owner: expected 1 to {LEASE_OWNER_CHARS_MAX} characters, got {owner!r:.80}"
            raise InvalidOptionError(msg)
        ttl_ms, by_force = checked_ttl_ms(ttl_seconds), checked_bool("force", force)
        self._address.need_writable()
        if self._address.passage is not None:
            self._address.passage.name(owner, "owner of a lease")

        def closure(txn: Txn) -> LeaseRow:
            now_ms = self._address.engine.now_ms()
            draft = self._address.unguarded(txn, create=True)
            assert draft is not None  # noqa: S101 - it was to be created
            row = read_lease(txn, *draft.log.place)
            mine = row is not None and draft.head.leased and row.owner == owner
            if row is not None and not (mine or by_force) and row.is_held(now_ms):
                raise held(row, now_ms, self._address.name)
            epoch = 0 if row is None else row.epoch
            new = LeaseRow(
                epoch if mine and not by_force else epoch + 1, _end(now_ms, ttl_ms), owner
            )
            write_lease(txn, *draft.log.place, new)
            _mark(txn, draft, leased=True)
            return new

        return closure, ttl_ms

    def taken(self, row: LeaseRow, ttl_ms: int) -> Lease:
        """The lease that was stored; the handle has it from now on."""
        lease = Lease(self, row, ttl_ms)
        self._address.lease = lease.tenure
        return lease

    def dropped(self, tenure: LeaseToken) -> None:
        """The handle does not claim a lease any more."""
        if self._address.lease == tenure:
            self._address.lease = None

    def renewing(self, tenure: LeaseToken, ttl_ms: int) -> Closure[LeaseRow]:
        """The closure that renews a lease."""
        self._address.need_writable()

        def closure(txn: Txn) -> LeaseRow:
            draft = self._address.unguarded(txn, create=False)
            row = None if draft is None else read_lease(txn, *draft.log.place)
            if draft is None or not draft.head.leased or not tenure.is_of(row):
                raise fenced(tenure, row, self._address.name)
            now_ms = self._address.engine.now_ms()
            new = LeaseRow(tenure.epoch, _end(now_ms, ttl_ms), tenure.owner)
            write_lease(txn, *draft.log.place, new)
            return new

        return closure

    def releasing(self, tenure: LeaseToken) -> Closure[bool]:
        """The closure that gives a lease up; whether it was still held."""
        self._address.refuse_read_only()

        def closure(txn: Txn) -> bool:
            draft = self._address.unguarded(txn, create=False)
            row = None if draft is None else read_lease(txn, *draft.log.place)
            if draft is None or row is None or not draft.head.leased or not tenure.is_of(row):
                return False
            write_lease(txn, *draft.log.place, row.vacant())
            _mark(txn, draft, leased=False)
            return True

        return closure


def _mark(txn: Txn, draft: SessionTxn, *, leased: bool) -> None:
    """Say in the head whether the lease's row is to be looked at; the session is as it was."""
    head = draft.head
    draft.is_vacated = False
    if head.leased == leased:
        return
    try:
        head.flags = head.flags | FLAG_LEASED if leased else head.flags & ~FLAG_LEASED
        draft.finish(now_ms=head.updated_ms, revised=False)
    except BaseException:
        txn.spoil()
        raise


def _end(now_ms: int, ttl_ms: int) -> int:
    """When a lease ends; whatever the clock says, it is a time that can be stored."""
    return min(max(now_ms + ttl_ms, 1), _LATEST_MS)


def checked_ttl_ms(value: object) -> int:
    """Milliseconds of a time to live in seconds.

    Raises:
        InvalidOptionError: no number above 0, or more than a year.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= LEASE_SECONDS_MAX:  # type: ignore[operator]
        msg = (
            f"ttl_seconds: expected more than 0 and at most {LEASE_SECONDS_MAX}, got {value!r:.40}"
        )
        raise InvalidOptionError(msg)
    return max(round(value * 1000), 1)  # type: ignore[operator]
