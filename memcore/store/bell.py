"""Who waits for a change, and is woken by the commit that makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final

__all__ = ["ERASED", "NAMES", "Bell"]

NAMES: Final = b"names"
"""The topic that is told of when a scope, a session or something else gets its number."""

ERASED: Final = b"erased"
"""The topic that is told of when a user is erased: whoever remembers content forgets it."""

_NOBODY: Final[tuple[Callable[[], object], ...]] = ()


class Bell:
    """The listeners of one environment, by what they listen to. Thread-safe.

    It rings for commits of this process alone: whoever waits for those of others looks now and
    then. A listener is called on the committing thread, before the committer's call returns; it
    is quick and does not raise. It may be called once more after it left.
    """

    __slots__ = ("_listeners", "_lock")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Nobody listens; in the child of a fork the threads that did are gone."""
        self._lock = Lock()
        self._listeners: dict[bytes, tuple[Callable[[], object], ...]] = {}

    def listen(self, topic: bytes, listener: Callable[[], object]) -> None:
        """Call ``listener`` after each commit that tells of the topic."""
        with self._lock:
            self._listeners[topic] = (*self._listeners.get(topic, _NOBODY), listener)

    def leave(self, topic: bytes, listener: Callable[[], object]) -> None:
        """Take back one ``listen``."""
        with self._lock:
            left = list(self._listeners.get(topic, _NOBODY))
            left.remove(listener)
            if left:
                self._listeners[topic] = tuple(left)
            else:
                del self._listeners[topic]

    def ring(self, topics: Iterable[bytes]) -> None:
        """Call whoever listens to one of the topics."""
        if self._listeners:
            for topic in topics:
                for listener in self._listeners.get(topic, _NOBODY):
                    listener()
