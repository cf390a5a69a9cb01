"""Expiry of messages: roles, types, ids and tool names stay, texts are replaced.

Only the fields listed here are copied, so nothing is retained by mistake. The calls and results of
a message stay, so a history remains as legal as it was.
"""

from __future__ import annotations

from typing import Any, Final

from memcore._fast import classify
from memcore.model import ItemKind, Message

__all__ = [
    "EXPIRED_TEXT",
    "expired_event",
    "expired_message",
]


EXPIRED_TEXT: Final = "[expired]"
"""Replacement for a text."""

_SCALARS: Final = frozenset((
    "role", "type", "id", "call_id", "tool_call_id", "tool_use_id", "approval_request_id",
    "caller_id", "container_id", "server_label", "server_name", "status", "is_error", "execution",
    "approve", "index", "lc",
))  # fmt: skip
"""Copied unchanged, unless they hold a list or an object."""
_CALLS: Final = (
    "tool_calls", "invalid_tool_calls", "function_call", "functionCall", "function", "custom",
    "caller",
)  # fmt: skip
"""Descended into: they hold calls, so names in them are names of tools."""
_INPUTS: Final = frozenset(("arguments", "input", "args"))
_ANSWERS: Final = ("functionResponse", "function_response")
_DROPPED_BLOCKS: Final = frozenset(("thinking", "redacted_thinking", "reasoning"))
_CALL_BLOCKS: Final = frozenset((
    "tool_use", "tool_call", "invalid_tool_call", "server_tool_use", "mcp_tool_use",
    "server_tool_call",
))  # fmt: skip
_BLANK: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4"
    "DwABAQEAHLCMmQAAAABJRU5ErkJggg=="
)
"""An image of one pixel, where the provider takes no result without one."""
_NAMED: Final = frozenset(("mcp_call", "mcp_approval_request"))
"""Responses items that are neither calls of this agent's tools nor results, and name a tool."""
_REQUIRED: Final[dict[str, dict[str, Any]]] = {
    "local_shell_call": {"action": {"type": "exec", "command": [], "env": {}}},
    "shell_call": {"action": {"commands": []}},
    "apply_patch_call": {"operation": {"type": "delete_file", "path": ""}},
    "computer_call": {"action": {"type": "screenshot"}, "pending_safety_checks": []},
    "web_search_call": {"action": {"type": "search", "query": ""}},
    "file_search_call": {"queries": []},
    "code_interpreter_call": {"code": None, "outputs": None},
    "image_generation_call": {"result": None},
    "tool_search_output": {"tools": []},
    "mcp_list_tools": {"tools": []},
    "additional_tools": {"tools": []},
    "program": {"code": "", "fingerprint": ""},
    "reasoning": {"summary": []},
}
"""Fields that a provider requires in Responses items in addition to ids and texts."""
_SEALED: Final = {"type": "configuration_update"}
"""Stands for an item that is nothing but encrypted content: an update that changes nothing.

The provider refuses a ``compaction`` with any other content than the one it has made.
"""


def expired_message(message: Message, text: str = EXPIRED_TEXT) -> Message:
    """Return a message with the same kind, calls and results, but no texts or reasoning.

    Reasoning is removed because its signature would no longer match the content.

    Args:
        message: in any wire format.
        text: the replacement for every non-empty text of the message.
    """
    if message.get("type") == "constructor" and isinstance(message.get("kwargs"), dict):
        named: Message = {key: message[key] for key in ("lc", "type", "id") if key in message}
        return named | {"kwargs": _nested(message["kwargs"], message, text)}
    if message.get("type") == "compaction" and message.get("role") is None:
        return dict(_SEALED)
    if isinstance(message.get("data"), dict) and not isinstance(message.get("role"), str):
        kept = _kept(message)
        return kept | {"data": _nested(message["data"], message, text)}
    return _body(message, text, named=_is_named(message))


def expired_event(message: Message) -> Message:
    """An event reduced to its type; an abandon event also keeps its payload, the abandoned call."""
    kept = message if message.get("type") == "abandon" else message | {"payload": None}
    return dict(kept)


def _nested(body: dict[str, Any], message: Message, text: str) -> dict[str, Any]:
    """Reduce the fields of LangChain's nested spellings."""
    if isinstance(body.get("data"), dict):
        return _kept(body) | {"data": _nested(body["data"], message, text)}
    return _body(body, text, named=_is_named(message))


def _is_named(message: Message) -> bool:
    """Return whether the message's ``name`` is the name of a tool."""
    kind, said = classify(message)[0], message.get("type")
    if isinstance(said, str) and said in _NAMED:
        return True
    return kind in (ItemKind.RESULT, ItemKind.CALL) and message.get("role") != "assistant"


def _kept(body: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in body.items()
        if key in _SCALARS and not isinstance(value, dict | list)
    }


def _body(body: dict[str, Any], text: str, *, named: bool) -> dict[str, Any]:
    """Reduce a message, or the fields of a nested one."""
    found = _kept(body)
    if named and isinstance(body.get("name"), str):
        found["name"] = body["name"]
    found |= _calls(body)
    kind = body.get("type")
    is_response = kind == "message" or (isinstance(kind, str) and body.get("role") is None)
    if "content" in body:
        found["content"] = _content(body["content"], text, body)
    if isinstance(body.get("parts"), list):
        found["parts"] = _parts(body["parts"], text)
    for name in ("output", "refusal", "result"):
        if name in body:
            found[name] = _output(body[name], text)
    if is_response and isinstance(kind, str) and kind in _REQUIRED:
        found |= {key: value for key, value in _REQUIRED[kind].items() if key in body}
    extra = body.get("additional_kwargs")
    if isinstance(extra, dict):
        found["additional_kwargs"] = _calls(extra)
    if found.get("content", "") is None and not _has_calls(found):
        found["content"] = text  # it held nothing but audio or a refusal
    return found


def _has_calls(found: dict[str, Any]) -> bool:
    return any(found.get(name) for name in (*_CALLS, "refusal"))


def _calls(body: dict[str, Any]) -> dict[str, Any]:
    """The calls of a message, without their arguments."""
    found: dict[str, Any] = {}
    for name in _CALLS:
        value = body.get(name)
        if isinstance(value, dict):
            found[name] = _call(value)
        elif isinstance(value, list):
            found[name] = [_call(each) for each in value if isinstance(each, dict)]
    for name in _INPUTS & body.keys():
        found[name] = _emptied(body[name], name)
    return found


def _call(body: dict[str, Any]) -> dict[str, Any]:
    found = _kept(body)
    if isinstance(body.get("name"), str):
        found["name"] = body["name"]
    return found | _calls(body)


def _emptied(value: Any, name: str) -> Any:
    """Empty arguments of the same form as the given ones."""
    if isinstance(value, str):
        return "{}" if value and name == "arguments" else ""
    return [] if isinstance(value, list) else {} if isinstance(value, dict) else None


def _output(value: Any, text: str) -> Any:
    """Expired result of a Responses item."""
    if isinstance(value, str):
        return text if value else ""
    if isinstance(value, list):
        if any(isinstance(each, dict) and "stdout" in each for each in value):
            return [{"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
        return [{"type": "input_text", "text": text}] if value else []
    if not isinstance(value, dict):
        return None
    is_shot = "image_url" in value or "file_id" in value
    return _kept(value) | ({"image_url": _BLANK} if is_shot else {})


def _content(value: Any, text: str, body: dict[str, Any]) -> Any:
    if isinstance(value, str):
        return text if value else ""
    if not isinstance(value, list):
        return None
    found: list[Any] = []
    said = False
    for block in value:
        made = _block(block, text) if isinstance(block, dict) else None
        if made is not None:
            found.append(made)
        elif not isinstance(block, dict) or block.get("type") not in _DROPPED_BLOCKS:
            said = True
    if value and (said or not found):
        found.insert(0, _text_block(value, text, body))
    return sorted(found, key=_order) if _is_answered(found) else found


def _is_answered(blocks: list[Any]) -> bool:
    return any(block.get("type") == "tool_result" for block in blocks)


def _order(block: dict[str, Any]) -> bool:
    """Sort key that puts results before texts."""
    return block.get("type") != "tool_result"


def _block(block: dict[str, Any], text: str) -> dict[str, Any] | None:
    """Expired block that makes or answers a call; None for any other block."""
    kind = block.get("type")
    if not isinstance(kind, str):
        return None
    if kind in _CALL_BLOCKS:
        return _call(block)
    if kind in {"tool_result", "mcp_tool_result"}:
        found = _kept(block)
        if "content" in block:
            found["content"] = _content(block["content"], text, block)
        return found
    if kind == "server_tool_result" or kind.endswith("_tool_result"):
        error = {"type": f"{kind}_error", "error_code": "unavailable"}
        return _kept(block) | ({"content": error} if block.get("content") else {})
    return None


def _text_block(value: list[Any], text: str, body: dict[str, Any]) -> dict[str, Any]:
    kinds = {block.get("type") for block in value if isinstance(block, dict)}
    if "output_text" in kinds or ("refusal" in kinds and body.get("type") == "message"):
        blocks = [block for block in value if isinstance(block, dict)]
        found: dict[str, Any] = {"type": "output_text"}
        if any("text" in block or "refusal" in block for block in blocks):
            found["text"] = text
        return found | ({"annotations": []} if any("annotations" in b for b in blocks) else {})
    is_input = any(isinstance(kind, str) and kind.startswith("input_") for kind in kinds)
    is_input = is_input and "input_audio" not in kinds
    return {"type": "input_text" if is_input else "text", "text": text}


def _parts(value: list[Any], text: str) -> list[Any]:
    """Expired parts of a Gemini content."""
    found: list[Any] = []
    said = False
    for part in value:
        made = _part(part, text) if isinstance(part, dict) else None
        if made is not None:
            found.append(made)
        elif not isinstance(part, dict) or part.get("thought") is not True:
            said = True
    if value and (said or not found):
        found.insert(0, {"text": text})
    return found


def _part(part: dict[str, Any], text: str) -> dict[str, Any] | None:
    for name in ("functionCall", "function_call"):
        if isinstance(part.get(name), dict):
            return {name: _call(part[name])}
    for name in _ANSWERS:
        if isinstance(part.get(name), dict):
            answer = part[name]
            found = _kept(answer)
            if isinstance(answer.get("name"), str):
                found["name"] = answer["name"]
            if "response" in answer:
                found["response"] = {"output": text} if answer["response"] else {}
            return {name: found}
    return None
