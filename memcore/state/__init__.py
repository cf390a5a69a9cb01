"""State: fields with reducers beside the log of a session."""

from memcore.state.field import Field
from memcore.state.markers import Omit, OmitInput, OmitOutput, Private
from memcore.state.reducers import FileData, append_messages, merge_entries
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
    "StateSchema",
    "Trace",
    "Update",
    "append_messages",
    "merge_entries",
    "state_schema",
]
