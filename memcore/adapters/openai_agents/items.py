"""Items of the SDK as memcore stores them, and back.

The SDK's stores keep whatever ``json.dumps`` writes. memcore keeps JSON objects without loss and
refuses the rest: what is no object, holds NaN, or is nested very deeply is stored as text inside
an object of its own, under one reserved key. Whoever reads it gets what ``json.loads`` makes of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Protocol

from memcore.codec import check_json

__all__ = ["Clear", "Coder", "Unreadable", "labels_of"]

_TEXT: Final = "__memcore_json__"
SEALED: Final = "__memcore_sealed__"
_LABELS: Final = ("type", "role", "call_id", "id", "approval_request_id")


class Unreadable(Exception):  # noqa: N818 - a signal to whoever reads many, who counts them
    """A stored message is no item for who reads it; the text is the reason."""


class Coder(Protocol):
    """Writes items as messages and reads them."""

    def quick(self, items: Sequence[Any]) -> list[dict[str, Any]] | None:
        """The messages if they need no look, which memcore may refuse still; else None."""

    def encode(self, items: Sequence[Any], request: str | None) -> list[dict[str, Any]]:
        """The messages; the same for the same items of the same request.

        Raises:
            TypeError: an item is nothing that ``json.dumps`` writes.
            ValueError: one is circular.
        """

    def decode(self, message: dict[str, Any]) -> Any:
        """The item.

        Raises:
            Unreadable
        """

    def decode_all(self, messages: list[dict[str, Any]]) -> list[Any]:
        """The items of many.

        Raises:
            Unreadable
        """


def labels_of(item: Any) -> dict[str, Any]:
    """What memcore must see of an item whose content it does not: which call, which result."""
    if not isinstance(item, dict):
        return {}
    return {key: item[key] for key in _LABELS if isinstance(item.get(key), str)}


class Clear:
    """Items as they are."""

    def quick(self, items: Sequence[Any]) -> list[dict[str, Any]] | None:
        """As ``Coder.quick``."""
        for item in items:
            if type(item) is not dict or _TEXT in item or SEALED in item:
                return None
        return list(items)

    def encode(
        self,
        items: Sequence[Any],
        request: str | None,  # noqa: ARG002 - the same without it
    ) -> list[dict[str, Any]]:
        """As ``Coder.encode``."""
        return [self._encoded(item) for item in items]

    def _encoded(self, item: Any) -> dict[str, Any]:
        text = json.dumps(item)
        value = json.loads(text)
        if not isinstance(value, dict) or _TEXT in value or SEALED in value:
            return {_TEXT: text}
        try:
            check_json(value)
        except ValueError:
            return {**labels_of(value), _TEXT: text}
        return value

    def decode_all(self, messages: list[dict[str, Any]]) -> list[Any]:
        """As ``Coder.decode_all``."""
        for message in messages:
            if _TEXT in message or SEALED in message:
                return [self.decode(each) for each in messages]
        return messages

    def decode(self, message: dict[str, Any]) -> Any:
        """As ``Coder.decode``."""
        if _TEXT in message:
            try:
                return json.loads(message[_TEXT])
            except (TypeError, ValueError, RecursionError) as exc:  # nothing that is written here
                msg = "no item"
                raise Unreadable(msg) from exc
        if SEALED in message:
            raise Unreadable("no key")
        return message
