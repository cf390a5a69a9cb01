# Written by scripts/make_faces from __init__.py.
from memcore.adapters.llama_index.chats import MemcoreChatStore as MemcoreChatStore

__all__ = [
    "MemcoreChatStore",
]
