"""Terms, stems, postings and ranking in the extension."""

from __future__ import annotations

import math
import random
import re
import struct
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memcore._fast import (
    SearchTable,
    best_vectors,
    invert_terms,
    is_packed,
    pack_postings,
    quantized,
    search_spans,
    search_terms,
    search_words,
    stem_word,
    times_in,
    unpack_postings,
)

ROOT = Path(__file__).parents[2]
KEY = bytes(range(16))
PUBLISHED = {
    "consign": "consign", "consigned": "consign", "consigning": "consign",
    "consignment": "consign", "consist": "consist", "consisted": "consist",
    "consistency": "consist", "consistent": "consist", "consistently": "consist",
    "knack": "knack", "knavish": "knavish", "kneaded": "knead", "knelt": "knelt", "knife": "knife",
    "knightly": "knight", "knots": "knot", "caresses": "caress", "ties": "tie", "cries": "cri",
    "gaps": "gap", "gas": "gas", "agreed": "agre", "luxuriated": "luxuri", "hopping": "hop",
    "hoping": "hope", "happy": "happi", "by": "by", "say": "say", "generously": "generous",
    "evening": "evening", "dying": "die", "news": "news", "skies": "sky", "proceed": "proceed",
    "exceed": "exceed", "succeeded": "succeed", "universal": "universal",
}  # fmt: skip
"""Examples of the algorithm's published description."""


ENDINGS = re.findall(
    r"\w+",
    "ed eed ing edly eedly ingly s sses ies ied us ss anci enci ogi li bli abli alli fulli lessli "
    "ousli entli aliti biliti iviti tional ational alism ation ization izer ator iveness fulness "
    "ousness ogist icate ative alize iciti ical ful ness ic ance ence able ible ate ive ize iti "
    "al ism ion er ous ant ent ment ement e l y ly ying",
)
STARTS = re.findall(
    r"\w+",
    "arsen commun emerg gener inter later organ past univers succ proc exc even cann inn earr "
    "herr out a e o add egg off y yy by ay",
)


def vocabulary() -> list[str]:
    """The words of the documentation and of the package, and many with endings put on."""
    files = [*ROOT.glob("docs/*.md"), *ROOT.glob("memcore/**/*.py"), *ROOT.glob("tests/**/*.py")]
    words = {w for f in files for w in re.findall("[a-z0-9]+", f.read_text("utf-8").lower())}
    chosen = random.Random(7)
    base = sorted(word for word in words if len(word) <= 40)
    made = [chosen.choice(base)[: chosen.randint(0, 9)] for _ in range(20_000)]
    made += [chosen.choice(STARTS) for _ in range(5000)]
    made += [
        "".join(chosen.choice("aeiouybcdgstlw") for _ in range(chosen.randint(1, 5)))
        for _ in range(15_000)
    ]
    return base + [each + chosen.choice(ENDINGS) + chosen.choice(["", *ENDINGS]) for each in made]


def test_stems_are_those_of_the_published_examples() -> None:
    assert {word: stem_word(word) for word in PUBLISHED} == PUBLISHED


def test_stems_are_those_of_snowball() -> None:
    snowballstemmer = pytest.importorskip("snowballstemmer")
    stem = snowballstemmer.stemmer("english").stemWord
    words = vocabulary()
    assert len(words) > 40_000
    assert [w for w in words if stem_word(w) != stem(w)] == []


def test_a_word_is_found_by_its_stem_however_it_begins() -> None:
    # Highlights look at the beginning of a word before they stem it.
    for word in vocabulary():
        spans = search_spans(word, KEY)
        assert [search_spans(word, KEY, {term: stem_word(word)}) for term, _, _ in spans] == [
            [span] for span in spans
        ], word


def test_a_stem_is_only_made_of_what_has_one() -> None:
    for word in ("", "Running", "naïves", "日本", "cats'", "x" * 65):
        assert stem_word(word) == word


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The cats were RUNNING, and ran.", ["cat", "run", "ran"]),
        ("caroline's e-mail_address 2024-05", ["carolin", "e", "mail", "address", "2024", "05"]),
        ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
        ("a 日 b日本c", ["日", "b", "日本", "c"]),
        ("한국어 x", ["한국", "국어", "x"]),
        ("naïve cafés", ["naïve", "cafés"]),
        ("हिन्दी", ["हिन्दी"]),
        ("", []),
        ("the of and", []),
        ("\ud800 \U0001f600 ok", ["ok"]),
    ],
)
def test_a_text_is_split_into_terms(text, terms) -> None:
    assert search_words(text) == terms
    spans = search_spans(text, KEY)
    assert len(spans) == len(terms)
    assert all(0 <= start < stop <= len(text) for _, start, stop in spans)
    packed, length = search_terms(text, KEY, 100)
    assert length == len(terms)
    assert {term for term, _, _ in spans} == {
        int.from_bytes(packed[at : at + 8], "little") for at in range(0, len(packed), 9)
    }


def test_long_words_and_long_texts_are_bounded() -> None:
    assert search_words("x" * 1000) == ["x" * 64]
    assert len(search_words("é" * 1000)[0].encode()) == 64
    packed, length = search_terms("one two three four", KEY, 3)
    assert (length, len(packed)) == (3, 27)
    packed, length = search_terms("word " * 1000, KEY, 10_000)
    assert (length, packed[8]) == (1000, 255)
    term = int.from_bytes(packed[:8], "little")
    assert (times_in(packed, term), times_in(packed, term + 1)) == (255, 0)


def test_another_key_makes_other_terms() -> None:
    assert search_terms("word", KEY, 9) != search_terms("word", bytes(16), 9)
    with pytest.raises(ValueError, match="16 bytes"):
        search_terms("word", b"short", 9)


def postings(*pairs: tuple[int, int]) -> bytes:
    """Postings in the open."""
    return b"".join(struct.pack("<II", *pair) for pair in pairs)


def test_a_block_holds_what_it_was_given() -> None:
    raw = postings((5, 1), (6, 3), (900, 255), (2**32 - 2, 1))
    block = pack_postings(raw, 5)
    assert unpack_postings(block, 5, 2**32 - 1) == raw
    with pytest.raises(ValueError, match="damaged"):
        unpack_postings(block, 5, 900)
    with pytest.raises(ValueError, match="damaged"):
        unpack_postings(block, 2**31, 2**32 - 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"1234567", postings((4, 1)), postings((7, 1), (7, 1)), postings((8, 1), (7, 1)),
        postings((9, 0)), postings((9, 256)), postings(*((at + 5, 1) for at in range(513))),
    ],
)  # fmt: skip
def test_a_block_of_anything_else_is_refused(raw) -> None:
    with pytest.raises(ValueError, match=r"block|order"):
        pack_postings(raw, 5)


def test_no_bytes_make_a_block_read_past_its_end() -> None:
    chosen = random.Random(3)
    good = pack_postings(postings(*((at * 3, at % 250 + 1) for at in range(512))), 0)
    for _ in range(20_000):
        block = bytearray(good[: chosen.randint(0, len(good))])
        for _ in range(chosen.randint(0, 4)):
            if block:
                block[chosen.randrange(len(block))] = chosen.randrange(256)
        try:
            raw = unpack_postings(bytes(block), 0, 2**32 - 1)
        except ValueError:
            continue
        assert pack_postings(raw, 0) == bytes(block)  # there is one way to write it


def test_terms_are_inverted() -> None:
    first, second = search_terms("one two two", KEY, 9)[0], search_terms("two three", KEY, 9)[0]
    found = dict(invert_terms([(9, second), (3, first)]))
    two = search_spans("two", KEY)[0][0].to_bytes(8, "big")
    assert found[two] == postings((3, 2), (9, 1))
    assert list(found) == sorted(found)
    assert len(found) == 3
    assert invert_terms([]) == []
    for documents in ([(1, b"12345678")], [(-1, first)], [(2**32, first)]):
        with pytest.raises((ValueError, OverflowError)):
            invert_terms(documents)


def record(group: int, number: int, length: int, *, weight: int = 100, chained: int = 1) -> bytes:
    return struct.pack("<QQIIIBBBB", group, number, length, 0, 0, 1, 2, weight, chained)


def ranked(table: SearchTable, terms, pending=(), **changed):
    options = {
        "k": 10, "total": len(table), "k1": 0.9, "b": 0.4, "average": 2.0, "lend": 0.3,
        "kinds": 2**64 - 1, "roles": 2**64 - 1, "since": 0, "until": 2**32 - 1, "authors": b"",
        "ranges": None,
    }  # fmt: skip
    return table.rank(list(terms), list(pending), [], **options | changed)


def test_neighbours_lend_and_ties_go_by_document() -> None:
    for order in ((0, 1, 2), (2, 0, 1)):  # added in the order of their numbers, and not
        table = SearchTable(3)
        for ordinal, number in enumerate(order):
            table.load(ordinal, record(7, number, 2))
        table.link()
        middle = order.index(1)
        block = pack_postings(postings((middle, 1)), middle)
        best, frequencies = ranked(table, [(1, [(middle, 3, block)])])
        assert frequencies == [1]
        assert [order[ordinal] for ordinal, _, _ in best] == [1, 0, 2]
        assert best[1][1] == best[2][1] == pytest.approx(0.3 * best[0][1])
        assert [own for _, _, own in best[1:]] == [0.0, 0.0]
        assert table.record(middle)[:3] == (1, 7, 1)
    assert [each[0] for each in ranked(table, [(1, [(middle, 3, block)])], k=1)[0]] == [middle]
    outside = struct.pack("=QQQ", 7, 2, 9)
    assert [order[e[0]] for e in ranked(table, [(1, [(middle, 3, block)])], ranges=outside)[0]] == [
        2
    ]


def random_table(count: int) -> SearchTable:
    table = SearchTable(count)
    table.load(0, b"".join(record(n // 10, n % 10, 3) for n in range(count)))
    table.link()
    return table


def random_queries(count: int, number: int) -> list[dict]:
    """Of one and two terms, with vectors and without; each fifth fails once it has scored."""
    chosen, queries = random.Random(7), []
    for at in range(number):
        ordinals = sorted(chosen.sample(range(count), 40))
        block = pack_postings(postings(*((n, 1 + n % 3) for n in ordinals)), 0)
        terms = [(1, [(0, count, block)]), (2, [(0, count, block)])][: 1 + at % 2]
        query = {"terms": terms}
        if at % 3 == 0:
            numbers = chosen.randbytes(4 * count)
            scales = struct.pack("<f", 0.01) * count
            query |= {
                "vectors": [(0, scales + numbers)],
                "query": struct.pack("<f", 0.01) + chosen.randbytes(4),
                "mix": 0.6,
            }
        if at % 5 == 4:
            query["terms"] = [*terms, (3, [(0, count, b"\1\0")])]
        queries.append(query)
    return queries


def result_of(table: SearchTable, query: dict) -> object:
    try:
        return ranked(table, **query)
    except ValueError as error:
        return str(error)


def test_a_ranking_leaves_nothing_to_the_next_one() -> None:
    count = 300
    queries = random_queries(count, 60)
    expected = [result_of(random_table(count), query) for query in queries]
    assert len({str(each) for each in expected}) > len(queries) // 2
    table = random_table(count)
    assert [result_of(table, query) for query in queries] == expected

    def rank_all(seed: int) -> None:
        order = list(range(len(queries)))
        random.Random(seed).shuffle(order)
        for at in order * 5:
            assert result_of(table, queries[at]) == expected[at]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(rank_all, range(4)))


def test_a_table_refuses_what_is_damaged() -> None:
    table = SearchTable(2)
    for first, records in ((0, b"x"), (1, record(1, 1, 1) * 2), (-1, record(1, 1, 1))):
        with pytest.raises(ValueError, match="damaged"):
            table.load(first, records)
    with pytest.raises(ValueError, match="damaged"):
        table.load(0, record(1, 1, 1)[:28] + bytes((64, 0, 0, 0)))
    table.load(0, record(1, 1, 1))
    table.link()
    assert table.record(1) is None
    for terms, pending in (
        ([(1, [(0, 2, b"")])], []),
        ([(1, [(0, 2, b"\1\0")])], []),
        ([(1, [(0, 9, pack_postings(postings((8, 1)), 0))])], []),
        ([(1, [])], [(5, b"")]),
        ([(1, [])], [(0, b"12345678")]),
    ):
        with pytest.raises(ValueError, match=r"damaged|range|entry"):
            ranked(table, terms, pending)
    with pytest.raises(ValueError, match="fewer"):
        SearchTable(-1)


@pytest.mark.parametrize(("count", "dims"), [(0, 8), (1, 1), (500, 3), (200, 256), (50, 1001)])
def test_the_most_similar_vectors_are_exact(count, dims) -> None:
    chosen = random.Random(count)
    rows = [struct.pack(f"{dims}b", *(chosen.randint(-128, 127) for _ in range(dims)))
            for _ in range(count)]  # fmt: skip
    query = struct.pack(f"{dims}b", *(chosen.randint(-128, 127) for _ in range(dims)))
    wanted = struct.unpack(f"{dims}b", query)
    products = [
        sum(a * b for a, b in zip(struct.unpack(f"{dims}b", row), wanted, strict=True))
        for row in rows
    ]
    expected = sorted(enumerate(products), key=lambda each: (-each[1], each[0]))
    for k in (0, 1, 7, 1000):
        assert best_vectors(b"".join(rows), query, k) == expected[:k]


def test_vectors_of_another_length_are_refused() -> None:
    for dims in (64, 4_095, 4_096, 4_160, 65_536):  # each way to multiply, at its limits
        least, most = b"\x80" * dims, b"\x7f" * dims
        assert best_vectors(least, least, 1) == [(0, dims * 16_384)]
        assert best_vectors(least + most, most, 2) == [(1, dims * 127 * 127), (0, -dims * 16_256)]
    for vectors, query in ((b"abc", b"ab"), (b"", b""), (b"", b"x" * 65_537)):
        with pytest.raises(ValueError, match="rows"):
            best_vectors(vectors, query, 1)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9), max_size=70))
@example([0.0, -0.0])
@example([0.5, 1.5, 127.0])  # halves are rounded to even numbers, as Python does
@example([5e-324, 0.0])
def test_a_vector_is_rounded_by_its_definition(vector) -> None:
    most = max(map(abs, vector), default=0)
    numbers = [round(each / most * 127) if most else 0 for each in vector]
    scale = 1 / math.sqrt(sum(each * each for each in numbers)) if most else -0.0
    assert quantized(tuple(vector)) == struct.pack("<f", scale) + array("b", numbers).tobytes()


def test_what_is_no_vector_is_not_rounded() -> None:
    for odd in (math.nan, math.inf, -math.inf):
        assert quantized((1.0, odd)) is None
    assert quantized((1.0, "2")) == quantized((1.0, 2.0))  # as float() takes it
    with pytest.raises(TypeError):
        quantized((1.0, None))
    with pytest.raises(ValueError, match="convert"):
        quantized((1.0, "x"))
    with pytest.raises(OverflowError):
        quantized((10**400,))


def test_a_record_without_weight_is_damaged() -> None:
    """A score of 0 would let a document be counted twice, beyond the end of an array."""
    record = struct.pack("<QQIIIBBBB", 1, 1, 3, 0, 0, 1, 0, 0, 1)
    with pytest.raises(ValueError, match="damaged"):
        SearchTable(1).load(0, record)
    SearchTable(1).load(0, bytes(32))


def test_packed_terms_ascend_and_occur() -> None:
    packed, _ = search_terms("one two three four", KEY, 100)
    assert is_packed(packed)
    assert is_packed(b"")
    assert not is_packed(packed[:-1])
    assert not is_packed(packed[9:] + packed[:9])
    assert not is_packed(packed[:8] + b"\0" + packed[9:])
    assert not is_packed(packed[:9] * 2)
