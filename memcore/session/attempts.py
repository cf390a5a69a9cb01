"""One run of a compactor over one session: which stage to try next, and when to stop."""

from __future__ import annotations

import logging
from typing import Final

from memcore.compaction import CompactionPolicy, Pressure
from memcore.compaction.patience import RETRY_CHANGE, Patience
from memcore.errors import CallerError
from memcore.model import CompactionResult
from memcore.session.compacting import Compacting, CompactionDraft

__all__ = ["PLAN_ATTEMPTS", "Attempts"]

PLAN_ATTEMPTS: Final = 3
"""Plans that a run makes for one session if others keep changing it: each may cost a summary."""
_log = logging.getLogger("memcore")


class Attempts:
    """What the synchronous compactor and the background one have in common; writes nothing.

    A run tries each stage at most once, so it ends. The heaviest that is due comes first; a lighter
    one that is due serves if that did not help, or was given up before.
    """

    __slots__ = ("_compacting", "_lost", "_name", "_patience", "_policy", "_tried", "result")

    def __init__(
        self, name: str, compacting: Compacting, policy: CompactionPolicy, patience: Patience
    ) -> None:
        self._name = name
        self._compacting = compacting
        self._policy = policy
        self._patience = patience
        self._tried: set[str] = set()
        self._lost = 0
        self.result: CompactionResult | None = None
        """The last that recorded a view; without any, the last of all."""

    def next(self) -> tuple[CompactionDraft, Pressure] | None:
        """The plan to try, and the pressure it was made under; None if there is none to try."""
        pressure = self._compacting.pressure(self._policy)
        for stage in self._policy.all_due(pressure):
            if stage.name not in self._tried and self._patience.allows(stage.name, pressure.tokens):
                draft = self._compacting.prepare(self._policy, stage)
                return draft, pressure._replace(stage=stage.name)
        return None

    def lost(self, error: CallerError) -> None:
        """Another one changed the session first: what is due is looked at again.

        Raises:
            PlanStaleError, NotFoundError: ``error``, if that happened too often.
        """
        self._lost += 1
        if self._lost >= PLAN_ATTEMPTS:
            raise error
        _log.info("session %r: planning the compaction again: %s", self._name, error)

    def ended(self, draft: CompactionDraft, result: CompactionResult) -> None:
        """Take in what became of a plan; a stage that is still due is given up for a while."""
        stage = draft.stage.name
        self._tried.add(stage)
        if result.view is not None or self.result is None or self.result.view is None:
            self.result = result
        # Whether the last item is a result that came meanwhile says nothing about the stage.
        pressure = self._compacting.pressure(self._policy)._replace(waiting=False)
        if draft.stage not in self._policy.all_due(pressure):
            return
        self._patience.give_up(stage, pressure.tokens)
        # After a view without an error it is the rule for triggers by an event or by idleness.
        helped = result.view is not None and result.error is None
        level = logging.INFO if helped else logging.WARNING
        _log.log(
            level,
            "session %r: stage %r is still due after a compaction (%s%s); not tried again until "
            "the context changed from %s tokens by %s",
            self._name,
            stage,
            result.status,
            _why(result),
            f"{pressure.tokens:,}",
            f"{RETRY_CHANGE:.0%}",
        )


def _why(result: CompactionResult) -> str:
    """Why it did not help; not the text of an error, which may hold content."""
    if result.error is not None:
        return f": the summarizer failed: {type(result.error).__name__}"
    return "" if result.reason is None else f": {result.reason}"
