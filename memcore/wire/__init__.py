"""Wire formats: legality, pairing of calls with results, rendering, validation."""

from memcore.wire.message import Binding, WireItem, bind
from memcore.wire.policy import POLICIES, PairPolicy, get_policy, policy_name
from memcore.wire.render import (
    Rendered,
    lead_in_message,
    rename_repeated_calls,
    render,
    summary_message,
    synthetic_results,
    synthetic_samples,
)
from memcore.wire.repair import MODES, Mend, apply_mends, mend
from memcore.wire.validate import find_violations

__all__ = [
    "MODES",
    "POLICIES",
    "Binding",
    "Mend",
    "PairPolicy",
    "Rendered",
    "WireItem",
    "apply_mends",
    "bind",
    "find_violations",
    "get_policy",
    "lead_in_message",
    "mend",
    "policy_name",
    "rename_repeated_calls",
    "render",
    "summary_message",
    "synthetic_results",
    "synthetic_samples",
]
