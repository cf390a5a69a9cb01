"""Hypothesis strategies that only memcore's own tests need: facts, hostile shapes.

Histories are those of ``memcore.testing``. ``corpus_like`` needs no hypothesis: deterministic chat
conversations with the distribution of the corpus of real conversations.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from memcore.testing.script import FORMATS, IDS, NAMES, Step, write
from memcore.testing.strategies import histories, mixed_histories
from oracle import BY_NAME, EVENT, SECOND, Facts

__all__ = [
    "FORMATS",
    "IDS",
    "NAMES",
    "HostileDict",
    "HostileList",
    "HostileStr",
    "Role",
    "Step",
    "corpus_like",
    "facts",
    "histories",
    "hostile_items",
    "mixed_histories",
    "no_deadline",
    "write",
]

Item = dict[str, Any]

no_deadline = settings(deadline=None)
"""For tests that also run on traced and sanitized builds, on machines that do other things."""


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
