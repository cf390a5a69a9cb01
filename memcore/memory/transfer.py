"""Entries of a memory on their way to another file: exported, checked on arrival, stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from memcore.codec.values import decoding
from memcore.errors import CorruptValueError
from memcore.log import Head, History
from memcore.memory.playbook import root_of
from memcore.memory.rows import (
    TIMELINE,
    Book,
    MemoryVersion,
    SourceRow,
    entries,
    export_record,
    overlaps,
    read_entry,
    read_head,
    unpack_record,
    versions_of,
    with_slot,
    write_entry,
    write_head,
)
from memcore.memory.statement import SOURCES_MAX
from memcore.memory.trust import checked_attributes, checked_labels, checked_name, checked_text
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.rows.lifecycle import need_wanted
from memcore.store.interface import ReadTxn

__all__ = [
    "arrived_entry",
    "export_entries",
    "import_entry",
]


def export_entries(txn: ReadTxn, scope: int, after: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield id and body of the line of each entry, from the one after an id on.

    Raises:
        CorruptValueError: a row is damaged.
    """
    for record in entries(txn, scope, after):
        earlier = [export_record(each) for each in versions_of(txn, scope, record.id)]
        yield record.id, {"entry": export_record(record), "versions": earlier}


def arrived_entry(*bodies: Any) -> tuple[MemoryVersion, ...]:
    """Return the versions in a line, the current one first, checked like a statement.

    Raises:
        CorruptValueError: they are not what an export writes.
        InvalidItemError, InvalidOptionError: a text is invalid.
    """
    found = tuple(map(_arrived, bodies))
    number, versions = found[0].id, [each.version for each in found[1:]]
    if (
        any(each.id != number or each.is_gone for each in found[1:])
        or any(version >= found[0].version for version in versions)
        or versions != sorted(set(versions))
    ):
        raise CorruptValueError("its versions do not belong together", key=b"")
    return found


def _arrived(body: Any) -> MemoryVersion:
    if not isinstance(body, Mapping):
        raise CorruptValueError("a version is an object", key=b"")
    with decoding(b"", "line of a memory"):
        said = dict(body)
        sources = [
            [0, each["session"], 0, 0, each["seqs"], each["by"]] for each in said.pop("sources", ())
        ]
        record = unpack_record(said.pop("id"), {**said, "sources": sources, "digests": ()})
        if any(type(seq) is not int or seq < 1 for row in record.sources for seq in row.seqs):
            raise ValueError
        if sum(len(row.seqs) for row in record.sources) > 2 * SOURCES_MAX**2:
            raise ValueError
    for name in ("subject", "slot", "extractor", "promoted_by", "reason"):
        value = getattr(record, name)
        if value is not None:
            checked_name(name, value)
    if record.is_gone:
        return replace(
            record, text="", attributes={}, labels={}, sources=(), slot=None, subject=None
        )
    return replace(
        record,
        text=checked_text(record.text),
        attributes=checked_attributes(record.attributes),
        labels=checked_labels(record.labels),
    )


def import_entry(book: Book, arrived: tuple[MemoryVersion, ...]) -> bool:
    """Store an entry under its id; return False if another one has the id, or its place in a slot.

    Raises:
        OptedOutError: the user opted out of memory.
    """
    txn, scope = book.txn, book.scope
    need_wanted(txn, scope)
    known = read_entry(txn, scope, arrived[0].id)
    if known is not None:
        there = export_record(known) == export_record(arrived[0])
        return there or known.is_gone
    current, *earlier = (_found(book, each) for each in arrived)
    if current.slot is not None and current.status in TIMELINE:
        others = [read_entry(txn, scope, n) for n in with_slot(book, current.subject, current.slot)]
        living = [each for each in others if each is not None and each.status in TIMELINE]
        if any(True for _ in overlaps([*living, current])):
            return False
    head = read_head(txn, scope)
    last_ms = max(head.last_ms, current.recorded_ms)
    write_head(
        txn, scope, head._replace(next_id=max(head.next_id, current.id + 1), last_ms=last_ms)
    )
    write_entry(book, current, None, versions=([], list(earlier)))
    return True


def _found(book: Book, record: MemoryVersion) -> MemoryVersion:
    """Let a version cite the items that its sources name; those of other files have no number."""
    rows: list[SourceRow] = []
    for row in record.sources:
        number = names.session_of(book.txn, book.scope, row.name)
        value = None if number is None else book.txn.get(head_key(book.scope, number))
        if number is None or value is None:
            rows.append(row)
            continue
        head = Head.unpack(head_key(book.scope, number), value)
        history = History(head.all_segments(book.txn, book.scope))
        root = root_of(book.txn, book.scope, number)
        by_owner: dict[int, list[int]] = {}
        for seq in row.seqs:
            by_owner.setdefault(history.owner_of(seq) or 0, []).append(seq)
        rows += [
            SourceRow(number if owner else 0, row.name, owner, root, tuple(seqs), row.by)
            for owner, seqs in by_owner.items()
        ]
    return replace(record, sources=tuple(rows))
