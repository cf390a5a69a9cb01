"""Pages of LMDB's trees, judged in C as the rules of their format say."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from struct import pack, unpack_from
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import memcore
from memcore._fast import TreeWalk, build_flavour, page_rule
from memcore.store.datafile import newest_meta
from memcore.store.pages import DamageError, LeafRow, Tree, free_lists, pages_of, walk_of

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


def judged(page: bytes, **options: Any) -> int:
    return page_rule(page, **Asked(**options)._asdict())


_scratch = os.memfd_create("pages")


def taken_apart(page: bytes, number: int) -> Any:
    """The rows of a leaf, as a walk over a tree of this one page gives them."""
    os.ftruncate(_scratch, 0)
    os.pwrite(_scratch, page, number * PAGE)
    (rows,) = walk_of(_scratch, number).leaves(Tree("tree", number, 1))
    assert all(type(each) is LeafRow for each in rows)
    return rows


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
    return [entry for _, _, entry in nodes]


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


def agrees(page: bytes, **options: Any) -> int:
    """The rule that C finds broken, or 0; the rules say so, too, and what a leaf holds."""
    asked = Asked(**options)
    found, wanted = judged(page, **options), expected(page, asked)
    assert (found == 0) == (wanted is not None)
    if not (found or asked.branch or asked.numbered):
        assert taken_apart(page, asked.number) == wanted
    return found


LEAF = page_of([row(b"a", b"1"), row(b"b", b"22"), run(b"c", 9_000, 5), row(b"d", b"")])
BRANCH = page_of([child(9, b""), child(2**40, b"k"), child(3, b"l")], flags=1)


def test_a_leaf_and_a_branch_are_taken_apart() -> None:
    rows = [(b"a", b"1", 1, 0), (b"b", b"22", 2, 0), (b"c", b"", 9_000, 5), (b"d", b"", 0, 0)]
    assert agrees(LEAF) == 0
    assert taken_apart(LEAF, 7) == rows
    assert agrees(BRANCH, branch=True) == 0
    assert agrees(page_of([row(b"a", b"1"), row(b"b", b"2")], order=[1, 0])) == 0


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
    assert agrees(LEAF, low=b"a", high=b"e") == 0
    assert agrees(BRANCH, branch=True, low=b"j", high=b"m") == 0
    numbers = [row(n.to_bytes(8, "little"), b"") for n in (1, 255, 256, 2**62)]
    bounds = {"low": pack("<Q", 1), "high": pack("<Q", 2**62 + 1)}
    assert agrees(page_of(numbers), numbered=True, **bounds) == 0
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
            judged_pages += found == 0
        for _ in range(30):
            broken = page.copy()
            broken[chance.choice((chance.randrange(PAGE), chance.randrange(90)))] ^= (
                1 << chance.randrange(8)
            )
            agrees(bytes(broken), number=number, branch=page[10] == 1)
    assert judged_pages > 5


# --- a walk over the trees of a file --------------------------------------------------------------


@pytest.fixture
def walk_over(tmp_path: Path) -> Iterator[Callable[..., TreeWalk]]:
    """Gives walks over files with these pages; the descriptors are closed behind the test."""
    opened: list[int] = []

    def over(pages: dict[int, bytes], *, last: int = 99) -> TreeWalk:
        image = bytearray(PAGE * (max(pages) + 1))
        for number, page in pages.items():
            image[number * PAGE : number * PAGE + len(page)] = page
        path = tmp_path / f"pages{len(opened)}"
        path.write_bytes(image)
        opened.append(os.open(path, os.O_RDONLY))
        return walk_of(opened[-1], last)

    yield over
    for fd in opened:
        os.close(fd)


def header(number: int, pages: int, *, flags: int = 4) -> bytes:
    return pack("<QHHI", number, 0, flags, pages)


def test_a_walk_meets_every_page_once(walk_over: Any) -> None:
    pages = {
        2: page_of([child(3, b""), child(4, b"m")], number=2, flags=1),
        3: page_of([row(b"a", b"1"), run(b"b", 4_096, 5)], number=3),
        4: page_of([row(b"m", b"2")], number=4),
        5: header(5, 2),
        6: b"x",
    }
    walk, tree = walk_over(pages), Tree("tree", 2, 2)
    walk.judge(tree)
    assert (walk.rows, walk.own, walk.referred()) == (3, 5, {2, 3, 4, 5, 6})
    walk = walk_over(pages)
    found = [row for leaf in list(walk.leaves(tree))[::-1] for row in leaf]
    assert found == [(b"a", b"1", 1, 0), (b"b", b"", 4_096, 5), (b"m", b"2", 1, 0)]
    assert walk.referred() == {2, 3, 4}
    assert walk.run(5, 4_096) == 5 * PAGE + 16
    walk = walk_over(pages)
    walk.judge(tree, 1)  # no more than what every opening reads
    assert walk.referred() == {2, 3, 5, 6}
    pages[4] = page_of([row(b"a", b"2")], number=4)
    walk_over(pages).judge(tree, 1)
    pages[5] = header(5, 1)
    with pytest.raises(DamageError, match="page 5"):
        walk_over(pages).judge(tree, 1)


@pytest.mark.parametrize(
    ("pages", "depth", "said"),
    [
        ({2: page_of([child(200, b"")], number=2, flags=1)}, 2, "page 200, which is outside"),
        ({2: page_of([child(1, b"")], number=2, flags=1)}, 2, "page 1, which is outside"),
        ({2: page_of([child(2, b"")], number=2, flags=1)}, 2, "page 2 or one after it, which"),
        ({2: page_of([child(3, b"")], number=2, flags=1)}, 2, "truncated: page 3 of the tree"),
        ({2: page_of([row(b"a", b"")], number=2)}, 2, "page 2 of the tree has flags 0x2"),
        ({2: page_of([child(3, b"")], number=2, flags=1)}, 1, "page 2 of the tree has flags 0x1"),
        (
            {
                2: page_of([child(3, b""), child(4, b"m")], number=2, flags=1),
                3: page_of([row(b"n", b"")], number=3),
                4: page_of([row(b"m", b"")], number=4),
            },
            2,
            "page 3 of the tree has keys out of",
        ),
        ({2: page_of([run(b"a", 9_000, 98)], number=2)}, 1, "9000 bytes at page 98 leaves the fi"),
        ({2: page_of([run(b"a", 9_000, 0)], number=2)}, 1, "9000 bytes at page 0 leaves the file"),
        ({2: page_of([run(b"a", 9_000, 2**64 - 1)], number=2)}, 1, "leaves the file"),
        ({2: page_of([run(b"a", 2**32 - 1, 5)], number=2)}, 1, "leaves the file"),
        ({2: page_of([run(b"a", 9_000, 50)], number=2)}, 1, "ends before page 50"),
        ({2: page_of([run(b"a", 9_000, 3)], number=2), 5: header(3, 3)}, 1, "is marked as page 0"),
        ({2: page_of([run(b"a", 9_000, 3)], number=2), 3: header(3, 2)}, 1, "0x4 and 2 pages"),
        ({2: page_of([run(b"a", 9_000, 3)], number=2), 3: header(3, 98)}, 1, "0x4 and 98 pages"),
        ({2: page_of([run(b"a", 9_000, 3)], number=2), 3: header(3, 3, flags=2)}, 1, "flags 0x2"),
        (
            {2: page_of([run(b"a", 9, 3), run(b"b", 9, 3)], number=2), 3: header(3, 1)},
            1,
            "page 3 or one after it, which is in use already",
        ),
    ],
)
def test_a_walk_names_what_breaks_a_rule(walk_over: Any, pages: Any, depth: int, said: str) -> None:
    with pytest.raises(DamageError, match=said):
        walk_over(pages).judge(Tree("tree", 2, depth))


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (b"", "has 0 bytes"),
        (b"123456789", "has 9 bytes"),
        (pack("<QQ", 2, 5), "claims 2 entries in 16 bytes"),
        (pack("<QQ", 2**64 - 1, 5), "entries in 16 bytes"),
        (pack("<QQQ", 2, 5, 6), "out of order"),
        (pack("<QQQ", 2, 5, 5), "page 5 or one after it"),
        (pack("<QQQ", 2, 5, 1), "pages outside the file"),
        (pack("<QQ", 1, 100), "pages outside the file"),
    ],
)
def test_a_list_of_free_pages_is_judged(walk_over: Any, listed: bytes, said: str) -> None:
    sound = pack("<QQQQ", 2, 9, 8, 0)  # one may have room for more
    numbers = [row(n.to_bytes(8, "little"), value) for n, value in ((1, sound), (300, listed))]
    walk = walk_over({2: page_of(numbers, number=2)})
    found = free_lists(-1, walk, Tree("free list", 2, 1, 300))
    assert pages_of(next(found)) == (9, 8)
    assert walk.referred() == {2, 8, 9}
    assert walk.own == 1
    with pytest.raises(DamageError, match=said):
        next(found)


def test_a_walk_fears_no_number(walk_over: Any) -> None:
    pages = {2: page_of([child(2**48 - 1, b"")], number=2, flags=1)}
    walk = walk_over(pages, last=2**64 - 1)
    with pytest.raises(DamageError, match="outside the file"):
        walk.judge(Tree("tree", 2, 2))
    with pytest.raises(DamageError, match="outside the file"):
        walk.judge(Tree("tree", 2**64 - 1, 0))
    with pytest.raises(DamageError, match="leaves the file"):
        walk.run(2**64 - 1, 2**64 - 1)


def test_a_walk_says_why_a_file_cannot_be_read() -> None:
    reading, writing = os.pipe()
    for fd in (reading, writing):
        walk = walk_of(fd, 9)
        with pytest.raises(OSError, match=r"Illegal seek|Bad file"):
            walk.judge(Tree("tree", 2, 1))
        os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        walk_of(reading, 9)


def test_a_walk_finds_what_a_meta_page_says(tmp_path: Path) -> None:
    path = tmp_path / "agent.memcore"
    chance = random.Random(5)
    with memcore.open(path) as db:
        for number in range(3_000):
            text = "word " * chance.choice((1, 20, 2_000 if number % 40 == 0 else 5))
            db.session(f"s{number % 40}").append({"role": "user", "content": text})
        db.delete_session("s3")
    with path.open("rb") as file:
        meta = newest_meta(file.fileno(), str(path))
        assert meta.main_depth > 2
        assert meta.free_pages
        walk = walk_of(file.fileno(), meta.last_page)
        walk.judge(Tree("main tree", meta.main_root, meta.main_depth))
        assert (walk.own, walk.rows) == (meta.main_pages, meta.entries)
        by_leaf = walk_of(file.fileno(), meta.last_page)
        leaves = list(by_leaf.leaves(Tree("main tree", meta.main_root, meta.main_depth)))
        keys = [row.key for leaf in leaves for row in leaf]
        assert [row.key for leaf in leaves[::-1] for row in leaf] == sorted(keys)
        assert len(keys) == meta.entries
        for row_ in (row for leaf in leaves for row in leaf if row.run):
            by_leaf.run(row_.run, row_.size)
        assert by_leaf.referred() == walk.referred()


def test_a_meta_page_that_miscounts_its_trees_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.memcore"
    with memcore.open(path) as db:
        db.session("s").append({"role": "user", "content": "hello"})
        meta = newest_meta(db.engine.store.environment().fd, str(path))
    entries = bytes(meta.image).index(pack("<Q", meta.entries), 64)
    content = bytearray(path.read_bytes())
    at = (meta.txnid & 1) * PAGE + 16 + entries
    content[at : at + 8] = pack("<Q", meta.entries + 1)
    path.write_bytes(content)
    with pytest.raises(memcore.CorruptStoreError, match="its meta page says"):
        memcore.open(path, verify=True)


def test_a_run_may_be_longer_than_its_value(walk_over: Any) -> None:
    """LMDB writes a value over a longer one of the same transaction, and leaves that its pages."""
    pages = {2: page_of([run(b"a", 5, 3)], number=2), 3: header(3, 8)}
    walk = walk_over(pages)
    walk.judge(Tree("tree", 2, 1))
    assert (walk.own, walk.referred()) == (9, {2, *range(3, 11)})


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a file system in memory")
@pytest.mark.skipif(
    build_flavour() == "sanitize", reason="the sanitizer ends a process that asks for so much"
)
def test_a_file_too_large_for_its_pages_to_be_noted_is_refused() -> None:
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        os.ftruncate(file.fileno(), 2**60)
        with pytest.raises(memcore.StoreAccessError, match="more memory than there is"):
            walk_of(file.fileno(), 2**50)
