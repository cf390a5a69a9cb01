"""Views: what an MCP client may read of one user, in pages of bounded size, with cursors.

Everything here is of one scope. Memories are shown if somebody vouches for them; the text of any
other is withheld. Results of tools are never shown without the calls that they answer.
"""

from __future__ import annotations

import heapq
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import islice
from time import time
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, Field

from memcore._fast import classify
from memcore.database import Scope
from memcore.errors import (
    ContextOverflowError,
    CorruptValueError,
    InvalidOptionError,
    NotFoundError,
)
from memcore.memory import ACTIVE_BY, visible_text
from memcore.model import Item, ItemKind, Memory, Message, SessionEntry
from memcore.options import counted
from memcore.session import Session
from memcore.wire import WireItem, bind
from memcore.wire.message import (
    BY_NAME,
    Key,
    arguments_of,
    body_path,
    call_names,
    results_of,
    texts_of,
    value_at,
)

__all__ = [
    "CONTEXT_TOKENS",
    "CONTEXT_TOKENS_MAX",
    "ITEM_CHARS",
    "ITEM_CHARS_MAX",
    "PAGE",
    "PAGE_MAX",
    "CallView",
    "CitedItem",
    "ContextView",
    "ItemMatch",
    "ItemMatches",
    "ItemPage",
    "ItemView",
    "MemoryMatch",
    "MemoryMatches",
    "MemoryPage",
    "MemoryRecord",
    "MemoryView",
    "ProfileView",
    "SessionPage",
    "SessionView",
    "context_of",
    "find_items",
    "find_memories",
    "item_page",
    "memory_page",
    "memory_record",
    "memory_view",
    "open_cursor",
    "profile_view",
    "seal_cursor",
    "session_page",
]


# --- Bounds of what is shown ----------------------------------------------------------------------

PAGE: Final = 20
PAGE_MAX: Final = 50
"""Most entries of a page."""
ITEM_CHARS: Final = 2_000
ITEM_CHARS_MAX: Final = 16_000
"""Most characters that are shown of one text."""
PAGE_CHARS: Final = 32_000
"""Characters of texts and arguments after which a page ends; its first item is always shown."""
ARGUMENTS_CHARS: Final = 500
"""Most characters that are shown of the arguments of a call."""
EXCERPT_CHARS: Final = 300
CALLS_SHOWN: Final = 16
"""Most calls that are shown of one item."""
CONTEXT_TOKENS: Final = 4_000
CONTEXT_TOKENS_MAX: Final = 20_000
CONTEXT_BYTES: Final = 128 * 1024
"""Most bytes of JSON of a context: pictures in base64 cost few tokens and many bytes."""
SOURCES_SHOWN: Final = 8
"""Most items that are shown of those that a memory rests on."""
VERSIONS_SHOWN: Final = 16
READ_TOKENS: Final = 200_000
"""Tokens of items after which no more are read for a page: an item may be of many megabytes."""
LOOK_BACK: Final = 64
"""Items before a page among which its calls without ids are looked for."""


# --- Cursors --------------------------------------------------------------------------------------

_CURSOR_FORMAT: Final = 1
_CURSOR_CHARS_MAX: Final = 256
_MAC_BYTES: Final = 8
_NUMBER_END: Final = 2**53


def seal_cursor(of: str, asked: Sequence[object], at: Sequence[int]) -> str:
    """Return the cursor of a place in a list: opaque text for whoever goes on with the same list.

    Args:
        of: the list.
        asked: the scope and the filters, as JSON values: a cursor fits no other list.
        at: numbers that name the place.
    """
    body = json.dumps([_CURSOR_FORMAT, _about(of, asked), *at], separators=(",", ":")).encode()
    return _spelt(_mac(body) + body)


def open_cursor(cursor: str, of: str, asked: Sequence[object], *, count: int) -> tuple[int, ...]:
    """Return the place that a cursor names: ``count`` numbers of 0 or more.

    The checksum finds accidents. Whoever forges one gets a place in a list that is theirs anyway.

    Raises:
        InvalidOptionError: it is no cursor, or one of another list.
    """
    msg = "cursor: is none that this server gave for this request; leave it out to begin anew"
    if not isinstance(cursor, str) or len(cursor) > _CURSOR_CHARS_MAX or not cursor.isascii():
        raise InvalidOptionError(msg)
    try:
        packed = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        body = packed[_MAC_BYTES:]
        found = json.loads(body) if packed[:_MAC_BYTES] == _mac(body) else None
    except ValueError as exc:
        raise InvalidOptionError(msg) from exc
    if (
        _spelt(packed) != cursor
        or not isinstance(found, list)
        or found[:2] != [_CURSOR_FORMAT, _about(of, asked)]
        or len(found) != count + 2
        or not all(type(each) is int and 0 <= each < _NUMBER_END for each in found[2:])
    ):
        raise InvalidOptionError(msg)
    return tuple(found[2:])


def _spelt(packed: bytes) -> str:
    """Return the one text that stands for some bytes: no two cursors are of one place."""
    return urlsafe_b64encode(packed).rstrip(b"=").decode()


def _about(of: str, asked: Sequence[object]) -> str:
    told = json.dumps([of, *asked], sort_keys=True, ensure_ascii=True)
    return blake2b(told.encode(), digest_size=8).hexdigest()


def _mac(body: bytes) -> bytes:
    return blake2b(body, digest_size=_MAC_BYTES, person=b"memcore cursor").digest()


def _checked_limit(limit: int) -> int:
    """Return the number of entries of a page, within its bounds: a model's guess is no error."""
    return min(max(limit, 1), PAGE_MAX)


# --- Models of results ----------------------------------------------------------------------------


class MemoryView(BaseModel):
    """One version of a memory."""

    id: int
    version: int
    status: str = Field(description="active, quarantined, superseded, archived or forgotten.")
    by: str = Field(description="Who vouches for it: operator, user, confirmed, or a weaker one.")
    kind: str | None = None
    text: str | None = Field(default=None, description="None: withheld, or forgotten.")
    subject: str | None = None
    slot: str | None = None
    support: int = Field(description="Independent sessions that it rests on.")
    recorded_at: str
    valid_from: str | None = None
    valid_to: str | None = None
    superseded_by: int | None = None


class MemoryMatch(BaseModel):
    """A memory that a search found."""

    memory: MemoryView
    score: float


class MemoryMatches(BaseModel):
    """Memories that a search found, the best first."""

    memories: list[MemoryMatch]


class MemoryPage(BaseModel):
    """Active memories in the order of their ids."""

    memories: list[MemoryView]
    next_cursor: str | None = Field(default=None, description="None: there are no more.")


class CallView(BaseModel):
    """A call of a tool."""

    id: str | None = Field(default=None, description="None: its provider gives calls no ids.")
    name: str
    arguments: str = Field(description="Cut where it is long.")
    seq: int = Field(description="The item that makes the call.")


class CitedItem(BaseModel):
    """An item that a memory rests on."""

    session: str
    seq: int
    kind: str | None = None
    said_at: str | None = None
    excerpt: str | None = Field(default=None, description="None: it is not in the live history.")
    answers: list[CallView] = Field(default=[], description="Calls of which it is the result.")


class MemoryRecord(BaseModel):
    """A memory with its provenance."""

    memory: MemoryView
    why: str = Field(description="Why it is remembered, in a sentence.")
    withheld: str | None = Field(default=None, description="Why its text is not shown.")
    sources: list[CitedItem]
    sources_left_out: int = 0
    earlier: list[MemoryView] = Field(description="Earlier versions, the oldest first.")


class SessionView(BaseModel):
    """One session."""

    session: str
    items: int
    tokens: int
    open_calls: int
    policy: str
    created_at: str
    updated_at: str


class SessionPage(BaseModel):
    """Sessions, the last changed first."""

    sessions: list[SessionView]
    next_cursor: str | None = Field(default=None, description="None: there are no more.")


class ItemView(BaseModel):
    """One item of a session, whatever its wire format."""

    seq: int
    kind: str
    type: str
    author: str | None = None
    text: str
    cut: bool = Field(default=False, description="Its text is longer than what is shown.")
    calls: list[CallView] = []
    answers: list[CallView] = Field(default=[], description="Calls of which it is the result.")
    tokens: int
    said_at: str


class ItemPage(BaseModel):
    """Items of a session in order."""

    session: str
    items: list[ItemView]
    orphans: list[int] = Field(
        default=[], description="Items left out: results that answer no call."
    )
    damaged: bool = Field(default=False, description="Damaged items are left out.")
    next_cursor: str | None = Field(default=None, description="None: there are no more.")


class ItemMatch(BaseModel):
    """An item that a search found."""

    session: str
    seq: int
    kind: str
    score: float
    snippet: str
    said_at: str
    answers: list[CallView] = Field(default=[], description="Calls of which it is the result.")


class ItemMatches(BaseModel):
    """Items that a search found, the best first."""

    items: list[ItemMatch]


class ContextView(BaseModel):
    """Messages that a model may be sent: legal and within the budget."""

    session: str
    format: str
    messages: list[dict[str, Any]]
    tokens: int
    budget_tokens: int = Field(description="Smaller than requested if the bytes were too many.")
    omitted: int = Field(description="Items before the cut that are not shown unchanged.")
    repairs: int
    open_calls: int
    limited_by: str | None = None


class ProfileView(BaseModel):
    """Fields of the user's profile that are in force."""

    fields: dict[str, Any]
    ids: dict[str, int] = Field(description="The memory of each field.")
    left_out: int = Field(default=0, description="Fields for which there is no room.")


# --- Memories -------------------------------------------------------------------------------------


def find_memories(scope: Scope, query: str, limit: int) -> MemoryMatches:
    """Search the active memories that are true now."""
    hits = scope.memory.search(query, k=_checked_limit(limit), valid_at=time(), mode="lexical")
    shown = [
        MemoryMatch(memory=memory_view(hit.memory), score=round(hit.score, 4))
        for hit in hits
        if _is_vouched(hit.memory)
    ]
    return MemoryMatches(memories=shown)


def memory_page(
    scope: Scope,
    *,
    kind: str | None = None,
    subject: str | None = None,
    slot: str | None = None,
    limit: int = PAGE,
    cursor: str | None = None,
) -> MemoryPage:
    """List the active memories that are true now, in the order of their ids.

    Raises:
        InvalidOptionError: a filter or the cursor is invalid.
        CorruptValueError
    """
    asked = [scope.app, scope.user, kind, subject, slot]
    after = 0
    if cursor is not None:
        (after,) = open_cursor(cursor, "memories", asked, count=1)
    most = _checked_limit(limit)
    found = scope.memory.list(
        status="active", kind=kind, subject=subject, slot=slot, valid_at=time(),
        limit=most + 1, after=min(after, 2**48 - 1),
    )  # fmt: skip
    page, size = list[Memory](), 0
    for each in found[:most]:
        size += len(each.text)
        if page and size > PAGE_CHARS:
            break
        page.append(each)
    more = len(found) > len(page)
    return MemoryPage(
        memories=[memory_view(each) for each in page if _is_vouched(each)],
        next_cursor=seal_cursor("memories", asked, [page[-1].id]) if more else None,
    )


def _is_vouched(memory: Memory) -> bool:
    """Return True if a model may read a memory: somebody whose word counts says it."""
    return memory.by in ACTIVE_BY and memory.status in ("active", "superseded", "archived")


def memory_view(memory: Memory) -> MemoryView:
    """Return a version of a memory; without its words if nobody vouches for them."""
    is_shown = _is_vouched(memory)
    return MemoryView(
        id=memory.id,
        version=memory.version,
        status=memory.status,
        by=memory.by,
        kind=memory.kind if is_shown else None,
        text=visible_text(memory.text) if is_shown else None,
        subject=memory.subject if is_shown else None,
        slot=memory.slot if is_shown else None,
        support=memory.support,
        recorded_at=_date(memory.recorded_at),
        valid_from=None if memory.valid_from is None else _date(memory.valid_from),
        valid_to=None if memory.valid_to is None else _date(memory.valid_to),
        superseded_by=memory.superseded_by,
    )


def memory_record(scope: Scope, number: int) -> MemoryRecord:
    """Return a memory with its sources and versions: why it is remembered.

    Raises:
        NotFoundError: there is no such memory, or it has expired.
        InvalidOptionError, CorruptValueError
    """
    *earlier, memory = scope.memory.history(number)
    cited = [(each.session, seq) for each in memory.sources for seq in each.seqs]
    return MemoryRecord(
        memory=memory_view(memory),
        why=_why(memory),
        withheld=_WITHHELD.get(memory.status) if not _is_vouched(memory) else None,
        sources=[_cited(scope, *place) for place in cited[:SOURCES_SHOWN]],
        sources_left_out=max(len(cited) - SOURCES_SHOWN, 0),
        earlier=[memory_view(each) for each in earlier[-VERSIONS_SHOWN:]],
    )


_WITHHELD: Final = {
    "quarantined": "it waits until somebody promotes it ('memcore memory promote')",
    "archived": "nobody vouches for it",
    "superseded": "nobody vouches for it",
    "forgotten": "it was forgotten",
}
_ORIGINS: Final = {
    "operator": "a program that speaks for the operator stored it",
    "user": "the user said it",
    "assistant": "a model said it",
    "agent": "an agent said it",
    "tool": "a tool said it",
    "import": "a program said it, and nothing proves it",
}


def _why(memory: Memory) -> str:
    if memory.status == "forgotten":
        return "It is no longer remembered."
    origin = _ORIGINS.get(memory.by)
    if memory.by == "confirmed":
        origin = f"{visible_text(memory.promoted_by or 'somebody')!r} released it from quarantine"
    count = sum(len(each.seqs) for each in memory.sources)
    items, sessions = counted(count, "item"), counted(len(memory.sources), "session")
    rests = f"; it rests on {items} of {sessions}" if count else ""
    return f"Remembered because {origin or memory.by}{rests}."


def _cited(scope: Scope, name: str, seq: int) -> CitedItem:
    """Return an item that a memory rests on, as far as it is still there."""
    try:
        session = scope.session(name, create=False)
        item = session.get(seq)
    except NotFoundError:
        return CitedItem(session=name, seq=seq)
    answers = _lone_answers(session, item)
    if answers is None:
        return CitedItem(session=name, seq=seq)
    return CitedItem(
        session=name,
        seq=seq,
        kind=_kind(item),
        said_at=_date(item.created_at),
        excerpt=_clipped(_text(item, frozenset()), EXCERPT_CHARS)[0],
        answers=answers,
    )


def profile_view(scope: Scope) -> ProfileView:
    """Return the fields of the user's profile that are in force.

    Raises:
        CorruptValueError
    """
    shown = ProfileView(fields={}, ids={})
    size = 0
    for each in scope.memory.list(status="active", subject=_PROFILE, valid_at=time()):
        if each.slot is None or not _is_vouched(each):
            continue
        value = each.attributes.get(each.slot, each.text)
        size += len(each.slot) + len(json.dumps(value))
        if size > PAGE_CHARS:
            shown.left_out += 1
            continue
        shown.fields[each.slot], shown.ids[each.slot] = value, each.id
    return shown


_PROFILE: Final = "profile"


# --- Sessions -------------------------------------------------------------------------------------


def session_page(scope: Scope, limit: int = PAGE, cursor: str | None = None) -> SessionPage:
    """List the sessions, the last changed first.

    A session that changes meanwhile moves to the front, where a list that has begun misses it.

    Raises:
        InvalidOptionError: the cursor is invalid.
    """
    asked = [scope.app, scope.user]
    entries: Iterable[tuple[tuple[int, int], SessionEntry]]
    entries = ((_recency(each), each) for each in scope.sessions())
    if cursor is not None:
        end, tie = open_cursor(cursor, "sessions", asked, count=2)
        entries = (each for each in entries if each[0] > (-end, tie))
    most = _checked_limit(limit)
    found = heapq.nsmallest(most + 1, entries, key=lambda each: each[0])
    page = found[:most]
    more = len(found) > most
    at = [-page[-1][0][0], page[-1][0][1]] if more else []
    return SessionPage(
        sessions=[_session(entry) for _, entry in page],
        next_cursor=seal_cursor("sessions", asked, at) if more else None,
    )


def _recency(entry: SessionEntry) -> tuple[int, int]:
    """Return the place of a session among others: by its last change, then by a digest."""
    digest = blake2b(entry.session_id.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return -round(entry.updated_at * 1000), int.from_bytes(digest, "big")


def _session(entry: SessionEntry) -> SessionView:
    return SessionView(
        session=entry.session_id,
        items=entry.items,
        tokens=entry.tokens,
        open_calls=entry.open_calls,
        policy=entry.policy,
        created_at=_date(entry.created_at),
        updated_at=_date(entry.updated_at),
    )


def find_items(
    scope: Scope, query: str, session: str | None = None, limit: int = PAGE
) -> ItemMatches:
    """Search what was said; results of tools come with the calls that they answer.

    Raises:
        NotFoundError: there is no such session.
        InvalidOptionError, CorruptValueError
    """
    names = None
    if session is not None:
        scope.session(session, create=False)
        names = [session]
    found = []
    for hit in scope.search(query, k=_checked_limit(limit), sessions=names, mode="lexical"):
        try:
            answers = _lone_answers(scope.session(hit.session_id, create=False), hit.item)
        except NotFoundError:
            continue  # deleted since it was found
        if answers is None:
            continue  # a result that answers no call
        found.append(
            ItemMatch(
                session=hit.session_id,
                seq=hit.seq,
                kind=_kind(hit.item),
                score=round(hit.score, 4),
                snippet=visible_text(hit.snippet),
                said_at=_date(hit.item.created_at),
                answers=answers,
            )
        )
    return ItemMatches(items=found)


def item_page(
    scope: Scope,
    name: str,
    *,
    start: int | None = None,
    last: int | None = None,
    limit: int = PAGE,
    chars: int = ITEM_CHARS,
    cursor: str | None = None,
) -> ItemPage:
    """Read a page of a session's items; each result comes with the calls that it answers.

    Args:
        scope: whose session it is.
        name: the session.
        start: begin at this seq.
        last: begin so many items before the end instead.
        limit: most items of the page.
        chars: most characters of each text.
        cursor: go on where another page ended.

    Raises:
        NotFoundError: there is no such session.
        InvalidOptionError: the cursor is invalid, or several say where to begin.
        CorruptValueError
    """
    if sum(each is not None for each in (start, last, cursor)) > 1:
        msg = "start: give one of start, last and cursor"
        raise InvalidOptionError(msg)
    session = scope.session(name, create=False)
    asked = [scope.app, scope.user, name]
    begin = start or 0
    if cursor is not None:
        (begin,) = open_cursor(cursor, "items", asked, count=1)
    elif last is not None:
        newest = session.tail(max(last, 1), skip_corrupt=True)
        begin = newest[0].seq if newest else 0
    most, room = _checked_limit(limit), min(max(chars, 1), ITEM_CHARS_MAX)
    listed, damaged = _read(session, begin, most + 1)
    paired = _pairings(session, _before(session, begin), listed)
    page = ItemPage(session=name, items=[], damaged=damaged)
    size, tokens = 0, 0
    for at, (item, pair) in enumerate(zip(listed, paired, strict=True)):
        shown = None if pair is None else _view(item, pair, room)
        size += 0 if shown is None else _size(shown)
        is_full = at == most or tokens > READ_TOKENS
        if is_full or (page.items and size > PAGE_CHARS):
            page.next_cursor = seal_cursor("items", asked, [item.seq])
            break
        tokens += item.tokens
        if shown is None:
            page.orphans.append(item.seq)
        else:
            page.items.append(shown)
    return page


def _read(session: Session, begin: int, count: int) -> tuple[list[Item], bool]:
    """Return the items from a seq on, and True if damaged ones are left out."""
    try:
        return _some(session.items(begin), count), False
    except CorruptValueError:
        return _some(session.items(begin, skip_corrupt=True), count), True


def _some(items: Iterable[Item], count: int) -> list[Item]:
    """Return up to so many items, and fewer of large ones: one more than a page has room for."""
    found: list[Item] = []
    tokens = 0
    for item in islice(items, count):
        found.append(item)
        if tokens > READ_TOKENS:
            break
        tokens += item.tokens
    return found


def _size(shown: ItemView) -> int:
    calls = (*shown.calls, *shown.answers)
    return len(shown.text) + sum(len(call.arguments) + len(call.name) for call in calls)


def context_of(
    scope: Scope, name: str, budget_tokens: int = CONTEXT_TOKENS, form: str | None = None
) -> ContextView:
    """Return the messages of a session that a model may be sent, within a budget.

    Raises:
        NotFoundError: there is no such session.
        ContextOverflowError: not even the newest turn fits the budget, or the bytes of a reply.
        InvalidOptionError: there is no such format.
        CorruptValueError
    """
    session = scope.session(name, create=False)
    budget = min(max(budget_tokens, 1), CONTEXT_TOKENS_MAX)
    found = session.context(budget, format=form)
    while len(json.dumps(found.messages)) > CONTEXT_BYTES:
        # A smaller budget gives a smaller context, legal again: messages are never cut by hand.
        budget = min(budget, found.tokens) // 2
        if budget < 1:
            msg = f"the newest turn has more than {CONTEXT_BYTES} bytes: it is not sent in a reply"
            raise ContextOverflowError(msg, needed_tokens=found.tokens, budget_tokens=budget)
        found = session.context(budget, format=form)
    return ContextView(
        session=name,
        format=form or session.policy,
        messages=found.messages,
        tokens=found.tokens,
        budget_tokens=budget,
        omitted=found.omitted,
        repairs=len(found.repairs),
        open_calls=found.open_calls,
        limited_by=found.limited_by,
    )


# --- Items, whatever their wire format ------------------------------------------------------------


class _Pairing(NamedTuple):
    """Calls that an item answers, and the keys of those of its results that answer none."""

    answers: list[CallView]
    orphans: frozenset[Key | None]


def _pairings(session: Session, before: list[Item], listed: list[Item]) -> list[_Pairing | None]:
    """Return for each listed item the calls that it answers; None: a result that answers none.

    A call is looked for among the listed items, those before them, and then by its id.
    """
    items = [*before, *listed]
    binding = bind(_wire(item) for item in items)
    found: list[_Pairing | None] = []
    for at in range(len(before), len(items)):
        item, answers, orphans = items[at], list[CallView](), set[Key | None]()
        for key, slot in binding.answers[at]:
            caller = _caller(session, key, item.seq) if slot is None else items[slot.at]
            call = None if caller is None else _call(caller, key)
            if call is None:
                orphans.add(key)
            else:
                answers.append(call)
        is_orphan = item.kind == ItemKind.RESULT and not answers and not _own_texts(item.message)
        found.append(None if is_orphan else _Pairing(answers, frozenset(orphans)))
    return found


def _wire(item: Item) -> WireItem:
    return WireItem(item.seq, item.message, event=item.kind == ItemKind.EVENT)


def _caller(session: Session, key: Key, seq: int) -> Item | None:
    """Return the item that makes a call, by the call's id; None if its result is not this one."""
    if key[0] & BY_NAME:
        return None
    try:
        record = session.find_call(key[1])
        return session.get(record.seq) if seq in record.result_seqs else None
    except NotFoundError:
        return None


def _lone_answers(session: Session, item: Item) -> list[CallView] | None:
    """Return the calls that one item answers; None if it is a result that answers none."""
    if item.kind != ItemKind.RESULT:
        return []
    found = _pairings(session, _before(session, item.seq), [item])[0]
    return None if found is None else found.answers[:CALLS_SHOWN]


def _before(session: Session, seq: int) -> list[Item]:
    return list(session.items(max(seq - LOOK_BACK, 0), seq, skip_corrupt=True))


def _view(item: Item, paired: _Pairing, room: int) -> ItemView:
    text, cut = _clipped(_text(item, paired.orphans), room)
    return ItemView(
        seq=item.seq,
        kind=_kind(item),
        type=visible_text(item.type),
        author=visible_text((item.envelope and item.envelope.by) or "") or None,
        text=text,
        cut=cut,
        calls=_calls(item)[:CALLS_SHOWN],
        answers=paired.answers[:CALLS_SHOWN],
        tokens=item.tokens,
        said_at=_date(item.created_at),
    )


def _calls(item: Item) -> list[CallView]:
    """Return the calls that an item makes."""
    if item.kind == ItemKind.EVENT:
        return []
    names, given = call_names(item.message), arguments_of(item.message)
    found = []
    for slot in bind([_wire(item)]).calls[0]:
        mine = next((each for each in given if each.key == slot.key), None)
        value = "" if mine is None else value_at(item.message, mine.path)
        if mine is not None:
            given.remove(mine)  # of calls without ids the next one is the next
        told = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        is_named = bool(slot.key[0] & BY_NAME)
        name = slot.key[1] if is_named else names.get(slot.key, "")
        found.append(
            CallView(
                id=None if is_named else slot.key[1],
                name=visible_text(name),
                arguments=_clipped(told, ARGUMENTS_CHARS)[0],
                seq=item.seq,
            )
        )
    return found


def _call(item: Item, key: Key) -> CallView | None:
    """Return the call of an item that has a key."""
    text = key[1]
    for call in _calls(item):
        if text == (call.name if key[0] & BY_NAME else call.id):
            return call
    return None


def _text(item: Item, orphans: frozenset[Key | None]) -> str:
    """Return what an item says, without results that answer no call."""
    message = item.message
    if item.kind == ItemKind.EVENT:
        return json.dumps(message.get("payload"), ensure_ascii=False)
    told = _own_texts(message)
    told += [each.text for each in results_of(message) if each.key not in orphans]
    return "\n".join(told)


def _own_texts(message: Message) -> list[str]:
    """Return the texts of a message that are no results; of a system prompt, too."""
    if classify(message)[0] != ItemKind.SYSTEM:
        return [each.text for each in texts_of(message)]
    body = value_at(message, body_path(message))
    content = body.get("content") or body.get("parts")
    if isinstance(content, str):
        return [content]
    blocks = content if isinstance(content, list) else []
    return [
        each["text"]
        for each in blocks
        if isinstance(each, dict) and isinstance(each.get("text"), str)
    ]


def _kind(item: Item) -> str:
    return item.kind.name.lower()


def _clipped(text: str, room: int) -> tuple[str, bool]:
    """Return the beginning of a text without what nobody sees, and True if it goes on."""
    if len(text) <= room:
        return visible_text(text), False
    return visible_text(text[:room]) + "…", True


def _date(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(seconds)  # a time outside the calendar
