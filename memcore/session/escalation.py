"""What waits for a person: events of type ``hitl``, and what was decided about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from memcore.errors import InvalidOptionError, NotFoundError
from memcore.limits import ITEMS_PAGE
from memcore.log import Draft, Prepared, SessionLog, find_request, record_request, request_of
from memcore.log.item import split_body
from memcore.model import Item, ItemKind, Receipt
from memcore.options import checked_int
from memcore.session.address import Address
from memcore.session.appending import Appending, ItemOptions
from memcore.session.changes import Changes, Closure, Settled
from memcore.session.reading import Reading, decoded
from memcore.store.base import ReadTxn

__all__ = ["HITL", "Escalation", "Escalations", "once"]

HITL: Final = "hitl"
_ROW: Final = b'{"type":"hitl"'


@dataclass(frozen=True, slots=True)
class Escalation:
    """One thing that waits for a person."""

    seq: int
    """Of the ``hitl`` event; what ``resolve_hitl`` takes."""
    rule: str | None
    reason: str | None
    request_id: str | None
    created_at: float
    """Seconds since the epoch by the writer's clock."""
    payload: Any
    """All that the event says; ``payload["bundle"]`` is the reproduction, if a ladder wrote it."""


class Escalations:
    """What waits in one session."""

    __slots__ = ("_address", "_appending", "_changes", "_reading")

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reading = Reading(address)
        self._appending = Appending(address)
        self._changes = Changes(address)

    def pending(self) -> list[Escalation]:
        """Those without a decision, oldest first. Looks at the rows of all live items.

        Raises:
            CorruptValueError: one of the events is damaged.
        """
        found: dict[int, Escalation] = {}
        for item in self._events():
            payload = item.message["payload"]
            said = payload if isinstance(payload, dict) else {}
            resolved = said.get("resolves")
            if type(resolved) is int:
                found.pop(resolved, None)
            else:
                found[item.seq] = _escalation(item, said)
        return list(found.values())

    def _events(self) -> list[Item]:
        def collect(log: SessionLog, txn: ReadTxn) -> list[Any]:
            rows: list[Any] = []
            count = log.history.count
            for start in range(0, count, ITEMS_PAGE):
                for row in log.rows(txn, start, min(start + ITEMS_PAGE, count)):
                    if type(row) is tuple and _may_be_hitl(row[3]):
                        rows += self._reading.collect(log, txn, row[0], row[0] + 1)
            return rows

        rows: list[Any] = self._reading.run(collect, [])
        return [item for item in decoded(rows) if _is_hitl(item)]

    def resolve(
        self, seq: int, decision: Any, *, by: str | None, meta: Mapping[str, Any] | None
    ) -> tuple[list[Prepared], Closure[Receipt]]:
        """The event with a decision, and its closure. The same decision twice is stored once.

        Raises:
            NotFoundError: no live item ``seq`` waits for a decision.
            InvalidItemError: the decision cannot be written as JSON.
            InvalidOptionError: an argument is of a wrong type.
            DuplicateRequestError (when it runs): it was decided otherwise before.
        """
        checked_int("seq", seq, least=1)
        if by is not None and not isinstance(by, str):
            msg = f"by: expected a str or None, got {type(by).__name__}"
            raise InvalidOptionError(msg)
        item = self._reading.get(seq)
        payload = item.message.get("payload")
        is_decision = isinstance(payload, dict) and "resolves" in payload
        if not _is_hitl(item) or is_decision:
            msg = f"item {seq} of session {self._address.name!r} waits for no decision"
            raise NotFoundError(msg)
        said = {"resolves": seq, "decision": decision}
        if by is not None:
            said["by"] = by
        event = self._appending.prepare_event(HITL, said, ItemOptions(meta, item.request_id))
        key = f"memcore:hitl:{seq}"
        content = split_body(event.body)[3] if event.payload is None else event.payload
        return [event], once(self._address, self._changes, key, [event], content=content)


def once(
    address: Address, changes: Changes, key: str, items: list[Prepared], *, content: bytes = b""
) -> Closure[Receipt]:
    """Append items unless it was done under this key while they are live; then its first receipt.

    ``content`` is what must be the same, nothing by default: a second try may say it otherwise.
    """
    backing = address.backing
    request = request_of(key, [content], seed=backing.seed, ttl_ms=None)
    orphans = address.options.orphans

    def work(draft: Draft) -> Settled | None:
        first = find_request(draft, request, now_ms=0)
        if first is not None:
            return Settled(first)
        draft.append(items, orphans=orphans)
        return None

    def after(draft: Draft) -> Receipt:
        receipt = draft.receipt(len(items))
        record_request(draft, request, receipt, now_ms=0)
        return receipt

    return changes.change(work, after=after, atomic=True)


def _may_be_hitl(body: bytes) -> bool:
    if body[0] != ItemKind.EVENT:
        return False
    rest = split_body(body)[3]
    return rest.startswith(_ROW) or not rest.startswith(b"{")  # large ones lie in a blob


def _is_hitl(item: Item) -> bool:
    return item.kind == ItemKind.EVENT and item.message.get("type") == HITL


def _escalation(item: Item, said: Mapping[str, Any]) -> Escalation:
    def text(name: str) -> str | None:
        return said[name] if isinstance(said.get(name), str) else None

    payload = item.message["payload"]
    return Escalation(
        item.seq, text("rule"), text("reason"), item.request_id, item.created_at, payload
    )
