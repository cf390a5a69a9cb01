"""Checkpoints of graph runtimes: channel values by version, equal parts stored once."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "check": "LostCheckpoint RecoveredNamespace check_threads clear_body",
        "decode": "MISSING Cache",
        "manifest": "Coder JsonCoder StoredCoder Typed Wrapper",
        "prune": (
            "PruneCandidate PrunePlan Pruned Rule changed_ms is_encrypted is_unused keep_rule "
            "limits_rule remove_piece run_rule"
        ),
        "read": "Delta StoredCheckpoint ThreadEntry",
        "rows": "Thread thread_of",
        "store": "GraphStore",
        "write": "NewCheckpoint NewWrites admitting",
    },
)
