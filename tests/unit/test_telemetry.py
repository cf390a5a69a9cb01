"""What is told of operations, to whom, and what never is."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import memcore
from memcore.aio import AsyncDatabase
from memcore.blobs import BlobStore
from memcore.graph import GraphStore
from memcore.kv import KeyValue
from memcore.session import SessionState
from memcore.telemetry import AccessLog, LogSink, OpenTelemetry, Record, Sink
from memcore.telemetry.observer import SURFACE

MARK = "zq9MARKERzq9"
HELLO = {"role": "user", "content": "hello"}


class Meters:
    """OpenTelemetry's own exporters, in memory."""

    def __init__(self, **options):
        self.reader = InMemoryMetricReader()
        self.exporter = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = tracers.get_tracer("test")
        self.sink = OpenTelemetry(
            meter_provider=MeterProvider(metric_readers=[self.reader]),
            tracer_provider=tracers,
            **options,
        )

    @property
    def spans(self):
        return self.exporter.get_finished_spans()

    def points(self, name):
        data = self.reader.get_metrics_data()
        metrics = [
            metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        return [p for metric in metrics if metric.name == name for p in metric.data.data_points]


@pytest.fixture
def records():
    return []


@pytest.fixture
def told(open_db, records):
    return open_db(telemetry=records.append, counter="bytes/4")


def names(records):
    return [record.operation for record in records]


# --- records --------------------------------------------------------------------------------------


def test_a_record_says_who_did_what_when_and_how_it_ended(told, records):
    session = told.session("s", user="alice", app="shop")
    records.clear()
    receipt = session.append(HELLO, request_id="r-1")
    (record,) = records
    assert isinstance(record, Record)
    assert record[:2] == ("append", "ok")
    assert (record.app, record.user, record.session) == ("shop", "alice", "s")
    assert (record.request_id, record.revision, record.items) == ("r-1", receipt.revision, 1)
    assert record.tokens == receipt.tokens
    assert record.bytes > len(json.dumps(HELLO)) // 2
    assert record.duration_seconds > 0
    assert record.started_at > 1e9
    assert (record.backend, record.durability, record.adapter) == ("lmdb", "full", None)
    with pytest.raises(AttributeError):
        record.user = "bob"


def test_an_operation_that_fails_is_told_by_the_type_of_its_error(told, records):
    session = told.session("s")
    session.append(HELLO)
    records.clear()
    with pytest.raises(memcore.RevisionConflict):
        session.append(HELLO, expected_revision=7)
    with pytest.raises(memcore.NotFoundError):
        session.get(9)
    with pytest.raises(memcore.InvalidItemError):
        session.append([])
    assert [(r.operation, r.status, r.revision) for r in records] == [
        ("append", "RevisionConflict", 1),
        ("items", "NotFoundError", 1),
        ("append", "InvalidItemError", 1),
    ]


def everything(db, mark=""):
    """Every kind of operation, each name with how often it is to be told."""
    text = {"role": "user", "content": f"hello {mark}"}
    session = db.session("s", user="u")
    session.append(text, meta={"m": mark})
    session.extend([text] * 6)
    session.record("planner", {"p": mark})
    with session.batch() as batch:
        batch.append(text)
        batch.update_state({"b": mark})
    session.context(1000)
    list(session.items())
    session.checkpoint("c", meta={"m": mark})
    fork = session.fork("f")
    fork.undo(1)
    fork.rewind(1)
    session.compact(lambda _: f"{mark} short", keep_last=1)
    session.uncompact()
    session.state.put("field", mark)
    scope = db.scope(user="u")
    scope.state.update({f"f{mark}": mark})
    kv = scope.kv("n")
    kv.put(f"k{mark}", mark)
    kv.put_many({"a": mark, "b": mark})
    kv.get(f"k{mark}")
    kv.transact(lambda txn: txn.put("t", mark))
    list(kv.scan())
    kv.clear()
    address = scope.blobs.put(f"blob {mark}".encode())
    scope.blobs.get(address)
    list(scope.graph.threads())
    lines = list(db.export())
    db.import_(lines, rename=lambda title: title)
    db.backup(db.path + ".copy")
    db.check()
    db.delete_session("f", user="u")
    return [
        "load", "append", "extend", "record", "batch", "context", "items", "checkpoint", "fork",
        "undo", "rewind", "compact", "uncompact", "state.update", "state.update", "kv.put",
        "kv.put", "kv.get", "kv.transact", "kv.scan", "kv.delete_range", "blob.put", "blob.get",
        "graph.threads", "export", "import", "backup", "check", "delete",
    ]  # fmt: skip


def test_every_operation_is_told_once(told, records):
    expected = everything(told)
    told.close()
    assert names(records) == ["open", *expected, "close"]
    assert {record.status for record in records} == {"ok"}
    assert {r.user for r in records if r.operation in ("kv.put", "fork", "delete")} == {"u"}
    assert next(r for r in records if r.operation == "compact").ratio < 1
    assert next(r for r in records if r.operation == "export").bytes > 100


def test_the_awaited_surface_is_told_once(told, records):
    async def main():
        session = AsyncDatabase(told).session("s", user="u")
        await session.append(HELLO)
        await session.extend([HELLO] * 5)
        async with session.batch() as batch:
            batch.append(HELLO)
        await session.context(1000)
        assert len([item async for item in session.items()]) == 7
        fork = await session.fork("f")
        await fork.append(HELLO)
        await fork.undo()
        await session.state.put("a", 1)
        await session.compact(keep_last=1)
        kv = AsyncDatabase(told).scope(user="u").kv("n")
        await kv.put("a", 1)
        await kv.put("b", 1, content=bytes(5_000_000))
        await kv.get("a")
        with pytest.raises(memcore.InvalidItemError):
            await session.append(object())

    records.clear()
    asyncio.run(main())
    assert names(records) == [
        "load", "append", "extend", "batch", "context", "items", "fork", "append", "undo",
        "state.update", "compact", "kv.put", "kv.put", "kv.get", "append",
    ]  # fmt: skip
    assert records[7].session == "f"
    assert (records[1].items, records[2].items, records[5].items) == (1, 5, 7)
    assert [r.status for r in records if r.status != "ok"] == ["InvalidItemError"]


def test_what_callbacks_do_is_told_too(told, records):
    session, other = told.session("s"), told.session("other")
    session.extend([HELLO] * 6)
    records.clear()

    def summarize(_):
        other.append(HELLO)
        return "short"

    session.compact(summarize, keep_last=1)
    assert names(records) == ["append", "compact"]
    assert records[0].bytes < 200  # its own, and not those of the compaction


def test_compactors_are_told_when_they_did_something(told, records):
    stage = memcore.Stage(
        name="all", triggers=(memcore.Trigger(items=5),), keep=memcore.Keep(last_items=1)
    )
    policy = memcore.CompactionPolicy(stages=(stage,))
    session = told.session("s", user="u")
    compactor = memcore.Compactor(session, lambda _: "short", policy=policy)
    session.append(HELLO)
    records.clear()
    assert compactor.run() is None
    assert records == []
    session.extend([HELLO] * 8)
    assert compactor.run().view is not None
    assert names(records) == ["extend", "compact"]
    assert (records[-1].user, records[-1].session) == ("u", "s")
    assert records[-1].ratio < 1

    async def main():
        async with memcore.aio.Compactor(lambda _: "short", policy=policy) as background:
            other = AsyncDatabase(told).session("t", user="u")
            await other.extend([HELLO] * 8)
            background.notify(other)
            await background.drained()

    records.clear()
    asyncio.run(main())
    assert names(records) == ["load", "extend", "compact"]
    assert records[-1].session == "t"


def test_an_iterator_is_told_when_it_ends_or_is_given_up(told, records):
    session = told.session("s")
    session.extend([HELLO] * 4)
    records.clear()
    items = session.items()
    assert records == []
    next(items)
    items.close()
    assert [(r.operation, r.items, r.status) for r in records] == [("items", 1, "ok")]


def test_an_opening_that_fails_is_told(tmp_path, records):
    with pytest.raises(memcore.NotFoundError):
        memcore.open(tmp_path / "none", create=False, telemetry=records.append)
    assert [(r.operation, r.status) for r in records] == [("open", "NotFoundError")]


def test_every_public_method_is_an_operation_or_known_to_be_none():
    """A method that is added is placed in ``surface`` or here, on purpose."""
    none = {
        "Database": {"session", "delete_session", "sweeper"},
        "Scope": set(),
        "Session": {
            "exists", "pressure", "needs_compaction", "plan_batch", "plan_command", "history_at",
            "seen_revision", "estimated_tokens", "accessed", "plan_share", "as_agent", "delegate",
        },
        "KeyValue": {"clear", "passed", "stage", "unstage", "submit", "queue", "finish"},
        "SessionState": {
            "put", "visible", "plan", "closure", "read", "write", "wait", "watch", "keys",
        },
        "BlobStore": set(),
        "Memories": {"tools"},
        "Profile": set(),
        "Grants": {"memories", "hits"},
        "GraphStore": {"plan_put", "plan_put_writes", "plan_copy_thread", "place"},
    }  # fmt: skip
    classes = {
        "Database": memcore.Database, "Scope": memcore.Scope, "Session": memcore.Session,
        "KeyValue": KeyValue, "SessionState": SessionState, "BlobStore": BlobStore,
        "GraphStore": GraphStore, "Memories": memcore.Memories, "Grants": memcore.Grants,
        "Profile": memcore.Profile,
    }  # fmt: skip
    for name, cls in classes.items():
        public = {
            method
            for method, _ in inspect.getmembers(cls, inspect.isfunction)
            if not method.startswith("_")
        }
        assert public - set(SURFACE[name]) - none[name] == set(), name


def test_grants_are_told_without_names(open_db, records):
    db = open_db(telemetry=records.append, durability="none")
    memory = db.scope(user="ann").memory
    memory.remember("x", by="operator")
    records.clear()
    grant = memory.grants.give(to=("default", "somebody"))
    assert memory.grants.list() == [grant]
    assert memory.grants.revoke(grant)
    told = [record.operation for record in records]
    assert [each for each in told if each.startswith("memory.")] == [
        "memory.grant", "memory.grants", "memory.revoke",
    ]  # fmt: skip
    assert "somebody" not in repr(records)


def test_what_is_done_with_others_and_for_them_is_told(open_db, records):
    db = open_db(telemetry=records.append)
    session = db.session("s")
    session.append(HELLO)
    child = session.child("part")
    records.clear()
    child.append({"role": "assistant", "content": "done"}, envelope={"type": "final"})
    session.share(child)
    ladder = session.ladder()
    failed = ladder.run(lambda _: 1 / 0, request_id="r", retries=0)
    assert failed.status == "hitl"
    assert ladder.due() == []
    session.resolve_hitl(failed.hitl_seq, "go on")
    session.hold(reason="court")
    session.release()
    db.scope().quarantine.list("s")
    db.retention.expire_session("s", 3600)
    assert [(record.operation, record.session) for record in records] == [
        ("append", "s::part"),
        ("share", "s"),
        ("ladder.run", "s"),
        ("ladder.due", "s"),
        ("resolve_hitl", "s"),
        ("hold", "s"),
        ("release", "s"),
        ("quarantine.list", None),
        ("retention.expire", "s"),
    ]
    assert isinstance(child, memcore.Session)


def test_transactions_that_are_run_again_are_counted(open_db, records):
    meters = Meters(spans=True)
    db = open_db(telemetry=[records.append, meters.sink], map_bytes=2**20)
    session = db.session("s")
    records.clear()
    session.append({"role": "user", "content": "x" * 3_000_000})  # the map has to grow
    (record,) = records
    assert record.retries >= 1
    assert sum(p.value for p in meters.points("memcore.txn.retries")) == record.retries
    assert meters.spans[-1].name == "memcore.txn.retry"
    assert meters.spans[-1].attributes["memcore.txn.retries"] == record.retries
    session.append(HELLO)
    assert records[-1].retries == 0


# --- with telemetry off ---------------------------------------------------------------------------


def test_off_there_are_only_plain_handles(open_db):
    db = open_db(telemetry=None)
    session = db.session("s")
    assert type(db) is memcore.Database
    assert type(session) is memcore.Session
    assert type(session.append.__func__) is type(test_off_there_are_only_plain_handles)
    assert session.append.__func__ is memcore.Session.append
    assert not hasattr(session, "observer")


def test_nothing_of_it_is_imported_unasked(tmp_path):
    program = """if True:
        import sys, memcore
        with memcore.open(sys.argv[1], telemetry=None) as db:
            db.session("s").append({"role": "user", "content": "x"})
        with memcore.open(sys.argv[1], telemetry="log") as db:
            db.session("s").append({"role": "user", "content": "x"})
        assert not [name for name in sys.modules if name.startswith("opentelemetry")]
        sys.modules["opentelemetry.metrics"] = None
        try:
            memcore.open(sys.argv[1], telemetry="otel")
        except memcore.InvalidOptionError as exc:
            assert "memcore-db[otel]" in str(exc), exc
        else:
            raise AssertionError
    """
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "x")], check=True)


@pytest.mark.parametrize("wrong", ["loud", 3, object(), [None], LogSink, {"a": 1}])
def test_what_is_no_sink_is_refused_before_the_file_is_made(path, wrong):
    with pytest.raises(memcore.InvalidOptionError, match="telemetry"):
        memcore.open(path, telemetry=wrong)
    assert not path.exists()


@pytest.mark.parametrize("wrong", ["loud", None, 1])
def test_names_are_one_of_three(tmp_path, wrong):
    for make in (LogSink, OpenTelemetry, lambda names: AccessLog(tmp_path / "l", names=names)):
        with pytest.raises(memcore.InvalidOptionError, match="names"):
            make(names=wrong)


# --- sinks ----------------------------------------------------------------------------------------


def test_a_sink_that_fails_breaks_nothing_and_is_logged_once(open_db, records, caplog):
    def failing(record):
        raise RuntimeError(MARK)

    db = open_db(telemetry=[failing, records.append])
    session = db.session("s")
    for _ in range(3):
        session.append(HELLO)
    assert len(session) == 3
    assert names(records)[-1] == "append"
    assert db.observer.telemetry.failures >= 4
    assert len([r for r in caplog.records if "telemetry" in r.getMessage()]) == 1
    assert MARK not in caplog.text


def test_what_a_sink_does_to_the_database_is_not_told_again(open_db):
    db = None

    def audit(record):
        if db is not None and record.operation != "close":
            plainly.append({"role": "user", "content": record.operation})

    db = open_db(telemetry=audit)
    plainly = None
    db, held = None, db
    plainly = held.session("audit")
    db = held
    db.session("s").append(HELLO)
    assert [item.message["content"] for item in plainly.items()][:2] == ["load", "append"]


def test_logs_are_structured_and_have_levels(open_db, caplog):
    caplog.set_level(logging.DEBUG, logger="memcore")
    db = open_db(telemetry="log")
    session = db.session("s", user="alice")
    session.append(HELLO)
    session.checkpoint("a")
    with pytest.raises(memcore.NotFoundError):
        session.get(5)
    levels = {(r.memcore_operation, r.levelname) for r in caplog.records}
    assert {("append", "DEBUG"), ("checkpoint", "INFO"), ("items", "WARNING")} <= levels
    appended = next(r for r in caplog.records if r.memcore_operation == "append")
    assert (appended.memcore_user, appended.memcore_session) == ("alice", "s")
    assert appended.memcore_items == 1
    assert any(
        isinstance(handler, logging.NullHandler)
        for handler in logging.getLogger("memcore").handlers
    )


def test_users_may_be_told_by_pseudonym_or_not_at_all(open_db):
    seen = {}

    class Told(Sink):
        def __init__(self, names):
            self.names = names

        def tell(self, record):
            if record.operation == "append":
                seen.setdefault(self.names, []).append(record)

    db = open_db(telemetry=[Told("clear"), Told("hashed"), Told("none")])
    for user in ("alice", "alice", "bob"):
        db.session("s", user=user).append(HELLO)
    assert [r.user for r in seen["clear"]] == ["alice", "alice", "bob"]
    first, again, other = seen["hashed"]
    assert first.user == again.user != other.user
    assert "alice" not in str(first)
    assert first.session not in (None, "s")
    assert {(r.user, r.session) for r in seen["none"]} == {(None, None)}
    assert {r.app for r in seen["none"]} == {"default"}


# --- OpenTelemetry --------------------------------------------------------------------------------


def test_metrics(open_db):
    meters = Meters()
    db = open_db(telemetry=meters.sink, counter="bytes/4")
    session = db.session("s", user="alice")
    session.append(HELLO)
    receipt = session.extend([HELLO] * 5)
    with pytest.raises(memcore.NotFoundError):
        session.get(77)
    session.compact(lambda _: "short", keep_last=1)
    db.observer.telemetry.redacted({"EMAIL": 2})
    durations = {
        (p.attributes["operation"], p.attributes.get("error.type")): p
        for p in meters.points("memcore.operation.duration")
    }
    assert {("append", None), ("items", "NotFoundError"), ("compact", None)} <= set(durations)
    assert durations["append", None].count == 1
    assert durations["append", None].attributes["backend"] == "lmdb"
    assert "alice" not in str(list(durations.values()))
    assert [p.value for p in meters.points("memcore.session.messages")] == [6]
    assert [p.value for p in meters.points("memcore.session.tokens")] == [receipt.tokens]
    assert meters.points("memcore.compaction.ratio")[0].sum < 1
    (redacted,) = meters.points("memcore.redactions")
    assert (redacted.value, redacted.attributes["type"]) == (2, "EMAIL")
    stats = db.stats()
    assert meters.points("memcore.store.size")[0].value == stats["file_bytes"]
    assert meters.points("memcore.store.free_pages")[0].value == stats["pages_free"]
    assert meters.spans == ()
    db.close()
    assert meters.points("memcore.store.size") == []


def test_spans_are_asked_for_and_none_is_of_an_append(open_db):
    meters = Meters(spans=True)
    db = open_db(telemetry=meters.sink)
    session = db.session("s", user="u")
    session.extend([HELLO] * 5)
    session.append(HELLO)

    def summarize(_):
        with meters.tracer.start_as_current_span("model"):
            return "short"

    session.compact(summarize, keep_last=1)
    session.checkpoint("c")
    session.fork("f")
    with pytest.raises(memcore.NotFoundError):
        session.get_checkpoint("none")
    spans = {span.name: span for span in meters.spans}
    assert list(spans) == [
        "memcore.session.load", "model", "memcore.session.compact", "memcore.checkpoint.put",
        "memcore.checkpoint.fork", "memcore.checkpoint.get",
    ]  # fmt: skip
    compact = spans["memcore.session.compact"]
    assert spans["model"].parent.span_id == compact.context.span_id
    assert compact.attributes["memcore.session.id"] == "s"
    assert {"memcore.cut.index", "memcore.tokens", "memcore.backend"} <= set(compact.attributes)
    failed = spans["memcore.checkpoint.get"]
    assert failed.attributes["error.type"] == "NotFoundError"
    assert not failed.status.is_ok
    assert failed.status.description is None
    assert not failed.events


def test_appends_have_spans_where_they_are_named(open_db):
    meters = Meters(spans=["append", "items"])
    session = open_db(telemetry=meters.sink).session("s")
    session.append(HELLO)
    list(session.items())
    assert [span.name for span in meters.spans] == ["memcore.session.append", "memcore.items"]
    assert meters.spans[0].attributes["memcore.message.count"] == 1
    assert meters.spans[1].start_time <= meters.spans[1].end_time


def test_genai_conventions_are_asked_for_by_the_environment(open_db, monkeypatch):
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http, gen_ai_latest_experimental")
    meters = Meters(spans=True)
    open_db(telemetry=meters.sink).session("s")
    (span,) = meters.spans
    assert span.attributes["gen_ai.conversation.id"] == "s"
    record = Record("memory.search", "ok", 0.1, 1e9, app="a", user="u", items=3)
    meters.sink.leave(meters.sink.enter("memory.search"), record)
    found = meters.spans[-1]
    assert found.name == found.attributes["gen_ai.operation.name"] == "search_memory"
    assert found.attributes["gen_ai.memory.record.count"] == 3
    assert found.attributes["gen_ai.memory.store.id"] == "a"


# --- never content --------------------------------------------------------------------------------


def test_no_content_reaches_any_sink(open_db, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    caplog.set_level(logging.DEBUG)
    seen, text = [], io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(message)s %(exc_info)s %(stack_info)s"))
    logging.getLogger("memcore").addHandler(handler)
    meters = Meters(spans=["append", *SURFACE["Session"], "kv.put", "blob.put", "open"])
    log = AccessLog(tmp_path / "access.log")
    try:
        db = open_db(telemetry=[seen.append, "log", meters.sink, log], counter="bytes/4")
        everything(db, MARK)
        _fail(db)
        db.close()
    finally:
        logging.getLogger("memcore").removeHandler(handler)
    everything_told = (
        repr(seen) + text.getvalue() + (tmp_path / "access.log").read_text()
        + "".join(repr(vars(r)) for r in caplog.records)
        + "".join(span.to_json() for span in meters.spans)
        + meters.reader.get_metrics_data().to_json()
    )  # fmt: skip
    assert len(seen) > 40
    assert MARK not in everything_told


def _fail(db):
    """Operations whose errors hold content."""
    session = db.session("s", user="u")

    def broken(_):
        raise ValueError(MARK)

    session.compact(broken, keep_last=1)
    failing = (
        lambda: session.append({"role": "user", "content": {MARK}}),
        lambda: session.append({"role": "tool", "tool_call_id": MARK, "content": MARK}),
        lambda: session.find_call(MARK),
        lambda: session.get_checkpoint(MARK),
        lambda: session.state[MARK],
        lambda: session.state.put(MARK, object()),
        lambda: db.scope(user="u").kv("n").put(MARK, object()),
        lambda: db.scope(user="u").kv("n").transact(broken),
        lambda: db.scope(user="u").blobs.get(MARK),
        lambda: db.import_([MARK.encode()]).failures[1],
        lambda: session.repair(MARK),
        lambda: session.rewind(MARK),
    )
    for call in failing:
        with pytest.raises(Exception):  # noqa: B017 - each has its own
            call()


def test_every_operation_is_told_on_its_page():
    page = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
    start = page.index("| operations | |")
    told = set(re.findall(r"`([a-z_.]+)`", page[start : page.index("Values that are already")]))
    prefixes = tuple(name for name in told if name.endswith("."))
    recorded = {
        each.name
        for methods in SURFACE.values()
        for each in methods.values()
        if each.shape not in ("handle", "pair")
    }
    assert len(recorded) > 100
    missing = {name for name in recorded if name not in told and not name.startswith(prefixes)}
    assert missing == set()
