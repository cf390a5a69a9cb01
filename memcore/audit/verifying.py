"""Verifying the chains of a whole file, one read transaction a chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from memcore import keys
from memcore.audit.anchors import Anchored
from memcore.audit.comparing import Comparison, noted_rows
from memcore.audit.latest import ROWS_MAX
from memcore.audit.report import Suspicion, Why
from memcore.audit.starting import is_audited
from memcore.audit.walking import Walk, entries
from memcore.codec import HEADER_BYTES
from memcore.errors import AuditError
from memcore.keys import Kind
from memcore.privacy.entry import Chainer, Op, unpack_entry, unpack_page, unpack_tip
from memcore.store import LmdbStore
from memcore.store.base import ReadTxn
from memcore.store.recording import DATABASE, HEAD, OF_SCOPE, OF_SESSION, Place
from memcore.store.txn import stored, stored_rows
from memcore.tombstone import is_erased

__all__ = ["Verification"]


@dataclass(slots=True)
class Verification:
    """The verification of one file."""

    store: LmdbStore
    chainer: Chainer
    anchored: Anchored
    rows_max: int = ROWS_MAX
    """Rows of one chain that are held in memory at once."""
    chains: int = 0
    entries: int = 0
    rows: int = 0
    found: dict[Place, Suspicion] = field(default_factory=dict)
    """The first thing that is wrong with each chain."""

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
        flagged = is_audited(txn, self.store.path)
        if next(entries(txn, DATABASE), None) is None:
            if not flagged:
                raise AuditError(
                    f"{self.store.path}: is not audited; open it with audit=Audit(key=...) once"
                )
            what = "the database's chain is missing as a whole"
            self._suspect(Suspicion(DATABASE, 1, Why.TRUNCATED, what))
        elif not flagged:
            what = "the file's record says that it is not audited"
            self._suspect(Suspicion(DATABASE, 1, Why.MODIFIED, what))
        scopes = {keys.number_of(key) for key, _ in _leaps(txn, Kind.SCOPE, 9)}
        for kind in (Kind.SESSION_NAME, Kind.SESSION, Kind.CARE):
            scopes.update(int.from_bytes(key[1:9], "big") for key, _ in _leaps(txn, kind, 9))
        sessions = [keys.split_session_prefix(key) for key, _ in _leaps(txn, Kind.SESSION, 17)]
        return [DATABASE, *((scope, 0) for scope in sorted(scopes - {0})), *sessions]

    def _judge(self, txn: ReadTxn, *, place: Place) -> None:
        if next(entries(txn, place), None) is None:
            self._judge_chainless(txn, place)
            return
        self.chains += 1
        walk = Walk(self.chainer, place, self.anchored.of(place))
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
        """Whether an anchored chain that is not there did not end: the chain above tells."""
        if place[1] and _has_ended(txn, (place[0], 0)):
            return False
        return not _has_ended(txn, place)

    def _suspect(self, found: Suspicion) -> None:
        known = self.found.get(found.place)
        if known is None or found.number < known.number or known.why is Why.UNAUDITED:
            self.found[found.place] = found


def _leaps(txn: ReadTxn, kind: int, prefix_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """The first row behind each prefix of that length."""
    start, stop = bytes((kind,)), bytes((kind + 1,))
    while (row := next(stored_rows(txn, start, stop, limit=1), None)) is not None:
        yield row
        start = keys.after(row[0][:prefix_bytes])


def _is_leaving(txn: ReadTxn, place: Place) -> bool:
    """Whether a session's rows are being deleted, and its scope's chain says so."""
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
