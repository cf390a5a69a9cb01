"""Conversion of messages between wire formats: a neutral view, and one writer for each format.

An item that is in the requested format already stays as it is. Any other is read into texts,
attachments, calls and answers, and written anew; rendering then makes the list legal. What has no
counterpart is left out, and each omission is recorded as a Repair. Pure and deterministic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, Final, NamedTuple, TypeAlias

from memcore._fast import classify
from memcore.codec.keys import blake2b
from memcore.errors import InvalidItemError
from memcore.model import Conversion, ItemKind, Message, Repair
from memcore.records import record
from memcore.wire.form import fitted
from memcore.wire.message import (
    BY_NAME,
    CLASS_MASK,
    FLAG_MODEL,
    CallSlot,
    Key,
    Result,
    WireItem,
    bind,
    body_path,
    call_names,
    dicts_in,
    is_failure,
    member_of,
    name_in,
    results_of,
    value_at,
)
from memcore.wire.policy import PairPolicy, get_policy
from memcore.wire.render import is_responses_item, lead_in_message, rename_repeated_calls, render

__all__ = [
    "all_native",
    "convert_entries",
    "policy_of",
    "wire_of",
]


# --- The neutral view -----------------------------------------------------------------------------


class NeutralMedia(NamedTuple):
    """An image, a sound or a file, by content, address or id."""

    kind: str
    """``image``, ``audio`` or ``file``."""
    data: str | None = None
    """Base64."""
    mime: str | None = None
    url: str | None = None
    file_id: str | None = None
    name: str | None = None


class NeutralCall(NamedTuple):
    """A call of a tool; ``arguments`` is JSON text or an object."""

    call_id: str
    name: str
    arguments: str | dict[str, Any]


class NeutralAnswer(NamedTuple):
    """The answer to one call."""

    call_id: str
    name: str
    content: list[str | NeutralMedia]
    failed: bool


NeutralPart: TypeAlias = str | NeutralMedia | NeutralCall | NeutralAnswer


@record(slots=True)
class NeutralItem:
    """One item: its role is ``system``, ``user``, ``assistant`` or ``tool``."""

    seq: int
    role: str
    parts: list[NeutralPart] = field(default_factory=list)
    joins: bool = False
    """True if it continues the response of the item before (OpenAI Responses)."""


# --- Recognition of formats -----------------------------------------------------------------------

_LANGCHAIN: Final = frozenset(("human", "ai", "system", "tool", "function", "chat", "remove"))
_ANTHROPIC_BLOCKS: Final = frozenset((
    "tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document",
    "server_tool_use", "mcp_tool_use", "web_search_tool_result", "search_result",
))  # fmt: skip
_RESPONSES_BLOCKS: Final = frozenset(("input_text", "output_text", "input_image", "input_file"))
_CHAT_BLOCKS: Final = frozenset(("image_url", "input_audio", "file", "refusal"))
_TEXTS: Final = frozenset(("text", "input_text", "output_text", "refusal"))
_CALL_CLASSES: Final = 5
"""The last class of ``_fast.classify`` whose calls any client can answer."""


_CHAT_ROLES: Final = frozenset(("user", "assistant", "system", "tool"))
_OTHER_FIELDS: Final = frozenset(("type", "parts", "lc", "data"))


_INSTRUCTED_FIRST: Final = ("anthropic", "gemini")
"""Formats whose instructions stand in front: not every model takes them later."""


def all_native(messages: Iterable[Message], wire: str) -> bool:
    """Return whether all messages may stay as they are, and where they are, in a format."""
    led = False
    for message in messages:
        if wire == "chat" and (_is_plain_chat(message) or _is_chat_call(message)):
            continue
        if not _is_native(message, wire) or fitted(message, wire) is not message:
            return False
        if wire in _INSTRUCTED_FIRST:
            is_system = classify(message)[0] == ItemKind.SYSTEM
            if led and is_system:
                return False
            led = led or not is_system
    return True


def _is_plain_chat(message: Message) -> bool:
    """Return True for a message of a text and a role alone, as most are."""
    return (
        len(message) == 2  # noqa: PLR2004 - role and content
        and type(message.get("content")) is str
        and message.get("role") in ("user", "assistant", "system")
    )


_CALLING: Final = frozenset(("role", "content", "tool_calls"))
_ANSWERING: Final = {"role", "content", "tool_call_id"}
_CALL: Final = {"id", "type", "function"}
_FUNCTION: Final = {"name", "arguments"}


def _is_chat_call(message: Message) -> bool:
    """Return True for calls of functions and their results in the form that all of them have."""
    content = message.get("content")
    if message.keys() == _ANSWERING:
        return (
            message["role"] == "tool"
            and type(content) is str
            and type(message["tool_call_id"]) is str
        )
    calls = message.get("tool_calls")
    return (
        message.keys() <= _CALLING
        and message.get("role") == "assistant"
        and (content is None or type(content) is str)
        and type(calls) is list
        and all(
            type(call) is dict
            and call.keys() == _CALL
            and type(call["id"]) is str
            and call["type"] == "function"
            and type(call["function"]) is dict
            and call["function"].keys() == _FUNCTION
            and type(call["function"]["name"]) is str
            and type(call["function"]["arguments"]) is str
            for call in calls
        )
    )


def wire_of(message: Message) -> str:
    """The wire format of a message; ``plain`` if several formats write it like this."""
    role, kind = message.get("role"), message.get("type")
    if not isinstance(role, str) or not role or kind == "chat":
        nested = "lc" in message or isinstance(message.get("data"), dict)
        known = isinstance(kind, str) and (kind in _LANGCHAIN or kind.endswith("MessageChunk"))
        return "langchain" if nested or known else "responses"
    if isinstance(message.get("parts"), list) or role == "model":
        return "gemini"
    blocks = {str(block.get("type")) for _, block in dicts_in(message.get("content"))}
    if kind == "message" and role in ("user", "assistant", "system", "developer"):
        return "anthropic" if blocks & _ANTHROPIC_BLOCKS else "responses"
    for wire, own in (
        ("responses", _RESPONSES_BLOCKS),
        ("anthropic", _ANTHROPIC_BLOCKS),
        ("chat", _CHAT_BLOCKS),
    ):
        if blocks & own:
            return wire
    if role in ("user", "assistant", "system") and message.keys() <= {"role", "content"}:
        return "plain"
    return "chat"


_POLICIES: Final = ("langchain", "gemini", "anthropic", "openai_responses", "openai_chat")
"""Policies of the providers' formats, one each."""


def policy_of(messages: Iterable[Message], default: str) -> str:
    """Return the policy of the one format that messages are written in.

    ``default``: that of messages that any format, or more than one, writes like this; and of those
    in its own format.
    """
    found = {wire_of(message) for message in messages} - {"plain", get_policy(default).wire}
    names: dict[str, str] = {get_policy(name).wire: name for name in _POLICIES}
    return names.get(found.pop(), default) if len(found) == 1 else default


def _is_native(message: Message, wire: str) -> bool:
    """Return whether a message may stay as it is."""
    content = message.get("content")
    if (
        wire == "chat"
        and (content is None or type(content) is str)
        and not (message.keys() & _OTHER_FIELDS)
        and message.get("role") in _CHAT_ROLES
    ):
        return True  # as the rest finds: most messages
    found = wire_of(message)
    if found not in ("plain", wire):
        return False
    if wire == "chat":  # other providers that speak this format have blocks of their own
        own = _CHAT_BLOCKS | {"text"}
        return all(str(block.get("type")) in own for _, block in dicts_in(content))
    if found == wire:
        return True
    return wire in ("responses", "anthropic") and isinstance(content, str) and content != ""


# --- Reading --------------------------------------------------------------------------------------


class NeutralReader:
    """State of one reading pass."""

    def __init__(self, entries: Sequence[WireItem], wire: str) -> None:
        self.entries = entries
        self.wire = wire
        self.binding = bind(entries)
        self.repairs: list[Repair] = []
        self.names: dict[int, str] = {}
        self.ids: dict[int, str] = {}
        self._name_calls()

    def _name_calls(self) -> None:
        """Give every call the id and the name that it and its answers are written with."""
        made = [(at, slot) for at, slots in enumerate(self.binding.calls) for slot in slots]
        used = {slot.key[1] for _, slot in made if not slot.key[0] & BY_NAME}
        names: dict[int, dict[Any, str]] = {}
        for number, (at, slot) in enumerate(made):
            if at not in names:
                names[at] = call_names(self.entries[at].message)
            cls, text = slot.key
            self.names[id(slot)] = names[at].get(slot.key) or (text if cls & BY_NAME else "")
            if cls & BY_NAME:
                text = f"call_{self.entries[at].seq}_{number}"
                while text in used:
                    text += "_"
                used.add(text)
            stays = _is_native(self.entries[at].message, self.wire)
            self.ids[id(slot)] = text if stays else self._fitting(text)

    def _fitting(self, text: str) -> str:
        """Replace the characters that Anthropic refuses in ids; a digest keeps the id unique."""
        if self.wire != "anthropic" or re.fullmatch(r"[a-zA-Z0-9_-]+", text):
            return text
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return re.sub(r"[^a-zA-Z0-9_-]", "_", text)[:40] + "_" + digest

    def note(self, action: str, at: int, call_id: str | None = None) -> None:
        """Record a change, once for each item and call."""
        repair = Repair(action, self.entries[at].seq, call_id)
        if repair not in self.repairs[-8:]:
            self.repairs.append(repair)

    def native(self, at: int) -> WireItem | None:
        """Return an entry that may stay as it is, but for fields that the format does not have."""
        entry = self.entries[at]
        if not _is_native(entry.message, self.wire):
            return None
        message = fitted(entry.message, self.wire)
        if message is entry.message:
            return entry
        self.note("form", at)
        return None if message is None else entry._replace(message=message)

    def read(self, at: int) -> NeutralItem | None:
        """Read an entry; None if nothing of it can be shown in another format."""
        entry = self.entries[at]
        kind = self.binding.kinds[at]
        body = value_at(entry.message, body_path(entry.message))
        if not isinstance(body, dict):
            self.note("opaque", at)
            return None
        item = NeutralItem(entry.seq, "user", joins=wire_of(entry.message) == "responses")
        if kind == ItemKind.REASONING:
            self.note("reasoning", at)
            return None
        if kind == ItemKind.CALL:
            item.role = "assistant"
            item.parts += self._item_call(at, body)
        elif kind == ItemKind.RESULT:
            item.role = "tool"
            item.parts += self._answers(at, body)
        elif kind in (ItemKind.SYSTEM, ItemKind.USER, ItemKind.ASSISTANT):
            item.role = ItemKind(kind).name.lower()
            item.parts += self._content(at, body)
            if kind == ItemKind.ASSISTANT:
                item.parts += self._calls(at, body)
        else:
            self.note("opaque", at)
            return None
        return item

    # Texts and attachments

    def _content(self, at: int, body: dict[str, Any]) -> Iterator[str | NeutralMedia]:
        parts = body.get("parts")
        if isinstance(parts, list):
            yield from self._gemini_parts(at, parts)
            return
        yield from self._blocks(at, body.get("content"))
        if isinstance(body.get("refusal"), str) and body["refusal"]:
            yield body["refusal"]
        if body.get("audio"):
            self.note("media", at)
        if body.get("reasoning_content") or body.get("reasoning"):
            self.note("reasoning", at)

    def _blocks(self, at: int, content: Any) -> Iterator[str | NeutralMedia]:
        if isinstance(content, str):
            if content:
                yield content
            return
        for block in content if isinstance(content, list) else ():
            if isinstance(block, str):
                if block:
                    yield block
            elif isinstance(block, dict):
                yield from self._block(at, block)
            else:
                self.note("opaque", at)

    def _block(self, at: int, block: dict[str, Any]) -> Iterator[str | NeutralMedia]:
        kind = str(block.get("type"))
        if kind in _TEXTS:
            text = block.get("text", block.get("refusal"))
            if isinstance(text, str) and text:
                yield text
        elif kind in ("tool_use", "tool_call", "invalid_tool_call", "tool_result"):
            return  # read as calls and answers
        elif kind in ("thinking", "redacted_thinking", "reasoning"):
            self.note("reasoning", at)
        else:
            found = attachment_of(block)
            if found is None:
                self.note("opaque", at)
            else:
                yield found

    def _gemini_parts(self, at: int, parts: list[Any]) -> Iterator[str | NeutralMedia]:
        for part in parts:
            if not isinstance(part, dict):
                self.note("opaque", at)
            elif part.get("thought") is True:
                self.note("reasoning", at)
            elif isinstance(part.get("text"), str):
                if part["text"]:
                    yield part["text"]
            elif member_of(part, ("functionCall", "function_call")) or member_of(
                part, ("functionResponse", "function_response")
            ):
                if part.get("thoughtSignature") or part.get("thought_signature"):
                    self.note("reasoning", at)
            elif (found := _gemini_attachment(part)) is not None:
                yield found
            else:
                self.note("opaque", at)

    # Calls

    def _calls(self, at: int, body: dict[str, Any]) -> Iterator[NeutralCall]:
        free = list(self.binding.calls[at])
        for call_id, name, arguments in _raw_calls(body):
            slot = next((s for s in free if s.key[1] == (call_id or name)), None)
            if slot is None:
                continue  # the same call in another field of the message
            free.remove(slot)
            yield from self._call(at, slot, name, arguments)
        for slot in free:
            self.note("opaque", at, slot.key[1])

    def _call(
        self, at: int, slot: CallSlot, name: str | None, arguments: Any
    ) -> Iterator[NeutralCall]:
        if name is None or slot.key[0] & CLASS_MASK > _CALL_CLASSES:
            self.note("opaque", at, slot.key[1])
            return
        if self.ids[id(slot)] != slot.key[1]:
            self.note("renamed", at, slot.key[1])
        if not isinstance(arguments, str | dict):
            arguments = {} if arguments is None else {"input": arguments}
        yield NeutralCall(self.ids[id(slot)], name, arguments)

    def _item_call(self, at: int, body: dict[str, Any]) -> Iterator[NeutralCall]:
        """The call that an item of OpenAI Responses makes."""
        names = call_names(self.entries[at].message)
        if not self.binding.calls[at]:
            self.note("opaque", at)
        for slot in self.binding.calls[at]:
            arguments: Any = body.get("arguments")
            if isinstance(body.get("input"), str):
                arguments = {"input": body["input"]}
            elif arguments is None:
                named = member_of(body, ("action", "operation"))
                arguments = {named: body[named]} if named else {}
            yield from self._call(at, slot, names.get(slot.key), arguments)

    # Answers

    def _answers(self, at: int, body: dict[str, Any]) -> Iterator[NeutralPart]:
        message = self.entries[at].message
        waiting = list(self.binding.answers[at])
        found = results_of(message)
        if not found and waiting:
            found = [Result(("output",), "blocks", (), waiting[0][0], None)]
        if not found:
            self.note("orphan", at)
        for result in found:
            answer = next((a for a in waiting if a[0] == result.key), None)
            if answer is None:
                self.note("orphan", at, result.key[1] if result.key else None)
                continue
            waiting.remove(answer)
            slot = answer[1]
            if slot is not None and slot.key[0] & CLASS_MASK > _CALL_CLASSES:
                self.note("opaque", at, slot.key[1])
                continue
            call_id = answer[0][1] if slot is None else self.ids[id(slot)]
            name = result.name or (self.names[id(slot)] if slot is not None else "")
            holder = value_at(message, result.path[:-1]) if result.path else body
            content = list(self._answer_content(at, message, result))
            failed = isinstance(holder, dict) and is_failure(holder)
            if result.form == "object":
                response = value_at(message, result.path)
                failed = isinstance(response, dict) and "error" in response
            yield NeutralAnswer(call_id, name, content, failed)
        role = body.get("role")
        if isinstance(body.get("parts"), list) or role not in (None, "", "tool", "function"):
            yield from self._content(at, body)

    def _answer_content(
        self, at: int, message: Message, result: Result
    ) -> Iterator[str | NeutralMedia]:
        value = value_at(message, result.path)
        if result.attached is not None:
            attached = value_at(message, result.attached)
            yield from self._gemini_parts(at, attached if isinstance(attached, list) else [])
        if result.form == "object" and isinstance(value, dict):
            texts = value.get("output")
            if (
                len(value) == 1
                and isinstance(texts, list)
                and all(isinstance(text, str) for text in texts)
            ):
                yield from texts
                return
        if result.form in ("object", "streams"):
            yield from (leaf.text for leaf in result.leaves)
        elif isinstance(value, dict):
            yield from self._block(at, value)
        else:
            yield from self._blocks(at, value)


def _raw_calls(body: dict[str, Any]) -> Iterator[tuple[str | None, str | None, Any]]:
    """Yield ``(id, name, arguments)`` of the calls in a model message."""
    kwargs = body.get("additional_kwargs")
    for place in (body, kwargs if isinstance(kwargs, dict) else {}):
        for field_name in ("tool_calls", "invalid_tool_calls"):
            for _, call in dicts_in(place.get(field_name)):
                inner = member_of(call, ("function", "custom"))
                named = call[inner] if inner else call
                arguments = named.get("arguments", named.get("args"))
                if arguments is None and "input" in named:
                    arguments = {"input": named["input"]}
                yield name_in(call.get("id")), name_in(named.get("name")), arguments
        if isinstance(single := place.get("function_call"), dict):
            yield None, name_in(single.get("name")), single.get("arguments")
    for _, block in dicts_in(body.get("content")):
        if block.get("type") in ("tool_use", "tool_call", "invalid_tool_call"):
            arguments = block.get("input", block.get("args"))
            yield name_in(block.get("id")), name_in(block.get("name")), arguments
    for _, part in dicts_in(body.get("parts")):
        member = member_of(part, ("functionCall", "function_call"))
        if member is not None:
            call = part[member]
            yield name_in(call.get("id")), name_in(call.get("name")), call.get("args")


# --- Attachments ----------------------------------------------------------------------------------

_KINDS: Final = {
    "image": "image", "image_url": "image", "input_image": "image", "computer_screenshot": "image",
    "audio": "audio", "input_audio": "audio", "document": "file", "file": "file",
    "input_file": "file",
}  # fmt: skip
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]+={0,2}", re.ASCII)
_DATA_URL: Final = re.compile(r"data:([^;,]*);base64,", re.ASCII)


def attachment_of(block: dict[str, Any]) -> NeutralMedia | None:
    """Read a block of OpenAI, Anthropic or LangChain; None if it is none that can be carried."""
    kind = _KINDS.get(str(block.get("type")))
    if kind is None:
        return None
    held = block
    for name in ("image_url", "input_audio", "file", "source"):
        if isinstance(block.get(name), dict):
            held = block[name]
            break
    mime = name_in(held.get("mime_type")) or name_in(held.get("media_type"))
    data = (
        name_in(held.get("base64")) or name_in(held.get("data")) or name_in(held.get("file_data"))
    )
    if held.get("type") == "text":
        return None  # a plain document has no counterpart that is a file
    url = next(
        (held[name] for name in ("url", "image_url", "file_url") if name_in(held.get(name))), None
    )
    if isinstance(block.get("format"), str) or isinstance(held.get("format"), str):
        mime = mime or f"{kind}/{held.get('format')}"
    for value in (url, data):
        parsed = _DATA_URL.match(value) if value else None
        if parsed and value:
            mime, data, url = parsed[1] or mime, value[parsed.end() :], None
    if data is not None and not _BASE64.fullmatch(data):
        return None
    found = NeutralMedia(
        kind, data, mime, url, name_in(held.get("file_id")), name_in(held.get("filename"))
    )
    return found if data or url or found.file_id else None


def _gemini_attachment(part: dict[str, Any]) -> NeutralMedia | None:
    member = member_of(part, ("inlineData", "inline_data", "fileData", "file_data"))
    if member is None:
        return None
    held = part[member]
    mime = name_in(held.get("mimeType")) or name_in(held.get("mime_type")) or ""
    top = mime.partition("/")[0]
    kind = top if top in ("image", "audio") else "file"
    data = name_in(held.get("data"))
    url = name_in(held.get("fileUri")) or name_in(held.get("file_uri"))
    if data is not None and not _BASE64.fullmatch(data):
        return None
    return NeutralMedia(kind, data, mime or None, url) if data or url else None


def _as_url(media: NeutralMedia) -> str | None:
    return f"data:{media.mime};base64,{media.data}" if media.data and media.mime else media.url


def _chat_media(media: NeutralMedia) -> dict[str, Any] | None:
    url = _as_url(media)
    if media.kind == "image":
        return {"type": "image_url", "image_url": {"url": url}} if url else None
    if media.kind == "audio":
        form = {"audio/wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}.get(media.mime or "")
        if form is None or not media.data:
            return None
        return {"type": "input_audio", "input_audio": {"data": media.data, "format": form}}
    held = {"file_id": media.file_id} if media.file_id else {}
    if media.data and url:
        held = {"file_data": url, "filename": media.name or "file"}
    return {"type": "file", "file": held} if held else None


def _responses_media(media: NeutralMedia) -> dict[str, Any] | None:
    url = _as_url(media)
    if media.kind == "audio":
        return None
    if media.kind == "image":
        found: dict[str, Any] = {"type": "input_image", "detail": "auto"}
        if media.file_id:
            return {**found, "file_id": media.file_id}
        return {**found, "image_url": url} if url else None
    if media.file_id:
        return {"type": "input_file", "file_id": media.file_id}
    if media.data and url:
        return {"type": "input_file", "file_data": url, "filename": media.name or "file"}
    return {"type": "input_file", "file_url": media.url} if media.url else None


_ANTHROPIC_IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")


def _anthropic_media(media: NeutralMedia) -> dict[str, Any] | None:
    if media.kind == "audio":
        return None
    kind = "image" if media.kind == "image" else "document"
    kinds = _ANTHROPIC_IMAGES if kind == "image" else ("application/pdf",)
    if media.data:
        if media.mime not in kinds:
            return None
        source = {"type": "base64", "media_type": media.mime, "data": media.data}
        return {"type": kind, "source": source}
    return {"type": kind, "source": {"type": "url", "url": media.url}} if media.url else None


def _gemini_media(media: NeutralMedia) -> dict[str, Any] | None:
    if media.data and media.mime:
        return {"inlineData": {"mimeType": media.mime, "data": media.data}}
    if not media.url:
        return None
    held = {"fileUri": media.url} | ({"mimeType": media.mime} if media.mime else {})
    return {"fileData": held}


def _langchain_media(media: NeutralMedia) -> dict[str, Any] | None:
    if media.data and media.mime:
        return {"type": media.kind, "base64": media.data, "mime_type": media.mime}
    if media.url:
        return {"type": media.kind, "url": media.url}
    return {"type": media.kind, "file_id": media.file_id} if media.file_id else None


# --- Writing --------------------------------------------------------------------------------------

Lose: TypeAlias = Callable[[str, str | None], None]
"""Records what a writer leaves out: the action, and the id of the call if it is about one."""
_MEDIA: Final[dict[str, Callable[[NeutralMedia], dict[str, Any] | None]]] = {
    "chat": _chat_media,
    "responses": _responses_media,
    "anthropic": _anthropic_media,
    "gemini": _gemini_media,
    "langchain": _langchain_media,
}


def _blocks_of(
    parts: Sequence[NeutralPart], wire: str, lose: Lose, *, media: bool, text_type: str = "text"
) -> list[dict[str, Any]]:
    """Write texts and attachments as blocks (Gemini: parts); calls and answers are skipped."""
    found: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            found.append({"text": part} if wire == "gemini" else {"type": text_type, "text": part})
        elif isinstance(part, NeutralMedia):
            block = _MEDIA[wire](part) if media else None
            if block is None:
                lose("media", None)
            else:
                found.append(block)
    return found


def _plain(blocks: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """The text of a single block, else the blocks; the empty text if there are none."""
    if not blocks:
        return ""
    return str(blocks[0]["text"]) if len(blocks) == 1 and "text" in blocks[0] else blocks


def _json_of(arguments: str | dict[str, Any]) -> str:
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def _object_of(call: NeutralCall, lose: Lose) -> dict[str, Any]:
    """The arguments as an object; text that is none becomes its only member ``input``."""
    if isinstance(call.arguments, dict):
        return call.arguments
    try:
        found = json.loads(call.arguments or "{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    lose("arguments", call.call_id)
    return {"input": call.arguments}


def _refuse_constant(name: str) -> None:
    raise ValueError(name)  # NaN and infinities are no JSON


def _calls_in(item: NeutralItem) -> list[NeutralCall]:
    return [part for part in item.parts if isinstance(part, NeutralCall)]


def _answers_in(item: NeutralItem) -> list[NeutralAnswer]:
    return [part for part in item.parts if isinstance(part, NeutralAnswer)]


def _write_chat(item: NeutralItem, lose: Lose) -> Iterator[Message]:
    for answer in _answers_in(item):
        if answer.failed:
            lose("status", answer.call_id)
        content = _plain(_blocks_of(answer.content, "chat", lose, media=False))
        yield {"role": "tool", "tool_call_id": answer.call_id, "content": content}
    role = "user" if item.role == "tool" else item.role
    blocks = _blocks_of(item.parts, "chat", lose, media=role == "user")
    calls = _calls_in(item)
    if calls:
        made = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": _json_of(call.arguments)},
            }
            for call in calls
        ]
        yield {"role": role, "content": _plain(blocks) or None, "tool_calls": made}
    elif blocks:
        yield {"role": role, "content": _plain(blocks)}


def _write_responses(item: NeutralItem, lose: Lose) -> Iterator[Message]:
    for answer in _answers_in(item):
        if answer.failed:
            lose("status", answer.call_id)
        blocks = _blocks_of(answer.content, "responses", lose, media=True, text_type="input_text")
        output = _plain(blocks)
        yield {"type": "function_call_output", "call_id": answer.call_id, "output": output}
    role = "user" if item.role == "tool" else item.role
    if role == "assistant":
        for block in _blocks_of(item.parts, "responses", lose, media=False):
            yield {"type": "message", "role": role, "content": block["text"]}
    else:
        blocks = _blocks_of(
            item.parts, "responses", lose, media=role == "user", text_type="input_text"
        )
        if blocks:
            yield {"type": "message", "role": role, "content": _plain(blocks)}
    for call in _calls_in(item):
        made = {"name": call.name, "arguments": _json_of(call.arguments)}
        yield {"type": "function_call", "call_id": call.call_id, **made}


def _write_anthropic(item: NeutralItem, lose: Lose) -> Iterator[Message]:
    answers: list[dict[str, Any]] = []
    for answer in _answers_in(item):
        content = _plain(_blocks_of(answer.content, "anthropic", lose, media=True))
        block = {"type": "tool_result", "tool_use_id": answer.call_id, "content": content}
        answers.append(block | ({"is_error": True} if answer.failed else {}))
    if answers:
        yield {"role": "user", "content": answers}
    role = "user" if item.role == "tool" else item.role
    blocks = _blocks_of(item.parts, "anthropic", lose, media=role == "user")
    blocks += [
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": _object_of(call, lose)}
        for call in _calls_in(item)
    ]
    if blocks:
        yield {"role": role, "content": _plain(blocks)}


def _write_gemini(item: NeutralItem, lose: Lose) -> Iterator[Message]:
    answers: list[dict[str, Any]] = []
    for answer in _answers_in(item):
        texts = [text for text in answer.content if isinstance(text, str)]
        if len(texts) < len(answer.content):
            lose("media", answer.call_id)
        shown: Any = texts[0] if len(texts) == 1 else texts or ""
        response = {"error" if answer.failed else "output": shown}
        named = {"id": answer.call_id, "name": answer.name, "response": response}
        answers.append({"functionResponse": named})
    if answers:
        yield {"role": "user", "parts": answers}
    role = {"assistant": "model", "tool": "user"}.get(item.role, item.role)
    parts = _blocks_of(item.parts, "gemini", lose, media=role != "system")
    for call in _calls_in(item):
        made = {"id": call.call_id, "name": call.name, "args": _object_of(call, lose)}
        parts.append({"functionCall": made})
    if parts:
        yield {"role": role, "parts": parts}


def _write_langchain(item: NeutralItem, lose: Lose) -> Iterator[Message]:
    for answer in _answers_in(item):
        content = _plain(_blocks_of(answer.content, "langchain", lose, media=True))
        made: Message = {"type": "tool", "tool_call_id": answer.call_id, "content": content}
        yield made | ({"status": "error"} if answer.failed else {})
    kind = {"assistant": "ai", "system": "system"}.get(item.role, "human")
    blocks = _blocks_of(item.parts, "langchain", lose, media=kind != "system")
    calls = [
        {
            "type": "tool_call",
            "id": call.call_id,
            "name": call.name,
            "args": _object_of(call, lose),
        }
        for call in _calls_in(item)
    ]
    if blocks or calls:
        message: Message = {"type": kind, "content": _plain(blocks)}
        yield message | ({"tool_calls": calls} if calls else {})


_WRITERS: Final[dict[str, Callable[[NeutralItem, Lose], Iterator[Message]]]] = {
    "chat": _write_chat,
    "responses": _write_responses,
    "anthropic": _write_anthropic,
    "gemini": _write_gemini,
    "langchain": _write_langchain,
}


# --- Conversion of a list -------------------------------------------------------------------------


def _entries_in(entries: Sequence[WireItem], wire: str) -> tuple[list[WireItem], list[Repair]]:
    """Write the entries in a format; legality is left to rendering."""
    reader = NeutralReader(entries, wire)
    items: list[NeutralItem | WireItem] = []
    events: list[WireItem] = []
    led = False
    for at, entry in enumerate(entries):
        if entry.event:  # it may abandon a call, which rendering then answers
            events.append(entry)
            continue
        answers = reader.binding.answers[at]
        if reader.binding.is_result(at) and answers and not any(slot for _, slot in answers):
            reader.note("orphan", at, answers[0][0][1])  # elsewhere it might answer another kind
            continue
        kind = reader.binding.kinds[at]
        late = kind == ItemKind.SYSTEM and led and wire in _INSTRUCTED_FIRST
        led = led or kind != ItemKind.SYSTEM
        native = None if late else reader.native(at)
        if native is not None:
            items.append(native)
            continue
        item = reader.read(at)
        if item is None:
            continue
        if late:
            reader.note("role", at)
            item.role = "user"
        last = items[-1] if items else None
        if (
            wire != "responses"
            and item.joins
            and item.role == "assistant"
            and isinstance(last, NeutralItem)
            and last.joins
            and last.role == "assistant"
        ):
            last.parts += item.parts  # one response of the model is one message elsewhere
        else:
            items.append(item)
    found: list[WireItem] = []
    for each in items:
        if isinstance(each, WireItem):
            found.append(each)
            continue
        seq, lost = each.seq, reader.repairs

        def lose(action: str, call_id: str | None, seq: int = seq) -> None:
            lost.append(Repair(action, seq, call_id))  # noqa: B023 - one list for all

        made = list(_WRITERS[wire](each, lose))
        if not made:
            lost.append(Repair("empty", seq))
        found += [WireItem(seq, message) for message in made]
    return sorted(found + events, key=lambda entry: entry.seq), reader.repairs


def _told_apart(
    entries: list[WireItem], chars_max: int | None, *, joined: bool
) -> tuple[list[WireItem], list[Repair]]:
    """Rename calls of OpenAI Responses that share an id with another one of their response.

    ``joined``: they will be in one message, where they would be one call, whatever kinds they are;
    False: they stay items, and clash only if the first has no result before the other one.
    """
    binding = bind(entries)
    clashing: set[int] = set()
    seen: dict[Key, CallSlot] = {}
    for at, made in enumerate(binding.calls):
        is_orphan = binding.is_result(at) and not any(slot for _, slot in binding.answers[at])
        if binding.is_shown(at) and not binding.flags[at] & FLAG_MODEL and not is_orphan:
            seen.clear()
        for slot in made:
            key = (0 if joined else slot.key[0], slot.key[1])
            before = seen.setdefault(key, slot)
            if before is slot or slot.key[0] & BY_NAME:
                continue
            if joined or not before.results:
                clashing.update((before.at, at))
            seen[key] = slot
    if not clashing:
        return entries, []
    clashing.update(at for at, slot in binding.references if slot and slot.at in clashing)
    results = {at for call in clashing for slot in binding.calls[call] for at in slot.results}
    may_change = {
        entries[at].seq for at in clashing | results if is_responses_item(entries[at].message)
    }
    return rename_repeated_calls(
        entries,
        chars_max=chars_max,
        is_fixed=lambda entry: entry.seq not in may_change,
        any_kind=joined,
    )


def convert_entries(entries: Sequence[WireItem], policy: PairPolicy) -> Conversion:
    """Convert entries into a legal message list of the policy's format.

    Raises:
        InvalidItemError: a message is nested too deeply, or holds what JSON cannot express.
    """
    try:
        chosen, repairs = list(entries), list[Repair]()
        if policy.wire != "responses":
            chosen, repairs = _told_apart(chosen, policy.id_chars_max, joined=True)
        found, lost = _entries_in(chosen, policy.wire)
        repairs += lost
        if policy.wire == "responses":
            found, renamed = _told_apart(found, policy.id_chars_max, joined=False)
            repairs += renamed
        rendered = render(found, policy)
    except (RecursionError, TypeError, ValueError) as exc:
        msg = f"a message cannot be converted: {exc}"
        raise InvalidItemError(msg) from exc
    repairs += rendered.repairs
    messages = rendered.messages
    if policy.must_start:
        kinds = [classify(message)[0] for message in messages]
        first = next((at for at, kind in enumerate(kinds) if kind != ItemKind.SYSTEM), None)
        if first is not None and ItemKind(kinds[first]) not in policy.starts:
            messages.insert(first, lead_in_message(policy))
            repairs.append(Repair("lead_in", None))
    return Conversion(messages, tuple(repairs))
