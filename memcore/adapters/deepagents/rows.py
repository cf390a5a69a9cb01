"""The rows behind a namespace of files: their keys, and what their values say."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Self

from memcore.limits import KV_KEY_BYTES_MAX

__all__ = [
    "FILES",
    "HEAD",
    "LONG_FILES",
    "Change",
    "FileRow",
    "Head",
    "encoding_of",
    "file_key",
    "part_key",
]

HEAD: Final = "g"
FILES: Final = "f"
LONG_FILES: Final = "l"
_RECENT_CHANGES: Final = 8
"""Changes that the head tells; whoever missed more reads all file rows."""
_RECENT_PATH_CHARS: Final = 256
_BASE64_GROUP: Final = 3


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
    """What is known of a file without reading it."""

    number: int
    parts: int
    size: int
    """Bytes of the content, those that base64 stands for if it is binary."""
    tail: int
    """Bytes of its last part."""
    encoding: str
    created_at: str | None
    modified_at: str | None

    @property
    def told_size(self) -> int:
        """The size as DeepAgents tells it: of the text, which is base64 for a binary file."""
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
        """The row that ``packed`` made."""
        return cls(*packed[:7])


Change = tuple[str, FileRow | None] | None
"""A file's new row; with None in its place, the path and all below it are gone; None: not told."""


@dataclass(frozen=True, slots=True)
class Head:
    """How far a namespace has come."""

    life: str
    """Random; another one if the namespace was cleared and began again."""
    changes: int
    """How many there were."""
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
        """The changes that came after an earlier head; None if they cannot be told."""
        missed = self.changes - earlier.changes
        if self.life != earlier.life or missed > len(self.recent):
            return None
        found = self.recent[len(self.recent) - missed :]
        if None in found:
            return None
        return [(path, None if row is None else FileRow.unpack(row)) for path, row in found]

    def packed(self) -> list[Any]:
        """The head as JSON."""
        return [self.life, self.changes, self.numbers, self.recent]

    @classmethod
    def unpack(cls, packed: list[Any]) -> Self:
        """The head that ``packed`` made."""
        life, changes, numbers, recent = packed
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
