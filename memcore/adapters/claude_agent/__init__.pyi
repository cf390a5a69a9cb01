# Written by scripts/make_faces from __init__.py.
from memcore.adapters.claude_agent.transcripts import MemcoreSessionStore as MemcoreSessionStore

__all__ = [
    "MemcoreSessionStore",
]
