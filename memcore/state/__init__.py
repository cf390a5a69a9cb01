"""State: fields with reducers beside the log of a session, and those that sessions share."""

from memcore.state.care import (
    Trimmed,
    begin_trim,
    check_state,
    header_problem,
    is_state_row,
    mend_state,
    trim_piece,
)
from memcore.state.change import StateChange
from memcore.state.field import Field
from memcore.state.fields import Fields
from memcore.state.handle import SharedState
from memcore.state.markers import Omit, OmitInput, OmitOutput, Private
from memcore.state.moments import counter_before, is_moment, moments_of, put_moment
from memcore.state.prefixes import APP, TEMPORARY, USER, prefix_of
from memcore.state.reducers import FileData, append_messages, merge_entries
from memcore.state.rows import (
    Header,
    StateStep,
    Version,
    header_key,
    inherit,
    json_fields,
    packed_field,
    read_header,
    restore,
    state_counter,
    value_at,
    values_at,
    versions_of,
    write_past,
)
from memcore.state.schema import StateSchema, state_schema
from memcore.state.scoped import ScopedChange, Scopes
from memcore.state.trace import Reduction, Trace
from memcore.state.update import Command, Delete, Merge, Overwrite, Update
from memcore.state.watching import StateChanges, Watching

__all__ = [
    "APP",
    "TEMPORARY",
    "USER",
    "Command",
    "Delete",
    "Field",
    "Fields",
    "FileData",
    "Header",
    "Merge",
    "Omit",
    "OmitInput",
    "OmitOutput",
    "Overwrite",
    "Private",
    "Reduction",
    "ScopedChange",
    "Scopes",
    "SharedState",
    "StateChange",
    "StateChanges",
    "StateSchema",
    "StateStep",
    "Trace",
    "Trimmed",
    "Update",
    "Version",
    "Watching",
    "append_messages",
    "begin_trim",
    "check_state",
    "counter_before",
    "header_key",
    "header_problem",
    "inherit",
    "is_moment",
    "is_state_row",
    "json_fields",
    "mend_state",
    "merge_entries",
    "moments_of",
    "packed_field",
    "prefix_of",
    "put_moment",
    "read_header",
    "restore",
    "state_counter",
    "state_schema",
    "trim_piece",
    "value_at",
    "values_at",
    "versions_of",
    "write_past",
]
