"""Stripping the model's thinking from turns that are over, where its provider allows it.

* Anthropic: thinking is bound to the history before it, and a compaction changes that. It may go
  from earlier turns, never from the latest assistant turn, and never while its tool loop is open.
* Gemini: thoughts may go from earlier turns. Signatures on calls stay: the first call of the turn
  that runs needs its own, and they cost nothing.
* OpenAI Responses: a model item with a stored id is refused without the reasoning item before it.
  Reasoning goes only if no item of the model behind it in its response has an id.
* OpenAI chat (DeepSeek, OpenRouter, LiteLLM): ``reasoning_content`` and its kin go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from memcore._fast import classify
from memcore.compaction.reading import Edited, Reading, mask_of, read
from memcore.compaction.reducer import Reduction, Visible
from memcore.compaction.settings import Settings
from memcore.formats.binding import FLAG_MODEL
from memcore.formats.body import body_path
from memcore.formats.editing import REMOVED, value_at
from memcore.model import ItemKind, Mask, Message
from memcore.options import checked_bool

__all__ = ["StripReasoning"]

_BLOCKS: Final = frozenset(("thinking", "redacted_thinking"))
_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")
_SAID: Final = ("refusal", "audio")


@dataclass(frozen=True, slots=True, kw_only=True)
class StripReasoning(Settings):
    """Leaves out the thinking of turns that are over; a message of nothing else is hidden.

    Raises:
        InvalidOptionError: ``keep_last_turn`` is no bool.
    """

    name: ClassVar[str] = "strip_reasoning"

    keep_last_turn: bool = True
    """Whether the latest turn of the model keeps its thinking even when the user has spoken since.
    While that turn runs it always does."""

    def __post_init__(self) -> None:
        checked_bool("keep_last_turn", self.keep_last_turn)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks of the items with thinking before the turn that keeps it."""
        reading = read(items)
        stop = self._first_kept(reading)
        free = _free_before(reading, stop)
        found = []
        for at in range(stop):
            if items[at].protected:
                continue
            kind = reading.binding.kinds[at]
            if kind == ItemKind.REASONING:
                mask = _hidden(items[at]) if free[at + 1] else None
            elif kind == ItemKind.ASSISTANT:
                mask = self._stripped(items[at], by)
            else:
                continue
            if mask is not None:
                found.append(mask)
        return found

    def _first_kept(self, reading: Reading) -> int:
        """The start of the turn that keeps its thinking; turns start where the user speaks."""
        kinds, binding = reading.binding.kinds, reading.binding
        starts = [at for at, kind in enumerate(kinds) if kind == ItemKind.USER]

        def start_of(at: int) -> int:
            return max((start for start in starts if start <= at), default=0)

        said = [at for at in range(len(kinds)) if binding.flags[at] & FLAG_MODEL]
        if not said or not starts:
            return 0
        last, latest = starts[-1], start_of(said[-1])
        # Its loop is open while a call in it waits, or was answered only after the user spoke.
        is_open = any(
            not slot.is_server and (not slot.results or slot.results[-1] >= last)
            for at in range(latest, len(kinds))
            for slot in binding.calls[at]
        )
        return latest if self.keep_last_turn or is_open else last

    def _stripped(self, item: Visible, by: Reduction) -> Mask | None:
        edits = _thinking_edits(item.message)
        if not edits:
            return None
        return (
            _hidden(item)
            if _is_emptied(item.message, edits)
            else mask_of(item, edits, "reasoning", by)
        )


def _hidden(item: Visible) -> Mask | None:
    return Mask(item.seq, "reasoning", 0, None) if item.tokens else None


def _free_before(reading: Reading, stop: int) -> list[bool]:
    """For each place: whether reasoning before it may go by what its response says from there."""
    found = [False] * (len(reading.items) + 1)
    for at in range(len(reading.items) - 1, -1, -1):
        kind = reading.binding.kinds[at]
        if kind != ItemKind.EVENT and not reading.binding.flags[at] & FLAG_MODEL:
            found[at] = True
            continue
        is_bound = kind != ItemKind.REASONING and reading.items[at].message.get("id")
        found[at] = found[at + 1] and (kind == ItemKind.EVENT or (at < stop and not is_bound))
    return found


def _thinking_edits(message: Message) -> Edited:
    """The edits that leave out the thinking of a model's message."""
    base = body_path(message)
    body: dict[str, Any] = value_at(message, base)
    edits: Edited = {(*base, name): REMOVED for name in _FIELDS if body.get(name)}
    for field in ("content", "parts"):
        blocks = body.get(field)
        for at, block in enumerate(blocks if isinstance(blocks, list) else ()):
            if isinstance(block, dict) and _is_thinking(block):
                edits[*base, field, at] = REMOVED
    return edits


def _is_thinking(block: dict[str, Any]) -> bool:
    kind = block.get("type")
    if kind in _BLOCKS:
        return True
    if kind == "reasoning":
        return not block.get("id")  # with one, other blocks may be stored under it
    calls = ("functionCall", "function_call")
    return block.get("thought") is True and not any(block.get(name) for name in calls)


def _is_emptied(message: Message, edits: Edited) -> bool:
    """Whether nothing that the model said or called is left."""
    body: dict[str, Any] = value_at(message, body_path(message))
    if any(classify(message)[1:3]) or any(body.get(name) for name in _SAID):
        return False
    field = "parts" if isinstance(body.get("parts"), list) else "content"
    left = body.get(field)
    if isinstance(left, list):
        return len(left) == sum(path[-2] == field for path in edits if len(path) > 1)
    return not left
