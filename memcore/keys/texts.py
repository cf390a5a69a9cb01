"""Strings in keys: order and identity are their own; and where scans of them begin and end."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from memcore.errors import CorruptValueError
from memcore.limits import KEY_BYTES_MAX

__all__ = [
    "LONG_NAME",
    "after",
    "behind",
    "malformed",
    "name_key",
    "pack_text",
    "text_fits",
    "text_prefix",
    "unpack_text",
    "unpack_texts",
]

LONG_NAME: Final = b"\xff"  # sorts behind every packed text: UTF-8 never holds FF
_DIGEST_BYTES: Final = 32


def pack_text(text: str) -> bytes:
    """UTF-8 with ``00`` escaped and closed by ``00``: order and identity are the string's own."""
    return text.encode("utf-8", "surrogatepass").replace(b"\x00", b"\x00\xff") + b"\x00"


def unpack_text(packed: bytes) -> str:
    """The string of ``pack_text``.

    Raises:
        CorruptValueError: it is no packed text.
    """
    if packed and packed.find(b"\x00") == len(packed) - 1:  # nothing is escaped, as in most
        try:
            return packed[:-1].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as exc:
            raise malformed(packed) from exc
    texts = unpack_texts(packed)
    if len(texts) != 1:
        raise malformed(packed)
    return texts[0]


def unpack_texts(packed: bytes) -> tuple[str, ...]:
    """The strings of several ``pack_text`` in a row.

    Raises:
        CorruptValueError: they are no packed texts.
    """
    # FE stands in for an escaped 00 while the terminators are split: UTF-8 never holds it, and
    # no packed text starts with FF, so a terminator is never taken for an escape.
    *parts, rest = packed.replace(b"\x00\xff", b"\xfe").split(b"\x00")
    if rest or b"\xfe" in packed:
        raise malformed(packed)
    try:
        return tuple(p.replace(b"\xfe", b"\x00").decode("utf-8", "surrogatepass") for p in parts)
    except UnicodeDecodeError as exc:
        raise malformed(packed) from exc


def text_prefix(text: str) -> bytes:
    """The bytes with which the packed form of every string that starts with ``text`` starts."""
    return pack_text(text)[:-1]


def text_fits(prefix_bytes: int, packed: bytes) -> bool:
    """Whether a packed text can stand behind a prefix of that length in one key."""
    return prefix_bytes + len(packed) <= KEY_BYTES_MAX


def name_key(prefix: bytes, *names: str) -> bytes:
    """A key for any names of any length.

    Names that do not fit a key are represented by ``FF`` and a 32-byte BLAKE2b digest of their
    packed form; the value behind the key holds the full names and the reader compares them.
    """
    packed = b"".join(map(pack_text, names))
    if text_fits(len(prefix), packed):
        return prefix + packed
    return prefix + LONG_NAME + blake2b(packed, digest_size=_DIGEST_BYTES).digest()


def after(prefix: bytes) -> bytes:
    """The first key behind all keys that start with ``prefix`` (``prefix`` holds a byte < FF)."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def behind(key: bytes) -> bytes:
    """The first key behind ``key`` itself: where a scan goes on.

    Nothing can follow a key of full length but its prefix's end, and one byte more would be no
    legal bound.
    """
    return key + b"\x00" if len(key) < KEY_BYTES_MAX else after(key)


def malformed(key: bytes) -> CorruptValueError:
    """The error for bytes that are no key or name of this package."""
    msg = f"the key or name {key[:80].hex()} is malformed; run 'memcore check'"
    return CorruptValueError(msg, key=key)
