"""State shared by all handles of an open database, and references to its sessions."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from struct import Struct
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from memcore import graph, search, state
from memcore._fast import PlainEncoder, RefFields
from memcore.access import Access
from memcore.codec import keys
from memcore.codec.keys import Row, blake2b
from memcore.codec.values import (
    ORJSON_OPTIONS,
    clock_us,
    encode_json,
    open_value,
    seal_value,
)
from memcore.errors import (
    CorruptValueError,
    CounterUnavailableError,
    FencedError,
    InvalidItemError,
    InvalidOptionError,
    LeaseHeldError,
    PolicyMismatchError,
    ReadOnlyError,
    StoreLockedError,
)
from memcore.limits import ITEM_BYTES_MAX, ITEM_INLINE_BYTES_MAX
from memcore.log import CachedSession, CachedSessions, Head, Prepared, SessionTxn, SessionTxns
from memcore.model import Envelope
from memcore.options import checked_int, refuse_copies
from memcore.records import record
from memcore.rows import names
from memcore.rows.head import FLAG_LEASED, SEQ_END, head_key
from memcore.rows.item import pack_envelope
from memcore.rows.lifecycle import LeaseRow, is_erased, read_lease, write_lease
from memcore.store import MapMovedError, Store
from memcore.store.interface import ReadTxn, Txn
from memcore.tokens import TokenCounter, checked_tokens, get_counter
from memcore.wire import policy_name

if TYPE_CHECKING:
    from memcore.audit import Audit
    from memcore.compaction import CompactionPolicy
    from memcore.compaction.reducers import Embed
    from memcore.graph import Cache
    from memcore.privacy.write_filter import RedactsPlaces, ScopeFilter, WriteFilter
    from memcore.search import Embedder, IndexCache
    from memcore.state import StateSchema

__all__ = [
    "DIGEST_BYTES",
    "OFFLOADED",
    "REFERENCE",
    "AccessStats",
    "Accessed",
    "Engine",
    "LeaseToken",
    "Oversize",
    "SentContext",
    "SessionOptions",
    "SessionRef",
    "SizeGuard",
    "check_lease",
    "check_lease_row",
    "check_uses",
    "edit_texts",
    "is_uses_row",
    "move_uses",
    "read_uses",
    "size_guard",
    "spans_of",
    "texts_in",
]


# --- Texts of a message that may be shortened: none that pairs, providers or media depend on ------

_KEPT: Final = frozenset(
    (
        *("id", "call_id", "tool_call_id", "tool_use_id", "approval_request_id", "name", "type"),
        *("role", "signature", "thought_signature", "thoughtSignature", "encrypted_content"),
        *("data", "file_data", "image_url", "url", "file_id", "file_url", "namespace", "status"),
    )
)
"""Members that pairs, providers and media depend on."""
# A provider refuses such a block once its text no longer matches the signature.
_SIGNED: Final = frozenset(("thinking", "redacted_thinking", "reasoning", "compaction"))


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in the order in which ``edit_texts`` numbers them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from texts_in(entry)
    elif isinstance(value, Mapping) and value.get("type") not in _SIGNED:
        for name, entry in value.items():
            if name in _KEPT and isinstance(entry, str):
                continue
            # Arguments are JSON inside a text, so the texts in them are numbered one by one;
            # ``_member`` must do the same, or the numbers refer to other texts.
            inner = _parsed(entry) if name == "arguments" and isinstance(entry, str) else None
            yield from texts_in(entry if inner is None else inner)


def edit_texts(value: Any, edit: Callable[[int, str], str]) -> Any:
    """Copy a value, each text replaced by ``edit(number, text)``; call arguments stay JSON."""
    return _TextWalk(edit).value(value)


class _TextWalk:
    """One traversal of a value; numbers the texts."""

    def __init__(self, edit: Callable[[int, str], str]) -> None:
        self._edit = edit
        self._at = -1

    def value(self, value: Any) -> Any:
        """Return the value with its texts edited."""
        if isinstance(value, str):
            self._at += 1
            return self._edit(self._at, value)
        if isinstance(value, list | tuple):
            return [self.value(entry) for entry in value]
        if not isinstance(value, Mapping) or value.get("type") in _SIGNED:
            return value
        return {name: self._member(name, entry) for name, entry in value.items()}

    def _member(self, name: str, value: Any) -> Any:
        if name in _KEPT and isinstance(value, str):
            return value
        if name == "arguments" and isinstance(value, str):
            inner = _parsed(value)
            if inner is not None:
                edited = self.value(inner)
                # JSON that is written again may differ in blanks and escapes: unedited, it stays.
                return value if edited == inner else json.dumps(edited, ensure_ascii=False)
        return self.value(value)


def _parsed(text: str) -> Any:
    """Parse a call's arguments; None unless they are a JSON object or list."""
    # Models also write arguments that are no JSON; they are shortened like any other text.
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict | list):
            return found
    return None


# --- Size guard: items over the limit are rejected, or their long texts are offloaded -------------

Oversize: TypeAlias = str | Callable[[str], str]
"""``"reject"``, ``"offload"``, or a function that summarizes a long text."""
OFFLOADED: Final = "offloaded"
"""Type of the event that holds the texts."""
REFERENCE: Final = "offload:"
ITEM_BYTES_LEAST: Final = 256
_MARKER: Final = "[offloaded: {:,} characters, to be read by {}]"
_ENDS_CHARS: Final = 400
"""Characters shown of a text's beginning and end, if that is less than an eighth of the limit."""
DIGEST_BYTES: Final = 12


class SizeGuard(NamedTuple):
    """Size limit of items, and the treatment of larger ones."""

    item_bytes: int
    oversize: Oversize = "reject"

    def replaced(self, item: Any, size: int, seed: bytes) -> tuple[Any, dict[str, Any]]:
        """Replace the item's longest texts; return the item and the payload with the texts.

        Raises:
            InvalidItemError: the item is rejected, or is too large even without its texts.
        """
        if self.oversize == "reject":
            raise self._refusal(size)
        encoded = encode_json(item)[0]
        # Of an event ``item`` is only the payload, while the limit is on all of its JSON.
        around = size - len(encoded)
        # A digest and no random key: a retry under an idempotency key has to make the same items.
        key = blake2b(encoded, digest_size=DIGEST_BYTES, key=seed).hexdigest()
        lengths = [len(text) for text in texts_in(item)]
        order = sorted(range(len(lengths)), key=lambda at: (-lengths[at], at))
        # Replace as few texts as possible: double the number until the remainder fits.
        count = 1
        while True:
            chosen = set(order[:count])
            texts: list[str] = []

            def replace(at: int, text: str, chosen: set[int] = chosen) -> str:
                if at not in chosen:
                    return text
                made = self.shown(text, f"{REFERENCE}{key}:{len(texts)}")  # noqa: B023 - called below
                # Numbers count what was replaced: a preview that is not shorter replaces nothing.
                if made != text:
                    texts.append(text)  # noqa: B023 - called below
                return made

            shown = edit_texts(item, replace)
            left = len(encode_json(shown)[0]) + around
            if left <= self.item_bytes:
                return shown, {"key": key, "texts": texts}
            if count >= len(order):
                raise self._refusal(size, left)
            count *= 2

    def shown(self, text: str, reference: str) -> str:
        """Return the preview that replaces a text.

        Raises:
            InvalidItemError: the caller's function did not return a str.
        """
        marker = _MARKER.format(len(text), reference)
        if len(text) <= len(marker):
            return text
        if callable(self.oversize):
            summary = self.oversize(text)
            if not isinstance(summary, str):
                msg = f"oversize: the function gave {type(summary).__name__}, expected a str"
                raise InvalidItemError(msg)
        else:
            ends = min(_ENDS_CHARS, self.item_bytes // 8)
            summary = f"{text[:ends]}\n[…]\n{text[-ends:]}"
        shown = f"{marker}\n{summary}"
        return shown if len(shown) < len(text) else text

    def _refusal(self, size: int, left: int | None = None) -> InvalidItemError:
        rest = "" if left is None else f", and {left} without its long texts"
        other = ", or open the database with oversize='offload'" if left is None else ""
        msg = (
            f"the item is {size} bytes as JSON{rest}; item_bytes= allows {self.item_bytes}: store "
            f"the large part as a blob{other}"
        )
        return InvalidItemError(msg)


def size_guard(item_bytes: object, oversize: object) -> SizeGuard | None:
    """Return the guard for the options of ``memcore.open``; None if there is no limit.

    Raises:
        InvalidOptionError: an option is unknown, of the wrong type or out of range.
    """
    known = oversize is None or oversize in ("reject", "offload") or callable(oversize)
    if not known:
        msg = f"oversize: expected 'reject', 'offload' or a callable, got {oversize!r:.40}"
        raise InvalidOptionError(msg)
    if item_bytes is None:
        if oversize is not None:
            msg = "oversize: needs item_bytes=, the size above which an item is too large"
            raise InvalidOptionError(msg)
        return None
    limit = checked_int("item_bytes", item_bytes, least=ITEM_BYTES_LEAST)
    if limit > ITEM_BYTES_MAX:
        msg = f"item_bytes: expected at most {ITEM_BYTES_MAX}, got {limit}"
        raise InvalidOptionError(msg)
    return SizeGuard(limit, oversize or "reject")  # type: ignore[arg-type]


# --- Access counts and last access times: collected in memory, written with other commits ---------
# Reading writes nothing. Counts are written with the session's next commit and when the database is
# closed; those not yet written are lost if the process is killed. Rows, little-endian: number 0
# holds ``count u64 | last ms u64`` of the session, number 1 + n the items of seqs ``256 n`` to
# ``256 n + 255``: ``count u32 | last s u32`` each.

PAGE_SEQS: Final = 256
FEW_PAGES: Final = 4
"""Up to this many pages are written with any commit; more wait for ``PATIENCE`` commits."""
PATIENCE: Final = 64
_TOTAL: Final = Struct("<QQ")
_ENTRY: Final = Struct("<II")
_COUNT_MAX: Final = 2**32 - 1
_SPANS_MAX: Final = 4096
"""Distinct ranges tracked individually; beyond that only the session's total is counted."""

Place = tuple[int, int]


@record(frozen=True, slots=True)
class Accessed:
    """Access count and time of last access."""

    count: int = 0
    last_at: float | None = None
    """Seconds since the epoch, by the reader's clock; None: never."""


@record(frozen=True, slots=True)
class _Pending:
    """Counts not yet written."""

    count: int
    last_ms: int
    spans: dict[tuple[int, int], tuple[int, int]]
    """``(first seq, last seq)`` to (count, time of last access in ms)."""


class AccessStats:
    """Access counts of one session's handles. May be shared between threads."""

    __slots__ = (
        "__weakref__",
        "_commits",
        "_count",
        "_last_ms",
        "_lock",
        "_session",
        "_settled",
        "_spans",
        "_waiting",
        "name",
    )

    def __init__(self, name: tuple[str, str, str], waiting: set[AccessStats]) -> None:
        self.name = name
        """Application, user and session."""
        self._waiting = waiting
        """The database's set of counters with unwritten data; keeps them alive."""
        self._lock = RLock()  # a destructor may read while its own thread is in ``note``
        self._settled: _Pending | None = None
        """The counts that were subtracted last."""
        self._begin(0)

    def _begin(self, session: int) -> None:
        self._session, self._count, self._last_ms, self._commits = session, 0, 0, 0
        self._spans: dict[tuple[int, int], tuple[int, int]] = {}

    def note(self, session: int, spans: Iterable[tuple[int, int]], now: int) -> None:
        """Count one access to these ranges of seqs, at a time in milliseconds."""
        with self._lock:
            # The counts that were pending belong to rows that are deleted, so they are dropped.
            if session != self._session:  # another session of the same name
                self._begin(session)
            self._count += 1
            self._last_ms = now
            self._waiting.add(self)
            for span in spans:
                if span in self._spans or len(self._spans) < _SPANS_MAX:
                    self._spans[span] = (self._spans.get(span, (0, 0))[0] + 1, now)

    def pending(self, session: int) -> _Pending:
        """Return a session's unwritten counts."""
        with self._lock:
            if session != self._session:
                return _Pending(0, 0, {})
            return _Pending(self._count, self._last_ms, dict(self._spans))

    def write(self, txn: Txn, place: Place, *, all_pages: bool = False) -> None:
        """Write the pending counts in a transaction that changes the session anyway."""
        # Once a transaction: another change of its batch would write the same counts again, which
        # are subtracted only after the commit.
        if self in txn.local:
            return
        found = self.pending(place[1])
        if not found.count and not (all_pages and found.spans):
            return
        txn.local[self] = True
        pages = _pages(found.spans)
        with self._lock:
            # Counts a run that is aborted, too, which only makes the pages due a little earlier.
            self._commits += 1
            few = all_pages or len(pages) <= FEW_PAGES or self._commits >= PATIENCE
        _add_total(txn, place, found)
        if few:
            for number, entries in pages.items():
                _add_page(txn, place, number, entries)
        written = found if few else replace(found, spans={})
        # Not subtracted before the commit: an aborted transaction runs again and must find them.
        txn.on_commit(lambda: self._settle(place[1], written))

    def _settle(self, session: int, written: _Pending) -> None:
        with self._lock:
            # A session of the same name began anew since, and with it the counts. Or an interrupt
            # ended this call, and it runs again.
            if session != self._session or self._settled is written:
                return
            spans = dict(self._spans)
            for span, (count, _) in written.spans.items():
                left = spans[span][0] - count
                if left:
                    spans[span] = (left, spans[span][1])
                else:
                    del spans[span]
            count = self._count - written.count
            commits = 0 if written.spans else self._commits
            # Together, as no interrupt comes between assignments: all of it is subtracted, once.
            self._count, self._spans, self._commits, self._settled = count, spans, commits, written
            if not count and not spans:
                self._waiting.discard(self)


def spans_of(seqs: Iterable[int]) -> list[tuple[int, int]]:
    """Group ascending seqs into ranges of consecutive ones."""
    found: list[tuple[int, int]] = []
    for seq in seqs:
        if found and found[-1][1] == seq - 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return found


def _pages(spans: dict[tuple[int, int], tuple[int, int]]) -> dict[int, dict[int, tuple[int, int]]]:
    """Expand ranges to (count, last access) by page and index in the page."""
    found: dict[int, dict[int, tuple[int, int]]] = {}
    for (lo, hi), (count, last_ms) in spans.items():
        for seq in range(lo, hi + 1):
            page = found.setdefault(seq // PAGE_SEQS, {})
            before = page.get(seq % PAGE_SEQS, (0, 0))
            page[seq % PAGE_SEQS] = (before[0] + count, max(before[1], last_ms))
    return found


def _key(place: Place, number: int) -> bytes:
    return keys.session_row(*place, Row.USES, number)


def _body(txn: ReadTxn, key: bytes, size: int) -> bytes:
    """Return the body of a row, zeros if it does not exist."""
    value = txn.get(key)
    if value is None:
        return bytes(size)
    body = open_value(key, value)[1]
    if len(body) != size:
        raise _malformed(key)
    return body


def _add_total(txn: Txn, place: Place, found: _Pending) -> None:
    key = _key(place, 0)
    count, last_ms = _TOTAL.unpack(_sound(txn, key, _TOTAL.size))
    # Processes with differing clocks write this row: the time of the last access never goes back.
    body = _TOTAL.pack(count + found.count, max(last_ms, found.last_ms))
    txn.put(key, seal_value(key, body))


def _add_page(txn: Txn, place: Place, number: int, entries: dict[int, tuple[int, int]]) -> None:
    key = _key(place, number + 1)
    body = bytearray(_sound(txn, key, PAGE_SEQS * _ENTRY.size))
    for at, (count, last_ms) in entries.items():
        before, last_s = _ENTRY.unpack_from(body, at * _ENTRY.size)
        last_s = min(max(last_s, last_ms // 1000), _COUNT_MAX)
        _ENTRY.pack_into(body, at * _ENTRY.size, min(before + count, _COUNT_MAX), last_s)
    txn.put(key, seal_value(key, bytes(body)))


def move_uses(txn: Txn, scope: int, old: int, new: int, *, moved: Mapping[int, int]) -> None:
    """Move a session's counts to its replacement; ``moved`` maps old seqs to new ones."""
    start = keys.session_rows(scope, old, Row.USES)
    pages: dict[int, dict[int, tuple[int, int]]] = {}
    for key, value in list(txn.scan(start, keys.after(start))):
        number, body = keys.number_of(key), _sound_body(key, value)
        if body is None:
            continue
        if not number:
            row = _key((scope, new), 0)
            txn.put(row, seal_value(row, body))
            continue
        for at, entry in enumerate(_ENTRY.iter_unpack(body)):
            seq = moved.get((number - 1) * PAGE_SEQS + at)
            if seq is not None and entry[0]:
                pages.setdefault(seq // PAGE_SEQS, {})[seq % PAGE_SEQS] = entry
    for number, entries in pages.items():
        page = bytearray(PAGE_SEQS * _ENTRY.size)
        for at, entry in entries.items():
            _ENTRY.pack_into(page, at * _ENTRY.size, *entry)
        row = _key((scope, new), number + 1)
        txn.put(row, seal_value(row, bytes(page)))


def _sound_body(key: bytes, value: bytes) -> bytes | None:
    try:
        body = open_value(key, value)[1]
    # Damaged counts stay behind with the old session: they are no reason to refuse a change.
    except CorruptValueError:
        return None
    return body if is_uses_row(key, body) else None


def _sound(txn: ReadTxn, key: bytes, size: int) -> bytes:
    """As ``_body``, but zeros for a damaged row: counts must never make a change fail."""
    try:
        return _body(txn, key, size)
    except CorruptValueError:
        return bytes(size)


def read_uses(txn: ReadTxn, place: Place, seq: int | None, uses: AccessStats | None) -> Accessed:
    """Read the access counts of a session or of one item, including those not yet written.

    Raises:
        CorruptValueError: the row is damaged.
    """
    found = _Pending(0, 0, {}) if uses is None else uses.pending(place[1])
    if seq is None:
        count, last_ms = _TOTAL.unpack(_body(txn, _key(place, 0), _TOTAL.size))
        count, last_ms = count + found.count, max(last_ms, found.last_ms)
    elif seq >= SEQ_END:
        return Accessed()  # no item has it
    else:
        body = _body(txn, _key(place, 1 + seq // PAGE_SEQS), PAGE_SEQS * _ENTRY.size)
        count, last_s = _ENTRY.unpack_from(body, seq % PAGE_SEQS * _ENTRY.size)
        last_ms = last_s * 1000
        for (lo, hi), (times, when) in found.spans.items():
            if lo <= seq <= hi:
                count, last_ms = count + times, max(last_ms, when)
    return Accessed(count, last_ms / 1000) if count else Accessed()


def is_uses_row(key: bytes, body: bytes) -> bool:
    """Return True if the body of an access-count row has the size that its key requires."""
    size = PAGE_SEQS * _ENTRY.size if keys.number_of(key) else _TOTAL.size
    return len(body) == size


def check_uses(txn: ReadTxn, scope: int, session: int) -> Iterator[str]:
    """Yield problems found in a session's access counts."""
    start = keys.session_rows(scope, session, Row.USES)
    for key, value in txn.scan(start, keys.after(start)):
        try:
            if not is_uses_row(key, open_value(key, value)[1]):
                raise _malformed(key)
        except CorruptValueError as exc:
            yield str(exc)


def _malformed(key: bytes) -> CorruptValueError:
    msg = f"the access counts under key {key.hex()} are malformed; run 'memcore check'"
    return CorruptValueError(msg, key=key)


# --- Engine: state shared by all handles of an open database --------------------------------------

T = TypeVar("T")


@record(slots=True)
class Engine:
    """State shared by all handles of an open database."""

    __reduce__ = refuse_copies
    store: Store
    counter: TokenCounter
    """Counter of new sessions."""
    policy: str
    """Pair policy of new sessions."""
    recount: bool = False
    """True if session handles by default recount what another counter counted."""
    compaction: CompactionPolicy | None = None
    """Compaction policy of sessions, unless overridden by their handle or a call."""
    embed: Embed | None = None
    """Embedding function with which semantic de-duplication compares texts."""
    embedder: Embedder | None = None
    """Model that turns texts into vectors for searches."""
    audit: Audit | None = None
    """The audit's key and anchoring."""
    access: Access | None = None
    """Authorizer and actor, checked before a handle is opened; None: no authorization."""
    write_filter: WriteFilter | None = None
    """Filter applied to everything before it is stored; None: no screening or redaction."""
    size_guard: SizeGuard | None = None
    """Limit on the size of items; None: only the file's own limit."""
    access_counts: bool = False
    """True if accesses are counted by default; a session's handle may override it."""
    uses: WeakValueDictionary[tuple[str, str, str], AccessStats] = field(
        default_factory=WeakValueDictionary
    )
    """Access counts by application, user and session."""
    unwritten: set[AccessStats] = field(default_factory=set)
    """The members of ``uses`` with counts to write."""
    memory_uses: dict[tuple[int, int], int] = field(default_factory=dict)
    """Times that memories were given to models, by scope and id, until they are written."""
    now_us: Callable[[], int] = clock_us
    counters: dict[str, TokenCounter] = field(default_factory=dict)
    _graphs: list[Cache] = field(init=False, default_factory=list)
    _indexes: list[IndexCache] = field(init=False, default_factory=list)
    seed: bytes = field(init=False)
    """The store's random 16 bytes; keys the hashes of call ids and requests."""
    logs: CachedSessions = field(init=False)
    drafts: SessionTxns = field(init=False)
    encoder: PlainEncoder = field(init=False)

    def __post_init__(self) -> None:
        # Times of expiry, leases and requests are compared across machines: one clock for all.
        if self.store.is_server:
            self.now_us = self.store.now_us
        self.counters[self.counter.id] = self.counter
        self.logs = CachedSessions(
            partial(_counter_named, self.counters)
        )  # not our bound method: that would create a reference cycle
        self.seed = self.store.seed
        self.drafts = SessionTxns(self.logs, self.seed)
        self.encoder = PlainEncoder(
            Prepared, self.seed, ORJSON_OPTIONS, checked_tokens, ITEM_INLINE_BYTES_MAX
        )

    def filter_writes(self, write_filter: WriteFilter | None) -> None:
        """Set the write filter; an item with nothing to redact need not pass it, if it is simple.

        A simple filter is a redaction whose findings all come from the compiled scanner.
        """
        self.write_filter = write_filter
        scanned = None if write_filter is None else write_filter.scanned
        if scanned is not None:
            self.encoder.screen(scanned, pack_envelope(None, None, Envelope(redacted=False)))

    @property
    def graphs(self) -> Cache:
        """Cache of graph checkpoint values."""
        if not self._graphs:
            # Two threads may both create one; the first wins, and is the one an erasure clears. No
            # lock: one held during a fork would never be released in the child.
            self._graphs.append(graph.Cache())
        return self._graphs[0]

    @property
    def indexes(self) -> IndexCache:
        """Tables of search indexes in memory; made on first use."""
        if not self._indexes:
            # As above, two threads may both append; ``forget_index`` clears each of them.
            self._indexes.append(search.IndexCache(partial(getattr, self.store, "opened")))
        return self._indexes[0]

    def forget_index(self, scope: int) -> None:
        """Drop what is in memory of a scope's search index."""
        for cache in self._indexes:
            cache.forget(scope)

    @property
    def redaction(self) -> RedactsPlaces | None:
        """Redaction of stored content; None if there is none."""
        return None if self.write_filter is None else self.write_filter.redaction

    def counter_named(self, name: str) -> TokenCounter:
        """Return the counter with that id: one given by the caller, else a built-in one."""
        return _counter_named(self.counters, name)

    def read_locked(self, log: CachedSession, fn: Callable[[CachedSession, ReadTxn], T]) -> T:
        """Run ``fn(log, txn)`` on a snapshot, under the log's lock.

        Lock order: the commit leader takes the log's lock inside its transaction, so a holder of
        it must not wait to become leader, as a read does when another process has grown the map.
        A destructor or signal handler may read while its own thread is working on the log: it gets
        a log of its own.

        Raises:
            StoreLockedError: such a nested read found that another process has grown the file.
        """
        if log.lock._is_owned():  # noqa: SLF001 - as Condition checks
            # The log's lock is held further up on this thread, so this read must not wait either; a
            # twin keeps it from changing a log that is in the middle of an update.
            try:
                return self.store.read(partial(fn, log.twin()), patient=False)
            except MapMovedError as error:
                msg = "another process grew the file while this thread was busy with it; read again"
                raise StoreLockedError(msg) from error
        while True:
            with suppress(MapMovedError), log.lock:
                return self.store.read(partial(fn, log), patient=False)
            # Waits for the lead without the lock, which the leader takes inside its transaction.
            self.store.read(lambda _: None)

    def write_uses(self) -> None:
        """Write the access counts still waiting for a commit of their session."""
        waiting = list(self.unwritten)

        def write(txn: Txn) -> None:
            for uses in waiting:
                app, user, name = uses.name
                # Looked up by name: the session may be gone, and one of the same name has another
                # number, for which nothing is pending.
                scope = names.scope_of(txn, app, user)
                session = None if scope is None else names.session_of(txn, scope, name)
                if scope is not None and session is not None:
                    uses.write(txn, (scope, session), all_pages=True)

        if waiting:
            self.store.transact(write)

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        return self.now_us() // 1000


def _counter_named(counters: dict[str, TokenCounter], name: str) -> TokenCounter:
    """Return the known counter with that id, or a built-in one, which becomes known."""
    found = counters.get(name)
    if found is None:
        try:
            found = counters[name] = get_counter(name)
        except InvalidOptionError as exc:
            msg = (
                f"the session is counted by {name!r}, which is none of memcore's counters: "
                "pass it as counter= when opening the database or the session, or open the "
                "session with another one and recount=True"
            )
            raise CounterUnavailableError(msg) from exc
    return found


# --- Lease checks: made inside the transaction, before its first write ----------------------------


@record(frozen=True, slots=True)
class LeaseToken:
    """A lease that a handle claims; valid as long as the stored row agrees."""

    owner: str
    epoch: int
    process: int = field(default_factory=os.getpid)
    """Id of the process that took it: a forked child does not inherit the lease."""

    def is_of(self, row: LeaseRow | None) -> bool:
        """Return True if a stored row is this lease, expired or not."""
        return row is not None and (row.owner, row.epoch) == (self.owner, self.epoch)


def check_lease(
    txn: Txn, draft: SessionTxn, tenure: LeaseToken | None, *, now_ms: int, name: str
) -> None:
    """Admit or reject a change to a draft's session.

    Raises:
        LeaseHeldError: another owner holds the session.
        FencedError: the handle's own lease was taken over or released.
        CorruptValueError: the lease's row is damaged.
    """
    draft.is_vacated = check_lease_row(txn, draft.log.place, tenure, now_ms=now_ms, name=name)


def check_lease_row(
    txn: Txn, place: tuple[int, int], tenure: LeaseToken | None, *, now_ms: int, name: str
) -> bool:
    """As ``check_lease``, for a change made without a draft.

    Returns:
        True if nobody holds the session, so that its head's leased flag can be cleared.
    """
    row = read_lease(txn, *place)
    # The child of a fork has a copy of the token; if it counted, two processes would write as one
    # owner. It is treated as anybody else.
    if tenure is not None and tenure.process == os.getpid():
        if tenure.is_of(row):
            return False
        raise fenced(tenure, row, name)
    if row is None:
        return True
    if row.is_held(now_ms):
        raise held(row, now_ms, name)
    if row.owner:
        # Expired: vacate it, so that its owner cannot continue as if nobody had written since; the
        # next lease gets a new epoch.
        write_lease(txn, *place, row.vacant())
    return True


def held(row: LeaseRow, now_ms: int, name: str) -> LeaseHeldError:
    """Return the error for a change while another owner holds the session."""
    msg = (
        f"session {name[:80]!r} is leased to {row.owner[:80]!r} for another "
        f"{(row.expires_ms - now_ms) / 1000:.1f} seconds: take it with session.lease() after that"
    )
    return LeaseHeldError(msg, owner=row.owner, epoch=row.epoch, expires_at=row.expires_ms / 1000)


def fenced(tenure: LeaseToken, row: LeaseRow | None, name: str) -> FencedError:
    """Return the error for a change under a lease that is no longer valid."""
    current = 0 if row is None else row.epoch
    said = f": the epoch is {current} now" if current > tenure.epoch else ""
    msg = (
        f"the lease of {tenure.owner[:80]!r} on session {name[:80]!r} (epoch {tenure.epoch}) is "
        f"over{said}; nothing was stored. Read what was written since, then take a new lease with "
        "session.lease()"
    )
    return FencedError(msg, epoch=tenure.epoch, current=current)


# --- Session references: a handle's options, and its session's location ---------------------------


class SessionOptions(NamedTuple):
    """Options of a session handle; None defers to the session or the database."""

    policy: str | None
    counter: TokenCounter | None
    orphans: str
    compaction: CompactionPolicy | None = None
    recount: bool = False
    """True if the handle's first use recounts a session that another counter counted."""
    state: StateSchema | None = None
    """The fields of its state; None: any."""
    access_counts: bool | None = None
    """True if reads through the handle are counted; None: the database's default."""
    shape: str = "keep"
    """``raise``: items that are messages of no known format are refused."""
    recover: bool = False
    """True if the handle's first use checks for damage and recovers the session."""


class SentContext(NamedTuple):
    """A context that a handle built, with what a usage report on it needs."""

    session: int
    """The session's number; its name may belong to another session when the report comes."""
    counter: str
    policy: str
    counted_tokens: int
    seq: int
    cut_seq: int
    view: tuple[int, int]


_SENT_MAX: Final = 16
"""Recent contexts per handle that a report may refer to, which limits overlapping requests."""


class SessionRef(RefFields):
    """A session's name, and its numbers once they are known to be committed."""

    __slots__ = (
        "_process",
        "_scope_filter",
        "_touching",
        "access",
        "app",
        "name",
        "scope",
        "sent",
        "temporary",
        "user",
    )
    __reduce__ = refuse_copies
    engine: Engine
    options: SessionOptions
    log: CachedSession | None
    due: Callable[[], bool] | None
    """Work to run on the handle's first use; returns True once it need not run again."""
    lease: LeaseToken | None
    """Token of the lease that the handle holds; see ``Session.lease``."""
    uses: AccessStats | None
    """Counter of accesses; None: they are not counted."""

    def __init__(
        self, engine: Engine, app: str, user: str, name: str, options: SessionOptions
    ) -> None:
        self.engine = engine
        self.app = app
        self.user = user
        self.name = name
        self.ask(options)
        self.scope: int | None = None
        self.temporary: dict[str, Any] = {}
        """State fields private to this handle."""
        self.access: Access | None = None
        """Authorizer and actor, checked before a related handle is opened; None: nobody."""
        self.sent: deque[SentContext] = deque(maxlen=_SENT_MAX)
        """The most recent contexts shown; see ``Session.report_usage``."""
        self._process, self._touching = os.getpid(), RLock()
        self._scope_filter: ScopeFilter | None = None
        counts = engine.access_counts if options.access_counts is None else options.access_counts
        if counts and not engine.store.read_only:
            # One object for all handles of a name: each reads what the others have yet to write.
            key = (app, user, name)
            self.uses = engine.uses.setdefault(key, AccessStats(key, engine.unwritten))

    def ask(self, options: SessionOptions) -> None:
        """Replace the handle's options."""
        self.options = options
        # Most handles request nothing that a head could contradict; they skip the check.
        self.asks = options.policy is not None or options.counter is not None

    @property
    def scope_filter(self) -> ScopeFilter | None:
        """The write filter for the session's content; None if there is none."""
        write_filter = self.engine.write_filter
        if write_filter is None:
            return None
        if self._scope_filter is None:
            self._scope_filter = write_filter.at(self.app, self.user, self.name)
        return self._scope_filter

    def touch(self) -> None:
        """Run the work that is due; concurrent callers wait, and retry it if it failed."""
        if self.due is not None:
            if self._process != os.getpid():  # a lock's holder does not exist in a forked child
                self._process, self._touching = os.getpid(), RLock()
            with self._touching:
                # Again, under the lock: of threads that come at once only the first does it.
                if self.due is not None and self.due():
                    self.due = None

    def peek(self) -> Head | None:
        """Return the current head, None if there is no session. Needs no counter."""

        def look(txn: ReadTxn) -> Head | None:
            found = self.find(txn)
            value = None if found is None else txn.get(head_key(*found))
            if found is None or value is None:
                # A name without a head is damage, which must not look like an absent session.
                self.need_gone(txn)
                return None
            return Head.unpack(head_key(*found), value)

        return self.engine.store.read(look)

    def need(self, action: str, name: str | None = None) -> None:
        """Require the authorizer's permission, if there is one, for this or the named session.

        Raises:
            AccessDeniedError: permission was refused.
        """
        if self.access is not None:
            whose = self.name if name is None else name
            self.access.need(action, app=self.app, user=self.user, name=whose)

    def beside(self, name: str, *, policy: str | None) -> SessionRef:
        """Make the reference of a fork, which inherits its counter with the history.

        Raises:
            AccessDeniedError: the authorizer refused to open it.
        """
        self.need("session", name)
        wanted = None if policy is None else policy_name(policy)
        options = self.options._replace(policy=wanted, counter=None, recount=False)
        ref = SessionRef(self.engine, self.app, self.user, name, options)
        ref.access = self.access
        return ref

    def find(self, txn: ReadTxn) -> tuple[int, int] | None:
        """Return ``(scope, session)`` as seen by the transaction, without caching it."""
        scope = self._scope_in(txn)
        if scope is None:
            return None
        session = names.session_of(txn, scope, self.name)
        return None if session is None else (scope, session)

    def _scope_in(self, txn: ReadTxn) -> int | None:
        """Return the scope's number; the cached one may belong to a user erased since."""
        scope = self.scope
        if scope is None or is_erased(txn, scope):
            return names.scope_of(txn, self.app, self.user)
        return scope

    def find_scope(self, txn: ReadTxn, prefix: str) -> int | None:
        """Return the scope that holds the fields of a prefix, None if it does not exist yet."""
        if prefix == state.APP:
            return names.app_scope_of(txn, self.app)
        return self._scope_in(txn)

    def ensure_scope(self, txn: Txn, prefix: str) -> int:
        """Return the scope that holds the fields of a prefix, creating it if need be."""
        if prefix == state.APP:
            return names.ensure_app_scope(txn, self.app)
        return names.ensure_scope(txn, self.app, self.user)

    def resolve(self) -> CachedSession | None:
        """Return the session's log, None if there is no such session. Caches committed numbers."""
        if self.log is None:
            found = self.engine.store.read(self._look)
            if found is not None:
                self.settle(*found)
        return self.log

    def _look(self, txn: ReadTxn) -> tuple[int, int] | None:
        if txn.is_remote:
            names.prefetch_session(txn, self.app, self.user, self.name)
        return self.find(txn)

    def settle(self, scope: int, session: int) -> None:
        """Cache committed numbers, which are never reused."""
        self.scope = scope
        self.log = self.engine.logs.get(scope, session)

    def forget(self) -> None:
        """Drop the cached log: the session is gone, and its name may belong to a new one."""
        self.log = None

    def draft(self, txn: Txn, *, create: bool, guarded: bool = True) -> SessionTxn | None:
        """Return the session's draft in a write transaction; ``create`` makes a missing session.

        ``RefFields._draft`` calls this only if the session is not known yet, if its head may
        contradict the handle's options, if there is a lease, or if ``always_drafts`` is set.

        ``guarded``: enforce leases.

        Raises:
            ReadOnlyError, PolicyMismatchError
            LeaseHeldError, FencedError: this handle may not change the session.
        """
        log, lease = self.log, self.lease if guarded else None
        draft = None if log is None else self.engine.drafts.of(txn, log)
        if draft is None:
            draft = self._open(txn)
            if draft is None:
                # The leased session was deleted. Its owner must not begin another one under the
                # same name as if it still had the lease.
                if lease is not None and create:
                    raise fenced(lease, None, self.name)
                return self._create(txn) if create else None
        elif self.asks:
            self.check_head(draft.head)
        if lease is not None or (guarded and draft.head.flags & FLAG_LEASED):
            now_ms = self.engine.now_ms()
            check_lease(txn, draft, lease, now_ms=now_ms, name=self.name)
        return draft

    def _open(self, txn: Txn) -> SessionTxn | None:
        """Return the draft of the session with this name, None if there is none."""
        found = self.find(txn)
        if found is None:
            return None
        draft = self.engine.drafts.open(txn, *found)
        if draft is None:
            raise self.headless(*found)
        self.check_head(draft.head)
        # Not cached before the commit: an earlier closure of this transaction may have created the
        # session, and after an abort its number may go to another one.
        txn.on_commit(lambda: self.settle(*found))
        return draft

    def admit(self, txn: Txn, place: tuple[int, int]) -> None:
        """Admit a change to the session that is made without a draft.

        Raises:
            LeaseHeldError, FencedError: this handle may not change the session.
        """
        check_lease_row(txn, place, self.lease, now_ms=self.engine.now_ms(), name=self.name)

    def need_gone(self, txn: ReadTxn) -> None:
        """Verify that a session without a head really does not exist.

        Raises:
            CorruptValueError: its name exists, so its head is missing.
        """
        found = self.find(txn)
        if found is not None and txn.get(head_key(*found)) is None:
            raise self.headless(*found)

    def headless(self, scope: int, session: int) -> CorruptValueError:
        """Return the error for a session that has a name but no head."""
        msg = f"the head of session {self.name[:40]!r} is missing; run 'memcore check'"
        return CorruptValueError(msg, key=head_key(scope, session))

    def _create(self, txn: Txn) -> SessionTxn:
        # By name, not by ``self.scope``: that may be the number of a user who was erased since.
        scope = names.ensure_scope(txn, self.app, self.user)
        session = names.new_session(txn, scope, self.name)
        counter = self.options.counter or self.engine.counter
        policy = self.options.policy or self.engine.policy
        head = Head(policy=policy, counter=counter.id, now_ms=self.engine.now_ms())
        draft = self.engine.drafts.create(txn, scope, session, head)
        # After an abort the number may go to another session, so nobody keeps it before the commit.
        txn.on_commit(lambda: self.settle(scope, session))
        return draft

    def check_head(self, head: Head) -> None:
        """Compare the handle's policy and counter with those of the session.

        Raises:
            PolicyMismatchError: they differ.
        """
        wanted, counter = self.options.policy, self.options.counter
        if wanted is not None and wanted != head.policy:
            msg = (
                f"session {self.name!r} has policy {head.policy!r}, not {wanted!r}: open it "
                "without policy=, or change it with set_policy()"
            )
            raise PolicyMismatchError(msg)
        # While a recount is due, the other counter is what the session is about to get.
        if counter is not None and counter.id != head.counter and self.due is None:
            msg = (
                f"session {self.name!r} is counted by {head.counter!r}, not {counter.id!r}: open "
                "it without counter=, or with recount=True to count it anew (see also "
                "session.recount() and 'memcore recount')"
            )
            raise PolicyMismatchError(msg)

    def allow_policy(self, policy: str) -> None:
        """Update the handle's requested policy, if it requested one."""
        if self.options.policy is not None:
            self.ask(self.options._replace(policy=policy))

    def allow_counter(self, counter: TokenCounter) -> None:
        """Update the handle's requested counter, if it requested one; nothing is due any more."""
        # A recount that is still due would put the counter in force that was asked for before.
        self.due = None
        if self.options.counter is not None:
            self.ask(self.options._replace(counter=counter))

    def need_writable(self) -> None:
        """Reject writes early, before anything is encoded; then run the work that is due.

        Raises:
            ReadOnlyError: the database was opened read-only.
        """
        self.refuse_read_only()
        self.touch()

    def refuse_read_only(self) -> None:
        """Reject writes to a read-only database.

        Raises:
            ReadOnlyError: the database was opened read-only.
        """
        if self.engine.store.read_only:
            msg = f"session {self.name!r}: the database is open read-only; open it for writing"
            raise ReadOnlyError(msg)
