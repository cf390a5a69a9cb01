"""Playbooks: the tools that sessions of one scenario called, and how often that succeeded.

They are made without a model. The log already holds calls and results; an outcome says how a
session ended. One row holds an outcome, as names and counts; the playbook of a scenario is what its
outcomes add up to, so it can be computed again when one of them goes.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from typing import Any, Final, NamedTuple

from memcore.codec import keys
from memcore.codec.keys import MemoryRow
from memcore.codec.values import decode_json, decoding, encode_json, open_value, seal_value
from memcore.errors import CorruptValueError, NotFoundError
from memcore.faces import logger
from memcore.log import Head, History
from memcore.log.history import read_rows
from memcore.log.read import opened
from memcore.memory.lineage import root_of
from memcore.memory.rows import (
    RECORDED_END_MS,
    Book,
    EntryHead,
    is_of_outcome,
    read_head,
    scenario_digest,
    source_rows,
    unpack_share,
    write_head,
)
from memcore.memory.trust import shown_name
from memcore.model import ItemKind, Playbook, PlaybookPatch
from memcore.records import record
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.store.interface import DeleteBudget, ReadTxn
from memcore.wire.message import Result, call_names, is_failure, results_of, value_at

__all__ = [
    "STEPS_MAX",
    "Outcome",
    "SessionPath",
    "add_outcome",
    "check_playbooks",
    "clear_outcomes",
    "export_outcomes",
    "fold_outcomes",
    "forget_outcomes",
    "lower_bound",
    "mend_playbooks",
    "move_outcomes",
    "outcomes_of",
    "path_of",
    "playbooks_in",
    "put_outcome",
    "redact_outcomes",
    "texts_of_outcomes",
    "unpack_outcome",
]


SESSIONS_ACTIVE: Final = 3
"""Independent sessions from which on a playbook is active."""
_ITEMS_MAX: Final = 10_000
"""Last items of a session from which its path is read."""
STEPS_MAX: Final = 256
"""Most steps of a path, and most tools of which it tells a failure or what was called instead."""
_PATCHES_MAX: Final = 256
"""Most patches of a playbook: those of the tools that failed most often."""
_VERSIONS_MAX: Final = 16
"""Most versions of a playbook that are stored."""
_REASONS_MAX: Final = 16
_Z: Final = 1.96
_VEIL_BYTES: Final = 16
_OUTCOME_PAGES: Final = 2
"""Pages that an outcome's index row takes at most, beside its own."""
_FAILED: Final = re.compile(r"\s*(?:error|exception|traceback)\b", re.IGNORECASE)
_TEXT_MAX: Final = 4096
_COUNT_END: Final = 2**52
_KEY_END: Final = 2**64


def lower_bound(successes: int, trials: int) -> float:
    """Return the lower bound of Wilson's score interval for a share of successes, z = 1.96.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    Journal of the American Statistical Association 22 (1927). 3 of 3: 0.44, 20 of 20: 0.84.
    """
    if not trials:
        return 0.0
    share, square = successes / trials, _Z * _Z
    middle = share + square / (2 * trials)
    spread = _Z * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    return max((middle - spread) / (1 + square / trials), 0.0)


# --- Path of a session: the tools that it called --------------------------------------------------


class SessionPath(NamedTuple):
    """Tools that a session called: names and counts, no arguments and no results."""

    session: int
    root: int
    """Number of the session that it was forked from in the end."""
    steps: tuple[str, ...]
    """Tools in the order of their calls; immediate repetitions count as one."""
    failed: Mapping[str, int]
    """Number of failed results of each tool."""
    instead: Mapping[str, str]
    """Tool that was called next after a tool had failed."""
    iterations: int
    """Number of items that call tools."""


def path_of(txn: ReadTxn, scope: int, name: str) -> SessionPath:
    """Read the path of a session from its live history.

    Raises:
        NotFoundError: there is no such session.
        CorruptValueError: an item is damaged.
    """
    session = names.session_of(txn, scope, name)
    value = None if session is None else txn.get(head_key(scope, session))
    if session is None or value is None:
        msg = f"there is no session {name[:80]!r}"
        raise NotFoundError(msg)
    head = Head.unpack(head_key(scope, session), value)
    history = History(head.all_segments(txn, scope))
    walk = _Walk()
    for _, owner, lo, hi in history.spans(max(history.count - _ITEMS_MAX, 0), history.count):
        for row in read_rows(txn, scope, owner, position=0, lo=lo, hi=hi):
            if isinstance(row, CorruptValueError):
                raise row
            if row[3][0] in _TOLD:
                walk.take(opened(txn, scope, row)[0].message)
    root = root_of(txn, scope, session)
    steps = tuple(walk.steps[:STEPS_MAX])
    failed = dict(walk.failed.most_common(STEPS_MAX))
    instead = {name: walk.instead[name] for name in failed if name in walk.instead}
    return SessionPath(session, root, steps, failed, instead, walk.iterations)


_TOLD: Final = (ItemKind.ASSISTANT, ItemKind.CALL, ItemKind.RESULT)


class _Walk:
    """One walk over the messages of a session, in order."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.failed: Counter[str] = Counter()
        self.instead: dict[str, str] = {}
        self.iterations = 0
        self._open: dict[Any, str] = {}
        self._after: list[str] = []

    def take(self, message: dict[str, Any]) -> None:
        """Take in the calls or results of one message."""
        told = {key: shown_name(name) for key, name in call_names(message).items()}
        called = {key: name for key, name in told.items() if name.strip()}
        for key, name in called.items():
            self._open[key] = name
            for failed in self._after:
                if failed != name:
                    self.instead.setdefault(failed, name)
            if self.steps[-1:] != [name]:
                self.steps.append(name)
        if called:
            self.iterations += 1
            self._after = []
        for result in results_of(message):
            name = shown_name(result.name or "")
            if not name.strip():
                name = self._open.get(result.key, "")
            if name and _has_failed(message, result):
                self.failed[name] += 1
                self._after.append(name)


def _has_failed(message: dict[str, Any], result: Result) -> bool:
    """Return True if a result says that its tool failed.

    Providers have a flag for it. Where they have none, a JSON object with an ``error`` counts, and
    a text that begins with the word error, exception or traceback.
    """
    holder = value_at(message, result.path[:-1])
    if isinstance(holder, dict) and is_failure(holder):
        return True
    content = value_at(message, result.path)
    if isinstance(content, dict):
        return bool(content.get("error"))
    text = result.text[:_TEXT_MAX]
    if text.lstrip()[:1] == "{":
        with suppress(ValueError, RecursionError):
            found = json.loads(text)
            return isinstance(found, dict) and bool(found.get("error"))
    return _FAILED.match(text) is not None


# --- Outcomes -------------------------------------------------------------------------------------


@record(frozen=True, slots=True)
class Outcome:
    """End of one session of a scenario, with the path that led there."""

    scenario: str
    session: int
    name: str
    root: int
    at_ms: int
    passed: bool
    reason: str | None = None
    confidence: float | None = None
    steps: tuple[str, ...] = ()
    failed: Mapping[str, int] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    iterations: int = 0


def _outcome_at(book: Book, outcome: Outcome) -> bytes:
    """Return the key of an outcome."""
    veil = scenario_digest(book.seed, book.scope, outcome.scenario)
    return keys.memory_rows(book.scope, MemoryRow.OUTCOME, veil, keys.u64(outcome.session))


def _index_at(scope: int, key: bytes) -> bytes:
    """Return the index row by which an outcome is found when its session is removed."""
    veil, session = key[10 : 10 + _VEIL_BYTES], keys.number_of(key)
    return source_rows(scope, session, 0) + veil[:8]


def _pack_outcome(outcome: Outcome) -> dict[str, Any]:
    said: dict[str, Any] = {
        "scenario": outcome.scenario,
        "name": outcome.name,
        "root": outcome.root,
        "at": outcome.at_ms,
        "passed": outcome.passed,
        "steps": list(outcome.steps),
        "failed": dict(outcome.failed),
        "instead": dict(outcome.instead),
        "iterations": outcome.iterations,
    }
    for name in ("reason", "confidence"):
        if getattr(outcome, name) is not None:
            said[name] = getattr(outcome, name)
    return said


def unpack_outcome(session: int, said: Any) -> Outcome:
    """Return the outcome in a JSON object.

    Raises:
        ValueError, TypeError, LookupError: it is none.
    """
    confidence, reason = said.get("confidence"), said.get("reason")
    found = Outcome(
        scenario=said["scenario"],
        session=session,
        name=said["name"],
        root=said["root"],
        at_ms=said["at"],
        passed=said["passed"],
        reason=reason,
        confidence=None if confidence is None else unpack_share(confidence),
        steps=_unpack_steps(said["steps"]),
        failed=dict(said["failed"]),
        instead=dict(said["instead"]),
        iterations=said["iterations"],
    )
    texts = [found.scenario, found.name, *found.failed, *found.instead]
    texts += [*found.instead.values(), *([] if reason is None else [reason])]
    numbers = [found.at_ms, found.iterations, *found.failed.values()]
    if (
        type(found.passed) is not bool
        or not all(isinstance(text, str) for text in texts)
        or not all(type(number) is int and 0 <= number < _COUNT_END for number in numbers)
        or not isinstance(said["failed"], dict)
        or not isinstance(said["instead"], dict)
        or type(found.root) is not int
        or not 0 <= found.root < _KEY_END
        or found.at_ms >= RECORDED_END_MS
    ):
        raise ValueError(found.scenario)
    return found


def _texts_of(outcome: Outcome) -> list[str]:
    """Return the scenario, the reason and the names of tools in an outcome, in that order."""
    found = [outcome.scenario, *([] if outcome.reason is None else [outcome.reason])]
    return [*found, *outcome.steps, *outcome.failed, *outcome.instead, *outcome.instead.values()]


def _unpack_steps(said: Any) -> tuple[str, ...]:
    """Return the steps in a list.

    Raises:
        TypeError: it is none of texts.
    """
    if not isinstance(said, list) or not all(isinstance(step, str) for step in said):
        raise TypeError("steps")
    return tuple(said)


def _opened(key: bytes, value: bytes) -> Outcome:
    flags, body = open_value(key, value)
    with decoding(key, "outcome"):
        return unpack_outcome(keys.number_of(key), decode_json(body, flags))


def _outcomes(txn: ReadTxn, prefix: bytes) -> list[Outcome]:
    """Return the outcomes under a prefix in the order of their times.

    Raises:
        CorruptValueError: a row is damaged.
    """
    found = [_opened(key, value) for key, value in txn.scan(prefix, keys.after(prefix))]
    return sorted(found, key=lambda outcome: (outcome.at_ms, outcome.session))


def put_outcome(book: Book, outcome: Outcome, now_ms: int) -> Playbook:
    """Store how a session ended, in place of what was said of it before; return the playbook.

    It becomes later than all before, whatever the clock says, since the last outcome of a session
    counts. A reason that redaction has made too long to be imported again is cut.
    """
    head = read_head(book.txn, book.scope)
    reason = None if outcome.reason is None else shown_name(outcome.reason)
    later_ms = min(head.last_ms + 1, RECORDED_END_MS - 1)  # a planted head stops no outcome
    outcome = replace(outcome, at_ms=max(now_ms, later_ms), reason=reason)
    _take_outcome(book, outcome, head)
    return _fold(book, outcome.scenario, anew=False)


def add_outcome(book: Book, outcome: Outcome) -> bool:
    """Store an outcome of an export; return False if its session has one, which stays.

    ``fold_outcomes`` is due in the same transaction.
    """
    if book.txn.get(_outcome_at(book, outcome)) is not None:
        return False
    _take_outcome(book, outcome, read_head(book.txn, book.scope))
    return True


def fold_outcomes(book: Book, scenarios: Iterable[str]) -> None:
    """Write the playbooks of scenarios anew; each reads all outcomes of its scenario."""
    for scenario in scenarios:
        _fold(book, scenario, anew=False)


def _take_outcome(book: Book, outcome: Outcome, head: EntryHead) -> None:
    """Write a new outcome; later ones get later times than it."""
    last_ms = max(head.last_ms, outcome.at_ms)
    write_head(book.txn, book.scope, head._replace(last_ms=last_ms))
    _put_outcome(book, outcome)


def _put_outcome(book: Book, outcome: Outcome) -> None:
    """Write an outcome's row and its index row."""
    key = _outcome_at(book, outcome)
    book.txn.put(key, seal_value(key, *encode_json(_pack_outcome(outcome))))
    row = _index_at(book.scope, key)
    book.txn.put(row, seal_value(row, b""))


# --- Playbooks ------------------------------------------------------------------------------------


def _playbook_rows(book: Book, scenario: str) -> bytes:
    veil = scenario_digest(book.seed, book.scope, scenario)
    return keys.memory_rows(book.scope, MemoryRow.PLAYBOOK, veil)


def _fold(book: Book, scenario: str, *, anew: bool) -> Playbook:
    """Write the playbook that the outcomes of a scenario add up to.

    Counts change in place. Another step or patch makes a new version; ``anew``: without the earlier
    ones, which hold what has to go.
    """
    txn, rows = book.txn, _playbook_rows(book, scenario)
    veil = rows[10:]
    outcomes = _outcomes(txn, keys.memory_rows(book.scope, MemoryRow.OUTCOME, veil))
    stored = list(txn.scan(rows, keys.after(rows)))
    known = unpack_playbook(*stored[-1]) if stored else None
    version = 1 if known is None else known.version
    if known is not None and (anew or _form(known) != _form(folded(scenario, outcomes, 0))):
        version += 1
    if anew:
        txn.delete_range(rows, keys.after(rows))
    made = folded(scenario, outcomes, version)
    if outcomes:
        _put_playbook(book, made)
        for key, _ in stored:
            if keys.number_of(key) <= version - _VERSIONS_MAX:
                txn.delete(key)
    return made


def _put_playbook(book: Book, playbook: Playbook) -> None:
    key = _playbook_rows(book, playbook.scenario) + keys.u64(playbook.version)
    book.txn.put(key, seal_value(key, *encode_json(_pack_playbook(playbook))))


def _form(playbook: Playbook) -> object:
    return playbook.steps, [(patch.step, patch.instead) for patch in playbook.patches]


def folded(scenario: str, outcomes: Iterable[Outcome], version: int) -> Playbook:
    """Return what outcomes, in their order, add up to; of forks of one session the last counts."""
    by_root: dict[int, Outcome] = {}
    steps: tuple[str, ...] = ()
    patches: dict[str, PlaybookPatch] = {}
    at_ms = 0
    for outcome in outcomes:
        by_root[outcome.root] = outcome
        at_ms = max(at_ms, outcome.at_ms)
        if outcome.passed and not steps:
            steps = outcome.steps
        for name in _blamed(outcome):
            known = patches.get(name, PlaybookPatch(name, 0))
            instead = outcome.instead.get(name) if outcome.passed else None
            patches[name] = known._replace(
                failures=known.failures + max(outcome.failed.get(name, 0), 1),
                instead=instead or known.instead,
            )
    counted = by_root.values()
    passed = sum(outcome.passed for outcome in counted)
    reasons = Counter(each.reason for each in counted if each.reason and not each.passed)
    said = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))[:_REASONS_MAX]
    iterations = sorted(each.iterations for each in counted)
    active = len(by_root) >= SESSIONS_ACTIVE and bool(steps)
    return Playbook(
        scenario=scenario,
        version=version,
        steps=steps,
        patches=_most_failed(patches.values()),
        successes=passed,
        failures=len(by_root) - passed,
        reasons=dict(said),
        iterations=iterations[len(iterations) // 2] if iterations else 0,
        score=round(lower_bound(passed, len(by_root)), 4),
        status="active" if active else "quarantined",
        recorded_at=at_ms / 1000,
    )


def _most_failed(patches: Iterable[PlaybookPatch]) -> tuple[PlaybookPatch, ...]:
    """Return the patches of the tools that failed most often, in the order given."""
    listed = list(patches)
    if len(listed) <= _PATCHES_MAX:
        return tuple(listed)
    ranked = sorted(range(len(listed)), key=lambda at: -listed[at].failures)
    return tuple(listed[at] for at in sorted(ranked[:_PATCHES_MAX]))


def _blamed(outcome: Outcome) -> list[str]:
    """Return the tools that failed; of a failed session without any, its last step."""
    if outcome.failed or outcome.passed:
        return sorted(outcome.failed)
    return list(outcome.steps[-1:])


def _pack_playbook(playbook: Playbook) -> dict[str, Any]:
    return {
        "scenario": playbook.scenario,
        "steps": list(playbook.steps),
        "patches": [list(patch) for patch in playbook.patches],
        "successes": playbook.successes,
        "failures": playbook.failures,
        "reasons": dict(playbook.reasons),
        "iterations": playbook.iterations,
        "at": round(playbook.recorded_at * 1000),
    }


def unpack_playbook(key: bytes, value: bytes) -> Playbook:
    """Return the playbook in a row.

    Raises:
        CorruptValueError: the row is damaged.
    """
    flags, body = open_value(key, value)
    with decoding(key, "playbook"):
        said = decode_json(body, flags)
        successes, failures, iterations = (
            said[name] for name in ("successes", "failures", "iterations")
        )
        steps, reasons = _unpack_steps(said["steps"]), dict(said["reasons"])
        patches = tuple(_unpack_patch(*patch) for patch in said["patches"])
        numbers = (successes, failures, iterations, said["at"], *reasons.values())
        if not all(type(number) is int and 0 <= number < _COUNT_END for number in numbers):
            raise ValueError("counts")
        if said["at"] >= RECORDED_END_MS:
            raise ValueError("at")
        active = successes + failures >= SESSIONS_ACTIVE and bool(steps)
        return Playbook(
            scenario=str(said["scenario"]),
            version=keys.number_of(key),
            steps=steps,
            patches=patches,
            successes=successes,
            failures=failures,
            reasons=reasons,
            iterations=iterations,
            score=round(lower_bound(successes, successes + failures), 4),
            status="active" if active else "quarantined",
            recorded_at=said["at"] / 1000,
        )


def _unpack_patch(step: Any, failures: Any, instead: Any) -> PlaybookPatch:
    """Return a patch of a playbook.

    Raises:
        TypeError: it is none.
    """
    texts = step, "" if instead is None else instead
    if type(failures) is not int or not all(isinstance(text, str) for text in texts):
        raise TypeError("patches")
    return PlaybookPatch(step, failures, instead)


def playbooks_in(
    txn: ReadTxn, scope: int, veil: bytes = b"", *, sound: bool = False
) -> list[Playbook]:
    """Return the current playbooks of a scope, the best first.

    Args:
        txn: the transaction.
        scope: the scope.
        veil: digest of the only scenario that is wanted; empty: all.
        sound: leave out those that are damaged, and tell the log of them.

    Raises:
        CorruptValueError: a row is damaged, unless ``sound``.
    """
    prefix = keys.memory_rows(scope, MemoryRow.PLAYBOOK, veil)
    newest = {key[:-8]: (key, value) for key, value in txn.scan(prefix, keys.after(prefix))}
    found: list[Playbook] = []
    for row in newest.values():
        try:
            found.append(unpack_playbook(*row))
        except CorruptValueError as error:
            if not sound:
                raise
            logger("memcore.memory").warning("a damaged playbook is left out: %s", error)
    return sorted(found, key=lambda each: (-each.score, -each.successes, each.scenario))


# --- What removes outcomes, or moves them ---------------------------------------------------------


def _of_session(txn: ReadTxn, scope: int, session: int) -> list[tuple[bytes, Outcome | None]]:
    """Return the outcomes of a session with their keys; None for a damaged one."""
    prefix = source_rows(scope, session, 0)
    halves = {key[-8:] for key, _ in txn.scan(prefix, keys.after(prefix))}
    found: list[tuple[bytes, Outcome | None]] = []
    for half in sorted(halves):
        rows = keys.memory_rows(scope, MemoryRow.OUTCOME, half)
        for key, value in list(txn.scan(rows, keys.after(rows))):
            if keys.number_of(key) == session:
                outcome = None
                with suppress(CorruptValueError):
                    outcome = _opened(key, value)
                found.append((key, outcome))
    return found


def outcomes_of(txn: ReadTxn, scope: int, session: int) -> list[Outcome]:
    """Return how a session ended, for each scenario; damaged rows are left out."""
    found = _of_session(txn, scope, session)
    return [outcome for _, outcome in found if outcome is not None]


def forget_outcomes(book: Book, session: int) -> None:
    """Remove what a session contributed to playbooks."""
    for key, outcome in _of_session(book.txn, book.scope, session):
        book.txn.delete(key)
        book.txn.delete(_index_at(book.scope, key))
        with suppress(CorruptValueError):  # check() reports it; a session can be removed anyway
            if outcome is not None:
                _fold(book, outcome.scenario, anew=True)


def clear_outcomes(book: Book, until_ms: int) -> bool:
    """Remove the outcomes of a scope until a time with their playbooks, a piece a transaction.

    A playbook of which a part goes is what is left adds up to.

    Returns:
        True if none is left.
    """
    txn, scope = book.txn, book.scope
    rows = keys.memory_rows(scope, MemoryRow.OUTCOME)
    piece, gone, is_whole = DeleteBudget(), [], True
    staying: dict[bytes, tuple[bytes, bytes]] = {}
    for key, value in txn.scan(rows, keys.after(rows)):
        veil = key[len(rows) : len(rows) + _VEIL_BYTES]
        is_later = False
        with suppress(CorruptValueError):
            is_later = _opened(key, value).at_ms > until_ms
        if is_later:
            staying[veil] = key, value
        elif not piece.admits(len(value), more_pages=_OUTCOME_PAGES):
            staying[veil] = key, value
            is_whole = False
            break
        else:
            gone.append(key)
    for key in gone:
        txn.delete(key)
        txn.delete(_index_at(scope, key))
    for veil in {key[len(rows) : len(rows) + _VEIL_BYTES] for key in gone}:
        if veil not in staying:
            playbooks = keys.memory_rows(scope, MemoryRow.PLAYBOOK, veil)
            txn.delete_range(playbooks, keys.after(playbooks))
        else:
            with suppress(CorruptValueError):  # the next piece removes it
                _fold(book, _opened(*staying[veil]).scenario, anew=True)
    if is_whole and not staying:
        strays = keys.memory_rows(scope, MemoryRow.PLAYBOOK)
        txn.delete_range(strays, keys.after(strays))
    return is_whole


def redact_outcomes(book: Book, redact: Callable[[Any], Any], *, write: bool = True) -> int:
    """Replace findings in reasons and tools of outcomes, and in their playbooks; return the number.

    The scenario stays: it is looked up as it is. Without ``write``, only count them.
    """
    done = 0
    scenarios: dict[str, None] = {}
    rows = keys.memory_rows(book.scope, MemoryRow.OUTCOME)
    for key, value in list(book.txn.scan(rows, keys.after(rows))):
        outcome = _opened(key, value)
        # As short as a name, since a longer one could not be imported again.
        made = {text: shown_name(redact(text)) for text in _texts_of(outcome)[1:]}
        failed = Counter[str]()
        for name, times in outcome.failed.items():  # two names may become one
            failed[made[name]] += times
        told = replace(
            outcome,
            reason=None if outcome.reason is None else made[outcome.reason],
            steps=tuple(made[name] for name in outcome.steps),
            failed=dict(failed),
            instead={made[name]: made[other] for name, other in outcome.instead.items()},
        )
        if told == outcome:
            continue
        done += 1
        if write:
            book.txn.put(key, seal_value(key, *encode_json(_pack_outcome(told))))
            scenarios[outcome.scenario] = None
    for scenario in scenarios:  # once, since each reads all outcomes of its scenario
        _fold(book, scenario, anew=True)
    return done


def texts_of_outcomes(txn: ReadTxn, scope: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the scenario of each outcome of a scope, and its reason and tools.

    Raises:
        CorruptValueError: a row is damaged.
    """
    for outcome in _outcomes(txn, keys.memory_rows(scope, MemoryRow.OUTCOME)):
        scenario, *rest = _texts_of(outcome)
        yield scenario, rest


def move_outcomes(book: Book, session: int, to: int, root_after: int) -> None:
    """Let the outcomes of a session be those of the one that replaces it.

    ``root_after``: root of those whose root was the session.
    """
    for key, outcome in _of_session(book.txn, book.scope, session):
        book.txn.delete(key)
        book.txn.delete(_index_at(book.scope, key))
        if outcome is None:
            continue
        root = root_after if outcome.root == session else outcome.root
        told = replace(outcome, root=root)
        moved = key[:-8] + keys.u64(to)
        book.txn.put(moved, seal_value(moved, *encode_json(_pack_outcome(told))))
        row = _index_at(book.scope, moved)
        book.txn.put(row, seal_value(row, b""))
        _fold(book, outcome.scenario, anew=False)


# --- Check, salvage, export -----------------------------------------------------------------------


def check_playbooks(txn: ReadTxn, scope: int, seed: bytes) -> Iterator[str]:
    """Verify that each playbook is what its outcomes add up to; yield findings as text.

    Raises:
        CorruptValueError: a row is damaged; it is reported elsewhere.
    """
    by_scenario: dict[str, list[Outcome]] = {}
    prefix = keys.memory_rows(scope, MemoryRow.OUTCOME)
    for outcome in _outcomes(txn, prefix):
        by_scenario.setdefault(outcome.scenario, []).append(outcome)
        veil = scenario_digest(seed, scope, outcome.scenario)
        key = keys.memory_rows(scope, MemoryRow.OUTCOME, veil, keys.u64(outcome.session))
        if txn.get(key) is None or txn.get(_index_at(scope, key)) is None:
            yield f"the memory of an outcome of session {outcome.session} is not indexed"
        if txn.get(head_key(scope, outcome.session)) is None:
            yield f"the memory of an outcome is of session {outcome.session}, which is not there"
    for playbook in playbooks_in(txn, scope):
        outcomes = by_scenario.pop(playbook.scenario, [])
        if folded(playbook.scenario, outcomes, playbook.version) != playbook:
            yield f"the memory of scenario {playbook.scenario!r:.40} differs from its outcomes"
    yield from (f"the memory of scenario {name!r:.40} has no playbook" for name in by_scenario)
    sources = keys.memory_rows(scope, MemoryRow.SOURCE)
    for key, _ in txn.scan(sources, keys.after(sources)):
        half = keys.memory_rows(scope, MemoryRow.OUTCOME, key[-8:])
        session = key[10:18]
        if is_of_outcome(key) and not any(
            row.endswith(session) for row, _ in txn.scan(half, keys.after(half))
        ):
            yield f"the index row {key.hex()} leads to no outcome"


def mend_playbooks(book: Book) -> None:
    """Write the salvaged outcomes and playbooks anew; outcomes of lost sessions go.

    Earlier versions of playbooks go, too: one may have been removed with what it held.
    """
    txn, scope = book.txn, book.scope
    found: list[Outcome] = []
    known: dict[str, Playbook] = {}
    for row in (MemoryRow.OUTCOME, MemoryRow.PLAYBOOK):
        prefix = keys.memory_rows(scope, row)
        for key, value in list(txn.scan(prefix, keys.after(prefix))):
            with suppress(CorruptValueError):
                if row == MemoryRow.OUTCOME:
                    found.append(_opened(key, value))
                else:
                    newest = unpack_playbook(key, value)
                    known[newest.scenario] = newest
        txn.delete_range(prefix, keys.after(prefix))
    by_scenario: dict[str, list[Outcome]] = {}
    for outcome in sorted(found, key=lambda each: (each.at_ms, each.session)):
        if txn.get(head_key(scope, outcome.session)) is not None:
            by_scenario.setdefault(outcome.scenario, []).append(outcome)
            _put_outcome(book, outcome)
    for scenario, outcomes in by_scenario.items():
        before = known.get(scenario)
        made = folded(scenario, outcomes, 1 if before is None else before.version)
        if before is not None and _form(before) != _form(made):
            made = replace(made, version=made.version + 1)
        _put_playbook(book, made)
    if found:
        head = read_head(txn, scope)
        last_ms = max(head.last_ms, *(outcome.at_ms for outcome in found))
        write_head(txn, scope, head._replace(last_ms=last_ms))


def export_outcomes(txn: ReadTxn, scope: int) -> Iterator[dict[str, Any]]:
    """Yield the bodies of the lines of a scope's outcomes.

    Raises:
        CorruptValueError: a row is damaged.
    """
    for outcome in _outcomes(txn, keys.memory_rows(scope, MemoryRow.OUTCOME)):
        said = _pack_outcome(outcome)
        del said["root"]
        yield {"outcome": said}
