"""Ids that a provider gave to items, and what it refuses because of them.

A reasoning item and what follows it know each other by id: an item that comes without "its required
reasoning item" is refused, and so is an id that comes twice. Without its id an item stands for
itself. Nobody can see in a list that its reasoning was cut off before it, so what the model said at
the head of a list, where the list is a piece of a longer one, counts as cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agents.models.fake_id import FAKE_RESPONSES_ID

from memcore.model import ItemKind, Message

__all__ = ["MODEL_KINDS", "Settled", "server_id", "settle_ids"]

MODEL_KINDS: Final = (ItemKind.ASSISTANT, ItemKind.CALL, ItemKind.REASONING)
_ID_IS_OPTIONAL: Final = frozenset(
    (
        "function_call",
        "custom_tool_call",
        "shell_call",
        "apply_patch_call",
        "tool_search_call",
    )
)


@dataclass(slots=True)
class Settled:
    """What ``settle_ids`` found, by place in the list."""

    gone: set[int] = field(default_factory=set)
    """Items that cannot be shown."""
    changed: dict[int, Message] = field(default_factory=dict)
    """Items that are shown without their ids."""


def server_id(item: Message) -> str | None:
    """The id that a provider knows the item by; None if it has none, or one made up beside it."""
    found = item.get("id")
    if not isinstance(found, str) or found in ("", FAKE_RESPONSES_ID, item.get("call_id")):
        return None
    if "role" in item and not found.startswith("msg_"):
        return None
    return found


def settle_ids(items: Sequence[Message], kinds: Sequence[int], *, fixed_from: int) -> Settled:
    """What of the items before ``fixed_from`` has to go, or to lose its id; the others stay."""
    found = Settled()
    seen = {(item.get("type"), server_id(item)) for item in items[fixed_from:]}
    head = _head(items, kinds)
    alone = False  # the reasoning of this response is gone
    for at, item in enumerate(items[:fixed_from]):
        kind = kinds[at]
        if kind == ItemKind.SYSTEM:
            continue
        in_head = at in head
        alone = alone and kind in MODEL_KINDS
        if item.get("call_id") == "" and str(item.get("type")).startswith("tool_search_"):
            found.changed[at] = _without(item, "call_id")  # it has none; the SDK takes "" for one
        name = server_id(item)
        if name is None:
            continue
        key: tuple[Any, str | None] = (item.get("type"), name)
        repeated = key in seen
        seen.add(key)
        if in_head and "role" not in item:
            found.gone.add(at)
        elif in_head:
            found.changed[at] = _without(found.changed.get(at, item), "id")
        elif repeated and kind == ItemKind.REASONING:
            found.gone.add(at)
            alone = True
        elif repeated and kind == ItemKind.ASSISTANT and "role" not in item:
            found.gone.add(at)  # a hosted tool: the same thing once more
        elif (repeated or alone) and ("role" in item or item.get("type") in _ID_IS_OPTIONAL):
            found.changed[at] = _without(found.changed.get(at, item), "id")
    return found


def _head(items: Sequence[Message], kinds: Sequence[int]) -> set[int]:
    """What was said in the first response that stays, if that came before the user spoke.

    Empty if that one begins with its reasoning. Results before it answer calls that were cut off,
    and reasoning alone is not shown. A response of which nothing stays makes the next one the first
    of the list that is shown, and so of the list that is given the next time: it counts as well.
    """
    found: set[int] = set()
    at = 0
    while ItemKind.USER in kinds and kinds[at] != ItemKind.USER:
        end = at
        while kinds[end] in MODEL_KINDS:
            end += 1
        if end == at and kinds[at] not in (ItemKind.SYSTEM, ItemKind.RESULT):
            break
        said = range(at, end)
        while said and kinds[said[-1]] == ItemKind.REASONING:
            said = said[:-1]
        if said and kinds[at] == ItemKind.REASONING:
            break
        found.update(said)
        if any("role" in items[place] or server_id(items[place]) is None for place in said):
            break
        at = max(end, at + 1)
    return found


def _without(item: Message, field_name: str) -> Message:
    return {name: value for name, value in item.items() if name != field_name}
