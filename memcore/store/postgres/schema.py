"""Tables and functions of a store in PostgreSQL: one schema a store, functions named by version.

``parts`` has a version for each partition of the key space (``partitions.py``), which is what
commits compare; ``rows`` is the ordered map. A function whose meaning changes gets a new number in
its name, and the old one stays: workers of two versions of memcore use one schema at once.
"""

from __future__ import annotations

from typing import Final

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
    "LAST_NUMBER",
    "LOCK_COPY",
    "MARK_KEY",
    "NUMBERS",
    "OPENED",
    "READ",
    "SCAN",
    "SCAN_BACK",
    "SCHEMA_VERSION",
    "SETTLE",
    "STAND_IN_LINE",
    "VERSIONS",
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

FUNCTIONS: Final = """
-- Versions, point reads and range reads of ONE snapshot: a stable function sees its caller's.
create or replace function {schema}.read_1(
  parts_ bytea[], keys_ bytea[], starts bytea[], stops bytea[], limits int[], backward bool[])
returns table(i int, k bytea, v bytea, n bigint) language plpgsql stable as $$
declare j int;
begin
  if cardinality(parts_) > 0 then
    return query select -1, t.p, null::bytea, t.version from {schema}.parts t
      where t.p = any(parts_);
  end if;
  if cardinality(keys_) > 0 then
    return query select 0, t.k, t.v, 0::bigint from {schema}.rows t where t.k = any(keys_);
  end if;
  for j in 1 .. cardinality(starts) loop
    if backward[j] then
      return query select j, t.k, t.v, 0::bigint from {schema}.rows t
        where t.k >= starts[j] and t.k < stops[j] order by t.k desc limit limits[j];
    else
      return query select j, t.k, t.v, 0::bigint from {schema}.rows t
        where t.k >= starts[j] and t.k < stops[j] order by t.k limit limits[j];
    end if;
  end loop;
end $$;

-- Validate and write in one trip. Each statement of a volatile function has a new snapshot, so what
-- is read behind the locks is current. ``kinds``: 'w' written, 'r' read (share lock), 'c' read, and
-- checked without a lock: who writes such a partition says so (``barrier``), and waits for all
-- commits under way. Partitions come sorted, so that two commits never wait for each other.
-- Returns the partitions whose version differs; if there are any, nothing was written.
create or replace function {schema}.commit_1(
  parts_ bytea[], versions bigint[], kinds "char"[], id bytea,
  put_keys bytea[], put_values bytea[], gone bytea[], barrier bool, relaxed bool)
returns table(p bytea, version bigint) language plpgsql as $$
declare j int; found_ bigint; stale bool := false;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'default_transaction_isolation has to be read committed';
  end if;
  if relaxed then perform set_config('synchronous_commit', 'off', true); end if;
  if barrier then
    lock table {schema}.parts in share row exclusive mode;
  else
    lock table {schema}.parts in row exclusive mode;
  end if;
  for j in 1 .. cardinality(parts_) loop
    continue when kinds[j] = 'c';
    if kinds[j] = 'w' then
      select t.version into found_ from {schema}.parts t where t.p = parts_[j] for no key update;
    else
      select t.version into found_ from {schema}.parts t where t.p = parts_[j] for share;
    end if;
    if not found then  -- a partition that nobody has written yet is locked, too
      insert into {schema}.parts values (parts_[j], 0) on conflict do nothing;
      select t.version into found_ from {schema}.parts t where t.p = parts_[j] for no key update;
    end if;
    if found_ <> versions[j] then
      stale := true; p := parts_[j]; version := found_;
      return next;
    end if;
  end loop;
  for j in 1 .. cardinality(parts_) loop  -- behind all locks, and all waiting for them
    continue when kinds[j] <> 'c';
    select t.version into found_ from {schema}.parts t where t.p = parts_[j];
    if coalesce(found_, 0) <> versions[j] then
      stale := true; p := parts_[j]; version := coalesce(found_, 0);
      return next;
    end if;
  end loop;
  if stale then return; end if;
  if cardinality(put_keys) > 0 then
    insert into {schema}.rows as t select * from unnest(put_keys, put_values)
      on conflict (k) do update set v = excluded.v;
  end if;
  if cardinality(gone) > 0 then delete from {schema}.rows t where t.k = any(gone); end if;
  update {schema}.parts t set version = t.version + 1, commits = substr(id || t.commits, 1, 64)
    from unnest(parts_, kinds) as x(p, kind) where t.p = x.p and x.kind = 'w';
end $$;

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

-- Take the next numbers of a counter, and return the last one of them.
create or replace function {schema}.numbers_1(counter_ bytea, count_ bigint)
returns bigint language sql as $$
  insert into {schema}.parts values (counter_, count_)
    on conflict (p) do update set version = {schema}.parts.version + excluded.version
    returning version
$$;
"""

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
select * from {schema}.read_1(%b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %b::int[],
  %b::bool[])
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
select * from {schema}.commit_1(%b::bytea[], %b::bigint[], %s::"char"[], %b::bytea, %b::bytea[],
  %b::bytea[], %b::bytea[], %b::bool, %b::bool)
"""

STAND_IN_LINE: Final = """
select p, version from {schema}.parts where p = any(%b::bytea[]) order by p for no key update
"""
"""Wait for the locks of partitions, first come, first served."""

SETTLE: Final = """
select {schema}.settle_1(%b::bytea[], %b::bigint[], %b::bytea)
"""
