"""Reducers that most states need: entries by name, messages by id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NotRequired, TypedDict

from memcore.errors import InvalidUpdateError

__all__ = ["FileData", "append_messages", "merge_entries"]

_REMOVE: Final = "remove"


class FileData(TypedDict):
    """A file in a state; ``files: Annotated[dict[str, FileData], merge_entries]`` holds many."""

    content: str
    """The text, or bytes in base64."""
    encoding: NotRequired[Literal["utf-8", "base64"]]
    created_at: NotRequired[str]
    """ISO 8601."""
    modified_at: NotRequired[str]
    """ISO 8601."""


def merge_entries(
    left: Mapping[str, Any] | None, right: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The entries of both, those of ``right`` in force; a None in ``right`` deletes an entry.

    Raises:
        InvalidUpdateError: ``right`` is no mapping.
    """
    if right is not None and not isinstance(right, Mapping):
        msg = f"merge_entries: expected a mapping of entries, got {type(right).__name__}"
        raise InvalidUpdateError(msg)
    merged = dict(left or {})
    for name, entry in (right or {}).items():
        if entry is None:
            merged.pop(name, None)
        else:
            merged[name] = entry
    return merged


def append_messages(left: list[Any] | None, right: Any) -> list[Any]:
    """The messages of both in order.

    A message with the ``id`` of an earlier one takes its place. ``{"remove": id}`` takes that
    message out; one that is not there is no error, so that an update may come twice. Messages
    without an id are always appended, and none is given one.

    Args:
        left: what is there.
        right: a message, or a list of them: mappings, or objects with an ``id``.

    Raises:
        InvalidUpdateError: ``right`` holds text or None instead of a message.
    """
    messages = list(left or [])
    for message in right if isinstance(right, list | tuple) else [right]:
        if message is None or isinstance(message, str | bytes):
            msg = f"append_messages: expected a message, got {type(message).__name__}"
            raise InvalidUpdateError(msg)
        gone = _removed(message)
        ident = _id_of(message) if gone is None else gone
        at = None if ident is None else _position(messages, ident)
        if gone is not None:
            if at is not None:
                del messages[at]
        elif at is None:
            messages.append(message)
        else:
            messages[at] = message
    return messages


def _removed(message: Any) -> Any:
    is_mark = isinstance(message, Mapping) and len(message) == 1
    return message.get(_REMOVE) if is_mark else None


def _id_of(message: Any) -> Any:
    return message.get("id") if isinstance(message, Mapping) else getattr(message, "id", None)


def _position(messages: list[Any], ident: Any) -> int | None:
    return next((at for at, found in enumerate(messages) if _id_of(found) == ident), None)
