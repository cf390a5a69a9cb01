"""Envelope: what a runtime says of an item beside the item itself.

It is stored in the item's row, only where it was given, and is no part of what a model receives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from memcore._fast import classify
from memcore.errors import InvalidOptionError
from memcore.limits import ENVELOPE_TEXT_CHARS_MAX, USAGE_TOKENS_MAX

__all__ = [
    "FAILED",
    "RESULT_TYPES",
    "TYPES",
    "Envelope",
    "checked_envelope",
    "derived_type",
    "stored_envelope",
]

TYPES: Final = (
    "user_input",
    "planner",
    "tool_call",
    "tool_result",
    "reflection",
    "aggregate",
    "final",
    "summary",
    "error",
    "hitl",
    "system",
    "reasoning",
    "other",
)
"""The types that there are; those of the caller begin with ``x-``."""
OWN: Final = "x-"
RESULT_TYPES: Final = frozenset(("aggregate", "final"))
"""What an agent shares when it shares results alone."""
FAILED: Final = frozenset(("error", "failed", "timeout"))
"""Statuses of what went wrong."""

_OF_KIND: Final = (
    "other",
    "system",
    "user_input",
    "final",
    "tool_call",
    "tool_result",
    "reasoning",
    "other",
)
"""By the number of an ItemKind. What a model says without calling anything is its answer."""
_ASSISTANT: Final = 3
_TEXTS: Final = ("type", "request_id", "model", "tool", "status", "author", "agent", "owner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What is known of one item. Every field may be left out.

    Raises:
        InvalidOptionError: a field is of a wrong type or out of range, or the type is unknown.
    """

    type: str | None = None
    """One of ``TYPES``, or one of your own that begins with ``x-``; None: as the item looks."""
    request_id: str | None = None
    """Of the request that it belongs to; the same as the item's ``request_id``."""
    model: str | None = None
    tool: str | None = None
    """The name of the tool that is called or answers."""
    duration_ms: float | None = None
    """How long it took to make, in milliseconds."""
    status: str | None = None
    """``ok`` or what else is to be said; ``error``, ``failed`` and ``timeout`` are failures."""
    redacted: bool | None = None
    """Whether personal data was taken out before it came here."""
    tokens: int | None = None
    """As the provider billed them; ``Item.tokens`` is what the session's counter says."""
    author: str | None = None
    """Who wrote it: the name of an agent, or ``user``."""
    agent: str | None = None
    """In whose run it was written, if the author is a tool or nobody."""
    owner: str | None = None
    """Whose data it is."""

    def __post_init__(self) -> None:
        for name in _TEXTS:
            value = getattr(self, name)
            if value is not None:
                _check_text(name, value)
        if self.type is not None and self.type not in TYPES and not _is_own(self.type):
            msg = (
                f"type: expected one of {', '.join(TYPES)}, or one of your own that begins with "
                f"{OWN!r}; got {self.type!r:.80}"
            )
            raise InvalidOptionError(msg)
        if self.redacted is not None and not isinstance(self.redacted, bool):
            msg = f"redacted: expected a bool or None, got {type(self.redacted).__name__}"
            raise InvalidOptionError(msg)
        _check_duration(self.duration_ms)
        _check_tokens(self.tokens)

    @property
    def by(self) -> str | None:
        """Whose item it is among several agents: the author's, else the agent's."""
        return self.author if self.author is not None else self.agent

    @property
    def is_failure(self) -> bool:
        """Whether its status says that something went wrong."""
        return self.status in FAILED

    def mapping(self) -> dict[str, Any]:
        """The fields that are known, in their order."""
        found = {name: getattr(self, name) for name in FIELDS}
        return {name: value for name, value in found.items() if value is not None}


FIELDS: Final = tuple(field.name for field in fields(Envelope))
_KNOWN: Final = frozenset(FIELDS)


def checked_envelope(given: object) -> Envelope | None:
    """The envelope that an argument stands for; None for one that says nothing.

    Raises:
        InvalidOptionError: it is neither an Envelope nor a mapping of its fields.
    """
    if given is None:
        return None
    if isinstance(given, Envelope):
        return given if given.mapping() else None
    if not isinstance(given, Mapping):
        msg = f"envelope: expected an Envelope, a mapping or None, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    unknown = [name for name in given if name not in _KNOWN]
    if unknown:
        named = ", ".join(f"{name!r:.40}" for name in unknown[:5])
        msg = f"envelope: {named} is no field of it; expected {', '.join(FIELDS)}"
        raise InvalidOptionError(msg)
    found = Envelope(**given)
    return found if found.mapping() else None


def stored_envelope(found: Mapping[str, Any], request_id: str | None) -> Envelope:
    """The envelope of a row, without fields that a later version added.

    Raises:
        InvalidOptionError: a field is none.
    """
    if not isinstance(found, Mapping):
        msg = f"envelope: expected an object, got {type(found).__name__}"
        raise InvalidOptionError(msg)
    known = {name: value for name, value in found.items() if name in _KNOWN}
    return Envelope(**{**known, "request_id": request_id})


def derived_type(kind: int, message: Mapping[str, Any]) -> str:
    """The type of an item that was given none: of an event its own, else as the item looks."""
    if kind == len(_OF_KIND) - 1:
        found = message.get("type")
        return found if isinstance(found, str) else "other"
    if kind == _ASSISTANT and classify(dict(message))[1]:
        return "tool_call"
    return _OF_KIND[kind]


def _is_own(name: str) -> bool:
    return name.startswith(OWN) and len(name) > len(OWN)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        msg = f"{name}: expected a str or None, got {type(value).__name__}"
        raise InvalidOptionError(msg)
    if name != "request_id" and not 0 < len(value) <= ENVELOPE_TEXT_CHARS_MAX:
        msg = f"{name}: expected 1 to {ENVELOPE_TEXT_CHARS_MAX} characters, got {len(value)}"
        raise InvalidOptionError(msg)


def _check_duration(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"duration_ms: expected milliseconds or None, got {type(value).__name__}"
        raise InvalidOptionError(msg)
    if not 0 <= value <= USAGE_TOKENS_MAX or not math.isfinite(value):
        msg = "duration_ms: expected a finite number of 0 to 2**48 milliseconds"
        raise InvalidOptionError(msg)


def _check_tokens(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"tokens: expected an int or None, got {type(value).__name__}"
        raise InvalidOptionError(msg)
    if not 0 <= value <= USAGE_TOKENS_MAX:
        msg = "tokens: expected 0 to 2**48"
        raise InvalidOptionError(msg)
