"""What every counter does by counting texts: messages, tools, many texts, truncation.

A counter of this module is a function from text to tokens, and a provider's profile: how its
pictures, recordings, documents and tools are counted.
"""

from __future__ import annotations

import difflib
import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from memcore.errors import InvalidOptionError
from memcore.options import checked_int
from memcore.tokens.cutting import cut_text
from memcore.tokens.media import KINDS, PROFILES, Media, MediaTable
from memcore.tokens.message import gather, json_text
from memcore.tokens.overheads import gather_tools, tool_rules
from memcore.tokens.protocol import Truncated, checked_text, checked_tokens

__all__ = ["MediaOption", "TextCounter"]

MediaOption = str | MediaTable | Mapping[str, int] | None
"""A profile's name, a function from ``Media`` to tokens, or tokens by kind of media."""
DEFAULT_PROFILE: Final = "openai"


class TextCounter(ABC):
    """The base of the built-in counters: all but ``_tokens_of`` is derived.

    Args:
        name: the id, to which a profile other than the default and an override of it are added.
        exact: whether it counts as a model's tokenizer does.
        profile: a name of ``memcore.tokens.PROFILES``.
        media: what images and other media cost, in place of what the profile says: a function from
            ``Media`` to tokens, or a mapping from kinds (``image``, ``audio``, ``video``,
            ``document``) to tokens.
        encoding: the encoding, if tools are counted differently for it.

    Raises:
        InvalidOptionError: an unknown profile or kind, or a function without a name of its own.
    """

    __slots__ = ("_media", "_tool_rules", "exact", "id", "profile")

    def __init__(
        self,
        name: str,
        *,
        exact: bool,
        profile: str = DEFAULT_PROFILE,
        media: MediaOption = None,
        encoding: str = "",
    ) -> None:
        if isinstance(media, str):
            profile, media = media, None
        table = profile_named(profile)
        suffix = "" if profile == DEFAULT_PROFILE else f"@{profile}"
        self._media, override = _overridden(table, media)
        self._tool_rules = tool_rules(profile, encoding)
        self.id = name + suffix + override
        self.exact = exact
        self.profile = profile

    @abstractmethod
    def _tokens_of(self, text: str) -> int:
        """Tokens of a plain str."""

    def _tokens_of_all(self, texts: list[str]) -> int:
        """Tokens of texts together."""
        return sum(self.count_many(texts))

    def count(self, text: str) -> int:
        """Tokens of a text as it stands, base64 included.

        Raises:
            InvalidItemError: ``text`` is no str.
        """
        return checked_tokens(self.id, self._tokens_of(checked_text(text)))

    def fits(self, text: str, max_tokens: int) -> bool:
        """Whether a text has at most ``max_tokens`` tokens; may be told without counting it.

        Raises:
            InvalidItemError: ``text`` is no str.
            InvalidOptionError: ``max_tokens`` is no int of 0 or more.
        """
        return self.count(text) <= checked_int("max_tokens", max_tokens)

    def count_many(self, texts: Sequence[str]) -> array[int]:
        """Tokens of each text.

        Raises:
            InvalidItemError: one of them is no str, or ``texts`` is one itself.
        """
        return array("I", map(self.count, checked_texts(texts)))

    def truncate(
        self, text: str, max_tokens: int, *, keep: str = "head", marker: str | None = None
    ) -> Truncated:
        """The largest part of a text within ``max_tokens``: see ``TokenCounter.truncate``."""
        return cut_text(self.count, text, max_tokens, keep=keep, marker=marker)

    def count_message(self, message: Mapping[str, Any], encoded: bytes) -> int:  # noqa: ARG002
        """Tokens of a message by the rules of ``memcore.tokens.message``."""
        fixed, texts, media = gather(encoded)
        tokens = fixed + self._tokens_of_all(texts)
        return tokens + self._media_tokens(media) if media else tokens

    def count_tools(self, tools: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of the definitions of tools, by the provider of the profile.

        Raises:
            InvalidItemError: ``tools`` is no list of JSON objects.
        """
        fixed, texts = gather_tools(tools, self._tool_rules)
        return fixed + self._tokens_of_all(texts)

    def _media_tokens(self, media: list[Media]) -> int:
        return sum(checked_tokens(f"{self.id} (media)", self._media(part)) for part in media)


def checked_texts(texts: Any) -> Sequence[str]:
    """``texts`` if it is a list or another sequence, but no str.

    Raises:
        InvalidOptionError: it is not.
    """
    if isinstance(texts, str | bytes) or not isinstance(texts, Sequence):
        msg = f"texts: expected a list of str, got {type(texts).__name__}"
        raise InvalidOptionError(msg)
    return texts


def profile_named(name: Any) -> MediaTable:
    """The table of that name.

    Raises:
        InvalidOptionError: there is none.
    """
    found = PROFILES.get(name) if isinstance(name, str) else None
    if found is None:
        close = difflib.get_close_matches(str(name), PROFILES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        msg = f"no media profile is named {name!r:.80}; there are {', '.join(PROFILES)}{hint}"
        raise InvalidOptionError(msg)
    return found


def _overridden(table: MediaTable, media: Any) -> tuple[MediaTable, str]:
    """The table with the caller's figures in place of its own, and what they add to the id."""
    if media is None:
        return table, ""
    if isinstance(media, Mapping):
        given = dict(media)
        for kind, tokens in given.items():
            if kind not in KINDS:
                msg = f"media: no kind is named {kind!r:.80}; expected {', '.join(KINDS)}"
                raise InvalidOptionError(msg)
            checked_tokens(f"media[{kind!r}]", tokens)
        digest = zlib.crc32(json_text(dict(sorted(given.items()))).encode())

        def by_kind(part: Media) -> int:
            found = given.get(part.kind)
            return table(part) if found is None else found

        return by_kind, f"+media-{digest:08x}"
    name = getattr(media, "__name__", "")
    if not callable(media) or not isinstance(name, str) or not name.isidentifier():
        msg = (
            f"media: expected a profile's name, a mapping or a named function, got {media!r:.80}: "
            "its name becomes part of the counter's id"
        )
        raise InvalidOptionError(msg)
    return media, f"+media-{name}"


class CallableCounter(TextCounter):
    """Any ``Callable[[str], int]`` as a counter; its ``name`` is stored with every count."""

    __slots__ = ("_count",)

    def __init__(
        self,
        count: Callable[[str], int],
        *,
        name: str,
        exact: bool = False,
        profile: str = DEFAULT_PROFILE,
        media: MediaOption = None,
    ) -> None:
        if not callable(count) or not isinstance(name, str):
            msg = (
                "CallableCounter: expected a function and name='...', got "
                f"{type(count).__name__} and {name!r:.80}"
            )
            raise InvalidOptionError(msg)
        super().__init__(name, exact=exact, profile=profile, media=media)
        self._count = count

    def _tokens_of(self, text: str) -> int:
        return self._count(text)


class CompletedCounter(TextCounter):
    """A counter of the caller's that lacks methods of the protocol: what it has is used."""

    __slots__ = ("_counter",)

    def __init__(self, counter: Any) -> None:
        super().__init__(counter.id, exact=getattr(counter, "exact", False) is True)
        self._counter = counter

    def _own(self, method: str) -> Any:
        found = getattr(self._counter, method, None)
        return found if callable(found) else getattr(super(), method)

    def _tokens_of(self, text: str) -> int:
        found: int = self._counter.count(text)
        return found

    def count_many(self, texts: Sequence[str]) -> array[int]:
        """Tokens of each text."""
        found: array[int] = self._own("count_many")(texts)
        return found

    def truncate(
        self, text: str, max_tokens: int, *, keep: str = "head", marker: str | None = None
    ) -> Truncated:
        """The largest part of a text within ``max_tokens``."""
        found: Truncated = self._own("truncate")(text, max_tokens, keep=keep, marker=marker)
        return found

    def count_message(self, message: Mapping[str, Any], encoded: bytes) -> int:
        """Tokens of a message."""
        return checked_tokens(self.id, self._own("count_message")(message, encoded))

    def count_tools(self, tools: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of the definitions of tools."""
        return checked_tokens(self.id, self._own("count_tools")(tools))
