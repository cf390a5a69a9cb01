"""MemcoreStore: LangGraph's long-term memory in a memcore file."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import Literal, Self

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, IndexConfig, Op, Result, TTLConfig

from memcore.adapters.langgraph.admitting import admitted_op
from memcore.adapters.langgraph.items import is_due, sweep
from memcore.adapters.langgraph.plan import Plan, checked_ttl
from memcore.adapters.langgraph.sweeper import Sweeper
from memcore.adapters.langgraph.vectors import Index
from memcore.aio.commit import settled
from memcore.aio.source import Done, Opened, Source, scope_of
from memcore.database.scope import backing_of, passage_of, rows_of
from memcore.kv import KeyValue
from memcore.options import checked_bool, checked_choice
from memcore.session import Backing
from memcore.telemetry import adapting, adapts

__all__ = ["AsyncMemcoreStore", "MemcoreStore"]

_log = logging.getLogger("memcore.langgraph")

Order = Literal["updated", "created"]


@adapts(
    batch="memory.batch . count",
    abatch="memory.batch . count",
    get="memory.get",
    aget="memory.get",
    put="memory.put . single",
    aput="memory.put . single",
    delete="memory.delete",
    adelete="memory.delete",
    search="memory.search . count",
    asearch="memory.search . count",
    list_namespaces="memory.list . count",
    alist_namespaces="memory.list . count",
    sweep_ttl="sweep . number",
    asweep_ttl="sweep . number",
)
class MemcoreStore(Opened, BaseStore):
    """Items under namespaces, with search by filter and by meaning, and times to live.

    Every method may be called with and without ``await`` (``put``, ``aput``, ...), by any thread. A
    batch reads one snapshot, from before its own puts, and stores all its puts in one commit, or
    none; reads alone commit nothing, unless they let an item with a time to live live on.

    Args:
        source: a database, a scope of one, or a path. A file that is opened here is closed by
            ``close``.
        index: ``{"dims", "embed", "fields", "distance_type"}`` for search by meaning: the embedder
            is called outside any transaction, its vectors lie beside the items and leave with them.
        ttl: ``{"default_ttl", "refresh_on_read", "omit_expired", "sweep_interval_minutes"}``, in
            minutes.
        order: of what a search without a query finds: ``"updated"``, what was put last first, as
            SqliteStore and PostgresStore; ``"created"``, in the order in which namespaces and items
            came into being, as InMemoryStore; it reads no more items than it returns.
        namespace: the key/value namespace that the items lie in; stores of two know nothing of
            each other.
        app: the application; None: ``"default"``, or the scope's.
        user: the user; as ``app``. No store reaches items of another user or application.
        memory: whether it is long-term memory: for a user who opted out (``opt_out_memory``)
            nothing is put, which the log of ``memcore.langgraph`` says, and nothing is found.

        durability: of a file that is made here: ``"full"`` (what was put survives a power cut; also
            None), ``"relaxed"`` (it survives the process; a power cut may take the last fraction
            of a second) or ``"none"``. A file that is there has its own.
        allow_unsafe: consent to ``durability="none"`` of a file, as in ``memcore.open``.

    Raises:
        InvalidOptionError: an option is of a wrong type or out of range.
    """

    supports_ttl = True

    def __init__(
        self,
        source: Source,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        order: Order = "updated",
        namespace: str = "langgraph.store",
        app: str | None = None,
        user: str | None = None,
        memory: bool = True,
        durability: str | None = None,
        allow_unsafe: bool = False,
    ) -> None:
        self.index_config = index
        self.ttl_config = checked_ttl(ttl)
        self._is_newest_first = checked_choice("order", order, ("updated", "created")) == "updated"
        self._index = Index(index) if index else None
        scope, self._owned = scope_of(
            source, app=app, user=user, durability=durability, allow_unsafe=allow_unsafe
        )
        self._backing = backing_of(scope)
        self._kv = rows_of(scope, namespace, memory=checked_bool("memory", memory))
        self._passage, self._name = passage_of(scope), namespace
        self.observer = adapting(source, "langgraph", (scope.app, scope.user, None))
        self._sweeper = Sweeper(partial(_sweep, self._kv, self._backing))

    @classmethod
    def from_conn_string(
        cls,
        path: str | os.PathLike[str],
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        order: Order = "updated",
        durability: str | None = None,
        allow_unsafe: bool = False,
        namespace: str = "langgraph.store",
        app: str | None = None,
        user: str | None = None,
        memory: bool = True,
    ) -> Self:
        """A store of the file at a path, for ``with`` and ``async with``; options of the class."""
        return cls(
            path, index=index, ttl=ttl, order=order, namespace=namespace, app=app, user=user,
            memory=memory, durability=durability, allow_unsafe=allow_unsafe,
        )  # fmt: skip

    def _admitted(self, ops: Iterable[Op]) -> Iterable[Op]:
        """The operations as they may be stored, and as they find what was stored."""
        passage, name = self._passage, self._name
        return ops if passage is None else [admitted_op(passage, op, name) for op in ops]

    @property
    def embeddings(self) -> Embeddings | None:
        """What embeds the texts of items and queries; None without ``index``."""
        return None if self._index is None else self._index.embeddings

    def setup(self) -> Done:
        """Nothing is to be set up; other stores need it, some with ``await``."""
        return Done()

    def close(self) -> None:
        """End the sweeper, and close the file if the store opened it. Idempotent."""
        self._sweeper.stop()
        super().close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """The results of the operations, in their order.

        Raises:
            InvalidNamespaceError: a label is empty, no string, or holds a dot or NUL.
            InvalidItemError: a value is no JSON, or too large; nothing of the batch is stored.
            InvalidOptionError: a filter, a time to live or a vector is not legal.
        """
        plan = self._plan(ops)
        embed = self.embeddings
        if embed and plan.queries:
            plan.use_queries([embed.embed_query(query) for query in plan.queries])
        results = self._read(plan)
        if embed and plan.texts:
            plan.use_texts(embed.embed_documents(plan.texts))
        if plan.changes(read_only=self._backing.store.read_only):
            self._kv.transact(
                lambda txn: plan.write(txn, self._backing.now_us()), makes_room=plan.makes_room
            )
            _tell(plan)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As ``batch``; the loop goes on while embedders, scans and the commit are at work.

        A cancelled call still waits for the outcome of its commit: stored or refused, not in doubt.
        """
        plan = self._plan(ops)
        embed = self.embeddings
        if embed and plan.queries:
            coroutines = [embed.aembed_query(query) for query in plan.queries]
            plan.use_queries(await asyncio.gather(*coroutines))
        if plan.is_short or not plan.reads:
            results = self._read(plan)
        else:
            results = await asyncio.to_thread(self._read, plan)
        if embed and plan.texts:
            plan.use_texts(await embed.aembed_documents(plan.texts))
        if plan.changes(read_only=self._backing.store.read_only):
            future = self._kv.submit(
                lambda txn: plan.write(txn, self._backing.now_us()),
                asyncio.get_running_loop(),
                makes_room=plan.makes_room,
            )
            await settled(future)
            _tell(plan)
        return results

    def _plan(self, ops: Iterable[Op]) -> Plan:
        return Plan(
            self._admitted(ops), self._index, self.ttl_config, newest_first=self._is_newest_first
        )

    def _read(self, plan: Plan) -> list[Result]:
        if not plan.reads:
            return plan.nothing()
        return self._kv.read(lambda view: plan.read(view, self._backing.now_ms()))

    # --- time to live -----------------------------------------------------------------------------

    def sweep_ttl(self) -> int:
        """Remove all items that have expired; how many. Works on a full device."""
        return _sweep(self._kv, self._backing)

    async def asweep_ttl(self) -> int:
        """As ``sweep_ttl``."""
        return await asyncio.to_thread(MemcoreStore.sweep_ttl, self)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep every so often in a thread of its own; without ``ttl`` it does nothing.

        Args:
            sweep_interval_minutes: None: that of ``ttl``, or 5.

        Returns:
            What is done when the sweeper has ended; to cancel it ends the sweeper. One that runs is
            left as it is.
        """
        config = self.ttl_config
        if not config:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self._sweeper.start(sweep_interval_minutes or config.get("sweep_interval_minutes"))

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """End the sweeper; whether it has ended within ``timeout`` seconds (None: any time)."""
        return self._sweeper.stop(timeout)


def _tell(plan: Plan) -> None:
    """Say in the log that nothing was put for who wants no memory."""
    if plan.forgotten:
        _log.info("the user opted out of memory: nothing was put")


class AsyncMemcoreStore(MemcoreStore):
    """A MemcoreStore whose sweeping is awaited, as that of AsyncSqliteStore and AsyncPostgresStore.

    All else is MemcoreStore's: its other methods may be called with and without ``await``.
    """

    async def sweep_ttl(self) -> int:  # type: ignore[override]
        """As MemcoreStore's, in a thread."""
        return await self.asweep_ttl()

    async def start_ttl_sweeper(  # type: ignore[override]
        self, sweep_interval_minutes: float | None = None
    ) -> asyncio.Future[None]:
        """As MemcoreStore's; the future is of the running loop."""
        return asyncio.wrap_future(super().start_ttl_sweeper(sweep_interval_minutes))

    async def stop_ttl_sweeper(  # type: ignore[override]
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the name of other stores
    ) -> bool:
        """As MemcoreStore's; the loop goes on while it waits."""
        return await asyncio.to_thread(super().stop_ttl_sweeper, timeout)


def _sweep(kv: KeyValue, backing: Backing) -> int:
    """Remove what is due; no method, for a thread of it would keep a store that is dropped."""
    removed = 0
    while kv.read(lambda view: is_due(view, backing.now_ms())):
        removed += kv.transact(lambda txn: sweep(txn, backing.now_ms()), makes_room=True)
    return removed
