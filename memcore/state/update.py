"""Updates of a state: mappings, Command, Merge and Delete, checked and copied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from memcore.codec.values import encode_json
from memcore.errors import InvalidUpdateError
from memcore.options import checked_idempotency_key

__all__ = [
    "MISSING",
    "Command",
    "Delete",
    "Merge",
    "Overwrite",
    "StateRequest",
    "Update",
    "Write",
    "asked",
    "content_of",
    "copied",
    "merged",
    "overwritten",
    "writes_of",
]


# --- Updates of a state: a mapping or a Command, and markers in place of values ------------------

_OVERWRITE: Final = "__overwrite__"
_PAIR: Final = 2

Write = tuple[str, Any]
"""A field and what is written to it."""


@dataclass(frozen=True, slots=True)
class Overwrite:
    """A value that replaces the stored one, bypassing the reducer of its field."""

    value: Any


@dataclass(frozen=True, slots=True)
class Merge:
    """Entries merged into the stored value, level by level; entries that it does not name stay.

    A mapping is merged into a mapping, any other value replaces the current one, also None;
    ``Delete`` removes an entry. Only a field without a reducer accepts it.
    """

    entries: Mapping[str, Any]


class _Delete:
    """Marker in place of a value: the field or entry is deleted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Delete"

    def __reduce__(self) -> str:
        return "Delete"  # copies are the object itself


Delete: Final = _Delete()
"""In place of a field's value, or of an entry in a ``Merge``: it is to go. None is a value."""
MISSING: Final = object()
"""Stands for the value of a field that has none."""


@dataclass(frozen=True, slots=True)
class Command:
    """A change of several fields, and messages for the log, in one commit: ``session.apply``."""

    update: Mapping[str, Any] = field(default_factory=dict)
    """Fields and what is written to them."""
    messages: Iterable[Mapping[str, Any]] = ()
    """Messages that are appended to the session."""


Update = Mapping[str, Any] | Command
"""The writes of one writer in one step. An object with an ``update``, as LangGraph's Command, is
accepted as a Command, too."""


def overwritten(value: Any, *, reduced: bool = True) -> tuple[Any] | None:
    """The value of an Overwrite as a tuple of one (of Delete, MISSING); None if it is none.

    LangGraph's Overwrite counts too; and where the field is ``reduced``, the dicts that stand for
    it in JSON: ``{"__overwrite__": value}`` and ``{"type": "__overwrite__", "value": value}``.
    Without a reducer there is nothing to pass by: they are values like any other there.
    """
    if isinstance(value, Overwrite):
        return (value.value,)
    if value is Delete:
        return (MISSING,)
    if isinstance(value, dict):
        return _overwritten_json(value) if reduced else None
    if type(value).__name__ == Overwrite.__name__ and hasattr(value, "value"):
        return (value.value,)
    return None


def _overwritten_json(value: dict[Any, Any]) -> tuple[Any] | None:
    if len(value) == 1 and _OVERWRITE in value:
        return (value[_OVERWRITE],)
    is_typed = value.get("type") == _OVERWRITE and "value" in value
    return (value["value"],) if is_typed else None


def merged(current: Any, entries: Mapping[str, Any]) -> dict[str, Any]:
    """A value with the entries of a Merge in it; nothing of ``current`` is changed.

    Raises:
        InvalidUpdateError: ``entries`` is no mapping.
    """
    if not isinstance(entries, Mapping):
        msg = f"Merge: expected a mapping of entries, got {type(entries).__name__}"
        raise InvalidUpdateError(msg)
    found = dict(current) if isinstance(current, Mapping) else {}
    for name, entry in entries.items():
        if entry is Delete:
            found.pop(name, None)
        elif isinstance(entry, Mapping):
            found[name] = merged(found.get(name), entry)
        else:
            found[name] = entry
    return found


def writes_of(update: Any) -> list[Write]:
    """The writes of one update, or of several, in their order.

    Raises:
        InvalidUpdateError: it is neither a mapping, a Command nor a list of them; or a Command has
            messages, which only a session can store.
    """
    if update is None:
        return []
    if isinstance(update, Mapping):
        return _checked(list(update.items()))
    if isinstance(update, list | tuple):
        return [write for each in update for write in writes_of(each)]
    if not hasattr(update, "update"):
        msg = f"update: expected a mapping, a Command or a list of them, got {_named(update)}"
        raise InvalidUpdateError(msg)
    if any(True for _ in getattr(update, "messages", None) or ()):
        msg = "a Command with messages changes a session: give it to session.apply()"
        raise InvalidUpdateError(msg)
    return fields_of(update)


def fields_of(command: Any) -> list[Write]:
    """The writes to fields of a Command, which may be pairs as well as a mapping.

    Raises:
        InvalidUpdateError: they are neither.
    """
    update = getattr(command, "update", None)
    if update is None:
        return []
    if isinstance(update, Mapping):
        return _checked(list(update.items()))
    if isinstance(update, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == _PAIR for pair in update
    ):
        return _checked([(key, value) for key, value in update])
    msg = f"the update of a Command: expected a mapping, got {_named(update)}"
    raise InvalidUpdateError(msg)


def _checked(writes: list[Write]) -> list[Write]:
    for key, _ in writes:
        if not isinstance(key, str) or not key:
            msg = f"a field of the state has a name: expected a non-empty str, got {key!r:.40}"
            raise InvalidUpdateError(msg)
    return writes


def _named(value: object) -> str:
    return type(value).__name__


# --- Content of an idempotent update, by which a retry is recognised ------------------------------
# It is the same in every process: values that JSON cannot represent count by their type alone.


class StateRequest(NamedTuple):
    """An idempotency key, and the bytes of its update."""

    key: str
    content: bytes


def asked(key: Any, update: Update | Iterable[Update]) -> StateRequest | None:
    """The request of an update; None without a key.

    Raises:
        InvalidOptionError: the key is no str, empty or too long.
        InvalidUpdateError: ``update`` is none.
    """
    return None if key is None else StateRequest(checked_idempotency_key(key), content_of(update))


def content_of(update: Update | Iterable[Update]) -> bytes:
    """The canonical bytes of an update's writes, as the content of an idempotent request.

    Raises:
        InvalidUpdateError: it is no update.
    """
    return b"".join(_said([key, _plain(value)]) + b"\n" for key, value in writes_of(update))


def _said(value: Any) -> bytes:
    try:
        return encode_json(value)[0]
    except (TypeError, ValueError, RecursionError):
        return encode_json([value[0], type(value[1]).__name__])[0]


def _plain(value: Any) -> Any:
    """A value as JSON; markers are written in a form that no JSON value has."""
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


# --- Copies of values, so that no reducer changes what is kept ------------------------------------


def copied(value: Any) -> Any:
    """A copy that shares nothing that can be changed with ``value``.

    JSON is copied here, ten times as fast as by ``copy.deepcopy``, which copies all else.
    """
    kind = type(value)
    if kind is str or kind is int or value is None or kind is bool or kind is float:
        return value
    if kind is dict:
        return {key: copied(entry) for key, entry in value.items()}
    if kind is list:
        return [copied(entry) for entry in value]
    return deepcopy(value)
