"""Stores for tests of copies: some of everything in one, and what a copy of it has to do."""

from __future__ import annotations

from pathlib import Path

import memcore


def fill(db: memcore.Database) -> None:
    """Store some of everything."""
    for user in ("ann", "ben"):
        for n in range(3):
            session = db.session(f"s{n}", user=user)
            session.extend([{"role": "user", "content": f"{user} {k}"} for k in range(120)])
            session.checkpoint("half")
        db.session("s0", user=user).fork("forked")
        db.scope(user=user).kv("notes").put("key", {"value": list(range(50))})
        db.scope(user=user).blobs.put(b"blob " * 60_000)
        db.scope(user=user).memory.remember("likes tea", by="operator")
    db.session("gone", user="ann").append({"role": "user", "content": "x"})
    db.delete_session("gone", user="ann")


def use(path: str | Path) -> None:
    """What is copied goes on: new numbers, old histories, no finding."""
    with memcore.open(path, create=False) as db:
        session = db.session("s1", user="ben")
        assert [item.message["content"] for item in session.items()] == [
            f"ben {k}" for k in range(120)
        ]
        session.append({"role": "assistant", "content": "more"})
        db.session("new", user="ann").append({"role": "user", "content": "new"})
        db.session("first", user="new user").append({"role": "user", "content": "new"})
        assert db.scope(user="ann").blobs
        assert db.scope(user="ann").kv("notes").get("key") == {"value": list(range(50))}
        assert db.check() == []
