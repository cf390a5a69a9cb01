"""Copy of a whole store into another kind of store: from a file to a server, and back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from memcore.codec import keys
from memcore.codec.keys import COUNTERS, OF_ONE_FILE
from memcore.codec.values import open_number
from memcore.database.database import Database
from memcore.database.open import open_database
from memcore.errors import (
    CorruptStoreError,
    InvalidOptionError,
    NotFoundError,
    StorageError,
    TargetExistsError,
)
from memcore.files import put_private
from memcore.maintenance.check import check_database
from memcore.maintenance.salvage import put_rows
from memcore.options import checked_callable, checked_path
from memcore.privacy.keyring import SUFFIX, secret_of
from memcore.records import record
from memcore.session.engine import Engine
from memcore.store import build_detached, open_detached
from memcore.store.changes import END, FIRST, ranges
from memcore.store.copy import beside, prove
from memcore.store.datafile import FORMAT_KEY, Format, publish
from memcore.store.interface import SERVER_SCHEMES, ReadTxn, Store, need_known_address
from memcore.store.transaction import is_audited, stored
from memcore.tokens import get_counter

if TYPE_CHECKING:
    from memcore.store.postgres.copies import Filling

__all__ = ["CopyReport", "copy_store"]

Progress: TypeAlias = Callable[[int, int], None]
_PATIENCE_SECONDS: Final = 0.2


@record(frozen=True, slots=True)
class CopyReport:
    """Result of a copy."""

    source: str
    target: str
    rows: int
    """Number of rows that the target holds now, counters and the format record apart."""
    written: int
    """Number of those that were not there already, from a copy that was cut short."""


def copy_store(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> CopyReport:
    """Copy a store, a file or the address of one on a server, into a new one of either kind.

    The copy is one state of the source, which may be read and written meanwhile; what is written
    then is not in it. It is compared with the source row by row before anybody can open it. A copy
    to a server that was cut short goes on when it is called again; one to a file leaves nothing.

    Args:
        source: the path, or the address, of a store.
        target: the same, of a store that does not exist yet.
        progress: called with the rows done and the number of rows.

    Raises:
        TargetExistsError: the target exists.
        InvalidOptionError: the source is encrypted or audited.
        NotFoundError: there is no such source.
        CorruptStoreError: the copy differs from the source.
        StorageError: the file or the server failed.
    """
    from_, to = checked_path("source", source), checked_path("target", target)
    need_known_address(to)
    checked_callable("progress", progress)
    if not from_.startswith(SERVER_SCHEMES) and not os.path.lexists(from_):
        raise NotFoundError(f"{from_}: there is no such file to copy")
    if not to.startswith(SERVER_SCHEMES) and os.path.lexists(to):
        raise TargetExistsError(f"{to} exists; a copy never overwrites")
    with open_database(from_, read_only=True, create=False) as db:
        store = db._engine.store  # noqa: SLF001 - as the other modules of this package
        _need_all(db, store)
        total = max(store.stats()["entries"], 1)
        return store.read(partial(_copy, store, to, total=total, progress=progress))


def _need_all(db: Database, store: Store) -> None:
    """Refuse a file whose last commit waits to be redone, as behind a power cut.

    Raises:
        StorageError: it does. A commit in progress looks the same, but not for long.
    """
    before = store.stats()["last_txnid"] if db.needs_recovery else None
    if before is None:
        return
    time.sleep(_PATIENCE_SECONDS)
    if db.needs_recovery and store.stats()["last_txnid"] == before:
        raise StorageError(
            f"{store.path}: its last commit was interrupted and is not in what a copy reads: open "
            "the file once for writing, then copy it"
        )


def _copy(
    store: Store, target: str, txn: ReadTxn, *, total: int, progress: Progress | None
) -> CopyReport:
    record = Format.unpack(stored(txn).get(FORMAT_KEY), store.path)
    if store.vault is not None or is_audited(txn, store.path):
        raise InvalidOptionError(
            f"{store.path} is encrypted or audited, which a copy of another kind cannot be: "
            "export its sessions, and import them"
        )
    for _ in txn.scan(FIRST, END, limit=1):
        break  # a store on a server reads in one snapshot from here on
    make = _to_server if target.startswith(SERVER_SCHEMES) else _to_file
    counted = _CopyProgress(total, progress)
    report = make(store, target, record, txn, counted)
    counted.end()
    return report


class _CopyProgress:
    """Reports progress."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress = total, progress
        self.rows = 0

    def add(self, count: int) -> None:
        """Count rows that are done."""
        self.rows += count
        if self._progress is not None:
            self._progress(min(self.rows, self._total), self._total)

    def end(self) -> None:
        """Report that all is done: the total may count rows that are not copied."""
        if self._progress is not None:
            self._progress(self._total, self._total)


def _counters(txn: ReadTxn) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield the rows of the counters and their numbers."""
    for which in COUNTERS:
        key = keys.counter(which)
        value = txn.get(key)
        if value is not None:
            yield key, value, open_number(key, value)


def _ranges(txn: ReadTxn) -> Iterator[tuple[bytes, bytes, list[tuple[bytes, bytes]]]]:
    """Yield all rows in batches: the first key, the key behind the last, and the rows."""
    return ranges(row for row in txn.scan(FIRST, END) if row[0] not in OF_ONE_FILE)


def _to_server(
    store: Store, address: str, record: Format, txn: ReadTxn, counted: _CopyProgress
) -> CopyReport:
    from memcore.store.postgres.copies import filling  # noqa: PLC0415 - an optional dependency

    durability = "relaxed" if record.durability == "relaxed" else "full"
    record = record._replace(durability=durability)
    secret = store.secret.found() or os.urandom(32)
    with filling(address, record, secret) as made:
        written = _fill(made, txn, counted)
        if _fill(made, txn, _CopyProgress(1, None)):
            msg = f"{made.path}: the copy differs from {store.path}: copy it again"
            raise CorruptStoreError(msg)
        made.finish()
    return CopyReport(store.path, made.path, counted.rows, written)


def _fill(made: Filling, txn: ReadTxn, counted: _CopyProgress) -> int:
    """Make the target hold the source's rows; returns the number of rows that differed."""
    written = 0
    for start, stop, batch in _ranges(txn):
        written += made.replace(start, stop, batch)
        counted.add(len(batch))
    for key, _, number in _counters(txn):
        made.count_from(key, number)
    return written


def _to_file(
    store: Store, path: str, record: Format, txn: ReadTxn, counted: _CopyProgress
) -> CopyReport:
    final = os.path.realpath(path)

    def rows() -> Iterator[tuple[bytes, bytes]]:
        for key, value, _ in _counters(txn):
            yield key, value
        for _, _, batch in _ranges(txn):
            yield from batch
            counted.add(len(batch))

    def findings(temporary: str) -> list[str]:
        with open_detached(temporary) as copy:
            return check_database(Engine(copy, get_counter(None), "openai_chat"), None)

    with beside(final) as (temporary, fd):
        with build_detached(temporary, record) as made:
            put_rows(made, rows())
        prove(fd, temporary, final, findings)
        _put_secret(final, store.secret.found())
        publish(temporary, final)
    return CopyReport(store.path, final, counted.rows, counted.rows)


def _put_secret(path: str, secret: bytes | None) -> None:
    """Put the secret beside a file that is about to get its name.

    Raises:
        TargetExistsError: that of another store lies there.
    """
    if secret is None:
        return
    try:
        put_private(path + SUFFIX, secret, new=True)
    except FileExistsError as exc:  # maybe of a copy that was killed right behind this
        if secret_of(path, create=False) != secret:
            msg = f"{path + SUFFIX} is the secret of another store; move it away"
            raise TargetExistsError(msg) from exc
