"""Batch: several changes of one session in one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, NoReturn

from memcore.codec.values import encode_json
from memcore.errors import ClosedError, InvalidUpdateError, RevisionConflict
from memcore.log import Prepared, SessionTxn, find_request, record_request, request_of
from memcore.log.idempotency import IdempotentRequest, content_of_items
from memcore.model import Checkpoint, Item, Receipt
from memcore.options import checked_idempotency_key, checked_int, checked_optional_int, shown
from memcore.session.append import (
    AnyEnvelope,
    AppendNothing,
    encode_event,
    encode_items,
    options_of,
    split_large,
)
from memcore.session.change import Change, Unchanged, take_back
from memcore.session.checkpoints import Position, rewinding, saving
from memcore.session.engine import SessionRef
from memcore.state import Command, ScopedChange, Trace, Update, prefix_of
from memcore.state.schema import content_of, fields_of
from memcore.store.interface import Txn

__all__ = [
    "BatchContext",
    "ChangeBatch",
    "CommitBatch",
]


_ABOUT: Final = b"batch"


class ChangeBatch:
    """Collects changes; ``session.batch()`` commits them when the block ends without an error.

    All of them are stored or none. With ``expected_revision``, an undo followed by appends replaces
    the end of the history only if nobody else wrote (a suffix compare-and-set).
    """

    def __init__(
        self,
        ref: SessionRef,
        expected_revision: int | None,
        idempotency_key: str | None = None,
    ) -> None:
        self._key = None if idempotency_key is None else checked_idempotency_key(idempotency_key)
        self._content: list[bytes] = []
        """Steps other than the items, as hashed for the idempotency key; empty without a key."""
        self._ref = ref
        self._revision = checked_optional_int("expected_revision", expected_revision)
        self._steps: list[Callable[[SessionTxn], bool]] = []
        """Each returns True if it changed the log."""
        self._changed: list[bool] = []
        self._creates = False
        self._begins = False
        self._undone: list[Item] = []
        self._state = self._new_change()
        """State changes not yet part of ``_steps``."""
        self._states: list[ScopedChange] = [self._state]
        self._checkpoints: list[Checkpoint] = []
        self._state_counter: int | None = None
        """The counter of the state that ``expect_state`` named."""
        self._rewinds_state = False
        self._has_ended = False
        self.prepared: list[Prepared] = []
        self.receipt: Receipt | None = None
        """Receipt of the whole batch, once it is committed."""

    @property
    def undone(self) -> list[Item]:
        """The items removed by the batch's undos, oldest first, once it is committed."""
        return self._undone

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints saved by the batch, once it is committed."""
        return self._checkpoints

    def append(
        self,
        item: Mapping[str, Any],
        *,
        meta: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> None:
        """Append one item."""
        self.extend([item], meta=meta, request_id=request_id, envelope=envelope)

    def extend(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        meta: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> None:
        """Append items.

        Raises:
            InvalidItemError: an item is not a JSON object; nothing in the batch is stored if the
                error leaves the block.
            ClosedError: the block has ended, as for all other changes.
        """
        self.need_open()
        prepared = encode_items(self._ref, items, options_of(meta, request_id, envelope))
        orphans = self._ref.options.orphans
        if prepared:  # appending no items would create an empty segment
            self._append(prepared, orphans)

    def record(
        self,
        type: str,  # noqa: A002 - the architecture's name
        payload: Any = None,
        *,
        meta: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> None:
        """Append an event."""
        self.need_open()
        options = options_of(meta, request_id, envelope)
        event = encode_event(self._ref, type, payload, options)
        prepared = split_large(self._ref, [event])
        self._append(prepared, "keep")

    def _say(self, *parts: object) -> None:
        """Include a step in the content that the idempotency key covers."""
        if self._key is not None:
            said = (part if isinstance(part, bytes) else repr(part).encode() for part in parts)
            self._content.append(b" ".join(said))

    def _append(self, prepared: list[Prepared], orphans: str) -> None:
        self._say("append", len(prepared), orphans)
        self.prepared += prepared
        self._creates = True
        self._steps.append(lambda draft: draft.append(prepared, orphans=orphans) > 0)

    def undo(self, count: int = 1) -> None:
        """Remove the last ``count`` items from the live history."""
        self.need_open()
        checked_int("count", count, least=1)
        self._say("undo", count)

        undone = self._undone  # a step that captured self would keep the database alive

        def step(draft: SessionTxn) -> bool:
            taken = take_back(draft, count)
            # In front: a later undo of the same batch takes older items.
            undone[:0] = taken
            return bool(taken)

        self._steps.append(step)

    def checkpoint(self, name: str | None = None, *, meta: Mapping[str, Any] | None = None) -> None:
        """Save the position after the steps so far; in ``checkpoints`` once it is committed.

        Raises:
            InvalidOptionError, InvalidItemError: as for ``Session.checkpoint``.
        """
        self.need_open()
        save = saving(self._ref, name, meta)
        # Without meta as it always was, so that a retry after an upgrade is known.
        self._say("checkpoint", name, *([] if meta is None else [encode_json(dict(meta))[0]]))
        made, changed = self._checkpoints, self._changed

        def step(draft: SessionTxn) -> bool:
            # A batch has one revision: the next one if a step so far changed the log.
            made.append(save(draft, any(changed)))
            return False

        # What was updated before the checkpoint belongs to it.
        self._settle_state()
        self._creates = True
        self._steps.append(step)

    def rewind(self, to: Position, *, state: bool = True) -> None:
        """Go back to a live seq or a checkpoint, as ``Session.rewind`` does."""
        self.need_open()
        step = rewinding(self._ref, to, state=state)
        self._rewinds_state = self._rewinds_state or state
        self._say("rewind", to.number if isinstance(to, Checkpoint) else to, state)
        # In the caller's order: a rewind takes back earlier updates, and not later ones.
        self._settle_state()
        self._steps.append(step)

    # --- state ------------------------------------------------------------------------------------

    def update_state(
        self,
        update: Update | Iterable[Update],
        *,
        schema: Any = None,
        expected: int | None = None,
        trace: Trace | None = None,
    ) -> None:
        """As ``session.state.update``; a step of its own, after those before it.

        ``app:`` and ``user:`` fields are stored in the same commit, visible to other sessions.
        """
        self.need_open()
        self._state.expect(expected)
        self._state.update(update, schema=schema, trace=trace)
        if self._key is not None:
            self._say("update", content_of(update))

    def expect_state(self, counter: int) -> None:
        """Let the batch fail if it changes the session's state and that is not at a counter.

        Raises:
            RevisionConflict: as the batch is committed.
        """
        self.need_open()
        self._state_counter = checked_int("counter", counter)

    def _expected(self) -> list[Callable[[SessionTxn], bool]]:
        """Return the step that compares the state's counter before all others, if one has to."""
        changes = self._rewinds_state or any(not each.own.is_empty for each in self._states)
        if self._state_counter is None or not changes:
            return []
        change, ref = self._new_change(), self._ref
        change.expect(self._state_counter)

        def step(draft: SessionTxn) -> bool:
            change.run(draft.txn, draft.log.place, ref, seq=draft.head.next_seq)
            return False

        return [step]

    def begin_state(
        self,
        values: Mapping[str, Any],
        *,
        schema: Any = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the session with this initial state; the batch fails if the session exists.

        It is the state before the first item (``rewind(0)`` restores it), and a ``state`` event in
        the log records the session's own fields.

        Raises:
            InvalidUpdateError: ``values`` is not a mapping, a field is invalid, or a value is not
                JSON.
        """
        self.need_open()
        if not isinstance(values, Mapping):
            msg = f"values: expected a mapping of fields, got {type(values).__name__}"
            raise InvalidUpdateError(msg)
        change = self._new_change()
        change.update(values, schema=schema)
        own = {key: value for key, value in values.items() if not prefix_of(key)}
        self.record("state", own, meta=meta)

        ref = self._ref

        def step(draft: SessionTxn) -> bool:
            # Seq 1, although the event has it by now: the values are those before the first item,
            # which ``rewind(0)`` and forks at 0 restore.
            change.run(draft.txn, draft.log.place, ref, seq=1)
            return False

        self._begins = True
        self._steps.append(step)
        self._states.append(change)

    def delete_state(self, *fields: str) -> None:
        """As ``session.state.delete``."""
        self.need_open()
        self._say("delete", fields)
        self._state.delete(fields)

    def apply(self, command: Any, *, trace: Trace | None = None) -> None:
        """Append a Command's messages and update its fields.

        Raises:
            InvalidUpdateError: it is no Command, or an update of it is invalid.
        """
        self.need_open()
        fields_of(command)  # raises before anything is added
        messages = getattr(command, "messages", None)
        if isinstance(messages, str | Mapping) or not isinstance(messages or (), Iterable):
            msg = f"the messages of a Command: expected several in a list, got {shown(messages)}"
            raise InvalidUpdateError(msg)
        self.extend(list(messages or ()))
        self._state.apply(command, trace=trace)
        if self._key is not None:
            self._say("apply", content_of(Command(dict(fields_of(command)))))

    def _settle_state(self) -> None:
        """Queue the pending state changes: after log steps, before steps that save or restore both.

        This way, most of what may fail comes before the first write.
        """
        change = self._state
        if change.is_empty:
            return

        ref = self._ref

        def step(draft: SessionTxn) -> bool:
            change.run(draft.txn, draft.log.place, ref, seq=draft.head.next_seq)
            return False

        # Shared fields need no session of their own, but a batch writes them from its draft.
        self._creates = self._creates or change.writes or not change.is_own
        self._steps.append(step)
        self._state = self._new_change()
        self._states.append(self._state)

    def _new_change(self) -> ScopedChange:
        ref = self._ref
        return ScopedChange(ref.options.state, ref.temporary, ref.scope_filter)

    def change(self) -> Change[Receipt]:
        """Return the batch as one change; an empty batch writes nothing."""
        self._settle_state()
        if not self._steps:
            return AppendNothing(self._ref, expected_revision=self._revision)
        expected = self._expected()
        return CommitBatch(
            self._ref,
            [*expected, *self._steps],
            self.prepared,
            self._changed,
            (self._undone, self._checkpoints),
            expected_revision=self._revision,
            request=self._request(),
            creates=self._creates,
            begins=self._begins,
            # ``_settle_state`` leaves a new change without steps at the end; it does not count.
            has_states=len(self._states) > 1,
            expected_state=self._state_counter if expected else None,
        )

    def _request(self) -> IdempotentRequest | None:
        if self._key is None:
            return None
        items = content_of_items(self.prepared)
        seed = self._ref.engine.seed
        return request_of(self._key, (*items, *self._content), seed=seed, about=_ABOUT)

    def need_open(self) -> None:
        """Require that the block has not ended.

        Raises:
            ClosedError: it has: what is added now would not be stored.
        """
        if self._has_ended:
            msg = "this batch has ended: begin another one with session.batch()"
            raise ClosedError(msg)

    def end(self) -> None:
        """Refuse further changes."""
        self._has_ended = True

    def settle(self, receipt: Receipt) -> None:
        """Accept the commit's receipt, and report the reducer calls to the traces."""
        self.receipt = receipt
        # After the commit: a reduction may have run several times, and traces are callers' code.
        for change in self._states:
            change.tell()


class CommitBatch(Change[Receipt]):
    """Run the steps of a batch in one commit; the result is the receipt for all of them.

    Args:
        ref: the session.
        steps: each returns True if it changed the log.
        items: the items that they append.
        changed: filled with the steps' return values; a step may read those before it.
        results: the lists that steps fill with undone items and with checkpoints.
        expected_revision: run only if the session is at this revision.
        request: makes the batch idempotent: a repeat gets the first receipt.
        creates: create the session if it does not exist.
        begins: fail if the session exists.
        has_states: True if steps change the state.
        expected_state: the counter that the first step compares; None: it compares none.
    """

    __slots__ = (
        "begins",
        "changed",
        "creates",
        "expected_revision",
        "expected_state",
        "has_states",
        "items",
        "request",
        "results",
        "revised",
        "steps",
    )

    def __init__(
        self,
        ref: SessionRef,
        steps: list[Callable[[SessionTxn], bool]],
        items: list[Prepared],
        changed: list[bool],
        results: tuple[list[Item], list[Checkpoint]],
        *,
        expected_revision: int | None,
        request: IdempotentRequest | None,
        creates: bool,
        begins: bool,
        has_states: bool,
        expected_state: int | None = None,
    ) -> None:
        self.expected_state = expected_state
        self.steps, self.items, self.changed, self.results = steps, items, changed, results
        self.expected_revision, self.request = expected_revision, request
        self.creates, self.begins, self.has_states = creates, begins, has_states
        self.revised = True
        super().__init__(ref)

    def __call__(self, txn: Txn) -> Receipt:
        """Run the batch; fail if it begins a session that already exists.

        Raises:
            RevisionConflict: the session exists.
        """
        # In the transaction that creates it, so that of two who begin a session one is refused.
        if self.begins:
            session = self.ref.draft(txn, create=False)
            first = None if session is None else self._first(session)
            if first is not None:  # a retry of the batch that began it
                return first
            if session is not None:
                msg = f"session {self.ref.name!r} exists already; begin() only makes new ones"
                raise RevisionConflict(msg, expected=0, current=session.head.revision)
        return super().__call__(txn)

    def run(self, session: SessionTxn) -> Unchanged | None:
        """Run the steps, unless the request was already carried out."""
        for found in self.results:  # an earlier run of this change may have filled them
            found.clear()
        self.changed.clear()
        # Before the revision is compared, as a retry names the former one.
        first = self._first(session)
        if first is not None:
            return Unchanged(first)
        session.expect(self.expected_revision)
        for step in self.steps:
            self.changed.append(step(session))
        # Set by each run: a rerun may find less to do than the run before.
        self.revised = any(self.changed)
        is_idle = not (self.revised or self.has_states or self.results[1])
        return Unchanged(session.receipt(0)) if is_idle else None

    def _first(self, session: SessionTxn) -> Receipt | None:
        """Return the receipt of the request, if it was carried out before."""
        if self.request is None:
            return None
        # A batch that appends counts as done only while its items are live; the receipt of any
        # other names no item.
        now_ms, appends = self.ref.engine.now_ms(), bool(self.items)
        return find_request(session, self.request, now_ms=now_ms, is_live=appends)

    def done(self, session: SessionTxn, result: Any) -> Receipt:
        """Make the receipt and record it under the request's key."""
        del result
        receipt = session.receipt(len(self.items))
        if self.request is not None:
            # Not in ``run``: the receipt's revision is known only once the change is finished.
            now_ms = self.ref.engine.now_ms()
            record_request(session, self.request, receipt, now_ms=now_ms)
        return receipt

    def missing(self) -> Receipt:
        """Return the receipt of a session without items.

        Raises:
            RevisionConflict: it was to be at a revision, or its state at a counter.
        """
        for expected in (self.expected_revision, self.expected_state):
            if expected:
                msg = f"session {self.ref.name!r}: expected {expected}, and there is none"
                raise RevisionConflict(msg, expected=expected, current=0)
        return Receipt(0, 0, 0, 0, 0)


class BatchContext:
    """The ``with`` block of a batch."""

    def __init__(self, batch: ChangeBatch, commit: Callable[[ChangeBatch], Receipt]) -> None:
        self._batch = batch
        self._commit = commit

    def __enter__(self) -> ChangeBatch:
        self._batch.need_open()
        return self._batch

    def __getattr__(self, name: str) -> NoReturn:
        msg = f"the block has {name!r}: 'with session.batch() as batch: batch.{name}(...)'"
        raise AttributeError(msg, name=name, obj=self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Whatever follows: steps added later would belong to no commit.
        self._batch.end()
        if kind is None:
            self._batch.settle(self._commit(self._batch))
