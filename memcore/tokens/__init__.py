"""Token counters: exact, estimated, scaled for other models, or the caller's own.

``registry`` finds one by name, ``message`` says what a message counts.
"""

from memcore.tokens.estimate import BytesEstimate
from memcore.tokens.exact import ExactCounter
from memcore.tokens.media import PROFILES, Media
from memcore.tokens.models import counter_for_model
from memcore.tokens.overheads import REPLY_TOKENS
from memcore.tokens.protocol import TokenCounter, Truncated, checked_count, checked_tokens
from memcore.tokens.registry import get_counter
from memcore.tokens.scaled import ScaledCounter
from memcore.tokens.textual import CallableCounter, TextCounter
from memcore.tokens.tiktoken import TiktokenCounter

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
