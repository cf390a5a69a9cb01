# Written by scripts/make_faces from __init__.py.
from memcore.database.audit import anchor_audit as anchor_audit
from memcore.database.audit import cut_audit as cut_audit
from memcore.database.audit import list_audit as list_audit
from memcore.database.audit import verify_audit as verify_audit
from memcore.database.database import Database as Database
from memcore.database.open import open_database as open_database
from memcore.database.scope import Scope as Scope
from memcore.database.stats import branches_of as branches_of
from memcore.database.stats import compare as compare
from memcore.database.stats import count_everything as count_everything

__all__ = [
    "Database",
    "Scope",
    "anchor_audit",
    "branches_of",
    "compare",
    "count_everything",
    "cut_audit",
    "list_audit",
    "open_database",
    "verify_audit",
]
