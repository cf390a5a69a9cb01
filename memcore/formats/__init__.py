"""Wire formats: what is legal, how pairs bind, how a history is rendered and validated."""

from memcore.formats.binding import Binding, Entry, bind
from memcore.formats.mending import MODES, Mend, apply_mends, mend
from memcore.formats.policy import POLICIES, PairPolicy, get_policy, policy_name
from memcore.formats.render import render
from memcore.formats.rendered import Rendered
from memcore.formats.unique import rename_repeated_calls
from memcore.formats.validate import find_violations
from memcore.formats.wire import (
    lead_in_message,
    summary_message,
    synthetic_results,
    synthetic_samples,
)

__all__ = [
    "MODES",
    "POLICIES",
    "Binding",
    "Entry",
    "Mend",
    "PairPolicy",
    "Rendered",
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
