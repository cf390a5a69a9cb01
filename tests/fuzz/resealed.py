"""Rows that hold what memcore never writes, under a true checksum: every reader's error is typed.

A damaged row is found by its checksum. These are proven: what reads them has nothing to go by but
what they say.
"""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import memcore
from crash.hostile_reading import Atlas, Observed, observe
from crash.hostile_specimens import make
from memcore import codec
from memcore.errors import InternalError, MemcoreError
from memcore.store import LmdbStore, open_store

__all__ = ["bodies", "resealed"]

_SESSION, _ROW_AT = 5, 17
_NUMBER_BYTES = 4


class _Subject:
    """A database with all kinds of rows, and the same file as an open store beneath it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="memcore-fuzz-")
        specimens = {one.name: one for one in make(Path(self._folder.name), 7)}
        self.atlas: Atlas = specimens["used"].atlas
        self.atlas.sessions = self.atlas.sessions[:3]
        self.path = Path(self._folder.name, "resealed.memcore")
        self.path.write_bytes(specimens["used"].content)
        self.store: LmdbStore = open_store(self.path)
        rows = self.store.read(lambda txn: list(txn.scan(b"\x01", b"\xff" * 8)))
        self.rows = {key: value for key, value in rows if codec.is_proven(key, value)}
        sorts: dict[bytes, list[bytes]] = defaultdict(list)
        for key in self.rows:
            sorts[key[:1] + (key[_ROW_AT : _ROW_AT + 1] if key[0] == _SESSION else b"")].append(key)
        self.sorts = sorted(sorts.values())

    def chosen(self, number: int) -> bytes:
        """A row by number: all sorts of rows come equally often."""
        dice = random.Random(number)
        return dice.choice(dice.choice(self.sorts))

    def put(self, key: bytes, value: bytes) -> None:
        self.store.transact(lambda txn: txn.put(key, value))


@cache
def _subject() -> _Subject:
    return _Subject()


def bodies() -> list[bytes]:
    """What the mutators start from: the number of a row, the flags and its body."""
    subject, found = _subject(), []
    for number in range(100):
        key = subject.chosen(number)
        flags, body = codec.open_value(key, subject.rows[key])
        found.append(number.to_bytes(_NUMBER_BYTES, "big") + bytes((flags,)) + body)
    return found


def resealed(data: bytes) -> None:
    """Read everything of a database one row of which says ``data``."""
    subject = _subject()
    key = subject.chosen(int.from_bytes(data[:_NUMBER_BYTES], "big"))
    flags, body = data[_NUMBER_BYTES : _NUMBER_BYTES + 1], data[_NUMBER_BYTES + 1 :]
    subject.put(key, codec.seal_value(key, body, int.from_bytes(flags, "big")))
    try:
        with memcore.open(subject.path) as db:
            crashes = _asked(db, subject.atlas).crashes
    except InternalError as error:
        crashes = [f"open: {error!r}"]
    except MemcoreError:
        crashes = []
    finally:
        subject.put(key, subject.rows[key])
    assert not crashes, (key, crashes[:3])


def _asked(db: memcore.Database, atlas: Atlas) -> Observed:
    found = observe(db, atlas)
    verbs: dict[str, Callable[[], Any]] = {
        "check": db.check,
        "stats": db.stats,
        "export": lambda: list(db.export()),
        "sweep": lambda: db.sweep(dry_run=True),
        "would": lambda: db.would_erase("default"),
        "append": lambda: db.session("new").append({"role": "user", "content": "x"}),
    }
    for name, verb in verbs.items():
        found.ask((name,), verb)
    return found
