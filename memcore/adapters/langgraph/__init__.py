"""memcore implementations of LangGraph's interfaces: ``pip install "memcore-db[langgraph]"``.

Names are imported on first use: using the store does not load the checkpointer.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "cache": "MemcoreCache",
        "saver": "AsyncMemcoreSaver MemcoreSaver",
        "store": "AsyncMemcoreStore MemcoreStore",
    },
    extra=("LangGraph", "langgraph", ("langgraph", "langchain_core")),
)
