"""Long-term memory of a user: statements with sources and trust, and playbooks from outcomes."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "check": "check_entries",
        "clearing": "begin_clear clear_step cleared_below is_clear_mark is_entry_below",
        "coverage": "uncover_session",
        "consolidate": "Consolidation ConsolidationPolicy ConsolidationStep",
        "files": "MemoryFiles",
        "grants": "GRANT_ROWS Grants check_grants drop_grants",
        "extract": "CandidateOutcome ExtractionReport",
        "extractors": "AnthropicExtractor OpenAIExtractor",
        "jobs": "JOB_ROWS ExtractionJob check_jobs is_job_row read_again version_of_job",
        "judge": "Candidate Extraction ExtractionItem Extractor",
        "lineage": "check_roots note_roots root_of",
        "memories": "Memories tool_handle",
        "playbook": "check_playbooks export_outcomes redact_outcomes texts_of_outcomes",
        "profile": "MemoryWindow Profile",
        "recall": (
            "LAST_USER Recall RecallPlace Recalled choose_memories embedded_place fenced line_of"
        ),
        "rows": (
            "INDEXES Book MemoryVersion count_entries entry_at entry_numbers entry_of_version "
            "expires_ms_of exported is_earlier_version is_memory_row "
            "stored_document version_in"
        ),
        "rules": "RuleExtractor",
        "search": "index_memories lent_scores",
        "statement": "expire_entry is_kept forget_items mend move_sources names_in redact_entry "
        "texts_in would_forget",
        "summary": "RollingSummary",
        "tools": (
            "ToolHandle answer_calls answer_named reason_of revise_noted take_note tool_schemas"
        ),
        "trust": "ACTIVE_BY visible_text",
        "transfer": (
            "Arrival ArrivalBatch arrived_entry export_entries import_entry import_outcome "
            "link_entries unlinked_entries"
        ),
        "worker": "ExtractionFailure MemoryWorker Remembering",
    },
)
