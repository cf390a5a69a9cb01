"""memcore for LangChain's agents: ``pip install "memcore-db[langchain]"``.

Names are imported on first use.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {"middleware": "ContextMiddleware PayloadMiddleware SummaryMiddleware"},
    extra=("LangChain", "langchain", ("langchain", "langchain_core")),
)
