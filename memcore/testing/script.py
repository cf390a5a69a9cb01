"""Scripts of an agent's conversation, in no format yet, and their writers in every wire format.

A script is a list of steps. ``agent_script`` makes one of any choices, seeded or hypothesis's, with
the faults that ``Faults`` asks for.
"""

# ruff: noqa: PLR0911 - a return for each kind of step

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from memcore.errors import InvalidOptionError
from memcore.testing.facts import BY_NAME, Event

__all__ = [
    "FORMATS",
    "IDS",
    "NAMES",
    "Choices",
    "Faults",
    "SeededChoices",
    "Step",
    "agent_script",
    "random_history",
    "write",
    "written",
]

Item = dict[str, Any]
T = TypeVar("T")

FORMATS: Final = ("openai_chat", "openai_responses", "anthropic", "gemini", "langchain")
IDS: Final = ("c0", "c1", "c2", "c3", "c4")
NAMES: Final = ("search", "fetch")


class Step(NamedTuple):
    """One step of a script: its kind, ids and texts; ``variant`` is a form that the format has."""

    what: str
    ids: tuple[Any, ...] = ()
    variant: int = 0
    texts: tuple[str, ...] = ()
    idless: bool = False
    """Calls and results carry no ids, in formats that pair by name."""
    thinking: bool = False
    """The model reasons before it calls, in formats that show it."""

    def said(self, default: str, *, at: int = 0) -> str:
        """The text of the step, or of its result number ``at``."""
        return self.texts[at] if at < len(self.texts) else default


def _name(key: Any = None) -> str:
    """The tool that a call with this id calls."""
    return NAMES[sum(map(ord, key)) % len(NAMES)] if isinstance(key, str) else NAMES[0]


# --- writers --------------------------------------------------------------------------------------


def _chat(step: Step) -> list[Item]:
    ids, variant = step.ids, step.variant
    by_name = variant == 7 or step.idless  # noqa: PLR2004 - a form among others
    match step.what:
        case "call" if by_name:
            call = {"name": _name(*ids[:1]), "arguments": "{}"}
            return [{"role": "assistant", "content": None, "function_call": call}]
        case "call":
            calls = [_chat_call(i, custom=variant == 6) for i in ids]  # noqa: PLR2004
            said = step.said("") or None
            return [{"role": "assistant", "content": said, "tool_calls": calls}]
        case "results" | "result" if by_name:
            return [{"role": "function", "name": _name(*ids[:1]), "content": step.said("ok")}]
        case "results" | "result":
            return [
                {"role": "tool", "tool_call_id": i, "content": step.said("ok", at=at)}
                for at, i in enumerate(_answered(step))
            ]
        case "system":
            role = ("system", "developer")[variant % 2]
            return [{"role": role, "content": step.said("be kind")}]
        case "odd":
            return [{"role": "critic", "content": "hm"}]
        case "assistant" | "user":
            return [{"role": step.what, "content": step.said("hello")}]
    return []


def _answered(step: Step) -> tuple[Any, ...]:
    """The ids that a step of results answers: all of them, or the first."""
    return step.ids if step.what == "results" else step.ids[:1]


def _chat_call(call_id: Any, *, custom: bool) -> Item:
    if custom:
        return {"id": call_id, "type": "custom", "custom": {"name": "f", "input": ""}}
    function = {"name": "f", "arguments": '{"page": 1}'}
    return {"id": call_id, "type": "function", "function": function}


_CLASSES = ("function", "function", "function", "custom_tool", "local_shell", "shell", "computer")
_GIVEN: Final[dict[str, Item]] = {
    "function": {"name": "f", "arguments": "{}"},
    "custom_tool": {"name": "f", "input": ""},
}


def _responses_pair(step: Step, call_id: Any, said: str) -> tuple[Item, Item]:
    """A call and its output."""
    if step.variant == 7 or step.idless:  # noqa: PLR2004
        key = None if step.idless else call_id
        given: Item = {"call_id": key, "execution": "client"}
        call = {"type": "tool_search_call", **given, "arguments": {}, "status": "completed"}
        return call, {"type": "tool_search_output", **given, "tools": [], "status": "completed"}
    stem = _CLASSES[step.variant]
    call = {"type": f"{stem}_call", "call_id": call_id, **_GIVEN.get(stem, {})}
    output = {"type": f"{stem}_call_output", "call_id": call_id, "output": said}
    if stem == "local_shell":
        call["id"] = "c1" if call_id == "c0" else f"lsh_{call_id}"
        if len(step.ids) % 2:
            output = {"type": "local_shell_call_output", "id": call["id"], "output": said}
    if step.variant == 2:  # noqa: PLR2004
        call["caller"] = {"type": "program", "caller_id": "c4"}
    return call, output


_RESPONSES_ODD: tuple[Item, ...] = (
    {"type": "compaction", "encrypted_content": "..."},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "mcp_approval_request", "id": "c0"},
    {"type": "mcp_approval_response", "approval_request_id": "c0", "approve": True},
    {"type": "program", "call_id": "c4", "id": "prog_1"},
    {"type": "program_output", "call_id": "c4"},
    {"type": "tool_search_call", "call_id": None, "execution": "client"},
    {"type": "tool_search_output", "call_id": None},
)


def _responses(step: Step) -> list[Item]:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    match step.what:
        case "call":
            calls = [_responses_pair(step, i, "")[0] for i in step.ids]
            return [reasoning, *calls] if step.thinking else calls
        case "results" | "result":
            return [
                _responses_pair(step, i, step.said("ok", at=at))[1]
                for at, i in enumerate(_answered(step))
            ]
        case "reasoning" | "think":
            return [reasoning]
        case "server" if step.variant == 3:  # noqa: PLR2004
            return [{"type": "mcp_call", "id": "mcp_1", "approval_request_id": "c0"}]
        case "server":
            return [{"type": "web_search_call", "id": "ws_1", "status": "completed"}]
        case "odd":
            return [dict(_RESPONSES_ODD[step.variant])]
        case "system":
            return [{"role": "developer", "content": step.said("be kind")}]
        case "assistant":
            block = {"type": "output_text", **({"text": step.texts[0]} if step.texts else {})}
            return [{"type": "message", "role": "assistant", "content": [block]}]
        case "user":
            return [{"role": "user", "content": step.said("hello")}]
    return []


def _anthropic_result(step: Step, ids: tuple[Any, ...], first: int = 0) -> Item:
    blocks: list[Item] = [
        {"type": "tool_result", "tool_use_id": i, "content": step.said("ok", at=at)}
        for at, i in enumerate(ids, first)
    ]
    text = {"type": "text", "text": "and now"}
    if step.variant == 6:  # noqa: PLR2004
        blocks.append(text)
    elif step.variant == 7:  # noqa: PLR2004
        blocks.insert(0, text)
    return {"role": "user", "content": blocks}


def _anthropic(step: Step) -> list[Item]:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    text = {"type": "text", "text": step.said("hello")}
    match step.what:
        case "call" | "think":
            uses = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in step.ids]
            head = [thinking] if step.what == "think" or step.thinking else []
            return [{"role": "assistant", "content": [*head, text, *uses]}]
        case "results" if step.variant == 5:  # noqa: PLR2004
            return [_anthropic_result(step, (i,), at) for at, i in enumerate(step.ids)]
        case "results" | "result":
            return [_anthropic_result(step, _answered(step))]
        case "server" | "server_result":
            use = [{"type": "server_tool_use", "id": i, "name": "web_search"} for i in step.ids]
            found = [{"type": "web_search_tool_result", "tool_use_id": i} for i in step.ids]
            blocks = found if step.what == "server_result" else use
            if step.variant % 2 and step.what == "server":
                blocks = use + found
            return [{"role": "assistant", "content": blocks}]
        case "reasoning":
            return [{"role": "assistant", "content": [thinking, text]}]
        case "system" | "odd":
            return [{"role": "system", "content": step.said("be kind")}]
        case "user":
            content = step.said("hello") if step.variant % 2 else [text]
            return [{"role": "user", "content": content}]
        case "assistant":
            return [{"role": "assistant", "content": [text]}]
    return []


def _gemini_part(step: Step, call_id: Any, said: str | None) -> Item:
    """A call, or with a text its response; odd variants have ids, one is in snake case."""
    entry: Item = {"name": _name(call_id)}
    entry |= {"args": {}} if said is None else {"response": {"output": said}}
    if step.variant % 2 and not step.idless:
        entry["id"] = call_id
    camel, snake = (
        ("functionCall", "function_call")
        if said is None
        else ("functionResponse", "function_response")
    )
    return {snake if step.variant == 6 else camel: entry}  # noqa: PLR2004


def _gemini(step: Step) -> list[Item]:
    text = {"text": step.said("hello")}
    match step.what:
        case "call" | "think":
            calls = [_gemini_part(step, key, None) for key in step.ids]
            thinks = step.what == "think" or step.thinking
            head: list[Item] = [{"text": "hm", "thought": True}] if thinks else []
            return [{"role": "model", "parts": head + calls}]
        case "results" | "result":
            answers = [
                _gemini_part(step, key, step.said("ok", at=at))
                for at, key in enumerate(_answered(step))
            ]
            role = ("user", "function", "tool")[step.variant % 3]
            more = [{"text": "hello"}] * (step.variant == 7)  # noqa: PLR2004
            return [{"role": role, "parts": answers + more}]
        case "assistant" | "reasoning":
            return [{"role": "model", "parts": [text]}]
        case "user" | "odd":
            return [{"role": "user", "parts": [text]}]
        case "system" if step.texts:
            return [{"role": "system", "parts": [text]}]
    return []


def _langchain_calls(step: Step) -> tuple[str, Item]:
    ids, said = step.ids, step.said("")
    if step.what == "think" or step.idless:
        single = {"function_call": {"name": _name(*ids[:1]), "arguments": "{}"}}
        return "ai", {"content": said, "additional_kwargs": single}
    calls = [{"name": "f", "args": {}, "id": i, "type": "tool_call"} for i in ids]
    if step.variant >= 6:  # noqa: PLR2004
        bad = [{"name": "f", "args": "{", "id": ids[-1], "type": "invalid_tool_call"}]
        return "ai", {"content": said, "tool_calls": calls[1:], "invalid_tool_calls": bad}
    blocks = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in ids]
    return "ai", {"content": blocks if step.variant % 2 else said, "tool_calls": calls}


def _langchain_body(step: Step) -> list[tuple[str, Item]]:
    match step.what:
        case "call" | "think":
            return [_langchain_calls(step)]
        case "results" | "result" if step.idless or (
            step.what == "result" and step.variant == 7  # noqa: PLR2004
        ):
            return [("function", {"content": step.said("ok"), "name": _name(*step.ids[:1])})]
        case "results" | "result":
            return [
                ("tool", {"content": step.said("ok", at=at), "tool_call_id": i})
                for at, i in enumerate(_answered(step))
            ]
        case "system":
            return [("system", {"content": step.said("be kind")})]
        case "user":
            return [("human", {"content": step.said("hello")})]
        case "assistant":
            return [("ai", {"content": step.said("hello")})]
        case "odd":
            return [("chat", {"content": "hello", "role": "critic"})]
    return []


def _langchain(step: Step) -> list[Item]:
    found: list[Item] = []
    for kind, body in _langchain_body(step):
        if step.variant % 3 == 0:
            found.append({"type": kind, **body})
        elif step.variant % 3 == 1:
            found.append({"type": kind, "data": {"type": kind, **body}})
        else:
            name = ("AI" if kind == "ai" else kind.capitalize()) + "Message"
            path = ["langchain", "schema", "messages", name]
            found.append({"lc": 1, "type": "constructor", "id": path, "kwargs": body})
    return found


_WRITERS: dict[str, Callable[[Step], list[Item]]] = {
    "openai_chat": _chat,
    "openai_responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "langchain": _langchain,
}
_ABANDONED_CLASSES = (0, 0, 0, 0, 1, 2, BY_NAME, 9)


def write(script: list[Step], fmt: str) -> list[Item | Event]:
    """The steps as items of a wire format."""
    history: list[Item | Event] = []
    for step in script:
        if step.what == "event":
            history.append(Event())
        elif step.what == "abandon":
            cls = _ABANDONED_CLASSES[step.variant]
            names = NAMES if cls == BY_NAME else tuple(i for i in step.ids if isinstance(i, str))
            history.append(Event(tuple((cls, name) for name in names)))
        else:
            history += _WRITERS[fmt](step)
    return history


# --- faults, and the agent that meets them --------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Kinds of trouble in a history, each with the share of the places at which it comes (0 to 1).

    The defaults are those of a healthy agent: calls in parallel, results that come late.
    """

    late: float = 0.15
    """Results that come one to eight items after the others, as after an approval."""
    missing: float = 0.0
    """Calls that are never answered."""
    repeated: float = 0.0
    """Results that come twice, and calls under an id that an earlier turn used."""
    idless: float = 0.0
    """Calls without ids, in formats that pair by name (not in Anthropic's)."""
    parallel: float = 0.5
    """Messages that make two to four calls."""
    reasoning: float = 0.3
    """Calls before which the model reasons, in formats that show it."""
    injected: float = 0.0
    """Messages of a user or a system between calls and their results."""
    orphaned: float = 0.0
    """Results of calls that were never made."""

    def __post_init__(self) -> None:
        for each in fields(self):
            share = getattr(self, each.name)
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
                msg = f"faults: {each.name}: expected a share from 0 to 1, got {share!r:.40}"
                raise InvalidOptionError(msg)

    @classmethod
    def only(cls, **shares: float) -> Faults:
        """Faults of the named kinds alone.

        Raises:
            InvalidOptionError: there is no such kind, or a share is not from 0 to 1.
        """
        known = {each.name for each in fields(cls)}
        unknown = sorted(shares.keys() - known)
        if unknown:
            msg = f"faults: {unknown[0]}: there is no such kind; there are {', '.join(known)}"
            raise InvalidOptionError(msg)
        return cls(**(dict.fromkeys(known, 0.0) | shares))


class Choices(Protocol):
    """Source of the choices that make a script."""

    def chance(self, share: float) -> bool:
        """True in so large a share of the cases."""

    def count(self, least: int, most: int) -> int:
        """An integer from ``least`` to ``most``."""

    def shuffled(self, entries: Sequence[T]) -> list[T]:
        """The entries in any order."""

    def text(self, words: int) -> str:
        """A text of at most so many words, at least one."""


_WORDS: Final = (
    "fare", "seat", "refund", "page", "build", "error", "found", "please", "Monday", "total",
)  # fmt: skip


class SeededChoices:
    """Choices of a seeded random number generator."""

    def __init__(self, seed: int | str) -> None:
        self._random = Random(seed)  # noqa: S311 - made to be repeated

    def chance(self, share: float) -> bool:
        """True in so large a share of the cases."""
        return self._random.random() < share

    def count(self, least: int, most: int) -> int:
        """An integer from ``least`` to ``most``."""
        return self._random.randint(least, most)

    def shuffled(self, entries: Sequence[T]) -> list[T]:
        """The entries in a random order."""
        found = list(entries)
        self._random.shuffle(found)
        return found

    def text(self, words: int) -> str:
        """A text of one word to so many words."""
        return " ".join(self._random.choices(_WORDS, k=self._random.randint(1, words)))


LATE_ITEMS_MAX: Final = 8
PARALLEL_MAX: Final = 4
_STRAY_ID: Final = "stray"


class _Agent:
    """An agent that writes a script, step by step; late results wait for their turn."""

    def __init__(self, choose: Choices, faults: Faults) -> None:
        self.choose = choose
        self.faults = faults
        self.script: list[Step] = []
        self.waiting: list[tuple[int, Step]] = []
        self.used: list[str] = []

    def add(self, step: Step) -> None:
        """Add a step, and before it the results that are due."""
        self.deliver(len(self.script))
        self.script.append(step)

    def deliver(self, now: float) -> None:
        """Add the late results that are due by the position ``now``."""
        due = [step for at, step in self.waiting if at <= now]
        self.waiting = [(at, step) for at, step in self.waiting if at > now]
        for step in due:
            self._result(step)

    def call(self, number: int) -> None:
        """Make calls; answer most of them at once."""
        choose, faults = self.choose, self.faults
        idless = choose.chance(faults.idless)
        size = 1
        if choose.chance(faults.parallel) and not idless:
            size = choose.count(2, PARALLEL_MAX)
        ids = tuple(f"call_{number}_{at}" for at in range(size))
        late = {call_id for _, step in self.waiting for call_id in step.ids}
        used = [call_id for call_id in self.used if call_id not in late]
        if used and not idless and choose.chance(faults.repeated / 2):
            ids = (used[choose.count(0, len(used) - 1)], *ids[1:])
        thinking = choose.chance(faults.reasoning)
        self.add(Step("call", ids, texts=(choose.text(8),), idless=idless, thinking=thinking))
        self.used += ids
        if choose.chance(faults.injected):
            what = "system" if choose.chance(0.3) else "user"
            self.script.append(Step(what, texts=(choose.text(8),)))
        for call_id in choose.shuffled(ids):
            self._answer(call_id, idless=idless)

    def _answer(self, call_id: str, *, idless: bool) -> None:
        choose, faults = self.choose, self.faults
        if choose.chance(faults.missing):
            return
        step = Step("results", (call_id,), texts=(choose.text(30),), idless=idless)
        if choose.chance(faults.late) and not idless:
            due = len(self.script) + choose.count(1, LATE_ITEMS_MAX)
            self.waiting.append((due, step))
            return
        self._result(step)
        if choose.chance(faults.repeated / 2):
            self._result(step)
        if choose.chance(faults.orphaned):
            self._result(Step("results", (f"{_STRAY_ID}_{len(self.script)}",), texts=("lost",)))

    def _result(self, step: Step) -> None:
        """Add results; with those right before them they are one step, but for a repetition."""
        last = self.script[-1] if self.script else step
        joined = last.what == "results" and not last.idless and not step.idless
        if joined and not set(last.ids) & set(step.ids):
            self.script[-1] = last._replace(ids=last.ids + step.ids, texts=last.texts + step.texts)
        else:
            self.script.append(step)


def agent_script(choose: Choices, faults: Faults, *, turns: tuple[int, int] = (1, 4)) -> list[Step]:
    """Make the script of an agent: turns of a user message, calls with results, an answer.

    Every call that is not missing has its result by the end.
    """
    agent = _Agent(choose, faults)
    if choose.chance(0.5):
        agent.add(Step("system", texts=(choose.text(20),)))
    number = 0
    for _ in range(choose.count(*turns)):
        agent.add(Step("user", texts=(choose.text(20),)))
        for _ in range(choose.count(0, 3)):
            number += 1
            agent.call(number)
        agent.add(Step("assistant", texts=(choose.text(30),)))
    agent.deliver(float("inf"))
    return agent.script


_VARIANTS: Final = {"gemini": 3}
"""The form of an agent's messages; 0 elsewhere. Gemini's has ids, and results of the user."""


def written(script: Sequence[Step], policy: str) -> list[Item]:
    """The messages of an agent's script in the format of a pair policy.

    Raises:
        InvalidOptionError: there is no such policy.
    """
    if policy not in FORMATS:
        msg = f"policy: expected one of {', '.join(FORMATS)}; got {policy!r}"
        raise InvalidOptionError(msg)
    variant = _VARIANTS.get(policy, 0)
    idless = policy != "anthropic"
    return [
        item
        for step in script
        for item in _WRITERS[policy](step._replace(variant=variant, idless=step.idless and idless))
    ]


def random_history(
    *,
    policy: str = "openai_chat",
    seed: int | str = 0,
    faults: Faults | None = None,
    turns: tuple[int, int] = (3, 12),
) -> list[Item]:
    """A history of an agent, the same for the same seed. No hypothesis is needed.

    Raises:
        InvalidOptionError: there is no such policy.
    """
    script = agent_script(SeededChoices(seed), faults or Faults(), turns=turns)
    return written(script, policy)
