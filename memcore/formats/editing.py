"""Edited copies of messages: other values at some paths, everything else shared and untouched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

__all__ = ["REMOVED", "Edits", "Path", "edited", "value_at"]

Path: TypeAlias = tuple[str | int, ...]
"""Keys and positions from the message down to a value."""
Edits: TypeAlias = Mapping[Path, Any]
"""New values by path; ``REMOVED`` takes the member or element out. No path begins another one."""


class _Removed:
    """The type of ``REMOVED``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "REMOVED"


REMOVED: Final = _Removed()


def value_at(value: Any, path: Path) -> Any:
    """The value at a path; None if there is none."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def edited(value: Any, edits: Edits) -> Any:
    """A copy of a JSON value with the edits made; what they do not touch is shared, not copied.

    Positions are those of the value as it is given, also where elements before them are removed.
    """
    below: dict[str | int, dict[Path, Any]] = {}
    for path, new in edits.items():
        below.setdefault(path[0], {})[path[1:]] = new
    if isinstance(value, list):
        made = [_edited_entry(entry, below.get(at)) for at, entry in enumerate(value)]
        return [entry for entry in made if entry is not REMOVED]
    members = {key: _edited_entry(entry, below.get(key)) for key, entry in value.items()}
    return {key: entry for key, entry in members.items() if entry is not REMOVED}


def _edited_entry(entry: Any, edits: dict[Path, Any] | None) -> Any:
    if edits is None:
        return entry
    return edits[()] if () in edits else edited(entry, edits)
