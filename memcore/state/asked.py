"""What a change of a state was asked for as, so that the same request is known when it comes again.

It says the same in every process: what JSON cannot say counts by its type alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from memcore.codec import encode_json
from memcore.options import checked_idempotency_key
from memcore.state.update import MISSING, Delete, Merge, Update, overwritten, writes_of

__all__ = ["Asked", "asked", "content_of"]


class Asked(NamedTuple):
    """An idempotency key, and the bytes of what it stands for."""

    key: str
    content: bytes


def asked(key: Any, update: Update | Iterable[Update]) -> Asked | None:
    """The request of an update; None without a key.

    Raises:
        InvalidOptionError: the key is no str, empty or too long.
        InvalidUpdateError: ``update`` is none.
    """
    return None if key is None else Asked(checked_idempotency_key(key), content_of(update))


def content_of(update: Update | Iterable[Update]) -> bytes:
    """What the writes of an update say.

    Raises:
        InvalidUpdateError: it is none.
    """
    return b"".join(_said([key, _plain(value)]) + b"\n" for key, value in writes_of(update))


def _said(value: Any) -> bytes:
    try:
        return encode_json(value)[0]
    except (TypeError, ValueError, RecursionError):
        return encode_json([value[0], type(value[1]).__name__])[0]


def _plain(value: Any) -> Any:
    """A value as JSON that no other value is written as, where it is a marker."""
    if value is Delete or value is MISSING:
        return {"": "delete"}
    if isinstance(value, Merge):
        entries = value.entries
        return {"": ["merge", _entries(entries) if isinstance(entries, Mapping) else None]}
    given = overwritten(value, reduced=False)
    return value if given is None else {"": ["overwrite", _plain(given[0])]}


def _entries(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(name): _entries(entry) if isinstance(entry, Mapping) else _plain(entry)
        for name, entry in entries.items()
    }
