"""What a sound file promises of threads, checked without the serialisers that wrote them.

Names, heads, pools, namespaces, keys; the manifests that stand in clear, with every page and chunk
that they name; the bodies that are JSON or msgpack in clear, with every version that they name. No
object is made of what is stored. What a cipher hides is checked by ``checking.py``, with the coder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from memcore import keys, names
from memcore.checkpoint import removal, rows, threads
from memcore.checkpoint.coding import Opaque, StoredCoder
from memcore.checkpoint.nodes import ID_BYTES, RUN, Run, rows_in, rows_of
from memcore.checkpoint.pool import chunk_key, epoch_of, read_chunk, read_pool
from memcore.checkpoint.rows import CheckpointRow, Place
from memcore.checkpoint.splitting import PAGE
from memcore.errors import (
    CorruptValueError,
    InvalidOptionError,
    MemcoreError,
    StoreAccessError,
    StoreLockedError,
)
from memcore.keys import Kind, ThreadRow
from memcore.store.base import ReadTxn

__all__ = [
    "ThreadCheck",
    "body_findings",
    "check_threads",
    "clear_body",
    "is_leaving",
    "leftovers_of",
]

_NAMESPACED: Final = (ThreadRow.CHECKPOINT, ThreadRow.VALUE, ThreadRow.WRITES)
_TOLD_MAX: Final = 100
Read = Callable[[Callable[[ReadTxn], Any]], Any]


def check_threads(read: Read, scope: int) -> list[str]:
    """What is wrong with the threads of a scope, in words; a read transaction a thread."""
    try:
        named: dict[int, str] = read(lambda txn: {n: name for name, n in names.threads(txn, scope)})
    except (StoreAccessError, StoreLockedError):
        raise
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


def leftovers_of(txn: ReadTxn, scope: int, name: str, number: int, *, now_ms: int) -> list[str]:
    """What late writes left in a thread, in words; nothing of it is damage.

    Raises:
        CorruptValueError: a row is damaged.
    """
    if names.thread_of(txn, scope, name) != number:
        return []  # deleted since it was listed
    where = f"thread {name!r:.60}"
    if threads.is_abandoned(txn, scope, number, now_ms=now_ms):
        return [f"{where}: it has no checkpoint; what is left came after it was deleted"]
    place = threads.read_thread(txn, scope, number).place
    strays = sum(
        1
        for namespace, _ in threads.namespaces_of(txn, place)
        for _ in rows.stray_writes(txn, place, namespace)
    )
    return [f"{where}: pending writes of {strays:,} checkpoints that are gone"] if strays else []


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
        self._named: set[bytes] = set()
        """Keys of values that bodies named and that were looked at."""

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
            checkpoint = CheckpointRow.unpack(key, value)
            body = clear_body(checkpoint)
            values = rows.values_of(place, number)
            for finding in body_findings(txn, values, checkpoint, body, self._named):
                yield f"checkpoint {checkpoint.checkpoint!r:.60}{finding}"
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
                elif kind == RUN:
                    Run(content).values()
            except CorruptValueError as exc:
                yield str(exc)
                continue
            self._sound.add(named)


# --- bodies ---------------------------------------------------------------------------------------


def clear_body(row: CheckpointRow) -> Any:
    """The body of a checkpoint as plain data; Opaque if only its serialiser can tell."""
    try:
        return StoredCoder().decode(row.body)
    except CorruptValueError:  # the row is proven: a serialiser wrote it so
        return Opaque(row.body[0], len(row.body[1]))


def body_findings(
    txn: ReadTxn, prefix: bytes, row: CheckpointRow, body: Any, known: set[bytes]
) -> Iterator[str]:
    """What is wrong with what a body names, in words.

    ``prefix`` is that of the values of its namespace (``rows.values_of``).
    ``known`` are the keys of values that were looked at, for the next checkpoint. Of a row that is
    not complete only the versions that it brought itself must be there.
    """
    if isinstance(body, Opaque):
        return
    versions = rows.versions_in(body)
    brought = body.get("updated_channels") if isinstance(body, dict) else None
    for channel, version in versions.items():
        try:
            key = rows.value_under(prefix, channel, version)
        except InvalidOptionError as exc:
            yield f", channel {channel!r:.60}: {exc}"
            continue
        if key in known:
            continue
        if txn.get(key) is not None:
            known.add(key)
        elif row.complete or (isinstance(brought, list) and channel in brought):
            known.add(key)  # told once, of the oldest that names it
            yield f", channel {channel!r:.60}: the value of version {version!r:.60} is missing"
    seen = body.get("versions_seen") if isinstance(body, dict) else None
    for node, of_node in seen.items() if isinstance(seen, dict) else ():
        for channel, version in of_node.items() if isinstance(of_node, dict) else ():
            if channel in versions and _is_ahead(version, versions[channel]):
                yield (
                    f": node {node!r:.60} has seen version {version!r:.60} of channel "
                    f"{channel!r:.60}, which is at {versions[channel]!r:.60}: it would not run"
                )


def _is_ahead(seen: Any, version: Any) -> bool:
    """Whether a version lies behind the channel's; versions of two sorts have no order."""
    if isinstance(seen, str) and isinstance(version, str):
        return seen > version
    numbers = isinstance(seen, int | float) and isinstance(version, int | float)
    return numbers and seen > version
