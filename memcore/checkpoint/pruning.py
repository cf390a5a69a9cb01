"""Which checkpoints may go, and their going: prune, deletion by run.

A checkpoint whose channels are stored as deltas is rebuilt from its ancestors, back to the nearest
one with a value. So whatever a checkpoint that stays is rebuilt from stays, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from memcore import keys
from memcore.checkpoint import rows, sweeping, threads
from memcore.checkpoint.coding import Coder
from memcore.checkpoint.nodes import EMPTY, Sort
from memcore.checkpoint.rows import CheckpointRow, Place
from memcore.checkpoint.steps import Stale, Steps
from memcore.codec import checksum_of
from memcore.errors import CorruptValueError, OutpacedError
from memcore.held import need_free
from memcore.keys import ThreadRow
from memcore.store.base import ReadTxn, Txn
from memcore.store.piece import Piece

__all__ = ["Candidate", "Plan", "Planner", "Pruned", "prune"]

_COUNTERS: Final = "counters_since_delta_snapshot"
_ATTEMPTS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint as a rule for pruning sees it."""

    namespace: str
    checkpoint: str
    parent: str | None
    metadata: Any
    body: Any


Rule = Callable[[list[Candidate]], set[str]]
"""Of the checkpoints of a namespace, oldest id first: the ids that are to go."""


@dataclass(slots=True)
class Plan:
    """What a rule comes to for one thread."""

    place: Place
    doomed: dict[int, list[str]] = field(default_factory=dict)
    """By namespace, oldest first."""
    kept: dict[int, list[str]] = field(default_factory=dict)
    needed: dict[int, list[str]] = field(default_factory=dict)
    """Those the rule would have taken, but others are rebuilt from."""
    stored: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    """By namespace, keys and checksums of the checkpoints that were planned with."""
    values: set[bytes] = field(default_factory=set)
    """Keys of the values that the kept ones refer to."""


@dataclass(slots=True)
class Pruned:
    """What went, or would go."""

    checkpoints: int = 0
    needed: int = 0
    """Checkpoints that stayed because others are rebuilt from them."""
    values: int = 0
    chunks: int = 0


class Planner:
    """Works out what a rule comes to."""

    def __init__(self, txn: ReadTxn, place: Place, coder: Coder) -> None:
        self._txn = txn
        self._place = place
        self._coder = coder
        self._known: dict[tuple[int, str, Any], tuple[bool, bool]] = {}
        """By namespace, channel and version, what ``_value`` found."""

    def plan(self, rule: Rule) -> Plan:
        """What goes and what stays."""
        plan = Plan(self._place)
        for number, namespace in threads.namespaces_of(self._txn, self._place):
            found = {one.checkpoint: one for one in self._candidates(number, namespace)}
            doomed = rule(list(found.values()))
            needed: set[str] = set()
            for one in found.values():
                if one.checkpoint not in doomed:
                    needed |= self._rebuilt_from(number, one, found)
            going = doomed - needed
            plan.doomed[number] = [name for name in found if name in going]
            plan.kept[number] = [name for name in found if name not in going]
            plan.needed[number] = sorted(doomed & needed)
            plan.stored[number] = _stored(self._txn, self._place, number)
            for name in plan.kept[number]:
                for channel, version in rows.versions_in(found[name].body).items():
                    plan.values.add(rows.value_key(self._place, number, channel, version))
        return plan

    def _candidates(self, number: int, namespace: str) -> Iterator[Candidate]:
        prefix = rows.checkpoints_of(self._place, number)
        for key, value in self._txn.scan(prefix, keys.after(prefix)):
            row = CheckpointRow.unpack(key, value)
            metadata = row.metadata_by(self._coder)
            body = row.body_by(self._coder)
            if not isinstance(body, dict) or rows.versions_in(body) != body.get(
                "channel_versions", {}
            ):
                # Not to be taken for one that names no values: these would go.
                msg = (
                    f"checkpoint {row.checkpoint!r:.60} cannot be looked into: its body is "
                    f"{body!s:.60}; prune the thread with the serialiser that wrote it"
                )
                raise CorruptValueError(msg, key=key)
            yield Candidate(namespace, row.checkpoint, row.parent, metadata, body)

    def _rebuilt_from(self, number: int, one: Candidate, found: dict[str, Candidate]) -> set[str]:
        """The ancestors that the delta channels of a checkpoint are rebuilt from."""
        missing = {
            channel: _is_delta(one.metadata, channel)
            for channel, version in rows.versions_in(one.body).items()
            if not self._value(number, channel, version)[0]
        }
        needed: set[str] = set()
        path: set[str] = set()
        at = None if one.parent is None else found.get(one.parent)
        while at is not None and missing and at.checkpoint not in path:
            path.add(at.checkpoint)
            there = rows.versions_in(at.body)
            for channel in list(missing):
                missing[channel] |= _is_delta(at.metadata, channel)
                stored, snapshot = self._value(number, channel, there.get(channel))
                # A snapshot says by its form that the channel is one of deltas.
                if stored and (missing.pop(channel) or snapshot):
                    needed.update(path)
            at = None if at.parent is None else found.get(at.parent)
        if any(missing.values()):
            needed.update(path)  # no value anywhere: rebuilt from the very first write
        return needed

    def _value(self, number: int, channel: str, version: Any) -> tuple[bool, bool]:
        """Whether there is one, and whether it is a snapshot; looked up once."""
        if version is None:
            return False, False
        named = number, channel, version
        found = self._known.get(named)
        if found is None:
            key = rows.value_key(self._place, number, channel, version)
            value = self._txn.get(key)
            if value is not None and rows.is_lost(key, value):
                found = True, False  # there was one
            else:
                node = rows.node_of(self._txn, key, self._coder) or EMPTY
                found = node != EMPTY, node[0] == Sort.WRAPPED
            self._known[named] = found
        return found


def _is_delta(metadata: Any, channel: str) -> bool:
    counters = metadata.get(_COUNTERS) if isinstance(metadata, dict) else None
    return isinstance(counters, dict) and channel in counters


def prune(
    read: Callable[[Callable[[ReadTxn], Any]], Any],
    plan: Callable[[ReadTxn], Plan | None],
    coder: Coder,
) -> Steps[Pruned]:
    """Remove what the plan dooms: checkpoints with their writes, then values, then chunks."""
    done = Pruned()
    epoch = None
    attempts = 0
    while (made := read(plan)) is not None and any(made.doomed.values()):
        try:
            more, epoch = yield partial(_remove_checkpoints, plan=made)
            done.checkpoints += more
            attempts = 0
        except Stale:
            attempts += 1
            _need_patience(attempts)
    if made is None or epoch is None:
        return done
    done.needed = sum(map(len, made.needed.values()))
    done.values = yield from _remove_values(read, plan)
    done.chunks = yield from sweeping.sweep(read, made.place.scope, made.place.pool, epoch, coder)
    return done


def _need_patience(attempts: int) -> None:
    if attempts == _ATTEMPTS_MAX:
        msg = (
            "checkpoints were stored faster than a prune could be planned; what it removed so far "
            "is gone, try again for the rest"
        )
        raise OutpacedError(msg)


def _remove_checkpoints(txn: Txn, plan: Plan) -> tuple[int, int | None]:
    """Remove some of the doomed, and begin an epoch: how many went, and which epoch.

    Raises:
        Stale: the thread is not what was planned for.
        HeldError: a legal hold covers it.
    """
    _need_unchanged(txn, plan)
    need_free(txn, plan.place.scope, 0, what="the thread")
    epoch = sweeping.begin(txn, plan.place.scope, plan.place.pool)
    gone = 0
    piece = Piece()
    for number, doomed in plan.doomed.items():
        for checkpoint in doomed:
            key = rows.checkpoint_key(plan.place, number, checkpoint)
            writes = rows.writes_of(plan.place, number, checkpoint)
            sizes = [len(txn.get(key) or b"")]
            sizes += [len(value) for _, value in txn.scan(writes, keys.after(writes))]
            # A checkpoint never goes without its writes, however many they are.
            if not all(piece.admits(size) for size in sizes) and gone:
                return gone, epoch
            txn.delete(key)
            txn.delete_range(writes, keys.after(writes))
            gone += 1
    return gone, epoch


def _need_unchanged(txn: ReadTxn, plan: Plan) -> None:
    if not threads.is_alive(txn, plan.place):
        raise Stale
    for number, stored in plan.stored.items():
        if _stored(txn, plan.place, number) != stored:
            raise Stale


def _stored(txn: ReadTxn, place: Place, number: int) -> list[tuple[bytes, bytes]]:
    """The checkpoints of a namespace as they are: one that was replaced may need other values."""
    prefix = rows.checkpoints_of(place, number)
    return [(key, checksum_of(value)) for key, value in txn.scan(prefix, keys.after(prefix))]


def _remove_values(
    read: Callable[[Callable[[ReadTxn], Any]], Any], plan: Callable[[ReadTxn], Plan | None]
) -> Steps[int]:
    removed = attempts = 0
    while True:
        made, unneeded = read(lambda txn: _unneeded(txn, plan))
        if made is None or not unneeded:
            return removed
        try:
            removed += yield partial(_remove_piece, plan=made, unneeded=unneeded)
            attempts = 0
        except Stale:
            attempts += 1
            _need_patience(attempts)


def _unneeded(
    txn: ReadTxn, plan: Callable[[ReadTxn], Plan | None]
) -> tuple[Plan | None, list[bytes]]:
    made = plan(txn)
    if made is None:
        return None, []
    prefix = keys.thread_rows(made.place.scope, made.place.thread, ThreadRow.VALUE)
    return made, [key for key, _ in txn.scan(prefix, keys.after(prefix)) if key not in made.values]


def _remove_piece(txn: Txn, plan: Plan, unneeded: list[bytes]) -> int:
    _need_unchanged(txn, plan)
    piece = Piece()
    gone = 0
    for key in unneeded:
        value = txn.get(key)
        if value is not None:
            if not piece.admits(len(value)):
                break
            txn.delete(key)
            gone += 1
    return gone
