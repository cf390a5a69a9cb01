"""Prunes of graph threads beside writers, cut short, beside each other; how much they look at."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest
from threaded import CODER, Thread, keep, pruning, rows_under

import memcore
from memcore.codec.keys import Kind, ThreadRow
from memcore.codec.values import seal_value
from memcore.errors import CorruptValueError, HeldError, StaleParentError, StoreFormatError
from memcore.graph import MISSING, GraphStore, JsonCoder, NewCheckpoint, NewWrites, Pruned, gc, rows
from memcore.graph import prune as module
from memcore.graph.prune import Rule, prune
from memcore.graph.store import store_of
from memcore.store.datafile import FORMAT_KEY, GRAPH_ROWS, Format
from memcore.store.interface import ReadTxn, Stale, Steps
from memcore.store.transaction import stored
from memcore.telemetry.observer import observer_of

pytestmark = pytest.mark.usefixtures("open_db")


@pytest.fixture
def db(open_db: Callable[..., memcore.Database]) -> memcore.Database:
    return open_db(durability="none")


def drive(graph: GraphStore, steps: Steps[Any], between: Callable[[int], object]) -> Any:
    """Commit the steps, and do something before each."""
    at = 0
    try:
        closure = next(steps)
        while True:
            between(at)
            at += 1
            try:
                result = store_of(graph).transact(closure)
            except Stale as exc:
                closure = steps.throw(exc)
            else:
                closure = steps.send(result)
    except StopIteration as exc:
        return exc.value


def long_thread(graph: GraphStore, count: int) -> Thread:
    """A thread whose rows are many pieces: each checkpoint brings a value that is a page."""
    one = Thread(graph, "t")
    for at in range(count):
        one.put(log=[f"{at} ".ljust(1900, "x")], steady="s", empty=MISSING)
    return one


def test_what_arrives_invalidates_nothing(db: memcore.Database) -> None:
    graph = db.scope().graph
    one = long_thread(graph, 900)
    steps = 0

    def arrive(_at: int) -> None:
        nonlocal steps
        steps += 1
        one.put(log=[f"new {steps}"])

    done: Pruned = drive(graph, pruning(graph), arrive)
    assert done.checkpoints == 900
    assert len(one.ids()) == steps > 4
    assert one.read() == {"log": [f"new {steps}"], "steady": "s"}
    for checkpoint in one.ids():
        assert one.read(checkpoint) is not None


def fork(graph: GraphStore, rng: random.Random, at: int, known: dict[str, Any]) -> None:
    """Go on from any checkpoint that there is, as a runtime does that read it a moment ago."""
    ids = [one.checkpoint for one in graph.checkpoints("t", "", CODER)]
    found = graph.get("t", "", rng.choice(ids), CODER)
    assert found is not None
    versions = {**found.body["channel_versions"], "log": f"f{at}"}
    values = {**found.values, "log": [f"fork {at}"]}
    others = {name: (versions[name], value) for name, value in found.values.items()}
    name = f"{found.checkpoint}-{at}"
    body = {"channel_versions": versions}
    changed = {"log": (f"f{at}", values["log"])}
    graph.put("t", "", NewCheckpoint(name, found.checkpoint, body, {}, changed, others), CODER)
    known[name] = values


@pytest.mark.parametrize("seed", range(6))
def test_forks_of_what_is_to_go_are_whole(db: memcore.Database, seed: int) -> None:
    graph = db.scope().graph
    long_thread(graph, 500)
    rng = random.Random(seed)
    known: dict[str, Any] = {}
    # Before the first step the prune has not begun.
    drive(graph, pruning(graph), lambda at: at and fork(graph, rng, at, known))
    assert len(known) > 3
    for name, values in known.items():
        found = graph.get("t", "", name, CODER)
        assert found is not None
        assert found.values == values
    assert db.check() == []
    graph.prune("t", keep(1), CODER)
    assert db.check() == []


def delta_thread(graph: GraphStore, count: int) -> None:
    """Checkpoints whose channel ``d`` is written as deltas, with a value at the first only."""
    for at in range(count):
        body = {"channel_versions": {"d": f"v{at:04}"}}
        meta = {"counters_since_delta_snapshot": {"d": [at, at]}}
        values = {"d": (f"v{at:04}", "seed" if not at else MISSING)}
        parent = f"{at - 1:04}" if at else None
        graph.put("t", "", NewCheckpoint(f"{at:04}", parent, body, meta, values), CODER)


def test_a_fork_of_deltas_keeps_what_it_is_rebuilt_from(db: memcore.Database) -> None:
    graph = db.scope().graph
    delta_thread(graph, 40)
    for at in range(40, 60):  # not rebuilt from the others any more
        body = {"channel_versions": {"d": f"v{at:04}"}}
        new = NewCheckpoint(f"{at:04}", f"{at - 1:04}", body, {}, {"d": (f"v{at:04}", at)})
        graph.put("t", "", new, CODER)

    def arrive(at: int) -> None:
        if at == 1:  # planned, and nothing has gone
            body = {"channel_versions": {"d": "w"}}
            meta = {"counters_since_delta_snapshot": {"d": [9, 9]}}
            new = NewCheckpoint("0010-x", "0010", body, meta, {"d": ("w", MISSING)})
            graph.put("t", "", new, CODER)

    drive(graph, pruning(graph), arrive)
    assert graph.deltas("t", "", "0010-x", ["d"], CODER)["d"].seed == "seed"
    left = [one.checkpoint for one in graph.checkpoints("t", "", CODER)]
    assert left == ["0059", "0010-x", "0010"], "the others are there only to rebuild it from"


def test_what_stays_only_to_rebuild_others_is_neither_read_nor_forked(
    db: memcore.Database,
) -> None:
    """Two channels with snapshots at different checkpoints: 2 to 5 stay for 6, without 0 and 1."""
    graph = db.scope().graph
    snapshots = {"d": (0, 4), "e": (0, 2)}
    meta = {"counters_since_delta_snapshot": {"d": [1, 1], "e": [1, 1]}}
    for at in range(7):
        versions = {name: f"{name}{at}" for name in snapshots}
        values = {
            name: (versions[name], f"snapshot {name}{at}" if at in snapshots[name] else MISSING)
            for name in snapshots
        }
        parent = f"{at - 1:02}" if at else None
        body = {"channel_versions": versions}
        graph.put("t", "", NewCheckpoint(f"{at:02}", parent, body, meta, values), CODER)
        graph.put_writes("t", "", NewWrites(f"{at:02}", "task", "", [(0, "d", at)]), CODER)
    before = graph.deltas("t", "", "06", ["d", "e"], CODER)
    for attempt in range(2):
        plan = graph.would_prune("t", keep(1), CODER)
        assert plan is not None
        assert [len(ids) for ids in plan.needed.values()] == [0 if attempt else 4]
        done = graph.prune("t", keep(1), CODER)
        assert (done.checkpoints, done.needed) == ((0, 0) if attempt else (2, 4))
        assert [one.checkpoint for one in graph.checkpoints("t", "", CODER)] == ["06"]
        assert [one.checkpoint for one in graph.checkpoints("t", "", CODER, checkpoint="05")] == []
        assert graph.get("t", "", "05", CODER) is None
        assert graph.deltas("t", "", "05", ["d"], CODER)["d"].writes == []
        assert graph.deltas("t", "", "06", ["d", "e"], CODER) == before
    fork = {"channel_versions": {"d": "f", "e": "f"}}
    absent = {"d": ("f", MISSING), "e": ("f", MISSING)}
    with pytest.raises(StaleParentError, match="'03', which is gone"):
        graph.put("t", "", NewCheckpoint("99", "03", fork, meta, absent), CODER)
    assert db.check() == []
    body = {"channel_versions": {"d": "7", "e": "7"}}
    values = {name: ("7", f"snapshot {name}7") for name in snapshots}
    graph.put("t", "", NewCheckpoint("07", "06", body, meta, values), CODER)
    graph.prune("t", keep(1), CODER)
    assert sum(key[17] == ThreadRow.CHECKPOINT for key in rows_under(db, Kind.THREAD)) == 1


def test_writes_wait_for_a_checkpoint_that_another_run_overtook(
    db: memcore.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = db.scope().graph
    now = f"{time.time_ns() // 100 + 0x01B21DD213814000:015x}"
    ids = [f"{now[:8]}-{now[8:12]}-6{now[12:]}-8000-{at:012}" for at in range(3)]  # LangGraph's
    put = [NewCheckpoint(name, None, {"channel_versions": {}}, {}, {}) for name in ids]
    graph.put("t", "", put[0], CODER)
    graph.put_writes("t", "", NewWrites(ids[1], "task", "", [(0, "d", "mine")]), CODER)
    graph.put("t", "", put[2], CODER)  # of another run
    assert graph.prune("t", keep(9), CODER).strays == 0
    assert graph.leftovers() == []
    graph.put("t", "", put[1], CODER)
    found = graph.get("t", "", ids[1], CODER)
    assert found is not None
    assert found.writes == [("task", "d", "mine")]
    graph.prune("t", lambda _: {ids[1]}, CODER)
    graph.put_writes("t", "", NewWrites(ids[1], "task", "", [(0, "d", "late")]), CODER)
    two_hours_pass(graph, monkeypatch)
    assert graph.prune("t", keep(9), CODER).strays == 1


def test_deltas_to_what_was_pruned_are_refused(db: memcore.Database) -> None:
    graph = db.scope().graph
    for at in "123":
        graph.put(
            "t", "", NewCheckpoint(at, None, {"channel_versions": {"d": at}}, {}, {"d": (at, at)}),
            CODER,
        )  # fmt: skip
    graph.prune("t", keep(1), CODER)
    meta = {"counters_since_delta_snapshot": {"d": [1, 1]}}
    new = NewCheckpoint("4", "1", {"channel_versions": {"d": "4"}}, meta, {"d": ("4", MISSING)})
    with pytest.raises(StaleParentError, match="'1', which is gone, and channel 'd' is rebuilt"):
        graph.put("t", "", new, CODER)
    assert [one.checkpoint for one in graph.checkpoints("t", "", CODER)] == ["3"]


class CutError(Exception):
    """In place of a kill: what was committed stays, and nothing else happens."""


@pytest.mark.parametrize("stop", range(1, 7))
def test_a_prune_that_is_cut_short_keeps_what_was_done(db: memcore.Database, stop: int) -> None:
    """Cut short before one of its commits; the next one does the rest, and no more."""
    graph = db.scope().graph
    one = long_thread(graph, 500)

    def cut(at: int) -> None:
        if at == stop:
            raise CutError

    with pytest.raises(CutError):
        drive(graph, pruning(graph), cut)
    left = one.ids()
    assert (len(left) < 500) == (stop > 1)
    assert db.check() == []
    for checkpoint in left[:: max(1, len(left) // 5)]:
        assert one.read(checkpoint) is not None
    done = graph.prune("t", keep(1), CODER)
    assert done.checkpoints == len(left) - 1
    assert one.ids() == ["c000500"]
    assert one.read() == {"log": ["499 ".ljust(1900, "x")], "steady": "s"}
    assert graph.prune("t", keep(1), CODER) == Pruned()
    assert _rows(db) == len(
        ("head", "name", "checkpoint", "log", "steady", "empty", "pool", "page")
    )


def _rows(db: memcore.Database) -> int:
    start, stop = b"\x0f", b"\x11"
    return db._engine.store.read(lambda txn: sum(1 for _ in txn.scan(start, stop)))


def test_two_prunes_at_once_serve_each_other(db: memcore.Database) -> None:
    graph = db.scope().graph
    one = long_thread(graph, 500)
    other = pruning(graph)
    open_steps: list[Any] = [None]

    def step(_at: int) -> None:
        try:
            closure = next(other) if open_steps[0] is None else open_steps[0]
            try:
                result = store_of(graph).transact(closure)
            except Stale as exc:
                open_steps[0] = other.throw(exc)
            else:
                open_steps[0] = other.send(result)
        except StopIteration:
            open_steps[0] = lambda _txn: None
        one.put(log=["meanwhile"])

    done = drive(graph, pruning(graph), step)
    assert done.checkpoints
    assert one.read() == {"log": ["meanwhile"], "steady": "s"}
    graph.prune("t", keep(1), CODER)
    assert one.ids() == [one.parent]
    assert db.check() == []


@dataclass(frozen=True, slots=True)
class Counting(JsonCoder):
    """Counts what it decodes."""

    decoded: list[str] = field(default_factory=list)

    def decode(self, typed: Any) -> Any:
        self.decoded.append(typed[0])
        return JsonCoder.decode(self, typed)


@pytest.mark.parametrize("count", [300, 1200])
def test_the_work_grows_with_the_checkpoints(
    db: memcore.Database, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each body is decoded for two plans, and each way up is gone once, however much stays."""
    graph = db.scope().graph
    one = Thread(graph, "t")
    for _ in range(count):
        one.put(log=["x".ljust(1900, "x")], empty=MISSING)
    coder = Counting()
    asked: list[str] = []
    found = module._version_in
    monkeypatch.setattr(
        module, "_version_in", lambda at, name: asked.append(name) or found(at, name)
    )
    graph.prune("t", keep(count // 2), coder)
    assert len(coder.decoded) <= 2 * 2 * count
    assert len(asked) <= 2 * 2 * count


def test_a_hold_that_comes_meanwhile_ends_it(db: memcore.Database) -> None:
    graph = db.scope(user="u").graph
    long_thread(graph, 400)

    def hold(at: int) -> None:
        if at == 2:
            db.scope(user="u").hold(reason="case 7")

    with pytest.raises(HeldError):
        drive(graph, pruning(graph), hold)
    assert db.check() == []


def test_an_older_memcore_refuses_a_file_with_stamps(db: memcore.Database) -> None:
    graph = db.scope().graph
    one = long_thread(graph, 5)

    def features() -> int:
        row = db._engine.store.read(lambda txn: stored(txn).get(FORMAT_KEY))
        return Format.unpack(row, "here").features & GRAPH_ROWS

    assert not features()
    drive(graph, pruning(graph), lambda _at: one.put(log=["late"]))
    assert features()
    known = Format.unpack.__globals__
    before = known["_FEATURES_KNOWN"]
    try:
        known["_FEATURES_KNOWN"] = before & ~GRAPH_ROWS
        with pytest.raises(StoreFormatError, match="features 0x4"):
            features()
    finally:
        known["_FEATURES_KNOWN"] = before


def test_what_an_older_memcore_stores_meanwhile_stays(
    db: memcore.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had the file open before, and stamps nothing."""
    graph = db.scope().graph
    one = long_thread(graph, 500)

    def arrive(at: int) -> None:
        if at:
            with monkeypatch.context() as older:
                older.setattr(
                    rows, "put_row", lambda txn, key, body, _: txn.put(key, seal_value(key, body))
                )
                older.setattr(rows, "stamp", lambda *_: None)
                one.put(log=[f"old {at}"])

    drive(graph, pruning(graph), arrive)
    late = one.ids()[:-1]
    assert len(late) > 3
    for checkpoint in late:
        found = one.read(checkpoint)
        assert found is not None
        assert found["log"][0].startswith("old ")
        assert found["steady"] == "s"
    assert db.check() == []


def test_a_copy_of_a_thread_with_stamps_is_whole(db: memcore.Database) -> None:
    graph = db.scope().graph
    one = long_thread(graph, 5)

    def arrive(at: int) -> None:
        one.put(log=["late"])
        graph.copy_thread("t", f"copy {at}")

    drive(graph, pruning(graph), arrive)
    for entry in list(graph.threads()):
        found = graph.get(entry.thread, "", None, CODER)
        assert found is not None
        assert found.values == {"log": ["late"], "steady": "s"}
    assert db.check() == []


# --- what comes late ------------------------------------------------------------------------------


def write_late(
    graph: GraphStore, checkpoint: str, *, thread: str = "t", task: str = "late"
) -> None:
    new = NewWrites(checkpoint, task, "", [(0, "log", "w" * 500)])
    graph.put_writes(thread, "", new, CODER)


def writes_in(db: memcore.Database) -> int:
    return sum(key[17] == ThreadRow.WRITES for key in rows_under(db, Kind.THREAD))


def test_a_malformed_key_of_writes_ends_the_look_for_late_ones(db: memcore.Database) -> None:
    graph = db.scope().graph
    one = Thread(graph, "t")
    for at in range(3):
        one.put(log=at)
    write_late(graph, "c000001")
    key = next(key for key in rows_under(db, Kind.THREAD) if key[17] == ThreadRow.WRITES)
    at = key.index(b"c000001") + len(b"c000001\0")
    assert key[at] == 1
    bad = key[:at] + b"\x05" + key[at + 1 :]
    db.engine.store.transact(lambda txn: txn.put(bad, seal_value(bad, b"")))
    with pytest.raises(CorruptValueError, match="malformed"):
        graph.leftovers()
    db.engine.store.transact(lambda txn: txn.delete(bad))


def test_writes_that_come_after_their_checkpoint_went_go_with_the_next_prune(
    db: memcore.Database,
) -> None:
    graph = db.scope().graph
    one = Thread(graph, "t")
    for at in range(6):
        one.put(log=at)
    write_late(graph, "c000003")
    graph.prune("t", keep(2), CODER)
    assert writes_in(db) == 0
    for checkpoint in ("c000001", "c000003", "c000003\0x", "c000005", "c000006"):
        write_late(graph, checkpoint)
        write_late(graph, checkpoint, task="\0another")
    write_late(graph, "c000007")  # its checkpoint is still to come
    assert graph.leftovers() == ["thread 't': pending writes of 3 checkpoints that are gone"]
    assert db.check() == []
    plan = graph.would_prune("t", keep(2), CODER)
    assert plan is not None
    assert [name for _, name in plan.strays] == ["c000001", "c000003", "c000003\0x"]
    done = graph.prune("t", keep(2), CODER)
    assert (done.checkpoints, done.strays) == (0, 3)
    assert writes_in(db) == 5
    assert graph.leftovers() == []
    one.put(log=7)
    assert writes_in(db) == 5
    assert db.check() == []


def test_writes_of_a_checkpoint_that_is_put_again_meanwhile_stay(db: memcore.Database) -> None:
    graph = db.scope().graph
    one = Thread(graph, "t")
    put = {at: one.new({"log": at}) for at in range(1, 4)}
    for at in (1, 3):
        graph.put("t", "", put[at], CODER)
    write_late(graph, "c000002")

    def come(at: int) -> None:
        if at == 1:
            graph.put("t", "", put[2], CODER)

    done = drive(
        graph, prune(graph._read, partial(graph._planner, "t", keep(9), CODER), CODER), come
    )
    assert done.strays == 0
    assert writes_in(db) == 1


def two_hours_pass(graph: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    observer = observer_of(graph)
    handle = graph if observer is None else observer.plain  # which does the work
    now = handle._now_ms()
    monkeypatch.setattr(handle, "_now_ms", lambda: now + 2 * 3600 * 1000)


def test_a_thread_of_late_writes_alone_goes(
    db: memcore.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = db.scope().graph
    Thread(graph, "t").put(log=1)
    graph.delete_thread("t", CODER)
    write_late(graph, "c000001")
    assert graph.leftovers() == []  # its checkpoint may still be to come
    assert not graph.prune("t", keep(1), CODER).abandoned
    assert writes_in(db) == 1
    two_hours_pass(graph, monkeypatch)
    assert len(graph.leftovers()) == 1
    assert db.check() == []
    plan = graph.would_prune("t", keep(1), CODER)
    assert plan is not None
    assert plan.abandoned
    assert graph.prune("t", keep(1), CODER).abandoned
    assert list(graph.threads()) == []
    assert rows_under(db, Kind.THREAD) == rows_under(db, Kind.CHUNK) == []


def test_a_thread_with_terms_of_its_own_is_not_abandoned(
    db: memcore.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = db.scope().graph
    write_late(graph, "c000001")
    db.retention.expire_thread("t", app="default", user="default", ttl_seconds=10**6)
    two_hours_pass(graph, monkeypatch)
    assert graph.leftovers() == []
    assert not graph.prune("t", keep(1), CODER).abandoned


def test_a_hold_keeps_what_came_late(db: memcore.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = db.scope(app="default", user="default")
    graph = scope.graph
    write_late(graph, "c000001")
    scope.hold(reason="a suit")
    two_hours_pass(graph, monkeypatch)
    with pytest.raises(HeldError):
        graph.prune("t", keep(1), CODER)
    assert writes_in(db) == 1


def test_a_sweep_by_rules_removes_what_came_late(db: memcore.Database) -> None:
    graph = db.scope().graph
    one = Thread(graph, "t")
    for at in range(4):
        one.put(log=at)
    db.retention.set([{"what": "thread_checkpoints", "keep_last": 2}])
    assert db.sweep().thread_checkpoints == 2
    write_late(graph, "c000001")
    db.sweep()
    assert writes_in(db) == 0


def test_a_part_that_is_named_as_content_and_as_a_page_is_looked_at_as_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page, below, value = (bytes((at,)) * 16 for at in (1, 2, 3))
    stored_as = {
        page: ("page", b"\x06" + below),
        below: ("page", b"\x02" + value),
        value: ("json", b"1"),
    }
    monkeypatch.setattr(gc, "read_chunk", lambda _, key: stored_as[key[-16:]])
    place, txn = rows.Place(1, 1, 1), cast("ReadTxn", None)
    for work in ([(0, page), (3, page)], [(3, page), (0, page)]):
        live: set[tuple[int, bytes]] = set()
        gc._mark(txn, place, CODER, work, live)
        assert {part for _, part in live} >= {page, below, value}


def _of_value(name: str, parent: str | None, value: Any, version: int) -> NewCheckpoint:
    body = {"channel_versions": {"a": version}}
    return NewCheckpoint(name, parent, body, {}, {"a": (version, value)})


def test_what_only_a_deleted_copy_had_is_swept_although_its_deletion_was_cut_off(db) -> None:
    graph, coder = db.scope().graph, JsonCoder()
    graph.put("t", "", _of_value("01", None, ["base" * 30], 1), coder)
    graph.copy_thread("t", "t2")
    graph.put("t2", "", _of_value("02", "01", ["SECRET" * 30], 2), coder)
    steps = graph._deletion("t2", coder)
    store_of(graph).transact(next(steps))
    steps.close()  # the process ends here

    def secrets(txn: ReadTxn) -> int:
        kind = bytes((Kind.CHUNK,)), bytes((Kind.CHUNK + 1,))
        return sum(b"SECRET" in value for _, value in txn.scan(*kind))

    assert store_of(graph).read(secrets)
    graph.prune("t", module.keep_rule(keep_last=5), coder)
    assert not store_of(graph).read(secrets)
    assert graph.get("t", "", "01", coder) is not None


def test_a_copy_takes_no_writes_of_a_thread_that_is_held(db) -> None:
    scope, coder = db.scope(), JsonCoder()
    scope.graph.put("t", "", _of_value("01", None, [1], 1), coder)
    scope.graph.put_writes("t2", "", NewWrites("01", "task", "", [(0, "a", 1)]), coder)
    scope.hold(reason="r")
    with pytest.raises(HeldError, match="'t2'"):
        scope.graph.copy_thread("t", "t2")
    assert scope.graph.copy_thread("t", "t3")


def test_no_run_is_not_the_run_of_checkpoints_without_one(db) -> None:
    rule = module.run_rule(cast("list[str]", [None]))
    assert rule([module.PruneCandidate("", "01", None, {}, {})]) == set()


class DeltaModel:
    """A thread of delta channels with snapshots and forks, and what each is rebuilt to."""

    CHANNELS = ("d", "e")

    def __init__(self, graph: GraphStore, rng: random.Random) -> None:
        self.graph, self.rng, self.step = graph, rng, 0
        self.told: dict[str, dict[str, tuple[Any, list[Any]]]] = {}
        """By checkpoint and channel that it has no value of: the seed and writes before it."""
        self.ends: dict[str, dict[str, tuple[Any, list[Any]]]] = {}
        """By checkpoint and channel: those that a child is rebuilt from."""

    def visible(self) -> list[str]:
        return [one.checkpoint for one in self.graph.checkpoints("t", "", CODER)]

    def put(self) -> None:
        """Fork a checkpoint that is shown, mostly the newest, or begin the thread."""
        found = self.visible()
        parent = None
        if found:
            parent = found[0] if self.rng.random() < 0.7 else self.rng.choice(found)
        self.step += 1
        name = f"{self.rng.randrange(10**6):06}-{self.step}"  # in no order
        versions = {channel: f"{channel}{name}" for channel in self.CHANNELS}
        values: dict[str, tuple[str, Any]] = {}
        before = {c: (MISSING, []) for c in self.CHANNELS} if parent is None else self.ends[parent]
        own: dict[str, tuple[Any, list[Any]]] = {}
        for channel in self.CHANNELS:
            has_value = parent is None or self.rng.random() < 0.25
            value = f"snapshot {channel}{name}" if has_value else MISSING
            values[channel] = versions[channel], value
            own[channel] = (value, []) if has_value else before[channel]
        meta = {"counters_since_delta_snapshot": {c: [1, 1] for c in self.CHANNELS}}
        body = {"channel_versions": versions}
        self.graph.put("t", "", NewCheckpoint(name, parent, body, meta, values), CODER)
        written = [(at, c, f"{c}+{name}") for at, c in enumerate(self.CHANNELS)]
        self.graph.put_writes("t", "", NewWrites(name, "task", "", written), CODER)
        self.told[name] = {c: before[c] for c in self.CHANNELS if values[c][1] is MISSING}
        self.ends[name] = {c: (own[c][0], [*own[c][1], f"{c}+{name}"]) for c in self.CHANNELS}

    def check(self) -> None:
        for name in self.visible():
            found = self.graph.deltas("t", "", name, list(self.told[name]), CODER)
            shown = {c: (each.seed, [w[2] for w in each.writes]) for c, each in found.items()}
            assert shown == self.told[name], name


class OneBudget:
    """A piece of one row, in place of a thread of many pieces."""

    def __init__(self) -> None:
        self.rows = 0

    def admits(self, _size: int) -> bool:
        self.rows += 1
        return self.rows == 1


@pytest.mark.parametrize("seed", range(40))
def test_what_is_shown_is_rebuilt_as_it_was_put(
    db: memcore.Database, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is pruned, cut short between any two commits, and put or forked meanwhile."""
    rng = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(module, "DeleteBudget", OneBudget)
    model = DeltaModel(db.scope().graph, rng)
    for _ in range(12):
        for _ in range(rng.randint(1, 6)):
            model.put()
        doomed = {name for name in model.visible() if rng.random() < 0.5}
        rule: Rule = keep(rng.randint(1, 3)) if rng.random() < 0.5 else lambda _, gone=doomed: gone
        stop = rng.choice([999, rng.randint(1, 3), rng.randint(3, 12)])

        def come(at: int, stop: int = stop) -> None:
            if at == stop:
                raise CutError
            if rng.random() < 0.2:
                model.put()
            model.check()

        plan = partial(model.graph._planner, "t", rule, CODER)
        with suppress(CutError):
            drive(model.graph, prune(model.graph._read, plan, CODER), come)
        model.check()
    assert db.check() == []
    model.graph.prune("t", keep(1), CODER)
    assert len(model.visible()) == 1
    model.check()


def test_a_damaged_checkpoint_is_reported_and_the_others_are_read(db: memcore.Database) -> None:
    graph = db.scope().graph
    one = Thread(graph, "t")
    for at in range(5):
        one.put(log=at)
    (key,) = [k for k in rows_under(db, Kind.THREAD) if k[17] == 3 and b"c000005" in k]

    def damage(txn: Any) -> None:
        value = txn.get(key)
        txn.put(key, value[:-1] + bytes((value[-1] ^ 1,)))

    db.engine.store.transact(damage)
    assert graph.leftovers() == []
    (found,) = graph.recover("t", CODER)
    assert (found.kept, [lost.checkpoint for lost in found.lost]) == ("c000004", ["c000005"])
    assert one.ids() == [f"c{at:06}" for at in (4, 3, 2, 1)]
