"""Fuzzing of any memory that appends items and gives contexts: one's own, a framework's, memcore's.

A memory is a pair of callables, ``append(item)`` and ``context(budget) -> messages``. Histories of
agents are appended to it, contexts are asked for, and each is judged by ``legality``. Coroutine
functions are run to their end.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from memcore.errors import IllegalContextError, InvalidOptionError
from memcore.testing.facts import USER, classify
from memcore.testing.legality import LEVELS, ContextFinding, first_finding
from memcore.testing.script import FORMATS, Faults, SeededChoices, Step, random_history, written
from memcore.testing.strategies import agent_histories

__all__ = [
    "MemoryMachine",
    "Survey",
    "check_memory",
    "fuzz",
    "memory_machine",
    "survey",
    "trimmer",
]

Json = dict[str, Any]
Make = Callable[[], Any]
"""Makes an empty memory: a pair (append, context), or a context manager that enters with one."""
Refusals = tuple[type[Exception], ...]


def trimmer(trim: Callable[[list[Json], int], Any]) -> Make:
    """The memory that a function ``trim(messages, budget) -> messages`` makes of a plain list."""

    def make() -> tuple[Callable[[Json], None], Callable[[int], Any]]:
        history: list[Json] = []
        return history.append, lambda budget: trim(deepcopy(history), budget)

    return make


# --- one memory under test ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _ProbePlan:
    """The memory to test, and the histories, budgets and rules to test it with."""

    make: Make
    policy: str
    faults: Faults
    level: str
    budgets: tuple[int, int]
    turns: tuple[int, int]
    refusals: Refusals

    def __post_init__(self) -> None:
        for name, value, known in (
            ("policy", self.policy, FORMATS),
            ("level", self.level, LEVELS),
        ):
            if value not in known:
                msg = f"{name}: expected one of {', '.join(known)}; got {value!r:.80}"
                raise InvalidOptionError(msg)
        for name, pair in (("budgets", self.budgets), ("turns", self.turns)):
            if len(pair) != 2 or not 0 < pair[0] <= pair[1]:  # noqa: PLR2004 - both ends
                msg = f"{name}: expected (least, most), both above 0, got {pair!r:.80}"
                raise InvalidOptionError(msg)
        if not callable(self.make):
            msg = f"make: expected a function that makes a memory, got {self.make!r:.80}"
            raise InvalidOptionError(msg)


def _plan(make: Make, options: dict[str, Any]) -> _ProbePlan:
    known: dict[str, Any] = {
        "policy": "openai_chat",
        "faults": None,
        "level": "pairs",
        "budgets": (1, 200),
        "turns": (1, 4),
        "refusals": (),
    }
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        msg = f"{unknown[0]}: there is no such option; there are {', '.join(known)}"
        raise InvalidOptionError(msg)
    known |= options
    known["faults"] = known["faults"] or Faults()
    return _ProbePlan(make=make, **known)


class _Probe:
    """A memory under test and the items that it took."""

    def __init__(self, plan: _ProbePlan) -> None:
        self.plan = plan
        self.history: list[Json] = []
        self.refused = 0
        self._open = ExitStack()
        try:
            made = plan.make()
            if hasattr(made, "__enter__"):
                made = self._open.enter_context(made)
            self._append, self._context = made
        except (TypeError, ValueError) as error:
            self._open.close()
            msg = (
                "make: expected a pair (append, context) or a context manager of one; "
                f"{type(error).__name__}: {error}"
            )
            raise InvalidOptionError(msg) from error

    def close(self) -> None:
        """Leave the memory's context manager, if it has one."""
        self._open.close()

    def append(self, items: Iterable[Json]) -> None:
        """Append items; those that the memory refuses are no part of the history.

        Raises:
            IllegalContextError: the memory raised; the finding names what, and where.
        """
        for item in items:
            try:
                _settled(self._append(deepcopy(item)))
            except self.plan.refusals:
                self.refused += 1
            except Exception as error:
                self.history.append(item)
                raise self._raised("append", error) from error
            else:
                self.history.append(item)

    def ask(self, budget: int) -> None:
        """Ask for a context and judge it.

        Raises:
            IllegalContextError: it is illegal, or the memory raised.
        """
        try:
            shown = _settled(self._context(budget))
        except self.plan.refusals:
            self.refused += 1
            return
        except Exception as error:
            raise self._raised("context", error, budget) from error
        plan = self.plan
        found = first_finding(
            shown, policy=plan.policy, history=self.history, level=plan.level, budget=budget
        )
        if found is not None:
            raise IllegalContextError(str(found), finding=found)

    def _raised(self, call: str, error: Exception, budget: int | None = None) -> Exception:
        found = ContextFinding(
            policy=self.plan.policy,
            rule=f"{call}() raised {type(error).__name__}: {error}",
            budget=budget,
            history=tuple(self.history),
            error=error,
        )
        return IllegalContextError(str(found), finding=found)


def _settled(value: Any) -> Any:
    """The value, or that of a coroutine that is run to its end."""
    return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


# --- fuzzing --------------------------------------------------------------------------------------

ASKS_MAX: Final = 3
TRIES: Final = 64
"""Budgets tried to make a finding smaller."""


@st.composite
def _trials(draw: st.DrawFn, plan: _ProbePlan) -> tuple[list[Json], list[tuple[int, int]]]:
    """A history, and after how many of its items a context is asked for with which budget."""
    history = draw(agent_histories(policy=plan.policy, faults=plan.faults, turns=plan.turns))
    ask = st.tuples(st.integers(1, len(history)), st.integers(*plan.budgets))
    return history, sorted(draw(st.lists(ask, min_size=1, max_size=ASKS_MAX)))


def _tried(plan: _ProbePlan, history: Sequence[Json], asks: Iterable[tuple[int, int]]) -> None:
    probe = _Probe(plan)
    try:
        done = 0
        for at, budget in asks:
            probe.append(history[done:at])
            done = at
            probe.ask(budget)
        probe.append(history[done:])
    finally:
        probe.close()


def fuzz(
    make: Make, *, examples: int = 200, random_seed: int = 0, **options: Any
) -> ContextFinding | None:
    """Search for a history of which a memory makes an illegal context; None if none is found.

    The finding is of the smallest such history that hypothesis shrinks it to; its ``examples`` is
    the number of histories that were tried up to the first illegal context.

    Args:
        make: makes an empty memory: a pair (append, context), or a context manager of one.
        examples: number of histories to try.
        random_seed: of the histories; the same seed gives the same ones.
        options: ``policy`` (wire format, ``"openai_chat"``), ``faults`` (``Faults()``), ``level``
            (``"pairs"``: what the memory itself broke; ``"provider"``: all that the provider
            refuses), ``budgets`` (least and most, ``(1, 200)``), ``turns`` (``(1, 4)``),
            ``refusals`` (exceptions by which the memory may refuse an item or a budget).

    Raises:
        InvalidOptionError: an unknown option or a wrong value.
    """
    plan = _plan(make, options)
    tried = [0, 0]  # histories; those up to the first illegal context
    seen: list[ContextFinding] = []

    def trial(drawn: tuple[list[Json], list[tuple[int, int]]]) -> None:
        tried[0] += 1
        try:
            _tried(plan, *drawn)
        except IllegalContextError as error:
            tried[1] = tried[1] or tried[0]
            seen.append(_of(error))
            raise

    run = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )(seed(random_seed)(given(_trials(plan))(trial)))
    try:
        run()
    except IllegalContextError as error:
        return replace(_smallest(plan, _of(error)), examples=tried[1])
    except Flaky:
        if not seen:
            raise
        rule = f"{seen[0].rule} (the memory does not do the same each time)"
        return replace(seen[0], rule=rule, examples=tried[1])
    return None


def _smallest(plan: _ProbePlan, found: ContextFinding) -> ContextFinding:
    """Leave out of a finding's history whatever it does not need, then lower its budget.

    hypothesis shortens what it drew; this leaves out items from anywhere, a call always together
    with its results, so that no fault comes in that the memory is not to blame for.
    """
    history = list(found.history or ())
    at = len(history) - 1
    while at >= 0:
        item, unit = classify(history[at]), {at, *_answers(history, at)}
        users = [place for place, each in enumerate(history) if classify(each).kind == USER]
        if not item.closes and users[:1] != [at]:  # a history begins with its user
            fewer = [item for place, item in enumerate(history) if place not in unit]
            smaller = _finding(plan, fewer, found)
            if smaller is not None:
                found, history = smaller, fewer
        at = min(at, len(history)) - 1
    for budget in range(plan.budgets[0], min(found.budget or 0, plan.budgets[0] + TRIES)):
        smaller = _finding(plan, history, replace(found, budget=budget))
        if smaller is not None:
            return smaller
    return found


def _answers(history: Sequence[Json], at: int) -> list[int]:
    """The items behind a position that answer a call of the item there."""
    made = set(classify(history[at]).opens)
    return [
        place
        for place in range(at + 1, len(history))
        if made & set(classify(history[place]).closes)
    ]


def _finding(
    plan: _ProbePlan, history: Sequence[Json], known: ContextFinding
) -> ContextFinding | None:
    """The finding of a history under the rule of another one, if it has one there."""
    asks = [(len(history), known.budget)] if known.budget is not None else []
    try:
        _tried(plan, history, asks)
    except IllegalContextError as error:
        found = _of(error)
        return found if found.rule == known.rule else None
    return None


def _of(error: IllegalContextError) -> ContextFinding:
    if not isinstance(error.finding, ContextFinding):
        raise error
    return error.finding


def check_memory(make: Make, *, examples: int = 200, **options: Any) -> None:
    """Search as ``fuzz``, for use in a test.

    Raises:
        IllegalContextError: an illegal context was found; the message is its report.
        InvalidOptionError: as ``fuzz``.
    """
    found = fuzz(make, examples=examples, **options)
    if found is not None:
        raise IllegalContextError(str(found), finding=found)


# --- rates ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Counts of a memory's contexts, one a history."""

    contexts: int
    illegal: int
    raised: int
    refused: int
    """Histories of which the memory refused an item or the context; they are not judged."""
    first: ContextFinding | None

    @property
    def rate(self) -> float:
        """Share of the judged contexts that are illegal or came as an exception, 0 to 1."""
        judged = self.contexts - self.refused
        return (self.illegal + self.raised) / judged if judged else 0.0


def survey(make: Make, *, examples: int = 200, **options: Any) -> Survey:
    """Count illegal contexts over seeded histories, each asked for one at its end; no shrinking.

    Options are those of ``fuzz``.

    Raises:
        InvalidOptionError: as ``fuzz``.
    """
    plan = _plan(make, options)
    illegal = raised = refused = 0
    first: ContextFinding | None = None
    for number in range(examples):
        history = random_history(
            policy=plan.policy, seed=number, faults=plan.faults, turns=plan.turns
        )
        budget = SeededChoices(f"budget {number}").count(*plan.budgets)
        probe = _Probe(plan)
        try:
            probe.append(history)
            probe.ask(budget)
        except IllegalContextError as error:
            found = _of(error)
            illegal += found.error is None
            raised += found.error is not None
            first = first or replace(found, examples=number + 1)
        else:
            refused += probe.refused > 0
        finally:
            probe.close()
    return Survey(contexts=examples, illegal=illegal, raised=raised, refused=refused, first=first)


# --- the machine ----------------------------------------------------------------------------------


class MemoryMachine(RuleBasedStateMachine):
    """Rules that append to a memory whatever an agent may, and ask for contexts at any moment.

    ``memory_machine`` makes a subclass for one memory.
    """

    plan: ClassVar[_ProbePlan]

    def __init__(self) -> None:
        super().__init__()
        self.probe = _Probe(self.plan)
        self.open: list[tuple[str, bool]] = []
        self.answered: list[str] = []
        self.made = 0

    def _write(self, step: Step) -> None:
        self.probe.append(written([step], self.plan.policy))

    def _may_go_on(self) -> bool:
        faults = self.plan.faults
        return not self.open or faults.late > 0 or faults.missing > 0

    def _may_say(self) -> bool:
        return self._may_go_on() or self.plan.faults.injected > 0

    @precondition(_may_say)
    @rule(words=st.integers(1, 20))
    def say(self, words: int) -> None:
        """The user says something."""
        self._write(Step("user", texts=(" ".join(["word"] * words),)))

    @precondition(lambda self: self.plan.faults.injected > 0)
    @rule()
    def instruct(self) -> None:
        """A system message comes in between."""
        self._write(Step("system", texts=("mind this",)))

    @precondition(_may_go_on)
    @rule(words=st.integers(1, 20))
    def reply(self, words: int) -> None:
        """The model answers without a call."""
        self._write(Step("assistant", texts=(" ".join(["word"] * words),)))

    @precondition(_may_go_on)
    @rule(size=st.integers(1, 4), thinking=st.booleans(), idless=st.booleans())
    def call(self, size: int, thinking: bool, idless: bool) -> None:
        """The model calls."""
        faults = self.plan.faults
        nameless = idless and faults.idless > 0 and not any(by_name for _, by_name in self.open)
        size = size if faults.parallel > 0 and not nameless else 1
        ids = tuple(f"call_{self.made + at}" for at in range(size))
        self.made += size
        thinks = thinking and faults.reasoning > 0
        self._write(Step("call", ids, texts=("so",), idless=nameless, thinking=thinks))
        self.open += [(call_id, nameless) for call_id in ids]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """One of the open calls is answered."""
        call_id, nameless = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self._write(Step("results", (call_id,), texts=("done",), idless=nameless))
        self.answered += [] if nameless else [call_id]

    @precondition(lambda self: self.open)
    @rule()
    def answer_all(self) -> None:
        """All open calls are answered."""
        ids = tuple(call_id for call_id, nameless in self.open if not nameless)
        for call_id, nameless in self.open:
            if nameless:
                self._write(Step("results", (call_id,), texts=("done",), idless=True))
        if ids:
            self._write(Step("results", ids, texts=("done",) * len(ids)))
        self.answered += ids
        self.open = []

    @precondition(lambda self: self.answered and self.plan.faults.repeated > 0)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """A result comes again."""
        call_id = data.draw(st.sampled_from(self.answered))
        self._write(Step("results", (call_id,), texts=("done again",)))

    @precondition(lambda self: self.plan.faults.orphaned > 0)
    @rule()
    def stray(self) -> None:
        """A result comes whose call was never made."""
        self._write(Step("results", (f"stray_{len(self.probe.history)}",), texts=("lost",)))

    @precondition(lambda self: self.probe.history)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        """A context is asked for and judged."""
        self.probe.ask(data.draw(st.integers(*self.plan.budgets)))

    def teardown(self) -> None:
        """Close the memory."""
        self.probe.close()


def memory_machine(make: Make, **options: Any) -> type[MemoryMachine]:
    """The state machine for a memory; its ``TestCase`` is one that pytest and unittest run.

    Options are those of ``fuzz``; a kind of fault whose share is 0 does not occur, any other may at
    any moment.

    Raises:
        InvalidOptionError: as ``fuzz``.
    """
    return type("MemoryMachine", (MemoryMachine,), {"plan": _plan(make, options)})
