"""Observer: records each operation on a handle."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from functools import wraps
from time import perf_counter, time
from types import TracebackType
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar, cast

from memcore.codec.keys import blake2b
from memcore.errors import InvalidOptionError
from memcore.faces import MadeLate, logger
from memcore.telemetry.record import MEASURES, OK, Figures, Record, Sink

__all__ = [
    "SURFACE",
    "Calling",
    "Observer",
    "Operation",
    "Place",
    "PlaceOf",
    "Running",
    "Telemetry",
    "adapting",
    "adapts",
    "adopt",
    "bound",
    "counted",
    "noting",
    "observe",
    "observed",
    "observer_of",
    "opening",
    "operations_of",
    "plain",
    "seen_compacting",
    "telemetry_of",
]


# --- Telemetry: the sinks of one open database ----------------------------------------------------
_HASH_BYTES: Final = 9


class Calling(Sink):
    """A plain callable as a sink. Its own calls to databases are not recorded."""

    def __init__(self, call: Callable[[Record], object]) -> None:
        self._call = call
        self._within = threading.local()

    def __repr__(self) -> str:
        return f"Calling({self._call!r})"

    def tell(self, record: Record) -> None:
        """Call the function, unless this thread is already inside it."""
        if getattr(self._within, "running", False):
            return
        self._within.running = True
        try:
            self._call(record)
        finally:
            self._within.running = False


class Telemetry:
    """The sinks of one open database, and the fields common to all its records.

    ``failures`` counts exceptions raised by sinks; the first of each sink is logged.
    """

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self.sinks = tuple(sinks)
        self.failures = 0
        self.backend = "lmdb"
        self.durability = "full"
        self.enters: dict[str, tuple[Sink, ...]] = {}
        for sink in self.sinks:
            for operation in sink.enters:
                self.enters[operation] = (*self.enters.get(operation, ()), sink)
        self._seed = b""
        self._failed: set[int] = set()
        self._tells = tuple(sink.tell for sink in self.sinks if sink.names == "clear")
        self._masked = tuple(sink for sink in self.sinks if sink.names != "clear")

    def bind(self, store: Any) -> None:
        """Attach to an open database, whose secret, or else its seed, keys the pseudonyms."""
        self._seed = (store.secret.found() if self._masked else None) or store.seed
        self.durability = store.durability
        for sink in self.sinks:
            self._guarded(sink.attach, store)

    def tell(self, record: Record, entered: Sequence[tuple[Sink, Any]] = ()) -> None:
        """Pass a record to every sink; a failing sink does not break the operation."""
        for tell in self._tells:
            try:
                tell(record)
            except Exception as exc:  # noqa: BLE001 - a sink may fail in any way
                self.failed(tell, exc)
        for sink in self._masked:
            self._guarded(sink.tell, self._masked_for(sink, record))
        if self.enters and record.operation in self.enters:
            self._leave(record, dict(entered))
        self.durability = record.durability

    def enter(self, operation: str) -> list[tuple[Sink, Any]]:
        """Notify the sinks that subscribed to it that an operation begins."""
        entered = []
        for sink in self.enters.get(operation, ()):
            try:
                entered.append((sink, sink.enter(operation)))
            except Exception as exc:  # noqa: BLE001 - see tell
                self.failed(sink, exc)
        return entered

    def redacted(self, found: Mapping[str, int]) -> None:
        """Report to the sinks the number of redacted values by class."""
        for sink in self.sinks:
            self._guarded(sink.redacted, found, self.backend)

    def flush(self) -> None:
        """Flush all sinks, since the database is closed."""
        for sink in self.sinks:
            self._guarded(sink.flush)

    def pseudonym(self, name: str) -> str:
        """The name's keyed hash, the same in every handle and process using this file."""
        encoded = name.encode("utf-8", "surrogatepass")
        return blake2b(encoded, digest_size=_HASH_BYTES, key=self._seed).hexdigest()

    def _leave(self, record: Record, entered: dict[Sink, Any]) -> None:
        for sink in self.enters[record.operation]:
            self._guarded(sink.leave, entered.get(sink), self._masked_for(sink, record))

    def _masked_for(self, sink: Sink, record: Record) -> Record:
        if sink.names == "clear":
            return record
        if sink.names == "none":
            return record._replace(user=None, actor=None, session=None)
        user, actor, session = (
            None if name is None else self.pseudonym(name)
            for name in (record.user, record.actor, record.session)
        )
        return record._replace(user=user, actor=actor, session=session)

    def _guarded(self, call: Callable[..., object], *args: object) -> None:
        try:
            call(*args)
        except Exception as exc:  # noqa: BLE001 - see tell
            self.failed(call, exc)

    def failed(self, what: object, error: Exception) -> None:
        """Count a failure; log each sink's first, without its text, which might hold content."""
        self.failures += 1
        sink = getattr(what, "__self__", what)
        if id(sink) not in self._failed:
            self._failed.add(id(sink))
            logger().error(
                "telemetry: %s failed with %s; operations go on, and it is not logged again",
                type(sink).__name__,
                type(error).__name__,
            )


def telemetry_of(wanted: Any) -> Telemetry | None:
    """Build the Telemetry for ``memcore.open(telemetry=...)``; None without a sink.

    Raises:
        InvalidOptionError: ``wanted`` is not a sink, or needs a package that is not installed.
    """
    if wanted is None:
        return None
    if isinstance(wanted, Telemetry):
        return wanted
    several = wanted if isinstance(wanted, list | tuple) else [wanted]
    sinks = [_sink(one) for one in several]
    return Telemetry(sinks) if sinks else None


def _sink(wanted: Any) -> Sink:
    if isinstance(wanted, Sink):
        return wanted
    if wanted == "log":
        from memcore.telemetry.logs import LogSink  # noqa: PLC0415 - as otel

        return LogSink()
    if wanted == "otel":
        from memcore.telemetry.otel import OpenTelemetry  # noqa: PLC0415 - loads its package

        return OpenTelemetry()
    if callable(wanted) and not isinstance(wanted, type):
        return Calling(wanted)
    msg = (
        "telemetry: expected None, 'log', 'otel', a callable that takes a Record, a Sink, or a "
        f"list of these, got {wanted!r:.80}"
    )
    raise InvalidOptionError(msg)


# --- The public surface: the operation of each method of each handle ------------------------------
# Methods that are not listed are not operations: cached figures (``len``, ``revision``,
# ``pressure``), handles created without reading the file, and methods that only delegate to a
# listed one (``Database.session`` to ``Scope.session``).


class Operation(NamedTuple):
    """An operation, and the way to observe its method."""

    name: str
    shape: str = "value"
    """Result of the method: a ``value``, an ``iterator``, or a ``block`` for ``with``. A method (or
    property) that returns a ``handle``, or a ``pair`` whose second part is one, is not an
    operation."""
    measure: str = "nothing"
    """Key of ``MEASURES`` for its result."""
    names_session: bool = False
    """True if the first argument is the session (or thread)."""


def _ops(*lines: str) -> dict[str, Operation]:
    """Operations from lines ``method [operation [shape [measure [session]]]]``."""
    return operations_of(**dict(line.partition(" ")[::2] for line in lines))


def operations_of(**described: str) -> dict[str, Operation]:
    """Operations from ``method="[operation [shape [measure [session]]]]"``; "." is the default."""
    found: dict[str, Operation] = {}
    for method, text in described.items():
        name, shape, measure, session = (*text.split(), *".....")[:4]
        found[method] = Operation(
            method if name == "." else name,
            "value" if shape == "." else shape,
            "nothing" if measure == "." else measure,
            session == "session",
        )
    return found


_CHANGES: Final = (
    "append . . receipt",
    "extend . . receipt",
    "record . . receipt",
    "abandon . . receipt",
    "begin . . receipt",
    "apply . . receipt",
    "batch . block receipt",
    "report_usage",
    "uncompact",
    "undo . . count",
    "rewind . . receipt",
    "fork . . handle",
    "checkpoint . . checkpoint",
    "delete_checkpoint",
    "compact . . compaction",
)
_FIELDS: Final = (
    "update state.update . counter",
    "delete state.delete . counter",
    "replace state.replace . counter",
    "clear state.clear . counter",
)
_STATE: Final = (
    *_FIELDS,
    "get state.get",
    "__getitem__ state.get",
    "all state.all . count",
)

SURFACE: Final[dict[str, dict[str, Operation]]] = {
    "Database": _ops(
        "scope . handle",
        "as_user . handle",
        "close",
        "scopes . . count",
        "sessions . iterator",
        "check . . count",
        "branches . . count",
        "compare",
        "stats",
        "backup",
        "copy_compact . . file",
        "flush",
        "ship",
        "warm_status",
        "export . iterator",
        "import_ import . imported",
        "erase",
        "finish_erasures . . count",
        "would_erase",
        "pending_erasures",
        "holds . . count",
        "hold",
        "release",
        "opt_out_memory",
        "opt_in_memory",
        "demands",
        "demand",
        "log_filter . handle",
        "retention . handle",
        "sweep",
        "verify_audit",
        "audit_entries . iterator",
        "anchor_audit",
        "cut_audit . . number",
        "key_status",
        "rotate_key",
        "rotate_data_keys",
        "redact",
        "search . . count",
        "index_sessions . . number",
        "reindex . . number",
    ),
    "Scope": _ops(
        "session load . handle session",
        "kv . handle",
        "state . handle",
        "app_state . handle",
        "memory . handle",
        "graph . handle",
        "blobs . handle",
        "sessions . iterator",
        "delete_session delete . . session",
        "quarantine . handle",
        "hold",
        "release",
        "holds . . count",
        "opt_out_memory",
        "opt_in_memory",
        "erase",
        "sweep",
        "search . . count",
        "index_sessions . . number",
        "reindex . . number",
    ),
    "Session": _ops(
        *_CHANGES,
        "search . . count",
        "items . iterator",
        "get items . one",
        "tail items . count",
        "find_call",
        "context . . context",
        "plan",
        "views . . count",
        "masks . . count",
        "covered . iterator",
        "read_offloaded . . text",
        "checkpoints . iterator",
        "get_checkpoint . . checkpoint",
        "calibrations . . count",
        "set_policy",
        "recount . . recount",
        "repair . . repair",
        "recover",
        "lease",
        "redact",
        "plan_fork . pair",
        "child . handle",
        "share . . receipt",
        "ladder . handle",
        "pending_hitl . . count",
        "resolve_hitl . . receipt",
        "bundle . . text",
        "hold",
        "release",
        "memory . handle",
    ),
    "Memories": _ops(
        "remember memory.remember",
        "update memory.update",
        "promote memory.promote",
        "forget memory.forget",
        "clear memory.clear . number",
        "get memory.get",
        "list memory.list . count",
        "search memory.search . count",
        "history memory.get . count",
        "quarantined memory.list . count",
        "record_outcome memory.record_outcome . . session",
        "playbooks memory.playbooks . count",
        "call memory.call . count",
        "consolidate memory.consolidate",
        "apply memory.consolidate",
        "extract memory.extract . . session",
        "jobs memory.jobs . count",
        "retry memory.retry",
        "grants . handle",
        "profile . handle",
        "summary . handle",
    ),
    "RollingSummary": _ops("get memory.get", "extend memory.summarize"),
    "Profile": _ops(
        "set memory.remember",
        "get memory.profile",
        "values memory.profile . count",
        "misfits memory.profile . count",
        "history memory.get . count",
        "window memory.list",
    ),
    "Grants": _ops(
        "give memory.grant",
        "revoke memory.revoke",
        "list memory.grants . count",
        "received memory.grants . count",
        "get memory.get",
    ),
    "Ladder": _ops("run ladder.run", "due ladder.due . count"),
    "Quarantine": _ops(
        "list quarantine.list . count",
        "release quarantine.release . . session",
        "drop quarantine.drop . . session",
    ),
    "Retention": _ops(
        "set retention.set",
        "get retention.get",
        "terms retention.get",
        "expire_session retention.expire . . session",
        "expire_field retention.expire",
        "expire_checkpoint retention.expire . . session",
        "expire_thread retention.expire . . session",
    ),
    "AsyncSession": _ops(*_CHANGES, "lease"),
    "SessionState": _ops(
        *_STATE,
        "at state.at . count",
        "at_seq state.at . count",
        "before state.at . count",
        "trim state.trim . number",
    ),
    "SharedState": _ops(*_STATE),
    "AsyncSessionState": _ops(*_FIELDS),
    "AsyncSharedState": _ops(*_FIELDS),
    "KeyValue": _ops(
        "get kv.get",
        "content kv.content . text",
        "put kv.put",
        "put_many kv.put . entries",
        "delete kv.delete",
        "scan kv.scan iterator",
        "delete_range kv.delete_range . number",
        "read kv.read",
        "transact kv.transact",
        "increment kv.increment",
        "expires kv.expires",
        "sweep kv.sweep . number",
    ),
    "AsyncKeyValue": _ops(
        "put kv.put",
        "put_many kv.put . entries",
        "delete kv.delete",
        "increment kv.increment",
        "transact kv.transact",
    ),
    "BlobStore": _ops(
        "put blob.put",
        "get blob.get . text",
        "open blob.get iterator",
        "size blob.size",
        "delete blob.delete",
        "collect blob.collect . number",
    ),
    "GraphStore": _ops(
        "put graph.put . . session",
        "put_writes graph.put_writes . . session",
        "get graph.get . . session",
        "checkpoints graph.get iterator . session",
        "deltas graph.get . . session",
        "threads graph.threads iterator",
        "check graph.check . count",
        "leftovers graph.check . count",
        "recover graph.recover . . session",
        "delete_thread graph.delete . . session",
        "copy_thread graph.fork . . session",
        "would_prune graph.plan . . session",
        "prune graph.prune . . session",
    ),
}


# --- Observer: records each operation on one handle -----------------------------------------------

noting: Final[ContextVar[Figures | None]] = ContextVar("memcore_operation", default=None)
"""The figures of the operation in progress in this context."""
Args = tuple[Any, ...]
Options = dict[str, Any]
Place = tuple[str | None, str | None, str | None]
"""Application, user, session."""
PlaceOf = Callable[[Args, Options], Place]
"""Returns the place of a call, given its arguments."""
NOWHERE: Final[Place] = (None, None, None)
_SESSIONS: Final = ("session_id", "thread", "source")
"""Names of arguments that identify a session."""


class Running(Figures):
    """An operation in progress."""

    args: Args = ()
    options: Options = {}  # noqa: RUF012 - shared default, never written to
    entered: list[tuple[Sink, Any]] | tuple[()] = ()
    owner: Observer | None = None

    def given(self) -> Any:
        """The first argument."""
        return self.args[0] if self.args else next(iter(self.options.values()), None)


class Observer:
    """State shared by the records of one handle.

    ``plain`` is the handle without telemetry: its calls on itself are part of the operation, not
    separate operations. Adapters have none; see ``is_within``. Their ``place_of`` returns the place
    on which a call works.
    """

    __slots__ = (
        "_place_of", "_seen_revision", "actor", "adapter", "is_special", "place", "plain",
        "telemetry",
    )  # fmt: skip

    def __init__(
        self,
        telemetry: Telemetry,
        plain: Any,
        place: Place = NOWHERE,
        *,
        actor: str | None = None,
        adapter: str | None = None,
        place_of: PlaceOf | None = None,
    ) -> None:
        self.telemetry = telemetry
        self.plain = plain
        self.place = place
        self.actor = actor
        self.adapter = adapter
        self._place_of = place_of
        self.is_special = plain is None or place_of is not None or bool(telemetry.enters)
        """True if its operations need more than plain counters at the start."""
        self._seen_revision = getattr(plain, "seen_revision", None)

    def beside(self, handle: Any) -> Observer:
        """The observer for a handle derived from this one's handle, or from which it is derived."""
        app, user, session = self.place
        place = (
            getattr(handle, "app", app),
            getattr(handle, "user", user),
            getattr(handle, "id", session),
        )
        actor = getattr(handle, "actor", None) or self.actor
        return Observer(self.telemetry, handle, place, actor=actor)

    def is_within(self) -> bool:
        """Return True if an adapter's method was called by another method of the same object."""
        under_way = noting.get()
        return isinstance(under_way, Running) and under_way.owner is self

    def running(self, args: Args, options: Options) -> Running:
        """Create an operation of this handle with the arguments of its call."""
        running = Running()
        running.owner = self
        if args:
            running.args = args
        if options:
            running.options = options
        return running

    def begin(
        self, operation: Operation, args: Args, options: Options
    ) -> tuple[Running, Token[Figures | None]]:
        """Begin an operation in this context; return it and the token that ends it."""
        running = self.running(args, options)
        enters = self.telemetry.enters
        if enters and operation.name in enters:
            running.entered = self.telemetry.enter(operation.name)
        return running, noting.set(running)

    def tell(
        self,
        operation: Operation,
        running: Running,
        seconds: float,
        result: Any,
        error: BaseException | None = None,
    ) -> None:
        """Record an operation that has ended with a result or an error."""
        telemetry = self.telemetry
        name, _, measure, names_session = operation
        place, status, request = self.place, OK, None
        try:
            if error is not None:
                status = type(error).__name__
            elif measure != "nothing":
                MEASURES[measure](running, result)
            if running.revision is None and self._seen_revision is not None:
                running.revision = self._seen_revision()
            if self._place_of is not None:
                place = self._place_of(running.args, running.options)
            elif names_session or place[1] is None:
                place = _asked_for(running, place, names_session=names_session)
            options = running.options
            if options:
                request = _text(options.get("request_id"))
        except Exception as exc:  # noqa: BLE001 - frameworks may pass anything
            telemetry.failed(self, exc)
        # Keyword arguments would take as long as everything else here together.
        record: Record = tuple.__new__(
            Record,
            (
                name, status, seconds, time() - seconds, *place, self.actor, request, self.adapter,
                running.revision, running.items, running.bytes, running.tokens, running.cut,
                running.ratio, running.runs - running.transactions if running.runs else 0,
                telemetry.backend, running.durability or telemetry.durability,
            ),
        )  # fmt: skip
        telemetry.tell(record, running.entered)
        if name == "close":
            telemetry.flush()


def _asked_for(running: Running, place: Place, *, names_session: bool) -> Place:
    """The place given by a call's arguments, for whatever the handle does not determine."""
    app, user, session = place
    options = running.options
    if user is None:
        app, user = _text(options.get("app")) or app, _text(options.get("user"))
    if names_session:
        named = (options[key] for key in _SESSIONS if key in options)
        session = _text(running.args[0] if running.args else next(named, None))
    return app, user, session


def _text(name: object) -> str | None:
    return name if type(name) is str else None


def counted(change: Any) -> Any:
    """Wrap a change for the store so that its appended items and its runs are counted.

    Both count toward the operation in progress.
    """
    figures = noting.get()
    if figures is None:
        return change
    figures.transactions += 1
    items = getattr(change, "items", None)  # a plain function if no session is changed
    if items is not None and figures.change is not change:  # else it is a retry
        figures.change = change
        figures.stored(items)

    def run(txn: Any) -> Any:
        figures.runs += 1
        return change(txn)

    return run


# --- Observed methods by shape: values, awaitables, iterators, blocks -----------------------------

_Method = Callable[..., Any]


def observed(method: _Method, operation: Operation) -> _Method:
    """Wrap a handle's method so that it is recorded if ``handle.observer`` is set.

    It runs on the observer's plain handle.
    """
    if operation.shape == "iterator":
        is_async = inspect.isasyncgenfunction(method)
        return _async_iterator(method, operation) if is_async else _iterator(method, operation)
    if operation.shape == "block":
        return _block(method, operation)
    is_async = inspect.iscoroutinefunction(method)
    return _awaited(method, operation) if is_async else _value(method, operation)


def _value(method: _Method, operation: Operation) -> _Method:
    takes_args = operation.names_session or operation.measure == "entries"
    of_given = operation.measure == "entries"

    @wraps(method)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        observer: Observer | None = self.observer
        if observer is None:
            return method(self, *args, **options)
        handle = observer.plain
        if handle is None:
            if observer.is_within():
                return method(self, *args, **options)
            handle = self
        if options or observer.is_special or takes_args:
            running, token = observer.begin(operation, args, options)
        else:  # the fast path of most appends
            running = Running()
            token = noting.set(running)
        begun = perf_counter()
        try:
            result = method(handle, *args, **options)
        except BaseException as exc:
            seconds = perf_counter() - begun
            noting.reset(token)
            observer.tell(operation, running, seconds, None, exc)
            raise
        seconds = perf_counter() - begun
        noting.reset(token)
        observer.tell(operation, running, seconds, running.given() if of_given else result)
        return result

    return run


def _awaited(method: _Method, operation: Operation) -> _Method:
    of_given = operation.measure == "entries"

    @wraps(method)
    async def run(self: Any, *args: Any, **options: Any) -> Any:
        observer: Observer | None = self.observer
        if observer is None:
            return await method(self, *args, **options)
        handle = observer.plain
        if handle is None:
            if observer.is_within():
                return await method(self, *args, **options)
            handle = self
        running, token = observer.begin(operation, args, options)
        begun = perf_counter()
        try:
            result = await method(handle, *args, **options)
        except BaseException as exc:
            seconds = perf_counter() - begun
            noting.reset(token)
            observer.tell(operation, running, seconds, None, exc)
            raise
        seconds = perf_counter() - begun
        noting.reset(token)
        observer.tell(operation, running, seconds, running.given() if of_given else result)
        return result

    return run


class _Counting:
    """An iteration in progress: the time spent inside it, its elements and their bytes."""

    def __init__(self, observer: Observer, operation: Operation, running: Running) -> None:
        self._observer = observer
        self._operation = operation
        self._running = running
        self.seconds = 0.0
        self.count = self.size = 0

    def add(self, element: Any, since: float) -> None:
        self.seconds += perf_counter() - since
        self.count += 1
        if isinstance(element, bytes):
            self.size += len(element)

    def end(self, error: BaseException | None) -> None:
        self._running.items = self.count
        self._running.bytes = self.size or None
        self._observer.tell(self._operation, self._running, self.seconds, None, error)


def _iterator(method: _Method, operation: Operation) -> _Method:
    @wraps(method)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        observer: Observer | None = self.observer
        if observer is None:
            return method(self, *args, **options)
        handle = observer.plain
        if handle is None:
            if observer.is_within():
                return method(self, *args, **options)
            handle = self
        counting = _Counting(observer, operation, observer.running(args, options))
        begun = perf_counter()
        try:
            found = method(handle, *args, **options)
        except BaseException as exc:
            counting.seconds = perf_counter() - begun
            counting.end(exc)
            raise
        return _through(found, counting)

    return run


def _through(found: Iterator[Any], counting: _Counting) -> Iterator[Any]:
    error: BaseException | None = None
    try:
        since = perf_counter()
        for element in found:
            counting.add(element, since)
            yield element
            since = perf_counter()
        counting.seconds += perf_counter() - since
    except GeneratorExit:  # the consumer stopped early, which is not an error
        raise
    except BaseException as exc:
        error = exc
        raise
    finally:
        counting.end(error)


def _async_iterator(method: _Method, operation: Operation) -> _Method:
    @wraps(method)
    async def run(self: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        observer: Observer | None = self.observer
        if observer is None or (observer.plain is None and observer.is_within()):
            async for element in method(self, *args, **options):
                yield element
            return
        handle = self if observer.plain is None else observer.plain
        counting = _Counting(observer, operation, observer.running(args, options))
        error: BaseException | None = None
        try:
            since = perf_counter()
            async for element in method(handle, *args, **options):
                counting.add(element, since)
                yield element
                since = perf_counter()
            counting.seconds += perf_counter() - since
        except GeneratorExit:
            raise
        except BaseException as exc:
            error = exc
            raise
        finally:
            counting.end(error)

    return run


def _block(method: _Method, operation: Operation) -> _Method:
    @wraps(method)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        observer: Observer | None = self.observer
        if observer is None:
            return method(self, *args, **options)
        handle = self if observer.plain is None else observer.plain
        try:
            block = method(handle, *args, **options)
        except BaseException as exc:
            observer.tell(operation, observer.running(args, options), 0.0, None, exc)
            raise
        if hasattr(block, "__aenter__"):
            return _AsyncBlock(block, observer, operation)
        return _Block(block, observer, operation)

    return run


class _Ending:
    """A block that is recorded when it ends, with its commit."""

    def __init__(self, block: Any, observer: Observer, operation: Operation) -> None:
        self._block = block
        self._observer = observer
        self._operation = operation
        self._entered: Any = None

    @contextmanager
    def _ending(self, error: BaseException | None) -> Iterator[None]:
        running, token = self._observer.begin(self._operation, (), {})
        begun = perf_counter()
        try:
            yield
        except BaseException as exc:
            error = exc
            raise
        finally:
            seconds = perf_counter() - begun
            noting.reset(token)
            receipt = getattr(self._entered, "receipt", None)
            self._observer.tell(self._operation, running, seconds, receipt, error)


class _Block(_Ending):
    def __enter__(self) -> Any:
        self._entered = self._block.__enter__()
        return self._entered

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        with self._ending(error):
            return self._block.__exit__(kind, error, trace)


class _AsyncBlock(_Ending):
    async def __aenter__(self) -> Any:
        self._entered = await self._block.__aenter__()
        return self._entered

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        with self._ending(error):
            return await self._block.__aexit__(kind, error, trace)


# --- Handles that record their operations ---------------------------------------------------------
# With telemetry on, a handle has a *twin* of its class: a subclass whose public methods run those
# of the plain handle and record them. Without telemetry there are only plain handles, at no extra
# cost. A plain handle's calls on itself are not observed, so an operation is recorded once.

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)
_OPEN = Operation("open")
_COMPACT = Operation("compact", measure="compaction")
_PART = "state"
"""Attribute of a session that is observed together with it."""
_TWIN = "_memcore_twin"
_twins: dict[type, type | None] = {}


def observe(handle: T, observer: Observer) -> T:
    """Return a copy of a handle that records its operations; other objects unchanged."""
    twin = None if observer_of(handle) is not None else _twin(type(handle))
    if twin is None:
        return handle
    made: Any = object.__new__(twin)
    for name, value in _state_of(handle):
        object.__setattr__(made, name, value)
    made.observer = observer.beside(handle)
    is_made_late = isinstance(getattr(twin, _PART, None), MadeLate)
    inner = getattr(made, _PART) if is_made_late else getattr(made, "__dict__", {}).get(_PART)
    if inner is not None:
        setattr(made, _PART, observe(inner, made.observer))
    return cast("T", made)


def adopt(handle: Any, other: object) -> None:
    """Make a handle record its operations if ``other``, from which it is derived, does."""
    observer = observer_of(other)
    twin = None if observer is None else _twin(type(handle))
    if observer is not None and twin is not None:
        handle.observer = observer.beside(handle)
        handle.__class__ = twin


def observer_of(handle: object) -> Observer | None:
    """Return the observer of a handle, or None."""
    found = getattr(handle, "observer", None)
    return found if isinstance(found, Observer) else None


def plain(handle: T) -> T:
    """The handle without telemetry."""
    observer = observer_of(handle)
    return handle if observer is None else observer.plain


@contextmanager
def seen_compacting(handle: object) -> Iterator[list[Any]]:
    """Record a compaction of a handle's session if a result is added to the yielded list."""
    observer = observer_of(handle)
    seen: list[Any] = []
    if observer is None:
        yield seen
        return
    running = observer.running((), {})
    token = noting.set(running)
    begun = perf_counter()
    try:
        yield seen
    except BaseException as exc:
        noting.reset(token)
        observer.tell(_COMPACT, running, perf_counter() - begun, None, exc)
        raise
    noting.reset(token)
    if any(result is not None for result in seen):
        observer.tell(_COMPACT, running, perf_counter() - begun, seen[-1])


def opening(open_: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function that opens a database so that it is recorded if ``telemetry`` is given.

    The function is called with the resulting ``Telemetry``, to pass to ``bound``.
    """
    open_.__qualname__ = "open"  # its public name: a TypeError about an argument says it

    @wraps(open_)
    def run(*args: P.args, **options: P.kwargs) -> T:
        telemetry = telemetry_of(options.get("telemetry"))
        if telemetry is None:
            options.pop("telemetry", None)
            return open_(*args, **options)
        options["telemetry"] = telemetry
        observer = Observer(telemetry, None)
        running = observer.running((), {})
        begun = perf_counter()
        try:
            opened = open_(*args, **options)
        except BaseException as exc:
            observer.tell(_OPEN, running, perf_counter() - begun, None, exc)
            telemetry.flush()
            raise
        observer.tell(_OPEN, running, perf_counter() - begun, None)
        return opened

    return run


def bound(database: T, store: Any, telemetry: Telemetry | None) -> T:
    """Return the database for the caller; with telemetry, one that records its operations."""
    if telemetry is None:
        return database
    telemetry.bind(store)
    _count_runs(store)
    return observe(database, Observer(telemetry, None))


def adapts(**operations: str) -> Callable[[C], C]:
    """Wrap methods of an adapter class so that they are recorded if ``observer`` is set.

    Frameworks inspect adapter classes, so these get no twins: their methods are wrapped in place.
    Each is described as in ``SURFACE``: the operation, its shape, its measure.
    """

    def wrapped(cls: C) -> C:
        cls.observer = None  # type: ignore[attr-defined]
        for name, operation in operations_of(**operations).items():
            setattr(cls, name, observed(getattr(cls, name), operation))
        return cls

    return wrapped


def adapting(
    source: object, adapter: str, place: Place = NOWHERE, *, place_of: PlaceOf | None = None
) -> Observer | None:
    """Return the observer of an adapter on a database or scope; None without telemetry.

    Args:
        source: the object passed to the adapter.
        adapter: the adapter's name in records.
        place: application, user and session of all its calls.
        place_of: alternatively, returns the place of a call from its arguments.
    """
    observer = observer_of(source) or observer_of(getattr(source, "sync", None))
    if observer is None:
        return None
    actor = observer.actor
    return Observer(
        observer.telemetry, None, place, actor=actor, adapter=adapter, place_of=place_of
    )


def _state_of(handle: object) -> Iterator[tuple[str, Any]]:
    """Yield a handle's attributes, from both slots and ``__dict__``."""
    for cls in type(handle).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(handle, name):
                yield name, getattr(handle, name)
    yield from getattr(handle, "__dict__", {}).items()


def _twin(cls: type) -> type | None:
    """The twin of a class; None if the class is not part of the public surface."""
    if _TWIN in cls.__dict__:
        return cls
    if cls not in _twins:
        _twins[cls] = _made(cls)
    return _twins[cls]


def _made(cls: type) -> type | None:
    operations: dict[str, Operation] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("memcore."):
            operations |= SURFACE.get(base.__name__, {})
    if not operations:
        return None
    body: dict[str, Any] = {
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        _TWIN: True,
    }
    if cls.__dictoffset__:
        body |= {"__slots__": (), "observer": None}
    else:
        body["__slots__"] = ("observer",)
    for name, operation in operations.items():
        method = getattr(cls, name, None)
        if method is not None:
            body[name] = _method(method, operation)
    return type(cls)(cls.__name__, (cls,), body)


def _method(method: Any, operation: Operation) -> Any:
    if isinstance(method, property):
        find: Any = method.fget
        return property(lambda self: observe(find(plain(self)), self.observer))
    if operation.shape in ("handle", "pair"):
        return _giving(method, of_plain=True, second=operation.shape == "pair")
    run = observed(method, operation)
    gives = operation.measure == "handle" and not inspect.iscoroutinefunction(method)
    return _giving(run) if gives else run


def _count_runs(store: Any) -> None:
    """Make a store count the runs of its transactions' closures."""
    cls = type(store)

    def transact(self: Any, fn: Any, **options: Any) -> Any:
        return cls.transact(self, counted(fn), **options)

    def submit(self: Any, fn: Any, *args: Any, **options: Any) -> Any:
        return cls.submit(self, counted(fn), *args, **options)

    body = {"__slots__": (), "transact": transact, "submit": submit, "__doc__": cls.__doc__}
    store.__class__ = type(cls.__name__, (cls,), body)


def _giving(
    method: Callable[..., Any], *, of_plain: bool = False, second: bool = False
) -> Callable[..., Any]:
    """Wrap a method so that the handle it returns, or the second of a pair, is observed too."""

    @wraps(method)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        observer = observer_of(self)
        found = method(plain(self) if of_plain else self, *args, **options)
        if observer is None:
            return found
        return (found[0], observe(found[1], observer)) if second else observe(found, observer)

    return run
