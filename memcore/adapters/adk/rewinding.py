"""What a rewind does to the state: it becomes what it was, initial values included.

ADK computes the change from the events alone, so it sets every key to None that was there from the
beginning. memcore knows the state before each item.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from memcore.codec import encode_json

__all__ = ["rewound"]

_SHARED: Final = ("app:", "user:", "temp:")


def rewound(
    delta: Mapping[str, Any], before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, Any]:
    """The change of the state that a rewind asks for, with the values that ADK did not find.

    Args:
        delta: what ADK computed; None is how it says that there was no value.
        before: the session's own state before the invocation.
        now: the state as it is.
    """
    right = dict(delta)
    for key, value in delta.items():
        then = None if value is not None or key.startswith(_SHARED) else before.get(key)
        if then is None:
            continue
        if key in now and encode_json(now[key]) == encode_json(then):
            del right[key]
        else:
            right[key] = then
    return right
