"""Counters by name or model. The name is the id that is stored with counts.

o200k_base · cl100k_base       exact
tiktoken:ENCODING              exact, by tiktoken
bytes/N                        an estimate
BASE*FACTOR[+digits[*N]]       a scaled counter, BASE one of the above
...@PROFILE                    with the media and tools of another provider
model:NAME                     the counter of that model; its id is one of the above
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from memcore.errors import CounterUnavailableError, InvalidOptionError
from memcore.options import closest
from memcore.tokens.builtin import (
    DIVISOR_MAX,
    ENCODINGS,
    BytesEstimate,
    ExactCounter,
    ScaledCounter,
    TiktokenCounter,
)
from memcore.tokens.counter import (
    DEFAULT_PROFILE,
    CompletedCounter,
    MediaOption,
    TextCounter,
    TokenCounter,
)

__all__ = [
    "FAMILIES",
    "OPENAI_MODELS",
    "ModelFamily",
    "counter_for_model",
    "get_counter",
]


# --- Counters by model: tables, each figure with its source ---------------------------------------
# A factor is the ratio of the model's tokens to those of ``o200k_base``. "Measured" means: tokens
# of recorded conversations (prose, tool arguments, tool results), code and logs, in that order, by
# the model's published vocabulary (as bundled in splintr-rs 0.22) relative to o200k_base. For
# tokenizers that split every digit, the extra tokens are subtracted first: they are counted
# individually. Factors are estimates: the usage that a provider reports corrects them.


class ModelFamily(NamedTuple):
    """Models that are counted the same way."""

    prefixes: tuple[str, ...]
    """Prefixes of models' names, in lower case, with ``.`` and ``_`` replaced by ``-``."""
    factor: float
    splits_digits: bool
    profile: str
    """Name in ``media.PROFILES``."""
    source: str


_CLAUDE: Final = ("opus", "sonnet", "haiku")
_EARLY_CLAUDE: Final = (
    "claude-instant", "claude-v1", "claude-v2", "claude-1", "claude-2", "claude-3",
    *(f"claude-{kind}-4" for kind in _CLAUDE), *(f"claude-4-{kind}" for kind in _CLAUDE),
)  # fmt: skip
_LATE_CLAUDE: Final = tuple(
    f"claude-{kind}-4-{number}" for kind in _CLAUDE for number in range(7, 20)
)
_LATE_SOURCE: Final = (
    "no public tokenizer; 1.53 reported for Opus 4.7 and Claude 5 (sammcj/ingest PR 65), 30 % more "
    "than before; what is not known yet is taken for one of these"
)

FAMILIES: Final = (
    ModelFamily(_LATE_CLAUDE, 1.55, False, "anthropic-large", _LATE_SOURCE),
    ModelFamily(
        _EARLY_CLAUDE, 1.2, False, "anthropic",
        "no public tokenizer; 1.18 reported for Claude 3 to 4.6 (sammcj/ingest PR 65)",
    ),
    ModelFamily(("claude",), 1.55, False, "anthropic-large", _LATE_SOURCE),
    ModelFamily(
        ("gemini-3",), 1.06, True, "gemini-3",
        "measured with Gemma 3: 1.02 to 1.06, 1.04, 1.02, 1.16, 1.00; Gemini's is close to it",
    ),
    ModelFamily(
        ("gemini", "gemma"), 1.06, True, "gemini",
        "measured with Gemma 3: 1.02 to 1.06, 1.04, 1.02, 1.16, 1.00; Gemini's is close to it",
    ),
    ModelFamily(
        ("llama-3", "llama3", "meta-llama-3"), 1.01, False, "generic",
        "measured with Llama 3: 1.01 to 1.03, 1.00, 1.00, 1.00, 1.00",
    ),
    ModelFamily(
        ("qwen", "qwq"), 1.02, True, "generic",
        "measured with Qwen 3: 1.01 to 1.03, 1.00, 1.00, 1.00, 1.00",
    ),
    ModelFamily(
        ("deepseek",), 1.04, False, "generic",
        "measured with DeepSeek V3: 1.02 to 1.04, 1.04, 1.05, 1.06, 1.00; Chinese 0.88",
    ),
    ModelFamily(
        ("mistral", "mixtral", "codestral", "ministral", "magistral", "devstral", "pixtral"),
        1.04, True, "generic",
        "measured with Mistral v3: 1.02 to 1.05, 1.05, 1.05, 1.04, 1.00; Chinese 1.24",
    ),
    ModelFamily(
        ("kimi", "moonshot"), 1.01, False, "generic",
        "measured with Kimi K2: 1.01, 1.01, 1.01, 0.99, 1.00; Chinese 0.86",
    ),
    ModelFamily(
        ("glm", "chatglm"), 1.03, False, "generic",
        "measured with GLM-4: 1.02 to 1.04, 1.03, 1.02, 1.00, 1.11; Chinese 0.90",
    ),
)  # fmt: skip
"""The first family with a prefix of the model's name applies."""

OPENAI_MODELS: Final[tuple[tuple[str, str, str], ...]] = (
    ("gpt-oss", "o200k_base", "openai"),
    ("gpt-5-nano", "o200k_base", "openai-patches-2.46"),
    ("gpt-5-mini", "o200k_base", "openai-patches-1.62"),
    ("gpt-5", "o200k_base", "openai-70"),
    ("gpt-4-1-nano", "o200k_base", "openai-patches-2.46"),
    ("gpt-4-1-mini", "o200k_base", "openai-patches-1.62"),
    ("gpt-4-1", "o200k_base", "openai"),
    ("gpt-4-5", "o200k_base", "openai"),
    ("gpt-4o-mini", "o200k_base", "openai-2833"),
    ("gpt-4o", "o200k_base", "openai"),
    ("chatgpt-4o", "o200k_base", "openai"),
    ("o4-mini", "o200k_base", "openai-patches-1.72"),
    ("o1", "o200k_base", "openai-75"),
    ("o3", "o200k_base", "openai-75"),
    ("gpt-4", "cl100k_base", "openai"),
    ("gpt-3-5", "cl100k_base", "openai"),
    ("gpt-35", "cl100k_base", "openai"),
    ("text-embedding-3", "cl100k_base", "openai"),
    ("text-embedding-ada-002", "cl100k_base", "openai"),
    ("davinci-002", "cl100k_base", "openai"),
    ("babbage-002", "cl100k_base", "openai"),
)
"""``(prefix, encoding, profile)``. Encodings are from tiktoken/model.py of tiktoken 0.14 (where
o200k_harmony counts text as o200k_base does), profiles from OpenAI's "Images and vision"."""


# --- Counters of models, by the families of their names -------------------------------------------

_VENDOR: Final = re.compile(
    r"(?:(?:us|eu|apac|global|jp|au)-)?(?:anthropic|amazon|meta|mistral|deepseek|qwen|google)-"
    r"(?=[a-z])"
)
"""Prefix of a model's name in Bedrock, with dots replaced by hyphens."""


def counter_for_model(model: str, *, media: MediaOption = None) -> TextCounter:
    """Return the counter of a model: exact for OpenAI's, an estimate for others.

    Names may include their provider (``anthropic/claude-sonnet-4-5``, ``ft:gpt-4o:...``,
    ``us.anthropic.claude-opus-4-1-v1:0``, ``openai:gpt-4o``). ``media`` as for ``TextCounter``.

    Raises:
        InvalidOptionError: the name matches no known family of models.
    """
    if not isinstance(model, str):
        msg = f"model: expected a str, got {type(model).__name__}"
        raise InvalidOptionError(msg)
    name = model.lower().rpartition("/")[2].removeprefix("ft:")
    name = name.replace(".", "-").replace("_", "-")
    # "openai:gpt-4o" is LangChain's spelling; a colon may also be part of the name ("llama3:8b").
    for candidate in (name, _VENDOR.sub("", name, count=1), name.partition(":")[2]):
        found = _find(candidate, media)
        if found is not None:
            return found
    known = [prefix for prefix, _, _ in OPENAI_MODELS]
    known += [prefix for family in FAMILIES for prefix in family.prefixes]
    close = closest(name, known)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    msg = (
        f"no counter is known for model {model!r:.80}{hint}; memcore knows models of OpenAI, "
        "Claude, Gemini, Llama 3, Qwen, DeepSeek, Mistral, Kimi and GLM: for another give a factor "
        "over o200k_base, as in counter='o200k_base*1.1'"
    )
    raise InvalidOptionError(msg)


def _begins(name: str, prefix: str) -> bool:
    """Return whether a name has a prefix; a number at the prefix's end has to be complete."""
    if not name.startswith(prefix):
        return False
    rest = name[len(prefix) :]
    return not (prefix[-1].isdigit() and rest[:1].isdigit())


def _find(name: str, media: Any) -> TextCounter | None:
    for prefix, encoding, profile in OPENAI_MODELS:
        if _begins(name, prefix):
            return ExactCounter(encoding, profile=profile, media=media)
    for family in FAMILIES:
        if any(_begins(name, prefix) for prefix in family.prefixes):
            return ScaledCounter(
                ExactCounter(),
                family.factor,
                per_digit=1.0 if family.splits_digits else 0.0,
                profile=family.profile,
                media=media,
            )
    return None


# --- Counters by name, which is also the id that is stored with counts ----------------------------

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
    """Return a counter by name, or the given object; None: ``"o200k_base"``.

    An object needs an ``id``, ``exact`` and ``count``; other methods of TokenCounter are derived.

    Raises:
        InvalidOptionError: no counter has that name, or the object is not a counter.
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
    """Return whether a name belongs to a built-in counter, available or not."""
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
    close: list[Any] = closest(name[:100], _EXAMPLES)
    if _is_model(name):
        close = [f"model:{name}"]
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    msg = (
        f"no counter is named {name!r:.100}{hint}; there are {', '.join(ENCODINGS)} (exact), "
        "tiktoken:ENCODING, bytes/N, BASE*FACTOR, each with @PROFILE, and model:NAME"
    )
    return InvalidOptionError(msg)
