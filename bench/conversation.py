"""Agent conversations to measure on: OpenAI chat items with parallel tool calls, always the same.

The mix follows shared/corpus: about a third of the items are tool results, one assistant item in
six calls several tools, texts are some dozens to some hundreds of bytes, a few results are long.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

__all__ = ["chat_items", "chat_turns", "open_filled", "prepared_facts"]

_WORDS = (
    "flight", "booking", "customer", "refund", "payment", "airport", "schedule", "passenger",
    "baggage", "confirm", "available", "Monday", "price", "total", "certificate", "please",
    "update", "reservation", "account", "thank", "help", "find", "search", "page", "result",
    "error", "file", "function", "test", "build", "deploy", "city", "weather", "temperature",
)  # fmt: skip
_TOOLS = ("search_flights", "get_user_details", "book_reservation", "calculate", "run_tests")
_SYSTEM = "# Airline agent policy\n\n" + "You help with bookings and refunds; confirm first. " * 20


def _text(random: Random, words: int) -> str:
    return " ".join(random.choices(_WORDS, k=words))


def _turn(random: Random, number: int) -> Iterator[dict[str, Any]]:
    yield {"role": "user", "content": _text(random, random.randint(4, 40))}
    for step in range(random.randint(0, 3)):
        calls = 1 if random.random() < 5 / 6 else random.randint(2, 4)
        ids = [f"call_{number:06d}_{step}_{random.getrandbits(64):016x}" for _ in range(calls)]
        yield {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {
                        "name": random.choice(_TOOLS),
                        "arguments": json.dumps({"user_id": _text(random, 2), "page": step}),
                    },
                }
                for call_id in ids
            ],
        }
        for call_id in ids:
            words = random.randint(8, 60) if random.random() < 0.95 else 400
            yield {"role": "tool", "tool_call_id": call_id, "content": _text(random, words)}
    yield {"role": "assistant", "content": _text(random, random.randint(10, 70))}


def _endless(seed: int) -> Iterator[dict[str, Any]]:
    random = Random(seed)
    yield {"role": "system", "content": _SYSTEM}
    number = 0
    while True:
        yield from _turn(random, number)
        number += 1


def chat_items(count: int, seed: int = 7) -> list[dict[str, Any]]:
    """The first ``count`` items of the endless conversation."""
    return list(islice(_endless(seed), count))


def chat_turns(count: int, seed: int = 7) -> list[list[dict[str, Any]]]:
    """The first ``count`` turns of the endless conversation; the first begins with the system."""
    random = Random(seed)
    found = [list(_turn(random, number)) for number in range(count)]
    found[0].insert(0, {"role": "system", "content": _SYSTEM})
    return found


def prepared_facts(count: int) -> list[tuple[bytes, int]]:
    """What the ledger is fed with: facts and tokens of as many items."""
    from memcore._fast import pack_facts

    found = [pack_facts(item, b"0123456789abcdef") for item in chat_items(min(count, 20_000))]
    facts = [(fact, 10 + len(fact) % 90) for fact in found if fact is not None]
    return (facts * (count // len(facts) + 1))[:count]


def open_filled(path: Any, items: list[dict[str, Any]], *, durability: str = "full") -> Any:
    """``(database, session)`` that holds ``items``."""
    import memcore

    db = memcore.open(str(path), durability=durability, allow_unsafe=durability == "none")
    session = db.session("bench", orphans="keep")
    for start in range(0, len(items), 1000):
        session.extend(items[start : start + 1000])
    return db, session
