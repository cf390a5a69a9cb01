"""Clearing old results: the model has used them, a placeholder keeps the pair whole.

The rule is that of Anthropic's ``clear_tool_uses`` and LangChain's ``ClearToolUsesEdit``: the
newest results stay, and nothing is cleared for a small gain, because each clearing invalidates the
provider's prompt cache from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from memcore.compaction.reading import Edited, Found, Reading, read
from memcore.compaction.reducer import Reduction, Visible
from memcore.compaction.settings import Settings, checked_names
from memcore.errors import InvalidOptionError
from memcore.formats.parts import arguments_of
from memcore.model import Mask
from memcore.options import checked_bool, checked_int

__all__ = ["ClearResults"]

CLEARED = "[cleared]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearResults(Settings):
    """Shows a placeholder for tool results, but for the newest.

    Offloaded results are cleared like others, with the reference to read them by: where both are
    wanted, ``keep_last`` says how long references last.

    Raises:
        InvalidOptionError: a negative number, or an option of a wrong type.
    """

    name: ClassVar[str] = "clear_results"

    keep_last: int = 3
    """So many of the newest results stay, those of ``exclude_tools`` among them."""
    min_gain_tokens: int = 0
    """Nothing is cleared unless all of it together saves this."""
    exclude_tools: tuple[str, ...] = ()
    """Names of tools whose results stay."""
    placeholder: str = CLEARED
    clear_arguments: bool = False
    """Whether the arguments of calls go too when their results do."""

    def __post_init__(self) -> None:
        checked_int("keep_last", self.keep_last)
        checked_int("min_gain_tokens", self.min_gain_tokens)
        checked_bool("clear_arguments", self.clear_arguments)
        names = checked_names("exclude_tools", self.exclude_tools)
        object.__setattr__(self, "exclude_tools", names)
        if not isinstance(self.placeholder, str) or not self.placeholder:
            msg = f"placeholder: expected a non-empty str, got {self.placeholder!r:.80}"
            raise InvalidOptionError(msg)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks of the items with old results; none if they gain too little together."""
        reading = read(items)
        results = reading.results()
        old = [
            found
            for found in results[: max(0, len(results) - self.keep_last)]
            if found.name not in self.exclude_tools
        ]
        room = by.counter.count(self.placeholder)
        edits: dict[int, Edited] = {}
        for at, result, _, _ in old:
            is_cleared = result.text == self.placeholder and not result.media
            tokens = sum(by.counter.count(leaf.text) for leaf in result.leaves)
            if result.size and not is_cleared and (result.media or tokens > room):
                edits.setdefault(at, {}).update(result.cleared(self.placeholder))
        if self.clear_arguments:
            for at, paths in self._arguments(reading, old):
                edits.setdefault(at, {}).update(paths)
        masks = reading.masks(edits, "cleared", by)
        before = {item.seq: item.tokens for item in items}
        gain = sum(before[mask.seq] - mask.tokens for mask in masks)
        return masks if gain >= self.min_gain_tokens else []

    def _arguments(self, reading: Reading, old: list[Found]) -> list[tuple[int, Edited]]:
        """Edits of the calls all of whose results are old and cleared (or were too short to be)."""
        answered = {(id(found.call), found.at) for found in old if found.call is not None}
        found = []
        for at, slots in enumerate(reading.binding.calls):
            kept = {
                slot.key
                for slot in slots
                if not slot.results or any((id(slot), r) not in answered for r in slot.results)
            }
            if len(kept) == len(slots):
                continue
            edits: Edited = {}
            for arguments in arguments_of(reading.items[at].message):
                if arguments.key is not None and arguments.key not in kept:
                    empty = {"json": "{}", "object": {}, "text": self.placeholder}
                    edits[arguments.path] = empty[arguments.form]
            found.append((at, edits))
        return found
