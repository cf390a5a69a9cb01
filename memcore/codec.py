"""Values to bytes and back: header, checksum, body; and lossless JSON.

A sealed value is ``format u8 | flags u8 | checksum u64 LE | body``. The checksum is xxh3_64 over
``key length u16 LE | format | flags | key | body``: with the key inside, a row that LMDB serves
from a stale or misdirected page is found out as surely as a flipped bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isfinite
from struct import Struct
from typing import Any, Final

import orjson
from xxhash import xxh3_64_intdigest

from memcore.errors import CorruptValueError
from memcore.limits import VALUE_FORMAT

__all__ = ["check_finite", "decode_json", "encode_json", "open_value", "seal_value"]

_HEADER = Struct("<BBQ")
_MARK = Struct("<HBB")  # keys reach 511 bytes, so their length needs two bytes
HEADER_BYTES: Final = _HEADER.size

FLAG_PLAIN_JSON: Final = 0x01
"""The JSON was written by the standard library (big integers, lone surrogates, deep nesting)."""
FLAG_BLOB: Final = 0x02
"""The body holds a blob reference in place of the encoded item."""
FLAG_BYTES: Final = 0x04
"""The body is the caller's own bytes, not JSON (key/value rows)."""
FLAG_EXPIRES: Final = 0x08
"""The body starts with the expiry time in milliseconds, u64 big-endian (key/value rows)."""

JSON_DEPTH_MAX: Final = 512
"""Deepest nesting of a value: about half of CPython's default recursion limit, so that what was
written from a shallow call stack can be read back from a deep one."""
_ORJSON_OPTIONS: Final = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)


def seal_value(key: bytes, body: bytes, flags: int = 0) -> bytes:
    """The stored form of ``body`` under ``key``."""
    mark = _MARK.pack(len(key), VALUE_FORMAT, flags)
    check = xxh3_64_intdigest(b"".join((mark, key, body)))
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
            mark = _MARK.pack(len(key), written, flags)
            if check == xxh3_64_intdigest(b"".join((mark, key, body))):
                return flags, body
    msg = (
        f"the value under key {key.hex()} fails its checksum ({len(value)} bytes): it was damaged "
        "on the device; run 'memcore check' to list all damaged rows and restore from a backup"
    )
    raise CorruptValueError(msg, key=key)


def check_finite(value: Any) -> None:
    """Refuse what JSON cannot hold without loss.

    JSON is None, bool, int, finite float, str, list (a tuple is written as one) and dict with str
    keys; subclasses count as what they derive from. Depth-first without recursion: a circular
    structure runs into the depth bound.

    Raises:
        TypeError: a value or key is not JSON.
        ValueError: NaN or infinity, or nesting beyond ``JSON_DEPTH_MAX``.
    """
    levels: list[Iterator[Any]] = [iter((value,))]
    while levels:
        for child in levels[-1]:
            if child is None or isinstance(child, (str, int)):
                continue
            if isinstance(child, float):
                if not isfinite(child):
                    msg = f"{child!r} is not JSON: store None or a string in its place"
                    raise ValueError(msg)
                continue
            if len(levels) > JSON_DEPTH_MAX:
                msg = f"the value is circular or nested deeper than {JSON_DEPTH_MAX} levels"
                raise ValueError(msg)
            levels.append(_children(child))
            break
        else:
            levels.pop()


def _children(container: Any) -> Iterator[Any]:
    if isinstance(container, dict):
        for key in container:
            if not isinstance(key, str):
                msg = f"the dict key {key!r:.100} is not a string: JSON has string keys only"
                raise TypeError(msg)
        return iter(container.values())
    if isinstance(container, (list, tuple)):
        return iter(container)
    msg = (
        f"a {type(container).__name__} is not JSON: expected None, bool, int, float, str, list or "
        "dict; convert it before storing"
    )
    raise TypeError(msg)


def encode_json(value: Any) -> tuple[bytes, int]:
    """Compact JSON and the flags to decode it with.

    orjson writes what it can represent without loss; where it refuses (integers beyond 64 bits,
    lone surrogates, nesting beyond its limit, subclasses) the standard library writes. Its text
    keeps lone surrogates as they are: written as escapes, two of them in a row would come back
    as one character.

    Raises:
        TypeError: a value or key is not JSON.
        ValueError: NaN or infinity, an integer beyond the interpreter's digit limit, or nesting
            beyond ``JSON_DEPTH_MAX`` (a circular structure, too).
        RecursionError: the call stack is too deep for nesting that would be legal.
    """
    check_finite(value)
    try:
        return orjson.dumps(value, option=_ORJSON_OPTIONS), 0
    except TypeError:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass"), FLAG_PLAIN_JSON


def decode_json(body: bytes, flags: int) -> Any:
    """The value that ``encode_json`` wrote."""
    if flags & FLAG_PLAIN_JSON:
        return json.loads(body.decode("utf-8", "surrogatepass"))
    return orjson.loads(body)
