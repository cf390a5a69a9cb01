"""PostgresStore: the ordered map in a PostgreSQL database, for processes on many machines.

A closure runs on a cache of partitions (``partitions.py``), each at one version. Reads end with one
query that compares the versions of what was read; commits are one statement that locks the
partitions, compares, writes and counts up. Whatever moved meanwhile is dropped from the cache, and
the closure runs again. So a call costs one trip to the server, and one more for each partition that
it touches first; a session is opened in one trip together with its names.

A closure that scans over several partitions runs on the server: reads in one snapshot, writes under
a lock on the table of versions, which all other commits take in turn.

The queue of the process is the one of every store: a leader runs all waiting closures in one
transaction, so that one statement commits them all.
"""

from __future__ import annotations

import os
import secrets
from _thread import get_ident
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from weakref import WeakSet

import psycopg
from psycopg import sql
from psycopg_pool import PoolClosed, PoolTimeout

from memcore._fast import BatchRunner, EnvironmentFields, WriteBatch, WriteRequest
from memcore.codec.values import clock_us
from memcore.errors import (
    ClosedError,
    InternalError,
    InvalidOptionError,
    NestedCallError,
    NotFoundError,
    OutcomeUnknownError,
    ReadOnlyError,
    StorageError,
    StoreAccessError,
    StoreFormatError,
)
from memcore.options import refuse_copies
from memcore.privacy.keyring import Secret
from memcore.store.commit import CommitQueue, WriterNeeded, copy_of, stored_alone
from memcore.store.datafile import FORMAT_KEY, Format
from memcore.store.interface import Notifier, ReadTxn, Txn
from memcore.store.postgres import schema
from memcore.store.postgres.partitions import is_rarely_written, needs_barrier, partition_of_row
from memcore.store.postgres.schema import bigints, byteas
from memcore.store.postgres.server import (
    ALONE,
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
    is_of_store,
    is_transient,
    may_repeat,
    noted,
    transaction,
    translate,
)
from memcore.store.transaction import Snapshot, WriteTxn

if TYPE_CHECKING:
    import asyncio

    from psycopg import Connection

__all__ = ["CONNECTIONS_MAX", "PostgresStore"]

T = TypeVar("T")
R = TypeVar("R", bound=RawReads)

CONNECTIONS_MAX: Final = 16
_OPTIMISTIC: Final = 8
"""Attempts on the cache; then a read runs in one snapshot on the server, a write under its lock."""
_ID_BYTES: Final = 8
_FIRST_KEY: Final = b"\x01"

_WRITTEN: Final = b"w"
_SHARED: Final = b"r"
_UNLOCKED: Final = b"c"
"""Kinds of locks of a partition in a commit, as in ``schema.FUNCTIONS``."""


class PostgresSnapshot(Snapshot):
    """A read transaction: its ranges are read by its reader, not with cursors."""

    __slots__ = ()
    raw: RawReads | None  # type: ignore[assignment]

    @property
    def is_remote(self) -> bool:  # type: ignore[override]
        """True if what is read ahead is kept."""
        return _open(self.raw).is_cached

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int = 0
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with ``start <= key < stop``."""
        return _open(self.raw).rows(max(start, _FIRST_KEY), stop, reverse=reverse, limit=limit)

    def take(self, start: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first ``count`` rows from ``start`` on, of its partition if it lies in one."""
        return _open(self.raw).take(max(start, _FIRST_KEY), count)

    def prefetch(self, keys: Sequence[bytes], /) -> None:
        """Read these keys in one trip."""
        _open(self.raw).prefetch(keys)

    def prefetch_named(self, scope_key: bytes, name_kind: int, name: bytes, kind: int, /) -> None:
        """Read two names and the object that they lead to in one trip."""
        _open(self.raw).prefetch_named(scope_key, name_kind, name, kind)


class PostgresTxn(WriteTxn):
    """A write transaction shared by the closures of one batch."""

    __slots__ = ()
    raw: RawWrites | None

    is_remote = PostgresSnapshot.is_remote

    scan = PostgresSnapshot.scan
    take = PostgresSnapshot.take
    prefetch = PostgresSnapshot.prefetch
    prefetch_named = PostgresSnapshot.prefetch_named

    def get_new(self, key: bytes, /) -> bytes | None:
        """Return the value of a key that is most probably absent: the commit finds out."""
        return _open(self.raw).get_new(key)

    def delete_range(self, start: bytes, stop: bytes) -> int:
        """Delete all rows with ``start <= key < stop``; returns their number."""
        raw = _open(self.raw)
        found = [key for key, _ in raw.rows(max(start, _FIRST_KEY), stop)]
        for key in found:
            raw.writes[key] = None
        if found:
            self.dirty = self.deleted = True
        return len(found)


def _open(raw: R | None) -> R:
    """Return the raw transaction.

    Raises:
        InternalError: it has ended.
    """
    if raw is None:
        raise InternalError("a transaction was used after its end")
    return raw


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
                if not may_repeat(error) or monotonic() > until:
                    self._fail(batch, error)
                else:
                    sleep(PAUSE_SECONDS)

    def _attempt(self, batch: WriteBatch, lost: list[bytes]) -> None:
        """Run the batch on the cache and commit it with one statement; behind locks if it lost."""
        server = self._server
        if lost:
            self._attempt_in_line(batch, lost)
            return
        reader = CachedReader(server)
        raw = RawWrites(server, reader, self.env.next_id(), may_ask=True)
        with self._transaction(raw) as txn:
            if self._run_calls(txn, batch, reader):
                self._end(txn, batch, raw, reader)

    def _attempt_in_line(self, batch: WriteBatch, lost: list[bytes]) -> None:
        """Run the batch with the locks of all partitions that it needs, after others were faster.

        Otherwise one of several processes that write to one session might never have its turn. The
        locks are taken in key order, as by every commit, so the batch takes up no more calls: their
        partitions would be locked out of order.
        """
        server = self._server
        with transaction(server, WRITING) as connection:
            line = server.ask(connection, server.sql(schema.STAND_IN_LINE), (byteas(sorted(lost)),))
            server.drop(lost, dict(line))
            reader = CachedReader(server, connection)
            raw = RawWrites(server, reader, self.env.next_id())
            with self._transaction(raw) as txn:
                if self._run_calls(txn, batch, reader, takes_more=False):
                    self._end(txn, batch, raw, reader, connection)

    def _attempt_on_server(self, batch: WriteBatch) -> None:
        """Run a batch that scans over partitions under a lock that all commits respect."""
        server = self._server
        with transaction(server, ALONE) as connection:
            raw = RawWrites(server, ServerReader(server, connection), self.env.next_id())
            with self._transaction(raw) as txn:
                if self._run_calls(txn, batch, None):
                    versions = CachedReader(server)
                    names = sorted({partition_of_row(key) for key in raw.writes})
                    found = server.versions(names, connection)
                    versions.used = {name: found.get(name, 0) for name in names}
                    self._end(txn, batch, raw, versions, connection)

    @contextmanager
    def _transaction(self, raw: RawWrites) -> Generator[PostgresTxn, None, None]:
        txn = PostgresTxn(raw, False)
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
                    if reader is not None and not _open(txn.raw).is_current():
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
        except (Rerun, Wide, NumbersNeeded):
            raise  # of what it reads, not of the closure: the batch runs again, or fails as a whole
        except psycopg.Error as error:
            if is_of_store(error):
                raise
            call.error = error
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

    def _end(
        self,
        txn: PostgresTxn,
        batch: WriteBatch,
        raw: RawWrites,
        reader: CachedReader,
        held: Connection[Any] | None = None,
    ) -> None:
        """Commit what a batch wrote, and decide it; an interrupt is raised when that is done.

        From the moment that the statement is sent, an interrupt only delays: what is stored must
        never be mistaken for something that has to run again.

        Args:
            txn: the transaction of the batch.
            batch: its calls have all run.
            raw: what they wrote.
            reader: the versions of what they read.
            held: a connection with an open transaction, which ends with the commit.

        Raises:
            Rerun: nothing was written, and what was read has moved.
            Conflict: a version has moved; nothing is stored.
            OutcomeUnknownError: the connection was lost, and nobody knows what is stored.
        """
        if not raw.writes and not raw.is_current():
            raise Rerun
        writes = _by_partition(raw.writes)
        for name in writes:
            if name not in reader.used:
                reader.partition(name)  # written without being read
        values = self._values(raw, writes, reader.used)
        callbacks = list(txn.callbacks)
        interrupt: BaseException | None = None
        is_stored = not raw.writes
        while not batch.decided:
            try:
                if not is_stored:
                    self._need_stored(values, writes, held, reader.life)
                    is_stored = True
                if interrupt is None:
                    self._server.apply(reader.used, writes)
                else:  # it may have been applied in part
                    self._server.forget_all(list(writes))
                self.run_callbacks(callbacks)
                if txn.topics:
                    self.env.notifier.publish(txn.topics)
                self.batches += 1
                self.closures += len(batch.calls)
                batch.decided = True
            except BaseException as error:  # noqa: BLE001 - raised by the next, or below
                interrupt = self._outlived(error, is_stored, (values, writes, held)) or interrupt
                is_stored = True
        if interrupt is not None:
            raise interrupt

    def _need_stored(
        self, values: Values, writes: dict[bytes, Any], held: Connection[Any] | None, life: int
    ) -> None:
        """Send a commit.

        Raises:
            Conflict: partitions have moved, and nothing is stored.
        """
        lost = self._send(values, held, life)
        there = [key for key, version in lost if version < 0]
        if there:  # they were supposed to be absent
            self._server.fetch(None, list({*map(partition_of_row, there)}), there, [], held)
            raise Conflict([])
        if lost:
            self._server.drop([name for name, _ in lost], dict(lost))
            raise Conflict([n for n in values[0] if n in writes or not is_rarely_written(n)])

    def _outlived(
        self, error: BaseException, is_stored: bool, sent: tuple[Any, Any, Any]
    ) -> BaseException | None:
        """Return if a commit is stored in spite of an error; an interrupt, which is raised later.

        Raises:
            Conflict: the connection was lost, and it is not stored.
            OutcomeUnknownError: the connection was lost, and nobody knows.
            Whatever ``error`` is otherwise.
        """
        is_refusal = isinstance(error, Exception)
        if is_refusal and (is_stored or not is_transient(error)):
            raise error  # the server refused it, it was never sent, or it is stored and more failed
        interrupt = None if is_refusal else error
        if not is_stored:
            is_stored, again = self._settle(error, *sent)
            interrupt = again or interrupt
        if is_stored:
            return interrupt
        if interrupt is not None:
            raise interrupt
        raise Conflict([]) from error

    def _values(
        self,
        raw: RawWrites,
        writes: dict[bytes, dict[bytes, bytes | None]],
        used: dict[bytes, int],
    ) -> Values:
        """Return the arguments of ``commit_2``, with a new id."""
        names, rows = sorted(used), raw.writes
        puts = sorted((key, value) for key, value in rows.items() if value is not None)
        return (
            names,
            [used[name] for name in names],
            b"".join([_kind(name, writes) for name in names]),
            secrets.token_bytes(_ID_BYTES),
            sorted(raw.absent),
            [key for key, _ in puts],
            [value for _, value in puts],
            [key for key, value in rows.items() if value is None],
            any(needs_barrier(name) for name in writes),
            self.is_relaxed,
        )

    def _send(
        self, values: Values, held: Connection[Any] | None, life: int
    ) -> list[tuple[bytes, int]]:
        """Commit; returns the partitions that have moved, with their versions.

        Raises:
            Conflict: a connection was lost since the first read, so that versions prove nothing.
        """
        server = self._server
        query = server.sql(schema.COMMIT)
        names, versions, kinds, number, absent, keys, bodies, gone, *modes = values
        values = (
            byteas(names), bigints(versions), kinds, number, byteas(absent),
            byteas(keys), byteas(bodies), byteas(gone), *modes,
        )  # fmt: skip
        if held is None:
            with server.connection() as connection:
                if life != server.life:
                    raise Conflict([])
                return server.ask(connection, query, values)
        lost = server.ask(held, query, values)
        # Of a transaction that failed the server says ROLLBACK, without an error.
        if lost:
            return lost
        try:
            said = held.execute("commit").statusmessage
        except psycopg.Error as error:
            server.begin_anew()
            raise noted(error) from None
        if said != "COMMIT":
            raise StorageError("the server rolled the transaction back")
        return lost

    def _settle(
        self,
        error: BaseException,
        values: Values,
        writes: dict[bytes, Any],
        held: Connection[Any] | None,
    ) -> tuple[bool, BaseException | None]:
        """Find out if a commit is stored whose answer was lost; if not, make sure it never is.

        Returns that, and the last interrupt that came meanwhile: it waits until the fate is known,
        for what is undecided would run again.

        The statement may still be on its way to the server. If it has not arrived, the versions are
        counted up, so that it will find that they have moved.

        Raises:
            OutcomeUnknownError: the server cannot be asked, or many others have committed since.
        """
        server, until = self._server, monotonic() + PATIENCE_SECONDS
        versions = dict(zip(values[0], values[1], strict=True))
        names = sorted(writes)
        asked = (byteas(names), bigints([versions[name] for name in names]), values[3])
        found = interrupt = None
        while found is None and monotonic() < until:
            try:
                server.forget_all(names)
                if held is not None:
                    held.close()  # if its transaction is open, settling would wait for its locks
                try:
                    with server.connection() as connection:
                        found = server.ask(connection, server.sql(schema.SETTLE), asked)[0][0]
                except PoolClosed:
                    break
                except Exception:  # noqa: BLE001 - lost again, locked by the commit, a standby
                    sleep(PAUSE_SECONDS)
            except BaseException as again:  # noqa: BLE001 - one interrupt is enough to raise
                interrupt = again
        if found is None or found < 0:
            raise OutcomeUnknownError(
                f"{self.env.path}: the connection was lost within a commit ({error}), and whether "
                "it is stored cannot be found out: read what is stored before you repeat it"
            ) from error
        return bool(found), interrupt

    def _fail(self, batch: WriteBatch, error: Exception) -> None:
        """Fail every undecided call of a batch with the batch's error."""
        failure = translate(error, self.env.path)
        for call in batch.calls:
            if not call.done:
                call.error = copy_of(failure, error)
        batch.decided = True

    def _typed(self, error: BaseException) -> BaseException:
        if isinstance(error, psycopg.Error) and not is_of_store(error):
            return error  # of what the closure asked of another database
        typed = translate(error, self.env.path)
        if typed is not error:
            typed.__cause__ = error
        return typed

    def _stored_alone(self, error: Exception) -> InternalError:
        return stored_alone(error)


def _kind(name: bytes, writes: dict[bytes, Any]) -> bytes:
    if name in writes:
        return _WRITTEN
    return _UNLOCKED if is_rarely_written(name) else _SHARED


def _by_partition(rows: dict[bytes, bytes | None]) -> dict[bytes, dict[bytes, bytes | None]]:
    found: dict[bytes, dict[bytes, bytes | None]] = {}
    for key, value in rows.items():
        found.setdefault(partition_of_row(key), {})[key] = value
    return found


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
    __reduce__ = refuse_copies

    def __init__(
        self,
        address: str,
        *,
        read_only: bool = False,
        create: bool = True,
        durability: str | None = None,
        connections: int = CONNECTIONS_MAX,
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
        with server.reached() as connection:
            if not server.is_there(connection):
                if not create:
                    raise NotFoundError(f"{self.path}: there is no such store on the server")
                server.make(connection, _new_record(durability or "full"), os.urandom(32))
            found = connection.execute(server.sql(schema.OPENED)).fetchall()
            row = connection.execute(server.sql(schema.GET), (FORMAT_KEY,), binary=True).fetchone()
            mark = connection.execute(server.sql(schema.GET), (schema.MARK_KEY,)).fetchone()
            if found[0][0] == schema.SCHEMA_VERSION:
                server.need_functions(connection)
        version, secret, server_ms, is_replica = found[0]
        if mark is not None and version == schema.FILLING:
            raise StoreAccessError(
                f"{self.path} is the warm copy of a file; 'memcore promote' makes it a store of "
                "its own, and the file then refuses writes"
            )
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
                f"{self.path} is a store with durability {record.durability!r}, not "
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
            if isinstance(error, psycopg.Error) and not is_of_store(error):
                raise  # of what ``fn`` asked of another database
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
        snapshot, me = PostgresSnapshot(), get_ident()
        snapshot.raw = raw = RawReads(reader, self.next_id())
        snapshot.get = raw.get
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
                if not (is_of_store(error) and may_repeat(error)) or monotonic() > until:
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
            "entries": entries,
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
            f"{self.path} is on a server, which does this for a file only: use the server's own "
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
            raise NestedCallError(
                "close() inside a transaction on the same thread: close it after that"
            )
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
            raise ReadOnlyError(f"{self.path}: the database is open read-only; open it for writing")


def _never() -> bool:
    """Return False: a commit always waits for the server."""
    return False


def _new_record(durability: str) -> bytes:
    now_ms = clock_us() // 1000
    return Format.new(durability=durability, seed=os.urandom(16), created_ms=now_ms).pack()
