"""memcore's conversation store for Pydantic AI: ``pip install "memcore-db[pydantic-ai]"``.

Names are imported on first use.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {"conversations": "MemcoreConversationStore", "messages": "from_pydantic_ai"},
    extra=("Pydantic AI", "pydantic-ai", ("pydantic_ai", "pydantic", "pydantic_core")),
)
