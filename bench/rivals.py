"""What memcore is compared with is imported in ``rivals*.py`` and nowhere else."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness import NotInstalled

__all__ = [
    "SQLITE_VERSION",
    "TOKENIZERS",
    "Fts5",
    "KeptSqlite",
    "RawLmdb",
    "sqlite_connection",
    "sqlite_session",
    "tokenizer",
]

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


def sqlite_connection(path: Path) -> sqlite3.Connection:
    """A connection for whoever sets it up alone."""
    return sqlite3.connect(path, check_same_thread=False)


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


# --- tokenizers: o200k_base, exact, special tokens as ordinary text ------------------------------


def _tiktoken(vocabulary: Path) -> Callable[[str], Any]:
    """``encode_ordinary`` without its Python wrapper: tiktoken's fastest way to count."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe
    from tiktoken_ext import openai_public

    os.environ["TIKTOKEN_CACHE_DIR"] = ""  # no copy of the file elsewhere
    fetch = openai_public.load_tiktoken_bpe
    openai_public.load_tiktoken_bpe = lambda *_, **__: load_tiktoken_bpe(str(vocabulary))
    try:
        encoding = tiktoken.Encoding(**openai_public.o200k_base())
    finally:
        openai_public.load_tiktoken_bpe = fetch
    return encoding._core_bpe.encode_ordinary  # noqa: SLF001 - what we say we race


def _bpe_openai(_: Path) -> Callable[[str], Any]:
    from bpe_openai import _bindings

    return _bindings.tokenizer_for_encoding("o200k_base").count


def _quicktok(_: Path) -> Callable[[str], Any]:
    import quicktok

    return quicktok.get_encoding("o200k_base").count


def _toktok(_: Path) -> Callable[[str], Any]:
    """Its supported function starts threads for each batch; this is what that calls."""
    import toktok

    return toktok._encoding("o200k_base").count  # noqa: SLF001 - see above


def _splintr(_: Path) -> Callable[[str], Any]:
    import splintr

    return splintr.Tokenizer.from_pretrained("o200k_base").encode_ordinary


def _fastokens(vocabulary: Path) -> Callable[[str], Any]:
    import fastokens
    from tiktoken_ext import openai_public

    fetch = openai_public.load_tiktoken_bpe
    openai_public.load_tiktoken_bpe = lambda *_, **__: {}
    try:
        pattern = openai_public.o200k_base()["pat_str"]
    finally:
        openai_public.load_tiktoken_bpe = fetch
    return fastokens.Tokenizer.from_tiktoken(str(vocabulary), pattern).encode_ordinary


TOKENIZERS: dict[str, Callable[[Path], Callable[[str], Any]]] = {
    "tiktoken": _tiktoken,
    "bpe-openai": _bpe_openai,
    "quicktok-v1": _quicktok,
    "toktok-rs": _toktok,
    "splintr-rs": _splintr,
    "fastokens": _fastokens,
}
"""By the name of the package. Some return the count, others ids, whose length is it."""


def tokenizer(name: str, vocabulary: Path) -> tuple[Callable[[str], Any], str]:
    """A rival's fastest exact way to the tokens of a text, and its version.

    Raises:
        NotInstalled: the package is not there.
    """
    try:
        return TOKENIZERS[name](vocabulary), version(name)
    except ImportError as error:
        raise NotInstalled(f"not installed (pip install {name})") from error


# --- SQLite's full-text search -------------------------------------------------------------------


class Fts5:
    """Texts in an FTS5 table with the Porter stemmer."""

    def __init__(self, path: Path, texts: list[str]) -> None:
        self._db = sqlite3.connect(path)
        self._db.execute("CREATE VIRTUAL TABLE docs USING fts5(text, tokenize='porter unicode61')")
        self._db.executemany("INSERT INTO docs(text) VALUES (?)", [(text,) for text in texts])
        self._db.commit()

    def search(self, query: str) -> list[tuple[int, str, float]]:
        """The ten best rows with any of the words, by bm25()."""
        words = " OR ".join(query.split())
        return self._db.execute(
            "SELECT rowid, text, bm25(docs) FROM docs WHERE docs MATCH ?"
            " ORDER BY bm25(docs) LIMIT 10",
            (words,),
        ).fetchall()

    def close(self) -> None:
        """Close the file."""
        self._db.close()
