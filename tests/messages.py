"""Short builders of messages, and what tests ask of a context."""

from __future__ import annotations

from typing import Any

import memcore
import oracle
from memcore.codec.values import encode_json
from memcore.testing.legality import Breach
from memcore.tokens import get_counter

Message = dict[str, Any]


def user(text: str = "hi") -> Message:
    return {"role": "user", "content": text}


def system(text: str = "be kind") -> Message:
    return {"role": "system", "content": text}


def assistant(text: str = "ok") -> Message:
    return {"role": "assistant", "content": text}


def call(*ids: str) -> Message:
    """An assistant message that makes these calls."""
    calls = [
        {"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str, text: str = "done") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def turns(count: int, *, start: int = 0) -> list[Message]:
    """``count`` turns of two messages each."""
    return [m for n in range(start, start + count) for m in (user(f"q{n}"), assistant(f"a{n}"))]


def failing(_: memcore.SummaryRequest) -> str:
    raise RuntimeError("the model is down")


def attempt(ask: Any, *args: Any, **options: Any) -> memcore.Context | memcore.ContextOverflowError:
    """The context, or the refusal if the budget is too small for any."""
    try:
        return ask(*args, **options)
    except memcore.ContextOverflowError as refused:
        return refused


def texts(session: memcore.Session) -> list[Any]:
    return [item.message.get("content") for item in session]


def messages_of(session: memcore.Session) -> list[Message]:
    return [item.message for item in session]


def recount(messages: list[Message], counter: str | None = "bytes/4") -> int:
    """Tokens of rendered messages, counted anew one by one (None: by the default counter)."""
    return memcore.fit(messages, policy="seed", counter=counter).tokens if messages else 0


def count(message: Message, counter: str) -> int:
    """Tokens of one message by a counter."""
    return get_counter(counter).count_message(message, encode_json(message)[0])


def illegal(messages: list[Message], policy: str) -> list[Any]:
    """What the independent validator finds; ``seed`` asks only that results find their calls."""
    if policy != "seed":
        return list(oracle.brute_force_violations(messages, policy))
    opened: set[Any] = set()
    found = []
    for at, message in enumerate(messages):
        item = oracle.classify(message)
        if item.kind == oracle.RESULT:
            keys = [key for key in item.closes if not key[0] & oracle.SECOND]
            if keys and not any((cls, name) in opened for cls, name in keys):
                found.append(Breach(at, "a result without its call"))
        opened |= {(cls & ~oracle.SECOND, name) for cls, name in item.opens}
    return found
