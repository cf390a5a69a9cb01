"""Appending to a session.

Items are checked, classified, counted and encoded before anything is queued; what is left to the
transaction is to bind pairs and to number them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from memcore import blobs, names
from memcore.envelope import Envelope, checked_envelope
from memcore.errors import (
    BlockedError,
    InvalidItemError,
    InvalidOptionError,
    NotFoundError,
    StorageError,
)
from memcore.formats.binding import ABANDON_EVENT
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.log import (
    Draft,
    Prepared,
    count_message,
    decode_item,
    find_request,
    prepare_event,
    prepare_item,
    prepare_request,
    record_request,
)
from memcore.log.draft import revision_conflict
from memcore.model import ItemKind, Receipt
from memcore.options import checked_optional_int
from memcore.session.address import Address
from memcore.session.admitting import admitted_event, admitted_item, told
from memcore.session.changes import Changes, Closure, Settled
from memcore.session.reading import Reading
from memcore.session.sizes import OFFLOADED
from memcore.store.base import Txn
from memcore.tokens import TokenCounter

__all__ = ["AnyEnvelope", "Appending", "ItemOptions", "Planned", "options_of"]

T = TypeVar("T")
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

    def __init__(self, address: Address) -> None:
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
        backing = self._address.backing
        counter = self._counter()
        seed, now_us = backing.seed, backing.now_us()
        meta, request_id, envelope = options.meta, options.request_id, options.envelope
        if backing.border is not None and not admitted:
            found = [self._admitted(item, counter, now_us, options) for item in items]
            return found if backing.size_guard is None else self.guarded(found)
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
        return prepared if backing.size_guard is None else self.guarded(prepared)

    def guarded(self, prepared: list[Prepared]) -> list[Prepared]:
        """The same with every item that is too large as two: an event with its texts, and the rest.

        Raises:
            InvalidItemError: one is refused; nothing else is stored then.
        """
        guard, backing = self._address.backing.size_guard, self._address.backing
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
            shown, texts = guard.replaced(whole, size, backing.seed)
            if self._address.passage is not None:  # a caller's summary may say what it likes
                shown = self._address.passage.again(shown)
            # What the item's own meta and envelope are passed the border; the options did not.
            made: dict[str, Any] = {
                "counter": backing.counter if is_event else self._counter(),
                "seed": backing.seed,
                "now_us": backing.now_us(),
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
            seed=self._address.backing.seed,
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
            return self._address.options.counter or self._address.backing.counter
        if log.head is None:
            self._address.backing.read_locked(log, log.catch_up)
        if log.head is None:
            return self._address.options.counter or self._address.backing.counter
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
        backing, passage = self._address.backing, self._address.passage
        meta, envelope, held = options.meta, options.envelope, None
        if passage is not None and not abandons:
            admitted = admitted_event(passage, event_type, payload, meta)
            payload, meta, redacted, held, _ = admitted
            envelope = told(passage, envelope, redacted=redacted, request_id=options.request_id)
        prepared = prepare_event(
            event_type,
            payload,
            counter=backing.counter,
            seed=backing.seed,
            now_us=backing.now_us(),
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
        backing = self._address.backing
        request = None
        if idempotency_key is not None:
            request = prepare_request(idempotency_key, items, seed=backing.seed)
        orphans = self._address.options.orphans

        def work(draft: Draft) -> Settled | None:
            if request is not None:
                first = find_request(draft, request, now_ms=backing.now_ms())
                if first is not None:
                    return Settled(first)
            draft.expect(revision)
            draft.append(items, orphans=orphans)
            return None

        def after(draft: Draft) -> Receipt:
            receipt = draft.receipt(len(items))
            if request is not None:
                record_request(draft, request, receipt, now_ms=backing.now_ms())
            return receipt

        return self._changes.change(work, after=after, atomic=True, create=create)

    def nothing(
        self, *, expected_revision: int | None = None, idempotency_key: str | None = None
    ) -> Closure[Receipt]:
        """The receipt of a change that appends nothing; writes nothing."""
        revision = checked_optional_int("expected_revision", expected_revision)
        prepare_request(idempotency_key, [], seed=self._address.backing.seed)
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
        for key, call in Reading(self._address).open_calls():
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
        address, backing = self._address, self._address.backing
        address.need_writable()
        scope = backing.store.transact(
            lambda txn: names.ensure_scope(txn, address.app, address.user)
        )
        seed = int.from_bytes(backing.seed[:8], "little")
        for item in large:
            assert item.payload is not None  # noqa: S101 - chosen above
            item.staged = blobs.stage(backing.store, scope, item.payload, seed=seed)
        return True

    def store(self, prepared: list[Prepared], closure: Closure[T]) -> T:
        """Commit; very large items are staged ahead, again if they were collected meanwhile."""
        transact = self._address.backing.store.transact
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
