"""What stays how long, and what must go: rules and times, the sweep, legal holds, erasures."""

from memcore.retention.archive import ArchiveTarget, archive_to
from memcore.retention.background import Sweeper
from memcore.retention.compacting import marking_gone
from memcore.retention.erasing import (
    Asked,
    bury_shredded,
    count_pending,
    erase,
    finish_erasures,
    resume_erasures,
    would_erase,
)
from memcore.retention.hold import Hold, hold, hold_user, holds, release, release_user
from memcore.retention.keeping import Retention
from memcore.retention.opting import memories, opt_in, opt_out, opted_out
from memcore.retention.receipt import ErasureReceipt, verify_receipt
from memcore.retention.report import AuditSweep, Exporter, Run, SweepReport
from memcore.retention.rules import (
    RETENTION_PRESETS,
    RetentionRule,
    read_rules,
    retention_rules,
)
from memcore.retention.signing import receipt_key
from memcore.retention.sweeping import note_sweep, sweep

__all__ = [
    "RETENTION_PRESETS",
    "ArchiveTarget",
    "Asked",
    "AuditSweep",
    "ErasureReceipt",
    "Exporter",
    "Hold",
    "Retention",
    "RetentionRule",
    "Run",
    "SweepReport",
    "Sweeper",
    "archive_to",
    "bury_shredded",
    "count_pending",
    "erase",
    "finish_erasures",
    "hold",
    "hold_user",
    "holds",
    "marking_gone",
    "memories",
    "note_sweep",
    "opt_in",
    "opt_out",
    "opted_out",
    "read_rules",
    "receipt_key",
    "release",
    "release_user",
    "resume_erasures",
    "retention_rules",
    "sweep",
    "verify_receipt",
    "would_erase",
]
