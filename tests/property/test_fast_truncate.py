"""Truncation keeps its contract on any text, and gives nearly all of the budget."""

from __future__ import annotations

import random

import pytest

import adversary
from memcore import vocab
from tiktokens import NAMES, unused_by

each = pytest.mark.parametrize("name", NAMES)
KEEPS = ("head", "tail", "middle")
MARKERS = (None, "", "…", "\n[cut]\n", "…12 tokens truncated…", "\ud83d", "'s")
SLACK_TOKENS = 24
"""What a cut may leave unused: 4 tokens or fewer in 99.99 % of such texts. More where characters of
several tokens stand in a row and no token ends between two of them, and at numbers, whose pieces of
three digits (12 bytes at most) go whole, one at either side of a gap."""


def texts(dice: random.Random, name: str) -> str:
    parts = dice.choice((2, 5, 20, 60))
    match dice.randrange(5):
        case 0:
            return adversary.soup(dice, name, parts)
        case 1:
            return adversary.byte_soup(dice, name, parts)
        case 2:
            return "".join(dice.choices("٣۴९๕7²½Ⅳ①", k=parts))
        case _:
            return adversary.nasty(dice, parts)


@each
@pytest.mark.parametrize("seed", range(3))
def test_any_cut(name: str, seed: int) -> None:
    dice, ours = random.Random(seed), vocab.load(name)
    for _ in range(400):
        text = texts(dice, name)
        total = ours.count(text)
        marker = dice.choice(MARKERS)
        least = max(1, ours.count(marker or ""))
        for budget in {
            max(least, dice.randint(1, total + 1)),
            max(least, total),
            max(least, total - 1),
        }:
            for keep in KEEPS:
                assert unused_by(name, text, budget, keep, marker) <= SLACK_TOKENS, (
                    text,
                    budget,
                    keep,
                )


@each
@pytest.mark.parametrize("keep", KEEPS)
def test_every_budget(name: str, keep: str) -> None:
    text = "The user's café — 3 items, १२३४५६७; 東京へ行く 👩‍👩‍👧‍👦!\r\n\tIt'LL do:   42\n\n" * 3
    for marker in (None, "\n…\n"):
        least = max(1, vocab.load(name).count(marker or ""))
        for budget in range(least, vocab.load(name).count(text) + 2):
            assert unused_by(name, text, budget, keep, marker) <= 8


@each
@pytest.mark.parametrize("keep", KEEPS)
def test_runs(name: str, keep: str) -> None:
    """One piece that has to be cut inside, far longer than what is kept of it."""
    for run in adversary.runs(random.Random(2), 5000):
        for budget in (1, 2, 7, 100):
            assert unused_by(name, run, budget, keep, None) <= SLACK_TOKENS, (run[:9], budget)


@each
@pytest.mark.parametrize("keep", KEEPS)
def test_runs_of_digits(name: str, keep: str) -> None:
    """Digits go by threes from the left: a cut between them must not shift what is behind it."""
    for digits in ("०७२", "७२०", "२०७", "²½³", "123"):
        text = digits * 400
        total = vocab.load(name).count(text)
        for budget in (total // 3, total // 2, total // 2 + 1, total - 1, total - 2):
            assert unused_by(name, text, budget, keep, None) <= SLACK_TOKENS, (digits, budget)


@each
def test_it_is_cut_between_characters(name: str) -> None:
    """No half of a character is kept, nor is a surrogate pair torn."""
    ours = vocab.load(name)
    for text in ("😀" * 50, "\ud83d\ude00" * 50, "𓀀" * 50, "ａ中é" * 50):
        for budget in range(1, 40):
            for keep in KEEPS:
                found, _, _ = ours.truncate(text, budget, keep=keep)
                assert "\ufffd" not in found
                assert not found.startswith("\ude00")
                assert not found.endswith("\ud83d")


@each
@pytest.mark.parametrize("keep", KEEPS)
def test_long_texts(name: str, keep: str) -> None:
    dice = random.Random(6)
    text = "".join(adversary.soup(dice, name, 40) + adversary.nasty(dice, 30) for _ in range(200))
    total = vocab.load(name).count(text)
    for budget in (1, 64, 65, 1000, total // 2, total - 1, total, total + 1, 2**62):
        found, kept, counted = vocab.load(name).truncate(text, budget, keep=keep, marker=None)
        assert counted == total
        assert kept == vocab.load(name).count(found) <= budget
        assert (found is text) == (budget >= total)
        assert min(budget, total) - kept <= SLACK_TOKENS
        if keep != "middle":
            assert (text.startswith if keep == "head" else text.endswith)(found)


@each
def test_what_cannot_be_done(name: str) -> None:
    cut = vocab.load(name).truncate
    for budget in (0, -1, -(2**62)):
        with pytest.raises(ValueError):
            cut("text", budget)
    with pytest.raises(ValueError):
        cut("text and more text", 2, marker="a marker that is longer than that")
    with pytest.raises(ValueError):
        cut("text", 3, keep="ends")
    for wrong in (None, b"text", 7):
        with pytest.raises(TypeError):
            cut(wrong, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        cut("text", 3, marker=b"x")  # type: ignore[arg-type]
    with pytest.raises((TypeError, OverflowError)):
        cut("text", "3")  # type: ignore[arg-type]


@each
def test_fits(name: str) -> None:
    """The free bounds never say what counting would not."""
    ours, dice = vocab.load(name), random.Random(7)
    for _ in range(300):
        text = texts(dice, name)
        total = ours.count(text)
        for most in (-(2**62), -1, 0, total - 1, total, total + 1, len(text), 5 * len(text), 2**62):
            assert ours.fits(text, most) == (total <= most)
    assert ours.fits("", 0)
