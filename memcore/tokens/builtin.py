"""Built-in counters: exact (OpenAI's encodings in the C core), estimates, scaled, tiktoken."""

from __future__ import annotations

import importlib
import math
import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, final

from memcore import vocab
from memcore._fast import Encoding, MessageCounter
from memcore.errors import CounterUnavailableError, InvalidOptionError
from memcore.options import checked_int, shown
from memcore.tokens.counter import (
    DEFAULT_PROFILE,
    TOKENS_UNBOUNDED,
    MediaOption,
    TextCounter,
    Truncated,
    checked_cut,
    checked_text,
    checked_texts,
    marker_error,
)
from memcore.tokens.media import KIND_OF, may_hold_media
from memcore.tokens.message import COSTS, KEY_BITS, gather, json_bytes

__all__ = [
    "ENCODINGS",
    "BytesEstimate",
    "ExactCounter",
    "ScaledCounter",
    "TiktokenCounter",
    "scaled_name",
]


# --- Exact counters: OpenAI's encodings in the C core, with the vocabularies shipped here ---------

ENCODINGS: Final = vocab.NAMES


@final
class ExactCounter(TextCounter):
    """Counts as tiktoken's encoding ``name`` does; special tokens in a text are ordinary text.

    The vocabulary is loaded on first use. ``profile`` and ``media`` are as for every counter.

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
        # A C function rather than a method, so that an append runs no Python frame. Messages that
        # are not plain JSON, or hold media, are passed on to the method that it replaces.
        self.count_message = MessageCounter(  # type: ignore[method-assign]
            lambda: self.encoding, super().count_message, KEY_BITS, KIND_OF, json_bytes, COSTS
        ).count

    @property
    def encoding(self) -> Encoding:
        """The encoding in the C core, loaded on first use.

        Raises:
            CounterUnavailableError: the installed vocabulary is damaged.
        """
        if self._encoding is None:
            self._encoding = vocab.load(self._name)
        return self._encoding

    def _tokens_of(self, text: str) -> int:
        return (self._encoding or self.encoding).count(text)

    def fits(self, text: str, max_tokens: int) -> bool:
        """As for every counter; most answers need no counting, since a token has 1 to 128 bytes."""
        most = min(checked_int("max_tokens", max_tokens), TOKENS_UNBOUNDED)
        return self.encoding.fits(checked_text(text), most)

    def count_many(self, texts: Sequence[str]) -> array[int]:
        """Count the tokens of each text."""
        return (self._encoding or self.encoding).count_many(
            [checked_text(text) for text in checked_texts(texts)]
        )

    def _tokens_of_all(self, texts: list[str]) -> int:
        return sum((self._encoding or self.encoding).count_many(texts))

    def measure(self, text: str) -> tuple[int, int, int]:
        """Return ``(tokens, digits, pieces of up to three digits)`` of a text."""
        return self.encoding.measure(checked_text(text))

    def truncate(
        self, text: str, max_tokens: int, *, keep: str = "head", marker: str | None = None
    ) -> Truncated:
        """Truncate a text to its largest part within ``max_tokens``: see ``TokenCounter``."""
        text, max_tokens = checked_cut(text, max_tokens, keep, marker)
        if marker and (alone := self.count(marker)) > max_tokens:
            raise marker_error(marker, alone, max_tokens)
        found = self.encoding.truncate(
            checked_text(text), max_tokens, keep=keep, marker=marker and checked_text(marker)
        )
        return Truncated(text, *found[1:]) if found[1] == found[2] else Truncated(*found)


# --- Estimate by bytes: no vocabulary, one token for every few bytes ------------------------------
# Four bytes per token is the usual rule of thumb for English text (OpenAI, "What are tokens and how
# to count them"); logs and JSON have up to 40 % more tokens than it predicts.

DIVISOR_MAX: Final = 64


class BytesEstimate(TextCounter):
    """One token per ``divisor`` bytes of compact JSON, rounded up; media by the profile.

    The base64 of media is not counted as JSON.
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
        """Count a message by the length of its compact JSON, and its media by the profile."""
        size = len(encoded)
        if not may_hold_media(encoded):
            return -(-size // self._divisor)
        media = gather(encoded).media
        size -= min(size, sum(part.base64_chars for part in media))
        return -(-size // self._divisor) + self._media_tokens(media)


# --- Counts of one encoding as an estimate for a model whose tokenizer is not available -----------

FACTOR_MAX: Final = 100
_DIGITS: Final = re.compile(r"\d{1,3}")


def _number(what: str, value: Any, least: float) -> float:
    wrong = isinstance(value, bool) or not isinstance(value, int | float)
    if wrong or not least <= value <= FACTOR_MAX:  # nor NaN
        msg = f"{what}: expected a number of {least:g} to {FACTOR_MAX}, got {shown(value)}"
        raise InvalidOptionError(msg)
    return float(f"{value:g}")  # as written in the id


def scaled_name(base: str, factor: float, per_digit: float) -> str:
    """Build the id of a scaled counter: ``BASE*FACTOR[+digits[*PER_DIGIT]]``."""
    if not per_digit:
        return f"{base}*{factor:g}"
    digits = "+digits" if per_digit == 1 else f"+digits*{per_digit:g}"
    return f"{base}*{factor:g}{digits}"


class ScaledCounter(TextCounter):
    """Scales another counter: ``ceil(factor * tokens + per_digit * (digits - number pieces))``.

    Number pieces are runs of up to three digits, each one token of the base; a tokenizer that
    splits every digit needs ``per_digit=1``. A message's framing and media are not scaled. The id
    includes the base, the factor and the rule for digits, so different figures are different
    counters.

    Raises:
        InvalidOptionError: the factor is not within 0.01 to 100, or ``per_digit`` not in 0 to 100.
    """

    __slots__ = ("_base", "_measure", "factor", "per_digit")

    def __init__(
        self,
        base: TextCounter,
        factor: float,
        *,
        per_digit: float = 0.0,
        profile: str = DEFAULT_PROFILE,
        media: MediaOption = None,
    ) -> None:
        if not isinstance(base, TextCounter) or "*" in base.id or "@" in base.id:
            msg = (
                "base: expected a counter as of memcore.get_counter('o200k_base'), not scaled and "
                f"without a profile (give it here), got {getattr(base, 'id', type(base).__name__)}"
            )
            raise InvalidOptionError(msg)
        self.factor = _number("factor", factor, 0.01)
        self.per_digit = _number("per_digit", per_digit, 0)
        self._base = base
        self._measure = getattr(base, "measure", None)
        name = scaled_name(base.id, self.factor, self.per_digit)
        super().__init__(name, exact=False, profile=profile, media=media)

    def _scaled(self, tokens: int, split_digits: int) -> int:
        # Rounded first, because 1.1 * 10 is slightly more than 11.
        return math.ceil(round(self.factor * tokens + self.per_digit * split_digits, 6))

    def _measured(self, text: str) -> tuple[int, int]:
        """Return the base's tokens, and the number of digits in excess of their pieces."""
        if not self.per_digit:
            return self._base.count(text), 0
        if self._measure is not None:
            tokens, digits, pieces = self._measure(text)
            return tokens, digits - pieces
        found = _DIGITS.findall(text)
        return self._base.count(text), sum(map(len, found)) - len(found)

    def _tokens_of(self, text: str) -> int:
        return self._scaled(*self._measured(text))

    def _tokens_of_all(self, texts: list[str]) -> int:
        if not self.per_digit:
            return self._scaled(sum(self._base.count_many(texts)), 0)
        measured = [self._measured(text) for text in texts]
        return self._scaled(sum(m[0] for m in measured), sum(m[1] for m in measured))


# --- tiktoken as a counter: for comparison, and for encodings that only tiktoken has --------------
# The encodings that memcore ships are built from memcore's own vocabulary, so tiktoken never
# searches for a file and never uses the network. Its engine panics on very long runs of white space
# (a ``PanicException``, which is not an ``Exception``), so long texts are passed to it in parts,
# cut where no token can span the cut.

PART_CHARS_MAX: Final = 200_000
"""Maximum characters passed to tiktoken at once; it was seen to handle runs of 700,000 spaces."""
_SEAM: Final = re.compile(r"(?<=\n)(?=[0-9A-Za-z])")
"""Both patterns always end a piece between a newline and a letter or digit."""

_CL100K_PATTERN: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"
    r"\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_O200K_PATTERN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_RECIPES: Final[dict[str, tuple[str, dict[str, int]]]] = {
    "cl100k_base": (
        _CL100K_PATTERN,
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": (_O200K_PATTERN, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
}
"""Pattern and special tokens, as in tiktoken_ext/openai_public.py of tiktoken 0.14."""

_built: dict[str, Any] = {}
"""No lock, as in ``vocab``: a forked child would wait for one held by a thread of its parent."""


def shipped_encoding(name: str) -> Any:
    """Return the tiktoken.Encoding of a shipped vocabulary, built once per process (0.2 s, 80 MB).

    Raises:
        CounterUnavailableError: tiktoken is not installed, or the vocabulary is damaged.
        InvalidOptionError: memcore ships no such encoding.
    """
    if name not in _RECIPES:
        msg = (
            f"no vocabulary of tiktoken's encoding {name!r:.80} ships with memcore, only "
            f"{' and '.join(ENCODINGS)}; nothing is fetched: pass "
            "memcore.TiktokenCounter(tiktoken.get_encoding(...)) if you have it"
        )
        raise InvalidOptionError(msg)
    return _built.get(name) or _built.setdefault(name, _build(name))


def _build(name: str) -> Any:
    try:
        library = importlib.import_module("tiktoken")
    except ImportError as exc:
        msg = f"counter 'tiktoken:{name}' needs tiktoken: pip install 'memcore-db[tiktoken]'"
        raise CounterUnavailableError(msg) from exc
    source = vocab.load(name)
    pattern, special = _RECIPES[name]
    ranks = {source.token(at): at for at in range(source.n_tokens)}
    return library.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


class TiktokenCounter(TextCounter):
    """Counts with tiktoken; needs ``memcore-db[tiktoken]``.

    ``encoding`` is the name of an encoding that memcore ships, or a ``tiktoken.Encoding``. Special
    tokens are ordinary text. A text that tiktoken's engine cannot process at once is counted
    exactly with a shipped encoding; with any other one it is counted in parts, which may be off by
    a few tokens.
    """

    __slots__ = ("_encoding", "_shipped")

    def __init__(
        self,
        encoding: Any = "o200k_base",
        *,
        profile: str = DEFAULT_PROFILE,
        media: MediaOption = None,
    ) -> None:
        self._shipped = encoding if isinstance(encoding, str) else None
        found = shipped_encoding(encoding) if isinstance(encoding, str) else encoding
        name = getattr(found, "name", None)
        if not isinstance(name, str) or not callable(getattr(found, "encode_ordinary", None)):
            msg = (
                "encoding: expected the name of an encoding or a tiktoken.Encoding, got "
                f"{type(found).__name__}"
            )
            raise InvalidOptionError(msg)
        self._encoding = found
        super().__init__(
            f"tiktoken:{name}", exact=True, profile=profile, media=media, encoding=name
        )

    def _tokens_of(self, text: str) -> int:
        if len(text) <= PART_CHARS_MAX:
            return len(self._encoding.encode_ordinary(text))
        return sum(map(self._part_tokens, _parts(text)))

    def _part_tokens(self, part: str) -> int:
        if len(part) <= PART_CHARS_MAX:
            return len(self._encoding.encode_ordinary(part))
        if self._shipped is not None:
            return vocab.load(self._shipped).count(part)
        starts = range(0, len(part), PART_CHARS_MAX)
        return sum(
            len(self._encoding.encode_ordinary(part[at : at + PART_CHARS_MAX])) for at in starts
        )


def _parts(text: str) -> list[str]:
    """Split the text into parts of at most PART_CHARS_MAX, except where there is no seam."""
    parts = []
    start = last = 0
    for found in _SEAM.finditer(text):
        if found.start() - start > PART_CHARS_MAX and last > start:
            parts.append(text[start:last])
            start = last
        last = found.start()
    if len(text) - start > PART_CHARS_MAX and last > start:
        parts.append(text[start:last])
        start = last
    return [*parts, text[start:]]
