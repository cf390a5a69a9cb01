"""Compactor: keeps one session compacted, whenever its runtime asks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from memcore.compaction import CompactionPolicy, Pressure
from memcore.compaction.backoff import RETRY_CHANGE, Patience
from memcore.errors import CallerError, InvalidOptionError, NotFoundError, PlanStaleError
from memcore.model import CompactionResult, Plan, Summarize
from memcore.options import checked_callable, checked_optional_seconds
from memcore.session import compact
from memcore.session.compact import CompactionDraft, checked_summarizer
from memcore.session.engine import SessionRef
from memcore.session.session import AnyPolicy, Session, ref_of
from memcore.telemetry import seen_compacting

__all__ = [
    "PLAN_ATTEMPTS",
    "Attempts",
    "Compactor",
]


# --- One run of a compactor over one session: which stage to try next, and when to stop -----------

PLAN_ATTEMPTS: Final = 3
"""Plans that a run makes for one session if others keep changing it: each may cost a summary."""
_log = logging.getLogger("memcore")


class Attempts:
    """What the synchronous compactor and the background one have in common; writes nothing.

    A run tries each stage at most once, so it ends. The heaviest that is due comes first; a lighter
    one that is due serves if that did not help, or was given up before.
    """

    __slots__ = ("_lost", "_patience", "_policy", "_ref", "_tried", "result")

    def __init__(self, ref: SessionRef, policy: CompactionPolicy, patience: Patience) -> None:
        self._ref = ref
        self._policy = policy
        self._patience = patience
        self._tried: set[str] = set()
        self._lost = 0
        self.result: CompactionResult | None = None
        """The last that recorded a view; without any, the last of all."""

    def next(self) -> tuple[CompactionDraft, Pressure] | None:
        """The plan to try, and the pressure it was made under; None if there is none to try."""
        pressure = compact.find_pressure(self._ref, self._policy)
        for stage in self._policy.all_due(pressure):
            if stage.name not in self._tried and self._patience.allows(stage.name, pressure.tokens):
                draft = compact.prepare(self._ref, self._policy, stage)
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
        _log.info("session %r: planning the compaction again: %s", self._ref.name, error)

    def ended(self, draft: CompactionDraft, result: CompactionResult) -> None:
        """Take in what became of a plan; a stage that is still due is given up for a while."""
        stage = draft.stage.name
        self._tried.add(stage)
        if result.view is not None or self.result is None or self.result.view is None:
            self.result = result
        # Whether the last item is a result that came meanwhile says nothing about the stage.
        pressure = compact.find_pressure(self._ref, self._policy)._replace(waiting=False)
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
            self._ref.name,
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


# --- Compactor: keeps one session compacted, whenever its runtime asks ----------------------------

Before = Callable[[Plan, Pressure], bool | None]
After = Callable[[CompactionResult], object]


class Compactor:
    """Compacts a session when a stage of its policy is due; to be asked after every turn.

    ``session.compact()`` compacts once and at once. A compactor looks whether it is time, runs the
    heaviest stage that is due and then whatever is still due, plans again if another one changed
    the session meanwhile, and stops asking a model that does not help::

        compactor = memcore.Compactor(session, summarize, timeout_seconds=60)
        while True:
            ...                      # one turn of the agent
            compactor.run()          # microseconds, if nothing is due

    A stage that is still due after it ran (refused, nothing to fold, a fallback that was not
    enough) is given up, which is logged once, until the context's tokens changed by a tenth
    (``memcore.compaction.backoff.RETRY_CHANGE``); lighter stages that are due go on.

    Args:
        session: the session.
        summarize: gets a SummaryRequest and returns the summary; None: what is folded is trimmed.
        policy: a CompactionPolicy, a preset's name or a mapping; None: the session's.
        timeout_seconds: how long ``summarize`` may take; see ``Session.compact``.
        before: called with the plan and the pressure (``pressure.stage`` is the stage) before a
            model is asked and before anything is written. False ends the run without it; any other
            value lets it go on. What it raises comes out of ``run``, and nothing was written.
        after: called with the result of each plan that ``before`` let through, once it is stored
            or refused. What it raises comes out of ``run``, and what was written stays.

    Raises:
        InvalidOptionError: an argument is of a wrong type or out of range.
    """

    def __init__(
        self,
        session: Session,
        summarize: Summarize | None = None,
        *,
        policy: AnyPolicy | None = None,
        timeout_seconds: float | None = None,
        before: Before | None = None,
        after: After | None = None,
    ) -> None:
        if not isinstance(session, Session):
            msg = f"session: expected a Session, got {type(session).__name__}"
            raise InvalidOptionError(msg)
        checked_summarizer(summarize)
        self.session = session
        self.policy = compact.policy_of(ref_of(session), policy)
        self._summarize = summarize
        self._timeout = checked_optional_seconds("timeout_seconds", timeout_seconds)
        self._before: Before | None = checked_callable("before", before)
        self._after: After | None = checked_callable("after", after)
        self._patience = Patience()
        self._running = threading.Lock()
        self._runner = 0
        """The thread that is in ``run``."""
        self._appended = False
        """Whether somebody appended since the last look."""

    def run(self) -> CompactionResult | None:
        """Compact if a stage is due.

        Returns:
            None if nothing was due, all that is was given up, ``before`` said no, or another thread
            is in ``run``. Else the last result that recorded a view; without one, the last refusal.

        Raises:
            PlanStaleError: others changed the session again and again while it was summarized.
            ReadOnlyError, ClosedError, StorageError
        """
        if not self._running.acquire(blocking=False):
            return None
        try:
            return self._looked()
        finally:
            self._running.release()
            self._look_again()

    def after_append(self) -> None:
        """Compact if a stage is due, on behalf of an append that is stored: nothing is raised.

        A failure is logged, and what is due stays due for the next append. That of a caller's
        embedder, reducer or counter too: who is told that an append failed appends again.
        """
        if self._runner == threading.get_ident():
            return  # a caller's function appended: what runs looks again by itself
        self._appended = True
        self._look_again()

    def _look_again(self) -> None:
        """Compact what appends made due, if nobody does: who does looks again when it is done."""
        while self._appended and self._running.acquire(blocking=False):
            try:
                self._appended = False
                self._looked()
            except Exception as exc:  # noqa: BLE001 - a caller's function may fail in any way
                # Not the error itself: its text may hold content.
                _log.error("session %r was not compacted: %s", self.session.id, type(exc).__name__)
            finally:
                self._running.release()

    def _looked(self) -> CompactionResult | None:
        self._runner = threading.get_ident()
        try:
            with seen_compacting(self.session) as seen:
                seen.append(self._run())
            return seen[0]  # type: ignore[no-any-return]
        finally:
            self._runner = 0

    def _run(self) -> CompactionResult | None:
        ref = ref_of(self.session)
        compact.check(ref, self._summarize)
        attempts = Attempts(ref, self.policy, self._patience)
        while (found := attempts.next()) is not None:
            draft, pressure = found
            asked = not draft.is_empty
            if asked and self._before is not None and self._before(draft.plan, pressure) is False:
                break
            draft = compact.summarize(ref, draft, self._summarize, timeout_seconds=self._timeout)
            try:
                result = compact.record(ref, draft)
            except (PlanStaleError, NotFoundError) as exc:
                attempts.lost(exc)
                continue
            attempts.ended(draft, result)
            if asked and self._after is not None:
                self._after(result)
        return attempts.result
