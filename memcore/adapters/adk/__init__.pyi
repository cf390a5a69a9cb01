# Written by scripts/make_faces from __init__.py.
from memcore.adapters.adk.artifacts import MemcoreArtifactService as MemcoreArtifactService
from memcore.adapters.adk.compaction import MemcoreEventSummarizer as MemcoreEventSummarizer
from memcore.adapters.adk.legal import MemcorePlugin as MemcorePlugin
from memcore.adapters.adk.legal import mend_contents as mend_contents
from memcore.adapters.adk.legal import mend_request as mend_request
from memcore.adapters.adk.memory import MemcoreMemoryService as MemcoreMemoryService
from memcore.adapters.adk.sessions import MemcoreSessionService as MemcoreSessionService

__all__ = [
    "MemcoreArtifactService",
    "MemcoreEventSummarizer",
    "MemcoreMemoryService",
    "MemcorePlugin",
    "MemcoreSessionService",
    "mend_contents",
    "mend_request",
]
