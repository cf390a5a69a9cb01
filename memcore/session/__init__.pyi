# Written by scripts/make_faces from __init__.py.
from memcore.session.agents import AgentView as AgentView
from memcore.session.agents import Delegation as Delegation
from memcore.session.agents import delegated as delegated
from memcore.session.agents import share_result as share_result
from memcore.session.agents import viewed as viewed
from memcore.session.batch import BatchContext as BatchContext
from memcore.session.batch import ChangeBatch as ChangeBatch
from memcore.session.change import Change as Change
from memcore.session.checkpoints import DeleteCheckpoint as DeleteCheckpoint
from memcore.session.checkpoints import Rewind as Rewind
from memcore.session.checkpoints import SaveCheckpoint as SaveCheckpoint
from memcore.session.checkpoints import checkpoints_of as checkpoints_of
from memcore.session.checkpoints import fork_point as fork_point
from memcore.session.checkpoints import get_checkpoint as get_checkpoint
from memcore.session.checkpoints import history_at as history_at
from memcore.session import compact as compact
from memcore.session.compact import Compactor as Compactor
from memcore.session.content_filter import Quarantine as Quarantine
from memcore.session.content_filter import admission as admission
from memcore.session.content_filter import admitted_event as admitted_event
from memcore.session.content_filter import admitted_item as admitted_item
from memcore.session.content_filter import demand as demand
from memcore.session.content_filter import read_demand as read_demand
from memcore.session.content_filter import redacts_at as redacts_at
from memcore.session.content_filter import settled as settled
from memcore.session.content_filter import shown_context as shown_context
from memcore.session.content_filter import shown_items as shown_items
from memcore.session.content_filter import told as told
from memcore.session.delete import check_removals as check_removals
from memcore.session.delete import delete_session as delete_session
from memcore.session.delete import hold as hold
from memcore.session.delete import is_leaving as is_leaving
from memcore.session.delete import release as release
from memcore.session.delete import resume_removals as resume_removals
from memcore.session.delete import start_removal as start_removal
from memcore.session.engine import DIGEST_BYTES as DIGEST_BYTES
from memcore.session.engine import Engine as Engine
from memcore.session.engine import REFERENCE as REFERENCE
from memcore.session.engine import SessionOptions as SessionOptions
from memcore.session.engine import SessionRef as SessionRef
from memcore.session.lease import Lease as Lease
from memcore.session.lease import TakeLease as TakeLease
from memcore.session.memory import open_memory as open_memory
from memcore.session import recount as recount
from memcore.session import recovery as recovery
from memcore.session import repair as repair
from memcore.session import retry as retry
from memcore.session.retry import Ladder as Ladder
from memcore.session.retry import append_once as append_once
from memcore.session.retry import checked_rules as checked_rules
from memcore.session.retry import make_bundle as make_bundle
from memcore.session.rewrite import rewrite_items as rewrite_items
from memcore.session.search import check_index as check_index
from memcore.session.search import embedding_of as embedding_of
from memcore.session.search import index_sessions as index_sessions
from memcore.session.search import reindex as reindex
from memcore.session.search import search_request as search_request
from memcore.session.search import search_scope as search_scope
from memcore.session.search import search_session as search_session
from memcore.session.search import unsearched_items as unsearched_items
from memcore.session.session import Session as Session
from memcore.session.session import ref_of as ref_of
from memcore.session.state import SessionState as SessionState

__all__ = [
    "DIGEST_BYTES",
    "REFERENCE",
    "AgentView",
    "BatchContext",
    "Change",
    "ChangeBatch",
    "Compactor",
    "Delegation",
    "DeleteCheckpoint",
    "Engine",
    "Ladder",
    "Lease",
    "Quarantine",
    "Rewind",
    "SaveCheckpoint",
    "Session",
    "SessionOptions",
    "SessionRef",
    "SessionState",
    "TakeLease",
    "admission",
    "admitted_event",
    "admitted_item",
    "append_once",
    "check_index",
    "check_removals",
    "checked_rules",
    "checkpoints_of",
    "compact",
    "delegated",
    "delete_session",
    "demand",
    "embedding_of",
    "fork_point",
    "get_checkpoint",
    "history_at",
    "hold",
    "index_sessions",
    "is_leaving",
    "make_bundle",
    "open_memory",
    "read_demand",
    "recount",
    "recovery",
    "redacts_at",
    "ref_of",
    "reindex",
    "release",
    "repair",
    "resume_removals",
    "retry",
    "rewrite_items",
    "search_request",
    "search_scope",
    "search_session",
    "settled",
    "share_result",
    "shown_context",
    "shown_items",
    "start_removal",
    "told",
    "unsearched_items",
    "viewed",
]
