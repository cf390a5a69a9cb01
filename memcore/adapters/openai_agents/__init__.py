"""memcore sessions for the OpenAI Agents SDK: ``pip install "memcore-db[openai-agents]"``.

Names are imported on first use.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "legal_input": "safe_call_model_input_filter safe_session_input_callback",
        "managed": "FoundSession ManagedSession SessionManager",
        "memory": "memory_tools recall_call_model_input_filter",
        "payload": "payload_call_model_input_filter",
        "session": "MemcoreSession",
    },
    extra=("the OpenAI Agents SDK", "openai-agents", ("agents", "openai")),
)
