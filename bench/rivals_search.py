"""SQLite's full-text search, as it is used without a framework."""

from __future__ import annotations

import sqlite3
from pathlib import Path

__all__ = ["Fts5"]


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
