"""Open database: ``open``, Database and Scope."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "audit": "anchor_audit cut_audit list_audit verify_audit",
        "database": "Database",
        "open": "open_database",
        "scope": "Scope",
        "stats": "branches_of compare count_everything",
    },
)
