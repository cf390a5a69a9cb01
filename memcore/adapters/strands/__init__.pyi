# Written by scripts/make_faces from __init__.py.
from memcore.adapters.strands.repository import MemcoreSessionManager as MemcoreSessionManager
from memcore.adapters.strands.repository import MemcoreSessionRepository as MemcoreSessionRepository
from memcore.adapters.strands.storage import MemcoreStorage as MemcoreStorage

__all__ = [
    "MemcoreSessionManager",
    "MemcoreSessionRepository",
    "MemcoreStorage",
]
