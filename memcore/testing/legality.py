"""Legality of a context, judged by ids and positions alone: the rules of each provider, and pairs.

It shares no code with memcore's ledger, renderer or validator. A finding says which rule is broken
and where, and shows the messages around it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict as fields_of
from dataclasses import dataclass, is_dataclass
from typing import Any, Final, NamedTuple

from memcore.errors import IllegalContextError, InvalidOptionError
from memcore.testing.facts import (
    BY_NAME,
    CALL,
    ID_CHARS_MAX,
    MODEL,
    OPAQUE,
    PROGRAM,
    REASONING,
    RESULT,
    SECOND,
    SERVER,
    SYSTEM,
    USER,
    Facts,
    Key,
    classify,
    plain,
)

__all__ = [
    "LEVELS",
    "POLICIES",
    "Breach",
    "ContextFinding",
    "assert_legal",
    "breaches",
    "broken_pairs",
    "first_finding",
    "healable",
]

Json = dict[str, Any]

POLICIES: Final = ("openai_chat", "openai_responses", "anthropic", "gemini", "langchain")
"""The wire formats whose rules are known here, named as memcore's pair policies."""
LEVELS: Final = ("pairs", "provider")
"""``pairs``: the parted calls and results alone. ``provider``: all that the provider refuses."""


class Breach(NamedTuple):
    """One broken rule: the number of the message, the rule, the keys of the calls concerned."""

    at: int
    rule: str
    keys: tuple[Key, ...] = ()


# --- the rules of a provider ----------------------------------------------------------------------


def breaches(messages: Sequence[Json], policy: str) -> list[Breach]:
    """Find what the provider refuses in a list of messages, in order.

    Calls at the end that nothing but results follows (for Responses: nothing but calls and results)
    may be open. A call without an id is no call, except where it binds by name.
    """
    items = [classify(message) for message in messages]
    found = list(_bad_reasoning(items))
    found += _long_ids(items, ID_CHARS_MAX.get(policy))
    if policy in {"anthropic", "gemini"}:
        found += _bad_turns(messages, items)
        found += _bad_server_calls(items)
        found += _bad_start(items)
        if policy == "anthropic":
            found += _repeated_ids(items)
    elif policy == "openai_responses":
        found += _bad_anywhere(items)
    else:
        found += _bad_adjacent(items)
        found += _bad_server_calls(items)
    return sorted(found)


def _long_ids(items: list[Facts], most: int | None) -> Iterable[Breach]:
    for i, item in enumerate(items):
        long = [key for key in item.opens if not key[0] & BY_NAME and len(key[1]) > (most or 0)]
        if most and long:
            yield Breach(i, "a call id that is too long", tuple(long))


def _bad_reasoning(items: list[Facts]) -> Iterable[Breach]:
    for i, item in enumerate(items):
        if item.kind == REASONING and not (i + 1 < len(items) and items[i + 1].flags & MODEL):
            yield Breach(i, "reasoning without the item it belongs to")


def _own(keys: tuple[Key, ...]) -> Counter[Key]:
    """Keys that pair by position: server tools answer themselves, references answer nothing."""
    return Counter(key for key in keys if key[0] & 0x3F != SERVER and not key[0] & SECOND)


def _bad_adjacent(items: list[Facts]) -> Iterable[Breach]:
    """Chat: the results of a message are the run of results right behind it."""
    waiting: Counter[Key] = Counter()
    for i, item in enumerate(items):
        if item.kind != RESULT:
            if waiting:
                yield Breach(i, "something else than results behind calls", tuple(waiting))
            waiting = _own(item.opens)
            continue
        if not item.closes:
            yield Breach(i, "a result without an id")
        for key in item.closes:
            if waiting[key] <= 0:
                yield Breach(i, "a result that its call is not right before", (key,))
            waiting -= Counter([key])


def _bad_turns(messages: Sequence[Json], items: list[Facts]) -> Iterable[Breach]:
    """Anthropic and Gemini: the next message answers all calls, results first."""
    calls: Counter[Key] = Counter()
    for i, item in enumerate(items):
        results = _own(item.closes)
        if results != calls:
            keys = tuple(sorted({*(results - calls), *(calls - results)}))
            yield Breach(i, "results that are not those of the calls right before", keys)
        if item.kind == RESULT and not item.closes:
            yield Breach(i, "a result without an id")
        if item.kind == RESULT and not _results_first(messages[i]):
            yield Breach(i, "other content before a result", item.closes)
        calls = _own(item.opens)


def _results_first(message: Json) -> bool:
    parts = message.get("parts", message.get("content"))
    order = [
        isinstance(part, dict)
        and (
            part.get("type") == "tool_result"
            or "functionResponse" in part
            or "function_response" in part
        )
        for part in (parts if isinstance(parts, (list, tuple)) else [])
    ]
    return order == sorted(order, reverse=True)


def _bad_server_calls(items: list[Facts]) -> Iterable[Breach]:
    """A server tool is answered in its message or in a later one of the model."""
    waiting: set[Key] = set()
    for i, item in enumerate(items):
        for key in item.closes:
            if key[0] & 0x3F == SERVER:
                if key not in waiting:
                    yield Breach(i, "a server result without its call", (key,))
                waiting.discard(key)
        if waiting and not item.flags & MODEL:
            yield Breach(i, "a server call without its result", tuple(sorted(waiting)))
        waiting |= {key for key in item.opens if key[0] & 0x3F == SERVER}


def _bad_start(items: list[Facts]) -> Iterable[Breach]:
    first = next((i for i, item in enumerate(items) if item.kind != SYSTEM), None)
    if first is not None and items[first].kind != USER:
        yield Breach(first, "start: not a message of the user")


def _repeated_ids(items: list[Facts]) -> Iterable[Breach]:
    seen: set[Key] = set()
    for i, item in enumerate(items):
        again = seen & set(item.opens)
        if again:
            yield Breach(i, "an id that came before", tuple(sorted(again)))
        seen |= set(item.opens)


def _bad_anywhere(items: list[Facts]) -> Iterable[Breach]:
    """Responses: a result may come anywhere behind its call, once."""
    waiting: list[tuple[int, list[Key]]] = []
    for i, item in enumerate(items):
        for key in item.closes:
            match = [call for call in waiting if (key[0] & ~SECOND, key[1]) in call[1]]
            if key[0] & SECOND:
                if not any((key[0] & ~SECOND, key[1]) in before.opens for before in items[:i]):
                    yield Breach(i, "a child without its program", (key,))
            elif match:
                waiting.remove(match[0])
            else:
                yield Breach(i, "a result without an open call", (key,))
        if item.kind == RESULT and not item.closes:
            yield Breach(i, "a result without an id")
        names = [(cls & ~SECOND, name) for cls, name in item.opens]
        if any(cls & SECOND for cls, _ in item.opens):
            waiting.append((i, names))
        else:
            waiting += [(i, [name]) for name in names]
    for i, names in waiting:
        # A program runs at its provider: what the model says behind it is its continuation.
        passing = (
            {USER, SYSTEM, OPAQUE} if names[0][0] == PROGRAM else set(range(8)) - {CALL, RESULT}
        )
        if any(item.kind in passing for item in items[i + 1 :]):
            yield Breach(i, "a call without its result", tuple(names))


def healable(found: list[Breach], messages: Sequence[Json], policy: str) -> list[Breach]:
    """The breaches of a list, but for those that no choice of messages can heal.

    These are ids that came twice, calls of the provider's own tools, and the calls at the very end
    of which some are answered and some are still open.
    """
    no_cure = {"an id that came before"}
    if policy == "openai_responses":
        no_cure.add("a result without an id")  # a named output may stand alone
    items = [classify(message) for message in messages]
    last = len(items) - 1
    partial = -1
    if len(items) > 1 and items[last].kind == RESULT:
        calls, answers = Counter(items[last - 1].opens), Counter(items[last].closes)
        partial = last if answers < calls else -1
    return [
        each
        for each in found
        if each.rule not in no_cure
        and "server" not in each.rule
        and (each.at != partial or "not those of the calls right before" not in each.rule)
    ]


# --- pairs ----------------------------------------------------------------------------------------

ORPHAN: Final = "a result without its call"
LOST: Final = "a call whose result was left out"


class _Pairs:
    """The calls and results of a list, bound by their keys."""

    def __init__(self, items: Iterable[Facts]) -> None:
        self.calls: dict[Key, list[tuple[int, list[int]]]] = {}
        """By key, in order: the position of each call, and those of its results."""
        self.orphans: list[tuple[int, Key]] = []
        for at, item in enumerate(items):
            for key in _own(item.closes).elements():
                self._answer(at, key)
            for key in _own(item.opens).elements():
                self.calls.setdefault(key, []).append((at, []))

    def _answer(self, at: int, key: Key) -> None:
        made = self.calls.get(key)
        if not made:
            self.orphans.append((at, key))
            return
        waiting = [call for call in made if not call[1]]
        by_name = bool(key[0] & BY_NAME)
        (waiting[0] if by_name and waiting else made[-1])[1].append(at)


def broken_pairs(shown: Sequence[Json], history: Sequence[Json]) -> list[Breach]:
    """Find the pairs that ``shown`` parts although ``history`` has both halves.

    These are results whose call is not shown before them, and shown calls whose result, which is
    in the history, is not. Whatever lacks its other half in the history itself is excused.
    """
    there = _Pairs(map(classify, history))
    here = _Pairs(map(classify, shown))
    excused = {key for _, key in there.orphans}
    found = [Breach(at, ORPHAN, (key,)) for at, key in here.orphans if key not in excused]
    for key, calls in here.calls.items():
        known = there.calls.get(key, [])
        for back in range(1, min(len(calls), len(known)) + 1):
            at, results = calls[-back]
            if known[-back][1] and not results:
                found.append(Breach(at, LOST, (key,)))
    return sorted(found)


# --- findings -------------------------------------------------------------------------------------

TEXT_CHARS: Final = 40
AROUND: Final = 3
SHOWN_MAX: Final = 24


@dataclass(frozen=True, kw_only=True)
class ContextFinding:
    """One illegal context, or a memory that raised; ``str()`` of it is a report to read."""

    policy: str
    """The wire format whose rules were applied."""
    rule: str
    """The broken rule in words, or the failure of the code under test."""
    at: int | None = None
    """The position of the message in the context; None if there is none."""
    call_ids: tuple[str, ...] = ()
    """Ids of the calls concerned; names, for calls without ids."""
    budget: int | None = None
    """The budget that was asked for; None if a list was judged alone."""
    context: tuple[Any, ...] = ()
    """The illegal context."""
    history: tuple[Json, ...] | None = None
    """The items that had been appended; None if a list was judged alone."""
    error: Exception | None = None
    """The exception of the code under test, if it raised."""
    examples: int = 0
    """Number of examples that were tried up to the first illegal one."""

    def __str__(self) -> str:
        lines = [f"{self.policy}: {self._title()}"]
        lines += [f"  {line}" for line in self._places()]
        if self.error is None:
            asked = "" if self.budget is None else f" for a budget of {self.budget}"
            lines.append(f"context{asked}: {len(self.context)} messages")
            lines += _excerpt(self.context, self.at)
        if self.history is not None:
            lines.append(f"history: {len(self.history)} items had been appended")
            lines += _excerpt(self.history, None)
        return "\n".join(lines)

    def _title(self) -> str:
        where = "" if self.at is None else f"message {self.at}: "
        named = ", ".join(map(repr, self.call_ids))
        return f"{where}{self.rule}{f' ({named})' if named else ''}"

    def _places(self) -> Iterable[str]:
        """Say of each call concerned where it and its results stand, there and here."""
        for call_id in self.call_ids:
            for what, messages in (("history", self.history), ("context", self.context)):
                if messages is not None and (what == "history" or self.error is None):
                    calls, results = _places_of(call_id, messages)
                    yield (
                        f"in the {what}, call {call_id!r}: {_counted(calls)}; "
                        f"its results: {_counted(results)}"
                    )


def _places_of(call_id: str, messages: Iterable[Any]) -> tuple[list[int], list[int]]:
    items = [
        classify(message) if isinstance(message, dict) else Facts(OPAQUE) for message in messages
    ]
    calls = [at for at, item in enumerate(items) if any(key[1] == call_id for key in item.opens)]
    ends = [at for at, item in enumerate(items) if any(key[1] == call_id for key in item.closes)]
    return calls, ends


def _counted(positions: list[int]) -> str:
    return f"at {', '.join(map(str, positions))}" if positions else "none"


def _excerpt(messages: Sequence[Any], at: int | None) -> list[str]:
    """A line a message, the one concerned marked; of long lists those around it."""
    near = range(len(messages))
    if len(messages) > SHOWN_MAX:
        middle = len(messages) - 1 if at is None else at
        near = range(max(0, middle - AROUND), min(len(messages), middle + AROUND + 1))
    lines = [f"  {'>' if i == at else ' '} {i:3}  {_line(messages[i])}" for i in near]
    if near.start:
        lines.insert(0, "      ...")
    if near.stop < len(messages):
        lines.append("      ...")
    return lines


_KINDS: Final = (
    "other", "system", "user", "assistant", "call", "result", "reasoning", "event",
)  # fmt: skip


def _line(message: Any) -> str:
    if not isinstance(message, dict):
        return f"no message: {type(message).__name__}"
    item = classify(message)
    calls = [key[1] for key in item.opens]
    answers = [key[1] for key in item.closes if not key[0] & SECOND]
    told = [_KINDS[item.kind]]
    told += [f"calls {', '.join(calls)}"] * bool(calls)
    told += [f"answers {', '.join(answers)}"] * bool(answers)
    content = message.get("content", message.get("parts", message.get("output")))
    text = content if isinstance(content, str) else json.dumps(content, default=repr)
    if isinstance(content, str) and content:
        told.append(repr(text if len(text) <= TEXT_CHARS else text[:TEXT_CHARS] + "…"))
    return "  ".join(told)


def first_finding(
    shown: object,
    *,
    policy: str = "openai_chat",
    history: Sequence[Json] | None = None,
    level: str = "provider",
    budget: int | None = None,
) -> ContextFinding | None:
    """Judge one context; None if it is legal.

    Args:
        shown: the messages, dicts or objects of an SDK.
        policy: one of ``POLICIES``.
        history: the items that the context was made of. With it, what no choice among them can
            heal is excused: an id that came twice, calls of which only some are answered yet.
        level: ``"provider"``, or ``"pairs"`` (needs ``history``).
        budget: the budget that was asked for, for the report.

    Raises:
        InvalidOptionError: an unknown policy or level, or ``"pairs"`` without a history.
    """
    _check_options(policy, level, history)
    given = None if history is None else tuple(history)
    known: dict[str, Any] = {"policy": policy, "budget": budget, "history": given}
    if isinstance(shown, str | bytes | Mapping) or not isinstance(shown, Iterable):
        rule = f"no list of messages, but {type(shown).__name__}"
        return ContextFinding(rule=rule, **known)
    messages = [_message_of(each) for each in shown]
    known["context"] = tuple(messages)
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            return ContextFinding(rule=f"no message, but {type(message).__name__}", at=at, **known)
    if level == "pairs":
        found = broken_pairs(messages, history or ())
    else:
        found = breaches(messages, policy)
        if history is not None:
            found = healable(found, messages, policy)
    if not found:
        return None
    at, rule, keys = found[0]
    return ContextFinding(rule=rule, at=at, call_ids=tuple(key[1] for key in keys), **known)


def _check_options(policy: str, level: str, history: Sequence[Json] | None) -> None:
    if policy not in POLICIES:
        msg = f"policy: expected one of {', '.join(POLICIES)}; got {policy!r}"
        raise InvalidOptionError(msg)
    if level not in LEVELS:
        msg = f"level: expected one of {', '.join(LEVELS)}; got {level!r}"
        raise InvalidOptionError(msg)
    if level == "pairs" and history is None:
        msg = "level='pairs' compares a context with its history: give history="
        raise InvalidOptionError(msg)


def _message_of(given: Any) -> Any:
    """A message as a dict; objects of an SDK through their ``model_dump`` or their fields."""
    if isinstance(given, Mapping):
        return plain(dict(given))
    dump = getattr(given, "model_dump", None)
    if callable(dump):
        return plain(dump(mode="json", exclude_none=True))
    if is_dataclass(given) and not isinstance(given, type):
        return plain(fields_of(given))
    return given


def assert_legal(
    shown: object,
    *,
    policy: str = "openai_chat",
    history: Sequence[Json] | None = None,
    level: str = "provider",
) -> None:
    """Judge one context, as ``first_finding``.

    Raises:
        IllegalContextError: it is illegal; the message says where, and shows it.
        InvalidOptionError: as ``first_finding``.
    """
    found = first_finding(shown, policy=policy, history=history, level=level)
    if found is not None:
        raise IllegalContextError(str(found), finding=found)
