"""Triggers: what makes a compaction due. All of it is known in O(1)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from memcore.errors import InvalidOptionError
from memcore.options import checked_optional_int, checked_optional_share

__all__ = ["Pressure", "Trigger"]


class Pressure(NamedTuple):
    """How full a session is."""

    items: int = 0
    """Items that are neither pinned, nor covered by a view, nor events of the end."""
    tokens: int = 0
    """Tokens of the context without a budget, before repairs, by the session's counter."""
    turns: int = 0
    """User items that no view covers."""
    idle_seconds: float = 0.0
    """Since the session was last changed, by this machine's clock; never negative."""
    event: str | None = None
    """The type of the event that the history ends with, if it ends with one."""
    waiting: bool = False
    """Whether the last item is a tool result, which the model has yet to see."""
    stage: str | None = None
    """The stage of the policy that is due, None if none is."""
    turns_left: int | None = None
    """Turns until the policy's ``max_turns``; negative beyond it; None without such a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """Due when all that is given holds. Of several triggers of a stage one is enough."""

    items: int | None = None
    """More than so many items that no view covers."""
    tokens: int | None = None
    """More than so many tokens in the context."""
    fraction: float | None = None
    """More than this share of the policy's ``window_tokens``."""
    turns: int | None = None
    """More than so many user items that no view covers."""
    idle_seconds: float | None = None
    """No change for so long."""
    event: str | None = None
    """The history ends with an event of this type: ``session.record("task_end", ...)``."""

    def __post_init__(self) -> None:
        for name in ("items", "tokens", "turns"):
            checked_optional_int(name, getattr(self, name))
        checked_optional_share("fraction", self.fraction)
        idle = self.idle_seconds
        if idle is not None and (
            isinstance(idle, bool) or not isinstance(idle, int | float) or not idle >= 0
        ):
            msg = f"idle_seconds: expected a non-negative number, got {idle!r}"
            raise InvalidOptionError(msg)
        if self.event is not None and (not isinstance(self.event, str) or not self.event):
            msg = f"event: expected the type of an event, got {self.event!r}"
            raise InvalidOptionError(msg)
        if all(getattr(self, entry.name) is None for entry in fields(self)):
            msg = "Trigger() is always due: name at least one condition"
            raise InvalidOptionError(msg)

    def is_due(self, pressure: Pressure, window_tokens: int | None) -> bool:
        """Whether all its conditions hold."""
        if self.fraction is not None and (
            window_tokens is None or pressure.tokens / window_tokens <= self.fraction
        ):
            return False
        return not (
            (self.items is not None and pressure.items <= self.items)
            or (self.tokens is not None and pressure.tokens <= self.tokens)
            or (self.turns is not None and pressure.turns <= self.turns)
            or (self.idle_seconds is not None and pressure.idle_seconds < self.idle_seconds)
            or (self.event is not None and pressure.event != self.event)
        )
