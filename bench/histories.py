"""Random valid histories in every wire format, and a validator of pairs that is not memcore's.

*Strict*: the results directly follow the item that made the calls. *Late*: 15 % of the results come
some items later, as after an approval by a human or from a tool that runs long. In both every call
is answered before the history ends: whatever is unpaired in an output, its maker broke. An agent
makes one to four calls at once: two thirds of the items are results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, NamedTuple

__all__ = ["WIRES", "Broken", "Signs", "broken", "random_history", "signs_of", "wired"]

Message = dict[str, Any]
LATE_SHARE = 0.15
LATE_ITEMS_MAX = 8
_WORDS = ("fare", "seat", "refund", "page", "build", "error", "found", "please", "Monday", "total")


class Signs(NamedTuple):
    """What one message of an output says of pairs: ids of the calls made, ids answered."""

    calls: tuple[str, ...]
    answers: tuple[str, ...]


class Broken(NamedTuple):
    """What is wrong with an output: how many of each."""

    orphans: int
    """Results whose call does not stand before them."""
    unanswered: int
    """Calls that no result follows."""


def broken(output: Iterable[Signs]) -> Broken:
    """Judge an output by its ids alone."""
    made: set[str] = set()
    waiting: set[str] = set()
    orphans = 0
    for calls, answers in output:
        orphans += sum(call_id not in made for call_id in answers)
        waiting.difference_update(answers)
        made.update(calls)
        waiting.update(calls)
    return Broken(orphans, len(waiting))


# --- making histories ----------------------------------------------------------------------------


def _text(random: Random, most: int) -> str:
    return " ".join(random.choices(_WORDS, k=random.randint(2, most)))


def _calls(random: Random, ids: list[str]) -> Message:
    made = [
        {"id": i, "type": "function", "function": {"name": "look", "arguments": '{"page": 1}'}}
        for i in ids
    ]
    return {"role": "assistant", "content": _text(random, 8), "tool_calls": made}


def _steps(random: Random, turn: int) -> list[tuple[list[Message], list[Message]]]:
    """Items of a turn, each with the results that answer it."""
    found: list[tuple[list[Message], list[Message]]] = [
        ([{"role": "user", "content": _text(random, 20)}], [])
    ]
    for step in range(random.randint(0, 4)):
        ids = [f"call_{turn}_{step}_{at}" for at in range(random.randint(1, 4))]
        results = [{"role": "tool", "tool_call_id": i, "content": _text(random, 60)} for i in ids]
        random.shuffle(results)
        found.append(([_calls(random, ids)], results))
    found.append(([{"role": "assistant", "content": _text(random, 30)}], []))
    return found


def random_history(
    random: Random, *, late: bool, items: tuple[int, int] = (10, 60)
) -> list[Message]:
    """OpenAI chat messages; they end where a model is asked: behind a user or a result."""
    wanted = random.randint(*items)
    history: list[Message] = [{"role": "system", "content": _text(random, 40)}]
    waiting: list[tuple[int, Message]] = []
    turn = 0
    while True:
        for said, results in _steps(random, turn):
            history += said
            for result in results:
                if late and random.random() < LATE_SHARE:
                    waiting.append((len(history) + random.randint(1, LATE_ITEMS_MAX), result))
                else:
                    history.append(result)
            history += [result for due, result in waiting if due <= len(history)]
            waiting = [(due, result) for due, result in waiting if result not in history]
            if len(history) >= wanted and (results or said[0]["role"] == "user"):
                return history + [result for _, result in waiting]
        turn += 1


# --- wire formats: how a history is written, and how an output is read ---------------------------


def _made(message: Message) -> list[tuple[str, str, Message]]:
    return [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]


def _groups(history: list[Message]) -> Iterable[tuple[Message, list[Message]]]:
    """Messages, runs of results put together (the first of them stands for the run)."""
    at = 0
    while at < len(history):
        end = at + 1
        if history[at]["role"] == "tool":
            while end < len(history) and history[end]["role"] == "tool":
                end += 1
            yield history[at], history[at:end]
        else:
            yield history[at], []
        at = end


def _to_responses(history: list[Message]) -> list[Message]:
    found: list[Message] = []
    for number, message in enumerate(history):
        if message["role"] == "tool":
            call_id, text = message["tool_call_id"], message["content"]
            found.append({"type": "function_call_output", "call_id": call_id, "output": text})
            continue
        calls = _made(message)
        if calls:
            found.append({"type": "reasoning", "id": f"rs_{number}", "summary": []})
        else:
            found.append({"role": message["role"], "content": message["content"]})
        for call_id, name, given in calls:
            call = {"type": "function_call", "call_id": call_id, "name": name}
            found.append({**call, "arguments": json.dumps(given)})
    return found


def _to_anthropic(history: list[Message]) -> list[Message]:
    found: list[Message] = []
    for message, results in _groups(history):
        if results:
            blocks: list[Message] = [
                {"type": "tool_result", "tool_use_id": r["tool_call_id"], "content": r["content"]}
                for r in results
            ]
            found.append({"role": "user", "content": blocks})
            continue
        blocks = [{"type": "text", "text": message["content"]}]
        for call_id, name, given in _made(message):
            blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": given})
        found.append({"role": message["role"], "content": blocks})
    return found


def _to_gemini(history: list[Message]) -> list[Message]:
    found: list[Message] = []
    for message, results in _groups(history):
        if results:
            parts: list[Message] = [
                {
                    "functionResponse": {
                        "id": r["tool_call_id"],
                        "name": "look",
                        "response": {"output": r["content"]},
                    }
                }
                for r in results
            ]
            found.append({"role": "user", "parts": parts})
            continue
        parts = [{"text": message["content"]}]
        for call_id, name, given in _made(message):
            parts.append({"functionCall": {"id": call_id, "name": name, "args": given}})
        role = {"assistant": "model"}.get(message["role"], message["role"])
        found.append({"role": role, "parts": parts})
    return found


def _to_langchain(history: list[Message]) -> list[Message]:
    types = {"user": "human", "assistant": "ai", "system": "system", "tool": "tool"}
    found: list[Message] = []
    for message in history:
        body: Message = {"content": message["content"]}
        calls = [
            {"id": call_id, "name": name, "args": given, "type": "tool_call"}
            for call_id, name, given in _made(message)
        ]
        if calls:
            body["tool_calls"] = calls
        if message["role"] == "tool":
            body["tool_call_id"] = message["tool_call_id"]
        found.append({"type": types[message["role"]], "data": body})
    return found


def _of_chat(message: Message) -> Signs:
    answer = message.get("tool_call_id") if message.get("role") == "tool" else None
    calls = tuple(call["id"] for call in message.get("tool_calls") or ())
    return Signs(calls, () if answer is None else (answer,))


def _of_responses(message: Message) -> Signs:
    kind = message.get("type")
    return Signs(
        (message["call_id"],) if kind == "function_call" else (),
        (message["call_id"],) if kind == "function_call_output" else (),
    )


def _of_anthropic(message: Message) -> Signs:
    blocks = message["content"] if isinstance(message["content"], list) else []
    return Signs(
        tuple(block["id"] for block in blocks if block["type"] == "tool_use"),
        tuple(block["tool_use_id"] for block in blocks if block["type"] == "tool_result"),
    )


def _of_gemini(message: Message) -> Signs:
    parts = message["parts"]
    return Signs(
        tuple(part["functionCall"]["id"] for part in parts if "functionCall" in part),
        tuple(part["functionResponse"]["id"] for part in parts if "functionResponse" in part),
    )


def _of_langchain(message: Message) -> Signs:
    body = message.get("data", message)  # both forms are accepted
    answer = body.get("tool_call_id")
    calls = tuple(call["id"] for call in body.get("tool_calls") or ())
    return Signs(calls, () if answer is None else (answer,))


_Written = Callable[[list[Message]], list[Message]]
WIRES: dict[str, tuple[_Written, Callable[[Message], Signs]]] = {
    "openai_chat": (list, _of_chat),
    "openai_responses": (_to_responses, _of_responses),
    "anthropic": (_to_anthropic, _of_anthropic),
    "gemini": (_to_gemini, _of_gemini),
    "langchain": (_to_langchain, _of_langchain),
    "seed": (list, _of_chat),
}
"""By the name of memcore's pair policy."""


def wired(history: list[Message], policy: str) -> list[Message]:
    """The history in the format of a policy."""
    return WIRES[policy][0](history)


def signs_of(output: Iterable[Message], policy: str = "openai_chat") -> list[Signs]:
    """What an output in the format of a policy says of pairs."""
    read = WIRES[policy][1]
    return [read(message) for message in output]
