"""Legal holds and opt-outs: nothing under a hold is deleted until it is released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from memcore.audit import record_event
from memcore.codec import keys
from memcore.codec.keys import Kind
from memcore.codec.values import seal_value
from memcore.errors import MemcoreError, NotFoundError
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
from memcore.session.delete import checked_reason, hold, hold_in, release, release_in
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
]


# --- The check of what is kept of holds and erasures ----------------------------------------------


def cared_for(txn: ReadTxn) -> list[int]:
    """The scopes that have rows of care."""
    found: list[int] = []
    start, stop = keys.scoped(Kind.CARE, 1), bytes((Kind.CARE + 1,))
    while (row := next(iter(txn.scan(start, stop, limit=1)), None)) is not None:
        found.append(keys.split_scoped(row[0])[0])
        start = keys.after(keys.scoped(Kind.CARE, found[-1]))
    return found


def check_care(txn: ReadTxn, is_shredded: Callable[[int], bool]) -> list[str]:
    """Verify holds and erasures; return the findings in words. An unfinished erasure is none.

    Args:
        txn: the snapshot.
        is_shredded: whether the keys of a scope are destroyed.
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


# --- Legal holds: what is under one is not deleted by anybody, until the hold is released ---------


@dataclass(frozen=True, slots=True)
class Hold:
    """A legal hold."""

    app: str
    user: str
    session_id: str | None
    """The session that it covers; None: all that the user has in the application."""
    reason: str
    since: float
    """Seconds since 1970."""


def hold_user(
    engine: Engine, user: str, app: str | None, session: str | None, *, reason: str
) -> list[tuple[str, bool]]:
    """Put all that a user has under a hold, or their sessions of a name, in one commit.

    Args:
        engine: the database.
        user: whose.
        app: only in this application; None: in each one that there is, as ``erase`` goes about it.
        session: the name of sessions; None: all that the user has.
        reason: a text of 1 to 1,000 characters.

    Returns:
        The applications, and whether there was no such hold there before.

    Raises:
        InvalidOptionError: a name or the reason is not legal.
        NotFoundError: the user has no session of that name.
    """
    told, now_ms = checked_reason(reason), engine.now_ms()

    def closure(txn: Txn) -> list[tuple[str, bool]]:
        places = _places(txn, user, app, session)
        if not places and session is None:  # what is stored from now on
            own = app or "default"
            places = [(names.ensure_scope(txn, own, user), 0, own)]
        if not places:
            msg = f"user {user[:40]!r} has no session {session or '':.40} to put under a hold"
            raise NotFoundError(msg)
        done = []
        for scope, number, its_app in places:
            shown = told
            if engine.write_filter is not None:
                shown = engine.write_filter.at(its_app, user, session).again(told)
            done.append((its_app, hold_in(txn, scope, number, shown, now_ms)))
        return done

    return engine.store.transact(closure)


def release_user(engine: Engine, user: str, app: str | None, session: str | None) -> list[str]:
    """Release the holds of ``hold_user``; return the applications in which there was one."""

    def closure(txn: Txn) -> list[str]:
        places = _places(txn, user, app, session)
        return [own for scope, number, own in places if release_in(txn, scope, number)]

    return engine.store.transact(closure, makes_room=True)


def _places(
    txn: ReadTxn, user: str, app: str | None, session: str | None
) -> list[tuple[int, int, str]]:
    """Scope, session (0: all) and application of what is meant."""
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


# --- Opting out of memory: nothing long-term is written or searched for who does not want it ------

MEMORY_NAMESPACES: Final = ("adk.memory", "langgraph.store")
"""Key/value namespaces that hold memories, besides those that are marked."""
_OF_FILES: Final = "deepagents:"
"""Name prefix of namespaces that hold an agent's files."""


def opted_out(engine: Engine, app: str, user: str) -> bool:
    """Return True if the user opted out of memory; as ``is_opted_out``, by names."""

    def look(txn: ReadTxn) -> bool:
        scope = names.scope_of(txn, app, user)
        return scope is not None and is_opted_out(txn, scope)

    return engine.store.read(look)


def opt_out(engine: Engine, user: str, app: str | None, *, remove: bool = False) -> list[str]:
    """Remember nothing of the user from now on, in one commit; the applications that it covers.

    Args:
        engine: the database.
        user: whose.
        app: only in this application; None: in each one that there is, as ``erase`` goes about it.
        remove: what was remembered is to be removed, which is not done here.

    Raises:
        HeldError: what was remembered is to be removed, and a hold covers it.
    """

    def closure(txn: Txn) -> list[str]:
        places = scopes_of(txn, user, app)
        for scope, _ in places if remove else ():
            need_free(txn, scope, 0, what=f"what is remembered of user {user[:40]!r}")
        if not places:  # what would be remembered from now on
            own = app or "default"
            places = [(names.ensure_scope(txn, own, user), own)]
        for scope, _ in places:
            if is_opted_out(txn, scope):
                continue
            for namespace in MEMORY_NAMESPACES:  # who is about to make it finds the row there
                names.ensure_namespace(txn, scope, namespace)
            record_event(txn, scope, "opt out", {})
            txn.put(opted_out_key(scope), seal_value(opted_out_key(scope), b""))
        return [own for _, own in places]

    return engine.store.transact(closure)


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
    """The user wants memory again; the applications in which they had opted out."""

    def closure(txn: Txn) -> list[str]:
        found = []
        for scope, own in scopes_of(txn, user, app):
            if txn.delete(opted_out_key(scope)):
                record_event(txn, scope, "opt in", {})
                found.append(own)
        return found

    return engine.store.transact(closure, makes_room=True)
