"""memcore behind the services of Google's Agent Development Kit: ``pip install "memcore[adk]"``.

The names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memcore.adapters.adk.artifacts import MemcoreArtifactService
    from memcore.adapters.adk.memory import MemcoreMemoryService
    from memcore.adapters.adk.sessions import MemcoreSessionService
    from memcore.adapters.adk.summaries import MemcoreEventSummarizer

__all__ = [
    "MemcoreArtifactService",
    "MemcoreEventSummarizer",
    "MemcoreMemoryService",
    "MemcoreSessionService",
]

_HOMES = {
    "MemcoreArtifactService": "memcore.adapters.adk.artifacts",
    "MemcoreEventSummarizer": "memcore.adapters.adk.summaries",
    "MemcoreMemoryService": "memcore.adapters.adk.memory",
    "MemcoreSessionService": "memcore.adapters.adk.sessions",
}
_FRAMEWORK = ("google", "pydantic", "pydantic_core")


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name not in _HOMES:
        msg = f"module 'memcore.adapters.adk' has no attribute {name!r}"
        raise AttributeError(msg)
    try:
        found = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in _FRAMEWORK:
            raise
        msg = f'{name} needs Google ADK: install it with pip install "memcore[adk]" ({exc})'
        raise ImportError(msg, name=exc.name) from exc
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
