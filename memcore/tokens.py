"""The TokenCounter protocol and the counters.

A counter's id is stored with every count and in the head of each session; counts of two counters
are never added up. The estimate is the default because it needs no vocabulary: one token for
every four bytes of the item's compact JSON, rounded up, the usual rule of thumb for English text
(OpenAI's "What are tokens and how to count them"); logs and JSON run up to 40 % higher.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from memcore.errors import CounterUnavailableError, InvalidOptionError
from memcore.limits import ITEM_TOKENS_MAX

__all__ = ["BytesEstimate", "CallableCounter", "TiktokenCounter", "TokenCounter", "get_counter"]

DIVISOR_MAX: Final = 64
COUNTER_ID_BYTES_MAX: Final = 200
MESSAGE_OVERHEAD_TOKENS: Final = 4
"""Per message beside its text: OpenAI's cookbook counts 3, and 1 for a name."""


class TokenCounter(Protocol):
    """Counts tokens of one message."""

    @property
    def id(self) -> str:
        """Stable name; stored with every count."""

    @property
    def exact(self) -> bool:
        """Whether it counts as the model's tokenizer does."""

    def count(self, text: str) -> int:
        """Tokens of a text."""

    def count_message(self, message: Mapping[str, Any], encoded: bytes) -> int:
        """Tokens of a message; ``encoded`` is its compact JSON."""


def checked_count(counter: TokenCounter, message: Mapping[str, Any], encoded: bytes) -> int:
    """What the counter says of a message, if it can be stored.

    Raises:
        InvalidOptionError: the counter returned no int of 0 .. 2**32 - 1.
    """
    found = counter.count_message(message, encoded)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= ITEM_TOKENS_MAX:
        msg = f"counter {counter.id!r} returned {found!r}; expected an int of 0 to 2**32 - 1"
        raise InvalidOptionError(msg)
    return found


class BytesEstimate:
    """One token for every ``divisor`` bytes of compact JSON, rounded up."""

    __slots__ = ("_divisor", "id")
    exact: Final = False

    def __init__(self, divisor: int = 4) -> None:
        self._divisor = divisor
        self.id = f"bytes/{divisor}"

    def count(self, text: str) -> int:
        """Tokens of a text by its UTF-8 length."""
        return -(-len(text.encode("utf-8", "surrogatepass")) // self._divisor)

    def count_message(self, message: Mapping[str, Any], encoded: bytes) -> int:  # noqa: ARG002
        """Tokens of a message by the length of its compact JSON."""
        return -(-len(encoded) // self._divisor)


class _TextCounter:
    """Counts the strings of a message with a text counter, plus a fixed overhead a message."""

    __slots__ = ("_count", "exact", "id")

    def __init__(self, name: str, count: Callable[[str], int], *, exact: bool) -> None:
        self.id = name
        self.exact = exact
        self._count = count

    def count(self, text: str) -> int:
        """Tokens of a text."""
        found = self._count(text)
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            msg = f"counter {self.id!r} returned {found!r}; expected a non-negative int"
            raise InvalidOptionError(msg)
        return found

    def count_message(self, message: Mapping[str, Any], encoded: bytes) -> int:  # noqa: ARG002
        """Tokens of all strings of a message (names of fields excepted) plus 4."""
        total = MESSAGE_OVERHEAD_TOKENS
        pending: list[Any] = [message]
        while pending:
            value = pending.pop()
            if isinstance(value, str):
                total += self.count(value)
            elif isinstance(value, Mapping):
                pending.extend(value.values())
            elif isinstance(value, list | tuple):
                pending.extend(value)
        return total


class CallableCounter(_TextCounter):
    """Any ``Callable[[str], int]`` as a counter; its ``name`` is stored with every count."""

    __slots__ = ()

    def __init__(self, count: Callable[[str], int], *, name: str, exact: bool = False) -> None:
        super().__init__(name, count, exact=exact)


class TiktokenCounter(_TextCounter):
    """tiktoken's encoding ``name``; needs ``memcore[tiktoken]`` and tiktoken's vocabulary."""

    __slots__ = ()

    def __init__(self, name: str = "o200k_base") -> None:
        try:
            encoding = importlib.import_module("tiktoken").get_encoding(name)
        except ImportError as exc:
            msg = f"counter 'tiktoken:{name}' needs tiktoken: pip install 'memcore[tiktoken]'"
            raise CounterUnavailableError(msg) from exc
        except (
            Exception
        ) as exc:  # tiktoken fetches its vocabulary and raises whatever requests does
            msg = (
                f"counter 'tiktoken:{name}' could not load its vocabulary ({exc}); set "
                "TIKTOKEN_CACHE_DIR to a directory that holds it, or choose another counter"
            )
            raise CounterUnavailableError(msg) from exc

        def count(text: str) -> int:
            return len(encoding.encode_ordinary(text))

        super().__init__(f"tiktoken:{name}", count, exact=True)


def get_counter(counter: str | TokenCounter | None = None) -> TokenCounter:
    """The counter of that name: ``"bytes/N"`` or ``"tiktoken:ENCODING"``; an object as it is.

    Raises:
        InvalidOptionError: no counter has that name, or the object is none.
        CounterUnavailableError: the counter exists but cannot be loaded here.
    """
    if counter is None:
        return BytesEstimate()
    if isinstance(counter, str):
        family, _, rest = counter.partition(":")
        if family == "tiktoken" and rest:
            return TiktokenCounter(rest)
        family, _, rest = counter.partition("/")
        if (
            family == "bytes"
            and rest.isascii()
            and rest.isdigit()
            and 1 <= int(rest) <= DIVISOR_MAX
        ):
            return BytesEstimate(int(rest))
        msg = f"no counter is named {counter!r}; expected 'bytes/4' or 'tiktoken:o200k_base'"
        raise InvalidOptionError(msg)
    if not isinstance(getattr(counter, "id", None), str) or not hasattr(counter, "count_message"):
        msg = (
            f"counter: expected a name or a TokenCounter, got {type(counter).__name__}; wrap a "
            "function with memcore.CallableCounter(function, name='...')"
        )
        raise InvalidOptionError(msg)
    if not 0 < len(counter.id.encode("utf-8", "replace")) <= COUNTER_ID_BYTES_MAX:
        msg = f"counter id {counter.id!r:.80}: expected 1 to {COUNTER_ID_BYTES_MAX} bytes of UTF-8"
        raise InvalidOptionError(msg)
    try:
        counter.id.encode()
    except UnicodeEncodeError as exc:
        msg = f"counter id {counter.id!r:.80} holds a lone surrogate"
        raise InvalidOptionError(msg) from exc
    return counter
