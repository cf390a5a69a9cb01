"""Table of all kinds of rows, with the properties that the other parts of memcore need.

Encryption, audit, erasure, repair plans, row shape checks and salvage use it, and a test keeps the
tables of docs/architecture.md in sync with it. This module is below the store, which encrypts;
functions that parse values are above it, in ``maintenance/salvage_rows.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from memcore.codec.keys import Care, Counter, Kind, MemoryRow, Row, SearchRow, ThreadRow

__all__ = [
    "KINDS_END",
    "ROWS",
    "RowKind",
    "find",
    "numbers_in",
]


class RowKind(NamedTuple):
    """One kind of row."""

    name: str
    kind: int
    fields: str
    """Parts of the key after the kind; ``row`` is the byte that distinguishes rows of one kind."""
    damage: str
    """Category of damage that a repair plan counts it under."""
    row: int | None = None
    secret: bool = False
    """True if it holds caller data and is encrypted."""
    owner: str = "scope"
    """Object whose deletion removes it: its ``scope``, or only the ``database``."""
    audited: bool = False
    """True if each write is recorded in an audit chain; a session's head is recorded separately."""
    counted: str = ""
    """Word under which an erasure receipt counts it."""
    rebuilt: bool = False
    """True if salvage rebuilds it along with a session that cannot be copied unchanged."""
    names: int = 0
    """Counter that assigned the number at the start of its value; 0: it has none."""

    @property
    def key_bytes(self) -> int | None:
        """Length of its key in bytes; None if it varies."""
        widths = [_WIDTHS.get(part) for part in self.fields.split()]
        return None if None in widths else 1 + sum(filter(None, widths))


_WIDTHS: Final = {
    "which": 1, "row": 1, "chunk": 4, "space": 4, "veil": 16, "slot": 17, "sha256": 32, "term": 8,
    **dict.fromkeys(("scope", "session", "fork", "namespace", "thread", "pool", "number"), 8),
}  # fmt: skip
"""Size of each part of a key in bytes; texts and other variable-length parts are not listed."""
_NUMBERED: Final = {
    "scope": Counter.SCOPE,
    "session": Counter.SESSION,
    "fork": Counter.SESSION,
    "namespace": Counter.NAMESPACE,
    "thread": Counter.THREAD,
    "pool": Counter.POOL,
    "space": Counter.GRAPH_NAMESPACE,
}
_OF_SESSION: Final = "scope session row number"
_OF_THREAD: Final = "scope thread row space text"
_DATABASE: Final = "database"


def _session(name: str, row: int, damage: str, *facts: str, fields: str = _OF_SESSION) -> RowKind:
    """Return the entry of a session's row; ``facts`` names its boolean properties."""
    return RowKind(
        name, Kind.SESSION, fields, damage, row,
        secret="secret" in facts, audited="audited" in facts, rebuilt="rebuilt" in facts,
        counted=f"{name}s" if "counted" in facts else "",
    )  # fmt: skip


ROWS: Final = (
    RowKind("counter", Kind.COUNTER, "which", "MARK", owner=_DATABASE),
    RowKind("scope", Kind.SCOPE, "scope", "NAME", owner=_DATABASE, audited=True),
    RowKind("scope name", Kind.SCOPE_NAME, "text text", "NAME", owner=_DATABASE, audited=True,
            names=Counter.SCOPE),
    RowKind("session name", Kind.SESSION_NAME, "scope text", "NAME", audited=True,
            counted="sessions", names=Counter.SESSION),
    RowKind("blob", Kind.BLOB, "scope slot", "BLOB", counted="blobs"),
    RowKind("blob chunk", Kind.BLOB_CHUNK, "scope slot chunk", "BLOB", secret=True, audited=True),
    RowKind("blob references", Kind.BLOB_REFS, "scope slot", "REFERENCE"),
    RowKind("blob address", Kind.BLOB_ADDRESS, "scope sha256", "REFERENCE", audited=True),
    RowKind("namespace name", Kind.KV_NAMESPACE, "scope text", "KEY_VALUE", audited=True,
            names=Counter.NAMESPACE),
    RowKind("entry", Kind.KV, "scope namespace text", "KEY_VALUE", secret=True, audited=True,
            counted="entries"),
    RowKind("expiry", Kind.EXPIRY, "due key", "MARK", owner=_DATABASE),
    RowKind("removal", Kind.REMOVAL, "scope prefix", "MARK"),
    RowKind("thread name", Kind.THREAD_NAME, "scope text", "NAME", audited=True,
            counted="threads", names=Counter.THREAD),
    RowKind("pool", Kind.CHUNK, "scope pool id", "THREAD", secret=True, audited=True),
    RowKind("shared state", Kind.STATE, "scope text number", "STATE", secret=True, audited=True,
            counted="state_values"),
    _session("head", Row.HEAD, "HEAD", "rebuilt"),
    _session("index", Row.INDEX, "INDEX", "rebuilt"),
    _session("item", Row.ITEM, "ITEM", "secret", "audited", "counted", "rebuilt"),
    _session("view", Row.VIEW, "VIEW", "secret", "audited", "counted", "rebuilt"),
    _session("segments", Row.SEGMENTS, "HEAD", "audited", "rebuilt"),
    _session("child", Row.CHILD, "RELATION", "audited", "rebuilt",
             fields="scope session row fork"),
    _session("request", Row.REQUEST, "REQUEST", fields="scope session row digest"),
    _session("tokens", Row.TOKENS, "TOKENS", "rebuilt", fields=f"{_OF_SESSION} number"),
    _session("usage", Row.USAGE, "USAGE", "secret", "rebuilt"),
    _session("checkpoint", Row.CHECKPOINT, "CHECKPOINT",
             "secret", "audited", "counted", "rebuilt"),
    RowKind("state", Kind.SESSION, "scope session row text number", "STATE", Row.STATE,
            secret=True, audited=True, counted="state_values"),
    _session("moment", Row.MOMENT, "STATE", "audited"),
    _session("audit", Row.AUDIT, "STRUCTURE"),
    _session("lease", Row.LEASE, "LEASE"),
    _session("uses", Row.USES, "STRUCTURE", "secret"),
    _session("terms", Row.TERMS, "MARK", "secret", "audited"),
    *(
        RowKind(f"{name} of a thread", Kind.THREAD, fields, "THREAD", row, secret=True,
                audited=True, counted="checkpoints" if row == ThreadRow.CHECKPOINT else "")
        for name, row, fields in (
            ("head", ThreadRow.HEAD, "scope thread row"),
            ("namespace", ThreadRow.NAMESPACE, "scope thread row text"),
            ("checkpoint", ThreadRow.CHECKPOINT, _OF_THREAD),
            ("value", ThreadRow.VALUE, _OF_THREAD),
            ("writes", ThreadRow.WRITES, _OF_THREAD),
        )
    ),
    *(
        RowKind(name, Kind.CARE, fields, "CARE", row, secret=secret, audited=audited,
                counted="care_rows")
        for name, row, fields, secret, audited in (
            ("hold", Care.HOLD, "scope row place", True, True),
            ("erasure", Care.ERASURE, "scope row sort id", False, True),
            ("terms of a scope", Care.TERMS, "scope row place", False, True),
            ("audit of a scope", Care.AUDIT, "scope row sort number", False, False),
            ("quarantine", Care.QUARANTINE, "scope row place number", True, True),
            ("memory", Care.MEMORY, "scope row namespace", False, True),
            ("demand", Care.DEMAND, "scope row", False, True),
            ("secret", Care.SECRET, "scope row", False, False),
            ("owner", Care.OWNER, "scope row", False, False),
            ("warm copy", Care.WARM, "scope row", False, False),
        )
    ),
    *(
        RowKind(f"{name} of memory", Kind.MEMORY, f"scope row{fields}", "MEMORY", row, secret=True,
                audited=True, counted=counted)
        for name, row, fields, counted in (
            ("head", MemoryRow.HEAD, "", ""),
            ("entry", MemoryRow.ENTRY, " number", "memories"),
            ("version", MemoryRow.VERSION, " number number", ""),
            ("slot", MemoryRow.SLOT, " veil number", ""),
            ("source", MemoryRow.SOURCE, " session number number", ""),
            ("digest", MemoryRow.DIGEST, " veil number", ""),
            ("outcome", MemoryRow.OUTCOME, " veil session", ""),
            ("playbook", MemoryRow.PLAYBOOK, " veil number", "playbooks"),
            ("grant", MemoryRow.GRANT, " scope number", "grants"),
            ("received grant", MemoryRow.RECEIVED, " scope number", ""),
            ("job", MemoryRow.JOB, " session veil number", "extraction_jobs"),
            ("watermark", MemoryRow.WATERMARK, " session veil", ""),
            ("coverage", MemoryRow.COVERAGE, " number session", ""),
        )
    ),
    *(
        RowKind(f"{name} of a search index", Kind.SEARCH, fields, "SEARCH", row, secret=True,
                counted="index_rows")
        for name, row, fields in (
            ("head", SearchRow.HEAD, "scope row"),
            ("watermark", SearchRow.WATERMARK, "scope row session"),
            ("place", SearchRow.PLACE, "scope row sort id"),
            ("forward row", SearchRow.FORWARD, "scope row number"),
            ("table", SearchRow.TABLE, "scope row number"),
            ("postings", SearchRow.POSTINGS, "scope row term number"),
            ("source", SearchRow.SOURCE, "scope row sort"),
            ("head of vectors", SearchRow.VECTOR_HEAD, "scope row"),
            ("vectors", SearchRow.VECTORS, "scope row number"),
        )
    ),
)  # fmt: skip
"""All kinds of rows.

A new kind needs a number and key in ``codec/keys.py``, an entry here, and its shape in
``maintenance/salvage_rows.py``."""

KINDS_END: Final = bytes((max(each.kind for each in ROWS) + 1,))
"""The first key after all rows."""

_ROW_AT: Final = {Kind.SESSION: 17, Kind.THREAD: 17, Kind.CARE: 9, Kind.MEMORY: 9, Kind.SEARCH: 9}
_BY_KIND: Final = {each.kind: each for each in ROWS if each.kind != Kind.SESSION}
_BY_ROW: Final = {(each.kind, each.row): each for each in ROWS}


def find(key: bytes) -> RowKind | None:
    """Return the kind of a row by its key; None if it is unknown."""
    at = _ROW_AT.get(key[0], len(key))
    row = key[at] if at < len(key) else None
    return _BY_ROW.get((key[0], row)) or _BY_KIND.get(key[0])


def numbers_in(key: bytes) -> Iterator[tuple[int, int]]:
    """Yield ``(counter, number)`` of each number in a key that a counter assigned.

    Scope 0 under ``Kind.CARE`` is the database, which has no counter.
    """
    found, at = find(key), 1
    of_none = _OF_SESSION if key[0] == Kind.SESSION else ""
    for part in (of_none if found is None else found.fields).split():
        width = _WIDTHS.get(part)
        if width is None or at + width > len(key):
            return
        number = int.from_bytes(key[at : at + width], "big")
        at += width
        if part in _NUMBERED and (number or key[0] != Kind.CARE or part != "scope"):
            yield _NUMBERED[part], number
