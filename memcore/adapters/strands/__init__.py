"""memcore's sessions and storage for Strands agents: ``pip install "memcore-db[strands]"``.

Names are imported on first use.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "repository": "MemcoreSessionManager MemcoreSessionRepository",
        "storage": "MemcoreStorage",
    },
    extra=("Strands", "strands", ("strands",)),
)
