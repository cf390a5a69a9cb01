"""Search over the items of a scope's sessions: their documents, catching up, ranking, hits.

Sessions are indexed behind their watermarks, by ``index_sessions`` or by a search, never by an
append. A search reads what is not indexed yet and makes it part of its statistics, so it always
ranks exactly the live items; only if there are many does it index them first, in short commits.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from struct import Struct
from typing import Any, Final, NamedTuple

from memcore import memory, search
from memcore.access import Access
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import FLAG_BLOB, open_value
from memcore.compaction.transcript import parts_of
from memcore.errors import (
    AccessDeniedError,
    CorruptValueError,
    InvalidOptionError,
    ReadOnlyError,
    StorageError,
    StoreFullError,
)
from memcore.faces import logger
from memcore.log import Head
from memcore.log.history import read_rows
from memcore.log.read import opened
from memcore.model import Item, ItemKind, SearchHit
from memcore.options import checked_bool, checked_choice, checked_several
from memcore.records import record
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.rows.index import RECORD, record_at
from memcore.rows.item import decode_item
from memcore.rows.lifecycle import is_erased, is_opted_out
from memcore.search.index import (
    TERMS_MAX,
    UNFINISHED,
    Forward,
    Segments,
    few_enough,
    is_leaving,
    is_sparse,
)
from memcore.search.items import (
    common,
    first_of,
    has_item,
    ids_in,
    item_id,
    item_place,
    newest_of,
    size_of,
    subtract,
    united,
)
from memcore.search.vectors import MODES
from memcore.session.delete import resume_removals
from memcore.session.engine import Engine, SessionRef
from memcore.store.interface import ReadTxn, Stale, Txn
from memcore.store.transaction import stored

__all__ = [
    "SearchRequest",
    "check_index",
    "embedding_of",
    "index_sessions",
    "reindex",
    "search_request",
    "search_scope",
    "search_session",
    "unsearched_items",
]


# --- Documents of items ---------------------------------------------------------------------------
# What an assistant says counts half: measured on BEAM 100K, recall@10 of messages rises from 45 to
# 55 (the retrieval kit's page). A tool's result counts less than that: it is mostly data that
# matches by accident. System prompts, reasoning and events are no documents.

_WEIGHTS: Final = {
    ItemKind.USER: 1.0,
    ItemKind.ASSISTANT: 0.5,
    ItemKind.CALL: 0.5,
    ItemKind.RESULT: 0.3,
}
_KINDS: Final = {kind.name.lower(): kind for kind in _WEIGHTS}
_SPEAKERS: Final = {
    ItemKind.USER: "user",
    ItemKind.ASSISTANT: "assistant",
    ItemKind.CALL: "assistant",
    ItemKind.RESULT: "tool",
}


def author_of(item: Item) -> str:
    """Return who said an item: its author, its agent, the name in its message; or nothing."""
    told = None if item.envelope is None else item.envelope.by
    name = item.message.get("name")
    return told or (name if isinstance(name, str) else "")


def text_of(item: Item) -> str:
    """Return the searchable text of an item: texts, calls and results, without reasoning."""
    found: list[str] = []
    for part in parts_of(item.message):
        if part.kind != "reasoning":
            found += (part.name, part.text) if part.name else (part.text,)
    return "\n".join(text for text in found if text)


def document_of(owner: int, item: Item) -> search.Document | None:
    """Return the document of an item; None if it has no searchable text."""
    weight = _WEIGHTS.get(item.kind)
    text = "" if weight is None else text_of(item)
    if weight is None or not text:
        return None
    author = author_of(item)
    speaker = author or _SPEAKERS[item.kind]
    return search.Document(
        search.DocumentKind.ITEM,
        item_id(owner, item.seq),
        f"{speaker}: {text}\n{search.month_words(item.created_at)}",
        weight=weight,
        role=int(item.kind),
        time=item.created_at,
        author=speaker,
        has_neighbours=True,
    )


def _items_in(txn: ReadTxn, scope: int, segments: Segments) -> Iterator[tuple[int, Item]]:
    """Yield ``(owner, item)`` of the readable items of segments; ``check`` reports the others."""
    for owner, lo, hi in segments:
        for row in read_rows(txn, scope, owner, position=0, lo=lo, hi=hi):
            if not isinstance(row, CorruptValueError):
                try:
                    yield owner, opened(txn, scope, row)[0]
                except CorruptValueError:
                    continue


def _documents(txn: ReadTxn, scope: int, segments: Segments) -> list[search.Document]:
    found = (document_of(owner, item) for owner, item in _items_in(txn, scope, segments))
    return [each for each in found if each is not None]


# --- What is indexed, against what is live --------------------------------------------------------

_MARK: Final = slice(2, 10)
"""A head's checksum in its sealed value: another one means that the session changed."""


@record(slots=True)
class Coverage:
    """Live histories of a scope's sessions in one snapshot, and what is indexed of them."""

    names: dict[int, str]
    """Names of the sessions with a live history."""
    live: dict[int, Segments]
    marks: dict[int, bytes]
    """The present checksum of each session's head."""
    known: dict[int, search.Watermark]
    covering: dict[int, Counter[tuple[int, int, int]]]
    """Segments of an owner's items that watermarks cover, and how many do: thousands of forks have
    the same ones."""
    rows: dict[int, bytes]
    """Watermarks as stored."""
    heads: dict[int, bytes]
    """Heads as stored, of the sessions whose watermark is behind."""
    compared: list[int] | None = None
    """Stale sessions, until the next ``settle``; None: not compared yet."""

    def stale(self) -> list[int]:
        """Return the sessions whose watermark is behind, or left over, in order."""
        if self.compared is None:
            found = [
                each for each, mark in self.marks.items()
                if each not in self.known or self.known[each].mark != mark
            ]  # fmt: skip
            left = (each for each in self.known if each not in self.live)
            self.compared = sorted({*found, *left})
        return self.compared

    def covered(self) -> Segments:
        """Return what the watermarks of all sessions cover."""
        return united(*(mark.segments for mark in self.known.values()))

    def covered_of(self, owners: Iterable[int], without: Iterable[int] = ()) -> Segments:
        """Return what watermarks cover of owners' items; those ``without`` do not count."""
        left: Counter[tuple[int, int, int]] = Counter()
        for session in without:
            known = self.known.get(session)
            left.update(() if known is None else known.segments)
        return united([
            segment for owner in set(owners)
            for segment, count in self.covering.get(owner, {}).items() if count > left[segment]
        ])  # fmt: skip

    def covered_elsewhere(self, session: int) -> Segments:
        """Return what other watermarks cover of a session's items, live or gone; maybe more."""
        known = self.known.get(session)
        segments = [*self.live.get(session, []), *(() if known is None else known.segments)]
        return self.covered_of((owner for owner, _, _ in segments), [session])

    def unindexed(self, stale: Iterable[int]) -> Segments:
        """Return the live items of stale sessions that no watermark covers."""
        found = united(*(self.fresh(each) for each in stale if each in self.live))
        return subtract(found, self.covered_of(owner for owner, _, _ in found))

    def dead(self, stale: Sequence[int]) -> Segments:
        """Return the items that watermarks of stale sessions cover and that are live nowhere."""
        found = united(*(self.gone(each) for each in stale))
        # What the watermark of any other session covers is live in it.
        elsewhere = self.covered_of((owner for owner, _, _ in found), stale)
        alive = united(elsewhere, *(self.live.get(each, []) for each in stale)) if found else []
        return subtract(found, alive)

    def settle(self, session: int, mark: search.Watermark | None) -> None:
        """Take over a session's new watermark; None: it has none any more."""
        self.compared = None
        known = self.known.pop(session, None)
        for segment in () if known is None else known.segments:
            counts = self.covering[segment[0]]
            counts[segment] -= 1
            if not counts[segment]:
                del counts[segment]
        if mark is not None:
            self.known[session] = mark
            for segment in mark.segments:
                self.covering.setdefault(segment[0], Counter())[segment] += 1

    def fresh(self, session: int) -> Segments:
        """Return the live items of a session that its watermark does not cover."""
        known = self.known.get(session)
        live = self.live.get(session, [])
        return united(live) if known is None else subtract(live, known.segments)

    def gone(self, session: int) -> Segments:
        """Return the items that its watermark covers and that are no longer live in it."""
        known = self.known.get(session)
        return [] if known is None else subtract(known.segments, self.live.get(session, []))


def coverage_of(
    txn: ReadTxn, scope: int, before: Coverage | None = None, *, trusting: bool = True
) -> Coverage:
    """Compare watermarks and heads of a scope; ``before`` is known of an earlier snapshot.

    A watermark with the mark of the present head has the segments of its history, which saves
    reading them; only the check is not ``trusting``.

    Raises:
        CorruptValueError: a row of the index is damaged.
    """
    found = Coverage({}, {}, {}, {}, {}, {}, {})
    if search.read_head(txn, scope) is not None:
        for session, (key, value) in search.read_watermarks(txn, scope).items():
            found.rows[session] = value
            if before is not None and before.rows.get(session) == value:
                found.settle(session, before.known[session])
            else:
                found.settle(session, search.unpack_watermark(key, value))
    for name, session in names.sessions(txn, scope):
        key = head_key(scope, session)
        row = txn.get(key)
        if row is None:
            continue
        known = found.known.get(session)
        if trusting and known is not None and known.mark == row[_MARK]:
            found.live[session] = known.segments
        else:
            try:
                head = Head.unpack(key, row)
                live = head.all_segments(txn, scope)
            except CorruptValueError:
                continue  # nobody can read the session; check() reports it
            if head.hidden or head.unfinished:
                continue
            found.live[session] = [(owner, lo, hi) for owner, lo, hi in live]
            found.heads[session] = row
        found.names[session], found.marks[session] = name, row[_MARK]
    return found


# --- Catching up ----------------------------------------------------------------------------------

STEP_ITEMS: Final = 256
"""Items that one commit adds to the index, or takes out."""
STEP_BYTES: Final = 4 * 1024**2
BEHIND_MAX: Final = 32
"""Items not indexed that a search reads for itself; from more on, it indexes them first."""
UNINDEXED_MAX: Final = 2048
"""Items not indexed that a search of a read-only handle reads: the newest ones."""
GONE_MAX: Final = 2048
"""Indexed items that are gone, which a search leaves out of its statistics; it returns none."""
_TRIES: Final = 1000
"""Steps in a row that may be lost to changes by others."""
_SEARCH_TRIES: Final = 8
"""The same for a search, which then reads for itself what is not indexed."""


class _Step(NamedTuple):
    """A part of a commit of catching up: what one session adds and takes out."""

    session: int
    head: bytes | None
    """The session's head as stored; None if the session has no live history."""
    gone: Segments
    documents: list[search.PreparedDocument]
    mark: search.Watermark | None
    """The new watermark; None: there is none any more."""
    terms: int = 0
    """Number of terms of what it takes out."""

    @property
    def size(self) -> int:
        """Documents that it adds or takes out, at least 1, or what its terms count as many."""
        items = len(self.documents) + size_of(self.gone) + 1
        return max(items, self.terms * STEP_ITEMS // TERMS_MAX)

    @property
    def is_last(self) -> bool:
        """True if the session needs no further step."""
        return self.mark is None or self.mark.mark != UNFINISHED


def _plan(txn: ReadTxn, scope: int, coverage: Coverage, session: int, key: bytes) -> _Step:
    """Plan the next step of a session that is behind its watermark, or gone."""
    others = coverage.covered_elsewhere(session)
    known = coverage.known.get(session)
    covered = [] if known is None else known.segments
    _need_stored(txn, scope, session, covered)
    is_live = session in coverage.live
    head = coverage.heads.get(session)
    gone = coverage.gone(session)
    leaving = subtract(gone, others)
    first = ids_in(first_of(leaving, STEP_ITEMS))
    light = [*few_enough(txn, scope, search.DocumentKind.ITEM, first)]
    terms = sum(each for _, each in light)
    if size_of(leaving) > len(light):
        some = first_of(leaving, len(light))
        left = subtract(covered, some)
        return _Step(session, head, some, [], search.Watermark(UNFINISHED, left), terms)
    if not is_live:
        return _Step(session, None, leaving, [], None, terms)
    fresh = coverage.fresh(session)
    read = subtract(fresh, others)
    shared = subtract(fresh, read)
    documents, taken = _taken(txn, scope, read, key)
    done = size_of(taken) == size_of(read)
    # No head has that checksum, so the session stays stale and the next step goes on with it.
    mark = coverage.marks[session] if done else UNFINISHED
    now = united(subtract(covered, gone), shared, taken)
    return _Step(session, head, leaving, documents, search.Watermark(mark, now), terms)


def _need_stored(txn: ReadTxn, scope: int, session: int, segments: Segments) -> None:
    """Refuse a watermark beyond the last item of a session: it would be followed for ever.

    Raises:
        CorruptValueError: it is damaged.
    """
    last: dict[int, int] = {}
    for owner, _, hi in segments:
        if owner not in last:
            rows = keys.session_rows(scope, owner, Row.ITEM)
            row = next(txn.scan(rows, keys.after(rows), reverse=True, limit=1), None)
            last[owner] = 0 if row is None else keys.number_of(row[0])
        if hi > last[owner]:
            key = keys.search_watermark(scope, session)
            msg = f"the watermark of session {session} in a search index is beyond its items"
            raise CorruptValueError(msg, key=key)


def _taken(
    txn: ReadTxn, scope: int, segments: Segments, key: bytes
) -> tuple[list[search.PreparedDocument], Segments]:
    """Read the items of the next step; return their documents, and which items these are."""
    some = first_of(segments, STEP_ITEMS)
    found: list[search.PreparedDocument] = []
    size = 0
    for owner, lo, hi in some:
        for seq in range(lo, hi + 1):
            # Compared before an item is read: each step takes at least one, however large.
            if size > STEP_BYTES:
                return found, united(
                    [each for each in some if each < (owner, lo, hi)],
                    [(owner, lo, seq - 1)] if seq > lo else [],
                )
            for each in _documents(txn, scope, [(owner, seq, seq)]):
                found.append(each.prepared(key))
                size += len(each.text)
    return found, some


def _carry_out(txn: Txn, scope: int, head: search.IndexHead, steps: Sequence[_Step]) -> None:
    """Make steps in one commit.

    Raises:
        Stale: the index, a session or the user's wishes have changed since they were planned.
    """
    writer = search.IndexWriter(txn, scope)
    current = writer.head.key, writer.head.generation
    if not writer.exists or current != (head.key, head.generation) or _is_closed(txn, scope):
        raise Stale
    # All comparisons precede the first write: if a step is stale, other changes of the batch stay.
    marks = [_mark_now(txn, scope, step) for step in steps]
    for step, mark in zip(steps, marks, strict=True):
        writer.remove(search.DocumentKind.ITEM, ids_in(step.gone))
        writer.add(step.documents)
        writer.put_watermark(step.session, mark)
    writer.close()


def _mark_now(txn: ReadTxn, scope: int, step: _Step) -> search.Watermark | None:
    """Return a step's watermark; one to be compared again if items were appended meanwhile.

    Were appends to make a step stale, an index could not keep up with a session that is written to
    all the time. Any other change begins another epoch of the session.

    Raises:
        Stale: the session changed otherwise.
    """
    key = head_key(scope, step.session)
    if step.head is None or step.mark is None:
        return step.mark
    now = txn.get(key)
    if now == step.head:
        return step.mark
    if now is None:
        raise Stale
    before, after = Head.unpack(key, step.head), Head.unpack(key, now)
    if after.epoch != before.epoch or after.hidden or after.unfinished:
        raise Stale
    return step.mark._replace(mark=UNFINISHED)


def _is_closed(txn: ReadTxn, scope: int) -> bool:
    """Return True if nothing of the scope may be indexed."""
    return is_erased(txn, scope) or is_opted_out(txn, scope)


def _create(txn: Txn, scope: int) -> None:
    """Create the index of a scope; drop one of another analysis."""
    if _is_closed(txn, scope):
        return
    writer = search.IndexWriter(txn, scope, create=True)
    if not writer.exists and not is_leaving(txn, scope):
        search.drop_index(txn, scope)
    writer.close()


def _catch_up(engine: Engine, scope: int, tries: int = _TRIES) -> int:
    """Index what is live and not indexed, and take out what is gone; returns the items added.

    Only what the first comparison finds: others may go on appending for ever.

    Raises:
        Stale: so many steps in a row were lost to changes by others.
    """
    store = engine.store
    added, lost = 0, 0
    wanted: set[int] | None = None
    for _ in range(2):  # the first may drop an index of another analysis
        if store.read(lambda txn: search.read_head(txn, scope)) is None:
            # An index that was dropped must be gone before a new one takes its keys.
            resume_removals(store)
            store.transact(lambda txn: _create(txn, scope))
    while True:
        head, coverage = store.read(
            lambda txn: (search.read_head(txn, scope), coverage_of(txn, scope))
        )
        stale = [each for each in coverage.stale() if wanted is None or each in wanted]
        if head is None or not stale:
            return added
        if is_sparse(head):
            _drop(engine, scope)
            store.transact(lambda txn: _create(txn, scope))
            continue
        wanted = set(stale)
        try:
            for steps in _steps(engine, scope, head, coverage, stale):
                added, lost = added + sum(len(step.documents) for step in steps), 0
                wanted -= {step.session for step in steps if step.is_last}
        except Stale:
            lost += 1
            if lost == tries:
                raise
        else:
            return added


def _steps(
    engine: Engine, scope: int, head: search.IndexHead, coverage: Coverage, stale: Sequence[int]
) -> Iterator[Sequence[_Step]]:
    """Index what is stale, in commits of about 256 items; yields the steps of each.

    Raises:
        Stale: something changed meanwhile: compare anew.
    """
    steps: list[_Step] = []
    for session in stale:
        while True:
            step = engine.store.read(
                lambda txn, session=session: _plan(txn, scope, coverage, session, head.key)  # type: ignore[misc]
            )
            coverage.settle(session, step.mark)  # if the commit fails, it is compared anew
            steps.append(step)
            if sum(each.size for each in steps) > STEP_ITEMS:
                _commit(engine, scope, head, steps)
                yield steps
                steps = []
            if step.is_last:
                break
    if steps:
        _commit(engine, scope, head, steps)
        yield steps


def _commit(engine: Engine, scope: int, head: search.IndexHead, steps: Sequence[_Step]) -> None:
    """Commit steps and advance the head's generation."""
    engine.store.transact(lambda txn: _carry_out(txn, scope, head, steps))
    # By what our own commits moved it: any other change makes the next step stale.
    head.generation += 1 + search.merge_pending(engine.store, scope)


def _need_writable(engine: Engine) -> None:
    if engine.store.read_only:
        raise ReadOnlyError("the database is open read-only; open it for writing to index it")


def index_sessions(engine: Engine, app: str, user: str) -> int:
    """Bring a scope's index up to date; return the number of items added.

    Raises:
        ReadOnlyError, StorageError
    """
    _need_writable(engine)
    scope = engine.store.read(partial(_searched, app=app, user=user))
    with _in_words():
        return 0 if scope is None else _mended(engine, scope)


@contextmanager
def _in_words() -> Iterator[None]:
    """Tell the caller that an index cannot keep up."""
    try:
        yield
    except Stale as exc:
        msg = "the index cannot keep up: others change the sessions all the time; try again"
        raise StorageError(msg) from exc


def _mended(engine: Engine, scope: int, tries: int = _TRIES) -> int:
    """Index and embed what is not, after dropping a damaged index; returns the items indexed.

    Raises:
        Stale: so many steps in a row were lost to changes by others.
    """
    try:
        return _indexed(engine, scope, tries)
    except CorruptValueError as error:
        if not search.is_index_error(error):
            raise
        # All of an index follows from the items: one that is damaged is made anew, not mended.
        _drop(engine, scope)
        return _indexed(engine, scope, tries)


def reindex(engine: Engine, app: str, user: str) -> int:
    """Drop a scope's index and build it anew; return the number of items in it.

    Raises:
        ReadOnlyError, StorageError
    """
    _need_writable(engine)
    scope = engine.store.read(lambda txn: names.scope_of(txn, app, user))
    if scope is None:
        return 0
    _drop(engine, scope)
    if engine.store.read(lambda txn: is_opted_out(txn, scope)):
        return 0
    with _in_words():
        return _indexed(engine, scope, _TRIES)


def _indexed(engine: Engine, scope: int, tries: int) -> int:
    """Index what is not, and embed it if there is an embedder; returns the items indexed."""
    added = _catch_up(engine, scope, tries)
    embedding = embedding_of(engine)
    if embedding is not None:
        memory.index_memories(engine.store, lambda _: scope)
        embedding.catch_up(scope, tries)
    return added


# --- Texts to embed -------------------------------------------------------------------------------


def embedding_of(engine: Engine) -> search.Embedding | None:
    """Return the embedding of an open database's documents; None without an embedder."""
    if engine.embedder is None:
        return None
    return search.Embedding(engine.store, engine.embedder, _text_to_embed)


def _text_to_embed(txn: ReadTxn, scope: int, row: Forward) -> str:
    """Return the text of an item with its speaker, or of a memory with its subject."""
    document = None
    if row.kind == search.DocumentKind.MEMORY:
        document = memory.stored_document(txn, scope, row.id)
    elif row.kind == search.DocumentKind.ITEM and len(row.id) == _ITEM_ID.size:
        owner, seq = _ITEM_ID.unpack(row.id)
        item = _item_at(txn, scope, owner, seq)
        document = None if item is None else document_of(owner, item)
    return "" if document is None else document.text.rpartition("\n")[0]  # without its month


def _drop(engine: Engine, scope: int) -> None:
    """Drop a scope's index, and remove all of its rows."""
    engine.store.transact(lambda txn: search.drop_index(txn, scope), makes_room=True)
    engine.forget_index(scope)
    resume_removals(engine.store)


# --- Searching ------------------------------------------------------------------------------------

_RANGE: Final = Struct("=QQQ")
_ITEM_ID: Final = Struct(">QQ")
_TIME_MAX: Final = 2**32 - 1


class SearchRequest(NamedTuple):
    """A checked search."""

    query: str
    k: int
    sessions: frozenset[str] | None
    kinds: tuple[ItemKind, ...]
    authors: tuple[str, ...]
    since: int
    until: int
    explain: bool
    embedded: dict[str, bytes]
    """Vectors by the text that was embedded: a search of many scopes embeds its query once."""
    mode: str = "auto"
    like: search.EmbeddedQuery | None = None
    """The query's vector, once it is embedded; None: words alone count."""
    memories: bool = False
    """True if memories lend to the items that they rest on."""


def search_request(
    query: object,
    *,
    k: object = 10,
    sessions: object = None,
    kinds: object = None,
    authors: object = None,
    since: object = None,
    until: object = None,
    explain: object = False,
    mode: object = "auto",
    memories: object = False,
) -> SearchRequest:
    """Check the arguments of a search.

    Raises:
        InvalidOptionError: one of them is invalid.
    """
    text, most = search.checked_query(query, k)
    wanted = None if sessions is None else frozenset(_texts("sessions", sessions))
    return SearchRequest(
        text,
        most,
        wanted,
        () if kinds is None else tuple(_kind(each) for each in _several("kinds", kinds)),
        () if authors is None else tuple(_texts("authors", authors)),
        _seconds("since", since, 0),
        _seconds("until", until, _TIME_MAX),
        checked_bool("explain", explain),
        {},
        checked_choice("mode", mode, MODES),
        memories=checked_bool("memories", memories),
    )


def _several(name: str, value: object) -> list[object]:
    found = list(checked_several(name, value))
    if not found:
        msg = f"{name}: expected at least one, or None for all"
        raise InvalidOptionError(msg)
    return found


def _texts(name: str, value: object) -> list[str]:
    found = _several(name, value)
    for each in found:
        if not isinstance(each, str) or not each:
            msg = f"{name}: expected non-empty strings, got {each!r:.80}"
            raise InvalidOptionError(msg)
    return found  # type: ignore[return-value]


def _kind(value: object) -> ItemKind:
    found = _KINDS.get(value.lower()) if isinstance(value, str) else None
    if found is None and isinstance(value, ItemKind) and value in _WEIGHTS:
        found = value
    if found is None:
        msg = f"kinds: expected {', '.join(map(repr, _KINDS))}, got {value!r:.80}"
        raise InvalidOptionError(msg)
    return found


def _seconds(name: str, value: object, default: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _TIME_MAX:
        msg = f"{name}: expected seconds since 1970, got {value!r:.80}"
        raise InvalidOptionError(msg)
    return -int(-value // 1)  # whole seconds are stored: the next one not before it


_RANKED_MAX: Final = 2**16
"""Hits that one ranking returns at most, while it is not known which sessions are refused."""


def search_session(ref: SessionRef, query: object, **options: object) -> list[SearchHit]:
    """Search the live items of one session; the options are those of ``search_request``."""
    asked = search_request(query, sessions=[ref.name], **options)
    return search_scope(ref.engine, ref.app, ref.user, asked)


class _Found(NamedTuple):
    """A hit as read from the snapshot, with its text yet to be cut."""

    session: str
    item: Item
    match: search.Match
    why: tuple[Any, ...]
    similarity: float


def search_scope(
    engine: Engine, app: str, user: str, asked: SearchRequest, access: Access | None = None
) -> list[SearchHit]:
    """Search the live items of a scope's sessions.

    Raises:
        InvalidOptionError: the mode needs an embedder.
        EmbedderError: the embedder failed.
        CorruptValueError: the index is damaged and the handle is read-only; a writable one builds
            it anew.
    """
    if engine.write_filter is not None:  # what is stored was redacted, so the query has to be
        asked = asked._replace(query=engine.write_filter.at(app, user).again(asked.query))
    like = search.embedded_query(  # the redaction, and so the query, may differ between users
        asked.query, asked.mode, engine.embedder, known=asked.embedded
    )
    asked = asked._replace(like=like)
    if not engine.store.read_only:
        try:
            _index_backlog(engine, app, user, asked)
        except StoreFullError as error:  # reading needs no room
            logger("memcore.search").warning("searching without indexing: %s", error)
        except Stale:  # what is not indexed is read
            logger("memcore.search").warning("searching without indexing: others change too much")
        except CorruptValueError as error:
            if not search.is_index_error(error):
                raise  # otherwise the search itself deals with it
    try:
        return _allowed(engine, app, user, asked, access)
    except CorruptValueError as error:
        if engine.store.read_only or not search.is_index_error(error):
            raise
        logger("memcore.search").warning("a damaged search index is built anew: %s", error)
        reindex(engine, app, user)
        if asked.memories:
            memory.index_memories(engine.store, partial(_searched, app=app, user=user))
        return _allowed(engine, app, user, asked, access)


def _searched(txn: ReadTxn, *, app: str, user: str) -> int | None:
    """Return the number of a scope; None if there is none, or the user opted out of memory."""
    scope = names.scope_of(txn, app, user)
    return None if scope is None or is_opted_out(txn, scope) else scope


def _index_backlog(engine: Engine, app: str, user: str, asked: SearchRequest) -> None:
    """Index and embed what a search would otherwise have to read: many items, and all memories.

    Raises:
        Stale: others change the sessions all the time.
        CorruptValueError: the index is damaged.
    """
    # An item that is not indexed has no vector, so a search by meaning would miss it.
    most = BEHIND_MAX if asked.like is None else 1
    embedding = None if asked.like is None else embedding_of(engine)

    def is_behind(txn: ReadTxn) -> int | None:
        scope = _searched(txn, app=app, user=user)
        if scope is None:
            return None
        coverage = _current(engine, txn, scope)
        behind = sum(
            size_of(coverage.fresh(each)) + size_of(coverage.gone(each))
            for each in coverage.stale()
        )
        lacks = embedding is not None and embedding.lacks(txn, scope)
        return scope if behind >= most or lacks else None

    if asked.memories:
        memory.index_memories(engine.store, partial(_searched, app=app, user=user))
    scope = engine.store.read(is_behind)
    if scope is not None:
        _mended(engine, scope, _SEARCH_TRIES)


def unsearched_items(engine: Engine, app: str, user: str) -> int:
    """Count the items that are not indexed and that a search of a read-only handle leaves out.

    Raises:
        CorruptValueError: the index is damaged.
    """

    def count(txn: ReadTxn) -> int:
        scope = _searched(txn, app=app, user=user)
        if scope is None:
            return 0
        coverage = _current(engine, txn, scope)
        return max(size_of(coverage.unindexed(coverage.stale())) - UNINDEXED_MAX, 0)

    return engine.store.read(count)


def _current(engine: Engine, txn: ReadTxn, scope: int) -> Coverage:
    """Return the coverage, from the cache if nothing was committed since."""
    snapshot = stored(txn).id()
    seen, before = engine.indexes.recall(scope)
    if seen == snapshot:
        return before  # type: ignore[no-any-return]
    found = coverage_of(txn, scope, before)
    engine.indexes.remember(scope, snapshot, found)
    return found


def _allowed(
    engine: Engine, app: str, user: str, asked: SearchRequest, access: Access | None
) -> list[SearchHit]:
    """Search, and leave out the sessions that the authorizer refuses, asking outside the read.

    Each ranking after a refusal looks at twice as many hits: with any number of refused sessions
    there are few rankings, and the authorizer is asked once for each session.
    """
    refused: set[str] = set()
    granted: set[str] = set()
    wanted = asked
    while True:
        found, cut = engine.store.read(
            lambda txn, wanted=wanted: _find(engine, txn, (app, user), wanted, frozenset(refused))  # type: ignore[misc]
        )
        if access is not None:
            for session in sorted({each.session for each in found} - granted):
                try:
                    access.need("search", app=app, user=user, name=session)
                    granted.add(session)
                except AccessDeniedError:
                    refused.add(session)
        if not any(each.session in refused for each in found):
            return [cut(each) for each in found[: asked.k]]
        wanted = wanted._replace(k=min(2 * wanted.k, _RANKED_MAX))


def _find(
    engine: Engine,
    txn: ReadTxn,
    place: tuple[str, str],
    asked: SearchRequest,
    refused: frozenset[str],
) -> tuple[list[_Found], Callable[[_Found], SearchHit]]:
    """Rank on one snapshot; returns the hits, and a function that cuts their snippets."""
    scope = names.scope_of(txn, *place)
    head = None if scope is None else search.read_head(txn, scope)
    if head is None:
        # Unindexed items need some key for their hashes, which holds for this search alone.
        head = search.IndexHead(os.urandom(16))
    found: list[_Found] = []
    terms: dict[int, str] = {}
    if scope is not None and not is_opted_out(txn, scope):
        coverage = _current(engine, txn, scope)
        visible: Collection[int] = coverage.names.keys()
        if refused or asked.sessions is not None:
            visible = frozenset(
                each for each, name in coverage.names.items()
                if (asked.sessions is None or name in asked.sessions) and name not in refused
            )  # fmt: skip
        stale = coverage.stale()
        seen = _live_in(coverage, visible)
        beside = _beside(txn, scope, coverage, head.key, seen) if stale else ()
        gone = coverage.dead(stale) if stale else []
        ranges = seen
        # Too many to be left out one by one; the ranges of what is live leave out all.
        if ranges is None and size_of(gone) > GONE_MAX:
            ranges = united(*coverage.live.values())
        query = search.Query(
            asked.query,
            kinds=(search.DocumentKind.ITEM,),
            roles=map(int, asked.kinds),
            authors=asked.authors,
            since=asked.since,
            until=asked.until,
            ranges=None if ranges is None else b"".join(_RANGE.pack(*each) for each in ranges),
        )
        ranking = search.rank(
            txn,
            scope,
            head,
            engine.indexes,
            query,
            k=asked.k,
            beside=beside,
            absent=((search.DocumentKind.ITEM, id_) for id_ in ids_in(first_of(gone, GONE_MAX))),
            like=asked.like,
            lent=_lent(engine, txn, scope, asked) if asked.memories else None,
        )
        terms = ranking.terms
        for match in ranking.matches:
            owner, seq = item_place(match.id)
            session = _session_of(coverage, visible, owner, seq)
            item = None if session is None else _item_at(txn, scope, owner, seq)
            if item is not None and session is not None and _fits(item, asked):
                why = search.parts_of_score(txn, scope, ranking, match) if asked.explain else ()
                near = ranking.similarity(match) if asked.explain else 0.0
                found.append(_Found(session, item, match, why, near))

    def cut(hit: _Found) -> SearchHit:
        snippet, shown = search.snippet_of(text_of(hit.item), head.key, terms)
        lent = hit.match.score - hit.match.own if asked.explain else 0.0
        return SearchHit(
            hit.session, hit.item.seq, hit.match.score, hit.item, snippet, shown, *place,
            hit.why, lent, hit.similarity,
        )  # fmt: skip

    return found, cut


def _live_in(coverage: Coverage, visible: Collection[int]) -> Segments | None:
    """Return the live items of visible sessions; None: all sessions are."""
    if len(visible) == len(coverage.names):
        return None
    return united(*(coverage.live[each] for each in visible))


def _fits(item: Item, asked: SearchRequest) -> bool:
    """Return True if an item is what is asked for, whatever the index says about it."""
    if item.kind not in (asked.kinds or _WEIGHTS):
        return False
    is_by = True
    if asked.authors:
        authors = {author.casefold() for author in asked.authors}
        is_by = (author_of(item) or _SPEAKERS[item.kind]).casefold() in authors
    at = min(max(int(item.created_at), 0), _TIME_MAX - 1)
    return is_by and asked.since <= at < asked.until


def _lent(
    engine: Engine, txn: ReadTxn, scope: int, asked: SearchRequest
) -> dict[tuple[int, bytes], float]:
    """Return what memories lend to items."""
    return memory.lent_scores(
        txn, scope, engine.indexes, asked.query, engine.now_ms(), like=asked.like
    )


def _beside(
    txn: ReadTxn, scope: int, coverage: Coverage, key: bytes, seen: Segments | None
) -> Sequence[search.PreparedDocument]:
    """Return the documents of live items that are not indexed yet, of too many the newest.

    ``seen``: the items among which it is searched, which come first; None: all.
    """
    fresh = coverage.unindexed(coverage.stale())
    if size_of(fresh) > UNINDEXED_MAX:
        wanted = fresh if seen is None else common(fresh, seen)
        read = newest_of(wanted, UNINDEXED_MAX)
        beyond = size_of(wanted) - size_of(read)
        if beyond:
            logger("memcore.search").warning(
                "%d items are not indexed and not searched: index the sessions with a handle that"
                " may write", beyond,
            )  # fmt: skip
        others = newest_of(subtract(fresh, wanted), UNINDEXED_MAX - size_of(read))
        fresh = united(read, others)
    return [each.prepared(key) for each in _documents(txn, scope, fresh)]


def _session_of(coverage: Coverage, visible: Collection[int], owner: int, seq: int) -> str | None:
    """Return the name of a visible session in which an item is live: its own, or the oldest fork.

    None: it is live in none of them.
    """
    if owner in visible and _has(coverage.live[owner], owner, seq):
        return coverage.names[owner]
    found = (each for each in sorted(visible) if _has(coverage.live[each], owner, seq))
    return next((coverage.names[each] for each in found), None)


def _has(segments: Segments, owner: int, seq: int) -> bool:
    for session, lo, hi in segments:  # noqa: SIM110 - half of the time of any(): most have one
        if session == owner and lo <= seq <= hi:
            return True
    return False


def _item_at(txn: ReadTxn, scope: int, owner: int, seq: int) -> Item | None:
    """Return an item with its tokens as appended; None if it cannot be read."""
    key = keys.session_row(scope, owner, Row.ITEM, seq)
    value = txn.get(key)
    try:
        if value is None:
            return None
        flags, body = open_value(key, value)
        tokens = RECORD.unpack_from(record_at(txn, scope, owner, seq))[0]
        if flags & FLAG_BLOB:
            return opened(txn, scope, (seq, seq, flags, body))[0]._replace(tokens=tokens)
        return decode_item(seq, body, flags, tokens)
    except CorruptValueError:
        return None  # check() reports it


# --- Check ----------------------------------------------------------------------------------------


def check_index(txn: ReadTxn, scope: int) -> Iterator[str]:
    """Compare a scope's index with itself and with the items it covers; yield findings as text.

    Items that are not indexed yet are none: the next search reads them.
    """
    where = f"scope {scope}: its search index"
    try:
        head = search.read_head(txn, scope)
        if head is None:
            return
        yield from (f"{where}: {what}" for what in search.check_rows(txn, scope, head))
        yield from (f"{where}: {what}" for what in _check_items(txn, scope, head))
    except CorruptValueError as exc:
        if search.is_index_error(exc):
            yield f"{where}: {exc}"  # what cannot be read is no basis for the rest
        else:
            raise


def _check_items(txn: ReadTxn, scope: int, head: search.IndexHead) -> Iterator[str]:
    """Compare the documents of items with the live items that watermarks cover, both ways."""
    coverage = coverage_of(txn, scope, trusting=False)
    for session, mark in coverage.known.items():
        _need_stored(txn, scope, session, mark.segments)
        row = txn.get(head_key(scope, session))
        is_present = row is not None and row[_MARK] == mark.mark
        if is_present and united(mark.segments) != united(coverage.live.get(session, [])):
            yield f"the watermark of session {session} covers other items than its history has"
    covered = united(coverage.covered())
    for _, id_ in search.documents_of(txn, scope, search.DocumentKind.ITEM):
        owner, seq = (int.from_bytes(part, "big") for part in (id_[:8], id_[8:]))
        if not has_item(covered, owner, seq):
            yield f"it has item {seq} of session {owner}, which no watermark covers"
    live = united(*coverage.live.values())
    for owner, item in _items_in(txn, scope, common(covered, live)):
        document = document_of(owner, item)
        place = search.DocumentKind.ITEM, item_id(owner, item.seq)
        known = search.indexed_form(txn, scope, *place)
        made = None if document is None else document.prepared(head.key)
        wanted = None if made is None else (made.record, made.packed)
        if known != wanted:
            is_said = known is not None and wanted is not None and known[1] == wanted[1]
            said = "has no longer the words of"
            if known is None or is_said:
                said = "has another record of" if is_said else "lacks"
            yield f"it {said} item {item.seq} of session {owner}"
