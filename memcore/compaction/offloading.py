"""Offloading large results: kept elsewhere, a preview and a reference stay.

The thresholds are those of DeepAgents, which moves results above 20,000 tokens to files and shows
their first and last five lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from memcore.compaction.reading import Edited, read, shorten
from memcore.compaction.reducer import Reduction, Visible
from memcore.compaction.settings import Settings, checked_names
from memcore.model import Mask
from memcore.options import checked_int

__all__ = ["OffloadResults"]

MIN_TOKENS_LEAST: Final = 100
"""Below this a preview with a reference saves nothing."""
PREVIEW_TOKENS_MAX: Final = 500
OFFLOADED: Final = "[offloaded: {} tokens, to be read by {}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadResults(Settings):
    """Keeps large results by ``Reduction.offload`` and shows their ends and a reference.

    Without a place to keep them it does nothing. Only text is kept elsewhere: images and other
    media stay where they are.

    Raises:
        InvalidOptionError: ``min_tokens`` below 100, or another negative number.
    """

    name: ClassVar[str] = "offload_results"

    min_tokens: int = 20_000
    """Results with less text stay."""
    preview_lines: int = 5
    """So many of the first lines and of the last are shown, of all at most 500 tokens and a quarter
    of ``min_tokens``."""
    keep_last: int = 0
    """So many of the newest results stay."""
    exclude_tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checked_int("min_tokens", self.min_tokens, least=MIN_TOKENS_LEAST)
        checked_int("preview_lines", self.preview_lines)
        checked_int("keep_last", self.keep_last)
        names = checked_names("exclude_tools", self.exclude_tools)
        object.__setattr__(self, "exclude_tools", names)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks of the items with large results, whose texts are kept before the masks are made."""
        if by.offload is None:
            return []
        reading = read(items)
        results = reading.results()
        edits: dict[int, Edited] = {}
        for at, result, name, _ in results[: max(0, len(results) - self.keep_last)]:
            item, text = items[at], result.text
            if item.protected or item.tokens < self.min_tokens or name in self.exclude_tools:
                continue
            tokens = by.counter.count(text)
            if tokens < self.min_tokens:
                continue
            call_id = None if result.key is None else result.key[1]
            reference = by.offload(item.seq, call_id, text)
            shown = OFFLOADED.format(tokens, reference) + self._preview(text, by)
            if by.counter.count(shown) < self.min_tokens:  # else it would be offloaded again
                edits.setdefault(at, {}).update(result.with_text(shown))
        return reading.masks(edits, "offloaded", by)

    def _preview(self, text: str, by: Reduction) -> str:
        if not self.preview_lines:
            return ""
        lines = text.splitlines()
        left_out = len(lines) - 2 * self.preview_lines
        if left_out > 0:
            head, tail = lines[: self.preview_lines], lines[-self.preview_lines :]
            text = "\n".join((*head, f"[… {left_out} lines left out …]", *tail))
        most = min(PREVIEW_TOKENS_MAX, self.min_tokens // 4)
        return "\n" + shorten(text, most, "middle", by)
