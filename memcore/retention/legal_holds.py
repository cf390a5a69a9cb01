"""Legal holds and opt-outs: nothing under a hold is deleted until it is released."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from memcore import audit, memory, search
from memcore.codec import keys
from memcore.codec.keys import Kind
from memcore.codec.values import seal_value
from memcore.errors import MemcoreError, NotFoundError
from memcore.records import record
from memcore.retention.erasure import all_pending, has_rows, scopes_of
from memcore.rows import names
from memcore.rows.lifecycle import (
    any_held,
    buried,
    counted_holds,
    holds_in,
    is_held,
    is_opted_out,
    memory_namespaces,
    need_free,
    opted_out_key,
    rows_of,
)
from memcore.session import Engine
from memcore.session.delete import (
    checked_reason,
    hold,
    hold_in,
    release,
    release_in,
    resume_removals,
)
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "MEMORY_NAMESPACES",
    "Hold",
    "cared_for",
    "check_care",
    "hold",
    "hold_user",
    "holds",
    "is_held",
    "is_opted_out",
    "memories",
    "opt_in",
    "opt_out",
    "opted_out",
    "release",
    "release_user",
    "would_hold",
]


# --- Check of stored holds and erasures -----------------------------------------------------------


def cared_for(txn: ReadTxn) -> list[int]:
    """List the scopes that have rows of the kind CARE."""
    found: list[int] = []
    start, stop = keys.scoped(Kind.CARE, 1), bytes((Kind.CARE + 1,))
    while (row := next(iter(txn.scan(start, stop, limit=1)), None)) is not None:
        found.append(keys.split_scoped(row[0])[0])
        start = keys.after(keys.scoped(Kind.CARE, found[-1]))
    return found


def check_care(txn: ReadTxn, is_shredded: Callable[[int], bool]) -> list[str]:
    """Verify holds and erasures; return findings as texts. An unfinished erasure is not a finding.

    Args:
        txn: the snapshot.
        is_shredded: returns True if the keys of a scope are destroyed.
    """
    try:
        return [*_erasures(txn), *_holds(txn, is_shredded)]
    except MemcoreError as exc:
        return [f"holds and erasures cannot be checked: {exc}"]


def _erasures(txn: ReadTxn) -> list[str]:
    findings = []
    going = {scope for pending in all_pending(txn) for scope in pending.scopes}
    dead = set(buried(txn))
    for scope in sorted(dead):
        if txn.get(keys.scoped(Kind.SCOPE, scope)) is not None:
            findings.append(f"the erased scope {scope} has a name")
        if scope not in going and has_rows(txn, scope):
            findings.append(f"the erased scope {scope} has rows, and no erasure is under way")
    findings += [f"the erased scope {scope} has no tombstone" for scope in sorted(going - dead)]
    return findings


def _holds(txn: ReadTxn, is_shredded: Callable[[int], bool]) -> list[str]:
    told = counted_holds(txn)
    found = 0
    for scope in cared_for(txn):
        found += holds_in(txn, scope) if is_shredded(scope) else len(rows_of(txn, scope))
    if told == found:
        return []
    return [f"the holds of the database are {found}, its row of them says {told}"]


# --- Legal holds: data under one cannot be deleted until it is released ---------------------------


@record(frozen=True, slots=True)
class Hold:
    """A legal hold."""

    app: str
    user: str
    session_id: str | None
    """The session that it covers; None: everything the user owns in the application."""
    reason: str
    since: float
    """Seconds since 1970."""


def hold_user(
    engine: Engine, user: str, app: str | None, session: str | None, *, reason: str
) -> list[tuple[str, bool]]:
    """Put everything a user owns, or their sessions of one name, under a hold in one commit.

    Args:
        engine: the database.
        user: the user.
        app: only in this application; None: in each existing one, as for ``erase``.
        session: the name of sessions; None: everything the user owns.
        reason: a text of 1 to 1,000 characters.

    Returns:
        The applications, each with True if there was no such hold before.

    Raises:
        InvalidOptionError: a name or the reason is invalid.
        NotFoundError: the user has no session of that name.
    """
    told, now_ms = checked_reason(reason), engine.now_ms()

    def closure(txn: Txn) -> list[tuple[str, bool]]:
        places = _places(txn, user, app, session)
        if not places and session is None:  # covers what is stored from now on
            own = app or "default"
            places = [(names.ensure_scope(txn, own, user), 0, own)]
        if not places:
            raise _no_session(user, session)
        done = []
        for scope, number, its_app in places:
            shown = told
            if engine.write_filter is not None:
                shown = engine.write_filter.at(its_app, user, session).again(told)
            done.append((its_app, hold_in(txn, scope, number, shown, now_ms)))
        return done

    return engine.store.transact(closure)


def release_user(engine: Engine, user: str, app: str | None, session: str | None) -> list[str]:
    """Release the holds of ``hold_user``; return the applications that had one."""

    def closure(txn: Txn) -> list[str]:
        places = _places(txn, user, app, session)
        return [own for scope, number, own in places if release_in(txn, scope, number)]

    return engine.store.transact(closure, makes_room=True)


def would_hold(
    engine: Engine, user: str, app: str | None, session: str | None, *, reason: str | None
) -> list[str]:
    """Return the applications that ``hold_user``, or without a reason ``release_user``, returns.

    Raises:
        InvalidOptionError, NotFoundError: as ``hold_user`` does.
    """
    if reason is None:
        return [each.app for each in holds(engine, app, user) if each.session_id == session]
    checked_reason(reason)
    places = engine.store.read(lambda txn: _places(txn, user, app, session))
    if not places and session is not None:
        raise _no_session(user, session)
    return [own for _, _, own in places] or [app or "default"]


def _no_session(user: str, session: str | None) -> NotFoundError:
    msg = f"user {user[:40]!r} has no session {(session or '')[:40]!r} to put under a hold"
    return NotFoundError(msg)


def _places(
    txn: ReadTxn, user: str, app: str | None, session: str | None
) -> list[tuple[int, int, str]]:
    """List the scope, session (0: all) and application of each place."""
    found = []
    for scope, its_app in scopes_of(txn, user, app):
        number = 0 if session is None else names.session_of(txn, scope, session)
        if number is not None:
            found.append((scope, number, its_app))
    return found


def holds(engine: Engine, app: str | None = None, user: str | None = None) -> list[Hold]:
    """List the holds of the database, or those of one application or user.

    Raises:
        CorruptValueError: a row is damaged.
    """

    def look(txn: ReadTxn) -> list[Hold]:
        if not any_held(txn):
            return []
        found = []
        for scope in cared_for(txn):
            rows = rows_of(txn, scope)
            its_app, its_user = names.scope_names(txn, scope) if rows else ("", "")
            if rows and app in (None, its_app) and user in (None, its_user):
                known = {number: name for name, number in names.sessions(txn, scope)}
                found += [
                    Hold(
                        its_app,
                        its_user,
                        known.get(row.session) if row.session else None,
                        row.reason,
                        row.since_ms / 1000,
                    )
                    for row in rows
                ]
        return found

    return engine.store.read(look)


# --- Opting out of memory: no long-term memories are written or searched for the user -------------

MEMORY_NAMESPACES: Final = ("adk.memory", "langgraph.store")
"""Key/value namespaces that hold memories, in addition to marked ones."""
_OF_FILES: Final = "deepagents:"
"""Name prefix of namespaces that hold an agent's files."""


def opted_out(engine: Engine, app: str, user: str) -> bool:
    """Return True if the user opted out of memory; ``is_opted_out`` by name."""

    def look(txn: ReadTxn) -> bool:
        scope = names.scope_of(txn, app, user)
        return scope is not None and is_opted_out(txn, scope)

    return engine.store.read(look)


def opt_out(engine: Engine, user: str, app: str | None, *, remove: bool = False) -> list[str]:
    """Stop remembering a user, in one commit; return the applications that it covers.

    Args:
        engine: the database.
        user: the user.
        app: only in this application; None: in each existing one, as for ``erase``.
        remove: existing memories will be removed: the user's memory is marked to be cleared, which
            the caller or the next sweep carries out, the caller clears its namespaces.

    Raises:
        HeldError: memories will be removed, and a hold covers them.
    """

    def closure(txn: Txn) -> list[str]:
        places = scopes_of(txn, user, app)
        for scope, _ in places if remove else ():
            need_free(txn, scope, what=f"what is remembered of user {user[:40]!r}")
            memory.begin_clear(memory.Book(txn, scope, engine.seed), engine.now_ms())
        if not places:  # covers what would be remembered from now on
            own = app or "default"
            places = [(names.ensure_scope(txn, own, user), own)]
        for scope, _ in places:
            if is_opted_out(txn, scope):
                continue
            for namespace in MEMORY_NAMESPACES:  # a later first use of it finds the opt-out
                names.ensure_namespace(txn, scope, namespace)
            audit.record_event(txn, scope, "opt out", {})
            search.drop_index(txn, scope)
            memory.drop_grants(txn, scope)
            txn.put(opted_out_key(scope), seal_value(opted_out_key(scope), b""))
        return [own for _, own in places]

    found = engine.store.transact(closure)
    if not remove:  # or whoever removes the memories goes on with the indexes as well
        resume_removals(engine.store)
    return found


def memories(engine: Engine, app: str, user: str) -> list[str]:
    """List the key/value namespaces that hold memory of the user."""

    def look(txn: ReadTxn) -> list[str]:
        scope = names.scope_of(txn, app, user)
        if scope is None:
            return []
        marked = memory_namespaces(txn, scope)
        return [
            name
            for name, number in names.namespaces(txn, scope)
            if number in marked or name in MEMORY_NAMESPACES or name.startswith(_OF_FILES)
        ]

    return engine.store.read(look)


def opt_in(engine: Engine, user: str, app: str | None) -> list[str]:
    """Undo ``opt_out``; return the applications in which the user had opted out."""

    def closure(txn: Txn) -> list[str]:
        found = []
        for scope, own in scopes_of(txn, user, app):
            if txn.delete(opted_out_key(scope)):
                audit.record_event(txn, scope, "opt in", {})
                found.append(own)
        return found

    return engine.store.transact(closure, makes_room=True)
