"""What a check of the crash harness hands back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Say = Callable[[str], None]
"""Takes a line for whoever watches the run."""


class Outcome(NamedTuple):
    """What one check did: ``done`` cases, ``findings`` in words (none is good), facts to print."""

    name: str
    done: int
    findings: list[str]
    facts: dict[str, Any]
