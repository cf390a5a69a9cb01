"""Open database: ``open``, Database and Scope."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "database": "Database",
        "open": "open_database",
        "scope": "Scope",
    },
)
