"""What to compact: a pure function of the ledger and a rule.

The plain rule is that of MathModelAgent: when there are more than ``max_items`` items and the last
one is no tool result, keep the first system message and at least the last three items from a safe
cut on, and represent what lies between by a summary. If the summary fails, the shortest suffix of
one to four items that starts at a safe cut stays; else the last item that is no tool result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from memcore._fast import Ledger
from memcore.formats import PairPolicy
from memcore.model import ItemKind, Plan
from memcore.options import checked_int, checked_optional_int

__all__ = ["CompactionRule", "fallback_plan", "is_due", "make_plan"]

FALLBACK_ITEMS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class CompactionRule:
    """When to compact and what to keep."""

    max_items: int = 12
    """``needs_compaction`` is true above this many items that no summary covers."""
    keep_last: int = 3
    """Keep at least this many items."""
    keep_tokens: int | None = None
    """Keep the longest suffix from a safe cut within these tokens (but ``keep_last`` items)."""
    protect_open_items: int = 200
    """A call that is open stays outside the summary until this many items came after it."""

    def __post_init__(self) -> None:
        for name in ("max_items", "keep_last", "protect_open_items"):
            checked_int(name, getattr(self, name))
        checked_optional_int("keep_tokens", self.keep_tokens, least=1)


def is_due(ledger: Ledger, rule: CompactionRule, *, uncovered: int) -> bool:
    """Whether the rule's trigger is met: ``uncovered`` items are neither pinned nor summarized.

    O(1). ``ledger`` holds the end of the history.
    """
    last = ledger.last_shown
    if last < 0 or ledger.kind_at(last) == ItemKind.RESULT:
        return False  # the model has yet to see the results: cut behind its next word
    return uncovered > rule.max_items


def make_plan(
    ledger: Ledger,
    policy: PairPolicy,
    rule: CompactionRule,
    *,
    covered: int,
    revision: int,
    seq_at: Callable[[int], int],
) -> Plan:
    """Choose the cut; the plan is empty if there is nothing to fold.

    ``covered`` is how many items an earlier view covers; ``seq_at`` gives the seq of a position.
    """
    end = len(ledger)
    first = max(covered, policy.pin_count(ledger))
    cut = ledger.cut_keep_last(min(rule.keep_last, ledger.shown_count))
    if rule.keep_tokens is not None:
        by_tokens = ledger.cut_for_budget(rule.keep_tokens, at_least=first, starts=False)
        cut = min(cut, by_tokens) if by_tokens >= 0 else cut
    opened = [at for at in ledger.open_positions() if end - at <= rule.protect_open_items]
    if opened:
        cut = ledger.cut_at_most(min(cut, opened[0]))
    return _plan(ledger, max(cut, first), first, revision, seq_at=seq_at)


def _plan(
    ledger: Ledger,
    cut: int,
    first: int,
    revision: int,
    *,
    seq_at: Callable[[int], int],
    pinned: tuple[int, ...] = (),
) -> Plan:
    end = len(ledger)
    return Plan(
        revision=revision,
        cut=cut,
        cut_seq=seq_at(cut - 1) if cut else 0,
        fold_from=first,
        pinned=pinned,
        tokens_before=ledger.sum_between(first, end),
        tokens_kept=ledger.sum_between(cut, end),
    )


def fallback_plan(
    ledger: Ledger,
    policy: PairPolicy,
    *,
    covered: int,
    revision: int,
    seq_at: Callable[[int], int],
    answers_of: Callable[[int], list[int]],
) -> tuple[str, Plan]:
    """``(status, plan)`` of what serves when there is no summary.

    ``answers_of`` gives the positions of the results of the calls that an item makes: the last
    resort keeps a calling item together with its results, so that no pair is split.
    """
    end = len(ledger)
    first = max(covered, policy.pin_count(ledger))
    for keep in range(1, FALLBACK_ITEMS_MAX + 1):
        if keep > ledger.shown_count:
            break
        cut = ledger.cut_keep_last(keep)
        exact = _last_shown(ledger, keep)
        if cut == exact and cut >= first:
            return "fallback_slice", _plan(ledger, cut, first, revision, seq_at=seq_at)
    # Where model items hang together, one of them alone is illegal: the last user item serves.
    alone = {ItemKind.USER} if policy.glue else set(ItemKind) - {ItemKind.RESULT, ItemKind.EVENT}
    at = end - 1
    while at >= first and ItemKind(ledger.kind_at(at)) not in alone:
        at -= 1
    if at < first:
        return "nothing", _plan(ledger, first, first, revision, seq_at=seq_at)
    pinned = tuple(seq_at(position) for position in (at, *answers_of(at)))
    return "fallback_last", _plan(ledger, end, first, revision, seq_at=seq_at, pinned=pinned)


def _last_shown(ledger: Ledger, keep: int) -> int:
    """The position of the ``keep``-th last item that is no event."""
    at = len(ledger)
    while keep:
        at -= 1
        keep -= ledger.kind_at(at) != ItemKind.EVENT
    return at
