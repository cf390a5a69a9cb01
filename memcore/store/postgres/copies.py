"""Copies on a server: filled once from another store, or kept warm by a file that they follow.

Nobody can open a copy until it is finished. A warm copy is never finished but by ``promote``, and
every shipment to it is one transaction, so it always is one state of its file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from struct import Struct
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import psycopg

from memcore.codec import keys
from memcore.codec.keys import COUNTERS, OF_ONE_FILE
from memcore.codec.values import open_number
from memcore.errors import (
    InvalidOptionError,
    NotFoundError,
    StorageError,
    StoreLockedError,
    SupersededError,
    TargetExistsError,
)
from memcore.store.changes import FIRST, Mark, MarkMovedError, batches, mark_of, ranges
from memcore.store.datafile import FORMAT_KEY, Format
from memcore.store.postgres import schema
from memcore.store.postgres.server import PAUSE_SECONDS, Server, left, translate

if TYPE_CHECKING:
    from psycopg import Connection

    from memcore.store.changes import Changes

__all__ = ["Filling", "WarmTarget", "filling", "promoted"]

_LENGTH = Struct(">I")
_RELEASE_SECONDS: Final = 2.0
"""Time in which a server notices that a connection was closed."""


# --- A store filled from another one: in key order, and continued if it was cut short -------------


class Filling:
    """A store that nobody can open until it is finished."""

    def __init__(self, server: Server, connection: Connection[Any]) -> None:
        self._server = server
        self._connection = connection
        self.path = server.path
        """Address without its password."""

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
        TargetExistsError: there is a store already, or the beginning of another one's copy.
        StoreLockedError: another copy into it is under way.
        StoreAccessError: the server cannot be reached.
        StorageError: it fails; the next call goes on.
    """
    server = Server(address, size=1)
    with server.reached() as connection:
        _take_lock(
            server, connection, "another copy into it is under way", seconds=_RELEASE_SECONDS
        )
        if not server.is_there(connection):
            server.make(connection, record.pack(), secret, version=schema.FILLING)
        found = connection.execute(server.sql(schema.OPENED)).fetchall()
        if found[0][0] != schema.FILLING:
            msg = f"{server.path}: there is a store already; copy into a new schema"
            raise TargetExistsError(msg)
        _need_of(server, connection, record)
        if _mark(server, connection) is not None:
            msg = f"{server.path} is the warm copy of a file; 'memcore promote' ends that"
            raise TargetExistsError(msg)
        with connection.transaction():  # they may have changed since a copy that was cut short
            connection.execute(server.sql(schema.FILL_STORE), (secret,))
            connection.execute(
                server.sql(schema.FILL_PUT), ([FORMAT_KEY], [record.pack()]), binary=True
            )
        yield Filling(server, connection)


def _take_lock(
    server: Server, connection: Connection[Any], why: str, *, seconds: float = 0.0
) -> None:
    """Take the lock of a copy, which lasts as long as the connection.

    The server notices a moment later that a connection was closed: who does not ask again later
    waits some ``seconds`` for the lock of one that has just ended.

    Raises:
        StoreLockedError: another process has it.
    """
    query, until = "select pg_try_advisory_lock(hashtext(%s))", monotonic() + seconds
    while True:
        taken = connection.execute(query, (f"copy {server.name}",)).fetchone()
        if taken is not None and taken[0]:
            return
        if monotonic() >= until:
            raise StoreLockedError(f"{server.path}: {why}")
        sleep(PAUSE_SECONDS)


def _need_of(server: Server, connection: Connection[Any], record: Format) -> None:
    """Refuse the copy of another store.

    Raises:
        TargetExistsError
    """
    row = connection.execute(server.sql(schema.GET), (FORMAT_KEY,), binary=True).fetchone()
    if row is None or Format.unpack(row[0], server.path).seed != record.seed:
        msg = (
            f"{server.path} holds the copy of another store, or its beginning; name a schema that "
            "does not exist"
        )
        raise TargetExistsError(msg)


# --- A warm copy: follows a file, shipment by shipment --------------------------------------------

_targets: WeakSet[WarmTarget] = WeakSet()


def _after_fork_in_child() -> None:
    for target in list(_targets):
        target.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)


class WarmTarget:
    """A copy on a server that follows a file; one process at a time ships to it.

    Not thread-safe. Errors of the driver are raised as those of memcore, and end the connection.
    """

    def __init__(self, address: str) -> None:
        """Read the address; connect later.

        Raises:
            InvalidOptionError: it cannot be read.
        """
        self._server = Server(address, size=1)
        self.path = self._server.path
        """Address without its password."""
        self._connection: Connection[Any] | None = None
        self.mark: Mark | None = None
        """The mark of the copy when it was last looked at; None: it has none."""
        self.is_store = False
        """True if it can be opened: it was promoted, or is no copy."""
        _targets.add(self)

    @property
    def is_connected(self) -> bool:
        """True if this process may ship."""
        return self._connection is not None

    def connect(self, record: Format, secret: bytes | None) -> None:
        """Become the process that ships; make the schema if there is none.

        Raises:
            StoreLockedError: another process ships; ``mark`` is that of the copy.
            InvalidOptionError: it is the copy of another store.
            StoreAccessError: the server cannot be reached, or refuses the role.
            StorageError: it fails.
        """
        self.disconnect()
        connection = self._server.connected()
        try:
            with self._told():
                self._begin(connection, record, secret)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _begin(self, connection: Connection[Any], record: Format, secret: bytes | None) -> None:
        server = self._server
        if not server.is_there(connection):
            key = secret or os.urandom(32)
            server.make(connection, _shipped(record).pack(), key, version=schema.FILLING)
        version = connection.execute(server.sql(schema.OPENED)).fetchall()[0][0]
        self.is_store = version != schema.FILLING
        self.mark = _mark(server, connection)
        if not self.is_store:
            _need_of(server, connection, record)
            _take_lock(server, connection, "another process ships to it")
            self.mark = _mark(server, connection)  # that process may have shipped meanwhile

    def disconnect(self) -> None:
        """Let other processes ship. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def forget(self) -> None:
        """Leave the connection to the parent, in the child of a fork."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        left.append(connection)
        # The child's copy of the socket would keep the session, and its lock, beyond the parent.
        with suppress(OSError, psycopg.Error):
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, connection.fileno())
            os.close(null)

    def check(self) -> None:
        """Check that the copy still is what this process left.

        Raises:
            SupersededError, MarkMovedError, StorageError: as for ``ship``.
        """
        with self._shipping():
            pass

    def ship(self, changes: Changes, secret: bytes | None, mark: Mark) -> None:
        """Make the copy hold the state of the file that ``changes`` lead to; all of it or nothing.

        A copy that is filled for the first time goes on where it was cut short.

        Raises:
            SupersededError: the copy was promoted.
            MarkMovedError: another process shipped meanwhile.
            SnapshotLostError, CorruptStoreError: the changes cannot be read.
            StorageError: the server failed; connect again, and see by ``mark`` what it holds.
        """
        changes.find()
        special: list[tuple[bytes, bytes | None]] = []
        is_first = self.mark is None or not self.mark.is_complete
        if changes.is_whole and is_first:
            with self._shipping() as connection:
                self._put_mark(connection, mark._replace(is_complete=False))
            self.mark = mark._replace(is_complete=False)
            with self._told():
                self._compare(changes, special)
            with self._shipping() as connection:
                self._end(connection, special, secret, mark)
        else:
            with self._shipping() as connection:
                if changes.is_whole:
                    self._compare(changes, special)
                else:
                    self._apply(connection, changes, special)
                self._end(connection, special, secret, mark)
        self.mark = mark

    @contextmanager
    def _told(self) -> Generator[None, None, None]:
        """Raise errors of the driver as those of memcore, and end the connection."""
        try:
            yield
        except psycopg.Error as error:
            self.disconnect()
            raise translate(error, self.path) from error

    @contextmanager
    def _shipping(self) -> Generator[Connection[Any], None, None]:
        """Open a transaction in which nobody else ships or promotes."""
        server, connection = self._server, self._connection
        if connection is None:
            raise StorageError(f"{self.path}: the connection was lost")
        with self._told(), connection.transaction():
            version, mark = _locked(server, connection)
            if version != schema.FILLING:
                raise SupersededError(f"{self.path} was promoted: the store is there now")
            if mark != self.mark:
                raise MarkMovedError
            yield connection

    def _put_mark(self, connection: Connection[Any], mark: Mark) -> None:
        query = self._server.sql(schema.FILL_PUT)
        connection.execute(query, ([schema.MARK_KEY], [mark.pack()]), binary=True)

    def _end(
        self,
        connection: Connection[Any],
        special: list[tuple[bytes, bytes | None]],
        secret: bytes | None,
        mark: Mark,
    ) -> None:
        """Write the format record, the counters, the secret and the mark."""
        server = self._server
        for key, value in special:
            if key == FORMAT_KEY:
                record = _shipped(Format.unpack(value, self.path))
                connection.execute(
                    server.sql(schema.FILL_PUT), ([key], [record.pack()]), binary=True
                )
            elif key in _COUNTER_KEYS and value is not None:
                number = open_number(key, value)
                connection.execute(server.sql(schema.FILL_NUMBER), (key, number))
        if secret is not None:
            connection.execute(server.sql(schema.FILL_STORE), (secret,))
        self._put_mark(connection, mark)

    def _compare(self, changes: Changes, special: list[tuple[bytes, bytes | None]]) -> None:
        """Compare the copy with all rows, range by range, and replace what differs."""
        server, connection = self._server, self._connection
        if connection is None:
            raise StorageError(f"{self.path}: the connection was lost")
        into = Filling(server, connection)
        for start, stop, batch in ranges(_rows_in(changes, special.append)):
            query = server.sql(schema.DIGEST)
            found = connection.execute(query, (start, stop), binary=True).fetchone()
            if found is None or bytes(found[0]) != _digest(batch):
                into.replace(start, stop, batch)

    def _apply(
        self,
        connection: Connection[Any],
        changes: Changes,
        special: list[tuple[bytes, bytes | None]],
    ) -> None:
        """Write what changed."""
        put, gone = self._server.sql(schema.FILL_PUT), self._server.sql(schema.DELETE_ROWS)
        for batch in batches(_rows_in(changes, special.append)):
            rows = [row for row in batch if row[1] is not None]
            lost = [key for key, value in batch if value is None]
            if rows:
                values = [key for key, _ in rows], [value for _, value in rows]
                connection.execute(put, values, binary=True)
            if lost:
                connection.execute(gone, (lost,), binary=True)


_COUNTER_KEYS: Final = frozenset(keys.counter(which) for which in COUNTERS)


def _mark(server: Server, connection: Connection[Any]) -> Mark | None:
    row = connection.execute(server.sql(schema.GET), (schema.MARK_KEY,), binary=True).fetchone()
    return mark_of(None if row is None else row[0])


def _shipped(record: Format) -> Format:
    """Return the format record of a copy: a server has no mode without durability."""
    durability = "relaxed" if record.durability == "relaxed" else "full"
    return record._replace(durability=durability)


def _rows_in(
    changes: Iterable[tuple[bytes, bytes | None]],
    special: Callable[[tuple[bytes, bytes | None]], None],
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the changes of rows; those of counters and the store's own go to ``special``."""
    for change in changes:
        if change[0] < FIRST:
            special(change)
        elif change[0] not in OF_ONE_FILE:
            yield change


def _digest(rows: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the digest of rows as the server computes it (``schema.DIGEST``)."""
    found = sha256()
    for key, value in rows:
        found.update(sha256(_LENGTH.pack(len(key)) + key + value).digest())
    return found.digest()


def promoted(address: str, *, dry_run: bool) -> tuple[str, Mark, bool]:
    """Make a warm copy a store of its own; return its path, its last mark, and if it still is one.

    With ``dry_run`` it stays what it is, and a shipment is not waited for. A store that was
    promoted before stays one.

    Raises:
        NotFoundError: there is no such schema.
        InvalidOptionError: it is no warm copy, or was never filled to the end.
        StoreAccessError: the server cannot be reached.
        StorageError: the server failed, or a shipment did not end.
    """
    server = Server(address, size=1)
    with server.reached() as connection:
        if not server.is_there(connection):
            raise NotFoundError(f"{server.path}: there is no such store on the server")
        if dry_run:
            version = connection.execute(server.sql(schema.OPENED)).fetchall()[0][0]
            found = _promotable(server, version, _mark(server, connection))
            return server.path, found, version == schema.FILLING
        with connection.transaction():
            version, mark = _locked(server, connection)
            found = _promotable(server, version, mark)
            if version == schema.FILLING:
                connection.execute(server.sql(schema.FINISH), (schema.SCHEMA_VERSION,))
    return server.path, found, False


def _promotable(server: Server, version: int, mark: Mark | None) -> Mark:
    if mark is None:
        is_store = version != schema.FILLING
        what = "is a store of its own" if is_store else "is not a warm copy but one cut short"
        raise InvalidOptionError(f"{server.path}: {what}: there is nothing to promote")
    if not mark.is_complete:
        msg = (
            f"{server.path}: the first shipment never ended, so sessions are missing; open the "
            "file with warm= to finish it"
        )
        raise InvalidOptionError(msg)
    return mark


def _locked(server: Server, connection: Connection[Any]) -> tuple[int, Mark | None]:
    """Lock a copy in this transaction; return its version and its mark."""
    connection.execute("set local lock_timeout = 20000")
    version = connection.execute(server.sql(schema.LOCK_COPY)).fetchall()[0][0]
    # By a statement of its own: it sees what the one whose lock was waited for has committed.
    return version, _mark(server, connection)
