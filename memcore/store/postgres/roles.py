"""Roles of a server that are kept to the scopes they were given, by row-level security.

The owner of the tables is not kept to anything. For other roles, once access was given for the
first time, the server shows and changes rows of their scopes alone, whatever program asks.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from psycopg import errors as pg
from psycopg import sql

from memcore.codec.keys import Care, Kind, u64
from memcore.errors import NotFoundError, StoreAccessError
from memcore.store.postgres.server import LOCK_SCHEMA, Server

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = [
    "EVERY_SCOPE",
    "access_of_roles",
    "give_access",
    "take_access",
]

EVERY_SCOPE: Final = 0
"""Stands for all scopes, of users to come, too; no scope has this number."""

_MAKE: Final = """
create table {schema}.access (
  role regrole not null,
  scope bytea not null,                    -- u64; all scopes: 0
  primary key (role, scope)
);
alter table {schema}.access enable row level security;
create policy own on {schema}.access for select using (pg_has_role(role, 'member'));

-- The scope that a row is of; '' for those that are of none. An expiry is of the scope of its row.
create function {schema}.scope_of(k bytea) returns bytea
language sql immutable parallel safe as $$
  select case get_byte(k, 0)
    when 0 then ''::bytea when {counter} then ''::bytea when {scope_name} then ''::bytea
    when {expiry} then substr(k, 11, 8) else substr(k, 2, 8) end
$$;
-- Names lead to scopes, and holds keep their data: who may write them may take what is another's.
create function {schema}.is_managed(k bytea) returns bool
language sql immutable parallel safe as $$
  select get_byte(k, 0) in ({scope}, {scope_name})
    or (get_byte(k, 0) = {care} and length(k) > 9 and get_byte(k, 9) = {hold})
$$;

alter table {schema}.rows enable row level security;
create policy shown on {schema}.rows for select using (
  get_byte(k, 0) = 0
  or (get_byte(k, 0) = {care} and {schema}.scope_of(k) = {none})
  or case when get_byte(k, 0) = {scope_name} then substr(v, 11, 8) else {schema}.scope_of(k) end
    = any ((select array_agg(a.scope) from {schema}.access a)::bytea[])
  or exists (select from {schema}.access a where a.scope = {every}));
alter table {schema}.parts enable row level security;
create policy shown on {schema}.parts for select using (true);
"""
_POLICY: Final = """
create policy {name} on {table} for {command} {clause} (
  (not {schema}.is_managed({key}) and {schema}.scope_of({key})
    = any ((select array_agg(a.scope) from {schema}.access a)::bytea[]))
  or exists (select from {schema}.access a where a.scope = {every}))
"""
_POLICIES: Final = (
    ("rows", "k", "made", "insert", "with check"),
    ("rows", "k", "changed", "update", "using"),
    ("rows", "k", "gone", "delete", "using"),
    ("parts", "p", "made", "insert", "with check"),
    # Seen by all, so that a change is refused and not taken for one that another process made.
    ("parts", "p", "changed", "update", "using (true) with check"),
)
_IS_MADE: Final = """
select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = 'access'
"""
_RIGHTS: Final = (
    "grant usage on schema {schema} to {role}",
    "grant select on {schema}.store, {schema}.parts, {schema}.rows, {schema}.access to {role}",
    "grant insert, update, delete on {schema}.rows to {role}",
    "grant insert, update on {schema}.parts to {role}",
)
_NO_RIGHTS: Final = (
    "revoke all on {schema}.store, {schema}.parts, {schema}.rows, {schema}.access from {role}",
    "revoke usage on schema {schema} from {role}",
)
_ROLE: Final = "select quote_ident(rolname)::regrole from pg_roles where rolname = %s"
_GIVE: Final = """
insert into {schema}.access select quote_ident(%s)::regrole, unnest(%b::bytea[])
on conflict do nothing
"""
_TAKE: Final = """
delete from {schema}.access a
where a.role = quote_ident(%s)::regrole and (%b::bytea[] is null or a.scope = any(%b::bytea[]))
"""
_HAS_ANY: Final = "select 1 from {schema}.access where role = quote_ident(%s)::regrole"
_LIST: Final = """
select r.rolname, a.scope from {schema}.access a join pg_roles r on r.oid = a.role
order by r.rolname, a.scope
"""


def give_access(address: str, role: str, scopes: Sequence[int]) -> None:
    """Let a role read and write these scopes; the first time, keep all roles to theirs.

    Raises:
        NotFoundError: there is no such role.
        StoreAccessError: the tables belong to somebody else.
        StorageError: the server failed.
    """
    with _connected(address, role) as (server, connection):
        if connection.execute(_IS_MADE, (server.name,)).fetchone() is None:
            _make(server, connection)
        for text in _RIGHTS:
            connection.execute(server.sql(text, role=sql.Identifier(role)))
        connection.execute(server.sql(_GIVE), (role, [u64(scope) for scope in scopes]))


def take_access(address: str, role: str, scopes: Sequence[int] | None) -> int:
    """Take access to these scopes, or to all, from a role; return to how many it had it.

    Raises:
        NotFoundError: there is no such role.
        StoreAccessError: the tables belong to somebody else.
        StorageError: the server failed.
    """
    with _connected(address, role) as (server, connection):
        if connection.execute(_IS_MADE, (server.name,)).fetchone() is None:
            return 0
        asked = None if scopes is None else [u64(scope) for scope in scopes]
        taken = connection.execute(server.sql(_TAKE), (role, asked, asked)).rowcount
        if connection.execute(server.sql(_HAS_ANY), (role,)).fetchone() is None:
            for text in _NO_RIGHTS:
                connection.execute(server.sql(text, role=sql.Identifier(role)))
        return taken


def access_of_roles(address: str) -> list[tuple[str, int]] | None:
    """Return each role with a scope that it was given; None if roles are not kept to theirs.

    Raises:
        StoreAccessError: the server cannot be reached, or refuses the role.
        StorageError: the server failed.
    """
    server = Server(address, size=1)
    with server.reached() as connection:
        if connection.execute(_IS_MADE, (server.name,)).fetchone() is None:
            return None
        found = connection.execute(server.sql(_LIST)).fetchall()
    return [(role, int.from_bytes(scope, "big")) for role, scope in found]


@contextmanager
def _connected(address: str, role: str) -> Generator[tuple[Server, Connection[Any]], None, None]:
    server = Server(address, size=1)
    with server.reached() as connection:
        if connection.execute(_ROLE, (role,)).fetchone() is None:
            raise NotFoundError(f"{server.path}: there is no role {role!r}: CREATE ROLE makes one")
        try:
            with connection.transaction():
                connection.execute(LOCK_SCHEMA, (server.name,))
                yield server, connection
        except pg.InsufficientPrivilege as error:
            msg = f"{server.path}: only the role that made the store gives access to it ({error})"
            raise StoreAccessError(msg) from error


def _make(server: Server, connection: Connection[Any]) -> None:
    numbers = {
        "counter": Kind.COUNTER, "scope": Kind.SCOPE, "scope_name": Kind.SCOPE_NAME,
        "expiry": Kind.EXPIRY, "care": Kind.CARE, "hold": Care.HOLD,
    }  # fmt: skip
    literals = {name: sql.Literal(number) for name, number in numbers.items()}
    every, none = sql.Literal(u64(EVERY_SCOPE)), sql.Literal(bytes(8))
    connection.execute(server.sql(_MAKE, **literals, every=every, none=none))
    for table, key, name, command, clause in _POLICIES:
        connection.execute(
            server.sql(
                _POLICY,
                table=sql.Identifier(server.name, table),
                key=sql.Identifier(key),
                name=sql.Identifier(name),
                command=sql.SQL(command),
                clause=sql.SQL(clause),
                every=every,
            )
        )
