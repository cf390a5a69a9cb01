"""The format record: what a file is, who may read it and in which mode it is written."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from memcore.errors import CorruptStoreError, StoreFormatError
from memcore.limits import FORMAT_MAGIC, FORMAT_OLDEST, FORMAT_VERSION

__all__ = [
    "AUDITED",
    "DEMANDING",
    "DURABILITIES",
    "ENCRYPTED",
    "FORMAT_KEY",
    "GRAPH_ROWS",
    "REDO_KEY",
    "Format",
]

FORMAT_KEY: Final = b"\x00format"
REDO_KEY: Final = b"\x00redo"
DURABILITIES: Final = ("full", "relaxed", "none")
"""Modes that this version can write; their codes are ``_CODES``."""

_CODES: Final = {"full": 1, "none": 2, "relaxed": 3}
_NAMES: Final = {code: name for name, code in _CODES.items()}
ENCRYPTED: Final = 1
"""Feature: contents are encrypted."""
AUDITED: Final = 2
"""Feature: every write is noted in an audit chain: whoever writes without its key breaks it."""
GRAPH_ROWS: Final = 4
"""Feature: rows of graph threads may carry stamps, and parts may be runs of atoms."""
DEMANDING: Final = 8
"""Feature: what is stored is redacted or judged first, as a row says: nobody writes past it."""
_FEATURES_KNOWN: Final = ENCRYPTED | AUDITED | GRAPH_ROWS | DEMANDING
_BODY = Struct("<8sHHQB3x16sQ")
_CHECK = Struct("<Q")


class Format(NamedTuple):
    """The record's fields. ``features`` are bits that a reader must know or refuse."""

    version: int
    reader_version: int
    features: int
    durability: str
    seed: bytes
    created_ms: int

    @classmethod
    def new(cls, *, durability: str, seed: bytes, created_ms: int, features: int = 0) -> Format:
        """The record of a file that is made now."""
        return cls(FORMAT_VERSION, FORMAT_VERSION, features, durability, seed, created_ms)

    def pack(self) -> bytes:
        """The sealed record."""
        body = _BODY.pack(
            FORMAT_MAGIC, self.version, self.reader_version, self.features,
            _CODES[self.durability], self.seed, self.created_ms,
        )  # fmt: skip
        return body + _CHECK.pack(xxh3_64_intdigest(body))

    @classmethod
    def unpack(cls, row: bytes | None, path: str, *, oldest: int = FORMAT_OLDEST) -> Format:
        """The record of ``row``, or why this version must not touch the file."""
        if row is None:
            raise StoreFormatError(f"{path}: is an LMDB file, but not a memcore store")
        if row[: len(FORMAT_MAGIC)] != FORMAT_MAGIC:
            raise StoreFormatError(f"{path}: its format record is not memcore's")
        # A newer record may be longer; the head is fixed for ever so that this can be said.
        if len(row) < _BODY.size + _CHECK.size:
            raise CorruptStoreError(f"{path}: its format record is cut to {len(row)} bytes")
        _, version, reader, features, code, seed, created_ms = _BODY.unpack_from(row)
        if reader > FORMAT_VERSION:
            raise StoreFormatError(
                f"{path}: has format {version}, which needs a memcore that reads format {reader};"
                f" this one reads up to {FORMAT_VERSION}: upgrade memcore"
            )
        if version < oldest:
            raise StoreFormatError(
                f"{path}: has format {version}, of an earlier memcore; run 'memcore migrate' on"
                " it, which keeps the old file"
            )
        if features & ~_FEATURES_KNOWN:
            raise StoreFormatError(
                f"{path}: uses features {features & ~_FEATURES_KNOWN:#x} that this memcore does"
                " not know: upgrade memcore"
            )
        body, check = row[: -_CHECK.size], row[-_CHECK.size :]
        if xxh3_64_intdigest(body) != _CHECK.unpack(check)[0]:
            raise CorruptStoreError(f"{path}: its format record fails its checksum")
        if code not in _NAMES:
            raise StoreFormatError(f"{path}: has durability mode {code}: upgrade memcore")
        return cls(version, reader, features, _NAMES[code], seed, created_ms)
