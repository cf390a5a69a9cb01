"""Values to bytes and back: header, checksum, body; and lossless JSON.

A sealed value is ``format u8 | flags u8 | checksum u64 LE | body``. The checksum is xxh3_64 over
``key length u8 | key | format | flags | body``: with the key inside, a row that LMDB serves from a
stale or misdirected page is found out as surely as a flipped bit.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Any, Final

import orjson
from xxhash import xxh3_64_intdigest

from memcore.errors import CorruptValueError
from memcore.limits import VALUE_FORMAT

__all__ = ["decode_json", "encode_json", "open_value", "seal_value"]

_HEADER = Struct("<BBQ")
HEADER_BYTES: Final = _HEADER.size

FLAG_PLAIN_JSON: Final = 0x01
"""The JSON was written by the standard library (big integers, lone surrogates, deep nesting)."""
FLAG_BLOB: Final = 0x02
"""The body holds a blob reference in place of the encoded item."""


def seal_value(key: bytes, body: bytes, flags: int = 0) -> bytes:
    """The stored form of ``body`` under ``key``."""
    mark = bytes((VALUE_FORMAT, flags))
    check = xxh3_64_intdigest(b"".join((bytes((len(key),)), key, mark, body)))
    return _HEADER.pack(VALUE_FORMAT, flags, check) + body


def open_value(key: bytes, value: bytes) -> tuple[int, bytes]:
    """``(flags, body)`` of a sealed value.

    Raises:
        CorruptValueError: the value is too short, of an unknown format or fails its checksum.
    """
    if len(value) >= HEADER_BYTES:
        written, flags, check = _HEADER.unpack_from(value)
        body = value[HEADER_BYTES:]
        if written == VALUE_FORMAT:
            mark = bytes((written, flags))
            if check == xxh3_64_intdigest(b"".join((bytes((len(key),)), key, mark, body))):
                return flags, body
    msg = (
        f"the value under key {key.hex()} fails its checksum ({len(value)} bytes): it was damaged "
        "on the device; run 'memcore check' to list all damaged rows and restore from a backup"
    )
    raise CorruptValueError(msg, key=key)


def encode_json(value: Any) -> tuple[bytes, int]:
    """Compact JSON and the flags to decode it with.

    orjson writes what it can represent without loss; where it refuses (integers beyond 64 bits,
    lone surrogates, nesting beyond its limit) the standard library writes ASCII JSON.

    Raises:
        TypeError: a value or key is not JSON.
        ValueError: NaN or infinity, or a circular structure.
        RecursionError: nesting beyond the interpreter's limit.
    """
    try:
        return orjson.dumps(value), 0
    except TypeError:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        return text.encode("ascii"), FLAG_PLAIN_JSON


def decode_json(body: bytes, flags: int) -> Any:
    """The value that ``encode_json`` wrote."""
    if flags & FLAG_PLAIN_JSON:
        return json.loads(body)
    return orjson.loads(body)
