"""Requests that are tried again, without any framework: for processes that are killed."""

from __future__ import annotations

import sys
from typing import Any

import memcore


def user(content: str) -> dict[str, Any]:
    """A message."""
    return {"role": "user", "content": content}


def batch(db: memcore.Database) -> Any:
    """Items, states and a checkpoint in one commit."""
    session = db.session("s")
    with session.batch(idempotency_key="k") as found:
        found.append(user("x"))
        found.update_state({"n": memcore.Merge({"a": 1}), "user:u": 1})
        found.checkpoint("here")
    return found.receipt


def state_merge(db: memcore.Database) -> Any:
    """Entries that go into a value."""
    session = db.session("s")
    counter = session.state.update({"m": memcore.Merge({"a": {"b": 1}})}, idempotency_key="k")
    return counter, session.state.all()


def kv(db: memcore.Database) -> Any:
    """A transaction of several keys, and an increment."""
    space = db.scope().kv("n")
    moved = space.transact(
        lambda txn: [txn.increment("a", 3), txn.increment("b", -3)], idempotency_key="t"
    )
    return space.increment("c", 2, idempotency_key="k"), moved, list(space.scan())


SURFACES = {fn.__name__: fn for fn in (batch, state_merge, kv)}

if __name__ == "__main__":
    with memcore.open(sys.argv[1]) as opened:
        SURFACES[sys.argv[2]](opened)
