# Written by scripts/make_faces from __init__.py.
from memcore.adapters.langgraph.cache import MemcoreCache as MemcoreCache
from memcore.adapters.langgraph.saver import AsyncMemcoreSaver as AsyncMemcoreSaver
from memcore.adapters.langgraph.saver import MemcoreSaver as MemcoreSaver
from memcore.adapters.langgraph.store import AsyncMemcoreStore as AsyncMemcoreStore
from memcore.adapters.langgraph.store import MemcoreStore as MemcoreStore

__all__ = [
    "AsyncMemcoreSaver",
    "AsyncMemcoreStore",
    "MemcoreCache",
    "MemcoreSaver",
    "MemcoreStore",
]
