"""Who sees a field: marks in its annotation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Omit", "OmitInput", "OmitOutput", "Private", "omission"]


@dataclass(frozen=True, slots=True)
class Omit:
    """Keeps a field out of what goes into an agent, or out of what comes out of it."""

    input: bool = True
    """Whether nobody who calls the agent sets it."""
    output: bool = True
    """Whether nobody who called the agent gets it."""


Private: Final = Omit()
"""The agent's own: neither a parent nor a child agent sees the field."""
OmitInput: Final = Omit(output=False)
"""Comes out of the agent, and is never put into it."""
OmitOutput: Final = Omit(input=False)
"""Goes into the agent, and never comes out of it."""


def omission(mark: object) -> tuple[bool, bool] | None:
    """``(input, output)`` of a mark, None if it is none.

    LangChain's ``OmitFromSchema`` (and so ``PrivateStateAttr``) has the same two attributes.
    """
    into, out = getattr(mark, "input", None), getattr(mark, "output", None)
    return (into, out) if isinstance(into, bool) and isinstance(out, bool) else None
