"""Checkpoints of graph runtimes: channel values by version, stored with what they share."""

from memcore.checkpoint.cache import Cache
from memcore.checkpoint.care import check_threads, clear_body
from memcore.checkpoint.checking import LostCheckpoint, RecoveredNamespace
from memcore.checkpoint.coding import Coder, JsonCoder, StoredCoder, Typed, Wrapper
from memcore.checkpoint.graph import GraphStore
from memcore.checkpoint.joining import MISSING
from memcore.checkpoint.pruning import Candidate, Plan, Pruned, Rule
from memcore.checkpoint.reading import Delta, Found, ThreadEntry
from memcore.checkpoint.redacting import admitting
from memcore.checkpoint.retention import changed_ms, is_encrypted, keep_rule, limits_rule, run_rule
from memcore.checkpoint.threads import Thread, scopes_with_threads, thread_of
from memcore.checkpoint.writing import NewCheckpoint, NewWrites

__all__ = [
    "MISSING",
    "Cache",
    "Candidate",
    "Coder",
    "Delta",
    "Found",
    "GraphStore",
    "JsonCoder",
    "LostCheckpoint",
    "NewCheckpoint",
    "NewWrites",
    "Plan",
    "Pruned",
    "RecoveredNamespace",
    "Rule",
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
