"""Checkpoints of graph runtimes: channel values by version, stored with what they share."""

from memcore.graph.check import LostCheckpoint, RecoveredNamespace, check_threads, clear_body
from memcore.graph.decode import MISSING, Cache
from memcore.graph.manifest import Coder, JsonCoder, StoredCoder, Typed, Wrapper
from memcore.graph.prune import (
    PruneCandidate,
    Pruned,
    PrunePlan,
    Rule,
    changed_ms,
    is_encrypted,
    keep_rule,
    limits_rule,
    run_rule,
)
from memcore.graph.read import Delta, StoredCheckpoint, ThreadEntry
from memcore.graph.rows import Thread, scopes_with_threads, thread_of
from memcore.graph.store import GraphStore
from memcore.graph.write import NewCheckpoint, NewWrites, admitting

__all__ = [
    "MISSING",
    "Cache",
    "Coder",
    "Delta",
    "GraphStore",
    "JsonCoder",
    "LostCheckpoint",
    "NewCheckpoint",
    "NewWrites",
    "PruneCandidate",
    "PrunePlan",
    "Pruned",
    "RecoveredNamespace",
    "Rule",
    "StoredCheckpoint",
    "StoredCoder",
    "Thread",
    "ThreadEntry",
    "Typed",
    "Wrapper",
    "admitting",
    "changed_ms",
    "check_threads",
    "clear_body",
    "is_encrypted",
    "keep_rule",
    "limits_rule",
    "run_rule",
    "scopes_with_threads",
    "thread_of",
]
