"""memcore behind the OpenAI Agents SDK's sessions: ``pip install "memcore[openai-agents]"``.

The names are imported when they are first used.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "legal_input": "safe_call_model_input_filter safe_session_input_callback",
        "managed": "FoundSession ManagedSession SessionManager",
        "session": "MemcoreSession",
    },
    extra=("the OpenAI Agents SDK", "openai-agents", ("agents", "openai")),
)
