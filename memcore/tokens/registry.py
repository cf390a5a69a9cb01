"""Counters by name. The name is also the id that is stored with counts, and says all of a counter.

o200k_base · cl100k_base       exact
tiktoken:ENCODING              exact, by tiktoken
bytes/N                        an estimate
BASE*FACTOR[+digits[*N]]       a scaled counter, BASE one of the above
...@PROFILE                    with the media and tools of another provider
model:NAME                     whatever counts for that model; its id is one of the above
"""

from __future__ import annotations

import difflib
import re
from typing import Any, Final

from memcore.errors import CounterUnavailableError, InvalidOptionError
from memcore.tokens.estimate import DIVISOR_MAX, BytesEstimate
from memcore.tokens.exact import ENCODINGS, ExactCounter
from memcore.tokens.models import counter_for_model
from memcore.tokens.protocol import TokenCounter
from memcore.tokens.scaled import ScaledCounter
from memcore.tokens.textual import DEFAULT_PROFILE, CompletedCounter, TextCounter
from memcore.tokens.tiktoken import TiktokenCounter

__all__ = ["get_counter"]

COUNTER_ID_BYTES_MAX: Final = 200
_SCALED: Final = re.compile(
    r"(?P<base>[^*@]+)\*(?P<factor>\d{1,3}(?:\.\d{1,6})?)(?P<digits>\+digits(?:\*(?P<each>\d{1,3}(?:\.\d{1,6})?))?)?",
    re.ASCII,
)
_BUILT_IN: Final = (ExactCounter, BytesEstimate, ScaledCounter, TiktokenCounter, CompletedCounter)
_METHODS: Final = ("count", "count_many", "truncate", "count_message", "count_tools")
_EXAMPLES: Final = (
    *ENCODINGS, "bytes/4", "tiktoken:o200k_base", "tiktoken:cl100k_base", "o200k_base*1.2",
    "model:claude-sonnet-4-5",
)  # fmt: skip


def get_counter(counter: str | TokenCounter | None = None) -> TokenCounter:
    """The counter of that name, or the object as it is; None: ``"o200k_base"``.

    An object needs an ``id``, ``exact`` and ``count``; what it lacks of TokenCounter is derived.

    Raises:
        InvalidOptionError: no counter has that name, or the object is none.
        CounterUnavailableError: the counter exists but cannot be loaded here.
    """
    if counter is None:
        return ExactCounter()
    if isinstance(counter, str):
        return _named(str.__str__(counter))
    if not isinstance(getattr(counter, "id", None), str) or not callable(
        getattr(counter, "count", None)
    ):
        msg = (
            f"counter: expected a name or a TokenCounter, got {type(counter).__name__}; wrap a "
            "function with memcore.CallableCounter(function, name='...')"
        )
        raise InvalidOptionError(msg)
    _check_id(counter.id)
    if not isinstance(counter, _BUILT_IN) and _is_taken(counter.id):
        msg = (
            f"counter id {counter.id!r} is one of memcore's: counts of both could not be told apart"
        )
        raise InvalidOptionError(msg)
    if all(callable(getattr(counter, method, None)) for method in _METHODS):
        return counter
    return CompletedCounter(counter)


def _check_id(name: str) -> None:
    if not 0 < len(name.encode("utf-8", "replace")) <= COUNTER_ID_BYTES_MAX:
        msg = f"counter id {name!r:.80}: expected 1 to {COUNTER_ID_BYTES_MAX} bytes of UTF-8"
        raise InvalidOptionError(msg)
    try:
        name.encode()
    except UnicodeEncodeError as exc:
        msg = f"counter id {name!r:.80} holds a lone surrogate"
        raise InvalidOptionError(msg) from exc


def _is_taken(name: str) -> bool:
    """Whether a name is a built-in counter's."""
    try:
        _named(name)
    except CounterUnavailableError:
        return True
    except InvalidOptionError:
        return False
    return True


def _named(name: str) -> TextCounter:
    if name.startswith("model:"):
        return counter_for_model(name.removeprefix("model:"))
    stem, at, profile = name.partition("@")
    if "*" not in stem:
        found = _plain(stem, profile if at else DEFAULT_PROFILE)
        if found is None:
            raise _unknown(name)
        return found
    scaled = _SCALED.fullmatch(stem)
    base = None if scaled is None else _plain(scaled["base"], DEFAULT_PROFILE)
    if scaled is None or base is None:
        raise _unknown(name)
    each = scaled["each"] or (1 if scaled["digits"] else 0)
    return ScaledCounter(
        base,
        float(scaled["factor"]),
        per_digit=float(each),
        profile=profile if at else DEFAULT_PROFILE,
    )


def _plain(stem: str, profile: str) -> TextCounter | None:
    if stem in ENCODINGS:
        return ExactCounter(stem, profile=profile)
    family, _, rest = stem.partition(":")
    if family == "tiktoken" and rest:
        return TiktokenCounter(rest, profile=profile)
    family, _, rest = stem.partition("/")
    digits = rest.isascii() and rest.isdigit() and len(rest) <= len(str(DIVISOR_MAX))
    if family == "bytes" and digits and 1 <= int(rest) <= DIVISOR_MAX:
        return BytesEstimate(int(rest), profile=profile)
    return None


def _is_model(name: str) -> bool:
    try:
        counter_for_model(name)
    except InvalidOptionError:
        return False
    return True


def _unknown(name: str) -> InvalidOptionError:
    close: list[Any] = difflib.get_close_matches(name[:100], _EXAMPLES, n=1)
    if _is_model(name):
        close = [f"model:{name}"]
    hint = f"; did you mean {close[0]!r}?" if close else ""
    msg = (
        f"no counter is named {name!r:.100}{hint}; there are {', '.join(ENCODINGS)} (exact), "
        "tiktoken:ENCODING, bytes/N, BASE*FACTOR, each with @PROFILE, and model:NAME"
    )
    return InvalidOptionError(msg)
