"""Contents in parts: cutting them, putting them together, and the texts that are kept in memory."""

from __future__ import annotations

from base64 import standard_b64encode
from collections.abc import Callable
from threading import Lock
from typing import Any, Final

from memcore.adapters.deepagents.rows import FileRow, part_key
from memcore.errors import CorruptValueError
from memcore.kv import KeyValueTxn
from memcore.limits import BLOB_CHUNK_BYTES

__all__ = ["Texts", "drop_parts", "lengthen", "put_parts", "read_parts", "shown"]

_TAIL_BYTES: Final = 8 * 1024
"""A last part that stays below this with what is appended is written anew with it."""
_KEPT_BYTES: Final = 32 * 1024**2
"""Texts that one namespace keeps in memory."""
_KEPT_TEXT_BYTES: Final = 1024**2
"""A larger text is read each time."""


def put_parts(txn: KeyValueTxn, number: int, payload: bytes, *, first: int = 0) -> tuple[int, int]:
    """Write a content from part ``first`` on: how many parts it has then, bytes of the last."""
    part, tail = first, 0
    for start in range(0, len(payload), BLOB_CHUNK_BYTES):
        piece = payload[start : start + BLOB_CHUNK_BYTES]
        txn.put(part_key(number, part), piece)
        part, tail = part + 1, len(piece)
    return part, tail


def lengthen(txn: KeyValueTxn, row: FileRow, more: bytes) -> tuple[int, int]:
    """Write what comes behind a content, as ``put_parts`` does; costs what it adds."""
    if not more:
        return row.parts, row.tail
    if row.parts and row.tail + len(more) <= _TAIL_BYTES:
        last = part_key(row.number, row.parts - 1)
        more = _part(txn.get, last)[: row.tail] + more
        return put_parts(txn, row.number, more, first=row.parts - 1)
    return put_parts(txn, row.number, more, first=row.parts)


def drop_parts(txn: KeyValueTxn, row: FileRow) -> None:
    """Remove a content."""
    for part in range(row.parts):
        txn.delete(part_key(row.number, part))


def read_parts(get: Callable[[str], Any], row: FileRow) -> bytes:
    """A content as long as the row says; it may have grown since.

    Raises:
        CorruptValueError: a part is missing, as when the content was replaced meanwhile.
    """
    pieces = [_part(get, part_key(row.number, part)) for part in range(row.parts)]
    if pieces:
        # Only the last part is ever written anew, with more behind what it held.
        pieces[-1] = pieces[-1][: row.tail]
    payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if len(payload) != row.size:
        msg = (
            f"content {row.number} has {len(payload)} bytes, its file row says {row.size}; run "
            "'memcore check' and restore from a backup"
        )
        raise CorruptValueError(msg, key=b"")
    return payload


def _part(get: Callable[[str], Any], key: str) -> bytes:
    piece = get(key)
    if isinstance(piece, bytes):
        return piece
    msg = f"the part {key!r} of a file's content is missing; run 'memcore check'"
    raise CorruptValueError(msg, key=key.encode())


def shown(payload: bytes, encoding: str) -> str:
    """A content as DeepAgents sees it: text, or base64 of a binary one."""
    if encoding == "base64":
        return standard_b64encode(payload).decode("ascii")
    return payload.decode("utf-8")


class Texts:
    """Texts in memory by the number of their content, those that came last."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, str]] = {}
        self._bytes = 0
        self._lock = Lock()

    def get(self, row: FileRow) -> str | None:
        """The text, if it is kept as long as the row says."""
        found = self._kept.get(row.number)
        return found[1] if found is not None and found[0] == row.size else None

    def keep(self, row: FileRow, text: str) -> None:
        """Keep a text, and let go of those that came first."""
        if row.encoding == "base64" or row.size > _KEPT_TEXT_BYTES:
            return
        with self._lock:
            self._bytes -= self._kept.pop(row.number, (0, ""))[0]
            self._kept[row.number] = (row.size, text)
            self._bytes += row.size
            while self._bytes > _KEPT_BYTES:
                oldest = next(iter(self._kept))
                self._bytes -= self._kept.pop(oldest)[0]

    def clear(self) -> None:
        """Let go of all: numbers begin again."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0
