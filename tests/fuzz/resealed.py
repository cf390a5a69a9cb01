"""Rows that hold what memcore never writes, under a true checksum: every reader's error is typed.

A damaged row is found by its checksum. These are proven: what reads them has nothing to go by but
what they say.
"""

from __future__ import annotations

import json
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
from memcore.codec import values as codec
from memcore.errors import InternalError, MemcoreError
from memcore.store import LmdbStore, open_store

__all__ = ["bodies", "resealed"]

_SESSION, _CARE, _ROW_AT, _CARE_AT = 5, 18, 17, 9
_NUMBER_BYTES = 4
_ODD = (None, True, -1, 2**63, 2**70, "", [], {}, "\x00", 1.5, [[]], {"a": 1})
"""What stands in JSON in the place of something else."""
_SUSPICIOUS = "mail eve@example.com"


class _Subject:
    """A database with all kinds of rows, and the same file as an open store beneath it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="memcore-fuzz-")
        specimens = {one.name: one for one in make(Path(self._folder.name), 7)}
        self.atlas: Atlas = specimens["used"].atlas
        self.atlas.sessions = self.atlas.sessions[:3]
        self.path = Path(self._folder.name, "resealed.memcore")
        self.path.write_bytes(specimens["used"].content)
        _care_for(self.path)
        self.store: LmdbStore = open_store(self.path)
        rows = self.store.read(lambda txn: list(txn.scan(b"\x01", b"\xff" * 8)))
        self.rows = {key: value for key, value in rows if codec.is_proven(key, value)}
        sorts: dict[bytes, list[bytes]] = defaultdict(list)
        for key in self.rows:
            at = {_SESSION: _ROW_AT, _CARE: _CARE_AT}.get(key[0], 0)
            sorts[key[:1] + key[at : at + 1]].append(key)
        self.sorts = sorted(sorts.values())

    def chosen(self, number: int) -> bytes:
        """A row by number: all sorts of rows come equally often."""
        dice = random.Random(number)
        return dice.choice(dice.choice(self.sorts))

    def put(self, key: bytes, value: bytes) -> None:
        self.store.transact(lambda txn: txn.put(key, value))


def _care_for(path: Path) -> None:
    """Add the rows of what sessions and scopes are cared for by."""
    guard = memcore.SecretGuard(verdict="quarantine", policy={"classes": ["email"]})
    with memcore.open(path, guard=guard) as db:
        session = db.session("cared", access_counts=True)
        session.extend([{"role": "user", "content": text} for text in ("hi", _SUSPICIOUS)])
        session.append({"role": "user", "content": "once"}, idempotency_key="once")
        session.checkpoint("here", meta={"why": "to go back"})
        session.lease("worker", ttl_seconds=3600).release()
        list(session.items())
        session.append({"role": "user", "content": "counted"})
        session.hold(reason="a suit")
        db.retention.set([{"what": "items", "max_age_seconds": 10**9}])
        db.retention.expire_session("cared", app="default", user="default", ttl_seconds=10**9)


@cache
def _subject() -> _Subject:
    return _Subject()


def bodies() -> list[bytes]:
    """What the mutators start from: the number of a row, the flags and its body.

    In the JSON of some, one value is of another type: no change of bytes comes to that.
    """
    subject, found = _subject(), []
    for number in range(200):
        key = subject.chosen(number)
        flags, body = codec.open_value(key, subject.rows[key])
        dice = random.Random(number)
        body = _confused(dice, body) if number % 2 else body
        found.append(number.to_bytes(_NUMBER_BYTES, "big") + bytes((flags,)) + body)
    return found


def _confused(dice: random.Random, body: bytes) -> bytes:
    """A body with something else in the place of a value of its JSON; cut short if it has none."""
    for at in sorted({0, *(body.find(mark) for mark in (b"{", b"["))} - {-1}):
        try:
            value = json.loads(body[at:])
        except ValueError:
            continue
        return body[:at] + json.dumps(_replaced(dice, value)).encode()
    return body[: dice.randrange(len(body) + 1)]


def _replaced(dice: random.Random, value: Any) -> Any:
    if isinstance(value, dict | list) and value and dice.random() < 0.8:
        at = dice.choice(list(value) if isinstance(value, dict) else range(len(value)))
        made = value.copy()
        made[at] = _replaced(dice, value[at])
        return made
    return dice.choice(_ODD)


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
        "holds": db.holds,
        "held": lambda: list(db.scope().quarantine),
        "terms": db.retention.terms,
        "accessed": db.session("cared").accessed,
        "saved": lambda: db.session("cared").checkpoints(),
        "lease": lambda: db.session("cared").lease("me", ttl_seconds=60, force=True).release(),
        "again": lambda: db.session("cared").append(
            {"role": "user", "content": "once"}, idempotency_key="once"
        ),
        "append": lambda: db.session("new").append({"role": "user", "content": "x"}),
    }
    for name, verb in verbs.items():
        found.ask((name,), verb)
    return found
