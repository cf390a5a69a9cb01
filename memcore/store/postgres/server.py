"""Server: the connections to one schema of a PostgreSQL database, its partitions in memory, reads.

A transaction reads on the cache (``CachedReader``), each partition at one version. A miss costs a
trip, which compares the versions of what was read before. A scan over several partitions
(``Wide``) runs on the server instead (``ServerReader``).
"""

from __future__ import annotations

from _thread import start_new_thread
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from threading import RLock
from time import CLOCK_BOOTTIME, clock_gettime_ns, monotonic, sleep
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from memcore.codec.keys import after, behind, u64
from memcore.codec.values import HEADER_BYTES, open_number, seal_value
from memcore.errors import (
    ClosedError,
    InvalidOptionError,
    MemcoreError,
    ReadOnlyError,
    StorageError,
    StoreAccessError,
    StoreFormatError,
    StoreFullError,
)
from memcore.limits import KEY_BYTES_MAX
from memcore.store.datafile import FORMAT_KEY
from memcore.store.postgres import schema
from memcore.store.postgres.partitions import (
    BYTES_MAX,
    ERASURES,
    Partition,
    Range,
    first_ranges,
    is_counter,
    partition_of,
    partition_of_range,
    partition_of_row,
)
from memcore.store.postgres.schema import bigints, bools, byteas

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = [
    "ALONE",
    "CACHE_BYTES",
    "LOST",
    "PATIENCE_SECONDS",
    "PAUSE_SECONDS",
    "READING",
    "SCHEMA_BYTES_MAX",
    "WRITING",
    "CachedReader",
    "Conflict",
    "NumbersNeeded",
    "RawReads",
    "RawWrites",
    "Rerun",
    "Server",
    "ServerReader",
    "Wide",
    "is_of_store",
    "is_transient",
    "left",
    "may_repeat",
    "transaction",
    "translate",
]

PATIENCE_SECONDS: Final = 20.0
"""Time after which a call no longer repeats what a lost connection or a conflict prevented."""
PAUSE_SECONDS: Final = 0.05
CACHE_BYTES: Final = 64 * 1024 * 1024
_NUMBERS: Final = 1000
"""Numbers of a counter that a process takes at once; those that it does not use are lost."""
_ROWS_FETCHED: Final = 256
_ROWS_FETCHED_MORE: Final = 4
"""Each further trip of a scan fetches this many times as many rows."""
_ROWS_FETCHED_MAX: Final = 1 << 16
NUMBER_BYTES: Final = 8
_END: Final = b"\xff" * KEY_BYTES_MAX
"""Behind every key of a partition that follows its name."""
_CLOCK_US: Final = 300_000_000
"""Time behind which the server's clock is asked for anew."""


class Rerun(BaseException):
    """Reads of a closure were not of one state: it runs again. Not for ``except Exception``."""


class Wide(BaseException):
    """A closure scans over several partitions, which no version covers."""


class NumbersNeeded(BaseException):
    """A closure needs more numbers of a counter than were taken, within an open transaction.

    They are taken outside: a rolled back transaction would give them out again, and another
    connection would wait for the locks of this one.
    """

    def __init__(self, counter: bytes) -> None:
        super().__init__()
        self.counter = counter


class Conflict(Exception):  # noqa: N818 - never leaves this package
    """A commit found other versions; ``lost`` are the partitions to lock for the next attempt."""

    def __init__(self, lost: list[bytes]) -> None:
        super().__init__()
        self.lost = lost


# --- Errors of the server as those of memcore -----------------------------------------------------

LOST: Final = (psycopg.OperationalError, psycopg.InterfaceError)


_READ_ONLY: Final = (
    "the server is a read-only replica; connect to the primary, or open the store with "
    "read_only=True"
)
_BUSY: Final = (
    "no connection became free in time: the server does not answer, or too many threads use the "
    "store at once; try again"
)
_SAID: Final[tuple[tuple[type[Exception], type[MemcoreError], str], ...]] = (
    (pg.DiskFull, StoreFullError, "the server's disk is full; nothing was stored"),
    (pg.ReadOnlySqlTransaction, ReadOnlyError, _READ_ONLY),
    (pg.InsufficientPrivilege, StoreAccessError, "the role may not do this"),
    (pg.UndefinedTable, StoreFormatError, "tables of the store are missing"),
    (pg.UndefinedFunction, StoreFormatError, "functions of the store are missing"),
    (pg.InvalidSchemaName, StoreFormatError, "the schema of the store is missing"),
    (PoolClosed, ClosedError, "the store is closed; open it again"),
    (PoolTimeout, StorageError, _BUSY),
    (psycopg.Error, StorageError, "the server failed"),
)


def translate(error: BaseException, path: str) -> BaseException:
    """Return the error that a caller gets for one of the driver; others unchanged."""
    for kind, typed, said in _SAID:
        if isinstance(error, kind):
            return typed(f"{path}: {said} ({str(error).strip()})")
    return error


_OF_STORE: Final = "memcore asked this"


def noted(error: psycopg.Error) -> psycopg.Error:
    """Note in an error of the driver that it is the store's: a closure may have a server, too."""
    error.add_note(_OF_STORE)
    return error


def is_of_store(error: psycopg.Error) -> bool:
    """Return True if a statement of the store raised the error."""
    return _OF_STORE in getattr(error, "__notes__", ())


_LOST_STATES: Final = ("08", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04")
"""SQL states, or their classes, of connections that are lost: with these nothing is refused."""


def may_repeat(error: BaseException) -> bool:
    """Return True if nothing was stored, and the next attempt may succeed."""
    return isinstance(error, pg.SerializationFailure | pg.DeadlockDetected) or is_transient(error)


def is_transient(error: BaseException) -> bool:
    """Return True if the connection was lost: what was sent may be stored, or may be sent again.

    Not where no connection could be had, so that nothing was sent, nor where the server refused.
    """
    if isinstance(error, PoolTimeout | PoolClosed) or not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, LOST)
    return error.sqlstate.startswith(_LOST_STATES)


# --- Readers: what a transaction reads, from the cache or from the server -------------------------


def _end_behind(start: bytes) -> bytes:
    """Return the end of a range from ``start`` on: of its partition, or of all rows."""
    name = partition_of(start)
    return after(name) if name and start.startswith(name) else b"\xff"


class Cursor:
    """The methods of LMDB's cursor that readers of many rows use, on a reader's ranges.

    It ends with the partition in which it was placed.
    """

    def __init__(self, reader: CachedReader | ServerReader) -> None:
        self._reader = reader
        self._rows: Iterator[tuple[bytes, bytes]] = iter(())
        self._row: tuple[bytes, bytes] | None = None

    def set_range(self, key: bytes) -> bool:
        """Move to the first key of the partition greater than or equal to ``key``."""
        self._rows = iter(self._reader.rows(key, _end_behind(key)))
        return self.next()

    def next(self) -> bool:
        """Move to the next row."""
        self._row = next(self._rows, None)
        return self._row is not None

    def key(self) -> bytes:
        """Return the current key; b"" behind the last row."""
        return b"" if self._row is None else self._row[0]

    def value(self) -> bytes:
        """Return the current value."""
        return b"" if self._row is None else self._row[1]

    def iternext(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate forward from the current row."""
        while self._row is not None:
            yield self._row
            self.next()

    def close(self) -> None:
        """Close the cursor."""
        self._rows = iter(())


class CachedReader:
    """Reads on the cache; a miss fetches, and proves with the same trip what was read so far.

    ``used`` maps partitions to the versions that were read, ``_proven`` to those that were current
    at the last fetch, all at the same moment. With a ``connection``, whose transaction holds locks,
    all trips are made on it: where connections are few, waiting for another one would never end.
    """

    def __init__(self, server: Server, connection: Connection[Any] | None = None) -> None:
        self._server = server
        self._connection = connection
        self.life = server.life
        """Of the cache that is read: in another one, the same versions may be of other rows."""
        self.used: dict[bytes, int] = {}
        self._proven: dict[bytes, int] = {}

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        if is_counter(key):
            return self._server.last_number(key, self._connection)
        name = partition_of_row(key)
        is_known, value = self.peek(key)
        while not is_known:  # another thread may drop what was fetched before it is looked up
            self._fetch(name, [key])
            is_known, value = self.peek(key)
        return value

    def peek(self, key: bytes) -> tuple[bool, bytes | None]:
        """Return whether it is known what is stored under a key, and the value.

        A trip brings both if nothing is known of the partition.
        """
        name = partition_of_row(key)
        part = self.partition(name, (key,))
        with self._server.lock:
            found = part.get(key)
            self._need_still(name, part)
        return found

    def partition(self, name: bytes, keys: tuple[bytes, ...] = ()) -> Partition:
        """Return a partition of the cache, fetching what is read of it first, and these keys.

        Raises:
            Rerun: it has moved since this transaction first read it.
        """
        part = self._server.cached(name)
        if part is None:
            self._fetch(name, [*keys])
            part = self._server.cached(name)
            if part is None:
                raise Rerun  # another thread dropped it
        if self.used.setdefault(name, part.version) != part.version:
            raise Rerun
        return part

    def _need_still(self, name: bytes, part: Partition) -> None:
        # The leader counts a version up in place, under the same lock, when it has committed.
        if part.version != self.used[name]:
            raise Rerun

    def _fetch(
        self, name: bytes, keys: list[bytes] | None = None, ranges: tuple[Range, ...] = ()
    ) -> None:
        server = self._server
        part = server.cached(name)
        wanted = [*ranges]
        if part is None or not part.is_begun:
            wanted += first_ranges(name)
        names = list({**self.used, name: 0, ERASURES: 0})
        self._need_unmoved(server.fetch(name, names, keys or [], wanted, self._connection), names)

    def _need_unmoved(self, versions: dict[bytes, int], names: list[bytes]) -> None:
        stale = [each for each, version in self.used.items() if versions.get(each, 0) != version]
        if stale:
            self._server.drop(stale, versions)
            raise Rerun
        # Not kept from an earlier fetch: what was not compared now may have moved since.
        self._proven = {name: versions.get(name, 0) for name in names}

    def prefetch(self, keys: Sequence[bytes]) -> None:
        """Read what is not known of these keys in one trip."""
        server, missing = self._server, []
        for key in keys:
            with server.lock:
                part = server.cached(partition_of_row(key))
                if part is None or not part.get(key)[0]:
                    missing.append(key)
        if missing:
            names = list({*self.used, *map(partition_of, missing)})
            self._need_unmoved(server.fetch(None, names, missing, [], self._connection), names)

    def prefetch_named(self, scope_key: bytes, name_kind: int, name: bytes, kind: int) -> None:
        """Read what is not known of two names and of the object that they lead to in one trip."""
        if self._is_known(scope_key, name_kind, name, kind):
            return
        names = list({**self.used, partition_of(scope_key): 0, ERASURES: 0})
        path = (scope_key, bytes((name_kind,)), name, bytes((kind,)))
        versions = self._server.fetch_named(names, path, self._connection)
        self._need_unmoved(versions, list({*names, *versions}))

    def _is_known(self, scope_key: bytes, name_kind: int, name: bytes, kind: int) -> bool:
        with self._server.lock:
            known, value = self._server.known(scope_key)
            if known and value is not None:
                scope = number_in(value)
                known, value = self._server.known(bytes((name_kind,)) + scope + name)
                if known and value is not None:
                    part = self._server.cached(bytes((kind,)) + scope + number_in(value))
                    return part is not None and part.is_begun
        return known

    def rows(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int = 0
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with ``start <= key < stop``.

        Raises:
            Wide: they lie in several partitions.
        """
        if start >= stop:
            return iter(())
        name = partition_of_range(start, stop)
        if not name:
            raise Wide
        return self._rows(name, start, stop, reverse, limit)

    def _rows(
        self, name: bytes, start: bytes, stop: bytes, reverse: bool, limit: int
    ) -> Iterator[tuple[bytes, bytes]]:
        left, step = limit or -1, _ROWS_FETCHED
        while start < stop:
            part = self.partition(name)
            with self._server.lock:
                found = part.leading(start, stop, reverse=reverse)
                self._need_still(name, part)
            if found is None:
                count = min(step, left) if left > 0 else step
                self._fetch(name, None, ((start, stop, count, BYTES_MAX, reverse),))
                step = min(step * _ROWS_FETCHED_MORE, _ROWS_FETCHED_MAX)
                continue
            for row in found[0]:
                yield row
                left -= 1
                if not left:
                    return
            if reverse:
                stop = found[1]
            else:
                start = found[1]

    def take(self, start: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first ``count`` rows from ``start`` on, of its partition if it lies in one."""
        return list(self.rows(start, _end_behind(start), limit=count))

    def is_current(self) -> bool:
        """Return True if everything that was read is of one state, and still stored."""
        if self.life == self._server.life and all(
            self._proven.get(name) == version for name, version in self.used.items()
        ):
            return True  # the last fetch compared all of it
        versions = self._server.versions(list(self.used), self._connection)
        if self.life != self._server.life:
            return False
        stale = [name for name, version in self.used.items() if versions.get(name, 0) != version]
        self._server.drop(stale, versions)
        return not stale


class ServerReader:
    """Reads in one transaction on the server: each costs a trip."""

    def __init__(self, server: Server, connection: Connection[Any]) -> None:
        self._server = server
        self._connection = connection

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        if is_counter(key):
            return self._server.last_number(key, self._connection)
        query = self._server.sql(schema.GET)
        found = self._server.ask(self._connection, query, (key,))
        return found[0][0] if found else None

    def rows(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int = 0
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with ``start <= key < stop``."""
        query = self._server.sql(schema.SCAN_BACK if reverse else schema.SCAN)
        left, step = limit or -1, _ROWS_FETCHED
        while start < stop:
            count = min(step, left) if left > 0 else step
            found = self._server.ask(self._connection, query, (start, stop, count))
            yield from found
            left -= len(found)
            if len(found) < count or not left:
                return
            if reverse:
                stop = found[-1][0]
            else:
                start = behind(found[-1][0])
            mean = sum(len(value) for _, value in found) // len(found) + 1
            step = min(step * _ROWS_FETCHED_MORE, _ROWS_FETCHED_MAX, BYTES_MAX // mean + 1)

    def take(self, start: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first ``count`` rows from ``start`` on."""
        return list(self.rows(start, _end_behind(start), limit=count))

    def prefetch(self, keys: Sequence[bytes]) -> None:
        """Do nothing: nothing is kept."""

    def prefetch_named(self, scope_key: bytes, name_kind: int, name: bytes, kind: int) -> None:
        """Do nothing: nothing is kept."""


class RawReads:
    """A transaction as the store's own modules see it: rows as stored, by one of the readers."""

    def __init__(self, reader: CachedReader | ServerReader, number: int) -> None:
        self.reader = reader
        self._number = number

    @property
    def is_cached(self) -> bool:
        """True if what is read ahead is kept."""
        return isinstance(self.reader, CachedReader)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        return self.reader.get(key)

    def id(self) -> int:
        """Return a number that no other transaction of this process has."""
        return self._number

    def rows(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int = 0
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with ``start <= key < stop``."""
        return self.reader.rows(start, stop, reverse=reverse, limit=limit)

    def take(self, start: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first ``count`` rows from ``start`` on."""
        return self.reader.take(start, count)

    def prefetch(self, keys: Sequence[bytes]) -> None:
        """Read these keys in one trip."""
        self.reader.prefetch(keys)

    def prefetch_named(self, scope_key: bytes, name_kind: int, name: bytes, kind: int) -> None:
        """Read two names and the object that they lead to in one trip."""
        self.reader.prefetch_named(scope_key, name_kind, name, kind)

    def cursor(self) -> Cursor:
        """Return a cursor over the rows."""
        return Cursor(self.reader)

    def commit(self) -> None:
        """Do nothing: what was read is judged by the store."""

    def abort(self) -> None:
        """Do nothing: what was read is forgotten."""


class RawWrites(RawReads):
    """The same with writes, which it keeps until the commit; reads see them."""

    def __init__(
        self,
        server: Server,
        reader: CachedReader | ServerReader,
        number: int,
        *,
        may_ask: bool = False,
    ) -> None:
        """``may_ask``: no transaction is open, so the server may be asked for numbers."""
        super().__init__(reader, number)
        self._server = server
        self._may_ask = may_ask
        self.writes: dict[bytes, bytes | None] = {}
        self.absent: set[bytes] = set()
        """Keys that were supposed to be absent, without being asked for."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, as written here or stored; None if there is none."""
        if key in self.writes:
            return self.writes[key]
        if is_counter(key):
            return self._server.next_number(key, may_ask=self._may_ask)
        return self.reader.get(key)

    def get_new(self, key: bytes) -> bytes | None:
        """As ``get``; None without a trip if the partition is known, but not what it has there."""
        if key in self.writes or is_counter(key) or isinstance(self.reader, ServerReader):
            return self.get(key)
        is_known, value = self.reader.peek(key)
        if not is_known:
            self.absent.add(key)
        return value

    def is_current(self) -> bool:
        """Return True if what was read, or supposed, is of one state, and still stored."""
        if isinstance(self.reader, ServerReader):
            return True  # in one snapshot, or while nobody else commits
        if self.absent:
            self.reader.prefetch(sorted(self.absent))
            if any(self.reader.get(key) is not None for key in self.absent):
                return False
        return self.reader.is_current()

    def put(self, key: bytes, value: bytes) -> bool:
        """Write a row."""
        if is_counter(key):
            self._server.use_number(key, value)
        else:
            self.writes[key] = value
        return True

    def delete(self, key: bytes) -> bool:
        """Delete a row; True if it was there."""
        is_there = self.get(key) is not None
        if is_there:
            self.writes[key] = None
        return is_there

    def rows(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int = 0
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with ``start <= key < stop``, those written here included."""
        own = sorted(key for key in self.writes if start <= key < stop)
        if not own:
            return self.reader.rows(start, stop, reverse=reverse, limit=limit)
        stored = self.reader.rows(start, stop, reverse=reverse)
        return self._merged(stored, own[::-1] if reverse else own, reverse, limit)

    def _merged(
        self, stored: Iterator[tuple[bytes, bytes]], own: list[bytes], reverse: bool, limit: int
    ) -> Iterator[tuple[bytes, bytes]]:
        writes, at, left = self.writes, 0, limit or -1
        row = next(stored, None)
        while left and (row is not None or at < len(own)):
            is_own = at < len(own) and (
                row is None or (own[at] >= row[0] if reverse else own[at] <= row[0])
            )
            if is_own:
                key, value = own[at], writes.get(own[at])
                at += 1
                if row is not None and row[0] == key:
                    row = next(stored, None)
            else:
                key, value = row  # type: ignore[misc]
                row = next(stored, None)
            if value is not None:
                yield key, value
                left -= 1

    def take(self, start: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first ``count`` rows from ``start`` on, those written here included."""
        return list(self.rows(start, _end_behind(start), limit=count))

    def cursor(self) -> Cursor:
        """Return a cursor over the rows, those written here included."""
        return Cursor(self)  # type: ignore[arg-type]  # it has the same ``rows``


# --- Answers of the functions that read -----------------------------------------------------------

Rows = list[tuple[bytes, bytes]]


def number_in(value: bytes) -> bytes:
    """Return the number in the row of a name, as it stands in keys; the row is not checked."""
    return value[HEADER_BYTES : HEADER_BYTES + NUMBER_BYTES]


def _columns(ranges: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return ranges as the arrays that the functions take."""
    starts, stops, limits, sizes, backward = zip(*ranges, strict=True) if ranges else [()] * 5
    return byteas(starts), byteas(stops), bigints(limits), bigints(sizes), bools(backward)


def _sorted_out(
    found: list[Any], ranges: int
) -> tuple[dict[bytes, int], dict[bytes, bytes], list[Rows]]:
    """Return the versions by partition, the values by key, and the rows of each range."""
    versions: dict[bytes, int] = {}
    points: dict[bytes, bytes] = {}
    read: list[Rows] = [[] for _ in range(ranges)]
    for at, key, value, number in found:
        if at < 0:
            versions[key] = number
        elif at == 0:
            points[key] = value
        else:
            read[at - 1].append((key, value))
    return versions, points, read


# --- The server: connections, the cache of partitions, numbers ------------------------------------

left: list[Any] = []
"""Pools and connections of the parent of a fork: closing them here would end the parent's."""


_CONNECTION: Final = {
    "connect_timeout": "10",
    "tcp_user_timeout": "20000",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "fallback_application_name": "memcore",
}
"""Options of a connection where the address has none: seconds, milliseconds."""

_LOCK_SCHEMA: Final = "select pg_advisory_xact_lock(hashtext(%s))"
"""Two processes that create its parts at once: the second waits, and finds them made."""
_SCHEMA_DEFAULT: Final = "memcore"
SCHEMA_BYTES_MAX: Final = 63


class Server:
    """The connections to one schema, the cache of its partitions, and the numbers of its counters.

    ``lock`` protects the cache. ``trips`` counts the statements with an answer, each a round trip.
    """

    def __init__(self, address: str, *, size: int) -> None:
        """Read the address of a schema, which it names behind ``#``; connect later.

        Raises:
            InvalidOptionError: it cannot be read.
        """
        url, _, name = address.partition("#")  # urldefrag would take "///" for "/"
        self.name = name or _SCHEMA_DEFAULT
        # Neither message quotes anything: it may be a password.
        if len(self.name.encode()) > SCHEMA_BYTES_MAX or set(self.name) & set("@%"):
            raise InvalidOptionError(
                f"the schema's name, behind #, has more than {SCHEMA_BYTES_MAX} bytes, or @ or %; "
                "in a password, # is written %23"
            )
        try:
            given = conninfo_to_dict(url)
            place, _, rest = url.partition("://")[2].partition("/")
            if place.count("@") > 1 or "@" in rest.partition("?")[0]:
                raise psycopg.ProgrammingError("a password that is not quoted")
        except psycopg.ProgrammingError:
            raise InvalidOptionError(
                "the address cannot be read: expected postgresql://USER:PASSWORD@HOST:PORT/NAME; "
                "in a password, % is written %25, @ %40, / %2F and # %23"
            ) from None
        # Without these a call would wait for hours for a server that went away without a word.
        options: dict[str, Any] = {**_CONNECTION, **given, "client_encoding": "utf8"}
        self.address = make_conninfo(**options)
        self.path = _address_of(given, self.name)
        """Address without its password."""
        self._size = size
        self._sql: dict[str, bytes] = {}
        self.trips = 0
        self.life = 0
        """Number of times that the cache was begun anew."""
        self._clock_ahead_us = 0
        """The server's clock without this machine's ``_boot_us``: one number, never torn."""
        self._clock_asked_us = 0
        self._reset()

    def _reset(self) -> None:
        self.lock = RLock()
        self._parts: OrderedDict[bytes, Partition] = OrderedDict()
        self._bytes = 0
        self._numbers: dict[bytes, tuple[int, int]] = {}
        self._pool: ConnectionPool[Any] | None = None
        self._is_closed = False

    def forget(self) -> None:
        """Leave everything to the parent, in the child of a fork."""
        left.append(self._pool)
        self._reset()

    def sql(self, text: str, **parts: sql.Composable) -> bytes:
        """Return a statement with the schema's name in it."""
        found = None if parts else self._sql.get(text)
        if found is None:
            made = sql.SQL(text).format(schema=sql.Identifier(self.name), **parts)
            found = made.as_bytes(None)
            if not parts:
                self._sql[text] = found
        return found

    # --- connections -------------------------------------------------------------------------

    def connected(self) -> Connection[Any]:
        """Open a connection outside of the pool, with errors that say what is wrong.

        Raises:
            StoreAccessError: the server cannot be reached, or refuses the role.
            StorageError: it fails.
        """
        try:
            return psycopg.connect(self.address, autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            raise StoreAccessError(
                f"{self.path}: cannot be reached: {str(error).strip()}; check the address, the "
                "role and that the server runs"
            ) from error
        except psycopg.Error as error:
            raise translate(error, self.path) from error

    @contextmanager
    def reached(self) -> Generator[Connection[Any], None, None]:
        """Lend a connection of its own.

        Raises:
            StoreAccessError, StorageError: as for ``connected``.
        """
        with closing(self.connected()) as connection:
            try:
                yield connection
            except psycopg.Error as error:
                raise translate(error, self.path) from error

    @contextmanager
    def connection(self) -> Generator[Connection[Any], None, None]:
        """Lend a connection of the pool; broken ones are replaced."""
        pool = self._pool
        if self._is_closed:
            raise noted(PoolClosed("the store was closed"))
        if pool is None:
            with self.lock:
                pool = self._pool
                if pool is None:
                    pool = self._pool = ConnectionPool(
                        self.address, min_size=1, max_size=self._size, open=True,
                        timeout=PATIENCE_SECONDS, name=f"memcore-{self.name}",
                        kwargs={"autocommit": True, "prepare_threshold": None},
                    )  # fmt: skip
        try:
            lent = pool.getconn()
        except psycopg.Error as error:
            raise noted(error) from None
        try:
            yield lent
        finally:
            pool.putconn(lent)

    def begin_anew(self) -> None:
        """Forget what is cached, after a connection was lost: the server may have gone back."""
        with self.lock:
            self.life += 1
            self._parts.clear()
            self._bytes = 0

    def ask(self, connection: Connection[Any], query: bytes, values: tuple[Any, ...]) -> list[Any]:
        """Run one statement, a trip to the server, and return its rows."""
        self.trips += 1
        try:
            return connection.execute(query, values, binary=True).fetchall()
        except psycopg.Error as error:
            if is_transient(error):
                self.begin_anew()
            raise noted(error) from None

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def drop_connections(self) -> None:
        """Close all connections in a thread: a finalizer may run with any lock held."""
        if self._pool is not None:
            with suppress(RuntimeError):  # the interpreter ends, and the connections with it
                start_new_thread(self.close, ())

    # --- the schema --------------------------------------------------------------------------

    def is_there(self, connection: Connection[Any]) -> bool:
        """Return True if the schema holds a store."""
        # By a scan, which sees what others have just committed; names resolved before are cached.
        return connection.execute(schema.IS_THERE, (self.name,)).fetchone() is not None

    def make(
        self,
        connection: Connection[Any],
        record: bytes,
        secret: bytes,
        *,
        version: int = schema.SCHEMA_VERSION,
    ) -> None:
        """Create the tables and functions, unless another process was faster."""
        with connection.transaction():
            connection.execute(_LOCK_SCHEMA, (self.name,))
            if self.is_there(connection):
                return
            connection.execute(
                self.sql(
                    schema.CREATE, version=sql.Literal(version), secret=sql.Literal(secret),
                    format_key=sql.Literal(FORMAT_KEY), format_row=sql.Literal(record),
                )
            )  # fmt: skip
            for text in schema.FUNCTIONS.values():
                connection.execute(self.sql(text))

    def need_functions(self, connection: Connection[Any]) -> None:
        """Create the functions that a schema made by an older memcore lacks.

        Raises:
            StoreAccessError: the role may not create them, or the server is a replica.
        """
        if not self._missing(connection):
            return
        try:
            with connection.transaction():
                connection.execute(_LOCK_SCHEMA, (self.name,))
                for text in self._missing(connection):  # another process may have been faster
                    connection.execute(self.sql(text))
        except (pg.InsufficientPrivilege, pg.ReadOnlySqlTransaction) as error:
            raise StoreAccessError(
                f"{self.path}: its schema has the functions of an older memcore: open it once, on "
                "the primary server, with the role that made it"
            ) from error

    def _missing(self, connection: Connection[Any]) -> list[str]:
        known = {row[0] for row in connection.execute(schema.KNOWN_FUNCTIONS, (self.name,))}
        return [text for name, text in schema.FUNCTIONS.items() if name not in known]

    # --- the cache ---------------------------------------------------------------------------

    def cached(self, name: bytes) -> Partition | None:
        """Return what is known of a partition; None: nothing."""
        with self.lock:
            part = self._parts.get(name)
            if part is not None:
                self._parts.move_to_end(name)
            return part

    def fetch(
        self,
        name: bytes | None,
        names: list[bytes],
        keys: list[bytes],
        ranges: list[Range],
        held: Connection[Any] | None = None,
    ) -> dict[bytes, int]:
        """Read versions, and rows of the partition ``name``, in one snapshot; cache the rows."""
        query = self.sql(schema.READ)
        values = (byteas(names), byteas(keys), *_columns(ranges))
        found = self.asked(query, values) if held is None else self.ask(held, query, values)
        versions, there, read = _sorted_out(found, len(ranges))
        points: dict[bytes, bytes | None] = {**dict.fromkeys(keys), **there}
        if name is not None:
            self._learn(name, versions, points, ranges, read)
        elif points:
            by_name: dict[bytes, dict[bytes, bytes | None]] = {}
            for key, value in points.items():
                by_name.setdefault(partition_of(key), {})[key] = value
            for each, rows in by_name.items():
                self._learn(each, versions, rows)
        return versions

    def versions(self, names: list[bytes], held: Connection[Any] | None = None) -> dict[bytes, int]:
        """Read the versions of partitions; those that nobody has written are missing."""
        query, values = self.sql(schema.VERSIONS), (byteas(names),)
        return dict(self.asked(query, values) if held is None else self.ask(held, query, values))

    def known(self, key: bytes) -> tuple[bool, bytes | None]:
        """Return whether it is known what is stored under a key, and the value."""
        part = self.cached(partition_of(key))
        return (False, None) if part is None else part.get(key)

    def fetch_named(
        self,
        names: list[bytes],
        path: tuple[bytes, bytes, bytes, bytes],
        held: Connection[Any] | None = None,
    ) -> dict[bytes, int]:
        """Read versions, two names, and what is read first of the object that they lead to.

        ``path``: key of the scope's name; kind of the object's name; what follows the scope in its
        key; kind of the object.
        """
        scope_key, name_kind, name, kind = path
        blank = kind + bytes(2 * NUMBER_BYTES)
        ranges = [
            (start[len(blank) :], stop[len(blank) :] if stop.startswith(blank) else _END, *rest)
            for start, stop, *rest in first_ranges(blank)
        ]
        values = (byteas(names), *path, *_columns(ranges))
        query = self.sql(schema.OPEN)
        found = self.asked(query, values) if held is None else self.ask(held, query, values)
        versions, points, read = _sorted_out(found, len(ranges))
        value = points.get(scope_key)
        self._learn(partition_of(scope_key), versions, {scope_key: value})
        if value is None:
            return versions
        scope = number_in(value)
        name_key = name_kind + scope + name
        value = points.get(name_key)
        versions.setdefault(partition_of(name_key), 0)
        self._learn(partition_of(name_key), versions, {name_key: value})
        if value is None:
            return versions
        part = kind + scope + number_in(value)
        versions.setdefault(part, 0)
        self._learn(part, versions, {}, first_ranges(part), read)
        return versions

    def asked(self, query: bytes, values: tuple[Any, ...]) -> list[Any]:
        """Run a statement that may run twice, again if the connection was lost."""
        until = monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with self.connection() as connection:
                    return self.ask(connection, query, values)
            except psycopg.Error as error:
                if not may_repeat(error) or monotonic() > until:
                    raise
                sleep(PAUSE_SECONDS)

    def _learn(
        self,
        name: bytes,
        versions: dict[bytes, int],
        points: dict[bytes, bytes | None],
        ranges: Sequence[Range] = (),
        read: Sequence[Rows] = (),
    ) -> None:
        version = versions.get(name, 0)
        with self.lock:
            part = self._parts.get(name)
            if part is None or part.version < version:
                if part is not None:
                    self._bytes -= part.size
                part = self._parts[name] = Partition(version)
            if part.version != version:
                return  # a later state is known already: the reader notices, and runs again
            before = part.size
            part.is_begun = part.is_begun or bool(ranges)
            part.learn(points.items())
            for (start, stop, limit, size, reverse), rows in zip(ranges, read, strict=True):
                part.learn(rows)
                if len(rows) < limit and sum(len(row[1]) for row in rows) < size:
                    part.learn_range(start, stop)
                elif reverse:
                    part.learn_range(rows[-1][0], stop)
                else:
                    part.learn_range(start, behind(rows[-1][0]))
            self._bytes += part.size - before
            self._parts.move_to_end(name)
            while self._bytes > CACHE_BYTES and len(self._parts) > 1:
                self._bytes -= self._parts.popitem(last=False)[1].size

    def drop(self, names: list[bytes], versions: dict[bytes, int]) -> None:
        """Drop partitions that have other versions than these.

        A later one, too: a server that crashed may have gone back ("relaxed", another server that
        took over), and counts the same versions again.
        """
        with self.lock:
            for name in names:
                part = self._parts.get(name)
                if part is not None and part.version != versions.get(name, 0):
                    self._bytes -= self._parts.pop(name).size

    def apply(self, used: dict[bytes, int], writes: dict[bytes, dict[bytes, bytes | None]]) -> None:
        """Take over a commit of this process into the cache."""
        with self.lock:
            for name, rows in writes.items():
                part = self._parts.get(name)
                if part is None:
                    continue
                self._bytes -= part.size
                if part.version != used[name]:
                    del self._parts[name]
                    continue
                part.version += 1
                part.learn(rows.items())
                self._bytes += part.size

    def forget_all(self, names: list[bytes]) -> None:
        """Drop partitions, whatever their versions."""
        with self.lock:
            for name in names:
                part = self._parts.pop(name, None)
                if part is not None:
                    self._bytes -= part.size

    # --- numbers -----------------------------------------------------------------------------
    # One row a counter would make every new session of a fleet conflict with every other. So a
    # process takes numbers in blocks; only the leader of its queue uses them.

    def last_number(self, key: bytes, held: Connection[Any] | None = None) -> bytes | None:
        """Return a counter's row: the last number that any process may have given out."""
        query = self.sql(schema.LAST_NUMBER)
        found = self.asked(query, (key,)) if held is None else self.ask(held, query, (key,))
        return seal_value(key, u64(found[0][0])) if found else None

    def next_number(self, key: bytes, *, may_ask: bool) -> bytes | None:
        """Return a counter's row as its next user has to see it.

        Raises:
            NumbersNeeded: none are left, and the server may not be asked now.
        """
        last, end = self._numbers.get(key, (0, 0))
        if last >= end:
            if not may_ask:
                raise NumbersNeeded(key)
            last = self.take_numbers(key)
        return seal_value(key, u64(last)) if last else None

    def take_numbers(self, key: bytes) -> int:
        """Take the next numbers of a counter; return the last one before them."""
        query = self.sql(schema.NUMBERS)
        end = self.asked(query, (key, _NUMBERS))[0][0]  # taken twice if the answer was lost
        last: int = end - _NUMBERS
        self._numbers[key] = (last, end)
        return last

    def use_number(self, key: bytes, value: bytes) -> None:
        """Note that a number is given out; it is never given out again."""
        self._numbers[key] = (open_number(key, value), self._numbers.get(key, (0, 0))[1])

    # --- the clock ---------------------------------------------------------------------------

    def set_clock(self, server_ms: int) -> None:
        """Note what the server's clock says now."""
        now_us = _boot_us()
        self._clock_ahead_us, self._clock_asked_us = server_ms * 1_000 - now_us, now_us

    def now_us(self) -> int:
        """Return the time by the server's clock, by which workers on different machines agree."""
        if _boot_us() - self._clock_asked_us > _CLOCK_US:
            query = self.sql("select (extract(epoch from clock_timestamp()) * 1000)::bigint")
            self._clock_asked_us = _boot_us()  # the next call does not wait, if this one fails
            with suppress(psycopg.Error, PoolTimeout), self.connection() as connection:
                self.set_clock(self.ask(connection, query, ())[0][0])
        return self._clock_ahead_us + _boot_us()


def _boot_us() -> int:
    """Return the microseconds since the machine started, its sleep included.

    Unlike the time of day, nobody sets this clock: leases last as long as they should.
    """
    return clock_gettime_ns(CLOCK_BOOTTIME) // 1000


READING: Final = "begin isolation level repeatable read, read only"
WRITING: Final = (
    "begin isolation level read committed; "
    "set local idle_in_transaction_session_timeout = 10000; "
    "lock table {schema}.parts in row exclusive mode"
)
"""Begin a transaction that holds locks; if its process is stopped, not for ever."""
ALONE: Final = WRITING.replace("row exclusive", "exclusive")
"""The same, while nobody else commits."""


@contextmanager
def transaction(server: Server, begin: str) -> Generator[Connection[Any], None, None]:
    """Lend a connection with an open transaction, which is rolled back unless it was committed."""
    with server.connection() as connection:
        try:
            connection.execute(server.sql(begin))
        except psycopg.Error as error:
            if is_transient(error):
                server.begin_anew()
            raise noted(error) from None
        try:
            yield connection
        finally:
            if connection.broken:
                server.begin_anew()
            elif connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                try:
                    connection.execute("rollback")
                except psycopg.Error:
                    server.begin_anew()


def _address_of(given: dict[str, Any], name: str) -> str:
    """Return an address that opens the same store for who has the password from elsewhere."""
    user, host = given.get("user"), str(given.get("host") or "")
    place = "" if host.startswith("/") else host
    if given.get("port"):
        place = f"{place}:{given['port']}"
    query = f"?host={quote(host, safe='')}" if host.startswith("/") else ""
    at = f"{quote(user, safe='')}@" if user else ""
    return f"postgresql://{at}{place}/{given.get('dbname') or ''}{query}#{name}"
