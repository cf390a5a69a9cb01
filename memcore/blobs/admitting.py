"""Content of blobs at the border of the file: text is held in memory, judged and redacted.

Content with NUL bytes is no text: it is stored as it is, and never held as a whole.
"""

from __future__ import annotations

import codecs
from itertools import chain
from typing import Any, Final

from memcore.blobs.sources import check_size, file_pieces
from memcore.privacy.border import Passage

__all__ = ["admitted"]

_WIDE: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""How text begins that has NUL bytes."""


def admitted(passage: Passage, payload: Any) -> bytes | Any:
    """What is to be stored of bytes or a binary file: redacted bytes, or the file as it was given.

    Raises:
        BlockedError: a guard refuses it.
        InvalidItemError: above ``BLOB_BYTES_MAX``.
    """
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return passage.bytes(bytes(payload), "blob")
    start = payload.tell() if hasattr(payload, "seekable") and payload.seekable() else None
    held: list[bytes] = []
    size = 0
    pieces = file_pieces(payload)
    for piece in pieces:
        size += len(piece)
        check_size(size)
        held.append(piece)
        if _is_binary(held[0], piece):
            passage.judge(b"".join(held), "blob")
            if start is None:
                return chain(held, pieces)
            payload.seek(start)
            return payload
    return passage.bytes(b"".join(held), "blob")


def _is_binary(first: bytes, piece: bytes) -> bool:
    return b"\0" in piece and not first.startswith(_WIDE)
