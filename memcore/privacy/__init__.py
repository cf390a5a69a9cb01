"""Personal data and secrets kept out of a file: redaction, guards, keys; pure.

``policy`` says what is looked for, ``engine`` finds it in texts and puts placeholders in its place,
``walking`` does so inside JSON values without touching what frameworks pair by.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "policy": (
            "CLASSES POLICY_PRESETS RedactionContext RedactionPolicy Redactor Span redaction_policy"
        ),
        "redact": "PlacedRedaction RedactingFilter Redaction",
    },
)
