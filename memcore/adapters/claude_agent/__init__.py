"""memcore's session store for the Claude Agent SDK: ``pip install "memcore-db[claude-agent-sdk]"``.

Names are imported on first use.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {"transcripts": "MemcoreSessionStore"},
    extra=("the Claude Agent SDK", "claude-agent-sdk", ("claude_agent_sdk",)),
)
