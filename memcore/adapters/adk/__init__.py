"""memcore services for Google's Agent Development Kit: ``pip install "memcore-db[adk]"``.

Names are imported on first use.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "artifacts": "MemcoreArtifactService",
        "compaction": "MemcoreEventSummarizer",
        "legal": "MemcorePlugin mend_contents mend_request",
        "memory": "MemcoreMemoryService",
        "sessions": "MemcoreSessionService",
    },
    extra=("Google ADK", "adk", ("google", "pydantic", "pydantic_core")),
)
