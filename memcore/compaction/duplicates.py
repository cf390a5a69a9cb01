"""Content that comes again: older copies become short references to the newest one.

The newest stays, because it is the last that a cut leaves out. A reference never is a candidate
itself, so a second pass finds nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import mul
from typing import Any, ClassVar, Final, NamedTuple

from xxhash import xxh3_128_digest

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
NAME_CHARS_MAX: Final = 64
ROUNDING: Final = 1e-9
"""The product of a unit vector with itself is 1 but for this."""


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
    """As ``DropDuplicates``, for texts that mean the same by ``Reduction.embed``.

    Without an embedder it does nothing. Of the newest 256 texts, an older one goes if its cosine
    similarity to a newer one that stays is at least ``threshold``. The embedder has to take in
    whole texts: one that reads only their beginning finds texts alike that are not.

    Raises:
        InvalidOptionError: ``threshold`` is not between 0 and 1, or ``min_tokens`` below 1.
    """

    name: ClassVar[str] = "drop_similar"

    threshold: float = 0.95
    min_tokens: int = 50
    exclude_tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", checked_share("threshold", self.threshold))
        _check(self)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks of the items with older texts of the same meaning.

        Raises:
            InvalidOptionError: the embedder returned no vector a text, or no numbers.
        """
        if by.embed is None:
            return []
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
        kept: list[tuple[_Candidate, list[float]]] = []
        for candidate, vector in zip(newest, _unit_vectors(newest, by.embed), strict=True):
            likest, newer = max(
                ((sum(map(mul, vector, other)), place) for place, (_, other) in enumerate(kept)),
                default=(-1.0, -1),
            )
            if likest < self.threshold - ROUNDING:
                kept.append((candidate, vector))
            else:
                replacing.refer(candidate, kept[newer][0])
        return reading.masks(replacing.edits, "similar", by)


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
