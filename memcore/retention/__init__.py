"""What stays how long: rules and times, and the sweep that removes the rest."""

from memcore.retention.archive import ArchiveTarget, archive_to
from memcore.retention.background import Sweeper
from memcore.retention.keeping import Retention
from memcore.retention.report import AuditSweep, Exporter, Run, SweepReport
from memcore.retention.rules import (
    RETENTION_PRESETS,
    RetentionRule,
    read_rules,
    retention_rules,
)
from memcore.retention.sweeping import sweep

__all__ = [
    "RETENTION_PRESETS",
    "ArchiveTarget",
    "AuditSweep",
    "Exporter",
    "Retention",
    "RetentionRule",
    "Run",
    "SweepReport",
    "Sweeper",
    "archive_to",
    "read_rules",
    "retention_rules",
    "sweep",
]
