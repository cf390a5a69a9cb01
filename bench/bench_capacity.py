"""What does a store in PostgreSQL take: bytes, log, CPU of the server, memory of a connection?

The figures that ``docs/capacity.md`` plans with. The server is on this machine, so that ``/proc``
tells what its processes use; CPU is theirs alone, without that of the workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rivals_postgres import Place, started

from conversation import chat_items
from harness import Effort, Figure, NotInstalled, Row, absent

SESSIONS = 200
ITEMS = 100
ROUNDS = 20
CALLS = 200
CONTEXT_TOKENS = 8_000
_TICKS = os.sysconf("SC_CLK_TCK")


def rows(effort: Effort) -> Iterator[Row]:
    """Bytes of items and sessions; what appends and contexts cost the server."""
    try:
        with started() as server:
            yield from _measured(effort, server)
    except (NotInstalled, ImportError) as error:
        yield absent("what a server needs", "-", error)


def _measured(effort: Effort, server: Place) -> Iterator[Row]:
    import psycopg

    import memcore

    sessions = effort.rounds(SESSIONS)
    items = chat_items(ITEMS)
    with (
        psycopg.connect(server.url(), autocommit=True) as watch,
        memcore.open(server.address("capacity")) as db,
    ):
        db.session("first", user="u0").append(items[0])
        empty = _one(watch, _SIZE)
        for n in range(sessions):
            db.session("s", user=f"u{n}").append(items[0])
        alone = _one(watch, _SIZE)
        for n in range(sessions):
            db.session("s", user=f"u{n}").extend(items[1:])
        full = _one(watch, _SIZE)
        for what, size, count in (
            ("a user with a session of one item", alone - empty, sessions),
            ("each further item, some 300 bytes of JSON", full - alone, sessions * (ITEMS - 1)),
        ):
            note = "tables and indexes; values are not compressed by the server"
            yield Row(what, "bytes", Figure.of([size / count]), sessions, note=note)
        session = db.session("s", user="u0")
        fresh: list[Any] = chat_items(effort.rounds(ROUNDS) * CALLS)
        at = iter(fresh)
        before = _one(watch, _LOGGED)
        cpu = _cpu(effort, watch, lambda: session.append(next(at)))
        logged = (_one(watch, _LOGGED) - before) / len(fresh)
        yield Row("an append, CPU of the server", "µs", cpu, len(fresh), durability="full")
        yield Row("an append, the server's log", "bytes", Figure.of([logged]), len(fresh))
        cpu = _cpu(effort, watch, lambda: session.context(CONTEXT_TOKENS))
        yield Row("a context that is known, CPU of the server", "µs", cpu, len(fresh))
        pids = [pid for (pid,) in watch.execute(_CLIENTS).fetchall()]
        memory = Figure.of([float(_memory(pid)) for pid in pids])
        yield Row("a connection, memory of the server", "KiB", memory, len(pids))


def _cpu(effort: Effort, watch: Any, call: Callable[[], object]) -> Figure:
    """CPU that the server's processes take for a call, in microseconds; rounds of many."""
    found = []
    for _ in range(effort.rounds(ROUNDS)):
        pids = [pid for (pid,) in watch.execute(_PROCESSES).fetchall()]
        before = sum(map(_used, pids))
        for _ in range(CALLS):
            call()
        found.append((sum(map(_used, pids)) - before) / CALLS * 1e6)
    return Figure.of(found)


def _used(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
    return int(fields[0]) / 1e9


def _memory(pid: int) -> int:
    """Memory that a process has for itself, in KiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_"))


def _one(watch: Any, query: str) -> float:
    return float(watch.execute(query).fetchone()[0])


_SIZE = (
    "select sum(pg_total_relation_size(c.oid)) from pg_class c where c.relkind = 'r' and "
    "c.relnamespace = 'capacity'::regnamespace"
)
_LOGGED = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
_PROCESSES = "select pid from pg_stat_activity"
_CLIENTS = (
    "select pid from pg_stat_activity where backend_type = 'client backend' and "
    "pid <> pg_backend_pid()"
)
