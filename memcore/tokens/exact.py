"""The exact counters: OpenAI's encodings in the C core, with the vocabularies shipped here."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, NoReturn, final

from memcore import vocab
from memcore._fast import Encoding, MessageCounter
from memcore.errors import InvalidOptionError
from memcore.options import checked_int
from memcore.tokens.media import KIND_OF
from memcore.tokens.message import COSTS, KEY_BITS, json_bytes
from memcore.tokens.protocol import (
    TOKENS_UNBOUNDED,
    Truncated,
    checked_cut,
    checked_text,
    marker_error,
)
from memcore.tokens.textual import DEFAULT_PROFILE, MediaOption, TextCounter, checked_texts

__all__ = ["ENCODINGS", "ExactCounter"]

ENCODINGS: Final = vocab.NAMES


@final
class ExactCounter(TextCounter):
    """Counts as tiktoken's encoding ``name`` does; special tokens in a text are ordinary text.

    The vocabulary is loaded at the first count. ``profile`` and ``media`` as for every counter.

    Raises:
        InvalidOptionError: memcore ships no such encoding, or as ``TextCounter``.
    """

    __slots__ = ("_encoding", "_name", "count_message")

    def __init_subclass__(cls, **_: Any) -> NoReturn:
        msg = (
            "ExactCounter cannot be subclassed, C would not call the methods: give it media= or "
            "profile=, or write a counter of your own with id, exact and count"
        )
        raise TypeError(msg)

    def __init__(
        self,
        name: str = "o200k_base",
        *,
        profile: str = DEFAULT_PROFILE,
        media: MediaOption = None,
    ) -> None:
        if name not in ENCODINGS:
            msg = f"no encoding is named {name!r:.80}; memcore ships {' and '.join(ENCODINGS)}"
            raise InvalidOptionError(msg)
        super().__init__(name, exact=True, profile=profile, media=media, encoding=name)
        self._name = name
        self._encoding: Encoding | None = None
        # A C function, not a method around it: no Python frame in an append. What is no plain JSON,
        # or holds media, goes to the method that this stands before.
        self.count_message = MessageCounter(  # type: ignore[method-assign]
            lambda: self.encoding, super().count_message, KEY_BITS, KIND_OF, json_bytes, COSTS
        ).count

    @property
    def encoding(self) -> Encoding:
        """The encoding in the C core.

        Raises:
            CounterUnavailableError: the vocabulary that was installed is damaged.
        """
        if self._encoding is None:
            self._encoding = vocab.load(self._name)
        return self._encoding

    def _tokens_of(self, text: str) -> int:
        return (self._encoding or self.encoding).count(text)

    def fits(self, text: str, max_tokens: int) -> bool:
        """As every counter's; most answers need no counting, for a token has 1 to 128 bytes."""
        most = min(checked_int("max_tokens", max_tokens), TOKENS_UNBOUNDED)
        return self.encoding.fits(checked_text(text), most)

    def count_many(self, texts: Sequence[str]) -> array[int]:
        """Tokens of each text."""
        return (self._encoding or self.encoding).count_many(
            [checked_text(text) for text in checked_texts(texts)]
        )

    def _tokens_of_all(self, texts: list[str]) -> int:
        return sum((self._encoding or self.encoding).count_many(texts))

    def measure(self, text: str) -> tuple[int, int, int]:
        """``(tokens, digits, pieces of up to three digits)`` of a text."""
        return self.encoding.measure(checked_text(text))

    def truncate(
        self, text: str, max_tokens: int, *, keep: str = "head", marker: str | None = None
    ) -> Truncated:
        """The largest part of a text within ``max_tokens``: see ``TokenCounter.truncate``."""
        text, max_tokens = checked_cut(text, max_tokens, keep, marker)
        if marker and (alone := self.count(marker)) > max_tokens:
            raise marker_error(marker, alone, max_tokens)
        found = self.encoding.truncate(
            checked_text(text), max_tokens, keep=keep, marker=marker and checked_text(marker)
        )
        return Truncated(text, *found[1:]) if found[1] == found[2] else Truncated(*found)
