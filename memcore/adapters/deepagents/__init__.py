"""DeepAgents over memcore: ``MemcoreBackend``, files of an agent in ordered keys.

A namespace of files is one key/value namespace of its scope. Its rows (``rows``):

- ``g``: the head: a random id of this life of the namespace, the number of changes, the last
  number given out, and the latest changes;
- ``f<path>``: metadata of a file; ``l<digest>`` if its path is too long for a key;
- ``p<number><part>``: a part of a content. A replaced content takes a new number, so a number
  identifies one content, which can only grow at its end.

All rows of a change are written in one transaction. Each process caches the file rows and compares
the head before it uses them: changes of others are taken from the head, or all is read anew.
"""

from memcore.adapters.deepagents.backend import MemcoreBackend

__all__ = [
    "MemcoreBackend",
]
