"""MemcoreSaver beyond what other savers do: several writers, encryption, pruning, copies."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import operator
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph

import memcore
import stories
from memcore.adapters.langgraph import AsyncMemcoreSaver, MemcoreSaver
from memcore.adapters.langgraph import serde as coding
from memcore.codec.keys import Kind, ThreadRow
from memcore.codec.values import open_value, seal_value
from memcore.errors import (
    CorruptValueError,
    HistoryNeededError,
    InvalidItemError,
    InvalidOptionError,
    StaleParentError,
    UndecodableError,
    UntrustedTypeError,
)
from savers import ABSENT, KEY, Chain, Note, checkpoint_of, config, exact, exact_tuple

Db = Callable[..., memcore.Database]
TESTS = Path(stories.__file__).parent


@pytest.fixture
def db(open_db: Db) -> memcore.Database:
    return open_db(durability="none")


@pytest.fixture
def saver(db: memcore.Database) -> MemcoreSaver:
    return MemcoreSaver(db)


def values_of(saver: Any, given: Any = None) -> dict[str, Any]:
    found = saver.get_tuple(given or config())
    assert found is not None
    return dict(found.checkpoint["channel_values"])


def rows_of(db: memcore.Database, kind: int, row: int | None = None) -> dict[bytes, bytes]:
    """The stored rows of a kind (of threads: of one sort)."""

    def look(txn: Any) -> dict[bytes, bytes]:
        found = dict(txn.scan(bytes((kind,)), bytes((kind + 1,))))
        return {k: v for k, v in found.items() if row is None or k[17] == row}

    return db.engine.store.read(look)


def chunks(db: memcore.Database) -> int:
    """How many chunks are stored; the rows of the pools are none."""
    return sum(len(key) > 17 for key in rows_of(db, Kind.CHUNK))


# --- readers and writers at once ------------------------------------------------------------------


def test_a_list_that_is_read_half_way_holds_nobody_up(saver: MemcoreSaver) -> None:
    chain = Chain(saver)
    for step in range(40):
        chain.put(n=step)
    listed = saver.list(config())
    first = [next(listed) for _ in range(3)]
    for step in range(40, 60):
        chain.put(n=step)
    rest = list(listed)
    assert [one.checkpoint["channel_values"]["n"] for one in [*first, *rest]] == [
        *range(39, -1, -1)
    ]
    listed = saver.list(None)
    next(listed)
    saver.delete_thread("t")
    assert len(list(listed)) < 16, (
        "the page that was read; what was deleted meanwhile is not listed"
    )
    listed.close()


def test_an_async_list_that_is_read_half_way(saver: MemcoreSaver) -> None:
    async def go() -> list[Any]:
        chain = Chain(saver)
        for step in range(20):
            chain.put(n=step)
        found = []
        async for one in saver.alist(config(), limit=18):
            found.append(one.checkpoint["channel_values"]["n"])
            await saver.aput_writes(chain.config, [("n", 1)], f"task {len(found)}")
        return found

    assert asyncio.run(go()) == [*range(19, 1, -1)]
    assert len(saver.get_tuple(config()).pending_writes or ()) == 18  # type: ignore[union-attr]


def test_threads_that_write_to_one_thread_at_once(db: memcore.Database) -> None:
    workers, steps = 4, 12
    saver = MemcoreSaver(db)
    Chain(saver).put(shared=["start"])
    base = saver.get_tuple(config())
    assert base is not None
    failed: list[BaseException] = []
    gate = threading.Barrier(workers)
    shared = base.checkpoint["channel_values"]["shared"]

    def work(worker: int) -> None:
        try:
            gate.wait()
            parent = base.config
            for step in range(steps):
                saver.put_writes(base.config, [("w", [worker, step])] * 2, f"{worker} {step}")
                version = {"shared": f"{worker} {step}"}
                mine = [*shared, *(f"{worker} {n} " + "x" * 40 for n in range(step))]
                made = checkpoint_of(f"1 {worker} {step:03}", {"shared": mine}, version)
                parent = saver.put(parent, made, {"source": "loop", "step": step}, version)  # type: ignore[arg-type]
                assert values_of(saver, parent)["shared"] == mine
        except BaseException as exc:
            failed.append(exc)
            raise

    threads = [threading.Thread(target=work, args=(n,)) for n in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(saver.get_tuple(base.config).pending_writes or ()) == 2 * workers * steps  # type: ignore[union-attr]
    assert len(list(saver.list(config()))) == 1 + workers * steps
    for worker in range(workers):
        ids = [f"1 {worker} {step:03}" for step in range(steps)]
        found = [saver.get_tuple(config("t", "", one)) for one in ids]
        assert (
            [one.parent_config["configurable"]["checkpoint_id"] for one in found]
            == [  # type: ignore[index, union-attr]
                "000001",
                *ids[:-1],
            ]
        )


WRITERS = """
import os, sys
from memcore.adapters.langgraph import MemcoreSaver
from savers import Chain
children = []
print("ready", flush=True)
for number in (1, 2):
    child = os.fork()
    if not child:
        path = sys.argv[1]
        with MemcoreSaver.from_conn_string(path, durability="none", allow_unsafe=True) as saver:
            chain = Chain(saver)
            chain.step = number * 1000
            for step in range(25):
                chain.put(shared=[str(number) + "x" * 60] * step, n=step)
                chain.write(("w", step))
        os._exit(0)
    children.append(child)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def test_processes_that_write_to_one_thread_at_once(db: memcore.Database) -> None:
    saver = MemcoreSaver(db)
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"}
    command = [sys.executable, "-c", WRITERS, str(db.path)]
    mine = Chain(saver)
    mine.put(shared=["mine" * 20])
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as writers:
        assert writers.stdout is not None
        assert writers.stdout.readline() == b"ready\n"
        while writers.poll() is None:
            mine.put(shared=["mine" * 20] * (mine.step % 5))
            saver.prune(["t"], keep_last=10_000)
    assert writers.returncode == 0
    found = {one.config["configurable"]["checkpoint_id"]: one for one in saver.list(config())}
    assert len(found) == 50 + mine.step
    for number in (1, 2):
        for step in range(25):
            one = found[f"{number * 1000 + step + 1:06}"]
            assert one.checkpoint["channel_values"]["shared"] == [f"{number}" + "x" * 60] * step
            assert one.pending_writes == [("task", "w", step)]


def test_compare_parent(db: memcore.Database) -> None:
    saver = MemcoreSaver(db, compare_parent=True)
    mine = Chain(saver)
    first = mine.put(n=1)
    mine.put(n=2)
    theirs = Chain(saver)
    theirs.config, theirs.step = first, 7
    with pytest.raises(StaleParentError) as caught:
        theirs.put(n=3)
    assert (caught.value.parent, caught.value.newest) == ("000001", "000002")
    assert values_of(saver) == {"n": 2}
    mine.put(n=3)
    made = checkpoint_of("000003", {"n": 4}, {"n": "9"})
    saver.put(config("t", "", "000002"), made, {"source": "loop", "step": 3}, {"n": "9"})
    assert values_of(saver) == {"n": 4}, "the newest may be replaced"
    assert Chain(saver, "t", "other").put(n=1), "each namespace has a newest of its own"


# --- serialisers ----------------------------------------------------------------------------------


class Json:
    """A serialiser of which nothing is known, and which is equal to others but cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.dumped: list[Any] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Json)

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        self.dumped.append(value)
        return "my+json", json.dumps(value).encode()

    def loads_typed(self, typed: tuple[str, bytes]) -> Any:
        assert typed[0] == "my+json"
        return json.loads(typed[1])


def test_an_unknown_serialiser_stores_whole_values(db: memcore.Database) -> None:
    serde = Json()
    saver = MemcoreSaver(db, serde=serde)
    chain = Chain(saver)
    value = [{"n": n, "text": "x" * 50} for n in range(30)]
    chain.put(messages=value, large="y" * 300_000)
    chain.write(("messages", value))
    assert any(dumped == value for dumped in serde.dumped)
    assert not any(dumped == value[0] for dumped in serde.dumped), "never in parts"
    assert values_of(MemcoreSaver(db, serde=Json())) == {"messages": value, "large": "y" * 300_000}


class Reversing(JsonPlusSerializer):
    """A serialiser that is LangGraph's but for what it does with bytes."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, body = super().dumps_typed(obj)
        return kind, body[::-1]

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return super().loads_typed((data[0], data[1][::-1]))


def test_a_serialiser_that_is_set_later_counts(db: memcore.Database) -> None:
    saver = MemcoreSaver(db)
    Chain(saver, "plain").put(n=["x" * 60])
    other = copy.copy(saver)
    other.serde = Reversing()
    Chain(other, "reversed").put(n=["x" * 60])
    assert values_of(saver, config("plain")) == values_of(other, config("reversed"))
    saver.serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    Chain(saver, "secret").put(n=["x" * 60])
    with pytest.raises(CorruptValueError, match="stored in clear"):
        saver.get_tuple(config("plain"))
    assert values_of(saver, config("secret")) == {"n": ["x" * 60]}
    assert not any(b"x" * 60 in row for key, row in rows_of(db, Kind.THREAD).items())


def test_with_allowlist_gives_a_saver_of_the_same_file(
    db: memcore.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = MemcoreSaver(db, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    Chain(strict).put(note=Note("text"), notes=[Note("text")], named={"a": Note("text")})
    monkeypatch.setattr(coding, "_stored_types", set())  # as in another process
    allowing = strict.with_allowlist([("savers", "Note")])
    assert type(allowing) is MemcoreSaver
    assert allowing.with_allowlist([("savers", "Note")]) is allowing
    for _ in range(2):  # what one of them decoded the other must not hand out
        wanted = {"note": Note("text"), "notes": [Note("text")], "named": {"a": Note("text")}}
        assert values_of(allowing) == wanted
        with pytest.raises(UntrustedTypeError):
            strict.get_tuple(config())


def test_nothing_is_ever_pickled(saver: MemcoreSaver, tmp_path: Path) -> None:
    made = tmp_path / "made"

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(made),)

    with pytest.raises(InvalidItemError):
        Chain(saver).put(evil=Evil())
    with pytest.raises(NotImplementedError):
        saver.serde.loads_typed(("pickle", b"cos\nsystem\n."))
    assert not made.exists()


@dataclasses.dataclass
class Holder:
    content: Any


def test_what_cannot_be_stored_is_named_and_nothing_of_it_is(
    db: memcore.Database, saver: MemcoreSaver
) -> None:
    chain = Chain(saver)
    chain.put(good=["x" * 100_000])
    before = exact_tuple(saver.get_tuple(config()))
    counted = chunks(db)
    bad = {"messages": [1, {"deep": [Holder([object()])]}]}
    with pytest.raises(InvalidItemError, match=r"channel 'bad'\['messages'\]\[1\]\['deep'\]\[0\]"):
        chain.put(good=["y" * 100_000], bad=bad)
    with pytest.raises(InvalidItemError, match=r"the write to channel 'bad'\[1\]"):
        chain.write(("good", "z" * 300_000), ("bad", [1, 2**70]))
    with pytest.raises(InvalidItemError, match="the metadata"):
        chain.put(metadata={"bad": object()})
    with pytest.raises(InvalidItemError):
        Chain(saver, "new").put(large="x" * 500_000, bad=object())
    assert exact_tuple(saver.get_tuple(config())) == before
    assert chunks(db) == counted
    assert saver.get_tuple(config("new")) is None
    assert [entry.thread for entry in saver.threads()] == ["t"]


# --- encryption -----------------------------------------------------------------------------------

WORDS = ("a secret content", "a secret write", "a secret metadata", "a secret key", "secret page")


def secret_saver(db: memcore.Database, key: bytes = KEY) -> MemcoreSaver:
    return MemcoreSaver(db, serde=EncryptedSerializer.from_pycryptodome_aes(key=key))


@pytest.fixture
def secret(db: memcore.Database) -> Chain:
    chain = Chain(secret_saver(db))
    for step in range(2):
        chain.put(
            metadata={"of": WORDS[2]},
            messages=[
                HumanMessage(f"{WORDS[0]} {n} {step}" + "x" * 40, id=str(n)) for n in range(9)
            ],
            short=[WORDS[0]],
            named={WORDS[3]: 1},
            many=[WORDS[4]] * 700,
            large=WORDS[0] * 5_000,
            delta=_DeltaSnapshot([WORDS[0]]),
        )
        chain.write(("messages", [WORDS[1]]), ("large", WORDS[1] * 9_000))
    return chain


def test_under_encryption_nothing_is_in_clear(
    db: memcore.Database, secret: Chain, path: Path
) -> None:
    plain = Chain(MemcoreSaver(db, user="control"))
    plain.put(messages=["not so secret"])
    raw = path.read_bytes()
    assert b"not so secret" in raw
    for word in (*WORDS, "secret", "additional_kwargs", "langchain_core"):
        assert word.encode() not in raw.replace(b"not so secret", b""), word
    found = secret_saver(db).get_tuple(config())
    assert found is not None
    assert found.metadata["of"] == WORDS[2]  # type: ignore[typeddict-item]
    assert found.checkpoint["channel_values"]["large"] == WORDS[0] * 5_000
    assert found.checkpoint["channel_values"]["many"] == [WORDS[4]] * 700


def test_another_key_and_no_key_are_refused(db: memcore.Database, secret: Chain) -> None:
    reads: list[Callable[[MemcoreSaver], Any]] = [
        lambda saver: saver.get_tuple(config()),
        lambda saver: list(saver.list(config())),
        lambda saver: saver.get_delta_channel_history(config=config(), channels=["messages"]),
        lambda saver: Chain(saver).put(n=1),
        lambda saver: saver.put_writes(secret.config, [("n", 1)], "task"),
        lambda saver: saver.prune(["t"]),
    ]
    before = exact_tuple(secret.saver.get_tuple(config()))
    for other in (secret_saver(db, b"another key, yes"), MemcoreSaver(db)):
        for read in reads:
            with pytest.raises(CorruptValueError):
                read(other)
    assert exact_tuple(secret.saver.get_tuple(config())) == before


def test_a_row_that_was_stored_in_clear_is_refused(db: memcore.Database, secret: Chain) -> None:
    Chain(MemcoreSaver(db), "plain").put(n=["x" * 100])
    for read in (
        lambda: secret.saver.get_tuple(config("plain")),
        lambda: list(secret.saver.list(config("plain"))),
        lambda: Chain(secret.saver, "plain").put(n=1),
    ):
        with pytest.raises(CorruptValueError, match="stored in clear"):
            read()


def swap(db: memcore.Database, one: bytes, other: bytes) -> None:
    """Give two rows each other's content, with checksums that are right."""

    def closure(txn: Any) -> None:
        bodies = [open_value(key, txn.get(key)) for key in (one, other)]
        for key, (flags, body) in zip((one, other), reversed(bodies), strict=True):
            txn.put(key, seal_value(key, body, flags))

    db.engine.store.transact(closure)


@pytest.mark.parametrize("row", [ThreadRow.VALUE, ThreadRow.WRITES, ThreadRow.CHECKPOINT, None])
def test_rows_whose_ciphertext_was_swapped_are_found(
    db: memcore.Database, secret: Chain, path: Path, row: int | None
) -> None:
    kind = Kind.CHUNK if row is None else Kind.THREAD
    found = [key for key in rows_of(db, kind, row) if len(key) > 17]
    assert len(found) >= 2

    def read_all() -> None:
        with memcore.open(path, durability="none", allow_unsafe=True) as fresh:
            for one in list(secret_saver(fresh).list(config())):
                secret_saver(fresh).get_tuple(one.config)

    for one, other in zip(found[:3], found[-3:], strict=True):
        if one == other:
            continue
        swap(db, one, other)
        with pytest.raises(CorruptValueError):
            read_all()
        swap(db, one, other)
    read_all()


# --- retention ------------------------------------------------------------------------------------


def text(number: int) -> str:
    return f"{number:06} " + "x" * 60


def grown(saver: MemcoreSaver, steps: int = 30, thread: str = "t", ns: str = "") -> Chain:
    """A thread whose messages grow, and one channel of which nothing stays."""
    chain = Chain(saver, thread, ns)
    for step in range(steps):
        chain.put(messages=[text(n) for n in range(step)], gone=[text(-step)] * 5, seldom=step // 9)
        chain.write(("messages", [text(10_000 + step)]))
    return chain


def test_prune_keeps_the_newest_and_its_chunks(db: memcore.Database, saver: MemcoreSaver) -> None:
    chain = grown(saver)
    grown(saver, 5, ns="sub")
    before = [exact_tuple(saver.get_tuple(config("t", ns))) for ns in ("", "sub")]
    counted = chunks(db)
    saver.prune(["t", "nobody"])
    assert [exact_tuple(saver.get_tuple(config("t", ns))) for ns in ("", "sub")] == before
    assert len(list(saver.list(config("t", "")))) == len(list(saver.list(config("t", "sub")))) == 1
    left = chunks(db)
    assert left < counted
    # 29 messages in a page or two and two values "gone", two writes: all else went.
    assert 29 + 2 + 2 <= left <= 29 + 2 + 2 + 4
    with memcore.open(db.path, durability="none", allow_unsafe=True) as fresh:
        assert exact_tuple(MemcoreSaver(fresh).get_tuple(config("t", ""))) == before[0]
    chain.put(messages=[text(n) for n in range(40)])
    assert values_of(saver)["messages"] == [text(n) for n in range(40)]
    saver.prune(["t"], strategy="delete")
    assert saver.get_tuple(config()) is None
    assert chunks(db) == 0


def test_prune_by_count_and_age(saver: MemcoreSaver) -> None:
    chain = Chain(saver)
    now = datetime.now(UTC)
    for age in (500, 400, 300, 200, 100, 0):
        chain.put(n=age)
        found = saver.get_tuple(chain.config)
        assert found is not None
        made = {**found.checkpoint, "ts": (now - timedelta(seconds=age)).isoformat()}
        parent = (found.parent_config or config())["configurable"].get("checkpoint_id")
        saver.put(config("t", "", parent), made, found.metadata, {})  # type: ignore[arg-type]

    def left() -> list[int]:
        return [one.checkpoint["channel_values"]["n"] for one in saver.list(config())]

    saver.prune(["t"], keep_last=10)
    assert left() == [0, 100, 200, 300, 400, 500]
    saver.prune(["t"], keep_last=2, max_age_seconds=350)
    assert left() == [0, 100, 200, 300]
    saver.prune(["t"], keep_last=3)
    assert left() == [0, 100, 200]
    asyncio.run(saver.aprune(["t"], max_age_seconds=0))
    assert left() == [0]
    for bad in ({"strategy": "all"}, {"keep_last": 0}, {"max_age_seconds": -1}):
        with pytest.raises(InvalidOptionError):
            saver.prune(["t"], **bad)  # type: ignore[arg-type]


class Deltas(TypedDict, total=False):
    messages: Annotated[list[Any], DeltaChannel(stories.extend, snapshot_frequency=4)]
    notes: Annotated[list[Any], DeltaChannel(stories.extend, snapshot_frequency=100)]
    plain: str


def test_prune_leaves_the_state_of_delta_channels(
    db: memcore.Database, saver: MemcoreSaver
) -> None:
    builder = StateGraph(Deltas)
    builder.add_node("say", lambda state: {"messages": [len(state["messages"])], "plain": "p"})
    builder.add_node("note", lambda state: {"notes": [len(state["messages"])]})
    builder.add_edge(START, "say")
    builder.add_edge("say", "note")
    graph = builder.compile(checkpointer=saver)
    here: Any = {"configurable": {"thread_id": "t"}}
    only = {"configurable": {"thread_id": "only messages"}}
    for number in range(9):
        graph.invoke({"messages": [text(number)]}, here)
    before = graph.get_state(here).values
    assert len(before["messages"]) == 18
    assert len(before["notes"]) == 9
    counted = len(list(saver.list(here)))
    saver.prune(["t"])
    assert graph.get_state(here).values == before
    assert len(list(saver.list(here))) <= counted
    graph.invoke({"messages": ["more"]}, here)
    after = graph.get_state(here).values
    assert after["messages"] == [*before["messages"], "more", 19]
    with memcore.open(db.path, durability="none", allow_unsafe=True) as fresh:
        again = builder.compile(checkpointer=MemcoreSaver(fresh))
        assert again.get_state(here).values == after
    chain = Chain(saver, "only messages")
    for number in range(6):
        chain.put(d=_DeltaSnapshot([number]) if number == 3 else ABSENT)
        chain.write(("d", number))
    history = saver.get_delta_channel_history(config=only, channels=["d"])  # type: ignore[arg-type]
    saver.prune(["only messages"])
    assert len(list(saver.list(only))) == 1, "what it is rebuilt from is not shown"  # type: ignore[arg-type]
    assert saver.get_delta_channel_history(config=only, channels=["d"]) == history  # type: ignore[arg-type]


def test_delete_for_runs(saver: MemcoreSaver) -> None:
    for thread in ("a", "b"):
        chain = Chain(saver, thread)
        for run in ("r1", "r2", "r1", "r3"):
            chain.put(metadata={"run_id": run}, n=[text(chain.step)] * 4)
            chain.write(("n", run))
    saver.delete_for_runs(["r1", "r9"])
    for thread in ("a", "b"):
        found = list(saver.list(config(thread)))
        assert [one.metadata["run_id"] for one in found] == ["r3", "r2"]
        assert [one.checkpoint["channel_values"]["n"] for one in found] == [
            [text(3)] * 4,
            [text(1)] * 4,
        ]
    asyncio.run(saver.adelete_for_runs(["r2", "r3"]))
    assert list(saver.list(None)) == []


def test_delete_for_runs_of_what_others_are_rebuilt_from(saver: MemcoreSaver) -> None:
    chain = Chain(saver)
    chain.put(metadata={"run_id": "old"}, d=_DeltaSnapshot([1]))
    chain.write(("d", 2))
    counters = {"counters_since_delta_snapshot": {"d": (1, 1)}}
    chain.put(metadata={"run_id": "new", **counters}, d=ABSENT)
    Chain(saver, "other").put(metadata={"run_id": "old"}, n=1)
    before = [exact_tuple(one) for one in saver.list(None)]
    with pytest.raises(HistoryNeededError, match="delta"):
        saver.delete_for_runs(["old"])
    assert [exact_tuple(one) for one in saver.list(None)] == before


def test_a_copy_keeps_its_chunks_when_its_source_goes(
    db: memcore.Database, saver: MemcoreSaver
) -> None:
    grown(saver)
    grown(saver, 5, ns="sub")

    def all_of(thread: str) -> list[Any]:
        found = []
        for one in saver.list({"configurable": {"thread_id": thread}}):
            given = exact_tuple(one)
            found.append({name: given[name] for name in ("metadata", "body", "values", "writes")})
        return found

    wanted, counted = all_of("t"), chunks(db)
    saver.copy_thread("t", "copy")
    assert all_of("copy") == wanted
    assert chunks(db) == counted, "shared"
    saver.prune(["t"])
    assert all_of("copy") == wanted, "a prune of one leaves the other's"
    saver.delete_thread("t")
    assert all_of("copy") == wanted
    with memcore.open(db.path, durability="none", allow_unsafe=True) as fresh:
        assert exact(
            MemcoreSaver(fresh).get_tuple(config("copy")).checkpoint["channel_values"]
        ) == (  # type: ignore[union-attr]
            exact(saver.get_tuple(config("copy")).checkpoint["channel_values"])  # type: ignore[union-attr]
        )
    saver.copy_thread("copy", "t")
    saver.prune(["copy", "t"])
    assert chunks(db) < counted
    assert values_of(saver, config("t"))["messages"] == [text(n) for n in range(29)]
    asyncio.run(saver.adelete_thread("copy"))
    saver.delete_thread("t")
    assert chunks(db) == 0
    assert rows_of(db, Kind.CHUNK) == rows_of(db, Kind.THREAD) == {}


def test_copies_that_are_refused_and_that_are_not(
    db: memcore.Database, saver: MemcoreSaver
) -> None:
    chain = grown(saver, 3)
    Chain(saver, "taken").put(n=1)
    with pytest.raises(InvalidOptionError, match="has checkpoints"):
        saver.copy_thread("t", "taken")
    asyncio.run(saver.acopy_thread("t", "written"))
    assert values_of(saver, config("written")) == values_of(saver)
    saver.copy_thread("t", "t")
    saver.copy_thread("nobody", "new")
    assert sorted(entry.thread for entry in saver.threads()) == ["t", "taken", "written"]
    saver.put_writes(chain.config, [("later", 1)], "later")
    assert len(saver.get_tuple(config("written")).pending_writes or ()) == 1  # type: ignore[union-attr]
    saver.delete_thread("taken")
    heads = [key for key in rows_of(db, Kind.THREAD) if key[17] == ThreadRow.HEAD]
    assert len(heads) == 2
    assert len({key[9:17] for key in rows_of(db, Kind.CHUNK)}) == 1, "of one pool, both"


def test_the_asynchronous_name_is_the_same_class(path: Path) -> None:
    assert AsyncMemcoreSaver is MemcoreSaver

    async def go() -> Any:
        async with AsyncMemcoreSaver.from_conn_string(
            path, durability="none", allow_unsafe=True
        ) as saver:
            await asyncio.gather(
                *(
                    saver.aput(
                        config(str(n)), checkpoint_of("1", {"n": n}, {"n": "1"}), {}, {"n": "1"}
                    )
                    for n in range(20)
                )
            )
            found = await asyncio.gather(*(saver.aget_tuple(config(str(n))) for n in range(20)))
            return [one.checkpoint["channel_values"]["n"] for one in found if one is not None]

    assert asyncio.run(go()) == [*range(20)]


def test_ids_of_any_length_before_which_is_listed(saver: MemcoreSaver) -> None:
    for name in ("a" * 398, "a" * 399, "b"):
        saver.put(config(), checkpoint_of(name, {}, {}), {}, {})
    before = config("t", "", "a" * 399 + "\x00" * 400)
    found = [one.checkpoint["id"] for one in saver.list(config(), before=before)]
    assert found == ["a" * 399, "a" * 398]
    with pytest.raises(InvalidOptionError, match="checkpoint id"):
        saver.put(config(), checkpoint_of("a" * 400, {}, {}), {}, {})


def test_writes_of_ids_that_begin_alike(saver: MemcoreSaver) -> None:
    names = ("a", "a\x00", "a\x00b", "a\x01", "ab")
    parent = None
    for name in names:
        for task in ("", "k" * 600):
            saver.put_writes(config("t", "", name), [("w", name)], task)
        saver.put(config("t", "", parent), checkpoint_of(name, {}, {}), {}, {})
        parent = name
    for name in names:
        found = saver.get_tuple(config("t", "", name))
        assert found is not None
        assert found.pending_writes == [("", "w", name), ("k" * 600, "w", name)]
    saver.prune(["t"], keep_last=1)
    left = [one.pending_writes for one in saver.list(config())]
    assert left == [[("", "w", "ab"), ("k" * 600, "w", "ab")]]


def test_an_asynchronous_database_serves_too_and_stays_open(tmp_path) -> None:
    async def run() -> None:
        async with memcore.aio.open(tmp_path / "a.memcore") as db:
            async with MemcoreSaver(db) as saver:
                saver.put(config("t"), checkpoint_of("1", {}, {}), {}, {})
                assert await saver.aget_tuple({"configurable": {"thread_id": "none"}}) is None
            with MemcoreSaver(db.sync) as saver:
                assert await saver.aget_tuple(config("t")) is not None
            assert await db.check() == []

    asyncio.run(run())


def test_lists_are_newest_first_over_threads_and_namespaces(db: memcore.Database) -> None:
    saver = MemcoreSaver(db)
    places = [("old", ""), ("old", "sub"), ("young", ""), ("idle", "")]
    for number in range(12):
        thread, ns = places[number % 3]
        saver.put(config(thread, ns), checkpoint_of(f"{number:02}", {}, {}), {"n": number % 2}, {})
    saver.put(config("idle"), checkpoint_of("005", {}, {}), {}, {})
    by_id = sorted([f"{number:02}" for number in range(12)] + ["005"], reverse=True)

    def ids(given: Any, **where: Any) -> list[str]:
        return [one.checkpoint["id"] for one in saver.list(given, **where)]

    assert ids(None) == by_id
    assert ids(None, limit=3) == by_id[:3]
    assert ids(None, before=config(checkpoint="06")) == [one for one in by_id if one < "06"]
    assert ids(None, filter={"n": 1}, limit=2) == ["11", "09"]
    assert ids({"configurable": {"thread_id": "old"}}) == [
        one for one in by_id if len(one) == 2 and int(one) % 3 != 2
    ]
    listed = saver.list(None)
    assert next(listed).checkpoint["id"] == "11"
    saver.delete_thread("old")
    assert [one.checkpoint["id"] for one in listed] == ["08", "05", "02", "005"]


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


@pytest.mark.parametrize("awaited", [False, True])
def test_a_saver_keeps_so_many_checkpoints(db: memcore.Database, awaited: bool) -> None:
    saver = MemcoreSaver(db, keep_last=20)
    builder = StateGraph(Log)
    builder.add_node("add", lambda state: {"log": [str(len(state["log"]))]})
    builder.add_edge(START, "add")
    graph = builder.compile(checkpointer=saver)
    most = 0
    for _ in range(40):
        if awaited:
            asyncio.run(graph.ainvoke({"log": ["go"]}, config()))
        else:
            graph.invoke({"log": ["go"]}, config())
        counted = len(list(saver.list(config("t", ""))))
        most = max(most, counted)
    assert 20 <= counted <= most <= 2 * 20 + 3
    assert len(graph.get_state(config()).values["log"]) == 80
    assert saver.check() == db.check() == []


def test_a_put_is_acknowledged_though_its_thread_cannot_be_pruned(
    db: memcore.Database, caplog: pytest.LogCaptureFixture
) -> None:
    chain = Chain(MemcoreSaver(db))
    for number in range(3):
        chain.put(n=number)
    db.scope().hold(reason="case 7")
    keeping = MemcoreSaver(db, keep_last=1)
    chain.saver = keeping
    chain.put(n=3)
    assert "was not pruned" in caplog.text
    assert len(list(keeping.list(config()))) == 4
    with pytest.raises(InvalidOptionError, match="keep_last"):
        MemcoreSaver(db, keep_last=0)


def test_metadata_is_filtered_by_name_and_by_path(saver: MemcoreSaver) -> None:
    given: Any = {"a.b": 1, "user": {"access-level": "x", "1": {"2": 3}}, "n": None}
    saver.put(config(), checkpoint_of("1", {}, {}), given, {})
    for wanted in ({"a.b": 1}, {"user.access-level": "x"}, {"user.1.2": 3}, {"user.1": {"2": 3}}):
        assert len(list(saver.list(None, filter=wanted))) == 1
    for wanted in ({"a.c": 1}, {"user.access-level.x": "x"}, {"user.1": 3}):
        assert list(saver.list(None, filter=wanted)) == []


def test_rules_reach_threads_without_their_serialiser(db: memcore.Database) -> None:
    builder = StateGraph(Log)
    builder.add_node("add", lambda state: {"log": ["more"]})
    builder.add_edge(START, "add")
    secret = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    for thread, serde in (("clear", None), ("secret", secret)):
        graph = builder.compile(checkpointer=MemcoreSaver(db, serde=serde))
        for _ in range(3):
            graph.invoke({"log": ["go"]}, config(thread))
    db.retention.set([{"what": "thread_checkpoints", "keep_last": 2}])
    report = db.sweep()
    assert (report.thread_checkpoints, report.kept, report.damaged) == (7, 1, 0)
    graph = builder.compile(checkpointer=MemcoreSaver(db))
    assert len(graph.get_state(config("clear")).values["log"]) == 6
    db.retention.set([{"what": "threads", "max_age_seconds": 3600}])
    assert db.sweep(now=time.time() + 1800).threads == 0
    assert db.sweep(now=time.time() + 7200).threads == 2
    assert list(MemcoreSaver(db).threads()) == []
    assert db.check() == []


class Naming(JsonPlusSerializer):
    """A serialiser whose types have names of its own."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, body = super().dumps_typed(obj)
        return f"mine:{kind}", body

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return super().loads_typed((data[0].removeprefix("mine:"), data[1]))


def test_what_another_serialiser_wrote_is_not_lost(db: memcore.Database) -> None:
    saver = MemcoreSaver(db)
    chain = Chain(saver)
    chain.put(log=["one"])
    other = MemcoreSaver(db, serde=Naming())
    newest = checkpoint_of("000002", {"log": ["two"]}, {"log": "2"})
    other.put(chain.config, newest, {}, {"log": "2"})
    for dry_run in (True, False):
        with pytest.raises(UndecodableError, match="with the one that wrote it"):
            saver.recover("t", dry_run=dry_run)
    assert values_of(other) == {"log": ["two"]}


def test_a_thread_is_recovered_by_its_saver(db: memcore.Database, saver: MemcoreSaver) -> None:
    chain = Chain(saver)
    chain.put(log=["one"])
    whole = values_of(saver)
    chain.put(log=["two"])
    *_, key = rows_of(db, Kind.THREAD, ThreadRow.VALUE)
    db._engine.store.transact(lambda txn: txn.delete(key))
    with pytest.raises(CorruptValueError, match="is missing: its row was lost"):
        saver.get_tuple(config())
    (planned,) = saver.recover("t", dry_run=True)
    assert len(planned.lost) == 1
    assert asyncio.run(saver.arecover("t")) == [planned]
    assert values_of(saver) == whole
    with pytest.raises(memcore.NotFoundError, match="no thread 'nobody'"):
        saver.recover("nobody")
