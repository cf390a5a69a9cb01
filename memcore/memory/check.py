"""Check of a scope's memory: entries, versions and every index row, in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from memcore import search
from memcore.codec import keys
from memcore.codec.keys import MemoryRow
from memcore.errors import CorruptValueError
from memcore.memory.coverage import check_coverage
from memcore.memory.rows import (
    INDEXES,
    MALFORMED,
    TIMELINE,
    MemoryVersion,
    document_of,
    entry_at,
    files_twice,
    head_key,
    index_rows,
    indexed_to,
    is_of_outcome,
    is_stored,
    opened_entry,
    overlaps,
    read_head,
    sound_rows,
    spare_rows,
)
from memcore.memory.trust import ACTIVE_BY, UNSOURCED_BY
from memcore.store.interface import ReadTxn

__all__ = [
    "check_entries",
]


def check_entries(txn: ReadTxn, scope: int, seed: bytes) -> Iterator[str]:
    """Verify a scope's entries and every index row in both directions; yield findings as text.

    Rows that fail their checksum are reported elsewhere.
    """
    wanted: set[bytes] = set()
    spare: set[bytes] = set()
    documents: dict[int, MemoryVersion] = {}
    versions, damaged = _checked_versions(txn, scope)
    is_whole = not damaged
    yield from (
        f"memory {keys.number_of(key[:-8])}: {MALFORMED}" for key in sound_rows(txn, damaged)
    )
    slots: dict[tuple[str | None, str], list[MemoryVersion]] = {}
    last = 0
    for number, record in _checked(txn, scope):
        last = number
        if record is None:
            is_whole = False
            if any(sound_rows(txn, [entry_at(scope, number)])):
                yield f"memory {number}: {MALFORMED}"
            continue
        if not record.is_gone:
            documents[number] = record
        earlier = versions.pop(number, [])
        wanted |= index_rows(seed, scope, record, earlier)
        spare |= spare_rows(seed, scope, record)
        for what in (*_wrong_with(record, earlier), *_wrong_sources(txn, scope, record)):
            yield f"memory {number}: {what}"
        if record.slot is not None and record.status in TIMELINE:
            slots.setdefault((record.subject, record.slot), []).append(record)
    for timeline in slots.values():
        yield from overlaps(timeline)
    yield from _wrong_paths(documents.values())
    if is_whole:
        yield from (f"memory {number}: versions without an entry" for number in versions)
        yield from _wrong_indexes(txn, scope, wanted, spare)
        yield from _wrong_documents(txn, scope, documents)
        summaries = {number for number, record in documents.items() if record.is_summary}
        yield from check_coverage(txn, scope, summaries)
    try:
        if last and read_head(txn, scope).next_id <= last:
            yield f"the head of memory would give out number {last} again"
    except CorruptValueError:
        if any(sound_rows(txn, [head_key(scope)])):
            yield f"the head of memory: {MALFORMED}"


def _wrong_documents(
    txn: ReadTxn, scope: int, records: Mapping[int, MemoryVersion]
) -> Iterator[str]:
    """Compare the documents of entries in the search index with the entries, both ways."""
    kind = search.DocumentKind.MEMORY
    try:
        head = search.read_head(txn, scope)
        done = indexed_to(txn, scope, head)
        if head is None:
            return
        for _, id_ in search.documents_of(txn, scope, kind):
            number = int.from_bytes(id_, "big")
            if number > done or number not in records:
                yield f"the search index has memory {number}, which it should not have"
        for number, record in records.items():
            made = document_of(record)
            if made is not None and number <= done:
                found = search.indexed_form(txn, scope, kind, keys.u64(number))
                wanted = made.prepared(head.key)
                if found is None or found[1] != wanted.packed:
                    yield f"the search index has other words than memory {number}"
                elif found[0] != wanted.record:
                    yield f"the search index has another kind or status than memory {number}"
    except CorruptValueError:
        return  # the check of the index reports it


def _checked_versions(
    txn: ReadTxn, scope: int
) -> tuple[dict[int, list[MemoryVersion]], list[bytes]]:
    """Return the earlier versions by entry, and the keys of those that cannot be read."""
    found: dict[int, list[MemoryVersion]] = {}
    damaged: list[bytes] = []
    rows = keys.memory_rows(scope, MemoryRow.VERSION)
    for key, value in txn.scan(rows, keys.after(rows)):
        try:
            old = opened_entry(key, value, keys.number_of(key[:-8]))
        except CorruptValueError:
            damaged.append(key)
        else:
            found.setdefault(old.id, []).append(old)
    return found, damaged


def _checked(txn: ReadTxn, scope: int) -> Iterator[tuple[int, MemoryVersion | None]]:
    """Yield the entries by number; None for a damaged one."""
    rows = keys.memory_rows(scope, MemoryRow.ENTRY)
    for key, value in txn.scan(rows, keys.after(rows)):
        number = keys.number_of(key)
        try:
            yield number, opened_entry(key, value, number)
        except CorruptValueError:
            yield number, None


def _wrong_with(record: MemoryVersion, earlier: list[MemoryVersion]) -> Iterator[str]:
    if record.is_gone and (earlier or record.text or record.sources):
        yield "it is forgotten, and something of it is left"
    if any(old.version >= record.version for old in earlier):
        yield "an earlier version has a later number"
    for each in (record, *earlier):
        unsourced = each.by in UNSOURCED_BY or each.promoted_by or each.is_gone or each.is_file
        if not each.support and not (unsourced or each.unsourced):
            yield f"version {each.version} rests on no source"
        if each.status == "active" and each.by not in ACTIVE_BY:
            yield f"version {each.version} is active, and only its {each.by} says so"
        start, stop = each.valid_from_ms, each.valid_to_ms
        if start is not None and stop is not None and stop < start:
            yield f"version {each.version} ended before it began"


def _wrong_sources(txn: ReadTxn, scope: int, record: MemoryVersion) -> Iterator[str]:
    for row in record.sources:
        for seq in row.seqs:
            if not is_stored(txn, scope, row, seq):
                yield f"it rests on item {seq} of session {row.name[:80]!r}, which is not stored"


def _wrong_paths(records: Iterable[MemoryVersion]) -> Iterator[str]:
    for one, other in files_twice(records):
        yield f"memories {one.id} and {other.id} are both the file of one path"


def _wrong_indexes(
    txn: ReadTxn, scope: int, wanted: set[bytes], spare: set[bytes]
) -> Iterator[str]:
    """Compare the index rows with those that are wanted; ``spare``: those that may be there."""
    found: set[bytes] = set()
    for row in INDEXES:
        prefix = keys.memory_rows(scope, row)
        rows = (key for key, _ in txn.scan(prefix, keys.after(prefix)))
        found.update(key for key in rows if row != MemoryRow.SOURCE or not is_of_outcome(key))
    for key in sorted(wanted - found):
        yield f"memory {keys.number_of(key)}: the index row {key.hex()} is missing"
    for key in sorted(found - wanted - spare):
        yield f"the index row {key.hex()} leads to no such memory"
