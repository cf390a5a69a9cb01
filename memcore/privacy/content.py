"""Bytes: texts and JSON in whatever encoding, binary content left alone."""

from __future__ import annotations

from collections import Counter
from typing import Final

from memcore.privacy.embedded import Handling, redact_text

__all__ = ["redact_bytes"]

_ENCODINGS: Final = ("utf-8", "gb18030", "latin-1")
"""Tried in this order; those that extend ASCII find all that is written in it."""
_BOMS: Final = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


def redact_bytes(how: Handling, content: bytes, found: Counter[str]) -> bytes:
    """The content with placeholders in its own encoding; the same object if nothing was found."""
    decoded = _decoded(content)
    if decoded is None:
        return content
    text, encoding = decoded
    redacted = redact_text(how, text, found)
    return content if redacted is text else redacted.encode(encoding)


def _decoded(content: bytes) -> tuple[str, str] | None:
    """The text and its encoding, None for what is no text."""
    for mark, encoding in _BOMS:
        if content.startswith(mark):
            return _round_trip(content, encoding)
    if b"\x00" in content:
        return None
    for encoding in _ENCODINGS:
        decoded = _round_trip(content, encoding)
        if decoded is not None:
            return decoded
    return None


def _round_trip(content: bytes, encoding: str) -> tuple[str, str] | None:
    try:
        text = content.decode(encoding)
        return (text, encoding) if text.encode(encoding) == content else None
    except UnicodeError:
        return None
