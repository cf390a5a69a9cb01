"""Which items of one session are to expire by a rule, as one snapshot has them.

The items that a session owns are looked at in the order of their seqs, undone ones too, from the
rule's mark on: what is before the mark is settled for good. The first that may stay ends it, so an
item whose clock went back waits for those before it, and none goes before its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from memcore import keys
from memcore._fast import classify
from memcore.blobs import BlobRef
from memcore.codec import FLAG_BLOB, decode_json, encode_json
from memcore.errors import (
    CorruptValueError,
    CounterUnavailableError,
    InvalidItemError,
    PolicyMismatchError,
)
from memcore.formats import get_policy
from memcore.formats.arguments import call_names
from memcore.formats.expired import EXPIRED_TEXT, expired_event, expired_message
from memcore.formats.parts import results_of
from memcore.keys import Row
from memcore.log import Head, History, index, new_ledger
from memcore.log.history import SessionLog, StoredRow, read_rows
from memcore.log.item import split_body
from memcore.log.rewriting import Rewriting, plan_rewriting
from memcore.log.stored import opened
from memcore.model import Item, ItemKind, Message
from memcore.retention.rules import RetentionRule
from memcore.session import Backing
from memcore.store.base import ReadTxn
from memcore.tokens import TokenCounter, checked_count

__all__ = ["Settled", "Settler", "pieces"]

_LOOK_ROWS: Final = 4096
"""Rows that one snapshot looks at."""
_BACK_ROWS: Final = 256
"""How far before a result its call is looked for."""
_PAGE: Final = 256
_TEXTS: Final = (EXPIRED_TEXT, ".", "")
"""What stands in the place of texts: the first that does not count more than they did."""
_TYPES: Final = {
    ItemKind.USER: "user_input",
    ItemKind.ASSISTANT: "final",
    ItemKind.CALL: "tool_call",
    ItemKind.RESULT: "tool_result",
    ItemKind.SYSTEM: "system",
    ItemKind.REASONING: "reasoning",
    ItemKind.OPAQUE: "other",
}
"""What the type of an item is that nobody said."""


@dataclass(slots=True)
class Settled:
    """What one look found."""

    planned: list[Rewriting] = field(default_factory=list)
    mark: int = 0
    """The seq up to which all is settled, once the planned is done."""
    seen: int = 0
    """The last seq that was looked at."""
    more: bool = False
    """Whether it ended before the end because it had enough."""
    damaged: int = 0


class _Exempt(NamedTuple):
    pins: int
    """The last seq of the leading items that stay."""
    open: frozenset[int]
    """Seqs of own items whose calls wait for a result."""


class Settler:
    """One session, one rule, one snapshot."""

    def __init__(self, backing: Backing, place: tuple[int, int], head: Head, now_ms: int) -> None:
        self._backing = backing
        self._scope, self._session = place
        self._head = head
        self._now_ms = now_ms
        self._counter: TokenCounter | None = None
        with suppress(CounterUnavailableError):
            self._counter = backing.counter_named(head.counter)
        self._names: dict[Any, str] = {}
        """The tools of the calls that were seen."""

    @property
    def first(self) -> int:
        """The first seq that the session owns."""
        return self._head.parent_seq + 1

    def settle(
        self, txn: ReadTxn, rule: RetentionRule, mark: int, limit: int, *, seen: int = 0
    ) -> Settled:
        """Plan what is to expire behind a mark, at most ``limit`` items.

        Where an open call holds the mark up, ``seen`` tells how far the last look came.

        Raises:
            CorruptValueError: the index or the segments of the session are damaged.
        """
        found = Settled(mark=max(mark, self.first - 1))
        found.seen = max(seen, found.mark)
        start, stop = found.seen + 1, self._head.next_seq
        if start >= stop:
            return found
        cut = self._cut(txn, rule)
        since_ms = rule.since_ms(self._now_ms)
        since_us = 0 if since_ms is None else since_ms * 1000
        if cut < start and not since_us:
            return found
        if rule.tools:
            lo = max(start - _BACK_ROWS, self.first)
            self._learn(txn, [(0, self._session, lo, start - 1)])
        exempt: _Exempt | None = None
        settled = found.seen == found.mark
        last = min(stop - 1, start + _LOOK_ROWS - 1)
        records = index.records(txn, self._scope, self._session, start, last)
        for seq, row in enumerate(self._rows(txn, start, last), start):
            record = next(records, None)
            if isinstance(row, CorruptValueError) or record is None:
                found.damaged += 1
            elif seq > cut and not split_body(row[3])[1] < since_us:
                return found
            else:
                exempt = exempt or self._exempt(txn)
                if seq in exempt.open and self._is_meant(txn, rule, row):
                    settled = False  # it is looked at again until its result is there
                elif seq > exempt.pins:
                    self._plan(txn, rule, row, record, found)
            found.seen = seq
            if settled:
                found.mark = seq
            if len(found.planned) >= limit:
                found.more = seq < stop - 1
                return found
        found.more = last < stop - 1
        return found

    def _rows(self, txn: ReadTxn, lo: int, hi: int) -> Iterator[StoredRow | CorruptValueError]:
        return read_rows(txn, self._scope, self._session, position=0, lo=lo, hi=hi)

    # --- which ------------------------------------------------------------------------------------

    def _is_meant(self, txn: ReadTxn, rule: RetentionRule, row: StoredRow) -> bool:
        """Whether a row is of the rule's classes."""
        kind = ItemKind(row[3][0])
        if rule.kinds and kind.name.lower() not in rule.kinds:
            return False
        if not rule.types and not rule.tools:
            return True
        try:
            item, _ = opened(txn, self._scope, row)
        except CorruptValueError:
            return False
        if rule.types and _type_of(item, row[3]) not in rule.types:
            return False
        return not rule.tools or bool(self._tools_of(item).intersection(rule.tools))

    def _tools_of(self, item: Item) -> set[str]:
        if item.kind == ItemKind.EVENT:
            return set()
        calls = call_names(item.message)
        self._names.update(calls)
        found = set(calls.values())
        if item.kind == ItemKind.RESULT:
            found |= {each.name for each in results_of(item.message) if each.name}
            closes = classify(item.message)[2]
            found |= {self._names[key] for key in closes if key in self._names}
        return found

    def _learn(self, txn: ReadTxn, spans: Iterable[tuple[int, int, int, int]]) -> None:
        """The names of the tools that are called in these rows."""
        for at, owner, lo, hi in spans:
            for row in read_rows(txn, self._scope, owner, position=at, lo=lo, hi=hi):
                if not isinstance(row, CorruptValueError) and row[3][0] != ItemKind.EVENT:
                    with suppress(CorruptValueError):  # it names nothing; check() reports it
                        self._tools_of(opened(txn, self._scope, row)[0])

    def _cut(self, txn: ReadTxn, rule: RetentionRule) -> int:
        """The seq up to which items are beyond the rule's count or size; 0: none is."""
        if rule.keep_last is None and rule.max_bytes is None:
            return 0
        history = History(self._head.all_segments(txn, self._scope))
        if rule.max_bytes is None and not (rule.kinds or rule.types or rule.tools):
            before = history.count - (rule.keep_last or 0)
            return history.seq_at(before - 1) if before > 0 else 0
        count = size = 0
        for stop in range(history.count, 0, -_PAGE):
            if rule.tools:  # a result is met before its call
                self._learn(txn, history.spans(max(stop - _PAGE - _BACK_ROWS, 0), stop))
            rows = [
                row
                for at, owner, lo, hi in history.spans(max(stop - _PAGE, 0), stop)
                for row in read_rows(txn, self._scope, owner, position=at, lo=lo, hi=hi)
                if not isinstance(row, CorruptValueError)
            ]
            for row in reversed(rows):
                if self._is_meant(txn, rule, row):
                    count += 1
                    size += _size_of(row)
                    if rule.keep_last is not None and count > rule.keep_last:
                        return row[1]
                    if rule.max_bytes is not None and size > rule.max_bytes:
                        return row[1]
        return 0

    def positions_beyond(self, txn: ReadTxn, rule: RetentionRule, pins: int) -> int:
        """The first position, behind the pins, of an item that may stay."""
        history = History(self._head.all_segments(txn, self._scope))
        cut, since_ms = self._cut(txn, rule), rule.since_ms(self._now_ms)
        since_us = 0 if since_ms is None else since_ms * 1000
        for at in range(pins, history.count, _PAGE):
            for position, owner, lo, hi in history.spans(at, min(at + _PAGE, history.count)):
                rows = read_rows(txn, self._scope, owner, position=position, lo=lo, hi=hi)
                for here, row in enumerate(rows, position):
                    if isinstance(row, CorruptValueError):
                        return here
                    if row[1] > cut and not split_body(row[3])[1] < since_us:
                        return here
        return history.count

    def _exempt(self, txn: ReadTxn) -> _Exempt:
        """Pins and open calls; a hidden session has neither, for nobody goes on with it."""
        head = self._head
        if head.hidden or not head.count:
            return _Exempt(0, frozenset())
        history = History(head.all_segments(txn, self._scope))
        policy = get_policy(head.policy)
        try:
            log = SessionLog(self._scope, self._session, self._backing.counter_named)
            ledger = log.full(txn, head).ledger if log.catch_up(txn) else new_ledger(policy, None)
        except (CounterUnavailableError, PolicyMismatchError):
            ledger = new_ledger(policy, None)
            for _, owner, lo, hi in history.spans(0, history.count):
                for record in index.records(txn, self._scope, owner, lo, hi):
                    ledger.push(record[index.RECORD.size :], 0)
        pins = policy.pin_count(ledger)
        waiting = {at for at, _ in ledger.open_calls()}
        located = (history.locate(at) for at in waiting)
        own = frozenset(seq for owner, seq in located if owner == self._session)
        return _Exempt(history.seq_at(pins - 1) if pins else 0, own)

    # --- what stays of it -------------------------------------------------------------------------

    def _plan(
        self, txn: ReadTxn, rule: RetentionRule, row: StoredRow, record: bytes, found: Settled
    ) -> None:
        if not self._is_meant(txn, rule, row):
            return
        seq = row[1]
        value = txn.get(keys.session_row(self._scope, self._session, Row.ITEM, seq))
        try:
            item, _ = opened(txn, self._scope, row)
            tokens, _, _, tag = index.RECORD.unpack_from(record)
            message = self._remains(item, tokens, is_counted=self._is_tag(tag))
            if value is None or message == item.message:
                return  # it expired before
            place = (self._scope, self._session, seq)
            pair = (item.message, message)
            planned = plan_rewriting(
                place, value, pair, seed=self._backing.seed, envelope=_without_meta
            )
        except (CorruptValueError, InvalidItemError):
            found.damaged += 1
            return
        found.planned.append(planned)

    def _is_tag(self, tag: int) -> bool:
        return self._counter is not None and tag == index.counter_tag(self._counter.id)

    def _remains(self, item: Item, tokens: int, *, is_counted: bool) -> Message:
        if item.kind == ItemKind.EVENT:
            return expired_event(item.message)
        if is_counted and self._counter is not None:
            for text in _TEXTS[:-1]:
                message = expired_message(item.message, text)
                if checked_count(self._counter, message, encode_json(message)[0]) <= tokens:
                    return message
            return expired_message(item.message, _TEXTS[-1])
        return expired_message(item.message, _TEXTS[1])


def _size_of(row: StoredRow) -> int:
    _, _, flags, body = row
    if flags & FLAG_BLOB:
        return BlobRef.unpack(split_body(body)[3]).size
    return len(body)


def _type_of(item: Item, body: bytes) -> str:
    """The type that the envelope says, that of an event, or what the item looks like."""
    envelope = split_body(body)[2]
    said = decode_json(envelope[1:], envelope[0]) if envelope else {}
    inner = said.get("envelope")
    found = said.get("type") or (inner.get("type") if isinstance(inner, dict) else None)
    if isinstance(found, str):
        return found
    if item.kind == ItemKind.EVENT:
        return str(item.message.get("type", ""))
    if item.kind == ItemKind.ASSISTANT and classify(item.message)[1]:
        return "tool_call"
    return _TYPES.get(item.kind, "other")


def _without_meta(envelope: dict[str, Any]) -> dict[str, Any]:
    return {**envelope, "meta": None}


def pieces(planned: list[Rewriting], *, rows: int, size: int) -> Iterator[list[Rewriting]]:
    """The planned in lists of at most so many rows and bytes."""
    taken: list[Rewriting] = []
    held = 0
    for each in planned:
        if taken and (len(taken) == rows or held + len(each.encoded) > size):
            yield taken
            taken, held = [], 0
        taken.append(each)
        held += len(each.encoded) + len(each.prefix) + 200
    if taken:
        yield taken
