"""Entries of a memory on their way to another file: exported, checked on arrival, stored."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from typing import Any, Final, Literal, NamedTuple

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
    add_outcome,
    fold_outcomes,
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
    read_entry,
    read_head,
    slot_rows,
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
    UNSOURCED_BY,
    checked_attributes,
    checked_contents,
    checked_labels,
    checked_name,
    checked_text,
    weakest,
)
from memcore.model import Source
from memcore.records import record
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.rows.lifecycle import need_wanted
from memcore.store.interface import ReadTxn

__all__ = [
    "Arrival",
    "ArrivalBatch",
    "arrived_entry",
    "export_entries",
    "import_entry",
    "import_outcome",
    "link_entries",
    "unlinked_entries",
]


_NUMBER_END: Final = 2**47
"""End of imported ids and versions: one line must not use up the numbers that follow."""
_NEVER_MS: Final = 2**63
"""End of what still holds."""

Ending = Literal["stored", "left", "refused"]
"""End of a line: stored, left (it is here, or was forgotten here), or refused."""


def export_entries(
    txn: ReadTxn, scope: int, after: int, now_ms: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield id and body of the line of each entry, from the one after an id on.

    What has expired is hidden, here too. A rolling summary is made anew from the sessions.

    Raises:
        CorruptValueError: a row is damaged.
    """
    for entry in entries(txn, scope, after):
        if not entry.is_visible(now_ms) or entry.is_summary:
            continue
        earlier = [export_record(each) for each in versions_of(txn, scope, entry.id)]
        yield entry.id, {"entry": export_record(entry), "versions": earlier}


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


def _is_held(record: MemoryVersion) -> bool:
    """Return True if the wording rests on a source, or somebody said it without one."""
    if record.merger is None and not all(row.holds for row in record.sources):
        return False
    unsourced = record.unsourced or record.promoted_by or record.by in UNSOURCED_BY
    return bool(record.support or unsourced or not record.sources)


def _held_in(source: Mapping[str, Any]) -> list[Any]:
    """Return what rests on a source of a line; ``aside``: as exports said it once."""
    return [source["holds"]] if "holds" in source else [True] * ("aside" in source)


def _arrived(body: Any) -> MemoryVersion:
    if not isinstance(body, Mapping):
        raise CorruptValueError("a version is an object", key=b"")
    with decoding(b"", "line of a memory"):
        said = dict(body)
        sources = [
            [0, each["session"], 0, 0, each["seqs"], each["by"], *_held_in(each)]
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
            or not _is_held(record)
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
        return record._replace(
            text="", attributes={}, labels={}, sources=(), slot=None, subject=None
        )
    return record._replace(
        text=checked_contents(record.text) if record.is_file else checked_text(record.text),
        attributes=checked_attributes(record.attributes),
        labels=checked_labels(record.labels),
    )


@record(slots=True)
class ArrivalBatch:
    """State that the lines of one commit share, so that it is not read or written for each line."""

    timelines: dict[bytes, _Timeline] = field(default_factory=dict)
    """By the beginning of the keys of a slot's rows."""
    scenarios: dict[int, tuple[Book, dict[str, None]]] = field(default_factory=dict)
    """Scenarios that got outcomes, by scope."""

    def settle(self) -> None:
        """Write the playbooks of the scenarios that got outcomes; in the same transaction."""
        for book, scenarios in self.scenarios.values():
            fold_outcomes(book, scenarios)


class Arrival(NamedTuple):
    """Memory that an import adds to, and what its sources name."""

    book: Book
    drafts: SessionTxns
    """The sessions inside the write transaction."""
    named: Callable[[str], str | None]
    """Returns the name that a session of the file has here; None: it was not imported."""
    now_ms: int
    batch: ArrivalBatch


def import_entry(to: Arrival, arrived: tuple[MemoryVersion, ...]) -> Ending:
    """Store an entry under its id; ``refused`` if another one has the id, the slot or the path.

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
        return "left"
    if known is None and not arrived[0].is_gone:
        if _was_forgotten(book, arrived[0].text):
            return "left"
        arrived = (arrived[0], *(e for e in arrived[1:] if not _was_forgotten(book, e.text)))
    current, *earlier = (_proven(to, each) for each in arrived)
    if known is not None:
        if _said(known) != _said(current):
            return "refused"
        if _unlinked(current) >= _unlinked(known):
            return "left"
        current = current._replace(uses=max(known.uses, current.uses))
    timeline = None if current.is_file else _timeline_of(to, current)
    if current.is_file:
        is_taken = current.status == "quarantined" and not has_place(book, current)
    else:
        is_taken = timeline is not None and not timeline.admits(current)
    if is_taken:
        return "refused"
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
    if timeline is not None:
        timeline.add(current)
    return "stored"


def _timeline_of(to: Arrival, record: MemoryVersion) -> _Timeline | None:
    """Return the values of an entry's slot; None if it has none."""
    if record.slot is None:
        return None
    book = to.book
    key = slot_rows(book, record.subject, record.slot)
    if key not in to.batch.timelines:
        made = to.batch.timelines[key] = _Timeline()
        for number in with_slot(book, record.subject, record.slot):
            known = read_entry(book.txn, book.scope, number)
            if known is not None:
                made.add(known)
    return to.batch.timelines[key]


class _Timeline:
    """Values of one slot: the times at which they hold, in order, and which one is active."""

    def __init__(self) -> None:
        self._active: set[int] = set()
        self._spans: list[_Span] = []
        """Times of the values that hold at some time; none overlap."""
        self._by_id: dict[int, _Span] = {}

    def add(self, record: MemoryVersion) -> None:
        """Take in an entry as it is stored, in place of what was known of its id."""
        self._active.discard(record.id)
        known = self._by_id.pop(record.id, None)
        if known is not None:
            del self._spans[bisect_left(self._spans, known)]
        if record.status not in TIMELINE:
            return
        if record.status == "active":
            self._active.add(record.id)
        span = _span_of(record)
        if span is not None:
            self._by_id[record.id] = span
            insort(self._spans, span)

    def admits(self, record: MemoryVersion) -> bool:
        """Return True if no other value holds while this one does, or is active like it."""
        if record.status not in TIMELINE:
            return True
        others = self._active - {record.id} if record.status == "active" else ()
        span = _span_of(record)
        if record.valid_from_ms is None or others:
            return False
        if span is None:
            return True
        at = bisect_left(self._spans, span.stop, key=lambda each: each.start)
        before = [each for each in self._spans[max(at - 2, 0) : at] if each.id != record.id]
        return not before or before[-1].stop <= span.start


class _Span(NamedTuple):
    """Time in which a value of a slot holds, in milliseconds."""

    start: int
    stop: int
    id: int


def _span_of(record: MemoryVersion) -> _Span | None:
    """Return the time in which a value holds; None if it was replaced at once."""
    start = record.valid_from_ms or 0
    stop = _NEVER_MS if record.valid_to_ms is None else record.valid_to_ms
    return None if stop <= start else _Span(start, stop, record.id)


def _was_forgotten(book: Book, text: str) -> bool:
    """Return True if a tombstone here keeps a text from coming back."""
    found = (read_entry(book.txn, book.scope, number) for number in with_digest(book, text))
    return any(each is not None and each.is_gone for each in found)


def _said(record: MemoryVersion) -> dict[str, Any]:
    """Return what a version says, without what depends on the file in which it is."""
    sources = {(row.name, seq) for row in record.sources for seq in row.seqs}
    plain = record._replace(
        by="import", status="quarantined", superseded_by=None, promoted_by=None, uses=0,
        recorded_ms=0, sources=(),
    )  # fmt: skip
    return {**export_record(plain), "sources": sources}


def _unlinked(record: MemoryVersion) -> int:
    return sum(len(row.seqs) for row in record.sources if not row.session)


def _proven(to: Arrival, record: MemoryVersion) -> MemoryVersion:
    """Let a version cite the items that its sources name, and have the trust that these prove.

    A version that nothing here proves waits in quarantine. No version is from the future.
    """
    record = record._replace(recorded_ms=min(record.recorded_ms, to.now_ms))
    if record.is_gone:
        return record
    rows = tuple(found for row in record.sources for found in _linked(to, row, record.text))
    is_united = record.merger is not None
    saying = [row.by for row in rows if is_united or not row.is_aside]
    by = weakest((record.by, min(saying, key=BY.index, default="import")))
    found = record._replace(sources=rows, by=by, promoted_by=None)
    if by in ACTIVE_BY or record.status not in TIMELINE:
        return found
    # It still belongs to the one in its place, and is forgotten with that.
    return found._replace(status="quarantined")


def _linked(to: Arrival, row: SourceRow, text: str) -> list[SourceRow]:
    """Return the sources of a text that one of a line names, with the trust that they prove.

    Items outside the live history prove nothing, but the text goes with them.
    """
    txn, scope, holds = to.book.txn, to.book.scope, row.holds
    name = to.named(row.name)
    session = None if name is None else names.session_of(txn, scope, name)
    if name is None or session is None:
        return [row._replace(by="import")]
    with suppress(NotFoundError, CorruptValueError):
        cited = cite(to.book, to.drafts, (Source(name, row.seqs),), text)
        return [each._replace(by=weakest((row.by, each.by)), holds=holds) for each in cited.rows]
    root = root_of(txn, scope, session)
    by_owner: dict[int, list[int]] = {}
    for seq in row.seqs:
        by_owner.setdefault(_owner_of(txn, scope, session, seq), []).append(seq)
    return [
        SourceRow(session, name, owner, root, tuple(seqs), "import", holds)
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
    return record._replace(sources=tuple(rows))


def import_outcome(to: Arrival, said: Mapping[str, Any]) -> Ending:
    """Store an outcome of an export; ``refused`` if its session is not here.

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
        return "refused"
    root, at_ms = root_of(book.txn, book.scope, session), min(outcome.at_ms, to.now_ms)
    outcome = replace(outcome, session=session, name=name, root=root, at_ms=at_ms)
    if not add_outcome(book, outcome):
        return "left"
    to.batch.scenarios.setdefault(book.scope, (book, {}))[1][outcome.scenario] = None
    return "stored"
