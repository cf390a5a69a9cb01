"""Judge of the statements that extractors propose, and the types of both sides. Pure.

Everything that an extractor yields is foreign input: a model may invent, repeat what it was shown,
or obey a text that it read. So a candidate is believed only as far as the items say it that it
cites, and it never has more trust than the weakest text that its words come from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from memcore._fast import search_words
from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.memory.rows import TIME_END_MS
from memcore.memory.trust import (
    ACTIVE_BY,
    BY,
    KINDS,
    checked_attributes,
    checked_labels,
    checked_name,
    checked_text,
    is_weaker,
    weakest,
)
from memcore.model import Memory
from memcore.options import checked_choice, checked_int, checked_share
from memcore.records import record
from memcore.search.text import folded

__all__ = [
    "CANDIDATES_MAX",
    "CITED_MAX",
    "Candidate",
    "Extraction",
    "ExtractionItem",
    "Extractor",
    "Given",
    "GivenText",
    "Verdict",
    "is_grounded",
    "is_repeated",
    "judged",
    "spelt",
]


CANDIDATES_MAX: Final = 64
"""Most candidates that are taken from one call of an extractor."""
CITED_MAX: Final = 8
"""Most items that a candidate cites."""
TEXT_CHARS_MAX: Final = 2_000
"""Longest text of a candidate: it is a statement."""
NEIGHBOURS: Final = 2
"""Items before and after a cited one that may say what it refers to."""
LEAST_GROUNDED: Final = 0.5
"""Share of a candidate's stems that has to occur in what it cites. Measured on 2,541 facts that a
model made of LoCoMo's conversations: docs/extraction.md."""
_REPEATED: Final = 0.6
"""Share of a candidate's stems in one memory from which on it repeats that memory."""
_SLOT_CHARS_MAX: Final = 64
_SLOT_WORDS_MAX: Final = 5
_DATE_DAYS: Final = 8
"""Days before and after an item on which words such as "last Friday" can fall."""


# --- What an extractor is given, and what it yields -----------------------------------------------


@record(frozen=True, slots=True)
class ExtractionItem:
    """One item as an extractor sees it."""

    number: int
    """Number to cite it by, from 1 on: not its seq."""
    role: str
    """``user``, ``assistant`` or ``tool``."""
    text: str
    at: float
    """Time at which it was appended, seconds since 1970: "yesterday" is the day before."""


@record(frozen=True, slots=True)
class Extraction:
    """Task of an extractor: items of one session, and what is known already."""

    items: tuple[ExtractionItem, ...]
    similar: tuple[Memory, ...]
    """Memories about the same, which need not be said again."""
    now: float
    """Time of the extraction, seconds since 1970."""


@record(frozen=True, slots=True)
class Candidate:
    """Statement that an extractor proposes; the engine judges it."""

    text: str
    items: tuple[int, ...]
    """Numbers of the items that it rests on, up to 8."""
    kind: str = "fact"
    """``fact``, ``preference``, ``event``, ``procedure`` or ``note``."""
    subject: str | None = None
    slot: str | None = None
    """Property of the subject that has one value at a time."""
    confidence: float | None = None
    importance: float | None = None
    valid_from: float | None = None
    """Time from which it is true, seconds since 1970."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


class Extractor(Protocol):
    """Function with a name and a version that finds statements worth remembering.

    It is called outside any transaction, in a background thread, and may be called again with the
    same items. Another version reads all sessions anew.
    """

    @property
    def name(self) -> str:
        """Return its name, up to 100 characters."""

    @property
    def version(self) -> str:
        """Return its version, up to 100 characters."""

    def __call__(self, extraction: Extraction, /) -> Iterable[Candidate]:
        """Return candidates; what it raises is a failed attempt."""


# --- Words of a text ------------------------------------------------------------------------------

_NUMBER: Final = re.compile(r"\d+(?:[.,:/\u2013-]\d+)*")
_WORD: Final = re.compile(r"[^\W_]+")
_SENTENCE: Final = re.compile(r"(?:\A|[.!?:;\n\"\u201c(]\s*)[\"\u201c(]?([^\W\d_]+)")
_PLAIN_ENDS: Final = ("s", "ed", "ing", "ly")
"""Endings of verbs and adverbs, as which a capital at the beginning of a sentence is no name."""
_PLAIN: Final = frozenset(
    (
        "a", "an", "the", "i", "we", "he", "she", "it", "they", "you", "my", "our", "his", "her",
        "their", "your", "this", "that", "these", "those", "user", "customer", "client", "person",
        "someone", "on", "in", "at", "for", "from", "with", "to", "by", "as", "if", "when", "while",
        "after", "before", "since", "until", "during", "always", "never", "not", "no", "yes",
        "please", "and", "or", "but", "so", "also", "both", "all", "any", "each", "every", "some",
        "one", "favorite", "favourite", "there", "who", "what", "where", "how", "why", "do", "does",
        "did", "has", "have", "had", "will", "would", "can", "could", "may", "might", "should",
    )
)  # fmt: skip
"""Words that begin a sentence and are no names."""
_SPELT_NUMBERS: Final = {
    word: str(number)
    for number, word in enumerate(
        (
            "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
            "eleven", "twelve",
        )
    )
}  # fmt: skip


class Words(NamedTuple):
    """Words of a text, as they are compared."""

    stems: frozenset[str]
    """Stems without stop words; pairs of characters of Chinese, Japanese and Korean."""
    numbers: frozenset[str]
    names: frozenset[str]
    """Words that begin with a capital, folded; not those that only begin a sentence."""
    all: frozenset[str]
    """All words, folded."""

    def union(self, others: Iterable[Words]) -> Words:
        """Return the words of several texts."""
        every = (self, *others)
        return Words(*(frozenset().union(*(each[at] for each in every)) for at in range(4)))


_NOTHING: Final = Words(frozenset(), frozenset(), frozenset(), frozenset())


def words_of(text: str) -> Words:
    """Return the words of a text."""
    plain = folded(text)
    words = frozenset(each.casefold() for each in _WORD.findall(plain))
    numbers = {_plain_number(each) for each in _NUMBER.findall(plain)}
    numbers.update(_SPELT_NUMBERS[word] for word in words & _SPELT_NUMBERS.keys())
    return Words(frozenset(search_words(plain)), frozenset(numbers), _names_in(text), words)


def _plain_number(text: str) -> str:
    """Return a number as it is compared: without separators of thousands and leading zeros."""
    found = re.sub(r"(?<=\d),(?=\d{3}(?:\D|\Z))", "", text)
    return re.sub(r"(?<!\d)0+(?=\d)", "", found)


def _names_in(text: str) -> frozenset[str]:
    # From each sign, the pattern passes all white space that follows: at most one character.
    text = "\n".join(filter(None, (" ".join(line.split()) for line in text.split("\n"))))
    begins = {match.start(1): match[1] for match in _SENTENCE.finditer(text)}
    found: set[str] = set()
    for match in _WORD.finditer(text):
        word = match[0]
        if not word[0].isupper() or word.isdigit():
            continue
        low = folded(word).casefold()
        if match.start() in begins and (low in _PLAIN or low.endswith(_PLAIN_ENDS)):
            continue
        if low != "i":
            found.add(low)
    return frozenset(found)


def _dates_near(at: float) -> tuple[frozenset[str], frozenset[str]]:
    """Return numbers and words of the days around a time, as which "last Friday" can be told."""
    try:
        day = datetime.fromtimestamp(at, UTC)
        near = [day + timedelta(days=shift) for shift in range(-_DATE_DAYS, _DATE_DAYS + 1)]
    except (OverflowError, ValueError, OSError):  # a time that no calendar has
        return frozenset(), frozenset()
    numbers = {part for each in near for part in (each.year, each.month, each.day)}
    numbers |= {day.year - 1, day.year + 1}
    ends = near[0], near[-1]  # no month fits between them
    return frozenset(map(str, numbers)), frozenset(f"{each:%B}".casefold() for each in ends)


# --- What a candidate may rest on -----------------------------------------------------------------


class GivenText(NamedTuple):
    """Text of an item, as far as its words have one trust."""

    seq: int
    place: int
    """Position of the item among those around it."""
    number: int | None
    """Number under which the extractor was given it; None: only as a neighbour."""
    by: str
    """Trust in the item."""
    own: str
    """Words that have this trust."""
    pasted: str = ""
    """Words in it that are those of somebody else."""
    at: float = 0.0
    text: str = ""
    """All of it, as the extractor sees it."""


class Given:
    """Texts that an extractor was given, with their words. Not to be changed.

    Args:
        texts: the texts in the order of their items.
        known: words that need no source, such as those of the user's name.
        kinds: kinds of statements that may be stored.
    """

    def __init__(
        self,
        texts: Sequence[GivenText],
        *,
        known: Iterable[str] = (),
        kinds: Collection[str] = KINDS,
    ) -> None:
        self.texts = tuple(texts)
        self.kinds = kinds
        self.known = _NOTHING.union(words_of(each) for each in known)
        self.by_number = {each.number: each for each in texts if each.number is not None}
        self._pieces: list[tuple[GivenText, str, Words]] = []
        for each in texts:
            self._pieces.append((each, each.by, words_of(each.own)))
            if each.pasted:
                self._pieces.append((each, "import", words_of(each.pasted)))

    def around(self, cited: Iterable[GivenText], least: str) -> list[tuple[GivenText, str, Words]]:
        """Return the texts that are cited and their neighbours, of some trust at least.

        A neighbour that is trusted less than what is cited cannot lend it words. Each text is
        returned with the trust in its words.
        """
        places = {
            place
            for each in cited
            for place in range(each.place - NEIGHBOURS, each.place + NEIGHBOURS + 1)
        }
        return [
            (each, by, words)
            for each, by, words in self._pieces
            if each.place in places and not is_weaker(by, least)
        ]

    def foreign(self, least: str) -> list[tuple[str, Words]]:
        """Return trust and words of all that came from outside and is trusted less."""
        return [
            (by, words)
            for _, by, words in self._pieces
            if by in ("tool", "import") and is_weaker(by, least)
        ]


# --- The judge ------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """Judgement of a candidate."""

    text: str
    seqs: tuple[int, ...] = ()
    by: str = "import"
    """Trust that its words have at most."""
    values: Mapping[str, Any] = {}
    """Other fields of the record by name."""
    reason: str | None = None
    """Reason for which it is refused; None: it is not."""


class _Refusal(Exception):  # noqa: N818 - a signal inside this module
    """A candidate is refused, for the reason that is its message."""


def judged(found: object, given: Given) -> Verdict:
    """Judge one candidate. Raises nothing, whatever it is."""
    text = found.text if isinstance(found, Candidate) else found
    shown = text[:TEXT_CHARS_MAX] if isinstance(text, str) else type(text).__name__
    try:
        return _judge(found, given)
    except _Refusal as refusal:
        return Verdict(shown, reason=str(refusal))
    except (InvalidItemError, InvalidOptionError) as exc:
        return Verdict(shown, reason=f"invalid: {exc}"[:200])
    except Exception as exc:  # noqa: BLE001 - objects of an extractor may do anything
        return Verdict(shown, reason=f"invalid: {type(exc).__name__}")


def _judge(found: object, given: Given) -> Verdict:
    if not isinstance(found, Candidate):
        msg = f"invalid: expected a Candidate, got {type(found).__name__}"
        raise _Refusal(msg)
    if not isinstance(found.text, str) or len(found.text) > TEXT_CHARS_MAX:
        msg = f"too long: a statement has at most {TEXT_CHARS_MAX} characters of text"
        raise _Refusal(msg)
    text = checked_text(found.text)
    cited = _cited(found.items, given)
    kind = checked_choice("kind", found.kind, KINDS)
    if kind not in given.kinds:
        msg = f"kind: no consent to store a {kind}"
        raise _Refusal(msg)
    values = {"kind": kind, **_values(found)}
    least = weakest(each.by for each in cited)
    about = " ".join(text for text in (found.subject, found.slot) if text)
    more = " ".join((about, spelt(values["attributes"]), spelt(values["labels"])))
    said, told = words_of(text), words_of(more)
    by = _trust(said, told, cited, given, least)
    rests_on = _sources(said.union([told]), cited, given, by)
    return Verdict(text, tuple(sorted({each.seq for each in rests_on})), by, values)


def _cited(numbers: object, given: Given) -> list[GivenText]:
    """Return the items that a candidate cites.

    Raises:
        _Refusal: it cites none, too many, or one that was not given.
    """
    if isinstance(numbers, str | bytes) or not isinstance(numbers, Iterable):
        msg = "items: expected the numbers of items"
        raise _Refusal(msg)
    listed = list(islice(numbers, CITED_MAX + 1))
    if not 0 < len(listed) <= CITED_MAX:
        msg = f"items: expected 1 to {CITED_MAX} numbers"
        raise _Refusal(msg)
    found: dict[int, GivenText] = {}
    for each in listed:
        item = given.by_number.get(checked_int("items", each, least=1))
        if item is None:
            msg = "items: it cites an item that was not given"
            raise _Refusal(msg)
        found[item.seq] = item
    return list(found.values())


def _values(found: Candidate) -> dict[str, Any]:
    """Return the other fields of a candidate, checked."""
    values: dict[str, Any] = {
        "attributes": checked_attributes(found.attributes),
        "labels": checked_labels(found.labels),
    }
    if found.subject is not None:
        values["subject"] = checked_name("subject", found.subject)
    if found.slot is not None:
        slot = checked_name("slot", found.slot)
        if len(slot) > _SLOT_CHARS_MAX or len(re.split(r"[\W_]+", slot)) > _SLOT_WORDS_MAX:
            msg = "slot: expected the short name of a property"
            raise _Refusal(msg)
        values["slot"] = slot
    for name in ("confidence", "importance"):
        share = getattr(found, name)
        if share is not None:
            values[name] = checked_share(name, share)
    if found.valid_from is not None:
        values["valid_from_ms"] = _ms(found.valid_from)
    return values


def _ms(seconds: object) -> int:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not abs(seconds) < TIME_END_MS // 1000:  # type: ignore[arg-type]
        msg = "valid_from: expected seconds since 1970"
        raise _Refusal(msg)
    return round(seconds * 1000)  # type: ignore[operator]


def _trust(said: Words, more: Words, cited: Sequence[GivenText], given: Given, least: str) -> str:
    """Return the trust that a candidate's words have at most.

    What is cited and its neighbours of no less trust have to ground it. If only with the help of
    weaker neighbours they do, it has the trust of the weakest of these. A word that stands in none
    of them, but in what a tool or a paste said, has their trust: so nothing gets more trust by
    citing another item.

    Raises:
        _Refusal: nothing that it cites says so.
    """
    dates = [_dates_near(each.at) for each in cited]
    date_numbers = frozenset().union(*(each[0] for each in dates))
    date_words = frozenset().union(*(each[1] for each in dates))
    numbers = said.numbers - given.known.numbers - date_numbers
    names = said.names - given.known.all - date_words
    told_dates = {_stem(each) for each in said.all & (date_words | date_numbers)}
    stems = said.stems - given.known.stems - told_dates
    wanted = Words(stems, numbers, names, frozenset())
    found = _NOTHING.union(words for _, _, words in given.around(cited, least))
    by = least
    if not _grounds(found, wanted):
        weaker = given.around(cited, BY[-1])
        every = _NOTHING.union(words for _, _, words in weaker)
        if not _grounds(every, wanted):
            msg = "not grounded: what it cites does not say so"
            raise _Refusal(msg)
        lent = [
            each_by
            for _, each_by, words in weaker
            if (stems - found.stems) & words.stems
            or ((numbers | names) - found.numbers - found.all) & (words.numbers | words.all)
        ]
        by, found = weakest((least, *lent)), every
    told = (said.stems | more.stems) - given.known.stems - found.stems
    return weakest((by, *(each for each, words in given.foreign(by) if told & words.stems)))


def _sources(said: Words, cited: Sequence[GivenText], given: Given, by: str) -> list[GivenText]:
    """Return the items that a candidate rests on: those that it cites, and what else it needs.

    A neighbour that says what no cited item says is a source as well, the nearest first, so that a
    statement goes with the item whose words it holds. A cited item is none if such neighbours say
    all of its part: left alone, it would keep what it never said. A neighbour that is trusted less
    than the statement has lent it nothing.
    """
    every = given.around(cited, BY[-1])
    own = _NOTHING.union(words for each, _, words in every if each in cited)
    wanted = (said.stems | said.numbers | said.names) - given.known.stems - given.known.all
    missing = wanted - _every(own)
    lenders: list[GivenText] = []
    lent: frozenset[str] = frozenset()
    around = given.around(cited, by)
    for each, _, words in sorted(around, key=lambda piece: _distance(piece[0], cited)):
        if each not in cited and missing & _every(words):
            missing -= _every(words)
            lent |= _every(words)
            lenders.append(each)
    if not lenders:
        return list(cited)
    parts = {each.seq: frozenset[str]() for each in cited}
    for each, _, words in every:
        if each.seq in parts:
            parts[each.seq] |= _every(words) & wanted
    return [*lenders, *(each for each in cited if not parts[each.seq] <= lent)]


def _every(words: Words) -> frozenset[str]:
    return words.stems | words.numbers | words.all


def _distance(text: GivenText, cited: Iterable[GivenText]) -> int:
    return min(abs(text.place - each.place) for each in cited)


def _grounds(found: Words, wanted: Words) -> bool:
    """Return True if a text's words say enough of what is wanted, and all numbers and names."""
    if not wanted.stems:
        return False
    share = len(wanted.stems & found.stems) / len(wanted.stems)
    has_names = all(name in found.all or _stem(name) in found.stems for name in wanted.names)
    return share >= LEAST_GROUNDED and has_names and _has_numbers(found, wanted.numbers)


def _has_numbers(found: Words, numbers: Iterable[str]) -> bool:
    """Return True if numbers occur, as they are or by all of their parts."""
    missing = [each for each in numbers if each not in found.numbers and each not in found.all]
    if not missing:
        return True
    parts = {part for each in found.numbers for part in re.split(r"\D+", each)}
    return all(set(re.split(r"\D+", each)) <= parts for each in missing)


def _stem(word: str) -> str:
    stems = search_words(word)
    return stems[0] if stems else word


def is_grounded(text: str, ground: Iterable[str]) -> bool:
    """Return True if all numbers and names of a text, and half of its stems, stand in others."""
    return _grounds(_NOTHING.union(map(words_of, ground)), words_of(text))


# --- The loop from memory to model and back -------------------------------------------------------


def is_repeated(verdict: Verdict, known: Callable[[str], Iterable[Memory]]) -> bool:
    """Return True if somebody but the user says what is remembered already.

    A model that was shown a memory says it again, in its own words: that proves nothing.

    Args:
        verdict: a judged candidate.
        known: returns the memories that are most similar to a text.
    """
    if verdict.by in ACTIVE_BY:
        return False
    stems = words_of(verdict.text).stems
    for memory in known(verdict.text):
        about = " ".join(each for each in (memory.text, memory.subject, memory.slot) if each)
        if len(stems & words_of(about).stems) >= _REPEATED * len(stems):
            return True
    return False


def spelt(value: Any) -> str:
    """Return the words of a JSON value."""
    if isinstance(value, Mapping):
        return " ".join(f"{name} {spelt(each)}" for name, each in value.items())
    return " ".join(map(spelt, value)) if isinstance(value, list | tuple) else str(value)
