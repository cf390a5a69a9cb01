# Written by scripts/make_faces from __init__.py.
from memcore.adapters.agent_framework.checkpoints import MemcoreCheckpointStorage as MemcoreCheckpointStorage
from memcore.adapters.agent_framework.history import MemcoreHistoryProvider as MemcoreHistoryProvider
from memcore.adapters.agent_framework.sessions import MemcoreAgentSessionStore as MemcoreAgentSessionStore

__all__ = [
    "MemcoreAgentSessionStore",
    "MemcoreCheckpointStorage",
    "MemcoreHistoryProvider",
]
