"""The rows that there are against what their chain says of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from memcore import keys
from memcore.audit.latest import ROWS_MAX, Latest
from memcore.audit.report import Suspicion, Why
from memcore.audit.walking import Walk, entries
from memcore.codec import HEADER_BYTES, seal_value
from memcore.keys import Care, Kind, Row
from memcore.privacy.entry import Chainer, digest_of, head_digest_of, unpack_entry
from memcore.store.base import ReadTxn
from memcore.store.recording import (
    DATABASE,
    DATABASE_KINDS,
    HEAD,
    NAME_KINDS,
    OF_SCOPE,
    OF_SESSION,
    SCOPE_KINDS,
    SESSION_ROWS,
    Place,
    told_digest,
    told_row,
)
from memcore.store.txn import stored, stored_rows
from memcore.tombstone import is_erased

__all__ = ["Comparison", "noted_rows"]

_SWAPS_MAX: Final = 64
_ITEM: Final = bytes((Row.ITEM,))
_WORDS: Final = {
    Row.ITEM: "item", Row.VIEW: "view", Row.SEGMENTS: "block of segments", Row.CHILD: "fork",
    Row.CHECKPOINT: "checkpoint", Row.STATE: "value of the state", Row.MOMENT: "moment",
    Row.HEAD: "the head",
}  # fmt: skip
_KIND_WORDS: Final = {
    Kind.SCOPE: "the names of a user", Kind.SCOPE_NAME: "the name of a user",
    Kind.SESSION_NAME: "the name of a session", Kind.BLOB_CHUNK: "a piece of a blob",
    Kind.BLOB_ADDRESS: "the address of a blob", Kind.KV_NAMESPACE: "the name of a namespace",
    Kind.KV: "an entry", Kind.THREAD_NAME: "the name of a thread", Kind.THREAD: "a row of a graph",
    Kind.CHUNK: "a piece of a graph", Kind.STATE: "a value of the shared state",
    Kind.CARE: "a row of care",
}  # fmt: skip


def noted_rows(txn: ReadTxn, place: Place) -> Iterator[tuple[bytes, bytes]]:
    """Key and stored value of every row that a chain notes, but a session's head."""
    if place[1]:
        starts = [keys.session_rows(*place, row) for row in SESSION_ROWS]
    elif place == DATABASE:
        starts = [bytes((kind,)) for kind in DATABASE_KINDS]
        starts.append(keys.scoped(Kind.CARE, 0))
    else:
        starts = [keys.scoped(kind, place[0]) for kind in SCOPE_KINDS]
    for start in starts:
        for key, value in stored_rows(txn, start, keys.after(start)):
            if key[0] != Kind.CARE or key[9:10] != bytes((Care.AUDIT,)):
                yield key, value


def word_for(place: Place, rest: bytes) -> str:
    """What a chain's name for a row means."""
    if place[1]:
        what = _WORDS.get(rest[0], f"row {rest[0]:02x}")
        numbered = rest[0] not in (Row.STATE, Row.HEAD) and len(rest) == 9  # noqa: PLR2004
        return f"{what} {int.from_bytes(rest[1:], 'big')}" if numbered else what
    what = _KIND_WORDS.get(rest[0], f"kind {rest[0]:02x}")
    return what if rest[0] in NAME_KINDS else f"{what} ({rest[1:25].hex()})"


class Comparison:
    """One chain and its rows, on one snapshot."""

    def __init__(
        self, txn: ReadTxn, chainer: Chainer, walk: Walk, *, limit: int = ROWS_MAX
    ) -> None:
        self._txn = txn
        self._chainer = chainer
        self._walk = walk
        self._place = walk.place
        self._limit = limit
        self.found: list[Suspicion] = []
        self.rows = 0
        self._wrong: list[tuple[bytes, int, bytes, bytes]] = []
        """Rows that hold something else: name, number, digest that was told, value."""

    def run(self) -> None:
        """Walk the chain and compare; what is wrong is in ``found``."""
        latest = self._latest(b"")
        self._walk.run(self._txn, latest.take)
        self._compare(latest)
        while latest.until is not None:
            latest = self._latest(latest.until)
            for number, _, value in entries(self._txn, self._place):
                try:
                    latest.take(number, unpack_entry(value[HEADER_BYTES:]))
                except ValueError:
                    continue  # the walk has named it
            self._compare(latest)
        self._judge_wrong()
        if self._place[1] and self._walk.broken is None and not self._walk.closed:
            self._judge_head()
        broken = self._walk.broken
        if broken is not None:
            # Where entries are missing, rows that are written again and again prove nothing.
            self.found = [s for s in self.found if self._is_final(s)] + [broken]

    def first(self) -> Suspicion | None:
        """What is wrong first, in the order of the chain."""
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
        if len(self.found) > _SWAPS_MAX:  # only the first counts
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
        """Whether a value, moved with or without a new checksum, is that of a row."""
        if digest_of(value) == told:
            return True
        key = keys.session_prefix(*self._place) + rest
        return bool(self._place[1]) and told == digest_of(
            seal_value(key, value[HEADER_BYTES:], value[1] if len(value) > 1 else 0)
        )

    def _judge_chain(self, rest: bytes, number: int, stands: bool) -> None:
        """A session that a scope's chain tells of, or a scope that the database's does."""
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
            elif all(s.why is not Why.UNAUDITED for s in self.found):  # else it is of their time
                what = "is not what was stored, or entries were cut off the end of the chain"
                self._suspect(number, Why.MODIFIED, HEAD, what)

    def _told_before(self, digest: bytes) -> int:
        """The number of an entry that told of this head."""
        found = 0
        for number, _, value in entries(self._txn, self._place):
            if unpack_entry(value[HEADER_BYTES:]).head == digest:
                found = number
        return found
