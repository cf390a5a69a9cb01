"""Call ids that a provider refuses: those that come again, and those that are too long.

The calls get other ids, and their results with them, in the shown copies only. The new id is a
function of the old one and of how often it came before, so equal histories give equal ids. What is
too long ends in its digest, so that it is the same wherever a context starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from memcore._fast import classify
from memcore.formats.binding import BY_NAME, SECOND, Binding, CallSlot, Entry, Key, bind
from memcore.formats.rendered import Rendered
from memcore.model import Message, Repair

__all__ = ["rename_repeated_calls", "rename_repeated_ids", "shorten_ids"]

_DIGEST_BYTES: Final = 16
_ID_FIELDS: Final = frozenset(
    ("id", "call_id", "tool_call_id", "tool_use_id", "approval_request_id", "caller_id")
)
_BODIES: Final = ("data", "kwargs", "additional_kwargs", "caller")
"""Fields of a message that hold what names calls."""
_PARTS: Final = ("tool_calls", "invalid_tool_calls", "content", "parts")
"""Lists of what makes or answers calls."""
_CALLS_OF_PARTS: Final = (
    "functionCall", "function_call", "functionResponse", "function_response",
)  # fmt: skip


def rename_repeated_calls(
    entries: Sequence[Entry],
    *,
    chars_max: int | None = None,
    is_fixed: Callable[[Entry], bool] = lambda _: False,
) -> tuple[list[Entry], list[Repair]]:
    """Items of OpenAI Responses with an id of its own for every call, and what was renamed.

    It comes before rendering, so that every call gets its own synthetic result.

    Args:
        entries: the items.
        chars_max: the most characters that an id may have; longer ones are shortened.
        is_fixed: tells which items must stay as they are; the ids of their calls are then changed
            where they come elsewhere.
    """
    found, repairs = list(entries), []
    binding = bind(entries)
    slots = [slot for made in binding.calls for slot in made if not slot.key[0] & BY_NAME]
    children = _children(binding)
    still = {at for at, entry in enumerate(entries) if is_fixed(entry)}
    fixed = {slot.at for slot in slots if still.intersection((slot.at, *slot.results))}
    fixed |= {at for at, referring in children.items() if still.intersection(referring)}
    used = {key for slot in slots if slot.at in fixed for key in _keys(slot, entries)}
    for slot in slots:
        if slot.at in fixed:
            continue
        keys, old = _keys(slot, entries), slot.key[1]
        new = _free(slot.key, used, chars_max, again=bool(used.intersection(keys)))
        if new == old:
            used.update(keys)
            continue
        used.add((slot.key[0], new))
        repairs.append(Repair("renamed", entries[slot.at].seq, old))
        for at in (slot.at, *slot.results):
            found[at] = found[at]._replace(message=_renamed(found[at].message, old, new))
        for at in children.get(slot.at, ()):
            found[at] = found[at]._replace(message=_referring(found[at].message, new))
    return found, repairs


def _children(binding: Binding) -> dict[int, list[int]]:
    """What refers to the call of an item: other calls and their results."""
    found: dict[int, list[int]] = {}
    for at, slot in binding.references:
        if slot is not None:
            results = [result for call in binding.calls[at] for result in call.results]
            found.setdefault(slot.at, []).extend((at, *results))
    return found


def _keys(slot: CallSlot, entries: Sequence[Entry]) -> set[Key]:
    """All keys under which a result may answer a call of its own item."""
    opens = classify(entries[slot.at].message)[1]
    also = {(cls & ~SECOND, name) for cls, name in opens if cls & SECOND}
    return {slot.key, *also}


def _free(key: Key, used: set[Key], chars_max: int | None, *, again: bool) -> str:
    """The first name for a call that no other has; its own unless it comes ``again``."""
    cls, name = key
    found, times = _fitting(name, chars_max), 1
    while (cls, found) in used or (again and times == 1):
        times += 1
        found = _fitting(f"{name}_{times}", chars_max)
    return found


def _fitting(name: str, chars_max: int | None) -> str:
    """An id; one of more than so many characters ends in its digest instead."""
    if chars_max is None or len(name) <= chars_max:
        return name
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{name[: chars_max - len(digest) - 1]}_{digest}"


def _renamed(message: Message, old: str, new: str) -> Message:
    """A call, or a result of it, under another id."""
    found = dict(message)
    kind = message.get("type")
    if kind in ("local_shell_call", "local_shell_call_output"):
        found["call_id"] = new  # an output may name either id of its call: both become this one
        if "id" in found:
            found["id"] = new
    elif kind == "mcp_approval_request":
        found["id"] = new
    elif kind == "mcp_approval_response":
        found["approval_request_id"] = new
    else:
        found["call_id"] = new
        if found.get("id") == old:
            found["id"] = new
    return found


def _referring(message: Message, new: str) -> Message:
    """An item that refers to a call under another id."""
    if message.get("type") == "mcp_call":
        return {**message, "approval_request_id": new}
    caller = message.get("caller")
    if not isinstance(caller, dict):
        return message
    return {**message, "caller": {**caller, "caller_id": new}}


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


def shorten_ids(out: Rendered, entries: Sequence[Entry], chars_max: int) -> None:
    """Give every call of a legal list an id of at most so many characters."""
    ids = [
        {name for cls, name in (*opens, *closes) if not cls & BY_NAME}
        for _, opens, closes, _ in map(classify, out.messages)
    ]
    used: set[Key] = {(0, name) for names in ids for name in names if len(name) <= chars_max}
    shorter: dict[str, str] = {}
    for at, names in enumerate(ids):
        long = sorted(name for name in names if len(name) > chars_max)
        if not long:
            continue
        for name in long:
            if name not in shorter:
                shorter[name] = _free((0, name), used, chars_max, again=False)
                used.add((0, shorter[name]))
        source = out.sources[at]
        made = {name for _, name in classify(out.messages[at])[1]}
        seq = None if source is None else entries[source].seq
        out.repairs += [Repair("renamed", seq, name) for name in long if name in made]
        out.messages[at] = _with_shorter(out.messages[at], shorter)
        out.sources[at] = None


def _with_shorter(message: Message, ids: Mapping[str, str]) -> Message:
    """A message in which all that names a call does so by its shorter id."""
    found = _named(message, ids)
    for name in _BODIES:
        if isinstance(body := message.get(name), dict):
            found[name] = _with_shorter(body, ids)
    for name in _PARTS:
        if isinstance(parts := message.get(name), list):
            found[name] = [_part(part, ids) if isinstance(part, dict) else part for part in parts]
    return found


def _part(part: dict[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
    found = _named(part, ids)
    for name in _CALLS_OF_PARTS:
        if isinstance(call := part.get(name), dict):
            found[name] = _named(call, ids)
    return found


def _named(value: dict[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
    return {
        key: ids.get(each, each) if key in _ID_FIELDS and isinstance(each, str) else each
        for key, each in value.items()
    }
