"""Salvage of graph threads from a damaged file.

Chunks are content-addressed, so any verified version of one is correct, wherever it was found. A
value with a lost part is not dropped, because a checkpoint that refers to it would read as if the
channel were empty: a marker row replaces the value, and reading it raises an error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from memcore.codec import keys
from memcore.codec.keys import Counter, Kind, ThreadRow
from memcore.codec.values import HEADER_BYTES, seal_value
from memcore.errors import CorruptValueError, InvalidOptionError
from memcore.graph import clear_body, rows
from memcore.graph import gc as parts
from memcore.graph.manifest import Typed
from memcore.graph.rows import (
    Place,
    Pool,
    epoch_of,
    pack_head,
    pack_namespace,
    unpack_chunk,
    unpack_head,
    unpack_pool,
)
from memcore.maintenance.salvage_rows import Place as Pair
from memcore.maintenance.salvage_rows import RowSelector, names_by_scope, unused
from memcore.rows.names import thread_row

__all__ = [
    "Threads",
]


_ROW_AT: Final = 17
_NAMESPACED: Final = 22
_THREAD: Final = bytes((Kind.THREAD,))
_VALUES: Final = {ThreadRow.VALUE: rows.NODE, ThreadRow.WRITES: rows.WRITES}


class Threads:
    """The graph threads in a damaged file. ``rows`` yields their rows and fills ``lost``."""

    def __init__(self, sieve: RowSelector) -> None:
        self._sieve = sieve
        self._rows: dict[Pair, list[bytes]] = defaultdict(list)
        self._pools: dict[Pair, set[bytes] | None] = {}
        """The chunks needed from each pool; None: all that were found."""
        self._members: dict[Pair, int] = defaultdict(int)
        """Number of threads in each pool."""
        self.lost: list[str] = []
        self.count = 0
        for key in sieve.chosen:
            if key[0] == Kind.THREAD:
                self._rows[keys.split_session_prefix(key)].append(key)
        self._lost = self._lost_rows()

    def _lost_rows(self) -> dict[Pair, list[bytes]]:
        """Return the keys of damaged rows in existing threads and namespaces."""
        found: dict[Pair, list[bytes]] = defaultdict(list)
        for key in self._sieve.wreck.damaged:
            if key[:1] == _THREAD and key not in self._sieve.chosen and len(key) > _NAMESPACED:
                place = keys.split_session_prefix(key)
                if any(key[_ROW_AT + 1 : _NAMESPACED] == other[_ROW_AT + 1 : _NAMESPACED]
                       for other in self._rows.get(place, ())):  # fmt: skip
                    found[place].append(key)
        return found

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows of threads and pools."""
        named = names_by_scope(self._sieve.threads)
        for place in sorted(self._rows.keys() | self._sieve.threads.keys()):
            name = self._sieve.threads.get(place)
            where = f"thread {place[1]}" if name is None else f"thread {name!r:.60}"
            pool = self._pool_of(place)
            if pool is None:
                self.lost.append(f"{where} of scope {place[0]}: too little is left of it")
                continue
            self.count += 1
            self._members[pool] += 1
            if name is None:
                name = unused(place[0], f"salvaged-{place[1]}", named)[1]
            yield thread_row(place[0], name, place[1])
            yield from self._rows_of(place, pool, where)
        for pool, needed in self._pools.items():
            yield from self._chunks(pool, needed)

    # --- pools --------------------------------------------------------------------------------

    def _pool_of(self, place: Pair) -> Pair | None:
        """Return a thread's chunk pool, from its head or its chunks; None if undeterminable."""
        sieve = self._sieve
        head = keys.thread_rows(*place, ThreadRow.HEAD)
        if head in sieve.chosen:
            pool = unpack_head(head, sieve.value(head))[0]
        elif place not in sieve.threads:
            return None  # neither head nor name: presumably deleted
        else:
            needed = {part for key in self._rows[place] for part in self._named(key)}
            found = {
                keys.split_session_prefix(key)
                for key in sieve.wreck.rows
                if key[0] == Kind.CHUNK and key[_ROW_AT:] in needed
            }
            if len(found) != 1:
                return None
            pool = found.pop()[1]
        whole = (place[0], pool)
        is_clear = all(self._is_clear(key) for key in self._rows[place])
        if self._row_of(whole) is None and not is_clear:
            return None  # the key of its chunk ids is lost, without which it cannot be opened
        self._pools.setdefault(whole, set())
        if not is_clear:
            self._pools[whole] = None
        return whole

    def _row_of(self, pool: Pair) -> Pool | None:
        key = keys.chunk_prefix(*pool)
        found = self._value(key)
        return None if found is None else unpack_pool(key, found)

    def _value(self, key: bytes) -> bytes | None:
        """Return a key's most credible value of any age; only for immutable rows."""
        found = self._sieve.chosen.get(key) or next(iter(self._sieve.wreck.rows.get(key, ())), None)
        return None if found is None else self._sieve.wreck.value(key, found)

    def _named(self, key: bytes) -> Iterator[bytes]:
        """The chunks that a row's manifests refer to directly."""
        row = key[_ROW_AT]
        if row in _VALUES and key in self._sieve.chosen:
            for node in rows.clear_nodes(key, self._sieve.value(key), _VALUES[row]):
                for _, part in parts.rows_of(node):
                    yield part

    def _is_clear(self, key: bytes) -> bool:
        row = key[_ROW_AT]
        if row not in _VALUES or key not in self._sieve.chosen:
            return True
        return not rows.is_sealed(key, self._sieve.value(key))

    def _chunks(self, pool: Pair, needed: set[bytes] | None) -> Iterator[tuple[bytes, bytes]]:
        wreck = self._sieve.wreck
        prefix = keys.chunk_prefix(*pool)
        if needed is None:
            found = [k for k in wreck.rows if k.startswith(prefix) and len(k) > len(prefix)]
        else:
            found = [prefix + part for part in needed]
        row = self._row_of(pool) or parts.clear_pool()
        epoch = row.epoch
        for key in sorted(found):
            value = wreck.value(key, wreck.rows[key][0])
            epoch = max(epoch, epoch_of(key, value))
            yield key, value
        whole = Pool(epoch, self._members[pool], sweeping=False, key=row.key)
        yield prefix, seal_value(prefix, whole.pack())

    # --- rows ---------------------------------------------------------------------------------

    def _rows_of(self, place: Pair, pool: Pair, where: str) -> Iterator[tuple[bytes, bytes]]:
        sieve = self._sieve
        head = keys.thread_rows(*place, ThreadRow.HEAD)
        if head not in sieve.chosen:
            yield head, pack_head(head, pool[1], 0)
        spaces = set()
        for key in sorted([*self._rows[place], *self._lost.get(place, ())]):
            row = key[_ROW_AT]
            if row in (ThreadRow.CHECKPOINT, *_VALUES):
                spaces.add(rows.namespace_in(key))
            if row in _VALUES and not self._is_whole(key, pool):
                self.lost.append(f"{where}: {_told(key)}, of which a part is lost")
                yield key, rows.lost_row(key)
            elif key in sieve.chosen:
                yield key, sieve.value(key)
            elif row == ThreadRow.CHECKPOINT:
                self.lost.append(f"{where}: {_told(key)}")
        yield from self._unnamed(place, pool, where)
        named = keys.thread_rows(*place, ThreadRow.NAMESPACE)
        spaces -= {
            int.from_bytes(sieve.value(key)[HEADER_BYTES : HEADER_BYTES + 4], "big")
            for key in self._rows[place]
            if key.startswith(named) and key in sieve.chosen
        }
        for number in sorted(spaces):
            name = f"salvaged-{number}"
            self.lost.append(f"{where}: the name of a namespace, which is {name!r} now")
            yield pack_namespace(Place(*place, pool[1]), name, number)
        prefix = keys.thread_prefix(*place)
        if sieve.wreck.may_hold(prefix, keys.after(prefix)):
            self.lost.append(
                f"{where}: rows of it may be missing, so that a channel reads as if it were empty; "
                "have its saver check it"
            )

    def _unnamed(self, place: Pair, pool: Pair, where: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield marker rows for values that checkpoints refer to but that were not found."""
        there = {*self._rows[place], *self._lost.get(place, ())}
        for key in self._rows[place]:
            if key[_ROW_AT] != ThreadRow.CHECKPOINT or key not in self._sieve.chosen:
                continue
            row = rows.GraphCheckpointRow.unpack(key, self._sieve.value(key))
            try:
                versions = rows.versions_in(clear_body(row)) if row.complete else {}
                named = [
                    rows.value_key(Place(*place, pool[1]), rows.namespace_in(key), *version)
                    for version in versions.items()
                ]
            except (CorruptValueError, InvalidOptionError):
                continue  # unreadable in any case, as its saver's check reports
            for missing in named:
                if missing not in there:
                    there.add(missing)
                    self.lost.append(f"{where}: {_told(missing)}")
                    yield missing, rows.lost_row(missing)

    def _is_whole(self, key: bytes, pool: Pair) -> bool:
        """Return True if all chunks reachable from a row's manifests were found; keep them."""
        sieve = self._sieve
        if key not in sieve.chosen:
            return False

        def fetch(part: bytes) -> Typed:
            chunk = keys.chunk_prefix(*pool) + part
            value = self._value(chunk)
            if value is None:
                msg = f"the chunk {part.hex()} is lost"
                raise CorruptValueError(msg, key=chunk)
            return unpack_chunk(chunk, value)

        try:
            nodes = rows.clear_nodes(key, sieve.value(key), _VALUES[key[_ROW_AT]])
            found = {part for node in nodes for part in parts.walk(fetch, node)}
        except CorruptValueError:
            return False
        needed = self._pools[pool]
        if needed is not None:
            needed |= found
        return True


def count_numbers(sieve: RowSelector) -> None:
    """Raise the counters to the largest numbers of threads, pools and namespaces found."""
    last = sieve.last
    for key, found in sieve.wreck.rows.items():
        if key[0] in (Kind.THREAD, Kind.CHUNK):
            which = Counter.THREAD if key[0] == Kind.THREAD else Counter.POOL
            last[which] = max(last[which], keys.split_session_prefix(key)[1])
            if key[0] == Kind.THREAD and key[_ROW_AT] == ThreadRow.HEAD:
                pool = unpack_head(key, sieve.wreck.value(key, found[0]))[0]
                last[Counter.POOL] = max(last[Counter.POOL], pool)
            elif key[0] == Kind.THREAD and key[_ROW_AT] == ThreadRow.NAMESPACE:
                body = sieve.wreck.value(key, found[0])[HEADER_BYTES:]
                number = int.from_bytes(body[:4], "big")
                last[Counter.GRAPH_NAMESPACE] = max(last[Counter.GRAPH_NAMESPACE], number)
            elif key[0] == Kind.THREAD and key[_ROW_AT] in (ThreadRow.CHECKPOINT, *_VALUES):
                number = rows.namespace_in(key)
                last[Counter.GRAPH_NAMESPACE] = max(last[Counter.GRAPH_NAMESPACE], number)


def _told(key: bytes) -> str:
    """Describe a row."""
    what = {ThreadRow.CHECKPOINT: "checkpoint", ThreadRow.VALUE: "the value of channel and version"}
    try:
        # In the key of a checkpoint's writes, an extra byte follows the checkpoint's id.
        texts = keys.unpack_texts(key[22:].replace(b"\0\1", b"\0", 1))
    except CorruptValueError:
        texts = ("?",)
    return f"{what.get(key[_ROW_AT], 'the writes of checkpoint and task')} {texts!r:.120}"
