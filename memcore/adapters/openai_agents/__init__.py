"""memcore behind the OpenAI Agents SDK's sessions: ``pip install "memcore[openai-agents]"``.

The names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from memcore.adapters import on_first_use

if TYPE_CHECKING:
    from memcore.adapters.openai_agents.legal_input import (
        safe_call_model_input_filter,
        safe_session_input_callback,
    )
    from memcore.adapters.openai_agents.managed import FoundSession, ManagedSession, SessionManager
    from memcore.adapters.openai_agents.session import MemcoreSession

__all__ = [
    "FoundSession",
    "ManagedSession",
    "MemcoreSession",
    "SessionManager",
    "safe_call_model_input_filter",
    "safe_session_input_callback",
]


_HOMES = {
    "FoundSession": "managed",
    "ManagedSession": "managed",
    "MemcoreSession": "session",
    "SessionManager": "managed",
    "safe_call_model_input_filter": "legal_input",
    "safe_session_input_callback": "legal_input",
}
if not TYPE_CHECKING:  # for a type checker there are the names above, and no others
    __getattr__, __dir__ = on_first_use(
        __name__,
        _HOMES,
        needs="the OpenAI Agents SDK",
        extra="openai-agents",
        imports=("agents", "openai"),
    )
