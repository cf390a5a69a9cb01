# Written by scripts/make_faces from __init__.py.
from memcore.database.database import Database as Database
from memcore.database.open import open_database as open_database
from memcore.database.scope import Scope as Scope

__all__ = [
    "Database",
    "Scope",
    "open_database",
]
