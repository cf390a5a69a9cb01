"""Read a session: items, tail, batches of decoded messages."""

from __future__ import annotations

import re
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, TypeVarTuple, Unpack

import orjson

from memcore import blobs, session
from memcore._fast import (
    classify,
    fresh_json,
    known_from,
    leading_rows,
    open_items,
    open_messages,
)
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import FLAG_BLOB, named, open_value
from memcore.errors import CorruptValueError, InvalidOptionError, MemcoreError, NotFoundError
from memcore.limits import ITEMS_PAGE, VALUE_FORMAT
from memcore.log import CachedSession, Head, decode_item
from memcore.log.history import StoredRow, TailLedger, missing_row, read_rows
from memcore.model import CallRecord, Item, ItemKind, Message, OpenCall, View
from memcore.options import checked_bool, counted, shown
from memcore.rows.head import FLAG_REWRITTEN
from memcore.rows.item import KINDS, split_body
from memcore.rows.views import view_chain
from memcore.session.engine import SessionRef, spans_of
from memcore.store.interface import ReadTxn
from memcore.wire.message import SECOND

__all__ = [
    "DecodedCache",
    "Found",
    "ItemRun",
    "Items",
    "collect",
    "decoded",
    "exists",
    "find_call",
    "find_view",
    "get_item",
    "head_of",
    "items_before",
    "iter_items",
    "last_items",
    "last_pin",
    "messages_of",
    "open_calls",
    "opened",
    "read_log",
    "read_offloaded",
    "sound",
    "split_reference",
    "views_of",
]


# --- Reads: lock the log, begin the snapshot, catch up, collect; decode outside -------------------

T = TypeVar("T")
D = TypeVar("D")
Ts = TypeVarTuple("Ts")
_HEAD: Final = bytes((VALUE_FORMAT, 0))
"""Leading bytes of a value that is not a blob reference, not rewritten and not unusual JSON."""
_RUN_ITEMS: Final = 512
_NOTEBOOK_ITEMS: Final = 20
_SEQ_BYTES: Final = 8
_NUMBER_DIGITS_MAX: Final = 9
"""Digits of the number of an offloaded text; no item has as many texts."""


CALL_CLASSES: Final = (*range(10), 0x40, 0x46)
"""Every class of call id that _fast.classify yields; 0x40 marks calls without an id."""


class ItemRun(NamedTuple):
    """Rows of consecutive seqs owned by one session, sealed as stored."""

    owner: int
    prefix: bytes
    first: int
    rows: list[tuple[bytes, bytes]]
    size: int
    """Number of rows expected."""
    tokens: list[int]
    """Per row; empty if only messages are needed."""
    generation: int = 0
    """Generation of the cache for which they were read."""

    def messages(self) -> list[Message | None] | None:
        """The messages, None for events; None if some row needs individual handling."""
        if len(self.rows) != self.size:
            return None
        rows = self.rows
        return open_messages(rows, self.prefix, self.first, _HEAD, orjson.loads)

    def items(self) -> list[Item | CorruptValueError]:
        """The items; errors in place of damaged ones."""
        rows, tokens, loads = self.rows, self.tokens, orjson.loads
        return open_items(rows, self.first, tokens, _HEAD, loads, Item, KINDS, _item_or_error)


_ITEMS_ALONE: Final = frozenset((Item,))
Found: TypeAlias = ItemRun | Item | CorruptValueError
"""A piece of a history from a snapshot: sealed rows, or an item that had to be decoded early."""


def _item_or_error(seq: int, key: bytes, value: bytes, tokens: int) -> Item | CorruptValueError:
    try:
        flags, body = open_value(key, value)
        return decode_item(seq, body, flags, tokens)
    except CorruptValueError as exc:
        return named(exc, key)


def _owned_rows(
    log: CachedSession, txn: ReadTxn, owner: int, first: int, counts: list[int]
) -> list[Found]:
    """Collect the rows of consecutive seqs that a session owns; ``counts`` are their tokens.

    Reads each row from the store once; irregular rows split a run.
    """
    found: list[Found] = []
    scope, prefix = log.scope, log.item_rows
    if owner != log.session:
        prefix = keys.session_rows(scope, owner, Row.ITEM)
    seq, stop = first, first + len(counts)
    while seq < stop:
        end = min(seq + _RUN_ITEMS, stop)
        rows, at = txn.take(prefix + keys.U64.pack(seq), end - seq), 0
        while seq < end:
            whole = min(leading_rows(rows, prefix, seq, at), end - seq)
            if whole:
                tokens = counts[seq - first : seq - first + whole]
                found.append(ItemRun(owner, prefix, seq, rows[at : at + whole], whole, tokens))
                at, seq = at + whole, seq + whole
                continue
            # As many rows as seqs were requested, so a list that runs short has hit the store's
            # end.
            key, value = rows[at] if at < len(rows) else (b"", b"")
            if key.startswith(prefix) and len(key) != len(prefix) + _SEQ_BYTES:
                # A damaged key maps to no seq, so how many rows follow it is unknown.
                rest = read_rows(txn, scope, owner, position=0, lo=seq, hi=stop - 1)
                found += (_item_of_row(txn, (scope, owner), row, counts, first) for row in rest)
                return found
            following = keys.number_of(key) if key.startswith(prefix) else end
            if following == seq:
                try:
                    row = (seq, seq, *open_value(key, value))
                    found.append(_item_of_row(txn, (scope, owner), row, counts, first))
                except CorruptValueError as exc:
                    found.append(exc)
                at, seq = at + 1, seq + 1
            gap = range(seq, min(following, end))
            found += (missing_row(scope, owner, missing) for missing in gap)
            seq = max(seq, min(following, end))
    return found


def _item_of_row(
    txn: ReadTxn,
    place: tuple[int, int],
    row: StoredRow | CorruptValueError,
    counts: list[int],
    first: int,
) -> Item | CorruptValueError:
    """Decode a row's item, reading its content from a blob if need be; its error if damaged."""
    if isinstance(row, CorruptValueError):
        return row
    _, seq, flags, body = row
    payload = None
    try:
        if flags & FLAG_BLOB:
            payload = blobs.read(txn, place[0], blobs.BlobRef.unpack(split_body(body)[3]))
    except (NotFoundError, CorruptValueError) as exc:
        return _damaged(seq, exc)
    try:
        return decode_item(seq, body, flags, counts[seq - first], payload)
    except CorruptValueError as exc:
        return named(exc, keys.session_row(*place, Row.ITEM, seq))


class _Gone(Enum):
    GONE = 0


_GONE: Final = _Gone.GONE


def read_log(
    ref: SessionRef,
    fn: Callable[[CachedSession, ReadTxn, Unpack[Ts]], T],
    default: D,
    *args: *Ts,
) -> T | D:
    """Run ``fn(log, txn, *args)`` on one snapshot of the session, under its log's lock.

    Slow work such as decoding belongs outside.

    Returns:
        What ``fn`` returns; ``default`` if there is no session.

    Raises:
        PolicyMismatchError: the handle asked for another policy or counter than the session's.
        CorruptValueError: the session's head is damaged or missing.
    """
    if ref.due is not None:
        ref.touch()
    # The number at hand may be of a session that was deleted: then once more, by name. A second
    # time it is deleted right now, or its head is missing.
    for _ in range(2):
        log = ref.log or ref.resolve()
        if log is None:
            break
        found = ref.engine.read_locked(log, partial(_on_snapshot, ref, fn, args))
        if found is not _GONE:
            return found
        ref.forget()  # deleted since; its name may now belong to a new session
    else:
        ref.engine.store.read(ref.need_gone)
    return default


def _on_snapshot(
    ref: SessionRef,
    fn: Callable[[CachedSession, ReadTxn, Unpack[Ts]], T],
    args: tuple[*Ts],
    log: CachedSession,
    txn: ReadTxn,
) -> T | Literal[_Gone.GONE]:
    if not log.catch_up(txn):
        return _GONE
    if ref.asks:
        ref.check_head(head_of(log))
    return fn(log, txn, *args)


def exists(ref: SessionRef) -> bool:
    """Return True if the session exists; this does not count as the handle's first use.

    A session with a damaged head exists: reading it raises the error, and it may be recovered.
    """
    try:
        if ref.due is None:
            return read_log(ref, _is_there, default=False)
        head = ref.peek()
    except CorruptValueError:
        return True
    if head is not None:
        ref.check_head(head)
    return head is not None


def _is_there(log: CachedSession, txn: ReadTxn) -> bool:  # noqa: ARG001 - as read_log calls it
    return True


# --- Items ----------------------------------------------------------------------------------------


def collect(
    log: CachedSession, txn: ReadTxn, start: int, stop: int, *, by: TailLedger | None = None
) -> list[Found]:
    """Collect the rows at positions ``start .. stop``, to be decoded outside the snapshot.

    ``by`` is a ledger that covers these positions, if the caller has one.
    """
    found: list[Found] = []
    if start >= stop:
        return found
    if by is None:
        head = log.head
        assert head is not None  # noqa: S101 - guaranteed by catch_up
        if log.ledger is None and not log.was_read:
            by = log.first_read(txn, head, start, stop)
        else:
            by = log.recent(txn, head)
        if start < by.offset:
            by = log.full(txn, head)
    counts = by.ledger.tokens_of(start - by.offset, stop - by.offset)
    for position, owner, lo, hi in log.history.spans(start, stop):
        at = position - start
        found += _owned_rows(log, txn, owner, lo, counts[at : at + hi + 1 - lo])
    return found


def iter_items(
    ref: SessionRef, start: int, stop: int | None, *, skip_corrupt: bool = False
) -> Iterator[Item]:
    """Yield the live items with ``start <= seq < stop``, one page per read transaction.

    Raises:
        CorruptValueError: a row is damaged and ``skip_corrupt`` is false.
    """
    checked_bool("skip_corrupt", skip_corrupt)
    following: int | None = start
    # A snapshot for each page: one held over a long iteration would keep the file from reusing
    # pages. Seqs ascend, so no item comes twice.
    while following is not None:
        page: tuple[list[Found], int | None]
        page = read_log(ref, _page, ([], None), following, stop)
        found, following = opened(page[0]), page[1]
        if ref.uses is not None:
            _note(ref, found)
        for item in found:
            if type(item) is Item:
                yield item
            elif not skip_corrupt:
                raise item  # type: ignore[misc]


def _page(
    log: CachedSession, txn: ReadTxn, start: int, stop: int | None
) -> tuple[list[Found], int | None]:
    """Collect a page from seq ``start`` on; return it and the seq to continue from."""
    history = log.history
    first = history.position_from(start)
    last = history.count if stop is None else history.position_from(stop)
    end = min(first + ITEMS_PAGE, last)
    return collect(log, txn, first, end), history.seq_at(end) if end < last else None


def shown_in_notebook(ref: SessionRef) -> str | None:
    """Return the session's last items as a table in HTML; None if they cannot be read."""
    from memcore.preview import html_table, preview  # noqa: PLC0415 - for notebooks alone

    try:
        count = read_log(ref, lambda log, _: log.history.count, 0)
        items = last_items(ref, _NOTEBOOK_ITEMS, skip_corrupt=True)
    except MemcoreError:
        return None  # the notebook shows the repr
    last = f", the last {_NOTEBOOK_ITEMS}" if count > _NOTEBOOK_ITEMS else ""
    damaged = min(count, _NOTEBOOK_ITEMS) - len(items)
    last += f", {damaged} of them damaged" if damaged else ""
    title = f"session {ref.name} of {ref.user} in {ref.app}: {counted(count, 'item')}{last}"
    rows = ((i.seq, i.kind.name.lower(), i.tokens, preview(i.message)) for i in items)
    return html_table(title, ("seq", "kind", "tokens", "text"), rows)


def last_items(ref: SessionRef, count: int, *, skip_corrupt: bool = False) -> list[Item]:
    """Return the last ``count`` live items, oldest first.

    Raises:
        CorruptValueError: a row is damaged and ``skip_corrupt`` is false.
    """
    if skip_corrupt is not False:
        checked_bool("skip_corrupt", skip_corrupt)
    rows: list[Found] = read_log(ref, _before, [], None, count)
    found = opened(rows)
    if ref.uses is not None:
        _note(ref, found)
    return sound(found, skip_corrupt=skip_corrupt)


def items_before(ref: SessionRef, stop: int | None, count: int) -> list[Item]:
    """Return the last ``count`` live items before seq ``stop`` (None: of all), oldest first.

    Raises:
        CorruptValueError: one of them is damaged.
    """
    rows: list[Found] = read_log(ref, _before, [], stop, count)
    return decoded(rows)


def _before(log: CachedSession, txn: ReadTxn, stop: int | None, count: int) -> list[Found]:
    history = log.history
    end = history.count if stop is None else history.position_from(stop)
    return collect(log, txn, max(end - count, 0), end)


def get_item(ref: SessionRef, seq: int) -> Item:
    """Return one live item.

    Raises:
        NotFoundError: it is not in the live history.
        CorruptValueError: it is damaged.
    """
    rows: list[Found] = read_log(ref, _at_seq, [], seq)
    if not rows:
        msg = f"session {ref.name!r} has no live item {seq}"
        raise NotFoundError(msg)
    found = opened(rows)
    if ref.uses is not None:
        _note(ref, found)
    return sound(found)[0]


def _at_seq(log: CachedSession, txn: ReadTxn, seq: int) -> list[Found]:
    position = log.history.position_of(seq)
    return [] if position is None else collect(log, txn, position, position + 1)


def _note(ref: SessionRef, found: list[Item | CorruptValueError]) -> None:
    """Record an access to these items."""
    if ref.uses is not None and ref.log is not None:
        spans = spans_of(item.seq for item in found if type(item) is Item)
        ref.uses.note(ref.log.session, spans, ref.engine.now_ms())


_SEQ: Final = re.compile("[0-9]{1,20}")


def split_reference(reference: object) -> tuple[int, str | None]:
    """Split ``item:SEQ`` or ``item:SEQ:CALL_ID`` into its seq and call id.

    Raises:
        InvalidOptionError: it is neither.
    """
    parts = reference.split(":", 2) if isinstance(reference, str) else []
    if len(parts) < 2 or parts[0] != "item" or not _SEQ.fullmatch(parts[1]):  # noqa: PLR2004
        msg = f"reference: expected 'item:SEQ' or 'item:SEQ:CALL_ID', got {reference!r:.80}"
        raise InvalidOptionError(msg)
    return int(parts[1]), parts[2] if len(parts) > 2 else None  # noqa: PLR2004


# --- Calls and views ------------------------------------------------------------------------------


def find_call(ref: SessionRef, call_id: str) -> CallRecord:
    """Return where a call was made and answered: the latest call with this id.

    Raises:
        NotFoundError: no call of the live history has this id.
    """
    record = None
    if isinstance(call_id, str):  # of a subclass, such as a StrEnum, the text itself
        record = read_log(ref, _call_record, None, call_id[:], ref.engine.seed)
    if record is None:
        msg = f"session {ref.name!r} has no call {shown(call_id)} in its live history"
        raise NotFoundError(msg)
    return record


def _call_record(log: CachedSession, txn: ReadTxn, call_id: str, seed: bytes) -> CallRecord | None:
    best: tuple[int, list[int], bool] | None = None
    ledger = log.full(txn, head_of(log)).ledger
    for cls in CALL_CLASSES:
        found = ledger.find_call(cls, call_id, seed)
        # A model may use an id again, also in another class of ids: the latest call counts.
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    if best is None:
        return None
    seq_at = log.history.seq_at
    return CallRecord(call_id, seq_at(best[0]), tuple(map(seq_at, best[1])), best[2])


def open_calls(ref: SessionRef) -> list[tuple[tuple[int, str], OpenCall]]:
    """Return the calls awaiting a result, oldest first, each with its (class, id)."""
    nothing: list[tuple[tuple[int, str], OpenCall]] = []
    return read_log(ref, _open_calls, nothing)


def _open_calls(log: CachedSession, txn: ReadTxn) -> list[tuple[tuple[int, str], OpenCall]]:
    head = head_of(log)
    recent = log.recent(txn, head)
    # The others were made before the loaded end of the history.
    if recent.offset and recent.ledger.open_count != head.open_calls:
        recent = log.full(txn, head)
    found = []
    item: Item | None = None
    for at, ordinal in recent.ledger.open_calls():
        seq = log.history.seq_at(recent.offset + at)
        if item is None or item.seq != seq:
            item = decoded(collect(log, txn, recent.offset + at, recent.offset + at + 1))[0]
        call_keys = [key for key in classify(item.message)[1] if not key[0] & SECOND]
        key = call_keys[ordinal]
        found.append((key, OpenCall(key[1], _name_of(item.message, key), seq)))
    return found


def find_view(ref: SessionRef, wanted: View | int | None) -> View | None:
    """Return a view that applies to the live history; None: the newest, 0: none.

    Raises:
        NotFoundError: no view matches ``wanted``.
    """
    return read_log(ref, _view, None, wanted)


def _view(log: CachedSession, txn: ReadTxn, wanted: View | int | None) -> View | None:
    stored = log.current_view(txn) if wanted is None else log.chosen_view(txn, wanted)
    return None if stored is None else stored.view


def last_pin(ref: SessionRef) -> int:
    """Return the seq of the last pinned leading item, 0 if there is none."""
    return read_log(ref, _last_pin, 0)


def _last_pin(log: CachedSession, txn: ReadTxn) -> int:
    count = log.policy.pin_count(log.full(txn, head_of(log)).ledger)
    return log.history.seq_at(count - 1) if count else 0


def views_of(ref: SessionRef) -> list[View]:
    """Return all view records of the chain, oldest first, whether or not they apply now."""
    nothing: list[View] = []
    return read_log(ref, _views, nothing)


def _views(log: CachedSession, txn: ReadTxn) -> list[View]:
    head = head_of(log)
    chain = view_chain(txn, log.scope, head.view_session, head.view_number)
    return [stored.view for stored in chain][::-1]


def head_of(log: CachedSession) -> Head:
    """Return the head of a log that has caught up."""
    assert log.head is not None  # noqa: S101 - guaranteed by catch_up
    return log.head


def opened(found: list[Found]) -> list[Item | CorruptValueError]:
    """Decode collected rows: one item per position, errors in place of damaged ones."""
    items: list[Item | CorruptValueError] = []
    for part in found:
        if type(part) is ItemRun:
            items += part.items()
        else:
            items.append(part)  # type: ignore[arg-type]
    return items


def messages_of(found: list[Found]) -> list[Message] | None:
    """Decode collected rows to bare messages, which takes half the time of items.

    None if any of them is irregular: an event, or an item that is damaged, large or unusual.
    """
    messages: list[Message] = []
    for part in found:
        run = part.messages() if type(part) is ItemRun else None
        if run is None or None in run:
            return None
        messages += run  # type: ignore[arg-type]
    return messages


def decoded(found: list[Found], *, skip_corrupt: bool = False) -> list[Item]:
    """Return the items of collected rows, decoded a run at a time.

    Raises:
        CorruptValueError: a row was damaged and ``skip_corrupt`` is false.
    """
    return sound(opened(found), skip_corrupt=skip_corrupt)


def sound(items: list[Item | CorruptValueError], *, skip_corrupt: bool = False) -> list[Item]:
    """Return the items without the errors among them.

    Raises:
        CorruptValueError: there is one and ``skip_corrupt`` is false.
    """
    if _ITEMS_ALONE.issuperset(map(type, items)):
        return items  # type: ignore[return-value]
    found: list[Item] = []
    for item in items:
        if type(item) is Item:
            found.append(item)
        elif not skip_corrupt:
            raise item  # type: ignore[misc]
    return found


def _damaged(seq: int, cause: Exception) -> CorruptValueError:
    error = CorruptValueError(f"the large content of item {seq} is damaged: {cause}", key=b"")
    error.__cause__ = cause
    return error


def _name_of(message: dict[str, Any], key: tuple[int, str]) -> str | None:
    """The function name of a call, in any wire format."""
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


# --- Batches of messages: validated and decoded by the compiled core, and cached ------------------
# Covers regular rows. If a row is damaged, missing, large, or was written by the standard library's
# JSON, ``Ending.read`` examines each one.
#
# A session's seq refers to the same item forever, except after a rewrite, which begins a new epoch
# and leaves a flag in the head: then the whole cache is dropped. Otherwise a decoded item never
# goes stale; which seqs are live is read from the head every time. Readers get copies.

_ABSENT: Final = object()
_ALL_BYTES: Final = 64 * 1024**2
"""Cache limit of all sessions of the process together, in bytes of encoded JSON; approximate."""

Items: TypeAlias = list[Any]
"""Decoded items in order; ``_ABSENT`` for positions without one (events)."""
Decode: TypeAlias = Callable[[list[Message]], Items | None]


class DecodedCache:
    """Reads one session's items and caches the most recent of them.

    May be shared between threads: at worst, concurrent reads do the same work twice. There is no
    lock, because one held during a fork would never be released in the child.

    Args:
        decode: converts messages to items, or returns None for batches that cannot be handled this
            way; may raise anything.
        most_bytes: cache limit in bytes of encoded JSON, approximate; 0: no caching.
    """

    def __init__(self, decode: Decode, *, most_bytes: int) -> None:
        self._decode = decode
        self.most_bytes = most_bytes
        self._known: dict[int, dict[int, Any]] = {}
        self._weight = self._newest = 0
        self._place = (0, 0)
        """Session and epoch of what is cached: a session of the same name may be another one."""
        self._generation = 0
        """Grows whenever everything is dropped: what was read before is not cached after it."""
        self.is_closed = False
        """True once ``messages`` found an irregular item: there will be more of the kind."""
        self.used = 0
        """Monotonic time of the last read, in nanoseconds; 0 if never read."""
        _all.add(self)

    @property
    def weight(self) -> int:
        """Size of the cached items, in bytes of encoded JSON."""
        return self._weight

    async def last(self, ref: SessionRef, count: int | None) -> tuple[Items, bool] | None:
        """Return the items at the last ``count`` positions (None: all) and if they reach the start.

        Events occupy positions, but are left out. Returns None if ``Ending.read`` is needed.
        """
        nothing: tuple[list[Items | ItemRun], bool] = ([], True)
        parts, complete = read_log(ref, self._last, nothing, count)
        found: Items = []
        new: list[tuple[ItemRun, Items]] = []
        for part in parts:
            if found:
                from asyncio import sleep  # noqa: PLC0415 - only needed when awaiting

                await sleep(0)
            if isinstance(part, ItemRun):
                messages = part.messages()
                if messages is None:
                    return None
                items = self._decoded(messages)
                if items is None:
                    return None
                new.append((part, items))
                found += fresh_json(items, _ABSENT)
            else:
                found += fresh_json(part, _ABSENT)
        # All or nothing: a batch with an irregular row is read in another way, and not kept.
        self._remember(new)
        return found, complete

    def messages(self, parts: list[Items | ItemRun]) -> list[Message] | None:
        """Return copies of the messages of parts from ``collect``, and cache what is new in them.

        None if any of them is irregular, as for ``messages_of``; the cache is then closed.
        """
        found: list[Message] = []
        new: list[tuple[ItemRun, Items]] = []
        for part in parts:
            items: Items | None = None
            if isinstance(part, ItemRun):
                messages = part.messages()
                if messages is not None and None not in messages:
                    items = self._decode(messages)  # type: ignore[arg-type]
                if items is None:
                    self.close()
                    return None
                new.append((part, items))
            else:
                items = part
            found += fresh_json(items, _ABSENT)
        if new:
            self._remember(new)
        return found

    def _decoded(self, messages: list[Message | None]) -> Items | None:
        if None not in messages:
            return self._decode(messages)  # type: ignore[arg-type]
        found = self._decode([each for each in messages if each is not None])
        if found is None:
            return None
        items = iter(found)
        return [_ABSENT if each is None else next(items) for each in messages]

    # --- the cache --------------------------------------------------------------------------------

    def _last(
        self, log: CachedSession, txn: ReadTxn, count: int | None
    ) -> tuple[list[Items | ItemRun], bool]:
        stop = log.history.count
        start = 0 if count is None else max(stop - count, 0)
        return self.collect(log, txn, start, stop), start == 0

    def collect(
        self, log: CachedSession, txn: ReadTxn, start: int, stop: int
    ) -> list[Items | ItemRun]:
        """Collect positions ``start .. stop``: items as cached, not to be changed, else rows."""
        self.used = time.monotonic_ns()
        head, history = head_of(log), log.history
        place = log.session, head.epoch if head.flags & FLAG_REWRITTEN else 0
        if place != self._place:
            self.forget()
            self._place = place
        parts: list[Items | ItemRun] = []
        for _, owner, lo, hi in history.spans(start, stop):
            known, prefix = self._known.get(owner, {}), log.item_rows
            if owner != log.session:
                prefix = keys.session_rows(log.scope, owner, Row.ITEM)
            for first in range(lo, hi + 1, _RUN_ITEMS):
                last = min(first + _RUN_ITEMS - 1, hi)
                held = known_from(known, first, last) if known else []
                if held:
                    parts.append(held)
                    first += len(held)  # noqa: PLW2901 - read only the part not cached
                if first <= last:
                    size = last + 1 - first
                    rows = txn.take(keys.numbered(prefix, first), size)
                    run = ItemRun(owner, prefix, first, rows, size, [], self._generation)
                    parts.append(run)
        return parts

    def _remember(self, new: list[tuple[ItemRun, Items]]) -> None:
        """Cache decoded items, latest first, as far as there is room."""
        room, cached = self.most_bytes, self._known
        if not new or not room:
            return
        for run, items in reversed(new):
            if run.generation != self._generation:  # rewritten meanwhile
                continue
            weight = sum(len(value) for _, value in run.rows)
            # Only newer items push others out: a read of old ones would drop the end of the
            # history, which the next context needs.
            if self._weight + weight > room and run.first > self._newest:
                self._drop()
                cached = self._known
            if self._weight + weight > room:
                return
            known = cached.setdefault(run.owner, {})  # another thread's ``forget`` leaves it alone
            known.update(zip(range(run.first, run.first + run.size), items, strict=True))
            self._newest = max(self._newest, run.first + run.size - 1)
            self._weigh(weight)

    def _weigh(self, weight: int) -> None:
        self._weight += weight
        _all.weight += weight
        if _all.weight > _ALL_BYTES:
            _all.lighten(self)

    def close(self) -> None:
        """Drop everything cached, and cache nothing from now on."""
        self.is_closed, self.most_bytes = True, 0
        self.forget()

    def forget(self) -> None:
        """Drop everything cached, and what is being read."""
        self._generation += 1
        self._drop()

    def _drop(self) -> None:
        _all.weight -= self._weight
        self._known, self._weight, self._newest = {}, 0, 0


class _All:
    """All caches of this process."""

    def __init__(self) -> None:
        self.weight = 0
        self.members: dict[int, weakref.ref[DecodedCache]] = {}

    def add(self, recall: DecodedCache) -> None:
        """Register a cache; it is deregistered when garbage-collected."""
        at = id(recall)
        self.members[at] = weakref.ref(recall, lambda _: self.members.pop(at, None))

    def lighten(self, last: DecodedCache) -> None:
        """Evict until half the limit is in use, least recently read caches first, ``last`` last."""
        # A copy: a cache that is collected meanwhile takes itself out of ``members``.
        members = [found for ref in list(self.members.values()) if (found := ref())]
        members.sort(key=lambda member: (member is last, member.used))
        self.weight = sum(member.weight for member in members)
        for member in members:
            if self.weight <= _ALL_BYTES // 2:
                return
            member.forget()


_all = _All()


# --- Offloaded texts of oversized items -----------------------------------------------------------


def read_offloaded(ref: SessionRef, reference: str) -> str:
    """Return the text that an offloaded item's reference points to.

    Raises:
        NotFoundError: no live item of the session holds it.
        InvalidOptionError: not a valid reference.
    """
    key, _, number = reference.removeprefix(session.REFERENCE).partition(":")
    if len(key) != 2 * session.DIGEST_BYTES or not number.isascii() or not number.isdigit():
        msg = f"reference: expected '{session.REFERENCE}KEY:NUMBER', got {reference!r:.80}"
        raise InvalidOptionError(msg)
    rows: list[Found] = read_log(ref, _offloaded_at, [], key.encode())
    at = int(number) if len(number) <= _NUMBER_DIGITS_MAX else sys.maxsize
    for item in decoded(rows):
        texts = item.message["payload"]["texts"]
        if at < len(texts):
            return str(texts[at])
    msg = f"no live item of the session holds {reference!r:.80}"
    raise NotFoundError(msg)


def _offloaded_at(log: CachedSession, txn: ReadTxn, wanted: bytes) -> list[Found]:
    """Collect the newest event whose meta mentions a key."""
    for stop in range(log.history.count, 0, -ITEMS_PAGE):
        start = max(stop - ITEMS_PAGE, 0)
        for row in log.rows(txn, start, stop):
            if type(row) is not tuple or row[3][0] != ItemKind.EVENT:
                continue
            if wanted in split_body(row[3])[2]:
                return collect(log, txn, row[0], row[0] + 1)
    return []
