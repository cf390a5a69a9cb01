"""Message fields in each wire format: paths, binding of calls to results, edited copies."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from memcore._fast import classify
from memcore.model import ItemKind, Message
from memcore.records import record

__all__ = [
    "REMOVED",
    "Arguments",
    "Binder",
    "Binding",
    "CallSlot",
    "Edits",
    "Path",
    "Result",
    "Text",
    "WireItem",
    "arguments_of",
    "bind",
    "body_path",
    "call_names",
    "dicts_in",
    "edited",
    "member_of",
    "name_in",
    "results_of",
    "texts_of",
    "tool_names",
    "value_at",
]


# --- Edited copies: new values at some paths, everything else shared ------------------------------

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indices from the message down to a value."""
Edits: TypeAlias = Mapping[Path, Any]
"""New values by path; ``REMOVED`` deletes the member or element. No path is a prefix of another."""


class _Removed:
    """The type of ``REMOVED``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "REMOVED"


REMOVED: Final = _Removed()


def value_at(value: Any, path: Path) -> Any:
    """The value at a path; None if the path does not exist."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def edited(value: Any, edits: Edits) -> Any:
    """Copy a JSON value with edits applied; unedited parts are shared, not copied.

    Indices refer to the value as given, even where earlier elements are removed.
    """
    below: dict[str | int, dict[Path, Any]] = {}
    for path, new in edits.items():
        below.setdefault(path[0], {})[path[1:]] = new
    if isinstance(value, list):
        made = [_edited_entry(entry, below.get(at)) for at, entry in enumerate(value)]
        return [entry for entry in made if entry is not REMOVED]
    members = {key: _edited_entry(entry, below.get(key)) for key, entry in value.items()}
    return {key: entry for key, entry in members.items() if entry is not REMOVED}


def _edited_entry(entry: Any, edits: dict[Path, Any] | None) -> Any:
    if edits is None:
        return entry
    return edits[()] if () in edits else edited(entry, edits)


# --- Paths of message fields, and access to values of unknown type --------------------------------

_LANGCHAIN_TYPES: Final = frozenset((
    "human", "system", "tool", "function", "chat", "ai",
    "HumanMessageChunk", "SystemMessageChunk", "ToolMessageChunk", "FunctionMessageChunk",
    "ChatMessageChunk", "AIMessageChunk",
))  # fmt: skip


def body_path(message: Message) -> Path:
    """Path of a message's fields: empty, except for LangChain's two nested spellings."""
    role, kind = message.get("role"), message.get("type")
    if isinstance(role, str) and role and kind != "chat":
        return ()
    if kind == "constructor" and "lc" in message and isinstance(message.get("kwargs"), dict):
        nested = isinstance(message["kwargs"].get("data"), dict)
        return ("kwargs", "data") if nested else ("kwargs",)
    known = isinstance(kind, str) and kind in _LANGCHAIN_TYPES
    nested = known and isinstance(message.get("data"), dict)
    return ("data",) if nested else ()


def name_in(value: Any) -> str | None:
    """The value if it is a non-empty string, else None."""
    return value if isinstance(value, str) and value else None


def dicts_in(value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a list with their indices; nothing if it is not a list."""
    for at, entry in enumerate(value if isinstance(value, list) else ()):
        if isinstance(entry, dict):
            yield at, entry


def member_of(value: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of the names whose value is an object, else None."""
    return next((name for name in names if isinstance(value.get(name), dict)), None)


# --- Binding of results to calls over a list of entries, by the ledger's rules --------------------

CLASS_SHELL: Final = 2
"""Of local shells, whose calls have two ids."""
CLASS_PROGRAM: Final = 7
CLASS_SERVER: Final = 9
CLASS_MASK: Final = 0x3F
BY_NAME: Final = 0x40
SECOND: Final = 0x80

FLAG_MODEL: Final = 1
FLAG_MIXED: Final = 2

ABANDON_EVENT: Final = "abandon"
"""Type of the event that abandons a call; its payload is ``{"class": int, "id": str}``."""

Key = tuple[int, str]


class WireItem(NamedTuple):
    """One item as seen by rendering."""

    seq: int
    message: Message
    event: bool = False


@record(eq=False, slots=True)
class CallSlot:
    """A call and its results."""

    key: Key
    at: int
    """Index of the entry that made the call."""
    results: list[int] = field(default_factory=list)
    abandoned: bool = False
    before: CallSlot | None = None
    """The previous call with the same key."""

    @property
    def is_server(self) -> bool:
        """True for a call of a provider's own tool, which only the provider can answer."""
        return self.key[0] & CLASS_MASK == CLASS_SERVER


class Ends(NamedTuple):
    """Positions of the last entries that close preceding open calls, -1 if none."""

    content: int
    outside: int
    """The last of these that is not from the model."""

    def passed(self, slot: CallSlot) -> bool:
        """Return whether the list continues past a call, so that it counts as unanswered.

        A program runs at its provider: later output of the model continues it.
        """
        return slot.at < (self.outside if slot.key[0] == CLASS_PROGRAM else self.content)


@record(slots=True)
class Binding:
    """Result of ``bind``: lists with one element per entry."""

    kinds: list[int]
    flags: list[int]
    calls: list[list[CallSlot]]
    answers: list[list[tuple[Key, CallSlot | None]]]
    references: list[tuple[int, CallSlot | None]] = field(default_factory=list)
    """Entries that refer to a call without answering it, with that call: calls made by a program,
    hosted tools that were approved."""
    strays: set[int] = field(default_factory=set)

    def is_shown(self, at: int) -> bool:
        """Return whether a context shows the entry (not events or entirely orphaned entries)."""
        return self.kinds[at] != ItemKind.EVENT and at not in self.strays

    def leave_out_strays(self) -> None:
        """Hide items whose referenced call is missing; their results become orphans."""
        self.strays.update(at for at, slot in self.references if slot is None)
        for at, slot in self.references:
            if slot is not None and slot.at in self.strays:
                self.strays.add(at)
        for at in self.strays:
            for slot in self.calls[at]:
                for result in slot.results:
                    self.answers[result] = [
                        (key, None if found is slot else found)
                        for key, found in self.answers[result]
                    ]
            self.calls[at] = []

    def ends(self) -> Ends:
        """Find the last entries after which preceding open calls count as unanswered.

        Results do not close calls. In formats where calls are separate items, the trailing run of
        calls does not either: they belong to the same response. A result that answers no call
        interrupts no run, as in ``take``.
        """
        outside = len(self.kinds) - 1
        while outside >= 0 and (
            self.flags[outside] & FLAG_MODEL
            or self.is_result(outside)
            or not self.is_shown(outside)
        ):
            outside -= 1
        at = len(self.kinds) - 1
        while at >= 0 and (not self.is_shown(at) or self.is_result(at)):
            at -= 1
        followed = True  # by a call: reasoning that a result follows is not shown
        while at >= 0:
            if self.kinds[at] == ItemKind.CALL:
                followed = True
            elif self._is_passed_over(at):
                followed = followed and not (self.is_shown(at) and not self.answers[at])
            elif self.kinds[at] != ItemKind.REASONING or followed:
                break
            at -= 1
        return Ends(at, outside)

    def _is_passed_over(self, at: int) -> bool:
        """Return whether an entry is hidden, or a result that answers no call."""
        answers = self.answers[at]
        return not self.is_shown(at) or (
            self.is_result(at) and not any(slot is not None for _, slot in answers)
        )

    def is_result(self, at: int) -> bool:
        """Return whether the entry consists of results only."""
        return self.kinds[at] == ItemKind.RESULT and not self.flags[at] & FLAG_MIXED


class Binder:
    """State of one binding pass over the entries, in order."""

    def __init__(self) -> None:
        self.latest: dict[Key, CallSlot] = {}
        self.groups: dict[Key, tuple[int, deque[CallSlot]]] = {}
        """By key: the index at which the run of calls with that name starts, and its calls that may
        be open."""
        self.references: list[tuple[int, CallSlot | None]] = []
        """As ``Binding.references``."""
        self.run = -1
        """Index at which the current run of calling items starts, -1 if none."""

    def find(self, key: Key) -> CallSlot | None:
        """Find the call that a result with this key answers."""
        slot = self.latest.get((key[0] & ~SECOND, key[1]))
        if slot is not None and key[0] & BY_NAME:
            waiting = self.groups[key][1]
            while waiting and (waiting[0].results or waiting[0].abandoned):
                waiting.popleft()
            if waiting:
                return waiting[0]
        return slot

    def newest_open(self, key: Key) -> CallSlot | None:
        """Find the newest open call with this key, which an abandon event closes."""
        slot = self.find(key)
        while slot is not None and (slot.results or slot.abandoned):
            slot = slot.before
        return slot

    def open(self, key: Key, at: int, before: list[CallSlot]) -> CallSlot | None:
        """Record a call; None if the key is merely another id of the preceding call."""
        identity = (key[0] & ~SECOND, key[1])
        if key[0] & SECOND and before:
            self.latest[identity] = before[-1]
            return None
        slot = CallSlot(identity, at, before=self.latest.get(identity))
        self.latest[identity] = slot
        if key[0] & BY_NAME:
            run = at if self.run < 0 else self.run
            if key not in self.groups or self.groups[key][0] != run:
                self.groups[key] = (run, deque())
            self.groups[key][1].append(slot)
        return slot

    def take(
        self, at: int, entry: WireItem
    ) -> tuple[int, int, list[CallSlot], list[tuple[Key, CallSlot | None]]]:
        """Bind the next entry; returns ``(kind, flags, calls, answers)``."""
        answers: list[tuple[Key, CallSlot | None]] = []
        slots: list[CallSlot] = []
        if entry.event:
            _give_up(self, entry.message)
            return int(ItemKind.EVENT), 0, slots, answers
        kind, opens, closes, flags = classify(entry.message)
        for key in closes:
            found = self.find(key)
            if key[0] & SECOND:
                self.references.append((at, found))
                continue
            if found is not None:
                found.results.append(at)  # the next result with this name finds the next call
            answers.append((key, found))
        for key in opens:
            slot = self.open(key, at, slots)
            if slot is not None:
                slots.append(slot)
        # An entirely orphaned entry does not interrupt a run of calls, just as in the ledger.
        if kind != ItemKind.RESULT or flags & FLAG_MIXED or any(s for _, s in answers):
            self.run = (at if self.run < 0 else self.run) if opens else -1
        return kind, flags, slots, answers


def bind(entries: Iterable[WireItem]) -> Binding:
    """Bind every result to the latest call with its (class, id), whether open or closed.

    Calls without ids are matched by name, first in first out, within their run of calling items.
    """
    state = Binder()
    binding = Binding([], [], [], [], state.references)
    for at, entry in enumerate(entries):
        kind, flags, slots, answers = state.take(at, entry)
        binding.kinds.append(kind)
        binding.flags.append(flags)
        binding.calls.append(slots)
        binding.answers.append(answers)
    return binding


def _give_up(state: Binder, event: Message) -> None:
    payload = event.get("payload")
    if event.get("type") != ABANDON_EVENT or not isinstance(payload, dict):
        return
    cls, text = payload.get("class"), payload.get("id")
    if isinstance(cls, int) and isinstance(text, str):
        slot = state.newest_open((cls, text))
        if slot is not None:
            slot.abandoned = True


# --- Calls of a message: their arguments, where editable, and the names of their tools ------------

_CUSTOM: Final = 1
"""Class of the ids of custom tools in ``_fast.classify``."""
_CALL_KEYS: Final = ("functionCall", "function_call")
_SERVER_BLOCKS: Final = ("server_tool_use", "mcp_tool_use", "server_tool_call")
_CALL_BLOCKS: Final = ("tool_use", "tool_call", "invalid_tool_call")


class Arguments(NamedTuple):
    """Arguments of one call, at one of the paths where the message holds them."""

    path: Path
    form: Literal["json", "object", "text"]
    """JSON in a string, a JSON object, or the free-form input of a custom tool."""
    key: Key | None
    name: str | None


def arguments_of(message: Message) -> list[Arguments]:
    """List the arguments of the calls of a message; a call that occurs twice is listed twice."""
    kind = classify(message)[0]
    if kind == ItemKind.CALL:
        return _responses_arguments(message)
    if kind != ItemKind.ASSISTANT:
        return []
    base = body_path(message)
    body = value_at(message, base)
    found = list(_chat_arguments(body, base))
    kwargs = body.get("additional_kwargs")
    if isinstance(kwargs, dict):
        found += _chat_arguments(kwargs, (*base, "additional_kwargs"))
    for at, block in dicts_in(body.get("content")):
        field = {"tool_use": "input", "tool_call": "args"}.get(str(block.get("type")))
        if field is not None and isinstance(block.get(field), dict):
            found.append(_called((*base, "content", at, field), "object", block, block.get("id")))
    for at, part in dicts_in(body.get("parts")):
        member = member_of(part, _CALL_KEYS)
        if member is not None and isinstance(part[member].get("args"), dict):
            path = (*base, "parts", at, member, "args")
            found.append(_called(path, "object", part[member], part[member].get("id")))
    return found


def _called(
    path: Path,
    form: Literal["json", "object", "text"],
    call: dict[str, Any],
    call_id: Any,
    cls: int = 0,
) -> Arguments:
    name, text = name_in(call.get("name")), name_in(call_id)
    key = (cls, text) if text else (cls | BY_NAME, name) if name else None
    return Arguments(path, form, key, name)


def _chat_arguments(body: dict[str, Any], base: Path) -> Iterator[Arguments]:
    """Yield arguments in OpenAI chat format, and in LangChain's, with ``args`` next to the name."""
    for at, call in dicts_in(body.get("tool_calls")):
        path, inner = (*base, "tool_calls", at), call.get("function")
        if isinstance(inner, dict) and isinstance(inner.get("arguments"), str):
            yield _called((*path, "function", "arguments"), "json", inner, call.get("id"))
        elif isinstance(call.get("args"), dict):
            yield _called((*path, "args"), "object", call, call.get("id"))
        custom = call.get("custom")
        if isinstance(custom, dict) and isinstance(custom.get("input"), str):
            yield _called((*path, "custom", "input"), "text", custom, call.get("id"))
    single = body.get("function_call")
    if isinstance(single, dict) and isinstance(single.get("arguments"), str):
        yield _called((*base, "function_call", "arguments"), "json", single, None)


def _responses_arguments(message: Message) -> list[Arguments]:
    kind, call_id = message.get("type"), message.get("call_id")
    if kind == "function_call" and isinstance(message.get("arguments"), str):
        return [_called(("arguments",), "json", message, call_id)]
    if kind == "custom_tool_call" and isinstance(message.get("input"), str):
        return [_called(("input",), "text", message, call_id, _CUSTOM)]
    return []


# --- names ----------------------------------------------------------------------------------------


def call_names(message: Message) -> dict[Key | None, str]:
    """Map the keys of the calls of a message to the names of their tools.

    OpenAI tools without a name of their own are named after the type of the item: ``shell`` for a
    ``shell_call``. The key of a call that needs no answer is None.
    """
    kind, opens, _, _ = classify(message)
    label = message.get("type")
    if "role" not in message and isinstance(label, str) and label.endswith(("_call", "_request")):
        name = name_in(message.get("name")) or label.removesuffix("_call")
        return {opens[0] if opens else None: name}
    if kind != ItemKind.ASSISTANT:
        return {}
    body = value_at(message, body_path(message))
    found: dict[Key | None, str] = {}
    for call, call_id, cls in _named_calls(body):
        called, text = name_in(call.get("name")), name_in(call_id)
        if called is not None:
            found.setdefault((cls, text) if text else (cls | BY_NAME, called), called)
    return found


def _named_calls(body: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any, int]]:
    """Yield objects with a ``name``, the id of their call, and the call's class."""
    kwargs = body.get("additional_kwargs")
    for place in (body, kwargs if isinstance(kwargs, dict) else {}):
        for name in ("tool_calls", "invalid_tool_calls"):
            for _, call in dicts_in(place.get(name)):
                inner = member_of(call, ("function", "custom"))
                yield call[inner] if inner else call, call.get("id"), 0
        if isinstance(place.get("function_call"), dict):
            yield place["function_call"], None, 0
    for _, block in dicts_in(body.get("content")):
        if block.get("type") in _CALL_BLOCKS:
            yield block, block.get("id"), 0
        elif block.get("type") in _SERVER_BLOCKS:
            yield block, block.get("id"), CLASS_SERVER
    for _, part in dicts_in(body.get("parts")):
        member = member_of(part, _CALL_KEYS)
        if member is not None:
            yield part[member], part[member].get("id"), 0


# --- Editable parts of a message: results, texts, arguments of calls, thinking --------------------
# Parts are found in all wire formats, including LangChain's three spellings, and are identified by
# their path in the message. Content that a provider verifies byte by byte or reads back is not a
# part: results of its own tools, screenshots of a computer, actions of shell and patch calls,
# opaque items.

_TEXT_BLOCKS: Final = frozenset(("text", "input_text", "output_text"))
_RESPONSES_WHOLE: Final = frozenset(
    ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
)
_ANSWER_KEYS: Final = ("functionResponse", "function_response")


class Text(NamedTuple):
    """A text written by the user or the model."""

    path: Path
    text: str


class Result(NamedTuple):
    """The result of one call."""

    path: Path
    """Path of the whole content."""
    form: Literal["string", "blocks", "object", "streams"]
    """A string, a list of blocks, a JSON object (Gemini), or stdout and stderr (shell)."""
    leaves: tuple[Text, ...]
    """Texts of the result. For an object without exactly one text: its JSON, at its own path."""
    key: Key | None
    """Key of the call that it answers; None if it names none."""
    name: str | None
    """Name of the tool, if the result itself gives it."""
    media: bool = False
    """True if it contains anything but texts: images, files, references."""
    attached: Path | None = None
    """Path of the result's media outside its content (Gemini)."""

    @property
    def text(self) -> str:
        """All texts, joined by newlines."""
        return "\n".join(leaf.text for leaf in self.leaves)

    def with_text(self, text: str) -> dict[Path, Any]:
        """Return the edits that replace all texts by ``text``; media stay."""
        first, *others = self.leaves
        if self.form == "object" and first.path == self.path:
            return {self.path: {"output": text}}
        edits: dict[Path, Any] = {first.path: text}
        for leaf in others:
            if self.form == "streams":
                edits[leaf.path] = ""
            else:
                is_block = isinstance(leaf.path[-1], str)
                edits[leaf.path[:-1] if is_block else leaf.path] = REMOVED
        return edits

    def cleared(self, text: str) -> dict[Path, Any]:
        """Return the edits that replace the whole content, including media, by ``text``."""
        if self.form == "streams":
            return self.with_text(text)
        edits: dict[Path, Any] = {self.path: {"output": text} if self.form == "object" else text}
        if self.attached is not None:
            edits[self.attached] = REMOVED
        return edits

    @property
    def size(self) -> int:
        """Number of parts that ``cleared`` replaces: the texts, plus 1 for media."""
        return len(self.leaves) + self.media


# --- results --------------------------------------------------------------------------------------


def results_of(message: Message) -> list[Result]:
    """List the results of a message, in the order of the calls that ``classify`` reports."""
    kind, _, closes, _ = classify(message)
    if kind != ItemKind.RESULT:
        return []
    base = body_path(message)
    body = value_at(message, base)
    field = "parts" if isinstance(body.get("parts"), list) else "content"
    found: list[Result] = []
    for at, block in dicts_in(body.get(field)):
        is_answer = member_of(block, _ANSWER_KEYS) is not None
        if field == "parts" and is_answer:
            found.append(_gemini_result(block, (*base, field, at)))
        elif field == "content" and block.get("type") == "tool_result" and _is_turn(body):
            key = _key_of(field, block)
            found.append(_content_result(block, (*base, field, at, "content"), key, None))
    if found or _is_turn(body):
        return found
    key = closes[0] if closes else None
    if "output" in body and "content" not in body:
        return _responses_result(body, (*base, "output"), key)
    if "content" not in body:
        return []
    return [_content_result(body, (*base, "content"), key, name_in(body.get("name")))]


def is_failure(body: Mapping[str, Any]) -> bool:
    """Return True if the object that holds a result says that the tool failed."""
    return (
        body.get("is_error") is True
        or body.get("status") in ("error", "failed")
        or bool(body.get("error"))
    )


def _is_turn(body: dict[str, Any]) -> bool:
    """Return whether the message can hold several results and texts (Anthropic, Gemini)."""
    role = body.get("role")
    return role not in (None, "", "tool", "function") or isinstance(body.get("parts"), list)


def _key_of(field: str, block: dict[str, Any]) -> Key | None:
    closes = classify({"role": "user", field: [block]})[2]
    return closes[0] if closes else None


def _gemini_result(part: dict[str, Any], path: Path) -> Result:
    member = member_of(part, _ANSWER_KEYS) or ""
    answer = part[member]
    response = answer.get("response")
    own = (*path, member, "response")
    leaves: tuple[Text, ...] = ()
    if isinstance(response, dict) and response:
        only = next(iter(response)) if len(response) == 1 else None
        if only is not None and isinstance(response[only], str):
            leaves = (Text((*own, only), response[only]),)
        else:
            leaves = (Text(own, _json(response)),)
    attached = (*path, member, "parts") if answer.get("parts") else None
    name, key = name_in(answer.get("name")), _key_of("parts", part)
    return Result(own, "object", leaves, key, name, attached is not None, attached)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _content_result(body: dict[str, Any], path: Path, key: Key | None, name: str | None) -> Result:
    content = body.get(str(path[-1]))
    if isinstance(content, str):
        return Result(path, "string", (Text(path, content),) if content else (), key, name)
    leaves = tuple(_block_texts(content, path))
    others = len(content) - len(leaves) if isinstance(content, list) else 0
    return Result(path, "blocks", leaves, key, name, others > 0)


def _block_texts(content: Any, path: Path) -> Iterator[Text]:
    """Yield the texts of a list of blocks or strings."""
    for at, block in enumerate(content if isinstance(content, list) else ()):
        if isinstance(block, str):
            yield Text((*path, at), block)
        elif _is_text(block):
            yield Text((*path, at, "text"), block["text"])


def _is_text(block: Any) -> bool:
    if not isinstance(block, dict) or not isinstance(block.get("text"), str):
        return False
    return isinstance(block.get("type"), str) and block["type"] in _TEXT_BLOCKS


def _responses_result(body: dict[str, Any], path: Path, key: Key | None) -> list[Result]:
    kind = body.get("type")
    if isinstance(kind, str) and kind in _RESPONSES_WHOLE:
        return [_content_result(body, path, key, name_in(body.get("name")))]
    if kind == "shell_call_output":
        leaves = tuple(
            Text((*path, at, stream), block[stream])
            for at, block in dicts_in(body["output"])
            for stream in ("stdout", "stderr")
            if isinstance(block.get(stream), str) and block[stream]
        )
        return [Result(path, "streams", leaves, key, None)]
    if kind == "apply_patch_call_output" and isinstance(body["output"], str):
        return [_content_result(body, path, key, None)]
    return []  # a screenshot, a list of tools, an approval


# --- texts ----------------------------------------------------------------------------------------


def texts_of(message: Message) -> list[Text]:
    """List the texts of the user or the model, without results, calls and thinking."""
    kind, _, _, _ = classify(message)
    if kind not in (ItemKind.USER, ItemKind.ASSISTANT, ItemKind.RESULT):
        return []
    base = body_path(message)
    body = value_at(message, base)
    if kind == ItemKind.RESULT and not _is_turn(body):
        return []
    if isinstance(body.get("parts"), list):
        return [
            Text((*base, "parts", at, "text"), part["text"])
            for at, part in dicts_in(body["parts"])
            if isinstance(part.get("text"), str) and part.get("thought") is not True
        ]
    content = body.get("content")
    if isinstance(content, str):
        return [Text((*base, "content"), content)] if content else []
    return list(_block_texts(content, (*base, "content")))


# --- names ----------------------------------------------------------------------------------------


def tool_names(entries: Iterable[WireItem]) -> list[set[str]]:
    """Return the tools that each entry calls or answers, as one set per entry."""
    listed = list(entries)
    binding = bind(listed)
    names = [{} if entry.event else call_names(entry.message) for entry in listed]
    found = [set(calls.values()) for calls in names]
    for at, answers in enumerate(binding.answers):
        if answers:
            found[at] |= {result.name for result in results_of(listed[at].message) if result.name}
        for _, slot in answers:
            if slot is not None and slot.key in names[slot.at]:
                found[at].add(names[slot.at][slot.key])
    return found
