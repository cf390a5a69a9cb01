"""Lists of checkpoints and threads, a page a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from memcore import keys
from memcore.checkpoint import rows, threads
from memcore.checkpoint.coding import Coder
from memcore.checkpoint.reading import Found, Reading, ThreadEntry
from memcore.checkpoint.rows import CheckpointRow
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
        """Checkpoints, in each namespace the newest first.

        Args:
            thread: None: all threads, in the order in which they came into being.
            namespace: None: all of a thread, in the order in which they came into being.
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
        for name in self._names(thread):
            for space, number in self._namespaces(name, namespace):
                asked = _Asked(name, space, checkpoint, before, matches, page)
                for found in self._of(asked, number, coder):
                    yield found
                    if left is not None:
                        left -= 1
                        if left == 0:
                            return

    def threads(self) -> Iterator[ThreadEntry]:
        """The threads by name, without their values."""
        after: str | None = None
        while True:
            page = self._read(partial(self._thread_page, after=after))
            yield from page
            if len(page) < _NAMES_PAGE:
                return
            after = page[-1].thread

    def _thread_page(self, txn: ReadTxn, after: str | None) -> list[ThreadEntry]:
        found: list[ThreadEntry] = []
        scope = self._find(txn)
        if scope is None:
            return found
        for name, number in threads.threads(txn, scope, start_after=after):
            pool, created_ms = threads.read_head(txn, scope, number)
            place = rows.Place(scope, number, pool)
            root = threads.namespace_of(txn, place, "")
            newest = None if root is None else rows.newest(txn, place, root)
            found.append(ThreadEntry(name, created_ms / 1000, newest))
            if len(found) == _NAMES_PAGE:
                break
        return found

    def _names(self, thread: str | None) -> list[str]:
        if thread is not None:
            return [thread]

        def look(txn: ReadTxn) -> list[str]:
            scope = self._find(txn)
            found = [] if scope is None else list(threads.threads(txn, scope))
            return [name for name, _ in sorted(found, key=lambda pair: pair[1])]

        return self._read(look)  # type: ignore[no-any-return]

    def _namespaces(self, thread: str, namespace: str | None) -> list[tuple[str, int]]:
        def look(txn: ReadTxn) -> list[tuple[str, int]]:
            scope = self._find(txn)
            found = None if scope is None else threads.thread_of(txn, scope, thread)
            if found is None:
                return []
            if namespace is None:
                return [(name, n) for n, name in threads.namespaces_of(txn, found.place)]
            number = threads.namespace_of(txn, found.place, namespace)
            return [] if number is None else [(namespace, number)]

        return self._read(look)  # type: ignore[no-any-return]

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
