"""The texts of a message that may be made shorter: none that pairs, providers or media hang on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

__all__ = ["edit_texts", "texts_in"]

_KEPT: Final = frozenset(
    (
        *("id", "call_id", "tool_call_id", "tool_use_id", "approval_request_id", "name", "type"),
        *("role", "signature", "thought_signature", "thoughtSignature", "encrypted_content"),
        *("data", "file_data", "image_url", "url", "file_id", "file_url", "namespace", "status"),
    )
)
"""What pairs, providers and media hang on."""
_SIGNED: Final = frozenset(("thinking", "redacted_thinking", "reasoning", "compaction"))


def texts_in(value: Any) -> Iterator[str]:
    """The texts, in the order in which ``edit_texts`` numbers them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from texts_in(entry)
    elif isinstance(value, Mapping) and value.get("type") not in _SIGNED:
        for name, entry in value.items():
            if name in _KEPT and isinstance(entry, str):
                continue
            inner = _parsed(entry) if name == "arguments" and isinstance(entry, str) else None
            yield from texts_in(entry if inner is None else inner)


def edit_texts(value: Any, edit: Callable[[int, str], str]) -> Any:
    """A copy with what ``edit(number, text)`` makes of each text; arguments of calls stay JSON."""
    return _Walk(edit).value(value)


class _Walk:
    """One walk through a value; it counts the texts."""

    def __init__(self, edit: Callable[[int, str], str]) -> None:
        self._edit = edit
        self._at = -1

    def value(self, value: Any) -> Any:
        """The value with its texts edited."""
        if isinstance(value, str):
            self._at += 1
            return self._edit(self._at, value)
        if isinstance(value, list | tuple):
            return [self.value(entry) for entry in value]
        if not isinstance(value, Mapping) or value.get("type") in _SIGNED:
            return value
        return {name: self._member(name, entry) for name, entry in value.items()}

    def _member(self, name: str, value: Any) -> Any:
        if name in _KEPT and isinstance(value, str):
            return value
        if name == "arguments" and isinstance(value, str):
            inner = _parsed(value)
            if inner is not None:
                edited = self.value(inner)
                return value if edited == inner else json.dumps(edited, ensure_ascii=False)
        return self.value(value)


def _parsed(text: str) -> Any:
    """The object or list that a call's arguments are, None if they are something else."""
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict | list):
            return found
    return None
