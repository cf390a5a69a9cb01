"""Token counters: exact, estimated, scaled for other models, or custom.

``registry`` looks counters up by name; ``message`` holds the rules for counting a message.
"""

from memcore.tokens.builtin import BytesEstimate, ExactCounter, ScaledCounter, TiktokenCounter
from memcore.tokens.counter import (
    CallableCounter,
    TextCounter,
    TokenCounter,
    Truncated,
    checked_count,
    checked_tokens,
)
from memcore.tokens.media import PROFILES, Media
from memcore.tokens.message import REPLY_TOKENS
from memcore.tokens.registry import counter_for_model, get_counter

__all__ = [
    "PROFILES",
    "REPLY_TOKENS",
    "BytesEstimate",
    "CallableCounter",
    "ExactCounter",
    "Media",
    "ScaledCounter",
    "TextCounter",
    "TiktokenCounter",
    "TokenCounter",
    "Truncated",
    "checked_count",
    "checked_tokens",
    "counter_for_model",
    "get_counter",
]
