"""The estimate by bytes: no vocabulary, one token for every few bytes.

Four bytes a token is the usual rule of thumb for English text (OpenAI, "What are tokens and how to
count them"); logs and JSON have up to 40 % more tokens than it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from memcore.errors import InvalidOptionError
from memcore.tokens.media import may_hold_media
from memcore.tokens.message import gather
from memcore.tokens.textual import DEFAULT_PROFILE, MediaOption, TextCounter

__all__ = ["BytesEstimate"]

DIVISOR_MAX: Final = 64


class BytesEstimate(TextCounter):
    """One token for every ``divisor`` bytes of compact JSON, rounded up; media by the profile.

    The base64 of media does not count as JSON.
    """

    __slots__ = ("_divisor",)

    def __init__(
        self,
        divisor: int = 4,
        *,
        profile: str = DEFAULT_PROFILE,
        media: MediaOption = None,
    ) -> None:
        if (
            isinstance(divisor, bool)
            or not isinstance(divisor, int)
            or not 1 <= divisor <= DIVISOR_MAX
        ):
            msg = f"divisor: expected an int of 1 to {DIVISOR_MAX}, got {divisor!r:.80}"
            raise InvalidOptionError(msg)
        super().__init__(f"bytes/{divisor}", exact=False, profile=profile, media=media)
        self._divisor = divisor

    def _tokens_of(self, text: str) -> int:
        return -(-len(text.encode("utf-8", "surrogatepass")) // self._divisor)

    def count_message(self, message: Mapping[str, Any], encoded: bytes) -> int:  # noqa: ARG002
        """Tokens of a message by the length of its compact JSON, and its media."""
        size = len(encoded)
        if not may_hold_media(encoded):
            return -(-size // self._divisor)
        media = gather(encoded).media
        size -= min(size, sum(part.base64_chars for part in media))
        return -(-size // self._divisor) + self._media_tokens(media)
