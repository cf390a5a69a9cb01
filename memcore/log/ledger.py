"""A ledger for a policy and a counter."""

from __future__ import annotations

from memcore._fast import Ledger
from memcore.codec import encode_json
from memcore.formats import PairPolicy, synthetic_samples
from memcore.model import Message
from memcore.tokens import TokenCounter, checked_count

__all__ = ["count_message", "new_ledger", "open_call_tokens"]


def count_message(message: Message, counter: TokenCounter) -> int:
    """Tokens of a message that is not stored (a summary, a synthetic result, a plain list's)."""
    return checked_count(counter, message, encode_json(message)[0])


def open_call_tokens(counter: TokenCounter) -> int:
    """What an open call may cost a context by ``counter``: the dearest synthetic result."""
    return max(count_message(message, counter) for message in synthetic_samples())


def new_ledger(
    policy: PairPolicy, counter: TokenCounter | None, *, expect_items: int = 0
) -> Ledger:
    """An empty ledger; each open call in it may cost a synthetic result by ``counter``."""
    cost = 0 if counter is None else open_call_tokens(counter)
    return policy.new_ledger(cost, expect_items=expect_items)
