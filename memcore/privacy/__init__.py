"""Personal data and secrets kept out of a file: redaction, guards, keys; pure.

``policy`` says what to find, ``redact`` replaces findings by placeholders in texts and inside JSON
values, ``redact_packed`` inside serialized ones; ``guards`` judge writes, ``keyring`` holds keys.
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
