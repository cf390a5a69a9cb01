"""Changes of a scope's memory inside a transaction: statements, corrections, promotions, removals.

A statement is judged by its sources: trust is that of the weakest item that it cites. Only what an
operator or the user says is active at once. A slot has one value at any time: a newer statement
that is not weaker replaces the older one, which stays with the time in which it was true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from memcore.audit import record_event
from memcore.codec import keys
from memcore.errors import (
    CorruptValueError,
    InvalidOptionError,
    NotFoundError,
    OptedOutError,
    RevisionConflict,
)
from memcore.log import Head, History, SessionTxns
from memcore.log.history import read_rows
from memcore.log.read import opened
from memcore.memory.playbook import forget_outcomes, mend_playbooks, move_outcomes, root_of
from memcore.memory.rows import (
    INDEXES,
    TIMELINE,
    Book,
    EntryHead,
    MemoryVersion,
    SourceRow,
    all_versions,
    entries,
    is_stored,
    overlaps,
    read_entry,
    read_head,
    source_rows,
    text_digest,
    versions_of,
    with_digest,
    with_slot,
    with_source,
    write_entry,
    write_head,
)
from memcore.memory.trust import (
    ACTIVE_BY,
    BY,
    UNSOURCED_BY,
    by_of_item,
    is_pasted,
    is_weaker,
    weakest,
)
from memcore.model import ItemKind, Source
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.rows.lifecycle import is_held, is_opted_out, need_free
from memcore.store.interface import ReadTxn
from memcore.wire.message import texts_of

__all__ = [
    "SOURCES_MAX",
    "TOLD",
    "Statement",
    "cite",
    "expire_entry",
    "forget_entry",
    "forget_items",
    "mend",
    "move_sources",
    "need_wanted",
    "promote",
    "redact_entry",
    "remember",
    "revise",
    "texts_in",
]


TOLD: Final = ("text", "attributes", "labels", "extractor", "reason", "promoted_by")
"""Fields whose texts are redacted."""
SOURCES_MAX: Final = 64
"""Most sources that an entry keeps; more of the same add nothing to what is known."""
_CONFIRMING: Final = 2
"""Independent sessions in which the user's own words confirm what somebody else said."""
_LIVING: Final = ("active", "quarantined", "archived")


@dataclass(frozen=True, slots=True)
class Statement:
    """Statement to remember, or change of a memory; checked."""

    text: str | None = None
    sources: tuple[Source, ...] = ()
    by: str | None = None
    """Trust as stated by the caller; None: as computed from the sources."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the record by name."""


class _Cited(NamedTuple):
    """Sources of a statement that exist, and what follows from them."""

    rows: tuple[SourceRow, ...]
    by: str | None
    """Trust of the weakest cited item; None: nothing is cited."""
    newest_ms: int | None


def need_wanted(txn: ReadTxn, scope: int) -> None:
    """Refuse to remember a user who opted out.

    Raises:
        OptedOutError
    """
    if is_opted_out(txn, scope):
        raise OptedOutError(
            "the user opted out of memory, so nothing was stored; opt_in_memory() of the scope "
            "takes that back"
        )


# --- Sources --------------------------------------------------------------------------------------


def cite(book: Book, drafts: SessionTxns, sources: Iterable[Source], text: str) -> _Cited:
    """Find the items that a statement rests on.

    Raises:
        NotFoundError: there is no such session in the scope, or an item is not in its history.
    """
    rows: list[SourceRow] = []
    said: list[str] = []
    own: list[str] = []
    newest_ms: int | None = None
    for source in sources:
        number, root, history = _history(book, drafts, source.session)
        by_owner: dict[int, list[int]] = {}
        found: list[str] = []
        for seq in source.seqs:
            owner = history.owner_of(seq)
            if owner is None:
                msg = f"source: item {seq} is not in the history of session {source.session[:80]!r}"
                raise NotFoundError(msg)
            by_owner.setdefault(owner, []).append(seq)
            row = next(read_rows(book.txn, book.scope, owner, position=0, lo=seq, hi=seq))
            if isinstance(row, CorruptValueError):
                raise row
            item = opened(book.txn, book.scope, row)[0]
            found.append(by_of_item(item.kind))
            if item.kind == ItemKind.USER:
                own += [part.text for part in texts_of(item.message)]
            newest_ms = max(newest_ms or 0, int(item.created_at * 1000))
        by = weakest(found)
        said.append(by)
        rows += [
            SourceRow(number, source.session, owner, root, tuple(seqs), by)
            for owner, seqs in by_owner.items()
        ]
    if not rows:
        return _Cited((), None, None)
    if own and is_pasted(text, own):  # the user forwarded it; these are not the user's words
        said.append("import")
    by = weakest(said)
    lowered = tuple(row._replace(by=by if is_weaker(by, row.by) else row.by) for row in rows)
    return _Cited(lowered, by, newest_ms)


def _history(book: Book, drafts: SessionTxns, name: str) -> tuple[int, int, History]:
    """Return the number of a session, that of the root of its forks, and its live history.

    Raises:
        NotFoundError: there is no such session in the scope.
    """
    txn, scope = book.txn, book.scope
    number = names.session_of(txn, scope, name)
    value = None
    if number is not None:
        drafts.flush_opened(txn, scope, number)
        value = txn.get(head_key(scope, number))
    if number is None or value is None:
        msg = f"source: there is no session {name[:80]!r}"
        raise NotFoundError(msg)
    head = Head.unpack(head_key(scope, number), value)
    return number, root_of(txn, scope, number), History(head.all_segments(txn, scope))


def _trust(stated: str | None, cited: _Cited) -> str:
    """Return the trust in a statement: that of its weakest source, or lower if so stated.

    Raises:
        InvalidOptionError: it has no source, or more trust is stated than the sources have.
    """
    if stated in UNSOURCED_BY:
        return str(stated)
    if cited.by is None:
        msg = (
            "source: a memory rests on items of a session: give source=Source(session, seqs), or "
            "state by='operator' or by='import'"
        )
        raise InvalidOptionError(msg)
    if stated is None:
        return cited.by
    if is_weaker(cited.by, stated):
        msg = f"by: the weakest cited item is of trust {cited.by!r}, which cannot be {stated!r}"
        raise InvalidOptionError(msg)
    return stated


def _lowered(rows: Iterable[SourceRow], by: str) -> tuple[SourceRow, ...]:
    return tuple(row._replace(by=by) if is_weaker(by, row.by) else row for row in rows)


def _merged(known: tuple[SourceRow, ...], more: Iterable[SourceRow]) -> tuple[SourceRow, ...]:
    """Add the items that are not cited yet, each once, up to ``SOURCES_MAX`` sources."""
    found = list(known)
    seen = {(row.session, row.owner, seq, row.by) for row in known for seq in row.seqs}
    for row in more:
        seqs = [s for s in row.seqs if (row.session, row.owner, s, row.by) not in seen]
        if not seqs:
            continue
        for at, old in enumerate(found):
            if (old.session, old.owner, old.by) == (row.session, row.owner, row.by):
                merged = sorted({*old.seqs, *seqs})[:SOURCES_MAX]
                found[at] = old._replace(seqs=tuple(merged))
                break
        else:
            if len(found) < SOURCES_MAX:
                found.append(row._replace(seqs=tuple(sorted(seqs))))
    return tuple(found)


def _users(record: MemoryVersion) -> int:
    """Count the independent sessions in which the user said it."""
    return len({row.root for row in record.sources if row.by == "user"})


# --- Remembering ----------------------------------------------------------------------------------


def _begin(book: Book, now_ms: int) -> EntryHead:
    """Return the head with the time of this change: never before that of the last one."""
    head = read_head(book.txn, book.scope)
    return head._replace(last_ms=max(head.last_ms, now_ms))


def remember(book: Book, drafts: SessionTxns, said: Statement, now_ms: int) -> MemoryVersion:
    """Store a statement, or support one of the same wording; return the entry.

    What was forgotten stays forgotten, unless an operator says it again: its tombstone is returned.

    Raises:
        NotFoundError, InvalidOptionError: a source does not exist, or does not suffice.
        OptedOutError
    """
    need_wanted(book.txn, book.scope)
    text = said.text or ""
    cited = cite(book, drafts, said.sources, text)
    by = _trust(said.by, cited)
    rows = _lowered(cited.rows, by)
    head = _begin(book, now_ms)
    values = dict(said.values)
    if values.get("observed_ms") is None:
        values["observed_ms"] = cited.newest_ms
    new = MemoryVersion(
        id=head.next_id,
        version=1,
        by=by,
        status="quarantined",
        recorded_ms=head.last_ms,
        text=text,
        sources=rows[:SOURCES_MAX],
        **values,
    )
    stone, same = _alike(book, new, head.last_ms)
    if same is not None:
        return _support(book, head, same, new)
    if stone is not None and by != "operator":
        return stone
    found: MemoryVersion = new
    beside: tuple[_Change, ...] = ()
    if by in ACTIVE_BY:
        found, beside = _placed(book, new, head.last_ms, force=False)
    write_head(book.txn, book.scope, head._replace(next_id=head.next_id + 1))
    return _write(book, found, None, beside)


def _alike(
    book: Book, new: MemoryVersion, at_ms: int
) -> tuple[MemoryVersion | None, MemoryVersion | None]:
    """Return the tombstone of a text, and the living entry that says the same, if they exist."""
    stone = same = None
    for number in with_digest(book, new.text):
        known = read_entry(book.txn, book.scope, number)
        if known is None:
            continue
        if known.is_gone:
            stone = known
        elif (
            known.status in _LIVING
            and known.is_visible(at_ms)
            and (known.kind, known.subject, known.slot) == (new.kind, new.subject, new.slot)
        ):
            same = known
    return stone, same


def _support(
    book: Book, head: EntryHead, known: MemoryVersion, new: MemoryVersion
) -> MemoryVersion:
    """Add the sources of an equal statement to an entry; its text stays as it is.

    A weaker statement adds no trust. An operator's does, and so do the user's own words in two
    independent sessions.
    """
    merged = replace(known, sources=_merged(known.sources, new.sources))
    by = known.by
    if new.by == "operator":
        by = "operator"
    elif is_weaker(by, "confirmed") and _users(merged) >= _CONFIRMING:
        by = "confirmed"
    if merged == known and by == known.by:
        return known
    found = replace(merged, version=known.version + 1, recorded_ms=head.last_ms)
    beside: tuple[_Change, ...] = ()
    if known.status == "quarantined" and by in ACTIVE_BY:
        found, beside = _placed(book, replace(found, by=by), head.last_ms, force=False)
    elif known.status == "active":
        found = replace(found, by=by)
    write_head(book.txn, book.scope, head)
    return _write(book, found, known, beside)


_Change = tuple[MemoryVersion, MemoryVersion]
"""An entry before and after."""


def _write(
    book: Book, after: MemoryVersion, before: MemoryVersion | None, beside: Iterable[_Change]
) -> MemoryVersion:
    for old, new in beside:
        write_entry(book, new, old)
    return write_entry(book, after, before)


# --- Slots: one value at any time -----------------------------------------------------------------


def _placed(
    book: Book, new: MemoryVersion, at_ms: int, *, force: bool
) -> tuple[MemoryVersion, tuple[_Change, ...]]:
    """Make a statement active, and end the values of its slot that it replaces.

    A statement that is weaker than the value in force waits in quarantine, unless ``force``. One
    that was true before the value in force began is superseded from the start.

    Returns:
        The statement with its status, and the other entries that change.
    """
    if new.slot is None:
        return replace(new, status="active"), ()
    others = [each for each in _timeline(book, new) if each.id != new.id]
    current = next((each for each in others if each.status == "active"), None)
    begins = new.valid_from_ms
    if begins is None:
        begins = max(at_ms, *((each.valid_from_ms or 0) for each in others), at_ms)
    before = [
        each
        for each in others
        if (each.valid_from_ms or 0) <= begins
        and (each.valid_to_ms is None or each.valid_to_ms > begins)
    ]
    later = [each for each in others if (each.valid_from_ms or 0) > begins]
    rivals = [*before, *([] if current is None else [current])]
    if not force and any(is_weaker(new.by, each.by) for each in rivals if each.is_visible(at_ms)):
        return replace(new, status="quarantined"), ()
    found = replace(new, status="active", valid_from_ms=begins)
    if later:
        following = min(later, key=lambda each: (each.valid_from_ms or 0, each.id))
        ends = following.valid_from_ms
        if new.valid_to_ms is not None and ends is not None:
            ends = min(ends, new.valid_to_ms)
        found = replace(found, status="superseded", valid_to_ms=ends, superseded_by=following.id)
    changed = {each.id: (each, _ended(each, begins, new.id, at_ms)) for each in before}
    if current is not None and current.id not in changed and not later:
        changed[current.id] = current, _ended(current, begins, new.id, at_ms)
    return found, tuple(changed.values())


def _timeline(book: Book, new: MemoryVersion) -> Iterator[MemoryVersion]:
    assert new.slot is not None  # noqa: S101 - checked by the caller
    for number in with_slot(book, new.subject, new.slot):
        found = read_entry(book.txn, book.scope, number)
        if found is not None and found.status in TIMELINE:
            yield found


def _ended(record: MemoryVersion, at: int, by: int, at_ms: int) -> MemoryVersion:
    """Return the next version of a value that another one replaces at a time."""
    ends = at if record.valid_to_ms is None else min(at, record.valid_to_ms)
    return replace(
        record,
        version=record.version + 1,
        recorded_ms=at_ms,
        status="superseded",
        valid_to_ms=ends,
        superseded_by=by,
    )


# --- Changes of an entry --------------------------------------------------------------------------


def _need(book: Book, number: int) -> MemoryVersion:
    """Read an entry that can still change.

    Raises:
        NotFoundError: there is none, or it was forgotten.
    """
    found = read_entry(book.txn, book.scope, number)
    if found is None or found.is_gone:
        what = "there is no memory" if found is None else "the user's memory no longer holds"
        msg = f"{what} {number}"
        raise NotFoundError(msg)
    return found


def _need_version(record: MemoryVersion, expected: int | None) -> None:
    if expected is not None and record.version != expected:
        msg = (
            f"memory {record.id} is at version {record.version}, not {expected}: read it again and "
            "decide whether the change still applies"
        )
        raise RevisionConflict(msg, expected=expected, current=record.version)


def revise(
    book: Book,
    drafts: SessionTxns,
    number: int,
    said: Statement,
    now_ms: int,
    *,
    expected: int | None,
) -> MemoryVersion:
    """Store a new version of an entry; return it.

    A new text comes with its own source and trust. It cannot be weaker than what it replaces.

    Raises:
        NotFoundError: there is no such memory, or no such source.
        RevisionConflict: it is at another version.
        InvalidOptionError: it is superseded, or the new text has no source or less trust.
        OptedOutError
    """
    need_wanted(book.txn, book.scope)
    known = _need(book, number)
    _need_version(known, expected)
    if known.status == "superseded":
        msg = f"memory {number} is superseded: it says what was true; remember a new one"
        raise InvalidOptionError(msg)
    head = _begin(book, now_ms)
    found = replace(known, **said.values)
    if said.text is not None:
        cited = cite(book, drafts, said.sources, said.text)
        by = _trust(said.by, cited)
        if known.status == "active" and is_weaker(by, known.by):
            msg = f"by: what {by!r} says does not replace what {known.by!r} said"
            raise InvalidOptionError(msg)
        found = replace(
            found,
            text=said.text,
            by=by,
            sources=_lowered(cited.rows, by)[:SOURCES_MAX],
            promoted_by=None,
            observed_ms=said.values.get("observed_ms", cited.newest_ms),
        )
    _check_span(found)
    if found == known:
        return known
    found = replace(found, version=known.version + 1, recorded_ms=head.last_ms)
    beside: tuple[_Change, ...] = ()
    if known.status == "quarantined" and found.by in ACTIVE_BY and said.text is not None:
        found, beside = _placed(book, found, head.last_ms, force=False)
    write_head(book.txn, book.scope, head)
    return _write(book, found, known, beside)


def _check_span(record: MemoryVersion) -> None:
    start, stop = record.valid_from_ms, record.valid_to_ms
    if start is not None and stop is not None and stop <= start:
        msg = f"valid_to: memory {record.id} is valid from {start / 1000} on, got {stop / 1000}"
        raise InvalidOptionError(msg)


def promote(book: Book, number: int, by: str, now_ms: int) -> MemoryVersion:
    """Release an entry from quarantine; return it. The audit records it.

    Raises:
        NotFoundError: there is no such memory.
        InvalidOptionError: it is superseded.
        OptedOutError
    """
    need_wanted(book.txn, book.scope)
    known = _need(book, number)
    if known.status == "active":
        return known
    if known.status == "superseded":
        msg = f"memory {number} is superseded: another value has taken its place"
        raise InvalidOptionError(msg)
    head = _begin(book, now_ms)
    trust = "confirmed" if is_weaker(known.by, "confirmed") else known.by
    new = replace(
        known,
        version=known.version + 1,
        recorded_ms=head.last_ms,
        by=trust,
        promoted_by=by,
    )
    found, beside = _placed(book, new, head.last_ms, force=True)
    record_event(book.txn, book.scope, "promote memory", {"memory": number})
    write_head(book.txn, book.scope, head)
    return _write(book, found, known, beside)


# --- Removal: a tombstone stays, the text goes from every row -------------------------------------


def forget_entry(book: Book, number: int, reason: str | None, now_ms: int) -> MemoryVersion:
    """Remove an entry and its versions; return the tombstone.

    The tombstone holds the id and keyed digests of the texts, so that they do not come back.

    Raises:
        NotFoundError: there never was such a memory.
        HeldError: a legal hold covers it, or a session that it rests on.
    """
    known = read_entry(book.txn, book.scope, number)
    if known is None:
        msg = f"there is no memory {number}"
        raise NotFoundError(msg)
    if known.is_gone:
        return known
    _need_free(book.txn, book.scope, known)
    head = _begin(book, now_ms)
    versions = versions_of(book.txn, book.scope, number)
    texts = sorted({each.text for each in (known, *versions)})
    digests = {text_digest(book.seed, book.scope, text).hex() for text in texts}
    record_event(book.txn, book.scope, "forget memory", {"memory": number})
    write_head(book.txn, book.scope, head)
    stone = replace(_stone(known, head.last_ms), reason=reason, digests=tuple(sorted(digests)))
    write_entry(book, stone, known, versions=(versions, []))
    return stone


def _need_free(txn: ReadTxn, scope: int, record: MemoryVersion) -> None:
    for session in {0, *(row.session for row in record.sources)}:
        need_free(txn, scope, session, what=f"memory {record.id}")


def _is_held(txn: ReadTxn, scope: int, record: MemoryVersion) -> bool:
    return any(is_held(txn, scope, each) for each in {0, *(row.session for row in record.sources)})


def _stone(known: MemoryVersion, at_ms: int) -> MemoryVersion:
    """Return the tombstone of an entry."""
    return MemoryVersion(
        id=known.id,
        version=known.version + 1,
        kind=known.kind,
        by=known.by,
        status="forgotten",
        recorded_ms=at_ms,
    )


def expire_entry(book: Book, number: int, now_ms: int) -> bool | None:
    """Remove an entry that has expired; it may be remembered again.

    Returns:
        True if it was removed, False if it is not due, None if a legal hold keeps it.
    """
    known = read_entry(book.txn, book.scope, number)
    if known is None or known.is_gone or known.is_visible(now_ms):
        return False
    if any(
        is_held(book.txn, book.scope, each) for each in {0, *(r.session for r in known.sources)}
    ):
        return None
    head = _begin(book, now_ms)
    versions = versions_of(book.txn, book.scope, number)
    write_head(book.txn, book.scope, head)
    stone = replace(_stone(known, head.last_ms), reason="expired")
    write_entry(book, stone, known, versions=(versions, []))
    return True


def forget_items(
    book: Book, session: int, now_ms: int, *, seqs: Iterable[int] | None = None
) -> int:
    """Take items of a session from all memories; return how many memories went with them.

    Whoever removes or rewrites items calls this in the same transaction. A memory that rests on
    them alone is forgotten, with all its versions; any other loses the source, and the trust that
    only this source gave it. Nothing keeps it from being learned again from elsewhere.

    Args:
        book: the scope's memory.
        session: number of the session that is deleted, or that owns the items.
        now_ms: the time.
        seqs: the items; None: the whole session, as which others may cite items of its parent.
    """
    txn, scope = book.txn, book.scope
    if seqs is None:
        forget_outcomes(book, session)
        numbers = with_source(txn, scope, session)
        lost: Callable[[SourceRow, int], bool] = lambda row, _: row.session == session  # noqa: E731
    else:
        gone = frozenset(seqs)
        first = next(
            iter(txn.scan(source_rows(scope, session), source_rows(scope, session + 1), limit=1)),
            None,
        )
        if first is None:
            return 0
        numbers = sorted({n for seq in gone for n in with_source(txn, scope, session, seq)})
        lost = lambda row, seq: row.owner == session and seq in gone  # noqa: E731
    count = 0
    for number in numbers:
        with suppress(CorruptValueError):  # check() reports it; items can be removed all the same
            known = read_entry(txn, scope, number)
            if known is not None and not known.is_gone:
                count += _strip(book, known, lost, now_ms)
    return count


def _strip(
    book: Book, known: MemoryVersion, lost: Callable[[SourceRow, int], bool], now_ms: int
) -> bool:
    """Take sources from an entry and its versions; return True if nothing is left of it."""
    versions = versions_of(book.txn, book.scope, known.id)
    left = [_without(each, lost) for each in versions]
    current = _without(known, lost)
    kept = [each for each, old in zip(left, versions, strict=True) if not _is_baseless(each, old)]
    if current == known and left == versions:
        return False
    head = _begin(book, now_ms)
    write_head(book.txn, book.scope, head)
    if _is_baseless(current, known):
        stone = replace(_stone(known, head.last_ms), reason="its sources were removed")
        write_entry(book, stone, known, versions=(versions, []))
        return True
    write_entry(book, current, known, versions=(versions, kept))
    by = _trust_left(current)
    if by != current.by:
        demoted = current.status == "active" and by not in ACTIVE_BY
        status = "quarantined" if demoted else current.status
        weaker = replace(
            current, version=current.version + 1, recorded_ms=head.last_ms, by=by, status=status
        )
        write_entry(book, weaker, current)
    return False


def _without(record: MemoryVersion, lost: Callable[[SourceRow, int], bool]) -> MemoryVersion:
    rows = [
        row._replace(seqs=tuple(seq for seq in row.seqs if not lost(row, seq)))
        for row in record.sources
    ]
    return replace(record, sources=tuple(row for row in rows if row.seqs))


def _is_baseless(left: MemoryVersion, before: MemoryVersion) -> bool:
    """Return True if a version has lost all its sources, and no operator stands for it."""
    return not left.sources and bool(before.sources) and left.by != "operator"


def _trust_left(record: MemoryVersion) -> str:
    """Return the trust in an entry that has lost sources."""
    if record.promoted_by or record.by in UNSOURCED_BY or not record.sources:
        return record.by
    found = {row.by for row in record.sources}
    if record.by == "confirmed" and "user" in found:
        return record.by
    return weakest((record.by, min(found, key=BY.index)))


def move_sources(book: Book, session: int, to: int, moved: Mapping[int, int]) -> None:
    """Let memories that cite a session cite the one that replaces it, under its items' new seqs.

    Items that the replacement does not have keep their old address; ``forget_items`` follows.
    """
    move_outcomes(book, session, to)
    for number in with_source(book.txn, book.scope, session):
        known = read_entry(book.txn, book.scope, number)
        if known is None or known.is_gone:
            continue
        versions = versions_of(book.txn, book.scope, number)
        left = [_moved(each, session, to, moved) for each in versions]
        current = _moved(known, session, to, moved)
        if current != known or left != versions:
            write_entry(book, current, known, versions=(versions, left))


def _moved(record: MemoryVersion, session: int, to: int, moved: Mapping[int, int]) -> MemoryVersion:
    rows: list[SourceRow] = []
    for row in record.sources:
        if row.session != session:
            rows.append(row)
            continue
        stay = tuple(seq for seq in row.seqs if seq not in moved)
        went = tuple(sorted(moved[seq] for seq in row.seqs if seq in moved))
        if went:
            rows.append(row._replace(session=to, owner=to, seqs=went))
        if stay:
            rows.append(row._replace(seqs=stay))
    return replace(record, sources=tuple(rows))


# --- Redaction of what is stored ------------------------------------------------------------------


def texts_in(txn: ReadTxn, scope: int, number: int) -> Iterator[dict[str, Any]]:
    """Yield the texts of each version of an entry, as ``redact_entry`` has them redacted.

    Raises:
        CorruptValueError: a row is damaged.
    """
    known = read_entry(txn, scope, number)
    for each in () if known is None else (*versions_of(txn, scope, number), known):
        yield {name: getattr(each, name) for name in TOLD if getattr(each, name)}


def redact_entry(book: Book, number: int, redact: Callable[[Any], Any]) -> bool | None:
    """Replace findings in the texts of an entry and of all its versions, in place.

    Subject and slot stay: they are looked up as they are.

    Args:
        book: the scope's memory.
        number: the entry.
        redact: returns JSON with its findings replaced; the same object without any.

    Returns:
        True if something was replaced, False if nothing was, None if a legal hold keeps it.
    """
    known = read_entry(book.txn, book.scope, number)
    if known is None:
        return False
    versions = versions_of(book.txn, book.scope, number)
    current, *earlier = (_redacted(each, redact) for each in (known, *versions))
    if (current, earlier) == (known, versions):
        return False
    if _is_held(book.txn, book.scope, known):
        return None
    write_entry(book, current, known, versions=(versions, earlier))
    record_event(book.txn, book.scope, "redact", {"memory": number})
    return True


def _redacted(record: MemoryVersion, redact: Callable[[Any], Any]) -> MemoryVersion:
    said = {name: getattr(record, name) for name in TOLD if getattr(record, name)}
    made = redact(said)
    return record if made is said else replace(record, **made)


# --- Salvage: what can be proven is made consistent -----------------------------------------------


def mend(book: Book, now_ms: int) -> int:
    """Make salvaged rows of a scope's memory consistent; return how many memories were lost by it.

    Indexes are written anew. Versions without an entry go, as do memories whose items are lost. Of
    two values that a slot is said to have at one time, the older one waits in quarantine.
    """
    txn, scope = book.txn, book.scope
    for row in INDEXES:
        prefix = keys.memory_rows(scope, row)
        txn.delete_range(prefix, keys.after(prefix))
    known = {each.id: each for each in entries(txn, scope)}
    for key, old in list(all_versions(txn, scope)):
        current = known.get(old.id)
        if current is None or current.is_gone or old.version >= current.version:
            txn.delete(key)
    last_ms = max((each.recorded_ms for each in known.values()), default=0)
    head = _head_or_new(book)
    head = EntryHead(max(head.next_id, max(known, default=0) + 1), max(head.last_ms, last_ms))
    write_head(txn, scope, head)
    for each in known.values():
        versions = versions_of(txn, scope, each.id)
        write_entry(book, each, None, versions=([], versions))
    lost = 0
    for each in known.values():
        if not each.is_gone:
            lost += _strip(book, each, lambda row, seq: not is_stored(txn, scope, row, seq), now_ms)
    _settle_slots(book)
    mend_playbooks(book)
    return lost


def _head_or_new(book: Book) -> EntryHead:
    try:
        return read_head(book.txn, book.scope)
    except CorruptValueError:
        return EntryHead()


def _settle_slots(book: Book) -> None:
    """Put values in quarantine until no slot has two at one time."""
    slots: dict[tuple[str | None, str | None], list[MemoryVersion]] = {}
    for each in entries(book.txn, book.scope):
        if each.slot is not None and each.status in TIMELINE:
            slots.setdefault((each.subject, each.slot), []).append(each)
    for timeline in slots.values():
        taken: list[MemoryVersion] = []
        for each in sorted(timeline, key=lambda record: -record.id):
            rest = [*taken, each]
            if any(True for _ in overlaps(rest)):
                waiting = replace(each, status="quarantined", superseded_by=None)
                write_entry(book, waiting, each)
            else:
                taken = rest
