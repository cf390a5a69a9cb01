"""MemcoreStore: LangGraph's long-term memory in a memcore file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import ceil
from threading import Event, Lock, Thread, current_thread
from typing import Any, Final, Literal, Self

from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)

from memcore.adapters.langgraph import items
from memcore.adapters.langgraph.items import (
    Found,
    Index,
    ItemRow,
    Labels,
    Put,
    Scorer,
    check_filter,
    is_due,
    literal_prefix,
    matches,
    matches_namespace,
    pack_vectors,
    sweep,
)
from memcore.adapters.source import Done, Opened, Source, scope_of
from memcore.aio.commit import settled
from memcore.codec.values import plain_json
from memcore.database.scope import engine_of, rows_of, scope_filter_of
from memcore.errors import ClosedError, InvalidOptionError, MemcoreError
from memcore.faces import logger
from memcore.kv import KeyValue, KeyValueTxn, KeyValueView
from memcore.options import (
    checked_bool,
    checked_choice,
    checked_optional_text,
    checked_share,
    checked_texts,
    need_instance,
    need_known,
)
from memcore.privacy.write_filter import ScopeFilter
from memcore.session import Engine
from memcore.telemetry import adapting, adapts

__all__ = [
    "AsyncMemcoreStore",
    "MemcoreStore",
    "Plan",
    "Sweeper",
    "admitted_op",
    "checked_ttl",
]


# --- Content filter of a store's operations -------------------------------------------------------


def admitted_op(scope_filter: ScopeFilter, op: Op, name: str) -> Op:
    """Filter an operation: redact the values it stores and those a search looks for.

    Equal values get equal placeholders, so a filter or a query still matches a redacted value.
    Namespaces and keys are not changed.

    Raises:
        BlockedError: a guard refuses the value, or reports a finding in its namespace or key.
    """
    if isinstance(op, PutOp):
        if op.value is None:
            scope_filter.judge(None, "kv", name=name)
            return op
        for label in op.namespace:
            scope_filter.name(label, "namespace of an entry")
        scope_filter.name(op.key, "key of an entry")
        return op._replace(value=_admitted(scope_filter, op.value, name))
    if isinstance(op, SearchOp) and isinstance(op.query, str):
        op = op._replace(query=scope_filter.again(op.query))
    if isinstance(op, SearchOp) and op.filter:
        with suppress(TypeError, ValueError, RecursionError):  # raised when the filter is checked
            return op._replace(filter=scope_filter.again(plain_json(op.filter)))
    return op


def _admitted(scope_filter: ScopeFilter, value: Any, name: str) -> Any:
    try:
        plain = plain_json(dict(value))
    except (TypeError, ValueError, RecursionError):
        return value  # rejected with the reason when it is encoded
    return scope_filter.value(plain, "kv", name=name)


# --- One batch of operations: what is read, what is embedded, what is written ---------------------

_SHORT_OPS: Final = 16
"""Items to read on the calling thread, at a few microseconds each."""
_ROOM_OPS: Final = 64
"""Deletions that may use the space reserved for them; more would use too much of it."""
_MS_PER_MINUTE: Final = 60_000
_TTL_MINUTES_MAX: Final = 10**12
_REFRESH_SLACK_MS: Final = 1000
"""A refresh is skipped if it gains less than this and less than 1 % of the time to live."""

Scored = list[tuple[float | None, Found]]


class Plan:
    """A batch of operations, in phases: check, embed, read, write.

    Args:
        ops: the operations; all are checked before any takes effect.
        index: the ``index`` option; None: nothing is embedded.
        ttl: the store's option.
        newest_first: the order of a search without a query: by last put, or by creation.
        words: the share of words in scores of a search with embeddings.

    Raises:
        InvalidNamespaceError, InvalidItemError, InvalidOptionError: an operation is invalid.
    """

    def __init__(
        self,
        ops: Iterable[Op],
        index: Index | None,
        ttl: TTLConfig | None,
        *,
        newest_first: bool,
        words: float = 0.0,
    ) -> None:
        self._newest_first = newest_first
        self._words = words
        self._index = index
        self._omit_expired = bool(ttl and ttl.get("omit_expired"))
        self._ops = list(ops)
        self._puts: dict[tuple[Labels, str], Put] = {}
        self._put_ops = 0
        self._values: dict[tuple[Labels, str], tuple[Any, Any]] = {}
        """For each put, the value to store and the texts to embed."""
        self._texts: dict[tuple[Labels, str], list[str]] = {}
        self._scorers: dict[str, Scorer] = {}
        self._refreshes: dict[str, None] = {}
        self.is_short = len(self._ops) <= _SHORT_OPS
        """True if reading takes only microseconds."""
        self.forgotten = False
        """True if nothing was put because the user opted out of memory."""
        self.queries: list[str] = []
        """Texts to search by similarity; ``use_queries`` receives their vectors."""
        self.texts: list[str] = []
        """Texts of items to store; ``use_texts`` receives their vectors."""
        for op in self._ops:
            self._check(op)
        self.reads = len(self._ops) > self._put_ops
        self._deletes = all(put.row is None for put in self._puts.values())
        if index is not None:
            self._choose_texts(index)

    def _choose_texts(self, index: Index) -> None:
        queries = [op.query for op in self._ops if isinstance(op, SearchOp)]
        self.queries = list(dict.fromkeys(query for query in queries if query))
        for at, (value, paths) in self._values.items():
            if value is not None:
                self._texts[at] = list(dict.fromkeys(index.texts(value, paths)))
        self.texts = list(dict.fromkeys(t for texts in self._texts.values() for t in texts))

    def _check(self, op: Op) -> None:
        validate_op_namespace(op)
        if isinstance(op, PutOp):
            namespace, key = tuple(op.namespace), str(op.key)
            if op.index not in (None, False):
                checked_texts("index", op.index)
            row = None
            if op.value is not None:
                row = ItemRow.of(namespace, key, op.value, ttl_ms=_ttl_ms(op.ttl))
            # The dict keeps the position of a key's first put, and the value of its last.
            self._puts[namespace, key] = Put(namespace, key, row)
            self._values[namespace, key] = op.value, op.index
            self._put_ops += 1
        elif isinstance(op, SearchOp):
            if op.filter is not None:
                need_instance("filter", op.filter, Mapping, what="a mapping of fields, or None")
            check_filter(op.filter)
            checked_optional_text("query", op.query)
            for name, number in (("limit", op.limit), ("offset", op.offset)):
                need_instance(name, number, int, what="an int")
            self.is_short = False
        elif isinstance(op, ListNamespacesOp):
            self.is_short = False
        elif not isinstance(op, GetOp):
            msg = f"unknown operation: expected an Op of langgraph.store.base, got {op!r:.100}"
            raise InvalidOptionError(msg)

    # --- vectors ----------------------------------------------------------------------------------

    def use_queries(self, vectors: Any) -> None:
        """Set the vectors of ``queries``."""
        if self._index is not None:
            found = self._index.checked(self.queries, vectors)
            distance = self._index.distance
            self._scorers = {query: Scorer(vector, distance) for query, vector in found.items()}

    def use_texts(self, vectors: Any) -> None:
        """Set the vectors of ``texts``."""
        if self._index is not None:
            found = self._index.checked(self.texts, vectors)
            for at, texts in self._texts.items():
                if texts:
                    self._puts[at].vectors = pack_vectors([found[text] for text in texts])

    # --- reading ----------------------------------------------------------------------------------

    def nothing(self) -> list[Result]:
        """The results of a batch that reads nothing."""
        return [None] * len(self._ops)

    def read(self, view: KeyValueView, now_ms: int) -> list[Result]:
        """The results of reads, on the state before any write of this batch."""
        self._refreshes.clear()
        return [self._result(view, op, now_ms) for op in self._ops]

    def _result(self, view: KeyValueView, op: Op, now_ms: int) -> Result:
        if isinstance(op, GetOp):
            found = items.find(view, tuple(op.namespace), str(op.key))
            if found is None or not self._is_shown(found.row, now_ms):
                return None
            if op.refresh_ttl:
                self._refresh(found, now_ms)
            return Item(**_fields(found))
        if isinstance(op, SearchOp):
            scored = self._search(view, op, now_ms)
            for _, found in scored if op.refresh_ttl else ():
                self._refresh(found, now_ms)
            return [SearchItem(**_fields(found), score=score) for score, found in scored]
        if isinstance(op, ListNamespacesOp):
            return self._list(view, op, now_ms)
        return None

    def _is_shown(self, row: ItemRow, now_ms: int) -> bool:
        return not (self._omit_expired and 0 < row.expires_ms <= now_ms)

    def _refresh(self, found: Found, now_ms: int) -> None:
        row = found.row
        if row.expires_ms:
            gain_ms = now_ms + row.ttl_ms - row.expires_ms
            if gain_ms > 0 and gain_ms >= min(_REFRESH_SLACK_MS, row.ttl_ms / 100):
                self._refreshes[found.place] = None

    def _search(self, view: KeyValueView, op: SearchOp, now_ms: int) -> Scored:
        omits, wants = self._omit_expired, op.filter

        def is_wanted(raw: bytes) -> bool:
            shown = not omits or not ItemRow.is_expired(raw, now_ms)
            return shown and (not wants or matches(ItemRow.value_of(raw), wants))

        scorer = self._scorers.get(op.query) if op.query else None
        words = op.query if self._index is None and isinstance(op.query, str) else ""
        ends = scorer is None and not words and min(op.offset, op.limit) >= 0
        listed = items.newest_first if self._newest_first else items.in_order
        found = listed(
            view,
            tuple(op.namespace_prefix),
            is_wanted if omits or wants else None,
            limit=op.offset + op.limit if ends else None,
        )
        if words:
            return _by_words(view, found, words)[op.offset : op.offset + op.limit]
        if scorer is None:
            return [(None, item) for item in found[op.offset : op.offset + op.limit]]
        vectors = items.vectors(view, found)
        if self._words and op.query:
            mixed = _mixed(
                scorer, found, vectors, items.by_words(view, found, op.query), self._words
            )
            return mixed[op.offset : op.offset + op.limit]
        return _ranked(scorer, found, vectors, op.offset, op.limit)

    def _list(self, view: KeyValueView, op: ListNamespacesOp, now_ms: int) -> list[tuple[str, ...]]:
        conditions = op.match_conditions or ()
        found = {
            labels[: op.max_depth] if op.max_depth is not None else labels
            for number, labels in items.namespaces(view, literal_prefix(conditions))
            if matches_namespace(labels, conditions)
            and (not self._omit_expired or items.any_lives(view, number, now_ms))
        }
        return sorted(found)[op.offset : op.offset + op.limit]

    # --- writing ----------------------------------------------------------------------------------

    def changes(self, *, read_only: bool) -> bool:
        """Return whether there is anything to write.

        A read-only handle does not refresh expiry times.
        """
        return bool(self._puts or (self._refreshes and not read_only))

    @property
    def makes_room(self) -> bool:
        """True if it only deletes; a refresh rewrites values of any size."""
        return self._deletes and not self._refreshes and len(self._puts) <= _ROOM_OPS

    def write(self, txn: KeyValueTxn, now_us: int) -> None:
        """Write everything: first the refreshed expiry times of items read, then the puts.

        For a user who opted out of memory, puts and refreshed times are dropped; deletions are
        carried out.
        """
        self.forgotten = txn.forgets
        for place in () if self.forgotten else self._refreshes:
            items.refresh(txn, place, now_us // 1000)
        for put in self._puts.values():
            if put.row is None or not self.forgotten:
                items.write(txn, put, now_us)


def _by_words(view: KeyValueView, found: Sequence[Found], query: str) -> Scored:
    """Rank items by the words of a query; those without one follow in their order, unscored."""
    ranked: Scored = [*items.by_words(view, found, query)]
    places = {item.place for _, item in ranked}
    return ranked + [(None, item) for item in found if item.place not in places]


def _mixed(
    scorer: Scorer,
    found: Sequence[Found],
    vectors: dict[str, bytes],
    by_words: Sequence[tuple[float, Found]],
    share: float,
) -> Scored:
    """Rank items by embeddings and by words; those with neither follow in their order, unscored.

    Both scores are scaled to 0 to 1 by their least and largest, and mixed: measured on LoCoMo, this
    finds more than BM25 alone, and a fusion of ranks less (docs/langgraph.md).
    """
    near = [item for item in found if item.place in vectors]
    close = zip(
        (item.place for item in near), scorer.best(vectors[i.place] for i in near), strict=True
    )
    scores: dict[str, float] = {}
    for part, listed in (
        (1 - share, list(close)),
        (share, [(item.place, score) for score, item in by_words]),
    ):
        for at, scaled in _scaled(listed):
            scores[at] = scores.get(at, 0.0) + part * scaled
    ranked = sorted(
        ((scores[item.place], item) for item in found if item.place in scores),
        key=lambda pair: pair[0],
        reverse=True,
    )
    return [*ranked, *((None, item) for item in found if item.place not in scores)]


def _scaled(scores: list[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """Scale scores to 0 to 1; equal ones, and a single one, are 1."""
    least = min((score for _, score in scores), default=0.0)
    span = max((score for _, score in scores), default=0.0) - least
    for at, score in scores:
        yield at, (score - least) / span if span > 0 else 1.0


def _ranked(
    scorer: Scorer, found: Sequence[Found], vectors: dict[str, bytes], offset: int, limit: int
) -> Scored:
    """Rank items by score, best first; items without vectors fill up the page."""
    near = [item for item in found if item.place in vectors]
    scores = scorer.best([vectors[item.place] for item in near])
    ranked = sorted(zip(scores, near, strict=True), key=lambda pair: pair[0], reverse=True)
    kept: Scored = list(ranked[max(offset, 0) : max(offset + limit, 0)])
    if len(kept) < limit:
        rest = [item for item in found if item.place not in vectors]
        kept += [(None, item) for item in rest[: limit - len(kept)]]
    return kept


def _fields(found: Found) -> dict[str, Any]:
    row = found.row
    created, updated = row.times
    return {
        "namespace": found.namespace,
        "key": row.key,
        "value": row.value(),
        "created_at": created,
        "updated_at": updated,
    }


_TTL_OPTIONS: Final = ("default_ttl", "refresh_on_read", "omit_expired", "sweep_interval_minutes")


def checked_ttl(ttl: TTLConfig | None) -> TTLConfig | None:
    """Validate the ``ttl`` option of a store.

    Raises:
        InvalidOptionError: it is not a mapping, has an unknown key, or a value is out of range.
    """
    if ttl is None:
        return None
    need_known("ttl", ttl, _TTL_OPTIONS)
    _ttl_ms(ttl.get("default_ttl"))
    for name in ("refresh_on_read", "omit_expired"):
        checked_bool(f"ttl: {name}", ttl.get(name, True))
    interval = ttl.get("sweep_interval_minutes")
    if interval is not None and (
        isinstance(interval, bool) or not isinstance(interval, int | float) or interval < 0
    ):
        msg = f"ttl: sweep_interval_minutes: expected minutes above 0, got {interval!r:.40}"
        raise InvalidOptionError(msg)
    return ttl


def _ttl_ms(minutes: Any) -> int | None:
    """Convert a time to live from minutes to milliseconds; None stays None.

    Raises:
        InvalidOptionError: it is not a number, is negative, or exceeds ``_TTL_MINUTES_MAX``.
    """
    if minutes is None:
        return None
    is_number = isinstance(minutes, int | float) and not isinstance(minutes, bool)
    if not is_number or not 0 <= minutes <= _TTL_MINUTES_MAX:
        msg = f"ttl: expected minutes from 0 to {_TTL_MINUTES_MAX}, or None, got {minutes!r:.40}"
        raise InvalidOptionError(msg)
    whole: int = ceil(minutes * _MS_PER_MINUTE)
    return whole


# --- Background sweeping of expired items ---------------------------------------------------------

_log = logger(__name__)
_MINUTES_DEFAULT: Final = 5


class _Run:
    """One run of the sweeper's thread, from start to stop."""

    def __init__(self, sweep: Callable[[], int], interval_seconds: float) -> None:
        self._sweep = sweep
        self._interval_seconds = interval_seconds
        self.stopping = Event()
        self.done: Future[None] = Future()
        self.done.add_done_callback(lambda _: self.stopping.set())  # including on cancellation
        self.thread = Thread(target=self._loop, name="memcore-ttl-sweeper", daemon=True)

    def _loop(self) -> None:
        while not self.stopping.wait(self._interval_seconds):
            try:
                self._sweep()
            except ClosedError:
                break  # the database is closed: nothing is left to sweep
            except MemcoreError:
                _log.exception("items that have expired were not removed; trying again later")
        if self.done.set_running_or_notify_cancel():
            self.done.set_result(None)


class Sweeper:
    """Calls ``sweep`` in a daemon thread from ``start`` until ``stop``."""

    def __init__(self, sweep: Callable[[], int]) -> None:
        self._sweep = sweep
        self._lock = Lock()
        self._run: _Run | None = None

    def start(self, interval_minutes: float | None) -> Future[None]:
        """Start unless already running; return a future for its end, whose cancellation stops it.

        Raises:
            InvalidOptionError: the interval is negative.
        """
        if interval_minutes is not None and interval_minutes < 0:
            msg = f"sweep_interval_minutes: expected minutes above 0, got {interval_minutes!r:.40}"
            raise InvalidOptionError(msg)
        with self._lock:
            run = self._run
            if run is None or run.stopping.is_set() or not run.thread.is_alive():
                run = self._run = _Run(self._sweep, (interval_minutes or _MINUTES_DEFAULT) * 60)
                run.thread.start()
            return run.done

    def stop(self, timeout_seconds: float | None = None) -> bool:
        """Stop if running; return whether the thread has ended."""
        with self._lock:
            run = self._run
        if run is None:
            return True
        run.stopping.set()
        if run.thread is not current_thread() and run.thread.is_alive():
            run.thread.join(timeout_seconds)
        return not run.thread.is_alive()


# --- MemcoreStore: LangGraph's long-term memory in a memcore file ---------------------------------

_log_store = logger("memcore.langgraph")

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
    """Namespaced items with filter search, search by words or meaning, and times to live.

    Every method exists in a synchronous and an asynchronous form (``put``, ``aput``, ...), usable
    from any thread. A batch reads one snapshot, taken before its own puts, and commits all its puts
    atomically; reads commit nothing, unless they refresh an item's time to live. A search with a
    query ranks by embeddings with ``index``, by words (``memcore.search``) without.

    Args:
        source: a database, a scope of one, or a path. A file that is opened here is closed by
            ``close``.
        index: ``{"dims", "embed", "fields", "distance_type"}`` for semantic search: the embedder is
            called outside any transaction; its vectors are stored and deleted with the items.
        ttl: ``{"default_ttl", "refresh_on_read", "omit_expired", "sweep_interval_minutes"}``, in
            minutes.
        hybrid: the share of words in the scores of a search with ``index``, 0 to 1; 0: none.
        order: the order of search results without a query: ``"updated"``, most recently put first,
            as in SqliteStore and PostgresStore; ``"created"``, in creation order of namespaces and
            items, as in InMemoryStore; this order reads no more items than it returns.
        namespace: the key/value namespace of the items; stores with different ones share nothing.
        app: the application; None: ``"default"``, or the scope's.
        user: the user; as ``app``. A store cannot reach items of another user or application.
        memory: True for long-term memory: for a user who opted out (``opt_out_memory``), puts are
            dropped, with a message to the logger ``memcore.langgraph``, and nothing is found.
        durability: the durability of a file that is created here: ``"full"`` (a put survives a
            power failure; also None), ``"relaxed"`` (it survives a process crash; a power failure
            may lose the last fraction of a second) or ``"none"``. An existing file keeps its own.
        allow_unsafe: consent to ``durability="none"`` for a file, as in ``memcore.open``.

    Raises:
        InvalidOptionError: an option has the wrong type or is out of range.
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
        hybrid: float = 0.0,
        durability: str | None = None,
        allow_unsafe: bool = False,
    ) -> None:
        self.index_config = index
        self.ttl_config = checked_ttl(ttl)
        self._is_newest_first = checked_choice("order", order, ("updated", "created")) == "updated"
        self._index = Index(index) if index else None
        self._words = checked_share("hybrid", hybrid)
        scope, self._owned = scope_of(
            source, app=app, user=user, durability=durability, allow_unsafe=allow_unsafe
        )
        self._engine = engine_of(scope)
        self._kv = rows_of(scope, namespace, memory=checked_bool("memory", memory))
        self._scope_filter, self._name = scope_filter_of(scope), namespace
        self.observer = adapting(source, "langgraph", (scope.app, scope.user, None))
        self._sweeper = Sweeper(partial(_sweep, self._kv, self._engine))

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
        hybrid: float = 0.0,
    ) -> Self:
        """A store over the file at a path, for ``with`` and ``async with``."""
        return cls(
            path, index=index, ttl=ttl, order=order, namespace=namespace, app=app, user=user,
            memory=memory, hybrid=hybrid, durability=durability, allow_unsafe=allow_unsafe,
        )  # fmt: skip

    def _admitted(self, ops: Iterable[Op]) -> Iterable[Op]:
        """Filter the operations of a batch, as ``admitted_op``."""
        scope_filter, name = self._scope_filter, self._name
        return ops if scope_filter is None else [admitted_op(scope_filter, op, name) for op in ops]

    @property
    def embeddings(self) -> Embeddings | None:
        """The embedder of items and queries; None without ``index``."""
        return None if self._index is None else self._index.embeddings

    def setup(self) -> Done:
        """Do nothing. Other stores require this call, some of them with ``await``."""
        return Done()

    def close(self) -> Done:
        """Stop the sweeper, and close the file if the store opened it. Idempotent."""
        self._sweeper.stop()
        return super().close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """The results of the operations, in order.

        Raises:
            InvalidNamespaceError: a label is empty, not a string, or contains a dot or NUL.
            InvalidItemError: a value is not JSON, or is too large; nothing of the batch is stored.
            InvalidOptionError: a filter, a time to live or a vector is invalid.
        """
        plan = self._plan(ops)
        embed = self.embeddings
        if embed and plan.queries:
            plan.use_queries([embed.embed_query(query) for query in plan.queries])
        results = self._read(plan)
        if embed and plan.texts:
            plan.use_texts(embed.embed_documents(plan.texts))
        if plan.changes(read_only=self._engine.store.read_only):
            self._kv.transact(
                lambda txn: plan.write(txn, self._engine.now_us()), makes_room=plan.makes_room
            )
            _tell(plan)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As ``batch``; embedders, long scans and the commit do not block the event loop.

        A cancelled call still waits for its commit, so the outcome is never in doubt.
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
        if plan.changes(read_only=self._engine.store.read_only):
            future = self._kv.submit(
                lambda txn: plan.write(txn, self._engine.now_us()),
                asyncio.get_running_loop(),
                makes_room=plan.makes_room,
            )
            await settled(future)
            _tell(plan)
        return results

    def _plan(self, ops: Iterable[Op]) -> Plan:
        return Plan(
            self._admitted(ops), self._index, self.ttl_config, newest_first=self._is_newest_first,
            words=self._words,
        )  # fmt: skip

    def _read(self, plan: Plan) -> list[Result]:
        if not plan.reads:
            return plan.nothing()
        return self._kv.read(lambda view: plan.read(view, self._engine.now_ms()))

    # --- time to live -----------------------------------------------------------------------------

    def sweep_ttl(self) -> int:
        """Remove all expired items; return their number. Works even if the device is full."""
        return _sweep(self._kv, self._engine)

    async def asweep_ttl(self) -> int:
        """As ``sweep_ttl``."""
        return await asyncio.to_thread(MemcoreStore.sweep_ttl, self)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep periodically in a background thread; a no-op without ``ttl``.

        Args:
            sweep_interval_minutes: the interval; None: that of ``ttl``, or 5.

        Returns:
            A future that completes when the sweeper has ended; cancelling it stops the sweeper. A
            running sweeper is left unchanged.
        """
        config = self.ttl_config
        if not config:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self._sweeper.start(sweep_interval_minutes or config.get("sweep_interval_minutes"))

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper.

        Return whether it has ended within ``timeout`` seconds (None: no limit).
        """
        return self._sweeper.stop(timeout)


def _tell(plan: Plan) -> None:
    """Log that nothing was put because the user opted out of memory."""
    if plan.forgotten:
        _log_store.info("the user opted out of memory: nothing was put")


class AsyncMemcoreStore(MemcoreStore):
    """A MemcoreStore whose sweeping is awaited, as in AsyncSqliteStore and AsyncPostgresStore.

    Everything else is inherited from MemcoreStore.
    """

    async def sweep_ttl(self) -> int:  # type: ignore[override]
        """As MemcoreStore's, in a thread."""
        return await self.asweep_ttl()

    async def start_ttl_sweeper(  # type: ignore[override]
        self, sweep_interval_minutes: float | None = None
    ) -> asyncio.Future[None]:
        """As MemcoreStore's; the future belongs to the running loop."""
        return asyncio.wrap_future(super().start_ttl_sweeper(sweep_interval_minutes))

    async def stop_ttl_sweeper(  # type: ignore[override]
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the name in other stores
    ) -> bool:
        """As MemcoreStore's, without blocking the event loop."""
        return await asyncio.to_thread(super().stop_ttl_sweeper, timeout)


def _sweep(kv: KeyValue, engine: Engine) -> int:
    """Remove expired items.

    A function, because a thread holding a bound method would keep the store alive.
    """
    removed = 0
    while kv.read(lambda view: is_due(view, engine.now_ms())):
        removed += kv.transact(lambda txn: sweep(txn, engine.now_ms()), makes_room=True)
    return removed
