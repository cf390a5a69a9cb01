# Written by scripts/make_faces from __init__.py.
from memcore.adapters.pydantic_ai.conversations import MemcoreConversationStore as MemcoreConversationStore
from memcore.adapters.pydantic_ai.messages import from_pydantic_ai as from_pydantic_ai

__all__ = [
    "MemcoreConversationStore",
    "from_pydantic_ai",
]
