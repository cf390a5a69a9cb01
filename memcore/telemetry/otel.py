"""OpenTelemetry: metrics of every operation, and spans of selected ones.

The only module that imports ``opentelemetry``, when a sink is created. Records contain no texts, so
none reaches a span, whatever the value of ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final
from weakref import WeakSet

from memcore.errors import ClosedError, InvalidOptionError, StorageError
from memcore.options import checked_texts
from memcore.telemetry.record import Record, Sink, checked_names

__all__ = [
    "GENAI_MEMORY",
    "METRICS",
    "SPANS",
    "OpenTelemetry",
    "genai_wanted",
]


# --- OpenTelemetry names: metrics, spans and attributes, including the GenAI conventions ----------
# The GenAI conventions define a span for operations on memories and an attribute for the
# conversation; they are still in development, so they are used only on request
# (``OTEL_SEMCONV_STABILITY_OPT_IN`` contains ``gen_ai_latest_experimental``). The packages of
# constants do not have them yet.

METRICS: Final = {
    "duration": "memcore.operation.duration",
    "messages": "memcore.session.messages",
    "tokens": "memcore.session.tokens",
    "ratio": "memcore.compaction.ratio",
    "retries": "memcore.txn.retries",
    "redactions": "memcore.redactions",
    "size": "memcore.store.size",
    "free_pages": "memcore.store.free_pages",
}

OPERATION: Final = "operation"
BACKEND: Final = "backend"
ERROR_TYPE: Final = "error.type"
REDACTION_TYPE: Final = "type"

ITEMS: Final = "memcore.message.count"
BYTES: Final = "memcore.bytes"
TOKENS: Final = "memcore.tokens"
CUT: Final = "memcore.cut.index"
SPAN_BACKEND: Final = "memcore.backend"
DURABILITY: Final = "memcore.durability"
RETRIES: Final = "memcore.txn.retries"
REVISION: Final = "memcore.session.revision"
RATIO: Final = "memcore.compaction.ratio"
SESSION: Final = "memcore.session.id"
USER: Final = "memcore.user"
APP: Final = "memcore.app"
ACTOR: Final = "memcore.actor"
REQUEST: Final = "memcore.request.id"
ADAPTER: Final = "memcore.adapter"

SPANS: Final = {
    "append": "memcore.session.append",
    "extend": "memcore.session.append",
    "record": "memcore.session.append",
    "batch": "memcore.session.append",
    "load": "memcore.session.load",
    "compact": "memcore.session.compact",
    "checkpoint": "memcore.checkpoint.put",
    "graph.put": "memcore.checkpoint.put",
    "get_checkpoint": "memcore.checkpoint.get",
    "graph.get": "memcore.checkpoint.get",
    "fork": "memcore.checkpoint.fork",
    "graph.fork": "memcore.checkpoint.fork",
}
"""Operations whose spans have a special name; other spans are ``memcore.<operation>``."""
RETRY_SPAN: Final = "memcore.txn.retry"

GENAI_MEMORY: Final = {
    "memory.create": "create_memory",
    "memory.put": "upsert_memory",
    "memory.update": "update_memory",
    "memory.search": "search_memory",
    "memory.delete": "delete_memory",
    "memory.open": "create_memory_store",
    "memory.drop": "delete_memory_store",
}
GENAI_OPERATION: Final = "gen_ai.operation.name"
GENAI_STORE: Final = "gen_ai.memory.store.id"
GENAI_COUNT: Final = "gen_ai.memory.record.count"
GENAI_CONVERSATION: Final = "gen_ai.conversation.id"


def genai_wanted() -> bool:
    """Return True if the environment opts in to the experimental GenAI conventions."""
    chosen = os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "")
    return "gen_ai_latest_experimental" in {name.strip() for name in chosen.split(",")}


# --- OpenTelemetry: metrics of every operation, and spans of requested ones -----------------------

_DEFAULT: Final = frozenset(
    {
        "load", "compact", "checkpoint", "get_checkpoint", "fork", "graph.put", "graph.get",
        "graph.fork", "memory.create", "memory.put", "memory.update", "memory.search",
        "memory.delete",
    }
)  # fmt: skip
"""Operations that have a span with ``spans=True``. An append is too short for one."""
_STORED: Final = frozenset({"append", "extend", "record", "batch", "begin", "apply"})
_KINDS_MAX: Final = 10_000
"""Bound on cached attribute sets: error types may come from user code."""
_Counted = tuple[dict[str, str], list[int] | None]
_BUCKETS: Final = (
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 60.0,
)  # fmt: skip
_TENTHS: Final = tuple(step / 10 for step in range(1, 11))


class OpenTelemetry(Sink):
    """Metrics of every operation; spans on request, of appends only if named explicitly.

    Args:
        spans: False: none; True: for load, compact, checkpoints, forks, memories and rerun
            transactions; or the names of the operations, which may include ``"append"``.
        names: how spans name users, actors and sessions; see ``LogSink``. Metrics never do.
        meter_provider: replaces the global one.
        tracer_provider: likewise.

    Raises:
        InvalidOptionError: ``opentelemetry-api`` is not installed, or an option is invalid.
    """

    def __init__(
        self,
        *,
        spans: bool | Iterable[str] = False,
        names: str = "clear",
        meter_provider: Any = None,
        tracer_provider: Any = None,
    ) -> None:
        self.names = checked_names(names)
        self.enters = _chosen(spans)
        self._spans_retries = spans is not False
        try:
            metrics: Any = import_module("opentelemetry.metrics")
            self._trace: Any = import_module("opentelemetry.trace")
            self._context: Any = import_module("opentelemetry.context")
        except ImportError as exc:
            msg = f'telemetry: {exc}: install it with pip install "memcore-db[otel]"'
            raise InvalidOptionError(msg) from exc
        self._observation = metrics.Observation
        self._genai = genai_wanted()
        self._stores: WeakSet[Any] = WeakSet()
        self._lock = threading.Lock()
        self._stored: dict[str, list[int]] = {}
        """Messages and tokens stored, by backend."""
        self._counted: dict[tuple[Any, ...], _Counted] = {}
        self._tracer = self._trace.get_tracer("memcore", tracer_provider=tracer_provider)
        self._make_instruments(metrics.get_meter("memcore", meter_provider=meter_provider))

    def __repr__(self) -> str:
        return f"OpenTelemetry(spans={sorted(self.enters)!r})"

    def _make_instruments(self, meter: Any) -> None:
        self._record = _histogram(
            meter, METRICS["duration"], "s", "How long operations take", _BUCKETS
        ).record
        self._ratio = _histogram(
            meter, METRICS["ratio"], "1", "Tokens after a compaction by those before it", _TENTHS
        )
        self._retries = meter.create_counter(
            METRICS["retries"], unit="{retry}", description="Transactions that were run again"
        )
        self._redactions = meter.create_counter(
            METRICS["redactions"], unit="{value}", description="Values that were redacted"
        )
        # Observable counters are read at collection time, which makes each append cheaper.
        meter.create_observable_counter(
            METRICS["messages"], [self._messages], unit="{message}", description="Items stored"
        )
        meter.create_observable_counter(
            METRICS["tokens"], [self._tokens], unit="{token}", description="Tokens stored"
        )
        meter.create_observable_gauge(
            METRICS["size"], [self._sizes], unit="By", description="Bytes of the file"
        )
        meter.create_observable_gauge(
            METRICS["free_pages"], [self._free_pages], unit="{page}", description="Its free pages"
        )

    # --- records ----------------------------------------------------------------------------------

    def tell(self, record: Record) -> None:
        """Count the operation."""
        counted = self._counted.get(record[:2])
        if counted is None:
            counted = self._counted_as(record)
        attributes, stored = counted
        self._record(record.duration_seconds, attributes)
        if stored is not None:
            with self._lock:
                stored[0] += record.items or 0
                stored[1] += record.tokens or 0
            if not record.retries:
                return
        if record.ratio is not None:
            self._ratio.record(record.ratio, {BACKEND: record.backend})
        if record.retries:
            self._count_retries(record)

    def redacted(self, found: Mapping[str, int], backend: str) -> None:
        """Count redacted values by class."""
        for kind, count in found.items():
            self._redactions.add(count, {REDACTION_TYPE: kind, BACKEND: backend})

    def attach(self, store: Any) -> None:
        """Report the sizes of a database while it is open."""
        self._stores.add(store)

    def _counted_as(self, record: Record) -> _Counted:
        """The attributes for records like this one, and the counts of stored messages to update."""
        stores = record.operation in _STORED and not record.is_error
        with self._lock:
            stored = self._stored.setdefault(record.backend, [0, 0]) if stores else None
            counted = self._attributes_of(record), stored
            if len(self._counted) < _KINDS_MAX:
                self._counted[record[:2]] = counted
        return counted

    def _attributes_of(self, record: Record) -> dict[str, str]:
        found = {OPERATION: record.operation, BACKEND: record.backend}
        if record.is_error:
            found[ERROR_TYPE] = record.status
        return found

    def _count_retries(self, record: Record) -> None:
        self._retries.add(record.retries, self._attributes_of(record))
        if self._spans_retries and record.operation not in self.enters:
            self._span_afterwards(RETRY_SPAN, record)

    # --- observable instruments -------------------------------------------------------------------

    def _messages(self, _: Any) -> Iterator[Any]:
        return self._stored_of(0)

    def _tokens(self, _: Any) -> Iterator[Any]:
        return self._stored_of(1)

    def _stored_of(self, which: int) -> Iterator[Any]:
        with self._lock:
            found = {backend: stored[which] for backend, stored in self._stored.items()}
        for backend, count in found.items():
            yield self._observation(count, {BACKEND: backend})

    def _sizes(self, _: Any) -> Iterator[Any]:
        return self._stats_of("file_bytes")

    def _free_pages(self, _: Any) -> Iterator[Any]:
        return self._stats_of("pages_free")

    def _stats_of(self, figure: str) -> Iterator[Any]:
        for store in list(self._stores):
            with suppress(ClosedError, StorageError):  # closed, or unable to report
                attributes = {BACKEND: "lmdb", "memcore.store": store.path}
                yield self._observation(store.stats()[figure], attributes)

    # --- spans ------------------------------------------------------------------------------------

    def enter(self, operation: str) -> Any:
        """Start the span and make it current, so that a summarizer's spans are its children."""
        span = self._tracer.start_span(self._name_of(operation), kind=self._trace.SpanKind.INTERNAL)
        return span, self._context.attach(self._trace.set_span_in_context(span))

    def leave(self, entered: Any, record: Record) -> None:
        """End the span with the attributes of the operation."""
        if entered is None:
            self._span_afterwards(self._name_of(record.operation), record)
            return
        span, token = entered
        self._context.detach(token)
        self._describe(span, record)
        span.end()

    def _span_afterwards(self, name: str, record: Record) -> None:
        begun_ns = round(record.started_at * 1e9)
        kind = self._trace.SpanKind.INTERNAL
        span = self._tracer.start_span(name, kind=kind, start_time=begun_ns)
        self._describe(span, record)
        span.end(begun_ns + round(record.duration_seconds * 1e9))

    def _name_of(self, operation: str) -> str:
        if self._genai and operation in GENAI_MEMORY:
            return GENAI_MEMORY[operation]
        return SPANS.get(operation, f"memcore.{operation}")

    def _describe(self, span: Any, record: Record) -> None:
        found = {
            ITEMS: record.items, BYTES: record.bytes,
            TOKENS: record.tokens, CUT: record.cut,
            RATIO: record.ratio, REVISION: record.revision,
            SPAN_BACKEND: record.backend, DURABILITY: record.durability,
            APP: record.app, USER: record.user, ACTOR: record.actor,
            REQUEST: record.request_id, ADAPTER: record.adapter,
            RETRIES: record.retries or None,
        }  # fmt: skip
        session = GENAI_CONVERSATION if self._genai else SESSION
        found[session] = record.session
        if self._genai and record.operation in GENAI_MEMORY:
            found[GENAI_OPERATION] = GENAI_MEMORY[record.operation]
            found[GENAI_STORE] = record.app
            found[GENAI_COUNT] = record.items
        if record.is_error:
            found[ERROR_TYPE] = record.status
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
        span.set_attributes({name: value for name, value in found.items() if value is not None})


def _histogram(meter: Any, name: str, unit: str, text: str, bounds: Sequence[float]) -> Any:
    try:
        return meter.create_histogram(
            name, unit=unit, description=text, explicit_bucket_boundaries_advisory=bounds
        )
    except TypeError:  # before 1.30, buckets are set only by the application's views
        return meter.create_histogram(name, unit=unit, description=text)


def _chosen(spans: Any) -> frozenset[str]:
    if isinstance(spans, bool):
        return _DEFAULT if spans else frozenset()
    if isinstance(spans, str) or not isinstance(spans, Iterable):
        msg = f"spans: expected True, False or names of operations, got {spans!r:.80}"
        raise InvalidOptionError(msg)
    return frozenset(checked_texts("spans", spans))
