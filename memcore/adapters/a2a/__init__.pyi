# Written by scripts/make_faces from __init__.py.
from memcore.adapters.a2a.messages import from_a2a as from_a2a
from memcore.adapters.a2a.messages import settle as settle
from memcore.adapters.a2a.messages import to_a2a as to_a2a
from memcore.adapters.a2a.tasks import MemcoreTaskStore as MemcoreTaskStore

__all__ = [
    "MemcoreTaskStore",
    "from_a2a",
    "settle",
    "to_a2a",
]
