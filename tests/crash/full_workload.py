"""What a program does to a store, with a model of what was acknowledged."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import memcore
from memcore.errors import StoreFullError
from memcore.graph import JsonCoder, NewCheckpoint

__all__ = ["LONG", "Workload", "plant"]

LONG: Final = "long"
"""The session that a full device is freed by deleting."""
_LONG_ITEMS: Final = 700
_FILL_MAX: Final = 500


def said(text: str) -> dict[str, Any]:
    """One user message."""
    return {"role": "user", "content": text}


def texts(session: memcore.Session) -> list[str]:
    """What a session holds."""
    return [item.message["content"] for item in session.items()]


def plant(path: str, mode: str) -> None:
    """A store that a workload starts from: 3 MiB, most of it in one session."""
    with memcore.open(path, durability=mode) as db:
        for first in range(0, _LONG_ITEMS, 100):
            db.session(LONG).extend([said(f"{LONG} {at} " + "." * 3_000)
                                     for at in range(first, first + 100)])  # fmt: skip
        db.session(LONG).append(said("b" * 400_000))
        db.session("chat").extend([said(f"chat {at}") for at in range(10)])
        db.scope().kv("state").put("planted", 1)


class Workload:
    """Runs operations, knows what must be there. Every chance follows from the seed.

    ``may_take_back``: undoing and deleting must work however full the device is.
    """

    def __init__(self, db: memcore.Database, seed: int, *, may_take_back: bool = True) -> None:
        self.db = db
        self.refused = 0
        self._may_take_back = may_take_back
        self._random = random.Random(seed)
        self._serial = 0
        self._sessions: dict[str, list[str]] = {
            name: texts(db.session(name)) for name in (LONG, "chat")
        }
        self._state = dict(db.scope().kv("state").scan())
        self._blobs: dict[str, bytes] = {}
        self._takes_back = (self._undo, self._delete, self._erase, self._prune, self._forget)
        self._threads = self._read_threads(db)
        self._steps: list[tuple[int, Callable[[], None]]] = [
            (8, lambda: self._append(100)),
            (4, lambda: self._append(40_000)),
            (2, lambda: self._append(300_000)),
            (1, lambda: self._append(2_500_000)),
            (3, self._put),
            (2, self._put_blob),
            (2, self._undo),
            (1, self._fork),
            (1, self._compact),
            (1, self._delete),
            (1, self._erase),
            (2, self._advance),
            (1, self._prune),
            (1, self._forget),
        ]

    def step(self) -> None:
        """One operation; a refusal for want of room is counted."""
        weights = [weight for weight, _ in self._steps]
        ((_, operation),) = self._random.choices(self._steps, weights)
        try:
            operation()
        except StoreFullError:
            if self._may_take_back and operation in self._takes_back:
                raise
            self.refused += 1

    def fill(self) -> None:
        """Append until not even a short item fits."""
        for size in (30_000, 3_000, 100):
            for _ in range(_FILL_MAX):
                try:
                    self._append(size)
                except StoreFullError:
                    self.refused += 1
                    break

    def differences(self, db: memcore.Database) -> list[str]:
        """Where the store differs from what was acknowledged."""
        found = []
        names = {entry.session_id for entry in db.sessions()}
        if names != self._sessions.keys():
            found.append(f"sessions {sorted(names)}, expected {sorted(self._sessions)}")
        for name, expected in self._sessions.items():
            stored = texts(db.session(name))
            if stored != expected:
                found.append(f"{name}: {len(stored)} items, expected {len(expected)}, or others")
        if dict(db.scope().kv("state").scan()) != self._state:
            found.append("the key/value entries differ")
        threads = self._read_threads(db)
        for name in sorted(threads.keys() | self._threads.keys()):
            points = [[point for point, _ in of.get(name, [])] for of in (threads, self._threads)]
            if threads.get(name) != self._threads.get(name):
                found.append(f"thread {name}: checkpoints {points[0]}, expected {points[1]}")
        for address, content in self._blobs.items():
            if db.scope().blobs.get(address) != content:
                found.append(f"the blob {address} differs")
        return found

    @staticmethod
    def _read_threads(db: memcore.Database) -> dict[str, list[tuple[str, list[str]]]]:
        graph = db.scope().graph
        return {
            entry.thread: [
                (one.checkpoint, one.values["messages"])
                for one in graph.checkpoints(entry.thread, "", JsonCoder())
            ]
            for entry in graph.threads()
            if entry.newest is not None
        }

    def delete_long(self) -> None:
        """Free the device."""
        self.db.delete_session(LONG)
        del self._sessions[LONG]

    def append_again(self) -> None:
        """What has to work as soon as the device is freed."""
        for size in (100, 40_000, 300_000):
            self._append(size)
        self._put()

    def move(self, db: memcore.Database) -> None:
        """Go on with another handle."""
        self.db = db

    def _text(self, size: int) -> str:
        self._serial += 1
        return f"{self._serial} ".ljust(size, ".")

    def _some(self) -> str:
        return self._random.choice(sorted(self._sessions.keys() - {LONG}) or ["chat"])

    def _append(self, size: int) -> None:
        name, text = self._some(), self._text(size)
        self.db.session(name).append(said(text))
        self._sessions.setdefault(name, []).append(text)

    def _put(self) -> None:
        key, value = f"k{self._random.randrange(20)}", self._text(2_000)
        self.db.scope().kv("state").put(key, value)
        self._state[key] = value

    def _put_blob(self) -> None:
        content = self._text(self._random.choice((1_000, 500_000))).encode()
        self._blobs[self.db.scope().blobs.put(content)] = content

    def _undo(self) -> None:
        name = self._some()
        self.db.session(name).undo(2)
        if name in self._sessions:
            del self._sessions[name][-2:]

    def _fork(self) -> None:
        name, target = self._some(), f"fork {self._serial}"
        self._serial += 1
        if name in self._sessions:
            self.db.session(name).fork(target)
            self._sessions[target] = self._sessions[name].copy()

    def _compact(self) -> None:
        self.db.session(self._some()).compact(lambda _: "what was said", keep_last=2)

    def _delete(self) -> None:
        name = self._some()
        try:
            assert self.db.delete_session(name) == (name in self._sessions)
        finally:
            if not self.db.session(name).exists():  # gone, even if rows of it are not yet
                self._sessions.pop(name, None)

    def _advance(self) -> None:
        name, text = self._random.choice("tuv"), self._text(self._random.choice((900, 90_000)))
        points = self._threads.get(name, [])
        messages = [*(points[0][1] if points else []), text]
        checkpoint = f"{self._serial:06}"
        body = {"channel_versions": {"messages": checkpoint}}
        values = {"messages": (checkpoint, messages)}
        parent = points[0][0] if points else None
        new = NewCheckpoint(checkpoint, parent, body, {}, values)
        self.db.scope().graph.put(name, "", new, JsonCoder())
        self._threads[name] = [(checkpoint, messages), *points]

    def _prune(self) -> None:
        name = self._random.choice("tuv")
        rule = lambda found: {one.checkpoint for one in found[:-1]}  # noqa: E731
        graph, points = self.db.scope().graph, self._threads.get(name, [])
        try:
            graph.prune(name, rule, JsonCoder())
        except StoreFullError:
            # What it has removed is gone: it goes on another time. The newest one never is.
            left = {one.checkpoint for one in graph.checkpoints(name, "", JsonCoder())}
            points[1:] = [point for point in points[1:] if point[0] in left]
            raise
        del points[1:]

    def _forget(self) -> None:
        name = self._random.choice("tuv")
        try:
            found = self.db.scope().graph.delete_thread(name, JsonCoder())
            assert found or name not in self._threads
        finally:
            if self.db.scope().graph.get(name, "", None, JsonCoder()) is None:
                self._threads.pop(name, None)

    def _erase(self) -> None:
        self.db.scope().kv("state").delete_range("k1", "k2")
        self._state = {k: v for k, v in self._state.items() if not "k1" <= k < "k2"}
