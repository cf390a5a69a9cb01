"""Deletion of a session: immediate for all observers, its rows are removed piece by piece.

One transaction over all rows of a long session would need space that a full device does not have,
overflow a redo slot and block every other writer. So the first transaction deletes the name, hides
the head and removes the first piece. If rows remain, it writes a ``REMOVAL`` row, and each further
piece is a transaction of its own; the last one deletes the head and the ``REMOVAL`` row. Whatever a
killed process leaves unfinished is completed by the next deletion or the next open for writing.

While forks share its rows a session is only hidden; it is removed with its last fork.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from typing import Final

from memcore import audit, blobs, graph, memory, search, state
from memcore.codec import keys
from memcore.codec.keys import Kind, Row
from memcore.codec.values import FLAG_BLOB, open_value, seal_value
from memcore.errors import CorruptValueError, InvalidOptionError, MemcoreError, NotFoundError
from memcore.limits import PIECE_ROWS
from memcore.log import Head
from memcore.rows import names
from memcore.rows.head import FLAG_HIDDEN, head_key
from memcore.rows.item import split_body
from memcore.rows.lifecycle import (
    HoldRow,
    drop_terms,
    forget_held,
    is_erased,
    need_free,
    put_hold,
    release_hold,
    session_terms,
)
from memcore.session.engine import Engine, LeaseToken, check_lease_row
from memcore.session.memory import forget_session
from memcore.store import Store
from memcore.store.interface import DeleteBudget, ReadTxn, Txn

__all__ = [
    "check_removals",
    "checked_reason",
    "delete_session",
    "hold",
    "hold_in",
    "is_leaving",
    "release",
    "release_in",
    "remove_nameless",
    "resume_removals",
    "start_removal",
]


# --- Deletion of a session: immediate for all observers, rows removed piece by piece --------------

_TERMS = bytes((Row.TERMS,))
_SCOPED_BYTES: Final = 9


def delete_session(
    engine: Engine, app: str, user: str, name: str, *, tenure: LeaseToken | None = None
) -> bool:
    """Delete a session by name; return True if it existed. All its rows are gone on return.

    On an error the session is either untouched or gone; then the remaining rows are removed by the
    next deletion or open.

    Raises:
        HeldError: it is under a legal hold.
    """

    def closure(txn: Txn) -> tuple[bool, list[bytes]]:
        scope = names.scope_of(txn, app, user)
        return (False, []) if scope is None else start_removal(txn, engine, scope, name, tenure)

    found, rest = engine.store.transact(closure, makes_room=True)
    # Its own rows first, as errors there are the caller's; those in what others left are ignored.
    _go_on(engine.store, deque(rest))
    resume_removals(engine.store)
    return found


def start_removal(
    txn: Txn,
    engine: Engine,
    scope: int,
    name: str,
    tenure: LeaseToken | None = None,
    *,
    force: bool = False,
    finished: bool = True,
) -> tuple[bool, list[bytes]]:
    """Delete a session and the first piece of its rows; return if it existed, and the work left.

    The rest is removed by ``resume_removals``, after the commit. An import that was never
    ``finished`` belongs to nobody yet, so no hold covers it.

    Args:
        txn: the transaction.
        engine: the state shared by the database's handles.
        scope: the session's scope.
        name: its name.
        tenure: the caller's lease.
        force: ignore leases.
        finished: False if it is only the beginning of an import.

    Raises:
        HeldError: it is under a legal hold.
        LeaseHeldError, FencedError: the caller may not delete it; nothing was written.
    """
    session = names.session_of(txn, scope, name)
    if session is None:
        return False, []
    if finished:
        need_free(txn, scope, session, what=f"session {name[:40]!r}")
    if not force:
        with suppress(CorruptValueError):  # a damaged lease has no owner
            check_lease_row(txn, (scope, session), tenure, now_ms=engine.now_ms(), name=name)
    # Opens no draft for it, because the session's counter may be unavailable.
    # Items that this transaction appended are removed as rows, like all others.
    engine.drafts.flush_opened(txn, scope, session)
    engine.drafts.close_unused(txn, scope, session)
    names.drop_session_name(txn, scope, name)
    return True, remove_nameless(txn, engine, scope, session)


def resume_removals(store: Store, *, pieces: int | None = None) -> None:
    """Continue unfinished removals, at most ``pieces`` pieces.

    Nobody waits for these rows, so errors are ignored and left for the next attempt.
    """
    with suppress(MemcoreError):
        for row in () if pieces == 0 else store.read(_under_way):
            with suppress(MemcoreError):
                pieces = _go_on(store, deque((row,)), pieces)


def _under_way(txn: ReadTxn) -> list[bytes]:
    start = bytes((Kind.REMOVAL,))
    return [row for row, _ in txn.scan(start, keys.after(start), limit=PIECE_ROWS)]


def _go_on(store: Store, work: deque[bytes], pieces: int | None = None) -> int | None:
    """Work piece by piece until done; return how many of ``pieces`` are unused."""
    while work and pieces != 0:
        row = work.popleft()
        step = partial(_clear, store.seed) if _is_clear(row) else _piece
        work.extend(store.transact(lambda txn, step=step, row=row: step(txn, row), makes_room=True))  # type: ignore[misc]
        pieces = None if pieces is None else pieces - 1
    return pieces


def _is_clear(row: bytes) -> bool:
    """Return True if a ``REMOVAL`` row marks a memory that is being cleared."""
    prefix = keys.split_removal_row(row)
    return prefix[:1] == bytes((Kind.MEMORY,)) and memory.is_clear_mark(prefix)


def _clear(seed: bytes, txn: Txn, row: bytes) -> list[bytes]:
    """Remove the next piece of a memory that is being cleared, as ``_piece``."""
    scope, _ = keys.split_scoped(keys.split_removal_row(row))
    return [] if memory.clear_step(memory.Book(txn, scope, seed))[1] else [row]


_SCOPE_BYTES: Final = 9
"""Kind and scope of a row's key."""


def _piece(txn: Txn, row: bytes) -> list[bytes]:
    """Remove the next piece for a ``REMOVAL`` row; return the rows to continue with.

    The row is verified first: a flipped bit in its key would remove rows that are in use.

    Raises:
        CorruptValueError: the row is damaged.
    """
    value = txn.get(row)
    if value is None:
        return []  # already done by someone else
    open_value(row, value)
    prefix = keys.split_removal_row(row)
    if len(row) <= _SCOPE_BYTES:  # what it stands for is cut off
        raise keys.malformed(row)
    scope, slot = keys.split_scoped(prefix)
    if prefix[0] in (Kind.THREAD, Kind.CHUNK):
        return graph.remove_piece(txn, row)
    if prefix[0] == Kind.SEARCH:
        return search.remove_index_piece(txn, row)
    if prefix[0] == Kind.SESSION:
        place = keys.split_session_prefix(prefix)
        head = _read_head(txn, *place)
        # A session in use is left for check() to report.
        return _remove(txn, *place) if head is None or head.hidden else []
    return [] if blobs.references(txn, scope, slot) or blobs.discard(txn, scope, slot) else [row]


# --- one session ----------------------------------------------------------------------------------


def _read_head(txn: ReadTxn, scope: int, session: int) -> Head | None:
    key = head_key(scope, session)
    value = txn.get(key)
    return None if value is None else Head.unpack(key, value)


def _hide(txn: Txn, scope: int, session: int, head: Head) -> None:
    head.flags |= FLAG_HIDDEN
    key = head_key(scope, session)
    txn.put(key, seal_value(key, head.pack()))


def _mark(txn: Txn, scope: int, session: int) -> bytes:
    row = _removal_of(scope, session)
    txn.put(row, seal_value(row, b""))
    return row


def _removal_of(scope: int, session: int) -> bytes:
    return keys.removal_row(keys.session_prefix(scope, session))


def remove_nameless(txn: Txn, engine: Engine, scope: int, session: int) -> list[bytes]:
    """Remove the first piece of a session without a name, or hide it; return the work left.

    Memories that rest on it alone go with it.
    """
    forget_session(txn, engine, scope, session)
    txn.notify(state.header_key(scope, session))  # watchers of its state look it up again
    head = _read_head(txn, scope, session)
    if head is not None and _has_children(txn, scope, session):
        _hide(txn, scope, session, head)
        return []
    return _remove(txn, scope, session)


def _has_children(txn: ReadTxn, scope: int, session: int) -> bool:
    start = keys.session_row(scope, session, Row.CHILD, 0)
    stop = keys.session_row(scope, session, Row.CHILD + 1, 0)
    return any(True for _ in txn.scan(start, stop, limit=1))


def _remove(txn: Txn, scope: int, session: int) -> list[bytes]:
    """Remove a piece of a session that nobody shares; return the ``REMOVAL`` rows to continue with.

    The last piece includes its head and its entry under its parent, which may be next.
    """
    head = _read_head(txn, scope, session)
    audit.end_session(txn, scope, session)
    work: list[bytes] = []
    done = search.forget_session(txn, scope, session)
    if done:  # what finds its items goes first, in pieces of its own if there is much
        done, work = _remove_rows(txn, scope, session)
    if not done:
        if head is not None and not head.hidden:
            _hide(txn, scope, session, head)
        return [*work, _mark(txn, scope, session)]
    # Mark and head go with the last rows, not before: a removal that is killed earlier is found by
    # its mark, and its session stays hidden.
    forget_held(txn, scope, session)
    memory.uncover_session(txn, scope, session)
    txn.delete(_removal_of(scope, session))
    txn.delete(head_key(scope, session))
    parent = 0 if head is None else head.parent_session
    if parent:
        txn.delete(keys.session_row(scope, parent, Row.CHILD, session))
        above = _read_head(txn, scope, parent)
        if above is not None and above.hidden and not _has_children(txn, scope, parent):
            # A removal of its own: a chain of hidden ancestors would make one large transaction.
            work.append(_mark(txn, scope, parent))
    return work


def _remove_rows(txn: Txn, scope: int, session: int) -> tuple[bool, list[bytes]]:
    """Remove rows after the head; return True if none is left, and blobs still to be removed."""
    # The head stays until the last piece: it hides the session and names the parent.
    start = keys.session_row(scope, session, Row.HEAD + 1, 0)
    stop = keys.after(keys.session_prefix(scope, session))
    piece = DeleteBudget()
    found: list[blobs.BlobRef] = []
    until, is_said = stop, False
    for key, value in txn.scan(start, stop):
        ref = _blob_of(key, value)
        if not piece.admits(len(value), more_pages=0 if ref is None else blobs.pages_of(ref.size)):
            until = key
            break
        if ref is not None:
            found.append(ref)
        is_said = is_said or key[17:18] == _TERMS
    # Before the range: the row says under which time the expiry index has it.
    if is_said:
        drop_terms(txn, session_terms(scope, session))
    txn.delete_range(start, until)
    return until is stop, [row for ref in found for row in blobs.let_go(txn, scope, ref)]


def _blob_of(key: bytes, value: bytes) -> blobs.BlobRef | None:
    """Return the blob that an item's row refers to."""
    if keys.row_of(key) != Row.ITEM or not any(flags & FLAG_BLOB for flags in value[1:2]):
        return None  # a damaged value may have no flags
    try:
        return blobs.BlobRef.unpack(split_body(open_value(key, value)[1])[3])
    except CorruptValueError:
        return None  # its reference is lost with it; check() reports the blob as unreferenced


# --- check ----------------------------------------------------------------------------------------


def is_leaving(txn: ReadTxn, scope: int, session: int) -> bool:
    """Return True if the session was deleted and some of its rows still exist."""
    return txn.get(_removal_of(scope, session)) is not None


def check_removals(txn: ReadTxn) -> list[str]:
    """Return problems with ``REMOVAL`` rows; their mere existence is not one."""
    findings = []
    start = bytes((Kind.REMOVAL,))
    for row, _ in txn.scan(start, keys.after(start)):
        prefix = keys.split_removal_row(row)
        if prefix[:1] == bytes((Kind.SEARCH,)) and len(prefix) == _SCOPED_BYTES:
            continue  # an index that was dropped may be removed at any time
        if _is_clear(row):
            continue  # what is left of a memory that is being cleared is whole
        try:
            scope, rest = keys.split_scoped(prefix)
            place = keys.split_session_prefix(prefix)  # a blob's is longer
        except CorruptValueError:
            findings.append(f"the row under key {row.hex()} is no mark of a removal")
            continue
        if is_erased(txn, scope):
            continue  # its target may have been removed before it
        try:
            if prefix[0] in (Kind.THREAD, Kind.CHUNK):
                sound = graph.is_unused(txn, prefix)
            elif prefix[0] == Kind.SESSION:
                head = _read_head(txn, *place)
                sound = head is not None and head.hidden
            else:
                header = blobs.header_of(txn, scope, rest)
                sound = header is not None and header.state == blobs.STAGING
        except CorruptValueError:
            continue  # reported as a damaged row
        if not sound:
            findings.append(f"scope {scope}: {prefix.hex()} is listed for removal, but in use")
    return findings


# --- Legal holds on one session, or on its scope --------------------------------------------------

_REASON_CHARS_MAX: Final = 1000


def hold(engine: Engine, app: str, user: str, session: str | None, *, reason: str) -> bool:
    """Put a scope or session under a hold, or change the hold's reason; return True if it is new.

    Raises:
        InvalidOptionError: the reason is not a text of 1 to 1,000 characters.
        NotFoundError: there is no such session.
    """
    told = checked_reason(reason)
    if (
        engine.write_filter is not None
    ):  # a reason is content to be redacted; guards have no say in holds
        told = engine.write_filter.at(app, user, session).again(told)
    now_ms = engine.now_ms()

    def closure(txn: Txn) -> bool:
        if session is None:
            return hold_in(txn, names.ensure_scope(txn, app, user), 0, told, now_ms)
        place = _place(txn, app, user, session) or _unknown(session)
        return hold_in(txn, *place, told, now_ms)

    return engine.store.transact(closure)


def checked_reason(reason: object) -> str:
    """Return the reason of a hold, checked.

    Raises:
        InvalidOptionError: it is not a text of 1 to 1,000 characters.
    """
    if not isinstance(reason, str) or not 0 < len(reason) <= _REASON_CHARS_MAX:
        msg = f"reason: expected a text of 1 to {_REASON_CHARS_MAX} characters, got {reason!r:.80}"
        raise InvalidOptionError(msg)
    return reason


def hold_in(txn: Txn, scope: int, session: int, reason: str, now_ms: int) -> bool:
    """Put a scope (session 0) or a session under a hold; return True if it is new."""
    audit.record_event(txn, scope, "hold", {"session": session})
    return put_hold(txn, HoldRow(scope, session, reason, now_ms))


def release_in(txn: Txn, scope: int, session: int) -> bool:
    """Lift a hold on a scope (session 0) or a session; return True if there was one."""
    found = release_hold(txn, scope, session)
    if found:
        audit.record_event(txn, scope, "release", {"session": session})
    return found


def release(engine: Engine, app: str, user: str, session: str | None) -> bool:
    """Lift a hold; return True if there was one."""

    def closure(txn: Txn) -> bool:
        if session is None:
            scope = names.scope_of(txn, app, user)
            place = None if scope is None else (scope, 0)
        else:
            place = _place(txn, app, user, session)
        return place is not None and release_in(txn, *place)

    # On a full device deletions make room, and a hold forbids them: it must be possible to lift.
    return engine.store.transact(closure, makes_room=True)


def _place(txn: ReadTxn, app: str, user: str, session: str) -> tuple[int, int] | None:
    scope = names.scope_of(txn, app, user)
    number = None if scope is None else names.session_of(txn, scope, session)
    return None if scope is None or number is None else (scope, number)


def _unknown(session: str) -> tuple[int, int]:
    msg = f"there is no session {session[:40]!r} to put under a hold"
    raise NotFoundError(msg)
