"""Export and import of sessions as JSON lines."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "export": "Archiving check_form export_sessions",
        "lines": "parse_line redacted_lines",
        "load": "ImportOptions import_lines",
        "memory": "export_memory",
        "parquet": "parquet_of",
        "state": "export_shared",
    },
)
