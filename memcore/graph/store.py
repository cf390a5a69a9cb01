"""GraphStore: checkpoints of graph runtimes in one scope."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from memcore.errors import CorruptValueError
from memcore.graph import gc as sweeping
from memcore.graph import rows as threads
from memcore.graph.check import Checking, Judge, RecoveredNamespace, check_threads, leftovers_of
from memcore.graph.decode import Cache
from memcore.graph.manifest import Coder
from memcore.graph.prune import (
    Planner,
    Pruned,
    PrunePlan,
    Rule,
    copy_thread,
    prune,
    remove_piece,
    start_removal,
    under_way,
)
from memcore.graph.read import Deltas, Listing
from memcore.graph.rows import Place
from memcore.graph.write import NewCheckpoint, NewWrites, Writing, admitting
from memcore.options import refuse_copies
from memcore.privacy.write_filter import ScopeFilter
from memcore.rows import names
from memcore.rows.lifecycle import need_free
from memcore.store.interface import ReadTxn, Steps, Store, Txn, take

__all__ = [
    "GraphStore",
    "store_of",
]


def _go_on(txn: Txn, row: bytes) -> list[bytes]:
    """Delete a piece of an earlier, unfinished deletion.

    A damaged mark is left for ``check`` to report.
    """
    try:
        return remove_piece(txn, row)
    except CorruptValueError:
        return []


class GraphStore(Listing, Deltas):
    """Threads of a graph: checkpoints of channel values by version, with pending writes.

    A thread has namespaces (one per subgraph), and a namespace has checkpoints, ordered by their
    ids as strings. A checkpoint has a body (with ``channel_versions``: the version of each
    channel), metadata and a parent. Values are stored under (namespace, channel, version); list
    elements and dict entries are stored once for all versions of a thread.

    Handles are created by ``scope.graph`` and may be shared by threads. ``plan_*`` methods return
    the steps of a change, for callers that commit from an event loop.
    """

    __reduce__ = refuse_copies

    def __init__(
        self,
        store: Store,
        cache: Cache,
        find: Callable[[ReadTxn], int | None],
        ensure: Callable[[Txn], int],
        *,
        now_ms: Callable[[], int],
        scope_filter: ScopeFilter | None = None,
    ) -> None:
        super().__init__(cache, store.read, find)
        self._store = store
        self._scope_filter = scope_filter
        self._now_ms = now_ms
        self._writing = Writing(cache, store.read, find, ensure, now_ms)

    def __contains__(self, thread: object) -> bool:
        """Return whether a thread with that name exists."""

        def look(txn: ReadTxn) -> bool:
            scope = self._find(txn)
            return scope is not None and names.thread_of(txn, scope, str(thread)) is not None

        return isinstance(thread, str) and bool(self._read(look))

    def put(self, thread: str, namespace: str, new: NewCheckpoint, coder: Coder) -> None:
        """Store a checkpoint, or replace the one with that id.

        Raises:
            InvalidItemError: a value cannot be serialised; the message locates it.
            StaleParentError: ``new.follows`` is set, and its parent is no longer the newest.
            InvalidOptionError
            CorruptValueError
            ReadOnlyError
            StorageError
        """
        take(self._store, self.plan_put(thread, namespace, new, coder))

    def plan_put(
        self, thread: str, namespace: str, new: NewCheckpoint, coder: Coder
    ) -> Steps[None]:
        """Return the steps of ``put``."""
        if self._scope_filter is not None:
            values = [(name, value) for name, (_, value) in new.values.items()]
            coder = admitting(self._scope_filter.beside(thread), coder, values)
        return self._writing.put(thread, namespace, new, coder)

    def put_writes(self, thread: str, namespace: str, new: NewWrites, coder: Coder) -> None:
        """Store the writes of one task; existing writes with an index >= 0 are kept.

        Raises:
            As ``put``.
        """
        take(self._store, self.plan_put_writes(thread, namespace, new, coder))

    def plan_put_writes(
        self, thread: str, namespace: str, new: NewWrites, coder: Coder
    ) -> Steps[None]:
        """Return the steps of ``put_writes``."""
        if self._scope_filter is not None:
            values = [(name, value) for _, name, value in new.writes]
            coder = admitting(self._scope_filter.beside(thread), coder, values)
        return self._writing.put_writes(thread, namespace, new, coder)

    def check(self, coder: Coder, judge: Judge) -> list[str]:
        """Check the threads of the scope; returns a description of each finding.

        Args:
            coder: the serialiser that wrote them.
            judge: checks the value of a channel; returns findings by position in it.
        """
        scope = self._read(self._find)
        if scope is None:
            return []
        found = check_threads(self._read, scope)
        checking = Checking(Cache(), self._read, self._find)
        return found + list(checking.findings(coder, judge))

    def recover(
        self, thread: str, coder: Coder, *, dry_run: bool = False
    ) -> list[RecoveredNamespace] | None:
        """Go back to the newest checkpoint of each namespace that can be read completely.

        Later ones are removed with their pending writes; in a namespace without a complete one
        nothing is removed. A ``StoredCoder`` checks that everything that a checkpoint refers to
        exists; any other coder also decodes it, and the ancestors from which delta channels are
        rebuilt.

        Args:
            thread: its name.
            coder: the serialiser that wrote it.
            dry_run: report only; remove nothing.

        Returns:
            The result for each namespace; None if there is no such thread.

        Raises:
            HeldError: a legal hold covers the thread.
            UndecodableError: a value is intact, but another serialiser's; nothing was removed.
            InvalidOptionError: only the thread's own serialiser can decide.
        """
        checking = Checking(Cache(), self._read, self._find)
        found = checking.diagnosis(thread, coder)
        if found is not None and not dry_run:
            take(self._store, checking.removal(found), makes_room=True)
        return None if found is None else [one for one, _ in found]

    # --- threads ----------------------------------------------------------------------------------

    def delete_thread(self, thread: str, coder: Coder) -> bool:
        """Delete a thread; returns whether it existed. Works on a full device.

        Raises:
            HeldError: a legal hold covers the thread.
        """
        return take(self._store, self._deletion(thread, coder), makes_room=True)

    def _deletion(
        self, thread: str, coder: Coder, *, due: Callable[[ReadTxn], bool] | None = None
    ) -> Steps[bool]:
        """Return the steps of a deletion, which happens only if ``due`` holds for the thread."""

        def closure(txn: Txn) -> tuple[bool, Place | None, list[bytes]]:
            scope = self._find(txn)
            if scope is None or names.thread_of(txn, scope, thread) is None:
                return False, None, []
            if due is not None and not due(txn):
                return False, None, []
            need_free(txn, scope, 0, what=f"thread {thread[:40]!r}")
            return True, *start_removal(txn, scope, thread)

        found, shared, work = yield closure
        while work:
            row = work.pop()
            work += yield partial(remove_piece, row=row)
        left = self._read(self._leaving)
        while left:  # of interrupted deletions
            left += yield partial(_go_on, row=left.pop())
        if shared is not None:
            scope, pool = shared.scope, shared.pool
            epoch = yield partial(sweeping.begin, scope=scope, pool=pool)
            # Who cannot read what the copies of the thread refer to cannot tell what they need: the
            # pool stays marked, and a prune of any of them by their serialiser sweeps it.
            if epoch is not None and self._read(partial(_opens, place=shared, coder=coder)):
                yield from sweeping.sweep(self._read, scope, pool, epoch, coder)
        return bool(found)

    def _leaving(self, txn: ReadTxn) -> list[bytes]:
        scope = self._find(txn)
        return [] if scope is None else under_way(txn, scope)

    def copy_thread(self, source: str, target: str) -> bool:
        """Copy a thread's checkpoints and writes to a new thread in one commit, sharing its values.

        Returns whether the source exists.

        Raises:
            InvalidOptionError: the target has checkpoints.
        """
        return bool(self._store.transact(self.plan_copy_thread(source, target)))

    def plan_copy_thread(self, source: str, target: str) -> Callable[[Txn], bool]:
        """Return the closure of ``copy_thread``."""

        def closure(txn: Txn) -> bool:
            scope = self._find(txn)
            now_ms = self._now_ms()
            return scope is not None and copy_thread(txn, scope, source, target, now_ms=now_ms)

        return closure

    def would_prune(self, thread: str, rule: Rule, coder: Coder) -> PrunePlan | None:
        """Plan ``prune`` without running it; None if there is no such thread."""
        return self._read(self._planner(thread, rule, coder))  # type: ignore[no-any-return]

    def prune(self, thread: str, rule: Rule, coder: Coder) -> Pruned:
        """Remove the checkpoints of a thread that the rule selects, except those others need.

        Runs in small commits, concurrently with writers of the thread: their writes in the meantime
        are kept, with everything they need. An interrupted prune keeps its progress; the next one
        continues.

        Raises:
            OutpacedError: other prunes of the thread prevented progress in every attempt.
            HeldError: a legal hold covers the thread.
        """
        if self._read(partial(self._is_abandoned, thread=thread)):
            due = partial(self._is_abandoned, thread=thread)
            gone = take(self._store, self._deletion(thread, coder, due=due), makes_room=True)
            return Pruned(abandoned=gone)
        plan = partial(self._planner, thread, rule, coder)
        steps = prune(self._read, plan, coder)
        return take(self._store, steps, makes_room=True)

    def leftovers(self) -> list[str]:
        """Describe remains of writes after a deletion: not damage, and removed by ``prune``.

        Raises:
            CorruptValueError: a row is damaged.
        """
        scope = self._read(self._find)
        if scope is None:
            return []
        look = partial(leftovers_of, scope=scope, now_ms=self._now_ms())
        found: list[str] = []
        for name, number in self._read(lambda txn: list(threads.threads(txn, scope))):
            found += self._read(partial(look, name=name, number=number))
        return found

    def _is_abandoned(self, txn: ReadTxn, thread: str) -> bool:
        scope = self._find(txn)
        number = None if scope is None else names.thread_of(txn, scope, thread)
        if scope is None or number is None:
            return False
        return threads.is_abandoned(txn, scope, number, now_ms=self._now_ms())

    def _planner(
        self, thread: str, rule: Rule, coder: Coder, epoch: int | None = None
    ) -> Callable[[ReadTxn], PrunePlan | None]:
        def plan(txn: ReadTxn) -> PrunePlan | None:
            scope = self._find(txn)
            found = None if scope is None else threads.thread_of(txn, scope, thread)
            if found is None:
                return None
            made = Planner(txn, found, coder, now_ms=self._now_ms()).plan(rule, epoch=epoch)
            made.abandoned = self._is_abandoned(txn, thread)
            return made

        return plan


def _opens(txn: ReadTxn, *, place: Place, coder: Coder) -> bool:
    """Return whether a coder can open the key of the thread's pool."""
    row = threads.read_pool(txn, place.scope, place.pool)
    try:
        return row is not None and bool(threads.key_of(row, coder))
    except CorruptValueError:
        return False


def store_of(graph: GraphStore) -> Store:
    """Return the open store that holds the checkpoints, for memcore's own adapters."""
    return graph._store  # noqa: SLF001 - defined in this module
