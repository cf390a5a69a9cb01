"""Plan of a compaction: the cut, as a pure function of the ledger and the policy.

The basic rule is MathModelAgent's: keep the first system message and, from a safe cut on, at least
the last three items, and replace the items in between with a summary. If the summary fails, keep
the shortest suffix of one to four items that starts at a safe cut; failing that, the last item that
is not a tool result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from memcore.compaction.policy import Keep, Stage, units_around
from memcore.compaction.reducers import Reduction, Visible, reduce_all
from memcore.errors import InternalError, PlanStaleError
from memcore.faces import logger
from memcore.log import AnyLedger, SessionTxn, count_message
from memcore.model import Item, ItemKind, Mask, Message, Plan, Repair, View
from memcore.options import closest
from memcore.records import record
from memcore.rows.views import StoredView, write_view
from memcore.tokens import TokenCounter
from memcore.wire import PairPolicy, WireItem, render
from memcore.wire.message import tool_names
from memcore.wire.repair import apply_mends, mend
from memcore.wire.validate import pair_violations

__all__ = [
    "NOTHING",
    "Base",
    "Basis",
    "Mended",
    "PlanOutcome",
    "applies",
    "fallback_plan",
    "make_plan",
    "mended",
    "record_view",
    "shape",
]


# --- The cut: a pure function of the ledger and of what a policy keeps ----------------------------

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
    """Choose the cut; nothing is folded if ``keep`` is None or keeps everything.

    ``first`` is the first position that is neither pinned nor covered by an earlier view;
    ``seq_at`` maps a position to its seq.
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
    """``(status, plan)`` to record when there is no summary.

    ``answers_of`` returns the positions of the results of an item's calls: the last resort keeps a
    calling item together with its results, so that no pair is split.
    """
    end = len(ledger)
    for keep in range(1, FALLBACK_ITEMS_MAX + 1):
        if keep > ledger.shown_count:
            break
        cut = ledger.cut_keep_last(keep)
        exact = _last_shown(ledger, keep)
        if cut == exact and cut >= first:
            return "fallback_slice", _plan(ledger, cut, first, revision, seq_at=seq_at)
    # Under a glue policy model items belong together and none is legal alone: take the last user
    # item.
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
    """The position of the ``keep``-th item from the end, not counting events."""
    at = len(ledger)
    while keep:
        at -= 1
        keep -= ledger.kind_at(at) != ItemKind.EVENT
    return at


# --- From a cut to a full plan: what is kept before it, what is folded, what is masked after it ---

_log = logger()


@record(frozen=True, slots=True)
class Basis:
    """The input of a compaction plan; positions are those of the live history."""

    plan: Plan
    items: Mapping[int, Item]
    """The candidate items as currently shown, without hidden ones: everything to be folded, the
    kept items before it and, with reducers, everything after the cut."""
    earlier: tuple[int, ...]
    """Positions that the previous view keeps in addition to its summary."""
    earlier_tokens: int
    """Tokens of ``earlier``, as shown."""
    pins: int
    """Number of leading positions that the pair policy pins."""
    cuts: tuple[int, ...]
    """The safe cuts; needed if anything before the cut is kept."""
    opened: frozenset[int]
    """Positions with open calls."""
    masks: Mapping[int, Mask]
    """The current masks, by seq."""


def shape(
    basis: Basis, stage: Stage, by: Reduction, *, protect: Keep | None = None
) -> tuple[Plan, tuple[Message, ...]]:
    """``(plan, messages to summarize)``; pure except for a logged warning about unknown tools.

    The plan's token counts cover all items after the pins. ``protect`` selects items that may not
    be masked; None: those that the stage keeps by name or position.
    """
    plan = basis.plan
    named = stage.keep if protect is None else protect
    names = _names(basis, named)
    kept = _kept_before(basis, stage, names)
    protected = {at for at in basis.items if at in kept or at in basis.opened}
    if named is not None:
        protected |= {at for at in basis.items if _is_named(basis, at, named, names)}
    masks: tuple[Mask, ...] = ()
    if stage.reducers:
        shown = [at for at in sorted(basis.items) if at >= plan.cut or at in kept]
        masks = _reduced(basis, shown, protected, stage, by)
    saved = {item.seq: item.tokens for item in basis.items.values()}
    folded = [
        basis.items[at].message
        for at in sorted(basis.items)
        if at < plan.cut
        and at not in kept
        and (at >= plan.fold_from or at in basis.earlier)
        and basis.items[at].kind != ItemKind.EVENT
    ]
    shaped = replace(
        plan,
        pinned=tuple(
            sorted({*plan.pinned, *(basis.items[at].seq for at in kept if at in basis.items)})
        ),
        tokens_before=plan.tokens_before + basis.earlier_tokens,
        tokens_kept=plan.tokens_kept
        + (_tokens(basis, kept, plan.pinned) if plan.folds else basis.earlier_tokens)
        - sum(saved[mask.seq] - mask.tokens for mask in masks),
        masks=masks,
    )
    return shaped, tuple(folded) if plan.folds else ()


def _tokens(basis: Basis, positions: Iterable[int], counted: Iterable[int]) -> int:
    """Tokens at the positions, excluding seqs already counted."""
    items = (basis.items[at] for at in positions if at in basis.items)
    without = set(counted)
    return sum(item.tokens for item in items if item.seq not in without)


def _kept_before(basis: Basis, stage: Stage, names: Mapping[int, set[str]]) -> set[int]:
    """Kept positions before the cut, with everything that is inseparable from them."""
    plan, keep = basis.plan, stage.keep
    if not plan.folds:
        return set(basis.earlier)
    if keep is None or not keep.pins:
        return set()
    found = {at for at in basis.items if at < plan.cut and _is_named(basis, at, keep, names)}
    return {at for at in units_around(basis.cuts, found, stop=plan.cut) if at >= basis.pins}


def _is_named(basis: Basis, at: int, keep: Keep, names: Mapping[int, set[str]]) -> bool:
    """Return whether an item is kept for its position or tool, regardless of the cut."""
    if at < basis.pins:
        return False
    if at < basis.pins + keep.first_items or not names.get(at, set()).isdisjoint(keep.tools):
        return True
    seq = basis.items[at].seq
    return any(lo <= seq <= hi for lo, hi in keep.pinned)


def _names(basis: Basis, keep: Keep | None) -> dict[int, set[str]]:
    """The tools that each item calls or answers; empty if ``keep`` names no tools."""
    wanted = set(keep.tools) if keep is not None else set()
    if not wanted:
        return {}
    order = sorted(basis.items)
    items = [basis.items[at] for at in order]
    entries = [WireItem(item.seq, item.message, item.kind == ItemKind.EVENT) for item in items]
    found = dict(zip(order, tool_names(entries), strict=True))
    known = {name for tools in found.values() for name in tools}
    for name in sorted(wanted - known) if known else ():
        near = closest(name, known)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        _log.warning("keep: no call of a tool %r among the items to compact%s", name, hint)
    return found


def _reduced(
    basis: Basis, shown: list[int], protected: set[int], stage: Stage, by: Reduction
) -> tuple[Mask, ...]:
    visible = [_visible(basis, at, protected=at in protected) for at in shown]
    found = reduce_all(visible, stage.reducers, by)
    masks = (found[item.seq] for item in visible if item.seq in found)
    before = basis.masks
    return tuple(
        mask._replace(because=before[mask.seq].because) if mask.seq in before else mask
        for mask in masks
    )


def _visible(basis: Basis, at: int, *, protected: bool = False) -> Visible:
    item = basis.items[at]
    mask = basis.masks.get(item.seq)
    action = None if mask is None else mask.action
    return Visible(item.seq, item.kind, item.message, item.tokens, protected, action)


# --- From broken items to the masks and the record of a repair ------------------------------------


@record(frozen=True, slots=True)
class Mended:
    """A repair plan: masks, and the repairs they make."""

    masks: tuple[Mask, ...] = ()
    repairs: tuple[Repair, ...] = ()
    """All broken items, including those that rendering repairs by itself."""

    @property
    def reason(self) -> str | None:
        """Repair counts by action, as text; None if there are no repairs."""
        found = Counter(each.action for each in self.repairs)
        return ", ".join(f"{count:,} {action}" for action, count in sorted(found.items())) or None


NOTHING: Final = Mended()


def mended(
    entries: Sequence[WireItem],
    policy: PairPolicy,
    counter: TokenCounter,
    mode: str,
    *,
    over: Mapping[int, Mask],
    locked: Collection[int] = (),
) -> Mended:
    """Plan the masks that repair the entries as currently shown; O(n).

    ``over`` are the masks already applied to the entries, by seq; ``locked`` are the seqs of
    entries that may not be masked.

    Raises:
        InternalError: the masks would leave an orphan or an unanswered call, or break a policy
            rule that holds without them; nothing may be stored.
    """
    rules = policy.mended
    rendered = render(entries, rules)
    mends = mend(
        entries,
        rules,
        mode,
        locked=[at for at, entry in enumerate(entries) if entry.seq in locked],
    )
    found = rendered.repairs
    if mends:  # removing items can rebind calls without ids to different results
        found += _held(rendered.messages, apply_mends(entries, mends), rules, mode, locked)
    if mode == "drop":  # a call that is taken out has no other id
        gone = {each.seq for each in found if each.action == "synthesized"}
        found = [each for each in found if each.action != "renamed" or each.seq not in gone]
    found = [_renamed(each, mode) for each in found]
    listed = {(each.action, each.seq) for each in found}
    for change in mends:
        seq = entries[change.at].seq
        if (change.action, seq) not in listed:
            found.append(Repair(change.action, seq, change.keys[0][1] if change.keys else None))
    masks = []
    for change in mends:
        seq, message = entries[change.at].seq, change.message
        tokens = 0 if message is None else count_message(message, counter)
        rests_on = entries[change.because].seq if change.because > change.at else 0
        if seq in over:
            rests_on = max(rests_on, over[seq].because)
        masks.append(Mask(seq, change.action, tokens, message, rests_on))
    return Mended(tuple(masks), tuple(dict.fromkeys(found)))


def _renamed(repair: Repair, mode: str) -> Repair:
    """Rename a repair for the mode: in mode ``drop``, a synthesized answer is a dropped call."""
    if mode == "drop" and repair.action == "synthesized":
        return Repair("dropped", repair.seq, repair.call_id)
    return repair


def _held(
    before: Sequence[Message],
    entries: list[WireItem],
    policy: PairPolicy,
    mode: str,
    locked: Collection[int],
) -> list[Repair]:
    """Render the repaired entries, check for new violations, and return rendering's repairs.

    Raises:
        InternalError: a broken pair remains, or a rule is newly broken.
    """
    rendered = render(entries, policy)
    actions = {"orphan", "superseded"} | ({"synthesized"} if mode == "drop" else set())
    left = [r for r in rendered.repairs if r.action in actions and r.seq not in locked]
    # A repair changes no form: what it lets in again may have that of another format.
    had = Counter((each.rule, each.call_id) for each in pair_violations(before, policy))
    has = pair_violations(rendered.messages, policy)
    new = [each for each in has if each.rule != "start" and not had[each.rule, each.call_id]]
    if left or new:
        msg = f"a repair would leave {[*left, *new][0]}; nothing was recorded"
        raise InternalError(msg)
    return rendered.repairs


# --- Applying a plan: one view record, in a transaction that checks that the plan still holds -----

Base = tuple[int, int, int]
"""``(session, view session, view number)`` on which a plan is based."""


@record(frozen=True, slots=True)
class PlanOutcome:
    """The outcome of a plan, with the figures recorded in its view."""

    plan: Plan
    status: str
    summary: str | None
    tokens_before: int
    """Tokens shown after the pins, including the current summary."""
    tokens_after: int
    counter: str
    """Id of the token counter behind these counts and the plan's."""
    policy: str = ""
    reason: str | None = None
    covered: tuple[int, int] = (0, 0)
    """``(cut seq, items)`` covered by the previous view; a plan that folds nothing retains it."""
    repair: str | None = None
    repairs: tuple[Repair, ...] = ()


def applies(draft: SessionTxn, plan: Plan, base: Base) -> bool:
    """Return whether the plan's cut is still live and no other view has been recorded since."""
    head = draft.head
    return (draft.log.session, head.view_session, head.view_number) == base and (
        not plan.cut or draft.position_of(plan.cut_seq) == plan.cut - 1
    )


def record_view(
    draft: SessionTxn, outcome: PlanOutcome, *, based_on: Base, inherits: bool, now_ms: int
) -> View:
    """Write a plan's view and make it the session's current one.

    Items appended since the plan was made stay after its cut. Masks of items that are no longer
    live are dropped; if the session changed at all, so are repair masks that depend on other items,
    because a call that was unanswered may have a result by now. ``inherits``: masks of earlier
    views stay in force after the cut.

    Raises:
        PlanStaleError: the history was cut below the plan, or another compaction came first.
    """
    plan = outcome.plan
    if not applies(draft, plan, based_on):
        msg = (
            "the session changed while the summary was made (another compaction, an undo or a "
            "rewind below the cut): nothing was compacted; plan again"
        )
        raise PlanStaleError(msg)
    head = draft.head
    cut_seq, covered = (plan.cut_seq, plan.cut) if plan.folds else outcome.covered
    is_same = head.revision == plan.revision
    masks = [mask for mask in plan.masks if is_same or not mask.because]
    places = [(mask, draft.locate(mask.seq)) for mask in masks]
    masked = [(mask, place[1]) for mask, place in places if place is not None]
    view = View(
        number=head.next_view,
        parent=head.view_number,
        cut_seq=cut_seq,
        covered=covered,
        summary=outcome.summary,
        pinned=plan.pinned,
        status=outcome.status,
        tokens_before=outcome.tokens_before,
        tokens_after=outcome.tokens_after,
        created_at=now_ms / 1000,
        counter=outcome.counter,
        masks=tuple(mask for mask, _ in masked),
        policy=outcome.policy,
        reason=outcome.reason,
        repair=outcome.repair,
        repairs=outcome.repairs,
    )
    stored = StoredView(
        view,
        draft.chain_at(cut_seq) if cut_seq else 0,
        draft.log.session,
        head.view_session,
        tuple(owner for _, owner in masked),
        inherits,
    )
    write_view(draft.txn, draft.log.scope, stored)
    head.next_view += 1
    head.view_session, head.view_number = draft.log.session, view.number
    return view
