"""Keeps personal data and secrets out of a file: redaction, guards, keys; pure.

``policy`` defines what to find, ``redact`` replaces findings with placeholders in texts and JSON
values, ``redact_packed`` in serialized ones; ``guards`` judge writes, ``keyring`` holds keys.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "guards": (
            "VERDICTS NoWrites WriteContext blocked checked_guard guard_mapping is_operator "
            "judged read_guard"
        ),
        "keyring": "key_provider unveiled veiled",
        "policy": (
            "CLASSES POLICY_PRESETS RedactionContext RedactionPolicy Redactor Span redaction_policy"
        ),
        "redact": "PlacedRedaction RedactingFilter Redaction",
    },
)
