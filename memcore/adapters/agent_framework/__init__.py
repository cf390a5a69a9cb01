"""memcore for Microsoft's Agent Framework: ``pip install "memcore-db[agent-framework]"``.

Names are imported on first use.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "checkpoints": "MemcoreCheckpointStorage",
        "history": "MemcoreHistoryProvider",
        "sessions": "MemcoreAgentSessionStore",
    },
    extra=("the Agent Framework", "agent-framework", ("agent_framework",)),
)
