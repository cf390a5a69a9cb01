"""memcore's backend for DeepAgents: ``pip install "memcore-db[deepagents]"``.

``MemcoreBackend`` stores an agent's files under ordered keys. A namespace of files is one key/value
namespace of its scope. Its rows (``rows``):

- ``g``: the head: a random id of this life of the namespace, the number of changes, the last
  number assigned, and the most recent changes;
- ``f<path>``: metadata of a file; ``l<digest>`` if its path is too long for a key;
- ``p<number><part>``: a part of a file's content. Replaced content takes a new number, so a number
  identifies one content, which can only grow at its end.

All rows of a change are written in one transaction. Each process caches the file rows and checks
the head before it uses them: it takes changes by others from the head, or else rereads everything.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {"backend": "MemcoreBackend"},
    extra=("DeepAgents", "deepagents", ("deepagents", "langchain", "langchain_core", "langgraph")),
)
