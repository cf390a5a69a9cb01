"""State: fields with reducers beside the log of a session."""

from memcore.state.care import (
    Trimmed,
    begin_trim,
    check_state,
    is_state_row,
    mend_state,
    trim_piece,
)
from memcore.state.change import StateChange
from memcore.state.field import Field
from memcore.state.markers import Omit, OmitInput, OmitOutput, Private
from memcore.state.reducers import FileData, append_messages, merge_entries
from memcore.state.rows import (
    Version,
    inherit,
    packed_field,
    read_header,
    restore,
    state_counter,
    value_at,
    values_at,
    write_values,
)
from memcore.state.schema import StateSchema, state_schema
from memcore.state.trace import Reduction, Trace
from memcore.state.update import Command, Overwrite, Update

__all__ = [
    "Command",
    "Field",
    "FileData",
    "Omit",
    "OmitInput",
    "OmitOutput",
    "Overwrite",
    "Private",
    "Reduction",
    "StateChange",
    "StateSchema",
    "Trace",
    "Trimmed",
    "Update",
    "Version",
    "append_messages",
    "begin_trim",
    "check_state",
    "inherit",
    "is_state_row",
    "mend_state",
    "merge_entries",
    "packed_field",
    "read_header",
    "restore",
    "state_counter",
    "state_schema",
    "trim_piece",
    "value_at",
    "values_at",
    "write_values",
]
