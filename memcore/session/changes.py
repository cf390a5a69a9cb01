"""Changing a session: every change is a closure that the store may run again.

Arguments are checked, items classified, counted and encoded before anything is queued. The same
closures serve the synchronous handle and the asynchronous one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from memcore import blobs, keys, names
from memcore.codec import seal_value
from memcore.errors import InvalidItemError, InvalidOptionError, NotFoundError
from memcore.formats import get_policy
from memcore.formats.binding import ABANDON_EVENT
from memcore.keys import Row
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.log import (
    Draft,
    Head,
    Prepared,
    StoredItem,
    decode_item,
    find_request,
    prepare_event,
    prepare_item,
    prepare_request,
    record_request,
)
from memcore.log.history import StoredRow
from memcore.log.item import split_body
from memcore.model import Item, Receipt
from memcore.options import checked_int, checked_optional_int
from memcore.session.address import Address
from memcore.store.base import Txn
from memcore.views import read_view

__all__ = ["Changes", "Closure"]

T = TypeVar("T")
Closure = Callable[[Txn], T]


@dataclass(frozen=True, slots=True)
class ItemOptions:
    """What may be said of the items of one change."""

    meta: Mapping[str, Any] | None = None
    request_id: str | None = None


class Changes:
    """Makes the closures of all changes of one session."""

    __slots__ = ("_address",)

    def __init__(self, address: Address) -> None:
        self._address = address

    def change(
        self,
        work: Callable[[Draft], T],
        *,
        create: bool = True,
        revised: bool = True,
        after: Callable[[Draft], Any] | None = None,
        missing: Callable[[], Any] | None = None,
        atomic: bool = False,
    ) -> Closure[Any]:
        """A closure that does ``work`` on the session's draft and finishes it.

        If ``work`` fails before it wrote anything, the draft is as it was before (``atomic``: by
        itself). ``after`` gives
        the closure's result once the change is numbered; without it ``work``'s result is it.
        ``missing`` gives the result for a session that does not exist; else NotFoundError.
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
            if isinstance(result, Repeated):
                return result.receipt
            draft.finish(now_ms=self._address.backing.now_ms(), revised=revised)
            return result if after is None else after(draft)

        return closure

    # --- items ------------------------------------------------------------------------------------

    def prepare(self, items: Iterable[Any], options: ItemOptions) -> list[Prepared]:
        """Check, classify, count and encode items.

        Raises:
            InvalidItemError: one of them is no JSON object or too large; it is named.
        """
        if isinstance(items, str | bytes | Mapping):
            msg = f"items: expected a list of mappings, got {type(items).__name__}"
            raise InvalidItemError(msg)
        backing = self._address.backing
        counter = self._counter()
        now_us = backing.now_us()
        return [
            prepare_item(
                item,
                counter=counter,
                seed=backing.seed,
                now_us=now_us,
                meta=options.meta,
                request_id=options.request_id,
            )
            for item in items
        ]

    def _counter(self) -> Any:
        """The session's own counter, so that its counts are never mixed."""
        log = self._address.resolve()
        if log is None:
            return self._address.options.counter or self._address.backing.counter
        if log.head is None:
            with log.lock:
                self._address.backing.store.read(log.catch_up)
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
        backing = self._address.backing
        return prepare_event(
            event_type,
            payload,
            counter=backing.counter,
            seed=backing.seed,
            now_us=backing.now_us(),
            abandons=abandons,
            meta=options.meta,
            request_id=options.request_id,
        )

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
    ) -> Closure[Receipt]:
        """Append prepared items in one commit."""
        revision = checked_optional_int("expected_revision", expected_revision)
        backing = self._address.backing
        request = prepare_request(idempotency_key, items, seed=backing.seed)

        def work(draft: Draft) -> Repeated | None:
            if request is not None:
                first = find_request(draft, request, now_ms=backing.now_ms())
                if first is not None:
                    return Repeated(first)
            draft.expect(revision)
            draft.append(items, orphans=self._address.options.orphans)
            return None

        def after(draft: Draft) -> Receipt:
            receipt = draft.receipt(len(items))
            if request is not None:
                record_request(draft, request, receipt, now_ms=backing.now_ms())
            return receipt

        return self.change(work, after=after, atomic=True)

    def nothing(self, *, expected_revision: int | None = None) -> Closure[Receipt]:
        """The receipt of a change that appends nothing; writes nothing."""
        revision = checked_optional_int("expected_revision", expected_revision)

        def closure(txn: Txn) -> Receipt:
            draft = self._address.draft(txn, create=False)
            if draft is None:
                return Receipt(0, 0, 0, 0, 0)
            draft.expect(revision)
            return draft.receipt(0)

        return closure

    # --- taking back ------------------------------------------------------------------------------

    def undo(self, count: int, *, expected_revision: int | None = None) -> Closure[list[Item]]:
        """Take the last items off the live history."""
        checked_int("undo", count, least=1)
        revision = checked_optional_int("expected_revision", expected_revision)

        def work(draft: Draft) -> Any:
            draft.expect(revision)
            return take_back(draft, count)

        return self.change(work, create=False, missing=list)

    def rewind(self, seq: int, *, expected_revision: int | None = None) -> Closure[Receipt]:
        """Make ``seq`` the last live item (0: none)."""
        checked_int("rewind", seq)
        revision = checked_optional_int("expected_revision", expected_revision)

        def work(draft: Draft) -> None:
            draft.expect(revision)
            draft.cut_to(self.live_count(draft, seq))

        return self.change(work, create=False, after=lambda draft: draft.receipt(0))

    def live_count(self, draft: Draft, seq: int) -> int:
        """How many live items there are up to and including ``seq``."""
        if seq == 0:
            return 0
        position = draft.position_of(seq)
        if position is None:
            msg = f"item {seq} is not in the live history of session {self._address.name!r}"
            raise NotFoundError(msg)
        return position + 1

    def fork(self, target: Address, at: int | None) -> Closure[None]:
        """A new session that shares this one's history up to and including ``at``."""
        if at is not None:
            checked_int("at", at)
        names.check_name(target.name, "session")
        policy = target.options.policy

        def work(draft: Draft) -> None:
            if target.find(draft.txn) is not None:
                msg = f"session {target.name!r} exists already: choose another name for the fork"
                raise InvalidOptionError(msg)
            seq = draft.last_seq if at is None else at
            count = self.live_count(draft, seq)
            draft.flush()
            txn, log, parent = draft.txn, draft.log, draft.head
            session = names.new_session(txn, log.scope, target.name)
            head = parent.changed()
            head.policy = policy or parent.policy
            _begin_fork(head, log.session, seq, self._address.backing.now_ms())
            head.trim(txn, log.scope, count)
            row = keys.session_row(log.scope, log.session, Row.CHILD, session)
            txn.put(row, seal_value(row, b""))
            child = self._address.backing.drafts.create(txn, log.scope, session, head)
            head.chain = child.chain_at(seq) if count else 0
            child.finish(now_ms=self._address.backing.now_ms())
            txn.on_commit(lambda: target.settle(log.scope, session))

        return self.change(work, create=False, revised=False)

    def set_policy(self, policy: str) -> Closure[None]:
        """Hold the session to another policy from now on; the log stays as it is."""
        name = get_policy(policy).name

        def work(draft: Draft) -> None:
            draft.set_policy(name)

        def after(draft: Draft) -> None:
            self._address.backing.drafts.close(draft.txn, draft)

        return self.change(work, after=after)

    def uncompact(self) -> Closure[bool]:
        """Go back to the view before the current one; whether there was one."""
        return self.change(step_back, create=False, revised=False, missing=bool)

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


@dataclass(frozen=True, slots=True)
class Repeated:
    """The request was carried out before: nothing is to be written."""

    receipt: Receipt


def _begin_fork(head: Head, parent: int, seq: int, now_ms: int) -> None:
    """Make a copy of the parent's head the head of its fork."""
    head.parent_session, head.parent_seq = parent, seq
    head.next_seq = seq + 1
    head.revision = head.epoch = 0
    head.next_view = head.next_block = 1
    head.flags = 0
    head.created_ms = now_ms


def take_back(draft: Draft, count: int) -> list[Item]:
    """Take the last items off a draft and return them, oldest first."""
    count = min(count, draft.count)
    items = []
    for row in draft.last_rows(count):
        stored = _decode(draft, row)
        items.append(
            Item(
                row.seq,
                stored.kind,
                stored.message,
                draft.tokens_at(row.position),
                stored.created_at,
                stored.meta,
                stored.request_id,
            )
        )
    draft.cut_to(draft.count - count)
    return items


def _decode(draft: Draft, row: StoredRow) -> StoredItem:
    payload = None
    if row.has_blob:
        ref = blobs.BlobRef.unpack(split_body(row.body)[3])
        payload = blobs.read(draft.txn, draft.log.scope, ref)
    return decode_item(row.body, row.flags, payload)


def step_back(draft: Draft) -> bool:
    """Make the parent of the current view the current one."""
    head = draft.head
    stored = read_view(draft.txn, draft.log.scope, head.view_session, head.view_number)
    if stored is None:
        return False
    head.view_session, head.view_number = stored.parent_owner, stored.view.parent
    return True
