"""MemcoreAgentSessionStore: snapshots of the Agent Framework's sessions in a memcore file.

The framework's interface is experimental, and it warns of that on import: so this is a module.
"""

from __future__ import annotations

from typing import Final, Unpack

from agent_framework import AgentSession, SessionStore

from memcore.adapters.lines import key_of
from memcore.adapters.source import Scoped, Source, Where, in_thread
from memcore.telemetry import adapts

__all__ = [
    "MemcoreAgentSessionStore",
]


_SESSIONS: Final = "agent_framework.sessions"


@adapts(get="kv.get", set="kv.put", delete="kv.delete")
class MemcoreAgentSessionStore(Scoped, SessionStore):
    """The framework's ``SessionStore``: snapshots of agents' sessions.

    Args:
        source: a database, a scope, or the path of a file.
        **where: ``app`` and ``user``; ``durability`` and ``allow_unsafe`` of a file that is created
            here, as in ``memcore.open``.

    Raises:
        InvalidOptionError: an option is invalid.
    """

    framework = "agent_framework"

    def __init__(self, source: Source, **where: Unpack[Where]) -> None:
        super().__init__(source, **where)
        self._kv = self.scope.kv(_SESSIONS)

    async def get(self, session_id: str) -> AgentSession | None:
        """Return a copy of a stored session; None if there is none.

        Raises:
            ValueError: the id is no text, or empty.
        """
        self.validate_session_id(session_id)
        found = await in_thread(self._kv.get, key_of("s", session_id))
        return None if found is None else AgentSession.from_dict(found)

    async def set(self, session_id: str, session: AgentSession) -> None:
        """Store a session in place of the one under this id.

        Raises:
            ValueError: the id is no text, or empty; or the state is not JSON.
        """
        self.validate_session_id(session_id)
        value = session.to_dict()
        await in_thread(self._kv.put, key_of("s", session_id), value)

    async def delete(self, session_id: str) -> None:
        """Delete a session, if there is one.

        Raises:
            ValueError: the id is no text, or empty.
        """
        self.validate_session_id(session_id)
        await in_thread(self._kv.delete, key_of("s", session_id))
