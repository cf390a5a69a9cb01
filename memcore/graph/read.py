"""Reading of checkpoints: the newest or by id, listings, histories of delta channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from heapq import heapify, heappop, heapreplace
from typing import Any, Final

from memcore.codec import keys
from memcore.codec.keys import ThreadRow
from memcore.graph import rows
from memcore.graph import rows as threads
from memcore.graph.decode import MISSING, Cache, Joiner, ValueParts
from memcore.graph.manifest import Coder
from memcore.graph.prune import changed_ms
from memcore.graph.rows import GraphCheckpointRow, Place, Thread, chunk_key, key_of, read_chunk
from memcore.records import record
from memcore.store.interface import ReadTxn

__all__ = [
    "Delta",
    "Deltas",
    "GraphReader",
    "Listing",
    "StoredCheckpoint",
    "ThreadEntry",
    "ThreadView",
]


# --- Reading checkpoints: the newest or by id -----------------------------------------------------


@record(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint as stored; all its objects belong to the caller."""

    thread: str
    namespace: str
    checkpoint: str
    parent: str | None
    body: Any
    metadata: Any
    values: dict[str, Any]
    writes: list[tuple[str, str, Any]]
    """Task, channel, value, in the order in which a step applies them."""


@record(slots=True)
class Delta:
    """The history of a channel: a value and the ancestors' writes after it, oldest first."""

    writes: list[tuple[str, str, Any]] = field(default_factory=list)
    seed: Any = MISSING
    """Value at the nearest ancestor that has one."""


@record(frozen=True, slots=True)
class ThreadEntry:
    """An entry of a listing of threads."""

    thread: str
    created_at: float
    """Seconds since the epoch."""
    newest: str | None
    """The newest checkpoint of the root namespace."""
    changed_at: float | None = None
    """Time of the newest checkpoint of any namespace, in seconds since the epoch by its writer's
    clock; None: unknown without its serialiser."""


@record(slots=True)
class ThreadView:
    """One thread in one transaction, for one coder."""

    txn: ReadTxn
    name: str
    thread: Thread
    coder: Coder
    joiner: Joiner

    @property
    def place(self) -> Place:
        """The thread's scope, number and pool."""
        return self.thread.place


class GraphReader:
    """Reads of one scope."""

    def __init__(
        self,
        cache: Cache,
        read: Callable[[Callable[[ReadTxn], Any]], Any],
        find: Callable[[ReadTxn], int | None],
    ) -> None:
        self._cache = cache
        self._read = read
        self._find = find

    def get(
        self, thread: str, namespace: str, checkpoint: str | None, coder: Coder
    ) -> StoredCheckpoint | None:
        """Return a checkpoint by id, or the newest of the namespace; None if there is none."""

        def look(txn: ReadTxn) -> StoredCheckpoint | None:
            view = self._view(txn, thread, coder)
            number = None if view is None else threads.namespace_of(txn, view.place, namespace)
            if view is None or number is None:
                return None
            wanted = checkpoint
            if wanted is None:
                wanted = rows.newest(txn, view.place, number)
            return None if wanted is None else self._found(view, namespace, number, wanted)

        return self._read(look)  # type: ignore[no-any-return]

    def _view(self, txn: ReadTxn, name: str, coder: Coder) -> ThreadView | None:
        self._cache.refresh()
        scope = self._find(txn)
        thread = None if scope is None else threads.thread_of(txn, scope, name)
        if thread is None:
            return None
        place = thread.place

        def fetch(part: bytes) -> tuple[str, bytes]:
            return read_chunk(txn, chunk_key(place.scope, place.pool, part))

        def ahead(parts: Sequence[bytes]) -> None:
            txn.prefetch([chunk_key(place.scope, place.pool, part) for part in parts])

        secret = key_of(thread.pool, coder)
        joiner = Joiner(
            self._cache, coder, fetch, pool=place.pool, secret=secret,
            ahead=ahead if txn.is_remote else None,
        )  # fmt: skip
        return ThreadView(txn, name, thread, coder, joiner)

    def _found(
        self, view: ThreadView, namespace: str, number: int, checkpoint: str
    ) -> StoredCheckpoint | None:
        row = self._row(view, number, checkpoint)
        if row is None or row.pruned:
            return None
        return self._whole(view, namespace, number, checkpoint, row)

    def _row(self, view: ThreadView, number: int, checkpoint: str) -> GraphCheckpointRow | None:
        key = rows.checkpoint_key(view.place, number, checkpoint)
        value = view.txn.get(key)
        return None if value is None else GraphCheckpointRow.unpack(key, value)

    def _whole(
        self,
        view: ThreadView,
        namespace: str,
        number: int,
        checkpoint: str,
        row: GraphCheckpointRow,
    ) -> StoredCheckpoint:
        view.joiner.begin()
        body = row.body_by(view.coder)
        return StoredCheckpoint(
            thread=view.name,
            namespace=namespace,
            checkpoint=checkpoint,
            parent=row.parent,
            body=body,
            metadata=row.metadata_by(view.coder),
            values=self._values(view, namespace, number, row, body),
            writes=[
                (write.task, write.channel, view.joiner.join(write.node))
                for write in self._writes(view, number, checkpoint)
            ],
        )

    def _values(
        self, view: ThreadView, namespace: str, number: int, row: GraphCheckpointRow, body: Any
    ) -> dict[str, Any]:
        values = {}
        for channel, version in rows.versions_in(body).items():
            value = self._value(view, namespace, number, row, (channel, version))
            if value is not MISSING:
                values[channel] = value
        return values

    def _value(
        self,
        view: ThreadView,
        namespace: str,
        number: int,
        row: GraphCheckpointRow,
        named: tuple[str, rows.Version],
    ) -> Any:
        """Return the value of a channel version that a checkpoint names; MISSING if it is empty.

        Raises:
            CorruptValueError: the value was lost.
        """
        channel, version = named
        key = rows.value_key(view.place, number, channel, version)
        node = rows.node_of(view.txn, key, view.coder)
        if node is None:
            if row.complete:
                raise rows.lost_value(view.name, row.checkpoint, channel, version, key)
            return MISSING
        value = view.joiner.join(node)
        if view.joiner.version is not None and not view.thread.pool.sweeping:
            self._remember(view, namespace, channel, view.joiner.version)
        return value

    def _remember(
        self, view: ThreadView, namespace: str, channel: str, version: ValueParts
    ) -> None:
        """Make the value that was read the baseline of the next put, as if it had been put."""
        key = (view.place, view.thread.pool.epoch, namespace, channel)
        before = self._cache.versions.get(key)
        if before is not None and before.nodes == version.nodes:
            before.loaded = version.trees
        elif before is None:
            self._cache.versions.put(key, version, weight=version.size + len(version.nodes))

    def _newest(self, view: ThreadView, number: int) -> str | None:
        return rows.newest(view.txn, view.place, number)

    def _writes(self, view: ThreadView, number: int, checkpoint: str) -> list[rows.Write]:
        prefix = rows.writes_of(view.place, number, checkpoint)
        found: list[rows.Write] = []
        for key, value in view.txn.scan(prefix, keys.after(prefix)):
            found += rows.unpack_writes(rows.open_sealed(key, value, view.coder, rows.WRITES))
        found.sort(key=lambda write: write.order)
        return found


# --- Listings of checkpoints and threads, one transaction per page --------------------------------

_PAGE: Final = 16
_NAMES_PAGE: Final = 256
Matches = Callable[[Any], bool]


@record(frozen=True, slots=True)
class _Asked:
    """A request for checkpoints of one namespace: filters and page size."""

    thread: str
    namespace: str
    checkpoint: str | None
    before: str | None
    matches: Matches | None
    page: int
    """Checkpoints read per transaction."""


@record(frozen=True, slots=True)
class _Descending:
    """An id in reversed order, so that a heap yields the greatest first."""

    id: str

    def __lt__(self, other: _Descending) -> bool:
        return self.id > other.id


class Listing(GraphReader):
    """Listings of one scope; a consumer that stops early blocks nothing."""

    def checkpoints(
        self,
        thread: str | None,
        namespace: str | None,
        coder: Coder,
        *,
        checkpoint: str | None = None,
        before: str | None = None,
        matches: Matches | None = None,
        limit: int | None = None,
    ) -> Iterator[StoredCheckpoint]:
        """Yield checkpoints, greatest id first; for equal ids, those of the older thread first.

        Args:
            thread: None: all threads.
            namespace: None: all namespaces of a thread.
            coder: decodes the checkpoints.
            checkpoint: only the one with this id.
            before: only ids below this one, which need not exist.
            matches: predicate on the metadata.
            limit: maximum number; 0 or less: none.
        """
        left = limit
        if left is not None and left <= 0:
            return
        # Without a filter, no more checkpoints are decoded than requested.
        page = _PAGE if limit is None or matches is not None else min(_PAGE, max(limit, 1))
        names = self._names(thread)
        spaces = self._read(lambda txn: [self._spaces(txn, name, namespace) for name in names])
        places = [
            (_Asked(name, space, checkpoint, before, matches, page), number)
            for name, found in zip(names, spaces, strict=True)
            for space, number in found
        ]
        several = self._merged(places, coder) if len(places) > 1 else None
        for found in several or (each for place in places for each in self._of(*place, coder)):
            yield found
            if left is not None:
                left -= 1
                if left == 0:
                    return

    def _merged(self, places: list[tuple[_Asked, int]], coder: Coder) -> Iterator[StoredCheckpoint]:
        """Merge the checkpoints of several namespaces, greatest id first.

        Only the next id of each is kept, so that many threads take little memory.
        """
        newest = self._read(
            lambda txn: [
                self._next_id(txn, asked=asked, number=number, below=None)
                for asked, number in places
            ]
        )
        heap = [(_Descending(first), at) for at, first in enumerate(newest) if first is not None]
        heapify(heap)
        while heap:
            first, at = heap[0]
            asked, number = places[at]
            one = replace(asked, checkpoint=first.id, before=None)
            page, _ = self._read(
                partial(self._page, asked=one, number=number, coder=coder, below=None)
            )
            yield from page
            following = self._read(
                partial(self._next_id, asked=asked, number=number, below=first.id)
            )
            if following is None:
                heappop(heap)
            else:
                heapreplace(heap, (_Descending(following), at))

    def _next_id(
        self, txn: ReadTxn, *, asked: _Asked, number: int, below: str | None
    ) -> str | None:
        """Find the greatest id of a namespace that matches the request and is below another id."""
        scope = self._find(txn)
        thread = None if scope is None else threads.thread_of(txn, scope, asked.thread)
        if thread is None or threads.namespace_of(txn, thread.place, asked.namespace) != number:
            return None  # deleted in the meantime
        if below is not None and asked.checkpoint is not None:
            return None
        bounds = [each for each in (asked.before, below) if each is not None]
        found, _ = _rows_below(
            txn, thread.place, number, replace(asked, page=1), min(bounds, default=None)
        )
        return rows.id_in(found[0][0]) if found else None

    def threads(self) -> Iterator[ThreadEntry]:
        """Yield the threads by name, without their values.

        A thread without a checkpoint is omitted: it does not exist yet (writes arrived before their
        checkpoint) or no longer exists (they arrived after its deletion).
        """
        after: str | None = None
        while True:
            page, after = self._read(partial(self._thread_page, after=after))
            yield from page
            if after is None:
                return

    def _thread_page(self, txn: ReadTxn, after: str | None) -> tuple[list[ThreadEntry], str | None]:
        """Read some threads, and the name after which the next page begins."""
        found: list[ThreadEntry] = []
        scope = self._find(txn)
        if scope is None:
            return found, None
        named = threads.threads(txn, scope, start_after=after)
        for count, (name, number) in enumerate(named, 1):
            pool, created_ms = threads.read_head(txn, scope, number)
            place = rows.Place(scope, number, pool)
            root = threads.namespace_of(txn, place, "")
            newest = None if root is None else rows.newest(txn, place, root)
            if newest is not None or _has_checkpoints(txn, place):
                changed = changed_ms(txn, place)
                at = None if changed is None else changed / 1000
                found.append(ThreadEntry(name, created_ms / 1000, newest, at))
            if count == _NAMES_PAGE:
                return found, name
        return found, None

    def _names(self, thread: str | None) -> list[str]:
        if thread is not None:
            return [thread]

        def look(txn: ReadTxn) -> list[str]:
            scope = self._find(txn)
            found = [] if scope is None else list(threads.threads(txn, scope))
            return [name for name, _ in sorted(found, key=lambda pair: pair[1])]

        return self._read(look)  # type: ignore[no-any-return]

    def _namespaces(self, thread: str, namespace: str | None) -> list[tuple[str, int]]:
        return self._read(lambda txn: self._spaces(txn, thread, namespace))  # type: ignore[no-any-return]

    def _spaces(self, txn: ReadTxn, thread: str, namespace: str | None) -> list[tuple[str, int]]:
        """List the names and numbers of the namespaces of a thread."""
        scope = self._find(txn)
        found = None if scope is None else threads.thread_of(txn, scope, thread)
        if found is None:
            return []
        if namespace is None:
            return [(name, n) for n, name in threads.namespaces_of(txn, found.place)]
        number = threads.namespace_of(txn, found.place, namespace)
        return [] if number is None else [(namespace, number)]

    def _of(self, asked: _Asked, number: int, coder: Coder) -> Iterator[StoredCheckpoint]:
        """Yield the checkpoints of one namespace, newest first."""
        below = asked.before
        while True:
            page, below = self._read(
                partial(self._page, asked=asked, number=number, coder=coder, below=below)
            )
            yield from page
            if below is None:
                return

    def _page(
        self, txn: ReadTxn, *, asked: _Asked, number: int, coder: Coder, below: str | None
    ) -> tuple[list[StoredCheckpoint], str | None]:
        """Read some checkpoints below an id, and the id below which the next page begins."""
        view = self._view(txn, asked.thread, coder)
        if view is None or threads.namespace_of(txn, view.place, asked.namespace) != number:
            return [], None  # deleted in the meantime
        whole, following = _rows_below(txn, view.place, number, asked, below)
        found = []
        for key, value in whole:
            row = GraphCheckpointRow.unpack(key, value)
            if asked.matches is None or asked.matches(row.metadata_by(coder)):
                found.append(self._whole(view, asked.namespace, number, rows.id_in(key), row))
        return found, following


def _rows_below(
    txn: ReadTxn, place: rows.Place, number: int, asked: _Asked, below: str | None
) -> tuple[list[tuple[bytes, bytes]], str | None]:
    if asked.checkpoint is not None:
        if asked.before is not None and asked.checkpoint >= asked.before:
            return [], None
        key = rows.checkpoint_key(place, number, asked.checkpoint)
        value = txn.get(key)
        return ([] if value is None or rows.is_pruned(key, value) else [(key, value)]), None
    found = rows.newest_rows(
        txn, place, number, limit=asked.page, below=None if below is None else rows.bound(below)
    )
    return found, rows.id_in(found[-1][0]) if len(found) == asked.page else None


def _has_checkpoints(txn: ReadTxn, place: rows.Place) -> bool:
    prefix = keys.thread_rows(place.scope, place.thread, ThreadRow.CHECKPOINT)
    return any(not rows.is_pruned(*row) for row in txn.scan(prefix, keys.after(prefix)))


# --- Histories of channels stored as deltas: writes along the ancestors ---------------------------


class Deltas(GraphReader):
    """Histories of channels along the ancestors of a checkpoint."""

    def deltas(
        self,
        thread: str,
        namespace: str,
        checkpoint: str | None,
        channels: Sequence[str],
        coder: Coder,
    ) -> dict[str, Delta]:
        """Collect the writes of a checkpoint's ancestors (None: the newest's) to these channels.

        For each channel the walk ends at the nearest ancestor that holds a value of it, whose own
        writes are included; those of the checkpoint itself are not. A cyclic chain ends where it
        closes.
        """

        def look(txn: ReadTxn) -> dict[str, Delta]:
            view = self._view(txn, thread, coder)
            number = None if view is None else threads.namespace_of(txn, view.place, namespace)
            if view is None or number is None:
                return {channel: Delta() for channel in channels}
            wanted = checkpoint or self._newest(view, number)
            return self._walk(view, namespace, number, wanted, channels)

        return self._read(look)  # type: ignore[no-any-return]

    def _walk(
        self,
        view: ThreadView,
        namespace: str,
        number: int,
        wanted: str | None,
        channels: Sequence[str],
    ) -> dict[str, Delta]:
        found = {channel: Delta() for channel in channels}
        row = None if wanted is None else self._row(view, number, wanted)
        if row is not None and row.pruned:
            return found
        seen = {wanted}
        missing = set(channels)
        steps: dict[str, list[list[tuple[str, str, object]]]] = {name: [] for name in channels}
        while missing and row is not None and row.parent is not None and row.parent not in seen:
            seen.add(row.parent)
            at = row.parent
            view.joiner.begin()
            row = self._row(view, number, at)
            if row is None:
                break
            pending = [w for w in self._writes(view, number, at) if w.channel in missing]
            for channel in missing:
                steps[channel].append(
                    [
                        (write.task, channel, view.joiner.join(write.node))
                        for write in pending
                        if write.channel == channel
                    ]
                )
            versions = rows.versions_in(row.body_by(view.coder))
            for channel in [name for name in missing if name in versions]:
                named = channel, versions[channel]
                value = self._value(view, namespace, number, row, named)
                if value is not MISSING:
                    found[channel].seed = value
                    missing.discard(channel)
        for channel, pages in steps.items():
            found[channel].writes = [write for page in reversed(pages) for write in page]
        return found
