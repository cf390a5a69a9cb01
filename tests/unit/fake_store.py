"""An ordered map in memory that keeps the promises of ``memcore.store.interface`` and no others.

It is stricter than LMDB where a promise leaves room: a closure can be made to run twice with the
first run rolled back, and a scan must not outlive its transaction nor see a write in between.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

import pytest

from memcore.limits import KEY_BYTES_MAX

STORES = ("fake", "fake-rerun", "real")


class FakeTxn:
    vault = None
    is_remote = False
    audit = None

    def __init__(self, store: FakeStore, *, write: bool) -> None:
        self.local: dict[Any, Any] = {}
        self.callbacks: list[Callable[[], None]] = []
        self._store = store
        self._write = write
        self._open = True
        self._undo: list[tuple[bytes, bytes | None]] = []

    def get(self, key: bytes) -> bytes | None:
        self._check(key)
        return self._store.rows.get(key)

    get_new = get

    def prefetch(self, *_: object) -> None:
        pass

    prefetch_named = prefetch

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int = 0
    ) -> Iterator[tuple[bytes, bytes]]:
        self._check(start)
        self._check(stop)
        return self._scan(start, stop, reverse=reverse, limit=limit)

    def _scan(self, start, stop, *, reverse, limit):
        order, version = self._store.order, self._store.version
        found = order[bisect_left(order, start) : bisect_left(order, stop)]
        for count, key in enumerate(reversed(found) if reverse else found):
            if limit and count == limit:
                return
            assert self._open, "a scan outlived its transaction"
            assert version == self._store.version, "a write while a scan was running"
            yield key, self._store.rows[key]

    def put(self, key: bytes, value: bytes) -> None:
        self._check(key, write=True)
        assert isinstance(value, bytes)
        self._undo.append((key, self._store.rows.get(key)))
        self._store.set(key, value)

    def delete(self, key: bytes) -> bool:
        self._check(key, write=True)
        before = self._store.rows.get(key)
        self._undo.append((key, before))
        self._store.set(key, None)
        return before is not None

    def delete_range(self, start: bytes, stop: bytes) -> int:
        self._check(start, write=True)
        self._check(stop, write=True)
        return sum([self.delete(key) for key, _ in list(self.scan(start, stop))])

    def on_commit(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def notify(self, topic: bytes) -> None:
        assert isinstance(topic, bytes)

    def close(self, *, undo: bool) -> None:
        self._open = False
        if undo:
            for key, value in reversed(self._undo):
                self._store.set(key, value)

    def _check(self, key: bytes, *, write: bool = False) -> None:
        assert self._open, "the transaction is over"
        assert self._write or not write, "a write in a read transaction"
        assert isinstance(key, bytes)
        assert 0 < len(key) <= KEY_BYTES_MAX, f"{len(key)} bytes are no key"


class FakeStore:
    vault = None

    """``rerun=True`` runs every write closure twice, as group commit does after a failure."""

    def __init__(self, *, rerun: bool = False) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.order: list[bytes] = []
        self.version = 0
        self.commits = 0
        self.reads = 0
        self._rerun = rerun
        self._lock = RLock()
        self._busy = False

    def set(self, key: bytes, value: bytes | None) -> None:
        self.version += 1
        known = key in self.rows
        if value is None:
            if known:
                del self.rows[key]
                del self.order[bisect_left(self.order, key)]
            return
        self.rows[key] = value
        if not known:
            insort(self.order, key)

    def read(self, fn):
        with self._lock, self._alone():
            self.reads += 1
            txn = FakeTxn(self, write=False)
            try:
                return fn(txn)
            finally:
                txn.close(undo=False)

    def transact(self, fn, *, makes_room=False):
        with self._lock, self._alone():
            if self._rerun:
                self._run(fn, keep=False)
            txn, result = self._run(fn, keep=True)
            self.commits += 1
            for callback in txn.callbacks:
                callback()
            return result

    def submit(self, fn, loop, *, makes_room=False):
        future = loop.create_future()
        try:
            future.set_result(self.transact(fn))
        except BaseException as error:  # noqa: BLE001 - the future carries it
            future.set_exception(error)
        return future

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _run(self, fn, *, keep: bool):
        txn = FakeTxn(self, write=True)
        try:
            result = fn(txn)
        except BaseException:
            txn.close(undo=True)
            raise
        txn.close(undo=not keep)
        return txn, result

    @contextmanager
    def _alone(self):
        assert not self._busy, "a transaction inside a transaction"
        self._busy = True
        try:
            yield
        finally:
            self._busy = False


@contextmanager
def opened_store(name: str, directory: Path):
    """One of ``STORES``; skips the test while the real store cannot be imported."""
    if name == "real":
        try:
            from memcore.store import open_store
        except ImportError:
            pytest.skip("memcore.store.open_store is not there yet")
        store = open_store(directory / "test.memcore")
    else:
        store = FakeStore(rerun=name == "fake-rerun")
    try:
        yield store
    finally:
        store.close()


def damage(store, key: bytes) -> None:
    """Flip one bit of a stored value."""
    value = bytearray(store.read(lambda txn: txn.get(key)))
    value[-1] ^= 0x10
    store.transact(lambda txn: txn.put(key, bytes(value)))


def all_rows(store) -> dict[bytes, bytes]:
    """Everything under the kinds of memcore (kind 0 belongs to the store)."""
    return store.read(lambda txn: dict(txn.scan(b"\x01", b"\xff")))
