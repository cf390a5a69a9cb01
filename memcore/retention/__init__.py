"""Retention: rules and times, the sweep, legal holds, erasure."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "erasure": (
            "ErasureRequest bury_shredded count_pending erase finish_erasures has_shredded "
            "marking_gone resume_erasures would_erase"
        ),
        "legal_holds": (
            "Hold hold hold_user holds memories opt_in opt_out opted_out release release_user"
        ),
        "receipt": "ErasureReceipt checked_key digest_of receipt_key verify_receipt",
        "retention": "Retention",
        "rules": (
            "RETENTION_PRESETS ArchiveTarget AuditSweep Exporter RetentionRule SweepReport "
            "SweepRun archive_to read_rules retention_rules"
        ),
        "sweeper": "Sweeper note_sweep sweep",
    },
)
