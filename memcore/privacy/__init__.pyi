# Written by scripts/make_faces from __init__.py.
from memcore.privacy.policy import CLASSES as CLASSES
from memcore.privacy.policy import POLICY_PRESETS as POLICY_PRESETS
from memcore.privacy.policy import RedactionContext as RedactionContext
from memcore.privacy.policy import RedactionPolicy as RedactionPolicy
from memcore.privacy.policy import Redactor as Redactor
from memcore.privacy.policy import Span as Span
from memcore.privacy.policy import redaction_policy as redaction_policy
from memcore.privacy.redact import PlacedRedaction as PlacedRedaction
from memcore.privacy.redact import RedactingFilter as RedactingFilter
from memcore.privacy.redact import Redaction as Redaction

__all__ = [
    "CLASSES",
    "POLICY_PRESETS",
    "PlacedRedaction",
    "RedactingFilter",
    "Redaction",
    "RedactionContext",
    "RedactionPolicy",
    "Redactor",
    "Span",
    "redaction_policy",
]
