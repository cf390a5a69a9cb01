"""Content on its way into the store: measured once, then read again to be written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final

from xxhash import xxh3_128

from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.limits import BLOB_BYTES_MAX, BLOB_CHUNK_BYTES

__all__ = ["Source", "opened", "rechunked", "slices"]

_SPOOL_BYTES: Final = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class Source:
    """Content that can be read more than once without being held in memory."""

    size: int
    digest: bytes
    sha256: bytes
    seed: int
    pieces: Callable[[], Iterator[bytes]]


def check_size(size: int) -> None:
    """Refuse more bytes than a blob may hold.

    Raises:
        InvalidItemError: above ``BLOB_BYTES_MAX``.
    """
    if size > BLOB_BYTES_MAX:
        msg = f"a blob holds at most {BLOB_BYTES_MAX} bytes, got {size} or more; split it"
        raise InvalidItemError(msg)


def slices(payload: bytes) -> Iterator[bytes]:
    """The payload in chunks."""
    return (
        payload[start : start + BLOB_CHUNK_BYTES]
        for start in range(0, len(payload), BLOB_CHUNK_BYTES)
    )


def file_pieces(file: IO[bytes]) -> Iterator[bytes]:
    """The rest of a binary file, piece by piece.

    Raises:
        InvalidOptionError: it gives no bytes.
    """
    while True:
        piece: object = file.read(BLOB_CHUNK_BYTES)
        if not isinstance(piece, (bytes, bytearray, memoryview)):
            msg = (
                f"read() of the file object returned {type(piece).__name__}: expected bytes; open "
                "the file in binary, blocking mode"
            )
            raise InvalidOptionError(msg)
        if not piece:
            return
        yield bytes(piece)


def rechunked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of ``BLOB_CHUNK_BYTES`` (a raw file or a socket reads short)."""
    held = bytearray()
    for piece in pieces:
        if not held and len(piece) == BLOB_CHUNK_BYTES:
            yield piece
            continue
        held += piece
        while len(held) >= BLOB_CHUNK_BYTES:
            yield bytes(held[:BLOB_CHUNK_BYTES])
            del held[:BLOB_CHUNK_BYTES]
    if held:
        yield bytes(held)


def _measured(pieces: Callable[[], Iterator[bytes]], seed: int, *, exported: bool) -> Source:
    """Read the content once for its size and digests; sha256 only if the address is exported."""
    digest, sha256, size = xxh3_128(seed=seed), hashlib.sha256(), 0
    for piece in pieces():
        size += len(piece)
        check_size(size)
        digest.update(piece)
        if exported:
            sha256.update(piece)
    return Source(size, digest.digest(), sha256.digest(), seed, pieces)


@contextmanager
def opened(payload: object, seed: int, *, exported: bool) -> Iterator[Source]:
    """A source over bytes, a binary file from where it stands, or an iterable of bytes.

    What cannot be read twice is spooled: to memory when small, else to a temporary file.

    Raises:
        InvalidOptionError: none of these.
        InvalidItemError: above ``BLOB_BYTES_MAX``.
    """
    if isinstance(payload, (bytes, bytearray, memoryview)):
        content = bytes(payload)
        yield _measured(lambda: slices(content), seed, exported=exported)
        return
    file: Any = payload
    if hasattr(payload, "read"):
        if hasattr(payload, "seekable") and file.seekable():
            start = file.tell()
            yield _measured(lambda: _replayed(file, start), seed, exported=exported)
            return
        arriving: Iterable[bytes] = file_pieces(file)
    elif isinstance(payload, Iterable) and not isinstance(payload, str):
        arriving = _checked_pieces(payload)
    else:
        msg = f"a blob is bytes or a binary file object, got {type(payload).__name__}"
        raise InvalidOptionError(msg)
    with SpooledTemporaryFile(_SPOOL_BYTES) as spool:
        size = 0
        for piece in arriving:
            size += len(piece)
            check_size(size)
            spool.write(piece)
        yield _measured(lambda: _replayed(spool, 0), seed, exported=exported)


def _replayed(file: Any, start: int) -> Iterator[bytes]:
    file.seek(start)
    return file_pieces(file)


def _checked_pieces(pieces: Iterable[object]) -> Iterator[bytes]:
    for piece in pieces:
        if not isinstance(piece, (bytes, bytearray, memoryview)):
            msg = f"a blob's pieces are bytes, got {type(piece).__name__}"
            raise InvalidOptionError(msg)
        yield bytes(piece)


def changed() -> InvalidOptionError:
    """The error for a file that was not the same when it was read again."""
    return InvalidOptionError("the file object changed while it was read twice: put a copy of it")
