# Written by scripts/make_faces from __init__.py.
from memcore.privacy.guards import NoWrites as NoWrites
from memcore.privacy.guards import VERDICTS as VERDICTS
from memcore.privacy.guards import WriteContext as WriteContext
from memcore.privacy.guards import blocked as blocked
from memcore.privacy.guards import checked_guard as checked_guard
from memcore.privacy.guards import guard_mapping as guard_mapping
from memcore.privacy.guards import is_operator as is_operator
from memcore.privacy.guards import judged as judged
from memcore.privacy.guards import read_guard as read_guard
from memcore.privacy.keyring import key_provider as key_provider
from memcore.privacy.keyring import unveiled as unveiled
from memcore.privacy.keyring import veiled as veiled
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
    "VERDICTS",
    "NoWrites",
    "PlacedRedaction",
    "RedactingFilter",
    "Redaction",
    "RedactionContext",
    "RedactionPolicy",
    "Redactor",
    "Span",
    "WriteContext",
    "blocked",
    "checked_guard",
    "guard_mapping",
    "is_operator",
    "judged",
    "key_provider",
    "read_guard",
    "redaction_policy",
    "unveiled",
    "veiled",
]
