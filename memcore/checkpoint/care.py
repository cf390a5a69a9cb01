"""What a sound file promises of threads, checked without the serialisers that wrote them.

Bodies and metadata are a serialiser's, and under a cipher manifests are, too: what they promise is
checked by ``verdict.py``, with the coder. Here are names, heads, pools, namespaces, keys, and the
manifests that stand in clear, with every page and chunk that they name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from memcore import keys, names
from memcore.checkpoint import removal, rows, threads
from memcore.checkpoint.nodes import ID_BYTES, rows_in, rows_of
from memcore.checkpoint.pool import chunk_key, epoch_of, read_chunk, read_pool
from memcore.checkpoint.rows import CheckpointRow, Place
from memcore.checkpoint.splitting import PAGE
from memcore.errors import CorruptValueError, MemcoreError
from memcore.keys import Kind, ThreadRow
from memcore.store.base import ReadTxn

__all__ = ["ThreadCheck", "check_threads", "is_leaving"]

_NAMESPACED: Final = (ThreadRow.CHECKPOINT, ThreadRow.VALUE, ThreadRow.WRITES)
_TOLD_MAX: Final = 100
Read = Callable[[Callable[[ReadTxn], Any]], Any]


def check_threads(read: Read, scope: int) -> list[str]:
    """What is wrong with the threads of a scope, in words; a read transaction a thread."""
    try:
        named: dict[int, str] = read(lambda txn: {n: name for name, n in names.threads(txn, scope)})
    except MemcoreError as exc:
        return [f"the thread names of scope {scope} cannot be read: {exc}"]
    findings: list[str] = read(lambda txn: list(_pools(txn, scope)))
    stored: list[int] = read(lambda txn: list(threads.scope_threads(txn, scope)))
    for number in stored:
        where = f"thread {number} of scope {scope}"
        if number in named:
            where = f"thread {named[number]!r:.60}"
        check = ThreadCheck(scope, number, named.get(number))
        findings += [f"{where}: {what}" for what in read(check.run)]
    for number in sorted(named.keys() - set(stored)):
        if read(partial(_has_name, scope=scope, thread=number)):
            findings.append(f"thread {named[number]!r:.60}: its head is missing")
    return findings


def is_leaving(txn: ReadTxn, prefix: bytes) -> bool:
    """Whether the rows under a prefix were deleted, and some of them are still to go."""
    return txn.get(keys.removal_row(prefix)) is not None and removal.is_unused(txn, prefix)


def _has_name(txn: ReadTxn, scope: int, thread: int) -> bool:
    return any(number == thread for _, number in names.threads(txn, scope))


# --- pools ----------------------------------------------------------------------------------------


def _pools(txn: ReadTxn, scope: int) -> Iterator[str]:
    members: Counter[int] = Counter()
    for number in threads.scope_threads(txn, scope):
        try:
            members[threads.read_head(txn, scope, number)[0]] += 1
        except CorruptValueError:
            continue  # told of with the thread
    start, stop = keys.scoped(Kind.CHUNK, scope), keys.after(keys.scoped(Kind.CHUNK, scope))
    while (row := next(iter(txn.scan(start, stop, limit=1)), None)) is not None:
        _, pool = keys.split_session_prefix(row[0])
        prefix = keys.chunk_prefix(scope, pool)
        start = keys.after(prefix)
        if not is_leaving(txn, prefix):
            yield from _pool(txn, scope, pool, members[pool])


def _pool(txn: ReadTxn, scope: int, pool: int, members: int) -> Iterator[str]:
    where = f"the pool {pool} of scope {scope}"
    try:
        row = read_pool(txn, scope, pool)
    except CorruptValueError as exc:
        yield str(exc)
        return
    if row is None:
        yield f"{where} has chunks, but no row"
        return
    if row.members != members:
        yield f"{where} has {members} threads, its row says {row.members}"
    told = 0
    prefix = keys.chunk_prefix(scope, pool)
    for key, value in txn.scan(keys.behind(prefix), keys.after(prefix)):
        try:
            sound = len(key) == len(prefix) + ID_BYTES and epoch_of(key, value) <= row.epoch
        except CorruptValueError:
            continue  # found as a damaged row
        if not sound:
            yield f"{where}: the row under key {key.hex()} is no chunk of it"
            told += 1
            if told == _TOLD_MAX:
                return


# --- threads --------------------------------------------------------------------------------------


class ThreadCheck:
    """The check of one thread on one snapshot."""

    def __init__(self, scope: int, thread: int, name: str | None) -> None:
        self._scope = scope
        self._thread = thread
        self._name = name
        self._spaces: dict[int, str] = {}
        self._sound: set[tuple[int, bytes]] = set()
        """What manifests named and was found: sorts of containers (0: none) and ids."""

    def run(self, txn: ReadTxn) -> list[str]:
        """What is wrong with the thread, in words."""
        prefix = keys.thread_prefix(self._scope, self._thread)
        first = next(iter(txn.scan(prefix, keys.after(prefix), limit=1)), None)
        if first is None or is_leaving(txn, prefix):
            return []  # deleted, maybe since it was listed
        findings: list[str] = []
        try:
            for finding in self._findings(txn):
                findings.append(finding)
                if len(findings) == _TOLD_MAX:
                    findings.append("and more")
                    break
        except MemcoreError as exc:
            findings.append(str(exc))
        return findings

    def _findings(self, txn: ReadTxn) -> Iterator[str]:
        place = threads.read_thread(txn, self._scope, self._thread).place
        if not self._is_named(txn):
            yield "it has rows but no name"
        for number, name in threads.namespaces_of(txn, place):
            if number in self._spaces or name in self._spaces.values():
                yield f"its namespace {name!r:.60} ({number}) is there twice"
            elif threads.namespace_of(txn, place, name) != number:
                yield f"its namespace {name!r:.60} ({number}) lies under another name"
            self._spaces[number] = name
        prefix = keys.thread_prefix(self._scope, self._thread)
        for key, value in txn.scan(prefix, keys.after(prefix)):
            try:
                yield from self._row(txn, place, key, value)
            except CorruptValueError as exc:
                yield f"the row under key {key.hex()}: {exc}"

    def _is_named(self, txn: ReadTxn) -> bool:
        if self._name is not None and names.thread_of(txn, self._scope, self._name) == self._thread:
            return True
        return _has_name(txn, self._scope, self._thread)

    def _row(self, txn: ReadTxn, place: Place, key: bytes, value: bytes) -> Iterator[str]:
        row = key[17]
        if row in (ThreadRow.HEAD, ThreadRow.NAMESPACE):
            return
        if row not in _NAMESPACED:
            yield f"the row under key {key.hex()} is of no sort that a thread has"
            return
        number = rows.namespace_in(key)
        if number not in self._spaces:
            yield f"the row under key {key.hex()} is of a namespace {number} that has no name"
        nodes: list[bytes] = []
        if row == ThreadRow.CHECKPOINT:
            rows.id_in(key)
            CheckpointRow.unpack(key, value)
        elif row == ThreadRow.VALUE:
            nodes = rows.clear_nodes(key, value, rows.NODE)
        else:
            nodes = rows.clear_nodes(key, value, rows.WRITES)
        for node in nodes:
            for finding in self._manifest(txn, place, node):
                yield f"the row under key {key.hex()}: {finding}"

    def _manifest(self, txn: ReadTxn, place: Place, node: bytes) -> Iterator[str]:
        work = list(rows_of(node))
        while work:
            container, part = named = work.pop()
            if named in self._sound:
                continue
            try:
                kind, content = read_chunk(txn, chunk_key(place.scope, place.pool, part))
                if container:
                    if kind != PAGE:
                        yield f"the chunk {part.hex()} is named as a page, but is none"
                        continue
                    work += rows_in(container, content)
            except CorruptValueError as exc:
                yield str(exc)
                continue
            self._sound.add(named)
