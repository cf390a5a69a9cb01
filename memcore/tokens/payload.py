"""What the header of base64 content tells: the size of an image, the length of a WAV recording.

Four base64 characters are three bytes wherever they stand, so any few bytes are read without
decoding what lies before them. Whatever cannot be read is unknown (None); nothing is raised.
"""

from __future__ import annotations

import binascii
from struct import Struct
from typing import Final

__all__ = ["byte_length", "image_size", "wav_seconds"]

SIDE_PX_MAX: Final = 100_000
"""A larger side is a lie: no provider takes such images."""
BYTE_RATE_MIN: Final = 1_000
"""A lower rate is a lie, and would make a recording of days out of a small file."""
SEGMENTS_MAX: Final = 64
"""Segments of a JPEG that are walked to find its size."""
_URL_SAFE: Final = str.maketrans("-_", "+/")
_PNG: Final = Struct(">II")
_GIF: Final = Struct("<HH")
_JPEG_SEGMENT: Final = Struct(">BBH")
_JPEG_SIZE: Final = Struct(">HH")
_WAV_RATE: Final = Struct("<I")
_NO_SIZE_SOF: Final = frozenset((0xC4, 0xC8, 0xCC))
"""Markers among the start-of-frame numbers that start no frame (DHT, JPG, DAC)."""


def byte_length(text: str) -> int:
    """How many bytes base64 ``text`` stands for, about (padding is at its end)."""
    return len(text) * 3 // 4


def _read(text: str, offset: int, size: int) -> bytes:
    """``size`` bytes from ``offset`` on; fewer at the end, none where it is no base64."""
    start, skip = offset // 3 * 4, offset % 3
    chars = text[start : start + -(-(size + skip) // 3) * 4]
    chars = chars[: len(chars) // 4 * 4]
    try:
        return binascii.a2b_base64(chars.translate(_URL_SAFE), strict_mode=True)[skip : skip + size]
    except (binascii.Error, ValueError):
        return b""


def image_size(text: str) -> tuple[int, int] | None:
    """``(width, height)`` in pixels of a PNG, JPEG, GIF or WebP image in base64, if it tells."""
    head = _read(text, 0, 30)
    found = None
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:  # noqa: PLR2004 - offsets of formats
        found = _PNG.unpack_from(head, 16)
    elif head[:6] in (b"GIF87a", b"GIF89a") and len(head) >= 10:  # noqa: PLR2004
        found = _GIF.unpack_from(head, 6)
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) == 30:  # noqa: PLR2004
        found = _webp_size(head)
    elif head[:2] == b"\xff\xd8":
        found = _jpeg_size(text)
    if found is None or not all(0 < side <= SIDE_PX_MAX for side in found):
        return None
    return found[0], found[1]


def _webp_size(head: bytes) -> tuple[int, int] | None:
    form = head[12:16]
    if form == b"VP8 ":
        width, height = _GIF.unpack_from(head, 26)
        return width & 0x3FFF, height & 0x3FFF
    if form == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if form == b"VP8X":
        return (
            int.from_bytes(head[24:27], "little") + 1,
            int.from_bytes(head[27:30], "little") + 1,
        )
    return None


def _jpeg_size(text: str) -> tuple[int, int] | None:
    offset = 2
    for _ in range(SEGMENTS_MAX):
        head = _read(text, offset, 9)
        if len(head) < 9 or head[0] != 0xFF:  # noqa: PLR2004 - a segment and a frame's size
            return None
        _, marker, length = _JPEG_SEGMENT.unpack_from(head)
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE_SOF:  # noqa: PLR2004 - start of frame
            height, width = _JPEG_SIZE.unpack_from(head, 5)
            return width, height
        if length < 2:  # noqa: PLR2004 - a segment's length counts itself
            return None
        offset += 2 + length
    return None


def wav_seconds(text: str) -> float | None:
    """How long a WAV recording in base64 is, by the byte rate in its header."""
    head = _read(text, 0, 32)
    if len(head) < 32 or head[:4] != b"RIFF" or head[8:12] != b"WAVE":  # noqa: PLR2004
        return None
    rate = _WAV_RATE.unpack_from(head, 28)[0]
    return byte_length(text) / rate if rate >= BYTE_RATE_MIN else None
