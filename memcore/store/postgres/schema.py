"""Tables, functions and arguments of a store in PostgreSQL: one schema a store.

``parts`` has a version for each partition of the key space (``partitions.py``), which is what
commits compare; ``rows`` is the ordered map.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, Final

from psycopg import adapters
from psycopg.adapt import Dumper
from psycopg.pq import Format

__all__ = [
    "COMMIT",
    "CREATE",
    "DELETE_ROWS",
    "DIGEST",
    "FIGURES",
    "FILLING",
    "FILL_DELETE",
    "FILL_NUMBER",
    "FILL_PUT",
    "FILL_STORE",
    "FINISH",
    "FLUSH",
    "FUNCTIONS",
    "GET",
    "IS_FILLING",
    "IS_THERE",
    "KNOWN_FUNCTIONS",
    "LAST_NUMBER",
    "LOCK_COPY",
    "MARK_KEY",
    "NUMBERS",
    "OPEN",
    "OPENED",
    "READ",
    "SCAN",
    "SCAN_BACK",
    "SCHEMA_VERSION",
    "SETTLE",
    "STAND_IN_LINE",
    "VERSIONS",
    "bigints",
    "bools",
    "byteas",
]

SCHEMA_VERSION: Final = 1
"""Version of the tables; a store with a larger one needs a newer memcore."""

FILLING: Final = 0
"""Version of a store into which a copy is under way, or was cut short."""

MARK_KEY: Final = b"\x00warm"
"""Key of a warm copy's mark (``copies.py``); no closure can write a key that begins with 00."""

CREATE: Final = """
create schema if not exists {schema};
create table {schema}.store (
  one bool primary key default true check (one),
  version int not null,
  secret bytea not null
);
create table {schema}.parts (
  p bytea primary key,
  version bigint not null,
  commits bytea not null default ''       -- ids of the last commits, newest first, 8 bytes each
) with (fillfactor = 70);
create table {schema}.rows (
  k bytea primary key,
  v bytea not null
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05);
-- Values are short, or compressed already.
alter table {schema}.rows alter column v set storage external;
insert into {schema}.store (version, secret) values ({version}, {secret});
insert into {schema}.parts (p, version) values ({format_key}, 1);
insert into {schema}.rows (k, v) values ({format_key}, {format_row});
"""

FUNCTIONS: Final = {
    "read_2": """
-- Versions, point reads and range reads of ONE snapshot: a stable function sees its caller's. A
-- range ends with the row that makes its values as large as ``sizes`` says, in bytes.
create or replace function {schema}.read_2(
  parts_ bytea[], keys_ bytea[],
  starts bytea[], stops bytea[], limits bigint[], sizes bigint[], backward bool[])
returns table(i int, k bytea, v bytea, n bigint) language plpgsql stable as $$
declare j int; total bigint;
begin
  n := 0;
  if cardinality(parts_) > 0 then
    return query select -1, t.p, null::bytea, t.version from {schema}.parts t
      where t.p = any(parts_);
  end if;
  if cardinality(keys_) > 0 then
    return query select 0, t.k, t.v, 0::bigint from {schema}.rows t where t.k = any(keys_);
  end if;
  for j in 1 .. cardinality(starts) loop
    i := j;
    total := 0;
    if backward[j] then
      for k, v in select t.k, t.v from {schema}.rows t
          where t.k >= starts[j] and t.k < stops[j] order by t.k desc limit limits[j] loop
        return next;
        total := total + length(v);
        exit when total >= sizes[j];
      end loop;
    else
      for k, v in select t.k, t.v from {schema}.rows t
          where t.k >= starts[j] and t.k < stops[j] order by t.k limit limits[j] loop
        return next;
        total := total + length(v);
        exit when total >= sizes[j];
      end loop;
    end if;
  end loop;
end $$;
""",
    "open_1": """
-- What ``read_2`` reads of an object that a scope has under a name, in one trip: the row of the
-- scope's name has the scope's number, that of the object's name the object's, each u64 behind the
-- header of a row (10 bytes). ``starts`` and ``stops`` follow kind, scope and number in the keys.
create or replace function {schema}.open_1(
  parts_ bytea[], scope_key bytea, name_kind bytea, name_ bytea, kind_ bytea,
  starts bytea[], stops bytea[], limits bigint[], sizes bigint[], backward bool[])
returns table(i int, k bytea, v bytea, n bigint) language plpgsql stable as $$
declare keys_ bytea[] := array[scope_key]; found_ bytea; scope_ bytea; part bytea;
begin
  select t.v into found_ from {schema}.rows t where t.k = scope_key;
  if found then
    scope_ := substr(found_, 11, 8);
    parts_ := parts_ || (name_kind || scope_);
    keys_ := keys_ || (name_kind || scope_ || name_);
    select t.v into found_ from {schema}.rows t where t.k = name_kind || scope_ || name_;
    if found then
      part := kind_ || scope_ || substr(found_, 11, 8);
      parts_ := parts_ || part;
    end if;
  end if;
  return query select * from {schema}.read_2(parts_, keys_,
    array(select part || x.s from unnest(starts) with ordinality x(s, at) where part is not null
      order by x.at),
    array(select part || x.s from unnest(stops) with ordinality x(s, at) where part is not null
      order by x.at),
    limits, sizes, backward);
end $$;
""",
    "commit_2": """
-- Validate and write in one trip. Each statement of a volatile function has a new snapshot, so what
-- is read behind the locks is current. ``kinds``, a letter a partition: 'w' written, 'r' read
-- (share lock), 'c' read, and checked without a lock: who writes such a partition says so
-- (``barrier``), and waits for all commits under way. Partitions come sorted, so that two commits
-- never wait for each other. Returns the partitions whose version differs, or the keys that were
-- supposed to be absent and are not, with version -1; if there are any, nothing was written.
create or replace function {schema}.commit_2(
  parts_ bytea[], versions bigint[], kinds bytea, id bytea,
  absent bytea[], put_keys bytea[], put_values bytea[], gone bytea[], barrier bool, relaxed bool)
returns table(p bytea, version bigint) language plpgsql as $$
declare j int; kind int; found_ bigint; stale bool := false; counted bytea[] := '{{}}';
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'default_transaction_isolation has to be read committed';
  end if;
  if relaxed then perform set_config('synchronous_commit', 'off', true); end if;
  if barrier then
    lock table {schema}.parts in share row exclusive mode;
  elsif position('r'::bytea in kinds) > 0 then  -- before a row that a barrier may wait for
    lock table {schema}.parts in row exclusive mode;
  end if;
  for j in 1 .. cardinality(parts_) loop
    kind := get_byte(kinds, j - 1);
    continue when kind = ascii('c');
    if kind = ascii('w') then  -- locks, compares and counts up
      update {schema}.parts t set version = t.version + 1, commits = substr(id || t.commits, 1, 64)
        where t.p = parts_[j] and t.version = versions[j];
      if not found and versions[j] = 0 then  -- nobody has written it yet
        insert into {schema}.parts values (parts_[j], 1, id) on conflict do nothing;
      end if;
      if found then
        counted := counted || parts_[j];
        continue;
      end if;
      select t.version into found_ from {schema}.parts t where t.p = parts_[j] for no key update;
    else
      select t.version into found_ from {schema}.parts t where t.p = parts_[j] for share;
      if not found then
        insert into {schema}.parts values (parts_[j], 0) on conflict do nothing;
        select t.version into found_ from {schema}.parts t where t.p = parts_[j] for share;
      end if;
      continue when found_ = versions[j];
    end if;
    stale := true; p := parts_[j]; version := coalesce(found_, 0);
    return next;
  end loop;
  for j in 1 .. cardinality(parts_) loop  -- behind all locks, and all waiting for them
    continue when get_byte(kinds, j - 1) <> ascii('c');
    select t.version into found_ from {schema}.parts t where t.p = parts_[j];
    if coalesce(found_, 0) <> versions[j] then
      stale := true; p := parts_[j]; version := coalesce(found_, 0);
      return next;
    end if;
  end loop;
  if not stale and cardinality(absent) > 0 then
    for p in select t.k from {schema}.rows t where t.k = any(absent) loop
      stale := true; version := -1;
      return next;
    end loop;
  end if;
  if stale then
    update {schema}.parts t set version = t.version - 1, commits = substr(t.commits, 9)
      where t.p = any(counted);
    return;
  end if;
  if cardinality(put_keys) > 0 then
    insert into {schema}.rows as t select * from unnest(put_keys, put_values)
      on conflict (k) do update set v = excluded.v;
  end if;
  if cardinality(gone) > 0 then delete from {schema}.rows t where t.k = any(gone); end if;
end $$;
""",
    "settle_1": """
-- Whether a commit is stored whose answer was lost: 1 yes; 0 no, and it never will be, since the
-- versions that it expects are counted up; -1 unknown, since too many others have committed.
create or replace function {schema}.settle_1(parts_ bytea[], versions bigint[], id bytea)
returns int language plpgsql set lock_timeout = '5s' as $$
declare j int; found_ {schema}.parts; sure bool := false;
begin
  for j in 1 .. cardinality(parts_) loop
    insert into {schema}.parts values (parts_[j], 0) on conflict do nothing;
    select * into found_ from {schema}.parts t where t.p = parts_[j] for no key update;
    if position(id in found_.commits) % 8 = 1 then return 1; end if;
    if found_.version - versions[j] < 8 then sure := true; end if;
  end loop;
  if not sure then return -1; end if;
  update {schema}.parts t set version = t.version + 1 where t.p = any(parts_);
  return 0;
end $$;
""",
    "numbers_1": """
-- Take the next numbers of a counter, and return the last one of them.
create or replace function {schema}.numbers_1(counter_ bytea, count_ bigint)
returns bigint language sql as $$
  insert into {schema}.parts values (counter_, count_)
    on conflict (p) do update set version = {schema}.parts.version + excluded.version
    returning version
$$;
""",
}
"""By name. A function whose meaning changes gets a new number in its name, and the old one stays
where it is: processes of two versions of memcore use one schema at once, if the older one made it.
``Server.need_functions`` makes those that a schema does not have yet."""

FIGURES: Final = """
select pg_total_relation_size(%s) + pg_total_relation_size(%s),
  (select count(*) from {schema}.rows where k >= '\\x01'),
  (select coalesce(sum(version), 0) from {schema}.parts)
"""

IS_THERE: Final = """
select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = 'store'
"""

OPENED: Final = """
select version, secret, (extract(epoch from clock_timestamp()) * 1000)::bigint, pg_is_in_recovery()
from {schema}.store
"""
KNOWN_FUNCTIONS: Final = """
select distinct f.proname::text from pg_proc f join pg_namespace n on n.oid = f.pronamespace
where n.nspname = %s
"""

FINISH: Final = "update {schema}.store set version = %s"
IS_FILLING: Final = "select 1 from {schema}.store where version = 0 for update"
FILL_STORE: Final = "update {schema}.store set secret = %s where version = 0"
NUMBERS: Final = "select {schema}.numbers_1(%b, %b)"
VERSIONS: Final = "select p, version from {schema}.parts where p = any(%b::bytea[])"
FLUSH: Final = """
select set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'memcore', '')
"""
"""A record that is written to the log, and a commit that waits for the log's device."""

FILL_DELETE: Final = """
delete from {schema}.rows where k >= %b and k < %b and not k = any(%b::bytea[])
"""
FILL_PUT: Final = """
insert into {schema}.rows as t select * from unnest(%b::bytea[], %b::bytea[])
  on conflict (k) do update set v = excluded.v where t.v <> excluded.v
"""
FILL_NUMBER: Final = """
insert into {schema}.parts values (%b, %s)
  on conflict (p) do update set version = greatest({schema}.parts.version, excluded.version)
"""

DELETE_ROWS: Final = "delete from {schema}.rows where k = any(%b::bytea[])"
DIGEST: Final = """
select sha256(coalesce(
  string_agg(sha256(int4send(length(k)) || k || v), ''::bytea order by k), ''::bytea))
from {schema}.rows where k >= %b and k < %b
"""
"""Digest of the digests of a range's rows: length of the key as big-endian u32, key, value."""

LOCK_COPY: Final = """
select version, set_config('idle_in_transaction_session_timeout', '30000', true),
  set_config('statement_timeout', '120000', true)
from {schema}.store for update
"""
"""Lock a copy against other shipments and promotion; a session that hangs loses the lock."""

READ: Final = """
select * from {schema}.read_2(%b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %b::bigint[],
  %b::bigint[], %b::bool[])
"""

OPEN: Final = """
select * from {schema}.open_1(%b::bytea[], %b::bytea, %b::bytea, %b::bytea, %b::bytea, %b::bytea[],
  %b::bytea[], %b::bigint[], %b::bigint[], %b::bool[])
"""

GET: Final = "select v from {schema}.rows where k = %b"

LAST_NUMBER: Final = "select version from {schema}.parts where p = %b"

SCAN: Final = """
select k, v from {schema}.rows where k >= %b and k < %b order by k limit %s
"""
SCAN_BACK: Final = """
select k, v from {schema}.rows where k >= %b and k < %b order by k desc limit %s
"""

COMMIT: Final = """
select * from {schema}.commit_2(%b::bytea[], %b::bigint[], %b::bytea, %b::bytea, %b::bytea[],
  %b::bytea[], %b::bytea[], %b::bytea[], %b::bool, %b::bool)
"""

STAND_IN_LINE: Final = """
select p, version from {schema}.parts where p = any(%b::bytea[]) order by p for no key update
"""
"""Wait for the locks of partitions, first come, first served."""

SETTLE: Final = """
select {schema}.settle_1(%b::bytea[], %b::bigint[], %b::bytea)
"""


# --- Arrays as arguments --------------------------------------------------------------------------
# psycopg looks at every element of a list, which takes longer than the rest of a commit in this
# process; what is passed here has one type, and goes to the server as it is.


class ByteaArray(bytes):
    """An array of bytea in PostgreSQL's binary format."""

    oid = 1001


class BigintArray(bytes):
    """An array of bigint in PostgreSQL's binary format."""

    oid = 1016


class BoolArray(bytes):
    """An array of bool in PostgreSQL's binary format."""

    oid = 1000


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def __init__(self, cls: type, context: Any = None) -> None:
        super().__init__(cls, context)
        self.oid = cls.oid  # type: ignore[attr-defined]  # of the classes above

    def dump(self, obj: Any) -> Any:
        return obj


for _class in (ByteaArray, BigintArray, BoolArray):
    adapters.register_dumper(_class, _ArrayDumper)

_DIMENSION: Final = Struct(">iiiii")
"""Number of dimensions, presence of nulls, type of the elements, their number, first index."""
_EMPTY: Final = Struct(">iii")
_SIZE: Final = Struct(">i")
_BIGINT: Final = Struct(">iq")
_BOOL: Final = Struct(">i?")
_BYTEA_OID: Final = 17
_BIGINT_OID: Final = 20
_BOOL_OID: Final = 16


def _array(oid: int, count: int, elements: Iterable[bytes]) -> bytes:
    if not count:
        return _EMPTY.pack(0, 0, oid)
    return _DIMENSION.pack(1, 0, oid, count, 1) + b"".join(elements)


def byteas(values: Sequence[bytes]) -> ByteaArray:
    """Return these bytes as an array."""
    pack = _SIZE.pack
    elements = [part for value in values for part in (pack(len(value)), value)]
    return ByteaArray(_array(_BYTEA_OID, len(values), elements))


def bigints(values: Sequence[int]) -> BigintArray:
    """Return these numbers as an array."""
    return BigintArray(_array(_BIGINT_OID, len(values), [_BIGINT.pack(8, n) for n in values]))


def bools(values: Sequence[bool]) -> BoolArray:
    """Return these truth values as an array."""
    return BoolArray(_array(_BOOL_OID, len(values), [_BOOL.pack(1, each) for each in values]))
