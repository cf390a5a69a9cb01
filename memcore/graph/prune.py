"""Deletion of checkpoints by age, count, run or thread; copies of threads.

A checkpoint whose channels are stored as deltas is rebuilt from its ancestors, back to the nearest
one with a value. So the ancestors that a kept checkpoint is rebuilt from stay, marked as pruned:
what they were rebuilt from themselves may go, and then only their descendants can be read.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from memcore.codec import keys
from memcore.codec.keys import Kind, ThreadRow
from memcore.codec.values import open_value, seal_value
from memcore.errors import CorruptValueError, InvalidOptionError, OutpacedError
from memcore.graph import gc as sweeping
from memcore.graph import rows
from memcore.graph import rows as threads
from memcore.graph.manifest import EMPTY, Coder, Sort, StoredCoder
from memcore.graph.rows import (
    GraphCheckpointRow,
    Place,
    Pool,
    Thread,
    checkpoints_of,
    read_pool,
    write_pool,
)
from memcore.limits import PIECE_ROWS
from memcore.options import counted
from memcore.records import record
from memcore.rows import names
from memcore.rows.lifecycle import drop_terms, is_erased, need_free, thread_terms
from memcore.store.datafile import GRAPH_ROWS
from memcore.store.interface import DeleteBudget, ReadTxn, Stale, Steps, Txn

__all__ = [
    "Planner",
    "PruneCandidate",
    "PrunePlan",
    "Pruned",
    "changed_ms",
    "copy_thread",
    "is_encrypted",
    "is_unused",
    "keep_rule",
    "limits_rule",
    "prune",
    "remove_piece",
    "run_rule",
    "start_removal",
    "under_way",
]


# --- Selection and deletion of checkpoints --------------------------------------------------------

_ATTEMPTS_MAX: Final = 16


@record(frozen=True, slots=True)
class PruneCandidate:
    """A checkpoint as passed to a prune rule."""

    namespace: str
    checkpoint: str
    parent: str | None
    metadata: Any
    body: Any


Rule = Callable[[list[PruneCandidate]], set[str]]
"""Given the checkpoints of a namespace, oldest id first, returns the ids to delete."""


@record(slots=True)
class PrunePlan:
    """The effect of a rule on one thread: the rows to delete and to keep, in order."""

    place: Place
    pool: Pool
    doomed: dict[int, list[str]] = field(default_factory=dict)
    """By namespace, oldest first."""
    kept: dict[int, list[str]] = field(default_factory=dict)
    needed: dict[int, list[str]] = field(default_factory=dict)
    """Checkpoints that the rule selected, but from which others are rebuilt: to be marked."""
    order: list[tuple[int, str]] = field(default_factory=list)
    """The doomed checkpoints of all namespaces, each before its parent."""
    strays: list[tuple[int, str]] = field(default_factory=list)
    """Namespaces and ids of deleted checkpoints that still have writes."""
    abandoned: bool = False
    """True if the thread itself is deleted, because it has had no checkpoint for long."""
    values: set[bytes] = field(default_factory=set)
    """Keys of the values that kept checkpoints refer to."""
    unneeded: list[bytes] = field(default_factory=list)
    """In a sweep: keys of the snapshot's other values.

    Values written later are not included, not even those of a process with an older memcore, which
    does not stamp rows.
    """


@record(slots=True)
class Pruned:
    """Counts of what a prune deleted, or would delete."""

    checkpoints: int = 0
    needed: int = 0
    """Checkpoints hidden instead, because others are rebuilt from them."""
    strays: int = 0
    """Checkpoints deleted earlier whose writes were deleted now."""
    values: int = 0
    chunks: int = 0
    abandoned: bool = False
    """True if the thread was deleted because it had no checkpoint."""


Found = dict[str, PruneCandidate]
"""The checkpoints of a namespace by id, oldest first."""


class Planner:
    """Applies a rule to a thread, in time linear in the number of its checkpoints."""

    def __init__(self, txn: ReadTxn, thread: Thread, coder: Coder, *, now_ms: int) -> None:
        self._txn = txn
        self._now_ms = now_ms
        self._place = thread.place
        self._pool = thread.pool
        self._coder = coder
        self._known: dict[tuple[int, str, Any], tuple[bool, bool]] = {}
        """Results of ``_value`` by namespace, channel and version."""
        self._stamped: set[str] = set()
        """Checkpoints of the current namespace written or needed since the sweep began."""
        self._pruned: set[str] = set()
        """Those of the current namespace that an earlier prune has marked."""

    def plan(self, rule: Rule, *, epoch: int | None = None) -> PrunePlan:
        """Plan the deletions of a rule.

        In the sweep of ``epoch``, rows written during it are kept.
        """
        plan = PrunePlan(self._place, self._pool)
        for number, namespace in threads.namespaces_of(self._txn, self._place):
            self._stamped, self._pruned = set(), set()
            found = {one.checkpoint: one for one in self._candidates(number, namespace, epoch)}
            seen = [one for one in found.values() if one.checkpoint not in self._pruned]
            doomed = (rule(seen) | self._pruned) - self._stamped
            needed = self._rebuilt_from(number, doomed, found)
            going = doomed - needed
            plan.doomed[number] = [name for name in found if name in going]
            plan.kept[number] = [one.checkpoint for one in seen if one.checkpoint not in doomed]
            plan.needed[number] = sorted((doomed & needed) - self._pruned)
            strays = rows.stray_writes(self._txn, self._place, number, now_ms=self._now_ms)
            plan.strays += [(number, name) for name in strays]
            plan.order += [(number, name) for name in _children_first(plan.doomed[number], found)]
            values = rows.values_of(self._place, number)
            for name in found.keys() - going:
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

    def _candidates(
        self, number: int, namespace: str, epoch: int | None
    ) -> Iterator[PruneCandidate]:
        prefix = rows.checkpoints_of(self._place, number)
        for key, value in self._txn.scan(prefix, keys.after(prefix)):
            row = GraphCheckpointRow.unpack(key, value)
            metadata = row.metadata_by(self._coder)
            body = row.body_by(self._coder)
            if not isinstance(body, dict) or rows.versions_in(body) != body.get(
                "channel_versions", {}
            ):
                # It may not pass for one that names no values: these would be deleted.
                msg = (
                    f"checkpoint {row.checkpoint!r:.60} cannot be looked into: its body is "
                    f"{body!s:.60}; prune the thread with the serialiser that wrote it"
                )
                raise CorruptValueError(msg, key=key)
            if epoch is not None and rows.stamp_of(value) >= epoch:
                self._stamped.add(row.checkpoint)
            if row.pruned:
                self._pruned.add(row.checkpoint)
            yield PruneCandidate(namespace, row.checkpoint, row.parent, metadata, body)

    def _rebuilt_from(self, number: int, doomed: set[str], found: Found) -> set[str]:
        """Find the ancestors from which the remaining checkpoints' delta channels are rebuilt."""
        needed: set[str] = set()
        ways: dict[tuple[str, str], bool] = {}
        taken: set[tuple[str, str]] = set()
        """Channels and checkpoints whose path to a value was already taken."""
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
        at: PruneCandidate | None,
        found: Found,
        ways: dict[tuple[str, str], bool],
    ) -> bool:
        """Return whether a channel without a value below is rebuilt from this checkpoint upwards.

        It is if the metadata of any checkpoint up to the nearest one with a value marks it as a
        delta channel, or if that value is a snapshot. ``ways`` caches the answers.
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
                # The form of a snapshot shows that the channel is stored as deltas.
                answer = snapshot or rows.is_delta(at.metadata, channel)
                break
            at = None if at.parent is None else found.get(at.parent)
        ways.update(dict.fromkeys(path, answer))
        return answer

    def _take_way(
        self,
        number: int,
        channel: str,
        at: PruneCandidate | None,
        found: Found,
        taken: set[tuple[str, str]],
    ) -> None:
        """Add the checkpoints up to the nearest one with a value, or else up to the root."""
        while at is not None and (channel, at.checkpoint) not in taken:
            taken.add((channel, at.checkpoint))
            if self._value(number, channel, _version_in(at, channel))[0]:
                return
            at = None if at.parent is None else found.get(at.parent)

    def _value(self, number: int, channel: str, version: Any) -> tuple[bool, bool]:
        """Return ``(has a value, it is a snapshot)`` for a channel's version; cached."""
        if version is None:
            return False, False
        named = number, channel, version
        found = self._known.get(named)
        if found is None:
            key = rows.value_key(self._place, number, channel, version)
            value = self._txn.get(key)
            if value is not None and rows.is_lost(key, value):
                found = True, False  # it had a value
            else:
                node = rows.node_of(self._txn, key, self._coder) or EMPTY
                found = node != EMPTY, node[0] == Sort.WRAPPED
            self._known[named] = found
        return found


def _version_in(one: PruneCandidate, channel: str) -> Any:
    return rows.versions_in(one.body).get(channel)


def _children_first(going: list[str], found: Found) -> list[str]:
    """Order children before parents, so that what an interrupted prune leaves can be rebuilt.

    A checkpoint that only others need may be between them: what is behind it is rebuilt from above
    it, too.
    """
    among = set(going)
    nearest: dict[str, str | None] = {}
    parents = {name: _going_above(name, among, found, nearest) for name in going}
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
    return [*order, *(name for name in going if name not in order)]  # the rest are cycles


def _going_above(
    name: str, among: set[str], found: Found, nearest: dict[str, str | None]
) -> str | None:
    """Find the nearest ancestor that goes, too; ``nearest`` caches the answers."""
    path: dict[str, None] = {name: None}
    at = found[name].parent
    while at is not None and at in found and at not in among and at not in path:
        if at in nearest:
            at = nearest[at]
            break
        path[at] = None
        at = found[at].parent
    above = at if at in among and at not in path else None
    nearest.update(dict.fromkeys(list(path)[1:], above))
    return above


# --- steps ----------------------------------------------------------------------------------------
#
# 1. A transaction begins the next epoch of the pool, as for a sweep of chunks. From then on writers
#    stamp a checkpoint, its parent, and every value that it names with the epoch.
# 2. On one snapshot of that epoch the rule selects the checkpoints to delete. Stamped ones are
#    kept: they were written in the meantime, or are needed by one that was.
# 3. Piece by piece, the selected checkpoints that others are rebuilt from are marked as pruned, and
#    only then the rest deleted with their writes, each before its parent; then late writes of
#    deleted checkpoints; then values that no stored checkpoint names; then chunks. Rows written
#    after the snapshot, or stamped by then, are kept.
#
# So concurrent writes invalidate nothing. An interrupted prune can be run again: every checkpoint
# that is not marked is complete.


def prune(
    read: Callable[[Callable[[ReadTxn], Any]], Any],
    plan: Callable[..., Callable[[ReadTxn], PrunePlan | None]],
    coder: Coder,
) -> Steps[Pruned]:
    """Delete the rows doomed by the plan: checkpoints with their writes, then values, then chunks.

    ``plan(epoch)`` returns a function that plans on a snapshot.

    Raises:
        OutpacedError: other prunes of the thread prevented progress in every attempt.
        HeldError: a legal hold covers the thread.
    """
    done = Pruned()
    made: PrunePlan | None = read(plan(None))
    if made is None or not (
        made.order or made.strays or made.pool.sweeping or any(made.needed.values())
    ):
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
        try:
            if (yield from _mark_needed(made, epoch, done)) and (
                yield from _remove_checkpoints(made, epoch, done)
            ):
                yield from _remove_strays(made, epoch, done)
                yield from _remove_values(made, epoch, done)
                break
        except Stale:
            # Another prune or a deletion began an epoch, which serves both as long as it lasts.
            row = read(partial(read_pool, scope=made.place.scope, pool=made.place.pool))
            epoch = row.epoch if row is not None and row.sweeping else None
        idle = 0 if done.checkpoints > before else idle + 1
        _need_patience(idle, done)
    place = made.place
    done.chunks = yield from sweeping.sweep(read, place.scope, place.pool, epoch, coder)
    return done


def _need_patience(idle: int, done: Pruned) -> None:
    if idle == _ATTEMPTS_MAX:
        gone = counted(done.checkpoints, "checkpoint was", "checkpoints were")
        msg = (
            f"others pruned the thread, or forked what was to go, {idle} times in a row: {gone} "
            "removed, the others stay; run it again"
        )
        raise OutpacedError(msg)


def _begin(txn: Txn, place: Place) -> int | None:
    """Begin an epoch; returns its number, None if the thread was deleted.

    Raises:
        HeldError: a legal hold covers it.
    """
    need_free(txn, place.scope, 0, what="the thread")
    if not threads.is_alive(txn, place):
        return None
    return sweeping.begin(txn, place.scope, place.pool)


def _mark_needed(plan: PrunePlan, epoch: int, done: Pruned) -> Steps[bool]:
    """Mark the checkpoints that others are rebuilt from; raises as ``_remove_checkpoints``.

    It comes before the first deletion, so that nobody reads or forks one that is incomplete.
    False if a new checkpoint needs one of them: replan the rest.
    """
    marked = [(number, name) for number, names in plan.needed.items() for name in names]
    for at in range(0, len(marked), PIECE_ROWS):
        piece = marked[at : at + PIECE_ROWS]
        gone = yield partial(_mark_piece, place=plan.place, piece=piece, epoch=epoch)
        if gone is None:
            return False
        done.needed += gone
    return True


def _mark_piece(txn: Txn, place: Place, piece: list[tuple[int, str]], epoch: int) -> int | None:
    """Mark some checkpoints; returns their number, None and marks none if one was stamped."""
    _need_sweep(txn, place, epoch)
    found = [(key, txn.get(key)) for key in (rows.checkpoint_key(place, *one) for one in piece)]
    if any(value is not None and rows.stamp_of(value) >= epoch for _, value in found):
        return None
    txn.need_feature(GRAPH_ROWS)
    there = [(key, value) for key, value in found if value is not None]
    for key, value in there:
        rows.mark_pruned(txn, key, value)
    return len(there)


def _remove_checkpoints(plan: PrunePlan, epoch: int, done: Pruned) -> Steps[bool]:
    """Delete the doomed checkpoints; False if a new one needs one of them: replan the rest.

    Raises:
        Stale: the epoch has ended.
    """
    at = 0
    while at < len(plan.order):
        taken, gone = yield partial(_remove_piece, plan=plan, at=at, epoch=epoch)
        done.checkpoints += gone
        if not taken:
            return False
        at += taken
    return True


def _remove_piece(txn: Txn, plan: PrunePlan, at: int, epoch: int) -> tuple[int, int]:
    """Delete some doomed checkpoints from index ``at`` on; returns the numbers seen and deleted.

    Raises:
        Stale: the epoch has ended.
        HeldError: a legal hold covers the thread.
    """
    _need_sweep(txn, plan.place, epoch)
    piece = DeleteBudget()
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
            # A checkpoint is always deleted together with its writes, however many there are.
            fits = [piece.admits(size) for size in (len(value), *sizes)]
            if gone and not all(fits):
                break
            txn.delete(key)
            if sizes:
                txn.delete_range(writes, keys.after(writes))
            gone += 1
        taken += 1
    return taken, gone


def _remove_strays(plan: PrunePlan, epoch: int, done: Pruned) -> Steps[None]:
    """Delete the writes of deleted checkpoints; raises Stale as ``_remove_checkpoints``."""
    strays = plan.strays
    while strays:
        taken, gone = yield partial(_remove_late, place=plan.place, strays=strays, epoch=epoch)
        done.strays += gone
        strays = strays[taken:]


def _remove_late(
    txn: Txn, place: Place, strays: list[tuple[int, str]], epoch: int
) -> tuple[int, int]:
    _need_sweep(txn, place, epoch)
    piece = DeleteBudget()
    gone = 0
    for at, (number, checkpoint) in enumerate(strays):
        if txn.get(rows.checkpoint_key(place, number, checkpoint)) is not None:
            continue  # it was stored again
        writes = rows.writes_of(place, number, checkpoint)
        fits = [piece.admits(len(row)) for _, row in txn.scan(writes, keys.after(writes))]
        if gone and not all(fits):
            return at, gone
        if fits:
            txn.delete_range(writes, keys.after(writes))
            gone += 1
    return len(strays), gone


def _need_sweep(txn: ReadTxn, place: Place, epoch: int) -> None:
    """Raise unless the sweep is still running: new rows are stamped only while it is.

    Raises:
        Stale: it is not.
        HeldError: a legal hold covers the thread.
    """
    need_free(txn, place.scope, 0, what="the thread")
    row = None if is_erased(txn, place.scope) else read_pool(txn, place.scope, place.pool)
    if row is None or row.epoch != epoch or not row.sweeping or not threads.is_alive(txn, place):
        raise Stale


def _remove_values(plan: PrunePlan, epoch: int, done: Pruned) -> Steps[None]:
    """Delete the values that no kept checkpoint names; raises Stale as ``_remove_checkpoints``."""
    unneeded = plan.unneeded
    while unneeded:
        taken, gone = yield partial(
            _remove_unneeded, place=plan.place, unneeded=unneeded, epoch=epoch
        )
        done.values += gone
        unneeded = unneeded[taken:]


def _remove_unneeded(txn: Txn, place: Place, unneeded: list[bytes], epoch: int) -> tuple[int, int]:
    _need_sweep(txn, place, epoch)
    piece = DeleteBudget()
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


# --- Prune rules, and the age of checkpoints and threads ------------------------------------------


def keep_rule(
    *, keep_last: int = 1, max_age_seconds: float | None = None, now: float | None = None
) -> Rule:
    """Make a rule that keeps the newest ``keep_last`` and those younger than ``max_age_seconds``.

    ``now`` is in seconds since the epoch; None: the clock's time. The age is computed from ``ts``
    in the checkpoint's body.

    Raises:
        InvalidOptionError: an argument is out of range.
    """
    if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1:
        msg = f"keep_last: expected an int of at least 1, got {keep_last!r}"
        raise InvalidOptionError(msg)
    if max_age_seconds is not None and not max_age_seconds >= 0:
        msg = f"max_age_seconds: expected a number of at least 0, got {max_age_seconds!r}"
        raise InvalidOptionError(msg)
    since = None
    if max_age_seconds is not None:
        since = (time.time() if now is None else now) - max_age_seconds

    def rule(found: list[PruneCandidate]) -> set[str]:
        doomed = found[:-keep_last]
        if since is not None:
            # A checkpoint without a readable time is kept: it is not known to be old.
            doomed = [one for one in doomed if _made_at(one.body) < since]
        return {one.checkpoint for one in doomed}

    return rule


def limits_rule(*, keep_last: int | None, since_ms: int | None, at_most: int | None = None) -> Rule:
    """Make a rule that deletes checkpoints beyond the newest ``keep_last`` or before ``since_ms``.

    The newest checkpoint of a namespace is always kept, and so is one of unknown age. With
    ``at_most``, only that many are deleted, the oldest first.
    """

    def rule(found: list[PruneCandidate]) -> set[str]:
        beyond = 0 if keep_last is None else len(found) - max(keep_last, 1)
        doomed = [
            one.checkpoint
            for at, one in enumerate(found[:-1])
            if at < beyond or _is_older(one, since_ms)
        ]
        return set(doomed[:at_most])

    return rule


def _is_older(one: PruneCandidate, since_ms: int | None) -> bool:
    if since_ms is None:
        return False
    made = _time_ms(one.checkpoint, one.body)
    return made is not None and made < since_ms


def changed_ms(txn: ReadTxn, place: Place) -> int | None:
    """Return the time of a thread's newest checkpoint over all namespaces; None: unknown.

    It is the time in the checkpoint's id, if that is one of LangGraph's, else ``ts`` of its body,
    unless encrypted: milliseconds since the epoch by the writer's clock. It is never before the
    creation of the thread, which for a copy is the time of copying.
    """
    times = []
    for number, _ in threads.namespaces_of(txn, place):
        newest = rows.newest(txn, place, number)
        if newest is not None:
            found = rows.time_in_id(newest)
            if found is None:
                found = _stored_ms(txn, place, number, newest)
            if found is None:
                return None
            times.append(found)
    return max([threads.read_head(txn, place.scope, place.thread)[1], *times])


def is_encrypted(txn: ReadTxn, place: Place) -> bool:
    """Return whether a serialiser encrypted the newest checkpoint of a namespace of the thread.

    Raises:
        CorruptValueError: it is damaged.
    """
    for number, _ in threads.namespaces_of(txn, place):
        newest = rows.newest(txn, place, number)
        key = None if newest is None else rows.checkpoint_key(place, number, newest)
        value = None if key is None else txn.get(key)
        if key is not None and value is not None:
            return rows.SEALED in GraphCheckpointRow.unpack(key, value).body[0]
    return False


def _stored_ms(txn: ReadTxn, place: Place, number: int, checkpoint: str) -> int | None:
    key = rows.checkpoint_key(place, number, checkpoint)
    value = txn.get(key)
    if value is None:
        return None
    try:
        return _time_ms(checkpoint, GraphCheckpointRow.unpack(key, value).body_by(StoredCoder()))
    except CorruptValueError:
        return None  # encrypted, or damaged: check() reports it


def _time_ms(checkpoint: str, body: Any) -> int | None:
    """Creation time of a checkpoint, in milliseconds since the epoch; None: unknown."""
    found = rows.time_in_id(checkpoint)
    if found is None:
        made = _made_at(body)
        found = None if math.isinf(made) else int(made * 1000)
    return found


def run_rule(run_ids: Sequence[str]) -> Rule:
    """Make a rule that deletes the checkpoints of these runs."""
    wanted = set(run_ids)

    def rule(found: list[PruneCandidate]) -> set[str]:
        runs = ((one.checkpoint, _run_of(one.metadata)) for one in found)
        return {checkpoint for checkpoint, run in runs if run is not None and run in wanted}

    return rule


def _run_of(metadata: Any) -> str | None:
    run = metadata.get("run_id") if isinstance(metadata, dict) else None
    return run if isinstance(run, str) else None


def _made_at(body: Any) -> float:
    try:
        return datetime.fromisoformat(body["ts"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return float("inf")


# --- Deletion of a thread: hidden atomically, its rows are removed piece by piece -----------------
# The first transaction deletes name and head, and the pool if no other thread is a member, and
# writes a ``REMOVAL`` row for each range to delete. A removal that a killed process left unfinished
# is resumed by the next deletion or opening, as with sessions.


def start_removal(txn: Txn, scope: int, name: str) -> tuple[Place | None, list[bytes]]:
    """Begin deleting a thread; returns its place if others use its pool, and its ``REMOVAL`` rows.

    The latter are keys, to be passed to ``remove_piece``.
    """
    number = names.thread_of(txn, scope, name)
    if number is None:
        return None, []
    pool, _ = threads.read_head(txn, scope, number)
    place = Place(scope, number, pool)
    row = read_pool(txn, scope, pool)
    names.drop_thread_name(txn, scope, name)
    txn.delete(threads.head_key(scope, number))
    drop_terms(txn, thread_terms(scope, number))
    work = [_mark(txn, keys.thread_prefix(scope, number))]
    if row is None or row.members > 1:
        if row is not None:
            # Marked for a sweep in this commit: should the process end before its own begins, the
            # next prune removes what only this thread referred to.
            left = replace(row.swept(sweeping=True), members=row.members - 1)
            write_pool(txn, scope, pool, left)
        return place, work
    txn.delete(keys.chunk_prefix(scope, pool))
    work.append(_mark(txn, keys.chunk_prefix(scope, pool)))
    return None, work


def _mark(txn: Txn, prefix: bytes) -> bytes:
    row = keys.removal_row(prefix)
    txn.put(row, seal_value(row, b""))
    return row


def is_unused(txn: ReadTxn, prefix: bytes) -> bool:
    """Return whether the range of a ``REMOVAL`` row has no owner: a pool's row or thread's head."""
    key = prefix
    if prefix[0] == Kind.THREAD:
        key = threads.head_key(*keys.split_session_prefix(prefix))
    return txn.get(key) is None


def under_way(txn: ReadTxn, scope: int) -> list[bytes]:
    """List ``REMOVAL`` rows of the threads and pools of a scope, at most a piece of each kind."""
    found: list[bytes] = []
    for kind in (Kind.THREAD, Kind.CHUNK):
        start = keys.removal_row(keys.scoped(kind, scope))
        found += [row for row, _ in txn.scan(start, keys.after(start), limit=PIECE_ROWS)]
    return found


def remove_piece(txn: Txn, row: bytes) -> list[bytes]:
    """Delete the next piece of the range of a ``REMOVAL`` row; returns the row if more remains.

    Raises:
        CorruptValueError: the row is damaged.
    """
    prefix = keys.split_removal_row(row)
    value = txn.get(row)
    if value is None:
        return []
    open_value(row, value)
    if not is_unused(txn, prefix):
        return []  # another process finished it; it is up to check() to report rows in use
    stop = keys.after(prefix)
    piece, until = DeleteBudget(), stop
    for key, value in txn.scan(prefix, stop):
        if not piece.admits(len(value)):
            until = key
            break
    txn.delete_range(prefix, until)
    if until is not stop:
        return [row]
    txn.delete(row)
    return []


# --- Copy of a thread: its rows are rewritten, its chunks are shared ------------------------------

_ROWS = (ThreadRow.NAMESPACE, ThreadRow.CHECKPOINT, ThreadRow.VALUE, ThreadRow.WRITES)


def copy_thread(txn: Txn, scope: int, source: str, target: str, *, now_ms: int) -> bool:
    """Make ``target`` a copy of ``source``; returns whether ``source`` exists.

    Raises:
        InvalidOptionError: the target exists and holds checkpoints.
        HeldError: the target exists, and a legal hold covers it.
    """
    found = threads.thread_of(txn, scope, source)
    if found is None or source == target:
        return found is not None
    _need_empty(txn, scope, target)
    if names.thread_of(txn, scope, target) is not None:
        need_free(txn, scope, 0, what=f"thread {target[:40]!r}")
        start_removal(txn, scope, target)  # removes writes that preceded their checkpoint
    found = threads.read_thread(txn, scope, found.place.thread)  # again: they may share the pool
    pool = found.pool
    joined = Pool(pool.epoch, pool.members + 1, pool.sweeping, pool.key)
    place = threads.create_thread(
        txn, scope, target, joined, now_ms=now_ms, number=found.place.pool
    )
    for row in _ROWS:
        start = keys.thread_rows(scope, found.place.thread, row)
        there = keys.thread_rows(scope, place.thread, row)
        # Rows are resealed, because a row's checksum covers its key.
        for key, value in list(txn.scan(start, keys.after(start))):
            copied = there + key[len(start) :]
            body = open_value(key, value)[1]
            txn.put(copied, seal_value(copied, body))  # without a stamp
    return True


def _need_empty(txn: ReadTxn, scope: int, target: str) -> None:
    number = names.thread_of(txn, scope, target)
    if number is None:
        return
    thread = threads.read_thread(txn, scope, number)
    for namespace, _ in threads.namespaces_of(txn, thread.place):
        prefix = checkpoints_of(thread.place, namespace)
        if any(True for _ in txn.scan(prefix, keys.after(prefix), limit=1)):
            break
    else:
        return
    msg = f"thread {target[:40]!r} has checkpoints already: delete it first, or copy to another"
    raise InvalidOptionError(msg)
