"""Expiry: selects and deletes sessions, items, graph threads and checkpoints.

Only what is stored in clear is decoded, and no objects are built from it: a sweep needs neither the
framework nor the serialiser that wrote a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from memcore import blobs, memory
from memcore._fast import classify
from memcore.blobs import BlobRef
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import FLAG_BLOB, decode_json, encode_json
from memcore.errors import (
    CorruptValueError,
    CounterUnavailableError,
    HeldError,
    InternalError,
    InvalidItemError,
    LeaseHeldError,
    OutpacedError,
    PolicyMismatchError,
)
from memcore.graph import (
    GraphStore,
    Rule,
    StoredCoder,
    changed_ms,
    is_encrypted,
    limits_rule,
    thread_of,
)
from memcore.graph import prune as removal
from memcore.limits import PIECE_ROWS
from memcore.log import Head, History, Prepared, SessionTxn, new_ledger
from memcore.log.checkpoint import checkpoint_numbers
from memcore.log.history import CachedSession, StoredRow, read_rows
from memcore.log.read import again, opened
from memcore.log.rewrite import Rewriting, plan_rewriting
from memcore.model import Item, ItemKind, Message
from memcore.records import record
from memcore.retention.rules import RetentionRule, SweepRun
from memcore.rows import index, names
from memcore.rows.head import head_key
from memcore.rows.item import split_body
from memcore.rows.lifecycle import (
    REMOVED,
    any_held,
    is_held,
    need_alive,
    read_lease,
    read_terms,
    session_terms,
    thread_terms,
    write_terms,
)
from memcore.rows.views import StoredView
from memcore.session import Engine, SessionOptions, SessionRef, resume_removals, start_removal
from memcore.session.memory import would_forget
from memcore.session.rewrite import Rewritten, family_of, rewrite_planned, shown_instead
from memcore.session.tail import renew, with_texts
from memcore.state import header_key
from memcore.store.interface import ReadTxn, Txn
from memcore.tokens import TokenCounter, checked_count
from memcore.wire import get_policy
from memcore.wire.expire import EXPIRED_TEXT, expired_event, expired_message
from memcore.wire.message import call_names, results_of

__all__ = [
    "ExpiredItems",
    "Settler",
    "expire_items",
    "head_of_session",
    "keep_thread",
    "keep_threads",
    "pieces",
    "remove_beginning",
    "remove_session",
    "remove_thread",
]


# --- Graph threads: expired or idle ones, and checkpoints of the others ---------------------------

_PAGE = 256
IsDue = Callable[[ReadTxn], bool]


@dataclass(frozen=True, slots=True, order=True)
class _KnownThread:
    """A thread by its age."""

    changed_ms: int
    name: str


def remove_thread(run: SweepRun, scope: int, name: str, is_due: IsDue) -> bool:
    """Remove a thread if it is still due; return True if it was, or would be, removed."""
    store = run.engine.store
    if store.read(lambda txn: is_held(txn, scope)):
        run.report.held += 1
        return False
    if run.write is not None:
        run.report.kept += 1  # an archive cannot hold a thread
        return False
    if run.dry:
        run.report.threads += 1
        return True

    def closure(txn: Txn) -> bool:
        need_alive(txn, scope)
        if is_held(txn, scope) or names.thread_of(txn, scope, name) is None or not is_due(txn):
            return False
        removal.start_removal(txn, scope, name)
        return True

    done: bool = store.transact(closure, makes_room=True)
    run.report.threads += done
    resume_removals(store)
    return done


def keep_threads(run: SweepRun, scope: int, rules: Sequence[RetentionRule]) -> None:
    """Apply the rules of a scope, or of the database, to threads without rules of their own."""
    whole = [rule for rule in rules if rule.what == "threads"]
    inside = [rule for rule in rules if rule.what == "thread_checkpoints"]
    if not whole and not inside:
        return
    for page in _pages(run, scope):
        for name in page:
            if not run.left:
                run.report.complete = False
                return
            if not _remove_idle(run, scope, name, whole):
                _prune(run, scope, name, inside)
    keep = min((rule.keep_last for rule in whole if rule.keep_last is not None), default=None)
    if keep is not None:
        _remove_beyond(run, scope, keep)


def keep_thread(run: SweepRun, scope: int, name: str, rules: Sequence[RetentionRule]) -> None:
    """Apply the rules of a single thread."""
    if not _remove_idle(run, scope, name, [rule for rule in rules if rule.what == "threads"]):
        _prune(run, scope, name, [rule for rule in rules if rule.what == "thread_checkpoints"])


def _remove_idle(run: SweepRun, scope: int, name: str, rules: Sequence[RetentionRule]) -> bool:
    """Remove a thread idle for longer than a rule allows; return True if it was, or is damaged."""
    since = max((rule.since_ms(run.now_ms) or 0 for rule in rules), default=0)

    def is_idle(txn: ReadTxn) -> bool:
        changed = _changed(txn, scope, name)
        return changed is not None and changed < since

    try:
        is_due = bool(since) and run.engine.store.read(is_idle)
    except CorruptValueError:
        run.report.damaged += 1
        return True  # check() reports it; it is left untouched
    if is_due:
        remove_thread(run, scope, name, is_idle)
    return is_due


def _remove_beyond(run: SweepRun, scope: int, keep: int) -> None:
    """Remove all threads except the ``keep`` most recently changed."""
    known: list[_KnownThread] = []
    for page in _pages(run, scope):
        known += run.engine.store.read(lambda txn, page=page: list(_aged(txn, run, scope, page)))  # type: ignore[misc]
    known.sort()
    for each in known[: max(len(known) - keep, 0)]:
        if not run.left:
            run.report.complete = False
            return

        def is_as_it_was(txn: ReadTxn, each: _KnownThread = each) -> bool:
            return _changed(txn, scope, each.name) == each.changed_ms

        remove_thread(run, scope, each.name, is_as_it_was)


def _prune(run: SweepRun, scope: int, name: str, rules: Sequence[RetentionRule]) -> None:
    """Remove a thread's checkpoints selected by rules, except those others are rebuilt from."""
    if not rules:
        return
    rule = limits_rule(
        keep_last=min((r.keep_last for r in rules if r.keep_last is not None), default=None),
        since_ms=max((found for r in rules if (found := r.since_ms(run.now_ms))), default=None),
        at_most=run.left,
    )
    try:
        run.report.thread_checkpoints += _pruned(run, scope, name, rule)
    except CorruptValueError:
        if run.engine.store.read(lambda txn: _is_sealed(txn, scope, name)):
            run.report.kept += 1  # the saver that has the key prunes it
        else:
            run.report.damaged += 1
    except HeldError:
        run.report.held += 1
    except OutpacedError:
        run.report.kept += 1  # the next sweep looks again


def _pruned(run: SweepRun, scope: int, name: str, rule: Rule) -> int:
    """Prune a thread's checkpoints, or only count them; return their number."""
    engine = run.engine
    graph = GraphStore(
        engine.store, engine.graphs, lambda _: scope, _no_new_scope, now_ms=engine.now_ms
    )
    plan = graph.would_prune(name, rule, StoredCoder())
    if plan is None:
        return 0
    count = sum(map(len, plan.doomed.values()))
    if run.dry or not (count or plan.strays or plan.abandoned or any(plan.needed.values())):
        return count
    if run.write is not None:
        run.report.kept += count  # as in remove_thread
        return 0
    return graph.prune(name, rule, StoredCoder()).checkpoints


def _is_sealed(txn: ReadTxn, scope: int, name: str) -> bool:
    try:
        found = thread_of(txn, scope, name)
        return found is not None and is_encrypted(txn, found.place)
    except CorruptValueError:
        return False


def _no_new_scope(_: Txn) -> int:
    msg = "a prune stores nothing"
    raise InternalError(msg)


def _pages(run: SweepRun, scope: int) -> Iterator[list[str]]:
    """Yield the names of a scope's threads without rules of their own, in pages."""
    after: str | None = None
    while True:
        look = partial(_page, run=run, scope=scope, after=after)
        found, after = run.engine.store.read(look)
        yield found
        if after is None:
            return


def _page(
    txn: ReadTxn, *, run: SweepRun, scope: int, after: str | None
) -> tuple[list[str], str | None]:
    found: list[str] = []
    for at, (name, number) in enumerate(names.threads(txn, scope, after), 1):
        try:
            if read_terms(txn, thread_terms(scope, number)).rules is None:
                found.append(name)
        except CorruptValueError:
            run.report.damaged += 1  # its rules are unknown, so everything stays
        if at == _PAGE:
            return found, name
    return found, None


def _aged(txn: ReadTxn, run: SweepRun, scope: int, page: list[str]) -> Iterator[_KnownThread]:
    for name in page:
        try:
            changed = _changed(txn, scope, name)
        except CorruptValueError:
            run.report.damaged += 1
            continue
        if changed is not None:  # without a time it cannot be called old
            yield _KnownThread(changed, name)


def _changed(txn: ReadTxn, scope: int, name: str) -> int | None:
    """Return the time of a thread's last change; None if unknown, or without the thread."""
    found = thread_of(txn, scope, name)
    return None if found is None else changed_ms(txn, found.place)


# --- Selection of a session's items that a rule expires, in one snapshot --------------------------
# The items that a session owns, including undone ones, are examined in seq order from the rule's
# mark on: everything before the mark is settled for good. The first item that may stay ends the
# scan, so an item whose clock went backwards waits for those before it, and none expires early.

_LOOK_ROWS: Final = 4096
"""Most rows examined in one snapshot."""
_BACK_ROWS: Final = 256
"""Rows before a result that are searched for its call."""
_PAGE_SETTLING: Final = 256
_TEXTS: Final = (EXPIRED_TEXT, ".", "")
"""Replacement texts: the first with no more tokens than the original text is used."""
_TYPES: Final = {
    ItemKind.USER: "user_input",
    ItemKind.ASSISTANT: "final",
    ItemKind.CALL: "tool_call",
    ItemKind.RESULT: "tool_result",
    ItemKind.SYSTEM: "system",
    ItemKind.REASONING: "reasoning",
    ItemKind.OPAQUE: "other",
}
"""Types of items without an explicit one."""


@record(slots=True)
class ExpiredItems:
    """Expired items found by one read transaction."""

    planned: list[Rewriting] = field(default_factory=list)
    mark: int = 0
    """Seq up to which all items are settled once the plan is carried out."""
    seen: int = 0
    """Last seq examined."""
    more: bool = False
    """True if it stopped before the end because the plan was full."""
    damaged: int = 0


class _Exempt(NamedTuple):
    pins: int
    """Last seq of the leading items that stay."""
    open: frozenset[int]
    """Seqs of own items with calls that have no result yet."""


class Settler:
    """One session, one rule, one snapshot."""

    def __init__(self, engine: Engine, place: tuple[int, int], head: Head, now_ms: int) -> None:
        self._engine = engine
        self._scope, self._session = place
        self._head = head
        self._now_ms = now_ms
        self._counter: TokenCounter | None = None
        with suppress(CounterUnavailableError):
            self._counter = engine.counter_named(head.counter)
        self._names: dict[Any, str] = {}
        """Tool names of the calls seen so far."""

    @property
    def first(self) -> int:
        """First seq that the session owns."""
        return self._head.parent_seq + 1

    def settle(
        self, txn: ReadTxn, rule: RetentionRule, mark: int, limit: int, *, seen: int = 0
    ) -> ExpiredItems:
        """Plan the expiry of at most ``limit`` items after a mark.

        If an open call holds the mark back, ``seen`` is the last seq examined before.

        Raises:
            CorruptValueError: the index or the segments of the session are damaged.
        """
        found = ExpiredItems(mark=max(mark, self.first - 1))
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
                    settled = False  # it is examined again until its result arrives
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
        """Return True if a row is of the rule's kinds, types and tools.

        Raises:
            CorruptValueError: it is of no kind.
        """
        number = split_body(row[3])[0]
        if number >= len(ItemKind):
            msg = f"item {row[1]} is of an unknown kind, {number}; run 'memcore check'"
            raise CorruptValueError(msg, key=b"")
        kind = ItemKind(number)
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
        """Collect the names of the tools that are called in these rows."""
        for at, owner, lo, hi in spans:
            for row in read_rows(txn, self._scope, owner, position=at, lo=lo, hi=hi):
                if isinstance(row, CorruptValueError) or row[3][:1] == _EVENT:
                    continue
                with suppress(CorruptValueError):  # it names nothing; check() reports it
                    self._tools_of(opened(txn, self._scope, row)[0])

    def _cut(self, txn: ReadTxn, rule: RetentionRule) -> int:
        """Return the seq up to which items exceed the rule's count or size; 0: none does."""
        if rule.keep_last is None and rule.max_bytes is None:
            return 0
        history = History(self._head.all_segments(txn, self._scope))
        if rule.max_bytes is None and not (rule.kinds or rule.types or rule.tools):
            before = history.count - (rule.keep_last or 0)
            return history.seq_at(before - 1) if before > 0 else 0
        count = size = 0
        for stop in range(history.count, 0, -_PAGE_SETTLING):
            if rule.tools:  # scanning backwards meets a result before its call
                self._learn(txn, history.spans(max(stop - _PAGE_SETTLING - _BACK_ROWS, 0), stop))
            rows = [
                row
                for at, owner, lo, hi in history.spans(max(stop - _PAGE_SETTLING, 0), stop)
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
        """Return the first position, after the pins, of an item that may stay."""
        history = History(self._head.all_segments(txn, self._scope))
        cut, since_ms = self._cut(txn, rule), rule.since_ms(self._now_ms)
        since_us = 0 if since_ms is None else since_ms * 1000
        for at in range(pins, history.count, _PAGE_SETTLING):
            for position, owner, lo, hi in history.spans(
                at, min(at + _PAGE_SETTLING, history.count)
            ):
                rows = read_rows(txn, self._scope, owner, position=position, lo=lo, hi=hi)
                for here, row in enumerate(rows, position):
                    if isinstance(row, CorruptValueError):
                        return here
                    if row[1] > cut and not split_body(row[3])[1] < since_us:
                        return here
        return history.count

    def _exempt(self, txn: ReadTxn) -> _Exempt:
        """Find pins and open calls, which stay; a hidden session has neither."""
        head = self._head
        if head.hidden or not head.count:
            return _Exempt(0, frozenset())
        history = History(head.all_segments(txn, self._scope))
        policy = get_policy(head.policy)
        try:
            log = CachedSession(self._scope, self._session, self._engine.counter_named)
            ledger = log.full(txn, head).ledger if log.catch_up(txn) else new_ledger(policy, None)
        except (CounterUnavailableError, PolicyMismatchError):
            ledger = new_ledger(policy, None)
            for _, owner, lo, hi in history.spans(0, history.count):
                for record in index.every_record(txn, self._scope, owner, lo, hi):
                    ledger.push(record[index.RECORD.size :], 0)
        pins = policy.pin_count(ledger)
        waiting = {at for at, _ in ledger.open_calls()}
        located = (history.locate(at) for at in waiting)
        own = frozenset(seq for owner, seq in located if owner == self._session)
        return _Exempt(history.seq_at(pins - 1) if pins else 0, own)

    # --- remains of an item -----------------------------------------------------------------------

    def _plan(
        self, txn: ReadTxn, rule: RetentionRule, row: StoredRow, record: bytes, found: ExpiredItems
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
                return  # it has expired already
            place = (self._scope, self._session, seq)
            pair = (item.message, message)
            planned = plan_rewriting(
                place, value, pair, seed=self._engine.seed, envelope=_without_meta
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
    """Return an item's type: from its envelope, from an event, or by its form."""
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
    """Split a plan into lists of bounded rows and bytes, both new ones and old ones."""
    taken: list[Rewriting] = []
    held = gone = 0
    for each in planned:
        is_full = held + len(each.encoded) > size or gone + each.size > _PIECE_GONE_BYTES
        if taken and (len(taken) == rows or is_full):
            yield taken
            taken, held, gone = [], 0, 0
        taken.append(each)
        gone += each.size
        held += len(each.encoded) + len(each.prefix) + 200
    if taken:
        yield taken


# --- Expiry of one session's items: planned, archived, and rewritten piece by piece ---------------

_EVENT: Final = bytes((ItemKind.EVENT,))
_PLAN_ITEMS: Final = 2048
"""Items archived together."""
_PIECE_ITEMS: Final = 256
_PIECE_BYTES: Final = 96 * 1024
"""Approximate limit of one transaction: it fits a redo slot with other writes of its batch."""
_PIECE_GONE_BYTES: Final = 256 * 1024
"""Bytes of content that one transaction replaces: their words leave the search index with them."""
_MARK_STEP: Final = 1024
"""Number of unexpired items after which the mark is stored anyway."""


def head_of_session(txn: ReadTxn, scope: int, session: int) -> Head | None:
    """Read the head of a session, hidden or not; None without one.

    Raises:
        CorruptValueError: it is damaged.
    """
    key = head_key(scope, session)
    value = txn.get(key)
    return None if value is None else Head.unpack(key, value)


def expire_items(run: SweepRun, scope: int, session: int, rules: Sequence[RetentionRule]) -> None:
    """Expire the items of a session that exceed one of the rules."""
    for rule in rules:
        mark: int | None = None
        seen = 0
        while run.left:
            found = _look(run, (scope, session), rule, mark, seen)
            if found is None:
                break
            settled, begun = found
            run.report.damaged += settled.damaged
            if not _carry_out(run, (scope, session), rule, begun, settled):
                break
            mark, seen = settled.mark, settled.seen
            if not settled.more:
                break
        if not run.left:
            run.report.complete = False
            return


def _look(
    run: SweepRun, place: tuple[int, int], rule: RetentionRule, mark: int | None, seen: int
) -> tuple[ExpiredItems, int] | None:
    """Find the items due after the mark; return them and the mark, or None without a session."""

    def look(txn: ReadTxn) -> tuple[ExpiredItems, int] | None:
        head = head_of_session(txn, *place)
        if head is None or head.unfinished:
            return None
        begun = mark
        if begun is None:
            begun = read_terms(txn, session_terms(*place)).marks.get(rule.id, 0)
        settler = Settler(run.engine, place, head, run.now_ms)
        limit = min(run.left, _PLAN_ITEMS)
        return settler.settle(txn, rule, begun, limit, seen=seen), begun

    try:
        return run.engine.store.read(look)
    except CorruptValueError:
        run.report.damaged += 1
        return None


def _carry_out(
    run: SweepRun, place: tuple[int, int], rule: RetentionRule, begun: int, settled: ExpiredItems
) -> bool:
    """Carry out a plan; return True if the session's next items may follow."""
    planned = settled.planned
    seqs = [keys.number_of(each.key) for each in planned]
    if run.dry:
        run.report.forgotten += len(_going(run, place, seqs))
        run.report.items += len(planned)
        run.report.bytes += sum(each.size for each in planned)
        return True
    held: bool = run.engine.store.read(lambda txn: _is_family_held(txn, *place))
    if planned and held:
        run.report.held += len(planned)
        return False
    if planned:
        if not run.archive(lambda exporter: exporter.items(*place, seqs)):
            run.report.kept += len(planned)
            return False
        _going(run, place, seqs)
    for piece, mark in _marked(planned, settled.mark, begun):
        done = run.engine.store.transact(
            lambda txn, piece=piece, mark=mark: _write(  # type: ignore[misc]
                txn, run, place, rule, piece=piece, mark=mark
            ),
            makes_room=True,
        )
        if done is None:
            run.report.held += len(piece)
            return False
        blobs.finish_leaving(run.engine.store, done.leaving)
        run.report.forgotten += done.forgotten
        run.report.items += len(done.seqs)
        run.report.bytes += done.size
    return True


def _marked(
    planned: list[Rewriting], mark: int, begun: int
) -> Iterator[tuple[list[Rewriting], int]]:
    """Yield the pieces, each with the mark to store with it; the last one with ``mark``."""
    listed = list(pieces(planned, rows=_PIECE_ITEMS, size=_PIECE_BYTES))
    if not listed and mark - begun >= _MARK_STEP:
        listed = [[]]
    for at, piece in enumerate(listed):
        is_last = at + 1 == len(listed)
        yield piece, mark if is_last else min(mark, keys.number_of(piece[-1].key))


def _is_family_held(txn: ReadTxn, scope: int, session: int) -> bool:
    """Return True if a hold covers a session or one forked from it, which shares its items."""
    return any_held(txn) and any(
        is_held(txn, scope, each) for each in family_of(txn, scope, session)
    )


def _write(
    txn: Txn,
    run: SweepRun,
    place: tuple[int, int],
    rule: RetentionRule,
    *,
    piece: list[Rewriting],
    mark: int,
) -> Rewritten | None:
    """Write one piece with its mark; None under a legal hold."""
    need_alive(txn, place[0])
    if _is_family_held(txn, *place) or head_of_session(txn, *place) is None:
        return None
    key = session_terms(*place)
    terms = read_terms(txn, key)
    seqs = [keys.number_of(each.key) for each in piece]

    def instead(stored: StoredView) -> StoredView:
        found = shown_instead(stored, place[1], seqs, lambda message: expired_message(message, "."))
        view = found.view
        if rule.summaries == "drop" and view.summary is not None and view.cut_seq >= min(seqs):
            return found._replace(view=replace(view, summary=None))
        return found

    done = rewrite_planned(txn, run.engine, *place, piece, views=instead)
    if terms.marks.get(rule.id, 0) < mark:
        write_terms(txn, key, replace(terms, marks={**terms.marks, rule.id: mark}))
    return done


# --- Removal of whole sessions, and of the start of a history that nothing else refers to ---------

_OPTIONS: Final = SessionOptions(None, None, "keep")


def remove_session(
    run: SweepRun, scope: int, session: int, name: str, is_due: Callable[[ReadTxn], bool]
) -> bool:
    """Remove a session if it is still due, unless it changed since it was archived.

    ``is_due`` is asked before it is archived, and once more in the transaction that removes it:
    since the session was found to be due, it may have been used, or its expiry set again.
    """
    store = run.engine.store

    def stands(txn: ReadTxn) -> tuple[Any, ...]:
        # Within a millisecond, a change of the state or a checkpoint leaves the head as it was.
        saved = list(checkpoint_numbers(txn, scope, session))
        return txn.get(head_key(scope, session)), txn.get(header_key(scope, session)), saved

    def look(txn: ReadTxn) -> tuple[tuple[Any, ...] | None, bool, bool, int]:
        known = names.session_of(txn, scope, name) == session and is_due(txn)
        value = stands(txn) if known and txn.get(head_key(scope, session)) is not None else None
        size = 0 if value is None or not run.dry else _size_of_departing(txn, scope, session)
        leased = _is_leased(txn, run, scope, session)
        return value, is_held(txn, scope, session), leased, size

    before, held, leased, size = store.read(look)
    if before is None or held or leased:
        # A lease is looked at before the session is archived, or each sweep would archive it again.
        run.report.held += before is not None and held
        run.report.kept += before is not None and leased and not held
        return False
    if run.dry:
        run.report.forgotten += len(_going(run, (scope, session), None))
        run.report.sessions += 1
        run.report.bytes += size
        return True
    try:
        is_written = run.archive(lambda exporter: exporter.session(scope, name))
    except CorruptValueError:
        run.report.damaged += 1  # a session that cannot be archived stays
        return False
    if not is_written:
        run.report.kept += store.read(look)[0] is not None
        return False
    going = _going(run, (scope, session), None)

    def closure(txn: Txn) -> tuple[bool, int]:
        need_alive(txn, scope)
        if names.session_of(txn, scope, name) != session or is_held(txn, scope, session):
            return False, 0
        run.engine.drafts.flush_opened(txn, scope, session)
        if stands(txn) != before or not is_due(txn):
            return False, 0  # it was used in the meantime, or is to stay
        taken = _size_of_departing(txn, scope, session)
        return start_removal(txn, run.engine, scope, name)[0], taken

    try:
        done, size = store.transact(closure, makes_room=True)
    except LeaseHeldError:  # its owner is at work: the next sweep retries
        done, size = False, 0
    resume_removals(store)
    run.report.forgotten += len(going) if done else 0
    run.report.sessions += done
    run.report.bytes += size if done else 0
    run.report.kept += not done
    return done


def _is_leased(txn: ReadTxn, run: SweepRun, scope: int, session: int) -> bool:
    head = head_of_session(txn, scope, session)
    lease = read_lease(txn, scope, session) if head is not None and head.leased else None
    return lease is not None and lease.is_held(run.engine.now_ms())


def is_unchanged(scope: int, session: int, updated_ms: int) -> Callable[[ReadTxn], bool]:
    """Return a function that tells if a session was last changed at that time."""

    def look(txn: ReadTxn) -> bool:
        head = head_of_session(txn, scope, session)
        return head is not None and head.updated_ms == updated_ms

    return look


def _going(
    run: SweepRun, place: tuple[int, int], seqs: Sequence[int] | None
) -> list[tuple[bytes, bytes]]:
    """Return the rows of the memories that go with items or a session; archive them first."""

    def look(txn: ReadTxn) -> list[tuple[bytes, bytes]]:
        numbers = would_forget(txn, run.engine, *place, seqs)
        rows = [memory.entry_at(place[0], number) for number in numbers]
        return [(row, value) for row in rows if (value := txn.get(row)) is not None]

    found = run.engine.store.read(look)
    if found and not run.dry:
        run.archive(lambda exporter: (exporter.memory(row) for row, _ in found))
    return found


def _size_of_departing(txn: ReadTxn, scope: int, session: int) -> int:
    """Estimate the bytes of a session's rows; of a long session, those of its first rows."""
    prefix = keys.session_prefix(scope, session)
    return sum(len(value) for _, value in txn.scan(prefix, keys.after(prefix), limit=PIECE_ROWS))


def remove_beginning(
    run: SweepRun, place: tuple[int, int], title: tuple[str, str, str], rule: RetentionRule
) -> bool:
    """Remove the start of a history beyond a rule, up to the last safe cut; False if impossible.

    Items must stay in place if checkpoints, views or forks refer to the session, or if the rest is
    too much for one transaction. Pins stay, and so does everything from the first open call on.
    """
    scope, session = place
    address = SessionRef(run.engine, *title, _OPTIONS)
    found = run.engine.store.read(lambda txn: _beyond(txn, run, place, rule))
    if found is None:
        return False
    cut, pins, seqs = found
    if not seqs:
        return True
    if run.dry:
        run.report.forgotten += len(_going(run, place, seqs))
        run.report.items_removed += len(seqs)
        return True
    if not run.archive(lambda exporter: exporter.items(scope, session, seqs)):
        run.report.kept += len(seqs)
        return True
    going = _going(run, place, seqs)

    def closure(txn: Txn) -> list[bytes] | None:
        need_alive(txn, scope)
        if names.session_of(txn, scope, title[2]) != session or is_held(txn, scope, session):
            return None
        draft = address.draft(txn, create=False)
        if draft is None:
            return None
        draft.flush()
        head = draft.head
        history = History(head.all_segments(txn, scope))
        gone = [history.seq_at(at) for at in range(pins, cut)] if cut <= history.count else []
        if gone != seqs or _is_referred(txn, scope, session) or head.view_number:
            return None
        kept = [*_again(run, draft, 0, pins), *_again(run, draft, cut, draft.count)]
        try:
            following = history.seq_at(cut) if cut < history.count else head.next_seq
            left = renew(txn, address, draft, kept)
            _note_removed(txn, scope, title[2], following - (pins + 1))
            return left
        except BaseException:
            txn.spoil()
            raise

    if _renewed(run, closure, len(seqs)):
        run.report.forgotten += len(going)
    return True


def _note_removed(txn: Txn, scope: int, name: str, count: int) -> None:
    """Note by how many seqs the rest moved, so that the next archive's items follow these."""
    session = names.session_of(txn, scope, name)
    if session is not None:
        key = session_terms(scope, session)
        terms = read_terms(txn, key)
        removed = terms.marks.get(REMOVED, 0) + count
        write_terms(txn, key, replace(terms, marks={**terms.marks, REMOVED: removed}))


def _renewed(run: SweepRun, closure: Callable[[Txn], list[bytes] | None], count: int) -> bool:
    """Remove the first items of a history by ``closure``, and count the outcome in the report."""
    try:
        left = run.engine.store.transact(closure, makes_room=True)
    except CorruptValueError:
        run.report.damaged += 1
        return False
    except LeaseHeldError:  # as in remove_session
        left = None
    if left is None:
        run.report.kept += count
        return False
    if left:
        resume_removals(run.engine.store)
    run.report.items_removed += count
    return True


def _again(run: SweepRun, draft: SessionTxn, start: int, stop: int) -> list[Prepared]:
    """Prepare the items at positions ``start .. stop`` to be appended again."""
    rows = draft.last_rows(draft.count - start)[: stop - start] if start < stop else []
    seed, counter = run.engine.seed, draft.log.counter
    return [again(draft.txn, draft.log.scope, row, counter, seed) for row in rows]


def _beyond(
    txn: ReadTxn, run: SweepRun, place: tuple[int, int], rule: RetentionRule
) -> tuple[int, int, list[int]] | None:
    """Return the cut, the number of pins, and the seqs to remove; None if items must stay."""
    head = head_of_session(txn, *place)
    if head is None or head.hidden or head.unfinished or not head.count:
        return 0, 0, []
    if head.parent_session or head.view_number or _is_referred(txn, *place):
        return None
    log = CachedSession(*place, run.engine.counter_named)
    try:
        if not log.catch_up(txn):
            return 0, 0, []
        ledger = log.full(txn, head).ledger
    except (CounterUnavailableError, PolicyMismatchError):
        return None
    pins = log.policy.pin_count(ledger)
    settler = Settler(run.engine, place, head, run.now_ms)
    wanted = settler.positions_beyond(txn, rule, pins)
    first_open = min((at for at, _ in ledger.open_calls()), default=head.count)
    cut = ledger.cut_at_most(min(wanted, first_open))
    cut = max(with_texts(log.history, txn, place[0], cut), pins)
    if head.count - cut + pins > PIECE_ROWS:
        return None
    return cut, pins, [log.history.seq_at(at) for at in range(pins, max(cut, pins))]


def _is_referred(txn: ReadTxn, scope: int, session: int) -> bool:
    """Return True if forks or checkpoints refer to a session's items."""
    children = keys.session_rows(scope, session, Row.CHILD)
    if any(True for _ in txn.scan(children, keys.after(children), limit=1)):
        return True
    return any(True for _ in checkpoint_numbers(txn, scope, session, limit=1))
