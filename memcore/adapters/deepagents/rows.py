"""Rows of a namespace of files: their keys and the layout of their values."""

from __future__ import annotations

from base64 import standard_b64encode
from collections.abc import Callable
from hashlib import blake2b
from threading import Lock
from typing import Any, Final, Self

from memcore.codec.values import decoding
from memcore.errors import CorruptValueError
from memcore.kv import KeyValueTxn
from memcore.limits import BLOB_CHUNK_BYTES, KV_KEY_BYTES_MAX
from memcore.records import record

__all__ = [
    "FILES",
    "HEAD",
    "LONG_FILES",
    "Change",
    "FileRow",
    "Head",
    "Texts",
    "drop_parts",
    "encoding_of",
    "file_key",
    "lengthen",
    "need_form",
    "part_key",
    "put_parts",
    "read_parts",
    "shown",
]


# --- The rows of a namespace of files: their keys and values --------------------------------------

HEAD: Final = "g"
FILES: Final = "f"
LONG_FILES: Final = "l"
_RECENT_CHANGES: Final = 8
"""Changes recorded in the head; a process that missed more rereads all file rows."""
_RECENT_PATH_CHARS: Final = 256
_BASE64_GROUP: Final = 3
_ENCODINGS: Final = ("utf-8", "base64")
_TIMES: Final = 2
_PARTS_MAX: Final = 16**6 - 1
"""Part numbers up to this one sort correctly in their keys."""


def file_key(path: str) -> str:
    """The key of a file's row."""
    packed = path.encode("utf-8", "surrogatepass")
    # An encoded key ends with a zero byte, and zero bytes inside it are doubled.
    if len(FILES) + len(packed) + packed.count(0) < KV_KEY_BYTES_MAX:
        return FILES + path
    return LONG_FILES + blake2b(packed, digest_size=32).hexdigest()


def part_key(number: int, part: int) -> str:
    """The key of a part of a file's content."""
    return f"p{number:012x}{part:06x}"


@record(frozen=True, slots=True)
class FileRow:
    """The metadata of a file, with the number of its content."""

    number: int
    parts: int
    size: int
    """Bytes of the content, decoded if binary."""
    tail: int
    """Bytes of the last part."""
    encoding: str
    created_at: str | None
    modified_at: str | None

    @property
    def told_size(self) -> int:
        """The size reported to DeepAgents: that of the text, which is base64 for a binary file."""
        if self.encoding == "base64":
            return -(-self.size // _BASE64_GROUP) * 4
        return self.size

    def packed(self, path: str) -> list[Any]:
        """The row as JSON, including the path if the key does not contain it."""
        row = [
            self.number,
            self.parts,
            self.size,
            self.tail,
            self.encoding,
            self.created_at,
            self.modified_at,
        ]
        return row if file_key(path)[:1] == FILES else [*row, path]

    @classmethod
    def unpack(cls, packed: list[Any]) -> Self:
        """Decode a row encoded by ``packed``.

        Raises:
            CorruptValueError: it is malformed.
        """
        with decoding(b"", "row of a file"):
            number, parts, size, tail, encoding, *times = packed[:7]
            counts = all(type(each) is int and each >= 0 for each in (number, parts, size, tail))
            if not counts or parts > _PARTS_MAX or len(times) != _TIMES:
                raise ValueError
            need_form(encoding, *times)
            return cls(number, parts, size, tail, encoding, *times)

    @classmethod
    def of_value(cls, path: object, packed: list[Any]) -> tuple[str, Self]:
        """The path and row of a stored value, or of a change; errors as ``unpack``."""
        with decoding(b"", "row of a file"):
            if not isinstance(path, str):
                raise TypeError
        return path, cls.unpack(packed)


def need_form(encoding: object, *times: object) -> None:
    """Raise an error of Python if the encoding is not known, or a time is neither text nor None."""
    if encoding not in _ENCODINGS:
        msg = f"encoding: expected one of {', '.join(_ENCODINGS)}, got {encoding!r:.40}"
        raise ValueError(msg)
    for time in times:
        if not isinstance(time, str | None):
            msg = f"created_at, modified_at: expected texts, got {time!r:.40}"
            raise TypeError(msg)


Change = tuple[str, FileRow | None] | None
"""A path and its new row, or None if it was deleted with everything below; None: unknown."""


@record(frozen=True, slots=True)
class Head:
    """The version of a namespace: counters and the most recent changes."""

    life: str
    """A random id, replaced when the namespace is cleared and starts over."""
    changes: int
    """The number of changes."""
    numbers: int
    """The last content number assigned."""
    recent: tuple[Any, ...] = ()
    """The most recent changes as JSON, oldest first."""

    def after(self, *changes: Change, numbers: int | None = None) -> Head:
        """The head after these changes."""
        told = tuple(map(_packed, changes[-_RECENT_CHANGES:]))
        return Head(
            self.life,
            self.changes + len(changes),
            self.numbers if numbers is None else numbers,
            (self.recent + told)[-_RECENT_CHANGES:],
        )

    def since(self, earlier: Head) -> list[Change] | None:
        """The changes after an earlier head; None if they are not all known."""
        missed = self.changes - earlier.changes
        if self.life != earlier.life or missed > len(self.recent):
            return None
        found = self.recent[len(self.recent) - missed :]
        if None in found:
            return None
        with decoding(b"", "head of the files"):
            pairs = [(path, row) for path, row in found]
        return [(path, None) if row is None else FileRow.of_value(path, row) for path, row in pairs]

    def packed(self) -> list[Any]:
        """The head as JSON."""
        return [self.life, self.changes, self.numbers, self.recent]

    @classmethod
    def unpack(cls, packed: list[Any]) -> Self:
        """Decode a head encoded by ``packed``.

        Raises:
            CorruptValueError: it is malformed.
        """
        with decoding(b"", "head of the files"):
            life, changes, numbers, recent = packed
            if not isinstance(life, str) or type(changes) is not int or type(numbers) is not int:
                raise TypeError
            return cls(life, changes, numbers, tuple(recent))


def _packed(change: Change) -> Any:
    if change is None or len(change[0]) > _RECENT_PATH_CHARS:
        return None
    path, row = change
    return path, None if row is None else row.packed(path)


def encoding_of(payload: bytes) -> str:
    """The encoding under which content is stored."""
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError:
        return "base64"
    return "utf-8"


# --- Contents in parts: writing, appending, reading, and the cache of texts -----------------------

_TAIL_BYTES: Final = 8 * 1024
"""The last part is rewritten by an append if the result does not exceed this size."""
_KEPT_BYTES: Final = 32 * 1024**2
"""Size of the text cache of a namespace."""
_KEPT_TEXT_BYTES: Final = 1024**2
"""Texts above this size are not cached."""


def put_parts(txn: KeyValueTxn, number: int, payload: bytes, *, first: int = 0) -> tuple[int, int]:
    """Write content from part ``first`` on; return the number of parts and bytes of the last."""
    part, tail = first, 0
    for start in range(0, len(payload), BLOB_CHUNK_BYTES):
        piece = payload[start : start + BLOB_CHUNK_BYTES]
        txn.put(part_key(number, part), piece)
        part, tail = part + 1, len(piece)
    return part, tail


def lengthen(txn: KeyValueTxn, row: FileRow, more: bytes) -> tuple[int, int]:
    """Append to content; return as ``put_parts``. The cost depends on the appended bytes."""
    if not more:
        return row.parts, row.tail
    if row.parts and row.tail + len(more) <= _TAIL_BYTES:
        last = part_key(row.number, row.parts - 1)
        more = _part(txn.get, last)[: row.tail] + more
        return put_parts(txn, row.number, more, first=row.parts - 1)
    return put_parts(txn, row.number, more, first=row.parts)


def drop_parts(txn: KeyValueTxn, row: FileRow) -> None:
    """Remove a file's content."""
    for part in range(row.parts):
        if not txn.delete(part_key(row.number, part)):
            # A part is missing, or the row claims more parts than exist: delete by key range
            # instead.
            low, high = part_key(row.number, part), part_key(row.number + 1, 0)
            for key, _ in txn.scan(low, high):
                txn.delete(key)
            return


def read_parts(get: Callable[[str], Any], row: FileRow) -> bytes:
    """Read content up to the length in the row; it may have grown since.

    Raises:
        CorruptValueError: a part is missing, for example because the content was just replaced.
    """
    pieces = [_part(get, part_key(row.number, part)) for part in range(row.parts)]
    if pieces:
        # Only the last part is ever rewritten, and only with more bytes at its end.
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
    """Content as DeepAgents sees it: text, or base64 if binary.

    Raises:
        CorruptValueError: text is not valid UTF-8.
    """
    if encoding == "base64":
        return standard_b64encode(payload).decode("ascii")
    with decoding(b"", "text of a file"):
        return payload.decode("utf-8")


class Texts:
    """A cache of texts by content number; evicts the oldest."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, str]] = {}
        self._bytes = 0
        self._lock = Lock()

    def get(self, row: FileRow) -> str | None:
        """The text, if cached at the length in the row."""
        found = self._kept.get(row.number)
        return found[1] if found is not None and found[0] == row.size else None

    def keep(self, row: FileRow, text: str) -> None:
        """Cache a text, evicting the oldest ones."""
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
        """Drop all texts, because content numbers start over."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0
