"""Entries at the border of the file: judged and redacted before they are encoded."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from memcore.blobs import BlobRef
from memcore.codec import plain_json
from memcore.privacy.border import Passage
from memcore.privacy.guard import is_operator

__all__ = ["Gate"]


class Gate:
    """The border as the entries of one namespace pass it."""

    __slots__ = ("_is_named", "_namespace", "_passage")

    def __init__(self, passage: Passage, namespace: str) -> None:
        self._passage = passage
        self._namespace = namespace
        self._is_named = False
        """Whether the name of the namespace passed."""

    @property
    def is_operator(self) -> bool:
        """Whether the caller is an operator."""
        return is_operator()

    def value(self, value: Any, key: Any) -> Any:
        """A value as it may be stored; what is no JSON is refused where it is encoded.

        Raises:
            BlockedError: a guard refuses it, or something is found in its key or namespace.
        """
        self._name(key)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._passage.bytes(bytes(value), "kv", name=self._namespace)
        with suppress(TypeError, ValueError, RecursionError):
            value = plain_json(value)
        under = key if isinstance(key, str) else None
        return self._passage.value(value, "kv", name=self._namespace, under=under)

    def values(self, entries: Any) -> Any:
        """The values of a mapping; raises what ``value`` raises."""
        if not isinstance(entries, Mapping):
            return entries
        return {key: self.value(value, key) for key, value in entries.items()}

    def content(self, content: Any) -> Any:
        """A content as it may be stored; raises what ``value`` raises."""
        if isinstance(content, BlobRef) or not isinstance(content, bytes | bytearray | memoryview):
            return content
        return self._passage.bytes(bytes(content), "kv", name=self._namespace)

    def change(self, key: Any = None) -> None:
        """Entries are changed otherwise; raises what ``value`` raises. ``key``: one may be made."""
        if key is not None:
            self._name(key)
        self._passage.judge(None, "kv", name=self._namespace)

    def _name(self, key: Any) -> None:
        if not self._is_named:
            self._passage.name(self._namespace, "name of a namespace")
            self._is_named = True
        self._passage.name(key, "key of an entry")
