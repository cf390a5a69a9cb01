"""Backoff: a stage that does not help is not tried again until the context has changed."""

from __future__ import annotations

from typing import Final

__all__ = [
    "RETRY_CHANGE",
    "Patience",
]


RETRY_CHANGE: Final = 0.1
"""A stage that was given up is tried again once the context's tokens changed by this share.
OpenHands wants the same 10 % of a condensation to call it progress; opencode's stall guard 5 %."""


class Patience:
    """The stages of a policy that were given up for one session, with the token count at that time.

    A runtime asks after every turn. Without this a stage that stays due though it saves nothing (an
    open call holds the cut, the summaries come out too long, the model is down) would call a model
    on each of them.
    """

    __slots__ = ("_given_up",)

    def __init__(self) -> None:
        self._given_up: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._given_up)

    def allows(self, stage: str, tokens: int) -> bool:
        """Return whether to try the stage, while the context has ``tokens`` tokens."""
        then = self._given_up.get(stage)
        if then is None:
            return True
        if abs(tokens - then) < max(RETRY_CHANGE * then, 1):
            return False
        del self._given_up[stage]
        return True

    def give_up(self, stage: str, tokens: int) -> None:
        """Do not try the stage again while the context has about so many tokens."""
        self._given_up[stage] = tokens
