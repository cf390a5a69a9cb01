"""Random histories in any wire format, with texts long enough to be worth a compaction.

No hypothesis: twenty thousand of them take minutes. The steps are those of ``strategies``.
"""

from __future__ import annotations

import random
from typing import Any

import strategies
from oracle import Event
from strategies import Step

__all__ = ["history"]

WORDS = ("the", "file", "return", "42", "error:", "path/to/x.py", "我们", "{", "résumé", "\n")
TEXTS = ("ok", "hello", "be kind")
LATE = 0.15
"""Share of the results that come later than directly behind their call."""


def history(rng: random.Random, fmt: str, *, valid: bool) -> list[dict[str, Any] | Event]:
    """A history with parallel and late results, events and reasoning; or a wild one.

    In a wild one calls are not answered, answered twice or never made, and ids come again.
    """
    script = _valid(rng) if valid else _wild(rng)
    repeated = _text(rng, 100)
    found = strategies.write(script, fmt)
    return [item if isinstance(item, Event) else _worded(rng, item, repeated) for item in found]


def _valid(rng: random.Random) -> list[Step]:
    """Every call is answered, most at once, some late; ids do not come again."""
    script: list[Step] = [Step("system")] if rng.random() < 0.5 else []
    late: list[Step] = []
    for turn in range(rng.randint(1, 5)):
        script += [Step("user"), *late]
        late = []
        for loop in range(rng.randint(0, 3)):
            ids = tuple(f"t{turn}-{loop}-{i}" for i in range(rng.choice((1, 1, 1, 2, 3, 5))))
            variant = rng.randrange(6)
            if rng.random() < 0.3:
                script.append(Step(rng.choice(("reasoning", "think"))))
            script.append(Step("call", ids, variant))
            order = list(ids)
            rng.shuffle(order)
            if rng.random() < LATE:
                late.append(Step("results", (order.pop(),), variant))
            if order:
                script.append(Step("results", tuple(order), variant))
        if rng.random() < 0.9:
            script.append(Step("assistant"))
        if rng.random() < 0.1:
            script.append(Step("event"))
    return script


def _wild(rng: random.Random) -> list[Step]:
    whats = ("call", "results", "result", "user", "assistant", "system", "event", "abandon",
             "reasoning", "server", "server_result", "think", "odd")  # fmt: skip
    weights = (4, 4, 2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1)
    return [
        Step(what, tuple(rng.choices(strategies.IDS, k=rng.randint(1, 4))), rng.randrange(8))
        for what in rng.choices(whats, weights, k=rng.randint(1, 20))
    ]


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def _worded(rng: random.Random, item: Any, repeated: str) -> Any:
    """The item with longer texts in place of the fixed ones."""
    if isinstance(item, dict):
        return {key: _worded(rng, value, repeated) for key, value in item.items()}
    if isinstance(item, list):
        return [_worded(rng, value, repeated) for value in item]
    if isinstance(item, str) and item in TEXTS:
        if rng.random() < 0.1:
            return repeated
        return _text(rng, int(3 ** rng.uniform(0, 5)))
    return item
