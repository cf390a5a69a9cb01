"""What keeps personal data and secrets out of a file: pure, above nothing but values.

``policy`` says what is looked for, ``engine`` finds it in texts and puts placeholders in its place,
``walking`` does so inside JSON values without touching what frameworks pair by.
"""

from __future__ import annotations

from memcore.privacy.classes import CLASSES
from memcore.privacy.engine import PlacedRedaction, RedactingFilter, Redaction
from memcore.privacy.policy import POLICY_PRESETS, RedactionPolicy, redaction_policy
from memcore.privacy.spans import RedactionContext, Redactor, Span

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
