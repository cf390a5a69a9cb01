"""Several changes of one session in one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from memcore.log import Draft, Prepared
from memcore.model import Item, Receipt
from memcore.options import checked_int, checked_optional_int
from memcore.session.address import Address
from memcore.session.appending import Appending, ItemOptions
from memcore.session.changes import Changes, Closure, Settled, take_back
from memcore.state import StateChange, Trace, Update

__all__ = ["Batch"]


class Batch:
    """Collects changes; ``session.batch()`` commits them when the block ends without an error.

    Either all of them are stored or none. With ``expected_revision`` an undo followed by appends
    replaces the end of the history only if nobody else wrote (a suffix compare-and-set).
    """

    def __init__(self, address: Address, expected_revision: int | None) -> None:
        self._address = address
        self._appending = Appending(address)
        self._changes = Changes(address)
        self._revision = checked_optional_int("expected_revision", expected_revision)
        self._steps: list[Callable[[Draft], object]] = []
        self._undone: list[Item] = []
        self._state = StateChange(address.options.state)
        self.prepared: list[Prepared] = []
        self.receipt: Receipt | None = None
        """The receipt of the whole batch, once it is committed."""

    @property
    def undone(self) -> list[Item]:
        """The items that the batch's undos took off, oldest first, once it is committed."""
        return self._undone

    def append(
        self,
        item: Mapping[str, Any],
        *,
        meta: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        """Append one item."""
        self.extend([item], meta=meta, request_id=request_id)

    def extend(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        meta: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        """Append items.

        Raises:
            InvalidItemError: one of them is no JSON object; nothing of the batch is stored if the
                error leaves the block.
        """
        prepared = self._appending.prepare(items, ItemOptions(meta, request_id))
        orphans = self._address.options.orphans
        if prepared:  # no items would make a segment without items
            self.prepared += prepared
            self._steps.append(lambda draft: draft.append(prepared, orphans=orphans))

    def record(
        self,
        type: str,  # noqa: A002 - the architecture's name
        payload: Any = None,
        *,
        meta: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        """Append an event."""
        prepared = [self._appending.prepare_event(type, payload, ItemOptions(meta, request_id))]
        self.prepared += prepared
        self._steps.append(lambda draft: draft.append(prepared, orphans="keep"))

    def undo(self, count: int = 1) -> None:
        """Take the last ``count`` items off the live history."""
        checked_int("undo", count, least=1)

        def step(draft: Draft) -> None:
            self._undone[:0] = take_back(draft, count)

        self._steps.append(step)

    def update_state(
        self,
        update: Update | Iterable[Update],
        *,
        schema: Any = None,
        expected: int | None = None,
        trace: Trace | None = None,
    ) -> None:
        """As ``session.state.update``; a step of its own, after those before it."""
        self._state.expect(expected)
        self._state.update(update, schema=schema, trace=trace)

    def delete_state(self, *fields: str) -> None:
        """As ``session.state.delete``."""
        self._state.delete(fields)

    def apply(self, command: Any, *, trace: Trace | None = None) -> None:
        """A Command: its messages are appended, its fields updated."""
        self.extend(list(getattr(command, "messages", None) or ()))
        self._state.apply(command, trace=trace)

    def closure(self) -> Closure[Receipt]:
        """The batch as one closure; an empty batch writes nothing."""
        if not self._steps and self._state.is_empty:
            return self._appending.nothing(expected_revision=self._revision)

        def work(draft: Draft) -> Settled | None:
            self._undone.clear()  # the closure may be run again
            draft.expect(self._revision)
            for step in self._steps:
                step(draft)
            # Last, so that most of what may fail comes before the first write.
            if not self._state.is_empty:
                self._state.run(draft.txn, draft.log.scope, draft.log.session)
            is_idle = not self.prepared and not self._undone and self._state.is_empty
            return Settled(draft.receipt(0)) if is_idle else None

        return self._changes.change(
            work,
            create=bool(self.prepared) or self._state.writes,
            revised=lambda: bool(self.prepared or self._undone),
            after=lambda draft: draft.receipt(len(self.prepared)),
            missing=lambda: Receipt(0, 0, 0, 0, 0),
        )

    def settle(self, receipt: Receipt) -> None:
        """Take the receipt of the commit; the traces of reducers are told now."""
        self.receipt = receipt
        self._state.tell()


class BatchContext:
    """The ``with`` block of a batch."""

    def __init__(self, batch: Batch, commit: Callable[[Batch], Receipt]) -> None:
        self._batch = batch
        self._commit = commit

    def __enter__(self) -> Batch:
        return self._batch

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._batch.settle(self._commit(self._batch))
