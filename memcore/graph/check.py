"""Check of graph threads: structure of their rows, without the serialiser that wrote them.

Covers names, heads, pools, namespaces and keys; plaintext manifests, with every page and chunk that
they name; and plaintext JSON or msgpack bodies, with every version that they name. No object is
created from stored content. Encrypted content is checked by ``Checking``, with the coder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import field
from functools import partial
from typing import Any, Final

from memcore.codec import keys
from memcore.codec.keys import Kind, ThreadRow
from memcore.errors import (
    CorruptValueError,
    InvalidOptionError,
    MemcoreError,
    StoreAccessError,
    StoreLockedError,
    UndecodableError,
)
from memcore.graph import prune as removal
from memcore.graph import rows
from memcore.graph import rows as threads
from memcore.graph.decode import MISSING
from memcore.graph.gc import walk
from memcore.graph.manifest import (
    ID_BYTES,
    PAGE,
    RUN,
    Coder,
    ListRun,
    Opaque,
    StoredCoder,
    rows_in,
    rows_of,
)
from memcore.graph.read import Deltas, Listing, ThreadView
from memcore.graph.rows import GraphCheckpointRow, Place, chunk_key, epoch_of, read_chunk, read_pool
from memcore.options import counted
from memcore.records import record
from memcore.rows import names
from memcore.rows.lifecycle import need_free
from memcore.store.interface import DeleteBudget, ReadTxn, Steps, Txn

__all__ = [
    "Checking",
    "Judge",
    "LostCheckpoint",
    "RecoveredNamespace",
    "ThreadCheck",
    "body_findings",
    "check_threads",
    "clear_body",
    "is_leaving",
    "leftovers_of",
]


# --- Structure of threads, checked without the serialisers that wrote them ------------------------

_NAMESPACED: Final = (ThreadRow.CHECKPOINT, ThreadRow.VALUE, ThreadRow.WRITES)
_TOLD_MAX: Final = 100
Read = Callable[[Callable[[ReadTxn], Any]], Any]


def check_threads(read: Read, scope: int) -> list[str]:
    """Check a scope's threads, one read transaction each; returns a description per finding."""
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
    """Describe what writes after a deletion left in a thread; none of it is damage.

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
        for _ in rows.stray_writes(txn, place, namespace, now_ms=now_ms)
    )
    gone = counted(strays, "checkpoint that is", "checkpoints that are")
    return [f"{where}: pending writes of {gone} gone"] if strays else []


def is_leaving(txn: ReadTxn, prefix: bytes) -> bool:
    """Return whether the rows under a prefix belong to an unfinished deletion."""
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
            continue  # reported with the thread
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
        yield f"{where} has {counted(members, 'thread')}, its row says {row.members:,}"
    told = 0
    prefix = keys.chunk_prefix(scope, pool)
    for key, value in txn.scan(keys.behind(prefix), keys.after(prefix)):
        try:
            sound = len(key) == len(prefix) + ID_BYTES and epoch_of(key, value) <= row.epoch
        except CorruptValueError:
            continue  # reported as a damaged row
        if not sound:
            yield f"{where}: the row under key {key.hex()} is no chunk of it"
            told += 1
            if told == _TOLD_MAX:
                return


# --- threads --------------------------------------------------------------------------------------


class ThreadCheck:
    """Check of one thread on one snapshot."""

    def __init__(self, scope: int, thread: int, name: str | None) -> None:
        self._scope = scope
        self._thread = thread
        self._name = name
        self._forget()

    def _forget(self) -> None:
        self._spaces: dict[int, str] = {}
        self._sound: set[tuple[int, bytes]] = set()
        """Chunks and pages already verified: sort of the container (0: none) and id."""
        self._named: set[bytes] = set()
        """Keys of values that bodies name and that are already verified."""

    def run(self, txn: ReadTxn) -> list[str]:
        """Check the thread; returns descriptions of the findings, up to a limit.

        On a server it may run again, and then begins anew.
        """
        self._forget()
        prefix = keys.thread_prefix(self._scope, self._thread)
        first = next(iter(txn.scan(prefix, keys.after(prefix), limit=1)), None)
        if first is None or is_leaving(txn, prefix):
            return []  # deleted, possibly since it was listed
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
            checkpoint = GraphCheckpointRow.unpack(key, value)
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
                    ListRun(content).values()
            except CorruptValueError as exc:
                yield str(exc)
                continue
            self._sound.add(named)


# --- bodies ---------------------------------------------------------------------------------------


def clear_body(row: GraphCheckpointRow) -> Any:
    """The body of a checkpoint as plain data; ``Opaque`` if only its serialiser can decode it."""
    try:
        return StoredCoder().decode(row.body)
    except CorruptValueError:  # the row passed its checksum: a serialiser wrote it like this
        return Opaque(row.body[0], len(row.body[1]))


def body_findings(
    txn: ReadTxn, prefix: bytes, row: GraphCheckpointRow, body: Any, known: set[bytes]
) -> Iterator[str]:
    """Yield a description of each missing value and impossible version that a body names.

    ``prefix`` is the prefix of its namespace's values (``rows.values_of``). ``known`` collects the
    keys of values that were already checked, across checkpoints. For a row that is not complete,
    only the versions that it wrote itself must exist.
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
            known.add(key)  # reported once, for the oldest checkpoint that names it
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
    """Return whether a seen version is greater than the channel's.

    Versions of different types are not ordered.
    """
    if isinstance(seen, str) and isinstance(version, str):
        return seen > version
    numbers = isinstance(seen, int | float) and isinstance(version, int | float)
    return numbers and seen > version


# --- Check of threads with the serialiser that wrote them: bodies, values, writes -----------------
# ``ThreadCheck`` checks the structure, without the serialiser.

Judge = Callable[[Any], list[tuple[int, str]]]
"""Given a channel's value, returns positions in it and what is wrong there."""


@record(frozen=True, slots=True)
class LostCheckpoint:
    """A checkpoint that cannot be read completely, with the reason."""

    checkpoint: str
    reason: str


@record(slots=True)
class RecoveredNamespace:
    """The result of a recovery for one namespace of a thread."""

    namespace: str
    kept: str | None = None
    """The newest complete checkpoint; None: there is none, and nothing was removed."""
    lost: list[LostCheckpoint] = field(default_factory=list)
    """The later checkpoints, newest first."""


_Broken = tuple[bytes, bytes, bytes]
"""Key and value of a checkpoint, and the prefix of its writes."""
Diagnosis = list[tuple[RecoveredNamespace, list[_Broken]]]


class Checking(Listing, Deltas):
    """Check and recovery that decode everything in a scope's threads.

    Needs a cache of its own, so that everything is read from the file.
    """

    def findings(self, coder: Coder, judge: Judge) -> Iterator[str]:
        """Yield a description of each finding.

        Damage that several checkpoints share is reported once, for the oldest of them.
        """
        for thread in self._names(None):
            for namespace, number in self._namespaces(thread, None):
                seen: set[tuple[str, object]] = set()
                look = partial(self._ids, thread=thread, number=number, coder=coder, pruned=True)
                for checkpoint in self._read(look):
                    where = f"thread {thread!r:.60}, "
                    where += f"namespace {namespace!r:.60}, " if namespace else ""
                    look = partial(
                        self._checked,
                        thread=thread,
                        number=number,
                        checkpoint=checkpoint,
                        coder=coder,
                        judge=judge,
                        seen=seen,
                    )
                    for finding in self._read(look):
                        yield f"{where}checkpoint {checkpoint!r:.60}{finding}"

    def _ids(
        self, txn: ReadTxn, *, thread: str, number: int, coder: Coder, pruned: bool
    ) -> list[str]:
        view = self._view(txn, thread, coder)
        if view is None:
            return []
        prefix = rows.checkpoints_of(view.place, number)
        found = txn.scan(prefix, keys.after(prefix))
        return [rows.id_in(key) for key, value in found if pruned or not rows.is_pruned(key, value)]

    def _checked(
        self,
        txn: ReadTxn,
        *,
        thread: str,
        number: int,
        checkpoint: str,
        coder: Coder,
        judge: Judge,
        seen: set[tuple[str, object]],
    ) -> list[str]:
        view = self._view(txn, thread, coder)
        row = None if view is None else self._row(view, number, checkpoint)
        if view is None or row is None:
            return []  # deleted since it was listed
        found: list[str] = []
        try:
            body = row.body_by(coder)
            row.metadata_by(coder)
        except Exception as exc:  # noqa: BLE001 - whatever a serialiser raises
            return [f": it cannot be decoded: {exc}"]
        if isinstance(clear_body(row), Opaque):  # else ``check_threads`` has reported it
            values = rows.values_of(view.place, number)
            found += body_findings(view.txn, values, row, body, set())
        for channel, version in rows.versions_in(body).items():
            if (channel, version) not in seen:
                seen.add((channel, version))
                for finding in _of_channel(view, number, channel, version, judge):
                    if (channel, finding[1]) not in seen:
                        seen.add((channel, finding[1]))
                        at = "" if finding[0] is None else f", position {finding[0]}"
                        found.append(f", channel {channel!r:.60}{at}: {finding[1]}")
        try:
            for write in self._writes(view, number, checkpoint):
                view.joiner.join(write.node)
        except Exception as exc:  # noqa: BLE001 - whatever a serialiser raises
            found.append(f": its pending writes cannot be read: {exc}")
        return found

    # --- recovery ---------------------------------------------------------------------------------

    def diagnosis(self, thread: str, coder: Coder) -> Diagnosis | None:
        """Find the newest complete checkpoint of each namespace, and the later ones.

        None if there is no such thread.
        """
        names = self._namespaces(thread, None)
        return [self._diagnosed(thread, space, coder) for space in names] if names else None

    def _diagnosed(
        self, thread: str, space: tuple[str, int], coder: Coder
    ) -> tuple[RecoveredNamespace, list[_Broken]]:
        one = RecoveredNamespace(space[0])
        broken: list[_Broken] = []
        find = partial(self._ids, thread=thread, number=space[1], coder=coder, pruned=False)
        for checkpoint in reversed(self._read(find)):
            look = partial(
                self._broken, thread=thread, space=space, checkpoint=checkpoint, coder=coder
            )
            told = self._read(look)
            if told is None:
                one.kept = checkpoint
                return one, broken
            one.lost.append(LostCheckpoint(checkpoint, told[0]))
            broken.append(told[1])
        return one, []

    def removal(self, found: Diagnosis) -> Steps[None]:
        """Remove the checkpoints that ``diagnosis`` found to be incomplete."""
        doomed = [row for _, broken in found for row in broken]
        while doomed:
            taken = yield partial(self._remove_broken, doomed=doomed)
            doomed = doomed[taken:]

    def _broken(
        self,
        txn: ReadTxn,
        *,
        thread: str,
        space: tuple[str, int],
        checkpoint: str,
        coder: Coder,
    ) -> tuple[str, _Broken] | None:
        """Return a checkpoint's fault, with its key, its value and the prefix of its writes.

        None if it is complete, or no longer exists.
        """
        view = self._view(txn, thread, coder)
        if view is None:
            return None
        key = rows.checkpoint_key(view.place, space[1], checkpoint)
        value = txn.get(key)
        if value is None:
            return None
        try:
            row = GraphCheckpointRow.unpack(key, value)
            if isinstance(coder, StoredCoder):
                _need_structure(view, space[1], row)
            else:
                found = self._whole(view, *space, checkpoint, row)
                missing = [c for c in rows.versions_in(found.body) if c not in found.values]
                deltas = [c for c in missing if rows.is_delta(found.metadata, c)]
                self._walk(view, *space, checkpoint, deltas)
        except UndecodableError:
            raise  # it is intact, and nothing is lost for the serialiser that wrote it
        except CorruptValueError as exc:
            return str(exc), (key, value, rows.writes_of(view.place, space[1], checkpoint))
        return None

    def _remove_broken(self, txn: Txn, doomed: list[_Broken]) -> int:
        """Remove some broken checkpoints, with their writes, unless they changed since.

        Returns the number examined.
        """
        scope = self._find(txn)
        if scope is None:
            return len(doomed)
        need_free(txn, scope, 0, what="the thread")
        piece = DeleteBudget()
        for at, (key, value, writes) in enumerate(doomed):
            if txn.get(key) != value:
                continue  # it was stored again in the meantime
            sizes = [len(row) for _, row in txn.scan(writes, keys.after(writes))]
            fits = [piece.admits(size) for size in (len(value), *sizes)]
            if at and not all(fits):
                return at
            txn.delete(key)
            if sizes:
                txn.delete_range(writes, keys.after(writes))
        return len(doomed)


def _need_structure(view: ThreadView, number: int, row: GraphCheckpointRow) -> None:
    """Raise unless all rows that a checkpoint refers to exist; their content is not decoded.

    Raises:
        CorruptValueError: something is lost or damaged.
        InvalidOptionError: the body is neither JSON nor msgpack.
    """
    txn, place = view.txn, view.place
    body = clear_body(row)
    if isinstance(body, Opaque):
        msg = (
            f"thread {view.name!r:.60} was written by a serialiser of its own: recover it with the "
            "program that has it"
        )
        raise InvalidOptionError(msg)

    def fetch(part: bytes) -> tuple[str, bytes]:
        return read_chunk(txn, chunk_key(place.scope, place.pool, part))

    for channel, version in rows.versions_in(body).items():
        key = rows.value_key(place, number, channel, version)
        value = txn.get(key)
        if value is None:
            if row.complete:
                raise rows.lost_value(view.name, row.checkpoint, channel, version, key)
            continue
        if rows.is_lost(key, value):
            raise rows.lost_value(view.name, row.checkpoint, channel, version, key)
        for node in rows.clear_nodes(key, value, rows.NODE):
            walk(fetch, node)
    prefix = rows.writes_of(place, number, row.checkpoint)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        for node in rows.clear_nodes(key, value, rows.WRITES):
            walk(fetch, node)


def _of_channel(
    view: ThreadView, number: int, channel: str, version: rows.Version, judge: Judge
) -> list[tuple[int | None, str]]:
    key = rows.value_key(view.place, number, channel, version)
    try:
        node = rows.node_of(view.txn, key, view.coder)
        value = MISSING if node is None else view.joiner.join(node)
    except Exception as exc:  # noqa: BLE001 - whatever a serialiser raises
        return [(None, f"its version {version!r:.60} cannot be read: {exc}")]
    return [] if value is MISSING else [*judge(value)]
