"""Lifecycle rows: tombstones of erased scopes, legal holds, expiry terms, leases, quarantine.

A tombstone contains no name. It is permanent: any handle, in this process or another, that still
has the number of an erased scope detects this with one lookup inside its own transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from struct import Struct
from typing import Any, Final, NamedTuple

from memcore.codec import keys
from memcore.codec.keys import Care, Kind, Row
from memcore.codec.values import (
    decode_json,
    decoding,
    encode_json,
    is_proven,
    open_number,
    open_value,
    seal_value,
)
from memcore.errors import CorruptValueError, HeldError, NotFoundError, OptedOutError
from memcore.model import Message
from memcore.records import record
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "ARCHIVED",
    "ERASURES",
    "REMOVED",
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
    "has_quarantine",
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
    "need_wanted",
    "opted_out_key",
    "packed_held",
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
    """Return the key of a scope's tombstone: ``12 | 0 u64 | 02 | 01 | scope u64``."""
    return TOMBSTONES + keys.u64(scope)


def scopes_erased(key: bytes, value: bytes) -> list[int]:
    """Return the scopes in the row of an unfinished erasure.

    Raises:
        CorruptValueError: the row is damaged.
    """
    flags, body = open_value(key, value)
    with decoding(key, "erasure"):
        return checked_scopes(decode_json(body, flags)["scopes"])


def checked_scopes(found: Any) -> list[int]:
    """Validate the scope numbers in an erasure's row.

    Raises:
        TypeError, ValueError: they are invalid; a checksum does not prove that memcore wrote them.
    """
    if not all(type(each) is int and 0 < each <= _NUMBER_MAX for each in found):
        raise ValueError
    return list(found)


def is_erasing(txn: ReadTxn) -> bool:
    """Return True if an erasure has begun and is unfinished."""
    return next(iter(txn.scan(ERASURES, keys.after(ERASURES), limit=1)), None) is not None


def is_erased(txn: ReadTxn, scope: int) -> bool:
    """Return True if the scope's user was erased."""
    return txn.get(TOMBSTONES + keys.u64(scope)) is not None


def need_alive(txn: ReadTxn, scope: int) -> None:
    """Refuse to continue with a scope whose user was erased; scope 0 has no user.

    Raises:
        NotFoundError: the user was erased.
    """
    if is_erased(txn, scope):
        msg = f"the user of scope {scope} was erased: nothing is done under the old number"
        raise NotFoundError(msg)


def bury(txn: Txn, scope: int) -> None:
    """Write a scope's tombstone."""
    key = tombstone_of(scope)
    txn.put(key, seal_value(key, b""))


def buried(txn: ReadTxn) -> Iterator[int]:
    """Yield the numbers of all erased scopes."""
    for key, _ in txn.scan(TOMBSTONES, keys.after(TOMBSTONES)):
        yield keys.number_of(key)


# --- Rows of legal holds: what must not be deleted, and how deleting code finds that out ----------
# A hold on a scope covers everything in it; one on a session covers the session. A row of the
# database counts them, so that databases without holds pay a single lookup.

_COUNT = keys.scoped(Kind.CARE, 0, bytes((Care.HOLD,)))
_SCOPE, _SESSION = b"\x01", b"\x02"
OPTED_OUT = b"\x03"
"""Suffix, sorted after a scope's holds, of the row that says its user wants no memory."""


class HoldRow(NamedTuple):
    """One hold; session 0: everything in the scope."""

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
    """Return True if a legal hold covers the session, or, without one, anything in the scope.

    Takes one lookup if the database has no holds.

    Args:
        txn: a snapshot or transaction.
        scope: number of the scope.
        session: number of a session; 0 for rows outside sessions, None for the scope and each of
            its sessions.
    """
    if txn.get(_COUNT) is None:
        return False
    if session is not None:
        return any(txn.get(_key(scope, each)) is not None for each in (0, session))
    return any(True for _ in _rows_in(txn, scope))


def need_free(txn: ReadTxn, scope: int, session: int | None = None, *, what: str) -> None:
    """Refuse to delete anything under a hold.

    Raises:
        HeldError: a hold covers it; ``what`` names the object in the message.
        CorruptValueError: the row of a hold is damaged, so nothing may be deleted.
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
    """Write a hold, replacing an existing one; True if it is new."""
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
    """Remove all holds of a scope, even damaged ones; returns their number."""
    found = [key for key, _ in _rows_in(txn, scope)]
    for key in found:
        txn.delete(key)
    if found:
        _count(txn, -len(found))
    return len(found)


def opted_out_key(scope: int) -> bytes:
    """Return the key of a scope's memory opt-out: ``12 | scope u64 | 01 | 03``."""
    return keys.scoped(Kind.CARE, scope, bytes((Care.HOLD,))) + OPTED_OUT


def is_opted_out(txn: ReadTxn, scope: int) -> bool:
    """Return True if the user of the scope opted out of memory."""
    return txn.get(opted_out_key(scope)) is not None


def need_wanted(txn: ReadTxn, scope: int) -> None:
    """Refuse to remember a user who opted out.

    Raises:
        OptedOutError
    """
    if is_opted_out(txn, scope):
        raise OptedOutError(
            "the user opted out of memory, so nothing was stored; opt_in_memory() of the scope "
            "takes that back"
        )


def memory_mark(scope: int, namespace: int) -> bytes:
    """Return the key that marks a namespace as memory: ``12 | scope u64 | 06 | namespace u64``."""
    return keys.care_rows(scope, Care.MEMORY) + keys.u64(namespace)


def mark_memory(txn: Txn, scope: int, namespace: int) -> None:
    """Mark a namespace as memory, which ``opt_out_memory(remove=True)`` deletes."""
    key = memory_mark(scope, namespace)
    if txn.get(key) is None:
        txn.put(key, seal_value(key, b""))


def memory_namespaces(txn: ReadTxn, scope: int) -> set[int]:
    """Return the numbers of the namespaces marked as memory."""
    start = keys.care_rows(scope, Care.MEMORY)
    return {keys.number_of(key) for key, _ in txn.scan(start, keys.after(start))}


def counted_holds(txn: ReadTxn) -> int:
    """Return the number of legal holds according to the database's count row.

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
    """Return the holds of a scope and its sessions, the scope's own first.

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


# --- Terms: expiry and retention, and the index in which the sweeper finds what is due ------------
# A session, a thread, a scope or the database has one row with its terms: when all of it expires,
# its retention rules, and when fields of its state and its checkpoints expire. An index row
# ``EXPIRY | due ms | key of the terms`` has the earliest of these times, and is updated in the same
# transaction. Rules have no time of their own: terms with rules are due at every sweep.

ALWAYS_MS: Final = 0
"""Due time of terms with rules: always due."""
_END: Final = 2**63
_SCOPE_BYTES: Final = 10
_THREAD_BYTES: Final = 18
_SESSION_BYTES: Final = 26

REMOVED: Final = "removed"
ARCHIVED: Final = "archived"
"""Keys of marks; no identifiers of rules."""


@record(frozen=True, slots=True)
class Terms:
    """Expiry and retention rules of one place. Times are milliseconds since 1970."""

    expires_ms: int | None = None
    """Expiry of the place as a whole."""
    name: str = ""
    """Name of the session or thread that expires."""
    rules: tuple[dict[str, Any], ...] | None = None
    """Retention rules as mappings; None: those of the scope, or else of the database, apply."""
    fields: dict[str, int] = field(default_factory=dict)
    """Expiry of fields of its state."""
    checkpoints: dict[int, int] = field(default_factory=dict)
    """Expiry of its checkpoints, by number."""
    marks: dict[str, int] = field(default_factory=dict)
    """Seq up to which all items have been handled, by rule; under ``REMOVED``, the number of seqs
    that the items lost when the beginning of the session was removed; under ``ARCHIVED``, a digest
    of the session of whose parts it is made, so that an import may add further ones."""

    @property
    def due_ms(self) -> int | None:
        """Time at which the sweeper first has to visit the place; None: never."""
        times = [*self.fields.values(), *self.checkpoints.values()]
        if self.expires_ms is not None:
            times.append(self.expires_ms)
        if self.rules:
            times.append(ALWAYS_MS)
        return min(times, default=None)

    @property
    def is_empty(self) -> bool:
        """True if no field except the name is set."""
        return self == Terms(name=self.name)


def session_terms(scope: int, session: int) -> bytes:
    """Return the key of a session's terms: ``05 | scope | session | 10 | 0``."""
    return keys.session_row(scope, session, Row.TERMS, 0)


def scope_terms(scope: int) -> bytes:
    """Return the key of a scope's terms, scope 0: the database's: ``12 | scope | 03``."""
    return keys.care_rows(scope, Care.TERMS)


def thread_terms(scope: int, thread: int) -> bytes:
    """Return the key of a thread's terms: ``12 | scope | 03 | thread``."""
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
    """Unpack the terms in a row.

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
    """Write the terms of a place and their index row; delete both if the terms are empty."""
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
    """Yield the index row of a terms row; nothing for other rows or terms that are never due.

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
        return  # its index row is orphaned; the sweeper removes it when it is due
    if known is not None and known != due:
        txn.delete(keys.expiry_row(known, key))


def drop_terms(txn: Txn, key: bytes) -> None:
    """Delete the terms of a place and their index row."""
    write_terms(txn, key, Terms())


def move_terms(txn: Txn, scope: int, session: int, to: int) -> None:
    """Move a session's terms to its replacement, without rules' marks: its items have new seqs."""
    old = session_terms(scope, session)
    if txn.get(old) is None:
        return
    try:
        terms = read_terms(txn, old)
    except CorruptValueError:
        return  # it is deleted with the old session's rows
    drop_terms(txn, old)
    marks = {REMOVED: terms.marks[REMOVED]} if REMOVED in terms.marks else {}
    write_terms(txn, session_terms(scope, to), replace(terms, checkpoints={}, marks=marks))


def terms_at(txn: ReadTxn) -> Iterator[tuple[bytes, Terms | CorruptValueError]]:
    """Yield all terms of scopes and threads with their keys; damaged ones as errors."""
    start = bytes((Kind.CARE,))
    for key, value in txn.scan(start, keys.after(start)):
        if is_terms(key):
            try:
                yield key, terms_of(key, value)
            except CorruptValueError as exc:
                yield key, exc


# --- The lease row of a session: its exclusive writer, the fencing epoch and the expiry -----------
# One row per session, ``05 | scope | session | 0E | 0``, written only by acquiring, renewing or
# releasing a lease. It is kept after a release because its *epoch* is a fencing token that must
# never decrease: it detects a writer whose lease another owner has taken in the meantime. A row
# without an owner means that nobody holds the session. The head's flag says that the row must be
# checked.

_BODY: Final = Struct("<QQ")


class LeaseRow(NamedTuple):
    """Stored lease of a session."""

    epoch: int
    """Number of times that the holder changed; starts at 1."""
    expires_ms: int
    """Expiry, in milliseconds since 1970; 0: expired."""
    owner: str
    """Holder; empty if none."""

    def is_held(self, now_ms: int) -> bool:
        """Return True if the lease has a holder and is not expired at that time."""
        return bool(self.owner) and now_ms < self.expires_ms

    def vacant(self) -> LeaseRow:
        """Return a row with the same epoch and no owner."""
        return LeaseRow(self.epoch, 0, "")


def lease_key(scope: int, session: int) -> bytes:
    """Return the key of a session's lease row."""
    return keys.session_row(scope, session, Row.LEASE, 0)


def read_lease(txn: ReadTxn, scope: int, session: int) -> LeaseRow | None:
    """Read the lease row; None if the session was never leased.

    Raises:
        CorruptValueError: the row is damaged.
    """
    key = lease_key(scope, session)
    value = txn.get(key)
    return None if value is None else unpack_lease(key, value)


def write_lease(txn: Txn, scope: int, session: int, row: LeaseRow) -> None:
    """Write the lease row, replacing the previous one."""
    key = lease_key(scope, session)
    owner = row.owner.encode("utf-8", "surrogatepass")
    txn.put(key, seal_value(key, _BODY.pack(row.epoch, row.expires_ms) + owner))


def unpack_lease(key: bytes, value: bytes) -> LeaseRow:
    """Return the lease in a row.

    Raises:
        CorruptValueError: it is damaged, or its numbers are out of range.
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
    """Write the row of an original; ``held`` is a byte of flags followed by JSON."""
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


def packed_held(txn: ReadTxn, scope: int, session: int, seq: int) -> bytes | None:
    """Return a quarantined original as ``put_held`` takes it; None if it is missing or damaged."""
    key = _held_key(scope, session, seq)
    value = txn.get(key)
    if value is None or not is_proven(key, value):
        return None
    flags, body = open_value(key, value)
    return bytes((flags,)) + body


def has_quarantine(txn: ReadTxn, scope: int) -> bool:
    """Return True if a scope has quarantined originals."""
    rows = _rows(scope)
    return next(iter(txn.scan(rows, keys.after(rows), limit=1)), None) is not None


def drop_held(txn: Txn, scope: int, session: int, seq: int) -> bool:
    """Delete one quarantined original; True if it existed."""
    key = _held_key(scope, session, seq)
    there = txn.get(key) is not None
    if there:
        txn.delete(key)
    return there


def forget_held(txn: Txn, scope: int, session: int) -> None:
    """Delete the quarantined originals of a session that is being deleted."""
    prefix = _of_session(scope, session)
    if next(iter(txn.scan(prefix, keys.after(prefix), limit=1)), None) is not None:
        txn.delete_range(prefix, keys.after(prefix))


def is_held_row(key: bytes, value: bytes) -> bool:
    """Return True if a proven row is a readable quarantine row."""
    size = len(_rows(0)) + _NUMBERS
    return len(key) == size and isinstance(_opened(key, value).message, dict)
