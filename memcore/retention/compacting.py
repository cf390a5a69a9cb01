"""The last step of erasures: the file swapped for a compact copy, proven and scanned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from memcore.errors import InvalidOptionError, StorageError
from memcore.retention.pending import GONE, REMOVED, all_pending, pending_of, put_pending
from memcore.retention.scanning import Scan, scan_copy
from memcore.store import LmdbStore
from memcore.store.base import Txn

__all__ = ["Compacted", "Judge", "compact_away", "marking_gone"]

Judge = Callable[[str], list[str]]
"""Looks at a finished copy by its path; findings in words."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What became of a compaction; with a problem nothing was changed."""

    bytes_after: int = 0
    scan: Scan = field(default_factory=Scan)
    problem: str = ""


def compact_away(
    store: LmdbStore, ids: Iterable[str], probes: list[bytes], judge: Judge
) -> Compacted:
    """Swap the file; erasures other than ``ids`` whose bytes go with it are marked.

    The copy is scanned for the probes before it gets its name.
    """
    scans: list[Scan] = []

    def scanned(path: str) -> list[str]:
        scan = scan_copy(path, probes)
        scans.append(scan)
        if scan.stray:
            return [f"{scan.stray} remains of the user were found outside of the rows of others"]
        return judge(path)

    try:
        with marking_gone(store, but=set(ids)):
            _, after = store.copy_compact(judge=scanned)
    except (StorageError, InvalidOptionError) as error:  # the latter: a database in memory
        return Compacted(scan=scans[0] if scans else Scan(), problem=str(error))
    return Compacted(after, scans[0] if scans else Scan())


@contextmanager
def marking_gone(store: LmdbStore, *, but: set[str] | None = None) -> Iterator[None]:
    """Around a compaction: mark the erasures whose bytes go with it, for who asks for receipts."""
    before = store.read(lambda txn: [p.id for p in all_pending(txn) if p.stage == REMOVED])
    yield
    others = [each for each in before if each not in (but or ())]
    if not others:
        return
    size = store.stats()["file_bytes"]

    def closure(txn: Txn) -> None:
        for each in others:
            pending = pending_of(txn, each)
            if pending is not None and pending.stage == REMOVED:
                pending.stage, pending.bytes_after = GONE, size
                put_pending(txn, pending)

    store.transact(closure, makes_room=True)
