"""What may be given as an update of a state: a mapping, or a Command; and what overwrites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from memcore.errors import InvalidUpdateError

__all__ = ["Command", "Overwrite", "Update", "Write", "overwritten", "writes_of"]

_OVERWRITE: Final = "__overwrite__"
_PAIR: Final = 2

Write = tuple[str, Any]
"""A field and what is written to it."""


@dataclass(frozen=True, slots=True)
class Overwrite:
    """A value that takes the place of the stored one, past the reducer of its field."""

    value: Any


@dataclass(frozen=True, slots=True)
class Command:
    """A change of several fields, and messages for the log, in one commit: ``session.apply``."""

    update: Mapping[str, Any] = field(default_factory=dict)
    """Fields and what is written to them."""
    messages: Iterable[Mapping[str, Any]] = ()
    """What is appended to the session."""


Update = Mapping[str, Any] | Command
"""What one writer writes in one step. An object with an ``update``, as LangGraph's Command, is
taken for a Command too."""


def overwritten(value: Any) -> tuple[Any] | None:
    """The value of an Overwrite as a tuple of one; None if it is none.

    LangGraph's Overwrite counts too, and the dicts that stand for it in JSON:
    ``{"__overwrite__": value}`` and ``{"type": "__overwrite__", "value": value}``.
    """
    if isinstance(value, Overwrite):
        return (value.value,)
    if isinstance(value, dict):
        if len(value) == 1 and _OVERWRITE in value:
            return (value[_OVERWRITE],)
        if value.get("type") == _OVERWRITE and "value" in value:
            return (value["value"],)
        return None
    if type(value).__name__ == Overwrite.__name__ and hasattr(value, "value"):
        return (value.value,)
    return None


def writes_of(update: Any) -> list[Write]:
    """The writes of one update, or of several, in their order.

    Raises:
        InvalidUpdateError: it is neither a mapping, a Command nor a list of them; or a Command has
            messages, which only a session can store.
    """
    if update is None:
        return []
    if isinstance(update, Mapping):
        return _checked(list(update.items()))
    if isinstance(update, list | tuple):
        return [write for each in update for write in writes_of(each)]
    if not hasattr(update, "update"):
        msg = f"update: expected a mapping, a Command or a list of them, got {_named(update)}"
        raise InvalidUpdateError(msg)
    if any(True for _ in getattr(update, "messages", None) or ()):
        msg = "a Command with messages changes a session: give it to session.apply()"
        raise InvalidUpdateError(msg)
    return fields_of(update)


def fields_of(command: Any) -> list[Write]:
    """The writes to fields of a Command, which may be pairs as well as a mapping.

    Raises:
        InvalidUpdateError: they are neither.
    """
    update = getattr(command, "update", None)
    if update is None:
        return []
    if isinstance(update, Mapping):
        return _checked(list(update.items()))
    if isinstance(update, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == _PAIR for pair in update
    ):
        return _checked([(key, value) for key, value in update])
    msg = f"the update of a Command: expected a mapping, got {_named(update)}"
    raise InvalidUpdateError(msg)


def _checked(writes: list[Write]) -> list[Write]:
    for key, _ in writes:
        if not isinstance(key, str) or not key:
            msg = f"a field of the state has a name: expected a non-empty str, got {key!r:.40}"
            raise InvalidUpdateError(msg)
    return writes


def _named(value: object) -> str:
    return type(value).__name__
