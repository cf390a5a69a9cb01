"""Consolidation of memories: a plan made from entries alone, carried out one commit a step.

Memories of the same wording are united, a judge's contradictions are settled by trust and time, and
what nobody needs is archived. Nothing is deleted: what gives way is superseded or archived, and
names the memory that took its place.

A wrong union is worse than a duplicate: of pairs of facts that embeddings call near (a cosine of
0.9 and more), a third to a half differ in a number, a name or a negation. So texts are the same
only if all their words and signs are, in order, apart from inflection and articles. Whoever knows
better is a ``Consolidator``, whose answer has to pass the comparison of numbers, symbols, names and
negations.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, NamedTuple, TypeAlias

from memcore._fast import stem_word
from memcore.audit import record_event
from memcore.errors import InvalidOptionError
from memcore.memory.basis import MERGE_RULES, said_ms, strength, united
from memcore.memory.rows import (
    DERIVED_MAX,
    NUMBER_END,
    Book,
    MemoryVersion,
    memory_of,
    read_entry,
    write_entry,
    write_head,
)
from memcore.memory.statement import begin_change, next_version, rests_on_hold
from memcore.memory.trust import KINDS, is_weaker, signs
from memcore.model import Memory
from memcore.options import checked_int
from memcore.records import record
from memcore.rows.lifecycle import need_wanted

__all__ = [
    "Consolidation",
    "ConsolidationPolicy",
    "ConsolidationStep",
    "Consolidator",
    "carry_out",
    "check_plan",
    "make_plan",
    "plan_consolidation",
]


Consolidator: TypeAlias = Callable[[Memory, Memory], str | None]
"""Judge of a pair of memories: returns "same", "contradicts" or None; called outside commits."""
_ACTIONS: Final[Mapping[str, tuple[int, int]]] = {
    "unite": (2, DERIVED_MAX), "supersede": (2, 2), "quarantine": (2, 2), "archive": (1, 1),
}  # fmt: skip
"""Least and most memories of a step by its action."""
OUTCOMES: Final = ("planned", "done", "changed", "held")
_DAY_MS: Final = 86_400_000
_NUMBER_END: Final = 1e9
_HALF_LIFE_DAYS: Final[Mapping[str, float]] = {
    "fact": 365.0, "preference": 365.0, "event": 30.0, "procedure": 365.0, "note": 90.0,
}  # fmt: skip
_IMPORTANCE: Final = 0.5
"""Importance of a memory of which nobody said any."""


@record(frozen=True, slots=True)
class ConsolidationPolicy:
    """Rules of a consolidation.

    Raises (when made):
        InvalidOptionError: a rule or kind is unknown, or a number is out of range.
    """

    merge: Mapping[str, str] = field(default_factory=dict)
    """Rule by attribute of united memories: ``sum``, ``mean`` (weighted by support), ``newest``,
    ``surer`` (by confidence), ``union`` (of lists), ``max``, ``min``. Without a rule, the attribute
    of the strongest memory stays. Only memories of its trust have a say."""
    archive_below: float | None = None
    """Archive memories whose ``importance * 2 ** (-age / half-life) + uses + support`` is less, but
    never what an operator said, or the value of a slot; None: archive nothing."""
    half_life_days: Mapping[str, float] = field(default_factory=dict)
    """Half-life of the importance by kind, in days, in place of the default."""
    pairs_max: int = 1_000
    """Most pairs of memories that the judge is asked about."""

    def __post_init__(self) -> None:
        for option in ("merge", "half_life_days"):
            value = getattr(self, option)
            if not isinstance(value, Mapping):
                msg = f"{option}: expected a mapping, got {type(value).__name__}"
                raise InvalidOptionError(msg)
        for name, rule in self.merge.items():
            if rule not in MERGE_RULES or not isinstance(name, str):
                known = ", ".join(MERGE_RULES)
                msg = f"merge: {name!r:.40}: expected one of {known}; got {rule!r:.40}"
                raise InvalidOptionError(msg)
        if self.archive_below is not None:
            _check_number("archive_below", self.archive_below)
        checked_int("pairs_max", self.pairs_max)
        for kind, days in self.half_life_days.items():
            if kind not in KINDS:
                msg = f"half_life_days: expected one of {', '.join(KINDS)}; got {kind!r:.40}"
                raise InvalidOptionError(msg)
            _check_number(f"half_life_days: {kind}", days)


def _check_number(name: str, value: object) -> None:
    """Check that a value is a finite number above 0.

    Raises:
        InvalidOptionError
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 < value < _NUMBER_END):  # type: ignore[operator]
        msg = f"{name}: expected a number above 0, got {value!r:.40}"
        raise InvalidOptionError(msg)


@record(frozen=True, slots=True)
class ConsolidationStep:
    """One change that a consolidation makes, in one commit."""

    action: str
    """``unite``: a new memory takes the place of all, in the words of the first; ``supersede``: the
    first takes the place of the second; ``quarantine``: the first waits, since the second is
    stronger; ``archive``: the first is no longer shown."""
    memories: tuple[int, ...]
    """Ids of the memories concerned."""
    versions: tuple[int, ...]
    """Their versions: if one has changed since, the step is not carried out."""
    reason: str
    outcome: str = "planned"
    """``planned``, ``done``, ``changed`` (a memory is at another version) or ``held`` (by a legal
    hold)."""
    made: int | None = None
    """Id of the memory that was made."""


@record(frozen=True, slots=True)
class Consolidation:
    """Plan of a consolidation, or what became of it."""

    policy: ConsolidationPolicy
    steps: tuple[ConsolidationStep, ...]

    @property
    def done(self) -> int:
        """Number of steps that were carried out."""
        return sum(step.outcome == "done" for step in self.steps)


def check_plan(plan: object) -> Consolidation:
    """Return a plan that a consolidation may have made, or that a caller made like that.

    Raises:
        InvalidOptionError: it is no plan, or a step has an unknown action, outcome or id, or too
            few, too many or equal ids.
    """
    if not isinstance(plan, Consolidation):
        msg = f"plan: expected a Consolidation, got {type(plan).__name__}"
        raise InvalidOptionError(msg)
    if not isinstance(plan.policy, ConsolidationPolicy) or not isinstance(plan.steps, tuple):
        msg = "plan: expected a ConsolidationPolicy and a tuple of steps"
        raise InvalidOptionError(msg)
    for step in plan.steps:
        if not isinstance(step, ConsolidationStep):
            msg = f"plan: expected a ConsolidationStep, got {type(step).__name__}"
            raise InvalidOptionError(msg)
        for name, known in (("action", tuple(_ACTIONS)), ("outcome", OUTCOMES)):
            if getattr(step, name) not in known:
                got = getattr(step, name)
                msg = f"plan: {name}: expected one of {', '.join(known)}; got {got!r:.40}"
                raise InvalidOptionError(msg)
        least, most = _ACTIONS[step.action]
        ids, versions = step.memories, step.versions
        is_listed = isinstance(ids, tuple) and isinstance(versions, tuple)
        if (
            not is_listed
            or not all(type(n) is int and 0 < n < NUMBER_END for n in (*ids, *versions))
            or not least <= len(ids) == len(set(ids)) == len(versions) <= most
        ):
            msg = f"plan: {step.action}: {ids!r:.80} at versions {versions!r:.80} are no such step"
            raise InvalidOptionError(msg)
    return plan


# --- Comparison of texts --------------------------------------------------------------------------

_WORD: Final = re.compile(r"\w+")
_TOKEN: Final = re.compile(r"\w+|[^\w\s]")
_PAUSE: Final = re.compile(r"[.,;:!\u3001\u3002]+(?=\s|$)")
"""Punctuation that only ends sentences and parts of them; within "1.5" and "!=" it says more."""
_ARTICLES: Final = frozenset(("a", "an", "the"))


def wording(text: str) -> tuple[str, ...]:
    """Return the words and signs of a text as duplicates share them, in order.

    Words are stemmed, unless they hold a digit. Left out are articles that are written small and
    have something behind them ("plan A" is a name), and punctuation that ends a sentence or a part.
    """
    found = _TOKEN.findall(_PAUSE.sub(" ", unicodedata.normalize("NFC", text)))
    return tuple(
        _stem(word)
        for at, word in enumerate(found)
        if word not in _ARTICLES or at == len(found) - 1
    )


def _stem(word: str) -> str:
    plain = word.casefold()
    return plain if any(map(str.isdigit, plain)) else stem_word(plain)


def _stems(words: str) -> frozenset[str]:
    return frozenset(map(_stem, words.split()))


_NUMBER: Final = re.compile(r"(?:(?<!\w)[-+])?\d+(?:[.,:/-]\d+)*|[一二三四五六七八九十百千万两兩]")
_SPELT: Final = {
    word: number
    for number, words in {
        "0": "zero", "1": "one first once single", "2": "two second twice double pair couple both",
        "3": "three third thrice triple", "4": "four fourth", "5": "five fifth", "6": "six sixth",
        "7": "seven seventh", "8": "eight eighth", "9": "nine ninth", "10": "ten tenth",
        "11": "eleven eleventh", "12": "twelve twelfth dozen", "13": "thirteen", "14": "fourteen",
        "15": "fifteen", "16": "sixteen", "17": "seventeen", "18": "eighteen", "19": "nineteen",
        "20": "twenty", "30": "thirty", "40": "forty", "50": "fifty", "60": "sixty",
        "70": "seventy", "80": "eighty", "90": "ninety", "100": "hundred", "1000": "thousand",
        "1000000": "million", "1/2": "half", "1/4": "quarter",
    }.items()
    for word in words.split()
}  # fmt: skip
_CAPITAL: Final = re.compile(r"[^\W\d_a-z]\w*")
_BEGINS: Final = re.compile(r"[.!?]\s+$")
"""End of a text behind which a sentence begins."""
_COMMON: Final = _stems(
    "i we you he she it they my our your his her its their this that these those a an the there "
    "is are was were be been am has have had do does did will would can could should may might "
    "must shall don doesn didn isn aren wasn weren haven hasn hadn won wouldn couldn shouldn "
    "in on at to from by for with about as of and or but if when while because so "
    "what where who which how why user person client customer likes loves enjoys prefers wants "
    "needs lives works owns uses goes went visits travels plays reads eats drinks knows thinks "
    "says said plans speaks studies studied makes made takes took gets got keeps buys bought "
    "always often usually sometimes now today currently also just"
)
"""Words that begin many sentences: any other first word may be the name of whom it is about."""
_NEGATIONS: Final = _stems(
    "no not never none nobody nothing neither nor without cannot t dont doesnt didnt isnt cant "
    "wont stopped quit hates dislikes avoids refuses hardly barely rarely seldom lacks fails "
    "denies rejects declines except unless against former formerly ex used"
)
"""Words that turn a statement around, or what is behind them; "t" is left of a contraction."""
_NEGATION_SIGN: Final = re.compile("[不没沒无無未别別](.?)|!(=)")
_SYMBOLS: Final = frozenset("%‰#&@*")
"""Punctuation that is read as a word; what Unicode calls a symbol is as well."""


class _Marks(NamedTuple):
    """Parts of a text that make another statement of it if they differ."""

    numbers: tuple[str, ...]
    symbols: frozenset[str]
    negated: tuple[str, ...]
    """Stems behind negations."""
    names: tuple[str, ...]
    """Words with a capital in order, without the first word of all and common ones of sentences."""


def _marks(text: str) -> _Marks:
    plain = unicodedata.normalize("NFC", text)
    words = _WORD.findall(plain)
    stems = [*map(_stem, words), ""]
    spelt = (_SPELT.get(word.casefold()) for word in words)
    numbers = [*_NUMBER.findall(plain), *(number for number in spelt if number)]
    negated = [stems[at + 1] for at, stem in enumerate(stems) if stem in _NEGATIONS]
    negated += ["".join(found) for found in _NEGATION_SIGN.findall(plain)]
    return _Marks(
        tuple(sorted(numbers)),
        frozenset(signs(plain) | _SYMBOLS.intersection(plain)),
        tuple(sorted(negated)),
        _names(plain),
    )


def _names(text: str) -> tuple[str, ...]:
    found: list[str] = []
    for at, match in enumerate(_WORD.finditer(text)):
        word = match[0]
        if at and _CAPITAL.match(word):
            begins = _BEGINS.search(text, max(match.start() - 4, 0), match.start())
            if begins is None or _stem(word) not in _COMMON:
                found.append(word.casefold())
    return tuple(found)


def _first(text: str) -> str:
    """Return the first word of a text, casefolded; without one, nothing."""
    match = _WORD.search(unicodedata.normalize("NFC", text))
    return "" if match is None else match[0].casefold()


def may_be_same(one: MemoryVersion, other: MemoryVersion) -> bool:
    """Return True if nothing in two memories forbids that they say the same.

    Numbers (also spelt ones), symbols, names, negations and what they negate have to be equal. The
    first word of a text is a name as well, unless it is common, or the other's first word too.
    """
    marks, others = _marks(one.text), _marks(other.text)
    first, second = _first(one.text), _first(other.text)
    if _place(one) != _place(other) or marks[:3] != others[:3]:
        return False
    if _stem(first) == _stem(second):
        return marks.names == others.names
    known = [(each,) if _stem(each) not in _COMMON else () for each in (first, second)]
    return known[0] + marks.names == known[1] + others.names


_Place: TypeAlias = tuple[Any, ...]


def _place(record: MemoryVersion) -> _Place:
    """Return what memories have in common that can be united."""
    return (
        record.kind, record.subject, tuple(sorted(record.labels.items())), record.valid_from_ms,
        record.valid_to_ms, record.expires_ms,
    )  # fmt: skip


# --- The plan: pure -------------------------------------------------------------------------------

_RARE_WORDS: Final = 3
_BUCKET_MAX: Final = 32
"""Most memories with a common rare word that are compared with each other."""


def make_plan(
    records: Iterable[MemoryVersion],
    policy: ConsolidationPolicy,
    now_ms: int,
    *,
    judged: Mapping[tuple[int, int], str] | None = None,
) -> tuple[ConsolidationStep, ...]:
    """Plan a consolidation of a user's memories; each is in one step at most.

    Args:
        records: the current versions.
        policy: the rules.
        now_ms: the time.
        judged: verdicts about pairs of ids, the smaller one first.
    """
    known = {each.id: each for each in records if _takes_part(each, now_ms)}
    steps: list[ConsolidationStep] = []
    taken: set[int] = set()
    for group in _groups(known, judged or {}):
        strongest = sorted(group, key=strength)
        steps.append(_step("unite", strongest, "they say the same"))
        taken.update(each.id for each in group)
    for (one, other), verdict in sorted((judged or {}).items()):
        if verdict != "contradicts" or {one, other} & taken or not {one, other} <= known.keys():
            continue
        if not _hold_now((known[one], known[other]), now_ms):  # what is to come replaces nothing
            continue
        steps.append(_settled(known[one], known[other]))
        taken |= {one, other}
    steps += (
        _step("archive", [each], "its age, use and importance are below the bound")
        for each in known.values()
        if each.id not in taken and _is_faded(each, policy, now_ms)
    )
    return tuple(steps)


def _takes_part(record: MemoryVersion, now_ms: int) -> bool:
    """Return True for an active memory, but not for values of slots and rolling summaries."""
    is_free = record.slot is None and not record.is_summary
    return record.status == "active" and is_free and record.is_visible(now_ms)


def _hold_now(records: Iterable[MemoryVersion], now_ms: int) -> bool:
    """Return True if all are said to be true now: only such statements contradict each other."""
    return all(each.holds_at(now_ms) for each in records)


def _step(action: str, records: Sequence[MemoryVersion], reason: str) -> ConsolidationStep:
    ids, versions = tuple(each.id for each in records), tuple(each.version for each in records)
    return ConsolidationStep(action, ids, versions, reason)


def _groups(
    known: Mapping[int, MemoryVersion], judged: Mapping[tuple[int, int], str]
) -> Iterator[list[MemoryVersion]]:
    """Yield memories that say the same: those of one wording, and those that a judge joins."""
    by_wording: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for each in known.values():  # of equal wordings only the names may still differ
        by_wording[_place(each), wording(each.text), _names(each.text)].append(each.id)
    above = {number: number for number in known}

    def root(number: int) -> int:
        while above[number] != number:
            number = above[number]
        return number

    for numbers in by_wording.values():
        for number in numbers:
            above[number] = numbers[0]
    for (one, other), verdict in judged.items():
        if verdict == "same" and one in known and other in known:
            above[root(other)] = root(one)
    members: dict[int, list[MemoryVersion]] = defaultdict(list)
    for number, each in known.items():
        members[root(number)].append(each)
    for group in members.values():
        if len(group) > 1:
            yield group[:DERIVED_MAX]  # the others are there for the next consolidation


def _settled(one: MemoryVersion, other: MemoryVersion) -> ConsolidationStep:
    """Settle a contradiction: the newer one holds, unless it is weaker.

    That is which was said last, not which was written last: a union or a change makes nothing new.
    """
    older, newer = sorted((one, other), key=lambda each: (said_ms(each), each.id))
    if is_weaker(newer.by, older.by):
        return _step("quarantine", [newer, older], "it contradicts a stronger statement")
    return _step("supersede", [newer, older], "a newer statement contradicts it")


def _is_faded(record: MemoryVersion, policy: ConsolidationPolicy, now_ms: int) -> bool:
    if policy.archive_below is None or "operator" in (record.by, record.unsourced):
        return False
    days = policy.half_life_days.get(record.kind, _HALF_LIFE_DAYS[record.kind])
    since = record.recorded_ms if record.observed_ms is None else record.observed_ms
    age = max(now_ms - since, 0) / _DAY_MS
    importance = _IMPORTANCE if record.importance is None else record.importance
    return bool(
        importance * 2 ** (-age / days) + record.uses + record.support < policy.archive_below
    )


def pairs_to_judge(
    records: Iterable[MemoryVersion], policy: ConsolidationPolicy, now_ms: int
) -> list[tuple[Memory, Memory]]:
    """Return the pairs that may say the same or contradict each other: they share a rare word."""
    known = [each for each in records if _takes_part(each, now_ms)]
    words = {each.id: set(wording(each.text)) for each in known}
    counts = Counter(word for found in words.values() for word in found)
    buckets: dict[tuple[Any, ...], list[MemoryVersion]] = defaultdict(list)
    for each in known:
        shared = sorted(
            (word for word in words[each.id] if counts[word] > 1), key=lambda w: (counts[w], w)
        )
        for word in shared[:_RARE_WORDS]:
            buckets[each.kind, each.subject, word].append(each)
    pairs: dict[tuple[int, int], tuple[Memory, Memory]] = {}
    for bucket in buckets.values():
        newest = bucket[-_BUCKET_MAX:]
        for at, one in enumerate(newest):
            for other in newest[at + 1 :]:
                if len(pairs) >= policy.pairs_max:
                    return list(pairs.values())
                if wording(one.text) != wording(other.text):
                    pairs[one.id, other.id] = memory_of(one), memory_of(other)
    return list(pairs.values())


def plan_consolidation(
    records: Sequence[MemoryVersion],
    policy: ConsolidationPolicy | None,
    judge: Consolidator | None,
    now_ms: int,
) -> Consolidation:
    """Plan a consolidation, with the verdicts of a judge about pairs that words do not settle.

    Raises:
        InvalidOptionError: the policy is none, or the judge returns no verdict.
    """
    rules = ConsolidationPolicy() if policy is None else policy
    if not isinstance(rules, ConsolidationPolicy):
        msg = f"policy: expected a ConsolidationPolicy or None, got {type(policy).__name__}"
        raise InvalidOptionError(msg)
    judged: dict[tuple[int, int], str] = {}
    if judge is not None:
        known = {each.id: each for each in records}
        for one, other in pairs_to_judge(records, rules, now_ms):
            verdict = _judged(known[one.id], known[other.id], judge(one, other))
            if verdict is not None:
                judged[one.id, other.id] = verdict
    return Consolidation(rules, make_plan(records, rules, now_ms, judged=judged))


def _judged(one: MemoryVersion, other: MemoryVersion, verdict: object) -> str | None:
    """Return a verdict as far as it stands: "same" has to pass ``may_be_same``.

    Raises:
        InvalidOptionError: it is no verdict.
    """
    if verdict not in ("same", "contradicts", None):
        msg = f"consolidator: expected 'same', 'contradicts' or None; got {verdict!r:.80}"
        raise InvalidOptionError(msg)
    if verdict == "same" and not may_be_same(one, other):
        return None
    return None if verdict is None else str(verdict)


# --- Carrying out one step ------------------------------------------------------------------------


def carry_out(
    book: Book, step: ConsolidationStep, policy: ConsolidationPolicy, now_ms: int
) -> ConsolidationStep:
    """Carry out a step in the caller's transaction, unless a memory has changed since the plan.

    Raises:
        InvalidOptionError: memories to unite are not about the same.
        OptedOutError
    """
    need_wanted(book.txn, book.scope)
    found = [read_entry(book.txn, book.scope, number) for number in step.memories]
    records = [each for each in found if each is not None and _takes_part(each, now_ms)]
    if len(records) != len(found) or tuple(each.version for each in records) != step.versions:
        return replace(step, outcome="changed")
    if step.action == "archive" and rests_on_hold(book.txn, book.scope, *records):
        return replace(step, outcome="held")
    if step.action in ("supersede", "quarantine") and not _hold_now(records, now_ms):
        return replace(step, outcome="changed")
    if step.action == "unite" and any(_place(each) != _place(records[0]) for each in records):
        msg = f"plan: memories {step.memories} differ in kind, subject, labels, validity or expiry"
        raise InvalidOptionError(msg)
    head = begin_change(book, now_ms)
    first = records[0]
    made = None
    record_event(book.txn, book.scope, f"{step.action} memories", {"memories": [*step.memories]})
    if step.action == "unite":
        made = head.next_id
        write_head(book.txn, book.scope, head._replace(next_id=made + 1))
        for each in records:
            after = next_version(
                each, now_ms, status="superseded", superseded_by=made, observed_ms=said_ms(each)
            )  # its time is what it was said at, not when it was united
            write_entry(book, after, each)
        write_entry(book, united(records, policy.merge, made, now_ms), None)
        return replace(step, outcome="done", made=made)
    write_head(book.txn, book.scope, head)
    if step.action == "supersede":
        write_entry(book, _replaced(records[1], first, now_ms), records[1])
    else:
        status = "archived" if step.action == "archive" else "quarantined"
        write_entry(book, next_version(first, now_ms, status=status), first)
    return replace(step, outcome="done")


def _replaced(record: MemoryVersion, by: MemoryVersion, now_ms: int) -> MemoryVersion:
    """Return the next version of a statement that a newer one contradicts: it ends with that."""
    ends = said_ms(by) if by.valid_from_ms is None else by.valid_from_ms
    if record.valid_from_ms is not None:
        ends = max(ends, record.valid_from_ms + 1)
    if record.valid_to_ms is not None:
        ends = min(ends, record.valid_to_ms)
    return next_version(record, now_ms, status="superseded", superseded_by=by.id, valid_to_ms=ends)
