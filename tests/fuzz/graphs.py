"""The fuzz targets of graph checkpoints: manifests, and the rows that hold them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from memcore.codec import keys
from memcore.codec.keys import ThreadRow
from memcore.codec.values import seal_value
from memcore.errors import CorruptValueError
from memcore.graph import Cache, JsonCoder, rows
from memcore.graph import manifest as manifests
from memcore.graph import rows as threads
from memcore.graph.decode import MISSING, Joiner
from memcore.graph.manifest import Sort
from memcore.graph.rows import Pool, epoch_of, read_pool

PLACE = rows.Place(1, 2, 3)


class _Row:
    """A transaction over one row."""

    def __init__(self, key: bytes, data: bytes) -> None:
        self._rows = {key: seal_value(key, data)}
        self.get = self._rows.get

    def scan(self, *_: Any, **__: Any) -> list[tuple[bytes, bytes]]:
        return list(self._rows.items())


def nodes(data: bytes) -> None:
    """A manifest is walked and joined, or refused; one whose pages are itself comes to an end."""
    with suppress(CorruptValueError):
        parsed = manifests.parse(data)
        assert parsed.sort in range(Sort.PIECES + 1)
    for container in (Sort.LIST, Sort.DICT):
        with suppress(CorruptValueError):
            found = list(manifests.entries_in(container, data))
            whole = b"".join(node for node, _ in found)
            assert whole == data or container == Sort.DICT
        with suppress(CorruptValueError):
            assert all(len(part) == 16 for _, part in manifests.rows_in(container, data))
    for typed in (("json", data), ("page", data), ("bytes", b"")):
        joiner = Joiner(Cache(), JsonCoder(), lambda _, typed=typed: typed, pool=1, secret=b"")  # type: ignore[misc]
        with suppress(CorruptValueError):
            value = joiner.join(data)
            assert value is MISSING or MISSING not in _leaves(value)


def _leaves(value: Any) -> list[Any]:
    work, found = [value], []
    while work:
        at = work.pop()
        if isinstance(at, list | dict):
            work += at.values() if isinstance(at, dict) else at
        else:
            found.append(at)
    return found


def graph_rows(data: bytes) -> None:
    """Sealed garbage in place of any row of a thread is a typed error; whole ones come back."""
    key = rows.checkpoint_key(PLACE, 4, "c")
    with suppress(CorruptValueError):
        found = rows.GraphCheckpointRow.unpack(key, seal_value(key, data))
        assert rows.GraphCheckpointRow.unpack(key, seal_value(key, found.pack())) == found
    with suppress(CorruptValueError):
        writes = list(rows.unpack_writes(data))
        if writes:
            assert list(rows.unpack_writes(rows.pack_writes(writes[0].task, writes))) == writes
    with suppress(CorruptValueError):
        typed = manifests.unpack_typed(data)
        assert manifests.unpack_typed(manifests.pack_typed(*typed)) == typed
    for kind in (rows.NODE, rows.WRITES):
        with suppress(CorruptValueError):
            rows.clear_nodes(key, seal_value(key, data), kind)
        with suppress(CorruptValueError):
            rows.open_sealed(key, seal_value(key, data), JsonCoder(), kind)
    pool = keys.chunk_prefix(1, 3)
    with suppress(CorruptValueError):
        row = read_pool(_Row(pool, data), 1, 3)
        assert row is None or Pool.pack(row)
    with suppress(CorruptValueError):
        threads.read_head(_Row(threads.head_key(1, 2), data), 1, 2)
    with suppress(CorruptValueError):
        threads.namespaces_of(
            _Row(keys.thread_rows(1, 2, ThreadRow.NAMESPACE) + b"\0", data), PLACE
        )
    with suppress(CorruptValueError):
        assert epoch_of(key, seal_value(key, data)) >= 0
    with suppress(CorruptValueError):
        rows.id_in(data)
