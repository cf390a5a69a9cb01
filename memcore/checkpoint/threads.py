"""Threads of graphs by name: their numbers, their namespaces, their pools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from memcore import keys, names
from memcore.checkpoint.pool import Pool, read_pool, write_pool
from memcore.checkpoint.rows import Place
from memcore.codec import decoding, open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.keys import Counter, Kind, ThreadRow
from memcore.store.base import ReadTxn, Txn
from memcore.terms import read_terms, thread_terms

__all__ = ["Thread", "create_thread", "ensure_namespace", "namespaces_of", "thread_of", "threads"]

_HEAD: Final = Struct(">QQ")
_NUMBER: Final = Struct(">I")
_ABANDONED_MS: Final = 60 * 60 * 1000
"""So long a thread may wait for its first checkpoint."""


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread as a transaction sees it."""

    place: Place
    pool: Pool
    created_ms: int


def head_key(scope: int, thread: int) -> bytes:
    """``0F | scope | thread | 01``."""
    return keys.thread_rows(scope, thread, ThreadRow.HEAD)


def thread_of(txn: ReadTxn, scope: int, name: str) -> Thread | None:
    """The thread of that name, None if nothing was stored in it.

    Raises:
        CorruptValueError: its head or pool is missing or damaged.
    """
    number = names.thread_of(txn, scope, name)
    return None if number is None else read_thread(txn, scope, number)


def read_thread(txn: ReadTxn, scope: int, number: int) -> Thread:
    """The thread of that number.

    Raises:
        CorruptValueError: its head or pool is missing or damaged.
    """
    pool, created_ms = read_head(txn, scope, number)
    row = read_pool(txn, scope, pool)
    if row is None:
        key = keys.chunk_prefix(scope, pool)
        msg = f"the pool {pool} of thread {number} is missing; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    return Thread(Place(scope, number, pool), row, created_ms)


def is_alive(txn: ReadTxn, place: Place) -> bool:
    """Whether the thread was not deleted (its number is never given out again)."""
    return txn.get(head_key(place.scope, place.thread)) is not None


def is_abandoned(txn: ReadTxn, scope: int, thread: int, *, now_ms: int) -> bool:
    """Whether a thread has no checkpoint, and has long been there: writes came after its deletion.

    What somebody set a time or rules for is no such thread.
    """
    prefix = keys.thread_rows(scope, thread, ThreadRow.CHECKPOINT)
    if next(iter(txn.scan(prefix, keys.after(prefix), limit=1)), None) is not None:
        return False
    is_old = read_head(txn, scope, thread)[1] < now_ms - _ABANDONED_MS
    return is_old and read_terms(txn, thread_terms(scope, thread)).is_empty


def read_head(txn: ReadTxn, scope: int, number: int) -> tuple[int, int]:
    """``(pool, created ms)`` of a thread."""
    key = head_key(scope, number)
    value = txn.get(key)
    if value is None:
        msg = f"the head of thread {number} is missing; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    return unpack_head(key, value)


def unpack_head(key: bytes, value: bytes) -> tuple[int, int]:
    """``(pool, created ms)`` of a thread's head.

    Raises:
        CorruptValueError: it is damaged.
    """
    body = open_value(key, value)[1]
    with decoding(key, "head of a thread"):
        pool, created_ms = _HEAD.unpack(body)
    return pool, created_ms


def pack_head(key: bytes, pool: int, created_ms: int) -> bytes:
    """The value of a thread's head."""
    return seal_value(key, _HEAD.pack(pool, created_ms))


def create_thread(
    txn: Txn, scope: int, name: str, pool: Pool, *, now_ms: int, number: int | None = None
) -> Place:
    """A new thread; with a pool of its own, or as one more member of pool ``number``."""
    thread = names.new_thread(txn, scope, name)
    if number is None:
        number = names.next_number(txn, Counter.POOL)
    write_pool(txn, scope, number, pool)
    key = head_key(scope, thread)
    txn.put(key, pack_head(key, number, now_ms))
    return Place(scope, thread, number)


def threads(
    txn: ReadTxn, scope: int, *, start_after: str | None = None
) -> Iterator[tuple[str, int]]:
    """``(name, number)`` in the order of names; those too long for a key at the end."""
    return names.threads(txn, scope, start_after)


# --- namespaces -----------------------------------------------------------------------------------


def _namespace_key(place: Place, name: str) -> bytes:
    prefix = keys.thread_rows(place.scope, place.thread, ThreadRow.NAMESPACE)
    return keys.name_key(prefix, name)


def namespace_of(txn: ReadTxn, place: Place, name: str) -> int | None:
    """The number of a namespace of the thread, None if nothing was stored in it."""
    key = _namespace_key(place, name)
    value = txn.get(key)
    return None if value is None else unpack_namespace(key, value)[0]


def pack_namespace(place: Place, name: str, number: int) -> tuple[bytes, bytes]:
    """Key and value of a namespace's row."""
    key = _namespace_key(place, name)
    return key, seal_value(key, _NUMBER.pack(number) + name.encode("utf-8", "surrogatepass"))


def ensure_namespace(txn: Txn, place: Place, name: str) -> int:
    """The number of a namespace; the first call gives it one."""
    found = namespace_of(txn, place, name)
    if found is None:
        found = names.next_number(txn, Counter.GRAPH_NAMESPACE)
        txn.put(*pack_namespace(place, name, found))
    return found


def namespaces_of(txn: ReadTxn, place: Place) -> list[tuple[int, str]]:
    """``(number, name)`` in the order in which they came into being."""
    prefix = keys.thread_rows(place.scope, place.thread, ThreadRow.NAMESPACE)
    return sorted(unpack_namespace(*row) for row in txn.scan(prefix, keys.after(prefix)))


def unpack_namespace(key: bytes, value: bytes) -> tuple[int, str]:
    """``(number, name)`` of a namespace's row.

    Raises:
        CorruptValueError: it is damaged.
    """
    body = open_value(key, value)[1]
    with decoding(key, "namespace of a thread"):
        return _NUMBER.unpack_from(body)[0], body[_NUMBER.size :].decode("utf-8", "surrogatepass")


def scopes_with_threads(txn: ReadTxn) -> list[int]:
    """Numbers of the scopes in which threads or chunks have rows."""
    found = set()
    for kind in (Kind.THREAD, Kind.CHUNK):
        start, stop = bytes((kind,)), bytes((kind + 1,))
        while (row := next(iter(txn.scan(start, stop, limit=1)), None)) is not None:
            scope = keys.split_scoped(row[0])[0]
            found.add(scope)
            start = keys.after(keys.scoped(kind, scope))
    return sorted(found)


def scope_threads(txn: ReadTxn, scope: int) -> Iterator[int]:
    """Numbers of all threads that have rows, hidden ones too."""
    start = keys.scoped(Kind.THREAD, scope)
    stop = keys.after(start)
    while True:
        row = next(iter(txn.scan(start, stop, limit=1)), None)
        if row is None:
            return
        number = int.from_bytes(row[0][9:17], "big")
        yield number
        start = keys.after(keys.thread_prefix(scope, number))
