"""tiktoken as a counter: for comparison, and for encodings that it alone has.

The encodings that memcore ships are built from memcore's own vocabulary, so tiktoken never looks
for a file and never asks the network. Its engine panics on very long runs of white space (a
``PanicException``, which is no ``Exception``): long texts are given to it in parts, cut where no
token can lie.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

from memcore import vocab
from memcore.errors import CounterUnavailableError, InvalidOptionError
from memcore.tokens.exact import ENCODINGS
from memcore.tokens.textual import DEFAULT_PROFILE, MediaOption, TextCounter

__all__ = ["TiktokenCounter"]

PART_CHARS_MAX: Final = 200_000
"""What tiktoken is given at once; runs of 700,000 spaces were seen to pass."""
_SEAM: Final = re.compile(r"(?<=\n)(?=[0-9A-Za-z])")
"""Between a newline and a letter or digit both patterns always end a piece."""

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
"""Without a lock, as in ``vocab``: the child of a fork must not wait for a thread of its parent."""


def shipped_encoding(name: str) -> Any:
    """The tiktoken.Encoding of a shipped vocabulary, once a process (0.2 s and 80 MB).

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
        msg = f"counter 'tiktoken:{name}' needs tiktoken: pip install 'memcore[tiktoken]'"
        raise CounterUnavailableError(msg) from exc
    source = vocab.load(name)
    pattern, special = _RECIPES[name]
    ranks = {source.token(at): at for at in range(source.n_tokens)}
    return library.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


class TiktokenCounter(TextCounter):
    """Counts with tiktoken; needs ``memcore[tiktoken]``.

    ``encoding`` is the name of an encoding that memcore ships, or a ``tiktoken.Encoding``. Special
    tokens are ordinary text. A text that tiktoken's engine cannot take at once is exact with a
    shipped encoding; with another one it is counted in parts, which may be a few tokens off.
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
    """The text in parts of at most PART_CHARS_MAX, but for those that have no seam."""
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
