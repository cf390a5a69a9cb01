"""Media parts of messages: recognition, and token costs by provider.

A table is a function from ``Media`` to tokens. All figures are estimates: providers document their
formulas for images but resize before applying them; recordings and documents are estimated from
their size in bytes. Media outside the message (a URL, a file id) count as an image of 1024 x 1024
pixels, a recording of 60 seconds or a document of 10 pages.
"""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

__all__ = [
    "PROFILES",
    "Media",
    "MediaTable",
    "byte_length",
    "from_data_url",
    "image_size",
    "may_hold_media",
    "read_media",
    "wav_seconds",
]


# --- Headers of base64 content: the size of an image, the length of a WAV recording ---------------
# Four base64 characters are three bytes at any offset, so a few bytes can be read without decoding
# the preceding ones. Unreadable values are unknown (None); nothing is raised.

SIDE_PX_MAX: Final = 100_000
"""Maximum plausible side: no provider accepts larger images."""
BYTE_RATE_MIN: Final = 1_000
"""Minimum plausible rate: a lower one would turn a small file into a recording of days."""
SEGMENTS_MAX: Final = 64
"""Segments of a JPEG that are searched for its size."""
_URL_SAFE: Final = str.maketrans("-_", "+/")
_PNG: Final = Struct(">II")
_GIF: Final = Struct("<HH")
_JPEG_SEGMENT: Final = Struct(">BBH")
_JPEG_SIZE: Final = Struct(">HH")
_WAV_RATE: Final = Struct("<I")
_NO_SIZE_SOF: Final = frozenset((0xC4, 0xC8, 0xCC))
"""Markers in the start-of-frame range that start no frame (DHT, JPG, DAC)."""


def byte_length(text: str) -> int:
    """Approximate number of bytes that base64 ``text`` encodes (padding is not subtracted)."""
    return len(text) * 3 // 4


def _read(text: str, offset: int, size: int) -> bytes:
    """Decode ``size`` bytes from ``offset`` on; fewer at the end, none if it is not base64."""
    start, skip = offset // 3 * 4, offset % 3
    chars = text[start : start + -(-(size + skip) // 3) * 4]
    chars = chars[: len(chars) // 4 * 4]
    try:
        return binascii.a2b_base64(chars.translate(_URL_SAFE), strict_mode=True)[skip : skip + size]
    except (binascii.Error, ValueError):
        return b""


def image_size(text: str) -> tuple[int, int] | None:
    """Read ``(width, height)`` in pixels of a PNG, JPEG, GIF or WebP image in base64.

    None if not found.
    """
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
        if len(head) < 9 or head[0] != 0xFF:  # noqa: PLR2004 - a segment header and a frame size
            return None
        _, marker, length = _JPEG_SEGMENT.unpack_from(head)
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE_SOF:  # noqa: PLR2004 - start of frame
            height, width = _JPEG_SIZE.unpack_from(head, 5)
            return width, height
        if length < 2:  # noqa: PLR2004 - a segment's length includes its own field
            return None
        offset += 2 + length
    return None


def wav_seconds(text: str) -> float | None:
    """Duration of a base64 WAV recording in seconds, from the byte rate in its header.

    None if it has no such header, or an implausible rate.
    """
    head = _read(text, 0, 32)
    if len(head) < 32 or head[:4] != b"RIFF" or head[8:12] != b"WAVE":  # noqa: PLR2004
        return None
    rate = _WAV_RATE.unpack_from(head, 28)[0]
    return byte_length(text) / rate if rate >= BYTE_RATE_MIN else None


# --- Recognition of media parts, and what each costs by its provider's table ----------------------

IMAGE_SIDE_PX: Final = 1024
"""Both sides of an image of unknown size."""
SECONDS_UNKNOWN: Final = 60
PAGES_UNKNOWN: Final = 10
AUDIO_BYTES_A_SECOND: Final = 16_000
"""MP3 at 128 kbit/s; WAV headers give their own rate."""
VIDEO_BYTES_A_SECOND: Final = 250_000
"""2 Mbit/s."""
PAGE_BYTES: Final = 50_000
"""Size of a PDF page: a compromise between text (20 kB) and scans (100 kB and more)."""
TEXT_BYTES_A_TOKEN: Final = 4
"""Bytes per token of a text document sent as base64."""

KIND_OF: Final = {
    "image": "image",
    "image_url": "image",
    "image_file": "image",
    "input_image": "image",
    "output_image": "image",
    "computer_screenshot": "image",
    "image_generation_call": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "output_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "file": "document",
    "input_file": "document",
    "document": "document",
    "document_url": "document",
    "media": "document",
}
"""Kind by the ``type`` of a media block, unless its MIME type determines it."""
INLINE_KEYS: Final = ("inlineData", "inline_data", "fileData", "file_data")
"""Members that hold the content object of a Gemini part."""
_CONTENT_KEYS: Final = (
    *INLINE_KEYS, "source", "image_url", "audio_url", "video_url", "document_url", "input_audio",
    "input_image", "image", "audio", "video", "image_file", "file", "media", "data", "base64",
    "result", "url", "file_url", "file_uri", "fileUri", "uri", "file_id",
)  # fmt: skip
"""Keys of the content of a media block, in order of precedence; then those of a nested object."""
_BASE64_KEYS: Final = frozenset(("data", "base64", "result", "file_data"))
_CERTAIN: Final = frozenset(_CONTENT_KEYS) - {
    "source", "file", "image", "audio", "video", "media", "url", "uri",
}  # fmt: skip
"""Keys of a block whose string is content or a reference to it; under others it may be a name."""
_SCHEME_CHARS_MAX: Final = 16
_REFERENCE_CHARS_MAX: Final = 4_096
"""A longer string is content, whatever its key."""
_MIME_KEYS: Final = ("mime_type", "mimeType", "media_type", "format")
_CONSUMED: Final = frozenset((*_CONTENT_KEYS, *_MIME_KEYS, "detail", "type", "source_type"))
"""Keys of a media block that are consumed; its other members (a title, a file name) are counted as
usual."""
_MARK: Final = re.compile(
    rb'"(?:type":"(?:image|audio|video|input_(?:image|audio|video|file)|output_(?:image|audio)|'
    rb'file"|document|media"|computer_screenshot)|(?:inline|file)_?[dD]ata":)'
)


class Media(NamedTuple):
    """One image, recording or document in a message."""

    kind: str
    """``image``, ``audio``, ``video`` or ``document``."""
    mime: str = ""
    """MIME type in lower case, or a bare format (``wav``); empty if the message has none."""
    size_bytes: int | None = None
    """Length of the content in bytes, if the message holds it."""
    width: int | None = None
    height: int | None = None
    """Width and height of an image in pixels, if its header has them."""
    seconds: float | None = None
    """Duration of a recording, if its header has it."""
    detail: str = ""
    """OpenAI's ``low``, ``high`` or ``auto``."""
    base64_chars: int = 0
    """Number of base64 characters in the message."""


KINDS: Final = ("image", "audio", "video", "document")

MediaTable: TypeAlias = Callable[[Media], int]
"""Function from a media part to its tokens."""


def may_hold_media(encoded: bytes) -> bool:
    """False only if a message certainly holds no media, by a cheap scan of its compact JSON."""
    return _MARK.search(encoded) is not None or b";base64," in encoded or b";BASE64," in encoded


# --- reading --------------------------------------------------------------------------------------


def from_data_url(mime: str, content: str) -> Media:
    """Build the media of a data URL from its MIME type and base64 content."""
    return _with_content("document", mime, "", content)


def _kind_of(kind: str, mime: str) -> str:
    family = mime.partition("/")[0].lower()
    return family if family in ("image", "audio", "video") else kind


def _with_content(kind: str, mime: str, detail: str, content: str) -> Media:
    kind = _kind_of(kind, mime)
    size = image_size(content) if kind == "image" else None
    width, height = size or (None, None)
    seconds = wav_seconds(content) if kind == "audio" else None
    bytes_ = byte_length(content)
    return Media(kind, mime.lower(), bytes_, width, height, seconds, detail, len(content))


def _text(block: Mapping[str, Any], *keys: str) -> str:
    return next((found for key in keys if isinstance(found := block.get(key), str)), "")


def read_media(block: Mapping[str, Any]) -> tuple[Media | None, list[Any]] | None:
    """Read a JSON object as media; returns the media, and values that are counted as usual.

    None if it is not a media block. A document whose source is plain text or a list of blocks is
    not media itself: that text or these blocks are returned as values.
    """
    label = block.get("type")
    kind = KIND_OF.get(label) if isinstance(label, str) else None
    if kind is None:
        if not any(isinstance(block.get(key), dict) for key in INLINE_KEYS):
            return None
        kind = "document"
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") in ("text", "content"):
        content = source.get("data" if source["type"] == "text" else "content")
        return None, [_rest(block), content]
    place = _find_content(block)
    if place is None:
        return None
    holder, key = place
    content = holder[key]
    rest = [_rest(block)] if holder is block else [_rest(block), _rest(holder)]
    mime = _text(holder, *_MIME_KEYS) or _text(block, *_MIME_KEYS)
    detail = _text(holder, "detail") or _text(block, "detail")
    if content.startswith("data:") and ";base64," in content[:256]:
        head, _, content = content.partition(",")
        return _with_content(kind, head[5:].partition(";")[0], detail, content), rest
    if key in _BASE64_KEYS or len(content) > _REFERENCE_CHARS_MAX:
        return _with_content(kind, mime, detail, content), rest
    return Media(_kind_of(kind, mime), mime.lower(), detail=detail), rest


def _is_reference(text: str) -> bool:
    """Return whether a string is a reference (a URL), or too long to be a name."""
    return ":" in text[:_SCHEME_CHARS_MAX] or len(text) > _REFERENCE_CHARS_MAX


def _rest(block: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in _CONSUMED}


def _find_content(block: Mapping[str, Any]) -> tuple[Mapping[str, Any], str] | None:
    """Find the object and key of a media block's content, which is base64 or a reference."""
    holder = block
    for _ in range(3):  # a block, its source, a file in the source
        for key in _CONTENT_KEYS:
            value = holder.get(key)
            certain = holder is not block or key in _CERTAIN
            if isinstance(value, str) and value and (certain or _is_reference(value)):
                return holder, key
            if isinstance(value, dict):
                holder = value
                break
        else:
            return None
    return None


# --- tables ---------------------------------------------------------------------------------------


def _side(media: Media) -> tuple[float, float]:
    if media.width is None or media.height is None:
        return IMAGE_SIDE_PX, IMAGE_SIDE_PX
    return media.width, media.height


def _fit(width: float, height: float, longest: float) -> tuple[float, float]:
    """Scale down proportionally until no side is longer than ``longest``."""
    scale = min(1.0, longest / max(width, height))
    return width * scale, height * scale


def _tiles(width: float, height: float, side: int) -> int:
    return max(1, math.ceil(round(width / side, 6))) * max(1, math.ceil(round(height / side, 6)))


def openai_tiles(media: Media, base: int = 85, tile: int = 170) -> int:
    """85 + 170 per tile of 512 px, after fitting into 2048 px and a short side of 768 px.

    Source: OpenAI, "Images and vision": 85 + 170 for GPT-4o, 4.1 and 4.5, 70 + 140 for GPT-5,
    75 + 150 for o1 and o3, 2,833 + 5,667 for GPT-4o mini.
    """
    if media.detail == "low":
        return base
    width, height = _fit(*_side(media), 2048)
    scale = min(1.0, 768 / min(width, height))
    return base + tile * _tiles(width * scale, height * scale, 512)


def openai_patches(media: Media, multiplier: float) -> int:
    """Patches of 32 px, at most 1,536, times the model's multiplier.

    Source: OpenAI, "Images and vision": 1.62 for the mini models of GPT-4.1 and GPT-5, 2.46 for the
    nano ones, 1.72 for o4-mini.
    """
    width, height = _side(media)
    patches = _tiles(width, height, 32)
    if patches > 1536:  # noqa: PLR2004 - the documented limit
        scale = math.sqrt(32 * 32 * 1536 / (width * height))
        patches = min(1536, _tiles(width * scale, height * scale, 32))
    return math.ceil(patches * multiplier)


def anthropic_patches(media: Media, longest: int, most: int) -> int:
    """Patches of 28 px plus 4, after fitting the long side; at most ``most``.

    Source: Anthropic, "Vision": at most about 1,568 tokens and px; 4,784 and 2,576 px from Claude
    Opus 4.7 on. (Width x height / 750 is from older pages.)
    """
    width, height = _fit(*_side(media), longest)
    return min(most, _tiles(width, height, 28) + 4)


def gemini_tiles(media: Media) -> int:
    """258 for an image of up to 384 px; for a larger one, 258 per tile of 768 px.

    Source: Google, "Understand and count tokens" of the Gemini API.
    """
    width, height = _side(media)
    small = max(width, height) <= 384  # noqa: PLR2004 - the documented limit
    return 258 if small else 258 * _tiles(width, height, 768)


class _CostTable:
    """Token costs of one provider."""

    def __init__(
        self,
        image: MediaTable,
        *,
        audio_a_second: float,
        page: int,
        video_a_second: float = 263,
    ) -> None:
        self._image = image
        self._rates = {"audio": audio_a_second, "video": video_a_second}
        self._page = page

    def __call__(self, media: Media) -> int:
        if media.kind == "image":
            return self._image(media)
        if media.kind in self._rates:
            return math.ceil(self._rates[media.kind] * _seconds(media))
        if media.size_bytes is None:
            return self._page * PAGES_UNKNOWN
        if media.mime.startswith("text/") or media.mime == "application/json":
            return -(-media.size_bytes // TEXT_BYTES_A_TOKEN)
        return self._page * max(1, -(-media.size_bytes // PAGE_BYTES))


def _seconds(media: Media) -> float:
    if media.seconds is not None:
        return media.seconds
    if media.size_bytes is None:
        return SECONDS_UNKNOWN
    rate = AUDIO_BYTES_A_SECOND if media.kind == "audio" else VIDEO_BYTES_A_SECOND
    return media.size_bytes / rate


def _openai(image: MediaTable) -> _CostTable:
    """Audio: 1 token per 100 ms (OpenAI, "Realtime costs"). A page: its text and its image."""
    return _CostTable(image, audio_a_second=10, page=1_500)


def _patched(multiplier: float) -> _CostTable:
    return _openai(lambda media: openai_patches(media, multiplier))


def _claude(longest: int, most: int) -> _CostTable:
    """A page of a PDF: 1,500 to 3,000 tokens (Anthropic, "PDF support")."""
    return _CostTable(
        lambda media: anthropic_patches(media, longest, most), audio_a_second=32, page=3_000
    )


def _google(image: MediaTable) -> _CostTable:
    """Per second, 32 tokens for audio and 263 for video; 258 per page (as ``gemini_tiles``)."""
    return _CostTable(image, audio_a_second=32, page=258)


def _tiled(base: int, tile: int) -> _CostTable:
    return _openai(lambda media: openai_tiles(media, base, tile))


PROFILES: Final[Mapping[str, MediaTable]] = {
    "openai": _tiled(85, 170),
    "openai-70": _tiled(70, 140),
    "openai-75": _tiled(75, 150),
    "openai-2833": _tiled(2833, 5667),
    "openai-patches-1.62": _patched(1.62),
    "openai-patches-1.72": _patched(1.72),
    "openai-patches-2.46": _patched(2.46),
    "anthropic": _claude(1_568, 1_568),
    "anthropic-large": _claude(2_576, 4_784),
    "gemini": _google(gemini_tiles),
    "gemini-3": _google(lambda _: 1_100),
    "generic": _tiled(85, 170),
}
"""Built-in tables by name. ``openai`` is the default; ``generic`` has its media, but not its
rendering of tools."""
