"""Which checkpoints may go, and their going: prune, deletion by run.

A checkpoint whose channels are stored as deltas is rebuilt from its ancestors, back to the nearest
one with a value. So whatever a checkpoint that stays is rebuilt from stays, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from memcore import keys
from memcore.checkpoint import rows, sweeping, threads
from memcore.checkpoint.coding import Coder
from memcore.checkpoint.nodes import EMPTY, Sort
from memcore.checkpoint.pool import Pool, read_pool
from memcore.checkpoint.rows import CheckpointRow, Place
from memcore.checkpoint.steps import Stale, Steps
from memcore.checkpoint.threads import Thread
from memcore.errors import CorruptValueError, OutpacedError
from memcore.held import need_free
from memcore.keys import ThreadRow
from memcore.store.base import ReadTxn, Txn
from memcore.store.piece import Piece
from memcore.tombstone import is_erased

__all__ = ["Candidate", "Plan", "Planner", "Pruned", "prune"]

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
    pool: Pool
    doomed: dict[int, list[str]] = field(default_factory=dict)
    """By namespace, oldest first."""
    kept: dict[int, list[str]] = field(default_factory=dict)
    needed: dict[int, list[str]] = field(default_factory=dict)
    """Those the rule would have taken, but others are rebuilt from."""
    order: list[tuple[int, str]] = field(default_factory=list)
    """The doomed of all namespaces, each before its parent."""
    strays: list[tuple[int, str]] = field(default_factory=list)
    """Namespaces and ids of checkpoints that are gone, of which writes are left."""
    abandoned: bool = False
    """Whether the thread itself goes: it has been without a checkpoint for long."""
    values: set[bytes] = field(default_factory=set)
    """Keys of the values that the kept ones refer to."""
    unneeded: list[bytes] = field(default_factory=list)
    """Under a sweep: keys of the other values that were there.

    What came later is not among them, though who has an older memcore open stamps nothing.
    """


@dataclass(slots=True)
class Pruned:
    """What went, or would go."""

    checkpoints: int = 0
    needed: int = 0
    """Checkpoints that stayed because others are rebuilt from them."""
    strays: int = 0
    """Checkpoints that were gone before, whose writes went."""
    values: int = 0
    chunks: int = 0
    abandoned: bool = False
    """Whether the thread went, which had no checkpoint."""


Found = dict[str, Candidate]
"""The checkpoints of a namespace by id, oldest first."""


class Planner:
    """Works out what a rule comes to, in time linear in the checkpoints."""

    def __init__(self, txn: ReadTxn, thread: Thread, coder: Coder) -> None:
        self._txn = txn
        self._place = thread.place
        self._pool = thread.pool
        self._coder = coder
        self._known: dict[tuple[int, str, Any], tuple[bool, bool]] = {}
        """By namespace, channel and version, what ``_value`` found."""
        self._stamped: set[str] = set()
        """Of the namespace, what was written or needed since the sweep began."""

    def plan(self, rule: Rule, *, epoch: int | None = None) -> Plan:
        """What goes and what stays; under the sweep of an epoch, what arrived in it stays."""
        plan = Plan(self._place, self._pool)
        for number, namespace in threads.namespaces_of(self._txn, self._place):
            self._stamped = set()
            found = {one.checkpoint: one for one in self._candidates(number, namespace, epoch)}
            doomed = rule(list(found.values())) - self._stamped
            needed = self._rebuilt_from(number, doomed, found)
            going = doomed - needed
            plan.doomed[number] = [name for name in found if name in going]
            plan.kept[number] = [name for name in found if name not in going]
            plan.needed[number] = sorted(doomed & needed)
            plan.strays += [
                (number, name) for name in rows.stray_writes(self._txn, self._place, number)
            ]
            plan.order += [(number, name) for name in _children_first(plan.doomed[number], found)]
            values = rows.values_of(self._place, number)
            for name in plan.kept[number]:
                for channel, version in rows.versions_in(found[name].body).items():
                    plan.values.add(rows.value_under(values, channel, version))
        if epoch is not None:
            plan.unneeded = list(self._unneeded(plan.values, epoch))
        return plan

    def _unneeded(self, needed: set[bytes], epoch: int) -> Iterator[bytes]:
        prefix = keys.thread_rows(self._place.scope, self._place.thread, ThreadRow.VALUE)
        for key, value in self._txn.scan(prefix, keys.after(prefix)):
            if key not in needed and rows.stamp_of(value) < epoch:
                yield key

    def _candidates(self, number: int, namespace: str, epoch: int | None) -> Iterator[Candidate]:
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
            if epoch is not None and rows.stamp_of(value) >= epoch:
                self._stamped.add(row.checkpoint)
            yield Candidate(namespace, row.checkpoint, row.parent, metadata, body)

    def _rebuilt_from(self, number: int, doomed: set[str], found: Found) -> set[str]:
        """The ancestors that the delta channels of those that stay are rebuilt from."""
        needed: set[str] = set()
        ways: dict[tuple[str, str], bool] = {}
        taken: set[tuple[str, str]] = set()
        """Channels and checkpoints whose way up is in ``needed`` already."""
        for one in found.values():
            if one.checkpoint in doomed or one.parent not in found:
                continue
            for channel, version in rows.versions_in(one.body).items():
                if self._value(number, channel, version)[0]:
                    continue
                above = found[one.parent]
                if rows.is_delta(one.metadata, channel) or self._is_way(
                    number, channel, above, found, ways
                ):
                    self._take_way(number, channel, above, found, taken)
        return needed | {checkpoint for _, checkpoint in taken}

    def _is_way(
        self,
        number: int,
        channel: str,
        at: Candidate | None,
        found: Found,
        ways: dict[tuple[str, str], bool],
    ) -> bool:
        """Whether a channel without a value below is rebuilt from here on up.

        It is if any checkpoint up to the nearest one with a value says that it is one of deltas, or
        if that value is a snapshot. ``ways`` are the answers so far.
        """
        path: dict[tuple[str, str], None] = {}
        answer = False
        while at is not None and (channel, at.checkpoint) not in path:
            named = channel, at.checkpoint
            if named in ways:
                answer = ways[named]
                break
            path[named] = None
            stored, snapshot = self._value(number, channel, _version_in(at, channel))
            if stored or rows.is_delta(at.metadata, channel):
                # A snapshot says by its form that the channel is one of deltas.
                answer = snapshot or rows.is_delta(at.metadata, channel)
                break
            at = None if at.parent is None else found.get(at.parent)
        ways.update(dict.fromkeys(path, answer))
        return answer

    def _take_way(
        self,
        number: int,
        channel: str,
        at: Candidate | None,
        found: Found,
        taken: set[tuple[str, str]],
    ) -> None:
        """Add the checkpoints up to the nearest one with a value; without one, up to the root."""
        while at is not None and (channel, at.checkpoint) not in taken:
            taken.add((channel, at.checkpoint))
            if self._value(number, channel, _version_in(at, channel))[0]:
                return
            at = None if at.parent is None else found.get(at.parent)

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


def _version_in(one: Candidate, channel: str) -> Any:
    return rows.versions_in(one.body).get(channel)


def _children_first(going: list[str], found: Found) -> list[str]:
    """Each before its parent: what is left when a prune is cut short can still be rebuilt."""
    among = set(going)
    parents = {name: found[name].parent for name in going}
    waiting = Counter(parent for parent in parents.values() if parent in among)
    ready = [name for name in going if not waiting[name]]
    order: dict[str, None] = {}
    while ready:
        name = ready.pop()
        order[name] = None
        parent = parents[name]
        if parent is not None and parent in among:
            waiting[parent] -= 1
            if not waiting[parent]:
                ready.append(parent)
    return [*order, *(name for name in going if name not in order)]  # the rest are circles


# --- steps ----------------------------------------------------------------------------------------
#
# 1. A transaction begins the next epoch of the pool, as for a sweep of chunks. Whoever stores a
#    checkpoint from then on stamps it, its parent, and every value that it names with the epoch.
# 2. On one snapshot of that epoch the rule says what goes. What has the stamp stays: it arrived
#    meanwhile, or is needed by what did.
# 3. Piece by piece checkpoints go, each before its parent, with their writes; then writes that came
#    late to checkpoints that are gone; then values that no checkpoint that stays names; then
#    chunks. Nothing goes that came after the snapshot, or has the stamp by then.
#
# So what arrives invalidates nothing. What is cut short is begun anew: what went has gone, and what
# is left is whole.


def prune(
    read: Callable[[Callable[[ReadTxn], Any]], Any],
    plan: Callable[..., Callable[[ReadTxn], Plan | None]],
    coder: Coder,
) -> Steps[Pruned]:
    """Remove what the plan dooms: checkpoints with their writes, then values, then chunks.

    ``plan(epoch)`` gives what plans on a snapshot.

    Raises:
        OutpacedError: others began to prune the thread, again and again.
        HeldError: a legal hold covers the thread.
    """
    done = Pruned()
    made: Plan | None = read(plan(None))
    if made is None or not (made.order or made.strays or made.pool.sweeping):
        return done
    epoch: int | None = None
    idle = 0
    while True:
        before = done.checkpoints
        if epoch is None:
            epoch = yield partial(_begin, place=made.place)
        found = None if epoch is None else read(plan(epoch))
        if found is None or epoch is None:
            return done  # the thread was deleted
        made = found
        done.needed = sum(map(len, made.needed.values()))
        try:
            if (yield from _remove_checkpoints(made, epoch, done)):
                yield from _remove_strays(made, epoch, done)
                yield from _remove_values(made, epoch, done)
                break
        except Stale:
            # Another prune, or a deletion, has begun an epoch: it serves for both, while it lasts.
            row = read(partial(read_pool, scope=made.place.scope, pool=made.place.pool))
            epoch = row.epoch if row is not None and row.sweeping else None
        idle = 0 if done.checkpoints > before else idle + 1
        _need_patience(idle, done)
    place = made.place
    done.chunks = yield from sweeping.sweep(read, place.scope, place.pool, epoch, coder)
    return done


def _need_patience(idle: int, done: Pruned) -> None:
    if idle == _ATTEMPTS_MAX:
        msg = (
            f"others pruned the thread, or forked what was to go, {idle} times in a row: "
            f"{done.checkpoints:,} checkpoints were removed, the others stay; run it again"
        )
        raise OutpacedError(msg)


def _begin(txn: Txn, place: Place) -> int | None:
    """Begin an epoch; which one, None if the thread was deleted.

    Raises:
        HeldError: a legal hold covers it.
    """
    need_free(txn, place.scope, 0, what="the thread")
    if not threads.is_alive(txn, place):
        return None
    return sweeping.begin(txn, place.scope, place.pool)


def _remove_checkpoints(plan: Plan, epoch: int, done: Pruned) -> Steps[bool]:
    """Remove the doomed; False: one of them is needed by what arrived, so plan anew for the rest.

    Raises:
        Stale: the epoch is over.
    """
    at = 0
    while at < len(plan.order):
        taken, gone = yield partial(_remove_piece, plan=plan, at=at, epoch=epoch)
        done.checkpoints += gone
        if not taken:
            return False
        at += taken
    return True


def _remove_piece(txn: Txn, plan: Plan, at: int, epoch: int) -> tuple[int, int]:
    """Remove some of the doomed from a place in their order on: how many were looked at, and went.

    Raises:
        Stale: the epoch is over.
        HeldError: a legal hold covers the thread.
    """
    _need_sweep(txn, plan.place, epoch)
    piece = Piece()
    taken = gone = 0
    for here in range(at, len(plan.order)):
        number, checkpoint = plan.order[here]
        key = rows.checkpoint_key(plan.place, number, checkpoint)
        value = txn.get(key)
        if value is not None:
            if rows.stamp_of(value) >= epoch:
                break
            writes = rows.writes_of(plan.place, number, checkpoint)
            sizes = [len(row) for _, row in txn.scan(writes, keys.after(writes))]
            # A checkpoint never goes without its writes, however many they are.
            fits = [piece.admits(size) for size in (len(value), *sizes)]
            if gone and not all(fits):
                break
            txn.delete(key)
            if sizes:
                txn.delete_range(writes, keys.after(writes))
            gone += 1
        taken += 1
    return taken, gone


def _remove_strays(plan: Plan, epoch: int, done: Pruned) -> Steps[None]:
    """Remove the writes of what is gone; raises Stale as ``_remove_checkpoints``."""
    strays = plan.strays
    while strays:
        taken, gone = yield partial(_remove_late, place=plan.place, strays=strays, epoch=epoch)
        done.strays += gone
        strays = strays[taken:]


def _remove_late(
    txn: Txn, place: Place, strays: list[tuple[int, str]], epoch: int
) -> tuple[int, int]:
    _need_sweep(txn, place, epoch)
    piece = Piece()
    gone = 0
    for at, (number, checkpoint) in enumerate(strays):
        if txn.get(rows.checkpoint_key(place, number, checkpoint)) is not None:
            continue  # it was put again
        writes = rows.writes_of(place, number, checkpoint)
        fits = [piece.admits(len(row)) for _, row in txn.scan(writes, keys.after(writes))]
        if gone and not all(fits):
            return at, gone
        if fits:
            txn.delete_range(writes, keys.after(writes))
            gone += 1
    return len(strays), gone


def _need_sweep(txn: ReadTxn, place: Place, epoch: int) -> None:
    """Have the sweep still be under way: what arrives is stamped only while it is.

    Raises:
        Stale: it is not.
        HeldError: a legal hold covers the thread.
    """
    need_free(txn, place.scope, 0, what="the thread")
    row = None if is_erased(txn, place.scope) else read_pool(txn, place.scope, place.pool)
    if row is None or row.epoch != epoch or not row.sweeping or not threads.is_alive(txn, place):
        raise Stale


def _remove_values(plan: Plan, epoch: int, done: Pruned) -> Steps[None]:
    """Remove the values that nothing names which stays; raises Stale as ``_remove_checkpoints``."""
    unneeded = plan.unneeded
    while unneeded:
        taken, gone = yield partial(
            _remove_unneeded, place=plan.place, unneeded=unneeded, epoch=epoch
        )
        done.values += gone
        unneeded = unneeded[taken:]


def _remove_unneeded(txn: Txn, place: Place, unneeded: list[bytes], epoch: int) -> tuple[int, int]:
    _need_sweep(txn, place, epoch)
    piece = Piece()
    gone = 0
    for at, key in enumerate(unneeded):
        value = txn.get(key)
        if value is None or rows.stamp_of(value) >= epoch:
            continue
        if not piece.admits(len(value)):
            return at, gone
        txn.delete(key)
        gone += 1
    return len(unneeded), gone
