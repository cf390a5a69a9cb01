"""The TokenCounter protocol and what every counter's answer is held to.

A counter's id is stored with every count and in the head of each session; counts of two counters
are never added up.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.limits import ITEM_TOKENS_MAX
from memcore.options import checked_int

__all__ = [
    "TokenCounter",
    "Truncated",
    "checked_count",
    "checked_cut",
    "checked_text",
    "checked_tokens",
]

KEEPS: Final = ("head", "tail", "middle")
TOKENS_UNBOUNDED: Final = 2**62


class Truncated(NamedTuple):
    """A text cut to a budget."""

    text: str
    """The text itself, the same object, if it fits."""
    kept: int
    """Tokens of ``text``, the marker among them; never above the budget."""
    total: int
    """Tokens of the text as it was given."""


@runtime_checkable
class TokenCounter(Protocol):
    """Counts tokens. Of a counter of yours ``id`` and ``count`` are enough for ``get_counter``."""

    @property
    def id(self) -> str:
        """Stable name; stored with every count."""

    @property
    def exact(self) -> bool:
        """Whether ``count`` counts as a model's tokenizer does."""

    def count(self, text: str) -> int:
        """Tokens of a text as it stands, base64 included."""

    def count_many(self, texts: Sequence[str]) -> array[int]:
        """Tokens of each text, as ``array('I')``."""

    def truncate(
        self, text: str, max_tokens: int, *, keep: str = "head", marker: str | None = None
    ) -> Truncated:
        """The largest part of a text within ``max_tokens``, cut between characters.

        ``keep`` says what stays: ``"head"``, ``"tail"``, or with ``"middle"`` both ends. ``marker``
        stands where something was left out, and counts.

        Raises:
            InvalidItemError: ``text`` is no str.
            InvalidOptionError: ``max_tokens`` is no positive int, ``keep`` is unknown, or the
                marker alone is above ``max_tokens``.
        """

    def count_message(self, message: Mapping[str, Any], encoded: bytes) -> int:
        """Tokens of a message; ``encoded`` is its compact JSON."""

    def count_tools(self, tools: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of the definitions of tools; 0 without tools."""


def checked_count(counter: TokenCounter, message: Mapping[str, Any], encoded: bytes) -> int:
    """What the counter says of a message, if it can be stored.

    Raises:
        InvalidOptionError: the counter returned no int of 0 .. 2**32 - 1.
    """
    found = counter.count_message(message, encoded)
    if type(found) is int and 0 <= found <= ITEM_TOKENS_MAX:
        return found
    return checked_tokens(counter.id, found)


def checked_tokens(counter_id: str, found: Any) -> int:
    """``found`` if it is a number of tokens.

    Raises:
        InvalidOptionError: it is no int of 0 .. 2**32 - 1.
    """
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= ITEM_TOKENS_MAX:
        msg = f"counter {counter_id!r} returned {found!r:.80}; expected an int of 0 to 2**32 - 1"
        raise InvalidOptionError(msg)
    return int(found)


def checked_text(text: Any) -> str:
    """``text`` as a plain str if it is a str.

    Raises:
        InvalidItemError: it is not.
    """
    if type(text) is str:
        return text
    if not isinstance(text, str):
        msg = f"text: expected a str, got {type(text).__name__}"
        raise InvalidItemError(msg)
    return str.__str__(text)


def checked_cut(text: Any, max_tokens: Any, keep: Any, marker: Any) -> tuple[str, int]:
    """The checked arguments of ``truncate``: ``(text, max_tokens)``.

    Raises:
        InvalidItemError, InvalidOptionError: as ``TokenCounter.truncate``.
    """
    if not isinstance(keep, str) or keep not in KEEPS:
        msg = f"keep: expected 'head', 'tail' or 'middle', got {keep!r:.80}"
        raise InvalidOptionError(msg)
    if marker is not None and not isinstance(marker, str):
        msg = f"marker: expected a str or None, got {type(marker).__name__}"
        raise InvalidOptionError(msg)
    tokens = min(checked_int("max_tokens", max_tokens, least=1), TOKENS_UNBOUNDED)
    return text if isinstance(text, str) else checked_text(text), tokens


def marker_error(marker: str, tokens: int, max_tokens: int) -> InvalidOptionError:
    """The error of a marker that alone is above the budget."""
    msg = (
        f"marker {marker!r:.80} is {tokens} tokens, above max_tokens={max_tokens}: shorten it or "
        "raise max_tokens"
    )
    return InvalidOptionError(msg)
