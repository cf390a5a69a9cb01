"""What the modules that run the frameworks share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from harness import NotInstalled
from histories import Signs

__all__ = ["SUMMARY", "Message", "Trim", "finished", "missing"]

Message = dict[str, Any]
Trim = Callable[[list[Message], float], list[Signs]]
"""A chat history and the share of it to keep (0 to 1); what is left, as signs."""
SUMMARY = "They agreed to go on."


def missing(package: str, error: Exception) -> NotInstalled:
    """What to raise when a package cannot be imported."""
    return NotInstalled(f"not installed (pip install {package}): {error}")


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the coroutine waits for something")
