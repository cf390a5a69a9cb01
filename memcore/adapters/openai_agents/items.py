"""Items of the SDK as memcore stores them, and back.

The SDK's stores keep whatever ``json.dumps`` writes. memcore keeps JSON objects without loss and
refuses the rest: what is no object, holds NaN, or is nested very deeply is stored as text inside
an object of its own, under one reserved key. Whoever reads it gets what ``json.loads`` makes of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from memcore.codec import check_json

__all__ = ["coded", "is_plain", "plain"]

_TEXT: Final = "__memcore_json__"
_KEPT: Final = ("type", "role", "call_id", "id", "name")
"""What stays readable of an object that is stored as text: its calls and results go on pairing."""


def is_plain(item: Any) -> bool:
    """Whether memcore may take the item as it is."""
    return type(item) is dict and _TEXT not in item


def coded(items: Iterable[Any]) -> list[dict[str, Any]]:
    """The items as JSON objects.

    Raises:
        TypeError: one of them is nothing that ``json.dumps`` writes.
        ValueError: one is circular.
    """
    return [_coded(item) for item in items]


def _coded(item: Any) -> dict[str, Any]:
    text = json.dumps(item)
    value = json.loads(text)
    if isinstance(value, dict) and _TEXT not in value:
        try:
            check_json(value)
        except ValueError:
            kept = {key: value[key] for key in _KEPT if isinstance(value.get(key), str)}
            return {**kept, _TEXT: text}
        return value
    return {_TEXT: text}


def plain(message: dict[str, Any]) -> Any:
    """What was given as the item that is stored as ``message``."""
    return json.loads(message[_TEXT]) if _TEXT in message else message
