"""What no redaction may change: what frameworks and providers pair, route and verify by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = [
    "ALWAYS_IDS",
    "DATA_KEYS",
    "ID_KEYS",
    "INHERITING_KEYS",
    "is_envelope",
    "is_media",
    "is_protected",
    "is_structure",
    "looks_like_id",
]

ALWAYS_IDS: Final = frozenset(
    ("tool_call_id", "tool_use_id", "call_id", "toolCallId", "toolUseId", "callId")
)
"""Ids of calls: wherever they stand."""
ID_KEYS: Final = frozenset(("id", "_id", "uuid", "UUID"))
"""Ids in arguments, results and states: a number there is no telephone number."""
_IDS: Final = ALWAYS_IDS | frozenset(
    (
        "id", "response_id", "previous_response_id", "responseId", "item_id", "message_id",
        "request_id", "run_id", "thread_id", "checkpoint_id", "conversation_id", "event_id",
        "invocation_id", "invocationId", "interaction_id", "approval_request_id", "container_id",
        "file_id", "vector_store_id", "parent_id", "trace_id", "span_id", "user_id", "session_id",
        "long_running_tool_ids", "longRunningToolIds", "caller", "uuid", "server_label",
    )
)  # fmt: skip
_STRUCTURE: Final = frozenset(
    (
        "type", "role", "name", "object", "status", "model", "phase", "finish_reason",
        "finishReason", "stop_reason", "media_type", "mime_type", "mimeType", "namespace", "author",
        "branch", "detail", "lc",
    )
)  # fmt: skip
_SEALED: Final = frozenset(
    (
        "signature", "thought_signature", "thoughtSignature", "encrypted_content", "fingerprint",
        "system_fingerprint", "encrypted_index", "encrypted_stdout", "pending_safety_checks",
        "acknowledged_safety_checks",
    )
)  # fmt: skip
_ROLES: Final = frozenset(
    ("user", "assistant", "system", "developer", "tool", "function", "model", "human", "ai")
)
_TYPES: Final = frozenset(
    (
        "text", "message", "function", "human", "ai", "system", "tool", "constructor", "custom",
        "reasoning", "thinking", "redacted_thinking", "refusal", "image", "audio", "video", "file",
        "document", "image_url", "input_audio", "base64", "url", "content", "summary", "compaction",
        "item_reference", "remove", "AIMessageChunk", "HumanMessageChunk", "ToolMessageChunk",
        "chat", "non_standard", "citation", "ephemeral", "search_result", "json", "object",
    )
)  # fmt: skip
_TYPE_ENDS: Final = (
    "_call", "_output", "_result", "_use", "_text", "_image", "_file", "_request", "_response",
    "_chunk", "_block", "_tools", "_location", "_citation", "_screenshot", "_error", "_call_chunk",
)  # fmt: skip
DATA_KEYS: Final = frozenset(
    (
        "arguments", "input", "args", "response", "output", "result", "state_delta", "stateDelta",
        "artifact", "structured_content", "structuredContent",
    )
)  # fmt: skip
"""Keys of messages below which any key may stand."""
INHERITING_KEYS: Final = frozenset(
    ("number", "value", "no", "num", "digits", "raw", "formatted", "text", "default")
)
"""Keys that say nothing: what they hold is what the key around them says."""
_MARKS: Final = frozenset(
    (
        "parts", "tool_calls", "toolCalls", "function", "functionCall", "function_call",
        "functionResponse", "function_response", "tool_call_id", "call_id", "invocation_id",
        "invocationId", "thought_signature", "thoughtSignature", "inline_data", "inlineData",
    )
)  # fmt: skip
_MEDIA_KEYS: Final = frozenset(("data", "result", "b64_json", "image_base64"))
_ID_CHARS_MAX: Final = 512
_MEDIA_CHARS_MIN: Final = 32
_BASE64: Final = re.compile(r"[A-Za-z0-9+/=_\-\s]*", re.ASCII)


def is_envelope(value: Mapping[Any, Any]) -> bool:
    """Whether a dict is a message, one of its blocks or a call: it has a structure of its own."""
    role, sort = value.get("role"), value.get("type")
    if isinstance(role, str) and role in _ROLES:
        return True
    if isinstance(sort, str) and (sort in _TYPES or sort.endswith(_TYPE_ENDS)):
        return True
    if isinstance(value.get("name"), str) and ("args" in value or "arguments" in value):
        return True
    return not _MARKS.isdisjoint(value)


def is_structure(key: str, entry: Any) -> bool:
    """Whether an entry of a message or block builds it: only secrets in it are replaced."""
    return key in _STRUCTURE and looks_like_id(entry)


def is_protected(key: str, entry: Any) -> bool:
    """Whether an entry of a message or block is left as it is."""
    if key in _SEALED:
        return True
    return key in _IDS and not isinstance(entry, dict)


def is_media(block: Mapping[Any, Any], key: str) -> bool:
    """Whether an entry is media in base64, or what a provider encrypted."""
    if key not in _MEDIA_KEYS:
        return False
    entry = block[key]
    if not isinstance(entry, str) or len(entry) < _MEDIA_CHARS_MIN or not _BASE64.fullmatch(entry):
        return False
    if key == "data":
        return (
            block.get("type") in ("base64", "redacted_thinking")
            or "mime_type" in block
            or "mimeType" in block
            or isinstance(block.get("format"), str)
        )
    if key == "result":
        return block.get("type") == "image_generation_call"
    return True


def looks_like_id(value: Any) -> bool:
    """Whether a value may be the id of a call: one word without an @."""
    if not isinstance(value, str):
        return isinstance(value, int)
    return len(value) <= _ID_CHARS_MAX and "@" not in value and not any(map(str.isspace, value))
