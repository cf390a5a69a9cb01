"""Checking threads with the serialiser that wrote them: bodies, values, writes, and what they say.

``care.py`` checks what can be told without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from memcore import keys
from memcore.checkpoint import rows
from memcore.checkpoint.care import body_findings, clear_body
from memcore.checkpoint.coding import Coder, Opaque, StoredCoder
from memcore.checkpoint.deltas import Deltas
from memcore.checkpoint.joining import MISSING
from memcore.checkpoint.listing import Listing
from memcore.checkpoint.parts import walk
from memcore.checkpoint.pool import chunk_key, read_chunk
from memcore.checkpoint.reading import View
from memcore.checkpoint.rows import CheckpointRow
from memcore.checkpoint.steps import Steps
from memcore.errors import CorruptValueError, InvalidOptionError, UndecodableError
from memcore.held import need_free
from memcore.store.base import ReadTxn, Txn
from memcore.store.piece import Piece

__all__ = ["Checking", "Judge", "LostCheckpoint", "RecoveredNamespace"]

Judge = Callable[[Any], list[tuple[int, str]]]
"""Of a channel's value: positions in it, and what is wrong there."""


@dataclass(frozen=True, slots=True)
class LostCheckpoint:
    """A checkpoint that cannot be read whole, and why."""

    checkpoint: str
    reason: str


@dataclass(slots=True)
class RecoveredNamespace:
    """What a recovery found of one namespace of a thread."""

    namespace: str
    kept: str | None = None
    """The newest checkpoint that is whole; None: none is, and nothing was removed."""
    lost: list[LostCheckpoint] = field(default_factory=list)
    """Those behind it, the newest first."""


_Broken = tuple[bytes, bytes, bytes]
"""Key and value of a checkpoint, and the prefix of its writes."""
Diagnosis = list[tuple[RecoveredNamespace, list[_Broken]]]


class Checking(Listing, Deltas):
    """Reads everything of a scope's threads. Give it a cache of its own: it has to see the file."""

    def findings(self, coder: Coder, judge: Judge) -> Iterator[str]:
        """What is wrong, in words; what is wrong in several checkpoints is told of the oldest."""
        for thread in self._names(None):
            for namespace, number in self._namespaces(thread, None):
                seen: set[tuple[str, object]] = set()
                ids = self._read(partial(self._ids, thread=thread, number=number, coder=coder))
                for checkpoint in ids:
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

    def _ids(self, txn: ReadTxn, *, thread: str, number: int, coder: Coder) -> list[str]:
        view = self._view(txn, thread, coder)
        if view is None:
            return []
        prefix = rows.checkpoints_of(view.place, number)
        return [rows.id_in(key) for key, _ in txn.scan(prefix, keys.after(prefix))]

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
        if isinstance(clear_body(row), Opaque):  # else ``check_threads`` has told of it
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
        """The newest whole checkpoint of each namespace, and those behind it; None: no thread."""
        names = self._namespaces(thread, None)
        return [self._diagnosed(thread, space, coder) for space in names] if names else None

    def _diagnosed(
        self, thread: str, space: tuple[str, int], coder: Coder
    ) -> tuple[RecoveredNamespace, list[_Broken]]:
        one = RecoveredNamespace(space[0])
        broken: list[_Broken] = []
        ids = self._read(partial(self._ids, thread=thread, number=space[1], coder=coder))
        for checkpoint in reversed(ids):
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
        """Remove what is not whole, where something is."""
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
        """Why a checkpoint is not whole, with its key, its value, the prefix of its writes."""
        view = self._view(txn, thread, coder)
        if view is None:
            return None
        key = rows.checkpoint_key(view.place, space[1], checkpoint)
        value = txn.get(key)
        if value is None:
            return None
        try:
            row = CheckpointRow.unpack(key, value)
            if isinstance(coder, StoredCoder):
                _need_structure(view, space[1], row)
            else:
                found = self._whole(view, *space, checkpoint, row)
                missing = [c for c in rows.versions_in(found.body) if c not in found.values]
                deltas = [c for c in missing if rows.is_delta(found.metadata, c)]
                self._walk(view, *space, checkpoint, deltas)
        except UndecodableError:
            raise  # it is sound, and with the serialiser that wrote it nothing is lost
        except CorruptValueError as exc:
            return str(exc), (key, value, rows.writes_of(view.place, space[1], checkpoint))
        return None

    def _remove_broken(self, txn: Txn, doomed: list[_Broken]) -> int:
        """Remove some of them, with their writes, if they are as they were; how many were tried."""
        scope = self._find(txn)
        if scope is None:
            return len(doomed)
        need_free(txn, scope, 0, what="the thread")
        piece = Piece()
        for at, (key, value, writes) in enumerate(doomed):
            if txn.get(key) != value:
                continue  # it was put again meanwhile
            sizes = [len(row) for _, row in txn.scan(writes, keys.after(writes))]
            fits = [piece.admits(size) for size in (len(value), *sizes)]
            if at and not all(fits):
                return at
            txn.delete(key)
            if sizes:
                txn.delete_range(writes, keys.after(writes))
        return len(doomed)


def _need_structure(view: View, number: int, row: CheckpointRow) -> None:
    """Have all that a checkpoint refers to be there, without a look at what it means.

    Raises:
        CorruptValueError: something is lost or damaged.
        InvalidOptionError: its body is neither JSON nor msgpack.
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
    view: View, number: int, channel: str, version: rows.Version, judge: Judge
) -> list[tuple[int | None, str]]:
    key = rows.value_key(view.place, number, channel, version)
    try:
        node = rows.node_of(view.txn, key, view.coder)
        value = MISSING if node is None else view.joiner.join(node)
    except Exception as exc:  # noqa: BLE001 - whatever a serialiser raises
        return [(None, f"its version {version!r:.60} cannot be read: {exc}")]
    return [] if value is MISSING else [*judge(value)]
