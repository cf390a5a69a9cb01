"""State: fields with reducers alongside a session's log, and fields shared by sessions."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "change": "ScopedChange Scopes StateChange",
        "handle": "Fields SharedState StateChanges Watching",
        "rows": (
            "FieldNames FieldVersion StateHeader StateStep Trimmed begin_trim check_state "
            "count_shared counter_before drop_inherited drop_version header_key header_problem "
            "inherit is_moment is_state_row json_fields mend_state moments_of packed_field "
            "put_moment read_header restore state_counter trim_piece value_at values_at "
            "versions_of write_past"
        ),
        "schema": (
            "APP TEMPORARY USER Command Delete Field FileData Merge Omit OmitInput "
            "OmitOutput Overwrite Private Reduction StateSchema Trace Update "
            "append_messages merge_entries prefix_of state_schema"
        ),
    },
)
