"""memcore behind the OpenAI Agents SDK's sessions: ``pip install "memcore[openai-agents]"``.

The names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memcore.adapters.openai_agents.input_callback import safe_session_input_callback
    from memcore.adapters.openai_agents.input_filter import safe_call_model_input_filter
    from memcore.adapters.openai_agents.managed import ManagedSession, SessionManager
    from memcore.adapters.openai_agents.session import MemcoreSession

__all__ = [
    "ManagedSession",
    "MemcoreSession",
    "SessionManager",
    "safe_call_model_input_filter",
    "safe_session_input_callback",
]

_HOMES = {
    "ManagedSession": "memcore.adapters.openai_agents.managed",
    "MemcoreSession": "memcore.adapters.openai_agents.session",
    "SessionManager": "memcore.adapters.openai_agents.managed",
    "safe_call_model_input_filter": "memcore.adapters.openai_agents.input_filter",
    "safe_session_input_callback": "memcore.adapters.openai_agents.input_callback",
}
_FRAMEWORK = ("agents", "openai")


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name not in _HOMES:
        msg = f"module 'memcore.adapters.openai_agents' has no attribute {name!r}"
        raise AttributeError(msg)
    try:
        found = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in _FRAMEWORK:
            raise
        msg = (
            f"{name} needs the OpenAI Agents SDK: install it with "
            f'pip install "memcore[openai-agents]" ({exc})'
        )
        raise ImportError(msg, name=exc.name) from exc
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
