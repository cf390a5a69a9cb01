"""Rows of a scope, and those that belong to none."""

from __future__ import annotations

from memcore.keys.kinds import Kind
from memcore.keys.numbers import KIND_U64_2, U32, U64

__all__ = [
    "blob_chunk",
    "counter",
    "expiry_row",
    "kv_prefix",
    "removal_row",
    "scoped",
    "split_expiry_row",
    "split_removal_row",
    "split_scoped",
]


def scoped(kind: int, scope: int, *parts: bytes) -> bytes:
    """``kind | scope u64 | parts``: every row that belongs to one scope is made here."""
    return b"".join((bytes((kind,)), U64.pack(scope), *parts))


def split_scoped(key: bytes) -> tuple[int, bytes]:
    """``(scope, parts)`` of a key that ``scoped`` made."""
    return int.from_bytes(key[1:9], "big"), key[9:]


def counter(which: int) -> bytes:
    """``01 | which u8``."""
    return bytes((Kind.COUNTER, which))


def blob_chunk(scope: int, slot: bytes, number: int) -> bytes:
    """``07 | scope u64 | slot | number u32``; ``slot`` is a blob's digest and disambiguator."""
    return scoped(Kind.BLOB_CHUNK, scope, slot, U32.pack(number))


def kv_prefix(scope: int, namespace: int) -> bytes:
    """``0B | scope u64 | namespace u64``: the packed key of an entry follows."""
    return KIND_U64_2.pack(Kind.KV, scope, namespace)


def expiry_row(expires_ms: int, key: bytes) -> bytes:
    """``0C | expires_ms u64 | the full key of the row that expires``."""
    return b"".join((bytes((Kind.EXPIRY,)), U64.pack(expires_ms), key))


def split_expiry_row(row: bytes) -> tuple[int, bytes]:
    """``(expires_ms, full key)`` of an expiry row."""
    return int.from_bytes(row[1:9], "big"), row[9:]


def removal_row(prefix: bytes) -> bytes:
    """``0D | scope u64 | kind u8 | rest``: the rows under ``kind | scope | rest`` are to go."""
    return b"".join((bytes((Kind.REMOVAL,)), prefix[1:9], prefix[:1], prefix[9:]))


def split_removal_row(row: bytes) -> bytes:
    """The prefix that ``removal_row`` was given."""
    return b"".join((row[9:10], row[1:9], row[10:]))
