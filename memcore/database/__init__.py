"""Open database: ``open``, Database and Scope."""

from memcore.database.database import Database
from memcore.database.open import open_database
from memcore.database.scope import Scope
from memcore.maintenance.backup import CompactReport, RestoreReport, restore
from memcore.maintenance.check import check_database
from memcore.maintenance.salvage import SalvagedSession, SalvageReport, salvage

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
