"""Rendering of log entries into a message list that the provider accepts. Pure and deterministic.

The log may hold late results, unanswered calls and orphaned results. Rendering hoists late results
to their call, answers open calls synthetically and omits orphans; each such change is recorded as a
Repair. Nothing is synthesized while a call may still be answered: calls of the last turn that only
results follow stay open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from memcore._fast import classify
from memcore.codec.keys import blake2b
from memcore.model import ItemKind, Message, Repair
from memcore.records import record
from memcore.wire.message import (
    BY_NAME,
    CLASS_MASK,
    CLASS_PROGRAM,
    CLASS_SHELL,
    FLAG_MIXED,
    FLAG_MODEL,
    SECOND,
    Binding,
    CallSlot,
    Key,
    WireItem,
    bind,
    results_of,
)
from memcore.wire.policy import PairPolicy

__all__ = [
    "Rendered",
    "is_responses_item",
    "lead_in_message",
    "rename_repeated_calls",
    "rename_repeated_ids",
    "render",
    "result_message",
    "shape_of",
    "shorten_ids",
    "summary_message",
    "synthetic_results",
    "synthetic_samples",
    "user_message",
]


# --- Results of rendering: messages, their sources, and repairs -----------------------------------


@record(slots=True)
class Rendered:
    """Messages in order; ``sources[i]`` is the index of message i's entry, None if synthesized."""

    messages: list[Message] = field(default_factory=list)
    sources: list[int | None] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)

    def keep(self, entries: Sequence[WireItem], at: int) -> None:
        """Append an entry unchanged."""
        self.messages.append(entries[at].message)
        self.sources.append(at)

    def write(self, message: Message) -> None:
        """Append a message that is not an entry's, or not in this form."""
        self.messages.append(message)
        self.sources.append(None)


# --- Call ids that a provider rejects: repeated ones, and those that are too long -----------------
# Calls and their results are renamed in the rendered copies only. A new id is a function of the old
# one and of its number of earlier occurrences, so equal histories yield equal ids. An id that is
# too long ends in its digest instead, so that it does not depend on where a context starts.

_DIGEST_BYTES: Final = 16
_ID_FIELDS: Final = frozenset(
    ("id", "call_id", "tool_call_id", "tool_use_id", "approval_request_id", "caller_id")
)
_BODIES: Final = ("data", "kwargs", "additional_kwargs", "caller")
"""Fields of a message that hold objects with call ids."""
_PARTS: Final = ("tool_calls", "invalid_tool_calls", "content", "parts")
"""Lists of objects that make or answer calls."""
_CALLS_OF_PARTS: Final = (
    "functionCall", "function_call", "functionResponse", "function_response",
)  # fmt: skip


def rename_repeated_calls(
    entries: Sequence[WireItem],
    *,
    chars_max: int | None = None,
    is_fixed: Callable[[WireItem], bool] = lambda _: False,
    any_kind: bool = False,
) -> tuple[list[WireItem], list[Repair]]:
    """Give every call of OpenAI Responses items a unique id; returns the items and the repairs.

    Must run before rendering, so that every call gets its own synthetic result.

    Args:
        entries: the items.
        chars_max: the maximum length of an id, in characters; longer ones are shortened.
        is_fixed: returns true for an item that may not change; if the id of its call occurs
            elsewhere, it is changed there.
        any_kind: tell calls of different kinds apart by their ids, too.
    """
    found, repairs = list(entries), []
    binding = bind(entries)
    slots = [slot for made in binding.calls for slot in made if not slot.key[0] & BY_NAME]
    children = _children(binding)
    still = {at for at, entry in enumerate(entries) if is_fixed(entry)}
    fixed = {slot.at for slot in slots if still.intersection((slot.at, *slot.results))}
    fixed |= {at for at, referring in children.items() if still.intersection(referring)}
    used: set[Key] = set()
    for slot in slots:
        if slot.at in fixed:
            used |= _keys(slot, entries, any_kind=any_kind)
    for slot in slots:
        if slot.at in fixed:
            continue
        keys, old = _keys(slot, entries, any_kind=any_kind), slot.key[1]
        kind = 0 if any_kind else slot.key[0]
        new = _free((kind, old), used, chars_max, again=bool(used.intersection(keys)))
        if new == old:
            used.update(keys)
            continue
        used.add((kind, new))
        repairs.append(Repair("renamed", entries[slot.at].seq, old))
        for at in (slot.at, *slot.results):
            found[at] = found[at]._replace(message=_renamed(found[at].message, old, new))
        for at in children.get(slot.at, ()):
            found[at] = found[at]._replace(message=_referring(found[at].message, new))
    return found, repairs


def _children(binding: Binding) -> dict[int, list[int]]:
    """Entries that refer to an item's call, by its position: nested calls and their results."""
    found: dict[int, list[int]] = {}
    for at, slot in binding.references:
        if slot is not None:
            results = [result for call in binding.calls[at] for result in call.results]
            found.setdefault(slot.at, []).extend((at, *results))
    return found


def _keys(slot: CallSlot, entries: Sequence[WireItem], *, any_kind: bool = False) -> set[Key]:
    """All keys by which a result may answer the call, including aliases in its item.

    ``any_kind``: as if all calls were functions.
    """
    opens = classify(entries[slot.at].message)[1]
    also = {(cls & ~SECOND, name) for cls, name in opens if cls & SECOND}
    keys = {slot.key, *also}
    return {(0, name) for _, name in keys} if any_kind else keys


def _free(key: Key, used: set[Key], chars_max: int | None, *, again: bool) -> str:
    """The first unused name derived from a call's name; the name itself unless ``again``."""
    cls, name = key
    found, times = _fitting(name, chars_max), 1
    while (cls, found) in used or (again and times == 1):
        times += 1
        found = _fitting(f"{name}_{times}", chars_max)
    return found


def _fitting(name: str, chars_max: int | None) -> str:
    """Shorten an id that exceeds the limit, replacing its end by its digest."""
    if chars_max is None or len(name) <= chars_max:
        return name
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{name[: chars_max - len(digest) - 1]}_{digest}"


def _renamed(message: Message, old: str, new: str) -> Message:
    """Copy a call, or one of its results, with another id."""
    found = dict(message)
    kind = message.get("type")
    if kind in ("local_shell_call", "local_shell_call_output"):
        found["call_id"] = new  # an output may use either id of its call: set both
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
    """Copy an item that refers to a call, with that call's new id."""
    if message.get("type") == "mcp_call":
        return {**message, "approval_request_id": new}
    caller = message.get("caller")
    if not isinstance(caller, dict):
        return message
    return {**message, "caller": {**caller, "caller_id": new}}


def rename_repeated_ids(out: Rendered, entries: Sequence[WireItem]) -> None:
    """Make the call ids of a legal list of Anthropic messages unique."""
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
    """Map the call ids that were used before to new ones."""
    renamed: dict[str, str] = {}
    here: set[str] = set()  # an id that occurs twice in one message is one call
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


def shorten_ids(out: Rendered, entries: Sequence[WireItem], chars_max: int) -> None:
    """Shorten the call ids of a legal list to at most ``chars_max`` characters."""
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
    """Copy a message with every occurrence of these call ids replaced."""
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


# --- Messages that memcore writes: synthetic results, summaries, the lead-in line -----------------
# All are pure functions of their arguments, so equal histories render to equal bytes.

BLOCK_SHAPES: Final = ("anthropic", "gemini")
"""Wire formats in which one message answers all calls of the preceding message."""
NO_RESULT: Final = "[no result: this tool call was not answered]"
LEAD_IN: Final = "[The earlier part of this conversation is not shown.]"
SUMMARY_PREFIX: Final = "[Summary of the earlier conversation]\n"
SEED_SUMMARY_PREFIX: Final = "[历史对话总结] "
_PIXEL: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB"
    "0C8AAAAASUVORK5CYII="
)
_RESPONSES_CLASSES: Final = {
    0: "function_call",
    1: "custom_tool_call",
    2: "local_shell_call",
    3: "shell_call",
    4: "apply_patch_call",
    5: "computer_call",
}
_TEXT_CLASSES: Final = (0, 1)
"""Classes whose outputs are texts: functions and custom tools."""
_LANGCHAIN_RESULTS: Final = ("tool", "function", "ToolMessageChunk", "FunctionMessageChunk")
"""Types of LangChain's results, which have no role either."""
_WITH_CALLER: Final = (0, 3, 4)
"""Classes whose outputs, like their calls, name the calling program."""


def shape_of(message: Message) -> str:
    """The wire format of a message that makes or answers calls."""
    if "role" not in message:
        if "lc" in message:
            return "constructor"
        if "data" in message:
            return "langchain_nested"
        return "langchain" if message.get("type") in ("ai", "AIMessageChunk") else "responses"
    if isinstance(message.get("parts"), list):
        return "gemini"
    return "anthropic" if _has_block(message, "tool_use") else "chat"


def is_responses_item(message: Message) -> bool:
    """Return whether a call or a result is an item of OpenAI Responses."""
    return shape_of(message) == "responses" and message.get("type") not in _LANGCHAIN_RESULTS


def _has_block(message: Message, kind: str) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") == kind for block in content
    )


def synthetic_samples() -> list[Message]:
    """Return synthetic results that include the costliest; ids have 64 characters, names 40.

    A longer function name may cost more, and so may the screenshot that answers a computer call.
    """
    text = "x" * 64
    answer = {"type": "tool_result", "tool_use_id": text, "content": NO_RESULT, "is_error": True}
    response = {"id": text, "name": "x" * 40, "response": {"error": NO_RESULT}}
    path = ["langchain", "schema", "messages", "ToolMessage"]
    body = {"type": "tool", "tool_call_id": text, "content": NO_RESULT}
    return [
        {"role": "user", "content": [answer]},
        {"role": "user", "parts": [{"functionResponse": response}]},
        {"role": "function", "name": text, "content": NO_RESULT},
        {"lc": 1, "type": "constructor", "id": path, "kwargs": body},
    ]


def user_message(policy: PairPolicy, text: str) -> Message:
    """Build a user message in the policy's format."""
    if policy.wire == "gemini":
        return {"role": "user", "parts": [{"text": text}]}
    if policy.wire == "langchain":
        return {"type": "human", "content": text}
    return {"role": "user", "content": text}


def lead_in_message(policy: PairPolicy) -> Message:
    """Build the fixed line that opens a context which does not start with a user item."""
    return user_message(policy, LEAD_IN)


def summary_message(policy: PairPolicy, summary: str) -> Message:
    """Build the summary's message.

    Its role is user, which every provider accepts first; for ``seed`` it is assistant, as in
    MathModelAgent.
    """
    if policy.name == "seed":
        return {"role": "assistant", "content": SEED_SUMMARY_PREFIX + summary}
    return user_message(policy, SUMMARY_PREFIX + summary)


def synthetic_results(message: Message, slots: list[CallSlot]) -> list[Message]:
    """Build messages that answer ``slots``, unanswered calls of ``message``, in its format."""
    shape = shape_of(message)
    if shape in BLOCK_SHAPES:
        field = "content" if shape == "anthropic" else "parts"
        return [{"role": "user", field: [_block(shape, slot.key, message) for slot in slots]}]
    return [_synthetic(shape, slot.key, message) for slot in slots]


def result_message(call: Message, call_id: str, said: str, *, failed: bool) -> Message | None:
    """Build the result of one call of a message, in its format; None: a text cannot answer it.

    Args:
        call: the message with the call.
        call_id: the call, of a function or a custom tool.
        said: the result.
        failed: True if it is an error.
    """
    key = next((key for key in classify(call)[1] if key[1] == call_id), None)
    shape = shape_of(call)
    if key is None or key[0] & CLASS_MASK not in _TEXT_CLASSES:
        return None
    if shape in BLOCK_SHAPES:
        field = "content" if shape == "anthropic" else "parts"
        return {"role": "user", field: [_block(shape, key, call, said, failed=failed)]}
    return _synthetic(shape, key, call, said, failed=failed)


def _block(
    shape: str, key: Key, message: Message, said: str = NO_RESULT, *, failed: bool = True
) -> dict[str, Any]:
    """Build a result as a block (Anthropic) or part (Gemini)."""
    cls, text = key
    if shape == "anthropic":
        block = {"type": "tool_result", "tool_use_id": text, "content": said}
        return {**block, "is_error": True} if failed else block
    response = {"error" if failed else "output": said}
    if cls & BY_NAME:
        return {"functionResponse": {"name": text, "response": response}}
    name = _gemini_name(message, text)
    return {"functionResponse": {"id": text, "name": name, "response": response}}


def _gemini_name(message: Message, call_id: str) -> str:
    for part in message.get("parts", ()):
        call = part.get("functionCall", part.get("function_call")) if isinstance(part, dict) else 0
        if isinstance(call, dict) and call.get("id") == call_id:
            return str(call.get("name", ""))
    return ""


def _synthetic(
    shape: str, key: Key, message: Message, said: str = NO_RESULT, *, failed: bool = True
) -> Message:
    cls, text = key
    if shape == "responses":
        made = _synthetic_output(cls & CLASS_MASK, text, message, named=bool(cls & BY_NAME))
        return {**made, "output": said} if cls & CLASS_MASK in _TEXT_CLASSES else made
    if cls & BY_NAME:
        if shape == "chat":
            return {"role": "function", "name": text, "content": said}
        body: Message = {"name": text, "content": said}
        kind, constructor = "function", "FunctionMessage"
    else:
        if shape == "chat":
            return {"role": "tool", "tool_call_id": text, "content": said}
        body = {"tool_call_id": text, "content": said} | ({"status": "error"} if failed else {})
        kind, constructor = "tool", "ToolMessage"
    if shape == "langchain_nested":
        return {"type": kind, "data": {"type": kind, **body}}
    if shape == "constructor":
        path = ["langchain", "schema", "messages", constructor]
        return {"lc": 1, "type": "constructor", "id": path, "kwargs": {"type": kind, **body}}
    return {"type": kind, **body}


def _synthetic_output(cls: int, text: str, call: Message, *, named: bool) -> Message:
    """Build the OpenAI Responses output item for a class of call."""
    if cls == CLASS_PROGRAM:
        ended = {"result": NO_RESULT, "status": "incomplete"}
        return {"type": "program_output", "id": text, "call_id": text, **ended}
    if cls == 8:  # noqa: PLR2004 - class numbers of _fast.classify
        return {"type": "mcp_approval_response", "approval_request_id": text, "approve": False}
    if cls == 6:  # noqa: PLR2004
        answer: Message = {"type": "tool_search_output", "status": "completed", "tools": []}
        return answer if named else {**answer, "call_id": text}
    kind = _RESPONSES_CLASSES.get(cls, "function_call") + "_output"
    output: Any = NO_RESULT
    if cls == 3:  # noqa: PLR2004
        outcome = {"type": "exit", "exit_code": 1}
        output = [{"stdout": "", "stderr": NO_RESULT, "outcome": outcome}]
    elif cls == 5:  # noqa: PLR2004
        output = {"type": "computer_screenshot", "image_url": _PIXEL}
    message: Message = {"type": kind, "call_id": text, "output": output}
    if cls == 2:  # noqa: PLR2004
        message["id"] = call.get("id") or text
    elif cls == 4:  # noqa: PLR2004
        message["status"] = "failed"
    if cls in _WITH_CALLER and isinstance(call.get("caller"), dict):
        message["caller"] = call["caller"]
    return message


# --- From log entries to a message list that the provider accepts ---------------------------------


def render(entries: Sequence[WireItem], policy: PairPolicy, *, may_rename: bool = True) -> Rendered:
    """Render the entries as a legal message list of the policy.

    ``may_rename``: False if no call of OpenAI Responses may get another id.
    """
    binding = bind(entries)
    if not policy.repairs:
        return _render_plain(entries, binding)
    binding.leave_out_strays()
    _supersede(binding)
    renderer = _Renderer(entries, binding, policy)
    if policy.adjacency == "any_later":
        renderer.render_anywhere(may_rename=may_rename)
    elif policy.adjacency == "behind":
        renderer.render_behind()
    else:
        renderer.render_next_message()
    if policy.unique_ids:
        rename_repeated_ids(renderer.out, entries)
    if policy.id_chars_max is not None and not policy.takes_ids(renderer.out.messages):
        shorten_ids(renderer.out, entries, policy.id_chars_max)
    return renderer.out


def _render_plain(entries: Sequence[WireItem], binding: Binding) -> Rendered:
    """Keep everything except events and results without their call."""
    out = Rendered()
    for at, entry in enumerate(entries):
        answers = binding.answers[at]
        if answers and not any(slot for _, slot in answers) and binding.is_result(at):
            out.repairs.append(Repair("orphan", entry.seq, answers[0][0][1]))
        elif binding.is_shown(at):
            out.keep(entries, at)
    return out


def _supersede(binding: Binding) -> None:
    """Keep only the newest result of each call."""
    for slots in binding.calls:
        for slot in slots:
            del slot.results[:-1]


class _Names:
    """Ids for calls that give up theirs, not used by a call that is open where they are."""

    def __init__(
        self, binding: Binding, entries: Sequence[WireItem], chars_max: int | None
    ) -> None:
        self._chars_max = chars_max
        self._calls: dict[Key, list[CallSlot]] = {}
        self._times: dict[tuple[Key, int], int] = {}
        """By key and response, the number of the last name given."""
        for made in binding.calls:
            for slot in made:
                for key in _keys(slot, entries) if slot.key[0] == CLASS_SHELL else (slot.key,):
                    self._calls.setdefault(key, []).append(slot)

    def free(self, key: Key, start: int, end: int) -> str:
        """Return the next free id for a call of the response from ``start`` to ``end``."""
        while True:
            times = self._times[key, start] = self._times.get((key, start), 1) + 1
            found = _fitting(f"{key[1]}_{times}", self._chars_max)
            if not any(_is_open(slot, start, end) for slot in self._calls.get((key[0], found), ())):
                return found


def _is_open(slot: CallSlot, start: int, end: int) -> bool:
    """Return whether a call is one of a response, or an earlier one not answered before it."""
    if slot.at >= start:
        return slot.at < end
    return not slot.results or slot.results[-1] >= start


class _Renderer:
    """One rendering pass."""

    def __init__(self, entries: Sequence[WireItem], binding: Binding, policy: PairPolicy) -> None:
        self.entries: Sequence[WireItem] = entries
        self.binding = binding
        self.policy = policy
        self.out = Rendered()
        self.old_ids: dict[int, str] = {}
        """In the log, of the call that an entry makes, if it is shown under another id."""
        self.ends = binding.ends()
        self._note_left_out()

    def _is_content(self, at: int) -> bool:
        """Return whether the entry has to follow the answers to open calls."""
        return self.binding.is_shown(at) and not self.binding.is_result(at)

    def _note(self, action: str, at: int, call_id: str | None = None) -> None:
        self.out.repairs.append(Repair(action, self.entries[at].seq, call_id))

    def _note_left_out(self) -> None:
        """Record orphans, strays and results superseded by a newer result of the same call."""
        for at in sorted(self.binding.strays):
            self._note("orphan", at)
        for at, answers in enumerate(self.binding.answers):
            for key, slot in answers:
                if slot is None:
                    self._note("orphan", at, key[1])
                elif slot.results != [at]:
                    self._note("superseded", at, key[1])
            distinct = {key if slot is None else id(slot) for key, slot in answers}
            if answers and len(self._split(at)[0]) > len(distinct):
                self._note("superseded", at)  # of several blocks for one call the last one counts
            unbound = self.binding.is_result(at) and not answers
            if unbound and not self.policy.standalone_results:
                self._note("orphan", at)

    def _missing(self, at: int) -> list[CallSlot]:
        """List the entry's calls that need a synthetic answer."""
        return [slot for slot in self.binding.calls[at] if self._is_missing(slot)]

    def _is_missing(self, slot: CallSlot) -> bool:
        if slot.results or slot.is_server:
            return False
        return slot.abandoned or self.ends.passed(slot)

    def _synthesize(self, at: int, missing: list[CallSlot]) -> None:
        for slot in missing:
            self._note("synthesized", at, self.old_ids.get(at, slot.key[1]))
        for message in synthetic_results(self.entries[at].message, missing):
            self.out.write(message)

    def _results_of(self, at: int) -> list[int]:
        """List the entries that answer calls of ``at``, in order, without duplicates."""
        found = {result for slot in self.binding.calls[at] for result in slot.results}
        return sorted(found)

    def _in_place(self, at: int, result: int, results: list[int]) -> bool:
        """Return whether only events and other results of ``at`` are between the two."""
        return all(
            between in results or not self.binding.is_shown(between)
            for between in range(at + 1, result)
        )

    # --- results directly after their call --------------------------------------------------------

    def render_behind(self) -> None:
        """Render for OpenAI chat and LangChain."""
        for at in range(len(self.entries)):
            if self._is_content(at):
                self.out.keep(self.entries, at)
                if self.binding.calls[at]:
                    self._answer_behind(at)

    def _answer_behind(self, at: int) -> None:
        results = self._results_of(at)
        for result in results:
            if self._owner(result) != at:
                continue
            if not self._in_place(at, result, results):
                self._note("hoisted", result, self.binding.answers[result][0][0][1])
            self.out.keep(self.entries, result)
        missing = self._missing(at)
        if missing:
            self._synthesize(at, missing)

    def _owner(self, result: int) -> int:
        """The entry after which a result is shown: the first whose call it still answers."""
        return min(
            slot.at
            for _, slot in self.binding.answers[result]
            if slot is not None and result in slot.results
        )

    # --- results anywhere after their call --------------------------------------------------------

    def render_anywhere(self, *, may_rename: bool) -> None:
        """Render for OpenAI Responses: outputs may come later, reasoning keeps its successor.

        A synthetic output follows the whole response; one without an id follows its run of calls,
        since it answers the calls of that name of the latest run in their order.
        """
        dangling = self._dangling_reasoning()
        renamed = self._rename_overtaken() if may_rename else set()
        waiting: list[int] = []
        nameless: list[int] = []
        run_ended = False
        for at in range(len(self.entries)):
            if not self._is_kept(at):
                continue
            if at in dangling:
                self._note("reasoning", at)
                continue
            calls, is_result = self.binding.calls[at], self.binding.is_result(at)
            if not is_result and (run_ended or not calls):
                self._answer(nameless)
            if self._ends_response(at):
                self._answer(waiting)
            run_ended = is_result and (run_ended or self._ends_response(at))
            self.out.keep(self.entries, at)
            if at in renamed:
                self.out.sources[-1] = None
            without_id = any(slot.key[0] & BY_NAME for slot in calls)
            (nameless if without_id else waiting).append(at)
        self._answer(nameless)
        self._answer(waiting)

    def _rename_overtaken(self) -> set[int]:
        """Rename unanswered calls whose id comes again in the same response; returns the entries.

        Under the old id, the synthetic output behind the response would answer the later call. The
        new id depends on nothing that follows the response.
        """
        overtaken = self._overtaken()
        if not overtaken:
            return set()
        entries, renamed = list(self.entries), set[int]()
        children = _children(self.binding)
        names = _Names(self.binding, self.entries, self.policy.id_chars_max)
        for slot, start, end in overtaken:
            old = slot.key[1]
            new = names.free(slot.key, start, end)
            self._note("renamed", slot.at, old)
            self.old_ids[slot.at] = old
            slot.key = (slot.key[0], new)
            message = _renamed(entries[slot.at].message, old, new)
            entries[slot.at] = entries[slot.at]._replace(message=message)
            for at in children.get(slot.at, ()):
                message = _referring(entries[at].message, new)
                entries[at] = entries[at]._replace(message=message)
            renamed.update((slot.at, *children.get(slot.at, ())))
        self.entries = entries
        return renamed

    def _overtaken(self) -> list[tuple[CallSlot, int, int]]:
        """List the calls to rename, each with the indices of its response: start and end."""
        calls = self.binding.calls
        if not any(slot.before or slot.key[0] == CLASS_SHELL for made in calls for slot in made):
            return []
        found: dict[int, tuple[CallSlot, int, int]] = {}
        latest: dict[Key, CallSlot] = {}  # of the response
        here: list[CallSlot] = []  # overtaken in it
        start = 0
        for at in filter(self._is_kept, range(len(self.entries))):
            if self._ends_response(at):
                found.update((slot.at, (slot, start, at)) for slot in here)
                latest.clear()
                here.clear()
                start = at + 1
            for slot in calls[at]:
                # Only calls of local shells have two ids.
                is_shell = slot.key[0] == CLASS_SHELL
                for key in _keys(slot, self.entries) if is_shell else (slot.key,):
                    before = latest.get(key, slot)
                    latest[key] = slot
                    if before is not slot and self._is_missing(before) and not key[0] & BY_NAME:
                        here.append(before)
        found.update((slot.at, (slot, start, len(self.entries))) for slot in here)
        return [
            each for each in found.values() if is_responses_item(self.entries[each[0].at].message)
        ]

    def _ends_response(self, at: int) -> bool:
        """Return whether no later item belongs to the response before the entry.

        A result that answers no call ends none: in ``bind`` it interrupts no run of calls either.
        """
        if self.binding.is_result(at):
            return bool(self.binding.answers[at])
        return not self.binding.flags[at] & FLAG_MODEL

    def _is_kept(self, at: int) -> bool:
        """Return whether the entry is shown, and not a result without its call."""
        return self.binding.is_shown(at) and (not self.binding.is_result(at) or self._stands(at))

    def _stands(self, result: int) -> bool:
        answers = self.binding.answers[result]
        if not answers:
            return self.policy.standalone_results
        return any(slot is not None and result in slot.results for _, slot in answers)

    def _answer(self, waiting: list[int]) -> None:
        """Append synthetic outputs after the whole response, so that its items stay together."""
        missing = [(at, self._missing(at)) for at in waiting]
        for programs in (False, True):  # nested calls are answered before their program ends
            for at, slots in missing:
                chosen = [slot for slot in slots if (slot.key[0] == CLASS_PROGRAM) is programs]
                if chosen:
                    self._synthesize(at, chosen)
        waiting.clear()

    def _dangling_reasoning(self) -> set[int]:
        """Find reasoning items that no model item follows."""
        dangling = set()
        followed = False
        for at in range(len(self.entries) - 1, -1, -1):
            if not self._is_kept(at):
                continue
            if self.binding.kinds[at] == ItemKind.REASONING and not followed:
                dangling.add(at)
                continue
            followed = bool(self.binding.flags[at] & FLAG_MODEL)
        return dangling

    # --- all results in the next message ----------------------------------------------------------

    def render_next_message(self) -> None:
        """Render for Anthropic and Gemini: one user message answers all calls of a message."""
        whole: set[int] = set()
        for at in range(len(self.entries)):
            if not self.binding.is_shown(at) or at in whole:
                continue
            if self.binding.kinds[at] == ItemKind.RESULT:
                self._keep_rest(at)
                continue
            self.out.keep(self.entries, at)
            if not self.binding.calls[at]:
                continue
            if shape_of(self.entries[at].message) in BLOCK_SHAPES:
                self._answer_in_one(at, whole)
            else:
                self._answer_behind(at)

    def _keep_rest(self, at: int) -> None:
        """Show a message's blocks other than results at the message's own position."""
        if self.binding.flags[at] & FLAG_MIXED:
            message, rest = self.entries[at].message, self._split(at)[1]
            if rest:
                self.out.write({**message, self._field(message): rest})

    def _answer_in_one(self, at: int, whole: set[int]) -> None:
        results, missing = self._results_of(at), self._missing(at)
        if not results and not missing:
            return
        if not missing and len(results) == 1 and self._is_clean(at, results):
            self.out.keep(self.entries, results[0])
            whole.add(results[0])
            return
        blocks = []
        for result in results:
            if not self._in_place(at, result, results):
                self._note("hoisted", result, self.binding.answers[result][0][0][1])
            blocks += self._blocks_for(at, result)
        message = self.entries[at].message
        for slot in missing:
            self._note("synthesized", at, slot.key[1])
            answer = synthetic_results(message, [slot])[0]
            blocks += answer[self._field(answer)]
        if len(results) > 1:
            self._note("merged", at)
        self.out.write({"role": "user", self._field(message): blocks})

    def _is_clean(self, at: int, results: list[int]) -> bool:
        """Return whether the single result message can be shown unchanged."""
        result = results[0]
        owners = [slot for _, slot in self.binding.answers[result]]
        if any(slot is None or slot.at != at or slot.results != [result] for slot in owners):
            return False
        if not self._in_place(at, result, results):
            return False
        blocks, rest = self._split(result)
        message = self.entries[result].message
        return self._blocks_for(at, result) + rest == message.get(self._field(message)) and (
            bool(blocks) or not rest
        )

    def _blocks_for(self, at: int, result: int) -> list[Any]:
        """List the result blocks of entry ``result`` that answer calls of entry ``at``.

        One per call: of several for the same call, the last one counts.
        """
        if not self._split(result)[0]:
            return self._foreign_blocks(at, result)
        field_name = self._field(self.entries[result].message)
        wanted: dict[Key, list[CallSlot | None]] = {}
        for key, slot in self.binding.answers[result]:
            wanted.setdefault(key, []).append(slot)
        found: list[Any] = []
        answered: list[CallSlot] = []
        for block in reversed(self._split(result)[0]):
            closes = classify({"role": "user", field_name: [block]})[2]
            slots = wanted.get(closes[0]) if closes else None
            slot = slots.pop() if slots else None
            if slot is None or slot.at != at or slot.results[-1:] != [result] or slot in answered:
                continue
            answered.append(slot)
            found.append(block)
        return found[::-1]

    def _foreign_blocks(self, at: int, result: int) -> list[Any]:
        """Write the result of another wire format as the block that answers its call here."""
        texts = [each.text for each in results_of(self.entries[result].message)]
        slots = [
            slot
            for _, slot in self.binding.answers[result]
            if slot is not None and slot.at == at and slot.results[-1:] == [result]
        ]
        message = self.entries[at].message
        shape = shape_of(message)
        said = "\n".join(texts)
        return [_block(shape, slot.key, message, said, failed=False) for slot in slots]

    def _field(self, message: Message) -> str:
        return "parts" if isinstance(message.get("parts"), list) else "content"

    def _split(self, at: int) -> tuple[list[Any], list[Any]]:
        """Split a message's content into result blocks and other blocks."""
        message = self.entries[at].message
        blocks: list[Any] = []
        rest: list[Any] = []
        content = message.get(self._field(message))
        for block in content if isinstance(content, list) else ():
            (blocks if _is_result_block(block) else rest).append(block)
        return blocks, rest


def _is_result_block(block: Any) -> bool:
    if not isinstance(block, dict):
        return False
    if block.get("type") == "tool_result":
        return True
    answer = block.get("functionResponse") or block.get("function_response")
    return isinstance(answer, dict)
