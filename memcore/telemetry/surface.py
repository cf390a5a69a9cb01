"""The public surface: which method of which handle is which operation.

What is not here is no operation: figures that are at hand (``len``, ``revision``, ``pressure``),
handles that are made without a look at the file, and methods that are another one by name
(``Database.session`` is ``Scope.session``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["SURFACE", "Operation", "operations_of"]


class Operation(NamedTuple):
    """An operation, and how its method is to be observed."""

    name: str
    shape: str = "value"
    """What the method returns: a ``value``, an ``iterator``, a ``block`` for ``with``. What gives a
    ``handle`` (or is a property that does) or a ``pair`` of which the second is one is no
    operation, nor what is ``noted`` for the operation under way."""
    measure: str = "nothing"
    """What its result tells; see ``measures``."""
    names_session: bool = False
    """Whether the first argument is the session (or thread)."""


def _ops(*lines: str) -> dict[str, Operation]:
    """Operations from lines ``method [operation [shape [measure [session]]]]``."""
    return operations_of(**dict(line.partition(" ")[::2] for line in lines))


def operations_of(**described: str) -> dict[str, Operation]:
    """Operations from ``method="[operation [shape [measure [session]]]]"``; "." is the default."""
    found: dict[str, Operation] = {}
    for method, text in described.items():
        name, shape, measure, session = (*text.split(), *".....")[:4]
        found[method] = Operation(
            method if name == "." else name,
            "value" if shape == "." else shape,
            "nothing" if measure == "." else measure,
            session == "session",
        )
    return found


_CHANGES: Final = (
    "append . . receipt",
    "extend . . receipt",
    "record . . receipt",
    "abandon . . receipt",
    "begin . . receipt",
    "apply . . receipt",
    "batch . block receipt",
    "report_usage",
    "uncompact",
    "undo . . count",
    "rewind . . receipt",
    "fork . . handle",
    "checkpoint . . checkpoint",
    "delete_checkpoint",
    "compact . . compaction",
)
_FIELDS: Final = (
    "update state.update . counter",
    "delete state.delete . counter",
    "replace state.replace . counter",
    "clear state.clear . counter",
)
_STATE: Final = (
    *_FIELDS,
    "get state.get",
    "__getitem__ state.get",
    "all state.all . count",
)

SURFACE: Final[dict[str, dict[str, Operation]]] = {
    "Database": _ops(
        "scope . handle",
        "as_user . handle",
        "close",
        "scopes . . count",
        "sessions . iterator",
        "check . . count",
        "branches . . count",
        "compare",
        "stats",
        "backup",
        "copy_compact . . file",
        "flush",
        "export . iterator",
        "import_ import . imported",
        "erase",
        "finish_erasures . . count",
        "would_erase",
        "pending_erasures",
        "holds . . count",
        "hold",
        "release",
        "opt_out_memory",
        "opt_in_memory",
        "demands",
        "demand",
        "log_filter . handle",
        "retention . handle",
        "sweep",
        "verify_audit",
        "audit_entries . iterator",
        "anchor_audit",
        "cut_audit . . number",
        "key_status",
        "rotate_key",
        "rotate_data_keys",
        "redact",
    ),
    "Scope": _ops(
        "session load . handle session",
        "kv . handle",
        "state . handle",
        "app_state . handle",
        "graph . handle",
        "blobs . handle",
        "sessions . iterator",
        "delete_session delete . . session",
        "quarantine . handle",
        "hold",
        "release",
        "holds . . count",
        "opt_out_memory",
        "opt_in_memory",
        "erase",
        "sweep",
    ),
    "Session": _ops(
        *_CHANGES,
        "items . iterator",
        "get items . one",
        "tail items . count",
        "find_call",
        "context . . context",
        "plan",
        "views . . count",
        "masks . . count",
        "covered . iterator",
        "read_offloaded . . text",
        "checkpoints . iterator",
        "get_checkpoint . . checkpoint",
        "calibrations . . count",
        "set_policy",
        "recount . . recount",
        "repair . . repair",
        "recover",
        "lease",
        "redact",
        "plan_fork . pair",
        "child . handle",
        "share . . receipt",
        "ladder . handle",
        "pending_hitl . . count",
        "resolve_hitl . . receipt",
        "bundle . . text",
        "hold",
        "release",
    ),
    "Ladder": _ops("run ladder.run", "due ladder.due . count"),
    "Quarantine": _ops(
        "list quarantine.list . count",
        "release quarantine.release . . session",
        "drop quarantine.drop . . session",
    ),
    "Retention": _ops(
        "set retention.set",
        "get retention.get",
        "terms retention.get",
        "expire_session retention.expire . . session",
        "expire_field retention.expire",
        "expire_checkpoint retention.expire . . session",
        "expire_thread retention.expire . . session",
    ),
    "Appending": _ops("store . noted"),
    "AsyncSession": _ops(*_CHANGES, "lease", "store . noted"),
    "SessionState": _ops(
        *_STATE,
        "at state.at . count",
        "at_seq state.at . count",
        "before state.at . count",
        "trim state.trim . number",
    ),
    "SharedState": _ops(*_STATE),
    "AsyncSessionState": _ops(*_FIELDS),
    "AsyncSharedState": _ops(*_FIELDS),
    "KeyValue": _ops(
        "get kv.get",
        "content kv.content . text",
        "put kv.put",
        "put_many kv.put . entries",
        "delete kv.delete",
        "scan kv.scan iterator",
        "delete_range kv.delete_range . number",
        "read kv.read",
        "transact kv.transact",
        "increment kv.increment",
        "expires kv.expires",
        "sweep kv.sweep . number",
    ),
    "AsyncKeyValue": _ops(
        "put kv.put",
        "put_many kv.put . entries",
        "delete kv.delete",
        "increment kv.increment",
        "transact kv.transact",
    ),
    "BlobStore": _ops(
        "put blob.put",
        "get blob.get . text",
        "open blob.get iterator",
        "size blob.size",
        "delete blob.delete",
        "collect blob.collect . number",
    ),
    "GraphStore": _ops(
        "put graph.put . . session",
        "put_writes graph.put_writes . . session",
        "get graph.get . . session",
        "checkpoints graph.get iterator . session",
        "deltas graph.get . . session",
        "threads graph.threads iterator",
        "check graph.check . count",
        "leftovers graph.check . count",
        "recover graph.recover . . session",
        "delete_thread graph.delete . . session",
        "copy_thread graph.fork . . session",
        "would_prune graph.plan . . session",
        "prune graph.prune . . session",
    ),
}
