"""Rows of a scope's long-term memory: entries, their versions, and the indexes over them.

An entry is one row with its current version; earlier versions have rows of their own. Three indexes
lead to entries: by slot, by the items that an entry rests on, and by a keyed digest of its text,
unless it is a file.
``write_entry`` is the only function that writes an entry, and keeps the indexes in step, also the
scope's search index as far as it has entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from operator import attrgetter
from struct import Struct
from typing import Any, Final, NamedTuple

from memcore import search
from memcore.codec import keys
from memcore.codec.keys import Kind, MemoryRow, Row
from memcore.codec.values import decode_json, decoding, encode_json, open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.faces import logger
from memcore.memory.coverage import (
    SUMMARIZED,
    coverage_rows,
    is_coverage_row,
    uncover,
)
from memcore.memory.trust import BY, KINDS, STATUSES, normalised
from memcore.model import Memory, Source
from memcore.rows.lifecycle import is_erased, is_opted_out
from memcore.store.datafile import MEMORIES
from memcore.store.interface import DeleteBudget, ReadTxn, Txn

__all__ = [
    "DERIVED_MAX",
    "FILES_BY",
    "FILES_SUBJECT",
    "HOLDS",
    "INDEXES",
    "MALFORMED",
    "NUMBER_END",
    "RECORDED_END_MS",
    "SHARED",
    "TIMELINE",
    "TIME_END_MS",
    "Book",
    "EntryHead",
    "MemoryVersion",
    "Merger",
    "SourceRow",
    "all_versions",
    "clear_end",
    "clear_piece",
    "clear_strays",
    "count_entries",
    "document_of",
    "entries",
    "entry_at",
    "entry_numbers",
    "entry_of_version",
    "expires_ms_of",
    "export_record",
    "exported",
    "files_twice",
    "head_key",
    "index_piece",
    "index_rows",
    "indexed_to",
    "is_earlier_version",
    "is_indexed",
    "is_memory_row",
    "is_of_outcome",
    "is_same",
    "is_stored",
    "known_at",
    "memory_of",
    "opened_entry",
    "overlaps",
    "read_entry",
    "read_head",
    "rows_with",
    "scenario_digest",
    "slot_rows",
    "sound_entries",
    "sound_entry",
    "sound_rows",
    "source_rows",
    "spare_rows",
    "text_digest",
    "unpack_record",
    "unpack_share",
    "version_in",
    "versions_of",
    "with_digest",
    "with_slot",
    "with_source",
    "write_entry",
    "write_head",
]


_HEAD: Final = Struct("<IQQ")
_FORMAT: Final = 1
_DIGEST_BYTES: Final = 16
NUMBER_END: Final = 2**48
"""End of the ids of entries, and of the numbers of their versions."""
FILES_BY: Final = "memory files 1"
TOOLS_BY: Final = "memory tools 1"
"""Extractor of what a model made by a tool: it may change and forget that, as long as nobody else
has said the same."""
"""Extractor of the files that a model edits (``files``)."""
FILES_SUBJECT: Final = "/memories"
"""Subject of all files; each has its path as its slot."""
_EMPTY: Final[dict[str, Any]] = {}
_KNOWN_MAX: Final = 8_192
"""Entries of a scope that are kept decoded."""


class Book(NamedTuple):
    """One scope's memory inside a transaction."""

    txn: Txn
    scope: int
    seed: bytes
    """Key of the digests in keys, which stay in clear."""
    uses: dict[tuple[int, int], int] | None = None
    """Uses by scope and id that are not written yet; None: none are counted."""


class EntryHead(NamedTuple):
    """Head of a scope's memory."""

    next_id: int = 1
    last_ms: int = 0
    """Time of the last change: a clock that goes back does not reorder versions."""


class SourceRow(NamedTuple):
    """Items of one session that an entry rests on."""

    session: int
    """Number of the session that was cited."""
    name: str
    """Its name."""
    owner: int
    """Number of the session that owns the items: a fork cites items of its parent."""
    root: int
    """Number of the session that all of these were forked from: they are not independent."""
    seqs: tuple[int, ...]
    by: str
    """Trust of the statement that cited them."""
    holds: int = 7
    """Fields that rest on it, bits of ``HOLDS``: 0 if only a member of a united memory does."""

    @property
    def is_aside(self) -> bool:
        """True if the wording does not rest on it."""
        return not self.holds & HOLDS["text"]


HOLDS: Final = {"text": 1, "attributes": 2, "labels": 4}
"""Bits of the fields that a source can hold: what it does not hold may stay without it."""
SHARED: Final = ("text", "attributes", "labels", "confidence", "importance")
"""Fields that a united memory takes from its members."""


class Merger(NamedTuple):
    """Origin of a memory that was united from others."""

    members: tuple[int, ...]
    """Ids of the others."""
    merge: Mapping[str, str]
    """Rule by attribute of the members."""
    fields: tuple[str, ...]
    """Names of the fields that are still what the members say."""


class MemoryVersion(NamedTuple):
    """One version of an entry as it is stored. Times are milliseconds since 1970."""

    id: int
    version: int
    kind: str
    by: str
    status: str
    recorded_ms: int
    text: str = ""
    attributes: Mapping[str, Any] = _EMPTY
    subject: str | None = None
    slot: str | None = None
    labels: Mapping[str, str] = _EMPTY
    sources: tuple[SourceRow, ...] = ()
    extractor: str | None = None
    confidence: float | None = None
    importance: float | None = None
    observed_ms: int | None = None
    valid_from_ms: int | None = None
    valid_to_ms: int | None = None
    superseded_by: int | None = None
    derived_from: tuple[int, ...] = ()
    expires_ms: int | None = None
    uses: int = 0
    promoted_by: str | None = None
    """Name of the one who promoted it; its trust then does not depend on its sources."""
    unsourced: str | None = None
    """Trust of who stated it without citing items, if it has sources as well."""
    reason: str | None = None
    """Reason given for forgetting it."""
    digests: tuple[str, ...] = ()
    """Of a forgotten entry: digests (hex) of the texts that must not come back."""
    merger: Merger | None = None
    """Origin, if it was united from others."""

    @property
    def support(self) -> int:
        """Number of independent sessions that say it: forks share their parent's items."""
        rows = self.sources
        if len(rows) == 1 and not rows[0].is_aside:  # as a rule
            return 1
        of_members = self.merger is not None  # a member says it
        return len({row.root for row in rows if not row.is_aside or (of_members and not row.holds)})

    @property
    def is_gone(self) -> bool:
        """True if it was forgotten: nothing of it is left but its id."""
        return self.status == "forgotten"

    @property
    def is_file(self) -> bool:
        """True if it is a file that a model edits, which only the tool for files shows."""
        return self.extractor == FILES_BY

    @property
    def is_summary(self) -> bool:
        """True if it is a rolling summary, which has coverage and which only extensions change."""
        return self.extractor == SUMMARIZED

    def is_visible(self, now_ms: int) -> bool:
        """Return True if it has not expired."""
        return self.expires_ms is None or now_ms < self.expires_ms

    def was_true_at(self, at_ms: int) -> bool:
        """Return True if it is or was active, and holds at a time."""
        # What a value or statement has ended has an end. A member of a union has none from that:
        # the union speaks for it.
        is_ended = self.status == "superseded" and self.valid_to_ms is not None
        return (self.status == "active" or is_ended) and self.holds_at(at_ms)

    def is_in_force(self, now_ms: int) -> bool:
        """Return True if it is active and true now, or will be replaced by a later value.

        That is one of the same slot: a statement without a slot never waits for its end.
        """
        is_value = self.status == "active" or self.slot is not None
        return is_value and self.was_true_at(now_ms)

    def holds_at(self, at_ms: int) -> bool:
        """Return True if it is said to be true at a time; a missing bound is open."""
        begun = self.valid_from_ms is None or self.valid_from_ms <= at_ms
        return begun and (self.valid_to_ms is None or at_ms < self.valid_to_ms)


def memory_of(record: MemoryVersion) -> Memory:
    """Return the public form of a record."""
    return Memory(
        record.id, record.version, record.kind, record.text,
        dict(record.attributes),
        record.subject, record.slot, dict(record.labels),
        _sources_of(record), record.by, record.extractor, record.confidence, record.importance,
        record.recorded_ms / 1000, _seconds(record.observed_ms), _seconds(record.valid_from_ms),
        _seconds(record.valid_to_ms), record.superseded_by, record.derived_from, record.support,
        record.status, _seconds(record.expires_ms), record.uses, record.promoted_by,
        None,  # shared_from
        record.reason,
    )  # fmt: skip


def _sources_of(record: MemoryVersion) -> tuple[Source, ...]:
    """Return the public form of a record's sources: one a session, with its seqs ascending."""
    if len(record.sources) == 1 and len(record.sources[0].seqs) == 1:  # as most have
        return (Source(record.sources[0].name, record.sources[0].seqs),)
    seqs: dict[str, set[int]] = {}
    for source in record.sources:
        seqs.setdefault(source.name, set()).update(source.seqs)
    return tuple([Source(name, tuple(sorted(of))) for name, of in seqs.items()])


def _seconds(at_ms: int | None) -> float | None:
    return None if at_ms is None else at_ms / 1000


# --- Encoding -------------------------------------------------------------------------------------

_NAMES: Final = {
    "kind": "kind", "by": "by", "status": "status", "recorded_ms": "at", "text": "text",
    "attributes": "attributes", "subject": "subject", "slot": "slot", "labels": "labels",
    "extractor": "extractor", "confidence": "confidence", "importance": "importance",
    "observed_ms": "observed", "valid_from_ms": "from", "valid_to_ms": "to",
    "superseded_by": "superseded_by", "derived_from": "derived_from", "expires_ms": "expires",
    "uses": "uses", "promoted_by": "promoted_by", "unsourced": "unsourced", "reason": "reason",
    "digests": "digests", "merger": "merger",
}  # fmt: skip
_values_of: Final = attrgetter(*_NAMES)
_TEXTS: Final = ("text", "subject", "slot", "extractor", "reason", "promoted_by")
_SHARES: Final = ("confidence", "importance")
_LISTS: Final = ("derived_from", "digests")
_LEAST_MS: Final = 1 - 2**52
_END_MS: Final = 2**52
TIME_END_MS: Final = 2**50
"""End of the times that a caller may state, before and after 1970."""
RECORDED_END_MS: Final = 253_402_300_800_000
"""End of the times at which anything is recorded, the year 10,000: a day is shown for each."""
_KEY_END: Final = 2**64
_HOLDS_ALL: Final = sum(HOLDS.values())
_NUMBERS: Final = {
    "recorded_ms": (0, RECORDED_END_MS), "observed_ms": (_LEAST_MS, _END_MS),
    "valid_from_ms": (_LEAST_MS, _END_MS), "valid_to_ms": (_LEAST_MS, _END_MS),
    "superseded_by": (1, _END_MS), "expires_ms": (0, _END_MS), "uses": (0, _END_MS),
}  # fmt: skip
"""Least value of each number of a version, and the end of its values."""
DERIVED_MAX: Final = 256
"""Most memories that one is made from."""
TIMELINE: Final = ("active", "superseded")
"""Statuses of the values that a slot has, or had at some time."""


def pack_record(record: MemoryVersion) -> dict[str, Any]:
    """Return the JSON object of a version; what has no value is left out."""
    said: dict[str, Any] = {"version": record.version, "at": record.recorded_ms}
    for key, value in zip(_NAMES.values(), _values_of(record), strict=True):
        if value or (value == 0.0 and value is not False and key in _SHARES):
            said[key] = list(value) if isinstance(value, tuple) else value
    for name in ("observed_ms", "valid_from_ms", "valid_to_ms"):  # 1970 is a time, too
        if getattr(record, name) is not None:
            said[_NAMES[name]] = getattr(record, name)
    if record.sources:
        said["sources"] = [
            [*row[:4], list(row.seqs), row.by, *([row.holds] if row.holds != _HOLDS_ALL else [])]
            for row in record.sources
        ]
    return said


def is_same(one: MemoryVersion, other: MemoryVersion) -> bool:
    """Return True if two versions are stored alike: to Python, ``True`` is the same as 1."""
    return one == other and encode_json(pack_record(one)) == encode_json(pack_record(other))


def unpack_record(number: int, said: Any) -> MemoryVersion:
    """Return the version in a JSON object; the one place that bounds what a version may hold.

    Raises:
        ValueError, TypeError, LookupError: it is none; a checksum does not prove that memcore
            wrote it.
    """
    values = [*_NOTHING_SAID]
    values[0] = number
    for key, value in said.items():  # few of the fields are there
        place = _PLACES.get(key)
        if place is None or value is None:
            continue
        at, unpack = place
        values[at] = value if unpack is None else unpack(value)
    if said.get("sources", ()) is None:
        raise TypeError("sources")
    record = MemoryVersion._make(values)
    derived = record.derived_from
    if (
        record.kind not in KINDS
        or record.by not in BY
        or record.status not in STATUSES
        or (record.unsourced is not None and record.unsourced not in BY)
        or len(derived) > DERIVED_MAX
        or not _are_numbers((number, record.version, *derived), 1, NUMBER_END)
        or record.recorded_ms is None
        or any(len(bytes.fromhex(digest)) != _DIGEST_BYTES for digest in record.digests)
    ):
        raise ValueError(record.status)
    return record


def _unpack_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(value)
    return value


def _unpack_labels(value: Any) -> dict[str, str]:
    labels = _unpack_mapping(value)
    if not all(isinstance(text, str) for text in labels.values()):
        raise TypeError("labels")
    return labels


def _unpack_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _unpack_list(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(value)
    return tuple(value)


def _unpack_number(least: int, end: int, value: Any) -> int:
    if type(value) is int and least <= value < end:
        return value
    raise ValueError(value)


def _are_numbers(values: Iterable[Any], least: int, end: int) -> bool:
    for each in values:  # noqa: SIM110 - two thirds of the time of all(): most have one or two
        if type(each) is not int or not least <= each < end:
            return False
    return True


def unpack_share(value: Any) -> float:
    """Return a stored share of one.

    Raises:
        ValueError: it is not a number from 0 to 1.
    """
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise ValueError(value)
    return float(value)


def _unpack_source(said: Any) -> SourceRow:
    """Return the source in a list.

    Raises:
        ValueError: it is none.
    """
    session, name, owner, root, seqs, by = said[:6]
    holds = _HOLDS_ALL
    if len(said) != 6:  # noqa: PLR2004 - the fields just named
        (holds,) = said[6:]
    if holds is True:  # once, only what the wording rested on was told apart from all else
        holds = _HOLDS_ALL - HOLDS["text"]
    row = SourceRow(session, name, owner, root, tuple(seqs), by, holds)
    if (
        not isinstance(name, str)
        or not _are_numbers((holds,), 0, _HOLDS_ALL + 1)
        or by not in BY
        or not row.seqs
        or not _are_numbers((session, owner, root), 0, _KEY_END)
        or not _are_numbers(row.seqs, 1, _KEY_END)
    ):
        raise ValueError(name)
    return row


def _unpack_merger(said: Any) -> Merger:
    """Return the origin in a list.

    Raises:
        ValueError: it is none.
    """
    members, merge, fields = said
    rules = dict(merge)
    known = all(isinstance(text, str) for rule in rules.items() for text in rule)
    known &= _are_numbers(members, 1, NUMBER_END) and set(fields) <= set(SHARED)
    if not known or len(members) > DERIVED_MAX:
        raise ValueError(said)
    return Merger(tuple(members), rules, tuple(fields))


_UNPACKERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "sources": lambda rows: tuple([_unpack_source(row) for row in rows]),
    "labels": _unpack_labels,
    "attributes": _unpack_mapping,
    **dict.fromkeys(_TEXTS, _unpack_text),
    **dict.fromkeys(_SHARES, unpack_share),
    **dict.fromkeys(_LISTS, _unpack_list),
    **{name: partial(_unpack_number, *bounds) for name, bounds in _NUMBERS.items()},
    "merger": _unpack_merger,
}
"""Judges of the values of those fields of a version that are not judged together, by name."""
_PLACES: Final[Mapping[str, tuple[int, Callable[[Any], Any] | None]]] = {
    key: (MemoryVersion._fields.index(name), _UNPACKERS.get(name))
    for name, key in (_NAMES | {"version": "version", "sources": "sources"}).items()
}
"""Place of each key of a row in a version, and the judge of its value."""
_NOTHING_SAID: Final = tuple(map(MemoryVersion._field_defaults.get, MemoryVersion._fields))
"""Fields of a version of which nothing is said."""


def opened_entry(key: bytes, value: bytes, number: int) -> MemoryVersion:
    """Return the version in a row of an entry.

    Raises:
        CorruptValueError: it is damaged.
    """
    flags, body = open_value(key, value)
    with decoding(key, "memory"):
        return unpack_record(number, decode_json(body, flags))


def head_key(scope: int) -> bytes:
    """Return the key of the head of a scope's memory."""
    return keys.memory_rows(scope, MemoryRow.HEAD)


def read_head(txn: ReadTxn, scope: int) -> EntryHead:
    """Read the head of a scope's memory; a new one if nothing was ever remembered.

    Raises:
        CorruptValueError: it is damaged.
    """
    key = head_key(scope)
    value = txn.get(key)
    if value is None:
        return EntryHead()
    body = open_value(key, value)[1]
    with decoding(key, "head of memory"):
        form, next_id, last_ms = _HEAD.unpack(body)
        if form != _FORMAT or not 0 < next_id < NUMBER_END or last_ms >= RECORDED_END_MS:
            raise ValueError(form)
    return EntryHead(next_id, last_ms)


def write_head(txn: Txn, scope: int, head: EntryHead) -> None:
    """Write the head of a scope's memory; the first one sets the feature bit of the file."""
    txn.need_feature(MEMORIES)
    key = head_key(scope)
    txn.put(key, seal_value(key, _HEAD.pack(_FORMAT, *head)))


def entry_at(scope: int, number: int) -> bytes:
    """Return the key of an entry's current version."""
    return keys.memory_rows(scope, MemoryRow.ENTRY, keys.u64(number))


def _version_at(scope: int, number: int, version: int) -> bytes:
    return keys.memory_rows(scope, MemoryRow.VERSION, keys.u64(number), keys.u64(version))


def read_entry(txn: ReadTxn, scope: int, number: int) -> MemoryVersion | None:
    """Read the current version of an entry; None if no entry ever had the number.

    Raises:
        CorruptValueError: its row is damaged.
    """
    key = entry_at(scope, number)
    value = txn.get(key)
    return None if value is None else opened_entry(key, value, number)


def entries(txn: ReadTxn, scope: int, after: int = 0) -> Iterator[MemoryVersion]:
    """Yield the current versions of a scope's entries by id, from the one after a number on.

    Raises:
        CorruptValueError: a row is damaged.
    """
    start = keys.behind(entry_at(scope, after))
    for key, value in txn.scan(start, keys.after(keys.memory_rows(scope, MemoryRow.ENTRY))):
        yield opened_entry(key, value, keys.number_of(key))


def sound_entries(
    txn: ReadTxn,
    scope: int,
    after: int = 0,
    known: dict[bytes, tuple[bytes, MemoryVersion]] | None = None,
) -> Iterator[MemoryVersion]:
    """Yield as ``entries`` does, without those that are damaged: the log is told of them.

    Args:
        txn: the transaction.
        scope: the scope.
        after: the number after which it begins.
        known: decoded entries by key, with their rows: only rows that differ are decoded.
    """
    start = keys.behind(entry_at(scope, after))
    for key, value in txn.scan(start, keys.after(keys.memory_rows(scope, MemoryRow.ENTRY))):
        held = None if known is None else known.get(key)
        if held is None or held[0] != value:
            record = _sound_record(key, value)
            if record is None:
                continue
            held = value, record
            if known is not None and (len(known) < _KNOWN_MAX or key in known):
                known[key] = held
        yield held[1]


def sound_entry(txn: ReadTxn, scope: int, number: int) -> MemoryVersion | None:
    """Read an entry as ``read_entry`` does; None if it is damaged, too: the log is told of it."""
    key = entry_at(scope, number)
    value = txn.get(key)
    return None if value is None else _sound_record(key, value)


def _sound_record(key: bytes, value: bytes) -> MemoryVersion | None:
    """Return the entry in a row; None if it is damaged, which check() reports."""
    try:
        return opened_entry(key, value, keys.number_of(key))
    except CorruptValueError as error:
        logger("memcore.memory").warning("a damaged memory is left out: %s", error)
        return None


def entry_numbers(txn: ReadTxn, scope: int) -> list[int]:
    """Return the ids of all entries of a scope, damaged and forgotten ones too."""
    rows = keys.memory_rows(scope, MemoryRow.ENTRY)
    return [keys.number_of(key) for key, _ in txn.scan(rows, keys.after(rows))]


def versions_of(txn: ReadTxn, scope: int, number: int) -> list[MemoryVersion]:
    """Return the earlier versions of an entry, oldest first.

    Raises:
        CorruptValueError: a row is damaged.
    """
    rows = keys.memory_rows(scope, MemoryRow.VERSION, keys.u64(number))
    found = txn.scan(rows, keys.after(rows))
    return [opened_entry(key, value, number) for key, value in found]


def all_versions(txn: ReadTxn, scope: int) -> Iterator[tuple[bytes, MemoryVersion]]:
    """Yield all earlier versions of a scope's entries with their keys.

    Raises:
        CorruptValueError: a row is damaged.
    """
    rows = keys.memory_rows(scope, MemoryRow.VERSION)
    for key, value in txn.scan(rows, keys.after(rows)):
        yield key, opened_entry(key, value, keys.number_of(key[:-8]))


def known_at(txn: ReadTxn, scope: int, record: MemoryVersion, at_ms: int) -> MemoryVersion | None:
    """Return the version of an entry that was current at a time; None before it was recorded.

    Nothing is left of the past of a forgotten entry: it is returned itself.
    """
    if record.recorded_ms <= at_ms or record.is_gone:
        return record
    known = [old for old in versions_of(txn, scope, record.id) if old.recorded_ms <= at_ms]
    return known[-1] if known else None


# --- Indexes: by slot, by source and by digest of the text ----------------------------------------


def text_digest(seed: bytes, scope: int, text: str) -> bytes:
    """Return the keyed digest of a text as it is compared: equal wording, equal digest."""
    return _veil(seed, scope, b"text", normalised(text))


def slot_digest(seed: bytes, scope: int, subject: str | None, slot: str) -> bytes:
    """Return the keyed digest of a subject and a slot."""
    return _veil(seed, scope, b"slot", subject or "", slot)


def scenario_digest(seed: bytes, scope: int, scenario: str) -> bytes:
    """Return the keyed digest of a scenario's name."""
    return _veil(seed, scope, b"scenario", scenario)


def _veil(seed: bytes, scope: int, what: bytes, *texts: str) -> bytes:
    told = what + keys.u64(scope) + b"".join(map(keys.pack_text, texts))
    return keys.blake2b(told, key=seed, digest_size=_DIGEST_BYTES).digest()


def source_rows(scope: int, session: int, seq: int | None = None) -> bytes:
    """Build the prefix of the source index's rows of a session, or of one of its items."""
    return keys.memory_rows(
        scope, MemoryRow.SOURCE, keys.u64(session), b"" if seq is None else keys.u64(seq)
    )


def _of_sources(scope: int, record: MemoryVersion) -> set[bytes]:
    number = keys.u64(record.id)
    cited = {
        (session, source.seqs)
        for source in record.sources
        for session in (source.session, source.owner)
        if session
    }
    return {source_rows(scope, at, seq) + number for at, seqs in cited for seq in seqs}


def index_rows(
    seed: bytes, scope: int, record: MemoryVersion, versions: Iterable[MemoryVersion]
) -> set[bytes]:
    """Return the keys of all index rows of an entry, given its earlier versions."""
    number = keys.u64(record.id)
    found = _of_sources(scope, record)
    for old in versions:
        found |= _of_sources(scope, old)
    if record.is_gone:
        digests = [bytes.fromhex(digest) for digest in record.digests]
    else:  # no statement says the same as a file, of which any number may have one text
        digests = [] if record.is_file else [text_digest(seed, scope, record.text)]
        if record.slot is not None and record.status in TIMELINE:
            slot = slot_digest(seed, scope, record.subject, record.slot)
            found.add(keys.memory_rows(scope, MemoryRow.SLOT, slot, number))
        if record.is_file and record.status == "quarantined":
            for path in {"", record.slot or ""}:  # all files, and the one with this path
                veil = slot_digest(seed, scope, FILES_SUBJECT, path)
                found.add(keys.memory_rows(scope, MemoryRow.SLOT, veil, number))
    return found.union(
        [keys.memory_rows(scope, MemoryRow.DIGEST, each, number) for each in digests]
    )


def spare_rows(seed: bytes, scope: int, record: MemoryVersion) -> set[bytes]:
    """Return the key of the digest row that memcore once wrote of a file; others have none."""
    if not record.is_file:
        return set()
    digest = text_digest(seed, scope, record.text)
    return {keys.memory_rows(scope, MemoryRow.DIGEST, digest, keys.u64(record.id))}


def is_of_outcome(key: bytes) -> bool:
    """Return True if a row of the source index leads to an outcome: no item has the seq 0."""
    return key[-16:-8] == bytes(8)


def rows_with(txn: ReadTxn, prefix: bytes) -> list[int]:
    """Return the ids that index rows under a prefix lead to, each once, in order."""
    return sorted({keys.number_of(key) for key, _ in txn.scan(prefix, keys.after(prefix))})


def slot_rows(book: Book, subject: str | None, slot: str) -> bytes:
    """Return the beginning of the keys of a slot's rows."""
    digest = slot_digest(book.seed, book.scope, subject, slot)
    return keys.memory_rows(book.scope, MemoryRow.SLOT, digest)


def with_slot(book: Book, subject: str | None, slot: str) -> Iterator[int]:
    """Yield the ids of the entries that are or were the value of a slot, the newest first."""
    prefix = slot_rows(book, subject, slot)
    found = book.txn.scan(prefix, keys.after(prefix), reverse=True)
    return (keys.number_of(key) for key, _ in found)


def with_digest(book: Book, text: str) -> list[int]:
    """Return the ids of the entries with a text, including those in which it was forgotten."""
    digest = text_digest(book.seed, book.scope, text)
    return rows_with(book.txn, keys.memory_rows(book.scope, MemoryRow.DIGEST, digest))


def with_source(txn: ReadTxn, scope: int, session: int, seq: int | None = None) -> list[int]:
    """Return the ids of the entries that rest on items of a session, or on one item."""
    if seq is not None:
        return rows_with(txn, source_rows(scope, session, seq))
    start, stop = source_rows(scope, session, 1), keys.after(source_rows(scope, session))
    return sorted({keys.number_of(key) for key, _ in txn.scan(start, stop)})


# --- Writing: the one function through which every change of an entry goes ------------------------


def write_entry(
    book: Book,
    after: MemoryVersion,
    before: MemoryVersion | None,
    *,
    versions: tuple[list[MemoryVersion], list[MemoryVersion]] | None = None,
) -> MemoryVersion:
    """Write an entry with everything that belongs to it, in the caller's transaction.

    Uses that were counted since its last version are added; the entry as stored is returned.

    Args:
        book: the scope's memory.
        after: the new current version.
        before: the stored one, which becomes an earlier version if the number has grown; None:
            the entry is new.
        versions: the earlier versions as stored, and as they will be, if they change.
    """
    txn, scope, seed, uses = book
    if uses and not after.is_gone:
        # Taken at once: a commit may write an entry twice. A commit that fails loses the count,
        # which is not worth more.
        after = after._replace(uses=after.uses + uses.pop((scope, after.id), 0))
    old, new = versions or ([], [])
    kept = set() if versions is None else {each.version for each in new}
    for each in old:
        if each.version not in kept:
            txn.delete(_version_at(scope, each.id, each.version))
    for each in new:
        if each not in old:
            _put(txn, _version_at(scope, each.id, each.version), each)
    if before is not None and after.version > before.version and not after.is_gone:
        new = [*new, before]
        _put(txn, _version_at(scope, before.id, before.version), before)
    _put(txn, entry_at(scope, after.id), after)
    had = set() if before is None else index_rows(seed, scope, before, old)
    has = index_rows(seed, scope, after, new)
    if versions is None and before is not None:  # versions that were not read keep their rows
        had -= _of_sources(scope, before)
    spare = set() if before is None else spare_rows(seed, scope, before)
    for key in sorted((had | spare) - has):
        txn.delete(key)
    for key in sorted(has - had):
        txn.put(key, seal_value(key, b""))
    if after.is_gone and before is not None and before.is_summary:
        uncover(txn, scope, after.id)
    _write_expiry(txn, scope, before, after)
    _write_document(txn, scope, before, after)
    return after


def _put(txn: Txn, key: bytes, record: MemoryVersion) -> None:
    body, flags = encode_json(pack_record(record))
    txn.put(key, seal_value(key, body, flags))


def _write_expiry(txn: Txn, scope: int, before: MemoryVersion | None, after: MemoryVersion) -> None:
    key = entry_at(scope, after.id)
    had = None if before is None else before.expires_ms
    if had is not None and had != after.expires_ms:
        txn.delete(keys.expiry_row(had, key))
    if after.expires_ms is not None and had != after.expires_ms:
        row = keys.expiry_row(after.expires_ms, key)
        txn.put(row, seal_value(row, b""))


def clear_end(txn: ReadTxn, scope: int) -> int:
    """Return the id below which all entries of a scope are now, also with a damaged head."""
    last = max(entry_numbers(txn, scope), default=0)
    with suppress(CorruptValueError):
        return max(read_head(txn, scope).next_id, last + 1)
    return last + 1


def clear_piece(book: Book, end: int) -> tuple[int, bool]:
    """Remove a scope's entries with ids below ``end``, a piece a transaction.

    An entry goes with all its rows, so what a crash leaves is whole, and another call continues.
    The head stays: an id is never given out twice.

    Returns:
        The number of entries removed that were not forgotten, and True if none is left.
    """
    txn, scope = book.txn, book.scope
    piece, count, is_whole = DeleteBudget(), 0, True
    _keep_head(book, end)
    gone: list[bytes] = []
    rows: set[bytes] = set()
    for key, value in txn.scan(entry_at(scope, 0), entry_at(scope, end)):
        number = keys.number_of(key)
        own, is_living = {key}, False
        with suppress(CorruptValueError):  # ``clear_strays`` finds the other rows of a damaged one
            record, versions = opened_entry(key, value, number), versions_of(txn, scope, number)
            is_living = not record.is_gone
            own |= {_version_at(scope, number, old.version) for old in versions}
            own |= index_rows(book.seed, scope, record, versions)
            own |= spare_rows(book.seed, scope, record)
            own.update(coverage_rows(txn, scope, number))
            if record.expires_ms is not None:
                own.add(keys.expiry_row(record.expires_ms, key))
        if not piece.admits(len(value), more_pages=_ENTRY_PAGES + len(own)):
            is_whole = False
            break
        count += is_living
        gone.append(keys.u64(number))
        rows |= own
    for row in sorted(rows):
        txn.delete(row)
    search.remove_documents(txn, scope, search.DocumentKind.MEMORY, gone)
    return count, is_whole


def _keep_head(book: Book, end: int) -> None:
    """Write the head anew if it is missing or damaged."""
    try:
        if end == 1 or read_head(book.txn, book.scope).next_id >= end:
            return
    except CorruptValueError:
        pass
    write_head(book.txn, book.scope, EntryHead(end))


def clear_strays(book: Book, end: int) -> bool:
    """Remove rows of damaged entries below ``end``, which ``clear_piece`` has removed.

    Returns:
        True if none is left.
    """
    txn, scope = book.txn, book.scope
    piece, gone, is_whole = DeleteBudget(), [], True
    for kind in (MemoryRow.VERSION, MemoryRow.COVERAGE, *INDEXES):
        prefix = keys.memory_rows(scope, kind)
        for key, value in txn.scan(prefix, keys.after(prefix)):
            number = keys.number_of(key if kind in INDEXES else key[:-8])
            if number >= end or (kind == MemoryRow.SOURCE and is_of_outcome(key)):
                continue
            if not piece.admits(len(value), more_pages=1):
                is_whole = False
                break
            gone.append(key)
    for key in gone:
        txn.delete(key)
    return is_whole


# --- Entries in the scope's search index ----------------------------------------------------------
# The index has the documents of all entries up to a number, its progress, which ``write_entry``
# keeps in step; above it, it has none. A search brings it up to the last entry.

_ALL: Final = 2**64 - 1
"""Progress of an index that has all entries, and to which ``write_entry`` adds new ones."""
_INDEX_ENTRIES: Final = 256
_TRUST_SHARE: Final = 0.1
_CONFIDENCE_SHARE: Final = 0.05
"""Bounds of the factors of a score, up and down: sources order what words leave equal."""
_ROLE_KINDS: Final = 8
_ENTRY_PAGES: Final = 16
"""Pages that an entry's expiry row and its document take at most, beside its own."""


def role_of(kind: str, status: str) -> int:
    """Return the role of an entry's document in the index: its kind and its status."""
    return _ROLE_KINDS * STATUSES.index(status) + KINDS.index(kind)


def document_of(record: MemoryVersion) -> search.Document | None:
    """Return the document by which an entry is found; None if nothing of it is left."""
    if record.is_gone:
        return None
    trust = 1 - 2 * BY.index(record.by) / (len(BY) - 1)
    confidence = 0.0 if record.confidence is None else 2 * record.confidence - 1
    seconds = (record.recorded_ms if record.observed_ms is None else record.observed_ms) / 1000
    about = f"{record.subject}: " if record.subject else ""
    return search.Document(
        search.DocumentKind.MEMORY,
        keys.u64(record.id),
        f"{about}{record.text}\n{search.month_words(max(seconds, 0))}",
        weight=(1 + _TRUST_SHARE * trust) * (1 + _CONFIDENCE_SHARE * confidence),
        role=role_of(record.kind, record.status),
        time=max(seconds, 0),
    )


def stored_document(txn: ReadTxn, scope: int, id_: bytes) -> search.Document | None:
    """Return the document of a stored entry by its id; None if it has none, or is damaged."""
    with suppress(CorruptValueError):  # check() reports it
        with decoding(bytes((Kind.SEARCH,)), "document of a memory in a search index"):
            number = keys.U64.unpack(id_)[0]
        record = read_entry(txn, scope, number)
        return None if record is None else document_of(record)
    return None


def _write_document(
    txn: Txn, scope: int, before: MemoryVersion | None, after: MemoryVersion
) -> None:
    """Keep the scope's search index in step with an entry; a damaged index is dropped."""
    if before is not None and document_of(before) == document_of(after):
        return
    try:
        writer = search.IndexWriter(txn, scope)
        if not writer.exists or after.id > progress_of(writer.source(search.DocumentKind.MEMORY)):
            return
        writer.remove(search.DocumentKind.MEMORY, (keys.u64(after.id),))
        new = document_of(after)
        if new is not None:
            writer.add((new.prepared(writer.head.key),))
        writer.close()
    except CorruptValueError:
        search.drop_index(txn, scope)


def progress_of(source: bytes | None) -> int:
    """Return the number up to which an index has a scope's entries, as it notes it.

    Raises:
        CorruptValueError: it is damaged.
    """
    if source is None:
        return 0
    with decoding(bytes((Kind.SEARCH,)), "progress of memories in a search index"):
        found: int = keys.U64.unpack(source)[0]
    return found


def is_indexed(txn: ReadTxn, scope: int, head: search.IndexHead | None) -> bool:
    """Return True if a scope's search index has all entries; raises as ``indexed_to``."""
    return indexed_to(txn, scope, head) == _ALL


def indexed_to(txn: ReadTxn, scope: int, head: search.IndexHead | None) -> int:
    """Return the number up to which the search index with a head has entries; 0 without one.

    Raises:
        CorruptValueError: the index is damaged.
    """
    if head is None:
        return 0
    return progress_of(search.source_of(txn, scope, search.DocumentKind.MEMORY))


def index_piece(txn: Txn, scope: int) -> bool:
    """Add a piece of a scope's entries to its search index, which is created if there is none.

    Returns:
        True if the index has all entries now, or may have none: the user opted out, or another
        index is being removed.

    Raises:
        CorruptValueError: the index is damaged.
    """
    if is_erased(txn, scope) or is_opted_out(txn, scope):
        return True
    writer = search.IndexWriter(txn, scope, create=True)
    if not writer.exists:
        return True
    done = progress_of(writer.source(search.DocumentKind.MEMORY))
    if done == _ALL:
        return True
    start = keys.behind(entry_at(scope, done))
    stop = keys.after(keys.memory_rows(scope, MemoryRow.ENTRY))
    found = list(txn.scan(start, stop, limit=_INDEX_ENTRIES))
    for key, value in found:
        with suppress(CorruptValueError):  # check() reports it
            made = document_of(opened_entry(key, value, keys.number_of(key)))
            if made is not None:
                writer.add((made.prepared(writer.head.key),))
    is_whole = len(found) < _INDEX_ENTRIES
    last = _ALL if is_whole else keys.number_of(found[-1][0])
    writer.put_source(search.DocumentKind.MEMORY, keys.u64(last))
    writer.close()
    return is_whole


# --- Check, salvage, counts -----------------------------------------------------------------------

INDEXES: Final = (MemoryRow.SLOT, MemoryRow.SOURCE, MemoryRow.DIGEST)
_ROW_AT: Final = 9


def expires_ms_of(key: bytes, value: bytes) -> int | None:
    """Return the expiry of an entry's row; None for other rows of memory, or without one.

    Raises:
        CorruptValueError: the row is damaged.
    """
    if key[_ROW_AT : _ROW_AT + 1] != bytes((MemoryRow.ENTRY,)):
        return None
    return opened_entry(key, value, keys.number_of(key)).expires_ms


def exported(txn: ReadTxn, key: bytes, value: bytes) -> dict[str, Any]:
    """Return an entry as JSON, ``memory`` and its ``versions``, the oldest first.

    Sources are told by the names of their sessions.

    Raises:
        CorruptValueError: a row is damaged.
    """
    record = opened_entry(key, value, keys.number_of(key))
    earlier = versions_of(txn, keys.split_scoped(key)[0], record.id)
    return {"memory": export_record(record), "versions": list(map(export_record, earlier))}


def export_record(record: MemoryVersion) -> dict[str, Any]:
    """Return a version as a JSON object for an export: numbers of this file are left out."""
    said = {"id": record.id, **pack_record(record._replace(digests=()))}
    if record.sources:
        said["sources"] = [
            {"session": row.name, "seqs": list(row.seqs), "by": row.by}
            | ({"holds": row.holds} if row.holds != _HOLDS_ALL else {})
            for row in record.sources
        ]
    return said


_USES_BITS: Final = 40
_SEQS_BITS: Final = 20


def version_in(key: bytes, value: bytes) -> int:
    """Return a number by which the newest of several rows of a key is known; 0 if there is none.

    Of an outcome it is the time. Of a memory it is the version; of rows of one version the newer
    one was used at least as often, and cites at most as many items: without a new version, uses are
    only added to and sources only taken away. A redaction of the text leaves no such trace.

    Raises:
        CorruptValueError: the row is damaged.
    """
    row = key[_ROW_AT : _ROW_AT + 1]
    if row == bytes((MemoryRow.OUTCOME,)):
        flags, body = open_value(key, value)
        with decoding(key, "outcome"):
            return int(decode_json(body, flags)["at"])
    if row not in (bytes((MemoryRow.ENTRY,)), bytes((MemoryRow.VERSION,))):
        return 0
    number = keys.number_of(key if row == bytes((MemoryRow.ENTRY,)) else key[:-8])
    record = opened_entry(key, value, number)
    uses = min(record.uses, 2**_USES_BITS - 1)
    cited = min(sum(len(each.seqs) for each in record.sources), 2**_SEQS_BITS - 1)
    found: int = (record.version << _USES_BITS) + uses
    return (found << _SEQS_BITS) + 2**_SEQS_BITS - 1 - cited


def entry_of_version(key: bytes) -> bytes | None:
    """Return the key of the entry to which the row of an earlier version belongs; else None."""
    if key[_ROW_AT : _ROW_AT + 1] != bytes((MemoryRow.VERSION,)):
        return None
    return entry_at(keys.split_scoped(key)[0], keys.number_of(key[:-8]))


def is_earlier_version(key: bytes, entry: bytes) -> bool:
    """Return True if the row of a version may belong to an entry, given the entry's row.

    Raises:
        CorruptValueError: the entry's row is damaged.
    """
    record = opened_entry(entry_of_version(key) or b"", entry, keys.number_of(key[:-8]))
    return not record.is_gone and keys.number_of(key) < record.version


def is_memory_row(key: bytes, value: bytes) -> bool:
    """Return True if a proven row can be decoded as its kind of memory row."""
    row, body = key[_ROW_AT], value[10:]
    if row == MemoryRow.HEAD:
        return len(body) == _HEAD.size and 0 < _HEAD.unpack(body)[1] < NUMBER_END
    if row in INDEXES or row == MemoryRow.RECEIVED:
        return not body
    if row == MemoryRow.ENTRY:
        return opened_entry(key, value, keys.number_of(key)) is not None
    if row == MemoryRow.VERSION:
        number = keys.number_of(key[:-8])
        return opened_entry(key, value, number).version == keys.number_of(key)
    if row == MemoryRow.COVERAGE:
        return is_coverage_row(key, value)
    known = row in (MemoryRow.OUTCOME, MemoryRow.PLAYBOOK, MemoryRow.GRANT)
    return known and isinstance(decode_json(body, value[1]), dict)


def count_entries(txn: ReadTxn, scope: int) -> dict[str, int]:
    """Count a scope's entries by status; damaged ones count as ``damaged``."""
    counts: dict[str, int] = {}
    rows = keys.memory_rows(scope, MemoryRow.ENTRY)
    for key, value in txn.scan(rows, keys.after(rows)):
        try:
            status = opened_entry(key, value, keys.number_of(key)).status
        except CorruptValueError:
            status = "damaged"
        counts[status] = counts.get(status, 0) + 1
    return counts


MALFORMED: Final = "a row with the right checksum is malformed"


def sound_rows(txn: ReadTxn, found: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the keys of rows whose checksums are right."""
    for key in found:
        with suppress(CorruptValueError):  # the check of all rows reports it
            open_value(key, txn.get(key) or b"")
            yield key


def is_stored(txn: ReadTxn, scope: int, row: SourceRow, seq: int) -> bool:
    """Return True if an item that a memory cites is stored; what an import cites has no session."""
    return not row.owner or txn.get(keys.session_row(scope, row.owner, Row.ITEM, seq)) is not None


def overlaps(timeline: list[MemoryVersion]) -> Iterator[str]:
    """Find two values of one slot that are both said to hold at one time."""
    active = [record.id for record in timeline if record.status == "active"]
    if len(active) > 1:
        yield f"memories {active[0]} and {active[1]} are both the active value of one slot"
    until, last = None, 0
    for record in sorted(
        timeline, key=lambda each: (each.valid_from_ms or 0, each.valid_to_ms or _END_MS)
    ):
        start, stop = record.valid_from_ms, record.valid_to_ms
        if start is None:
            yield f"memory {record.id}: it is the value of a slot from no time on"
            continue
        if stop is not None and stop <= start:
            continue  # it was replaced at once
        if until is not None and start < until:
            yield f"memories {last} and {record.id} are values of one slot at the same time"
        until, last = (_END_MS if stop is None else stop), record.id


def files_twice(
    records: Iterable[MemoryVersion],
) -> Iterator[tuple[MemoryVersion, MemoryVersion]]:
    """Yield each living file or directory whose path a newer one has, and that one."""
    found: dict[str, MemoryVersion] = {}
    for each in sorted(records, key=lambda record: -record.id):
        if each.is_file and each.status == "quarantined":
            newest = found.setdefault((each.slot or "").rstrip("/"), each)
            if newest is not each:
                yield each, newest
