"""What an item says: its texts, calls, results and media, whatever its wire format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from memcore.errors import InvalidItemError
from memcore.model import Message
from memcore.tokens.media import Media, from_data_url, read_media
from memcore.tokens.message import HIDDEN, json_text, without_base64

__all__ = ["Part", "parts_of"]

DEPTH_MAX: Final = 8
"""Blocks in blocks; what lies deeper is shown as JSON."""
OPAQUE_CHARS_MIN: Final = 256
"""A run of so many characters of base64 says nothing to a reader."""

_OPAQUE: Final = re.compile(
    rf"(?<![\w+/=-])(?:data:[\w.+-]+/[\w.+-]+;base64,)?[A-Za-z0-9+/_=-]{{{OPAQUE_CHARS_MIN},}}+"
)
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/_=-]*+)")
_RESULT_ROLES: Final = ("tool", "function")
_CALL_BLOCKS: Final = ("tool_use", "server_tool_use", "mcp_tool_use", "program")
_ARGUMENTS: Final = ("arguments", "args", "input", "action", "operation", "code", "queries")
_ANSWERS: Final = ("output", "content", "outputs", "results", "response", "tools")
_THOUGHTS: Final = ("thinking", "reasoning", "summary", "content", "reasoning_content", "text")
_SILENT: Final = ("redacted_thinking", "input_json_delta", "item_reference")
"""Blocks in which nothing can be read."""
_WRAPPERS: Final = ("compaction", "message", "non_standard", "web_fetch_result")


class Part(NamedTuple):
    """One thing that an item says."""

    kind: str
    """``text``, ``call``, ``result`` or ``reasoning``."""
    text: str
    """A call's arguments, as JSON where they are no text; media stand as a placeholder."""
    name: str = ""
    """The tool of a call, and of a result that names it."""
    call_id: str = ""
    error: bool = False
    """Of a result: the tool failed."""


def parts_of(message: Message) -> list[Part]:
    """What a message says, in its order; empty if there is nothing to read.

    OpenAI Chat and Responses, Anthropic, Gemini, and LangChain's flat, nested and constructor
    forms. Unknown blocks stand as JSON. Deterministic; fails on no JSON object.
    """
    body = _body_of(message)
    label = _str(body, "type")
    if _is_result(message, body):
        answer = _answer(body, 0)
        return [Part("result", answer, _str(body, "name"), _call_id(body), _failed(body))]
    if "role" not in body and (_is_call(label) or _is_answer(label) or label == "reasoning"):
        return list(_block(body, 0))
    found: list[Part] = []
    found += (part._replace(kind="reasoning") for part in _blocks(body.get("reasoning_content"), 0))
    for key in ("content", "parts", "refusal"):
        found += _blocks(body.get(key), 0)
    audio = body.get("audio")
    if isinstance(audio, dict) and _str(audio, "transcript"):
        found.append(Part("text", _str(audio, "transcript")))
    if not any(part.kind == "call" for part in found):  # LangChain writes calls twice
        found += _calls(body)
    return found


def _body_of(message: Message) -> Mapping[str, Any]:
    for key in ("data", "kwargs"):
        inner = message.get(key)
        if isinstance(inner, dict) and "role" not in message:
            return inner
    return message


def _str(value: Mapping[str, Any], *keys: str) -> str:
    return next((found for key in keys if isinstance(found := value.get(key), str)), "")


def _call_id(value: Mapping[str, Any]) -> str:
    return _str(value, "call_id", "tool_call_id", "tool_use_id", "approval_request_id", "id")


def _is_call(label: str) -> bool:
    return label.endswith("_call") or label in _CALL_BLOCKS or label == "mcp_approval_request"


def _is_answer(label: str) -> bool:
    return label.endswith(("_output", "tool_result")) or label == "mcp_approval_response"


def _is_result(message: Message, body: Mapping[str, Any]) -> bool:
    """Whether the message as a whole answers one call."""
    if isinstance(body.get("parts"), list):
        return False  # Gemini's results are parts
    path = message.get("id")
    if "lc" in message and isinstance(path, list) and path:
        return path[-1] in ("ToolMessage", "FunctionMessage")
    return (
        _str(body, "role") in _RESULT_ROLES
        or _str(body, "type") in _RESULT_ROLES
        or _str(message, "type") in _RESULT_ROLES
    )


def _failed(body: Mapping[str, Any]) -> bool:
    return (
        body.get("is_error") is True
        or body.get("status") in ("error", "failed")
        or bool(body.get("error"))
    )


# --- calls ----------------------------------------------------------------------------------------


def _calls(body: Mapping[str, Any]) -> Iterator[Part]:
    """The calls that a message lists beside its content."""
    extra = body.get("additional_kwargs")
    holders = [body, extra] if isinstance(extra, dict) else [body]
    for holder in holders:
        entries: list[Any] = []
        for key in ("tool_calls", "invalid_tool_calls"):
            value = holder.get(key)
            entries += value if isinstance(value, list) else ()
        entries.append(holder.get("function_call"))
        found = [_call(entry) for entry in entries if isinstance(entry, dict)]
        if found:
            yield from found
            return


def _call(value: Mapping[str, Any]) -> Part:
    inner = value
    for key in ("function", "custom"):
        nested = value.get(key)
        if isinstance(nested, dict):
            inner = nested
    name = _str(inner, "name") or _str(value, "type").removesuffix("_call")
    for key in _ARGUMENTS:
        if inner.get(key) is not None:
            return Part("call", _text(inner[key]), name, _call_id(value))
    return Part("call", "", name, _call_id(value))


def _answer(body: Mapping[str, Any], depth: int) -> str:
    """What a result says."""
    found = [_said(body[key], depth) for key in _ANSWERS if body.get(key) is not None]
    if body.get("error"):
        found.append(_text(body["error"]))
    if isinstance(body.get("approve"), bool):
        found.append("approved" if body["approve"] else "not approved")
    return "\n".join(text for text in found if text)


def _said(value: Any, depth: int) -> str:
    if isinstance(value, list | str):
        return "\n".join(part.text for part in _blocks(value, depth + 1) if part.text)
    if not isinstance(value, dict):
        return _text(value)
    if "type" in value:
        return "\n".join(part.text for part in _block(value, depth + 1) if part.text)
    if len(value) == 1:
        return _text(next(iter(value.values())))
    return _text(value)


# --- blocks ---------------------------------------------------------------------------------------


def _blocks(value: Any, depth: int) -> Iterator[Part]:
    if isinstance(value, str):
        if value:
            yield Part("text", readable(value))
    elif isinstance(value, dict):
        yield from _block(value, depth)
    elif isinstance(value, list):
        for block in value:
            yield from _blocks(block, depth)


def _block(block: Mapping[str, Any], depth: int) -> Iterator[Part]:
    label = _str(block, "type")
    if label in _SILENT:
        return
    if depth > DEPTH_MAX:
        yield Part("text", _text(block))
    elif label.endswith("thinking") or label.startswith("reasoning"):
        yield from _thought(block, depth)
    elif _is_call(label):
        yield _call(block)
        answer = "" if label in _CALL_BLOCKS else _answer(block, depth)
        if answer or _picture(block):
            yield Part("result", answer or "[image]", "", _call_id(block), _failed(block))
    elif _is_answer(label):
        error = _failed(block)
        yield Part("result", _answer(block, depth), _str(block, "name"), _call_id(block), error)
    elif not label and (parts := list(_gemini(block))):
        yield from parts
    else:
        yield from _plain(block, depth)


def _picture(block: Mapping[str, Any]) -> bool:
    return _str(block, "type") == "image_generation_call" and bool(block.get("result"))


def _thought(block: Mapping[str, Any], depth: int) -> Iterator[Part]:
    for key in _THOUGHTS:
        for part in _blocks(block.get(key), depth + 1):
            yield Part("reasoning", part.text)


def _gemini(part: Mapping[str, Any]) -> Iterator[Part]:
    """A part of Gemini that is a call, a result, or code that the provider ran."""
    for key in ("functionCall", "function_call", "executableCode", "executable_code"):
        value = part.get(key)
        if isinstance(value, dict):
            found = _call(value)
            yield found if found.name else found._replace(name="code")
    for key in ("functionResponse", "function_response"):
        value = part.get(key)
        if isinstance(value, dict):
            response = value.get("response")
            failed = isinstance(response, dict) and bool(response.get("error"))
            yield Part("result", _said(response, 0), _str(value, "name"), _call_id(value), failed)
    for key in ("codeExecutionResult", "code_execution_result"):
        value = part.get(key)
        if isinstance(value, dict):
            failed = _str(value, "outcome") not in ("", "OUTCOME_OK")
            yield Part("result", _answer(value, 0), "code", "", failed)


def _plain(block: Mapping[str, Any], depth: int) -> Iterator[Part]:
    """A text, a picture, a document, or something unknown."""
    media = read_media(block)
    if media is not None:
        if media[0] is not None:
            name = _str(block, "title", "filename", "file_name", "name")
            yield Part("text", placeholder(media[0], name))
        else:
            yield from _blocks(media[1][1:], depth + 1)
        return
    text = _str(block, "text", "refusal")
    if text:
        yield Part("reasoning" if block.get("thought") is True else "text", readable(text))
    elif _str(block, "type") in _WRAPPERS:
        yield from _blocks(block.get("content", block.get("value")), depth + 1)
    elif "text" not in block:
        yield Part("text", _text(block))


def placeholder(media: Media, name: str = "") -> str:
    """What stands for a picture, a recording or a document: ``[image image/png 640x480]``."""
    words = [media.kind, name, media.mime]
    if media.width is not None:
        words.append(f"{media.width}x{media.height}")
    elif media.seconds is not None:
        words.append(f"{media.seconds:.0f} s")
    elif media.size_bytes is not None:
        words.append(f"{media.size_bytes} bytes")
    return f"[{' '.join(word for word in words if word)}]"


# --- texts ----------------------------------------------------------------------------------------


def readable(text: str) -> str:
    """The text without base64: a placeholder stands for a data URL and for long opaque runs."""
    if "base64," in text:
        text = _DATA_URL.sub(lambda found: placeholder(from_data_url(found[1], found[2])), text)
        text = without_base64(text, [])  # the rarer forms
    if len(text) < OPAQUE_CHARS_MIN:
        return text
    return _OPAQUE.sub(lambda found: f"[{len(found[0])} opaque characters]", text)


def _text(value: Any) -> str:
    """A JSON value as a readable text; hidden members of an object (signatures) are left out."""
    if isinstance(value, str):
        return readable(value)
    if value is None:
        return ""
    if isinstance(value, dict):
        value = {key: entry for key, entry in value.items() if key not in HIDDEN}
    try:
        return readable(json_text(value))
    except InvalidItemError:
        return "[nested too deeply to be shown]"
