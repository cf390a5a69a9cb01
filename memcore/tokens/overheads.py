"""What a request costs beside its messages: the definitions of tools, and the start of the reply.

OpenAI renders functions in a form of its own, whose tokens the cookbook ("How to count tokens with
tiktoken", num_tokens_for_tools) gives for flat schemas; nested ones are counted alike here, and
keywords that it does not know as JSON. Anthropic adds a hidden system prompt to the JSON of the
tools: 346 tokens for Claude 3.5 to 4 with ``tool_choice`` auto (159 to 530 by model; "Tool use").
All others are counted as their compact JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from memcore._fast import scan_json
from memcore.errors import InvalidItemError
from memcore.tokens.message import json_text

__all__ = ["REPLY_TOKENS", "ToolRules", "gather_tools", "tool_rules"]

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
"""Keywords of a schema that the rendering shows, or leaves out at no cost."""


class ToolRules(NamedTuple):
    """How a provider's tools are counted."""

    function_init: int | None = None
    """Tokens before each function in OpenAI's rendering; None: tools are counted as JSON."""
    hidden_prompt: int = 0
    """Tokens of the system prompt that comes with the first tool."""


def tool_rules(profile: str, encoding: str) -> ToolRules:
    """The rules of a provider's profile (a name of ``media.PROFILES``) and an encoding."""
    if profile.startswith("openai"):
        return ToolRules(function_init=10 if encoding == "cl100k_base" else 7)
    return ToolRules(hidden_prompt=346 if profile.startswith("anthropic") else 0)


def gather_tools(tools: Any, rules: ToolRules) -> tuple[int, list[str]]:
    """``(fixed tokens, texts to count)`` of the definitions of tools, in any provider's form.

    Raises:
        InvalidItemError: no list of mappings, or one that is no JSON.
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
    """The function that a tool of OpenAI (or Anthropic) defines; None: it defines none."""
    inner = tool.get("function")
    found = inner if isinstance(inner, Mapping) else tool
    return found if isinstance(found.get("name"), str) else None


def _line(*words: Any) -> str:
    return ":".join(word.removesuffix(".") if isinstance(word, str) else "" for word in words)


def _render(function: Mapping[str, Any], texts: list[str]) -> int:
    """Fixed tokens of one function; its lines go to ``texts``."""
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
