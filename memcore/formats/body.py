"""Where the fields of a message lie, and reading values that may be anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from memcore.formats.editing import Path
from memcore.model import Message

__all__ = ["body_path", "dicts_in", "member_of", "name_in"]

_LANGCHAIN_TYPES: Final = frozenset((
    "human", "system", "tool", "function", "chat", "ai",
    "HumanMessageChunk", "SystemMessageChunk", "ToolMessageChunk", "FunctionMessageChunk",
    "ChatMessageChunk", "AIMessageChunk",
))  # fmt: skip


def body_path(message: Message) -> Path:
    """Where the fields of a message lie: at its top but in LangChain's two nested spellings."""
    role, kind = message.get("role"), message.get("type")
    if isinstance(role, str) and role and kind != "chat":
        return ()
    if kind == "constructor" and "lc" in message and isinstance(message.get("kwargs"), dict):
        nested = isinstance(message["kwargs"].get("data"), dict)
        return ("kwargs", "data") if nested else ("kwargs",)
    nested = kind in _LANGCHAIN_TYPES and isinstance(message.get("data"), dict)
    return ("data",) if nested else ()


def name_in(value: Any) -> str | None:
    """The value if it is a string that is not empty."""
    return value if isinstance(value, str) and value else None


def dicts_in(value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a list, with their positions; of anything else none."""
    for at, entry in enumerate(value if isinstance(value, list) else ()):
        if isinstance(entry, dict):
            yield at, entry


def member_of(value: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of the names under which there is an object."""
    return next((name for name in names if isinstance(value.get(name), dict)), None)
