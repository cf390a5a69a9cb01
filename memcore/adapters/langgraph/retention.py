"""Rules for pruning: which checkpoints of a namespace may go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from memcore.checkpoint import Candidate, Rule
from memcore.errors import InvalidOptionError

__all__ = ["rule_of", "run_rule"]

_STRATEGIES: Final = ("keep_latest", "delete")


def rule_of(
    strategy: str, keep_last: int | None, max_age_seconds: float | None, *, now: float | None = None
) -> Rule | None:
    """The rule of ``prune``'s arguments; None: everything is to go.

    Raises:
        InvalidOptionError: the strategy is unknown, or an argument is out of range.
    """
    if strategy not in _STRATEGIES:
        msg = f"strategy: expected 'keep_latest' or 'delete', got {strategy!r}"
        raise InvalidOptionError(msg)
    if strategy == "delete":
        if keep_last is not None or max_age_seconds is not None:
            msg = "keep_last and max_age_seconds go with strategy 'keep_latest' only"
            raise InvalidOptionError(msg)
        return None
    kept = 1 if keep_last is None else keep_last
    if isinstance(kept, bool) or not isinstance(kept, int) or kept < 1:
        msg = f"keep_last: expected an int of at least 1, got {keep_last!r}"
        raise InvalidOptionError(msg)
    if max_age_seconds is not None and not max_age_seconds >= 0:
        msg = f"max_age_seconds: expected a number of at least 0, got {max_age_seconds!r}"
        raise InvalidOptionError(msg)
    since = None
    if max_age_seconds is not None:
        since = (time.time() if now is None else now) - max_age_seconds

    def rule(found: list[Candidate]) -> set[str]:
        doomed = found[:-kept]
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
