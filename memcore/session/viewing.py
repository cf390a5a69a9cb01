"""Views at the border of the file: what a summarizer or a reducer made is redacted as items are."""

from __future__ import annotations

from dataclasses import replace

from memcore.compaction import Outcome
from memcore.errors import BlockedError
from memcore.log import count_message
from memcore.model import Mask
from memcore.privacy.border import Passage
from memcore.session.address import Address
from memcore.tokens import TokenCounter

__all__ = ["admitted_masks", "admitted_outcome", "admitted_summary"]


def admitted_summary(address: Address, summary: str) -> str | BlockedError:
    """A summary as it may be stored, or why it must not be."""
    passage = address.passage
    if passage is None:
        return summary
    try:
        return passage.text(summary, "summary", source="model")
    except BlockedError as exc:
        return exc


def admitted_outcome(address: Address, outcome: Outcome) -> Outcome:
    """An outcome as its view may be stored.

    Summaries were judged when they came; masks show parts of items, which may be older than the
    policy.
    """
    passage = address.passage
    if passage is None or not passage.redacts:
        return outcome
    counter = address.backing.counter_named(outcome.counter)
    masks = admitted_masks(passage, outcome.plan.masks, counter)
    return replace(
        outcome,
        plan=outcome.plan if masks == outcome.plan.masks else replace(outcome.plan, masks=masks),
        summary=None if outcome.summary is None else passage.again(outcome.summary),
        reason=None if outcome.reason is None else passage.again(outcome.reason),
    )


def admitted_masks(
    passage: Passage, masks: tuple[Mask, ...], counter: TokenCounter
) -> tuple[Mask, ...]:
    """Masks as they may be stored; those that change are counted again."""
    found = []
    for mask in masks:
        message = mask.message
        shown = message if message is None else passage.again(message)
        if shown is not None and shown is not message:
            mask = mask._replace(message=shown, tokens=count_message(shown, counter))  # noqa: PLW2901
        found.append(mask)
    return tuple(found)
