"""memcore behind the services of Google's Agent Development Kit: ``pip install "memcore[adk]"``.

The names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from memcore.adapters import on_first_use

if TYPE_CHECKING:
    from memcore.adapters.adk.artifacts import MemcoreArtifactService
    from memcore.adapters.adk.compaction import MemcoreEventSummarizer
    from memcore.adapters.adk.legal import MemcorePlugin, mend_contents, mend_request
    from memcore.adapters.adk.memory import MemcoreMemoryService
    from memcore.adapters.adk.sessions import MemcoreSessionService

__all__ = [
    "MemcoreArtifactService",
    "MemcoreEventSummarizer",
    "MemcoreMemoryService",
    "MemcorePlugin",
    "MemcoreSessionService",
    "mend_contents",
    "mend_request",
]


_HOMES = {
    "MemcoreArtifactService": "artifacts",
    "MemcoreEventSummarizer": "compaction",
    "MemcoreMemoryService": "memory",
    "MemcorePlugin": "legal",
    "MemcoreSessionService": "sessions",
    "mend_contents": "legal",
    "mend_request": "legal",
}
if not TYPE_CHECKING:  # for a type checker there are the names above, and no others
    __getattr__, __dir__ = on_first_use(
        __name__,
        _HOMES,
        needs="Google ADK",
        extra="adk",
        imports=("google", "pydantic", "pydantic_core"),
    )
