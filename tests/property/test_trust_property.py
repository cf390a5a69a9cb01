"""Laws of how statements are compared and judged: the fast ways find what the plain ones do."""

from __future__ import annotations

import re
import sys
import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memcore.errors import InvalidItemError
from memcore.memory import trust
from memcore.memory.judge import _dates_near
from memcore.memory.trust import checked_text, is_pasted, normalised, own_words, signs

SIGNS = ("Sm", "Sc", "Sk", "So", "Nl", "No", "Co", "Cn", "Cs")
CHARS = st.characters(codec=None)
LIKELY = st.sampled_from(
    [
        *"ab1 .!?>`~\"'\n\r\t\x0b\x1c\x85\u2028+$^|\u00a0\u3000",
        *("```", "~~~", '"""', "\n> ", "tea ", "likes tea "),
        *"\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d\u300e\u300f\u3002\uff0e\uff1e\uff02\uff40",
        *"\u200b\u200c\u200d\ufe0e\ufe0f\u20e3\u00ad\u0915\u2764\U0001f44d\U0001f151",
    ]
)
TEXTS = st.lists(st.one_of(LIKELY, CHARS), max_size=40).map("".join)


def plainly_normalised(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return re.sub(r"\s+", " ", folded).strip(" .!?\u3002")


def plain_signs(text: str) -> set[str]:
    plain = unicodedata.normalize("NFKC", text)
    return {char for char in plain if unicodedata.category(char) in SIGNS}


def plain_words(text: str) -> set[str]:
    found = re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
    return set(found) | plain_signs(text)


def plainly_split(text: str) -> tuple[str, str]:
    """Return a text's own and pasted parts, found step by step."""
    pasted: list[str] = []
    rest = trust._without_lines(text, pasted)
    rest = trust._without_blocks(rest, pasted)
    rest = trust._without_quotations(rest, pasted)
    return trust._without_straight(rest, pasted), "\n".join(pasted)


@given(TEXTS)
@example(" . \x1f.")
@example("\u3002 a\u00a0\u3000b \u3002")
def test_texts_are_compared_as_before(text):
    assert normalised(text) == plainly_normalised(text)
    assert signs(text) == plain_signs(text)


def test_every_character_is_compared_as_before():
    for first in range(0, sys.maxunicode + 1, 256):
        chars = [chr(code) for code in range(first, first + 256)]
        text = "".join(f"{char}a {char}{char}. " for char in chars)
        assert normalised(text) == plainly_normalised(text)
        assert signs(text) == plain_signs(text)


@given(TEXTS, st.lists(TEXTS, max_size=3), st.booleans())
@example("tea", ["> tea"], False)
@example("\U0001f44d", ["ok"], True)
def test_pasted_parts_are_found_as_before(statement, texts, foreign):
    split = [plainly_split(text) for text in texts]
    own, pasted = ("\n".join(parts) for parts in zip(*split, strict=True)) if split else ("", "")
    words, of_user = plain_words(statement), plain_words(own)
    expected = words - of_user if foreign else words & (plain_words(pasted) - of_user)
    assert is_pasted(statement, texts, foreign=foreign) is bool(expected)
    assert own_words(texts) == own


@given(TEXTS)
@example("a\u200db")
@example("\u0915\u200d\u0915")
@example("\u2764\ufe0f")
@example("1\ufe0f\u20e3")
@example("\u2764\ufe0f\ufe0f")
@example("\udc80")
def test_hidden_characters_are_refused_as_before(text):
    told = text.replace("\r\n", "\n").replace("\r", "\n")
    if trust._HIDDEN.search(told) or not plainly_normalised(told):
        with pytest.raises(InvalidItemError):
            checked_text(text)
    else:
        assert checked_text(text) == told


def test_every_hidden_character_is_suspect():
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        for text in (char, f"a{char}", f"{char}a", f"\u0915{char}", f"{char * 2}"):
            if trust._HIDDEN.search(text):
                assert trust._SUSPECT.search(text)


@given(st.floats() | st.floats(-1e11, 3e11) | st.integers(0, 2**33).map(float))
@example(1_709_164_800.0)  # 29 February
@example(1_735_603_200.0)  # the last day of a year
def test_the_days_around_a_time_are_those_of_the_calendar(at):
    try:
        day = datetime.fromtimestamp(at, UTC)
        near = [day + timedelta(days=shift) for shift in range(-8, 9)]
    except (OverflowError, ValueError, OSError):
        assert _dates_near(at) == (frozenset(), frozenset())
        return
    numbers = {str(part) for each in near for part in (each.year, each.month, each.day)}
    assert _dates_near(at) == (
        numbers | {str(day.year - 1), str(day.year + 1)},
        {each.strftime("%B").casefold() for each in near},
    )
