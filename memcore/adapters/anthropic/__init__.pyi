# Written by scripts/make_faces from __init__.py.
from memcore.adapters.anthropic.memory import AsyncMemcoreMemoryTool as AsyncMemcoreMemoryTool
from memcore.adapters.anthropic.memory import MemcoreMemoryTool as MemcoreMemoryTool

__all__ = [
    "AsyncMemcoreMemoryTool",
    "MemcoreMemoryTool",
]
