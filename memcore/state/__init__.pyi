# Written by scripts/make_faces from __init__.py.
from memcore.state.change import ScopedChange as ScopedChange
from memcore.state.change import Scopes as Scopes
from memcore.state.change import StateChange as StateChange
from memcore.state.handle import Fields as Fields
from memcore.state.handle import SharedState as SharedState
from memcore.state.handle import StateChanges as StateChanges
from memcore.state.handle import Watching as Watching
from memcore.state.rows import FieldNames as FieldNames
from memcore.state.rows import FieldVersion as FieldVersion
from memcore.state.rows import StateHeader as StateHeader
from memcore.state.rows import StateStep as StateStep
from memcore.state.rows import Trimmed as Trimmed
from memcore.state.rows import begin_trim as begin_trim
from memcore.state.rows import check_state as check_state
from memcore.state.rows import count_shared as count_shared
from memcore.state.rows import counter_before as counter_before
from memcore.state.rows import drop_inherited as drop_inherited
from memcore.state.rows import drop_version as drop_version
from memcore.state.rows import header_key as header_key
from memcore.state.rows import header_problem as header_problem
from memcore.state.rows import inherit as inherit
from memcore.state.rows import is_moment as is_moment
from memcore.state.rows import is_state_row as is_state_row
from memcore.state.rows import json_fields as json_fields
from memcore.state.rows import mend_state as mend_state
from memcore.state.rows import moments_of as moments_of
from memcore.state.rows import packed_field as packed_field
from memcore.state.rows import put_moment as put_moment
from memcore.state.rows import read_header as read_header
from memcore.state.rows import restore as restore
from memcore.state.rows import state_counter as state_counter
from memcore.state.rows import trim_piece as trim_piece
from memcore.state.rows import value_at as value_at
from memcore.state.rows import values_at as values_at
from memcore.state.rows import versions_of as versions_of
from memcore.state.rows import write_past as write_past
from memcore.state.schema import APP as APP
from memcore.state.schema import Command as Command
from memcore.state.schema import Delete as Delete
from memcore.state.schema import Field as Field
from memcore.state.schema import FileData as FileData
from memcore.state.schema import Merge as Merge
from memcore.state.schema import Omit as Omit
from memcore.state.schema import OmitInput as OmitInput
from memcore.state.schema import OmitOutput as OmitOutput
from memcore.state.schema import Overwrite as Overwrite
from memcore.state.schema import Private as Private
from memcore.state.schema import Reduction as Reduction
from memcore.state.schema import StateSchema as StateSchema
from memcore.state.schema import TEMPORARY as TEMPORARY
from memcore.state.schema import Trace as Trace
from memcore.state.schema import USER as USER
from memcore.state.schema import Update as Update
from memcore.state.schema import append_messages as append_messages
from memcore.state.schema import merge_entries as merge_entries
from memcore.state.schema import prefix_of as prefix_of
from memcore.state.schema import state_schema as state_schema

__all__ = [
    "APP",
    "TEMPORARY",
    "USER",
    "Command",
    "Delete",
    "Field",
    "FieldNames",
    "FieldVersion",
    "Fields",
    "FileData",
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
    "StateHeader",
    "StateSchema",
    "StateStep",
    "Trace",
    "Trimmed",
    "Update",
    "Watching",
    "append_messages",
    "begin_trim",
    "check_state",
    "count_shared",
    "counter_before",
    "drop_inherited",
    "drop_version",
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
