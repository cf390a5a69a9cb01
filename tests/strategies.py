"""Hypothesis strategies: histories in every wire format, well-formed or as bad as they come.

A history is a list of dicts (items of a wire format) and ``oracle.Event`` entries. It is drawn as a
list of steps whose call ids come from a small pool, so parallel, late, interleaved, repeated,
orphaned and unanswered calls all come up; each format then writes the steps its own way.
``corpus_like`` needs no hypothesis: deterministic chat conversations with the distribution of the
corpus of real conversations.
"""

# ruff: noqa: PLR0911 - a return for each kind of step

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st

from oracle import BY_NAME, EVENT, SECOND, Event, Facts

Item = dict[str, Any]

no_deadline = settings(deadline=None)
"""For tests that also run on traced and sanitized builds, on machines that do other things."""

FORMATS = ("openai_chat", "openai_responses", "anthropic", "gemini", "langchain")


class Step(NamedTuple):
    """What happens next, in no format yet."""

    what: str
    ids: tuple[Any, ...] = ()
    variant: int = 0


IDS = ("c0", "c1", "c2", "c3", "c4")
HOSTILE_IDS = ("", None, 7, "c" * 5_000, "\ud800", "\x00", "ü", ["c0"], {"id": "c0"}, True)
NAMES = ("search", "fetch")

_ids = st.one_of(*[st.sampled_from(IDS)] * 9, st.sampled_from(HOSTILE_IDS))
_variant = st.integers(0, 7)
_some_ids = st.lists(_ids, min_size=1, max_size=4).map(tuple)


def _steps(*whats: str) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.sampled_from(whats), _some_ids, _variant)


_scripts = st.lists(
    st.one_of(
        _steps("call", "results", "result"),
        _steps("call", "result"),
        _steps("user", "assistant", "system"),
        _steps("event", "abandon", "reasoning", "server", "server_result", "think", "odd"),
    ),
    max_size=24,
)


@st.composite
def _orderly_scripts(draw: st.DrawFn) -> list[Step]:
    """Scripts in which most calls are answered at once and ids do not come again."""
    script: list[Step] = []
    for turn in range(draw(st.integers(0, 6))):
        script.append(Step("user"))
        for loop in range(draw(st.integers(0, 3))):
            size = draw(st.sampled_from((1, 1, 1, 2, 3)))
            ids = tuple(f"t{turn}-{loop}-{i}" for i in range(size))
            variant = draw(_variant)
            if draw(st.booleans()):
                script.append(Step("reasoning"))
            script.append(Step("call", ids, variant))
            answered = draw(st.permutations(ids))
            fault = draw(st.sampled_from((*"......", "one missing", "one twice")))
            if fault == "one missing":
                answered = answered[1:]
            elif fault == "one twice":
                answered = [*answered, answered[0]]
            script.append(Step("results", tuple(answered), variant))
        script.append(Step("assistant"))
    noise = draw(
        st.lists(st.tuples(st.integers(0, 40), _steps("user", "event", "result")), max_size=2)
    )
    for at, step in noise:
        script.insert(at, step)
    return script


def _chat(step: Step) -> list[Item]:
    ids, variant = step.ids, step.variant
    match step.what:
        case "call" if variant == 7:
            call = {"name": NAMES[len(ids) % 2], "arguments": "{}"}
            return [{"role": "assistant", "content": None, "function_call": call}]
        case "call":
            kind = "custom" if variant == 6 else "function"
            calls = [{"id": i, "type": kind, "function": {"name": "f"}} for i in ids]
            return [{"role": "assistant", "content": None, "tool_calls": calls}]
        case "results" | "result" if variant == 7:
            return [{"role": "function", "name": NAMES[len(ids) % 2], "content": "ok"}]
        case "results":
            return [{"role": "tool", "tool_call_id": i, "content": "ok"} for i in ids]
        case "result":
            return [{"role": "tool", "tool_call_id": ids[0], "content": "ok"}]
        case "system":
            return [{"role": ("system", "developer")[variant % 2], "content": "be kind"}]
        case "odd":
            return [{"role": "critic", "content": "hm"}]
        case "assistant" | "user":
            return [{"role": step.what, "content": "hello"}]
    return []


_CLASSES = ("function", "function", "function", "custom_tool", "local_shell", "shell", "computer")


def _responses_pair(step: Step, call_id: Any) -> tuple[Item, Item]:
    """A call and its output."""
    if step.variant == 7:
        call = {"type": "tool_search_call", "call_id": call_id, "execution": "client"}
        return call, {"type": "tool_search_output", "call_id": call_id, "execution": "client"}
    stem = _CLASSES[step.variant]
    call = {"type": f"{stem}_call", "call_id": call_id}
    output = {"type": f"{stem}_call_output", "call_id": call_id, "output": "ok"}
    if stem == "local_shell":
        call["id"] = "c1" if call_id == "c0" else f"lsh_{call_id}"
        if len(step.ids) % 2:
            output = {"type": "local_shell_call_output", "id": call["id"], "output": "ok"}
    if step.variant == 2:
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
    pairs = [_responses_pair(step, i) for i in step.ids]
    match step.what:
        case "call":
            return [call for call, _ in pairs]
        case "results":
            return [output for _, output in pairs]
        case "result":
            return [pairs[0][1]]
        case "reasoning" | "think":
            return [{"type": "reasoning", "id": "rs_1", "summary": []}]
        case "server" if step.variant == 3:
            return [{"type": "mcp_call", "id": "mcp_1", "approval_request_id": "c0"}]
        case "server":
            return [{"type": "web_search_call", "id": "ws_1", "status": "completed"}]
        case "odd":
            return [dict(_RESPONSES_ODD[step.variant])]
        case "system":
            return [{"role": "developer", "content": "be kind"}]
        case "assistant":
            return [{"type": "message", "role": "assistant", "content": [{"type": "output_text"}]}]
        case "user":
            return [{"role": "user", "content": "hello"}]
    return []


def _anthropic_result(step: Step, ids: tuple[Any, ...]) -> Item:
    blocks = [{"type": "tool_result", "tool_use_id": i, "content": "ok"} for i in ids]
    text = {"type": "text", "text": "and now"}
    if step.variant == 6:
        blocks.append(text)
    elif step.variant == 7:
        blocks.insert(0, text)
    return {"role": "user", "content": blocks}


def _anthropic(step: Step) -> list[Item]:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    text = {"type": "text", "text": "hello"}
    match step.what:
        case "call" | "think":
            uses = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in step.ids]
            head = [thinking] if step.what == "think" else []
            return [{"role": "assistant", "content": [*head, text, *uses]}]
        case "results" if step.variant == 5:
            return [_anthropic_result(step, (i,)) for i in step.ids]
        case "results" | "result":
            return [_anthropic_result(step, step.ids if step.what == "results" else step.ids[:1])]
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
            return [{"role": "system", "content": "be kind"}]
        case "user":
            return [{"role": "user", "content": "hello" if step.variant % 2 else [text]}]
        case "assistant":
            return [{"role": "assistant", "content": [text]}]
    return []


def _gemini(step: Step) -> list[Item]:
    camel = step.variant != 6

    def part(kind: str, key: Any, n: int) -> Item:
        entry: Item = {"name": NAMES[n % 2]}
        if step.variant % 2:
            entry["id"] = key
        snake = {"functionCall": "function_call", "functionResponse": "function_response"}
        return {kind if camel else snake[kind]: entry}

    text = {"text": "hello"}
    match step.what:
        case "call" | "think":
            calls = [part("functionCall", key, n) for n, key in enumerate(step.ids)]
            head = [{"text": "hm", "thought": True}] if step.what == "think" else []
            return [{"role": "model", "parts": head + calls}]
        case "results" | "result":
            ids = step.ids if step.what == "results" else step.ids[:1]
            answers = [part("functionResponse", key, n) for n, key in enumerate(ids)]
            role = ("user", "function", "tool")[step.variant % 3]
            return [{"role": role, "parts": answers + [text] * (step.variant == 7)}]
        case "assistant" | "reasoning":
            return [{"role": "model", "parts": [text]}]
        case "user" | "odd":
            return [{"role": "user", "parts": [text]}]
    return []


def _langchain_body(step: Step) -> list[tuple[str, Item]]:
    ids, variant = step.ids, step.variant
    match step.what:
        case "call":
            calls = [{"name": "f", "args": {}, "id": i, "type": "tool_call"} for i in ids]
            blocks = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in ids]
            bad = [{"name": "f", "args": "{", "id": ids[-1], "type": "invalid_tool_call"}]
            return [
                ("ai", {"content": blocks if variant % 2 else "", "tool_calls": calls})
                if variant < 6
                else ("ai", {"content": "", "tool_calls": calls[1:], "invalid_tool_calls": bad})
            ]
        case "results":
            return [("tool", {"content": "ok", "tool_call_id": i}) for i in ids]
        case "result" if variant == 7:
            return [("function", {"content": "ok", "name": NAMES[0]})]
        case "result":
            return [("tool", {"content": "ok", "tool_call_id": ids[0]})]
        case "think":
            single = {"function_call": {"name": NAMES[0], "arguments": "{}"}}
            return [("ai", {"content": "", "additional_kwargs": single})]
        case "system":
            return [("system", {"content": "be kind"})]
        case "user":
            return [("human", {"content": "hello"})]
        case "assistant":
            return [("ai", {"content": "hello"})]
        case "odd":
            return [("chat", {"content": "hello", "role": "critic"})]
    return []


def _langchain(step: Step) -> list[Item]:
    def write(kind: str, body: Item) -> Item:
        if step.variant % 3 == 0:
            return {"type": kind, **body}
        if step.variant % 3 == 1:
            return {"type": kind, "data": {"type": kind, **body}}
        name = ("AI" if kind == "ai" else kind.capitalize()) + "Message"
        path = ["langchain", "schema", "messages", name]
        return {"lc": 1, "type": "constructor", "id": path, "kwargs": body}

    return [write(kind, body) for kind, body in _langchain_body(step)]


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


def histories(
    fmt: str | None = None, *, orderly: bool = False
) -> st.SearchStrategy[list[Item | Event]]:
    """Histories of one wire format (None: of any); ``orderly`` ones have few faults."""
    script = _orderly_scripts() if orderly else st.one_of(_scripts, _orderly_scripts())
    formats = st.just(fmt) if fmt is not None else st.sampled_from(FORMATS)
    return st.builds(write, script, formats)


def mixed_histories() -> st.SearchStrategy[list[Item | Event]]:
    """Histories whose items come from all formats at once."""
    piece = st.lists(_steps("call", "results", "user", "think", "reasoning", "odd"), max_size=4)
    pieces = st.lists(st.builds(write, piece, st.sampled_from(FORMATS)), max_size=6)
    return pieces.map(lambda parts: [item for part in parts for item in part])


# --- facts without items --------------------------------------------------------------------------

_classes = st.sampled_from((0, 0, 0, 1, 2, 9))
_names = st.sampled_from(IDS)
_open_keys = st.tuples(
    st.builds(int.__or__, _classes, st.sampled_from((0, 0, 0, BY_NAME, SECOND))), _names
)
_close_keys = st.tuples(
    st.builds(int.__or__, _classes, st.sampled_from((0, 0, 0, BY_NAME, BY_NAME, SECOND))), _names
)
_flags = st.sampled_from((0, 0, 2, 4, 6, 16, 22))


def _facts(kind: int, opens: list[Any], closes: list[Any], flags: int) -> Facts:
    model = kind in {3, 4, 6}
    if kind == EVENT:
        return Facts(EVENT, (), tuple(closes), 8 if closes else 0)
    return Facts(kind, tuple(opens) if kind in {3, 4} else (), tuple(closes), flags | model)


facts = st.builds(
    _facts,
    st.sampled_from((0, 1, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 6, 7)),
    st.lists(_open_keys, max_size=4),
    st.lists(_close_keys, max_size=4),
    _flags,
)
"""Facts as the packed form admits them, also such as no item of a wire format has."""


# --- hostile shapes -------------------------------------------------------------------------------


class Role(str, Enum):  # noqa: UP042  (a StrEnum is another type, people use both)
    """What SDKs write instead of plain strings."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class HostileStr(str):
    """A string whose own methods must never be called."""

    __slots__ = ()

    def _refuse(self, *_: object) -> Any:
        raise RuntimeError("the core ran the code of an item")

    __eq__ = __ne__ = __lt__ = __len__ = __bool__ = __iter__ = __contains__ = __str__ = _refuse
    __add__ = __getitem__ = encode = endswith = startswith = lower = _refuse

    def __hash__(self) -> int:
        return str.__hash__(self)


class HostileList(list):  # type: ignore[type-arg]
    """A list whose own methods must never be called."""

    __eq__ = __len__ = __bool__ = __iter__ = __contains__ = __getitem__ = HostileStr._refuse
    __hash__ = None  # type: ignore[assignment]


class HostileDict(dict):  # type: ignore[type-arg]
    """A dict whose own methods must never be called."""

    __eq__ = __len__ = __bool__ = __iter__ = __contains__ = __getitem__ = HostileStr._refuse
    get = items = keys = values = __missing__ = HostileStr._refuse
    __hash__ = None  # type: ignore[assignment]


def _split(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from(text.split())


_words = _split(
    "user assistant model tool function system ai human chat constructor reasoning program "
    "function_call function_call_output local_shell_call local_shell_call_output text "
    "thinking tool_search_call tool_search_output mcp_approval_request tool_use tool_result "
    "server server_tool_use web_search_tool_result mcp_tool_result AIMessage "
    "ToolMessageChunk AIMessageChunk tool_call c0 c1 critic"
)
_keys = _split(
    "role type content parts tool_calls invalid_tool_calls tool_call_id function_call name "
    "id call_id caller caller_id approval_request_id execution functionCall "
    "function_response functionResponse thought data kwargs lc additional_kwargs tool_use_id"
)
_hostile_text = st.one_of(
    _words, st.sampled_from(("", "\ud800", "c" * 5_000)), st.sampled_from(Role)
)


def _containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(children, max_size=4)
    dicts = st.dictionaries(_keys, children, max_size=5)
    return st.one_of(
        lists,
        lists.map(tuple),
        lists.map(HostileList),
        dicts,
        dicts.map(HostileDict),
        st.dictionaries(st.one_of(_keys, st.integers(), st.none()), children, max_size=3),
    )


_hostile_values = st.recursive(
    st.one_of(
        _hostile_text,
        _hostile_text.map(HostileStr),
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.binary(max_size=3),
        st.builds(object),
    ),
    _containers,
    max_leaves=12,
)
hostile_items = st.dictionaries(_keys, _hostile_values, max_size=6).flatmap(
    lambda item: st.sampled_from((item, HostileDict(item)))
)
"""Dicts that look like items and hold wrong types and objects with code of their own."""


# --- chat conversations like real ones ------------------------------------------------------------

# (quantile, value) points of the real corpus, drawn by linear interpolation.
_MESSAGES = (
    (0.0, 2),
    (0.1, 2),
    (0.25, 3),
    (0.5, 9),
    (0.75, 21),
    (0.95, 26),
    (0.99, 40),
    (1.0, 100),
)
_BYTES = (
    (0.0, 8),
    (0.5, 175),
    (0.75, 275),
    (0.9, 489),
    (0.99, 6_266),
    (0.999, 31_774),
    (1.0, 60_000),
)
_CALLS = (10_806, 626, 276, 78, 49, 4, 8)
_PROSE = "the flight to Paris was booked for two and costs 420 € today: order #7 état naïve"
_WORDS = _PROSE.split()


def _quantile(points: tuple[tuple[float, int], ...], at: float) -> int:
    for (q0, v0), (q1, v1) in pairwise(points):
        if at <= q1:
            return round(v0 + (v1 - v0) * (at - q0) / (q1 - q0))
    return points[-1][1]


def _prose(rng: random.Random) -> str:
    size = _quantile(_BYTES, rng.random())
    words = rng.choices(_WORDS, k=min(12, size // 5 + 1))
    text = " ".join(words)
    return (text + " ") * (size // (len(text) + 1)) or text[:size]


def _calling_turn(rng: random.Random, conversation: int, at: int) -> list[Item]:
    size = rng.choices(range(1, len(_CALLS) + 1), _CALLS)[0]
    if rng.random() < 2 / 11_849:
        size = 34
    calls = [
        {
            "id": f"call_{conversation:06x}{at:04x}{n:02x}",
            "type": "function",
            "function": {
                "name": rng.choice(NAMES),
                "arguments": f'{{"query": "{rng.choice(_WORDS)}"}}',
            },
        }
        for n in range(size)
    ]
    results = [{"role": "tool", "tool_call_id": c["id"], "content": _prose(rng)} for c in calls]
    if size > 1 and rng.random() < 0.3:
        rng.shuffle(results)
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


def corpus_like(seed: int, n: int) -> Iterator[list[Item]]:
    """``n`` chat conversations; the same for the same seed.

    Lengths, sizes, parallel calls and faults come as often as in the corpus: 6.5 % end with calls
    that wait for their answers; orphans, unanswered calls and repeated ids in one of 500.
    """
    rng = random.Random(seed)
    for conversation in range(n):
        length = _quantile(_MESSAGES, rng.random())
        messages: list[Item] = []
        if rng.random() < 912 / 3_304:
            messages.append({"role": "system", "content": _prose(rng)})
        messages.append({"role": "user", "content": _prose(rng)})
        with_calls = rng.random() < 2_551 / 3_304
        while len(messages) < length:
            if with_calls and rng.random() < 0.68:
                messages += _calling_turn(rng, conversation, len(messages))
            else:
                messages.append({"role": "assistant", "content": _prose(rng)})
                if len(messages) < length:
                    messages.append({"role": "user", "content": _prose(rng)})
        if with_calls and rng.random() < 215 / 2_551:
            messages.append(_calling_turn(rng, conversation, len(messages))[0])
        if rng.random() < 6 / 3_304:
            _spoil(rng, messages)
        yield messages


def _spoil(rng: random.Random, messages: list[Item]) -> None:
    fault = rng.choice(("orphan", "unanswered", "dupid"))
    calling = [message for message in messages if message.get("tool_calls")]
    if fault == "orphan" or not calling:
        messages.insert(1, {"role": "tool", "tool_call_id": "call_lost", "content": "?"})
    elif fault == "unanswered":
        lost = calling[0]["tool_calls"][0]["id"]
        messages[:] = [m for m in messages if m.get("tool_call_id") != lost]
    else:
        messages += [dict(calling[0]), {"role": "tool", "content": "again"}]
        messages[-1]["tool_call_id"] = calling[0]["tool_calls"][0]["id"]
