"""Access of a server's roles to the users of a store: the server itself keeps each to its own."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from memcore.database.open import open_database, without_psycopg
from memcore.errors import InvalidOptionError
from memcore.options import checked_path
from memcore.records import record
from memcore.rows import names
from memcore.store.datafile import GRAPH_ROWS, MEMORIES, SEARCHED
from memcore.store.interface import SERVER_SCHEMES, ReadTxn, Txn

__all__ = ["RoleAccess", "access_of_roles", "give_access", "take_access"]

_FEATURES: Final = (GRAPH_ROWS, MEMORIES, SEARCHED)
"""Whatever first uses one of these notes so in the record of the store, which no role may write
that is kept to its users."""


@record(frozen=True, slots=True)
class RoleAccess:
    """Reach of a role of the server: data that it may read and write."""

    role: str
    app: str | None
    """None: every application."""
    user: str | None
    """None: every user, and those to come; of an application, the state that its users share."""


def give_access(address: str, role: str, *, user: str | None, app: str = "default") -> None:
    """Let a role of the server read and write the data of one user in one application, or of all.

    From the first call on, every other role than the one that made the store reads and writes only
    what it was given. It cannot make users, nor read another's data, whatever program it runs.
    With a user it gets the state, too, that all users of the application share.

    Args:
        address: the store: postgresql://HOST/NAME#SCHEMA, as the role that made it.
        role: the role; ``CREATE ROLE`` makes it.
        user: the user; None: all users of all applications.
        app: the application.

    Raises:
        InvalidOptionError: it is no address of a server, or a name is invalid.
        NotFoundError: there is no such store or role.
        StoreAccessError: the store belongs to another role, or cannot be reached.
        StorageError: the server failed.
    """
    roles = _roles(address)
    if user is None:
        roles.give_access(address, role, [roles.EVERY_SCOPE])
        return

    def scopes(txn: Txn) -> list[int]:
        for feature in _FEATURES:
            txn.need_feature(feature)
        return [names.ensure_scope(txn, app, user), names.ensure_app_scope(txn, app)]

    with open_database(address, create=False) as db:
        roles.give_access(address, role, db.engine.store.transact(scopes))


def take_access(address: str, role: str, *, user: str | None = None, app: str = "default") -> int:
    """Take access to one user in one application from a role, or all its access.

    Args:
        address: the store, as the role that made it.
        role: the role.
        user: the user; None: everything that it was given.
        app: the application of the user.

    Returns:
        Number of users that it can no longer reach; "every user" and shared states count as one.

    Raises:
        InvalidOptionError: it is no address of a server, or a name is invalid.
        NotFoundError: there is no such store or role.
        StoreAccessError: the store belongs to another role, or cannot be reached.
        StorageError: the server failed.
    """
    roles = _roles(address)
    if user is None:
        return int(roles.take_access(address, role, None))
    with open_database(address, create=False) as db:
        scope, shared, others = db.engine.store.read(lambda txn: _scopes(txn, app, user))
    if scope is None:
        return 0
    given = {found for name, found in roles.access_of_roles(address) or () if name == role}
    goes = [scope] if shared is None or given & others else [scope, shared]
    return int(roles.take_access(address, role, goes))


def _scopes(txn: ReadTxn, app: str, user: str) -> tuple[int | None, int | None, set[int]]:
    """Return the scopes of a user and of the application, and those of its other users."""
    scope = names.scope_of(txn, app, user)
    others = {found for found, its_app, _ in names.scopes(txn) if its_app == app}
    return scope, names.app_scope_of(txn, app), others - {scope}


def access_of_roles(address: str) -> list[RoleAccess]:
    """List what roles were given; empty if no role is kept to anything.

    Raises:
        InvalidOptionError: it is no address of a server.
        NotFoundError: there is no such store.
        StoreAccessError: the store cannot be reached.
        StorageError: the server failed.
    """
    roles = _roles(address)
    given = roles.access_of_roles(address) or []
    with open_database(address, create=False, read_only=True) as db:
        known = db.engine.store.read(
            lambda txn: {scope: (app, user) for scope, app, user in names.all_scopes(txn)}
        )
    found = []
    for role, scope in given:
        app, user = known.get(scope, (None, None))
        if scope == roles.EVERY_SCOPE or app is not None:  # else its user was erased
            found.append(RoleAccess(role, app, user or None))
    return found


def _roles(address: str) -> ModuleType:
    """Return the module that needs psycopg.

    Raises:
        InvalidOptionError: the address is not one of a server.
        ImportError: psycopg is not installed.
    """
    if not checked_path("address", address).startswith(SERVER_SCHEMES):
        msg = "address: only a server has roles: expected postgresql://HOST/NAME#SCHEMA"
        raise InvalidOptionError(msg)
    try:
        from memcore.store.postgres import roles  # noqa: PLC0415 - an optional dependency
    except ImportError as exc:
        raise without_psycopg(exc) from exc
    return roles
