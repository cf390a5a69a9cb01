"""Lists of numbers and other atoms in graph values: packed in runs, read back bit for bit."""

from __future__ import annotations

import dataclasses
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threaded import CODER, Thread, rows_under

import memcore
from memcore._fast import unpack_run
from memcore.codec.keys import Kind
from memcore.errors import CorruptValueError, InvalidItemError
from memcore.graph import GraphStore, NewCheckpoint, decode, rows
from memcore.graph import manifest as nodes
from memcore.graph.decode import Cache, Joiner
from memcore.graph.encode import Splitter
from memcore.graph.manifest import ATOMS, NUMBERS, ListRun, StoredCoder, flattened, units_of
from memcore.graph.manifest import text as packed_text
from memcore.graph.store import store_of
from memcore.store.datafile import FORMAT_KEY, GRAPH_ROWS, Format
from memcore.store.transaction import stored

NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_DEAD_BEEF))[0]


@pytest.fixture
def graph(open_db: Callable[..., memcore.Database]) -> GraphStore:
    return open_db(durability="none").scope().graph


def bits(value: Any) -> Any:
    """What tells values apart that compare equal."""
    if isinstance(value, list):
        return [bits(each) for each in value]
    return type(value), struct.pack("<d", value) if isinstance(value, float) else value


atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(0, 300),
    st.floats(),
    st.just(-0.0),
    st.just(NAN),
    st.text(max_size=20),
    st.text(min_size=60, max_size=70),
    st.just("\ud800"),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(atoms, max_size=80) | st.lists(st.floats()) | st.lists(st.integers(0, 2**40)))
def test_units_hold_the_values_bit_for_bit(value: list[Any]) -> None:
    units, starts = units_of(value, ATOMS, finite=False)
    assert bits(flattened(units)) == bits(value)
    assert (starts is None) == (ListRun not in set(map(type, units)))
    if starts is not None:
        assert all(unit is value[at] for unit, at in zip(units, starts, strict=True)
                   if type(unit) is not ListRun)  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        [float(at) / 7 for at in range(5000)],
        list(range(5000)),
        [-at for at in range(5000)],
        [2**62 + at for at in range(100)],
        [None] * 3000,
        [True, False, 1, 0] * 500,
        [1, 2.5, None, "x", True, -7] * 700,
        ["tag"] * 100,
        [0] * 9000,
    ],
    ids=lambda value: repr(value)[:20],
)
def test_lists_are_read_as_they_were_put(graph: GraphStore, value: list[Any], path: Path) -> None:
    one = Thread(graph, "t")
    one.put(plain=value, deep=[value, {"of": value}])
    first = one.read()
    changed = [*value[:50], 99, *value[50:]]
    one.put(plain=changed, deep=[changed])
    with memcore.open(path, durability="none", allow_unsafe=True) as fresh:
        cold = Thread(fresh.scope().graph, "t")
        for found in (first, cold.read("c000001")):
            assert bits(found["plain"]) == bits(value)  # type: ignore[index]
            assert bits(found["deep"][0]) == bits(found["deep"][1]["of"]) == bits(value)  # type: ignore[index]
        assert bits(cold.read()["plain"]) == bits(changed)  # type: ignore[index]
    graph.prune("t", lambda found: {one.checkpoint for one in found[:-1]}, CODER)
    assert bits(one.read()["plain"]) == bits(changed)  # type: ignore[index]


def test_no_number_of_a_long_list_is_serialised_for_itself(
    graph: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    stored_part = Splitter._serialised

    def counting(self: Splitter, value: Any, path: str, under: str | None) -> bytes:
        made.append(value)
        return stored_part(self, value, path, under)

    monkeypatch.setattr(Splitter, "_serialised", counting)
    vectors = [[at / 7 + n for n in range(1536)] for at in range(20)]
    Thread(graph, "t").put(vectors=vectors)
    assert made == []


def test_versions_share_all_but_what_is_around_the_change(
    graph: GraphStore, open_db: Callable[..., memcore.Database]
) -> None:
    db = open_db(durability="none")
    one = Thread(graph, "t")
    value = [hash((at, "x")) / 3 for at in range(100_000)]
    one.put(v=value)
    before = set(rows_under(db, Kind.CHUNK))
    one.put(v=[*value[:40_000], 1.5, *value[40_000:]])
    added = set(rows_under(db, Kind.CHUNK)) - before
    assert 1 <= len(added) <= 8 < len(before)


def test_only_files_with_runs_refuse_older_readers(
    graph: GraphStore, open_db: Callable[..., memcore.Database]
) -> None:
    def features() -> int:
        row = store_of(graph).read(lambda txn: stored(txn).get(FORMAT_KEY))
        return Format.unpack(row, "here").features & GRAPH_ROWS

    one = Thread(graph, "t")
    one.put(v=list(range(15)), w=["a long text " * 9] * 20)
    assert not features()
    one.put(v=list(range(16)))
    assert features()


def test_what_json_has_not_is_refused_in_long_lists_too(graph: GraphStore) -> None:
    with pytest.raises(InvalidItemError, match=r"channel 'v'\[17\]"):
        Thread(graph, "t").put(v=[0.5] * 17 + [float("nan")] + [0.5] * 20)


def test_what_could_be_redacted_is_seen_by_who_redacts() -> None:
    """Numbers of cards come as integers, strings and floats without a fraction."""
    for value in ([4111111111111111] * 20, ["4111111111111111"] * 20, [4111111111111111.0] * 20):
        assert units_of(value, NUMBERS, finite=False) == (value, None)
    assert units_of([0.5] * 20, NUMBERS, finite=False)[1] == [0]


@pytest.mark.parametrize(
    "content",
    [b"", b"z", b"d1234567", b"H1", b"m", b"m\1\0\0\0", b"m\1\0\0\0\3", b"m\1\0\0\0\4abc",
     b"m\1\0\0\0\5\2a", b"m\1\0\0\0\x09", b"m\0\0\0\0x", b"m\xff\xff\xff\xff\0",
     b"m\1\0\0\0\5\1\xff"],
)  # fmt: skip
def test_a_malformed_run_is_told(content: bytes) -> None:
    with pytest.raises(CorruptValueError):
        ListRun(content).values()


def test_a_run_outside_of_a_list_is_told(path: Path) -> None:
    with memcore.open(path) as db:
        graph = db.scope().graph
        run = nodes.part_node(nodes.RUN, b"B\1\2")
        for at, node in enumerate(
            (run, b"\4" + nodes.text(nodes.entry_of("k", run)), nodes.wrapped("send", [run]))
        ):
            body = {"channel_versions": {"v": at}}
            new = NewCheckpoint(str(at), None, body, {}, {"v": (at, 1)})
            graph.put(str(at), "", new, CODER)
            thread = at + 1
            key = rows.value_key(rows.Place(1, thread, thread), thread, "v", at)
            db._engine.store.transact(
                lambda txn, key=key, node=node: rows.put_sealed(txn, key, CODER, rows.NODE, node)
            )
            with pytest.raises(CorruptValueError, match="outside of one"):
                graph.get(str(at), "", None, CODER)


# --- what a few bytes may make --------------------------------------------------------------------


def joiner_of(chunks: dict[bytes, tuple[str, bytes]]) -> Joiner:
    return Joiner(Cache(), CODER, chunks.__getitem__, pool=1, secret=b"")


@pytest.mark.parametrize("form", [b"B", b"d", b"q", b"m" + (4097).to_bytes(4, "little")])
def test_a_run_holds_no_more_values_than_any_that_is_written(form: bytes) -> None:
    assert unpack_run(b"B" + bytes(4096)) == [0] * 4096
    width = {b"B": 1, b"m": 1}.get(form[:1], 8)
    content = form + bytes(4097 * width)
    with pytest.raises(CorruptValueError):
        ListRun(content).values()
    chunks = {bytes(16): ("~run", content)}
    with pytest.raises(CorruptValueError):
        joiner_of(chunks).join(b"\x03" + packed_text(b"".join([b"\x02" + bytes(16)] * 20)))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose memory is small, so that the bound can be met."""
    monkeypatch.setattr(decode, "REPEATED_BYTES_MAX", 2**28)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("container", [3, 4])
def test_pages_of_pages_make_no_more_than_anybody_puts(container: int) -> None:
    entry = b"\x02" + bytes(16)
    chunks = {bytes(16): ("json", b"1")}
    below = entry * 64 if container == 3 else b"".join(
        entry + packed_text(f"{at}".encode()) for at in range(64))  # fmt: skip
    for level in range(1, 60):
        page = level.to_bytes(16, "big")
        chunks[page] = ("page", below)
        below = (b"\x06" + page) * 2
    node = bytes((container,)) + packed_text(below)
    joiner = joiner_of(chunks)
    for _ in range(2):  # the second time some pages are known
        tracemalloc.start()
        with pytest.raises(CorruptValueError, match="repeats more than"):
            joiner.join(node)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 256 * 2**20


_ID = bytes(15) + b"\1"


def _values(entry: bytes, count: int) -> bytes:
    return b"\x03" + packed_text(entry * count)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("chunks", "node"),
    [
        ({_ID: ("msgpack", b"\xdd" + (99_999).to_bytes(4, "big") + b"\x80" * 99_999)},
         _values(b"\x02" + _ID, 4_000)),
        ({_ID: ("~run", b"H" + bytes(range(1, 255)) * 32)}, _values(b"\x02" + _ID, 60_000)),
        ({_ID: ("msgpack", b"\x80" * 100_000)},
         nodes.pieces_node("msgpack", [_ID] * 4_000)),
        ({_ID: ("bytes", bytes(100_000))}, nodes.pieces_node("bytes", [_ID] * 80_000)),
        ({_ID: ("msgpack", b"\xdd" + (9_999).to_bytes(4, "big") + b"\x80" * 9_999),
          bytes(16): ("page", (b"\x02" + _ID) * 1_000)},
         _values(b"\x06" + bytes(16), 1_000)),
        ({_ID: ("page", nodes.part_node("msgpack", b"\x9f" + b"\x80" * 15) * 6_000)},
         _values(b"\x06" + _ID, 1_000)),
        ({_ID: ("page", nodes.part_node("~run", b"B" + bytes(200)) * 1_000)},
         _values(b"\x06" + _ID, 1_000)),
    ],
    ids=["chunks", "runs", "pieces", "bytes", "pages of chunks", "pages", "pages of runs"],
)  # fmt: skip
def test_names_make_no_more_memory_than_somebody_puts(
    chunks: dict[bytes, tuple[str, bytes]], node: bytes
) -> None:
    reader = dataclasses.replace(StoredCoder(), splits=True)
    joiner = Joiner(Cache(), reader, chunks.__getitem__, pool=1, secret=b"")
    for _ in range(2):
        joiner.begin()
        tracemalloc.start()
        with pytest.raises(CorruptValueError, match="repeats more than"):
            joiner.join(node)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 320 * 2**20


@pytest.mark.usefixtures("small")
def test_channels_share_no_more_memory_than_somebody_puts() -> None:
    chunks = {_ID: ("msgpack", b"\xdd" + (99_999).to_bytes(4, "big") + b"\x80" * 99_999)}
    joiner = Joiner(Cache(), StoredCoder(), chunks.__getitem__, pool=1, secret=b"")
    kept = []
    with pytest.raises(CorruptValueError, match="repeats more than"):
        for _ in range(1_000):
            kept.append(joiner.join(b"\x02" + _ID))  # noqa: PERF401 - it ends in the middle
    assert 10 < len(kept) < 100
    joiner.begin()  # another checkpoint
    assert joiner.join(b"\x02" + _ID) == kept[0]


@pytest.mark.usefixtures("small")
def test_a_list_of_equal_entries_is_read_again_and_again(graph: GraphStore) -> None:
    one = Thread(graph, "t")
    value = [{"a": [1, "x"]}] * 5000
    one.put(texts=["long " * 2_000] * 20_000, rows=[[0.5] * 1_000] * 1_000, zeros=bytes(2**27))
    assert one.read()["rows"][999] == [0.5] * 1_000
    one = Thread(graph, "u")
    one.put(plain=value)
    for _ in range(3):
        assert one.read() == {"plain": value}


_ROW = [float(number) for number in range(1_536)]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "value",
    [[_ROW] * 10_000, {f"k{at}": _ROW for at in range(10_000)}],
    ids=["list", "dict"],
)
def test_what_a_reader_would_refuse_is_not_put(graph: GraphStore, value: Any) -> None:
    with pytest.raises(InvalidItemError, match="equal parts would take"):
        Thread(graph, "t").put(all=value)


@pytest.mark.usefixtures("small")
def test_what_repeats_within_the_bound_is_put_and_read(graph: GraphStore) -> None:
    thread = Thread(graph, "t")
    value = [_ROW] * 3_000
    thread.put(all=value, maps=[{"v": _ROW}] * 3_000)
    assert thread.read() == {"all": value, "maps": [{"v": _ROW}] * 3_000}


def test_parts_of_every_sort_are_weighed(
    graph: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "REPEATED_BYTES_MAX", 2**20)  # what is put is weighed from 8 KiB on
    one = Thread(graph, "t")
    parts = [None, True, 1, 2.5, "text " * 400, [1.5] * 300, ["a", "b"], {"k": None}, [], {}]
    value = [each for each in parts for _ in range(7)]
    for at in range(4):
        one.put(all=value, named={f"k{n}": each for n, each in enumerate(value)})
        assert one.read()["all"] == value  # type: ignore[index]
        value = [*value[at:], None, *value[:at], {"new": at}]
        one = one if at % 2 else Thread(graph, f"u{at}")
