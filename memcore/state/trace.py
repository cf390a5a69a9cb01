"""What is told of every call of a reducer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Reduction", "Trace"]


@dataclass(frozen=True, slots=True)
class Reduction:
    """One call of a reducer; the values are copies, as they were then."""

    key: str
    """The field."""
    left: Any
    """What was there."""
    right: Any
    """What was written (a list of all writes of the step, if the reducer takes them at once)."""
    result: Any
    reducer: str
    """The reducer's name."""


Trace = Callable[[Reduction], None]
