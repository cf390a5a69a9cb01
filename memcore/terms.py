"""Terms: until when things stay, and the index that leads the sweeper to what is due.

One row says it for a session, a thread, a scope or the database: until when all of it stays, the
rules it is kept by, and until when fields of its state and its checkpoints stay. A row ``EXPIRY |
due ms | key of the terms`` stands for the earliest of these, and is replaced with it in the same
transaction. Rules have no time of their own: terms that hold some are due whenever it is swept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from memcore import keys
from memcore.codec import decode_json, decoding, encode_json, open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.keys import Care, Kind, Row
from memcore.store.base import ReadTxn, Txn

__all__ = [
    "Terms",
    "drop_terms",
    "index_row",
    "is_terms",
    "move_terms",
    "read_terms",
    "scope_terms",
    "session_terms",
    "terms_at",
    "thread_terms",
    "write_terms",
]

ALWAYS_MS: Final = 0
"""When rules are due."""
_END: Final = 2**63
_SCOPE_BYTES: Final = 10
_THREAD_BYTES: Final = 18
_SESSION_BYTES: Final = 26


@dataclass(frozen=True, slots=True)
class Terms:
    """What is said of one place. Times are milliseconds since 1970."""

    expires_ms: int | None = None
    """When all of it goes."""
    name: str = ""
    """The name of the session or thread that goes."""
    rules: tuple[dict[str, Any], ...] | None = None
    """Retention rules as mappings; None: those of the scope, or else of the database, apply."""
    fields: dict[str, int] = field(default_factory=dict)
    """When fields of its state go."""
    checkpoints: dict[int, int] = field(default_factory=dict)
    """When its checkpoints go, by number."""
    marks: dict[str, int] = field(default_factory=dict)
    """By rule, the seq up to which all items are settled."""

    @property
    def due_ms(self) -> int | None:
        """When the sweeper has to look at it first; None: never."""
        times = [*self.fields.values(), *self.checkpoints.values()]
        if self.expires_ms is not None:
            times.append(self.expires_ms)
        if self.rules:
            times.append(ALWAYS_MS)
        return min(times, default=None)

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing."""
        return self == Terms(name=self.name)


def session_terms(scope: int, session: int) -> bytes:
    """``05 | scope | session | 10 | 0``: the key of a session's terms."""
    return keys.session_row(scope, session, Row.TERMS, 0)


def scope_terms(scope: int) -> bytes:
    """``12 | scope | 03``: the key of a scope's terms; scope 0: of the database's."""
    return keys.care_rows(scope, Care.TERMS)


def thread_terms(scope: int, thread: int) -> bytes:
    """``12 | scope | 03 | thread``: the key of a thread's terms."""
    return keys.care_rows(scope, Care.TERMS) + keys.u64(thread)


def is_terms(key: bytes) -> bool:
    """Whether a key is one of terms."""
    if key[:1] == bytes((Kind.SESSION,)):
        return len(key) == _SESSION_BYTES and keys.row_of(key) == Row.TERMS
    is_care = key[:1] == bytes((Kind.CARE,)) and key[9:10] == bytes((Care.TERMS,))
    return is_care and len(key) in (_SCOPE_BYTES, _THREAD_BYTES)


def read_terms(txn: ReadTxn, key: bytes) -> Terms:
    """The terms of a place; those that say nothing if there are none.

    Raises:
        CorruptValueError: the row is damaged.
    """
    value = txn.get(key)
    return Terms() if value is None else terms_of(key, value)


def terms_of(key: bytes, value: bytes) -> Terms:
    """The terms in a row.

    Raises:
        CorruptValueError: the row is damaged.
    """
    flags, body = open_value(key, value)
    with decoding(key, "row of terms"):
        found = decode_json(body, flags)
        expires, rules = found.get("expires"), found.get("rules")
        return Terms(
            None if expires is None else _time(expires),
            str(found.get("name", "")),
            None if rules is None else tuple(dict(rule) for rule in rules),
            {str(name): _time(at) for name, at in found.get("fields", {}).items()},
            {int(number): _time(at) for number, at in found.get("checkpoints", {}).items()},
            {str(rule): _time(seq) for rule, seq in found.get("marks", {}).items()},
        )


def _time(found: Any) -> int:
    if type(found) is not int or not 0 <= found < _END:
        raise ValueError
    return found


def write_terms(txn: Txn, key: bytes, terms: Terms) -> None:
    """Write the terms of a place, and the row of the index that leads to them; none if empty."""
    before = txn.get(key)
    due = None if terms.is_empty else terms.due_ms
    _leave_index(txn, key, before, due)
    if terms.is_empty:
        if before is not None:
            txn.delete(key)
        return
    said: dict[str, Any] = {"expires": terms.expires_ms, "name": terms.name}
    if terms.rules is not None:
        said["rules"] = list(terms.rules)
    for name in ("fields", "marks"):
        if getattr(terms, name):
            said[name] = getattr(terms, name)
    if terms.checkpoints:
        said["checkpoints"] = {str(number): at for number, at in terms.checkpoints.items()}
    txn.put(key, seal_value(key, *encode_json(said)))
    if due is not None:
        row = keys.expiry_row(due, key)
        txn.put(row, seal_value(row, b""))


def index_row(key: bytes, value: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The row of the index that leads to a row of terms; nothing for a row of another sort.

    Raises:
        CorruptValueError: the row is damaged.
    """
    due = terms_of(key, value).due_ms if is_terms(key) else None
    if due is not None:
        row = keys.expiry_row(due, key)
        yield row, seal_value(row, b"")


def _leave_index(txn: Txn, key: bytes, before: bytes | None, due: int | None) -> None:
    if before is None:
        return
    try:
        known = terms_of(key, before).due_ms
    except CorruptValueError:
        return  # its row of the index is litter, which the sweeper takes away when it is due
    if known is not None and known != due:
        txn.delete(keys.expiry_row(known, key))


def drop_terms(txn: Txn, key: bytes) -> None:
    """Remove the terms of a place, and their row of the index."""
    write_terms(txn, key, Terms())


def move_terms(txn: Txn, scope: int, session: int, to: int) -> None:
    """Give a session's terms to the one that stands in its place: its items have other seqs."""
    old = session_terms(scope, session)
    if txn.get(old) is None:
        return
    try:
        terms = read_terms(txn, old)
    except CorruptValueError:
        return  # it goes with the old one's rows
    drop_terms(txn, old)
    write_terms(txn, session_terms(scope, to), replace(terms, checkpoints={}, marks={}))


def terms_at(txn: ReadTxn) -> Iterator[tuple[bytes, Terms | CorruptValueError]]:
    """All terms of scopes and threads with their keys; damaged ones as errors."""
    start = bytes((Kind.CARE,))
    for key, value in txn.scan(start, keys.after(start)):
        if is_terms(key):
            try:
                yield key, terms_of(key, value)
            except CorruptValueError as exc:
                yield key, exc
