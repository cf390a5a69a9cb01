"""Keys and values of the rows in which items lie: the only place that knows their text and bytes.

A label's text is the label (its NULs escaped) and a terminator, so no text of labels is a part of
another label: the rows of a namespace, and of all namespaces below it, are one exact range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Any, Final, Self

from memcore.codec import decode_json, encode_json
from memcore.errors import InvalidItemError
from memcore.keys import pack_text
from memcore.limits import KV_KEY_BYTES_MAX, KV_VALUE_BYTES_MAX

__all__ = ["ItemRow", "Labels", "address", "exact_range", "labels_text", "named", "place", "split"]

Labels = tuple[str, ...]

_SURELY_FITS_CHARS: Final = (KV_KEY_BYTES_MAX - 1) // 4
_BORDER: Final = "\0\0"  # between a namespace and a key: no text of a label begins so
_HEADER: Final = Struct(">BBQQQQII")
_UPDATED: Final = slice(10, 18)
_EXPIRES: Final = slice(26, 34)
_LENGTHS: Final = Struct(">II")
_FORMAT: Final = 1
_PLACE_DIGITS: Final = 12


def labels_text(labels: Labels) -> str:
    """The text of a namespace: a prefix of those of the namespaces below it, and of no other."""
    return "".join([label.replace("\0", "\0\2") + "\0\1" for label in labels])


def split(text: str) -> Labels:
    """The labels of ``labels_text``."""
    return tuple(label.replace("\0\2", "\0") for label in text.split("\0\1")[:-1])


def address(labels: Labels, key: str) -> str:
    """One text for a namespace and a key of it; no other pair has it."""
    return f"{labels_text(labels)}{_BORDER}{key}"


def exact_range(kind: str, labels: Labels) -> tuple[str, str]:
    """Where ``named(kind, address(labels, ...))`` begin and end: this namespace, none below it."""
    start = kind + labels_text(labels) + _BORDER
    return start, start[:-1] + "\1"


def named(kind: str, text: str) -> str:
    """The key of a row that is found by a text of any length; ``kind`` is an upper-case letter.

    A text that does not fit stands there as a digest behind the letter in lower case: the value
    holds it in full, and whoever reads it compares.
    """
    key = kind + text
    if len(key) <= _SURELY_FITS_CHARS or len(pack_text(key)) <= KV_KEY_BYTES_MAX:
        return key
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
    return kind.lower() + digest


def place(namespace: int, number: int) -> str:
    """Where an item lies, in the order in which namespaces and items came into being."""
    return f"{namespace:0{_PLACE_DIGITS}x}{number:0{_PLACE_DIGITS}x}"


@dataclass(slots=True)
class ItemRow:
    """An item as it is stored: ``labels`` and ``key`` in full, the value as JSON."""

    labels: str
    """As ``labels_text``."""
    key: str
    created_us: int
    updated_us: int
    ttl_ms: int
    expires_ms: int
    """0: never."""
    flags: int
    """The codec's, of ``json``."""
    json: bytes

    @classmethod
    def of(cls, namespace: Labels, key: str, value: Any, *, ttl_ms: int | None) -> Self:
        """A row of a new value; the times come when it is written.

        Raises:
            InvalidItemError: the value is no mapping of strings to JSON, or too large.
        """
        where = f"the value of {key[:80]!r} in {namespace!r:.200}"
        if not isinstance(value, Mapping):
            msg = f"{where}: expected a mapping, got {type(value).__name__}"
            raise InvalidItemError(msg)
        try:
            json, flags = encode_json(dict(value))
        except (TypeError, ValueError, RecursionError) as exc:
            msg = f"{where} is no JSON: {exc}"
            raise InvalidItemError(msg) from exc
        expires = 0 if ttl_ms is None else 1  # the time itself comes with the clock
        row = cls(labels_text(namespace), key, 0, 0, ttl_ms or 0, expires, flags, json)
        size = len(row.pack())
        if size > KV_VALUE_BYTES_MAX:
            msg = (
                f"{where} takes {size} bytes: expected at most {KV_VALUE_BYTES_MAX}; keep large "
                "content in blobs or files and store its address"
            )
            raise InvalidItemError(msg)
        return row

    def pack(self) -> bytes:
        """The bytes of the row."""
        labels = self.labels.encode("utf-8", "surrogatepass")
        key = self.key.encode("utf-8", "surrogatepass")
        times = (self.created_us, self.updated_us, self.ttl_ms, self.expires_ms)
        head = _HEADER.pack(_FORMAT, self.flags, *times, len(labels), len(key))
        return b"".join((head, labels, key, self.json))

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        """The row of ``pack``."""
        _, flags, created, updated, ttl, expires, labels, key = _HEADER.unpack_from(raw)
        begin = _HEADER.size + labels
        end = begin + key
        return cls(
            raw[_HEADER.size : begin].decode("utf-8", "surrogatepass"),
            raw[begin:end].decode("utf-8", "surrogatepass"),
            created, updated, ttl, expires, flags, raw[end:],
        )  # fmt: skip

    @staticmethod
    def is_expired(raw: bytes, now_ms: int) -> bool:
        """Whether the time of a packed row has come."""
        return 0 < int.from_bytes(raw[_EXPIRES], "big") <= now_ms

    @staticmethod
    def updated_us_of(raw: bytes) -> int:
        """When a packed row was put last."""
        return int.from_bytes(raw[_UPDATED], "big")

    @staticmethod
    def value_of(raw: bytes) -> dict[str, Any]:
        """The value of a packed row; nothing else of it is looked at."""
        labels, key = _LENGTHS.unpack_from(raw, _EXPIRES.stop)
        found: dict[str, Any] = decode_json(raw[_HEADER.size + labels + key :], raw[1])
        return found

    def value(self) -> dict[str, Any]:
        """The value, a new one at each call."""
        found: dict[str, Any] = decode_json(self.json, self.flags)
        return found
