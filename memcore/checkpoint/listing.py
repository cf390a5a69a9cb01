"""Lists of checkpoints and threads, a page a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heapreplace
from typing import Any, Final

from memcore import keys
from memcore.checkpoint import rows, threads
from memcore.checkpoint.coding import Coder
from memcore.checkpoint.reading import Found, Reading, ThreadEntry
from memcore.checkpoint.retention import changed_ms
from memcore.checkpoint.rows import CheckpointRow
from memcore.keys import ThreadRow
from memcore.store.base import ReadTxn

__all__ = ["Listing"]

_PAGE: Final = 16
_NAMES_PAGE: Final = 256
Matches = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which checkpoints of a namespace."""

    thread: str
    namespace: str
    checkpoint: str | None
    before: str | None
    matches: Matches | None
    page: int
    """Checkpoints that are read in one transaction."""


@dataclass(frozen=True, slots=True)
class _Descending:
    """An id that is smaller the later it is: a heap gives the smallest first."""

    id: str

    def __lt__(self, other: _Descending) -> bool:
        return self.id > other.id


class Listing(Reading):
    """The lists of one scope. A consumer that stops half-way holds nothing up."""

    def checkpoints(
        self,
        thread: str | None,
        namespace: str | None,
        coder: Coder,
        *,
        checkpoint: str | None = None,
        before: str | None = None,
        matches: Matches | None = None,
        limit: int | None = None,
    ) -> Iterator[Found]:
        """Checkpoints, the greatest id first; of equal ids those of the older thread.

        Args:
            thread: None: all threads.
            namespace: None: all of a thread.
            coder: decodes them.
            checkpoint: only the one of this id.
            before: only ids below this one, which need not exist.
            matches: only those whose metadata it admits.
            limit: at most so many; 0 or less: none.
        """
        left = limit
        if left is not None and left <= 0:
            return
        # Without a rule that leaves some out, no more are decoded than are asked for.
        page = _PAGE if limit is None or matches is not None else min(_PAGE, max(limit, 1))
        names = self._names(thread)
        spaces = self._read(lambda txn: [self._spaces(txn, name, namespace) for name in names])
        places = [
            (_Asked(name, space, checkpoint, before, matches, page), number)
            for name, found in zip(names, spaces, strict=True)
            for space, number in found
        ]
        several = self._merged(places, coder) if len(places) > 1 else None
        for found in several or (each for place in places for each in self._of(*place, coder)):
            yield found
            if left is not None:
                left -= 1
                if left == 0:
                    return

    def _merged(self, places: list[tuple[_Asked, int]], coder: Coder) -> Iterator[Found]:
        """The checkpoints of several namespaces, the greatest id first.

        Of each only the next id is kept, so that many threads take little memory.
        """
        newest = self._read(
            lambda txn: [
                self._next_id(txn, asked=asked, number=number, below=None)
                for asked, number in places
            ]
        )
        heap = [(_Descending(first), at) for at, first in enumerate(newest) if first is not None]
        heapify(heap)
        while heap:
            first, at = heap[0]
            asked, number = places[at]
            one = replace(asked, checkpoint=first.id, before=None)
            page, _ = self._read(
                partial(self._page, asked=one, number=number, coder=coder, below=None)
            )
            yield from page
            following = self._read(
                partial(self._next_id, asked=asked, number=number, below=first.id)
            )
            if following is None:
                heappop(heap)
            else:
                heapreplace(heap, (_Descending(following), at))

    def _next_id(
        self, txn: ReadTxn, *, asked: _Asked, number: int, below: str | None
    ) -> str | None:
        """The greatest id of a namespace that is asked for and below another one."""
        scope = self._find(txn)
        thread = None if scope is None else threads.thread_of(txn, scope, asked.thread)
        if thread is None or threads.namespace_of(txn, thread.place, asked.namespace) != number:
            return None  # deleted meanwhile
        if below is not None and asked.checkpoint is not None:
            return None
        bounds = [each for each in (asked.before, below) if each is not None]
        found, _ = _rows_below(
            txn, thread.place, number, replace(asked, page=1), min(bounds, default=None)
        )
        return rows.id_in(found[0][0]) if found else None

    def threads(self) -> Iterator[ThreadEntry]:
        """The threads by name, without their values.

        A thread without a checkpoint is none yet, or none any more: writes came before their
        checkpoint, or after their thread was deleted.
        """
        after: str | None = None
        while True:
            page, after = self._read(partial(self._thread_page, after=after))
            yield from page
            if after is None:
                return

    def _thread_page(self, txn: ReadTxn, after: str | None) -> tuple[list[ThreadEntry], str | None]:
        """Some threads, and the name behind which the next page begins."""
        found: list[ThreadEntry] = []
        scope = self._find(txn)
        if scope is None:
            return found, None
        named = threads.threads(txn, scope, start_after=after)
        for count, (name, number) in enumerate(named, 1):
            pool, created_ms = threads.read_head(txn, scope, number)
            place = rows.Place(scope, number, pool)
            root = threads.namespace_of(txn, place, "")
            newest = None if root is None else rows.newest(txn, place, root)
            if newest is not None or _has_checkpoints(txn, place):
                changed = changed_ms(txn, place)
                at = None if changed is None else changed / 1000
                found.append(ThreadEntry(name, created_ms / 1000, newest, at))
            if count == _NAMES_PAGE:
                return found, name
        return found, None

    def _names(self, thread: str | None) -> list[str]:
        if thread is not None:
            return [thread]

        def look(txn: ReadTxn) -> list[str]:
            scope = self._find(txn)
            found = [] if scope is None else list(threads.threads(txn, scope))
            return [name for name, _ in sorted(found, key=lambda pair: pair[1])]

        return self._read(look)  # type: ignore[no-any-return]

    def _namespaces(self, thread: str, namespace: str | None) -> list[tuple[str, int]]:
        return self._read(lambda txn: self._spaces(txn, thread, namespace))  # type: ignore[no-any-return]

    def _spaces(self, txn: ReadTxn, thread: str, namespace: str | None) -> list[tuple[str, int]]:
        """Names and numbers of the namespaces of a thread."""
        scope = self._find(txn)
        found = None if scope is None else threads.thread_of(txn, scope, thread)
        if found is None:
            return []
        if namespace is None:
            return [(name, n) for n, name in threads.namespaces_of(txn, found.place)]
        number = threads.namespace_of(txn, found.place, namespace)
        return [] if number is None else [(namespace, number)]

    def _of(self, asked: _Asked, number: int, coder: Coder) -> Iterator[Found]:
        """The checkpoints of one namespace, newest first."""
        below = asked.before
        while True:
            page, below = self._read(
                partial(self._page, asked=asked, number=number, coder=coder, below=below)
            )
            yield from page
            if below is None:
                return

    def _page(
        self, txn: ReadTxn, *, asked: _Asked, number: int, coder: Coder, below: str | None
    ) -> tuple[list[Found], str | None]:
        """Some checkpoints below an id, and the id below which the next page begins."""
        view = self._view(txn, asked.thread, coder)
        if view is None or threads.namespace_of(txn, view.place, asked.namespace) != number:
            return [], None  # deleted meanwhile
        whole, following = _rows_below(txn, view.place, number, asked, below)
        found = []
        for key, value in whole:
            row = CheckpointRow.unpack(key, value)
            if asked.matches is None or asked.matches(row.metadata_by(coder)):
                found.append(self._whole(view, asked.namespace, number, rows.id_in(key), row))
        return found, following


def _rows_below(
    txn: ReadTxn, place: rows.Place, number: int, asked: _Asked, below: str | None
) -> tuple[list[tuple[bytes, bytes]], str | None]:
    if asked.checkpoint is not None:
        if asked.before is not None and asked.checkpoint >= asked.before:
            return [], None
        key = rows.checkpoint_key(place, number, asked.checkpoint)
        value = txn.get(key)
        return ([] if value is None else [(key, value)]), None
    prefix = rows.checkpoints_of(place, number)
    stop = keys.after(prefix) if below is None else prefix + rows.bound(below)
    found = list(txn.scan(prefix, stop, reverse=True, limit=asked.page))
    return found, rows.id_in(found[-1][0]) if len(found) == asked.page else None


def _has_checkpoints(txn: ReadTxn, place: rows.Place) -> bool:
    prefix = keys.thread_rows(place.scope, place.thread, ThreadRow.CHECKPOINT)
    return any(True for _ in txn.scan(prefix, keys.after(prefix), limit=1))
