"""The exact counters give tiktoken's ids and counts, whatever the text."""

from __future__ import annotations

import random
import sys
import threading
from array import array

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import adversary
from memcore import vocab
from memcore._fast import build_flavour
from tiktokens import NAMES, agree

each = pytest.mark.parametrize("name", NAMES)
SEEDS = range(4)

ANY = st.text(st.characters(), max_size=60)
"""Any code points, lone surrogates too."""
NASTY = st.lists(st.sampled_from(adversary.ALPHABET), max_size=25).map("".join)
RUNS = st.lists(st.tuples(st.sampled_from(adversary.ALPHABET), st.integers(1, 70)), max_size=5).map(
    lambda runs: "".join(part * times for part, times in runs)
)


@each
@settings(max_examples=300, deadline=None)
@given(text=ANY | NASTY | RUNS)
@example("")
@example("\ud83d\ude00 \ude00\ud83d \ufeff")
def test_any_text(name: str, text: str) -> None:
    agree(name, text)


@each
@pytest.mark.parametrize("seed", SEEDS)
def test_nasty_text(name: str, seed: int) -> None:
    dice = random.Random(seed)
    for parts in range(1, 400):
        agree(name, adversary.nasty(dice, dice.choice((2, 3, 4, 6, 9, parts))))


@each
@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_and_halves_of_tokens(name: str, seed: int) -> None:
    dice = random.Random(seed)
    for parts in range(1, 200):
        agree(name, adversary.soup(dice, name, dice.choice((2, 3, 5, parts))))
        agree(name, adversary.byte_soup(dice, name, dice.choice((2, 3, 5))))


@each
def test_every_pair_of_the_alphabet(name: str) -> None:
    """Each part before each other one, between letters: a few thousand pairs in a text."""
    for left in adversary.ALPHABET:
        text = "".join(f"{left}{right}a" for right in adversary.ALPHABET)
        agree(name, text)


@each
def test_every_contraction_behind_every_kind(name: str) -> None:
    for part in (*adversary.LETTERS, *adversary.MARKS, *adversary.DIGITS, *adversary.SPACES, "'"):
        text = "".join(
            f"{part}{end}{after}"
            for end in adversary.CONTRACTIONS
            for after in ("", "x", "X", " ", "é")
        )
        agree(name, text)


@each
def test_pieces_of_every_length(name: str) -> None:
    for text in adversary.edges(random.Random(5)):
        agree(name, text)


@each
def test_special_tokens_are_ordinary_text(name: str) -> None:
    ours = vocab.load(name)
    for text in adversary.SPECIALS:
        agree(name, text)
    assert ours.count("<|endoftext|>") > 1


@each
def test_every_token_that_is_text(name: str) -> None:
    """All in rows of some thousands, and one in sixteen alone."""
    texts = adversary.families(name)["any"]
    for start in range(0, len(texts), 4096):
        agree(name, "\n".join(texts[start : start + 4096]))
    for text in texts[::16]:
        agree(name, text)


@each
def test_the_ways_to_count_are_one(name: str) -> None:
    ours, dice = vocab.load(name), random.Random(9)
    texts = [adversary.nasty(dice, 30) for _ in range(200)]
    texts += [adversary.soup(dice, name, 12) for _ in range(200)]
    counts = [ours.count(text) for text in texts]
    for many in (ours.count_many(texts), ours.count_many(tuple(texts))):
        assert isinstance(many, array)
        assert many.typecode == "I"
        assert list(many) == counts
    for text, count in zip(texts, counts, strict=True):
        tokens, digits, pieces = ours.measure(text)
        assert tokens == count
        assert pieces <= digits <= 3 * pieces
    assert list(ours.count_many([])) == []


@each
def test_digits_are_counted(name: str) -> None:
    measure = vocab.load(name).measure
    assert measure("")[1:] == (0, 0)
    assert measure("no digits")[1:] == (0, 0)
    assert measure("1 22 333 4444")[1:] == (10, 5)
    assert measure("x" + "7" * 100)[1:] == (100, 34)


@each
@given(text=NASTY | ANY)
@settings(max_examples=150, deadline=None)
def test_bounds_that_cost_nothing(name: str, text: str) -> None:
    """``ceil(bytes / 128) <= tokens <= bytes``: what "surely fits" rests on."""
    ours = vocab.load(name)
    size = sum(map(len, map(ours.token, ours.encode(text))))
    assert -(-size // 128) <= ours.count(text) <= size


@each
def test_the_bounds_are_reached(name: str) -> None:
    ours = vocab.load(name)
    longest = max(range(ours.n_tokens), key=lambda at: len(ours.token(at)))
    assert len(ours.token(longest)) == 128
    assert ours.count(ours.token(longest).decode()) == 1
    assert ours.count("\U000f0000") == 4


@each
def test_what_is_no_text(name: str) -> None:
    ours = vocab.load(name)
    for wrong in (None, b"bytes", 7, ["text"]):
        for method in (ours.count, ours.encode, ours.measure):
            with pytest.raises(TypeError):
                method(wrong)  # type: ignore[arg-type]
    for wrong_texts in (None, 7, ["text", None], [b"bytes"]):
        with pytest.raises(TypeError):
            ours.count_many(wrong_texts)  # type: ignore[arg-type]


@each
def test_ids_that_are_none(name: str) -> None:
    ours = vocab.load(name)
    for wrong in (-1, ours.n_tokens, 2**31, 2**70):
        with pytest.raises((IndexError, ValueError, OverflowError)):
            ours.token(wrong)


def test_a_list_that_shrinks_while_it_is_counted():
    """Large texts are counted without the GIL, and the list is the caller's."""
    encoding = vocab.load(NAMES[0])
    large = "word " * 20_000
    for _ in range(5):
        texts = [large] * 40
        thief = threading.Thread(target=texts.clear)
        thief.start()
        counts = encoding.count_many(texts)
        thief.join()
        assert set(counts) <= {20_001}


@pytest.mark.skipif(build_flavour() != "trace", reason="nothing runs between two lines of C")
def test_a_tracer_may_count_between_two_lines():
    encoding = vocab.load(NAMES[0])
    texts = [f"hello world {number}" for number in range(20)]
    counts = [encoding.count(text) for text in texts]
    places = set()

    def tracer(frame, event, _):
        if frame.f_code.co_name in ("take", "give_back"):
            places.add((frame.f_code.co_name, event))
            encoding.count("hello")
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        again = [encoding.count(text) for text in texts]
    finally:
        sys.settrace(before)
    assert again == counts
    assert {("take", "line"), ("give_back", "line")} <= places
