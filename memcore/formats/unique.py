"""Call ids that come again: some providers accept an id once in a request.

The later calls get other ids, and their results with them, in the shown copies only. The new id is
a function of the old one and of how often it came before, so equal histories give equal ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memcore.formats.binding import Entry
from memcore.formats.rendered import Rendered
from memcore.model import Message, Repair

__all__ = ["rename_repeated_ids"]


def rename_repeated_ids(out: Rendered, entries: Sequence[Entry]) -> None:
    """Give every call of a legal list of Anthropic messages an id of its own."""
    used: set[str] = set()
    renamed: dict[str, str] = {}
    for at, message in enumerate(out.messages):
        blocks = message.get("content")
        if not isinstance(blocks, list):
            continue
        if message.get("role") == "assistant":
            renamed = _new_ids(blocks, used)
            field = "id"
            kinds: tuple[str, ...] = ("tool_use",)
        else:
            field, kinds = "tool_use_id", ("tool_result",)
        if not any(_names(block, kinds, field) in renamed for block in blocks):
            continue
        source = out.sources[at]
        if field == "id":
            seq = None if source is None else entries[source].seq
            out.repairs += [Repair("renamed", seq, old) for old in renamed]
        out.messages[at] = _with_ids(message, blocks, kinds, field, renamed)
        out.sources[at] = None


def _names(block: Any, kinds: tuple[str, ...], field: str) -> str | None:
    if not isinstance(block, dict) or block.get("type") not in kinds:
        return None
    name = block.get(field)
    return name if isinstance(name, str) and name else None  # an empty id names no call


def _new_ids(blocks: list[Any], used: set[str]) -> dict[str, str]:
    """New ids for those of the calls that were used before."""
    renamed: dict[str, str] = {}
    here: set[str] = set()  # an id that one message names twice is one call
    for block in blocks:
        name = _names(block, ("tool_use",), "id")
        if name is None or name in here:
            continue
        here.add(name)
        found, times = name, 1
        while found in used:
            times += 1
            found = f"{name}_{times}"
        used.add(found)
        if found != name:
            renamed[name] = found
    return renamed


def _with_ids(
    message: Message, blocks: list[Any], kinds: tuple[str, ...], field: str, ids: dict[str, str]
) -> Message:
    found = []
    for block in blocks:
        name = _names(block, kinds, field)
        found.append({**block, field: ids[name]} if name in ids else block)
    return {**message, "content": found}
