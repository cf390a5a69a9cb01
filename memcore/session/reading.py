"""Reading a session: take the log's lock, begin the snapshot, catch up, collect; decode outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, TypeVar

from memcore import blobs
from memcore._fast import classify
from memcore.codec import FLAG_BLOB
from memcore.context import (
    Choice,
    Demand,
    Material,
    Picked,
    build,
    checked_budget,
    choose,
    choose_whole,
    fixed_cost,
    is_regular,
    open_from,
)
from memcore.errors import CorruptValueError, NotFoundError
from memcore.formats import Entry
from memcore.formats.binding import SECOND
from memcore.limits import ITEMS_PAGE
from memcore.log import Head, SessionLog, decode_item
from memcore.log.history import Recent
from memcore.log.item import split_body
from memcore.model import CallRecord, Context, Item, ItemKind, OpenCall, View
from memcore.session.address import Address
from memcore.store.base import ReadTxn
from memcore.views import view_chain

__all__ = ["Reading"]

T = TypeVar("T")
D = TypeVar("D")
Found = tuple[int, bytes, int, int, bytes | None]
"""``(seq, body, flags, tokens, content of its blob)``: what an item is decoded from."""

PINS_LOOK: Final = 64
"""Leading positions in which pins are looked for when only the end of a history is loaded."""
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
            address.backing.read_locked(
                log,
                lambda txn, log=log, found=found: self._caught_up(log, txn, fn, found),  # type: ignore[misc]
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
            self._address.check_head(head_of(log))
            found.append(fn(log, txn))

    # --- items ------------------------------------------------------------------------------------

    def collect(
        self, log: SessionLog, txn: ReadTxn, start: int, stop: int, *, by: Recent | None = None
    ) -> list[Found | CorruptValueError]:
        """The rows at positions ``start .. stop`` with their blobs; damaged ones as errors.

        ``by`` is a ledger that holds these positions, if there is one at hand.
        """
        found: list[Found | CorruptValueError] = []
        if start >= stop:
            return found
        recent = by or log.covering(txn, head_of(log), start)
        tokens = recent.ledger.tokens_of(start - recent.offset, stop - recent.offset)
        for row in log.rows(txn, start, stop):
            if isinstance(row, CorruptValueError):
                found.append(row)
                continue
            position, seq, flags, body = row
            payload = None
            if flags & FLAG_BLOB:
                try:
                    payload = blobs.read(txn, log.scope, blobs.BlobRef.unpack(split_body(body)[3]))
                except (NotFoundError, CorruptValueError) as exc:
                    found.append(_damaged(seq, exc))
                    continue
            found.append((seq, body, flags, tokens[position - start], payload))
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

        def find(log: SessionLog, txn: ReadTxn) -> CallRecord | None:
            best: tuple[int, list[int], bool] | None = None
            ledger = log.full(txn, head_of(log)).ledger
            for cls in CALL_CLASSES:
                found = ledger.find_call(cls, call_id, self._address.backing.seed)
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
            head = head_of(log)
            recent = log.recent(txn, head)
            if recent.offset and recent.ledger.open_count != head.open_calls:
                recent = log.full(txn, head)
            found = []
            item: Item | None = None
            for at, ordinal in recent.ledger.open_calls():
                seq = log.history.seq_at(recent.offset + at)
                if item is None or item.seq != seq:
                    rows = self.collect(log, txn, recent.offset + at, recent.offset + at + 1)
                    item = next(decoded(rows))
                keys = [key for key in classify(item.message)[1] if not key[0] & SECOND]
                key = keys[ordinal]
                found.append((key, OpenCall(key[1], _name_of(item.message, key), seq)))
            return found

        return self.run(collect, [])

    # --- context and views ------------------------------------------------------------------------

    def context(self, budget_tokens: int | None, reserve_tokens: int) -> Context:
        """What the model receives."""
        budget = checked_budget(budget_tokens, reserve_tokens)

        def pick(at_least: int) -> Picked | None:
            picked = self.run(lambda log, txn: self._pick(log, txn, budget, at_least), None)
            if picked is None:
                return None
            build_material, rest = picked
            return Picked(build_material(), *rest)

        return build(pick, budget) or Context([], 0, 1, 0)

    def _pick(self, log: SessionLog, txn: ReadTxn, budget: int, at_least: int) -> Any:
        """Choose the cut and collect the rows; decoding is left to the returned function."""
        head, policy, history = head_of(log), log.policy, log.history
        stored = log.current_view(txn)
        view = None if stored is None else stored.view
        recent = log.recent(txn, head)
        start = recent if not recent.offset else Recent(0, log.load(txn, stop=PINS_LOOK), 0, 0)
        pins = policy.pin_count(start.ledger)
        kept = [] if view is None else self._kept(log, view, pins)
        if recent.offset and (pins == PINS_LOOK or (kept and kept[0] < recent.offset)):
            recent = start = log.full(txn, head)
            pins = policy.pin_count(start.ledger)
        summary = None if view is None else view.summary
        pin_tokens = start.ledger.sum_between(0, pins)
        for at in kept:
            pin_tokens += recent.ledger.sum_between(at - recent.offset, at - recent.offset + 1)
        demand = Demand(
            budget,
            fixed_cost(policy, log.counter, pin_tokens=pin_tokens, summary=summary),
            first=pins if view is None else max(pins, view.covered),
            summary=summary,
            uncut=view is None or view.covered <= pins,
            at_least=at_least,
        )
        if demand.first < recent.offset and recent.ledger.cost(0) <= budget - demand.fixed_tokens:
            recent = log.full(txn, head)  # more than the end may fit
        choice, open_calls = self._choose(log, txn, recent, demand, pins)
        kept = [at for at in kept if at < choice.cut]
        pinned_rows = self.collect(log, txn, 0, pins, by=start)
        kept_rows = [row for at in kept for row in self.collect(log, txn, at, at + 1)]
        suffix_rows = self.collect(log, txn, choice.cut, history.count)
        regular = is_regular(recent.ledger, policy, choice.cut - recent.offset)

        def material() -> Material:
            before, beside, after = (
                list(decoded(rows)) for rows in (pinned_rows, kept_rows, suffix_rows)
            )
            if regular and not beside:
                items = before + after
                return Material(
                    pins=[_entry(item) for item in before],
                    plain=[item.message for item in after],
                    tokens=[item.tokens for item in items],
                    summary=summary,
                )
            return Material(
                pins=[_entry(item) for item in before],
                kept=[_entry(item) for item in beside],
                suffix=[_entry(item) for item in after],
                tokens=[item.tokens for item in (*before, *beside, *after)],
                summary=summary,
            )

        end = choice.cut >= history.count
        cut_seq = head.next_seq if end else history.seq_at(choice.cut)
        omitted = choice.cut - pins - len(kept)
        rest = (choice, policy, log.counter, cut_seq, omitted, open_calls, head.epoch)
        return material, rest

    def _choose(
        self, log: SessionLog, txn: ReadTxn, recent: Recent, demand: Demand, pins: int
    ) -> tuple[Choice, int]:
        """The cut, and how many open calls lie behind it.

        A result may come for a call that the view covers (it was abandoned, or folded by a
        fallback). Then the items from the last safe cut before the covered end on are shown again
        behind the summary; if they do not fit, the result is left out as an orphan.
        """
        ledger, offset = recent.ledger, recent.offset
        first, least = max(demand.first - offset, 0), max(demand.at_least - offset, 0)
        inside = replace(demand, first=first, at_least=least, uncut=demand.uncut and not offset)
        choice: Choice | None = None
        if inside.uncut or ledger.is_safe(first) or first >= len(ledger):
            choice = choose(ledger, log.policy, log.counter, inside)
        else:
            earlier = ledger.cut_at_most(first)
            if earlier + offset >= pins and least <= first:
                choice = choose_whole(
                    ledger, log.policy, log.counter, replace(inside, first=earlier)
                )
        if choice is None:
            ledger, offset = log.load(txn, start=demand.first), demand.first
            least = max(demand.at_least - offset, 0)
            choice = choose(
                ledger, log.policy, log.counter, replace(demand, first=0, at_least=least)
            )
        return replace(choice, cut=choice.cut + offset), open_from(ledger, choice)

    def _kept(self, log: SessionLog, view: View, pins: int) -> list[int]:
        """Positions that the view keeps beside its summary."""
        found = (log.history.position_of(seq) for seq in view.pinned)
        return sorted(at for at in found if at is not None and at >= pins)

    def views(self) -> list[View]:
        """All view records of the chain, oldest first, whether they apply now or not."""

        def collect(log: SessionLog, txn: ReadTxn) -> list[View]:
            head = head_of(log)
            chain = view_chain(txn, log.scope, head.view_session, head.view_number)
            return [stored.view for stored in chain][::-1]

        return self.run(collect, [])


def head_of(log: SessionLog) -> Head:
    """The head of a log that has caught up."""
    assert log.head is not None  # noqa: S101 - what catch_up promises
    return log.head


def decoded(rows: list[Any], *, skip_corrupt: bool = False) -> Iterator[Item]:
    """Items of collected rows.

    Raises:
        CorruptValueError: a row was damaged and ``skip_corrupt`` is false.
    """
    for found in rows:
        if type(found) is tuple:
            yield decode_item(*found)
        elif not skip_corrupt:
            raise found


def _damaged(seq: int, cause: Exception) -> CorruptValueError:
    error = CorruptValueError(f"the large content of item {seq} is damaged: {cause}", key=b"")
    error.__cause__ = cause
    return error


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
