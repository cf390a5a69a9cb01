"""Session: one append-only conversation in a scope."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "": "compact recount recovery repair retry",
        "agents": "AgentView Delegation delegated share_result viewed",
        "batch": "BatchContext ChangeBatch",
        "change": "Change",
        "checkpoints": (
            "DeleteCheckpoint Rewind SaveCheckpoint checkpoints_of fork_point get_checkpoint "
            "history_at"
        ),
        "compact": "Compactor",
        "content_filter": (
            "Quarantine admission admitted_event admitted_item demand read_demand redacts_at "
            "settled shown_context shown_items told"
        ),
        "delete": (
            "check_removals delete_session hold is_leaving release resume_removals start_removal"
        ),
        "engine": "DIGEST_BYTES REFERENCE Engine SessionOptions SessionRef",
        "lease": "Lease TakeLease",
        "memory": "open_memory",
        "retry": "Ladder append_once checked_rules make_bundle",
        "rewrite": "rewrite_items",
        "search": (
            "check_index embedding_of index_sessions reindex search_request search_scope "
            "search_session unsearched_items"
        ),
        "session": "Session ref_of",
        "state": "SessionState",
    },
)
