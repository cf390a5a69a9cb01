"""Where to cut: a pure function of the ledger and of what a policy keeps.

The plain rule is that of MathModelAgent: keep the first system message and at least the last three
items from a safe cut on, and represent what lies between by a summary. If the summary fails, the
shortest suffix of one to four items that starts at a safe cut stays; else the last item that is no
tool result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from memcore.compaction.keeping import Keep
from memcore.formats import PairPolicy
from memcore.log import AnyLedger
from memcore.model import ItemKind, Plan

__all__ = ["fallback_plan", "make_plan"]

FALLBACK_ITEMS_MAX: Final = 4


def make_plan(
    ledger: AnyLedger,
    keep: Keep | None,
    *,
    first: int,
    revision: int,
    seq_at: Callable[[int], int],
    window_tokens: int | None = None,
) -> Plan:
    """Choose the cut; nothing is folded if ``keep`` is None or keeps it all.

    ``first`` is the first position that is neither pinned nor covered by an earlier view;
    ``seq_at`` gives the seq of a position.
    """
    cut = first
    if keep is not None:
        cut = keep.cut(ledger, first=first, window_tokens=window_tokens)
    return _plan(ledger, cut, first, revision, seq_at=seq_at)


def _plan(
    ledger: AnyLedger,
    cut: int,
    first: int,
    revision: int,
    *,
    seq_at: Callable[[int], int],
) -> Plan:
    end = len(ledger)
    return Plan(
        revision=revision,
        cut=cut,
        cut_seq=seq_at(cut - 1) if cut else 0,
        fold_from=first,
        tokens_before=ledger.sum_between(first, end),
        tokens_kept=ledger.sum_between(cut, end),
    )


def fallback_plan(
    ledger: AnyLedger,
    policy: PairPolicy,
    *,
    first: int,
    revision: int,
    seq_at: Callable[[int], int],
    answers_of: Callable[[int], list[int]],
) -> tuple[str, Plan]:
    """``(status, plan)`` of what serves when there is no summary.

    ``answers_of`` gives the positions of the results of the calls that an item makes: the last
    resort keeps a calling item together with its results, so that no pair is split.
    """
    end = len(ledger)
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
    alone_with_answers = (at, *answers_of(at))
    plan = _plan(ledger, end, first, revision, seq_at=seq_at)
    kept = sum(ledger.sum_between(place, place + 1) for place in alone_with_answers)
    pinned = tuple(seq_at(place) for place in alone_with_answers)
    return "fallback_last", replace(plan, pinned=pinned, tokens_kept=kept)


def _last_shown(ledger: AnyLedger, keep: int) -> int:
    """The position of the ``keep``-th last item that is no event."""
    at = len(ledger)
    while keep:
        at -= 1
        keep -= ledger.kind_at(at) != ItemKind.EVENT
    return at
