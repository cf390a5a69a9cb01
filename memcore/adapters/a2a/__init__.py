"""memcore's implementation of A2A's task store: ``pip install "memcore-db[a2a]"``.

Names are imported on first use.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "messages": "from_a2a settle to_a2a",
        "tasks": "MemcoreTaskStore",
    },
    extra=("the A2A SDK", "a2a", ("a2a", "google.protobuf")),
)
