"""Rows of a life cycle: erased scopes, legal holds, expiry terms, leases.

A tombstone holds no name. It stays for good: whoever still knows the number of an erased scope, in
this process or another, finds out by one look inside his own transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Any, Final, NamedTuple

from memcore.codec import keys
from memcore.codec.keys import Care, Kind, Row
from memcore.codec.values import (
    decode_json,
    decoding,
    encode_json,
    open_number,
    open_value,
    seal_value,
)
from memcore.errors import CorruptValueError, HeldError, NotFoundError
from memcore.model import Message
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "ERASURES",
    "TOMBSTONES",
    "Held",
    "HoldRow",
    "LeaseRow",
    "Terms",
    "any_held",
    "buried",
    "bury",
    "checked_scopes",
    "count_holds",
    "counted_holds",
    "drop_held",
    "drop_holds",
    "drop_terms",
    "forget_held",
    "held_in",
    "holds_in",
    "index_row",
    "is_erased",
    "is_erasing",
    "is_held",
    "is_held_row",
    "is_hold_row",
    "is_opted_out",
    "is_terms",
    "lease_key",
    "mark_memory",
    "memory_mark",
    "memory_namespaces",
    "move_terms",
    "need_alive",
    "need_free",
    "opted_out_key",
    "put_held",
    "put_hold",
    "read_held",
    "read_lease",
    "read_terms",
    "release_hold",
    "rows_of",
    "scope_terms",
    "scopes_erased",
    "session_terms",
    "terms_at",
    "thread_terms",
    "tombstone_of",
    "unpack_lease",
    "write_lease",
    "write_terms",
]


# --- Tombstones: numbers of erased scopes, which no handle may use again --------------------------

TOMBSTONES = keys.scoped(Kind.CARE, 0, bytes((Care.ERASURE,))) + b"\x01"
"""Key prefix of tombstones."""
ERASURES = keys.scoped(Kind.CARE, 0, bytes((Care.ERASURE,))) + b"\x02"
"""Key prefix of unfinished erasures."""
_NUMBER_MAX: Final = 2**64 - 1


def tombstone_of(scope: int) -> bytes:
    """``12 | 0 u64 | 02 | 01 | scope u64``: the key of a scope's tombstone."""
    return TOMBSTONES + keys.u64(scope)


def scopes_erased(key: bytes, value: bytes) -> list[int]:
    """The scopes in the row of an erasure that is not finished.

    Raises:
        CorruptValueError: the row is damaged.
    """
    flags, body = open_value(key, value)
    with decoding(key, "erasure"):
        return checked_scopes(decode_json(body, flags)["scopes"])


def checked_scopes(found: Any) -> list[int]:
    """The numbers of an erasure's row, if that is what they are.

    Raises:
        TypeError, ValueError: they are not: whoever seals a row can write anything into it.
    """
    if not all(type(each) is int and 0 < each <= _NUMBER_MAX for each in found):
        raise ValueError
    return list(found)


def is_erasing(txn: ReadTxn) -> bool:
    """Return True if an erasure has begun and is not finished."""
    return next(iter(txn.scan(ERASURES, keys.after(ERASURES), limit=1)), None) is not None


def is_erased(txn: ReadTxn, scope: int) -> bool:
    """Return True if the scope's user was erased."""
    return txn.get(TOMBSTONES + keys.u64(scope)) is not None


def need_alive(txn: ReadTxn, scope: int) -> None:
    """Refuse to go on with a scope whose user was erased; scope 0 has no user.

    Raises:
        NotFoundError: the user was erased.
    """
    if is_erased(txn, scope):
        msg = f"the user of scope {scope} was erased: nothing is done under the old number"
        raise NotFoundError(msg)


def bury(txn: Txn, scope: int) -> None:
    """Say that the scope is dead."""
    key = tombstone_of(scope)
    txn.put(key, seal_value(key, b""))


def buried(txn: ReadTxn) -> Iterator[int]:
    """The numbers of all erased scopes."""
    for key, _ in txn.scan(TOMBSTONES, keys.after(TOMBSTONES)):
        yield keys.number_of(key)


# --- Rows of legal holds: what must not be deleted, and how deleting code finds that out ----------
# A hold on a scope covers all that it has; one on a session covers the session. A row of the
# database counts them, so that nobody pays for holds who has none.

_COUNT = keys.scoped(Kind.CARE, 0, bytes((Care.HOLD,)))
_SCOPE, _SESSION = b"\x01", b"\x02"
OPTED_OUT = b"\x03"
"""Behind the holds of a scope: its user wants no memory."""


class HoldRow(NamedTuple):
    """One hold; session 0: all that the scope has."""

    scope: int
    session: int
    reason: str
    since_ms: int


def _key(scope: int, session: int) -> bytes:
    rows = keys.scoped(Kind.CARE, scope, bytes((Care.HOLD,)))
    return rows + _SESSION + keys.u64(session) if session else rows + _SCOPE


def any_held(txn: ReadTxn) -> bool:
    """Return True if the database has a legal hold."""
    return txn.get(_COUNT) is not None


def is_held(txn: ReadTxn, scope: int, session: int | None = None) -> bool:
    """Return True if a legal hold covers the session, or without one, anything in the scope.

    One lookup if the database has no hold.

    Args:
        txn: a snapshot or transaction.
        scope: the number of the scope.
        session: the number of a session; 0 asks for rows outside of sessions, None for the scope
            and each of its sessions.
    """
    if txn.get(_COUNT) is None:
        return False
    if session is not None:
        return any(txn.get(_key(scope, each)) is not None for each in (0, session))
    return any(True for _ in _rows_in(txn, scope))


def need_free(txn: ReadTxn, scope: int, session: int | None = None, *, what: str) -> None:
    """Refuse to delete what is held.

    Raises:
        HeldError: a hold covers it; ``what`` says in words what was to be deleted.
        CorruptValueError: the row of a hold is damaged, so nothing is deleted.
    """
    if not is_held(txn, scope, session):
        return
    holds = rows_of(txn, scope)
    first = next(row for row in holds if session is None or row.session in (0, session))
    reason, place = first.reason, "session.release()" if first.session else "scope.release()"
    option = " --session SESSION" if first.session else ""
    msg = (
        f"{what} is under a legal hold ({reason[:80]!r}) and was not deleted: {place} or "
        f"'memcore hold USER{option} --release --yes' ends the hold"
    )
    raise HeldError(msg, reason=reason)


def put_hold(txn: Txn, row: HoldRow) -> bool:
    """Write a hold, in place of one that is there; whether it is a new one."""
    key = _key(row.scope, row.session)
    is_new = txn.get(key) is None
    body, flags = encode_json({"reason": row.reason, "since_ms": row.since_ms})
    txn.put(key, seal_value(key, body, flags))
    if is_new:
        _count(txn, 1)
    return is_new


def release_hold(txn: Txn, scope: int, session: int = 0) -> bool:
    """Remove a hold; return True if there was one."""
    found = txn.delete(_key(scope, session))
    if found:
        _count(txn, -1)
    return found


def drop_holds(txn: Txn, scope: int) -> int:
    """Remove all holds of a scope, whatever their rows hold; how many there were."""
    found = [key for key, _ in _rows_in(txn, scope)]
    for key in found:
        txn.delete(key)
    if found:
        _count(txn, -len(found))
    return len(found)


def opted_out_key(scope: int) -> bytes:
    """``12 | scope u64 | 01 | 03``: there while the user of the scope wants no memory."""
    return keys.scoped(Kind.CARE, scope, bytes((Care.HOLD,))) + OPTED_OUT


def is_opted_out(txn: ReadTxn, scope: int) -> bool:
    """Return True if the user of the scope opted out of memory."""
    return txn.get(opted_out_key(scope)) is not None


def memory_mark(scope: int, namespace: int) -> bytes:
    """``12 | scope u64 | 06 | namespace u64``: the key/value namespace holds memory."""
    return keys.care_rows(scope, Care.MEMORY) + keys.u64(namespace)


def mark_memory(txn: Txn, scope: int, namespace: int) -> None:
    """Mark a namespace as memory, which ``opt_out_memory(remove=True)`` deletes."""
    key = memory_mark(scope, namespace)
    if txn.get(key) is None:
        txn.put(key, seal_value(key, b""))


def memory_namespaces(txn: ReadTxn, scope: int) -> set[int]:
    """The numbers of the namespaces that are marked."""
    start = keys.care_rows(scope, Care.MEMORY)
    return {keys.number_of(key) for key, _ in txn.scan(start, keys.after(start))}


def counted_holds(txn: ReadTxn) -> int:
    """Return the number of legal holds that the database's count row states.

    Raises:
        CorruptValueError: the row is damaged.
    """
    value = txn.get(_COUNT)
    return 0 if value is None else open_number(_COUNT, value)


def count_holds(txn: Txn, count: int) -> None:
    """Write the number of holds."""
    if count > 0:
        txn.put(_COUNT, seal_value(_COUNT, keys.u64(count)))
    else:
        txn.delete(_COUNT)


def _count(txn: Txn, more: int) -> None:
    count_holds(txn, counted_holds(txn) + more)


def holds_in(txn: ReadTxn, scope: int) -> int:
    """Count the hold rows of a scope and its sessions, without reading their values."""
    return sum(1 for _ in _rows_in(txn, scope))


def rows_of(txn: ReadTxn, scope: int) -> list[HoldRow]:
    """The holds of a scope, its own first.

    Raises:
        CorruptValueError: a row is damaged.
    """
    return [_unpacked(key, value) for key, value in _rows_in(txn, scope)]


def _rows_in(txn: ReadTxn, scope: int) -> Iterator[tuple[bytes, bytes]]:
    start = keys.scoped(Kind.CARE, scope, bytes((Care.HOLD,)))
    return (row for row in txn.scan(start + _SCOPE, start + _SESSION + b"\xff"))


def is_hold_row(key: bytes, value: bytes) -> bool:
    """Return True if a row is a valid hold or opt-out of memory."""
    start = keys.scoped(Kind.CARE, keys.split_scoped(key)[0], bytes((Care.HOLD,)))
    if not keys.split_scoped(key)[0] or not key.startswith(start):
        return False
    rest = key[len(start) :]
    if rest == OPTED_OUT:
        return True
    fits = rest == _SCOPE or (rest[:1] == _SESSION and len(rest) == 1 + len(keys.u64(0)))
    return fits and bool(_unpacked(key, value))


def _unpacked(key: bytes, value: bytes) -> HoldRow:
    flags, body = open_value(key, value)
    scope, rest = keys.split_scoped(key)
    with decoding(key, "hold"):
        found: Any = decode_json(body, flags)
        session = int.from_bytes(rest[2:], "big")
        return HoldRow(scope, session, str(found.get("reason", "")), int(found.get("since_ms", 0)))


# --- Terms: until when things stay, and the index that leads the sweeper to what is due -----------
# One row says it for a session, a thread, a scope or the database: until when all of it stays, the
# rules it is kept by, and until when fields of its state and its checkpoints stay. A row ``EXPIRY |
# due ms | key of the terms`` stands for the earliest of these, and is replaced with it in the same
# transaction. Rules have no time of their own: terms that hold some are due whenever it is swept.

ALWAYS_MS: Final = 0
"""Due time of rules: always."""
_END: Final = 2**63
_SCOPE_BYTES: Final = 10
_THREAD_BYTES: Final = 18
_SESSION_BYTES: Final = 26


@dataclass(frozen=True, slots=True)
class Terms:
    """Expiry and retention rules of one place. Times are milliseconds since 1970."""

    expires_ms: int | None = None
    """Expiry of the whole place."""
    name: str = ""
    """Name of the session or thread that expires."""
    rules: tuple[dict[str, Any], ...] | None = None
    """Retention rules as mappings; None: those of the scope, or else of the database, apply."""
    fields: dict[str, int] = field(default_factory=dict)
    """Expiry of fields of its state."""
    checkpoints: dict[int, int] = field(default_factory=dict)
    """Expiry of its checkpoints, by number."""
    marks: dict[str, int] = field(default_factory=dict)
    """By rule, the seq up to which all items are settled."""

    @property
    def due_ms(self) -> int | None:
        """Time at which the sweeper first has to look at it; None: never."""
        times = [*self.fields.values(), *self.checkpoints.values()]
        if self.expires_ms is not None:
            times.append(self.expires_ms)
        if self.rules:
            times.append(ALWAYS_MS)
        return min(times, default=None)

    @property
    def is_empty(self) -> bool:
        """True if no field but the name is set."""
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
    """Return True if a key is that of a terms row."""
    if key[:1] == bytes((Kind.SESSION,)):
        return len(key) == _SESSION_BYTES and keys.row_of(key) == Row.TERMS
    is_care = key[:1] == bytes((Kind.CARE,)) and key[9:10] == bytes((Care.TERMS,))
    return is_care and len(key) in (_SCOPE_BYTES, _THREAD_BYTES)


def read_terms(txn: ReadTxn, key: bytes) -> Terms:
    """Read the terms of a place; empty ones if there is no row.

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
    """Move a session's terms to its replacement, without marks: its items have other seqs."""
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


# --- The lease row of a session: who alone may change it, since which change of hands, until when -
# One row a session, ``05 | scope | session | 0E | 0``, written by those who take, renew or give up
# a lease and by nobody else. It stays when the lease is given up, for its *epoch* never goes back:
# that is what a writer is found out by whose lease somebody else has taken meanwhile. A row without
# an owner says that nobody holds the session. The head's flag says that the row is to be looked at.

_BODY: Final = Struct("<QQ")


class LeaseRow(NamedTuple):
    """Stored lease of a session."""

    epoch: int
    """Number of times that the holder changed; from 1 on."""
    expires_ms: int
    """Expiry, in milliseconds since 1970; 0: expired."""
    owner: str
    """Holder; empty: nobody."""

    def is_held(self, now_ms: int) -> bool:
        """Return True if the lease has a holder and is not expired at that time."""
        return bool(self.owner) and now_ms < self.expires_ms

    def vacant(self) -> LeaseRow:
        """The same epoch without an owner."""
        return LeaseRow(self.epoch, 0, "")


def lease_key(scope: int, session: int) -> bytes:
    """The key of a session's lease row."""
    return keys.session_row(scope, session, Row.LEASE, 0)


def read_lease(txn: ReadTxn, scope: int, session: int) -> LeaseRow | None:
    """The row, None if the session was never leased.

    Raises:
        CorruptValueError: the row is damaged.
    """
    key = lease_key(scope, session)
    value = txn.get(key)
    return None if value is None else unpack_lease(key, value)


def write_lease(txn: Txn, scope: int, session: int, row: LeaseRow) -> None:
    """Store the row in place of the one before."""
    key = lease_key(scope, session)
    owner = row.owner.encode("utf-8", "surrogatepass")
    txn.put(key, seal_value(key, _BODY.pack(row.epoch, row.expires_ms) + owner))


def unpack_lease(key: bytes, value: bytes) -> LeaseRow:
    """Return the lease in a row.

    Raises:
        CorruptValueError: it is damaged, or holds numbers that no lease reaches.
    """
    _, body = open_value(key, value)
    with decoding(key, "lease row"):
        epoch, expires_ms = _BODY.unpack_from(body)
        owner = body[_BODY.size :].decode("utf-8", "surrogatepass")
        if not 0 < epoch < _END > expires_ms or (owner == "") != (expires_ms == 0):
            raise ValueError
    return LeaseRow(epoch, expires_ms, owner)


# --- Quarantine rows: originals of items that a guard replaced by placeholders --------------------

_NUMBERS: int = 16


class Held(NamedTuple):
    """Quarantined original of one item."""

    session: int
    seq: int
    source: str
    reason: str
    message: Message


def _rows(scope: int) -> bytes:
    return keys.care_rows(scope, Care.QUARANTINE)


def _of_session(scope: int, session: int) -> bytes:
    return _rows(scope) + keys.u64(session)


def _held_key(scope: int, session: int, seq: int) -> bytes:
    return keys.numbered(_of_session(scope, session), seq)


def put_held(txn: Txn, scope: int, session: int, seq: int, held: bytes) -> None:
    """Write the row of an original: a byte of flags, and JSON."""
    key = _held_key(scope, session, seq)
    txn.put(key, seal_value(key, held[1:], held[0]))


def _opened(key: bytes, value: bytes) -> Held:
    flags, body = open_value(key, value)
    with decoding(key, "quarantined item"):
        found: Any = decode_json(body, flags)
        session, seq = int.from_bytes(key[-_NUMBERS:-8], "big"), keys.number_of(key)
        source, reason, message = (found[name] for name in ("source", "reason", "message"))
        return Held(session, seq, str(source), str(reason), message)


def held_in(txn: ReadTxn, scope: int, session: int | None = None) -> Iterator[Held]:
    """Yield the quarantined originals of a scope or one session, ordered by session and seq.

    Raises:
        CorruptValueError: a row is damaged.
    """
    prefix = _rows(scope) if session is None else _of_session(scope, session)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        yield _opened(key, value)


def read_held(txn: ReadTxn, scope: int, session: int, seq: int) -> Held | None:
    """Read one quarantined original, or None.

    Raises:
        CorruptValueError: the row is damaged.
    """
    key = _held_key(scope, session, seq)
    value = txn.get(key)
    return None if value is None else _opened(key, value)


def drop_held(txn: Txn, scope: int, session: int, seq: int) -> bool:
    """Remove one; whether it was there."""
    key = _held_key(scope, session, seq)
    there = txn.get(key) is not None
    if there:
        txn.delete(key)
    return there


def forget_held(txn: Txn, scope: int, session: int) -> None:
    """Delete the quarantined originals of a session that is deleted."""
    prefix = _of_session(scope, session)
    if next(iter(txn.scan(prefix, keys.after(prefix), limit=1)), None) is not None:
        txn.delete_range(prefix, keys.after(prefix))


def is_held_row(key: bytes, value: bytes) -> bool:
    """Return True if a proven row is a readable quarantine row."""
    size = len(_rows(0)) + _NUMBERS
    return len(key) == size and isinstance(_opened(key, value).message, dict)
