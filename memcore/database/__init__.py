"""The open file: open(), Database, Scope."""

from memcore.database.check import check_database
from memcore.database.handle import Database, Scope
from memcore.database.opening import open_database

__all__ = ["Database", "Scope", "check_database", "open_database"]
