"""Append to a session, and the other changes of its items.

Items are checked, classified, counted and encoded before anything is queued; what is left to the
transaction is to bind pairs and to number them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from memcore import blobs
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import FLAG_BLOB, seal_value
from memcore.errors import (
    BlockedError,
    InvalidItemError,
    InvalidOptionError,
    NotFoundError,
    StorageError,
)
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.log import (
    Head,
    History,
    Prepared,
    SessionTxn,
    count_message,
    decode_item,
    find_request,
    prepare_event,
    prepare_item,
    prepare_request,
    record_request,
)
from memcore.log.checkpoint import CheckpointRow
from memcore.log.session_txn import rebase_counts, revision_conflict
from memcore.model import Envelope, Item, ItemKind, Receipt, checked_envelope
from memcore.options import checked_bool, checked_int, checked_optional_int
from memcore.rows import names
from memcore.rows.item import split_body
from memcore.rows.usage import inherit_usage
from memcore.rows.views import read_view
from memcore.session.content_filter import admitted_event, admitted_item, told
from memcore.session.engine import SessionRef
from memcore.session.oversize import OFFLOADED
from memcore.session.read import SessionReader
from memcore.state import counter_before, inherit, read_header, restore, state_counter
from memcore.store.interface import ReadTxn, Txn
from memcore.tokens import TokenCounter
from memcore.wire import policy_name
from memcore.wire.message import ABANDON_EVENT

__all__ = [
    "AnyEnvelope",
    "Appending",
    "Changes",
    "Closure",
    "ItemOptions",
    "Planned",
    "StatePoint",
    "options_of",
    "restore_state_at",
    "state_at",
    "state_before",
    "unknown_state",
]


# --- The state of a session as it was at one of its items -----------------------------------------

StatePoint = tuple[int, int]
"""The session that had the values, and their counter."""


def state_at(txn: ReadTxn, scope: int, session: int, history: History, seq: int) -> StatePoint:
    """The state when the history ended at ``seq`` (0: before its first item).

    That is the one which the next item was appended on, or that of now behind the last item.

    Raises:
        NotFoundError: the item is not in the history, or the state of then is not known.
        CorruptValueError: a row is damaged.
    """
    position = _position(history, seq) if seq else -1
    if position + 1 == history.count:
        return session, state_counter(txn, scope, session)
    return _before(txn, scope, history, position + 1)


def state_before(txn: ReadTxn, scope: int, history: History, seq: int) -> StatePoint:
    """The state that an item of the history was appended on.

    Raises:
        NotFoundError: the item is not in the history, or the state of then is not known.
        CorruptValueError: a row is damaged.
    """
    return _before(txn, scope, history, _position(history, seq))


def _before(txn: ReadTxn, scope: int, history: History, position: int) -> StatePoint:
    owner, seq = history.locate(position)
    counter = counter_before(txn, scope, owner, seq)
    if counter is None and read_header(txn, scope, owner).floor:
        msg = f"the state before item {seq} is not known: it was trimmed, or came without its past"
        raise NotFoundError(msg)
    return owner, counter or 0


def _position(history: History, seq: int) -> int:
    position = history.position_of(seq)
    if position is None:
        msg = f"item {seq} is not in the live history"
        raise NotFoundError(msg)
    return position


def restore_state_at(draft: SessionTxn, seq: int) -> None:
    """Make the values of a live item those of now; nothing is written if they are.

    Raises:
        NotFoundError: they are not known any more.
        CorruptValueError: a row is damaged.
    """
    txn, (scope, session) = draft.txn, draft.log.place
    if not state_counter(txn, scope, session):
        return  # it never had one, nor had what it was forked from
    history = History(draft.head.all_segments(txn, scope))
    try:
        owner, counter = state_at(txn, scope, session, history, seq)
        restore(txn, scope, session, counter, seq=draft.head.next_seq, owner=owner)
    except NotFoundError as exc:
        raise unknown_state(seq, exc) from exc


def unknown_state(seq: int, why: NotFoundError) -> NotFoundError:
    """The error for an item whose state is not known."""
    return NotFoundError(f"at item {seq}, {why}; state=False leaves the state alone")


# --- Changing a session: every change is a closure that the store may run again -------------------
# The same closures serve the synchronous handle and the asynchronous one.

T = TypeVar("T")
Closure = Callable[[Txn], T]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """What a change returns that has nothing to write: the revision stays as it is."""

    result: Any


class Changes:
    """Makes the closures of all changes of one session."""

    __slots__ = ("_address",)

    def __init__(self, address: SessionRef) -> None:
        self._address = address

    def change(
        self,
        work: Callable[[SessionTxn], T],
        *,
        create: bool = True,
        revised: bool | Callable[[], bool] = True,
        after: Callable[[SessionTxn], Any] | None = None,
        missing: Callable[[], Any] | None = None,
        atomic: bool = False,
    ) -> Closure[Any]:
        """A closure that does ``work`` on the session's draft and finishes it.

        If ``work`` fails before it wrote anything, the draft is as it was before (``atomic``: by
        itself). ``revised``: whether the log changed, and so has another revision; it may be told
        once the work is done. ``after`` gives the closure's result once the change is numbered;
        without it ``work``'s result is it. ``missing`` gives the result for a session that does not
        exist; else NotFoundError.
        """
        self._address.need_writable()

        def closure(txn: Txn) -> Any:
            draft = self._address.draft(txn, create=create)
            if draft is None:
                if missing is not None:
                    return missing()
                msg = f"there is no session {self._address.name!r}"
                raise NotFoundError(msg)
            mark = None if atomic else draft.mark()
            try:
                result = work(draft)
            except BaseException:
                if mark is not None:
                    draft.restore(mark)
                raise
            if isinstance(result, Unchanged):
                return result.result
            try:
                is_revised = revised if isinstance(revised, bool) else revised()
                draft.finish(now_ms=self._address.engine.now_ms(), revised=is_revised)
                if self._address.uses is not None:
                    self._address.uses.write(txn, draft.log.place)
                if after is not None:
                    result = after(draft)
                if draft.is_rebased:
                    self._address.engine.drafts.close(txn, draft)
                return result
            except BaseException:
                txn.spoil()  # neighbours in the batch share this draft
                raise

        return closure

    # --- taking back ------------------------------------------------------------------------------

    def undo(self, count: int, *, expected_revision: int | None = None) -> Closure[list[Item]]:
        """Take the last items off the live history."""
        checked_int("undo", count, least=1)
        revision = checked_optional_int("expected_revision", expected_revision)

        def work(draft: SessionTxn) -> Any:
            draft.expect(revision)
            return take_back(draft, count) or Unchanged([])

        return self.change(work, create=False, missing=list)

    def live_count(self, draft: SessionTxn, seq: int) -> int:
        """How many live items there are up to and including ``seq``."""
        if seq == 0:
            return 0
        position = draft.position_of(seq)
        if position is None:
            msg = f"item {seq} is not in the live history of session {self._address.name!r}"
            raise NotFoundError(msg)
        return position + 1

    def fork(
        self,
        target: SessionRef,
        at: int | Callable[[SessionTxn], CheckpointRow] | None,
        *,
        state: bool = True,
        expected_revision: int | None = None,
    ) -> Closure[None]:
        """A new session that shares this one's history up to ``at``, or what ``at`` finds.

        ``state`` says whether it begins with the values of then, or else of now.
        """
        checked_bool("state", state)
        if at is not None and not callable(at):
            checked_int("at", at)
        revision = checked_optional_int("expected_revision", expected_revision)
        names.check_name(target.name, "session")
        policy = target.options.policy

        def work(draft: SessionTxn) -> None:
            draft.expect(revision)
            if target.find(draft.txn) is not None:
                msg = f"session {target.name!r} exists already: choose another name for the fork"
                raise InvalidOptionError(msg)
            saved = at(draft) if callable(at) else None
            seq = draft.last_seq if at is None or callable(at) else at
            count = self.live_count(draft, seq) if saved is None else 0
            draft.flush()
            txn, log, parent = draft.txn, draft.log, draft.head
            session = names.new_session(txn, log.scope, target.name)
            head = parent.changed()
            head.policy = policy or parent.policy
            now_ms = self._address.engine.now_ms()
            if saved is None:
                _begin_fork(head, log.session, seq, now_ms)
                head.trim(txn, log.scope, count)
            else:
                seq, count = saved.checkpoint.seq, saved.checkpoint.items
                _begin_fork(head, log.session, seq, now_ms)
                saved.put_in(head)
                old = History(parent.all_segments(txn, log.scope))
                rebase_counts(txn, (log.scope, session), head, log.counter, old=old)
            row = keys.session_row(log.scope, log.session, Row.CHILD, session)
            txn.put(row, seal_value(row, b""))
            shared = saved is None and head.policy == parent.policy
            base = draft.ledger_of(count) if shared else None
            drafts = self._address.engine.drafts
            child = drafts.create(txn, log.scope, session, head, base=base)
            head.chain = child.chain_at(seq) if count else 0
            if saved is not None and head.chain != saved.chain:
                raise saved.mismatch()
            child.finish(now_ms=now_ms)
            inherit_usage(txn, log.scope, log.session, session, at=seq)
            try:
                owner, counter = self._state_point(draft, seq, saved) if state else (0, None)
                inherit(txn, log.scope, owner or log.session, session, counter=counter, seq=seq + 1)
            except NotFoundError as exc:
                raise unknown_state(seq, exc) from exc
            txn.on_commit(lambda: target.settle(log.scope, session))

        return self.change(work, create=False, revised=False)

    @staticmethod
    def _state_point(
        draft: SessionTxn, seq: int, saved: CheckpointRow | None
    ) -> tuple[int, int | None]:
        """Whose values a fork begins with, and at which counter (None: now)."""
        txn, log = draft.txn, draft.log
        if saved is not None or seq == draft.last_seq:
            return log.session, None if saved is None else saved.checkpoint.state
        if not state_counter(txn, *log.place):
            return log.session, None  # it never had a state, nor had what it was forked from
        history = History(draft.head.all_segments(txn, log.scope))
        return state_at(txn, *log.place, history, seq)

    def set_policy(self, policy: str) -> Closure[None]:
        """Hold the session to another policy from now on; the log stays as it is."""
        name = policy_name(policy)

        def work(draft: SessionTxn) -> None:
            draft.set_policy(name)

        return self.change(work)

    def uncompact(self) -> Closure[bool]:
        """Go back to the view before the current one; whether there was one."""
        return self.change(step_back, create=False, revised=False, missing=bool)


def _begin_fork(head: Head, parent: int, seq: int, now_ms: int) -> None:
    """Make a copy of the parent's head the head of its fork."""
    head.parent_session, head.parent_seq = parent, seq
    head.next_seq = seq + 1
    head.revision = head.epoch = 0
    head.next_view = head.next_block = 1
    head.flags = 0
    head.recount_stop = min(head.recount_stop, seq + 1)
    head.created_ms = now_ms


def take_back(draft: SessionTxn, count: int) -> list[Item]:
    """Take the last items off a draft and return them, oldest first."""
    count = min(count, draft.count)
    items = [
        decode_item(seq, body, flags, draft.tokens_at(position), _payload_of(draft, flags, body))
        for position, seq, flags, body in draft.last_rows(count)
    ]
    draft.cut_to(draft.count - count)
    return items


def _payload_of(draft: SessionTxn, flags: int, body: bytes) -> bytes | None:
    if not flags & FLAG_BLOB:
        return None
    ref = blobs.BlobRef.unpack(split_body(body)[3])
    return blobs.read(draft.txn, draft.log.scope, ref)


def step_back(draft: SessionTxn) -> bool:
    """Make the parent of the current view the current one."""
    head = draft.head
    stored = read_view(draft.txn, draft.log.scope, head.view_session, head.view_number)
    if stored is None:
        return False
    head.view_session, head.view_number = stored.parent_owner, stored.view.parent
    return True


# --- Appending to a session -----------------------------------------------------------------------


Planned: TypeAlias = tuple[list[Prepared], Closure[Receipt]]


@dataclass(frozen=True, slots=True)
class ItemOptions:
    """What may be said of the items of one change."""

    meta: Mapping[str, Any] | None = None
    request_id: str | None = None
    envelope: Envelope | None = None


PLAIN: Final = ItemOptions()
STAGE_ATTEMPTS: Final = 8
AnyEnvelope: TypeAlias = Envelope | Mapping[str, Any]


def options_of(
    meta: Mapping[str, Any] | None, request_id: str | None, envelope: AnyEnvelope | None
) -> ItemOptions:
    """The options of a change as its caller gave them.

    Raises:
        InvalidOptionError: the envelope has an unknown field or type, or a wrong value.
    """
    return ItemOptions(meta, request_id, checked_envelope(envelope))


class Appending:
    """Prepares items and makes the closures that append them."""

    __slots__ = ("_address", "_changes")

    def __init__(self, address: SessionRef) -> None:
        self._address = address
        self._changes = Changes(address)

    def prepare(
        self, items: Iterable[Any], options: ItemOptions, *, admitted: bool = False
    ) -> list[Prepared]:
        """Check, classify, count and encode items; ``admitted`` ones passed the border before.

        Raises:
            InvalidItemError: one of them is no JSON object or too large; it is named.
        """
        if type(items) is not list and (
            isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable)
        ):
            msg = f"items: expected a list of mappings, got {type(items).__name__}"
            raise InvalidItemError(msg)
        engine = self._address.engine
        counter = self._counter()
        seed, now_us = engine.seed, engine.now_us()
        meta, request_id, envelope = options.meta, options.request_id, options.envelope
        if engine.border is not None and not admitted:
            found = [self._admitted(item, counter, now_us, options) for item in items]
            return found if engine.size_guard is None else self.guarded(found)
        prepared = [
            prepare_item(
                item,
                counter=counter,
                seed=seed,
                now_us=now_us,
                meta=meta,
                request_id=request_id,
                envelope=envelope,
            )
            for item in items
        ]
        return prepared if engine.size_guard is None else self.guarded(prepared)

    def guarded(self, prepared: list[Prepared]) -> list[Prepared]:
        """The same with every item that is too large as two: an event with its texts, and the rest.

        Raises:
            InvalidItemError: one is refused; nothing else is stored then.
        """
        guard, engine = self._address.engine.size_guard, self._address.engine
        if guard is None:
            return prepared
        found: list[Prepared] = []
        for item in prepared:
            size = item.size
            if size <= guard.item_bytes:
                found.append(item)
                continue
            said = decode_item(0, item.body, item.flags, item.tokens, item.payload)
            is_event = item.facts[0] == ItemKind.EVENT
            whole = item.message["payload"] if is_event else item.message
            shown, texts = guard.replaced(whole, size, engine.seed)
            if self._address.passage is not None:  # a caller's summary may say what it likes
                shown = self._address.passage.again(shown)
            # What the item's own meta and envelope are passed the border; the options did not.
            made: dict[str, Any] = {
                "counter": engine.counter if is_event else self._counter(),
                "seed": engine.seed,
                "now_us": engine.now_us(),
            }
            beside = {**made, "meta": {OFFLOADED: texts["key"]}, "request_id": said.request_id}
            own: dict[str, Any] = {
                "meta": said.meta,
                "request_id": said.request_id,
                "envelope": said.envelope,
            }
            found.append(prepare_event(OFFLOADED, texts, **beside))
            if is_event:
                found.append(prepare_event(item.message["type"], shown, **made, **own))
            else:
                found.append(prepare_item(shown, **made, **own))
            found[-1].held = item.held
            if item.held is not None:
                found[-1].tokens = max(found[-1].tokens, item.tokens)
        return found

    def admitted(self, items: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Items as they may be stored, for who encodes them in a way of his own.

        Raises:
            BlockedError: a guard refuses one, or would have it quarantined.
        """
        passage = self._address.passage
        if passage is None:
            return list(items)
        found = [admitted_item(passage, item, None) for item in items]
        if any(each.held is not None for each in found):
            msg = "an item is to be quarantined, which encrypted ones cannot be: nothing was stored"
            raise BlockedError(msg, verdict="quarantine", reason="encrypted")
        return [each.message for each in found]

    def _admitted(
        self, item: Any, counter: TokenCounter, now_us: int, options: ItemOptions
    ) -> Prepared:
        """What is stored of an item once it passed the border."""
        passage = self._address.passage
        assert passage is not None  # noqa: S101 - there is a border
        admitted = admitted_item(passage, item, options.meta)
        prepared = prepare_item(
            admitted.message,
            counter=counter,
            seed=self._address.engine.seed,
            now_us=now_us,
            meta=admitted.meta,
            request_id=options.request_id,
            envelope=told(
                passage,
                options.envelope,
                redacted=admitted.redacted,
                request_id=options.request_id,
            ),
        )
        prepared.held = admitted.held
        if admitted.held is not None:  # released, it must not count more
            whole = count_message(admitted.original, counter)
            prepared.tokens = max(prepared.tokens, whole)
        return prepared

    def _counter(self) -> TokenCounter:
        """The session's own counter, so that its counts are never mixed."""
        self._address.touch()
        log = self._address.resolve()
        if log is None:
            return self._address.options.counter or self._address.engine.counter
        if log.head is None:
            self._address.engine.read_locked(log, log.catch_up)
        if log.head is None:
            return self._address.options.counter or self._address.engine.counter
        self._address.check_head(log.head)
        return log.counter

    def prepare_event(
        self,
        event_type: str,
        payload: Any,
        options: ItemOptions,
        abandons: tuple[tuple[int, str], ...] = (),
    ) -> Prepared:
        """Check and encode one event."""
        if event_type == ABANDON_EVENT and not abandons:
            msg = f"type {ABANDON_EVENT!r} is reserved: call session.abandon(call_id)"
            raise InvalidOptionError(msg)
        engine, passage = self._address.engine, self._address.passage
        meta, envelope, held = options.meta, options.envelope, None
        if passage is not None and not abandons:
            admitted = admitted_event(passage, event_type, payload, meta)
            payload, meta, redacted, held, _ = admitted
            envelope = told(passage, envelope, redacted=redacted, request_id=options.request_id)
        prepared = prepare_event(
            event_type,
            payload,
            counter=engine.counter,
            seed=engine.seed,
            now_us=engine.now_us(),
            abandons=abandons,
            meta=meta,
            request_id=options.request_id,
            envelope=envelope,
        )
        prepared.held = held
        return prepared

    def abandon_event(self, key: tuple[int, str]) -> Prepared:
        """The event that gives up a call."""
        payload = {"class": key[0], "id": key[1]}
        return self.prepare_event(ABANDON_EVENT, payload, ItemOptions(), (key,))

    def append(
        self,
        items: Sequence[Prepared],
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
        create: bool = True,
    ) -> Closure[Receipt]:
        """Append prepared items in one commit."""
        revision = checked_optional_int("expected_revision", expected_revision)
        engine = self._address.engine
        request = None
        if idempotency_key is not None:
            request = prepare_request(idempotency_key, items, seed=engine.seed)
        orphans = self._address.options.orphans

        def work(draft: SessionTxn) -> Unchanged | None:
            if request is not None:
                first = find_request(draft, request, now_ms=engine.now_ms())
                if first is not None:
                    return Unchanged(first)
            draft.expect(revision)
            draft.append(items, orphans=orphans)
            return None

        def after(draft: SessionTxn) -> Receipt:
            receipt = draft.receipt(len(items))
            if request is not None:
                record_request(draft, request, receipt, now_ms=engine.now_ms())
            return receipt

        return self._changes.change(work, after=after, atomic=True, create=create)

    def nothing(
        self, *, expected_revision: int | None = None, idempotency_key: str | None = None
    ) -> Closure[Receipt]:
        """The receipt of a change that appends nothing; writes nothing."""
        revision = checked_optional_int("expected_revision", expected_revision)
        prepare_request(idempotency_key, [], seed=self._address.engine.seed)
        self._address.need_writable()

        def closure(txn: Txn) -> Receipt:
            draft = self._address.draft(txn, create=False)
            if draft is not None:
                draft.expect(revision)
                return draft.receipt(0)
            if revision:
                raise revision_conflict(revision, 0)
            return Receipt(0, 0, 0, 0, 0)

        return closure

    # --- plans: prepared items and their closure --------------------------------------------------

    def extend(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> Planned:
        """What ``Session.extend`` stores."""
        plain = meta is None and request_id is None and envelope is None
        options = PLAIN if plain else options_of(meta, request_id, envelope)
        prepared = self.prepare(items, options)
        plan = self.append if prepared else self._append_nothing
        return prepared, plan(
            prepared, expected_revision=expected_revision, idempotency_key=idempotency_key
        )

    def _append_nothing(
        self, _: Sequence[Prepared], *, expected_revision: int | None, idempotency_key: str | None
    ) -> Closure[Receipt]:
        return self.nothing(expected_revision=expected_revision, idempotency_key=idempotency_key)

    def record(
        self,
        event_type: str,
        payload: Any,
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> Planned:
        """What ``Session.record`` stores."""
        options = options_of(meta, request_id, envelope)
        prepared = self.guarded([self.prepare_event(event_type, payload, options)])
        return prepared, self.append(
            prepared, expected_revision=expected_revision, idempotency_key=idempotency_key
        )

    def abandon(self, call_id: str) -> Planned:
        """What ``Session.abandon`` stores.

        Raises:
            NotFoundError: there is no open call with this id.
        """
        for key, call in SessionReader(self._address).open_calls():
            if call.call_id == call_id:
                prepared = [self.abandon_event(key)]
                return prepared, self.append(prepared, create=False)
        msg = f"session {self._address.name!r} has no open call {call_id!r}"
        raise NotFoundError(msg)

    # --- large items ------------------------------------------------------------------------------

    def stage(self, items: Iterable[Prepared]) -> bool:
        """Write the blobs of very large items ahead; whether there are any."""
        large = [
            item
            for item in items
            if item.payload is not None and len(item.payload) > BLOB_INLINE_COMMIT_BYTES_MAX
        ]
        if not large:
            return False
        address, engine = self._address, self._address.engine
        address.need_writable()
        scope = engine.store.transact(
            lambda txn: names.ensure_scope(txn, address.app, address.user)
        )
        seed = int.from_bytes(engine.seed[:8], "little")
        for item in large:
            assert item.payload is not None  # noqa: S101 - chosen above
            item.staged = blobs.stage(engine.store, scope, item.payload, seed=seed)
        return True

    def store(self, prepared: list[Prepared], closure: Closure[T]) -> T:
        """Commit; very large items are staged ahead, again if they were collected meanwhile."""
        transact = self._address.engine.store.transact
        for item in prepared:
            if item.payload is not None:
                break
        else:
            return transact(closure)
        for _ in range(STAGE_ATTEMPTS):
            self.stage(prepared)
            try:
                return transact(closure)
            except blobs.StagedBlobLost:
                continue
        msg = "a large item was collected again and again before it could be referred to; try again"
        raise StorageError(msg)
