# Written by scripts/make_faces from __init__.py.
from memcore.exchange.export import Archiving as Archiving
from memcore.exchange.export import check_form as check_form
from memcore.exchange.export import export_sessions as export_sessions
from memcore.exchange.lines import parse_line as parse_line
from memcore.exchange.lines import redacted_lines as redacted_lines
from memcore.exchange.load import ImportOptions as ImportOptions
from memcore.exchange.load import import_lines as import_lines
from memcore.exchange.memory import export_memory as export_memory
from memcore.exchange.parquet import parquet_of as parquet_of
from memcore.exchange.state import export_shared as export_shared

__all__ = [
    "Archiving",
    "ImportOptions",
    "check_form",
    "export_memory",
    "export_sessions",
    "export_shared",
    "import_lines",
    "parquet_of",
    "parse_line",
    "redacted_lines",
]
