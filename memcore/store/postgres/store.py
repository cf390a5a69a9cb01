"""PostgresStore: the ordered map in a PostgreSQL database, for processes on many machines.

A closure runs on a cache of partitions (``partitions.py``), each at one version. Reads end with one
query that compares the versions of what was read; commits are one statement that locks the
partitions, compares, writes and counts up. Whatever moved meanwhile is dropped from the cache, and
the closure runs again. So the first touch of a partition costs a trip to the server, and everything
else costs one trip a call.

A closure that scans over several partitions runs on the server: reads in one snapshot, writes under
a lock on the table of versions, which all other commits take in turn.

The queue of the process is the one of every store: a leader runs all waiting closures in one
transaction, so that one statement commits them all.
"""

from __future__ import annotations

import os
import secrets
from _thread import get_ident
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from itertools import count
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from weakref import WeakSet

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg_pool import PoolClosed, PoolTimeout

from memcore._fast import BatchRunner, EnvironmentFields, WriteBatch, WriteRequest
from memcore.codec.values import clock_us
from memcore.errors import (
    ClosedError,
    InternalError,
    InvalidOptionError,
    NotFoundError,
    OutcomeUnknownError,
    ReadOnlyError,
    StorageError,
    StoreAccessError,
    StoreFormatError,
    StoreLockedError,
)
from memcore.privacy.keyring import Secret
from memcore.store.commit import CommitQueue, WriterNeeded, copy_of, stored_alone
from memcore.store.datafile import FORMAT_KEY, Format
from memcore.store.interface import Notifier, ReadTxn, Txn
from memcore.store.postgres import schema
from memcore.store.postgres.partitions import is_rarely_written, needs_barrier, partition_of
from memcore.store.postgres.server import (
    ALONE,
    LOST,
    PATIENCE_SECONDS,
    PAUSE_SECONDS,
    READING,
    WRITING,
    CachedReader,
    Conflict,
    NumbersNeeded,
    RawReads,
    RawWrites,
    Rerun,
    Server,
    ServerReader,
    Wide,
    is_transient,
    transaction,
    translate,
)
from memcore.store.transaction import Snapshot, WriteTxn

if TYPE_CHECKING:
    import asyncio

    from psycopg import Connection

__all__ = ["Filling", "PostgresStore", "filling"]

T = TypeVar("T")

_CONNECTIONS_MAX: Final = 16
_OPTIMISTIC: Final = 8
"""Attempts on the cache; then a read runs in one snapshot on the server, a write under its lock."""
_ID_BYTES: Final = 8
_FIRST_KEY: Final = b"\x01"

_WRITTEN: Final = "w"
_SHARED: Final = "r"
_UNLOCKED: Final = "c"
"""Kinds of locks of a partition in a commit, as in ``schema.FUNCTIONS``."""


class PostgresTxn(WriteTxn):
    """A write transaction shared by the closures of one batch."""

    __slots__ = ()
    raw: RawWrites | None

    def delete_range(self, start: bytes, stop: bytes) -> int:
        """Delete all rows with ``start <= key < stop``; returns their number."""
        raw = self.raw
        if raw is None:
            self.ended()
        found = [key for key, _ in raw.rows(max(start, _FIRST_KEY), stop)]
        for key in found:
            raw.writes[key] = None
        if found:
            self.dirty = self.deleted = True
            if self.audit is not None:
                self.audit.note_range(start, stop)
        return len(found)


# --- The leader: runs the closures of a batch, commits them, and decides their outcomes -----------

Values = tuple[Any, ...]
"""Arguments of the function that commits."""


class PostgresLeader(BatchRunner):
    """Runs batches for one store, always on the thread that has the lead of its queue."""

    __slots__ = ("_server", "conflicts", "is_relaxed")

    writer_needed = WriterNeeded
    env: PostgresStore

    def __init__(self, env: PostgresStore, server: Server) -> None:
        super().__init__(env)
        self._server = server
        self.is_relaxed = False
        self.conflicts = 0

    def run(self, batch: WriteBatch) -> None:
        """Decide every call of the batch; raises interrupts."""
        until = monotonic() + PATIENCE_SECONDS
        lost: list[bytes] = []
        is_wide, counter, tries = False, b"", 0
        while not batch.decided:
            is_wide = is_wide or tries >= _OPTIMISTIC
            try:
                if counter:
                    self._server.take_numbers(counter)
                    counter = b""
                if is_wide:
                    self._attempt_on_server(batch)
                else:
                    self._attempt(batch, lost)
            except Wide:
                is_wide = True
            except Rerun:
                tries, lost = tries + 1, []
            except NumbersNeeded as needed:
                counter = needed.counter
            except Conflict as conflict:
                self.conflicts += 1
                tries, lost = tries + 1, conflict.lost
                error = conflict.__cause__
                if isinstance(error, Exception) and monotonic() > until:
                    self._fail(batch, error)
            except Exception as error:  # noqa: BLE001 - it goes to the callers
                if not _may_repeat(error) or monotonic() > until:
                    self._fail(batch, error)
                else:
                    sleep(PAUSE_SECONDS)

    def _attempt(self, batch: WriteBatch, lost: list[bytes]) -> None:
        """Run the batch on the cache and commit it with one statement; behind locks if it lost."""
        if lost:
            self._attempt_in_line(batch, lost)
            return
        reader = CachedReader(self._server)
        raw = RawWrites(self._server, reader, self.env.next_id(), may_ask=True)
        interrupt: BaseException | None = None
        with self._transaction(raw) as txn:
            if not self._run_calls(txn, batch, reader):
                return
            if raw.writes:
                interrupt = self._store(raw, reader)
            elif not reader.is_current():
                raise Rerun
            self._decide(txn, batch, interrupt)

    def _attempt_in_line(self, batch: WriteBatch, lost: list[bytes]) -> None:
        """Run the batch with the locks of all partitions that it needs, after others were faster.

        Otherwise one of several processes that write to one session might never have its turn. The
        locks are taken in key order, as by every commit, so the batch takes up no more calls: their
        partitions would be locked out of order.
        """
        server = self._server
        with transaction(server, WRITING) as connection:
            line = server.ask(connection, server.sql(schema.STAND_IN_LINE), (sorted(lost),))
            server.drop(lost, dict(line))
            reader = CachedReader(server, connection)
            raw = RawWrites(server, reader, self.env.next_id())
            interrupt: BaseException | None = None
            with self._transaction(raw) as txn:
                if not self._run_calls(txn, batch, reader, takes_more=False):
                    return
                if raw.writes:
                    interrupt = self._store(raw, reader, connection)
                elif not reader.is_current():
                    raise Rerun
                self._decide(txn, batch, interrupt)

    def _attempt_on_server(self, batch: WriteBatch) -> None:
        """Run a batch that scans over partitions under a lock that all commits respect."""
        server = self._server
        with transaction(server, ALONE) as connection:
            reader = ServerReader(server, connection)
            raw = RawWrites(server, reader, self.env.next_id())
            interrupt: BaseException | None = None
            with self._transaction(raw) as txn:
                if not self._run_calls(txn, batch, None):
                    return
                if raw.writes:
                    versions = CachedReader(server)
                    names = sorted({partition_of(key) for key in raw.writes})
                    query = server.sql("select p, version from {schema}.parts where p = any(%b)")
                    found = dict(server.ask(connection, query, (names,)))
                    versions.used = {name: found.get(name, 0) for name in names}
                    interrupt = self._store(raw, versions, connection)
                self._decide(txn, batch, interrupt)

    @contextmanager
    def _transaction(self, raw: RawWrites) -> Generator[PostgresTxn, None, None]:
        env = self.env
        txn = PostgresTxn(raw, False, env.vault, env.audit)
        try:
            yield txn
        finally:
            txn.drop()

    def _run_calls(
        self,
        txn: PostgresTxn,
        batch: WriteBatch,
        reader: CachedReader | None,
        *,
        takes_more: bool = True,
    ) -> bool:
        """Run every call once, those queued meanwhile too; False: run the others again.

        That is the case if a closure wrote and then raised: its writes are in the transaction.
        """
        queue, index = self.env.queue, 0
        while True:
            while index < len(batch.calls):
                call = batch.calls[index]
                index += 1
                if call.done:
                    continue
                txn.owner, txn.dirty = call, False
                callbacks = len(txn.callbacks)
                self._run_call(txn, call, batch)
                if call.error is None:
                    continue
                call.error = self._typed(call.error)
                if txn.dirty or txn.failed is not None:
                    if reader is not None and not reader.is_current():
                        raise Rerun  # the error may come of what was read
                    call.done = True
                    return False
                del txn.callbacks[callbacks:]
            if not (takes_more and queue.take_more(batch)):
                return True

    def _run_call(self, txn: PostgresTxn, call: WriteRequest, batch: WriteBatch) -> None:
        try:
            call.result = call.fn(txn)
            call.error = txn.failed  # set if the closure swallowed the error
        except (psycopg.Error, Rerun, Wide, NumbersNeeded):
            raise  # of what it reads, not of the closure: the batch runs again, or fails as a whole
        except Exception as error:  # noqa: BLE001 - its caller's
            call.error = error
        except BaseException as error:
            # An interrupt of this thread, unless this closure was also running the last time.
            if call is batch.own or (batch.own is not None and not call.struck):
                call.struck = True
                raise
            call.error = error
            txn.dirty = True

    # --- the commit --------------------------------------------------------------------------

    def _store(
        self,
        raw: RawWrites,
        reader: CachedReader,
        held: Connection[Any] | None = None,
    ) -> BaseException | None:
        """Compare the versions of what was read and write, in one statement.

        ``held``: a connection with an open transaction, which ends with it.

        Returns:
            An interrupt that came too late to prevent it.

        Raises:
            Conflict: a version has moved; nothing is stored.
            OutcomeUnknownError: the connection was lost, and nobody knows what is stored.
        """
        writes: dict[bytes, dict[bytes, bytes | None]] = {}
        for key, value in raw.writes.items():
            writes.setdefault(partition_of(key), {})[key] = value
        for name in writes:
            if name not in reader.used:
                reader.partition(name)  # written without being read
        used = reader.used
        names = sorted(used)
        puts = sorted((key, value) for key, value in raw.writes.items() if value is not None)
        one = secrets.token_bytes(_ID_BYTES)
        values = (
            names,
            [used[name] for name in names],
            [_kind(name, writes) for name in names],
            one,
            [key for key, _ in puts],
            [value for _, value in puts],
            [key for key, value in raw.writes.items() if value is None],
            any(needs_barrier(name) for name in writes),
            self.is_relaxed,
        )
        interrupt: BaseException | None = None
        try:
            lost = self._send(values) if held is None else _send_last(self._server, held, values)
        except BaseException as error:
            if isinstance(error, psycopg.Error) and not is_transient(error):
                raise  # the server refused it, or it was never sent
            if held is not None:
                held.close()  # if its transaction is still open, settling would wait for its locks
            self._settle(sorted(writes), used, one, error)
            lost = []
            interrupt = None if isinstance(error, Exception) else error
        if lost:
            self._server.drop([name for name, _ in lost], dict(lost))
            raise Conflict([n for n in names if n in writes or not is_rarely_written(n)])
        self._server.apply(used, writes)
        return interrupt

    def _send(self, values: Values) -> list[tuple[bytes, int]]:
        server = self._server
        with server.connection() as connection:
            return server.ask(connection, server.sql(schema.COMMIT), values)

    def _settle(
        self, names: list[bytes], used: dict[bytes, int], one: bytes, error: BaseException
    ) -> None:
        """Return if a commit is stored whose answer was lost; if it is not, make sure it never is.

        The statement may still be on its way to the server. If it has not arrived, the versions are
        counted up, so that it will find that they have moved.

        Raises:
            Conflict: it is not stored: run it again.
            OutcomeUnknownError: the server cannot be asked, or many others have committed since.
            Whatever ``error`` is, if it is an interrupt and nothing is stored.
        """
        server, until = self._server, monotonic() + PATIENCE_SECONDS
        values = (names, [used[name] for name in names], one)
        found = -1
        while monotonic() < until:
            try:
                with server.connection() as connection:
                    found = server.ask(connection, server.sql(schema.SETTLE), values)[0][0]
                break
            except LOST:  # lost again, or its locks are held by the commit itself
                sleep(PAUSE_SECONDS)
        server.forget_all(names)
        if found < 0:
            raise OutcomeUnknownError(
                f"{self.env.path}: the connection was lost within a commit ({error}), and whether "
                "it is stored cannot be found out: read what is stored before you repeat it"
            ) from error
        if not found:
            if not isinstance(error, Exception):
                raise error
            raise Conflict([]) from error

    def _decide(self, txn: PostgresTxn, batch: WriteBatch, interrupt: BaseException | None) -> None:
        """Run what follows the commit; an interrupt is raised when the batch is decided."""
        callbacks = list(txn.callbacks)
        while not batch.decided:
            try:
                self.run_callbacks(callbacks)
                if txn.topics:
                    self.env.notifier.publish(txn.topics)
                self.batches += 1
                self.closures += len(batch.calls)
                batch.decided = True
            except Exception:
                raise
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _fail(self, batch: WriteBatch, error: Exception) -> None:
        """Fail every undecided call of a batch with the batch's error."""
        failure = translate(error, self.env.path)
        for call in batch.calls:
            if not call.done:
                call.error = copy_of(failure, error)
        batch.decided = True

    def _typed(self, error: BaseException) -> BaseException:
        typed = translate(error, self.env.path)
        if typed is not error:
            typed.__cause__ = error
        return typed

    def _stored_alone(self, error: Exception) -> InternalError:
        return stored_alone(error)


def _kind(name: bytes, writes: dict[bytes, Any]) -> str:
    if name in writes:
        return _WRITTEN
    return _UNLOCKED if is_rarely_written(name) else _SHARED


def _may_repeat(error: Exception) -> bool:
    """Return True if nothing was stored, and the next attempt may succeed."""
    return isinstance(error, pg.SerializationFailure | pg.DeadlockDetected) or is_transient(error)


def _send_last(
    server: Server, connection: Connection[Any], values: Values
) -> list[tuple[bytes, int]]:
    """Commit within a transaction that is open, and end it."""
    lost = server.ask(connection, server.sql(schema.COMMIT), values)
    if not lost:
        ended = connection.execute("commit")
        if ended.statusmessage != "COMMIT":  # the server says ROLLBACK without an error
            raise StorageError("the server rolled the transaction back")
    return lost


# --- The store ------------------------------------------------------------------------------------


_stores: WeakSet[PostgresStore] = WeakSet()


def _after_fork_in_child() -> None:
    for store in list(_stores):
        store.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)


class PostgresStore(EnvironmentFields):
    """Handle of a store in PostgreSQL, and the environment of its leader."""

    queue: CommitQueue
    notifier: Notifier
    is_server = True

    def __init__(
        self,
        address: str,
        *,
        read_only: bool = False,
        create: bool = True,
        durability: str | None = None,
        connections: int = _CONNECTIONS_MAX,
    ) -> None:
        """Connect to the schema that ``address`` names behind ``#``, and create it if need be.

        Raises:
            InvalidOptionError, NotFoundError, ReadOnlyError
            StoreAccessError: the server cannot be reached, or refuses the role.
            StoreFormatError: the store needs another version of memcore.
        """
        if durability == "none":
            raise InvalidOptionError("durability: a server has 'full' and 'relaxed', not 'none'")
        self.read_only = read_only
        self._server = Server(address, size=connections)
        self.path = self._server.path
        self._ids = count(1)
        self._is_closed = False
        self._live: dict[int, Snapshot] = {}
        self.opened = 1
        self.notifier = Notifier()
        self.leader = PostgresLeader(self, self._server)
        self.queue = CommitQueue(self.leader.run, self._live, _never)
        self._attach(create=create and not read_only, durability=durability)
        _stores.add(self)

    def __del__(self) -> None:
        server: Server | None = self.__dict__.get("_server")  # None: it could not be opened
        if server is not None:
            server.drop_connections()

    def forget(self) -> None:
        """Leave connections, waiting calls and listeners to the parent, in the child of a fork."""
        self._server.forget()
        self._live.clear()
        self.notifier.forget()
        self.queue.reset()

    # --- opening -----------------------------------------------------------------------------

    def _attach(self, *, create: bool, durability: str | None) -> None:
        server = self._server
        try:
            with closing(server.connect()) as connection:
                if not server.is_there(connection):
                    if not create:
                        raise NotFoundError(f"{self.path}: there is no such store on the server")
                    server.make(connection, _new_record(durability or "full"), os.urandom(32))
                found = connection.execute(server.sql(schema.OPENED)).fetchall()
                row = connection.execute(
                    server.sql("select v from {schema}.rows where k = %b"),
                    (FORMAT_KEY,),
                    binary=True,
                ).fetchone()
        except psycopg.OperationalError as error:
            raise StoreAccessError(
                f"{self.path}: cannot be reached: {str(error).strip()}; check the address, the "
                "role and that the server runs"
            ) from error
        except psycopg.Error as error:
            raise translate(error, self.path) from error
        version, secret, server_ms, is_replica = found[0]
        if version == schema.FILLING:
            raise StoreAccessError(
                f"{self.path}: a copy into it is under way or was cut short: run 'memcore copy' "
                "again, which goes on with it"
            )
        if version > schema.SCHEMA_VERSION:
            raise StoreFormatError(
                f"{self.path}: its tables have version {version}, this memcore knows "
                f"{schema.SCHEMA_VERSION}: upgrade memcore"
            )
        if is_replica and not self.read_only:
            raise ReadOnlyError(
                f"{self.path}: the server is a read-only replica; connect to the primary, or open "
                "the store with read_only=True"
            )
        record = Format.unpack(None if row is None else row[0], self.path)
        if durability not in (None, record.durability):
            raise InvalidOptionError(
                f"{self.path}: is a store with durability {record.durability!r}, not "
                f"{durability!r}; leave durability out to open it as it is"
            )
        self.durability = record.durability
        self.leader.is_relaxed = record.durability == "relaxed"
        self.seed = self.file_id = record.seed
        # In the schema, where processes on other machines find it too.
        self.secret = Secret(self.path, create=False, known=bytes(secret))
        server.set_clock(server_ms)

    # --- reading -----------------------------------------------------------------------------

    def next_id(self) -> int:
        """Return a number for a transaction of this process."""
        return next(self._ids)

    def read(self, fn: Callable[[ReadTxn], T], *, patient: bool = True) -> T:  # noqa: ARG002
        """Run ``fn`` on one state; it runs again if what it read was not of one.

        A nested read shares the outer read's state.
        """
        outer = self._live.get(get_ident())
        if outer is not None:
            return fn(outer)
        self._need_open()
        try:
            for _ in range(_OPTIMISTIC):
                reader = CachedReader(self._server)
                try:
                    return self._read_with(reader, fn)
                except Rerun:
                    continue
                except Wide:
                    break
            return self._read_on_server(fn)
        except (psycopg.Error, PoolTimeout, PoolClosed) as error:
            raise translate(error, self.path) from error

    def _read_with(self, reader: CachedReader, fn: Callable[[ReadTxn], T]) -> T:
        try:
            found = self._read(reader, fn)
        except Exception:
            if not reader.is_current():
                raise Rerun from None  # the error may come of what is stored no more
            raise
        if not reader.is_current():
            raise Rerun
        return found

    def _read(self, reader: CachedReader | ServerReader, fn: Callable[[ReadTxn], T]) -> T:
        snapshot, me = Snapshot(), get_ident()
        raw = RawReads(reader, self.next_id())
        snapshot.raw, snapshot.vault = raw, self.vault  # type: ignore[assignment]
        snapshot.get = raw.get if self.vault is None else self.vault.reader(raw.get)
        self._live[me] = snapshot
        try:
            return fn(snapshot)
        finally:
            self._live.pop(me, None)
            snapshot.drop()

    def _read_on_server(self, fn: Callable[[ReadTxn], T]) -> T:
        until = monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with transaction(self._server, READING) as connection:
                    return self._read(ServerReader(self._server, connection), fn)
            except psycopg.Error as error:
                if not is_transient(error) or monotonic() > until:
                    raise
                sleep(PAUSE_SECONDS)

    # --- writing -----------------------------------------------------------------------------

    def transact(self, fn: Callable[[Txn], T], *, makes_room: bool = False) -> T:
        """Run ``fn`` in a write transaction, commit it, and return the result."""
        self._need_writable()
        return self.queue.call(fn, makes_room=makes_room)

    def submit(
        self,
        fn: Callable[[Txn], T],
        loop: asyncio.AbstractEventLoop,
        *,
        makes_room: bool = False,
        large: bool = False,
        future: asyncio.Future[T] | None = None,
    ) -> asyncio.Future[T]:
        """Queue ``fn`` from ``loop``'s thread; the future completes after the commit."""
        self._need_writable()
        return self.queue.submit(fn, loop, makes_room=makes_room, large=large, future=future)

    def flush(self) -> None:
        """Make what was committed with ``"relaxed"`` survive a crash of the server."""
        self._need_open()
        if self.leader.is_relaxed and not self.read_only:
            with self._told():
                # A commit that waits for the log's device waits for all that was logged before it.
                self._server.asked(self._server.sql(schema.FLUSH), ())

    make_durable = flush

    # --- figures and checks ------------------------------------------------------------------

    def now_us(self) -> int:
        """Return the time by the server's clock."""
        return self._server.now_us()

    def check(self) -> list[str]:
        """Return an empty list: pages and their structure are the server's own."""
        self._need_open()
        return []

    def stats(self) -> dict[str, Any]:
        """Return figures of the store, under the names that those of a file have."""
        self._need_open()
        name = sql.Identifier(self._server.name).as_string(None)
        query = self._server.sql(schema.FIGURES)
        with self._told():
            found = self._server.asked(query, (f"{name}.rows", f"{name}.parts"))
        size, entries, versions = found[0]
        zeros = dict.fromkeys(
            ("map_bytes", "pages", "pages_used", "pages_free", "readers", "readers_max",
             "steady_points", "unsteady_commits"), 0,
        )  # fmt: skip
        return {
            "path": self.path,
            "durability": self.durability,
            "read_only": self.read_only,
            "file_bytes": size,
            "page_bytes": 8192,
            "entries": entries - 1,
            "last_txnid": int(versions),
            "batches": self.leader.batches,
            "closures": self.leader.closures,
            "handles": 1,
            "poisoned": False,
            **zeros,
        }

    @property
    def trips(self) -> int:
        """Number of round trips to the server."""
        return self._server.trips

    needs_recovery = False

    # --- what only a file has ----------------------------------------------------------------

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidOptionError(
            f"{self.path}: is on a server, which does this for a file only: use the server's own "
            "backups, or export the sessions"
        )

    alone = backup = copy_compact = restore = exclusive = _refuse

    def wipe_records(self) -> None:
        """Do nothing: the server's log is out of reach."""

    # --- the end -----------------------------------------------------------------------------

    def environment(self) -> PostgresStore:
        """Return what the layers above use of an environment: this object."""
        self._need_open()
        return self

    def close(self) -> None:
        """Close the store after pending work. Idempotent."""
        if self._is_closed:
            return
        if self.queue.led_here or get_ident() in self._live:
            raise InternalError("close() was called inside a transaction on the same thread")
        try:
            self.queue.call(lambda _: None, job=True)
        finally:
            self._is_closed = True
            self.queue.retire()
            self._server.close()

    @contextmanager
    def _told(self) -> Generator[None, None, None]:
        """Raise errors of the driver as those of memcore."""
        try:
            yield
        except psycopg.Error as error:
            raise translate(error, self.path) from error

    def _need_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self.path}: the store is closed; open it again")

    def _need_writable(self) -> None:
        self._need_open()
        if self.read_only:
            raise ReadOnlyError(f"{self.path}: this handle was opened with read_only=True")


def _never() -> bool:
    """Return False: a commit always waits for the server."""
    return False


def _new_record(durability: str) -> bytes:
    now_ms = clock_us() // 1000
    return Format.new(durability=durability, seed=os.urandom(16), created_ms=now_ms).pack()


# --- A store filled from another one: in key order, and continued if it was cut short -------------


class Filling:
    """A store that nobody can open until it is finished."""

    def __init__(self, server: Server, connection: Connection[Any], *, is_new: bool) -> None:
        self._server = server
        self._connection = connection
        self.path = server.path
        """Address without its password."""
        self.is_new = is_new
        """False if an earlier copy was cut short: its rows are compared, not written again."""

    def replace(self, start: bytes, stop: bytes, rows: list[tuple[bytes, bytes]]) -> int:
        """Make ``start <= key < stop`` hold these rows; returns the number of rows that changed."""
        server, connection = self._server, self._connection
        keys = [key for key, _ in rows]
        with connection.transaction():
            self._need_filling()
            gone = connection.execute(
                server.sql(schema.FILL_DELETE), (start, stop, keys), binary=True
            )
            put = connection.execute(
                server.sql(schema.FILL_PUT), (keys, [value for _, value in rows]), binary=True
            )
        return gone.rowcount + put.rowcount

    def _need_filling(self) -> None:
        found = self._connection.execute(self._server.sql(schema.IS_FILLING)).fetchone()
        if found is None:
            msg = f"{self.path}: another copy into it was faster; nothing more was written"
            raise StorageError(msg)

    def count_from(self, counter: bytes, number: int) -> None:
        """Have a counter give out only larger numbers."""
        self._connection.execute(self._server.sql(schema.FILL_NUMBER), (counter, number))

    def finish(self) -> None:
        """Let everybody open the store."""
        with self._connection.transaction():
            self._need_filling()
            self._connection.execute(self._server.sql(schema.FINISH), (schema.SCHEMA_VERSION,))


@contextmanager
def filling(address: str, record: Format, secret: bytes) -> Generator[Filling, None, None]:
    """Create a store to be filled, or go on with one whose filling was cut short.

    Raises:
        InvalidOptionError: there is a store already, or the beginning of another one's copy.
        StoreLockedError: another copy into it is under way.
        StoreAccessError: the server cannot be reached.
        StorageError: it fails; the next call goes on.
    """
    server = Server(address, size=1)
    try:
        with closing(server.connect()) as connection:
            taken = connection.execute(
                "select pg_try_advisory_lock(hashtext(%s))", (f"copy {server.name}",)
            ).fetchone()
            if taken is None or not taken[0]:
                raise StoreLockedError(f"{server.path}: another copy into it is under way")
            is_new = not server.is_there(connection)
            if is_new:
                server.make(connection, record.pack(), secret, version=schema.FILLING)
            found = connection.execute(server.sql(schema.OPENED)).fetchall()
            if found[0][0] != schema.FILLING:
                msg = f"{server.path}: there is a store already; copy into a new schema"
                raise InvalidOptionError(msg)
            row = connection.execute(server.sql(schema.GET), (FORMAT_KEY,), binary=True).fetchone()
            if row is None or Format.unpack(row[0], server.path).seed != record.seed:
                msg = f"{server.path}: holds the beginning of another store's copy; drop its schema"
                raise InvalidOptionError(msg)
            with connection.transaction():
                connection.execute(server.sql(schema.FILL_STORE), (secret,))
                connection.execute(
                    server.sql(schema.FILL_PUT), ([FORMAT_KEY], [record.pack()]), binary=True
                )
            yield Filling(server, connection, is_new=is_new)
    except psycopg.OperationalError as error:
        raise StoreAccessError(
            f"{server.path}: cannot be reached: {str(error).strip()}; copying again goes on with "
            "what was copied"
        ) from error
    except psycopg.Error as error:
        raise translate(error, server.path) from error
