"""From a cut to a whole plan: what stays before it, what is folded, what is masked behind it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

from memcore.compaction.keeping import Keep, units_around
from memcore.compaction.policy import Stage
from memcore.compaction.reduce import reduce_all
from memcore.compaction.reducer import Reduction, Visible
from memcore.formats import Entry
from memcore.formats.parts import tool_names
from memcore.model import Item, ItemKind, Mask, Message, Plan

__all__ = ["Basis", "shape"]

_log = logging.getLogger("memcore")


@dataclass(frozen=True, slots=True)
class Basis:
    """What a compaction is planned on; positions are those of the live history."""

    plan: Plan
    items: Mapping[int, Item]
    """The items that are looked at, as they are shown: all that is folded, those before it that
    stay, and with reducers everything behind the cut. Hidden ones are left out."""
    earlier: tuple[int, ...]
    """Positions that the view before keeps beside its summary."""
    earlier_tokens: int
    """Tokens of these, as they are shown."""
    pins: int
    """How many leading positions are pinned by the pair policy."""
    cuts: tuple[int, ...]
    """The safe cuts; needed if anything before the cut is kept."""
    opened: frozenset[int]
    """Positions with open calls."""
    masks: Mapping[int, Mask]
    """The masks in force, by seq."""


def shape(
    basis: Basis, stage: Stage, by: Reduction, *, protect: Keep | None = None
) -> tuple[Plan, tuple[Message, ...]]:
    """``(plan, messages to summarize)``: pure, but for a warning about unknown tools.

    The tokens of the plan are those of everything behind the pins. ``protect`` names what no mask
    may touch; None: what the stage keeps by name or place.
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
    """Tokens at the positions, without the seqs that are counted already."""
    items = (basis.items[at] for at in positions if at in basis.items)
    without = set(counted)
    return sum(item.tokens for item in items if item.seq not in without)


def _kept_before(basis: Basis, stage: Stage, names: Mapping[int, set[str]]) -> set[int]:
    """Positions before the cut that stay, with all that they hang together with."""
    plan, keep = basis.plan, stage.keep
    if not plan.folds:
        return set(basis.earlier)
    if keep is None or not keep.pins:
        return set()
    found = {at for at in basis.items if at < plan.cut and _is_named(basis, at, keep, names)}
    return {at for at in units_around(basis.cuts, found, stop=plan.cut) if at >= basis.pins}


def _is_named(basis: Basis, at: int, keep: Keep, names: Mapping[int, set[str]]) -> bool:
    """Whether an item stays visible by its place or its tool, wherever the cut is."""
    if at < basis.pins:
        return False
    if at < basis.pins + keep.first_items or not names.get(at, set()).isdisjoint(keep.tools):
        return True
    seq = basis.items[at].seq
    return any(lo <= seq <= hi for lo, hi in keep.pinned)


def _names(basis: Basis, keep: Keep | None) -> dict[int, set[str]]:
    """The tools that each item calls or answers; empty if nobody asks."""
    wanted = set(keep.tools) if keep is not None else set()
    if not wanted:
        return {}
    order = sorted(basis.items)
    items = [basis.items[at] for at in order]
    entries = [Entry(item.seq, item.message, item.kind == ItemKind.EVENT) for item in items]
    found = dict(zip(order, tool_names(entries), strict=True))
    known = {name for tools in found.values() for name in tools}
    for name in sorted(wanted - known) if known else ():
        near = get_close_matches(name, known, n=1)
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
