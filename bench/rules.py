"""Rules of frameworks that are too large to install for one function, in words of our own.

They are labelled "rule of ..." in the table: what is measured is the rule, not the package.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["openhands_condensed", "openhands_cuts"]

Message = dict[str, Any]
KEEP_FIRST = 2


def openhands_cuts(history: Iterable[Message]) -> list[int]:
    """Positions at which no call is waiting for its result: only there may a history be cut.

    The rule of the OpenHands SDK (software-agent-sdk 611629e, the view's properties): one call
    that is never answered forbids every cut behind it. It reads all events on each use.
    """
    waiting: set[str] = set()
    found = [0]
    for at, message in enumerate(history, 1):
        waiting.discard(message.get("tool_call_id", ""))
        waiting.update(call["id"] for call in message.get("tool_calls") or ())
        if not waiting:
            found.append(at)
    return found


def openhands_condensed(history: list[Message], keep: int, summary: Message) -> list[Message]:
    """The first two items, a summary, and at least the last ``keep`` from an allowed cut on.

    The history itself when there is no allowed cut that would leave anything out.
    """
    cuts = openhands_cuts(history)
    first = next((cut for cut in cuts if cut >= KEEP_FIRST), len(history))
    cut = max((cut for cut in cuts if cut <= len(history) - keep), default=0)
    return [*history[:first], summary, *history[cut:]] if cut > first else history
