"""Content of blobs at the border of the file: text is held in memory, judged and redacted.

What is no UTF-8 cannot be looked into: it is stored as it is, and never held as a whole.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from memcore.blobs.sources import check_size, file_pieces
from memcore.privacy.border import Passage

__all__ = ["admitted"]



def admitted(passage: Passage, payload: Any) -> bytes | Any:
    """What is to be stored of bytes or a binary file: redacted bytes, or the file as it was given.

    Raises:
        BlockedError: a guard refuses it.
        InvalidItemError: above ``BLOB_BYTES_MAX``.
    """
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return passage.bytes(bytes(payload), "blob")
    start = payload.tell() if hasattr(payload, "seekable") and payload.seekable() else None
    decoder = codecs.getincrementaldecoder("utf-8")()
    held: list[bytes] = []
    size = 0
    pieces = file_pieces(payload)
    for piece in pieces:
        size += len(piece)
        check_size(size)
        held.append(piece)
        if not _is_text(decoder, piece):
            passage.judge(b"".join(held), "blob")
            if start is None:
                return _pieces(held, pieces)
            payload.seek(start)
            return payload
    return passage.bytes(b"".join(held), "blob")


def _pieces(held: Iterable[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    return chain(held, rest)


def _is_text(decoder: codecs.IncrementalDecoder, piece: bytes) -> bool:
    try:
        decoder.decode(piece)
    except UnicodeDecodeError:
        return False
    return True
