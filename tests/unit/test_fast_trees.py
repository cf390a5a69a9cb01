"""_fast.Trees and page_stops: against a twin in plain Python, and while another thread meddles."""

from __future__ import annotations

import dataclasses
import json
import struct
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcore
from memcore._fast import Trees, holds_sensitive, page_stops, scan_json, sized
from memcore._fast import classify as classify_item
from memcore.graph.decode import Cache, Shapes, classify
from memcore.graph.encode import Splitter
from memcore.graph.manifest import JsonCoder, NodeReader, Typed
from strategies import no_deadline

ATOMS = (type(None), bool, int, float, str, bytes)
OPAQUE, LEAF, OBJECT, TUPLE = range(4)


class Colour(Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Box:
    value: Any


@dataclasses.dataclass(slots=True)
class Slots:
    value: Any = None
    other: Any = None


class Bag(dict):  # type: ignore[type-arg]
    """State where Trees does not look."""


class Guarded:
    """Its own code must never run."""

    def __init__(self, value: Any) -> None:
        object.__getattribute__(self, "__dict__")["value"] = value

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)

    __eq__ = __hash__ = __setattr__ = __reduce__ = __deepcopy__ = __getattribute__  # type: ignore[assignment]


def shape(kind: type) -> tuple[int, bool, tuple[str, ...], tuple[str, ...]]:
    if kind is Guarded:
        return OBJECT, True, (), ()
    return classify(kind)


# --- the twin -------------------------------------------------------------------------------------


class UnknownError(Exception):
    """Nothing is known of the type of a part."""


def twin_copy(value: Any) -> Any:  # noqa: C901, PLR0911 - a return for each kind of value
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict:
        if not all(type(name) in ATOMS for name in value):
            raise UnknownError
        return {name: twin_copy(entry) for name, entry in value.items()}
    if kind in (list, tuple):
        return kind(map(twin_copy, value))
    if kind in (set, frozenset):
        if not all(type(member) in ATOMS for member in value):
            raise UnknownError
        return kind(value)
    sort, has_dict, slots, _ = shape(kind)
    if sort == LEAF:
        return value
    if sort == TUPLE:
        return kind(*map(twin_copy, value))
    if sort == OPAQUE:
        raise UnknownError
    made = object.__new__(kind)
    if has_dict:
        vars(made).update(twin_copy(vars(value)))
    for name in slots:
        if hasattr(value, name):
            object.__setattr__(made, name, twin_copy(getattr(value, name)))
    return made


def twin_same(a: Any, b: Any) -> bool:  # noqa: PLR0911 - a return for each kind of value
    kind = type(a)
    if a is b:
        return True
    if kind is not type(b):
        return False
    if kind is float:
        return a == b and struct.pack("<d", a) == struct.pack("<d", b)
    if kind in ATOMS:
        return bool(a == b)
    if kind is dict:
        pairs = zip(a.items(), b.items(), strict=False)
        return len(a) == len(b) and all(
            twin_same(x, y) and twin_same(v, w) for (x, v), (y, w) in pairs
        )
    sort, has_dict, _, slots = (TUPLE, False, (), ()) if kind in (list, tuple) else shape(kind)
    if sort == TUPLE:
        return len(a) == len(b) and all(map(twin_same, a, b))
    if kind in (set, frozenset):
        return len(a) == len(b) and all(type(m) in (str, bytes) and m in a for m in b)
    if sort != OBJECT:
        return False
    missing = object()
    return not (has_dict and not twin_same(vars(a), vars(b))) and all(
        twin_same(getattr(a, name, missing), getattr(b, name, missing)) for name in slots
    )


def parts(value: Any) -> Any:
    """What equal trees have equal: types, order, bits."""
    kind = type(value)
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is dict:
        return kind, [(parts(k), parts(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return kind, [parts(entry) for entry in value]
    if kind in (Box, Slots):
        return kind, parts([getattr(value, f.name) for f in dataclasses.fields(value)])
    if kind in (set, frozenset):
        return kind, sorted(map(repr, value))
    return kind, value


atoms = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.floats(), st.text(max_size=3),
    st.binary(max_size=3), st.sampled_from((0.0, -0.0, "\ud800", Colour.RED)),
)  # fmt: skip
keys = st.one_of(st.text(max_size=2), st.integers(0, 2), st.booleans(), st.just(1.0))


def _wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.sets(keys, max_size=3),
        st.frozensets(st.text(max_size=2), max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Box, inner),
        st.builds(Slots, inner, inner),
        st.just(deque()),
        st.builds(Bag),
    )


trees_of = st.recursive(atoms, _wider, max_leaves=12)


@no_deadline
@given(trees_of)
def test_copies_are_those_of_the_twin(value: Any) -> None:
    trees = Shapes().trees
    try:
        wanted = twin_copy(value)
    except UnknownError:
        assert trees.copy(value) is trees.opaque
        return
    made = trees.copy(value)
    assert parts(made) == parts(wanted) == parts(value)
    assert not shared(made, value)


def shared(a: Any, b: Any) -> bool:
    """Whether two equal trees have anything in common that can be changed."""
    if isinstance(a, list | dict | set | Box | Slots) and a is b:
        return True
    if isinstance(a, dict):
        return any(map(shared, a.values(), b.values()))
    if isinstance(a, list | tuple):
        return any(map(shared, a, b))
    if isinstance(a, Box | Slots):
        return any(shared(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return False


@no_deadline
@given(trees_of, trees_of)
def test_sameness_is_that_of_the_twin(a: Any, b: Any) -> None:
    trees = Shapes().trees
    assert trees.same(a, b) == twin_same(a, b)
    copied = trees.copy(a)
    if copied is not trees.opaque:
        assert trees.same(copied, a) == twin_same(copied, a)


@no_deadline
@given(st.lists(atoms, max_size=6), st.lists(atoms, max_size=6), st.lists(atoms, max_size=6))
def test_head_counts_what_is_the_same_as_either(a: Any, b: Any, values: Any) -> None:
    wanted = 0
    for at, value in enumerate(values):
        either = [entries[at] for entries in (a, b) if at < len(entries)]
        if at >= len(a) or not any(twin_same(one, value) for one in either):
            break
        wanted += 1
    assert Shapes().trees.head(a, b, values) == wanted


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ("a", b"a"),
        ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1: 0}, {True: 0}),
        ({"a": 1}, OrderedDict(a=1)),
        ({1}, {1.0}),
        ({1}, {1}),
        (Box([1]), Box([2])),
        (Slots(), Slots(other=1)),
        (Pair(1, 2), (1, 2)),
        (Colour.RED, Colour.BLUE),
        (deque(), deque()),
    ],
)
def test_what_is_written_differently_is_not_the_same(a: Any, b: Any) -> None:
    trees = Shapes().trees
    assert not trees.same(a, b)
    assert not trees.same([a], [b])
    assert not trees.same({"x": a}, {"x": b})


def test_a_slot_that_was_never_set() -> None:
    trees = Shapes().trees
    bare, full = object.__new__(Slots), Slots(1, 2)
    copied = trees.copy(bare)
    assert not hasattr(copied, "value")
    assert trees.same(copied, bare)
    assert not trees.same(bare, full)
    assert not trees.same(full, bare)


def test_the_code_of_objects_is_never_run() -> None:
    trees = Trees(shape)
    value = Guarded([1])
    copied = trees.copy(value)
    assert trees.same(copied, value)
    object.__getattribute__(value, "__dict__")["value"].append(2)
    assert not trees.same(copied, value)


def test_what_is_too_deep_is_opaque() -> None:
    trees = Shapes().trees
    deep: list[Any] = []
    other: list[Any] = []
    for _ in range(10_000):
        deep, other = [deep], [other]
    assert trees.copy(deep) is trees.opaque
    assert not trees.same(deep, other)
    ring: list[Any] = []
    ring.append(ring)
    assert trees.copy(ring) is trees.opaque


def test_classify_is_asked_once_a_type_and_may_raise() -> None:
    asked: list[type] = []

    def refuse(kind: type) -> Any:
        asked.append(kind)
        if kind is Box:
            raise LookupError
        return classify(kind)

    trees = Trees(refuse)
    for _ in range(3):
        trees.copy([Slots(), Slots()])
    assert asked == [Slots]
    with pytest.raises(LookupError):
        trees.copy({"a": [Box(1)]})
    with pytest.raises(LookupError):
        trees.same([Box(1)], [Box(1)])


# --- meddling: classify is where other code runs while a tree is walked ---------------------------


@pytest.mark.parametrize("wrap", [list, lambda entries: dict(zip("abcdef", entries, strict=False))])
def test_what_is_taken_out_while_it_is_copied_is_not_shared(wrap: Any) -> None:
    last = [1]
    value = wrap([Box(0), last])

    def meddle(kind: type) -> Any:
        value.clear()
        return classify(kind)

    made = Trees(meddle).copy(value)
    entries = list(made.values()) if isinstance(made, dict) else made
    assert entries[1] == [1]
    assert entries[1] is not last


@pytest.mark.parametrize("wrap", [list, lambda entries: dict(zip("abcdef", entries, strict=False))])
@pytest.mark.parametrize("more", [False, True])
def test_what_changes_while_it_is_compared(wrap: Any, more: bool) -> None:
    tree, value = wrap([Box([0]), [1], [2]]), wrap([Box([0]), [1], [2]])

    def meddle(kind: type) -> Any:
        value.clear()
        if more:
            value.update({str(n): n for n in range(50)}) if isinstance(value, dict) else (
                value.extend(range(50))
            )
        return classify(kind)

    assert not Trees(meddle).same(tree, value)


def test_an_entry_lives_while_it_is_looked_at() -> None:
    tree, value = [Box([0, "x" * 50])], [Box([0, "x" * 50])]
    gone = []

    def meddle(kind: type) -> Any:
        value[0] = None  # the last reference but that of the walk
        gone.append([Box(n) for n in range(100)])  # and its memory would be used again
        return classify(kind)

    assert Trees(meddle).same(tree, value)


@contextmanager
def meddling(meddle: Callable[[int], None]) -> Iterator[None]:
    """Another thread that calls ``meddle`` again and again; on a traced build between any lines."""
    stop = threading.Event()

    def run() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            meddle(turn)

    thread = threading.Thread(target=run)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_a_second_thread_may_change_what_is_copied_and_compared() -> None:
    trees = Shapes().trees
    value: dict[str, Any] = {str(n): [n, {"a": Box([n])}, {str(n)}] for n in range(40)}

    def meddle(turn: int) -> None:
        name = str(turn % 40)
        value.pop(name, None)
        value[name] = [turn, {"a": Box([turn]), "b": (turn,)}, {str(turn)}]
        value[name].append(turn)
        value[name][1]["a"].value.clear()
        value[name][2].update(map(str, range(turn % 20)))

    with meddling(meddle):
        for _ in range(300):
            made = trees.copy(value)
            frozen = parts(made)
            assert trees.same(made, value) in (False, True)
            assert parts(made) == frozen, "nobody else can reach a copy"


def test_a_second_thread_may_change_what_is_classified_counted_and_looked_through() -> None:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    counter = memcore.get_counter("o200k_base")

    def meddle(turn: int) -> None:
        call = {"id": f"call-{turn}", "type": "function", "function": {"name": str(turn)}}
        message["tool_calls"] = [call]
        message["tool_calls"].append({"id": str(turn)})
        call["function"]["arguments"] = f'{{"a": {turn}}}'
        message["content"] = "0" * (turn % 40)
        message["extra"] = [{"text": f"text {turn}"}, {str(turn): {"b": [turn, str(turn)]}}]
        message["extra"].pop(0)["text"] = f"{turn} more"
        del message["tool_calls"]
        message.pop(f"more-{turn - 9}", None)
        message[f"more-{turn}"] = [f"+4930{turn}", [turn]]

    with meddling(meddle):
        for _ in range(300):
            classify_item(message)
            assert scan_json(message) == 0
            assert counter.count_message(message, b"{}") > 0
            assert holds_sensitive(message, 2**20 - 1) in (False, True)


# --- pages ----------------------------------------------------------------------------------------


def twin_stops(entries: list[bytes], least: int, most_bytes: int, mask: int) -> list[int]:
    stops: list[int] = []
    page: list[bytes] = []
    for at, entry in enumerate(entries):
        if len(page) >= least and len(b"".join([*page, entry])) > most_bytes:
            stops.append(at)
            page = []
        page.append(entry)
        if len(page) >= least and entry and not entry[-1] & mask:
            stops.append(at + 1)
            page = []
    return stops


@no_deadline
@given(
    st.lists(st.binary(max_size=3), max_size=60),
    st.integers(1, 5),
    st.integers(0, 20),
    st.sampled_from((0, 1, 3, 63, 255)),
)
def test_page_stops_are_those_of_the_twin(
    entries: list[bytes], least: int, more: int, mask: int
) -> None:
    assert page_stops(entries, least, least + more, mask) == twin_stops(
        entries, least, least + more, mask
    )


def test_a_page_stop_moves_nothing_behind_the_next_one() -> None:
    entries = [bytes((n * 37 % 251,)) for n in range(3_000)]
    stops = page_stops(entries, 16, 256, 63)
    changed = [*entries[:1_000], b"new", *entries[1_000:]]
    moved = [stop - 1 for stop in page_stops(changed, 16, 256, 63)]
    assert len(set(stops) ^ {stop for stop in moved if stop > 1_000}) < len(stops) / 2
    assert [stop for stop in stops if stop < 1_000] == [s + 1 for s in moved if s + 1 < 1_000]


@pytest.mark.parametrize("entries", [["text"], [1], (b"a",), None])
def test_page_stops_of_anything_else(entries: Any) -> None:
    with pytest.raises(TypeError):
        page_stops(entries, 1, 2, 3)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384])
def test_a_sized_text_is_read_as_it_was(size: int) -> None:
    reader = NodeReader(sized(b"x" * size) + sized(bytearray(b"more")))
    assert reader.text() == b"x" * size
    assert reader.text() == b"more"
    assert reader.at_end


def test_what_of_a_dict_is_carried_over() -> None:
    trees = Shapes().trees
    before = {"a": 0, "b": 1, "c": 2}
    kept = [[1], [2], [3]]
    keys, nodes, entries, found, fresh = trees.carried(  # type: ignore[misc]
        before, kept, [[1], [9]], [b"A", b"B", b"C"], [b"1", b"2", b"3"],
        {"c": [3], "new": [1], "b": [9], "a": [8]},
    )  # fmt: skip
    assert keys == ["c", "new", "b", "a"]
    assert nodes == [b"C", None, b"B", None]
    assert entries == [b"3", None, b"2", None]
    assert found == [[3], None, [2], None]
    assert fresh == [1, 3]
    assert trees.carried(before, kept, [], [b""] * 3, [b""] * 3, {"a": [1], 1: 2}) is None


def test_a_list_that_lost_its_beginning_keeps_its_parts() -> None:
    encoded = []

    class Coder(JsonCoder):
        def encode(self, value: Any) -> Typed:
            encoded.append(value)
            return super().encode(value)

    splitter = Splitter(Cache(), Coder(), pool=1, epoch=1, secret=b"k" * 32)
    entries: list[Any] = [{"text": f"{at} " * 20} for at in range(100)]
    first, version = splitter.split(entries, None, "")
    encoded.clear()
    new = [{"text": "new"}, {"text": "newer"}]
    changed = json.loads(json.dumps([*entries[3:], *new]))
    node, moved = splitter.split(changed, version, "")
    assert encoded == new
    assert moved is not None
    assert moved.nodes == splitter.split(changed, None, "")[1].nodes  # type: ignore[union-attr]
    assert splitter.split(changed, None, "")[0] == node != first
