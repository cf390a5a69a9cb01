"""Encoding of items, and the change that appends them.

Items are checked, classified, counted and encoded before anything is queued; the transaction only
binds pairs and assigns numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from memcore import blobs, session
from memcore._fast import AppendFields, is_readable
from memcore.errors import (
    BlockedError,
    InvalidItemError,
    InvalidOptionError,
    NotFoundError,
    StorageError,
)
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.log import (
    CachedSession,
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
from memcore.log.idempotency import IdempotentRequest
from memcore.log.session_txn import revision_conflict
from memcore.model import Envelope, ItemKind, Receipt, checked_envelope
from memcore.options import checked_optional_int, plain_message
from memcore.rows import names
from memcore.rows.item import pack_envelope
from memcore.session.change import Change, Unchanged
from memcore.session.engine import OFFLOADED, SessionRef
from memcore.session.read import open_calls
from memcore.tokens import TokenCounter
from memcore.wire import get_policy
from memcore.wire.message import ABANDON_EVENT

__all__ = [
    "AnyEnvelope",
    "Append",
    "AppendNothing",
    "ItemOptions",
    "abandon",
    "abandon_event",
    "admit_items",
    "append_items",
    "encode_event",
    "encode_items",
    "options_of",
    "record_event",
    "split_large",
    "stage",
    "store",
    "unreadable",
]

T = TypeVar("T")
STAGE_ATTEMPTS: Final = 8
AnyEnvelope: TypeAlias = Envelope | Mapping[str, Any]


class ItemOptions(NamedTuple):
    """Options of the items of one change."""

    meta: Mapping[str, Any] | None = None
    request_id: str | None = None
    envelope: Envelope | None = None


PLAIN: Final = ItemOptions()


def options_of(
    meta: Mapping[str, Any] | None, request_id: str | None, envelope: AnyEnvelope | None
) -> ItemOptions:
    """Return the options of a change, checked.

    Raises:
        InvalidOptionError: the envelope has an unknown field or type, or a wrong value.
    """
    if meta is None and request_id is None and envelope is None:
        return PLAIN
    return ItemOptions(meta, request_id, checked_envelope(envelope))


# --- Encoding -------------------------------------------------------------------------------------


Begun: TypeAlias = tuple[list[Prepared], int]
"""A change's leading items, already prepared, and its time in microseconds."""


def encode_items(
    ref: SessionRef,
    items: Iterable[Any],
    options: ItemOptions,
    *,
    admitted: bool = False,
    begun: Begun | None = None,
) -> list[Prepared]:
    """Check, classify, count and encode items; ``admitted`` ones have passed the write filter.

    ``begun``: the leading items as prepared by ``RefFields.begin_append``.

    Raises:
        InvalidItemError: an item is not a JSON object or is too large; the message names it.
    """
    if type(items) is not list and (
        isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable)
    ):
        msg = f"items: expected a list of mappings, got {type(items).__name__}"
        raise InvalidItemError(msg)
    engine, log = ref.engine, ref.log
    # Read without the log's lock: if the session is recounted meanwhile, the transaction finds
    # items of another counter and counts them again.
    if log is None or log.head is None or ref.asks or ref.due is not None:
        counter = _counter_of(ref)
    else:
        counter = log.counter
    filters = engine.write_filter is not None and not admitted
    if begun is None:
        prepared: list[Prepared] = []
        now_us = engine.now_us()
        # With a write filter, the encoder takes what holds nothing to redact, if it can tell.
        encodes = engine.encoder.screens if filters else engine.write_filter is None
        if encodes and type(items) is list and items and (options is PLAIN or not filters):
            beside = b"" if options is PLAIN else pack_envelope(*options)
            prepared = engine.encoder.encode(items, counter, now_us, beside)
    else:
        prepared, now_us = begun
    # What has no length was never begun: ``prepared`` is empty then, and ``len`` not called.
    if not prepared or len(prepared) < len(items):  # type: ignore[arg-type]
        meta, request_id, envelope = options
        made: list[Prepared] = []
        for at, item in enumerate(islice(items, len(prepared), None), len(prepared)):
            try:
                made.append(
                    _admitted(ref, plain_message(item), counter, now_us, options)
                    if filters
                    else prepare_item(
                        item,
                        counter=counter,
                        seed=engine.seed,
                        now_us=now_us,
                        meta=meta,
                        request_id=request_id,
                        envelope=envelope,
                    )
                )
            except InvalidItemError as error:
                if not at:
                    raise
                why = str(error).removeprefix("item").lstrip(": ")
                raise InvalidItemError(f"the item at position {at}: {why}") from error
        _need_readable(ref, made, len(prepared))
        prepared += made
    # Split after the filter: what is put beside an item must have passed it, too.
    return prepared if engine.size_guard is None else split_large(ref, prepared)


def _need_readable(ref: SessionRef, made: Sequence[Prepared], known: int) -> None:
    """Refuse what is no message of any format, unless the handle keeps it; ``known``: those before.

    Raises:
        InvalidItemError: an item has an unknown role or type, or content of a wrong type.
    """
    if ref.options.shape == "keep":
        return
    for item in made:
        if not is_readable(item.message):
            break
    else:
        return
    head = None if ref.log is None else ref.log.head
    policy = ref.options.policy or ref.engine.policy if head is None else head.policy
    fault = unreadable(made, policy, known=known)
    if fault is not None:
        msg = f"{fault}; mend it, or open the session with shape='keep' to store it as it is"
        raise InvalidItemError(msg)


def unreadable(made: Sequence[Prepared], policy: str, *, known: int = 0) -> str | None:
    """Name the first item that is no message of any format, and say why; None if all are.

    ``known``: the number of items in front of these.
    """
    for at, item in enumerate(made, known):
        if not is_readable(item.message):
            from memcore.wire.form import unreadable_fault  # noqa: PLC0415 - few need the tables

            fault = unreadable_fault(item.message, get_policy(policy).wire)
            if fault is not None:
                return f"the item at position {at}: {fault}"
    return None


def split_large(ref: SessionRef, prepared: list[Prepared]) -> list[Prepared]:
    """Split every oversized item in two: an event with its texts, and the remainder.

    Raises:
        InvalidItemError: an item is refused; nothing is stored then.
    """
    guard, engine = ref.engine.size_guard, ref.engine
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
        if ref.scope_filter is not None:  # a caller's summary may contain anything
            shown = ref.scope_filter.again(shown)
        # The item's own meta and envelope have passed the filter; the raw options have not.
        made: dict[str, Any] = {
            "counter": engine.counter if is_event else _counter_of(ref),
            "seed": engine.seed,
            "now_us": engine.now_us(),
        }
        beside = {**made, "meta": {OFFLOADED: texts["key"]}, "request_id": said.request_id}
        own: dict[str, Any] = {
            "meta": said.meta,
            "request_id": said.request_id,
            "envelope": said.envelope,
        }
        # In front of the item: an undo that leaves the preview leaves its texts, too.
        found.append(prepare_event(OFFLOADED, texts, **beside))
        if is_event:
            found.append(prepare_event(item.message["type"], shown, **made, **own))
        else:
            found.append(prepare_item(shown, **made, **own))
        # The quarantine row stands under the seq of the item, not of the event; its original has to
        # fit the tokens that budgets are cut by.
        found[-1].held = item.held
        if callable(guard.oversize):
            # A model's summary differs each time: a retry is known by what was summarized.
            found[-1].content = texts["key"].encode()
        if item.held is not None:
            found[-1].tokens = max(found[-1].tokens, item.tokens)
    return found


def admit_items(ref: SessionRef, items: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return items filtered for storage, for callers that encode them in their own way.

    Raises:
        BlockedError: a guard refuses an item or would quarantine it.
    """
    scope_filter = ref.scope_filter
    if scope_filter is None:
        return list(items)
    found = [session.admitted_item(scope_filter, item, None) for item in map(plain_message, items)]
    if any(each.held is not None for each in found):
        msg = "an item is to be quarantined, which encrypted ones cannot be: nothing was stored"
        raise BlockedError(msg, verdict="quarantine", reason="encrypted")
    return [each.message for each in found]


def _admitted(
    ref: SessionRef, item: Any, counter: TokenCounter, now_us: int, options: ItemOptions
) -> Prepared:
    """Filter an item and encode the result."""
    scope_filter = ref.scope_filter
    assert scope_filter is not None  # noqa: S101 - there is a write filter
    admitted = session.admitted_item(scope_filter, item, options.meta)
    prepared = prepare_item(
        admitted.message,
        counter=counter,
        seed=ref.engine.seed,
        now_us=now_us,
        meta=admitted.meta,
        request_id=options.request_id,
        envelope=session.told(
            scope_filter,
            options.envelope,
            redacted=admitted.redacted,
            request_id=options.request_id,
        ),
    )
    prepared.held = admitted.held
    if admitted.held is not None:  # once released, it must not count for more
        whole = count_message(admitted.original, counter)
        prepared.tokens = max(prepared.tokens, whole)
    return prepared


def _counter_of(ref: SessionRef) -> TokenCounter:
    """The session's own counter, so that counts of different counters never mix."""
    if ref.due is not None:
        ref.touch()
    log = ref.log
    if log is None or log.head is None:
        log = ref.resolve()
        if log is not None and log.head is None:
            ref.engine.read_locked(log, CachedSession.catch_up)
        if log is None or log.head is None:
            return ref.options.counter or ref.engine.counter
    if ref.asks:
        ref.check_head(log.head)
    return log.counter


def encode_event(
    ref: SessionRef,
    event_type: str,
    payload: Any,
    options: ItemOptions,
    abandons: tuple[tuple[int, str], ...] = (),
) -> Prepared:
    """Check and encode one event."""
    # A rebuilt index takes the call from this payload (``facts_of``), so callers may not write it.
    if event_type == ABANDON_EVENT and not abandons:
        msg = f"type {ABANDON_EVENT!r} is reserved: call session.abandon(call_id)"
        raise InvalidOptionError(msg)
    engine, scope_filter = ref.engine, ref.scope_filter
    meta, envelope, held = options.meta, options.envelope, None
    # The key of a call passes as it is: with a placeholder in its id it would name no call.
    if scope_filter is not None and not abandons:
        admitted = session.admitted_event(scope_filter, event_type, payload, meta)
        payload, meta, redacted, held, _ = admitted
        envelope = session.told(
            scope_filter, envelope, redacted=redacted, request_id=options.request_id
        )
    prepared = prepare_event(
        event_type,
        payload,
        # Events count no tokens: the session's own counter, which may take a read, is not needed.
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


def abandon_event(ref: SessionRef, key: tuple[int, str]) -> Prepared:
    """Return the event that gives up a call."""
    payload = {"class": key[0], "id": key[1]}
    return encode_event(ref, ABANDON_EVENT, payload, ItemOptions(), (key,))


# --- The change -----------------------------------------------------------------------------------


class Append(AppendFields, Change[Receipt]):
    """Append encoded items in one commit; the result is the receipt.

    Args:
        ref: the session.
        items: from ``encode_items`` or ``encode_event``; at least one.
        expected_revision: append only if the session is at this revision.
        request: makes the append idempotent: a repeat gets the first receipt while the items are
            live.
        creates: create the session if it does not exist.
    """

    __slots__ = ()
    # ``session.append`` undoes what it bound before it raises, which saves a mark for each append.
    # A subclass that raises after it has to be False.
    atomic = True
    items: Sequence[Prepared]
    creates: bool

    def __init__(
        self,
        ref: SessionRef,
        items: Sequence[Prepared],
        *,
        expected_revision: int | None = None,
        request: IdempotentRequest | None = None,
        creates: bool = True,
    ) -> None:
        self.items = items
        self.expected_revision = expected_revision
        if expected_revision is not None:
            checked_optional_int("expected_revision", expected_revision)
        self.request = request
        self.creates = creates
        self.ref = ref
        if ref.due is not None or ref.engine.store.read_only:
            ref.need_writable()

    def run(self, session: SessionTxn) -> Unchanged | None:
        """Bind and number the items, unless the request was already carried out."""
        # Before the revision is compared: a retry still names the one that its first run moved on.
        if self.request is not None:
            first = find_request(session, self.request, now_ms=self.ref.engine.now_ms())
            if first is not None:
                return Unchanged(first)
        if self.expected_revision is not None:
            session.expect(self.expected_revision)
        session.append(self.items, orphans=self.ref.options.orphans)
        return None

    def done(self, session: SessionTxn, result: Any) -> Receipt:
        """Make the receipt and record it under the request's key."""
        del result
        receipt = session.receipt(len(self.items))
        if self.request is not None:
            now_ms = self.ref.engine.now_ms()
            # Not in ``run``: the revision in the receipt is known only once the change is finished.
            record_request(session, self.request, receipt, now_ms=now_ms)
        return receipt


class AppendNothing(Change[Receipt]):
    """Append nothing; the result is the receipt. Writes nothing."""

    __slots__ = ("expected_revision",)
    creates = False

    def __init__(self, ref: SessionRef, *, expected_revision: int | None = None) -> None:
        self.expected_revision = checked_optional_int("expected_revision", expected_revision)
        super().__init__(ref)

    def run(self, session: SessionTxn) -> Unchanged:
        """Check the revision."""
        session.expect(self.expected_revision)
        return Unchanged(session.receipt(0))

    def missing(self) -> Receipt:
        """Return the receipt of a session without items."""
        if self.expected_revision:
            raise revision_conflict(self.expected_revision, 0)
        return Receipt(0, 0, 0, 0, 0)


def append_items(
    ref: SessionRef,
    items: Iterable[Mapping[str, Any]],
    *,
    expected_revision: int | None = None,
    idempotency_key: str | None = None,
    request_id: str | None = None,
    meta: Mapping[str, Any] | None = None,
    envelope: AnyEnvelope | None = None,
    begun: Begun | Append | None = None,
) -> Change[Receipt]:
    """Return the change of ``Session.extend``; ``begun``: from ``RefFields.begin_append``."""
    if isinstance(begun, Append):
        encoded = begun.items
    else:
        options = options_of(meta, request_id, envelope)
        encoded = encode_items(ref, items, options, begun=begun)
    request = None
    if idempotency_key is not None:
        request = prepare_request(idempotency_key, encoded, seed=ref.engine.seed)
    if not encoded:
        return AppendNothing(ref, expected_revision=expected_revision)
    return Append(ref, encoded, expected_revision=expected_revision, request=request)


def record_event(
    ref: SessionRef,
    event_type: str,
    payload: Any,
    *,
    expected_revision: int | None = None,
    idempotency_key: str | None = None,
    request_id: str | None = None,
    meta: Mapping[str, Any] | None = None,
    envelope: AnyEnvelope | None = None,
) -> Append:
    """Return the change of ``Session.record``."""
    event = encode_event(ref, event_type, payload, options_of(meta, request_id, envelope))
    encoded = split_large(ref, [event])
    request = prepare_request(idempotency_key, encoded, seed=ref.engine.seed)
    return Append(ref, encoded, expected_revision=expected_revision, request=request)


def abandon(ref: SessionRef, call_id: str) -> Append:
    """Return the change of ``Session.abandon``.

    Raises:
        NotFoundError: no open call has this id.
    """
    for key, call in open_calls(ref):
        if call.call_id == call_id:
            return Append(ref, [abandon_event(ref, key)], creates=False)
    msg = f"session {ref.name!r} has no open call {call_id!r}"
    raise NotFoundError(msg)


# --- Large items ----------------------------------------------------------------------------------


def stage(ref: SessionRef, items: Iterable[Prepared]) -> bool:
    """Write the blobs of very large items ahead of their change; return True if there are any."""
    large = [
        item
        for item in items
        if item.payload is not None and len(item.payload) > BLOB_INLINE_COMMIT_BYTES_MAX
    ]
    if not large:
        return False
    engine = ref.engine
    ref.need_writable()
    # Blobs belong to a scope, which the first append of a user has yet to create.
    scope = engine.store.transact(lambda txn: names.ensure_scope(txn, ref.app, ref.user))
    seed = int.from_bytes(engine.seed[:8], "little")
    for item in large:
        assert item.payload is not None  # noqa: S101 - chosen above
        item.staged = blobs.stage(engine.store, scope, item.payload, seed=seed)
    return True


def store(change: Change[T]) -> T:
    """Commit a change; stages very large items first, and again if their blobs were collected.

    Raises:
        StorageError: the blobs kept being garbage-collected before the commit.
    """
    ref, items = change.ref, change.items
    transact = ref.engine.store.transact
    for item in items:
        if item.payload is not None:
            break
    else:
        return transact(change, makes_room=change.makes_room)
    # Until the change refers to it, a staged blob is garbage to a collection that comes in between;
    # then it is written again.
    for _ in range(STAGE_ATTEMPTS):
        stage(ref, items)
        try:
            return transact(change, makes_room=change.makes_room)
        except blobs.StagedBlobLost:
            continue
    msg = "a large item was collected again and again before it could be referred to; try again"
    raise StorageError(msg)
