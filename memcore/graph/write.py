"""Writing of checkpoints and pending writes: only changes are serialised, hashed and stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from memcore.codec.values import decode_json, encode_json
from memcore.errors import InvalidItemError, OutpacedError, StaleParentError
from memcore.graph import rows
from memcore.graph import rows as threads
from memcore.graph.decode import MISSING, Cache, DecodeCache, ValueParts
from memcore.graph.encode import Splitter
from memcore.graph.manifest import EMPTY, Coder, Typed, Wrapper
from memcore.graph.rows import (
    GraphCheckpointRow,
    Place,
    Pool,
    Write,
    chunk_key,
    is_stored,
    key_of,
    new_pool,
    put_chunk,
    read_pool,
    touch_chunk,
)
from memcore.limits import STAGED_BYTES
from memcore.privacy.redact import inherited
from memcore.privacy.redact_packed import OpaqueContent, redact_packed, redact_parts
from memcore.privacy.write_filter import Redacts, ScopeFilter
from memcore.records import record
from memcore.rows import names
from memcore.rows.lifecycle import is_erased
from memcore.store.datafile import GRAPH_ROWS
from memcore.store.interface import Orphaned, ReadTxn, Stale, Steps, Txn

__all__ = [
    "NewCheckpoint",
    "NewWrites",
    "RedactingCoder",
    "Writing",
    "admitting",
]


# --- Storing checkpoints and pending writes -------------------------------------------------------

ATTEMPTS_MAX = 16
"""Sweeps that may interfere with a put before it gives up; each belongs to a prune of its own."""


Values = Mapping[str, tuple[rows.Version, Any]]
"""Version and value by channel."""


@record(frozen=True, slots=True)
class NewCheckpoint:
    """The arguments of ``put``: a checkpoint and the values of its channels."""

    checkpoint: str
    parent: str | None
    body: Any
    metadata: Any
    values: Values
    """Changed channels: version, and value or MISSING."""
    others: Values = field(default_factory=dict)
    """Unchanged channels: stored again if they, or the parent, were pruned or lost."""
    follows: bool = False
    """True if the parent has to be the newest checkpoint of the namespace."""


@record(frozen=True, slots=True)
class NewWrites:
    """The arguments of ``put_writes``: the pending writes of one task."""

    checkpoint: str
    task: str
    path: str
    writes: Sequence[tuple[int, str, Any]]
    """Index, channel, value."""


@record(frozen=True, slots=True)
class _Basis:
    """The state of a thread against which a write is prepared.

    ``place`` None: the thread has yet to be created.
    """

    place: Place | None
    pool: Pool
    secret: bytes
    identity: object
    """Identity of the coder."""


Prepare = Callable[[Splitter, _Basis, bool], "Prepared"]
"""Prepares a closure's writes; the last argument is true if the parent was found missing."""
Prepared = Callable[[Txn, Place, int, int], None]
"""Writes the prepared rows of a namespace, with the epoch of the running sweep (0: none)."""
Admit = Callable[[Txn, Place | None, int | None, Pool], None]
"""Raises if the prepared write may not be stored in the current state of the thread."""
Chunks = list[tuple[bytes, Typed]]


class _ToStore(NamedTuple):
    """Content of the commit of a write."""

    basis: _Basis
    chunks: Chunks
    store: Prepared
    admit: Admit | None
    is_new: bool
    """True if the thread did not exist when the write was prepared."""


_BASES: Final = 4096


class Writing:
    """The writes of one scope."""

    def __init__(
        self,
        cache: Cache,
        read: Callable[[Callable[[ReadTxn], Any]], Any],
        find: Callable[[ReadTxn], int | None],
        ensure: Callable[[Txn], int],
        now_ms: Callable[[], int],
    ) -> None:
        self._cache = cache
        self._read = read
        self._find = find
        self._ensure = ensure
        self._now_ms = now_ms
        self._bases: DecodeCache[tuple[str, int], _Basis] = DecodeCache(_BASES)
        """By thread and ``id()`` of the coder's identity, which need not be hashable."""

    def put(self, thread: str, namespace: str, new: NewCheckpoint, coder: Coder) -> Steps[None]:
        """Store a checkpoint in one commit, except for large new values, which precede it.

        Raises:
            InvalidItemError: a value cannot be serialised.
            StaleParentError: ``follows`` is set, and the parent is not the newest checkpoint.
        """
        rows.checkpoint_id_key(new.checkpoint)
        if new.parent is not None:
            rows.checkpoint_id_key(new.parent)
        made: dict[str, ValueParts] = {}
        whole = False

        def prepare(splitter: Splitter, basis: _Basis, orphaned: bool) -> Prepared:
            nonlocal whole
            whole = whole or orphaned
            made.clear()
            values = {**new.others, **new.values} if whole else new.values
            nodes = self._values(splitter, basis, namespace, values, made)
            row = GraphCheckpointRow.sealed(
                new.checkpoint,
                new.parent,
                coder,
                metadata=_encoded(coder, new.metadata, "the metadata"),
                body=_body(coder, new.body),
            ).pack()

            return partial(
                _store_checkpoint,
                new=new,
                coder=coder,
                nodes=nodes,
                row=row,
                whole=whole,
                has_runs=splitter.has_runs,
            )

        def admit(txn: Txn, place: Place | None, number: int | None, pool: Pool) -> None:
            if new.follows:
                _need_newest(txn, place, number, new)
            if pool.epoch > 1 and not _has_parent(txn, place, number, new):
                if not whole:
                    raise Orphaned
                _need_values(new)

        place, pool = yield from self._commit(thread, namespace, coder, prepare, admit)
        for channel, version in made.items():
            key = (place, pool.epoch, namespace, channel)
            self._cache.versions.put(key, version, weight=version.size + len(version.nodes))

    def _values(
        self,
        splitter: Splitter,
        basis: _Basis,
        namespace: str,
        values: Values,
        made: dict[str, ValueParts],
    ) -> list[tuple[str, rows.Version, bytes]]:
        nodes = []
        for channel, (version, value) in values.items():
            node = EMPTY
            if value is not MISSING:
                key = (basis.place, basis.pool.epoch, namespace, channel)
                base = None if basis.place is None else self._cache.versions.get(key)
                node, kept = splitter.split(value, base, f"channel {channel!r}", channel)
                if kept is not None:
                    made[channel] = kept
            nodes.append((channel, version, node))
        return nodes

    def put_writes(self, thread: str, namespace: str, new: NewWrites, coder: Coder) -> Steps[None]:
        """Store a task's writes: for an index the first write is kept, for a negative one the last.

        Raises:
            InvalidItemError: a value cannot be serialised.
        """
        rows.checkpoint_id_key(new.checkpoint)

        def prepare(splitter: Splitter, _basis: _Basis, _orphaned: bool) -> Prepared:
            writes = []
            for index, channel, value in new.writes:
                path = f"the write to channel {channel!r}"
                node, _version = splitter.split(value, None, path, channel)
                writes.append(Write(new.task, new.path, index, channel, node))

            return partial(
                _store_writes, new=new, coder=coder, writes=writes, has_runs=splitter.has_runs
            )

        yield from self._commit(thread, namespace, coder, prepare, None)

    def _commit(
        self,
        thread: str,
        namespace: str,
        coder: Coder,
        prepare: Prepare,
        admit: Admit | None,
    ) -> Steps[tuple[Place, Pool]]:
        """Prepare and store a write, retrying until the thread is unchanged since preparation."""
        orphaned = False
        for _ in range(ATTEMPTS_MAX):
            basis = self._basis(thread, coder)
            number = 0 if basis.place is None else basis.place.pool
            is_new = basis.place is None
            splitter = Splitter(
                self._cache,
                coder,
                pool=number,
                epoch=basis.pool.epoch,
                secret=basis.secret,
                is_new=is_new,
            )
            store = prepare(splitter, basis, orphaned)
            try:
                chunks = [(part, coder.seal(typed)) for part, typed in splitter.fresh.items()]
                basis, chunks = yield from self._stage(thread, basis, chunks, is_new=is_new)
                writing = _ToStore(basis, chunks, store, admit, is_new)
                place = yield self._closure(thread, namespace, writing)
            except Stale as stale:
                # Not set by the closure itself, which may run again after it was rejected.
                orphaned = isinstance(stale, Orphaned)
                self._bases.drop((thread, id(coder.identity)))
                continue
            if basis.place is None:
                self._bases.put((thread, id(coder.identity)), replace(basis, place=place))
            epoch = basis.pool.epoch
            self._cache.known.put_all([(place.pool, epoch, part) for part in splitter.fresh], True)
            return place, basis.pool
        msg = f"thread {thread[:40]!r} was pruned {ATTEMPTS_MAX} times while one put was prepared"
        raise OutpacedError(msg)

    def _stage(
        self, thread: str, basis: _Basis, chunks: Chunks, *, is_new: bool
    ) -> Steps[tuple[_Basis, Chunks]]:
        """Store chunks ahead until the rest fits one commit; nothing refers to them yet."""
        *batches, last = _batches(chunks)
        for first in batches:

            def closure(txn: Txn, basis: _Basis = basis, batch: Chunks = first) -> Place:
                place, pool = self._place(txn, thread, basis)
                place = place or self._create(txn, thread, basis)
                _put_chunks(txn, place, pool, batch, is_new=is_new)
                return place

            place = yield closure
            basis = replace(basis, place=place)
        return basis, last

    def _closure(self, thread: str, namespace: str, writing: _ToStore) -> Callable[[Txn], Place]:
        basis, chunks, store, admit, is_new = writing

        def closure(txn: Txn) -> Place:
            place, pool = self._place(txn, thread, basis)
            number = None if place is None else threads.namespace_of(txn, place, namespace)
            if admit is not None:
                admit(txn, place, number, basis.pool)
            if place is None:
                place = self._create(txn, thread, basis)
            if number is None:
                number = threads.ensure_namespace(txn, place, namespace)
            _put_chunks(txn, place, pool, chunks, is_new=is_new)
            if pool.sweeping:
                txn.need_feature(GRAPH_ROWS)
            store(txn, place, number, pool.epoch if pool.sweeping else 0)
            return place

        return closure

    def _basis(self, thread: str, coder: Coder) -> _Basis:
        """The thread's current state, or a new pool if it has yet to be created."""
        kept = self._bases.get((thread, id(coder.identity)))
        if kept is not None and kept.identity is coder.identity:
            return kept

        def look(txn: ReadTxn) -> threads.Thread | None:
            scope = self._find(txn)
            return None if scope is None else threads.thread_of(txn, scope, thread)

        found = self._read(look)
        if found is None:
            pool, secret = new_pool(coder)
            return _Basis(None, pool, secret, coder.identity)
        secret = key_of(found.pool, coder)
        basis = _Basis(found.place, found.pool, secret, coder.identity)
        self._bases.put((thread, id(coder.identity)), basis)
        return basis

    def _place(self, txn: Txn, thread: str, basis: _Basis) -> tuple[Place | None, Pool]:
        """Return the thread's place, None if it has yet to be created, and its current pool.

        Raises:
            Stale: the thread or its pool changed since the write was prepared.
        """
        place = basis.place
        if place is None:
            scope = self._find(txn)
            if scope is not None and names.thread_of(txn, scope, thread) is not None:
                raise Stale
            return None, basis.pool
        if is_erased(txn, place.scope):
            raise Stale
        pool = read_pool(txn, place.scope, place.pool)
        if pool is None or pool.epoch != basis.pool.epoch or not threads.is_alive(txn, place):
            raise Stale
        return place, pool

    def _create(self, txn: Txn, thread: str, basis: _Basis) -> Place:
        scope = self._ensure(txn)
        return threads.create_thread(txn, scope, thread, basis.pool, now_ms=self._now_ms())


def _encoded(
    coder: Coder, value: Any, what: str, *, by: Callable[[Any], Typed] | None = None
) -> Typed:
    try:
        return coder.encode(value) if by is None else by(value)
    except Exception as exc:
        msg = f"{what} cannot be stored: {exc}"
        raise InvalidItemError(msg) from exc


_STRUCTURE: Final = frozenset((
    "v", "id", "ts", "channel_versions", "versions_seen", "updated_channels",
))  # fmt: skip
"""Fields of a checkpoint's body without content: ids, versions, times."""


def _body(coder: Coder, body: Any) -> Typed:
    """Encode the body of a checkpoint, without redaction if it holds only ids and versions."""
    plain = getattr(coder, "encode_plain", None)
    if plain is not None and isinstance(body, dict) and _STRUCTURE.issuperset(body):
        return _encoded(coder, body, "the checkpoint", by=plain)
    return _encoded(coder, body, "the checkpoint")


def _store_checkpoint(
    txn: Txn,
    place: Place,
    number: int,
    sweep: int,
    *,
    new: NewCheckpoint,
    coder: Coder,
    nodes: Sequence[tuple[str, rows.Version, bytes]],
    row: bytes,
    whole: bool,
    has_runs: bool,
) -> None:
    """Write the rows of a prepared checkpoint."""
    if has_runs:
        txn.need_feature(GRAPH_ROWS)
    for channel, version, node in nodes:
        key = rows.value_key(place, number, channel, version)
        # An unchanged value that is still stored may belong to another checkpoint, too.
        if channel in new.values or txn.get(key) is None:
            rows.put_sealed(txn, key, coder, rows.NODE, node, sweep=sweep)
    _complete(txn, place, number, new, coder, sweep=sweep, whole=whole)
    key = rows.checkpoint_key(place, number, new.checkpoint)
    rows.put_row(txn, key, row, sweep)


def _store_writes(
    txn: Txn,
    place: Place,
    number: int,
    _sweep: int,
    *,
    new: NewWrites,
    coder: Coder,
    writes: Sequence[Write],
    has_runs: bool,
) -> None:
    """Merge the prepared writes of a task into its row."""
    if has_runs:
        txn.need_feature(GRAPH_ROWS)
    key = rows.writes_key(place, number, new.checkpoint, new.task)
    value = txn.get(key)
    merged: dict[int, Write] = {}
    if value is not None:
        before = rows.open_sealed(key, value, coder, rows.WRITES)
        merged = {write.index: write for write in rows.unpack_writes(before)}
    for write in writes:
        if write.index < 0 or write.index not in merged:
            merged[write.index] = write
    content = rows.pack_writes(new.task, list(merged.values()))
    rows.put_sealed(txn, key, coder, rows.WRITES, content)


def _complete(
    txn: Txn,
    place: Place,
    number: int,
    new: NewCheckpoint,
    coder: Coder,
    *,
    sweep: int,
    whole: bool,
) -> None:
    """Write a row for every version that the body names, so that one missing later was lost.

    A version that neither this put nor an earlier one stored is an empty channel. A late put with
    the value of that version replaces the row. During a sweep, existing rows and the parent are
    stamped, so that they are kept.

    Raises:
        Orphaned: an unchanged value has no row, and the put was not prepared to store it. Either
            the checkpoint from which it was read has been pruned but its parent has not (as with a
            copy, which has the same parent as its original), or the thread was deleted.
    """
    needed = []
    for channel, version in rows.versions_in(new.body).items():
        key = rows.value_key(place, number, channel, version)
        needed.append(key)
        if txn.get(key) is None:
            if channel in new.others and not whole:
                raise Orphaned
            rows.put_sealed(txn, key, coder, rows.NODE, EMPTY, sweep=sweep)
    if not sweep:
        return
    if new.parent is not None:
        needed.append(rows.checkpoint_key(place, number, new.parent))
    for key in needed:
        value = txn.get(key)
        if value is not None:
            rows.stamp(txn, key, value, sweep)


def _has_parent(txn: ReadTxn, place: Place | None, number: int | None, new: NewCheckpoint) -> bool:
    if new.parent is None or place is None or number is None:
        return True
    key = rows.checkpoint_key(place, number, new.parent)
    value = txn.get(key)
    return value is not None and not rows.is_pruned(key, value)


def _need_values(new: NewCheckpoint) -> None:
    """Reject a checkpoint without a parent whose channels are deltas to the parent's values.

    Raises:
        StaleParentError: it would read as if these channels had only just begun.
    """
    held = {**new.others, **new.values}
    for channel in rows.versions_in(new.body):
        if rows.is_delta(new.metadata, channel) and held.get(channel, (0, MISSING))[1] is MISSING:
            msg = (
                f"checkpoint {new.checkpoint[:40]!r} has the parent {new.parent!r:.42}, which is "
                f"gone, and channel {channel!r:.60} is rebuilt from it: read the state again"
            )
            raise StaleParentError(msg, parent=new.parent, newest=None)


def _need_newest(txn: ReadTxn, place: Place | None, number: int | None, new: NewCheckpoint) -> None:
    newest = None
    if place is not None and number is not None:
        newest = rows.newest(txn, place, number)
    if newest not in (new.parent, new.checkpoint):
        msg = (
            f"checkpoint {new.checkpoint[:40]!r} has the parent {new.parent!r:.42}, but "
            f"{newest!r:.42} is the newest: another writer was here; read the state again"
        )
        raise StaleParentError(msg, parent=new.parent, newest=newest)


def _batches(chunks: Chunks) -> list[Chunks]:
    """Group the chunks, in the order of their rows, into batches that fit one commit each."""
    size = 0
    found: list[Chunks] = [[]]
    for chunk in sorted(chunks):
        size += len(chunk[1][1])
        if size > STAGED_BYTES and found[-1]:
            found.append([])
            size = len(chunk[1][1])
        found[-1].append(chunk)
    return found


def _put_chunks(txn: Txn, place: Place, pool: Pool, chunks: Chunks, *, is_new: bool) -> None:
    """Write the missing chunks; during a sweep, move the existing ones to its epoch.

    ``is_new``: the pool began with this write, so none is looked for. If another writer has stored
    one of them since, it is written again with the same content.
    """
    keyed = [(chunk_key(place.scope, place.pool, part), stored) for part, stored in chunks]
    if pool.sweeping and txn.is_remote:
        txn.prefetch([key for key, _ in keyed])
    for key, stored in keyed:
        if pool.sweeping:
            there = touch_chunk(txn, key, pool.epoch)
        else:
            there = not is_new and is_stored(txn, key)
        if not there:
            put_chunk(txn, key, pool.epoch, stored)


# --- Content filter of graph values: serialised content is redacted -------------------------------

_NULL: Final = "null"
_BYTES: Final = frozenset(("bytes", "bytearray"))
_MSGPACK: Final = "msgpack"
_JSON: Final = {"json": 0, "json-plain": 1}


@record(frozen=True, slots=True)
class RedactingCoder:
    """A coder that redacts values when encoding; it decodes values of any other coder."""

    inner: Coder
    redacts: Redacts
    allow_opaque: bool = False

    @property
    def identity(self) -> object:
        """The inner coder's, because decoded values are the same."""
        return self.inner.identity

    @property
    def splits(self) -> bool:
        """The inner coder's."""
        return self.inner.splits

    @property
    def finite(self) -> bool:
        """The inner coder's."""
        return bool(getattr(self.inner, "finite", False))

    @property
    def secret(self) -> bool:
        """The inner coder's."""
        return self.inner.secret

    @property
    def wrappers(self) -> Mapping[type, tuple[str, Wrapper]]:
        """The inner coder's."""
        return self.inner.wrappers

    def encode(self, value: Any) -> Typed:
        """Serialise and redact.

        Raises:
            InvalidItemError: the serialised content cannot be read (it is pickled, or encrypted).
        """
        return self._redacted(*self.inner.encode(value), None)

    def encode_under(self, key: str, value: Any) -> Typed:
        """As ``encode``, for the value of a key, which helps to distinguish ids from numbers."""
        return self._redacted(*self.inner.encode(value), key)

    def key_of(self, around: str | None, key: str) -> str:
        """The key that classifies an entry of a dict which is itself the value of a key."""
        return inherited(around, key)

    def holds(self, key: str) -> bool:
        """Return whether the key of an entry contains something to redact."""
        return bool(self.redacts.counted(key)[1])

    def encode_plain(self, value: Any) -> Typed:
        """Serialise, without redaction, a value that holds only ids and versions."""
        return self.inner.encode(value)

    def decode(self, typed: Typed) -> Any:
        """Decode a value."""
        return self.inner.decode(typed)

    def seal(self, typed: Typed) -> Typed:
        """Seal with the inner coder."""
        return self.inner.seal(typed)

    def open(self, typed: Typed) -> Typed:
        """Open with the inner coder."""
        return self.inner.open(typed)

    def _redacted(self, kind: str, content: bytes, under: str | None) -> Typed:
        if kind == _NULL:
            return kind, content
        if kind in _BYTES:
            return kind, redact_parts(self.redacts, bytes(content), under)
        if kind in _JSON:
            return self._redacted_json(kind, content, under)
        why = f"it was written as {kind[:40]!r}"
        if kind == _MSGPACK:
            try:
                return kind, redact_packed(self.redacts, bytes(content), under)
            except OpaqueContent as exc:
                why = str(exc)
        if self.allow_opaque:
            return kind, content
        msg = (
            f"the value cannot be redacted: {why}; store what msgpack or JSON can hold, or allow "
            "it by a policy with allow_opaque=True"
        )
        raise InvalidItemError(msg)

    def _redacted_json(self, kind: str, content: bytes, under: str | None) -> Typed:
        found = decode_json(content, _JSON[kind])
        made = redact_parts(self.redacts, found, under)
        if made is found:
            return kind, content
        body, flags = encode_json(made)
        return ("json-plain" if flags else "json"), body


def admitting(scope_filter: ScopeFilter, coder: Coder, values: Sequence[tuple[str, Any]]) -> Coder:
    """Run the guards on these values, by channel; returns the coder to write them with.

    Raises:
        BlockedError: a guard refuses a value, or the name of a channel contains a finding.
    """
    for name, _ in values:
        scope_filter.name(name, "name of a channel")
    redacts = scope_filter.redactor(values, "graph")
    return coder if redacts is None else RedactingCoder(coder, redacts, scope_filter.allow_opaque)
