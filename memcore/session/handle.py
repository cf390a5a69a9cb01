"""Session: the object that a runtime holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from memcore.log import Prepared
from memcore.model import (
    Receipt,
    RecountResult,
)
from memcore.session.address import Address
from memcore.session.appending import AnyEnvelope
from memcore.session.batch import Batch, BatchContext
from memcore.session.changes import Closure
from memcore.session.ending import Ending
from memcore.session.holding import hold, release
from memcore.session.leasing import Lease, Leasing
from memcore.session.recounting import Progress, Recounting
from memcore.session.shown import Shown
from memcore.session.state import SessionState
from memcore.state import Command, Trace
from memcore.store import LmdbStore
from memcore.tokens import TokenCounter, get_counter

__all__ = ["Session", "store_of"]

T = TypeVar("T")
_INTERNAL: Final = frozenset((
    "after_append", "appending", "changes", "checkpointing", "compacting", "ending", "history_at",
    "is_admitting", "leasing", "metering", "plan_batch", "plan_command", "plan_fork", "plan_share",
    "reading", "recounting", "recovering", "repairing", "seen_revision",
))  # fmt: skip
"""What memcore's own facades and adapters use of a session: no part of the public surface."""


class Session(Shown):
    """One append-only conversation in a scope. May be shared by threads.

    Made by ``db.session(...)``. A session comes into being with its first change; reading one that
    does not exist gives an empty history.
    """

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.recounting = Recounting(address)
        self.leasing = Leasing(address)
        self.ending = Ending(address)
        """The end of the history, raw; for memcore's own adapters."""
        self.state = SessionState(address)
        """Fields and values beside the log; see ``SessionState``."""
        self.after_append: Callable[[], object] | None = None
        """Called after each change that appends, once it is stored; it does not raise."""
        options = address.options
        if options.recover:
            address.due = self._recover_and_recount if options.recount else self.recovering.lazily
        elif options.recount:
            address.due = self.recounting.lazily

    def __dir__(self) -> list[str]:
        return sorted(set(super().__dir__()) - _INTERNAL)

    def __repr__(self) -> str:
        address = self._address
        return f"Session({address.name!r}, user={address.user!r}, app={address.app!r})"

    @property
    def id(self) -> str:
        """The session's name."""
        return self._address.name

    @property
    def user(self) -> str:
        """The user who owns it."""
        return self._address.user

    @property
    def app(self) -> str:
        """The application it belongs to."""
        return self._address.app

    def hold(self, *, reason: str) -> bool:
        """Put the session under a legal hold; whether it was under none of its own.

        Until ``release``, deleting it and erasing its user are refused with HeldError.

        Raises:
            NotFoundError: there is no such session yet.
            InvalidOptionError: the reason is no text of 1 to 1,000 characters.
            ReadOnlyError, StorageError
        """
        at = self._address
        at.need("hold")
        return hold(at.backing, at.app, at.user, at.name, reason=reason)

    def release(self) -> bool:
        """End the session's own hold; whether there was one. That of its scope stays."""
        at = self._address
        at.need("release")
        return release(at.backing, at.app, at.user, at.name)

    @property
    def is_admitting(self) -> bool:
        """Whether content is redacted or judged before it is stored."""
        return self._address.backing.border is not None

    @property
    def counter(self) -> str:
        """The id of the counter that ``tokens`` and all counts of the session are by."""
        return self.recounting.counter()

    def _recover_and_recount(self) -> bool:
        """What the first use of the handle begins with; whether it is done for good."""
        return self.recovering.lazily() and self.recounting.lazily()

    # --- appending --------------------------------------------------------------------------------

    def _stored(self, prepared: list[Prepared], closure: Closure[T]) -> T:
        found = self.appending.store(prepared, closure)
        if self.after_append is not None:
            self.after_append()
        return found

    def append(
        self,
        item: Mapping[str, Any],
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> Receipt:
        """Append one item; it is stored when this returns.

        Args:
            item: a message in any supported wire format: a JSON object.
            expected_revision: store it only if the session is at this revision.
            idempotency_key: the same key with the same content stores it once and returns the
                first receipt.
            request_id: kept beside the item.
            meta: a JSON object kept beside the item.
            envelope: what is known of the item: an Envelope, or a mapping of its fields.

        Raises:
            InvalidItemError, OrphanResultError, RevisionConflict, DuplicateRequestError,
            InvalidOptionError, ReadOnlyError, ClosedError, StorageError
        """
        return self._stored(
            *self.appending.extend(
                [item],
                expected_revision=expected_revision,
                idempotency_key=idempotency_key,
                request_id=request_id,
                meta=meta,
                envelope=envelope,
            )
        )

    def extend(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> Receipt:
        """Append items in one commit: all of them or none. Arguments and errors as ``append``."""
        return self._stored(
            *self.appending.extend(
                items,
                expected_revision=expected_revision,
                idempotency_key=idempotency_key,
                request_id=request_id,
                meta=meta,
                envelope=envelope,
            )
        )

    def record(
        self,
        type: str,  # noqa: A002 - the architecture's name
        payload: Any = None,
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> Receipt:
        """Append an event (planner, reflection, error, ...): in the log, never in a context."""
        return self._stored(
            *self.appending.record(
                type,
                payload,
                expected_revision=expected_revision,
                idempotency_key=idempotency_key,
                request_id=request_id,
                meta=meta,
                envelope=envelope,
            )
        )

    def abandon(self, call_id: str) -> Receipt:
        """Give up an open call: it blocks nothing any more, contexts answer it synthetically.

        Raises:
            NotFoundError: there is no open call with this id.
        """
        return self._stored(*self.appending.abandon(call_id))

    def begin(self, values: Mapping[str, Any], *, meta: Mapping[str, Any] | None = None) -> Receipt:
        """Make the session with the first values of its state; an event ``state`` records them.

        Args:
            values: fields of any prefix.
            meta: a JSON object kept beside the event.

        Raises:
            RevisionConflict: there is such a session.
            InvalidUpdateError, InvalidItemError, ReadOnlyError, StorageError; nothing is stored.
        """
        with self.batch() as batch:
            batch.begin_state(values, meta=meta)
        assert batch.receipt is not None  # noqa: S101 - it was committed
        return batch.receipt

    def batch(
        self, *, expected_revision: int | None = None, idempotency_key: str | None = None
    ) -> BatchContext:
        """``with session.batch() as b:`` commits b's changes together when the block ends.

        Args:
            expected_revision: only if the session is at this revision.
            idempotency_key: the same key with the same steps is carried out once, within a week,
                and ``b.receipt`` is the first one; ``undone`` and ``checkpoints`` are empty then.
        """
        return BatchContext(
            self.plan_batch(expected_revision, idempotency_key),
            lambda batch: self._stored(batch.prepared, batch.closure()),
        )

    def plan_batch(
        self, expected_revision: int | None, idempotency_key: str | None = None
    ) -> Batch:
        """An empty batch of this session."""
        return Batch(self._address, expected_revision, idempotency_key)

    def apply(
        self,
        command: Command,
        *,
        expected_revision: int | None = None,
        trace: Trace | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Append the messages of a Command and update its fields of the state, in one commit.

        Args:
            command: a Command; any object with an ``update`` (LangGraph's) may stand for it.
            expected_revision: do it only if the session is at this revision.
            trace: gets a Reduction for every call of a reducer, once all is stored.
            idempotency_key: as of ``batch``.

        Raises:
            InvalidUpdateError, and what ``append`` raises; nothing is stored then.
        """
        batch = self.plan_command(
            command,
            expected_revision=expected_revision,
            trace=trace,
            idempotency_key=idempotency_key,
        )
        receipt = self._stored(batch.prepared, batch.closure())
        batch.settle(receipt)
        return receipt

    def plan_command(
        self,
        command: Command,
        *,
        expected_revision: int | None = None,
        trace: Trace | None = None,
        idempotency_key: str | None = None,
    ) -> Batch:
        """The batch of ``apply``."""
        batch = self.plan_batch(expected_revision, idempotency_key)
        batch.apply(command, trace=trace)
        return batch

    # --- one writer -------------------------------------------------------------------------------

    def lease(self, owner: str, *, ttl_seconds: float, force: bool = False) -> Lease:
        """Be the only one to change the session for a while; ``with session.lease(...)``.

        The lease is this handle's. Others may read; what they change is refused before it writes
        anything. Whoever takes it over once it has expired gets the next epoch, and the owner
        before them is refused from then on, whatever any clock says. The same owner gets it again
        under the same epoch: an owner's name is that of one worker.

        Args:
            owner: who takes it: 1 to 1,024 characters, different for each worker.
            ttl_seconds: how long it lasts unless it is renewed: up to a year, by the clock of the
                process that asks.
            force: take it even if another owner holds it, who is fenced then.

        Raises:
            LeaseHeldError: another owner holds it.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        return self.leasing.take(owner, ttl_seconds, force=force)

    # --- settings ---------------------------------------------------------------------------------

    def set_policy(self, policy: str) -> None:
        """Hold the session to another pair policy; the log stays, the ledger is built anew."""
        self._commit(self.changes.set_policy(policy))
        self._address.allow_policy(policy)

    def recount(
        self, counter: str | TokenCounter, *, progress: Progress | None = None
    ) -> RecountResult:
        """Count the whole live history with another counter, which is the session's from now on.

        Writers go on meanwhile; one commit puts the counts in force. The log, its revision and the
        views stay. If the counter is the session's already, only damaged counts are made anew.

        Args:
            counter: ``"bytes/4"``, ``"tiktoken:NAME"`` or a TokenCounter.
            progress: called with (items counted, live items).

        Raises:
            NotFoundError: there is no session.
            CounterUnavailableError, CorruptValueError, InvalidOptionError, ReadOnlyError
        """
        by = get_counter(counter)
        done = self.recounting.run(by, progress)
        self._address.allow_counter(by)
        return done


def store_of(session: Session) -> LmdbStore:
    """The open store that a session lies in (for memcore's own facades)."""
    return session._address.backing.store  # noqa: SLF001 - this module's
