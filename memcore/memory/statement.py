"""Changes of a scope's memory inside a transaction: statements, corrections, promotions, removals.

A statement is judged by its sources: trust is that of the weakest item that it cites. Only what an
operator or the user says is active at once. A slot has one value at any time: a newer statement
that is not weaker replaces the older one, which stays with the time in which it was true.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from memcore.audit import record_event
from memcore.codec import keys
from memcore.errors import (
    CorruptValueError,
    InvalidOptionError,
    NotFoundError,
    RevisionConflict,
)
from memcore.log import Head, History, SessionTxns
from memcore.log.read import item_at
from memcore.memory.basis import (
    BARE,
    SOURCES_MAX,
    Cut,
    held_alike,
    held_by,
    held_by_trust,
    left_of,
    living_members,
    members_left,
    merged_sources,
    stated_by,
    told_itself,
    trust_left,
    wordless,
)
from memcore.memory.clearing import clearing_end
from memcore.memory.coverage import summaries_in, summaries_over, uncover, uncover_session
from memcore.memory.jobs import forget_jobs, mend_jobs, move_jobs
from memcore.memory.lineage import root_after, root_of
from memcore.memory.playbook import forget_outcomes, mend_playbooks, move_outcomes
from memcore.memory.rows import (
    FILES_SUBJECT,
    HOLDS,
    INDEXES,
    NUMBER_END,
    SHARED,
    TIMELINE,
    TOOLS_BY,
    Book,
    EntryHead,
    MemoryVersion,
    SourceRow,
    all_versions,
    entries,
    files_twice,
    is_same,
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
    normalised,
    own_texts,
    weakest,
)
from memcore.model import Source
from memcore.records import record
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.rows.lifecycle import is_held, need_free, need_wanted
from memcore.store.interface import ReadTxn

__all__ = [
    "TOLD",
    "Sources",
    "Statement",
    "begin_change",
    "cite",
    "expire_entry",
    "forget_entry",
    "forget_items",
    "is_kept",
    "mend",
    "move_sources",
    "names_in",
    "next_version",
    "promote",
    "redact_entry",
    "remember",
    "rests_on_hold",
    "revise",
    "texts_in",
    "would_forget",
]


Sources: TypeAlias = Source | int | Iterable[Source] | Iterable[int] | None
"""Items that a statement rests on; plain seqs are of the session whose handle it is."""
TOLD: Final = ("text", "attributes", "labels", "extractor", "reason", "promoted_by")
"""Fields whose texts are redacted."""
_LIVING: Final = ("active", "quarantined", "archived")
_SOURCES_GONE: Final = "its sources were removed"


@record(frozen=True, slots=True)
class Statement:
    """Statement to remember, or change of a memory; checked."""

    text: str | None = None
    sources: tuple[Source, ...] = ()
    by: str | None = None
    """Trust as stated by the caller; None: as computed from the sources."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the record by name."""
    is_limit: bool = False
    """True if ``by`` is the most trust, and weaker sources lower it."""


class _Cited(NamedTuple):
    """Sources of a statement that exist, and what follows from them."""

    rows: tuple[SourceRow, ...]
    by: str | None
    """Trust of the weakest cited item; None: nothing is cited."""
    newest_ms: int | None


# --- Sources --------------------------------------------------------------------------------------


def cite(book: Book, drafts: SessionTxns, sources: Iterable[Source], text: str) -> _Cited:
    """Find the items that a statement rests on.

    Raises:
        NotFoundError: there is no such session in the scope, or an item is not in its history.
    """
    rows: list[SourceRow] = []
    said: list[str] = []
    own: list[str] = []
    foreign = False
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
            item = item_at(book.txn, book.scope, owner, seq)
            found.append(by_of_item(item))
            if found[-1] == "user":
                texts, more = own_texts(item.message)
                own += texts
                foreign |= more
            newest_ms = max(newest_ms or 0, int(item.created_at * 1000))
        by = weakest(found)
        said.append(by)
        rows += [
            SourceRow(number, source.session, owner, root, tuple(seqs), by)
            for owner, seqs in by_owner.items()
        ]
    if not rows:
        return _Cited((), None, None)
    if (own or foreign) and is_pasted(text, own, foreign=foreign):  # not the user's words
        said.append("import")
    by = weakest(said)
    lowered = [row._replace(by=by) if is_weaker(by, row.by) else row for row in rows]
    return _Cited(tuple(lowered), by, newest_ms)


def _history(book: Book, drafts: SessionTxns, name: str) -> tuple[int, int, History]:
    """Return the number of a session, that of the root of its forks, and its live history.

    Raises:
        NotFoundError: there is no such session in the scope.
    """
    txn, scope = book.txn, book.scope
    number = names.session_of(txn, scope, name)
    key, value = b"", None
    if number is not None:
        drafts.flush_opened(txn, scope, number)
        key = head_key(scope, number)
        value = txn.get(key)
    if number is None or value is None:
        msg = f"source: there is no session {name[:80]!r}"
        raise NotFoundError(msg)
    head = Head.unpack(key, value)
    root = root_of(txn, scope, number, parent=head.parent_session)
    return number, root, History(head.all_segments(txn, scope))


def _trust(stated: str | None, cited: _Cited, *, is_limit: bool) -> str:
    """Return the trust in a statement: that of its weakest source, or lower if so stated.

    ``is_limit``: sources may be weaker than what is stated.

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
    if is_limit:
        return weakest((cited.by, stated))
    if is_weaker(cited.by, stated):
        msg = f"by: the weakest cited item is of trust {cited.by!r}, which cannot be {stated!r}"
        raise InvalidOptionError(msg)
    return stated


def _with_trust(rows: Iterable[SourceRow], by: str) -> tuple[SourceRow, ...]:
    return tuple([row if row.by == by else row._replace(by=by) for row in rows])


# --- Remembering ----------------------------------------------------------------------------------


def begin_change(book: Book, now_ms: int) -> EntryHead:
    """Return the head with the time of this change: never before that of the last one."""
    head = read_head(book.txn, book.scope)
    return EntryHead(head.next_id, max(head.last_ms, now_ms))


def next_version(known: MemoryVersion, now_ms: int, **values: Any) -> MemoryVersion:
    """Return the next version of an entry: never recorded before the one that it follows."""
    recorded_ms = max(known.recorded_ms, now_ms)
    return known._replace(version=known.version + 1, recorded_ms=recorded_ms, **values)


def _need_future(values: Mapping[str, Any], now_ms: int) -> None:
    at_ms = values.get("expires_ms")
    if at_ms is not None and at_ms <= now_ms:
        msg = f"expires_at: expected a time in the future, got {at_ms / 1000!r}"
        raise InvalidOptionError(msg)


def remember(book: Book, drafts: SessionTxns, said: Statement, now_ms: int) -> MemoryVersion:
    """Store a statement, or support one of the same wording; return the entry.

    What was forgotten stays forgotten, unless an operator says it again: its tombstone is returned.

    Raises:
        NotFoundError, InvalidOptionError: a source does not exist, or does not suffice; or its
            expiry is past.
        OptedOutError
    """
    need_wanted(book.txn, book.scope)
    _need_future(said.values, now_ms)
    text = said.text or ""
    contents = [
        _spelt(each) for name in ("attributes", "labels") if (each := said.values.get(name))
    ]
    cited = cite(book, drafts, said.sources, " ".join([text, *contents]))
    by = _trust(said.by, cited, is_limit=said.is_limit)
    head = begin_change(book, now_ms)
    values = dict(said.values)
    if values.get("observed_ms") is None:
        values["observed_ms"] = cited.newest_ms
    new = MemoryVersion(
        id=head.next_id,
        version=1,
        by=by,
        status="active" if by in ACTIVE_BY else "quarantined",
        recorded_ms=now_ms,
        text=text,
        sources=_with_trust(cited.rows, by)[:SOURCES_MAX],
        **values,
    )
    stone, same = _alike(book, new, now_ms)
    if same is not None:
        return _support(book, head, same, new, now_ms)
    if stone is not None and by != "operator":
        return stone
    found: MemoryVersion = new
    beside: tuple[_Change, ...] = ()
    if by in ACTIVE_BY:
        found, beside = _placed(book, new, now_ms, force=False)
    write_head(book.txn, book.scope, EntryHead(head.next_id + 1, head.last_ms))
    return _write(book, found, None, beside)


def _alike(
    book: Book, new: MemoryVersion, now_ms: int
) -> tuple[MemoryVersion | None, MemoryVersion | None]:
    """Return the tombstone of a text, and the other living entry that says the same, if any.

    What was true until some time past is not the same as what is said to be true now.
    """
    stone = same = None
    end = clearing_end(book.txn, book.scope)  # what is being removed is of no account
    for number in with_digest(book, new.text):
        known = None if not end <= number != new.id else read_entry(book.txn, book.scope, number)
        if known is None:
            continue
        ended_ms = None if known.valid_to_ms == new.valid_to_ms else known.valid_to_ms
        if known.is_gone:
            stone = known
        elif (
            known.status in _LIVING
            and not (known.is_summary or known.is_file)
            and known.is_visible(now_ms)
            and (ended_ms is None or ended_ms > now_ms)
            and (known.kind, known.subject, known.slot) == (new.kind, new.subject, new.slot)
        ):
            same = known
    return stone, same


def _support(
    book: Book, head: EntryHead, known: MemoryVersion, new: MemoryVersion, now_ms: int
) -> MemoryVersion:
    """Add the sources of an equal statement to an entry, and store what is said by the stronger.

    Text, attributes, labels and trust come from one statement. A stronger one takes the place of
    the known one with all of them; one that is not stronger is one more source, which holds the
    wording. The expiry is that of the last statement that was not weaker.
    """
    said = {"attributes": new.attributes, "labels": new.labels}
    same = () if is_weaker(new.by, known.by) else held_alike(known, said)
    sources = merged_sources(known.sources, held_by(new.sources, ("text", *same)))
    stated = [by for by in (stated_by(known), stated_by(new)) if by is not None]
    unsourced = min(stated, key=BY.index) if stated and sources else None
    is_stronger = is_weaker(known.by, new.by)
    found = known._replace(sources=sources, unsourced=unsourced)
    if is_stronger:
        sources = merged_sources(held_by(known.sources, ("text",)), new.sources)
        found = new._replace(id=known.id, version=known.version, recorded_ms=known.recorded_ms,
            status=known.status, sources=sources, unsourced=unsourced, uses=known.uses,
            merger=known.merger,
        )  # fmt: skip
        found = told_itself(found, SHARED)
        if known.status == "active":  # its place in a slot stays
            span = known.valid_from_ms, known.valid_to_ms
            found = found._replace(valid_from_ms=span[0], valid_to_ms=span[1])
    elif new.by == known.by:
        found = found._replace(expires_ms=new.expires_ms)
    if known.extractor == TOOLS_BY != new.extractor:  # it is no longer the model's alone
        found = found._replace(extractor=new.extractor)
    beside: tuple[_Change, ...] = ()
    if known.status != "active" and found.by == new.by and new.by in ACTIVE_BY:
        found, beside = _placed(book, found, now_ms, force=False)
    if is_same(found, known):
        return known
    write_head(book.txn, book.scope, head)
    return _write(book, next_version(found, now_ms), known, beside)


_Change = tuple[MemoryVersion, MemoryVersion]
"""An entry before and after."""


def _write(
    book: Book, after: MemoryVersion, before: MemoryVersion | None, beside: Iterable[_Change]
) -> MemoryVersion:
    for old, new in beside:
        write_entry(book, new, old)
    if before is not None and after.expires_ms != before.expires_ms:
        _expire_with(book, after, after.expires_ms)
    return write_entry(book, after, before)


def _expire_with(book: Book, record: MemoryVersion, expires_ms: int | None) -> None:
    """Let the members of a united memory expire when it does: no sooner, and no later."""
    todo = living_members(book.txn, book.scope, record)
    while todo:
        each = todo.pop()
        todo += living_members(book.txn, book.scope, each)
        write_entry(book, each._replace(expires_ms=expires_ms), each)


# --- Slots: one value at any time -----------------------------------------------------------------


def _placed(
    book: Book, new: MemoryVersion, now_ms: int, *, force: bool
) -> tuple[MemoryVersion, tuple[_Change, ...]]:
    """Make a statement active, and end the values of its slot that it replaces.

    A statement that is weaker than the value in force waits in quarantine. One that was true before
    the value in force began is superseded from the start. ``force``: it becomes the value from now
    on, unless it has ended.

    Returns:
        The statement with its status, and the other entries that change.
    """
    if new.slot is None:
        is_so = new.status == "active" and new.superseded_by is None
        return new if is_so else new._replace(status="active", superseded_by=None), ()
    others = _timeline(book, new, now_ms)
    current = next((each for each in others if each.status == "active"), None)
    last = max((_start(each, now_ms) for each in others), default=now_ms)
    begins = new.valid_from_ms
    soonest = max(now_ms, last)
    if begins is None or (
        force and begins < last and (new.valid_to_ms is None or new.valid_to_ms > soonest)
    ):
        begins = soonest
    before = [
        each for each in others if _start(each, now_ms) <= begins and _holds_after(each, begins)
    ]
    later = [each for each in others if _start(each, now_ms) > begins]
    rivals = before if current is None or not _holds_after(current, begins) else [*before, current]
    if not force and any(is_weaker(new.by, each.by) for each in rivals if each.is_visible(now_ms)):
        return new._replace(status="quarantined"), ()
    found = new._replace(status="active", valid_from_ms=begins, superseded_by=None)
    if later:
        following = min(later, key=lambda each: (each.valid_from_ms or 0, each.id))
        ends = following.valid_from_ms
        if new.valid_to_ms is not None and ends is not None:
            ends = min(ends, new.valid_to_ms)
        found = found._replace(status="superseded", valid_to_ms=ends, superseded_by=following.id)
    changed = {each.id: (each, _ended(each, begins, new.id, now_ms)) for each in before}
    if current is not None and current.id not in changed and not later:
        changed[current.id] = current, _ended(current, begins, new.id, now_ms)
    return found, tuple(changed.values())


def _start(record: MemoryVersion, now_ms: int) -> int:
    """Return the time from which a value holds; now if a clock that was ahead wrote it as begun."""
    start = record.valid_from_ms or 0
    return now_ms if now_ms < start <= record.recorded_ms else start


def _holds_after(record: MemoryVersion, at_ms: int) -> bool:
    return record.valid_to_ms is None or record.valid_to_ms > at_ms


def _timeline(book: Book, new: MemoryVersion, now_ms: int) -> list[MemoryVersion]:
    """Return the other values of a slot, the newest first, as far as they matter to a new one.

    The active value began last: one that begins later has to do with none before it.
    """
    assert new.slot is not None  # noqa: S101 - checked by the caller
    found: list[MemoryVersion] = []
    end = clearing_end(book.txn, book.scope)
    # A clock that went back puts a value that begins now before those that were said to begin.
    begins = now_ms if new.valid_from_ms is None else new.valid_from_ms
    for number in with_slot(book, new.subject, new.slot):
        each = None if not end <= number != new.id else read_entry(book.txn, book.scope, number)
        if each is None or each.status not in TIMELINE:
            continue
        found.append(each)
        if each.status == "active" and begins >= (each.valid_from_ms or 0):
            break
    return found


def _ended(record: MemoryVersion, at: int, by: int, now_ms: int) -> MemoryVersion:
    """Return the next version of a value that another one replaces at a time."""
    ends = at if record.valid_to_ms is None else min(at, record.valid_to_ms)
    if record.valid_from_ms is not None:
        ends = max(ends, record.valid_from_ms)
    return next_version(record, now_ms, status="superseded", valid_to_ms=ends, superseded_by=by)


# --- Changes of an entry --------------------------------------------------------------------------


def _need(book: Book, number: int, now_ms: int) -> MemoryVersion:
    """Read an entry that can still change.

    Raises:
        NotFoundError: there is none, it was forgotten, or it has expired.
        InvalidOptionError: it is a file.
    """
    found = read_entry(book.txn, book.scope, number)
    if found is None or found.is_gone or not found.is_visible(now_ms):
        what = "there is no memory" if found is None else "the user's memory no longer holds"
        msg = f"{what} {number}"
        raise NotFoundError(msg)
    if found.is_file:
        msg = f"memory {number} is a file that a model edits: only its tool changes it"
        raise InvalidOptionError(msg)
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

    A new text comes with its own source and trust, and so do attributes and labels. It cannot be
    weaker than what it replaces.

    Raises:
        NotFoundError: there is no such memory, or no such source.
        RevisionConflict: it is at another version.
        InvalidOptionError: it is superseded, or a rolling summary; what is new has no source or
            less trust; its text was forgotten, or another memory says the same; or its expiry is
            past.
        OptedOutError
    """
    need_wanted(book.txn, book.scope)
    _need_future(said.values, now_ms)
    known = _need(book, number, now_ms)
    _need_version(known, expected)
    if known.is_summary:
        msg = f"memory {number} is a rolling summary: only extend() changes it"
        raise InvalidOptionError(msg)
    if known.status == "superseded":
        msg = f"memory {number} is superseded: it says what was true; remember a new one"
        raise InvalidOptionError(msg)
    found = _told(book, drafts, known, said)
    _check_span(found)
    if is_same(found, known):
        return known
    if said.text is not None:
        _need_new(book, found, now_ms)
    head = begin_change(book, now_ms)
    found = next_version(found, now_ms)
    beside: tuple[_Change, ...] = ()
    if known.status == "quarantined" and found.by in ACTIVE_BY and said.text is not None:
        found, beside = _placed(book, found, now_ms, force=False)
    write_head(book.txn, book.scope, head)
    return _write(book, found, known, beside)


def _told(book: Book, drafts: SessionTxns, known: MemoryVersion, said: Statement) -> MemoryVersion:
    """Return an entry with what is said of it instead.

    Raises:
        NotFoundError: a source does not exist.
        InvalidOptionError: what is new has no source, or less trust than what it replaces.
    """
    contents = [each for name in ("attributes", "labels") if (each := said.values.get(name))]
    if said.text is None and not (contents or said.sources or said.by):
        return told_itself(known._replace(**said.values), said.values)
    words = [said.text] if said.text is not None else []
    cited = cite(book, drafts, said.sources, " ".join([*words, *map(_spelt, contents)]))
    by = _trust(said.by, cited, is_limit=said.is_limit)
    if known.status in ("active", "archived") and is_weaker(by, known.by):
        msg = f"by: what {by!r} says does not replace what {known.by!r} said"
        raise InvalidOptionError(msg)
    if said.text is None:  # the text rests on what it rested on
        by = weakest((by, known.by))
        names = [name for name in HOLDS if said.values.get(name) is not None]
        same = held_alike(known, said.values)
        changed = [name for name in names if name not in same]
        kept = held_by(known.sources, [name for name in HOLDS if name not in changed])
        rows = held_by(_with_trust(cited.rows, by), [*changed, *same])
        sources = merged_sources(kept, rows)
        unsourced = stated_by(known) if sources else None
        found = known._replace(by=by, sources=sources, unsourced=unsourced, **said.values)
        return told_itself(found, said.values)
    if known.by not in ACTIVE_BY and is_weaker(known.by, by):  # nobody vouches for the rest of it
        known = told_itself(known._replace(**BARE), SHARED)
    details = [name for name in ("attributes", "labels") if said.values.get(name) is None]
    stays = [name for name in details if getattr(known, name)]
    rest = held_by([row for row in known.sources if row.holds], stays)
    rows = held_by(
        _with_trust(cited.rows, by)[:SOURCES_MAX], [name for name in HOLDS if name not in stays]
    )
    told = {
        "text": said.text, "by": by, "sources": merged_sources(rows, rest),
        "unsourced": by if rest and not rows else None, "promoted_by": None,
        "observed_ms": cited.newest_ms,
    }  # fmt: skip
    return told_itself(known._replace(**{**told, **said.values}), {"text", *said.values})


def _spelt(value: Any) -> str:
    """Return the words of a JSON value."""
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_spelt(each)}" for name, each in value.items())
    return " ".join(map(_spelt, value)) if isinstance(value, list | tuple) else str(value)


def _need_new(book: Book, found: MemoryVersion, now_ms: int) -> None:
    """Refuse a text that was forgotten, or that another memory has.

    Raises:
        InvalidOptionError
    """
    stone, same = _alike(book, found, now_ms)
    if same is not None:
        msg = f"text: memory {same.id} says the same; forget one of them"
        raise InvalidOptionError(msg)
    if stone is not None and found.by != "operator":
        msg = f"text: it was forgotten as memory {stone.id}; only by='operator' brings it back"
        raise InvalidOptionError(msg)


def _check_span(record: MemoryVersion) -> None:
    start, stop = record.valid_from_ms, record.valid_to_ms
    if start is not None and stop is not None and stop <= start:
        msg = f"valid_to: memory {record.id} is valid from {start / 1000} on, got {stop / 1000}"
        raise InvalidOptionError(msg)
    if record.slot is not None and start is None and stop is not None:
        msg = (
            f"valid_to: nobody said from which time on memory {record.id} is the value of its slot"
        )
        raise InvalidOptionError(msg)


def promote(book: Book, number: int, by: str, now_ms: int) -> MemoryVersion:
    """Release an entry from quarantine; return it. The audit records it.

    Raises:
        NotFoundError: there is no such memory, or it has expired.
        InvalidOptionError: it is superseded.
        OptedOutError
    """
    need_wanted(book.txn, book.scope)
    known = _need(book, number, now_ms)
    if known.status == "active":
        return known
    if known.status == "superseded":
        msg = f"memory {number} is superseded: another value has taken its place"
        raise InvalidOptionError(msg)
    head = begin_change(book, now_ms)
    trust = "confirmed" if is_weaker(known.by, "confirmed") else known.by
    new = next_version(known, now_ms, by=trust, promoted_by=by)
    found, beside = _placed(book, new, now_ms, force=True)
    record_event(book.txn, book.scope, "promote memory", {"memory": number})
    write_head(book.txn, book.scope, head)
    return _write(book, found, known, beside)


# --- Removal: a tombstone stays, the text goes from every row -------------------------------------


def forget_entry(
    book: Book, number: int, reason: str | None, now_ms: int, *, for_good: bool = True
) -> MemoryVersion:
    """Remove an entry and its versions; return the tombstone.

    The tombstone holds the id and keyed digests of the texts, so that they do not come back; unless
    it is ``for_good``, no digests, and they may be remembered again.

    With a united memory go its members. One of them does not go alone: its words would stay.

    Raises:
        NotFoundError: there never was such a memory.
        InvalidOptionError: it is a directory, and files are in it; or it was united with others:
            the message names the united memory.
        HeldError: a legal hold covers it, or a session that it rests on.
    """
    known = read_entry(book.txn, book.scope, number)
    if known is None:
        msg = f"there is no memory {number}"
        raise NotFoundError(msg)
    if known.is_gone:
        return known
    _need_empty(book, known)
    if _is_member(book, known):
        msg = (
            f"memory {number} was united with others: forget the united memory, "
            f"{known.superseded_by}"
        )
        raise InvalidOptionError(msg)
    write_head(book.txn, book.scope, begin_change(book, now_ms))
    todo, found = [known], known
    while todo:  # with it goes what it was united from
        each = todo.pop()
        todo += living_members(book.txn, book.scope, each)
        stone = _forgotten(book, each, reason, now_ms, for_good=for_good)
        found = stone if each is known else found
    return found


def _need_empty(book: Book, known: MemoryVersion) -> None:
    """Refuse to remove a directory with files in it, which would then be in none.

    Raises:
        InvalidOptionError
    """
    slot = known.slot or ""
    if not (known.is_file and known.status == "quarantined" and slot.endswith("/")):
        return
    for number in with_slot(book, FILES_SUBJECT, ""):
        each = read_entry(book.txn, book.scope, number)
        if each is not None and each.id != known.id and (each.slot or "").startswith(slot):
            msg = f"memory {known.id} is a directory: delete or forget what is in it first"
            raise InvalidOptionError(msg)


def _forgotten(
    book: Book, known: MemoryVersion, reason: str | None, now_ms: int, *, for_good: bool
) -> MemoryVersion:
    number = known.id
    versions = versions_of(book.txn, book.scope, number)
    for session in _sessions_of(known, *versions):
        need_free(book.txn, book.scope, session, what=f"memory {number}")
    texts = sorted({each.text for each in (known, *versions)}) if for_good else []
    digests = {text_digest(book.seed, book.scope, text).hex() for text in texts}
    record_event(book.txn, book.scope, "forget memory", {"memory": number})
    stone = _stone(known, now_ms)._replace(reason=reason, digests=tuple(sorted(digests)))
    write_entry(book, stone, known, versions=(versions, []))
    return stone


def _is_member(book: Book, record: MemoryVersion) -> bool:
    """Return True if an entry was united with others into one that is still there."""
    if record.superseded_by is None:
        return False
    with suppress(CorruptValueError):  # check() reports it
        above = read_entry(book.txn, book.scope, record.superseded_by)
        return (
            above is not None
            and not above.is_gone
            and above.merger is not None
            and record.id in above.merger.members
        )
    return False


def _sessions_of(*records: MemoryVersion) -> list[int]:
    """Return the sessions that versions rest on, and 0, whose hold covers everything."""
    rows = [row for each in records for row in each.sources]
    return sorted({0, *(row.session for row in rows), *(row.owner for row in rows)})


def rests_on_hold(txn: ReadTxn, scope: int, *records: MemoryVersion) -> bool:
    """Return True if a legal hold covers the scope, or a session that one of the records cites."""
    return any(is_held(txn, scope, each) for each in _sessions_of(*records))


def is_kept(txn: ReadTxn, scope: int, number: int) -> bool:
    """Return True if a legal hold keeps an entry from expiring."""
    known = read_entry(txn, scope, number)
    if known is None:
        return False
    versions = versions_of(txn, scope, number)
    return rests_on_hold(txn, scope, known, *versions, *living_members(txn, scope, known))


def _stone(known: MemoryVersion, now_ms: int) -> MemoryVersion:
    """Return the tombstone of an entry."""
    return MemoryVersion(
        id=known.id,
        version=known.version + 1,
        kind=known.kind,
        by=known.by,
        status="forgotten",
        recorded_ms=max(known.recorded_ms, now_ms),
    )


def expire_entry(book: Book, number: int, now_ms: int) -> bool | None:
    """Remove an entry that has expired; it may be remembered again.

    Returns:
        True if it was removed, False if it is not due, None if a legal hold keeps it.
    """
    known = read_entry(book.txn, book.scope, number)
    if known is None or known.is_gone or known.is_visible(now_ms):
        return False
    versions = versions_of(book.txn, book.scope, number)
    members = living_members(book.txn, book.scope, known)
    if rests_on_hold(book.txn, book.scope, known, *versions, *members):
        return None
    head = begin_change(book, now_ms)
    write_head(book.txn, book.scope, head)
    stone = _stone(known, now_ms)._replace(reason="expired")
    write_entry(book, stone, known, versions=(versions, []))
    return True


def forget_items(
    book: Book, session: int, now_ms: int, *, seqs: Iterable[int] | None = None
) -> int:
    """Take items of a session from all memories; return how many memories went with them.

    Whoever removes or rewrites items calls this in the same transaction. A memory that rests on
    them alone is forgotten, with all its versions; any other loses the source, with the trust and
    all else that only this source gave it. Nothing keeps it from being learned again from
    elsewhere. What rests on a session under a legal hold stays.

    Args:
        book: the scope's memory.
        session: number of the session that is deleted, or that owns the items.
        now_ms: the time.
        seqs: the items; None: the whole session, as which others may cite items of its parent.
    """
    txn, scope = book.txn, book.scope
    gone = None if seqs is None else frozenset(seqs)
    first_gone = None if gone is None else min(gone, default=NUMBER_END)
    count = 0
    for summary in summaries_over(txn, scope, session, first_gone):
        count += _forget_summary(book, summary, now_ms)
    if gone is None:
        uncover_session(txn, scope, session)
        forget_outcomes(book, session)
        forget_jobs(book, session)
        numbers = with_source(txn, scope, session)
        cut = partial(_cut_session, book, session)
    else:
        first = next(
            iter(txn.scan(source_rows(scope, session), source_rows(scope, session + 1), limit=1)),
            None,
        )
        if first is None:
            return count
        numbers = sorted({n for seq in gone for n in with_source(txn, scope, session, seq)})
        cut = partial(_cut_items, {session: gone})
    todo = set(numbers)
    while todo:
        number = min(todo)  # what was united before that in which it was united
        todo.remove(number)
        with suppress(CorruptValueError):  # check() reports it; items can be removed all the same
            known = read_entry(txn, scope, number)
            if known is None or known.is_gone:
                continue
            count += _strip(book, known, cut, now_ms)
            if known.superseded_by is not None and known.superseded_by > number:
                todo.add(known.superseded_by)
    return count


def would_forget(
    book: Book,
    session: int,
    *,
    seqs: Collection[int] | None = None,
    also: Mapping[int, Collection[int]],
) -> list[int]:
    """Return the ids of the memories that ``forget_items`` would forget, in their order.

    ``also``: items by session that would be gone before.
    """
    txn, scope = book.txn, book.scope
    first = None if seqs is None else min(seqs, default=NUMBER_END)
    found = []
    summaries = summaries_over(txn, scope, session, first)
    for number in summaries:
        with suppress(CorruptValueError):
            known = read_entry(txn, scope, number)
            if known is not None and not known.is_gone and not rests_on_hold(txn, scope, known):
                found.append(number)
    start = source_rows(scope, session)
    if next(iter(txn.scan(start, keys.after(start), limit=1)), None) is None:
        return found
    if seqs is None:
        numbers = with_source(txn, scope, session)
        cut = partial(_cut_session, book, session)
    else:
        gone = frozenset(seqs)
        numbers = sorted({n for seq in gone for n in with_source(txn, scope, session, seq)})
        cut = partial(_cut_items, {**also, session: gone})
    todo = set(numbers) - set(summaries)
    while todo:
        number = min(todo)
        todo.remove(number)
        with suppress(CorruptValueError):
            known = read_entry(txn, scope, number)
            if known is None or known.is_gone:
                continue
            if known.superseded_by is not None and known.superseded_by > number:
                todo.add(known.superseded_by)
            if rests_on_hold(txn, scope, known):
                continue
            if left_of(known, cut, members_left(book, known, cut)) is None:
                found.append(number)
    return found


def _forget_summary(book: Book, number: int, now_ms: int) -> bool:
    """Remove a rolling summary that may hold words of removed items; return True if it is gone.

    Which of its words were theirs is unknown, so it goes as a whole, and the next one begins anew.
    Under a legal hold it stays, archived.
    """
    try:
        known = read_entry(book.txn, book.scope, number)
        versions = versions_of(book.txn, book.scope, number)
    except CorruptValueError:  # check() reports it; items can be removed all the same
        return False
    if known is None or known.is_gone:
        uncover(book.txn, book.scope, number)
        return False
    write_head(book.txn, book.scope, begin_change(book, now_ms))
    if rests_on_hold(book.txn, book.scope, known, *versions):
        if known.status != "archived":
            write_entry(book, next_version(known, now_ms, status="archived"), known)
        return False
    stone = _stone(known, now_ms)._replace(reason=_SOURCES_GONE)
    write_entry(book, stone, known, versions=(versions, []))
    return True


def _cut_session(book: Book, session: int, row: SourceRow) -> SourceRow | None:
    """Take a whole session; items of a parent under a hold are cited by the parent instead."""
    if row.session != session:
        return row
    if row.owner in (0, session) or not is_held(book.txn, book.scope, row.owner):
        return None
    found = ((name, number) for name, number in names.sessions(book.txn, book.scope))
    name = next((name for name, number in found if number == row.owner), row.name)
    return row._replace(session=row.owner, name=name)


def _cut_items(gone: Mapping[int, Collection[int]], row: SourceRow) -> SourceRow | None:
    if row.owner not in gone:
        return row
    left = tuple(seq for seq in row.seqs if seq not in gone[row.owner])
    return row._replace(seqs=left) if left else None


def _cut_lost(book: Book, row: SourceRow) -> SourceRow | None:
    left = tuple(seq for seq in row.seqs if is_stored(book.txn, book.scope, row, seq))
    return row._replace(seqs=left) if left else None


def _strip(book: Book, known: MemoryVersion, cut: Cut, now_ms: int) -> bool:
    """Take sources from an entry and its versions; return True if nothing is left of it.

    A version goes if its own statement has lost its sources, whoever else supported it.
    """
    txn, scope = book.txn, book.scope
    versions = versions_of(txn, scope, known.id)
    members = members_left(book, known, cut)
    left = [left_of(each, cut, members) for each in versions]
    current = left_of(known, cut, members)
    if current == known and left == versions:
        return False
    kept = [
        each
        for each, old in zip(left, versions, strict=True)
        if each is not None and each.text == old.text and not is_weaker(trust_left(each), old.by)
    ]
    write_head(txn, scope, begin_change(book, now_ms))
    if current is None:
        rest = [*kept, wordless(known, cut)]
        kept = [each for each in rest if each.sources and rests_on_hold(txn, scope, each)]
        if not kept:
            stone = _stone(known, now_ms)._replace(reason=_SOURCES_GONE)
            write_entry(book, stone, known, versions=(versions, []))
            return True
        held = kept.pop()._replace(version=known.version, status="archived", superseded_by=None)
        current = next_version(held, now_ms)
    elif known.merger is None and is_weaker(trust_left(current), known.by):
        current = next_version(_fallen(current, kept), now_ms)
    elif not _is_cut_of(current, known):
        current = next_version(current, now_ms)
    before = known
    if current.version > known.version:  # what the entry said until now does not become the past
        before = known._replace(version=current.version)
    write_entry(book, current, before, versions=(versions, kept))
    return False


def _is_cut_of(record: MemoryVersion, known: MemoryVersion) -> bool:
    """Return True if a version differs from another one only in sources that it lacks."""
    cited = {(row.session, row.owner) for row in known.sources}
    is_less = all((row.session, row.owner) in cited for row in record.sources)
    return is_less and record._replace(sources=known.sources) == known


def _fallen(record: MemoryVersion, kept: Iterable[MemoryVersion]) -> MemoryVersion:
    """Return an entry as the strongest statement that is left says it.

    That is an earlier version of the same wording. Without one, nothing but the wording is left.
    """
    by, said = trust_left(record), None
    for each in kept:
        same = normalised(each.text) == normalised(record.text)
        if same and is_weaker(each.by, record.by) and not is_weaker(each.by, by):
            by, said = each.by, each
    values = {name: getattr(said or record, name) for name in BARE}
    own = held_by_trust(record, record.by)
    if said is None:
        values = {**BARE, **{name: values[name] for name in own}}
    values["text"] = record.text if said is None else said.text
    rows = held_by(record.sources, ("text", *own) if said is None else ("text",))
    values["sources"] = rows if said is None else merged_sources(said.sources, rows)
    values["extractor"] = record.extractor if record.is_summary else values["extractor"]
    if record.status == "active" and by not in ACTIVE_BY:
        span = (None, None) if said is None else (said.valid_from_ms, said.valid_to_ms)
        values |= {"status": "quarantined", "valid_from_ms": span[0], "valid_to_ms": span[1]}
    return record._replace(by=by, **values)


def move_sources(book: Book, session: int, to: int, moved: Mapping[int, int]) -> None:
    """Let memories that cite a session cite the one that replaces it, under its items' new seqs.

    Items that the replacement does not have keep their old address; ``forget_items`` follows. Later
    forks are forks of the replacement, so it is the root of what the session was the root of.
    """
    root = root_after(book.txn, book.scope, session, to, 0)
    move_outcomes(book, session, to, root)
    move_jobs(book, session, to, moved)
    for number in with_source(book.txn, book.scope, session):
        known = read_entry(book.txn, book.scope, number)
        if known is None or known.is_gone:
            continue
        versions = versions_of(book.txn, book.scope, number)
        left = [_moved(each, session, (to, root), moved) for each in versions]
        current = _moved(known, session, (to, root), moved)
        if current != known or left != versions:
            write_entry(book, current, known, versions=(versions, left))


def _moved(
    record: MemoryVersion, session: int, after: tuple[int, int], moved: Mapping[int, int]
) -> MemoryVersion:
    """Return a version that cites the session that replaces one; ``after``: it and its root."""
    to, root = after
    rows: list[SourceRow] = []
    for source in record.sources:
        row = source if source.root != session else source._replace(root=root)
        if row.session != session:
            rows.append(row)
            continue
        stay = tuple(seq for seq in row.seqs if seq not in moved)
        went = tuple(sorted(moved[seq] for seq in row.seqs if seq in moved))
        if went:
            rows.append(row._replace(session=to, owner=to, seqs=went))
        if stay:
            rows.append(row._replace(seqs=stay))
    return record._replace(sources=tuple(rows))


# --- Redaction of what is stored ------------------------------------------------------------------


def texts_in(txn: ReadTxn, scope: int, number: int) -> Iterator[dict[str, Any]]:
    """Yield the texts of each version of an entry, as ``redact_entry`` has them redacted.

    Raises:
        CorruptValueError: a row is damaged.
    """
    known = read_entry(txn, scope, number)
    for each in () if known is None else (*versions_of(txn, scope, number), known):
        yield {name: getattr(each, name) for name in TOLD if getattr(each, name)}


def names_in(txn: ReadTxn, scope: int, number: int) -> list[str]:
    """Return subject and slot of an entry, which stay as they are.

    Raises:
        CorruptValueError: the row is damaged.
    """
    known = read_entry(txn, scope, number)
    return [] if known is None else [text for text in (known.subject, known.slot) if text]


def redact_entry(
    book: Book, number: int, redact: Callable[[Any], Any], *, write: bool = True
) -> bool | None:
    """Replace findings in the texts of an entry and of all its versions, in place.

    Subject and slot stay: they are looked up as they are.

    Args:
        book: the scope's memory.
        number: the entry.
        redact: returns JSON with its findings replaced; the same object without any.
        write: False: only return what would be done.

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
    if rests_on_hold(book.txn, book.scope, known, *versions):
        return None
    if write:
        write_entry(book, current, known, versions=(versions, earlier))
        record_event(book.txn, book.scope, "redact", {"memory": number})
    return True


def _redacted(record: MemoryVersion, redact: Callable[[Any], Any]) -> MemoryVersion:
    said = {name: getattr(record, name) for name in TOLD if getattr(record, name)}
    made = redact(said)
    record = record if made is said else record._replace(**made)
    if record.merger is not None and record.merger.merge:  # rules are named as attributes are
        named = {"attributes": dict(record.merger.merge)}
        found = redact(named)
        if found is not named:
            merger = record.merger._replace(merge=found["attributes"])
            record = record._replace(merger=merger)
    return record


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
    summaries = {each.id for each in known.values() if each.is_summary}
    for number in sorted(summaries.union(summaries_in(txn, scope))):
        lost += _forget_summary(book, number, now_ms)  # which of its rows were lost is unknown
        known.pop(number, None)
    for each in known.values():
        if not each.is_gone:
            lost += _strip(book, each, partial(_cut_lost, book), now_ms)
    _settle_slots(book)
    for each, _ in list(files_twice(entries(txn, scope))):
        write_entry(book, each._replace(status="archived"), each)
    mend_playbooks(book)
    mend_jobs(book, now_ms)
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
                waiting = each._replace(status="quarantined", superseded_by=None)
                write_entry(book, waiting, each)
            else:
                taken = rest
