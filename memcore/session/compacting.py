"""Compaction of one session: plan, summarize outside any transaction, record in one commit."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from memcore.compaction import (
    CompactionRule,
    fallback_plan,
    is_due,
    make_plan,
    record_view,
)
from memcore.context import fixed_cost
from memcore.errors import InvalidOptionError, MemcoreError
from memcore.formats import Entry, bind
from memcore.log import Draft, SessionLog
from memcore.model import (
    CompactionResult,
    Item,
    ItemKind,
    Message,
    Plan,
    Summarize,
    SummaryRequest,
    View,
)
from memcore.session.address import Address
from memcore.session.changes import Changes, Closure
from memcore.session.reading import PINS_LOOK, Reading, decoded, head_of
from memcore.store.base import ReadTxn

__all__ = ["Compacting"]

_EMPTY_PLAN = Plan(0, 0, 0, 0)
_log = logging.getLogger("memcore")


@dataclass(frozen=True, slots=True)
class CompactionDraft:
    """A plan on its way to a view."""

    plan: Plan
    fallback: tuple[str, Plan]
    messages: tuple[Message, ...]
    """What the plan folds."""
    based_on: tuple[int, int]
    """The view that was current when the plan was made."""
    previous_summary: str | None
    session: int = 0
    """The number of the session that was planned for; its name may stand for another one now."""
    status: str = "trimmed"
    summary: str | None = None
    error: Exception | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to record."""
        return self.status == "nothing" or self.plan.is_empty

    def nothing(self) -> CompactionResult:
        """The result of a compaction that had nothing to do."""
        return CompactionResult("nothing", self.plan, None, self.error)


class Compacting:
    """The compaction of one session."""

    __slots__ = ("_address", "_changes", "_reading")

    def __init__(self, address: Address) -> None:
        self._address = address
        self._changes = Changes(address)
        self._reading = Reading(address)

    def rule(self, **given: int | None) -> CompactionRule:
        """The handle's rule with what the call gave."""
        found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return replace(self._address.options.rule, **found)

    def is_due(self, log: SessionLog, txn: ReadTxn, rule: CompactionRule) -> bool:
        """Whether the rule's trigger is met."""
        stored = log.current_view(txn)
        covered = 0 if stored is None else stored.view.covered
        recent = log.recent(txn, head_of(log))
        start = log.load(txn, stop=PINS_LOOK) if recent.offset else recent.ledger
        first = max(covered, log.policy.pin_count(start))
        return is_due(recent.ledger, rule, uncovered=log.history.count - first)

    # --- plan -------------------------------------------------------------------------------------

    def prepare(self, rule: CompactionRule) -> CompactionDraft:
        """Plan on the current history and collect what is to be folded; writes nothing."""
        found = self._reading.run(lambda log, txn: self._collect(log, txn, rule), None)
        if found is None:
            return CompactionDraft(_EMPTY_PLAN, ("nothing", _EMPTY_PLAN), (), (0, 0), None)
        plan, fallback, rows, based_on, previous, session = found
        messages = tuple(item.message for item in decoded(rows) if _is_foldable(item))
        return CompactionDraft(plan, fallback, messages, based_on, previous, session)

    def _collect(self, log: SessionLog, txn: ReadTxn, rule: CompactionRule) -> Any:
        assert log.head is not None  # noqa: S101 - what catch_up promises
        head, stored = log.head, log.current_view(txn)
        ledger = log.full(txn, head).ledger
        covered = 0 if stored is None else stored.view.covered

        def seq_at(position: int) -> int:
            return log.history.seq_at(position)

        def answers_of(position: int) -> list[int]:
            return self._answers_of(log, txn, position)

        plan = make_plan(
            ledger,
            log.policy,
            rule,
            covered=covered,
            revision=head.revision,
            seq_at=seq_at,
        )
        fallback = fallback_plan(
            ledger,
            log.policy,
            covered=covered,
            revision=head.revision,
            seq_at=seq_at,
            answers_of=answers_of,
        )
        rows = self._reading.collect(log, txn, plan.fold_from, max(plan.cut, plan.fold_from))
        previous = None if stored is None else stored.view.summary
        based_on = (head.view_session, head.view_number)
        return plan, fallback, rows, based_on, previous, log.session

    def _answers_of(self, log: SessionLog, txn: ReadTxn, position: int) -> list[int]:
        """Positions of the results of the calls that the item at ``position`` makes."""
        rows = self._reading.collect(log, txn, position, log.history.count)
        items = list(decoded(rows))
        entries = [Entry(i.seq, i.message, event=i.kind == ItemKind.EVENT) for i in items]
        slots = bind(entries).calls[0]
        return sorted({position + at for slot in slots for at in slot.results})

    def check(self, summarize: object) -> None:
        """Refuse what cannot work before a model is asked.

        Raises:
            InvalidOptionError: ``summarize`` is neither None nor callable.
            ReadOnlyError: nothing can be recorded.
        """
        self._address.need_writable()
        if summarize is not None and not callable(summarize):
            msg = f"summarize: expected a callable or None, got {type(summarize).__name__}"
            raise InvalidOptionError(msg)

    # --- summary ----------------------------------------------------------------------------------

    def summarized(self, draft: CompactionDraft, summarize: Summarize | None) -> CompactionDraft:
        """The draft with its summary, or the fallback if there is none to be had."""
        if draft.plan.is_empty or summarize is None:
            return replace(draft, summary=draft.previous_summary)
        try:
            summary = summarize(self.request(draft))
        except MemcoreError:
            raise
        except Exception as exc:  # noqa: BLE001 - the caller's model may fail in any way
            return self.failed(draft, exc)
        return self.with_summary(draft, summary)

    def request(self, draft: CompactionDraft) -> SummaryRequest:
        """What the summarizer is given."""
        return SummaryRequest(draft.messages, draft.previous_summary, self._address.name)

    def with_summary(self, draft: CompactionDraft, summary: object) -> CompactionDraft:
        """The draft with what the summarizer returned."""
        if not isinstance(summary, str) or not summary.strip():
            kind = "an empty text" if isinstance(summary, str) else type(summary).__name__
            return self.failed(draft, TypeError(f"summarize returned {kind}, expected a text"))
        return replace(draft, status="summarized", summary=summary)

    def failed(self, draft: CompactionDraft, error: Exception) -> CompactionDraft:
        """The draft of the fallback; an earlier summary stays."""
        _log.warning("session %r: the summarizer failed", self._address.name, exc_info=error)
        status, plan = draft.fallback
        return replace(draft, plan=plan, status=status, summary=draft.previous_summary, error=error)

    # --- commit -----------------------------------------------------------------------------------

    def closure(self, draft: CompactionDraft) -> Closure[View]:
        """Record the view, if the plan still applies."""
        backing = self._address.backing

        def work(working: Draft) -> View:
            log = working.log
            after = draft.plan.tokens_kept + fixed_cost(
                log.policy, log.counter, pin_tokens=0, summary=draft.summary
            )
            return record_view(
                working,
                draft.plan,
                based_on=(draft.session, *draft.based_on),
                summary=draft.summary,
                status=draft.status,
                tokens_after=after,
                now_ms=backing.now_ms(),
            )

        return self._changes.change(work, create=False, revised=False)


def _is_foldable(item: Item) -> bool:
    return item.kind != ItemKind.EVENT
