"""Verify the chains of a file, one read transaction per chain, and report differences."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

from memcore.audit.anchors import Anchored, matches
from memcore.audit.start import chains, record_event
from memcore.codec import keys
from memcore.codec.audit_entry import (
    FIRST_MAC,
    AuditEntry,
    Chainer,
    ChainPage,
    Op,
    digest_of,
    head_digest_of,
    unpack_entry,
    unpack_page,
    unpack_put,
    unpack_range,
    unpack_tip,
)
from memcore.codec.keys import Kind, Row, u64
from memcore.codec.table import ROWS
from memcore.codec.values import HEADER_BYTES, is_proven, seal_value
from memcore.errors import AuditError
from memcore.records import record
from memcore.rows.lifecycle import is_erased
from memcore.store import Store
from memcore.store.audit_log import (
    BEGUN,
    DATABASE,
    DATABASE_KINDS,
    HEAD,
    NAME_KINDS,
    OF_SCOPE,
    OF_SESSION,
    SCOPE_KINDS,
    SESSION_ROWS,
    Place,
    chain_of,
    read_tip,
    told_digest,
    told_row,
)
from memcore.store.interface import ReadTxn, Txn
from memcore.store.transaction import is_audited, stored, stored_rows

__all__ = [
    "AuditFinding",
    "AuditReport",
    "AuditedEntry",
    "ChainWalk",
    "Comparison",
    "Latest",
    "Suspicion",
    "Verification",
    "Why",
    "Word",
    "cut_chain",
    "cut_chains",
    "entries",
    "need_audited",
    "noted_rows",
]


# --- Rows according to a chain: the latest record of each, in bounded memory ----------------------
# The latest entry about a row may be anywhere after the first, so a chain with more rows than fit
# is read several times, each time for the next rows in key order.

ROWS_MAX: Final = 200_000

Word = tuple[int, bytes | None]
"""Number of the recording entry, and the digest of the row after it; None: it is deleted."""


class Latest:
    """Latest records of the rows from one key on; ``until`` is where the next part begins."""

    def __init__(self, *, is_database: bool, after: bytes = b"", limit: int = ROWS_MAX) -> None:
        self._chain = OF_SCOPE if is_database else OF_SESSION
        self._limit = limit
        self.after = after
        self.until: bytes | None = None
        self.rows: dict[bytes, Word] = {}
        self._spans: dict[tuple[bytes, bytes], int] = {}

    def take(self, number: int, entry: AuditEntry) -> None:
        """Process the next entry.

        Raises:
            ValueError: it cannot be read.
        """
        op, said = entry.op, entry.said
        if op is Op.PUT:
            rest, digest = unpack_put(said)
            self._tell(rest, number, digest)
        elif op is Op.DELETE:
            self._tell(said, number, None)
        elif op is Op.RANGE:
            self._span(unpack_range(said), number)
        elif op in (Op.BEGIN, Op.END):
            named = self._chain + u64(unpack_tip(said)[0])
            self._tell(named, number, BEGUN if op is Op.BEGIN else None)
        elif op in (Op.COVER, Op.CUT):
            page = unpack_page(said)
            for span in page.spans:
                self._span(span, number)
            for rest, digest_or_none in page.rows:
                self._tell(rest, number, digest_or_none)

    def _tell(self, rest: bytes, number: int, digest: bytes | None) -> None:
        if rest < self.after or (self.until is not None and rest >= self.until):
            return
        self.rows[rest] = number, digest
        if len(self.rows) > self._limit:
            order = sorted(self.rows)
            self.until = order[self._limit // 2]
            for later in order[self._limit // 2 :]:
                del self.rows[later]

    @property
    def spans(self) -> list[tuple[bytes, bytes]]:
        """Ranges of keys that were deleted."""
        return list(self._spans)

    def _span(self, span: tuple[bytes, bytes], number: int) -> None:
        start, stop = max(span[0], self.after), span[1]
        if start >= stop or (self.until is not None and start >= self.until):
            return
        self._spans[span] = number

    def settle(self) -> None:
        """Apply the deletions of ranges to the rows that were written before them."""
        spans = sorted((start, -number, stop) for (start, stop), number in self._spans.items())
        active: list[tuple[int, bytes]] = []
        at = 0
        for rest in sorted(self.rows) if spans else ():
            while at < len(spans) and spans[at][0] <= rest:
                heapq.heappush(active, (spans[at][1], spans[at][2]))
                at += 1
            while active and active[0][1] <= rest:
                heapq.heappop(active)
            if active and -active[0][0] > self.rows[rest][0]:  # the newest range that holds it
                self.rows[rest] = -active[0][0], None


# --- Findings of an audit's verification ----------------------------------------------------------


class Why(StrEnum):
    """Kind of tampering with an entry, or with the row that it records."""

    MODIFIED = "modified"
    DELETED = "deleted"
    INSERTED = "inserted"
    REORDERED = "reordered"
    SWAPPED = "swapped"
    """The rows of two entries hold each other's content."""
    RESTORED = "restored"
    """A deleted row exists again."""
    ROLLED_BACK = "rolled back"
    """The session's head is an older one."""
    TRUNCATED = "truncated"
    """Entries are missing at the end of the chain."""
    REWRITTEN = "rewritten"
    """The chain verifies but differs from the anchor: it was rewritten with the key."""
    UNAUDITED = "unaudited"
    """Rows without an entry: written without audit, or their entries were cut off."""


class Suspicion(NamedTuple):
    """The first problem of a chain."""

    place: Place
    number: int
    why: Why
    what: str


@record(frozen=True, slots=True)
class AuditFinding:
    """The first entry of a chain that fails verification, and the reason."""

    app: str | None
    user: str | None
    session: str | None
    """None: the chain of the user's scope or, if ``user`` is None as well, the database's."""
    scope_number: int
    session_number: int
    entry: int
    """Number of the first bad entry; one past the last if the problem comes after it."""
    why: Why
    what: str

    def __str__(self) -> str:
        if self.session_number:
            name = f"{self.session!r}" if self.session is not None else f"{self.session_number}"
            whose = f"session {name} of user {self.user!r} in app {self.app!r}"
        elif self.scope_number:
            whose = f"user {self.user!r} in app {self.app!r}"
        else:
            whose = "the database"
        return f"{whose}: entry {self.entry}: {self.why}: {self.what}"


@record(frozen=True, slots=True)
class AuditReport:
    """Result of ``Database.verify_audit``; ``ok`` if there are no findings."""

    findings: tuple[AuditFinding, ...]
    """One for each chain that does not verify."""
    anchor_problems: tuple[str, ...]
    """Findings about the anchor itself."""
    chains: int
    entries: int
    """Entries whose MAC verifies."""
    rows: int
    """Rows that match their entries."""
    anchors: int
    """Lines of the anchor."""
    resets: int
    """Number of deliberate resets of the anchor."""
    is_anchored: bool
    """False: no anchor was given, or an empty one, so truncation at the end of a chain is not
    detected."""
    needs_recovery: bool
    """The last commit is complete once a writer opens; until then it may look truncated."""

    @property
    def ok(self) -> bool:
        """True if there are no findings."""
        return not (self.findings or self.anchor_problems)


@record(frozen=True, slots=True)
class AuditedEntry:
    """One entry of a chain, for display."""

    number: int
    at_ms: int
    operation: str
    row: str
    """Its subject, in words or hexadecimal digits."""
    mac: str


# --- One pass over a chain, verifying that each entry was made for its place ----------------------

_LOW: Final = 0xFFFFFFFF


def entries(
    txn: ReadTxn, place: Place, *, after: int = 0, limit: int = 0
) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield ``(number, key, stored value)`` of a chain's entries after a number."""
    rows = keys.audit_rows(*place)
    start = keys.numbered(rows, after + 1) if after else rows
    for key, value in stored_rows(txn, start, keys.after(rows), limit=limit):
        yield keys.number_of(key), key, value


class ChainWalk:
    """State of a pass over a chain. After the first break, entries are read but prove nothing."""

    def __init__(self, chainer: Chainer, place: Place, anchored: Mapping[int, str]) -> None:
        self._chainer = chainer
        self.place = place
        self._anchored = anchored
        self._before = FIRST_MAC
        self._expected = 1
        self._doubted: tuple[int, bytes] | None = None
        self.broken: Suspicion | None = None
        self.proven = 0
        self.last = 0
        """Number of the last entry present."""
        self.closed = False
        self.head: tuple[int, bytes] | None = None
        """Number of the last entry that records the session's head, and its digest."""

    def run(self, txn: ReadTxn, take: Callable[[int, AuditEntry], None]) -> None:
        """Walk the chain; ``take`` gets every entry that can be read."""
        for number, key, value in entries(txn, self.place):
            whole = value[HEADER_BYTES:]
            self._look_back(whole)
            entry = None
            try:
                entry = unpack_entry(whole)
                if self.broken is None:
                    self._prove(number, key, value, entry)
                self._read(number, entry, take)
            except ValueError:
                if self.broken is None:
                    self._break(self._expected, Why.MODIFIED, "the entry cannot be read")
            self.last = number
        most = max(self._anchored, default=0)
        if self._doubted is not None and 0 < most < self._doubted[0]:
            self._break(self._doubted[0], Why.INSERTED, "nobody with the key made it")
        if self.broken is None and most > self.last:
            what = f"the chain was anchored at entry {most}, and ends at {self.last}"
            self._break(self.last + 1, Why.TRUNCATED, what)

    def _read(
        self, number: int, entry: AuditEntry, take: Callable[[int, AuditEntry], None]
    ) -> None:
        take(number, entry)
        if entry.head:
            self.head = number, entry.head
        self.closed = entry.op is Op.CLOSED

    def _prove(self, number: int, key: bytes, value: bytes, entry: AuditEntry) -> None:
        whole = value[HEADER_BYTES:]
        page = unpack_page(entry.said) if entry.op is Op.CUT else None
        first = number if page is None else page.first
        if first != self._expected:
            missing = first > self._expected
            what = f"the chain goes on with entry {first}"
            why = Why.DELETED if missing else Why.REORDERED
            self._break(self._expected, why, what)
        elif not self._chainer.is_sealed(self.place, number, self._before, whole):
            if entry.low != number & _LOW:
                what = f"it was made as entry {entry.low}"
                self._break(number, Why.REORDERED, what)
            else:
                self._doubted = number, self._before
                self._break(number, Why.MODIFIED, "its mac does not prove it")
        elif not is_proven(key, value):
            self._break(number, Why.MODIFIED, "its checksum was changed")
        else:
            self.proven += 1
            self._expected = number + 1
            self._before = entry.mac if page is None else page.resume
            anchored = self._anchored.get(number)
            if anchored is not None and not matches(self._before, anchored):
                what = "another entry was anchored here: the chain was made anew with its key"
                self._break(number, Why.REWRITTEN, what)

    def _look_back(self, whole: bytes) -> None:
        """Report an unverified entry as inserted if this entry's MAC fits in its place."""
        if self._doubted is not None:
            number, before = self._doubted
            self._doubted = None
            if self.broken is not None and self._chainer.is_sealed(
                self.place, number, before, whole
            ):
                what = "the entry behind it is the one that was made for its place"
                self.broken = Suspicion(self.place, number, Why.INSERTED, what)

    def _break(self, number: int, why: Why, what: str) -> None:
        self.broken = Suspicion(self.place, number, why, what)


# --- Stored rows compared with the records of their chain -----------------------------------------

_SWAPS_MAX: Final = 64
_ITEM: Final = bytes((Row.ITEM,))


def noted_rows(txn: ReadTxn, place: Place) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and stored value of every row that a chain records, except a session's head."""
    if place[1]:
        starts = [keys.session_rows(*place, row) for row in SESSION_ROWS]
    elif place == DATABASE:
        starts = [bytes((kind,)) for kind in DATABASE_KINDS]
        starts.append(keys.scoped(Kind.CARE, 0))
    else:
        starts = [keys.scoped(kind, place[0]) for kind in SCOPE_KINDS]
    for start in starts:
        for key, value in stored_rows(txn, start, keys.after(start)):
            if chain_of(key) is not None:
                yield key, value


_MANY: Final = {
    Kind.THREAD: "row of a thread",
    Kind.CARE: "row of a hold, a rule or an erasure",
    Kind.MEMORY: "row of long-term memory",
}
"""Kinds whose various rows an identifier in a chain does not distinguish."""


def word_for(place: Place, rest: bytes) -> str:
    """Describe a row, given its identifier in a chain."""
    kind, of_session = rest[0], bool(place[1])
    names = [
        each.name for each in ROWS if kind == (each.row if of_session else each.kind)
        and of_session == (each.kind == Kind.SESSION)
    ]  # fmt: skip
    if of_session:
        what = names[0] if names else f"row {kind:02x}"
        numbered = kind not in (Row.STATE, Row.HEAD) and len(rest) == 9  # noqa: PLR2004
        return f"{what} {int.from_bytes(rest[1:], 'big')}" if numbered else what
    what = names[0] if len(names) == 1 else _MANY.get(kind, f"row of kind {kind:02x}")
    return what if kind in NAME_KINDS else f"{what} ({rest[1:25].hex()})"


class Comparison:
    """One chain and its rows, in one snapshot."""

    def __init__(
        self, txn: ReadTxn, chainer: Chainer, walk: ChainWalk, *, limit: int = ROWS_MAX
    ) -> None:
        self._txn = txn
        self._chainer = chainer
        self._walk = walk
        self._place = walk.place
        self._limit = limit
        self.found: list[Suspicion] = []
        self.rows = 0
        self._wrong: list[tuple[bytes, int, bytes, bytes]] = []
        """Rows with other contents: identifier, entry number, recorded digest, value."""

    def run(self) -> None:
        """Walk the chain and compare; problems are added to ``found``."""
        latest = self._latest(b"")
        self._walk.run(self._txn, latest.take)
        self._compare(latest)
        while latest.until is not None:
            latest = self._latest(latest.until)
            for number, _, value in entries(self._txn, self._place):
                try:
                    latest.take(number, unpack_entry(value[HEADER_BYTES:]))
                except ValueError:
                    continue  # the walk has reported it
            self._compare(latest)
        self._judge_wrong()
        if self._place[1] and self._walk.broken is None and not self._walk.closed:
            self._judge_head()
        broken = self._walk.broken
        if broken is not None:
            # If entries are missing, rows that are rewritten often prove nothing.
            self.found = [s for s in self.found if self._is_final(s)] + [broken]

    def first(self) -> Suspicion | None:
        """Return the first finding in the order of the chain, or None."""
        broken = self._walk.broken
        return min(self.found, key=lambda s: (s.number, s is not broken), default=None)

    def _latest(self, after: bytes) -> Latest:
        return Latest(is_database=self._place == DATABASE, after=after, limit=self._limit)

    def _is_final(self, found: Suspicion) -> bool:
        return found.what.startswith("item ") and found.why is not Why.UNAUDITED

    def _compare(self, latest: Latest) -> None:
        latest.settle()
        rows, place, chainer = latest.rows, self._place, self._chainer
        if not self._walk.closed:
            for key, value in noted_rows(self._txn, place):
                rest = told_row(chainer, place, key)
                if rest < latest.after or (latest.until is not None and rest >= latest.until):
                    continue
                number, digest = rows.pop(rest, (0, None))
                if digest is not None and digest == told_digest(chainer, place, value):
                    self.rows += 1
                elif digest is not None:
                    self._wrong.append((rest, number, digest, value))
                    del self._wrong[_SWAPS_MAX:]
                elif number:
                    self._suspect(number, Why.RESTORED, rest, "was deleted, and is there again")
                else:
                    what = "no entry tells of it: written without audit, or its entry was cut off"
                    self._suspect(self._walk.last + 1, Why.UNAUDITED, rest, what)
            for rest, (number, digest) in rows.items():
                if rest[:1] in (OF_SESSION, OF_SCOPE) and not place[1]:
                    self._judge_chain(rest, number, digest is not None)
                elif digest is not None and not (place[1] and rest == HEAD):
                    self._suspect(number, Why.DELETED, rest, "is missing")

    def _suspect(self, number: int, why: Why, rest: bytes, what: str) -> None:
        found = Suspicion(self._place, number, why, f"{word_for(self._place, rest)}: {what}")
        if len(self.found) > _SWAPS_MAX:  # only the first is reported
            self.found = [min(self.found, key=lambda s: s.number)]
        self.found.append(found)

    def _judge_wrong(self) -> None:
        for rest, number, digest, value in self._wrong:
            twin = next((r for r, _, told, _ in self._wrong if self._holds(r, told, value)), None)
            mirrored = any(self._holds(rest, digest, other) for _, _, _, other in self._wrong)
            if twin is not None and mirrored:
                what = f"holds what {word_for(self._place, twin)} held"
                self._suspect(number, Why.SWAPPED, rest, what)
            else:
                self._suspect(number, Why.MODIFIED, rest, "is not what was stored")

    def _holds(self, rest: bytes, told: bytes, value: bytes) -> bool:
        """Return True if a value, moved with or without a new checksum, matches a row's digest."""
        if digest_of(value) == told:
            return True
        key = keys.session_prefix(*self._place) + rest
        return bool(self._place[1]) and told == digest_of(
            seal_value(key, value[HEADER_BYTES:], value[1] if len(value) > 1 else 0)
        )

    def _judge_chain(self, rest: bytes, number: int, stands: bool) -> None:
        """Compare a chain with its record in the chain above it."""
        named = int.from_bytes(rest[1:], "big")
        place = (self._place[0], named) if rest[:1] == OF_SESSION else (named, 0)
        has_chain = next(entries(self._txn, place), None) is not None
        if stands and not has_chain:
            what = "its chain is missing as a whole"
            self.found.append(Suspicion(place, 1, Why.TRUNCATED, what))
        elif not stands and place[1]:
            prefix = keys.session_prefix(*place)
            is_there = next(stored_rows(self._txn, prefix, keys.after(prefix), limit=1), None)
            leaving = stored(self._txn).get(keys.removal_row(prefix)) is not None
            if is_there is not None and not (leaving or is_erased(self._txn, place[0])):
                what = f"session {named} was deleted, and is there again"
                self.found.append(Suspicion(self._place, number, Why.RESTORED, what))

    def _judge_head(self) -> None:
        head = stored(self._txn).get(keys.session_prefix(*self._place) + HEAD)
        told = self._walk.head
        if told is None:
            return
        number, digest = told
        if head is None:
            self._suspect(number, Why.DELETED, HEAD, "is missing")
        elif head_digest_of(head) != digest:
            older = self._told_before(head_digest_of(head))
            if older:
                what = f"is that of entry {older}: what was done since is taken back"
                self._suspect(older + 1, Why.ROLLED_BACK, HEAD, what)
            elif all(s.why is not Why.UNAUDITED for s in self.found):  # else it is unaudited, too
                what = "is not what was stored, or entries were cut off the end of the chain"
                self._suspect(number, Why.MODIFIED, HEAD, what)

    def _told_before(self, digest: bytes) -> int:
        """Return the number of an earlier entry that recorded this head."""
        found = 0
        for number, _, value in entries(self._txn, self._place):
            if unpack_entry(value[HEADER_BYTES:]).head == digest:
                found = number
        return found


# --- Verification of all chains of a file, one read transaction per chain -------------------------


def need_audited(txn: ReadTxn, path: str) -> None:
    """Refuse to go on with a file without an audit.

    Raises:
        AuditError: it has none.
    """
    if not is_audited(txn, path) and next(entries(txn, DATABASE), None) is None:
        raise AuditError(f"{path} is not audited; open it with audit=Audit(key=...) once")


@record(slots=True)
class Verification:
    """Verification of one file."""

    store: Store
    chainer: Chainer
    anchored: Anchored
    rows_max: int = ROWS_MAX
    """Most rows of a chain to hold in memory."""
    chains: int = 0
    entries: int = 0
    rows: int = 0
    found: dict[Place, Suspicion] = field(default_factory=dict)
    """The first problem of each chain."""

    def run(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Verify all chains.

        Raises:
            AuditError: the file has no audit.
        """
        places = self.store.read(self._places)
        for done, place in enumerate(places):
            self.store.read(partial(self._judge, place=place))
            if progress is not None:
                progress(done + 1, len(places))
        known = set(places)
        for place in self.anchored.places():
            if place not in known and self.store.read(partial(self._fell, place=place)):
                what = "it was anchored, and is missing as a whole"
                self._suspect(Suspicion(place, 1, Why.TRUNCATED, what))

    def _places(self, txn: ReadTxn) -> list[Place]:
        need_audited(txn, self.store.path)
        flagged = is_audited(txn, self.store.path)
        if next(entries(txn, DATABASE), None) is None:
            what = "the database's chain is missing as a whole"
            self._suspect(Suspicion(DATABASE, 1, Why.TRUNCATED, what))
        elif not flagged:
            what = "the file's record says that it is not audited"
            self._suspect(Suspicion(DATABASE, 1, Why.MODIFIED, what))
        scopes = {keys.number_of(key) for key, _ in _leaps(txn, Kind.SCOPE, 9)}
        for kind in (Kind.SESSION_NAME, Kind.SESSION, Kind.CARE, Kind.MEMORY):
            scopes.update(int.from_bytes(key[1:9], "big") for key, _ in _leaps(txn, kind, 9))
        sessions = [keys.split_session_prefix(key) for key, _ in _leaps(txn, Kind.SESSION, 17)]
        return [DATABASE, *((scope, 0) for scope in sorted(scopes - {0})), *sessions]

    def _judge(self, txn: ReadTxn, *, place: Place) -> None:
        if next(entries(txn, place), None) is None:
            self._judge_chainless(txn, place)
            return
        self.chains += 1
        walk = ChainWalk(self.chainer, place, self.anchored.of(place))
        comparison = Comparison(txn, self.chainer, walk, limit=self.rows_max)
        comparison.run()
        self.entries += walk.proven
        self.rows += comparison.rows
        if comparison.found and not (place[1] and _is_leaving(txn, place)):
            first = comparison.first()
            if first is not None and first.place == place:
                self._suspect(first)
            for other in comparison.found:
                if other.place != place:
                    self._suspect(other)

    def _judge_chainless(self, txn: ReadTxn, place: Place) -> None:
        head = stored(txn).get(keys.session_prefix(*place) + HEAD) if place[1] else None
        if head is None and next(noted_rows(txn, place), None) is None:
            return
        if not (place[1] and _is_leaving(txn, place)):
            what = "it has rows and no chain: written without audit, or the chain was removed"
            self._suspect(Suspicion(place, 1, Why.UNAUDITED, what))

    def _fell(self, txn: ReadTxn, *, place: Place) -> bool:
        """Return True if a missing anchored chain has no recorded end in the chain above it."""
        if place[1] and _has_ended(txn, (place[0], 0)):
            return False
        return not _has_ended(txn, place)

    def _suspect(self, found: Suspicion) -> None:
        known = self.found.get(found.place)
        if known is None or found.number < known.number or known.why is Why.UNAUDITED:
            self.found[found.place] = found


def _leaps(txn: ReadTxn, kind: int, prefix_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the first row under each prefix of that length."""
    start, stop = bytes((kind,)), bytes((kind + 1,))
    while (row := next(stored_rows(txn, start, stop, limit=1), None)) is not None:
        yield row
        start = keys.after(row[0][:prefix_bytes])


def _is_leaving(txn: ReadTxn, place: Place) -> bool:
    """Return True if a session's rows are being deleted and its scope's chain records it."""
    marked = stored(txn).get(keys.removal_row(keys.session_prefix(*place))) is not None
    return (marked or is_erased(txn, place[0])) and _has_ended(txn, place)


def _has_ended(txn: ReadTxn, place: Place) -> bool:
    above = keys.audit_rows(*((place[0], 0) if place[1] else DATABASE))
    named = OF_SESSION + keys.u64(place[1]) if place[1] else OF_SCOPE + keys.u64(place[0])
    for _, value in stored_rows(txn, above, keys.after(above), reverse=True):
        with suppress(ValueError):
            entry = unpack_entry(value[HEADER_BYTES:])
            if entry.op is Op.END and unpack_tip(entry.said)[0] == (place[1] or place[0]):
                return True
            if entry.op is Op.CUT and (named, None) in unpack_page(entry.said).rows:
                return True
    return False


# --- Retention of the audit: old entries are deleted, records of existing rows stay ---------------

_PIECE: Final = 256
"""Entries replaced by one CUT, whose contents fit three pages of the file."""


def cut_chains(store: Store, before_ms: int) -> int:
    """Cut the entries of all chains that were made before a time; return their number.

    Raises:
        AuditError: an entry fails verification; nothing of that piece was cut.
    """
    cut = 0
    for place in store.read(lambda txn: list(chains(txn))):
        cut += cut_chain(store, place, before_ms)
    if cut:
        details = {"entries": cut, "before_ms": before_ms}
        store.transact(lambda txn: record_event(txn, 0, "audit cut", details))
    return cut


def cut_chain(store: Store, place: Place, before_ms: int, *, most: int | None = None) -> int:
    """Cut old entries of one chain, up to ``most``; return their number.

    Raises:
        AuditError: as for ``cut_chains``.
    """
    cut = 0
    after: int | None = 0
    while after is not None and (most is None or cut < most):
        went, after = store.transact(
            lambda txn, after=after: _cut(txn, place, after, before_ms),  # type: ignore[misc]
            makes_room=True,
        )
        cut += went
    return cut


class _Piece(NamedTuple):
    """Consecutive entries that are old enough; none of them is a CUT."""

    first: int
    last: int
    before: bytes
    resume: bytes
    head: bytes
    latest: Latest


def would_cut(txn: ReadTxn, chainer: Chainer, before_ms: int) -> int:
    """Count the entries that ``cut_chains`` would cut.

    Raises:
        AuditError: an entry fails verification.
    """
    found = 0
    for place in chains(txn):
        after = 0
        while piece := _find(txn, chainer, place, after, before_ms):
            after = piece if isinstance(piece, int) else piece.last
            found += 0 if isinstance(piece, int) else piece.last - piece.first
    return found


def _cut(txn: Txn, place: Place, after: int, before_ms: int) -> tuple[int, int | None]:
    """Cut one piece after a number; return its entry count and where to continue, or None."""
    piece = _find(txn, txn.audit.chainer, place, after, before_ms)
    if isinstance(piece, int):
        return 0, piece or None
    if piece.last > piece.first:
        latest = piece.latest
        latest.settle()
        rows = [(rest, digest) for rest, (_, digest) in sorted(latest.rows.items())]
        page = ChainPage(piece.first, piece.resume, rows, latest.spans)
        txn.audit.cut(place, piece.last, piece.before, page, piece.head)
        numbered = keys.audit_rows(*place)
        start, stop = (keys.numbered(numbered, n) for n in (piece.first, piece.last))
        txn.delete_range(start, stop)
    return piece.last - piece.first, piece.last


def _find(txn: ReadTxn, chainer: Chainer, place: Place, after: int, before_ms: int) -> _Piece | int:
    """Find the next piece; or a number to continue after, 0 at the end."""
    newest = read_tip(txn, place).number
    before = start = _mac_at(txn, place, after)
    last, head = after, b""
    latest = Latest(is_database=place == DATABASE)
    for number, _, value in entries(txn, place, after=after, limit=_PIECE):
        whole = value[HEADER_BYTES:]
        entry = _proven(chainer, place, number, before, whole)
        if entry.op is Op.CUT:
            if last == after:
                return number
            break
        # The newest entry stays: the chain continues from it.
        if entry.time_ms >= before_ms or number == newest:
            break
        latest.take(number, entry)
        head = entry.head or head
        before, last = entry.mac, number
    return _Piece(after + 1, last, start, before, head, latest) if last > after else 0


def _proven(chainer: Chainer, place: Place, number: int, before: bytes, whole: bytes) -> AuditEntry:
    try:
        entry = unpack_entry(whole)
        if chainer.is_sealed(place, number, before, whole):
            return entry
    except ValueError as exc:
        raise _refusal(place, number) from exc
    raise _refusal(place, number)


def _refusal(place: Place, number: int) -> AuditError:
    return AuditError(
        f"entry {number} of the audit of scope {place[0]}, session {place[1]} does not prove what "
        "it says: see verify_audit(); nothing of this piece was cut"
    )


def _mac_at(txn: ReadTxn, place: Place, number: int) -> bytes:
    """Return the MAC from which the chain continues after an entry."""
    if not number:
        return FIRST_MAC
    value = stored(txn).get(keys.numbered(keys.audit_rows(*place), number)) or b""
    entry = unpack_entry(value[HEADER_BYTES:])
    return unpack_page(entry.said).resume if entry.op is Op.CUT else entry.mac
