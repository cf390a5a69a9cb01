# Written by scripts/make_faces from __init__.py.
from memcore.adapters.openai_agents.legal_input import safe_call_model_input_filter as safe_call_model_input_filter
from memcore.adapters.openai_agents.legal_input import safe_session_input_callback as safe_session_input_callback
from memcore.adapters.openai_agents.managed import FoundSession as FoundSession
from memcore.adapters.openai_agents.managed import ManagedSession as ManagedSession
from memcore.adapters.openai_agents.managed import SessionManager as SessionManager
from memcore.adapters.openai_agents.memory import memory_tools as memory_tools
from memcore.adapters.openai_agents.memory import recall_call_model_input_filter as recall_call_model_input_filter
from memcore.adapters.openai_agents.payload import payload_call_model_input_filter as payload_call_model_input_filter
from memcore.adapters.openai_agents.session import MemcoreSession as MemcoreSession

__all__ = [
    "FoundSession",
    "ManagedSession",
    "MemcoreSession",
    "SessionManager",
    "memory_tools",
    "payload_call_model_input_filter",
    "recall_call_model_input_filter",
    "safe_call_model_input_filter",
    "safe_session_input_callback",
]
