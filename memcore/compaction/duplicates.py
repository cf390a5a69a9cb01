"""Content that comes again: older copies become short references to the newest one.

The newest stays, because it is the last that a cut leaves out. A reference never is a candidate
itself, so a second pass finds nothing more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from operator import mul
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from xxhash import xxh3_64_intdigest, xxh3_128_digest

from memcore.compaction.reading import Edited, Reading, read
from memcore.compaction.reducer import Embed, Reduction, Visible
from memcore.compaction.settings import Settings, checked_names
from memcore.errors import InvalidOptionError
from memcore.model import ItemKind, Mask
from memcore.options import checked_int, checked_share

__all__ = ["DropDuplicates", "DropSimilar"]

SAME: Final = "[the same as the later "
SIMILAR: Final = "[much the same as the later "
CANDIDATES_MAX: Final = 256
"""So many of the newest texts are compared by ``DropSimilar``: about 33,000 pairs."""
SHINGLE_WORDS: Final = 3
SKETCH_MAX: Final = 512
"""Hashes of a text that are compared: the error of a share by so many is about 0.04."""
NAME_CHARS_MAX: Final = 64
ROUNDING: Final = 1e-9
"""The product of a unit vector with itself is 1 but for this."""
_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
_WORD: Final = re.compile(f"[{_CJK}]|[^\\W{_CJK}]+")
_NEGATIONS: Final = frozenset(
    [
        "not",
        "no",
        "never",
        "none",
        "nor",
        "neither",
        "without",
        "cannot",
        "can't",
        "don't",
        "doesn't",
        "didn't",
        "won't",
        "isn't",
        "aren't",
        "wasn't",
        "t",
        "不",
        "没",
        "沒",
        "无",
        "無",
        "非",
        "未",
        "别",
        "別",
        "勿",
    ]
)
T = TypeVar("T")


class _Candidate(NamedTuple):
    """A text that may come again."""

    at: int
    order: int
    """Its place in its message."""
    text: str
    label: str
    replace: Callable[[str], Edited]


def _candidates(reading: Reading, exclude_tools: tuple[str, ...]) -> list[_Candidate]:
    """Results without media, and what the user wrote; oldest first."""
    found = []
    for order, (at, result, name, _) in enumerate(reading.results()):
        if result.leaves and not result.media and name not in exclude_tools:
            label = f"result of {name[:NAME_CHARS_MAX]}]" if name else "result]"
            found.append(_Candidate(at, order, result.text, label, result.with_text))
    for order, (at, leaf) in enumerate(reading.texts(ItemKind.USER)):

        def put(text: str, path: Any = leaf.path) -> Edited:
            return {path: text}

        found.append(_Candidate(at, order, leaf.text, "message]", put))
    return sorted(found, key=lambda candidate: candidate[:2])


def _is_reference(text: str) -> bool:
    return text.startswith((SAME, SIMILAR)) and text.endswith("]")


class _Replacing:
    """Collects the edits that put references in place of texts."""

    def __init__(self, items: Sequence[Visible], opening: str, by: Reduction) -> None:
        self.items, self.opening, self.by = items, opening, by
        self.edits: dict[int, Edited] = {}

    def refer(self, older: _Candidate, newer: _Candidate) -> None:
        """Put a reference to ``newer`` in place of ``older``, if that is shorter."""
        reference = self.opening + newer.label
        count = self.by.counter.count
        if not self.items[older.at].protected and count(reference) < count(older.text):
            self.edits.setdefault(older.at, {}).update(older.replace(reference))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDuplicates(Settings):
    """Shows a reference in place of a result or user text that comes again, word for word, later.

    Raises:
        InvalidOptionError: ``min_tokens`` below 1, or no list of tools.
    """

    name: ClassVar[str] = "drop_duplicates"

    min_tokens: int = 50
    """Shorter texts stay."""
    exclude_tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks of the items with older copies. O(n): texts are compared by their xxh3-128."""
        reading = read(items)
        replacing = _Replacing(items, SAME, by)
        newest: dict[bytes, _Candidate] = {}
        for candidate in reversed(_candidates(reading, self.exclude_tools)):
            if items[candidate.at].tokens < self.min_tokens or _is_reference(candidate.text):
                continue
            digest = xxh3_128_digest(candidate.text.encode("utf-8", "surrogatepass"))
            newer = newest.setdefault(digest, candidate)
            if newer is not candidate and by.counter.count(candidate.text) >= self.min_tokens:
                replacing.refer(candidate, newer)
        return reading.masks(replacing.edits, "duplicate", by)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSimilar(Settings):
    """As ``DropDuplicates``, for texts that are nearly equal.

    With an embedder (``Reduction.embed``) two texts are alike if the cosine of their vectors is
    at least ``threshold``; it has to take in whole texts, or it finds texts alike that are not.
    Without one they are alike if they share ``resemblance`` of their runs of three words. Of the
    newest 256 texts, an older one goes if a newer one that stays is alike.

    Raises:
        InvalidOptionError: ``threshold`` or ``resemblance`` is not between 0 and 1, or
            ``min_tokens`` below 1.
    """

    name: ClassVar[str] = "drop_similar"

    threshold: float = 0.95
    resemblance: float = 0.8
    """A judgement: a changed word costs three runs of its text and three of the other, so one word
    in 27 may differ. Texts that differ in a number or a negation are never alike."""
    min_tokens: int = 50
    exclude_tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("threshold", "resemblance"):
            object.__setattr__(self, name, checked_share(name, getattr(self, name)))
        _check(self)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks of the items with older texts of the same meaning.

        Raises:
            InvalidOptionError: the embedder returned no vector a text, or no numbers.
        """
        reading = read(items)
        # References keep their places among the newest, or a second pass would look further back.
        places = (
            candidate
            for candidate in reversed(_candidates(reading, self.exclude_tools))
            if _is_reference(candidate.text) or by.counter.count(candidate.text) >= self.min_tokens
        )
        newest = [
            candidate
            for candidate in islice(places, CANDIDATES_MAX)
            if not _is_reference(candidate.text)
        ]
        replacing = _Replacing(items, SIMILAR, by)
        if by.embed is None:
            sketches = [_sketch(candidate.text) for candidate in newest]
            pairs = _alike(sketches, _resemblance, self.resemblance)
        else:
            pairs = _alike(_unit_vectors(newest, by.embed), _cosine, self.threshold)
        for older, newer in pairs:
            replacing.refer(newest[older], newest[newer])
        return reading.masks(replacing.edits, "similar", by)


def _alike(
    features: Sequence[T], measure: Callable[[T, T], float], least: float
) -> Iterator[tuple[int, int]]:
    """``(older, newer)``: each text that is alike to a newer one that stays, and its likest."""
    kept: list[int] = []
    for at, feature in enumerate(features):
        likest, newer = max(
            ((measure(feature, features[other]), place) for place, other in enumerate(kept)),
            default=(-1.0, 0),
        )
        if likest < least - ROUNDING:
            kept.append(at)
        else:
            yield at, kept[newer]


def _cosine(one: list[float], other: list[float]) -> float:
    """Of two vectors of length 1."""
    return math.fsum(map(mul, one, other))


class _Sketch(NamedTuple):
    """The runs of words of a text as hashes: all of them, or the ``SKETCH_MAX`` smallest."""

    hashes: frozenset[int]
    runs: int
    """Of all different runs."""
    telling: tuple[str, ...]
    """The words of which one alone changes what is said: those with digits, and negations."""


def _sketch(text: str) -> _Sketch:
    """The text's runs of ``SHINGLE_WORDS`` words; a CJK character is a word.

    The smallest hashes are the same sample of both texts that are compared (Broder, "On the
    resemblance and containment of documents", 1997).
    """
    words = _WORD.findall(text.casefold()) or [text]
    shingles = {
        xxh3_64_intdigest(
            "\0".join(words[at : at + SHINGLE_WORDS]).encode("utf-8", "surrogatepass")
        )
        for at in range(max(len(words) - SHINGLE_WORDS + 1, 1))
    }
    telling = sorted(word for word in words if word in _NEGATIONS or any(map(str.isdigit, word)))
    return _Sketch(frozenset(nsmallest(SKETCH_MAX, shingles)), len(shingles), tuple(telling))


def _resemblance(one: _Sketch, other: _Sketch) -> float:
    """The share of runs that both have, of those that either has; of long texts an estimate.

    0 if they differ in a number or a negation.
    """
    if one.telling != other.telling:
        return 0.0
    fewer, more = sorted((one.runs, other.runs))
    both = one.hashes & other.hashes
    if more <= SKETCH_MAX:
        return len(both) / len(one.hashes | other.hashes)
    if not both:
        return 0.0
    sample = nsmallest(SKETCH_MAX, one.hashes | other.hashes)
    return min(sum(each in both for each in sample) / len(sample), fewer / more)


def _check(reducer: Any) -> None:
    checked_int("min_tokens", reducer.min_tokens, least=1)
    names = checked_names("exclude_tools", reducer.exclude_tools)
    object.__setattr__(reducer, "exclude_tools", names)


def _unit_vectors(candidates: list[_Candidate], embed: Embed) -> list[list[float]]:
    """The vectors of the texts, of length 1; a zero vector is like nothing and stays."""
    texts = [candidate.text for candidate in candidates]
    if not texts:
        return []
    given = [[float(number) for number in vector] for vector in embed(texts)]
    if len(given) != len(texts) or len({len(vector) for vector in given}) != 1:
        msg = (
            f"the embedder returned {len(given)} vectors of {sorted({len(v) for v in given})} "
            f"numbers for {len(texts)} texts: expected one a text, all of one length"
        )
        raise InvalidOptionError(msg)
    found = []
    for vector in given:
        length = math.hypot(*vector)
        if not math.isfinite(length):
            msg = "the embedder returned a vector with NaN or infinity: expected finite numbers"
            raise InvalidOptionError(msg)
        found.append([number / length for number in vector] if length else vector)
    return found
