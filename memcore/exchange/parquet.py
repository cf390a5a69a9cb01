"""Items of an export as a Parquet file, for DuckDB, Polars and pandas; needs pyarrow.

It is made of the lines of an export, so it holds what they hold: the items of all sessions, or of
some, redacted or not. Compactions, checkpoints and state have no place in a table of items.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final

from memcore.compaction.transcript import parts_of
from memcore.errors import MemcoreError
from memcore.exchange.lines import parse_line, portable_json
from memcore.tokens import TokenCounter, get_counter

__all__ = [
    "parquet_of",
]


_ROWS: Final = 10_000
_BYTES: Final = 32 * 1024**2
"""Rows of a row group, and bytes of their messages, at most: so much is in memory at a time."""
_TOLD: Final = ("type", "author", "agent", "tool", "model", "status", "duration_ms")
"""Fields of an envelope that are columns."""


def parquet_of(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Return the bytes of a Parquet file, in pieces: a row for each item in lines of an export.

    Raises:
        ImportError: pyarrow is missing.
    """
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ModuleNotFoundError as exc:
        msg = 'parquet needs pyarrow: pip install "memcore-db[parquet]"'
        raise ImportError(msg, name=exc.name) from exc
    return _pieces(lines, arrow, parquet)


def _pieces(lines: Iterable[bytes], arrow: Any, parquet: Any) -> Iterator[bytes]:
    text, texts = arrow.string(), arrow.list_(arrow.string())
    schema = arrow.schema(
        [
            ("app", text), ("user", text), ("session", text), ("seq", arrow.int64()),
            ("kind", text), ("created_at", arrow.timestamp("us", tz="UTC")),
            ("tokens", arrow.int64()), ("text", text), ("tools", texts), ("call_ids", texts),
            ("type", text), ("author", text), ("agent", text), ("tool", text), ("model", text),
            ("status", text), ("duration_ms", arrow.float64()), ("request_id", text),
            ("undone", arrow.bool_()), ("meta", text), ("message", text),
        ]
    )  # fmt: skip
    sink = _Sink()
    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for rows in _groups(_rows(lines)):
            writer.write_table(arrow.Table.from_pylist(rows, schema))
            yield sink.take()
    yield sink.take()


class _Sink(io.RawIOBase):
    """A file that is written from its beginning to its end, and read piece by piece."""

    def __init__(self) -> None:
        self._written: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._at

    def write(self, data: Any) -> int:
        """Keep some bytes until they are taken."""
        piece = bytes(data)
        self._written.append(piece)
        self._at += len(piece)
        return len(piece)

    def take(self) -> bytes:
        """Return what was written since the last time."""
        found = b"".join(self._written)
        self._written.clear()
        return found


def _groups(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        found.append(row)
        size += len(row["message"])
        if len(found) >= _ROWS or size >= _BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found


def _rows(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield a row for each item; the title of its session comes before it."""
    place: dict[str, Any] = {}
    counter: TokenCounter | None = None
    for line in lines:
        said = parse_line(line)
        if "memcore" in said:
            place = {name: _plain(said[name]) for name in ("app", "user", "session")}
            counter = _counter(said["counter"])
        elif "item" in said:
            yield place | _row(said, counter)


def _row(said: Mapping[str, Any], counter: TokenCounter | None) -> dict[str, Any]:
    """Return the columns of an item that are its own."""
    message, told = said["item"], said.get("envelope", {})
    encoded = portable_json(message)
    is_event = said["kind"] == "event"
    parts = [] if is_event else parts_of(message)
    calls = [part for part in parts if part.kind == "call"]
    tokens = 0 if is_event else None
    if counter is not None and not is_event:
        tokens = counter.count_message(message, encoded)
    return {
        "seq": said["seq"],
        "kind": said["kind"],
        "created_at": said["created_us"],
        "tokens": tokens,
        "text": _plain("\n".join(part.text for part in parts if part.text)),
        "tools": [_plain(part.name) for part in calls],
        "call_ids": [_plain(part.call_id) for part in parts if part.call_id],
        **{name: _plain(told.get(name)) for name in _TOLD},
        "request_id": _plain(said.get("request_id")),
        "undone": said.get("undone", False),
        "meta": portable_json(said["meta"]).decode() if "meta" in said else None,
        "message": encoded.decode(),
    }


def _counter(name: str) -> TokenCounter | None:
    """Return the counter of a session; None if this process has none of the name."""
    try:
        return get_counter(name)
    except MemcoreError:
        return None


def _plain(value: Any) -> Any:
    """Return a text as UTF-8 can hold it: a lone surrogate becomes a question mark."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
