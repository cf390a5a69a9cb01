"""Rules for pruning: which checkpoints of a namespace may go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from memcore.checkpoint.pruning import Candidate, Rule
from memcore.errors import InvalidOptionError

__all__ = ["keep_rule", "run_rule"]


def keep_rule(
    *, keep_last: int = 1, max_age_seconds: float | None = None, now: float | None = None
) -> Rule:
    """All go but the newest ``keep_last``, and those younger than ``max_age_seconds``.

    ``now``: seconds since 1970; None: the clock's. The age is by ``ts`` of the checkpoint's body.

    Raises:
        InvalidOptionError: an argument is out of range.
    """
    if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1:
        msg = f"keep_last: expected an int of at least 1, got {keep_last!r}"
        raise InvalidOptionError(msg)
    if max_age_seconds is not None and not max_age_seconds >= 0:
        msg = f"max_age_seconds: expected a number of at least 0, got {max_age_seconds!r}"
        raise InvalidOptionError(msg)
    since = None
    if max_age_seconds is not None:
        since = (time.time() if now is None else now) - max_age_seconds

    def rule(found: list[Candidate]) -> set[str]:
        doomed = found[:-keep_last]
        if since is not None:
            # One without a time that can be read is kept: nothing says that it is old.
            doomed = [one for one in doomed if _made_at(one.body) < since]
        return {one.checkpoint for one in doomed}

    return rule


def run_rule(run_ids: Sequence[str]) -> Rule:
    """The checkpoints of these runs go."""
    wanted = set(run_ids)

    def rule(found: list[Candidate]) -> set[str]:
        return {one.checkpoint for one in found if _run_of(one.metadata) in wanted}

    return rule


def _run_of(metadata: Any) -> Any:
    run = metadata.get("run_id") if isinstance(metadata, dict) else None
    return run if isinstance(run, str) else None


def _made_at(body: Any) -> float:
    try:
        return datetime.fromisoformat(body["ts"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return float("inf")
