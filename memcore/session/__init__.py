"""Session: one append-only conversation in a scope."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "batch": "ChangeBatch",
        "change": "Change",
        "compactor": "Compactor",
        "delete": "check_removals delete_session is_leaving resume_removals start_removal",
        "engine": "Engine SessionOptions SessionRef",
        "lease": "Lease",
        "read": "SessionReader",
        "session": "Session",
        "state": "SessionState",
    },
)
