"""Names of any length and any characters as parts of a key."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

__all__ = ["END", "is_name", "label"]

END: Final = "\x00"
"""What stands behind a label: none holds it."""


def label(name: str, bytes_max: int) -> str:
    """``=`` and the name, or ``#`` and a digest of one that is longer or holds a NUL."""
    packed = name.encode("utf-8", "surrogatepass")
    if END in name or len(packed) > bytes_max:
        return "#" + blake2b(packed, digest_size=32).hexdigest()
    return "=" + name


def is_name(part: str) -> bool:
    """Whether a label tells the name."""
    return part[:1] == "="
