"""Token count of a message: the rules, and their reference implementation in plain Python.

Everything is counted on the message's compact JSON, as it is stored; no code of the caller's
objects runs. (The C implementation walks the message from which this JSON was just made, which may
not change in between.) A message costs a fixed part, each of its texts separately, and its media:

1. A message costs 3 (OpenAI's cookbook, "How to count tokens with tiktoken"), plus the costs of its
   members. A member is judged by its key and value, at any depth, by the first rule that applies.
2. Hidden: a key in ``HIDDEN``, the key ``id``, and a key that ends in ``_id`` or ``Id`` cost
   nothing, whatever their value. The key ``data`` is hidden if its value is a string without a
   space in its first 256 characters (it is base64 or opaque).
3. Structured: an object or array under a key in ``STRUCTURED`` is one text: its compact JSON.
4. A string is one text. An object costs its members, an array its elements. Numbers, true, false
   and null cost nothing.
5. A string under ``name`` that is counted costs 1 more (the cookbook again).
6. Framed: a member under a key in ``FRAMED`` costs 3 more, unless it is null or a member of the
   message object itself: a call, and a result among several, is rendered as a separate message.
   This applies to ``tool_use_id`` too, which is itself hidden.
7. Of ``additional_kwargs`` only the member ``function_call`` counts; the rest repeats other fields.
8. ``tool_calls`` and ``invalid_tool_calls`` cost nothing next to a ``content`` array in which an
   object has the ``type`` ``tool_use`` or ``tool_call``: LangChain writes such calls twice.
9. Media: an object that ``media.read_media`` recognises (not inside a structured text) costs its
   estimate, and the values that this function returns besides are judged by these rules.
10. A text that holds ``data:...;base64,`` and at least 256 characters of base64 loses these
    characters and costs an estimate for them instead.

Unknown fields count as text: too high a count is safer than too low a one. Rules 9 and 10 apply
only to messages for which ``media.may_hold_media`` is true.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from memcore._fast import scan_json
from memcore.errors import InvalidItemError
from memcore.tokens.media import INLINE_KEYS, Media, from_data_url, read_media

__all__ = [
    "FRAMED",
    "HIDDEN",
    "REPLY_TOKENS",
    "STRUCTURED",
    "Gathered",
    "ToolRules",
    "gather",
    "gather_tools",
    "json_text",
    "tool_rules",
    "without_base64",
]


# --- Token count of a message: the reference implementation of the rules --------------------------

MESSAGE_TOKENS: Final = 3
NAME_TOKENS: Final = 1
FRAME_TOKENS: Final = 3
COSTS: Final = (MESSAGE_TOKENS, NAME_TOKENS, FRAME_TOKENS)
DATA_URL_CHARS_MIN: Final = 256
OPAQUE_CHARS: Final = 256

HIDDEN: Final = frozenset((
    # labels
    "type", "status", "phase", "execution", "caller", "object", "lc",
    "mime_type", "mimeType", "media_type",
    # opaque
    "signature", "thoughtSignature", "thought_signature", "encrypted_content", "encrypted_index",
    "encrypted_stdout", "blob", "b64_json",
    # hints and bookkeeping
    "cache_control", "prompt_cache_breakpoint", "annotations", "citations", "logprobs", "usage",
    "usage_metadata", "response_metadata", "metadata", "model", "stop_reason", "stop_sequence",
    "finish_reason", "service_tier", "system_fingerprint", "container", "context_management",
    "created_at",
    # not seen by the model, or seen elsewhere
    "tool_call_chunks", "artifact", "provider_specific_fields", "reasoning_details",
    "videoMetadata", "video_metadata",
))  # fmt: skip
STRUCTURED: Final = frozenset((
    "arguments", "args", "input", "response", "action", "operation", "parameters", "input_schema",
    "tools", "json",
))  # fmt: skip
FRAMED: Final = frozenset(("arguments", "args", "input", "response", "tool_use_id"))
_KEY_SETS: Final = (
    (1, HIDDEN | {"id", "tool_use_id"}),
    (2, STRUCTURED),
    (4, FRAMED),
    (8, {"name"}),
    (16, {"data"}),
    (32, {"tool_calls", "invalid_tool_calls"}),
    (64, {"content"}),
    (128, {"type"}),
    (256, INLINE_KEYS),
    (512, {"additional_kwargs"}),
)
KEY_BITS: Final[dict[str, int]] = {
    key: sum(bit for bit, keys in _KEY_SETS if key in keys)
    for key in sorted({key for _, keys in _KEY_SETS for key in keys})
}
"""The rules by key, for ``_fast.MessageCounter``, which defines the bits: hidden, structured,
framed, name, data, calls, content, type, inline media, and keys that it leaves to this module."""
_REPEATING: Final = frozenset(("additional_kwargs", "tool_calls", "invalid_tool_calls"))
_WRITTEN_CALLS: Final = frozenset(("tool_use", "tool_call"))

_DATA_URL: Final = re.compile(
    r"data:((?:[\w.+-]{1,64}\\?/[\w.+-]{1,64})?)[^,]{0,256}?;(?:base64|BASE64),\s{0,4}"
    # Possessive, so without backtracking. Lines are joined if base64 certainly follows; slashes may
    # be escaped (JSON in a string), and + / = may be written as in a URL.
    r"((?>[\w+/=-]++|%2[BbFf]|%3[Dd]|\\/|(?:\r?\n|\\r|\\n)[ \t]{0,8}(?=[\w+/-]{40}))++)",
    re.ASCII,
)
json_bytes: Final[Callable[[Any], bytes]] = partial(
    orjson.dumps, option=orjson.OPT_PASSTHROUGH_SUBCLASS
)
"""Compact JSON of a value of plain types, without a Python frame. TypeError: only the standard
library can write it (big integers, lone surrogates, subclasses)."""


class Gathered(NamedTuple):
    """Countable parts of a message: fixed tokens, texts, media."""

    fixed: int
    """Tokens that do not depend on the counter."""
    texts: list[str]
    media: list[Media]


def json_text(value: Any) -> str:
    """Compact JSON text of a JSON value, as items are stored (``codec.encode_json``).

    Raises:
        InvalidItemError: it is not a JSON value, is circular or is nested too deeply.
    """
    try:
        return json_bytes(value).decode()
    except TypeError:
        pass
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as exc:
        msg = f"a value that is to be counted cannot be written as JSON: {exc}"
        raise InvalidItemError(msg) from exc


def without_base64(text: str, media: list[Media]) -> str:
    """Apply rule 10: remove the base64 of a text's data URLs, adding their media to ``media``."""
    if ";base64," not in text and ";BASE64," not in text:
        return text
    kept, done = [], 0
    for found in _DATA_URL.finditer(text):
        if len(found[2]) < DATA_URL_CHARS_MIN:
            continue
        media.append(from_data_url(found[1].replace("\\", ""), found[2]))
        kept.append(text[done : found.start(2)])
        done = found.end(2)
    return "".join((*kept, text[done:])) if kept else text


def _read(encoded: bytes) -> Any:
    try:
        return json.loads(encoded.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as exc:
        msg = f"a message of {len(encoded)} bytes cannot be counted, it is no JSON: {exc}"
        raise InvalidItemError(msg) from exc


def _is_hidden(key: str, entry: Any) -> bool:
    """Apply rule 2."""
    if key == "data":
        return type(entry) is str and " " not in entry[:OPAQUE_CHARS]
    return key in HIDDEN or key == "id" or key.endswith(("_id", "Id"))


def gather(encoded: bytes) -> Gathered:
    """Collect the countable parts of a message from its compact JSON, by this module's rules.

    Raises:
        InvalidItemError: ``encoded`` is not JSON, or is nested too deeply for the stack.
    """
    walk = _MessageWalk()
    message = _read(encoded)
    if type(message) is dict:
        walk.members(message, framed=False)
    while walk.pending:
        walk.value(walk.pending.pop())
    return Gathered(walk.fixed, walk.texts, walk.media)


class _MessageWalk:
    """One walk over a message, without recursion."""

    __slots__ = ("fixed", "media", "pending", "texts")

    def __init__(self) -> None:
        self.fixed = MESSAGE_TOKENS
        self.texts: list[str] = []
        self.media: list[Media] = []
        self.pending: list[Any] = []

    def value(self, value: Any) -> None:
        """Apply rule 4."""
        kind = type(value)
        if kind is str:
            self.text(value)
        elif kind is list:
            self.pending += value
        elif kind is dict:
            self.members(value, framed=True)

    def text(self, text: str) -> None:
        """Apply rule 10."""
        text = without_base64(text, self.media)
        if text:
            self.texts.append(text)

    def members(self, value: dict[str, Any], *, framed: bool) -> None:
        """Count the members of an object; ``framed`` is false for the message itself."""
        found = read_media(value)
        if found is not None:
            if found[0] is not None:
                self.media.append(found[0])
            self.pending += found[1]
            return
        for key, entry in value.items():
            if framed and key in FRAMED and entry is not None:
                self.fixed += FRAME_TOKENS
            if _is_hidden(key, entry):
                continue
            if key in STRUCTURED and type(entry) in (dict, list):
                self.text(json_text(entry))
                continue
            if key == "name" and type(entry) is str:
                self.fixed += NAME_TOKENS
            self.pending.append(_unrepeated(value, key) if key in _REPEATING else entry)


def _unrepeated(value: dict[str, Any], key: str) -> Any:
    """Apply rules 7 and 8: the countable part of a member that may repeat other members."""
    entry = value[key]
    if key == "additional_kwargs":
        return {"function_call": entry.get("function_call")} if type(entry) is dict else None
    return None if _writes_calls(value.get("content")) else entry


def _writes_calls(content: Any) -> bool:
    return type(content) is list and any(
        type(block) is dict and _label(block) in _WRITTEN_CALLS for block in content
    )


def _label(block: dict[str, Any]) -> str:
    label = block.get("type")
    return label if isinstance(label, str) else ""


# --- Costs of a request in addition to its messages: tool definitions, start of the reply ---------
# OpenAI renders functions in a form of its own, whose tokens the cookbook ("How to count tokens
# with tiktoken", num_tokens_for_tools) gives for flat schemas; nested ones are counted the same way
# here, and keywords that it does not know as JSON. Anthropic adds a hidden system prompt to the
# JSON of the tools: 346 tokens for Claude 3.5 to 4 with ``tool_choice`` auto (159 to 530 by model;
# "Tool use"). All others are counted as their compact JSON.

REPLY_TOKENS: Final = 3
"""Every reply is primed with the start of the assistant's message (the cookbook)."""
_PROPERTY_INIT: Final = 3
_PROPERTY_KEY: Final = 3
_ENUM_INIT: Final = -3
_ENUM_ITEM: Final = 3
_FUNCTION_END: Final = 12
_RENDERED: Final = frozenset((
    "type", "description", "enum", "properties", "items", "required", "additionalProperties",
    "title", "strict",
))  # fmt: skip
"""Keywords of a schema that the rendering shows, or omits at no cost."""


class ToolRules(NamedTuple):
    """Rules for counting a provider's tools."""

    function_init: int | None = None
    """Tokens before each function in OpenAI's rendering; None: tools are counted as JSON."""
    hidden_prompt: int = 0
    """Tokens of the system prompt that comes with the first tool."""


def tool_rules(profile: str, encoding: str) -> ToolRules:
    """Return the rules for a provider's profile (a name in ``media.PROFILES``) and an encoding."""
    if profile.startswith("openai"):
        return ToolRules(function_init=10 if encoding == "cl100k_base" else 7)
    return ToolRules(hidden_prompt=346 if profile.startswith("anthropic") else 0)


def gather_tools(tools: Any, rules: ToolRules) -> tuple[int, list[str]]:
    """Collect ``(fixed tokens, texts to count)`` of tool definitions in any provider's form.

    Raises:
        InvalidItemError: it is not a list of mappings, or one of them is not JSON.
    """
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        msg = f"tools: expected a list of mappings, got {type(tools).__name__}"
        raise InvalidItemError(msg)
    texts: list[str] = []
    fixed = 0
    for at, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            msg = f"tools[{at}]: expected a mapping, got {type(tool).__name__}"
            raise InvalidItemError(msg)
        plain = tool if type(tool) is dict else dict(tool)
        if scan_json(plain):
            msg = (
                f"tools[{at}] cannot be written as JSON: expected str, int, finite float, bool, "
                "None, lists and dicts with str keys, not circular, at most 512 levels deep"
            )
            raise InvalidItemError(msg)
        found = None if rules.function_init is None else _function(plain)
        if found is None:
            texts.append(json_text(plain))
        else:
            fixed += rules.function_init or 0
            fixed += _render(found, texts)
    if not tools:
        return 0, texts
    end = _FUNCTION_END if rules.function_init is not None else rules.hidden_prompt
    return fixed + end, texts


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the function that an OpenAI (or Anthropic) tool defines, None if it defines none."""
    inner = tool.get("function")
    found = inner if isinstance(inner, Mapping) else tool
    return found if isinstance(found.get("name"), str) else None


def _line(*words: Any) -> str:
    return ":".join(word.removesuffix(".") if isinstance(word, str) else "" for word in words)


def _render(function: Mapping[str, Any], texts: list[str]) -> int:
    """Return the fixed tokens of one function, and append its lines to ``texts``."""
    texts.append(_line(function["name"], function.get("description")))
    schema = function.get("parameters", function.get("input_schema"))
    fixed = 0
    pending = [schema]
    while pending:
        schema = pending.pop()
        if not isinstance(schema, Mapping):
            continue
        rest = {key: value for key, value in schema.items() if key not in _RENDERED}
        if rest:
            texts.append(json_text(rest))
        pending.append(schema.get("items"))
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            continue
        fixed += _PROPERTY_INIT
        for key, value in properties.items():
            fixed += _PROPERTY_KEY + _property(str(key), value, texts)
            pending.append(value)
    return fixed


def _property(key: str, schema: Any, texts: list[str]) -> int:
    if not isinstance(schema, Mapping):
        texts.append(key)
        return 0
    kind = schema.get("type")
    texts.append(
        _line(key, kind if isinstance(kind, str) else json_text(kind), schema.get("description"))
    )
    items = schema.get("enum")
    if not isinstance(items, list | tuple):
        return 0
    texts += [item if isinstance(item, str) else json_text(item) for item in items]
    return _ENUM_INIT + _ENUM_ITEM * len(items)
