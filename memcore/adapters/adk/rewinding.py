"""What a rewind does to the state: it is what it was before, initial values included.

ADK computes the change from the events alone, so it sets every key to None that was there from the
beginning. The log of memcore begins with the initial state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.adk.events.event import Event

from memcore.codec import encode_json

__all__ = ["is_own", "rewound"]

_SHARED = ("app:", "user:", "temp:")


def is_own(key: str) -> bool:
    """Whether a key of the state is the session's own."""
    return not key.startswith(_SHARED)


def rewound(
    delta: Mapping[str, Any],
    before: Iterable[Event],
    initial: Mapping[str, Any],
    now: Mapping[str, Any],
) -> dict[str, Any]:
    """The change of the state that a rewind asks for, with the values that ADK did not find.

    Args:
        delta: what ADK computed.
        before: the events before the invocation, oldest first.
        initial: the session's own state when it was created.
        now: the state as it is.
    """
    lost = {key for key, value in delta.items() if value is None and is_own(key)}
    found = {key: value for key, value in initial.items() if key in lost}
    for event in before:
        for key in lost.intersection(event.actions.state_delta):
            found[key] = event.actions.state_delta[key]
    right = dict(delta)
    for key, value in found.items():
        if value is None:
            continue  # None is how ADK says that there is no value
        if key in now and encode_json(now[key]) == encode_json(value):
            del right[key]
        else:
            right[key] = value
    return right
