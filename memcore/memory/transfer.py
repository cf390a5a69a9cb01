"""Entries of a memory on their way to another file: exported, checked on arrival, stored."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import decoding
from memcore.errors import CorruptValueError, NotFoundError
from memcore.log import Head, SessionTxns
from memcore.memory.basis import SOURCES_MAX
from memcore.memory.files import has_place, is_well_formed
from memcore.memory.lineage import root_of
from memcore.memory.playbook import (
    STEPS_MAX,
    outcome_at,
    put_outcome,
    unpack_outcome,
)
from memcore.memory.rows import (
    TIME_END_MS,
    TIMELINE,
    Book,
    MemoryVersion,
    SourceRow,
    entries,
    entry_numbers,
    export_record,
    overlaps,
    read_entry,
    read_head,
    unpack_record,
    versions_of,
    with_digest,
    with_slot,
    write_entry,
    write_head,
)
from memcore.memory.statement import cite
from memcore.memory.trust import (
    ACTIVE_BY,
    BY,
    checked_attributes,
    checked_contents,
    checked_labels,
    checked_name,
    checked_text,
    weakest,
)
from memcore.model import Source
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.rows.lifecycle import need_wanted
from memcore.store.interface import ReadTxn

__all__ = [
    "Arrival",
    "arrived_entry",
    "export_entries",
    "import_entry",
    "import_outcome",
    "link_entries",
    "unlinked_entries",
]


_NUMBER_END: Final = 2**47
"""End of imported ids and versions: one line must not use up the numbers that follow."""


def export_entries(
    txn: ReadTxn, scope: int, after: int, now_ms: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield id and body of the line of each entry, from the one after an id on.

    What has expired is hidden, here too. A rolling summary is made anew from the sessions.

    Raises:
        CorruptValueError: a row is damaged.
    """
    for record in entries(txn, scope, after):
        if not record.is_visible(now_ms) or record.is_summary:
            continue
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
            [0, each["session"], 0, 0, each["seqs"], each["by"], *([True] * ("aside" in each))]
            for each in said.pop("sources", ())
        ]
        record = unpack_record(said.pop("id"), {**said, "sources": sources, "digests": ()})
        times = (
            record.recorded_ms, record.observed_ms, record.valid_from_ms, record.valid_to_ms,
            record.expires_ms,
        )  # fmt: skip
        if (
            any(abs(time or 0) >= TIME_END_MS for time in times)
            or max(record.id, record.version) >= _NUMBER_END
            or len(record.sources) > SOURCES_MAX * SOURCES_MAX
            or sum(len(row.seqs) for row in record.sources) > 2 * SOURCES_MAX**2
            or record.is_summary
            or (record.is_file and not is_well_formed(record))
        ):
            raise ValueError
    for row in record.sources:
        names.check_name(row.name, "session")
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
        text=checked_contents(record.text) if record.is_file else checked_text(record.text),
        attributes=checked_attributes(record.attributes),
        labels=checked_labels(record.labels),
    )


class Arrival(NamedTuple):
    """Memory that an import adds to, and what its sources name."""

    book: Book
    drafts: SessionTxns
    """The sessions inside the write transaction."""
    named: Callable[[str], str | None]
    """Returns the name that a session of the file has here; None: it was not imported."""
    now_ms: int


def import_entry(to: Arrival, arrived: tuple[MemoryVersion, ...]) -> bool:
    """Store an entry under its id; return False if another one has the id, the slot or the path.

    Its trust is what its sources prove here, whatever the line says. If it is there, it stays; it
    is written again if more of its sources are found now. What was forgotten here stays forgotten,
    under whatever id it arrives.

    Raises:
        OptedOutError: the user opted out of memory.
    """
    book = to.book
    txn, scope = book.txn, book.scope
    need_wanted(txn, scope)
    known = read_entry(txn, scope, arrived[0].id)
    if known is not None and known.is_gone:
        return True
    if known is None and not arrived[0].is_gone:
        if _was_forgotten(book, arrived[0].text):
            return True
        arrived = (arrived[0], *(e for e in arrived[1:] if not _was_forgotten(book, e.text)))
    current, *earlier = (_proven(to, each) for each in arrived)
    if known is not None:
        if _said(known) != _said(current):
            return False
        if _unlinked(current) >= _unlinked(known):
            return True
        current = replace(current, uses=max(known.uses, current.uses))
    if _is_taken(book, current):
        return False
    head = read_head(txn, scope)
    write_head(
        txn,
        scope,
        head._replace(
            next_id=max(head.next_id, current.id + 1),
            last_ms=max(head.last_ms, current.recorded_ms),
        ),
    )
    before = [] if known is None else versions_of(txn, scope, known.id)
    write_entry(book, current, known, versions=(before, earlier))
    return True


def _is_taken(book: Book, record: MemoryVersion) -> bool:
    """Return True if others have the path of a file, or the slot of a value at its time."""
    if record.is_file:
        return record.status == "quarantined" and not has_place(book, record)
    if record.slot is None or record.status not in TIMELINE:
        return False
    numbers = with_slot(book, record.subject, record.slot)
    others = [read_entry(book.txn, book.scope, each) for each in numbers if each != record.id]
    living = [each for each in others if each is not None and each.status in TIMELINE]
    return any(True for _ in overlaps([*living, record]))


def _was_forgotten(book: Book, text: str) -> bool:
    """Return True if a tombstone here keeps a text from coming back."""
    found = (read_entry(book.txn, book.scope, number) for number in with_digest(book, text))
    return any(each is not None and each.is_gone for each in found)


def _said(record: MemoryVersion) -> dict[str, Any]:
    """Return what a version says, without what depends on the file in which it is."""
    sources = {(row.name, seq) for row in record.sources for seq in row.seqs}
    plain = replace(
        record, by="import", status="quarantined", superseded_by=None, promoted_by=None, uses=0,
        recorded_ms=0, sources=(),
    )  # fmt: skip
    return {**export_record(plain), "sources": sources}


def _unlinked(record: MemoryVersion) -> int:
    return sum(len(row.seqs) for row in record.sources if not row.session)


def _proven(to: Arrival, record: MemoryVersion) -> MemoryVersion:
    """Let a version cite the items that its sources name, and have the trust that these prove.

    A version that nothing here proves waits in quarantine. No version is from the future.
    """
    record = replace(record, recorded_ms=min(record.recorded_ms, to.now_ms))
    if record.is_gone:
        return record
    rows = tuple(found for row in record.sources for found in _linked(to, row, record.text))
    by = weakest((record.by, min((row.by for row in rows), key=BY.index, default="import")))
    found = replace(record, sources=rows, by=by, promoted_by=None)
    if by in ACTIVE_BY or record.status not in TIMELINE:
        return found
    # It still belongs to the one in its place, and is forgotten with that.
    return replace(found, status="quarantined")


def _linked(to: Arrival, row: SourceRow, text: str) -> list[SourceRow]:
    """Return the sources of a text that one of a line names, with the trust that they prove.

    Items outside the live history prove nothing, but the text goes with them.
    """
    txn, scope, aside = to.book.txn, to.book.scope, row.aside
    name = to.named(row.name)
    session = None if name is None else names.session_of(txn, scope, name)
    if name is None or session is None:
        return [row._replace(by="import")]
    with suppress(NotFoundError, CorruptValueError):
        cited = cite(to.book, to.drafts, (Source(name, row.seqs),), text)
        return [each._replace(by=weakest((row.by, each.by)), aside=aside) for each in cited.rows]
    root = root_of(txn, scope, session)
    by_owner: dict[int, list[int]] = {}
    for seq in row.seqs:
        by_owner.setdefault(_owner_of(txn, scope, session, seq), []).append(seq)
    return [
        SourceRow(session, name, owner, root, tuple(seqs), "import", aside)
        for owner, seqs in by_owner.items()
    ]


def _owner_of(txn: ReadTxn, scope: int, session: int, seq: int) -> int:
    """Return the session that owns an item of a session, live or not; 0 if it is not stored."""
    owner = session
    while owner:
        key = head_key(scope, owner)
        value = txn.get(key)
        head = None if value is None else Head.unpack(key, value)
        if head is None or seq > head.parent_seq:
            break
        owner = head.parent_session
    there = owner and txn.get(keys.session_row(scope, owner, Row.ITEM, seq)) is not None
    return owner if there else 0


def unlinked_entries(txn: ReadTxn, scope: int, arrived: Container[str]) -> list[int]:
    """Return the ids of entries that name one of these sessions and cite none of that name.

    ``arrived``: names that sessions of an import have in the file.
    """
    found: list[int] = []
    for number in entry_numbers(txn, scope):
        with suppress(CorruptValueError):  # check() reports it
            known = read_entry(txn, scope, number)
            versions = [] if known is None else [known, *versions_of(txn, scope, number)]
            rows = (row for each in versions for row in each.sources)
            if any(not row.session and row.name in arrived for row in rows):
                found.append(number)
    return found


def link_entries(to: Arrival, numbers: Iterable[int], arrived: Container[str]) -> None:
    """Let memories that came before their sessions cite these; their trust stays."""
    txn, scope = to.book.txn, to.book.scope
    for number in numbers:
        known = read_entry(txn, scope, number)
        if known is None:
            continue
        versions = versions_of(txn, scope, number)
        left = [_relinked(to, each, arrived) for each in versions]
        current = _relinked(to, known, arrived)
        if current != known or left != versions:
            write_entry(to.book, current, known, versions=(versions, left))


def _relinked(to: Arrival, record: MemoryVersion, arrived: Container[str]) -> MemoryVersion:
    rows: list[SourceRow] = []
    for row in record.sources:
        if row.session or row.name not in arrived:
            rows.append(row)
        else:
            rows += [found._replace(by=row.by) for found in _linked(to, row, record.text)]
    return replace(record, sources=tuple(rows))


def import_outcome(to: Arrival, said: Mapping[str, Any]) -> bool:
    """Store an outcome of an export; return False if its session is not here.

    Raises:
        CorruptValueError: it is not what an export writes.
        InvalidItemError, InvalidOptionError: a name in it is invalid.
        OptedOutError: the user opted out of memory.
    """
    book = to.book
    need_wanted(book.txn, book.scope)
    with decoding(b"", "line of an outcome"):
        outcome = unpack_outcome(0, {**said, "root": 0})
        if any(len(of) > STEPS_MAX for of in (outcome.steps, outcome.failed, outcome.instead)):
            raise ValueError
    checked_name("scenario", outcome.scenario)
    if outcome.reason is not None:
        checked_name("reason", outcome.reason)
    for tool in {*outcome.steps, *outcome.failed, *outcome.instead, *outcome.instead.values()}:
        checked_name("steps", tool)
    name = to.named(outcome.name)
    session = None if name is None else names.session_of(book.txn, book.scope, name)
    if name is None or session is None:
        return False
    root, at_ms = root_of(book.txn, book.scope, session), min(outcome.at_ms, to.now_ms)
    outcome = replace(outcome, session=session, name=name, root=root, at_ms=at_ms)
    if book.txn.get(outcome_at(book, outcome)) is None:
        put_outcome(book, outcome)
    return True
