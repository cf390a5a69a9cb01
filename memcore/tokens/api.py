"""Counting without a session: texts, messages, tools, complete requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memcore.codec.values import encode_json
from memcore.errors import InvalidItemError
from memcore.options import plain_message
from memcore.tokens import (
    REPLY_TOKENS,
    TokenCounter,
    Truncated,
    checked_count,
    checked_tokens,
    get_counter,
)

__all__ = [
    "count_messages",
    "count_tokens",
    "count_tools",
    "truncate",
]


def count_tokens(text: str, *, counter: str | TokenCounter | None = None) -> int:
    """Count the tokens of a text verbatim; ``counter`` as for ``memcore.open``.

    Raises:
        InvalidItemError: ``text`` is not a str.
        InvalidOptionError: as ``get_counter``.
        CounterUnavailableError: as ``get_counter``.
    """
    return get_counter(counter).count(text)


def truncate(
    text: str,
    max_tokens: int,
    *,
    keep: str = "head",
    marker: str | None = None,
    counter: str | TokenCounter | None = None,
) -> Truncated:
    """Truncate a text to its largest part within ``max_tokens``: ``(text, kept, total)``.

    ``keep`` selects the part: ``"head"``, ``"tail"``, or ``"middle"`` for both ends. ``marker``
    replaces the omitted part and is counted. A text that fits is returned unchanged.

    Raises:
        InvalidItemError: ``text`` is not a str.
        InvalidOptionError: ``max_tokens`` is not a positive int, ``keep`` is unknown, or the marker
            alone exceeds ``max_tokens``; or as ``get_counter``.
        CounterUnavailableError: as ``get_counter``.
    """
    return get_counter(counter).truncate(text, max_tokens, keep=keep, marker=marker)


def count_tools(
    tools: Sequence[Mapping[str, Any]], *, counter: str | TokenCounter | None = None
) -> int:
    """Count the tokens of tool definitions, in the form in which the provider receives them.

    Raises:
        InvalidItemError: ``tools`` is not a list of JSON objects.
        InvalidOptionError: as ``get_counter``.
        CounterUnavailableError: as ``get_counter``.
    """
    by = get_counter(counter)
    return checked_tokens(by.id, by.count_tools(tools))


def count_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    counter: str | TokenCounter | None = None,
) -> int:
    """Count the tokens of a request: its messages, its tools, and 3 for the start of the reply.

    Raises:
        InvalidItemError: ``messages`` or ``tools`` is not a list of JSON objects.
        InvalidOptionError: as ``get_counter``.
        CounterUnavailableError: as ``get_counter``.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        msg = f"messages: expected a list of mappings, got {type(messages).__name__}"
        raise InvalidItemError(msg)
    by = get_counter(counter)
    total = REPLY_TOKENS if tools is None else REPLY_TOKENS + count_tools(tools, counter=by)
    for at, given in enumerate(messages):
        message = plain_message(given)
        if not isinstance(message, Mapping):
            msg = f"messages[{at}]: expected a mapping, got {type(message).__name__}"
            raise InvalidItemError(msg)
        plain = message if type(message) is dict else dict(message)
        try:
            encoded = encode_json(plain)[0]
        except (TypeError, ValueError, RecursionError) as exc:
            msg = f"messages[{at}] cannot be written as JSON: {exc}"
            raise InvalidItemError(msg) from exc
        total += checked_count(by, plain, encoded)
    return total
