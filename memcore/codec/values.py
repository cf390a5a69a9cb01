"""Encoding of values: header, checksum, body; lossless JSON; the clock for rows.

A sealed value is ``format u8 | flags u8 | checksum u64 BE | body``. The checksum is xxh3_64 over
``key length u16 LE | format | flags | key | body``: since it covers the key, a row that LMDB serves
from a stale or misdirected page is detected as reliably as a flipped bit. In an encrypted database
the store encrypts a sealed value and seals it again, with another format (``store/encryption.py``).
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from struct import error as StructError  # noqa: N812 - a class
from typing import Any, Final

import orjson

from memcore._fast import clock_us, is_sealed, scan_json, seal_value
from memcore.errors import CorruptValueError, MemcoreError, StorageError, TamperedError
from memcore.limits import ENCRYPTED_FORMAT, JSON_DEPTH_MAX, VALUE_FORMAT

__all__ = [
    "check_json",
    "clock_ms",
    "clock_us",
    "decode_json",
    "decoding",
    "encode_json",
    "misset_clock",
    "named",
    "open_number",
    "open_value",
    "plain_json",
    "seal_value",
]


HEADER_BYTES: Final = 10
_ENCRYPTED_HEAD: Final = bytes((ENCRYPTED_FORMAT, 0))
CLEAR_FORMAT: Final = 0
"""Placeholder for the format of a value that should be encrypted and is not."""
_CLEAR_HEAD: Final = bytes((CLEAR_FORMAT,))
_PLAIN_HEAD: Final = bytes((VALUE_FORMAT,))

FLAG_PLAIN_JSON: Final = 0x01
"""The JSON was written by the standard library (big integers, lone surrogates, deep nesting)."""
FLAG_BLOB: Final = 0x02
"""The body has a blob reference in place of the encoded item."""
FLAG_BYTES: Final = 0x04
"""The body is the caller's own bytes, not JSON (key/value rows)."""
FLAG_EXPIRES: Final = 0x08
"""The body starts with the expiry time in milliseconds, u64 big-endian (key/value rows)."""
FLAG_REWRITTEN: Final = 0x10
"""The row replaces another one, whose checksum, u64, precedes the body."""
_ORIGIN_BYTES: Final = 8
_REWRITTEN_BYTES: Final = HEADER_BYTES + _ORIGIN_BYTES
_NUMBER_BYTES: Final = 8
_NUMBER_END: Final = 2**63

_PROBLEMS: Final = {
    1: "is NaN or infinity, which JSON does not have",
    2: "is a key that is no string",
    3: "has no JSON equivalent",
    4: "nested deeper than 512 levels",
    5: "circular, or of more than 16 million values",
    6: "is an integer of more than 4,300 digits",
}
_TOO_DEEP: Final = 4
_UNPLACED: Final = (_TOO_DEEP, 5)
_PATH_DEPTH_MAX: Final = 32
ORJSON_OPTIONS: Final = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)


def seal_encrypted(key: bytes, *body: bytes) -> bytes:
    """Seal an encrypted body, given in parts."""
    return seal_value(key, b"".join(body), value_format=ENCRYPTED_FORMAT)


def checksum_of(value: bytes) -> bytes:
    """Return a sealed value's eight checksum bytes: the hash of the row as first stored."""
    if value[1:2] and value[1] & FLAG_REWRITTEN:
        return value[HEADER_BYTES:_REWRITTEN_BYTES]
    return value[2:HEADER_BYTES]


DAMAGE_ADVICE: Final = "; 'memcore check --repair-plan' says what is and what to do about it"
"""End of a message about damage, which a command that says just that leaves out."""


def body_of(value: bytes) -> bytes:
    """Return the body of a verified value: ``open_value`` without the verification."""
    if value[1] & FLAG_REWRITTEN:
        return value[_REWRITTEN_BYTES:]
    return value[HEADER_BYTES:]


def seal_rewritten(key: bytes, body: bytes, flags: int, origin: bytes) -> bytes:
    """Seal a body that replaces another one, whose checksum was ``origin``."""
    return seal_value(key, origin + body, flags | FLAG_REWRITTEN)


def open_value(key: bytes, value: bytes) -> tuple[int, bytes]:
    """Verify a sealed value and return its ``(flags, body)``.

    Raises:
        CorruptValueError: the value is too short, has an unknown format or fails its checksum.
        TamperedError: it does not decrypt, or is in clear and should be encrypted.
    """
    if value[:1] == _PLAIN_HEAD and is_sealed(key, value):
        flags = value[1]
        return flags, value[_REWRITTEN_BYTES if flags & FLAG_REWRITTEN else HEADER_BYTES :]
    if value[:1] == _CLEAR_HEAD or is_encrypted(key, value):
        raise _tampered(key, value[0])
    msg = (
        f"the value under key {key.hex()} fails its checksum ({len(value)} bytes): the file is "
        f"damaged there{DAMAGE_ADVICE}"
    )
    raise CorruptValueError(msg, key=key)


def is_proven(key: bytes, value: bytes) -> bool:
    """Return True if ``value`` was sealed under ``key``: its checksum matches."""
    return value[:1] == _PLAIN_HEAD and is_sealed(key, value)


def _tampered(key: bytes, what: int) -> TamperedError:
    msg = (
        f"the value under key {key.hex()} stands in clear in an encrypted database: somebody wrote "
        "it without the key"
        if what == CLEAR_FORMAT
        else f"the value under key {key.hex()} does not decrypt: it was changed or moved, its user "
        "was erased, or the key file is older than the database"
    )
    return TamperedError(msg, key=key)


def is_encrypted(key: bytes, value: bytes) -> bool:
    """Return True if ``value`` was encrypted and then sealed under ``key``."""
    return value[:2] == _ENCRYPTED_HEAD and is_sealed(key, value)


CLOCK_US: Final = 2**32 * 1_000_000
"""First time, in microseconds since 1970, that no row can hold."""
_MISREAD: Final = (
    ArithmeticError, AttributeError, LookupError, RecursionError, StructError, TypeError,
    ValueError,
)  # fmt: skip


def misset_clock(now_ns: int) -> StorageError:
    """Return the error of ``clock_us`` for a time that no row can hold."""
    msg = (
        f"the system's clock is {now_ns // 1_000_000_000} seconds from 1970: times from 1970 to "
        "2106 can be stored; set the clock"
    )
    return StorageError(msg)


def clock_ms() -> int:
    """Return the system time in milliseconds since 1970; raises as ``clock_us``."""
    return clock_us() // 1000


class decoding:  # noqa: N801 - used as a statement: ``with decoding(key, "lease row"):``
    """Context for parsing a stored row: any parse error becomes a CorruptValueError that names it.

    A checksum proves that a row is intact, not that memcore wrote it. The block must contain only
    code that reads the bytes: errors from a caller's own code are not to be translated.
    """

    __slots__ = ("_key", "_what")

    def __init__(self, key: bytes, what: str) -> None:
        self._key = key
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            return
        nameless = isinstance(error, CorruptValueError) and not error.key
        if nameless or (isinstance(error, _MISREAD) and not isinstance(error, MemcoreError)):
            named = f" under key {self._key.hex()}" if self._key else ""
            msg = f"the {self._what}{named} is malformed; run 'memcore check'"
            raise CorruptValueError(msg, key=self._key) from error


def named(error: CorruptValueError, key: bytes) -> CorruptValueError:
    """Add the key of the affected row to an error that has none; returns the error."""
    error.key = error.key or key
    return error


def open_number(key: bytes, value: bytes) -> int:
    """Return the number in a row, u64 big-endian.

    Raises:
        CorruptValueError: the row is damaged, or the number is out of range.
    """
    body = open_value(key, value)[1]
    number = int.from_bytes(body, "big")
    if len(body) != _NUMBER_BYTES or number >= _NUMBER_END:
        msg = f"the number under key {key.hex()} is malformed; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    return number


def check_json(value: Any) -> None:
    """Reject a value that JSON cannot represent losslessly.

    JSON is None, bool, int, finite float, str, list (a tuple is written as one) and dict with str
    keys; subclasses count as their base class.

    Raises:
        ValueError: ``value`` contains anything else, is nested deeper than 512 levels, or is
            circular; the message has the path.
    """
    code = scan_json(value)
    if code:
        msg = f"{_path_to(value, code)} {_PROBLEMS[code]}".strip()
        raise ValueError(msg)


def _path_to(value: Any, code: int, depth: int = 0) -> str:
    """Return the path of the first offending value, such as ``.content[0].text``."""
    if code in _UNPLACED or depth > _PATH_DEPTH_MAX:
        return ""
    if isinstance(value, dict):
        for key, entry in value.items():
            if not isinstance(key, str):
                return f"[{key!r:.40}]"
            if scan_json(entry):
                return f".{key}{_path_to(entry, code, depth + 1)}"
    if isinstance(value, list | tuple):
        for at, entry in enumerate(value):
            if scan_json(entry):
                return f"[{at}]{_path_to(entry, code, depth + 1)}"
    return f" ({type(value).__name__})"


def encode_json(value: Any) -> tuple[bytes, int]:
    """Encode a value as compact JSON; returns it with the flags to decode it.

    orjson encodes what it can represent losslessly; where it refuses (integers beyond 64 bits,
    lone surrogates, nesting beyond its limit, subclasses) the standard library does. Its output
    keeps lone surrogates unescaped: as escapes, two in a row would be decoded as one character.

    Raises:
        ValueError: ``check_json`` rejects the value, or an integer exceeds the interpreter's digit
            limit.
        RecursionError: the call stack is too deep for nesting that would be valid.
    """
    check_json(value)
    try:
        return orjson.dumps(value, option=ORJSON_OPTIONS), 0
    except TypeError:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass"), FLAG_PLAIN_JSON


def plain_json(value: Any) -> Any:
    """Return a copy as it will be read back: of built-in types only.

    Raises:
        ValueError, RecursionError: as ``encode_json``.
    """
    return decode_json(*encode_json(value))


_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.|\\\Z)*(?:"|\Z)', re.DOTALL)
"""A string, or an unterminated one, which would otherwise be retried from each quote in it."""


def _depth_of(body: bytes) -> int:
    """Return the nesting depth of JSON, computed without parsing it."""
    signs = _STRING.sub(b"", body)
    return max(accumulate((each in b"[{") - (each in b"]}") for each in signs), default=0)


def decode_json(body: bytes, flags: int) -> Any:
    """Decode the output of ``encode_json``.

    Raises:
        CorruptValueError: it is not JSON, or is nested deeper than ``encode_json`` allows; only a
            row not written by memcore can hold that.
        RecursionError: the call stack is too deep for nesting that is valid.
    """
    try:
        if flags & FLAG_PLAIN_JSON:
            found = json.loads(body.decode("utf-8", "surrogatepass"))
        else:
            found = orjson.loads(body)
    except (ValueError, RecursionError) as exc:
        if isinstance(exc, RecursionError) and _depth_of(body) <= JSON_DEPTH_MAX:
            raise
        msg = f"a value of {len(body)} bytes is no JSON ({exc}); run 'memcore check'"
        raise CorruptValueError(msg, key=b"") from exc
    if len(body) > 2 * JSON_DEPTH_MAX and body.count(b"[") + body.count(b"{") > JSON_DEPTH_MAX:
        code = scan_json(found)
        if code == _TOO_DEEP:
            msg = f"a value of {len(body)} bytes is {_PROBLEMS[code]}; run 'memcore check'"
            raise CorruptValueError(msg, key=b"")
    return found
