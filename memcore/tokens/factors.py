"""Which counter counts for a model: tables, each figure with its source.

A factor is the model's tokens over those of ``o200k_base``. "Measured" means: tokens of recorded
conversations (prose, tool arguments, tool results), code and logs by the model's published
vocabulary (as bundled in splintr-rs 0.22) over those of o200k_base, in that order. Of tokenizers
that split every digit, the tokens that this adds are taken off first: they are counted one by one.
Factors are estimates: what a provider reports for the input corrects them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["FAMILIES", "OPENAI_MODELS", "Family"]


class Family(NamedTuple):
    """Models that are counted alike."""

    prefixes: tuple[str, ...]
    """A model's name begins with one of these, in small letters; ``.`` and ``_`` read as ``-``."""
    factor: float
    splits_digits: bool
    profile: str
    """Of ``media.PROFILES``."""
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
    Family(_LATE_CLAUDE, 1.55, False, "anthropic-large", _LATE_SOURCE),
    Family(
        _EARLY_CLAUDE, 1.2, False, "anthropic",
        "no public tokenizer; 1.18 reported for Claude 3 to 4.6 (sammcj/ingest PR 65)",
    ),
    Family(("claude",), 1.55, False, "anthropic-large", _LATE_SOURCE),
    Family(
        ("gemini-3",), 1.06, True, "gemini-3",
        "measured with Gemma 3: 1.02 to 1.06, 1.04, 1.02, 1.16, 1.00; Gemini's is close to it",
    ),
    Family(
        ("gemini", "gemma"), 1.06, True, "gemini",
        "measured with Gemma 3: 1.02 to 1.06, 1.04, 1.02, 1.16, 1.00; Gemini's is close to it",
    ),
    Family(
        ("llama-3", "llama3", "meta-llama-3"), 1.01, False, "generic",
        "measured with Llama 3: 1.01 to 1.03, 1.00, 1.00, 1.00, 1.00",
    ),
    Family(
        ("qwen", "qwq"), 1.02, True, "generic",
        "measured with Qwen 3: 1.01 to 1.03, 1.00, 1.00, 1.00, 1.00",
    ),
    Family(
        ("deepseek",), 1.04, False, "generic",
        "measured with DeepSeek V3: 1.02 to 1.04, 1.04, 1.05, 1.06, 1.00; Chinese 0.88",
    ),
    Family(
        ("mistral", "mixtral", "codestral", "ministral", "magistral", "devstral", "pixtral"),
        1.04, True, "generic",
        "measured with Mistral v3: 1.02 to 1.05, 1.05, 1.05, 1.04, 1.00; Chinese 1.24",
    ),
    Family(
        ("kimi", "moonshot"), 1.01, False, "generic",
        "measured with Kimi K2: 1.01, 1.01, 1.01, 0.99, 1.00; Chinese 0.86",
    ),
    Family(
        ("glm", "chatglm"), 1.03, False, "generic",
        "measured with GLM-4: 1.02 to 1.04, 1.03, 1.02, 1.00, 1.11; Chinese 0.90",
    ),
)  # fmt: skip
"""The first family with a prefix of the model's name counts for it."""

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
"""``(prefix, encoding, profile)``. Encodings as in tiktoken/model.py of tiktoken 0.14 (where
o200k_harmony counts text as o200k_base does), profiles from OpenAI's "Images and vision"."""
