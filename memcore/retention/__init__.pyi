# Written by scripts/make_faces from __init__.py.
from memcore.retention.erasure import ErasureRequest as ErasureRequest
from memcore.retention.erasure import bury_shredded as bury_shredded
from memcore.retention.erasure import count_pending as count_pending
from memcore.retention.erasure import erase as erase
from memcore.retention.erasure import finish_erasures as finish_erasures
from memcore.retention.erasure import has_shredded as has_shredded
from memcore.retention.erasure import marking_gone as marking_gone
from memcore.retention.erasure import resume_erasures as resume_erasures
from memcore.retention.erasure import would_erase as would_erase
from memcore.retention.legal_holds import Hold as Hold
from memcore.retention.legal_holds import hold as hold
from memcore.retention.legal_holds import hold_user as hold_user
from memcore.retention.legal_holds import holds as holds
from memcore.retention.legal_holds import memories as memories
from memcore.retention.legal_holds import opt_in as opt_in
from memcore.retention.legal_holds import opt_out as opt_out
from memcore.retention.legal_holds import opted_out as opted_out
from memcore.retention.legal_holds import release as release
from memcore.retention.legal_holds import release_user as release_user
from memcore.retention.receipt import ErasureReceipt as ErasureReceipt
from memcore.retention.receipt import checked_key as checked_key
from memcore.retention.receipt import digest_of as digest_of
from memcore.retention.receipt import receipt_key as receipt_key
from memcore.retention.receipt import verify_receipt as verify_receipt
from memcore.retention.retention import Retention as Retention
from memcore.retention.rules import ArchiveTarget as ArchiveTarget
from memcore.retention.rules import AuditSweep as AuditSweep
from memcore.retention.rules import Exporter as Exporter
from memcore.retention.rules import RETENTION_PRESETS as RETENTION_PRESETS
from memcore.retention.rules import RetentionRule as RetentionRule
from memcore.retention.rules import SweepReport as SweepReport
from memcore.retention.rules import SweepRun as SweepRun
from memcore.retention.rules import archive_to as archive_to
from memcore.retention.rules import read_rules as read_rules
from memcore.retention.rules import retention_rules as retention_rules
from memcore.retention.sweeper import Sweeper as Sweeper
from memcore.retention.sweeper import note_sweep as note_sweep
from memcore.retention.sweeper import sweep as sweep

__all__ = [
    "RETENTION_PRESETS",
    "ArchiveTarget",
    "AuditSweep",
    "ErasureReceipt",
    "ErasureRequest",
    "Exporter",
    "Hold",
    "Retention",
    "RetentionRule",
    "SweepReport",
    "SweepRun",
    "Sweeper",
    "archive_to",
    "bury_shredded",
    "checked_key",
    "count_pending",
    "digest_of",
    "erase",
    "finish_erasures",
    "has_shredded",
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
