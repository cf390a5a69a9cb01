"""Waiting for changes of a state: what changed since a counter, and who is to be woken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event
from typing import Final, NamedTuple

from memcore.limits import STATE_LOOK_SECONDS
from memcore.options import checked_optional_int, checked_optional_seconds
from memcore.state.rows import changed_since, header_key, read_header
from memcore.store.base import ReadTxn, Store
from memcore.store.bell import NAMES

__all__ = ["StateChanges", "Watching"]

_now: Final = time.monotonic
Place = tuple[int, int]


class StateChanges(NamedTuple):
    """What happened to a state since a counter."""

    counter: int
    """Its counter now; the next ``since``."""
    written: tuple[str, ...]
    """The fields that have another value, or were given the same once more, by name."""
    deleted: tuple[str, ...]
    """The fields that have none any more."""
    is_complete: bool
    """Whether these are all deletions; if not, read ``all()`` instead."""


class Watching:
    """The changes of one state; ``find`` gives its place, None if there is none yet."""

    __slots__ = ("_find", "_store")

    def __init__(self, store: Store, find: Callable[[ReadTxn], Place | None]) -> None:
        self._store = store
        self._find = find

    def counter(self) -> int:
        """The counter now."""
        return self._store.read(lambda txn: self._counter(txn, self._find(txn)))

    @staticmethod
    def _counter(txn: ReadTxn, place: Place | None) -> int:
        return 0 if place is None else read_header(txn, *place).counter

    def since(self, counter: int | None) -> int:
        """Where a watch starts; None: now.

        Raises:
            InvalidOptionError: it is no counter.
        """
        checked_optional_int("since", counter)
        return self.counter() if counter is None else counter

    def wait(self, since: int, timeout_seconds: float | None) -> StateChanges | None:
        """What changed since a counter, once something did; None: the time is over."""
        checked_optional_seconds("timeout_seconds", timeout_seconds)
        until = None if timeout_seconds is None else _now() + timeout_seconds
        woken = Event()
        with self.listening(woken.set) as look:
            while True:
                woken.clear()
                found = look(since)
                left = STATE_LOOK_SECONDS if until is None else until - _now()
                if found is not None or left <= 0:
                    return found
                woken.wait(min(left, STATE_LOOK_SECONDS))

    def run(self, since: int) -> Iterator[StateChanges]:
        """Every change from a counter on; several that come fast may be told as one."""
        while True:
            found = self.wait(since, None)
            if found is not None:
                since = found.counter
                yield found

    @contextmanager
    def listening(
        self, wake: Callable[[], object]
    ) -> Iterator[Callable[[int], StateChanges | None]]:
        """Have ``wake`` called after each commit that may change the state.

        In the block, what it yields looks what changed since a counter; None: nothing.
        """
        bell = self._store.bell
        topic = NAMES
        bell.listen(topic, wake)

        def look(since: int) -> StateChanges | None:
            nonlocal topic
            while True:
                place, found = self._store.read(lambda txn: self._look(txn, since))
                wanted = NAMES if place is None else header_key(*place)
                if wanted == topic:
                    return found
                bell.listen(wanted, wake)
                bell.leave(topic, wake)
                topic = wanted  # look once more: it may have changed before anyone listened

        try:
            yield look
        finally:
            with suppress(ValueError, KeyError):  # the process was forked meanwhile
                bell.leave(topic, wake)

    def _look(self, txn: ReadTxn, since: int) -> tuple[Place | None, StateChanges | None]:
        place = self._find(txn)
        counter = self._counter(txn, place)
        if counter == since:
            return place, None
        if place is None:
            return place, StateChanges(0, (), (), is_complete=False)
        # A counter that went back is that of another session of the name.
        is_known, written, deleted = changed_since(txn, *place, since if since < counter else 0)
        is_known = is_known and since < counter
        return place, StateChanges(counter, tuple(written), tuple(deleted), is_known)
