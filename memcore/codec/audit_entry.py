"""Byte layout of audit entries, and the key that chains them.

``op u8 | flags u8 | low half of its number u32 | time ms u64 | digest of the head 20, if flagged |
body of the operation | MAC 32``. The MAC is HMAC-SHA256 under the audit key over version, file,
scope, session, number, the previous MAC, and all of the entry except its MAC. An entry contains
keys of rows and hashes of their stored values, never content.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import IntEnum
from hashlib import sha256
from hmac import compare_digest
from struct import Struct
from typing import Any, Final, NamedTuple

from memcore.errors import uncopied

__all__ = [
    "AuditEntry",
    "ChainPage",
    "Chainer",
    "Op",
    "digest_of",
    "head_digest_of",
    "unpack_entry",
]


MAC_BYTES: Final = 32
DIGEST_BYTES: Final = 32
HEAD_DIGEST_BYTES: Final = 20
KEY_BYTES_MIN: Final = 32
FIRST_MAC: Final = bytes(MAC_BYTES)
"""MAC before the first entry of a chain."""

_VERSION: Final = b"\x01"
_FRONT = Struct(">BBIQ")
_PLACE = Struct(">QQQ")
_LENGTH = Struct(">H")
_U64 = Struct(">Q")
_LOW: Final = 0xFFFFFFFF
_HAS_HEAD: Final = 1
_BLOCK_BYTES: Final = 64
_GONE: Final = b"\x00"
_STANDS: Final = b"\x01"
_SPAN: Final = b"\x02"


class Op(IntEnum):
    """Kind of an audit entry; each describes the entry's body."""

    PUT = 1
    """A row was written: the digest of its stored value, then its key."""
    DELETE = 2
    """A row was deleted: its key."""
    RANGE = 3
    """The rows from one key up to another were deleted."""
    HEAD = 4
    """The head of the session changed, and no row with it."""
    EVENT = 5
    """An event occurred: its name, and its details in JSON."""
    FORK = 6
    """The chain begins with another's number and MAC: its session was forked from that one's."""
    BEGIN = 7
    """A chain began: of a session or, in the database's chain, of a scope."""
    END = 8
    """A chain ended with this number and MAC: the rows that it covered were deleted."""
    CLOSED = 9
    """The chain ends here: the rows that it covers are being deleted."""
    COVER = 10
    """Digests of rows that are older than the chain."""
    CUT = 11
    """Entries were truncated: the last digests of their rows."""


class ChainPage(NamedTuple):
    """Body of a COVER or CUT entry: the chain continues from the MAC ``resume``."""

    first: int
    """Number of the first entry that it replaces; its own if it replaces none."""
    resume: bytes
    rows: Sequence[tuple[bytes, bytes | None]]
    """Keys of rows with their digests; None: deleted."""
    spans: Sequence[tuple[bytes, bytes]] = ()
    """Ranges of keys that were deleted before any of ``rows`` was written."""


class AuditEntry(NamedTuple):
    """A parsed entry; fields that its operation does not have are empty."""

    op: Op
    low: int
    """Low half of the number that it was made with."""
    time_ms: int
    head: bytes
    """Digest of the session's head after this change; empty if not recorded."""
    said: bytes
    """Body, in the format of the operation."""
    mac: bytes


def digest_of(value: bytes) -> bytes:
    """Return the digest of a row's stored value."""
    return sha256(value).digest()


def head_digest_of(value: bytes) -> bytes:
    """Return the truncated digest of a session's stored head: shorter, and still unforgeable."""
    return sha256(value).digest()[:HEAD_DIGEST_BYTES]


class Chainer:
    """Audit key of one file, with its HMAC state precomputed."""

    __slots__ = ("_file", "_inner", "_outer")
    __reduce_ex__ = uncopied

    def __init__(self, key: bytes, file_id: bytes) -> None:
        block = (sha256(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(
            _BLOCK_BYTES, b"\0"
        )
        self._inner = sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in block))
        self._file = _VERSION + file_id

    def sign(self, message: bytes) -> bytes:
        """Compute HMAC-SHA256 from the prehashed key blocks: a third of ``hmac.digest``'s time."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.digest()

    def seal(self, place: tuple[int, int], number: int, before: bytes, body: bytes) -> bytes:
        """Return the MAC of an entry whose bytes before the MAC are ``body``."""
        return self.sign(b"".join((self._file, _PLACE.pack(*place, number), before, body)))

    def is_sealed(self, place: tuple[int, int], number: int, before: bytes, whole: bytes) -> bool:
        """Return True if an entry's MAC matches its place in the chain."""
        body, mac = whole[:-MAC_BYTES], whole[-MAC_BYTES:]
        return compare_digest(self.seal(place, number, before, body), mac)

    def sign_line(self, text: bytes) -> str:
        """Return the signature that ends an anchor's line, in hex."""
        return self.sign(b"anchor" + self._file + text).hex()


# --- packing -------------------------------------------------------------------------------------


def pack_front(op: Op, number: int, time_ms: int, head: bytes) -> bytes:
    """Pack the beginning of an entry; the body of its operation follows."""
    return _FRONT.pack(op, _HAS_HEAD if head else 0, number & _LOW, time_ms) + head


def pack_range(start: bytes, stop: bytes) -> bytes:
    """Pack the body of a RANGE entry."""
    return _LENGTH.pack(len(start)) + start + stop


def pack_event(what: str, details: dict[str, Any]) -> bytes:
    """Pack the body of an EVENT entry."""
    name = what.encode()
    text = json.dumps(details, separators=(",", ":"), sort_keys=True)
    return _LENGTH.pack(len(name)) + name + text.encode()


def pack_tip(session: int, number: int, mac: bytes) -> bytes:
    """Pack the body of a BEGIN, FORK or END entry: a chain with its last number and MAC."""
    return _U64.pack(session) + _U64.pack(number) + mac


def pack_page(page: ChainPage) -> bytes:
    """Pack the body of a COVER or CUT entry."""
    parts = [_U64.pack(page.first), page.resume]
    for start, stop in page.spans:
        said = pack_range(start, stop)
        parts += (_LENGTH.pack(len(said)), said, _SPAN)
    for rest, digest in page.rows:
        parts += (_LENGTH.pack(len(rest)), rest, _GONE if digest is None else _STANDS + digest)
    return b"".join(parts)


# --- reading -------------------------------------------------------------------------------------


def unpack_entry(body: bytes) -> AuditEntry:
    """Unpack the entry in a row's body.

    Raises:
        ValueError: it is malformed.
    """
    if len(body) < _FRONT.size:
        raise ValueError("too short for an entry of an audit")
    code, flags, low, time_ms = _FRONT.unpack_from(body)
    at = _FRONT.size
    head = body[at : at + HEAD_DIGEST_BYTES] if flags & _HAS_HEAD else b""
    at += len(head)
    if flags & ~_HAS_HEAD or len(body) < at + MAC_BYTES:
        raise ValueError("no entry of an audit")
    return AuditEntry(Op(code), low, time_ms, head, body[at:-MAC_BYTES], body[-MAC_BYTES:])


def unpack_put(said: bytes) -> tuple[bytes, bytes]:
    """Unpack ``(key, digest)`` of a PUT entry."""
    return said[DIGEST_BYTES:], said[:DIGEST_BYTES]


def unpack_range(said: bytes) -> tuple[bytes, bytes]:
    """Unpack ``(start, stop)`` of a RANGE entry.

    Raises:
        ValueError: it is malformed.
    """
    start, at = _part(said, 0)
    return start, said[at:]


def unpack_event(said: bytes) -> tuple[str, dict[str, Any]]:
    """Unpack ``(what, details)`` of an EVENT entry.

    Raises:
        ValueError: it is malformed.
    """
    name, at = _part(said, 0)
    details = json.loads(said[at:])
    if not isinstance(details, dict):
        raise ValueError("an event without details")  # noqa: TRY004 - bytes, not an argument
    return name.decode(), details


def unpack_tip(said: bytes) -> tuple[int, int, bytes]:
    """Unpack ``(session, number, MAC)`` of a BEGIN, FORK or END entry.

    Raises:
        ValueError: it is malformed.
    """
    if len(said) != 2 * _U64.size + MAC_BYTES:
        raise ValueError("no end of a chain")
    return _U64.unpack_from(said)[0], _U64.unpack_from(said, _U64.size)[0], said[2 * _U64.size :]


def unpack_page(said: bytes) -> ChainPage:
    """Unpack the body of a COVER or CUT entry.

    Raises:
        ValueError: it is malformed.
    """
    at = _U64.size + MAC_BYTES
    if len(said) < at:
        raise ValueError("no page of an audit")
    rows: list[tuple[bytes, bytes | None]] = []
    spans: list[tuple[bytes, bytes]] = []
    first, resume = _U64.unpack_from(said)[0], said[_U64.size : at]
    while at < len(said):
        rest, at = _part(said, at)
        tag, at = said[at : at + 1], at + 1
        if tag == _SPAN:
            spans.append(unpack_range(rest))
        elif tag == _STANDS:
            rows.append((rest, said[at : at + DIGEST_BYTES]))
            at += DIGEST_BYTES
        else:
            rows.append((rest, None))
        if at > len(said):
            raise ValueError("a page of an audit that is cut")
    return ChainPage(first, resume, rows, spans)


def _part(said: bytes, at: int) -> tuple[bytes, int]:
    if len(said) < at + _LENGTH.size:
        raise ValueError("an entry of an audit that is cut")
    end = at + _LENGTH.size + _LENGTH.unpack_from(said, at)[0]
    if len(said) < end:
        raise ValueError("an entry of an audit that is cut")
    return said[at + _LENGTH.size : end], end
