"""Session: the object that a runtime holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from memcore.errors import InvalidOptionError
from memcore.model import (
    CallRecord,
    Context,
    Item,
    Receipt,
    RecountResult,
    View,
)
from memcore.options import checked_int, checked_optional_int
from memcore.session.address import Address
from memcore.session.appending import AnyEnvelope
from memcore.session.batch import Batch, BatchContext
from memcore.session.ending import Ending
from memcore.session.holding import hold, release
from memcore.session.joined import Joined
from memcore.session.leasing import Lease, Leasing
from memcore.session.outgoing import Redact, shown_context, shown_items
from memcore.session.recounting import Progress, Recounting
from memcore.session.state import SessionState
from memcore.session.voices import checked_voices
from memcore.state import Command, Trace
from memcore.store import LmdbStore
from memcore.tokens import TokenCounter, get_counter

__all__ = ["Session", "store_of"]

T = TypeVar("T")


class Session(Joined):
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
        if address.options.recount:
            address.due = self.recounting.lazily

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

    # --- appending --------------------------------------------------------------------------------

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
        return self.appending.store(
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
        return self.appending.store(
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
        return self.appending.store(
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
        return self.appending.store(*self.appending.abandon(call_id))

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
            lambda batch: self.appending.store(batch.prepared, batch.closure()),
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
        receipt = self.appending.store(batch.prepared, batch.closure())
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

    # --- reading ----------------------------------------------------------------------------------

    def items(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        skip_corrupt: bool = False,
        authors: Iterable[str] | None = None,
        share: str | None = None,
        redact: Redact = None,
    ) -> Iterator[Item]:
        """Live items with ``start <= seq < stop`` in order; lazy, a page at a time.

        ``authors``, ``share`` and ``redact``: as in ``context``; nothing shows of what is appended
        meanwhile.

        Raises:
            CorruptValueError: an item is damaged; ``skip_corrupt`` leaves it out instead.
        """
        checked_int("start", start)
        checked_optional_int("stop", stop)
        voices = checked_voices(authors, share)
        found = self._reading.items(start, stop, skip_corrupt=skip_corrupt)
        if redact not in (None, False):
            found = shown_items(self._address, found, redact)
        if voices is None:
            return found
        shown = self.metering.voicing.seqs(voices, skip_corrupt=skip_corrupt)
        return (item for item in found if item.seq in shown)

    def __iter__(self) -> Iterator[Item]:
        return self.items()

    def get(self, seq: int) -> Item:
        """One live item.

        Raises:
            NotFoundError: it is not in the live history.
        """
        checked_int("seq", seq)
        return self._reading.get(seq)

    def tail(self, count: int, *, skip_corrupt: bool = False, redact: Redact = None) -> list[Item]:
        """The last ``count`` live items, oldest first; ``redact`` as in ``context``."""
        checked_int("tail", count)
        found = self._reading.tail(count, skip_corrupt=skip_corrupt)
        if redact in (None, False):
            return found
        return list(shown_items(self._address, found, redact))

    def find_call(self, call_id: str) -> CallRecord:
        """Where a call was made and answered; the latest with this id.

        Raises:
            NotFoundError: no call of the live history has this id.
        """
        if not isinstance(call_id, str):
            msg = f"call_id: expected a str, got {type(call_id).__name__}"
            raise InvalidOptionError(msg)
        return self._reading.find_call(call_id)

    def context(
        self,
        budget_tokens: int | None = None,
        *,
        reserve_tokens: int = 0,
        calibrated: bool = False,
        model: str | None = None,
        view: View | int | None = None,
        authors: Iterable[str] | None = None,
        share: str | None = None,
        redact: Redact = None,
    ) -> Context:
        """What the model receives: legal for the policy and within the budget.

        Pins (the leading system items), the summary of a compaction, and the longest suffix from
        a safe cut. Late results stand behind their call, unanswered calls are answered
        synthetically, orphans are left out; ``Context.repairs`` lists it all. Equal histories and
        budgets give equal messages; ``calibrated`` ones depend on what was reported, too.

        Args:
            budget_tokens: at most this many tokens by the session's counter; None: no limit.
            reserve_tokens: of these, leave so many free (for the answer, tool schemas).
            calibrated: the budget is meant in the provider's tokens as well: what it is estimated
                to bill for the request stays within it, too (see ``report_usage``). That includes
                what was part of the reported requests beside the messages, as tool schemas: do not
                reserve for them again.
            model: whose calibration to go by; None: that of the model reported last.
            view: one of ``views()`` or its number: show the history as under that compaction; 0: as
                without any; None: under the newest that applies.
            authors: show the items of these agents (``Envelope.author``), and of the others only
                what ``share`` says; items of no author and of ``user`` are everybody's. Calls are
                left out together with their results. None: everybody's items.
            share: ``"results"`` (None as well): of others what is of type ``final`` or
                ``aggregate``; ``"none"``: nothing; ``"all"``: everything.
            redact: show placeholders in the place of what this policy looks for, as a database that
                was opened with it would have stored; tokens stay those of what is stored.

        Raises:
            ContextOverflowError: even the smallest legal context is larger.
            NotFoundError: the session has no such view, or the history was cut below it.
            InvalidOptionError, CorruptValueError
        """
        found = self.metering.context(
            budget_tokens,
            reserve_tokens,
            calibrated=calibrated,
            model=model,
            view=view,
            voices=checked_voices(authors, share),
        )
        return found if redact in (None, False) else shown_context(self._address, found, redact)

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
