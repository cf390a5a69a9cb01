"""MemcoreMemoryService: ADK's memory service over a memcore file, searched by words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, TypeVar

from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.platform import uuid as platform_uuid
from google.adk.sessions.session import Session
from typing_extensions import override

from memcore.adapters.adk.commit import (
    Content,
    admitted_content,
    admitted_metadata,
    commit_with,
    in_thread,
)
from memcore.adapters.adk.memory_rows import (
    BEHIND_MAX,
    UNKNOWN_SESSION,
    Memory,
    adding,
    batches,
    behind,
    chars_of,
    delete_memories,
    drop_damaged,
    drop_old_index,
    find_memories,
    has_old_index,
    head_of,
    index_memories,
    is_known,
    memory_of,
)
from memcore.adapters.adk.names import label, located, name_of, place_of
from memcore.adapters.source import Opened, Source, database_of
from memcore.aio.commit import settled
from memcore.database.scope import rows_of, scope_filter_of
from memcore.errors import CorruptValueError, StoreFullError
from memcore.faces import logger
from memcore.kv import KeyValue, KeyValueTxn, KeyValueView
from memcore.options import checked_idempotency_key, checked_int
from memcore.privacy.write_filter import ScopeFilter
from memcore.records import record
from memcore.session.delete import resume_removals
from memcore.store import Store
from memcore.telemetry import adapting, adapts

__all__ = [
    "MemcoreMemoryService",
    "Run",
    "Watermark",
]


# --- Watermark: the events of a session that are remembered ---------------------------------------
# The log of a memcore session only grows at its end, so when a session is added again only the
# events after the known ones are read. That requires the events to begin with exactly the known
# ones, which a digest of their ids proves: an object with a part of the session, or with some
# events missing, is compared event by event.

_MARKER: Final = "memcore:"
_SESSION_BYTES_MAX: Final = 400


@record(frozen=True, slots=True)
class Watermark:
    """The prefix of a session's events that is completely stored."""

    number: str
    """The session's number, which is not shared by another session of the same name."""
    count: int
    digest: str
    """The digest of the events' ids."""

    @staticmethod
    def number_of(session: Session) -> str | None:
        """The number of a session returned by memcore's service; None for any other."""
        marker = session._storage_update_marker or ""  # noqa: SLF001 - where the service stores it
        return marker.split(":")[1] if marker.startswith(_MARKER) else None

    @classmethod
    def read(cls, view: KeyValueView, session_id: str) -> Watermark | None:
        """The stored watermark of the session with that name; None if there is none."""
        row = view.get(_key(session_id))
        if row is None:
            return None
        if not isinstance(row, list) or [type(each) for each in row] != [str, int, str]:
            msg = f"what is known of session {session_id!r:.80} is damaged; run 'memcore check'"
            raise CorruptValueError(msg, key=b"")
        return cls(*row)

    def write(self, txn: KeyValueTxn, session_id: str) -> None:
        """Store it in the transaction that stores the events."""
        txn.put(_key(session_id), [self.number, self.count, self.digest])

    def new_from(self, events: Sequence[Event]) -> int:
        """The index of the first event that may not be stored yet."""
        if len(events) < self.count:
            return 0
        digest = Run(self.number, events, None).upto(self.count).digest
        return self.count if digest == self.digest else 0


class Run:
    """The events of a session object while they are being stored.

    Args:
        number: the session's number.
        events: all events of the object.
        known: the session's previous watermark.
    """

    __slots__ = ("_count", "_events", "_known", "_number", "_sum")

    def __init__(self, number: str, events: Sequence[Event], known: Watermark | None) -> None:
        self._number = number
        self._events = events
        self._known = known
        self._sum = blake2b(digest_size=16)
        self._count = 0

    def upto(self, count: int) -> Watermark:
        """The watermark once the first ``count`` events are stored; call with ascending counts."""
        for event in self._events[self._count : count]:
            packed = event.id.encode("utf-8", "surrogatepass")
            self._sum.update(b"%d:" % len(packed) + packed)
        self._count = count
        known = self._known
        if known is not None and known.number == self._number and known.count > count:
            return known  # the object is older, or has only a part of the session
        return Watermark(self._number, count, self._sum.hexdigest())


def _key(session_id: str) -> str:
    return "s" + label(session_id, _SESSION_BYTES_MAX)


# --- MemcoreMemoryService: ADK's memory in a memcore file, found by words -------------------------

T = TypeVar("T")
_logger: Final = logger("memcore.adk")
_NAMESPACE: Final = "adk.memory"
_HANDLES_MAX: Final = 1024
_RESULTS: Final = 10
_PAGE: Final = 256
"""Events to process before yielding to other tasks of the loop."""
_SHORT_COUNT: Final = 10_000
_SHORT_QUERY_CHARS: Final = 1000
"""A query up to this length, of so many memories, runs in the caller's thread; others do not."""
_QUERY_CHARS_MAX: Final = 100_000
"""Only this much of a longer query is searched for."""
_SHORT_CHARS: Final = 4096
"""Text up to this length is encoded on the calling thread; more, in a worker thread."""
_SHORT_BATCH: Final = 8
"""This many memories are stored in much less than a millisecond."""


@adapts(
    add_session_to_memory="memory.put",
    add_events_to_memory="memory.put",
    add_memory="memory.create",
    search_memory="memory.search",
    delete_memory="memory.delete",
)
class MemcoreMemoryService(Opened, BaseMemoryService):
    """Word search over past conversations: ADK's memory service in a memcore file.

    Memories are ranked in the search index of the user's scope (``memcore.search``). Events are
    stored once, however often their session is added, and deleted ones stay deleted. No search
    sees memories of another user or application. For a user who opted out
    (``Scope.opt_out_memory``), nothing is stored, with a message to the logger ``memcore.adk``, and
    nothing is found.

    Args:
        source: an open Database or AsyncDatabase, or the path of a file (which ``close`` closes).
        durability: the durability of a file that is opened by its path (see ``memcore.open``).
        allow_unsafe: consent to ``durability="none"`` for a file, as in ``memcore.open``.
        max_results: the maximum number of memories that a search returns.
        uri: in place of ``source``: ``memcore:///path``, with options in its query, as ADK's
            ``services.yaml`` passes it.
        agents_dir: ignored; ADK passes it to every service.

    Raises:
        InvalidOptionError: an option has the wrong type or is out of range.
    """

    def __init__(
        self,
        source: Source | None = None,
        *,
        durability: str | None = None,
        allow_unsafe: bool = False,
        max_results: int = _RESULTS,
        uri: str | None = None,
        agents_dir: str | None = None,
    ) -> None:
        del agents_dir
        options = {
            "durability": durability,
            "allow_unsafe": allow_unsafe,
            "max_results": max_results,
        }
        source, given = located(source, uri, options)
        self._results = checked_int("max_results", given["max_results"], least=1)
        self.database, self._owned = database_of(
            source, durability=given["durability"], allow_unsafe=given["allow_unsafe"]
        )
        self.observer = adapting(source, "adk", place_of=place_of)
        self._handles: dict[tuple[str, str], tuple[KeyValue, ScopeFilter | None]] = {}
        """By app and user: the rows, and the filter for content to be stored."""

    # --- remembering ------------------------------------------------------------------------------

    @override
    async def add_session_to_memory(self, session: Session) -> None:
        """Store the events of a session that have text; those already stored are skipped.

        For a session of MemcoreSessionService, only the events after the known ones are read. A few
        dozen events are stored per commit: after a crash, call it again.
        """
        handle, events = self._handle(session.app_name, session.user_id), list(session.events)
        kv = handle[0]
        number = Watermark.number_of(session)
        if number is None or not events:
            await self._add_events(handle, events, session.id, None)
            return
        known = kv.read(lambda view: Watermark.read(view, session.id))
        start = known.new_from(events) if known is not None and known.number == number else 0
        run = Run(number, events, known)
        await self._add_events(
            handle,
            events[start:],
            session.id,
            None,
            lambda count: run.upto(start + count),
        )

    @override
    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store events that have text; those already stored for the session are skipped, by id.

        Args:
            app_name: the application.
            user_id: the user.
            events: the events, in order.
            session_id: the session that the events belong to.
            custom_metadata: JSON to return with them.

        Raises:
            InvalidItemError: the metadata is not JSON; nothing is stored.
        """
        handle = self._handle(app_name, user_id)
        await self._add_events(handle, events, session_id or UNKNOWN_SESSION, custom_metadata)

    async def _add_events(
        self,
        handle: tuple[KeyValue, ScopeFilter | None],
        events: Sequence[Event],
        session_id: str,
        metadata: Mapping[str, object] | None,
        mark: Callable[[int], Watermark] | None = None,
    ) -> None:
        """Store those events that are new.

        ``mark`` returns the watermark for a number of events.
        """
        kv, scope_filter = handle
        if not events or _wants_none(kv):
            return
        if scope_filter is not None:
            metadata = admitted_metadata(scope_filter, metadata)
        for start in range(0, len(events), _PAGE):
            page = events[start : start + _PAGE]
            new = kv.read(lambda view, page=page: _unknown(view, page, session_id))  # type: ignore[misc]
            made = await _prepared(
                sum(map(chars_of, (event.content for _, event in new))),
                lambda new=new: [  # type: ignore[misc]
                    (
                        at,
                        memory_of(
                            _admitted(scope_filter, each), session_id, metadata, secret=kv.secret
                        ),
                    )
                    for at, each in new
                ],
            )
            places = {id(memory): at for at, memory in made if memory is not None}
            cut = batches([memory for _, memory in made if memory is not None])
            for batch in cut:
                upto = len(page) if batch is cut[-1] else places[id(batch[-1])] + 1
                watermark = None if mark is None else mark(start + upto)
                await self._store(kv, batch, session_id, watermark)
            await asyncio.sleep(0)  # yield to other tasks

    @override
    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Store entries as given; one with the id of an existing entry replaces it.

        An entry without an id gets one. A deleted id is not stored again.

        Args:
            app_name: the application.
            user_id: the user.
            memories: the entries.
            custom_metadata: JSON to return with each entry, in addition to its own.
            idempotency_key: entries without an id get one derived from this key and their index, so
                that a retry stores the same entries.

        Raises:
            InvalidItemError: metadata is not JSON; nothing is stored.
        """
        kv, scope_filter = self._handle(app_name, user_id)
        if _wants_none(kv):
            return
        given = [
            (entry, entry.id or _made_id(idempotency_key, at)) for at, entry in enumerate(memories)
        ]
        if scope_filter is not None:
            for _, id_ in given:
                scope_filter.name(id_, "id of a memory")
            given = [(_admitted_entry(scope_filter, entry), id_) for entry, id_ in given]
            custom_metadata = admitted_metadata(scope_filter, custom_metadata)
        made = await _prepared(
            sum(chars_of(entry.content) for entry in memories),
            lambda: [Memory.of_entry(entry, id_, custom_metadata) for entry, id_ in given],
        )
        for batch in batches(made):
            await self._store(kv, batch, "", None)

    async def _store(
        self, kv: KeyValue, batch: list[Memory], session_id: str, watermark: Watermark | None
    ) -> None:
        def closure_of(contents: Sequence[Content]) -> Callable[[KeyValueTxn], bool]:
            add = adding(batch, contents)

            def closure(txn: KeyValueTxn) -> bool:
                if txn.forgets:
                    return False  # opted out just now
                add(txn)
                if watermark is not None:
                    watermark.write(txn, session_id)
                return txn.leaves_rows

            return closure

        replaces = any(memory.replaces for memory in batch)
        if replaces and kv.read(has_old_index):
            await settled(in_thread(drop_old_index, kv))
        contents = [memory.content for memory in batch]
        large = replaces or len(batch) > _SHORT_BATCH
        if await commit_with(kv, contents, closure_of, large=large, is_choosy=True):
            await self._resume()

    # --- searching --------------------------------------------------------------------------------

    @override
    async def search_memory(
        self, *, app_name: str, user_id: str, query: str
    ) -> SearchMemoryResponse:
        """The memories that share a word with the query, best first, as ``memcore.search`` ranks.

        Raises:
            CorruptValueError: a memory is damaged.
        """
        kv, scope_filter = self._handle(app_name, user_id)
        text = (query if scope_filter is None else scope_filter.again(query))[:_QUERY_CHARS_MAX]
        if not text.strip():
            return SearchMemoryResponse()
        try:
            found = await self._found(kv, text)
        except CorruptValueError as error:
            if self.database.engine.store.read_only:
                raise
            await settled(in_thread(drop_damaged, kv, error))
            _logger.warning("a damaged search index is built anew: %s", error)
            found = await self._found(kv, text)
        return SearchMemoryResponse(memories=found)

    async def _found(self, kv: KeyValue, query: str) -> list[MemoryEntry]:
        engine = self.database.engine
        count, lacking = kv.read(lambda view: (head_of(view)[1], behind(view)))
        if not engine.store.read_only and not 0 <= lacking <= BEHIND_MAX:
            await settled(in_thread(_index, kv, engine.store))

        def search(view: KeyValueView) -> list[MemoryEntry]:
            return find_memories(view, query, self._results, engine.indexes)

        if count <= _SHORT_COUNT and len(query) <= _SHORT_QUERY_CHARS:
            return kv.read(search)
        return await asyncio.to_thread(kv.read, search)

    # --- deleting ---------------------------------------------------------------------------------

    @override
    async def delete_memory(
        self, *, app_name: str, user_id: str, memory_id: str | None = None
    ) -> None:
        """Delete the memories with an id; adding their session again does not restore them."""
        if not memory_id:
            return

        def closure(txn: KeyValueTxn) -> bool:
            return delete_memories(txn, memory_id) and txn.leaves_rows

        kv = self._kv(app_name, user_id)
        if kv.read(has_old_index):
            await settled(in_thread(drop_old_index, kv))
        if await settled(kv.submit(closure, asyncio.get_running_loop(), large=True)):
            await self._resume()

    async def _resume(self) -> None:
        await settled(in_thread(resume_removals, self.database.engine.store))

    def _kv(self, app_name: str, user_id: str) -> KeyValue:
        return self._handle(app_name, user_id)[0]

    def _handle(self, app_name: str, user_id: str) -> tuple[KeyValue, ScopeFilter | None]:
        found = self._handles.get((app_name, user_id))
        if found is None or self.database.engine.access is not None:
            if len(self._handles) >= _HANDLES_MAX:
                self._handles.clear()
            scope = self.database.scope(app=name_of(app_name), user=name_of(user_id))
            kv = rows_of(scope, _NAMESPACE, memory=True)
            found = self._handles[app_name, user_id] = kv, scope_filter_of(scope)
        return found


def _wants_none(kv: KeyValue) -> bool:
    """Return whether the user opted out of memory; if so, log that nothing was stored."""
    if not kv.read(lambda view: view.wants_no_memory):
        return False
    _logger.info("the user opted out of memory: nothing was remembered")
    return True


def _made_id(key: str | None, at: int) -> str:
    if key is None:
        return str(platform_uuid.new_uuid())
    named = checked_idempotency_key(key).encode("utf-8", "surrogatepass")
    return blake2b(named, digest_size=16, salt=at.to_bytes(8, "little")).hexdigest()


def _admitted(scope_filter: ScopeFilter | None, event: Event) -> Event:
    """The event with its content and author filtered."""
    if scope_filter is None or event.content is None:
        return event
    scope_filter.name(event.id, "id of a memory")
    made = {"content": admitted_content(scope_filter, event.content)}
    return event.model_copy(update={**made, "author": scope_filter.again(event.author)})


def _admitted_entry(scope_filter: ScopeFilter, entry: MemoryEntry) -> MemoryEntry:
    """An entry with its content, metadata and author filtered."""
    told = admitted_metadata(scope_filter, entry.custom_metadata)
    made = {"content": admitted_content(scope_filter, entry.content), "custom_metadata": told}
    return entry.model_copy(update={**made, "author": scope_filter.again(entry.author)})


async def _prepared(chars: int, prepare: Callable[[], list[T]]) -> list[T]:
    """Run ``prepare`` and return its result; in a thread if there is much text."""
    if chars <= _SHORT_CHARS:
        return prepare()
    return await asyncio.to_thread(prepare)


def _unknown(
    view: KeyValueView, events: Sequence[Event], session_id: str
) -> list[tuple[int, Event]]:
    """The events that are not stored yet, with their positions."""
    return [
        (at, event) for at, event in enumerate(events) if not is_known(view, event.id, session_id)
    ]


def _index(kv: KeyValue, store: Store) -> None:
    """Index the memories that are not indexed, and remove the index of an earlier version."""
    try:
        drop_old_index(kv)
        for _ in range(2):  # the first may drop an index, which has to go first
            resume_removals(store)
            if index_memories(kv):
                return
    except StoreFullError as error:  # reading needs no room
        _logger.warning("searching without indexing: %s", error)
