"""Personal data and secrets kept out of a file: redaction, guards, keys; pure.

``policy`` says what is looked for, ``engine`` finds it in texts and puts placeholders in its place,
``walking`` does so inside JSON values without touching what frameworks pair by.
"""

from __future__ import annotations

from memcore.privacy.policy import (
    CLASSES,
    POLICY_PRESETS,
    RedactionContext,
    RedactionPolicy,
    Redactor,
    Span,
    redaction_policy,
)
from memcore.privacy.redact import PlacedRedaction, RedactingFilter, Redaction

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
