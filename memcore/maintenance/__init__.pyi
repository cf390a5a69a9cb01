# Written by scripts/make_faces from __init__.py.
from memcore.maintenance.backup import CompactReport as CompactReport
from memcore.maintenance.backup import judge_for as judge_for
from memcore.maintenance.check import check_database as check_database

__all__ = [
    "CompactReport",
    "check_database",
    "judge_for",
]
