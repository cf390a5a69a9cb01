"""The open file: open(), Database, Scope; and its care: check, copies, salvage."""

from memcore.database.check import check_database
from memcore.database.copies import CompactReport, RestoreReport, restore
from memcore.database.handle import Database
from memcore.database.opening import open_database
from memcore.database.salvage import salvage
from memcore.database.salvaged import SalvagedSession, SalvageReport
from memcore.database.scope import Scope

__all__ = [
    "CompactReport",
    "Database",
    "RestoreReport",
    "SalvageReport",
    "SalvagedSession",
    "Scope",
    "check_database",
    "open_database",
    "restore",
    "salvage",
]
