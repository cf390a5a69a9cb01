# Written by scripts/make_faces from __init__.py.
from memcore.graph.check import LostCheckpoint as LostCheckpoint
from memcore.graph.check import RecoveredNamespace as RecoveredNamespace
from memcore.graph.check import check_threads as check_threads
from memcore.graph.check import clear_body as clear_body
from memcore.graph.decode import Cache as Cache
from memcore.graph.decode import MISSING as MISSING
from memcore.graph.manifest import Coder as Coder
from memcore.graph.manifest import JsonCoder as JsonCoder
from memcore.graph.manifest import StoredCoder as StoredCoder
from memcore.graph.manifest import Typed as Typed
from memcore.graph.manifest import Wrapper as Wrapper
from memcore.graph.prune import PruneCandidate as PruneCandidate
from memcore.graph.prune import PrunePlan as PrunePlan
from memcore.graph.prune import Pruned as Pruned
from memcore.graph.prune import Rule as Rule
from memcore.graph.prune import changed_ms as changed_ms
from memcore.graph.prune import is_encrypted as is_encrypted
from memcore.graph.prune import is_unused as is_unused
from memcore.graph.prune import keep_rule as keep_rule
from memcore.graph.prune import limits_rule as limits_rule
from memcore.graph.prune import remove_piece as remove_piece
from memcore.graph.prune import run_rule as run_rule
from memcore.graph.read import Delta as Delta
from memcore.graph.read import StoredCheckpoint as StoredCheckpoint
from memcore.graph.read import ThreadEntry as ThreadEntry
from memcore.graph.rows import Thread as Thread
from memcore.graph.rows import thread_of as thread_of
from memcore.graph.store import GraphStore as GraphStore
from memcore.graph.write import NewCheckpoint as NewCheckpoint
from memcore.graph.write import NewWrites as NewWrites
from memcore.graph.write import admitting as admitting

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
    "is_unused",
    "keep_rule",
    "limits_rule",
    "remove_piece",
    "run_rule",
    "thread_of",
]
