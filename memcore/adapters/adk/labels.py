"""Names of any length and any characters as parts of a key, and as fields of a state."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from memcore.keys import pack_text
from memcore.limits import STATE_FIELD_BYTES_MAX
from memcore.state import prefix_of

__all__ = ["END", "fields_of", "is_name", "label", "state_of"]

END: Final = "\x00"
"""What stands behind a label: none holds it."""
_WRAPPED: Final = "\0adk\0"
"""How the name of a field begins that stands for a key which no field can be called."""


def label(name: str, bytes_max: int) -> str:
    """``=`` and the name, or ``#`` and a digest of one that is longer or holds a NUL."""
    packed = name.encode("utf-8", "surrogatepass")
    if END in name or len(packed) > bytes_max:
        return "#" + blake2b(packed, digest_size=32).hexdigest()
    return "=" + name


def is_name(part: str) -> bool:
    """Whether a label tells the name."""
    return part[:1] == "="


def fields_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of memcore's state in which an ADK state lies: mostly its keys themselves.

    A field has a name of 1 to 480 bytes behind its prefix. A key that has none, or a longer one, is
    the field of a digest of the name, and the list of the name and the value lies there.
    """
    if all(map(_is_field, state)):
        return state
    found: dict[str, Any] = {}
    for key, value in state.items():
        if _is_field(key):
            found[key] = value
        else:
            prefix = prefix_of(key)
            name = key[len(prefix) :]
            found[prefix + _wrapped(name)] = [name, value]
    return found


def state_of(fields: dict[str, Any]) -> dict[str, Any]:
    """What ``fields_of`` was given."""
    if not any(_WRAPPED in key for key in fields):
        return fields
    found: dict[str, Any] = {}
    for key, value in fields.items():
        prefix = prefix_of(key)
        match value:
            case [str() as name, held] if key == prefix + _wrapped(name):
                found[prefix + name] = held
            case _:
                found[key] = value
    return found


def _wrapped(name: str) -> str:
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=32)
    return _WRAPPED + digest.hexdigest()


def _is_field(key: str) -> bool:
    name = key[len(prefix_of(key)) :]
    if not name or name.startswith(_WRAPPED):
        return False
    # A character takes four bytes at most, and one is behind the name.
    return len(name) < STATE_FIELD_BYTES_MAX // 4 or len(pack_text(name)) <= STATE_FIELD_BYTES_MAX
