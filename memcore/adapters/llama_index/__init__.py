"""memcore's chat store for LlamaIndex: ``pip install "memcore-db[llama-index]"``.

Names are imported on first use.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {"chats": "MemcoreChatStore"},
    extra=("LlamaIndex", "llama-index", ("llama_index",)),
)
