"""A summary without a model: what the user asked, which tools ran, how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from memcore.compaction.parts import Part, parts_of
from memcore.formats import Entry, bind
from memcore.model import ItemKind, Message, SummaryRequest
from memcore.options import checked_int
from memcore.tokens import get_counter

__all__ = ["Extractive", "extractive"]

LINE_CHARS_MAX: Final = 160
LINES_MAX: Final = 40
COUNTER: Final = "o200k_base"
NOTHING: Final = "(nothing of note)"
_LABELS: Final = {
    ItemKind.SYSTEM: "instruction",
    ItemKind.USER: "user",
    ItemKind.ASSISTANT: "assistant",
    ItemKind.RESULT: "result",
}


@dataclass(frozen=True, slots=True)
class Extractive:
    """One line for each message and its tool calls, behind those of the previous summary.

    Serves where there is no model to ask: deterministic, incremental (what is folded in two steps
    gives what is folded in one), and it never fails on JSON items. Of equal lines the newest is
    kept, and of all lines the newest.
    """

    lines_max: int = LINES_MAX
    line_chars_max: int = LINE_CHARS_MAX
    """Characters of a line of text; what is longer loses its end."""

    def __post_init__(self) -> None:
        checked_int("lines_max", self.lines_max, least=1)
        checked_int("line_chars_max", self.line_chars_max, least=1)

    def __call__(self, request: SummaryRequest, /) -> str:
        """The lines, oldest first; within ``request.max_tokens`` by o200k_base, if given."""
        lines = (request.previous_summary or "").splitlines()
        binding = bind(Entry(at, message) for at, message in enumerate(request.messages))
        for at, message in enumerate(request.messages):
            if request.level:
                lines += "\n".join(part.text for part in parts_of(message)).splitlines()
            else:
                lines += self._lines(message, binding.kinds[at])
        newest = dict.fromkeys(line for line in reversed(lines) if line and line != NOTHING)
        kept = list(newest)[: self.lines_max][::-1]
        if request.max_tokens is not None and kept:
            kept = _within(kept, request.max_tokens)
        return "\n".join(kept) or NOTHING

    def _lines(self, message: Message, kind: int) -> list[str]:
        parts = parts_of(message)
        said = self._line(parts, "result" if kind == ItemKind.RESULT else "text")
        label = _LABELS.get(ItemKind(kind))
        lines = [f"{label}: {said}"] if said and label is not None else []
        names = [part.name for part in parts if part.kind == "call" and part.name]
        if names:
            lines.append(f"tools called: {', '.join(names)}")
        return lines

    def _line(self, parts: list[Part], kind: str) -> str:
        chosen = [part for part in parts if part.kind in ("text", kind)]
        text = " ".join(" ".join(part.text for part in chosen).split())
        if len(text) > self.line_chars_max:
            text = text[: self.line_chars_max - 1] + "…"
        return text


extractive: Final = Extractive()
"""With its defaults: the newest 40 lines of up to 160 characters."""


def _within(lines: list[str], max_tokens: int) -> list[str]:
    """The newest lines that fit together; of a last line that does not fit alone, its start."""
    counter = get_counter(COUNTER)
    while len(lines) > 1 and counter.count("\n".join(lines)) > max_tokens:
        lines = lines[1:]
    return [counter.truncate(lines[0], max_tokens).text] if len(lines) == 1 else lines
