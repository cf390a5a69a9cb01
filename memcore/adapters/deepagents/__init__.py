"""DeepAgents over memcore: ``MemcoreBackend``, files of an agent in ordered keys.

A namespace of files is one key/value namespace of its scope. Its rows (``rows``):

- ``g``: the head: what tells one life of the namespace from another, how often it changed, how
  many numbers it gave out, and the latest changes;
- ``f<path>``: what is known of a file without reading it; ``l<digest>`` if its path fits no key;
- ``p<number><part>``: a part of a content. Whatever replaces a content takes a new number, so a
  number stands for one content, which at most grows at its end.

All rows of a change go in one transaction. Each process keeps the file rows in memory and compares
the head before it uses them: what others changed is taken from the head, or read anew.
"""

from memcore.adapters.deepagents.backend import MemcoreBackend

__all__ = [
    "MemcoreBackend",
]
