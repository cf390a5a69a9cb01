"""What is wrong with a rendered context, by the specification alone."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from messages import illegal
from oracle import RESULT, Event, classify

__all__ = ["found_wrong", "plain"]


def plain(history: list[Any]) -> list[dict[str, Any]]:
    """The messages of a drawn history as JSON gives them back, events left out."""
    return [json.loads(json.dumps(item)) for item in history if not isinstance(item, Event)]


def found_wrong(
    shown: list[dict[str, Any]], messages: list[dict[str, Any]], policy: str
) -> list[Any]:
    """What is illegal in ``shown``, but for what no rendering of ``messages`` can heal.

    That is: ids used twice, calls that only others can answer, and the calls at the very end of
    which some are answered and some are open.
    """
    found = illegal(shown, policy)
    if not found:
        return []
    no_cure = {"an id that came before"}
    if policy == "openai_responses":
        no_cure.add("a result without an id")  # a named output may stand alone
    partial = (len(shown) - 1, "results that are not those of the calls right before")
    if len(shown) > 1 and classify(shown[-1]).kind == RESULT:
        calls, answers = Counter(classify(shown[-2]).opens), Counter(classify(shown[-1]).closes)
        partial = partial if answers < calls else None
    return [
        each
        for each in found
        if each[1] not in no_cure and "server" not in each[1] and tuple(each) != partial
    ]
