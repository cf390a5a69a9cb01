"""MemcoreAgentSessionStore: snapshots of the Agent Framework's sessions in a memcore file.

The framework's interface is experimental, and it warns of that on import: so this is a module.
"""

from __future__ import annotations

from typing import Final

from agent_framework import AgentSession, SessionStore

from memcore.adapters.lines import key_of
from memcore.adapters.source import Opened, Source, in_thread, scope_of
from memcore.telemetry import adapting, adapts

__all__ = [
    "MemcoreAgentSessionStore",
]


_SESSIONS: Final = "agent_framework.sessions"


@adapts(get="kv.get", set="kv.put", delete="kv.delete")
class MemcoreAgentSessionStore(Opened, SessionStore):
    """The framework's ``SessionStore``: snapshots of agents' sessions.

    Args:
        source: a database, a scope, or the path of a file.
        app: the application of the scope.
        user: the user of the scope.
        durability: of a file that is created here, as for ``memcore.open``.
        allow_unsafe: consent to ``durability="none"``.

    Raises:
        InvalidOptionError: an option is invalid.
    """

    def __init__(
        self,
        source: Source,
        *,
        app: str | None = None,
        user: str | None = None,
        durability: str | None = None,
        allow_unsafe: bool = False,
    ) -> None:
        self.scope, self._owned = scope_of(
            source, app=app, user=user, durability=durability, allow_unsafe=allow_unsafe
        )
        self._kv = self.scope.kv(_SESSIONS)
        self.observer = adapting(source, "agent_framework")

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
