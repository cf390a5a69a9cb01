"""What reducers read from visible items, and how their edits become masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from memcore.compaction.reducer import Reduction, Visible
from memcore.formats import Binding, Entry, bind
from memcore.formats.binding import SECOND, CallSlot
from memcore.formats.editing import Path, edited
from memcore.formats.parts import (
    Arguments,
    Result,
    Text,
    arguments_of,
    call_names,
    results_of,
    texts_of,
)
from memcore.log import count_message
from memcore.model import ItemKind, Mask, Message

__all__ = ["Found", "Reading", "mask_of", "read", "shorten"]

Edited = dict[Path, Any]


class Found(NamedTuple):
    """A result in its place."""

    at: int
    """Index of the item."""
    result: Result
    name: str | None
    """Of the tool."""
    call: CallSlot | None


@dataclass(frozen=True, slots=True)
class Reading:
    """Items and how their calls and results bind."""

    items: Sequence[Visible]
    binding: Binding

    def results(self) -> list[Found]:
        """All results, oldest first."""
        names: dict[int, dict[Any, str]] = {}
        found = []
        for at, item in enumerate(self.items):
            if self.binding.kinds[at] != ItemKind.RESULT:
                continue
            slots = [slot for key, slot in self.binding.answers[at] if not key[0] & SECOND]
            for result in results_of(item.message):
                slot = slots.pop(0) if result.key is not None and slots else None
                if slot is not None and slot.at not in names:
                    names[slot.at] = call_names(self.items[slot.at].message)
                name = names[slot.at].get(slot.key) if slot is not None else None
                found.append(Found(at, result, name or result.name, slot))
        return found

    def arguments(self) -> Iterator[tuple[int, Arguments]]:
        """The arguments of all calls, oldest first."""
        for at in range(len(self.items)):
            if self.binding.calls[at]:
                for arguments in arguments_of(self.items[at].message):
                    yield at, arguments

    def texts(self, *kinds: ItemKind) -> Iterator[tuple[int, Text]]:
        """The texts of items of these kinds beside results, calls and thinking, oldest first.

        What stands beside the results in a message is the user's, as it is for providers.
        """
        for at, item in enumerate(self.items):
            kind = self.binding.kinds[at]
            if (ItemKind.USER if kind == ItemKind.RESULT else kind) in kinds:
                for text in texts_of(item.message):
                    yield at, text

    def masks(self, edits: dict[int, Edited], action: str, by: Reduction) -> list[Mask]:
        """Masks of the edited items, in order; protected ones and those without gain have none."""
        made = (mask_of(self.items[at], edits[at], action, by) for at in sorted(edits))
        return [mask for mask in made if mask is not None]


def read(items: Sequence[Visible]) -> Reading:
    """Bind the calls of the items."""
    return Reading(
        items,
        bind(Entry(item.seq, item.message, item.kind == ItemKind.EVENT) for item in items),
    )


def mask_of(item: Visible, edits: Edited, action: str, by: Reduction) -> Mask | None:
    """The mask that shows the edited item; None if it may not be touched or gains nothing."""
    if item.protected or not edits:
        return None
    message: Message = edited(item.message, edits)
    tokens = count_message(message, by.counter)
    return Mask(item.seq, action, tokens, message) if tokens < item.tokens else None


MARKER: Final = "[… {} tokens left out …]"


def shorten(text: str, max_tokens: int, keep: str, by: Reduction) -> str:
    """The text within ``max_tokens``, a marker in it included that tells what is missing.

    The text itself, the same object, if it fits. The marker's figure is what was left out if all
    of ``max_tokens`` is used; where the marker alone would fill a half, there is none.
    """
    total = by.counter.count(text)
    if total <= max_tokens:
        return text
    marker = MARKER.format(total - max_tokens + by.counter.count(MARKER.format(total)))
    if by.counter.count(marker) > max_tokens // 2:
        return by.counter.truncate(text, max_tokens, keep=keep).text
    return by.counter.truncate(text, max_tokens, keep=keep, marker=f"\n{marker}\n").text
