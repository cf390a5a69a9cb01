"""Reading a session: take the log's lock, begin the snapshot, catch up, collect; decode outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, TypeVar

from memcore import blobs, codec
from memcore._fast import classify
from memcore.context import (
    Choice,
    Demand,
    Material,
    Picked,
    build,
    checked_budget,
    choose,
    fixed_cost,
    is_regular,
    open_from,
)
from memcore.errors import CorruptValueError, NotFoundError
from memcore.formats import Entry
from memcore.limits import ITEMS_PAGE
from memcore.log import SessionLog, decode_item
from memcore.log.history import StoredRow
from memcore.log.item import split_body
from memcore.model import CallRecord, Context, Item, ItemKind, OpenCall, View
from memcore.session.address import Address
from memcore.store.base import ReadTxn
from memcore.views import view_chain

__all__ = ["Reading"]

T = TypeVar("T")
D = TypeVar("D")
Found = tuple[StoredRow, bytes | None, int]
"""A row, the content of its blob, and its tokens."""

CALL_CLASSES: Final = (*range(10), 0x40, 0x46)
"""Every class of call id that _fast.classify yields; 0x40 marks calls without an id."""


class Reading:
    """All reads of one session."""

    __slots__ = ("_address",)

    def __init__(self, address: Address) -> None:
        self._address = address

    def run(self, fn: Callable[[SessionLog, ReadTxn], T], default: D) -> T | D:
        """Run ``fn`` on the caught-up log under its lock; ``default`` if there is no session."""
        address = self._address
        for _ in range(2):
            log = address.resolve()
            if log is None:
                break
            found: list[T] = []
            with log.lock:
                address.backing.store.read(
                    lambda txn, log=log, found=found: self._caught_up(log, txn, fn, found)  # type: ignore[misc]
                )
            if found:
                return found[0]
            address.forget()  # deleted since; its name may stand for a new session
        return default

    def _caught_up(
        self,
        log: SessionLog,
        txn: ReadTxn,
        fn: Callable[[SessionLog, ReadTxn], T],
        found: list[T],
    ) -> None:
        if log.catch_up(txn):
            assert log.head is not None  # noqa: S101 - what catch_up promises
            self._address.check_head(log.head)
            found.append(fn(log, txn))

    # --- items ------------------------------------------------------------------------------------

    def collect(
        self, log: SessionLog, txn: ReadTxn, start: int, stop: int
    ) -> list[Found | CorruptValueError]:
        """The rows at positions ``start .. stop`` with their blobs; damaged ones as errors."""
        found: list[Found | CorruptValueError] = []
        for row in log.rows(txn, start, stop):
            if not isinstance(row, StoredRow):
                found.append(row)
                continue
            payload = None
            if row.has_blob:
                ref = blobs.BlobRef.unpack(split_body(row.body)[3])
                try:
                    payload = blobs.read(txn, log.scope, ref)
                except (NotFoundError, CorruptValueError) as exc:
                    msg = f"the large content of item {row.seq} is damaged: {exc}"
                    error = CorruptValueError(msg, key=b"")
                    error.__cause__ = exc
                    found.append(error)
                    continue
            tokens = log.ledger.sum_between(row.position, row.position + 1)
            found.append((row, payload, tokens))
        return found

    def page(self, start: int, stop: int | None, *, limit: int) -> tuple[list[Any], int | None]:
        """Rows with ``start <= seq < stop``, at most ``limit``; and the seq to go on from."""

        def collect(log: SessionLog, txn: ReadTxn) -> tuple[list[Any], int | None]:
            history = log.history
            first = history.position_from(start)
            last = history.count if stop is None else history.position_from(stop)
            end = min(first + limit, last)
            rows = self.collect(log, txn, first, end)
            return rows, (history.seq_at(end) if end < last else None)

        nothing: tuple[list[Any], int | None] = ([], None)
        return self.run(collect, nothing)

    def items(self, start: int, stop: int | None, *, skip_corrupt: bool) -> Iterator[Item]:
        """Live items in seq order, a page a read transaction."""
        following: int | None = start
        while following is not None:
            rows, following = self.page(following, stop, limit=ITEMS_PAGE)
            yield from decoded(rows, skip_corrupt=skip_corrupt)

    def tail(self, count: int, *, skip_corrupt: bool) -> list[Item]:
        """The last ``count`` live items, oldest first."""

        def collect(log: SessionLog, txn: ReadTxn) -> list[Any]:
            end = log.history.count
            return self.collect(log, txn, max(end - count, 0), end)

        return list(decoded(self.run(collect, []), skip_corrupt=skip_corrupt))

    def get(self, seq: int) -> Item:
        """One live item."""

        def collect(log: SessionLog, txn: ReadTxn) -> list[Any]:
            position = log.history.position_of(seq)
            return [] if position is None else self.collect(log, txn, position, position + 1)

        rows: list[Any] = self.run(collect, [])
        if not rows:
            msg = f"session {self._address.name!r} has no live item {seq}"
            raise NotFoundError(msg)
        return next(decoded(rows, skip_corrupt=False))

    # --- calls ------------------------------------------------------------------------------------

    def find_call(self, call_id: str) -> CallRecord:
        """Where a call was made and answered; the latest with this id."""

        def find(log: SessionLog, _: ReadTxn) -> CallRecord | None:
            best: tuple[int, list[int], bool] | None = None
            for cls in CALL_CLASSES:
                found = log.ledger.find_call(cls, call_id, self._address.backing.seed)
                if found is not None and (best is None or found[0] > best[0]):
                    best = found
            if best is None:
                return None
            seq_at = log.history.seq_at
            return CallRecord(call_id, seq_at(best[0]), tuple(map(seq_at, best[1])), best[2])

        record = self.run(find, None)
        if record is None:
            msg = f"session {self._address.name!r} has no call {call_id!r} in its live history"
            raise NotFoundError(msg)
        return record

    def open_calls(self) -> list[tuple[tuple[int, str], OpenCall]]:
        """Calls that wait for a result, oldest first, each with its (class, id)."""

        def collect(log: SessionLog, txn: ReadTxn) -> list[Any]:
            found = []
            positions = log.ledger.open_positions()
            for position in sorted(set(positions)):
                row = next(decoded(self.collect(log, txn, position, position + 1)))
                keys = [key for key in classify(row.message)[1] if not key[0] & 0x80]
                if len(keys) != positions.count(position):
                    keys = [key for key in keys if self._is_open(log, key, position)]
                found += [
                    (key, OpenCall(key[1], _name_of(row.message, key), row.seq)) for key in keys
                ]
            return found

        return self.run(collect, [])

    def _is_open(self, log: SessionLog, key: tuple[int, str], position: int) -> bool:
        found = log.ledger.find_call(*key, self._address.backing.seed)
        return found is not None and found[2] and found[0] == position

    # --- context and views ------------------------------------------------------------------------

    def context(self, budget_tokens: int | None, reserve_tokens: int) -> Context:
        """What the model receives."""
        budget = checked_budget(budget_tokens, reserve_tokens)
        log = self._address.resolve()
        if log is None or not self.run(lambda log, _: log.history.count, 0):
            return Context([], 0, 1, 0)

        def pick(at_least: int) -> Picked:
            picked = self.run(lambda log, txn: self._pick(log, txn, budget, at_least), None)
            if picked is None:
                msg = f"session {self._address.name!r} was deleted"
                raise NotFoundError(msg)
            build_material, rest = picked
            return Picked(rest[0], build_material(), *rest[1:])

        return build(pick, log.policy, log.counter, budget)

    def _pick(self, log: SessionLog, txn: ReadTxn, budget: int, at_least: int) -> Any:
        """Choose the cut and collect the rows; decoding is left to the returned function."""
        ledger, policy, history = log.ledger, log.policy, log.history
        stored = log.current_view(txn)
        view = None if stored is None else stored.view
        pins = policy.pin_count(ledger)
        kept = [] if view is None else self._kept(log, view, pins)
        first = pins if view is None else max(pins, view.covered)
        summary = None if view is None else view.summary
        pin_tokens = ledger.sum_between(0, pins) + sum(
            ledger.sum_between(at, at + 1) for at in kept
        )
        fixed = fixed_cost(policy, log.counter, pin_tokens=pin_tokens, summary=summary)
        demand = Demand(
            budget, fixed, first, summary, uncut=first == pins, at_least=max(at_least, first)
        )
        choice, open_calls = self._choose(log, txn, demand, pins)
        kept = [at for at in kept if at < choice.cut]
        pinned_rows = self.collect(log, txn, 0, pins)
        kept_rows = [row for at in kept for row in self.collect(log, txn, at, at + 1)]
        suffix_rows = self.collect(log, txn, choice.cut, len(ledger))
        regular = is_regular(ledger, policy, choice.cut)

        def material() -> Material:
            before, beside, after = (
                list(decoded(rows)) for rows in (pinned_rows, kept_rows, suffix_rows)
            )
            return Material(
                pins=[_entry(item) for item in before],
                kept=[_entry(item) for item in beside],
                suffix=[_entry(item) for item in after],
                tokens=[item.tokens for item in (*before, *beside, *after)],
                summary=summary,
                is_regular=regular,
            )

        end = choice.cut >= history.count
        assert log.head is not None  # noqa: S101 - what catch_up promises
        cut_seq = log.head.next_seq if end else history.seq_at(choice.cut)
        omitted = choice.cut - pins - len(kept)
        return material, (choice, cut_seq, omitted, open_calls, log.head.epoch)

    def _choose(
        self, log: SessionLog, txn: ReadTxn, demand: Demand, pins: int
    ) -> tuple[Choice, int]:
        """The cut, and how many open calls lie behind it.

        A result may come for a call that the view covers (it was abandoned, or folded by a
        fallback). Then the items from the last safe cut before the covered end on are shown again
        behind the summary; if they do not fit, the result is left out as an orphan.
        """
        ledger, policy, counter = log.ledger, log.policy, log.counter
        if demand.uncut or ledger.is_safe(demand.first) or demand.first >= len(ledger):
            choice = choose(ledger, policy, counter, demand)
            return choice, open_from(ledger, choice)
        earlier = ledger.cut_at_most(demand.first)
        if earlier >= pins and demand.at_least <= demand.first:
            whole = replace(demand, first=earlier, at_least=earlier)
            if ledger.cost(earlier) + whole.fixed_tokens <= whole.budget:
                choice = Choice(earlier, lead_in=False)
                return choice, open_from(ledger, choice)
        assert log.head is not None  # noqa: S101 - what catch_up promises
        suffix = log.load(txn, log.head, start=demand.first)
        at_least = max(demand.at_least - demand.first, 0)
        inside = replace(demand, first=0, at_least=at_least)
        choice = choose(suffix, policy, counter, inside)
        return replace(choice, cut=choice.cut + demand.first), open_from(suffix, choice)

    def _kept(self, log: SessionLog, view: View, pins: int) -> list[int]:
        """Positions that the view keeps beside its summary."""
        found = (log.history.position_of(seq) for seq in view.pinned)
        return sorted(at for at in found if at is not None and at >= pins)

    def views(self) -> list[View]:
        """All view records of the chain, oldest first, whether they apply now or not."""

        def collect(log: SessionLog, txn: ReadTxn) -> list[View]:
            assert log.head is not None  # noqa: S101 - what catch_up promises
            chain = view_chain(txn, log.scope, log.head.view_session, log.head.view_number)
            return [stored.view for stored in chain][::-1]

        return self.run(collect, [])


def decoded(rows: list[Any], *, skip_corrupt: bool = False) -> Iterator[Item]:
    """Items of collected rows.

    Raises:
        CorruptValueError: a row was damaged and ``skip_corrupt`` is false.
    """
    for found in rows:
        if isinstance(found, CorruptValueError):
            if not skip_corrupt:
                raise found
            continue
        row, payload, tokens = found
        flags = row.flags & ~codec.FLAG_BLOB
        stored = decode_item(row.body, flags, payload)
        yield Item(
            row.seq,
            stored.kind,
            stored.message,
            tokens,
            stored.created_at,
            stored.meta,
            stored.request_id,
        )


def _entry(item: Item) -> Entry:
    return Entry(item.seq, item.message, event=item.kind == ItemKind.EVENT)


def _name_of(message: dict[str, Any], key: tuple[int, str]) -> str | None:
    """The function's name of a call, in any wire format."""
    candidates: list[Any] = [message, message.get("data"), message.get("kwargs")]
    for body in list(candidates):
        for field in ("tool_calls", "content", "parts") if isinstance(body, dict) else ():
            value = body.get(field)
            candidates += value if isinstance(value, list) else []
    for call in candidates:
        if not isinstance(call, dict):
            continue
        inner = call.get("function") or call.get("functionCall") or call
        name = inner.get("name") if isinstance(inner, dict) else None
        if isinstance(name, str) and key[1] in (call.get("id"), call.get("call_id"), name):
            return name
    return None
