"""What is wrong with a rendered context, by the specification alone."""

from __future__ import annotations

import json
from typing import Any

from memcore.testing.facts import Event
from memcore.testing.legality import healable
from messages import illegal

__all__ = ["found_wrong", "plain"]


def plain(history: list[Any]) -> list[dict[str, Any]]:
    """The messages of a drawn history as JSON gives them back, events left out."""
    return [json.loads(json.dumps(item)) for item in history if not isinstance(item, Event)]


def found_wrong(
    shown: list[dict[str, Any]], messages: list[dict[str, Any]], policy: str
) -> list[Any]:
    """What is illegal in ``shown``, but for what no rendering of ``messages`` can heal."""
    return healable(illegal(shown, policy), shown, policy)
