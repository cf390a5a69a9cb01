"""From a model's name to its counter, by the tables of ``factors``."""

from __future__ import annotations

import difflib
import re
from typing import Any, Final

from memcore.errors import InvalidOptionError
from memcore.tokens.exact import ExactCounter
from memcore.tokens.factors import FAMILIES, OPENAI_MODELS
from memcore.tokens.scaled import ScaledCounter
from memcore.tokens.textual import MediaOption, TextCounter

__all__ = ["counter_for_model"]

_VENDOR: Final = re.compile(
    r"(?:(?:us|eu|apac|global|jp|au)-)?(?:anthropic|amazon|meta|mistral|deepseek|qwen|google)-"
    r"(?=[a-z])"
)
"""What Bedrock writes before a model's name, its dots read as hyphens."""


def counter_for_model(model: str, *, media: MediaOption = None) -> TextCounter:
    """The counter of a model: exact for OpenAI's, an estimate for others.

    Names may carry their provider (``anthropic/claude-sonnet-4-5``, ``ft:gpt-4o:...``,
    ``us.anthropic.claude-opus-4-1-v1:0``, ``openai:gpt-4o``). ``media`` as for ``TextCounter``.

    Raises:
        InvalidOptionError: no family of models begins with that name.
    """
    if not isinstance(model, str):
        msg = f"model: expected a str, got {type(model).__name__}"
        raise InvalidOptionError(msg)
    name = model.lower().rpartition("/")[2].removeprefix("ft:")
    name = name.replace(".", "-").replace("_", "-")
    # "openai:gpt-4o" is LangChain's spelling; a colon may also belong to the name ("llama3:8b").
    for candidate in (name, _VENDOR.sub("", name, count=1), name.partition(":")[2]):
        found = _find(candidate, media)
        if found is not None:
            return found
    known = [prefix for prefix, _, _ in OPENAI_MODELS]
    known += [prefix for family in FAMILIES for prefix in family.prefixes]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    msg = (
        f"no counter is known for model {model!r:.80}{hint}; memcore knows models of OpenAI, "
        "Claude, Gemini, Llama 3, Qwen, DeepSeek, Mistral, Kimi and GLM: for another give a factor "
        "over o200k_base, as in counter='o200k_base*1.1'"
    )
    raise InvalidOptionError(msg)


def _begins(name: str, prefix: str) -> bool:
    """Whether a name begins with a prefix: a number in it must not go on."""
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
