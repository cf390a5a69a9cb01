"""Basis of a memory: its sources, the members of a united one, and what is left when some go.

A united memory takes its wording, attributes, labels, confidence and importance from its members,
each as long as nobody said that of the united memory itself. Its record lists the fields that are
still the members', and marks the sources on which its wording does not rest. So it can be told at
any time whose words it has: they go with the last member, or source of its own, that says them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from memcore.codec.values import encode_json
from memcore.errors import CorruptValueError, InvalidItemError
from memcore.memory.rows import (
    HOLDS,
    SHARED,
    Book,
    MemoryVersion,
    Merger,
    SourceRow,
    read_entry,
)
from memcore.memory.trust import (
    ACTIVE_BY,
    BY,
    checked_attributes,
    is_weaker,
    normalised,
    weakest,
)
from memcore.store.interface import ReadTxn

__all__ = [
    "BARE",
    "CONSOLIDATED",
    "MERGE_RULES",
    "SOURCES_MAX",
    "Cut",
    "held_alike",
    "held_by",
    "held_by_trust",
    "left_of",
    "living_members",
    "members_left",
    "merged_sources",
    "said_ms",
    "stated_by",
    "strength",
    "told_itself",
    "trust_left",
    "united",
    "without",
]


SOURCES_MAX: Final = 64
"""Most sources that an entry keeps: the most trusted, and of those the newest."""
CONSOLIDATED: Final = "memcore.consolidate 1"
"""Extractor of a memory that was united from others."""
MERGE_RULES: Final = ("sum", "mean", "newest", "surer", "union", "max", "min")
BARE: Final[Mapping[str, Any]] = {
    "attributes": {}, "labels": {}, "extractor": None, "confidence": None, "importance": None,
    "derived_from": (), "promoted_by": None,
}  # fmt: skip
"""Fields that a statement says beside its text, all empty."""
REMOVED: Final = "(removed)"
"""Text of a memory whose words had to go, while a legal hold keeps what else is said of it."""
Cut: TypeAlias = Callable[[SourceRow], SourceRow | None]
"""Function that returns what is left of a source."""


# --- Sources --------------------------------------------------------------------------------------


def merged_sources(known: Iterable[SourceRow], more: Iterable[SourceRow]) -> tuple[SourceRow, ...]:
    """Unite the cited items, each once and with all it holds, up to ``SOURCES_MAX`` sources.

    Beyond that the least trusted source gives way, and the oldest among these: many tools cannot
    crowd out the user, and sessions are deleted from the oldest on.
    """
    first: dict[tuple[int, int, str], SourceRow] = {}
    held: dict[tuple[int, int, str], dict[int, int]] = {}
    for row in (*known, *more):
        at = row.session, row.owner, row.by
        first.setdefault(at, row)
        of = held.setdefault(at, {})
        for seq in row.seqs:
            of[seq] = of.get(seq, 0) | row.holds
    rows: list[SourceRow] = []
    for at, of in held.items():
        for holds in dict.fromkeys(of.values()):
            seqs = sorted(seq for seq, bits in of.items() if bits == holds)
            rows.append(first[at]._replace(seqs=tuple(seqs[-SOURCES_MAX:]), holds=holds))
    while len(rows) > SOURCES_MAX:
        rows.remove(max(_spare(rows), key=lambda row: BY.index(row.by)))
    return tuple(rows)


def _spare(rows: Sequence[SourceRow]) -> Iterator[SourceRow]:
    """Yield the sources without which every field still has one that it rests on."""
    holders = Counter(bit for row in rows for bit in HOLDS.values() if row.holds & bit)
    for row in rows:
        if all(holders[bit] > 1 for bit in HOLDS.values() if row.holds & bit):
            yield row


def held_by(rows: Iterable[SourceRow], names: Collection[str]) -> tuple[SourceRow, ...]:
    """Return sources as far as they hold some fields, without those that hold none of them.

    Those on which only a member of a united memory rests are kept.
    """
    bits = sum(bit for name, bit in HOLDS.items() if name in names)
    return tuple(
        row._replace(holds=row.holds & bits) for row in rows if row.holds & bits or not row.holds
    )


def stated_by(record: MemoryVersion) -> str | None:
    """Return the trust of who stated it without citing items; None if nobody did."""
    return record.unsourced or (None if record.sources else record.by)


def said_ms(record: MemoryVersion) -> int:
    """Return the time of a statement: when it was observed, else when it was recorded."""
    return record.recorded_ms if record.observed_ms is None else record.observed_ms


def without(record: MemoryVersion, cut: Cut) -> MemoryVersion:
    """Return a version without the sources that are cut, and without what only they said.

    Attributes and labels that nobody cited an item for stay.
    """
    rows = tuple(left for row in record.sources if (left := cut(row)) is not None)
    if rows == record.sources:
        return record
    lost = _held(record.sources) & ~_held(rows)
    values = {name: BARE[name] for name, bit in HOLDS.items() if lost & bit and name in BARE}
    return record._replace(sources=rows, **values)


def _held(rows: Iterable[SourceRow]) -> int:
    """Return the fields that rest on some sources, as bits."""
    bits = 0
    for row in rows:
        bits |= row.holds
    return bits


def wordless(record: MemoryVersion, cut: Cut) -> MemoryVersion:
    """Return what is left of a version that only a hold keeps: without words that nobody says.

    What the held items say of it, attributes or labels, keeps its place under ``REMOVED``.
    """
    left = without(record, cut)
    if record.merger is not None or not _is_baseless(
        _saying(left), _saying(record), record.unsourced
    ):
        return left
    rows = tuple(row._replace(holds=row.holds | HOLDS["text"]) for row in left.sources)
    by = weakest((record.by, *(row.by for row in rows)))
    return left._replace(text=REMOVED, subject=None, slot=None, by=by, sources=rows)


def trust_left(record: MemoryVersion) -> str:
    """Return the trust in an entry that has lost sources."""
    found = _trusts(_saying(record), record.unsourced)
    if record.promoted_by or not found or record.merger is not None:  # ``left_of`` has judged it
        return record.by
    return weakest((record.by, min(found, key=BY.index)))


def _trusts(rows: Iterable[SourceRow], unsourced: str | None) -> set[str]:
    return {row.by for row in rows} | ({unsourced} if unsourced else set())


def _saying(record: MemoryVersion) -> list[SourceRow]:
    """Return the sources on which the wording rests; of a united memory also the members'."""
    is_united = record.merger is not None
    return [row for row in record.sources if is_united or not row.is_aside]


def _is_baseless(
    rows: Collection[SourceRow], before: Collection[SourceRow], unsourced: str | None
) -> bool:
    """Return True if a wording has lost all its sources, and nobody stated it without one."""
    return not rows and bool(before) and unsourced is None


def held_alike(record: MemoryVersion, said: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the attributes and labels that a statement says as they are, and that rest on items.

    ``said``: its values; who says the same of them is one more that they rest on.
    """
    held = _held(record.sources)
    return tuple(
        name
        for name in ("attributes", "labels")
        if held & HOLDS[name]
        and (value := said.get(name))
        and encode_json(value) == encode_json(getattr(record, name))
    )


def held_by_trust(record: MemoryVersion, by: str) -> tuple[str, ...]:
    """Return the attributes and labels that rest on a source of some trust or more."""
    held = _held(row for row in record.sources if not is_weaker(row.by, by))
    return tuple(name for name in ("attributes", "labels") if held & HOLDS[name])


# --- United memories: how they are made -----------------------------------------------------------


def strength(record: MemoryVersion) -> tuple[Any, ...]:
    """Return a key that sorts the strongest of equal statements first."""
    return BY.index(record.by), -record.support, -(record.confidence or 0.0), -record.id


def united(
    records: Sequence[MemoryVersion], rules: Mapping[str, str], number: int, now_ms: int
) -> MemoryVersion:
    """Return the memory that takes the place of others, the strongest of which is the first.

    Text, trust and all that has no rule are those of the strongest; the sources are those of all.
    It is as old as the newest statement among them.
    """
    strongest = records[0]
    rows: tuple[SourceRow, ...] = ()
    for each in records:
        rows = merged_sources(rows, _members(each.sources))
    members = tuple(sorted(each.id for each in records))
    having = {name for each in records for name in each.attributes}
    merge = {name: rule for name, rule in rules.items() if name in having}
    return strongest._replace(
        id=number,
        version=1,
        recorded_ms=max(now_ms, *(each.recorded_ms for each in records)),
        observed_ms=max(map(said_ms, records)),
        sources=rows,
        unsourced=None,  # who stated it without a source stated a member
        attributes=_merged_attributes(records, merge),
        derived_from=members,
        extractor=CONSOLIDATED,
        superseded_by=None,
        uses=0,
        merger=Merger(members, merge, SHARED),
    )


def _members(rows: Iterable[SourceRow]) -> tuple[SourceRow, ...]:
    """Return sources of members as sources of the memory that takes their place."""
    return tuple(row._replace(holds=0) for row in rows)


def told_itself(record: MemoryVersion, names: Collection[str]) -> MemoryVersion:
    """Return a version of which some fields were said of it itself, no longer of its members."""
    merger = record.merger
    if merger is None:
        return record
    left = tuple(name for name in merger.fields if name not in names)
    is_theirs = "text" in left or record.extractor != CONSOLIDATED
    extractor = record.extractor if is_theirs else None
    return record._replace(merger=merger._replace(fields=left), extractor=extractor)


def living_members(txn: ReadTxn, scope: int, record: MemoryVersion) -> list[MemoryVersion]:
    """Return the memories that one was united from, and which it replaces, as far as they are left.

    Nobody knows what a damaged one says: it has no say. ``check`` reports it.
    """
    found: list[MemoryVersion] = []
    for number in () if record.merger is None else record.merger.members:
        with suppress(CorruptValueError):
            each = read_entry(txn, scope, number)
            # A line of an import may claim others; and what it claims must not be a circle.
            if each is not None and not each.is_gone and each.superseded_by == record.id > each.id:
                found.append(each)
    return found


# --- What is left of a version that loses sources -------------------------------------------------


def members_left(book: Book, record: MemoryVersion, cut: Cut) -> list[MemoryVersion]:
    """Return the members of a united memory that still have a basis, with what is left of it."""
    found: list[MemoryVersion] = []
    for each in living_members(book.txn, book.scope, record):
        left = without(each, cut)
        if not _is_baseless(_saying(left), _saying(each), each.unsourced):
            found.append(left._replace(by=trust_left(left)))
    return found


def left_of(
    record: MemoryVersion, cut: Cut, members: Sequence[MemoryVersion]
) -> MemoryVersion | None:
    """Return what is left of a version without some sources; None if nobody says it any more.

    Args:
        record: the version.
        cut: says what is left of each source.
        members: what ``members_left`` returns for its entry.
    """
    left = without(record, cut)
    if record.merger is None:
        lost = _is_baseless(_saying(left), _saying(record), record.unsourced)
        return None if lost else left
    own, had = ([row for row in each.sources if not row.is_aside] for each in (left, record))
    trusts = _trusts(own, record.unsourced)
    own_by = min(trusts, key=BY.index) if trusts else None
    if "text" not in record.merger.fields:
        if _is_baseless(own, had, record.unsourced):
            return None
        by = record.by if record.promoted_by else weakest((record.by, own_by or record.by))
        found = left._replace(**BARE) if is_weaker(by, record.by) else left
        return _in_fields(_trusted(found, by), sorted(members, key=strength))
    return _as_said(left, own_by, members)


def _as_said(
    left: MemoryVersion, own_by: str | None, members: Iterable[MemoryVersion]
) -> MemoryVersion | None:
    """Return a version whose words are its members' as the strongest says it who still does.

    That is a member, or who supports it with a source of its own. Among equals the wording stays.
    """
    same = normalised(left.text)
    ranked = sorted(
        members,
        key=lambda each: (BY.index(each.by), normalised(each.text) != same, *strength(each)),
    )
    best = ranked[0] if ranked else None
    by = own_by
    if best is not None and normalised(best.text) == same:
        by = min((best.by, own_by or best.by), key=BY.index)
    if best is None or (by is not None and not is_weaker(by, best.by)):
        if by is None:
            return None
        by = left.by if left.promoted_by else weakest((left.by, by))
        return _in_fields(_trusted(left, by), ranked)
    # whoever supported the old wording does not hold the new one
    rows = tuple(row._replace(holds=row.holds & ~HOLDS["text"]) for row in left.sources)
    said = left._replace(text=best.text, promoted_by=best.promoted_by, sources=rows)
    return _in_fields(_trusted(said, best.by), ranked)


def _trusted(record: MemoryVersion, by: str) -> MemoryVersion:
    waits = record.status == "active" and by not in ACTIVE_BY
    return record._replace(by=by, status="quarantined" if waits else record.status)


def _in_fields(record: MemoryVersion, members: Sequence[MemoryVersion]) -> MemoryVersion:
    """Return a version with what its members say now, the strongest being the first.

    Without any it is no longer united.
    """
    merger = record.merger or Merger((), {}, ())
    fields = [name for name in merger.fields if name != "text"]
    if not members:
        values = {name: BARE[name] for name in fields}
        is_theirs = record.extractor == CONSOLIDATED
        extractor = None if is_theirs else record.extractor
        return record._replace(**values, merger=None, derived_from=(), extractor=extractor)
    values = {name: getattr(members[0], name) for name in fields}
    if "attributes" in values:
        values["attributes"] = _merged_attributes(members, merger.merge)
    if "text" in merger.fields:
        values["observed_ms"] = max(map(said_ms, members))
        if not any(row.is_aside for row in record.sources):  # those kept of many are gone
            rows = [row for each in members for row in _members(each.sources)]
            values["sources"] = merged_sources(rows, record.sources)
    return record._replace(**values)


# --- Attributes of united memories ----------------------------------------------------------------


def _merged_attributes(
    records: Sequence[MemoryVersion], rules: Mapping[str, str]
) -> dict[str, Any]:
    """Return the attributes of a united memory; only memories of the strongest trust have a say."""
    strongest = records[0]
    found = dict(strongest.attributes)
    equal = [each for each in records if each.by == strongest.by]
    for name, rule in rules.items():
        having = [each for each in equal if name in each.attributes]
        if having:
            found[name] = _merged_value(rule, name, having)
    try:
        return checked_attributes(found)
    except InvalidItemError:  # too large, or no longer a finite number
        return dict(strongest.attributes)


def _merged_value(rule: str, name: str, records: Sequence[MemoryVersion]) -> Any:
    """Return the value that a rule makes of an attribute; the first one if its type has no rule."""
    if rule in _ORDERS:
        return max(records, key=_ORDERS[rule]).attributes[name]
    values = [each.attributes[name] for each in records]
    if rule == "union" and all(isinstance(value, list | tuple) for value in values):
        return list({repr(entry): entry for value in values for entry in value}.values())
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        with suppress(OverflowError):  # an integer that no float can hold: as if it had no rule
            if rule in _SUMS:
                return _SUMS[rule](values)
            if rule == "mean":
                weights = [max(each.support, 1) for each in records]
                pairs = zip(values, weights, strict=True)
                return sum(value * weight for value, weight in pairs) / sum(weights)
    return values[0]


def _by_time(record: MemoryVersion) -> tuple[float, int]:
    return said_ms(record), record.id


def _by_confidence(record: MemoryVersion) -> tuple[float, int]:
    return record.confidence or 0.0, record.id


_ORDERS: Final = {"newest": _by_time, "surer": _by_confidence}
_SUMS: Final[Mapping[str, Callable[[list[Any]], Any]]] = {"sum": sum, "max": max, "min": min}
