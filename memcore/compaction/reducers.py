"""Reducers: pure functions from visible items to masks that shorten or drop them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from decimal import Decimal
from heapq import nsmallest
from itertools import islice
from operator import mul
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from xxhash import xxh3_128_digest

from memcore import search
from memcore._fast import classify, xxh3_64
from memcore.errors import InternalError, InvalidOptionError
from memcore.log import count_message
from memcore.model import ItemKind, Mask, Message
from memcore.options import checked_bool, checked_int, checked_share, closest
from memcore.records import record
from memcore.tokens import TokenCounter
from memcore.wire import Binding, PairPolicy, WireItem, bind
from memcore.wire.message import (
    FLAG_MODEL,
    REMOVED,
    SECOND,
    Arguments,
    CallSlot,
    Path,
    Result,
    Text,
    arguments_of,
    body_path,
    call_names,
    edited,
    results_of,
    texts_of,
    value_at,
)

__all__ = [
    "REDUCERS",
    "ClearResults",
    "DropDuplicates",
    "DropSimilar",
    "ElideOutputs",
    "Embed",
    "OffloadResults",
    "PlacedResult",
    "Reducer",
    "ReducerInput",
    "Reduction",
    "Settings",
    "StripReasoning",
    "TruncateArguments",
    "Visible",
    "as_embedder",
    "checked_names",
    "mask_of",
    "read",
    "reduce_all",
    "reducer_from",
    "shorten",
    "wordllama_embedder",
]


# --- Reducer: a pure function from visible items to masks -----------------------------------------

Embed: TypeAlias = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Returns one vector per text, all of the same length."""


class Visible(NamedTuple):
    """An item as the model currently sees it, with the masks of earlier views applied."""

    seq: int
    kind: ItemKind
    message: Message
    tokens: int
    protected: bool = False
    """True if pinned, of a protected tool, or with an open call: reducers may only read it."""
    masked: str | None = None
    """The action of the mask applied to it, if any."""


@record(frozen=True, slots=True)
class Reduction:
    """The services available to reducers: policy, token counter, result storage, embedder."""

    policy: PairPolicy
    counter: TokenCounter
    offload: Callable[[int, str | None, str], str] | None = None
    """``offload(seq, call_id, text)`` stores the text of item ``seq``'s result for ``call_id``
    (None: without an id) and returns the reference by which to read it. None: no storage."""
    embed: Embed | None = None
    """Returns one vector per text, all of the same length; None: no embedder."""


class Reducer(Protocol):
    """Protocol of a reducer, which makes items smaller without a model.

    Implementations are frozen dataclasses: equal ones behave equally.
    """

    @property
    def name(self) -> str:
        """The reducer's name in a policy mapping."""

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks for some of the items, in item order, each with fewer tokens than its item.

        Deterministic. A mask has its item's kind, and makes and answers the same calls in the same
        order.
        """

    def settings(self) -> Mapping[str, object]:
        """The options that differ from the defaults, in the form of a policy mapping."""


# --- Input of reducers, read from visible items, and masks built from their edits -----------------

Edited = dict[Path, Any]


class PlacedResult(NamedTuple):
    """A result and its position."""

    at: int
    """Index of the item."""
    result: Result
    name: str | None
    """Name of the tool."""
    call: CallSlot | None


@record(frozen=True, slots=True)
class ReducerInput:
    """Items with the binding of their calls to results."""

    items: Sequence[Visible]
    binding: Binding

    def results(self) -> list[PlacedResult]:
        """All results, oldest first."""
        names: dict[int, dict[Any, str]] = {}
        found = []
        for at, item in enumerate(self.items):
            if self.binding.kinds[at] != ItemKind.RESULT:
                continue
            slots = [slot for key, slot in self.binding.answers[at] if not key[0] & SECOND]
            for result in results_of(item.message):
                slot = slots.pop(0) if result.key is not None and slots else None
                if slot is not None and slot.at not in names:
                    names[slot.at] = call_names(self.items[slot.at].message)
                name = names[slot.at].get(slot.key) if slot is not None else None
                found.append(PlacedResult(at, result, name or result.name, slot))
        return found

    def arguments(self) -> Iterator[tuple[int, Arguments]]:
        """The arguments of all calls, oldest first."""
        for at in range(len(self.items)):
            if self.binding.calls[at]:
                for arguments in arguments_of(self.items[at].message):
                    yield at, arguments

    def texts(self, *kinds: ItemKind) -> Iterator[tuple[int, Text]]:
        """The texts of items of these kinds, without results, calls and thinking; oldest first.

        Text in the same message as results counts as the user's, as it does for providers.
        """
        for at, item in enumerate(self.items):
            kind = self.binding.kinds[at]
            if (ItemKind.USER if kind == ItemKind.RESULT else kind) in kinds:
                for text in texts_of(item.message):
                    yield at, text

    def masks(self, edits: dict[int, Edited], action: str, by: Reduction) -> list[Mask]:
        """Masks for the edited items, in order; none for protected ones and those without gain."""
        made = (mask_of(self.items[at], edits[at], action, by) for at in sorted(edits))
        return [mask for mask in made if mask is not None]


def read(items: Sequence[Visible]) -> ReducerInput:
    """Bind the items' calls to their results."""
    return ReducerInput(
        items,
        bind(WireItem(item.seq, item.message, item.kind == ItemKind.EVENT) for item in items),
    )


def mask_of(item: Visible, edits: Edited, action: str, by: Reduction) -> Mask | None:
    """The mask that shows the edited item; None if the item is protected or nothing is gained."""
    if item.protected or not edits:
        return None
    message: Message = edited(item.message, edits)
    tokens = count_message(message, by.counter)
    return Mask(item.seq, action, tokens, message) if tokens < item.tokens else None


MARKER: Final = "[… {} tokens left out …]"


def shorten(text: str, max_tokens: int, keep: str, by: Reduction) -> str:
    """Truncate a text to ``max_tokens``, including a marker with the number of tokens left out.

    A text that fits is returned as the same object. The marker's figure is exact if all of
    ``max_tokens`` is used; a marker that would take more than half of it is omitted.
    """
    total = by.counter.count(text)
    if total <= max_tokens:
        return text
    marker = MARKER.format(total - max_tokens + by.counter.count(MARKER.format(total)))
    if by.counter.count(marker) > max_tokens // 2:
        return by.counter.truncate(text, max_tokens, keep=keep).text
    return by.counter.truncate(text, max_tokens, keep=keep, marker=f"\n{marker}\n").text


# --- The options of reducers: checked on creation, serialized as a mapping ------------------------


class Settings:
    """Base class of the reducers, all frozen dataclasses: their options as a mapping."""

    __slots__ = ()

    def settings(self) -> Mapping[str, object]:
        """The options that differ from the defaults, with tuples as lists, as in JSON."""
        found: dict[str, object] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                found[field.name] = list(value) if isinstance(value, tuple) else value
        return found


def checked_names(name: str, value: Any, *, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """A list of non-empty strings as a tuple; ``known``, if given, are the allowed ones.

    Raises:
        InvalidOptionError: ``value`` is not a list, or holds anything else.
    """
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        msg = f"{name}: expected a list of strings, got {value!r:.80}"
        raise InvalidOptionError(msg)
    entries = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
    for entry in entries:
        if not isinstance(entry, str) or not entry or (known and entry not in known):
            which = f"some of {', '.join(known)}" if known else "non-empty strings"
            msg = f"{name}: expected {which}, got {entry!r:.80}"
            raise InvalidOptionError(msg)
    return tuple(entries)


# --- Clearing old results: the model has used them, and a placeholder keeps the pair intact -------
# The rule is that of Anthropic's ``clear_tool_uses`` and LangChain's ``ClearToolUsesEdit``: the
# newest results stay, and nothing is cleared for a small gain, because each clearing invalidates
# the provider's prompt cache from that point on.

CLEARED = "[cleared]"


@record(frozen=True, slots=True, kw_only=True)
class ClearResults(Settings):
    """Replaces tool results, except the newest, with a placeholder.

    Offloaded results are cleared like any other, including the reference by which to read them: if
    both reducers are used, ``keep_last`` determines how long references are shown.

    Raises:
        InvalidOptionError: a negative number, or an option of the wrong type.
    """

    name: ClassVar[str] = "clear_results"

    keep_last: int = 3
    """Number of newest results that stay, counting those of ``exclude_tools``."""
    min_gain_tokens: int = 0
    """Nothing is cleared unless the total saving is at least this."""
    exclude_tools: tuple[str, ...] = ()
    """Names of tools whose results stay."""
    placeholder: str = CLEARED
    clear_arguments: bool = False
    """True: the arguments of calls are cleared along with their results."""

    def __post_init__(self) -> None:
        checked_int("keep_last", self.keep_last)
        checked_int("min_gain_tokens", self.min_gain_tokens)
        checked_bool("clear_arguments", self.clear_arguments)
        names = checked_names("exclude_tools", self.exclude_tools)
        object.__setattr__(self, "exclude_tools", names)
        if not isinstance(self.placeholder, str) or not self.placeholder:
            msg = f"placeholder: expected a non-empty str, got {self.placeholder!r:.80}"
            raise InvalidOptionError(msg)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks for the items with old results; none if the total gain is too small."""
        reading = read(items)
        results = reading.results()
        old = [
            found
            for found in results[: max(0, len(results) - self.keep_last)]
            if found.name not in self.exclude_tools
        ]
        room = by.counter.count(self.placeholder)
        edits: dict[int, Edited] = {}
        for at, result, _, _ in old:
            is_cleared = result.text == self.placeholder and not result.media
            tokens = sum(by.counter.count(leaf.text) for leaf in result.leaves)
            if result.size and not is_cleared and (result.media or tokens > room):
                edits.setdefault(at, {}).update(result.cleared(self.placeholder))
        if self.clear_arguments:
            for at, paths in self._arguments(reading, old):
                edits.setdefault(at, {}).update(paths)
        masks = reading.masks(edits, "cleared", by)
        before = {item.seq: item.tokens for item in items}
        gain = sum(before[mask.seq] - mask.tokens for mask in masks)
        return masks if gain >= self.min_gain_tokens else []

    def _arguments(
        self, reading: ReducerInput, old: list[PlacedResult]
    ) -> list[tuple[int, Edited]]:
        """Edits of the calls whose results are all old, whether cleared or too short to clear."""
        answered = {(id(found.call), found.at) for found in old if found.call is not None}
        found = []
        for at, slots in enumerate(reading.binding.calls):
            kept = {
                slot.key
                for slot in slots
                if not slot.results or any((id(slot), r) not in answered for r in slot.results)
            }
            if len(kept) == len(slots):
                continue
            edits: Edited = {}
            for arguments in arguments_of(reading.items[at].message):
                if arguments.key is not None and arguments.key not in kept:
                    empty = {"json": "{}", "object": {}, "text": self.placeholder}
                    edits[arguments.path] = empty[arguments.form]
            found.append((at, edits))
        return found


# --- Repeated content: older copies become short references to the newest one ---------------------
# The newest copy stays, because a cut removes it last. A reference is never a candidate itself, so
# a second pass finds nothing more.

SAME: Final = "[the same as the later "
SIMILAR: Final = "[much the same as the later "
CANDIDATES_MAX: Final = 256
"""Number of newest texts that ``DropSimilar`` compares: about 33,000 pairs."""
SHINGLE_WORDS: Final = 3
SKETCH_MAX: Final = 512
"""Hashes compared per text: the error of a share estimated from this many is about 0.04."""
NAME_CHARS_MAX: Final = 64
ROUNDING: Final = 1e-9
"""Tolerance: the dot product of a unit vector with itself differs from 1 by less than this."""
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
    """A text that may be repeated later."""

    at: int
    order: int
    """Position in the message."""
    text: str
    label: str
    replace: Callable[[str], Edited]


def _candidates(reading: ReducerInput, exclude_tools: tuple[str, ...]) -> list[_Candidate]:
    """Results without media, and user texts, oldest first."""
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
    """Collects the edits that replace texts with references."""

    def __init__(self, items: Sequence[Visible], opening: str, by: Reduction) -> None:
        self.items, self.opening, self.by = items, opening, by
        self.edits: dict[int, Edited] = {}

    def refer(self, older: _Candidate, newer: _Candidate) -> None:
        """Replace ``older`` with a reference to ``newer``, if that is shorter."""
        reference = self.opening + newer.label
        count = self.by.counter.count
        if not self.items[older.at].protected and count(reference) < count(older.text):
            self.edits.setdefault(older.at, {}).update(older.replace(reference))


@record(frozen=True, slots=True, kw_only=True)
class DropDuplicates(Settings):
    """Replaces a result or user text that is repeated verbatim later with a reference.

    Raises:
        InvalidOptionError: ``min_tokens`` is below 1, or ``exclude_tools`` is not a list.
    """

    name: ClassVar[str] = "drop_duplicates"

    min_tokens: int = 50
    """Shorter texts stay."""
    exclude_tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks for the items with older copies. O(n): texts are compared by xxh3-128 digest."""
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


@record(frozen=True, slots=True, kw_only=True)
class DropSimilar(Settings):
    """As ``DropDuplicates``, for texts that are nearly equal.

    With an embedder (``Reduction.embed``), two texts are similar if the cosine similarity of their
    vectors is at least ``threshold``; the embedder has to embed whole texts, not just their
    beginnings. Without one, they are similar if they share ``resemblance`` of their three-word
    shingles. Among the newest 256 texts, an older one is replaced if it is similar to a newer one
    that stays.

    Raises:
        InvalidOptionError: ``threshold`` or ``resemblance`` is not between 0 and 1, or
            ``min_tokens`` is below 1.
    """

    name: ClassVar[str] = "drop_similar"

    threshold: float = 0.95
    resemblance: float = 0.8
    """A judgement: a changed word costs three shingles in each text, so one word in 27 may differ.
    Texts that differ in a number or a negation are never similar."""
    min_tokens: int = 50
    exclude_tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("threshold", "resemblance"):
            object.__setattr__(self, name, checked_share(name, getattr(self, name)))
        _check(self)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks for the items with older texts of the same meaning.

        Raises:
            InvalidOptionError: the embedder did not return one vector of finite numbers per text,
                all of the same length.
        """
        reading = read(items)
        # References count toward the newest texts, or a second pass would look further back.
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
    """``(older, newer)``: each text similar to a newer one that stays, with its closest match."""
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
    """Cosine similarity of two unit vectors."""
    return math.fsum(map(mul, one, other))


class _Sketch(NamedTuple):
    """The hashed shingles of a text: all of them, or the ``SKETCH_MAX`` smallest hashes."""

    hashes: frozenset[int]
    runs: int
    """Number of distinct shingles."""
    telling: tuple[str, ...]
    """The words that each change the meaning on their own: those with digits, and negations."""


def _sketch(text: str) -> _Sketch:
    """The sketch of the text's shingles of ``SHINGLE_WORDS`` words; a CJK character is a word.

    Taking the smallest hashes selects the same sample from both of the texts compared (Broder, "On
    the resemblance and containment of documents", 1997).
    """
    words = _WORD.findall(text.casefold()) or [text]
    shingles = {
        xxh3_64("\0".join(words[at : at + SHINGLE_WORDS]).encode("utf-8", "surrogatepass"))
        for at in range(max(len(words) - SHINGLE_WORDS + 1, 1))
    }
    telling = sorted(word for word in words if word in _NEGATIONS or any(map(str.isdigit, word)))
    return _Sketch(frozenset(nsmallest(SKETCH_MAX, shingles)), len(shingles), tuple(telling))


def _resemblance(one: _Sketch, other: _Sketch) -> float:
    """The Jaccard similarity of the shingles, an estimate for long texts.

    0 if the texts differ in a number or a negation.
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
    """The unit vectors of the texts; a zero vector stays as it is, similar to nothing."""
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


# --- Offloading large results: stored elsewhere, replaced with a preview and a reference ----------
# The thresholds are those of DeepAgents, which moves results above 20,000 tokens to files and shows
# their first and last five lines.

MIN_TOKENS_LEAST: Final = 100
"""Below this, a preview with a reference saves nothing."""
PREVIEW_TOKENS_MAX: Final = 500
OFFLOADED: Final = "[offloaded: {} tokens, to be read by {}]"


@record(frozen=True, slots=True, kw_only=True)
class OffloadResults(Settings):
    """Stores large results through ``Reduction.offload`` and shows both ends and a reference.

    Does nothing without such storage. Only text is moved: images and other media stay.

    Raises:
        InvalidOptionError: ``min_tokens`` is below 100, or another number is negative.
    """

    name: ClassVar[str] = "offload_results"

    min_tokens: int = 20_000
    """Results with less text than this stay."""
    preview_lines: int = 5
    """Number of first and of last lines shown, in total at most 500 tokens and a quarter of
    ``min_tokens``."""
    keep_last: int = 0
    """Number of newest results that stay."""
    exclude_tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checked_int("min_tokens", self.min_tokens, least=MIN_TOKENS_LEAST)
        checked_int("preview_lines", self.preview_lines)
        checked_int("keep_last", self.keep_last)
        names = checked_names("exclude_tools", self.exclude_tools)
        object.__setattr__(self, "exclude_tools", names)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks for the items with large results; their texts are stored first."""
        if by.offload is None:
            return []
        reading = read(items)
        results = reading.results()
        edits: dict[int, Edited] = {}
        for at, result, name, _ in results[: max(0, len(results) - self.keep_last)]:
            item, text = items[at], result.text
            if item.protected or item.tokens < self.min_tokens or name in self.exclude_tools:
                continue
            tokens = by.counter.count(text)
            if tokens < self.min_tokens:
                continue
            call_id = None if result.key is None else result.key[1]
            reference = by.offload(item.seq, call_id, text)
            shown = OFFLOADED.format(tokens, reference) + self._preview(text, by)
            if by.counter.count(shown) < self.min_tokens:  # else it would be offloaded again
                edits.setdefault(at, {}).update(result.with_text(shown))
        return reading.masks(edits, "offloaded", by)

    def _preview(self, text: str, by: Reduction) -> str:
        if not self.preview_lines:
            return ""
        lines = text.splitlines()
        left_out = len(lines) - 2 * self.preview_lines
        if left_out > 0:
            head, tail = lines[: self.preview_lines], lines[-self.preview_lines :]
            text = "\n".join((*head, f"[… {left_out} lines left out …]", *tail))
        most = min(PREVIEW_TOKENS_MAX, self.min_tokens // 4)
        return "\n" + shorten(text, most, "middle", by)


# --- Truncating large outputs, texts and call arguments to an exact token count -------------------

TOKENS_LEAST: Final = 16
"""Below this, little but the marker would remain."""
DEPTH_MAX: Final = 64
"""Strings nested deeper than this in arguments stay."""
_KINDS: Final = {"user": ItemKind.USER, "assistant": ItemKind.ASSISTANT}


@record(frozen=True, slots=True, kw_only=True)
class ElideOutputs(Settings):
    """Truncates large outputs to a token count, with a marker where text is left out.

    Only the text counts, by the session's counter. Several text blocks of one result become one;
    images and other media stay.

    Raises:
        InvalidOptionError: ``max_tokens`` is below 16, or ``keep`` or a kind is unknown.
    """

    name: ClassVar[str] = "elide_outputs"

    max_tokens: int = 2_000
    """Maximum tokens of one output, including the marker."""
    keep: str = "middle"
    """``head``, ``tail``, or ``middle`` for both ends (as ``TokenCounter.truncate``)."""
    exclude_tools: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("result",)
    """Kinds of texts to truncate: ``result``, ``user``, ``assistant``."""

    def __post_init__(self) -> None:
        checked_int("max_tokens", self.max_tokens, least=TOKENS_LEAST)
        checked_keep(self.keep)
        names = checked_names("exclude_tools", self.exclude_tools)
        object.__setattr__(self, "exclude_tools", names)
        kinds = checked_names("kinds", self.kinds, known=("result", *_KINDS))
        object.__setattr__(self, "kinds", kinds)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks for the items with texts above ``max_tokens``."""
        reading = read(items)
        edits: dict[int, Edited] = {}
        if "result" in self.kinds:
            for at, result, name, _ in reading.results():
                if name in self.exclude_tools or items[at].tokens <= self.max_tokens:
                    continue
                text = result.text
                cut = shorten(text, self.max_tokens, self.keep, by)
                if cut is not text:
                    edits.setdefault(at, {}).update(result.with_text(cut))
        for at, leaf in reading.texts(*(_KINDS[kind] for kind in self.kinds if kind in _KINDS)):
            if items[at].tokens > self.max_tokens:
                cut = shorten(leaf.text, self.max_tokens, self.keep, by)
                if cut is not leaf.text:
                    edits.setdefault(at, {})[leaf.path] = cut
        return reading.masks(edits, "elided", by)


def checked_keep(keep: Any) -> None:
    """Refuse a value of ``keep`` that ``TokenCounter.truncate`` does not accept.

    Raises:
        InvalidOptionError: ``keep`` is not ``head``, ``tail`` or ``middle``.
    """
    if keep not in ("head", "tail", "middle"):
        msg = f"keep: expected 'head', 'tail' or 'middle', got {keep!r:.80}"
        raise InvalidOptionError(msg)


@record(frozen=True, slots=True, kw_only=True)
class TruncateArguments(Settings):
    """Shortens large strings in the arguments of older calls; the JSON keeps its shape and keys.

    Arguments that are not valid JSON stay, and so do the actions of shell, patch and computer
    calls, whose form providers validate.

    Raises:
        InvalidOptionError: ``max_tokens`` is below 16, or ``keep_last`` is negative.
    """

    name: ClassVar[str] = "truncate_arguments"

    max_tokens: int = 500
    """Maximum tokens of one string, including the marker."""
    keep_last: int = 3
    """Number of newest calling items whose arguments stay unchanged."""
    keep: str = "head"
    exclude_tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checked_int("max_tokens", self.max_tokens, least=TOKENS_LEAST)
        checked_int("keep_last", self.keep_last)
        checked_keep(self.keep)
        names = checked_names("exclude_tools", self.exclude_tools)
        object.__setattr__(self, "exclude_tools", names)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks for the calling items with strings above ``max_tokens``."""
        reading = read(items)
        edits: dict[int, Edited] = {}
        last = self._first_kept(reading)
        for at, arguments in reading.arguments():
            if at >= last or arguments.name in self.exclude_tools:
                continue
            if items[at].tokens > self.max_tokens and not items[at].protected:
                value = value_at(items[at].message, arguments.path)
                cut = self._shortened(value, arguments, by)
                if cut is not value:
                    edits.setdefault(at, {})[arguments.path] = cut
        return reading.masks(edits, "arguments", by)

    def _first_kept(self, reading: ReducerInput) -> int:
        if not self.keep_last:
            return len(reading.items)
        calling = [at for at, slots in enumerate(reading.binding.calls) if slots]
        return calling[-self.keep_last] if self.keep_last <= len(calling) else 0

    def _shortened(self, value: Any, arguments: Arguments, by: Reduction) -> Any:
        if arguments.form != "json":
            return self._walk(value, by, 0)
        try:
            parsed = json.loads(value, parse_constant=_refuse, parse_float=_exact)
            cut = self._walk(parsed, by, 0)
            return value if cut is parsed else _written(cut)
        except (ValueError, RecursionError):
            return value  # not JSON, or JSON that would not round-trip

    def _walk(self, value: Any, by: Reduction, depth: int) -> Any:
        """The value with large strings shortened; the same object if there are none."""
        if isinstance(value, str):
            return shorten(value, self.max_tokens, self.keep, by)
        if depth == DEPTH_MAX or not isinstance(value, dict | list):
            return value
        made: Any = dict(value) if isinstance(value, dict) else list(value)
        changed = False
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            made[key] = self._walk(entry, by, depth + 1)
            changed = changed or made[key] is not entry
        return made if changed else value


def _refuse(constant: str) -> None:
    msg = f"{constant} is no JSON"
    raise ValueError(msg)


def _exact(number: str) -> float:
    """Parse a number, refusing one that would not round-trip exactly."""
    found = float(number)
    if Decimal(repr(found)) != Decimal(number):
        _refuse(number)
    return found


def _written(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate can only be sent escaped
        return json.dumps(value, separators=(",", ":"))
    return text


# --- Stripping the model's thinking from completed turns, where its provider allows it ------------
# * Anthropic: thinking is bound to the history before it, which a compaction changes. It may be
#   removed from earlier turns, but not from the latest assistant turn or while its tool loop is
#   open.
# * Gemini: thoughts may be removed from earlier turns. Signatures on calls stay: the first call of
#   the current turn needs its own, and they cost nothing.
# * OpenAI Responses: a model item with a stored id is refused without the reasoning item before it.
#   Reasoning is removed only if no later model item of the same response has an id.
# * OpenAI chat (DeepSeek, OpenRouter, LiteLLM): ``reasoning_content`` and similar fields are
#   removed.

_BLOCKS: Final = frozenset(("thinking", "redacted_thinking"))
_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")
_SAID: Final = ("refusal", "audio")


@record(frozen=True, slots=True, kw_only=True)
class StripReasoning(Settings):
    """Removes the thinking of completed turns; a message of nothing else is hidden.

    Raises:
        InvalidOptionError: ``keep_last_turn`` is not a bool.
    """

    name: ClassVar[str] = "strip_reasoning"

    keep_last_turn: bool = True
    """True: the model's latest turn keeps its thinking even if the user has spoken since. A turn
    in progress always keeps it."""

    def __post_init__(self) -> None:
        checked_bool("keep_last_turn", self.keep_last_turn)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks for the items with thinking before the turn that keeps it."""
        reading = read(items)
        stop = self._first_kept(reading)
        free = _free_before(reading, stop)
        found = []
        for at in range(stop):
            if items[at].protected:
                continue
            kind = reading.binding.kinds[at]
            if kind == ItemKind.REASONING:
                mask = _hidden(items[at]) if free[at + 1] else None
            elif kind == ItemKind.ASSISTANT:
                mask = self._stripped(items[at], by)
            else:
                continue
            if mask is not None:
                found.append(mask)
        return found

    def _first_kept(self, reading: ReducerInput) -> int:
        """The start of the turn that keeps its thinking; turns start at user items."""
        kinds, binding = reading.binding.kinds, reading.binding
        starts = [at for at, kind in enumerate(kinds) if kind == ItemKind.USER]

        def start_of(at: int) -> int:
            return max((start for start in starts if start <= at), default=0)

        said = [at for at in range(len(kinds)) if binding.flags[at] & FLAG_MODEL]
        if not said or not starts:
            return 0
        last, latest = starts[-1], start_of(said[-1])
        # Its loop is open if a call in it is unanswered, or was answered only after the user spoke.
        is_open = any(
            not slot.is_server and (not slot.results or slot.results[-1] >= last)
            for at in range(latest, len(kinds))
            for slot in binding.calls[at]
        )
        return latest if self.keep_last_turn or is_open else last

    def _stripped(self, item: Visible, by: Reduction) -> Mask | None:
        edits = _thinking_edits(item.message)
        if not edits:
            return None
        return (
            _hidden(item)
            if _is_emptied(item.message, edits)
            else mask_of(item, edits, "reasoning", by)
        )


def _hidden(item: Visible) -> Mask | None:
    return Mask(item.seq, "reasoning", 0, None) if item.tokens else None


def _free_before(reading: ReducerInput, stop: int) -> list[bool]:
    """For each position, True if the items from there on permit removing earlier reasoning."""
    found = [False] * (len(reading.items) + 1)
    for at in range(len(reading.items) - 1, -1, -1):
        kind = reading.binding.kinds[at]
        if kind != ItemKind.EVENT and not reading.binding.flags[at] & FLAG_MODEL:
            found[at] = True
            continue
        is_bound = kind != ItemKind.REASONING and reading.items[at].message.get("id")
        found[at] = found[at + 1] and (kind == ItemKind.EVENT or (at < stop and not is_bound))
    return found


def _thinking_edits(message: Message) -> Edited:
    """The edits that remove the thinking from a model's message."""
    base = body_path(message)
    body: dict[str, Any] = value_at(message, base)
    edits: Edited = {(*base, name): REMOVED for name in _FIELDS if body.get(name)}
    for field in ("content", "parts"):
        blocks = body.get(field)
        for at, block in enumerate(blocks if isinstance(blocks, list) else ()):
            if isinstance(block, dict) and _is_thinking(block):
                edits[*base, field, at] = REMOVED
    return edits


def _is_thinking(block: dict[str, Any]) -> bool:
    kind = block.get("type")
    if kind in _BLOCKS:
        return True
    if kind == "reasoning":
        return not block.get("id")  # with an id, other stored blocks may depend on it
    calls = ("functionCall", "function_call")
    return block.get("thought") is True and not any(block.get(name) for name in calls)


def _is_emptied(message: Message, edits: Edited) -> bool:
    """Return whether the edits leave no text and no calls."""
    body: dict[str, Any] = value_at(message, body_path(message))
    if any(classify(message)[1:3]) or any(body.get(name) for name in _SAID):
        return False
    field = "parts" if isinstance(body.get("parts"), list) else "content"
    left = body.get(field)
    if isinstance(left, list):
        return len(left) == sum(path[-2] == field for path in edits if len(path) > 1)
    return not left


# --- The table of reducers, and applying several of them in sequence ------------------------------

REDUCERS: Final[Mapping[str, type[Any]]] = {
    kind.name: kind
    for kind in (
        StripReasoning,
        DropDuplicates,
        DropSimilar,
        OffloadResults,
        ElideOutputs,
        TruncateArguments,
        ClearResults,
    )
}
"""Reducers by name, in recommended order: the least lossy first."""
NAME_KEY: Final = "reducer"


def reducer_from(given: str | Mapping[str, Any]) -> Reducer:
    """A reducer from its name, or from a mapping with its name under ``reducer`` and its options.

    ``{"reducer": r.name, **r.settings()}`` gives a reducer equal to ``r``.

    Raises:
        InvalidOptionError: an unknown name or option (with the closest match), or an invalid value.
    """
    if isinstance(given, str):
        given = {NAME_KEY: given}
    if not isinstance(given, Mapping):
        msg = f"reducer: expected a name or a mapping, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    name = given.get(NAME_KEY)
    kind = REDUCERS.get(name) if isinstance(name, str) else None
    if kind is None:
        hint = _near(name, list(REDUCERS))
        msg = f"{NAME_KEY}: expected one of {', '.join(REDUCERS)}; got {name!r:.80}{hint}"
        raise InvalidOptionError(msg)
    options = {key: value for key, value in given.items() if key != NAME_KEY}
    known = [field.name for field in fields(kind)]
    unknown = [key for key in options if key not in known]
    if unknown:
        hint = _near(unknown[0], known)
        names = ", ".join(repr(key) for key in unknown)
        msg = f"reducer {name!r} has no option {names:.200}; it has {', '.join(known)}{hint}"
        raise InvalidOptionError(msg)
    made: Reducer = kind(**options)
    return made


def _near(name: object, known: list[str]) -> str:
    close: list[str] = closest(str(name)[:100], known)
    return f"; did you mean {close[0]!r}?" if close else ""


def reduce_all(
    items: Sequence[Visible], reducers: Iterable[Reducer], by: Reduction
) -> dict[int, Mask]:
    """The masks, by seq, of reducers applied in order, each to the output of the one before.

    If several reducers change an item, its mask has the last one's action.

    Raises:
        InternalError: a reducer broke a rule of ``Reducer.reduce``.
    """
    shown = list(items)
    masks: dict[int, Mask] = {}
    for reducer in reducers:
        made = {}
        before = {item.seq: at for at, item in enumerate(shown)}
        last = -1
        for mask in reducer.reduce(shown, by):
            at = before.get(mask.seq, -1)
            _check_reduce(shown[at] if at > last else None, mask, reducer, by)
            made[at], last = mask, at
        masks.update({mask.seq: mask for mask in made.values()})
        shown = [
            _masked(item, made[at]) if at in made else item
            for at, item in enumerate(shown)
            if at not in made or made[at].message is not None
        ]
    return masks


def _masked(item: Visible, mask: Mask) -> Visible:
    message = mask.message if mask.message is not None else item.message
    return item._replace(message=message, tokens=mask.tokens, masked=mask.action)


def _check_reduce(item: Visible | None, mask: Mask, reducer: Reducer, by: Reduction) -> None:
    """Check a mask against the rules: an invalid one would break pairs and may not be stored.

    Raises:
        InternalError: the mask breaks a rule.
    """
    problem = None
    if item is None:
        problem = "is of no item that is shown, or not in the order of the items"
    elif item.protected:
        problem = "is of a protected item"
    elif mask.tokens >= item.tokens:
        problem = f"has {mask.tokens} tokens, not fewer than the item's {item.tokens}"
    else:
        facts = classify(item.message)
        shown = (facts[0], (), ()) if mask.message is None else classify(mask.message)[:3]
        tokens = 0 if mask.message is None else count_message(mask.message, by.counter)
        if shown[1:] != facts[1:3]:
            problem = "does not make and answer the calls of its item"
        elif shown[0] != facts[0]:
            problem = "is of another kind than its item"
        elif tokens != mask.tokens:
            problem = f"says {mask.tokens} tokens, its message has {tokens}"
    if problem is not None:
        msg = f"reducer {reducer.name!r}: the mask of seq {mask.seq} {problem}; nothing was masked"
        raise InternalError(msg)


# --- Embedders for ``DropSimilar``: any model that turns texts into vectors -----------------------

_METHODS: Final = ("encode", "embed_documents", "embed")


def as_embedder(model: Any) -> Embed:
    """An embedder from a model: sentence-transformers, model2vec, LangChain, WordLlama, a function.

    Calls the first method found of ``encode``, ``embed_documents`` and ``embed``. Arrays are
    accepted, but nothing here needs numpy.

    Raises:
        InvalidOptionError: the model has none of these methods and is not callable.
    """
    for name in _METHODS:
        method = getattr(model, name, None)
        if callable(method):
            break
    else:
        method = model
    if not callable(method):
        msg = (
            f"embed: expected a function or an object with {', '.join(_METHODS)}, "
            f"got {type(model).__name__}"
        )
        raise InvalidOptionError(msg)
    call: Callable[[list[str]], Any] = method

    def embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
        found = call(list(texts))
        vectors: list[list[float]] = found.tolist() if hasattr(found, "tolist") else list(found)
        return vectors

    return embed


def wordllama_embedder() -> Embed:
    """The embedder of the ``wordllama`` package, which bundles its model: nothing is downloaded.

    Vectors of 256 numbers, means over all tokens of the text, however long; the model takes 16 MB
    and needs numpy but no deep-learning framework. ``pip install "memcore-db[embed]"``.

    Raises:
        InvalidOptionError: the package is not installed.
    """
    return as_embedder(search.load_wordllama()[1])
