"""Append and delete events, each in one commit with its state changes; rewinds; turns.

Rows of deleted events remain as empty placeholders of their kind, as for expired items, which keeps
numbering, prefix hashes, views and forks valid; their texts, calls and results are removed.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from functools import lru_cache, partial
from threading import RLock
from typing import Any, Final, NamedTuple

from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.session import Session as AdkSession
from google.adk.sessions.session import Session as SessionTurns

from memcore import blobs
from memcore.adapters.adk.commit import in_thread
from memcore.adapters.adk.compaction import Span, covered_once, present
from memcore.adapters.adk.events import (
    COVERS,
    EVENT,
    REST,
    Copies,
    Encoded,
    Pairs,
    Stored,
    Told,
    encode_event,
    marker_in,
    marker_of,
    rewound_spans,
)
from memcore.adapters.adk.history import Entry, EventCache, History, lacks_ids, size_of
from memcore.adapters.adk.names import fields_of, state_of
from memcore.aio.commit import commit_to, settled
from memcore.audit import record_event
from memcore.blobs import StagedBlobLost
from memcore.codec import keys
from memcore.codec import values as codec
from memcore.codec.keys import Row
from memcore.codec.values import FLAG_PLAIN_JSON, encode_json
from memcore.errors import (
    CorruptValueError,
    DuplicateRequestError,
    InvalidItemError,
    NotFoundError,
    OutpacedError,
    StorageError,
)
from memcore.limits import ENVELOPE_TEXT_CHARS_MAX, META_BYTES_MAX
from memcore.log import CachedSession, Prepared, find_request, record_request, request_of
from memcore.log.history import StoredRow, sound
from memcore.log.read import opened
from memcore.log.rewrite import Rewriting, plan_rewriting
from memcore.log.session_txn import SessionTxn
from memcore.model import Envelope, ItemKind
from memcore.records import record
from memcore.rows.item import Json, split_body
from memcore.rows.lifecycle import need_free
from memcore.session import Session
from memcore.session.append import (
    STAGE_ATTEMPTS,
    ItemOptions,
    encode_items,
    stage,
)
from memcore.session.append import encode_event as encode_event_row
from memcore.session.change import Change, Unchanged
from memcore.session.engine import Engine, SessionRef
from memcore.session.read import head_of, read_log
from memcore.session.rewrite import Rewritten, family_of, rewrite_planned, shown_instead
from memcore.session.session import ref_of, store_of
from memcore.state import (
    APP,
    USER,
    Delete,
    counter_before,
    drop_inherited,
    drop_version,
    read_header,
    value_at,
)
from memcore.store.interface import ReadTxn, Txn
from memcore.wire.expire import expired_event, expired_message

__all__ = [
    "Appended",
    "DeleteEvents",
    "StoreEvent",
    "Storing",
    "Turn",
    "Turns",
    "View",
    "delete_invocation",
    "rewound",
]


# --- Deletion of an invocation: its events in one commit, without splitting pairs -----------------

_ATTEMPTS: Final = 8
_NOW: Final = 2**62
"""Greater than any counter of the state."""
_EMPTY: Final = "."
"""The replacement for a text; no text has fewer tokens."""
_SHARED: Final = (APP, USER, "temp:")


@record(slots=True)
class _Plan:
    """A plan for deleting an invocation, made on one snapshot."""

    scope: int
    session: int
    revision: int
    epoch: int
    events: int = 0
    rows: dict[int, list[Rewriting]] = field(default_factory=lambda: defaultdict(list))
    """Rows to rewrite, by the session that owns them."""
    own: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    """Keys of the session's state last changed by deleted events, with the seq of each such event
    and the value that it set."""
    found: dict[str, Json | None] = field(default_factory=dict)
    """The values of these fields when the values to restore were chosen."""
    versions: list[tuple[int, int, str, Any]] = field(default_factory=list)
    """Changes of the deleted events: the session whose state it was, counter, field and value."""


@record(slots=True)
class _Candidate:
    """An event considered for deletion."""

    rows: list[StoredRow]
    told: Told
    pairs: Pairs
    is_doomed: bool


def delete_invocation(engine: Engine, session: Session, invocation: str, *, rewinds: bool) -> int:
    """Delete the events of an invocation; return their number.

    Responses of other invocations to its calls are deleted, too, and so are events hidden by a
    rewind that would reappear without it.

    Args:
        engine: the engine of the open database.
        session: the session.
        invocation: the invocation's id.
        rewinds: for the session's own keys that it was the last to change, restore the values from
            before it.

    Raises:
        HeldError: the session, or one that shares the events, is under a legal hold.
        NotFoundError: the state before it is needed, but was trimmed or never stored.
        CorruptValueError: a row of the session is damaged.
        OutpacedError: others kept writing to the session.
    """
    for _ in range(_ATTEMPTS):
        plan = read_log(
            ref_of(session), lambda log, txn: _planned(log, txn, engine.seed, invocation), None
        )
        if plan is None or not plan.events:
            return 0
        if rewinds:
            names = {name for key in plan.own for name in fields_of({key: None})}
            plan.found = engine.store.read(partial(_values, plan=plan, names=names))
        else:
            plan.versions.clear()
        before = _before(session, plan)
        done = engine.store.transact(DeleteEvents(session, plan, before), makes_room=True)
        if done is not None:
            blobs.finish_leaving(engine.store, done)
            return plan.events
    msg = f"others wrote to the session {_ATTEMPTS} times while an invocation was to be deleted"
    raise OutpacedError(msg)


def _values(txn: ReadTxn, *, plan: _Plan, names: Iterable[str]) -> dict[str, Json | None]:
    """The JSON of fields of the session's own state; None for a field without a value."""
    found: dict[str, Json | None] = {}
    for name in names:
        version = value_at(txn, plan.scope, plan.session, name, _NOW)
        found[name] = None if version is None else Json(version.body, version.flags)
    return found


def _before(session: Session, plan: _Plan) -> dict[str, Any]:
    """The state fields with the changes of the deleted events undone.

    A value that none of these events set was written separately, without an event, and stays.
    """
    now = {name: Delete if told is None else told.value() for name, told in plan.found.items()}
    at: dict[int, dict[str, Any]] = {}
    found: dict[str, Any] = {}
    for key, changes in plan.own.items() if now else ():
        for seq, value in reversed(changes):
            ((name, left),) = fields_of({key: value}).items()
            current = found.get(name, now[name])
            if current is Delete or encode_json(current) != encode_json(left):
                break
            if seq not in at:
                at[seq] = _state_before(session, seq)
            found[name] = at[seq].get(name, Delete)
    return found


def _state_before(session: Session, seq: int) -> dict[str, Any]:
    try:
        return session.state.before(seq)
    except NotFoundError as exc:
        msg = (
            f"{exc}: nothing was deleted; rewind_state=False deletes, and leaves the state as it is"
        )
        raise NotFoundError(msg) from exc


class DeleteEvents(Change[list[bytes] | None]):
    """Delete the events of a plan; returns contents left to remove, or None on a conflict."""

    __slots__ = ("change", "plan", "session")
    creates = False
    atomic = True

    def __init__(self, session: Session, plan: _Plan, before: Mapping[str, Any]) -> None:
        self.session, self.plan, self.change = session, plan, None
        if before:
            self.change = session.state.plan()
            self.change.update(before)
        super().__init__(ref_of(session))

    def run(self, session: SessionTxn) -> Unchanged | None:
        """Compare the log with the plan, check legal holds, and restore the former state."""
        plan, txn = self.plan, session.txn
        # Rewriting rows in place changes only the epoch.
        if (session.head.revision, session.head.epoch) != (plan.revision, plan.epoch):
            return Unchanged(None)
        if _values(txn, plan=plan, names=plan.found) != plan.found:
            return Unchanged(None)
        # Rows are shared by the session that owns them and all sessions forked from it.
        for owner in {plan.session, *plan.rows}:
            for each in family_of(txn, plan.scope, owner):
                need_free(txn, plan.scope, each, what="the invocation")
        if self.change is not None:
            self.session.state.write(self.change, session)
        return None

    def done(self, session: SessionTxn, result: Any) -> list[bytes]:
        """Remove what the events set, and rewrite their rows, after the deletion's revision."""
        del result
        plan, txn, leaving = self.plan, session.txn, list[bytes]()
        # Else a later deletion could restore what this one undid.
        for state, counter, name, left in plan.versions:
            stored = (b"", 0) if left is Delete else encode_json(left)
            drop_version(txn, (plan.scope, state), name, counter, stored)
            if state != plan.session:  # the fork began with a copy of it
                drop_inherited(
                    txn, plan.scope, plan.session, name, stored, owner=state, counter=counter
                )
        for owner, rows in plan.rows.items():
            leaving += _rewrite(txn, self.ref.engine, (plan.scope, owner), rows).leaving
        record_event(txn, plan.scope, "delete", {"session": plan.session, "events": plan.events})
        return leaving

    def missing(self) -> None:
        """Do nothing: there is nothing to delete."""


def _rewrite(txn: Txn, engine: Engine, place: tuple[int, int], rows: list[Rewriting]) -> Rewritten:
    seqs = [keys.number_of(each.key) for each in rows]
    return rewrite_planned(
        txn,
        engine,
        *place,
        rows,
        views=lambda stored: shown_instead(
            stored, place[1], seqs, lambda message: expired_message(message, _EMPTY)
        ),
    )


def _planned(log: CachedSession, txn: ReadTxn, seed: bytes, invocation: str) -> _Plan:
    head = head_of(log)
    plan = _Plan(log.scope, log.place[1], head.revision, head.epoch)
    events = _candidates(log, txn, invocation)
    spans = rewound_spans([(each.told.invocation, each.told.rewinds_to) for each in events])
    while _doom_answers(events) or _doom_rewound(events, spans):
        pass
    for each in events:
        for key, value in each.told.delta.items():
            if not each.is_doomed:
                plan.own.pop(key, None)
            elif not key.startswith(_SHARED):
                plan.own.setdefault(key, []).append((each.rows[0][1], value))
        if not each.is_doomed:
            continue
        plan.events += 1
        owner, seq = log.history.locate(each.rows[0][0])
        before = counter_before(txn, log.scope, owner, seq)
        own = {key: value for key, value in each.told.delta.items() if not key.startswith(_SHARED)}
        if before is not None or not read_header(txn, log.scope, owner).floor:  # else it is unknown
            plan.versions += [(owner, (before or 0) + 1, *one) for one in fields_of(own).items()]
        for row in each.rows:
            _plan_row(plan, log, txn, seed, row)
    return plan


def _candidates(log: CachedSession, txn: ReadTxn, invocation: str) -> list[_Candidate]:
    """The events of the log; those of the invocation are marked for deletion."""
    found: list[_Candidate] = []
    before: StoredRow | None = None
    rest: Json | None = None
    for each in log.rows(txn, 0, log.history.count):
        row = sound(each)
        stored = Stored.of(txn, log.scope, row)
        if stored.rest() is not None:
            before, rest = row, stored.rest()
            continue
        if stored.is_event:
            told = stored.told(rest)
            rows = [row] if before is None else [before, row]
            is_doomed = told.invocation == invocation
            found.append(_Candidate(rows, told, stored.pairs(), is_doomed))
        before = rest = None
    return found


def _doom_answers(events: list[_Candidate]) -> bool:
    """Doom events that only answer doomed calls; return whether any were found."""
    calls: dict[str, bool] = {}
    is_more = False
    for each in events:
        answers, answered = each.pairs.answers_only, each.pairs.answered
        if answers and not each.is_doomed and all(calls.get(id_, False) for id_ in answered):
            each.is_doomed = is_more = True
        calls.update(dict.fromkeys(each.pairs.called, each.is_doomed))
    return is_more


def _doom_rewound(events: list[_Candidate], spans: Iterable[tuple[int, int]]) -> bool:
    """Doom rewound events that would reappear; return whether any were found.

    ADK hides the events from the first one of an invocation up to the rewind to it, and hides none
    if either of the two is deleted.
    """
    is_more = False
    for first, last in spans:
        if events[first].is_doomed or events[last].is_doomed:
            for each in events[first : last + 1]:
                is_more |= not each.is_doomed
                each.is_doomed = True
    return is_more


def _plan_row(plan: _Plan, log: CachedSession, txn: ReadTxn, seed: bytes, row: StoredRow) -> None:
    owner, seq = log.history.locate(row[0])
    item, _ = opened(txn, log.scope, row)
    value = txn.get(keys.session_row(log.scope, owner, Row.ITEM, seq))
    if value is None:
        msg = f"item {seq} is missing; run 'memcore check'"
        raise CorruptValueError(msg, key=b"")
    if item.kind == ItemKind.EVENT:
        left = expired_event(item.message)
    else:
        left = expired_message(item.message, _EMPTY)
    place = (log.scope, owner, seq)
    planned = plan_rewriting(place, value, (item.message, left), seed=seed, envelope=_without_meta)
    plan.rows[owner].append(planned)


def _without_meta(envelope: dict[str, Any]) -> dict[str, Any]:
    """The envelope of a placeholder: only its redaction mark, if any."""
    found: dict[str, Any] = {"meta": None, "request_id": None}
    told = envelope.get("envelope") or {}
    if "redacted" in told:
        found["envelope"] = {"redacted": told["redacted"]}
    return found


# --- Rewind of the state: restores the former values, initial ones included -----------------------
# ADK computes the change from the events alone, so it sets every key of the initial state to None.
# memcore knows the state before each item.

_SHARED_REWINDING: Final = ("app:", "user:", "temp:")


def rewound(
    delta: Mapping[str, Any], before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, Any]:
    """The state changes for a rewind, including the values that ADK could not find.

    Args:
        delta: ADK's own changes; None stands for a value that it could not find.
        before: the session's own state before the invocation.
        now: the current state.
    """
    right = dict(delta)
    for key, value in delta.items():
        then = None if value is not None or key.startswith(_SHARED_REWINDING) else before.get(key)
        if then is None:
            continue
        if key in now and encode_json(now[key]) == encode_json(then):
            del right[key]
        else:
            right[key] = then
    return right


# --- Storing an event: lookups in the log before, and the Session object after --------------------


class Storing:
    """The operation of storing one event in the log."""

    __slots__ = (
        "covered", "delta", "done", "encoded", "event", "is_stale", "merges", "rows", "session",
    )  # fmt: skip

    def __init__(self, session: Session, event: Event, *, merges: bool = False) -> None:
        if not math.isfinite(event.timestamp):
            msg = f"the timestamp of event {event.id} is {event.timestamp}: expected a finite one"
            raise InvalidItemError(msg)
        self.session = session
        self.event = event
        self.encoded = encode_event(event)
        self.merges = merges and self.encoded.is_state_only
        """True if a writer with a stale view may store it."""
        self.is_stale = False
        """True if its writer's view was stale."""
        self.covered: Span | None = None
        """For a compaction: the span of indexes that it covers in the writer's object."""
        self.delta: dict[str, Any] | None = None
        """The state changes of a rewind, replacing those in its event."""
        self.done: Appended | None = None
        """The outcome, valid if the enclosing commit succeeds."""
        self.rows: list[Prepared] = []

    @property
    def needs_history(self) -> bool:
        """True if the stored rows depend on the log's contents: compactions and rewinds."""
        actions = self.event.actions
        return actions.compaction is not None or bool(actions.rewind_before_invocation_id)

    @property
    def is_large(self) -> bool:
        """True if some of its content may have to be staged first."""
        return any(row.payload for row in self.rows)

    async def look(self, shown: AdkSession, cache: EventCache) -> None:
        """Look up what a compaction covers and the state that a rewind restores."""
        history = History(self.session, cache)
        if self.event.actions.compaction is not None:
            await self._cover(shown, history)
        if self.event.actions.rewind_before_invocation_id:
            await self._rewind(history)

    def plan(self, shown: AdkSession) -> StoreEvent:
        """Build the change that stores it; ``shown`` is the writer's Session object."""
        self.rows = encode_rows(ref_of(self.session), self.encoded)
        return StoreEvent(self, View.of(shown))

    async def _cover(self, shown: AdkSession, history: History) -> None:
        """Store the covered seqs with a compaction."""
        self.covered = covered_once(shown.events, self.event)
        found = history.look(len(shown.events)) if self.covered else None
        if found is None or self.covered is None:
            return
        entries = await history.entries(found)
        seqs = {entry.event.id: entry.seq for entry in entries if entry.event is not None}
        first, last = self.covered
        covered = (seqs.get(event.id) for event in shown.events[first : last + 1])
        lo = next((seq for seq in covered if seq is not None), None)  # a window may have gaps
        hi = seqs.get(shown.events[last].id)
        chain = None if hi is None else history.chain_at(hi)
        if lo is not None and chain is not None:
            self._identify(self.encoded.rest)
            self.encoded.rest[COVERS] = [lo, hi, f"{chain:016x}"]

    async def _rewind(self, history: History) -> None:
        """Add the state values that ADK could not find."""
        found = history.look(None)
        if found is None:
            return
        entries = await history.entries(found)
        events = [(entry.seq, entry.event) for entry in entries if entry.event is not None]
        goal = self.event.actions.rewind_before_invocation_id
        at = next((seq for seq, event in events if event.invocation_id == goal), None)
        actions = dict(self.encoded.rest["actions"])
        self._identify({**self.encoded.rest, "actions": {**actions, "stateDelta": {}}})
        if at is None:
            return
        before = state_of(self.session.state.before(at))
        self.delta = rewound(self.encoded.delta, before, found.state)
        actions["stateDelta"] = self.delta
        self.encoded = self.encoded._replace(
            rest={**self.encoded.rest, "actions": actions}, delta=self.delta
        )

    def _identify(self, rest: dict[str, Any]) -> None:
        """Fix the event's identity before memcore adds fields, which are not part of it."""
        if not self.encoded.identity:
            identity = encode_json([self.encoded.content, rest])[0]
            self.encoded = self.encoded._replace(identity=identity)

    async def commit_large(self, change: StoreEvent) -> Appended:
        """Store the event; very large content is first staged in a thread."""
        for _ in range(STAGE_ATTEMPTS):
            await settled(in_thread(stage, ref_of(self.session), self.rows))
            with suppress(StagedBlobLost):
                return await commit_to(store_of(self.session), change, large=True)
        msg = "large content was collected again and again before it could be referred to"
        raise StorageError(msg)

    async def is_last(self, cache: EventCache) -> bool:
        """Return whether it is the last event of the log."""
        history = History(self.session, cache)
        found = history.look(1)
        if found is None or self.done is None or found.marker != self.done.marker:
            return False
        events = [entry.event for entry in await history.entries(found) if entry.event is not None]
        return bool(events) and events[-1].id == self.event.id

    async def is_stored(self, cache: EventCache) -> bool:
        """Return whether the stored event with this id equals it, as stored or as presented."""
        history = History(self.session, cache)
        found = history.look(None)
        read = [] if found is None else await history.entries(found)
        entries = [entry for entry in read if entry.event is not None]
        events = [entry.event for entry in entries if entry.event is not None]
        given = self.encoded.event()
        if given in events:
            return True
        present(events, entries, mend=True)
        return given in events

    def remember(self, copies: Copies, cache: EventCache) -> None:
        """Cache a copy of the event for the next reader, if it certainly equals what is stored."""
        done = self.done
        if done is None or len(self.rows) != 1 or self.event.actions.compaction is not None:
            return
        if self.session.is_admitting:  # the stored event may be redacted
            return
        row = self.rows[0]
        if row.flags & FLAG_PLAIN_JSON:  # an unpaired surrogate decodes differently
            return
        copied = copies.as_stored(self.event, self.encoded)
        if copied is not None:
            size = size_of(copied, len(row.body) + len(row.payload or b""))
            entry = Entry(done.seq, copied, copied.timestamp, size, None, lacks_ids(copied))
            cache.extend(done.place, done.epoch, done.items - 1, (entry,))


# --- Storing an event: one commit with what it changes of the state -------------------------------

_STALE: Final = (
    "The session has been modified in storage since it was loaded: reload it before appending more "
    "events."
)


class Appended(NamedTuple):
    """The outcome of storing an event."""

    place: tuple[int, int]
    epoch: int
    revision: int
    """The session's revision after the append."""
    seq: int
    items: int
    """The number of live items, including this one."""
    is_new: bool
    """True if the writer's object has yet to be updated; False: it was stored before."""

    @property
    def marker(self) -> str:
        """The marker for the writer's object: the session at this revision."""
        return marker_of(self.place, self.revision)


class View(NamedTuple):
    """The version of the log that a Session object reflects, and so its writer has seen."""

    marker: str | None
    last_event_id: str | None

    @classmethod
    def of(cls, session: AdkSession) -> View:
        """The current view of an object."""
        marker = marker_in(session)
        return cls(marker, session.events[-1].id if marker is None and session.events else None)

    def again(self, draft: SessionTxn, revision: int) -> Appended:
        """The outcome for an event that was already stored, at that revision.

        On a retry after an outcome that never reached the writer, the object still reflects the log
        before the event.
        """
        before = marker_of(draft.log.place, revision - 1)
        return _done(draft, is_new=revision == draft.head.revision and self.marker == before)

    def is_current(self, draft: SessionTxn) -> bool:
        """Return whether the view reflects the latest revision of this session."""
        if self.marker is not None:
            return self.marker == marker_of(draft.log.place, draft.head.revision)
        return self.last_event_id == _last_event_id(draft)

    def is_of(self, draft: SessionTxn, seed: bytes) -> bool:
        """Return whether it is a view of this session, not of another one with the same name.

        Without a marker, the last event it reflects must belong to this session.
        """
        if self.marker is not None:
            return self.marker.startswith(marker_of(draft.log.place, 0)[:-1])
        if not self.last_event_id:
            return False
        request = request_of(self.last_event_id, (), seed=seed, ttl_ms=None)
        try:
            return find_request(draft, request, now_ms=0) is not None
        except DuplicateRequestError:  # stored here, with its content
            return True


def encode_rows(ref: SessionRef, encoded: Encoded) -> list[Prepared]:
    """The rows of an event.

    Raises:
        InvalidItemError: it is too large.
    """
    content, rest = encoded.content, encoded.rest
    told = _told(rest)
    if content is None:
        return [encode_event_row(ref, EVENT, rest, ItemOptions(None, *told))]
    try:
        return encode_items(ref, [content], ItemOptions({"adk": rest}, *told))
    except InvalidItemError:
        if len(codec.encode_json(rest)[0]) < META_BYTES_MAX // 2:
            raise
    first = encode_event_row(ref, REST, rest, ItemOptions())
    *before, item = encode_items(ref, [content], ItemOptions({"adk": None}, *told))
    return [*before, first, item]


class StoreEvent(Change[Appended]):
    """Store the rows of an event and its state changes, if the writer's view is current.

    Raises (when it is run):
        SessionNotFoundError, StaleSessionError
        DuplicateRequestError: another event has this id.
    """

    __slots__ = ("change", "items", "request", "seed", "storing", "view")
    creates = False
    atomic = True

    def __init__(self, storing: Storing, view: View) -> None:
        session, encoded = storing.session, storing.encoded
        self.storing, self.view, self.items = storing, view, storing.rows
        content = [encoded.identity] if encoded.identity else _content(storing.rows)
        self.seed = store_of(session).seed
        self.request = request_of(storing.event.id, content, seed=self.seed, ttl_ms=None)
        self.change = session.state.plan() if encoded.delta else None
        if self.change is not None:
            self.change.update(fields_of(encoded.delta))
        super().__init__(ref_of(session))

    def run(self, session: SessionTxn) -> Unchanged | None:
        """Append the rows, unless the event is already stored."""
        storing, view = self.storing, self.view
        first = find_request(session, self.request, now_ms=0)
        if first is not None:
            return Unchanged(view.again(session, first.revision))
        storing.is_stale = not view.is_current(session)
        if storing.is_stale and not (storing.merges and view.is_of(session, self.seed)):
            raise StaleSessionError(_STALE)
        if self.change is not None:
            storing.session.state.write(self.change, session, ahead=len(self.items))
        session.append(self.items, orphans="keep")
        return None

    def done(self, session: SessionTxn, result: Any) -> Appended:
        """Record the event's id; return the outcome for the writer's object."""
        del result
        record_request(session, self.request, session.receipt(len(self.items)), now_ms=0)
        self.storing.done = _done(session, is_new=True)
        return self.storing.done

    def missing(self) -> Appended:
        """Refuse to create the session.

        Raises:
            SessionNotFoundError: always.
        """
        msg = f"Session {self.ref.name} not found."
        raise SessionNotFoundError(msg)


def _told(rest: dict[str, Any]) -> tuple[str | None, Envelope | None]:
    """The request id and envelope of an event; None for both if its names do not fit."""
    author, invocation = rest.get("author"), rest.get("invocationId")
    if not (author and invocation) or len(author) > ENVELOPE_TEXT_CHARS_MAX:
        return None, None
    return invocation, _envelope_of(author)


@lru_cache(256)
def _envelope_of(author: str) -> Envelope:
    """Return a cached envelope: envelopes are immutable, and a session has few authors."""
    return Envelope(author=author)


def _done(draft: SessionTxn, *, is_new: bool) -> Appended:
    head = draft.head
    return Appended(
        draft.log.place, head.epoch, head.revision, draft.last_seq, head.count, is_new=is_new
    )


def _content(rows: list[Prepared]) -> list[bytes]:
    """The parts of an event that must match on a retry, for its request digest."""
    content: list[bytes] = []
    for row in rows:
        _, _, envelope, rest = split_body(row.body)
        content += (envelope, rest if row.payload is None else row.payload)
    return content


def _last_event_id(draft: SessionTxn) -> str | None:
    """The id of the last stored event; None if there is none."""
    count = 2
    while True:
        found = draft.last_rows(min(count, draft.count))
        rows = [Stored.of(draft.txn, draft.log.scope, row) for row in found]
        for at in range(len(rows) - 1, -1, -1):
            if rows[at].is_event and (at or not rows[at].is_split):
                rest = rows[at - 1].rest() if at else None
                return str(rows[at].said(rest).get("id"))
        if count >= draft.count:
            return None
        count *= 8


# --- Turns: writers sharing a Session object wait for each other ----------------------------------

_LOOK_SECONDS: Final = 0.1
"""Interval at which a waiter polls for a closed loop of the holder, which no event signals."""


class Turn:
    """A holder of, or a waiter for, a Session object, in the event loop that created it."""

    __slots__ = ("_loop", "inherited", "left", "storing", "waiting", "woken")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.woken: asyncio.Future[None] | None = None
        self.waiting: deque[Turn] = deque()
        """The turns waiting for the holder."""
        self.left: weakref.ref[SessionTurns] | None = None
        """The object, if the holder was destroyed before it knew the outcome of its event."""
        self.storing: Storing | None = None
        """The holder's event until the object reflects its outcome."""
        self.inherited: Storing | None = None
        """As ``storing``, inherited from a dead holder."""

    @property
    def is_dead(self) -> bool:
        """True if its holder will never run again."""
        return self.left is not None or self._loop.is_closed()

    def wake(self) -> bool:
        """Wake the waiter to take its turn; False if its loop is closed."""
        try:
            self._loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            return False
        return True

    def _settle(self) -> None:
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)


class Turns:
    """A FIFO lock per Session object, across threads and event loops.

    The holder keeps the object alive, so its ``id()`` identifies it. A holder whose loop was closed
    never releases its turn: the next waiter takes it over, along with the event that the holder was
    storing.
    """

    __slots__ = ("_held", "_lock")

    def __init__(self) -> None:
        self._held: dict[int, Turn] = {}
        """The holder of each held object, by the object's ``id()``."""
        self._lock = RLock()
        """Reentrant: a waiting task may be destroyed, and so leave, at any point."""

    def try_take(self, session: SessionTurns) -> Turn | None:
        """The turn if the object is free, else None."""
        mine = Turn()
        return mine if self._held.setdefault(id(session), mine) is mine else None

    async def take(self, session: SessionTurns) -> Turn:
        """Wait for all earlier holders of the object, then hold it."""
        mine = Turn()
        mine.woken = asyncio.get_running_loop().create_future()
        with self._lock:
            holder = self._held.setdefault(id(session), mine)
            if holder is mine:
                return mine
            holder.waiting.append(mine)
            self._take_over(session)
        try:
            while not (await asyncio.wait((mine.woken,), timeout=_LOOK_SECONDS))[0]:
                self._take_over(session)
        except BaseException:
            self._withdraw(session, mine)
            raise
        return mine

    def give(self, session: SessionTurns, turn: Turn) -> None:
        """Pass the turn to the next waiter; no effect on a turn that was left or taken over."""
        with self._lock:
            if self._held.get(id(session)) is turn and turn.left is None:
                self._pass_on(session, turn)

    def leave(self, session: SessionTurns, turn: Turn) -> None:
        """As ``give``, for a holder destroyed before the outcome of its event is known.

        This may run during garbage collection at any point, so it neither reads nor awaits.
        """
        with self._lock:
            if self._held.get(id(session)) is turn:
                self._pass_on(session, turn)

    def _take_over(self, session: SessionTurns) -> None:
        """Pass on the turn of a dead holder."""
        with self._lock:
            holder = self._held.get(id(session))
            if holder is not None and holder.is_dead:
                self._pass_on(session, holder)

    def _pass_on(self, session: SessionTurns, holder: Turn) -> None:
        """Wake the next live waiter and hand it the holder's unshown event; under the lock."""
        key = id(session)
        unshown = holder.inherited or holder.storing
        while holder.waiting:
            heir = holder.waiting.popleft()
            heir.waiting, heir.inherited = holder.waiting, unshown
            self._held[key] = holder = heir
            if heir.wake():
                return
        if unshown is None:
            del self._held[key]
            return
        # Nobody waits: the next taker shows the event first. The entry is dropped with the object.
        holder.inherited = unshown
        holder.left = weakref.ref(session, lambda _: self._held.pop(key, None))

    def _withdraw(self, session: SessionTurns, mine: Turn) -> None:
        """Remove a waiter that gives up."""
        with self._lock:
            holder = self._held.get(id(session))
            if holder is mine:
                self._pass_on(session, mine)
            elif holder is not None and mine in holder.waiting:
                holder.waiting.remove(mine)  # absent if its loop was closed before its turn
