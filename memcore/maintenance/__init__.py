"""Maintenance of a file: check, repair plan, doctor, backup, salvage."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "backup": "CompactReport judge_for",
        "check": "check_database",
    },
)
