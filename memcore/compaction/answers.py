"""What a provider answered, as a summary or as the reason why it is none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from memcore.errors import SummarizerError

__all__ = ["checked_summary", "from_anthropic", "from_chat", "from_responses"]

_THOUGHT: Final = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
"""Models that are served as they are write their reasoning in front of the answer."""
_SAID_CHARS: Final = 200
_REASONS: Final[Mapping[str, str]] = {
    "length": "cut",
    "max_tokens": "cut",
    "max_output_tokens": "cut",
    "model_context_window_exceeded": "cut",
    "content_filter": "refused",
    "refusal": "refused",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "pause_turn": "tool_calls",
    "error": "failed",
}
_WORDS: Final[Mapping[str, str]] = {
    "cut": "was cut at its token limit: raise max_tokens, or ask for a shorter summary",
    "refused": "was refused by the model or a content filter",
    "empty": "holds no text",
    "tool_calls": "calls a tool instead of writing a summary",
    "failed": "is an error, or has not the form that was expected",
}


def _get(value: Any, name: str) -> Any:
    """A member of an object of a client library, or of plain JSON."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _list(value: Any, name: str) -> list[Any]:
    found = _get(value, name)
    return list(found) if isinstance(found, list | tuple) else []


def _error(who: str, reason: str, said: Any = None) -> SummarizerError:
    tail = f" ({str(said)[:_SAID_CHARS]})" if said else ""
    return SummarizerError(f"{who}: the answer {_WORDS[reason]}{tail}", reason=reason)


def checked_summary(who: str, answer: Any) -> str:
    """The text of a summary, without space around it.

    Raises:
        SummarizerError: it is no text, or an empty one.
    """
    if not isinstance(answer, str):
        raise _error(who, "failed", f"a text was expected, it is {type(answer).__name__}")
    text = _THOUGHT.sub("", answer).strip()
    if not text:
        raise _error(who, "empty")
    return text


def _check_end(who: str, end: Any) -> None:
    reason = _REASONS.get(end) if isinstance(end, str) else None
    if reason is not None:
        raise _error(who, reason, end)


def _joined(blocks: list[Any], *kinds: str) -> str:
    texts = [_get(block, "text") for block in blocks if _get(block, "type") in kinds]
    return "".join(text for text in texts if isinstance(text, str))


def from_chat(who: str, answer: Any) -> str:
    """The summary in an answer of Chat Completions (OpenAI, LiteLLM and all that speak it).

    Raises:
        SummarizerError: it holds none.
    """
    choices = _list(answer, "choices")
    if not choices:
        raise _error(who, "failed", _get(answer, "error") or "no choices")
    _check_end(who, _get(choices[0], "finish_reason"))
    message = _get(choices[0], "message")
    if refusal := _get(message, "refusal"):
        raise _error(who, "refused", refusal)
    content = _get(message, "content")
    if isinstance(content, list):
        content = _joined(content, "text")
    if not content and (_get(message, "tool_calls") or _get(message, "function_call")):
        raise _error(who, "tool_calls")
    return checked_summary(who, content or "")


def from_responses(who: str, answer: Any) -> str:
    """The summary in an answer of OpenAI Responses.

    Raises:
        SummarizerError: it holds none.
    """
    status = _get(answer, "status")
    if status == "incomplete":
        end = _get(_get(answer, "incomplete_details"), "reason")
        raise _error(who, _REASONS.get(str(end), "failed"), end)
    if status not in ("completed", None):
        raise _error(who, "failed", _get(_get(answer, "error"), "message") or status)
    items = _list(answer, "output")
    blocks = [
        part for item in items if _get(item, "type") == "message" for part in _list(item, "content")
    ]
    refusals = [_get(block, "refusal") for block in blocks if _get(block, "type") == "refusal"]
    if refusals:
        raise _error(who, "refused", refusals[0])
    text = _joined(blocks, "output_text")
    if not text and any(str(_get(item, "type")).endswith("_call") for item in items):
        raise _error(who, "tool_calls")
    return checked_summary(who, text)


def from_anthropic(who: str, answer: Any) -> str:
    """The summary in an answer of Anthropic Messages.

    Raises:
        SummarizerError: it holds none.
    """
    _check_end(who, _get(answer, "stop_reason"))
    blocks = _list(answer, "content")
    text = _joined(blocks, "text")
    if not text and any(_get(block, "type") == "tool_use" for block in blocks):
        raise _error(who, "tool_calls")
    return checked_summary(who, text)
