"""Rows of a namespace of files: their keys and the layout of their values."""

from __future__ import annotations

from base64 import standard_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock
from typing import Any, Final, Self

from memcore.codec.values import decoding
from memcore.errors import CorruptValueError
from memcore.kv import KeyValueTxn
from memcore.limits import BLOB_CHUNK_BYTES, KV_KEY_BYTES_MAX

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
    "part_key",
    "put_parts",
    "read_parts",
    "shown",
]


# --- The rows behind a namespace of files: their keys, and what their values say ------------------

HEAD: Final = "g"
FILES: Final = "f"
LONG_FILES: Final = "l"
_RECENT_CHANGES: Final = 8
"""The changes in the head; a process that missed more reads all file rows."""
_RECENT_PATH_CHARS: Final = 256
_BASE64_GROUP: Final = 3
_ENCODINGS: Final = ("utf-8", "base64")
_TIMES: Final = 2
_PARTS_MAX: Final = 16**6 - 1
"""So many have keys in order."""


def file_key(path: str) -> str:
    """The key of the row of a file."""
    packed = path.encode("utf-8", "surrogatepass")
    # A key closes with a zero byte and writes those inside it as two.
    if len(FILES) + len(packed) + packed.count(0) < KV_KEY_BYTES_MAX:
        return FILES + path
    return LONG_FILES + blake2b(packed, digest_size=32).hexdigest()


def part_key(number: int, part: int) -> str:
    """The key of a part of a content."""
    return f"p{number:012x}{part:06x}"


@dataclass(frozen=True, slots=True)
class FileRow:
    """The metadata of a file, with the number of its content."""

    number: int
    parts: int
    size: int
    """Bytes of the content, decoded if it is binary."""
    tail: int
    """Bytes of its last part."""
    encoding: str
    created_at: str | None
    modified_at: str | None

    @property
    def told_size(self) -> int:
        """The size reported to DeepAgents: of the text, which is base64 for a binary file."""
        if self.encoding == "base64":
            return -(-self.size // _BASE64_GROUP) * 4
        return self.size

    def packed(self, path: str) -> list[Any]:
        """The row as JSON; it holds the path if the key does not."""
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
        """The row that ``packed`` made.

        Raises:
            CorruptValueError: it is none.
        """
        with decoding(b"", "row of a file"):
            number, parts, size, tail, encoding, *times = packed[:7]
            counts = all(type(each) is int and each >= 0 for each in (number, parts, size, tail))
            if not counts or parts > _PARTS_MAX or encoding not in _ENCODINGS:
                raise ValueError
            if len(times) != _TIMES or not all(isinstance(each, str | None) for each in times):
                raise ValueError
            return cls(number, parts, size, tail, encoding, *times)

    @classmethod
    def of_value(cls, path: object, packed: list[Any]) -> tuple[str, Self]:
        """The path and the row of a value, or of a change; errors as ``unpack``."""
        with decoding(b"", "row of a file"):
            if not isinstance(path, str):
                raise TypeError
        return path, cls.unpack(packed)


Change = tuple[str, FileRow | None] | None
"""A file's new row; None in its place: the path and all below it were deleted; None: unknown."""


@dataclass(frozen=True, slots=True)
class Head:
    """The version of a namespace: counters and the latest changes."""

    life: str
    """Random; another one if the namespace was cleared and began again."""
    changes: int
    """The number of changes."""
    numbers: int
    """The last number that a content was given."""
    recent: tuple[Any, ...] = ()
    """The latest changes as JSON, the last one at the end."""

    def after(self, *changes: Change, numbers: int | None = None) -> Head:
        """The head once these changes were made."""
        told = tuple(map(_packed, changes[-_RECENT_CHANGES:]))
        return Head(
            self.life,
            self.changes + len(changes),
            self.numbers if numbers is None else numbers,
            (self.recent + told)[-_RECENT_CHANGES:],
        )

    def since(self, earlier: Head) -> list[Change] | None:
        """The changes after an earlier head; None if they are not known."""
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
        """The head that ``packed`` made.

        Raises:
            CorruptValueError: it is none.
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
    """The encoding under which a content is kept."""
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError:
        return "base64"
    return "utf-8"


# --- Contents in parts: cutting them, putting them together, and the texts that are kept in memory

_TAIL_BYTES: Final = 8 * 1024
"""A last part that stays below this with the appended bytes is rewritten with them."""
_KEPT_BYTES: Final = 32 * 1024**2
"""Texts that one namespace keeps in memory."""
_KEPT_TEXT_BYTES: Final = 1024**2
"""A larger text is read each time."""


def put_parts(txn: KeyValueTxn, number: int, payload: bytes, *, first: int = 0) -> tuple[int, int]:
    """Write a content from part ``first`` on: the number of its parts, bytes of the last."""
    part, tail = first, 0
    for start in range(0, len(payload), BLOB_CHUNK_BYTES):
        piece = payload[start : start + BLOB_CHUNK_BYTES]
        txn.put(part_key(number, part), piece)
        part, tail = part + 1, len(piece)
    return part, tail


def lengthen(txn: KeyValueTxn, row: FileRow, more: bytes) -> tuple[int, int]:
    """Append to a content, as ``put_parts`` does; costs what it adds."""
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
        if not txn.delete(part_key(row.number, part)):
            # One is missing, or the row names more than there were: go by the keys instead.
            low, high = part_key(row.number, part), part_key(row.number + 1, 0)
            for key, _ in txn.scan(low, high):
                txn.delete(key)
            return


def read_parts(get: Callable[[str], Any], row: FileRow) -> bytes:
    """The content up to the length in the row; it may have grown since.

    Raises:
        CorruptValueError: a part is missing, as when the content was replaced meanwhile.
    """
    pieces = [_part(get, part_key(row.number, part)) for part in range(row.parts)]
    if pieces:
        # Only the last part is ever rewritten, with more at its end.
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
    """A content as DeepAgents sees it: text, or base64 of a binary one.

    Raises:
        CorruptValueError: a text is none.
    """
    if encoding == "base64":
        return standard_b64encode(payload).decode("ascii")
    with decoding(b"", "text of a file"):
        return payload.decode("utf-8")


class Texts:
    """A cache of texts by the number of their content; the latest are kept."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, str]] = {}
        self._bytes = 0
        self._lock = Lock()

    def get(self, row: FileRow) -> str | None:
        """The text, if it is cached at the length in the row."""
        found = self._kept.get(row.number)
        return found[1] if found is not None and found[0] == row.size else None

    def keep(self, row: FileRow, text: str) -> None:
        """Cache a text, and drop the oldest ones."""
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
        """Drop all texts: numbers begin again."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0
