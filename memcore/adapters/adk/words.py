"""The words of a text as ADK's memory in memory finds them, and the terms that lead to them.

A word is a run of letters, digits and underscores of the text in NFC, in lower case. One that mixes
Latin with other scripts counts in its runs of one script, too. A word that is not all ASCII is also
found inside of longer ones, as languages are written without spaces; so the index holds every
character of them, and every pair.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from typing import Final

__all__ = ["grams_in", "lowered", "query_words", "terms_of", "word_term"]

TEXT_CHARS_MAX: Final = 256 * 1024
"""Of a longer text only the beginning is found."""
_WORD: Final = re.compile(r"\w+")
_DOT_ABOVE: Final = "\u0307"
"""What lower case makes of a capital I with a dot: the only thing in a word that is no letter."""


def query_words(query: str) -> set[str]:
    """The words that are searched for."""
    text = unicodedata.normalize("NFC", query)
    return {word.lower() for word in _WORD.findall(text)}


def lowered(text: str) -> str:
    """The text in which words that are not all ASCII are found."""
    return unicodedata.normalize("NFC", text[:TEXT_CHARS_MAX]).lower()


def terms_of(text: str) -> set[str]:
    """All terms by which a text is found."""
    words = query_words(text[:TEXT_CHARS_MAX])
    for word in list(words):
        if not word.isascii():
            words.update("".join(run) for _, run in itertools.groupby(word, _is_latin))
    terms = {word_term(word) for word in words}
    low = lowered(text)
    if not low.isascii():
        terms |= _grams(low)
    return terms


def word_term(word: str) -> str:
    """The term of a whole word."""
    return "w" + word


def grams_in(word: str) -> list[str]:
    """The terms that every text has in which the word stands; exact for one or two characters."""
    return sorted(_grams(word) - {"g" + char for char in word if len(word) > 1})


def _grams(text: str) -> set[str]:
    """The characters beyond ASCII, and the pairs with one of them."""
    found: set[str] = set()
    before = ""
    for char in text:
        if not (char.isalnum() or char in ("_", _DOT_ABOVE)):
            before = ""
            continue
        if not char.isascii():
            found.add("g" + char)
        if before and not (char.isascii() and before.isascii()):
            found.add("g" + before + char)
        before = char
    return found


def _is_latin(char: str) -> bool:
    if char.isascii():
        return char.isalnum() or char == "_"
    return unicodedata.name(char, "").startswith("LATIN")
