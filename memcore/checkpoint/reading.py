"""Reading checkpoints: the newest or one by id, lists of them, histories of delta channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from memcore import keys
from memcore.checkpoint import rows, threads
from memcore.checkpoint.cache import Cache, Version
from memcore.checkpoint.coding import Coder
from memcore.checkpoint.joining import MISSING, Joiner
from memcore.checkpoint.pool import chunk_key, key_of, read_chunk
from memcore.checkpoint.rows import CheckpointRow, Place
from memcore.checkpoint.threads import Thread
from memcore.store.base import ReadTxn

__all__ = ["Delta", "Found", "Reading", "ThreadEntry", "View"]


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint as it was stored. All of it is the caller's."""

    thread: str
    namespace: str
    checkpoint: str
    parent: str | None
    body: Any
    metadata: Any
    values: dict[str, Any]
    writes: list[tuple[str, str, Any]]
    """Task, channel, value, in the order in which a step applies them."""


@dataclass(slots=True)
class Delta:
    """What the ancestors of a checkpoint contributed to one channel, oldest first."""

    writes: list[tuple[str, str, Any]] = field(default_factory=list)
    seed: Any = MISSING
    """The value at the nearest ancestor that has one."""


@dataclass(frozen=True, slots=True)
class ThreadEntry:
    """One line of a list of threads."""

    thread: str
    created_at: float
    """Seconds since 1970."""
    newest: str | None
    """The newest checkpoint of the root namespace."""
    changed_at: float | None = None
    """When the newest checkpoint of any namespace was made, in seconds since 1970 by its writer's
    clock; None: nothing that can be read without its serialiser tells."""


@dataclass(slots=True)
class View:
    """One thread in one transaction, for one coder."""

    txn: ReadTxn
    name: str
    thread: Thread
    coder: Coder
    joiner: Joiner

    @property
    def place(self) -> Place:
        """Where it lies."""
        return self.thread.place


class Reading:
    """The reads of one scope."""

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
    ) -> Found | None:
        """A checkpoint by id, or the newest of the namespace; None if there is none."""

        def look(txn: ReadTxn) -> Found | None:
            view = self._view(txn, thread, coder)
            number = None if view is None else threads.namespace_of(txn, view.place, namespace)
            if view is None or number is None:
                return None
            wanted = checkpoint
            if wanted is None:
                wanted = rows.newest(txn, view.place, number)
            return None if wanted is None else self._found(view, namespace, number, wanted)

        return self._read(look)  # type: ignore[no-any-return]

    def _view(self, txn: ReadTxn, name: str, coder: Coder) -> View | None:
        self._cache.refresh()
        scope = self._find(txn)
        thread = None if scope is None else threads.thread_of(txn, scope, name)
        if thread is None:
            return None
        place = thread.place

        def fetch(part: bytes) -> tuple[str, bytes]:
            return read_chunk(txn, chunk_key(place.scope, place.pool, part))

        secret = key_of(thread.pool, coder)
        joiner = Joiner(self._cache, coder, fetch, pool=place.pool, secret=secret)
        return View(txn, name, thread, coder, joiner)

    def _found(self, view: View, namespace: str, number: int, checkpoint: str) -> Found | None:
        row = self._row(view, number, checkpoint)
        if row is None:
            return None
        return self._whole(view, namespace, number, checkpoint, row)

    def _row(self, view: View, number: int, checkpoint: str) -> CheckpointRow | None:
        key = rows.checkpoint_key(view.place, number, checkpoint)
        value = view.txn.get(key)
        return None if value is None else CheckpointRow.unpack(key, value)

    def _whole(
        self, view: View, namespace: str, number: int, checkpoint: str, row: CheckpointRow
    ) -> Found:
        body = row.body_by(view.coder)
        return Found(
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
        self, view: View, namespace: str, number: int, row: CheckpointRow, body: Any
    ) -> dict[str, Any]:
        values = {}
        for channel, version in rows.versions_in(body).items():
            value = self._value(view, namespace, number, row, (channel, version))
            if value is not MISSING:
                values[channel] = value
        return values

    def _value(
        self,
        view: View,
        namespace: str,
        number: int,
        row: CheckpointRow,
        named: tuple[str, rows.Version],
    ) -> Any:
        """The value of a channel in the version that a checkpoint names, MISSING if it is empty.

        Raises:
            CorruptValueError: it was lost.
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

    def _remember(self, view: View, namespace: str, channel: str, version: Version) -> None:
        """Compare the next put with what was read, beside what the process put itself."""
        key = (view.place, view.thread.pool.epoch, namespace, channel)
        before = self._cache.versions.get(key)
        if before is not None and before.nodes == version.nodes:
            before.loaded = version.trees
        elif before is None:
            self._cache.versions.put(key, version, weight=version.size + len(version.nodes))

    def _newest(self, view: View, number: int) -> str | None:
        return rows.newest(view.txn, view.place, number)

    def _writes(self, view: View, number: int, checkpoint: str) -> list[rows.Write]:
        prefix = rows.writes_of(view.place, number, checkpoint)
        found: list[rows.Write] = []
        for key, value in view.txn.scan(prefix, keys.after(prefix)):
            found += rows.unpack_writes(rows.open_sealed(key, value, view.coder, rows.WRITES))
        found.sort(key=lambda write: write.order)
        return found
