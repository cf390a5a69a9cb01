"""What a caller may pass: keys, bounds, counts, times to live, values."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

from memcore import keys
from memcore.blobs import BlobRef
from memcore.codec import FLAG_BYTES, encode_json
from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.limits import KV_KEY_BYTES_MAX, KV_VALUE_BYTES_MAX

__all__ = ["bounds", "checked_content", "checked_count", "checked_ttl_ms", "encoded", "packed_key"]

_TTL_SECONDS_MAX: Final = 10**15
"""Thirty million years: the sum with any clock stays far below 64 bits of milliseconds."""


def packed_key(key: object) -> bytes:
    """The key as it is compared and stored.

    Raises:
        InvalidOptionError: no string, empty or too long.
    """
    if not isinstance(key, str):
        msg = f"a key must be a str, got {type(key).__name__}"
        raise InvalidOptionError(msg)
    if not key:
        msg = "the key is empty: expected at least one character"
        raise InvalidOptionError(msg)
    packed = keys.pack_text(key)
    if len(packed) > KV_KEY_BYTES_MAX:
        msg = (
            f"the key {key[:40]!r}... takes {len(packed)} bytes: expected at most "
            f"{KV_KEY_BYTES_MAX}; use a digest of it as the key"
        )
        raise InvalidOptionError(msg)
    return packed


def _bound(text: object, what: str) -> bytes:
    if not isinstance(text, str):
        msg = f"{what} must be a str, got {type(text).__name__}"
        raise InvalidOptionError(msg)
    # One byte more than any legal key keeps the order to all of them and fits the store.
    return keys.text_prefix(text)[: KV_KEY_BYTES_MAX + 1]


def bounds(start: object, stop: object, prefix: object = None) -> tuple[bytes, bytes | None]:
    """``(low, high)`` as packed keys are compared, ``high`` None for no end.

    Raises:
        InvalidOptionError: a bound is no string.
    """
    # A packed key ends in 00, so the bare prefix of a bound stands before the key itself and
    # behind every smaller key.
    low = _bound(start, "start")
    high = None if stop is None else _bound(stop, "stop")
    if prefix is not None:
        begin = _bound(prefix, "prefix")
        if begin:
            low, end = max(low, begin), keys.after(begin)
            high = end if high is None else min(high, end)
    return low, high


def checked_count(count: object, what: str) -> int | None:
    """A count or None.

    Raises:
        InvalidOptionError: no int of at least 0.
    """
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        msg = f"{what} must be None or an int of at least 0, got {_shown(count)}"
        raise InvalidOptionError(msg)
    return count


def checked_content(content: object) -> bytes | BlobRef | None:
    """A content as bytes, one that was staged, or None.

    Raises:
        InvalidOptionError: none of these.
    """
    if content is None or isinstance(content, bytes | BlobRef):
        return content
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    msg = f"a content is bytes, got {type(content).__name__}"
    raise InvalidOptionError(msg)


def checked_ttl_ms(ttl_seconds: Any) -> int | None:
    """A time to live in whole milliseconds, at least 1, or None.

    Raises:
        InvalidOptionError: no number, not above 0, or beyond what a row can hold.
    """
    if ttl_seconds is None:
        return None
    is_number = isinstance(ttl_seconds, (int, float)) and not isinstance(ttl_seconds, bool)
    # NaN compares false; an int beyond the range of a float is compared without conversion.
    if is_number and 0 < ttl_seconds <= _TTL_SECONDS_MAX:
        ttl_ms: int = ceil(ttl_seconds * 1000)
        return ttl_ms
    msg = (
        f"ttl_seconds must be a number of seconds above 0 and up to {_TTL_SECONDS_MAX}, got "
        f"{type(ttl_seconds).__name__} {_shown(ttl_seconds)}; leave it out to keep the entry"
    )
    raise InvalidOptionError(msg)


def _shown(value: object) -> str:
    try:
        return f"{value!r:.100}"
    except ValueError:  # an int beyond the interpreter's digit limit
        return "(too long to show)"


def encoded(value: object) -> tuple[int, bytes]:
    """``(flags, payload)`` of a value.

    Raises:
        InvalidItemError: neither bytes nor JSON, or too large.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        flags, payload = FLAG_BYTES, bytes(value)
    else:
        try:
            payload, flags = encode_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            msg = f"the value is neither bytes nor JSON: {error}"
            raise InvalidItemError(msg) from error
    if len(payload) > KV_VALUE_BYTES_MAX:
        msg = (
            f"the value takes {len(payload)} bytes: expected at most {KV_VALUE_BYTES_MAX}; put it "
            "into scope.blobs and store its address"
        )
        raise InvalidItemError(msg)
    return flags, payload
