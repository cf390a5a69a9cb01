"""The only module that imports what memcore is compared with."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from harness import NotInstalled

__all__ = ["SQLITE_VERSION", "KeptSqlite", "RawLmdb", "sqlite_session"]

SQLITE_VERSION = sqlite3.sqlite_version
MAP_BYTES = 4 * 1024**3


def sqlite_session(path: Path, session_id: str = "bench") -> Any:
    """openai-agents' SQLiteSession on a file, with its own defaults (WAL, synchronous=FULL).

    Raises:
        NotInstalled: openai-agents is not there.
    """
    try:
        from agents import SQLiteSession
    except ImportError as error:
        raise NotInstalled("not installed (pip install openai-agents)") from error
    return SQLiteSession(session_id, path)


class KeptSqlite:
    """The simplest durable log: one kept sqlite3 connection, WAL, a row of JSON a commit."""

    def __init__(self, path: Path, *, synchronous: str = "FULL") -> None:
        self.connection = sqlite3.connect(path, check_same_thread=False)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute(f"PRAGMA synchronous={synchronous}")
        self.connection.execute(
            "CREATE TABLE items (id INTEGER PRIMARY KEY, session TEXT NOT NULL, item TEXT NOT NULL)"
        )
        self.connection.commit()

    def append(self, item: dict[str, Any]) -> None:
        """Insert one row and commit."""
        self.connection.execute(
            "INSERT INTO items (session, item) VALUES (?, ?)", ("bench", json.dumps(item))
        )
        self.connection.commit()

    def extend(self, items: list[dict[str, Any]]) -> None:
        """Insert rows and commit once."""
        rows = [("bench", json.dumps(item)) for item in items]
        self.connection.executemany("INSERT INTO items (session, item) VALUES (?, ?)", rows)
        self.connection.commit()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class RawLmdb:
    """py-lmdb without anything around it; nothing is flushed."""

    def __init__(self, path: Path) -> None:
        import lmdb

        self.env = lmdb.open(
            str(path), subdir=False, sync=False, metasync=False, map_size=MAP_BYTES, lib_version=0
        )

    def write(self, rows: list[tuple[bytes, bytes]]) -> None:
        """One transaction that puts the rows."""
        txn = self.env.begin(write=True)
        put = txn.put
        for key, value in rows:
            put(key, value)
        txn.commit()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()
