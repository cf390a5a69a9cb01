"""How often a session and its items were read, and when last: counted in memory, written along.

Reading writes nothing. What was counted is written with the next commit of the session, and when
the database is closed; a killed process loses what was not. Rows, little-endian: number 0 holds
``count u64 | last ms u64`` of the session, number 1 + n the items of seqs ``256 n`` to ``256 n +
255``: ``count u32 | last s u32`` each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from struct import Struct
from threading import Lock
from typing import Final

from memcore import keys
from memcore.codec import open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.keys import Row
from memcore.store.base import ReadTxn, Txn

__all__ = ["Accessed", "Uses", "check_uses", "is_uses_row", "move_uses", "read_uses", "spans_of"]

PAGE_SEQS: Final = 256
FEW_PAGES: Final = 4
"""So many pages are written along with any commit; more wait for ``PATIENCE`` commits."""
PATIENCE: Final = 64
_TOTAL: Final = Struct("<QQ")
_ENTRY: Final = Struct("<II")
_COUNT_MAX: Final = 2**32 - 1
_SPANS_MAX: Final = 4096
"""Different ranges that are remembered apart; beyond that only the session is counted."""

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Accessed:
    """How often something was read, and when last."""

    count: int = 0
    last_at: float | None = None
    """Seconds since the epoch by the reader's clock; None: never."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """What was counted and is not written yet."""

    count: int
    last_ms: int
    spans: dict[tuple[int, int], tuple[int, int]]
    """``(first seq, last seq)`` to how often and when last (ms)."""


class Uses:
    """What the handles of one session counted; threads may share it."""

    __slots__ = (
        "__weakref__",
        "_commits",
        "_count",
        "_last_ms",
        "_lock",
        "_session",
        "_spans",
        "_waiting",
        "name",
    )

    def __init__(self, name: tuple[str, str, str], waiting: set[Uses]) -> None:
        self.name = name
        """Application, user and session."""
        self._waiting = waiting
        """Those of the database with something to write; the others go with their handles."""
        self._lock = Lock()
        self._begin(0)

    def _begin(self, session: int) -> None:
        self._session, self._count, self._last_ms, self._commits = session, 0, 0, 0
        self._spans: dict[tuple[int, int], tuple[int, int]] = {}

    def note(self, session: int, spans: Iterable[tuple[int, int]], now: int) -> None:
        """Count one reading of the items of these ranges of seqs, at a time in milliseconds."""
        with self._lock:
            if session != self._session:  # another session of the same name
                self._begin(session)
            self._count += 1
            self._last_ms = now
            self._waiting.add(self)
            for span in spans:
                if span in self._spans or len(self._spans) < _SPANS_MAX:
                    self._spans[span] = (self._spans.get(span, (0, 0))[0] + 1, now)

    def pending(self, session: int) -> _Pending:
        """What waits for a session."""
        with self._lock:
            if session != self._session:
                return _Pending(0, 0, {})
            return _Pending(self._count, self._last_ms, dict(self._spans))

    def write(self, txn: Txn, place: Place, *, all_pages: bool = False) -> None:
        """Write what waits in a transaction that changes the session anyway."""
        found = self.pending(place[1])
        if not found.count and not (all_pages and found.spans):
            return
        pages = _pages(found.spans)
        with self._lock:
            self._commits += 1
            few = all_pages or len(pages) <= FEW_PAGES or self._commits >= PATIENCE
        _add_total(txn, place, found)
        if few:
            for number, entries in pages.items():
                _add_page(txn, place, number, entries)
        written = found if few else replace(found, spans={})
        txn.on_commit(lambda: self._settle(place[1], written))

    def _settle(self, session: int, written: _Pending) -> None:
        with self._lock:
            if session != self._session:
                return
            self._count -= written.count
            if written.spans:
                self._commits = 0
            for span, (count, _) in written.spans.items():
                left = self._spans[span][0] - count
                if left:
                    self._spans[span] = (left, self._spans[span][1])
                else:
                    del self._spans[span]
            if not self._count and not self._spans:
                self._waiting.discard(self)


def spans_of(seqs: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending seqs as ranges of consecutive ones."""
    found: list[tuple[int, int]] = []
    for seq in seqs:
        if found and found[-1][1] == seq - 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return found


def _pages(spans: dict[tuple[int, int], tuple[int, int]]) -> dict[int, dict[int, tuple[int, int]]]:
    """By page and place in it how often, and when last."""
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
    """The body of a row, zeros if there is none; counts that are damaged begin anew."""
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
    """Give what was counted of a session to the one in its place; ``moved``: the seqs of then."""
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
    except CorruptValueError:
        return None
    return body if is_uses_row(key, body) else None


def _sound(txn: ReadTxn, key: bytes, size: int) -> bytes:
    """As ``_body``; a damaged row is written anew: counts must not keep anybody from a change."""
    try:
        return _body(txn, key, size)
    except CorruptValueError:
        return bytes(size)


def read_uses(txn: ReadTxn, place: Place, seq: int | None, uses: Uses | None) -> Accessed:
    """How often a session (or one item of it) was read, what waits included.

    Raises:
        CorruptValueError: the row is damaged.
    """
    found = _Pending(0, 0, {}) if uses is None else uses.pending(place[1])
    if seq is None:
        count, last_ms = _TOTAL.unpack(_body(txn, _key(place, 0), _TOTAL.size))
        count, last_ms = count + found.count, max(last_ms, found.last_ms)
    else:
        body = _body(txn, _key(place, 1 + seq // PAGE_SEQS), PAGE_SEQS * _ENTRY.size)
        count, last_s = _ENTRY.unpack_from(body, seq % PAGE_SEQS * _ENTRY.size)
        last_ms = last_s * 1000
        for (lo, hi), (times, when) in found.spans.items():
            if lo <= seq <= hi:
                count, last_ms = count + times, max(last_ms, when)
    return Accessed(count, last_ms / 1000) if count else Accessed()


def is_uses_row(key: bytes, body: bytes) -> bool:
    """Whether a body makes sense under the key of such a row."""
    size = PAGE_SEQS * _ENTRY.size if keys.number_of(key) else _TOTAL.size
    return len(body) == size


def check_uses(txn: ReadTxn, scope: int, session: int) -> Iterator[str]:
    """What is wrong with the rows of a session, in words."""
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
