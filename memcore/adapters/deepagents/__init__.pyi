# Written by scripts/make_faces from __init__.py.
from memcore.adapters.deepagents.backend import MemcoreBackend as MemcoreBackend

__all__ = [
    "MemcoreBackend",
]
