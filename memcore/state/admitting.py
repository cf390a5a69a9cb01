"""Values of a state at the border of the file: judged and redacted where the change is made."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from memcore.codec import plain_json
from memcore.privacy.border import Passage
from memcore.state.prefixes import prefix_of
from memcore.state.update import Delete, Merge, Overwrite

__all__ = ["admitted_write"]


def admitted_write(passage: Passage, name: str, value: Any) -> Any:
    """What may be written to a field; ``name`` is the field's, with the prefix that all know.

    What a reducer takes and JSON has not is judged alone: what comes of it is redacted when it is
    stored.

    Raises:
        BlockedError: a guard refuses it.
    """
    if value is Delete:
        passage.judge(None, "state", name=name)
        return value
    if isinstance(value, Overwrite):
        return Overwrite(admitted_write(passage, name, value.value))
    if isinstance(value, Merge):
        return Merge(_entries(passage, name, value.entries))
    with suppress(TypeError, ValueError, RecursionError):  # told where it is encoded
        plain = plain_json(value)
        return passage.value(plain, "state", name=name, under=name[len(prefix_of(name)) :])
    passage.judge(value, "state", name=name)
    return value


def _entries(passage: Passage, name: str, entries: Any) -> Any:
    if not isinstance(entries, Mapping):
        return entries  # refused where it is merged
    return {
        key: _entries(passage, name, entry)
        if isinstance(entry, Mapping)
        else _entry(passage, name, key, entry)
        for key, entry in entries.items()
    }


def _entry(passage: Passage, name: str, key: Any, entry: Any) -> Any:
    admitted = admitted_write(passage, name, entry)
    return (
        admitted
        if admitted is Delete or not isinstance(key, str)
        else _named(passage, key, admitted)
    )


def _named(passage: Passage, key: str, entry: Any) -> Any:
    """The key of an entry tells what it may be, too."""
    with suppress(TypeError, ValueError, RecursionError):
        return passage.again(plain_json(entry), key)
    return entry
