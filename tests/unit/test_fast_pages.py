"""Pages of LMDB's trees, judged in C as the rules of their format say."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path
from struct import pack, unpack_from
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import memcore
from memcore._fast import judge_page
from memcore.store.pages import LeafRow

EXAMPLES = int(os.environ.get("MEMCORE_LONG_TESTS") or 0) * 20 or 150
PAGE = 4096
SIZE, NUMBER, FLAGS, BOUNDS, NODES, KIND, TILING, KEYS = range(1, 9)
BOUND = st.none() | st.binary(min_size=8, max_size=8)


def page_of(
    nodes: list[tuple[bytes, bytes]], *, number: int = 7, flags: int = 2, order: Any = None
) -> bytes:
    """A page of nodes, each its header and the rest; ``order``: that in which they lie in it."""
    lower, at = 16 + 2 * len(nodes), PAGE
    places, image = [0] * len(nodes), bytearray(PAGE)
    for each in order or range(len(nodes)):
        whole = b"".join(nodes[each])
        at -= len(whole) + len(whole) % 2
        image[at : at + len(whole)] = whole
        places[each] = at
    image[:lower] = pack(f"<QHHHH{len(nodes)}H", number, 0, flags, lower, at, *places)
    return bytes(image)


def row(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    return pack("<IHH", len(value), 0, len(key)), key + value


def run(key: bytes, size: int, page: int) -> tuple[bytes, bytes]:
    return pack("<IHH", size, 1, len(key)), key + page.to_bytes(8, "little")


def child(page: int, key: bytes) -> tuple[bytes, bytes]:
    return pack("<IHH", page & 0xFFFFFFFF, page >> 32, len(key)), key


class Asked(NamedTuple):
    """What is asked of a page."""

    number: int = 7
    branch: bool = False
    numbered: bool = False
    low: bytes | None = None
    high: bytes | None = None


def judged(page: bytes, *, runs_only: bool = False, **options: Any) -> Any:
    return judge_page(page, *Asked(**options), LeafRow, runs_only)


# The same by the rules, read once more: what a page holds, None if it breaks one.


def expected(page: bytes, asked: Asked) -> Any:
    places = places_of(page, asked)
    nodes = None if places is None else [node_at(page, at, branch=asked.branch) for at in places]
    if not nodes or None in nodes:
        return None
    keys = [key for key, _, _ in nodes]
    spans = sorted(zip(places, (end + end % 2 for _, end, _ in nodes), strict=True))
    tiled = [end for _, end in spans] == [at for at, _ in spans[1:]] + [PAGE]
    if not tiled or not ascend(keys[asked.branch :], asked):
        return None
    entries = [entry for _, _, entry in nodes]
    return (len(nodes), entries, keys[1:]) if asked.branch else (len(nodes), entries)


def places_of(page: bytes, asked: Asked) -> Any:
    if len(page) < PAGE:
        return None
    found, _, flags, lower, upper = unpack_from("<QHHHH", page)
    sound = found == asked.number and flags == (1 if asked.branch else 2)
    if not sound or not 16 < lower <= upper <= PAGE or lower % 2:
        return None
    places = unpack_from(f"<{(lower - 16) // 2}H", page, 16)
    sound = min(places) == upper and max(places) <= PAGE - 8
    return places if sound and not any(at % 2 for at in places) else None


def node_at(page: bytes, at: int, *, branch: bool) -> Any:
    """The key of a node, its end, and what it holds."""
    size, kind, key_bytes = unpack_from("<IHH", page, at)
    body = at + 8 + key_bytes
    key = page[at + 8 : body]
    if branch:
        return key, body, size | kind << 32
    if kind == 0:
        return key, body + size, (key, page[body : body + size], size, 0)
    if kind == 1:
        return key, body + 8, (key, b"", size, int.from_bytes(page[body : body + 8], "little"))
    return None


def ascend(keys: list[Any], asked: Asked) -> bool:
    low: Any = asked.low
    high: Any = asked.high
    if any(len(key) != 8 if asked.numbered else not 0 < len(key) <= 511 for key in keys):
        return False
    if asked.numbered:
        keys = [int.from_bytes(key, "little") for key in keys]
        low = low and int.from_bytes(low, "little")
        high = high and int.from_bytes(high, "little")
    if not keys:
        return True
    above = low is None or low < keys[0] or (not asked.branch and low == keys[0])
    below = high is None or keys[-1] < high
    return above and below and all(one < other for one, other in pairwise(keys))


def agrees(page: bytes, **options: Any) -> Any:
    """What C finds, which is what the rules say."""
    found, wanted = judged(page, **options), expected(page, Asked(**options))
    assert (None if type(found) is int else found) == wanted
    return found


LEAF = page_of([row(b"a", b"1"), row(b"b", b"22"), run(b"c", 9_000, 5), row(b"d", b"")])
BRANCH = page_of([child(9, b""), child(2**40, b"k"), child(3, b"l")], flags=1)


def test_a_leaf_and_a_branch_are_taken_apart() -> None:
    rows = [(b"a", b"1", 1, 0), (b"b", b"22", 2, 0), (b"c", b"", 9_000, 5), (b"d", b"", 0, 0)]
    assert agrees(LEAF) == (4, rows)
    assert all(type(each) is LeafRow for each in judged(LEAF)[1])
    assert judged(LEAF, runs_only=True) == (4, [rows[2]])
    assert agrees(BRANCH, branch=True) == (3, [9, 2**40, 3], [b"k", b"l"])
    assert agrees(page_of([row(b"a", b"1"), row(b"b", b"2")], order=[1, 0]))[0] == 2


@pytest.mark.parametrize(
    ("page", "options", "rule"),
    [
        (LEAF[:-1], {}, SIZE),
        (LEAF, {"number": 8}, NUMBER),
        (LEAF, {"branch": True}, FLAGS),
        (LEAF[:12] + b"\x10\0" + LEAF[14:], {}, BOUNDS),
        (LEAF[:12] + b"\x13\0" + LEAF[14:], {}, BOUNDS),
        (LEAF[:16] + b"\xfc\x0f" + LEAF[18:], {}, NODES),
        (LEAF[:14] + pack("<H", unpack_from("<H", LEAF, 14)[0] - 2) + LEAF[16:], {}, NODES),
        (page_of([(pack("<IHH", 1, 2, 1), b"ab")]), {}, KIND),
        (page_of([(pack("<IHH", 2**32 - 1, 0, 1), b"ab")]), {}, TILING),
        (page_of([(pack("<IHH", 1, 1, 1), b"ab")]), {}, TILING),
        (LEAF[:18] + LEAF[16:18] + LEAF[20:], {}, TILING),
        (page_of([row(b"b", b""), row(b"a", b"")]), {}, KEYS),
        (page_of([row(b"a", b""), row(b"a", b"")]), {}, KEYS),
        (page_of([row(b"", b"x")]), {}, KEYS),
        (page_of([row(b"k" * 512, b"x")]), {}, KEYS),
        (LEAF, {"low": b"b"}, KEYS),
        (LEAF, {"high": b"d"}, KEYS),
        (BRANCH, {"branch": True, "low": b"k"}, KEYS),
        (LEAF, {"numbered": True}, KEYS),
    ],
)
def test_each_rule_that_is_broken_is_named(page: bytes, options: Any, rule: int) -> None:
    assert agrees(page, **options) == rule


def test_the_lowest_key_of_a_leaf_may_be_its_bound() -> None:
    assert agrees(LEAF, low=b"a", high=b"e")[0] == 4
    assert agrees(BRANCH, branch=True, low=b"j", high=b"m")[0] == 3
    numbers = [row(n.to_bytes(8, "little"), b"") for n in (1, 255, 256, 2**62)]
    bounds = {"low": pack("<Q", 1), "high": pack("<Q", 2**62 + 1)}
    assert agrees(page_of(numbers), numbered=True, **bounds)[0] == 4
    assert agrees(page_of(numbers[::-1]), numbered=True, **bounds) == KEYS
    with pytest.raises(ValueError, match="eight bytes"):
        judged(LEAF, numbered=True, low=b"short")


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=90), st.booleans()), max_size=20),
    st.builds(Asked, st.just(7), st.booleans(), st.booleans(), BOUND, BOUND),
    st.integers(0, 2**32),
)
@example([(b"12345678", b"", False)], Asked(branch=True, numbered=True), 1)
def test_it_judges_as_the_rules_say(entries, asked, seed) -> None:
    chance = random.Random(seed)
    entries = sorted(entries) if chance.random() < 0.8 else entries
    if asked.numbered and chance.random() < 0.8:
        entries = [(key[:8].ljust(8, b"\0"), *rest) for key, *rest in entries]
    if asked.branch:
        nodes = [child(chance.randrange(2**48), key) for key, *_ in entries]
    else:
        nodes = [
            run(key, chance.randrange(2**32), chance.randrange(2**64)) if big else row(key, value)
            for key, value, big in entries
        ]
    page = bytearray(page_of(nodes, flags=1 if asked.branch else 2))
    for _ in range(chance.choice((0, 0, 1, 2, 8))):
        at = chance.choice((chance.randrange(PAGE), chance.randrange(64)))
        page[at] = chance.choice((0, 1, 255, page[at] ^ 1 << chance.randrange(8)))
    agrees(bytes(page), **asked._asdict())


@pytest.mark.parametrize("seed", range(4))
def test_it_judges_a_file_s_pages_as_the_rules_say(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with memcore.open(tmp_path / "agent.memcore") as db:
        for _ in range(40):
            words = "word " * chance.randrange(1, 900)
            db.session(f"s{chance.randrange(9)}").append({"role": "user", "content": words})
    image = (tmp_path / "agent.memcore").read_bytes()
    judged_pages = 0
    for start in range(2 * PAGE, len(image), PAGE):
        page = bytearray(image[start : start + PAGE])
        number = int.from_bytes(page[:8], "little")
        for options in ({}, {"branch": True}, {"numbered": True}):
            found = agrees(bytes(page), number=number, **options)
            judged_pages += type(found) is tuple
        for _ in range(30):
            broken = page.copy()
            broken[chance.choice((chance.randrange(PAGE), chance.randrange(90)))] ^= (
                1 << chance.randrange(8)
            )
            agrees(bytes(broken), number=number, branch=page[10] == 1)
    assert judged_pages > 5
