"""Wire formats: legality, pairing of calls with results, rendering, validation."""

from memcore.wire.message import Binding, WireItem, bind
from memcore.wire.policy import POLICIES, PairPolicy, format_policy, get_policy, policy_name
from memcore.wire.render import (
    Rendered,
    lead_in_message,
    rename_repeated_calls,
    render,
    summary_message,
    synthetic_results,
    synthetic_samples,
)

__all__ = [
    "POLICIES",
    "Binding",
    "PairPolicy",
    "Rendered",
    "WireItem",
    "bind",
    "format_policy",
    "get_policy",
    "lead_in_message",
    "policy_name",
    "rename_repeated_calls",
    "render",
    "summary_message",
    "synthetic_results",
    "synthetic_samples",
]
