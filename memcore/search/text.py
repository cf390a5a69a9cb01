"""Analysis of texts: folding, the terms of a text and of a query, highlights and snippets.

A text is folded (NFKC, case), split into words at everything that is neither a letter nor a digit,
rid of English stop words, and reduced to stems (Porter2); Chinese, Japanese and Korean are split
into pairs of characters. The extension does all of it except folding what is not ASCII. A change
to any of these needs another ``ANALYSIS``, with which indexes are built anew.
"""

from __future__ import annotations

import re
import time
from typing import Final
from unicodedata import normalize

from memcore._fast import search_spans, search_terms

__all__ = [
    "ANALYSIS",
    "DOCUMENT_TERMS_MAX",
    "folded",
    "highlights",
    "month_words",
    "packed_terms",
    "snippet_of",
]


ANALYSIS: Final = 1
"""Version of the analysis, in the head of each index."""
TEXT_CHARS_MAX: Final = 256 * 1024
"""Characters of a document that are indexed: its beginning."""
DOCUMENT_TERMS_MAX: Final = 16_384
"""Terms of a document that are indexed: its first ones."""
_SNIPPET_CHARS: Final = 200
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
_CHUNK: Final = re.compile(r"\S+")
_PIECE: Final = re.compile(r".{1,1024}(?:\s|\Z)|.{1,1024}", re.DOTALL)
"""Piece that is normalized at a time: sorting a run of combining marks takes quadratic time."""


def folded(text: str) -> str:
    """Return a text in the form in which it is split: compatible characters and cases are one."""
    if text.isascii():
        return text  # the extension folds the case of these itself
    return "".join(
        normalize("NFKC", normalize("NFKC", piece).casefold()) for piece in _PIECE.findall(text)
    )


def packed_terms(text: str, key: bytes) -> tuple[bytes, int]:
    """Return the packed terms of a text, under an index's key, and its length in terms."""
    return search_terms(folded(text[:TEXT_CHARS_MAX]), key, DOCUMENT_TERMS_MAX)


def month_words(seconds: float) -> str:
    """Return the English month and the year of a time in UTC: words that date a document."""
    when = time.gmtime(seconds)
    return f"{_MONTHS[when.tm_mon - 1]} {when.tm_year}"


def highlights(text: str, key: bytes, wanted: dict[int, str]) -> list[tuple[int, int]]:
    """Return ``(start, stop)`` of the words of a text whose terms are ``wanted``, in order.

    Folding may change lengths: a word whose length changes is highlighted as a whole.
    """
    found: list[tuple[int, int]] = []
    if text.isascii():
        return [(start, stop) for _, start, stop in search_spans(text, key, wanted)]
    for chunk in _CHUNK.finditer(text):
        start, word = chunk.start(), chunk[0]
        plain = folded(word)
        for _, first, stop in search_spans(plain, key, wanted):
            whole = len(plain) != len(word)
            found.append((start, chunk.end()) if whole else (start + first, start + stop))
    return _merged(found)


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join overlapping spans, such as those of pairs of characters."""
    found: list[tuple[int, int]] = []
    for start, stop in spans:
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def snippet_of(
    text: str, key: bytes, wanted: dict[int, str]
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return an extract of a text of about 200 characters, and its highlights.

    It is the part with the most highlights, cut at spaces, with white space as single spaces.
    """
    plain = " ".join(text[:TEXT_CHARS_MAX].split())
    spans = highlights(plain, key, wanted)
    if len(plain) <= _SNIPPET_CHARS:
        return plain, tuple(spans)
    start, stop = _window(plain, spans)
    before, behind = "…" if start else "", "…" if stop < len(plain) else ""
    shift = len(before) - start
    shown = tuple((a + shift, b + shift) for a, b in spans if start <= a and b <= stop)
    return before + plain[start:stop] + behind, shown


def _window(text: str, spans: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the part of a text to show."""
    best, most, behind = 0, 0, 0
    for at, (first, _) in enumerate(spans):
        behind = max(behind, at)
        while behind < len(spans) and spans[behind][1] <= first + _SNIPPET_CHARS:
            behind += 1
        if behind - at > most:
            best, most = first, behind - at
    start = 0 if best < _SNIPPET_CHARS // 4 else best - _SNIPPET_CHARS // 8
    if start:
        space = text.rfind(" ", start - _SNIPPET_CHARS // 8, start + 1)
        start = start if space < 0 else space + 1
    stop = min(start + _SNIPPET_CHARS, len(text))
    if stop < len(text):
        space = text.rfind(" ", stop - _SNIPPET_CHARS // 8, stop + 1)
        stop = stop if space <= start else space
    return start, stop
