"""What a recovery says of what it found, tried and did."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.model import Checkpoint

__all__ = ["Recovery", "RecoveryStep"]


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    """One thing that ``Session.recover`` looked at."""

    name: str
    """``mend``, ``checkpoint``, ``log`` or ``empty``."""
    target: str
    """What was looked at, in words."""
    serves: bool
    reason: str
    """Why it does not serve; of the one that does, what it makes of the session."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What ``Session.recover`` found, tried and did, or would do."""

    status: str
    """``sound``: nothing is wrong; ``recovered``; ``planned``: nothing was written; ``failed``: no
    step that was allowed serves, and nothing was written."""
    findings: tuple[str, ...] = ()
    """What is wrong with the session."""
    steps: tuple[RecoveryStep, ...] = ()
    """What was tried, in this order; the last one served, if one did."""
    items: int = 0
    """Live items behind it."""
    moved: int = 0
    """How many of these were appended once more, behind what could not be read."""
    lost: tuple[int, ...] = ()
    """Seqs of the items of the live history that cannot be read."""
    left_out: int = 0
    """Items that can be read and were live, and are not live any more."""
    checkpoint: Checkpoint | None = None
    """The one that the session went back to."""
    before: Checkpoint | None = None
    """Where it was before, if that could be saved."""
    notes: tuple[str, ...] = ()
    """What is guessed, and what stays damaged."""
