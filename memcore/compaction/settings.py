"""The options of reducers: checked when one is made, and told as a mapping states them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from memcore.errors import InvalidOptionError

__all__ = ["Settings", "checked_names"]


class Settings:
    """What the options of a reducer, a frozen dataclass, have in common."""

    __slots__ = ()

    def settings(self) -> Mapping[str, object]:
        """The options that differ from the defaults; tuples as lists, as JSON has them."""
        found: dict[str, object] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                found[field.name] = list(value) if isinstance(value, tuple) else value
        return found


def checked_names(name: str, value: Any, *, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """A list of non-empty strings as a tuple; ``known`` are those that there are.

    Raises:
        InvalidOptionError: it is no list, or holds something else.
    """
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        msg = f"{name}: expected a list of strings, got {value!r:.80}"
        raise InvalidOptionError(msg)
    entries = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
    for entry in entries:
        if not isinstance(entry, str) or not entry or (known and entry not in known):
            which = f"some of {', '.join(known)}" if known else "non-empty strings"
            msg = f"{name}: expected {which}, got {entry!r:.80}"
            raise InvalidOptionError(msg)
    return tuple(entries)
