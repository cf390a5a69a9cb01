"""Sessions that wait for a compaction: each once, oldest first, and no more than so many."""

from __future__ import annotations

import threading
import time
from collections.abc import Container
from typing import Final, NamedTuple

from memcore.session import Session
from memcore.session.handle import store_of

__all__ = ["Key", "Waiting", "key_of"]

Key = tuple[str, bytes, str, str, str]
"""The path and the seed of a file (a copy shares the one, stores in memory the other), and the
app, user and name of the session: equal for all handles of one session."""

_now: Final = time.monotonic


def key_of(session: Session) -> Key:
    """What handles of the same session share."""
    store = store_of(session)
    return (store.path, store.seed, session.app, session.user, session.id)


class _Entry(NamedTuple):
    session: Session
    since: float


class Waiting:
    """A bounded queue in which a session stands once, however often it is put in. Thread-safe."""

    __slots__ = ("_entries", "_lock", "_open", "dropped", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.dropped = 0
        self._entries: dict[Key, _Entry] = {}
        self._lock = threading.Lock()
        self._open = True

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def put(self, key: Key, session: Session) -> bool:
        """Whether the session stands in the queue now; not if that is full or closed."""
        with self._lock:
            known = self._entries.get(key)
            if not self._open or (known is None and len(self._entries) >= self.most):
                self.dropped += 1
                return False
            since = _now() if known is None else known.since
            self._entries[key] = _Entry(session, since)  # keeps its place
            return True

    def take(self, *, but: Container[Key]) -> tuple[Key, Session] | None:
        """The first one that is not among ``but``, off the queue."""
        with self._lock:
            for key, entry in self._entries.items():
                if key not in but:
                    del self._entries[key]
                    return key, entry.session
        return None

    def close(self) -> None:
        """Take in no more, and forget who waits."""
        with self._lock:
            self._open = False
            self._entries.clear()

    @property
    def lag_seconds(self) -> float:
        """How long the first one has been standing here."""
        with self._lock:
            first = next(iter(self._entries.values()), None)
        return 0.0 if first is None else max(_now() - first.since, 0.0)
