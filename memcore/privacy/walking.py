"""JSON values: their leaves are redacted, what frameworks pair by is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

__all__ = ["redact_value"]

Redact = Callable[[str, int, str | None, Counter[str]], str]


def redact_value(value: Any, redact: Redact, found: Counter[str]) -> Any:
    """The value with placeholders; the same object if nothing was found."""
    if isinstance(value, str):
        return redact(value, 0, None, found)
    if isinstance(value, dict):
        changed = {
            key: made
            for key, entry in value.items()
            if key not in {"id", "tool_call_id", "call_id", "type", "role", "name"}
            and (made := redact_value(entry, redact, found)) is not entry
        }
        return {**value, **changed} if changed else value
    if isinstance(value, list):
        row = [redact_value(entry, redact, found) for entry in value]
        return row if any(a is not b for a, b in zip(row, value, strict=True)) else value
    return value
