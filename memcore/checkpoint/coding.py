"""How values become bytes: what a graph store asks of its caller's serialiser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from memcore.codec import decode_json, encode_json
from memcore.errors import CorruptValueError, InvalidItemError, UndecodableError
from memcore.privacy.msgpack import unpack

__all__ = ["Coder", "JsonCoder", "Opaque", "StoredCoder", "Typed", "Wrapper"]

Typed = tuple[str, bytes]
"""``(name of the type, content)``, as LangGraph's serialisers give it."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """An object whose fields are stored as values of their own, to share what they hold."""

    fields: Callable[[Any], list[Any]]
    make: Callable[[list[Any]], Any]


class Coder(Protocol):
    """A serialiser as the graph store sees it.

    ``identity``: what it decodes may be reused by coders of the same identity. ``splits``: whether
    a list may be stored as its elements: what the elements decode to is what the list holds.
    ``secret``: whether content is encrypted; ``seal`` and ``open`` then are its cipher.
    """

    @property
    def identity(self) -> object:
        """Compared with ``is``."""

    @property
    def splits(self) -> bool:
        """Whether the parts of lists and dicts may be stored apart."""

    @property
    def secret(self) -> bool:
        """Whether ``seal`` encrypts."""

    @property
    def wrappers(self) -> Mapping[type, tuple[str, Wrapper]]:
        """Types that are stored field by field, with the names that manifests have for them."""

    def encode(self, value: Any) -> Typed:
        """Serialise; raises what the serialiser raises."""

    def decode(self, typed: Typed) -> Any:
        """The value of ``encode``."""

    def seal(self, typed: Typed) -> Typed:
        """What is stored."""

    def open(self, typed: Typed) -> Typed:
        """What was sealed.

        Raises:
            CorruptValueError: it was stored in clear, or under another key.
        """


_JSON: Final = "json"
_PLAIN: Final = "json-plain"
_BYTES: Final = "bytes"


@dataclass(frozen=True, slots=True)
class JsonCoder:
    """memcore's own: JSON without loss, and bytes."""

    identity: object = "json"
    splits: bool = True
    finite: bool = True
    """Whether it refuses NaN and infinities; of other coders it is assumed that they do not."""
    secret: bool = False
    wrappers: Mapping[type, tuple[str, Wrapper]] = field(default_factory=dict)

    def encode(self, value: Any) -> Typed:
        """JSON, or bytes as they are.

        Raises:
            InvalidItemError: neither.
        """
        if isinstance(value, bytes):
            return _BYTES, value
        try:
            body, flags = encode_json(value)
        except ValueError as exc:
            msg = f"the value is not JSON: {exc}"
            raise InvalidItemError(msg) from exc
        return _PLAIN if flags else _JSON, body

    def decode(self, typed: Typed) -> Any:
        """The value.

        Raises:
            UndecodableError: the type is unknown.
        """
        kind, body = typed
        if kind == _BYTES:
            return body
        if kind in (_JSON, _PLAIN):
            return decode_json(body, int(kind == _PLAIN))
        msg = (
            f"a value of type {kind[:40]!r} was not written by this serialiser; use the one it was"
        )
        raise UndecodableError(msg, key=b"")

    def seal(self, typed: Typed) -> Typed:
        """As it is."""
        return typed

    def open(self, typed: Typed) -> Typed:
        """As it is."""
        return typed


@dataclass(frozen=True, slots=True)
class Opaque:
    """Stands for stored content that is neither JSON nor msgpack: its type and size are known."""

    kind: str
    size: int

    def __str__(self) -> str:
        return f"<{self.kind:.40}: {self.size} bytes>"


_MSGPACK: Final = "msgpack"
_NULL: Final = "null"
_CLEAR: Final = frozenset((_BYTES, "bytearray"))
_SEALED: Final = "+"
_OURS: Final = frozenset(("node", "page", "writes", _BYTES))
"""Types of what the graph store itself writes, and seals if the serialiser encrypts."""


@dataclass(frozen=True, slots=True)
class StoredCoder:
    """Reads what any serialiser wrote as plain data, and makes no object of it.

    For whoever looks at a file that others wrote: JSON and msgpack become lists, dicts, strings and
    numbers, msgpack's extensions stay bytes (``Extension``), other types are ``Opaque``. Nothing
    that the content names is imported or called. It stores nothing.
    """

    identity: object = "stored"
    splits: bool = False
    secret: bool = False
    wrappers: Mapping[type, tuple[str, Wrapper]] = field(default_factory=dict)

    def encode(self, value: Any) -> Typed:
        """Refuse: nothing is stored without the serialiser of the thread.

        Raises:
            InvalidItemError: always.
        """
        msg = f"a {type(value).__name__} cannot be stored without a serialiser"
        raise InvalidItemError(msg)

    def decode(self, typed: Typed) -> Any:
        """The content as plain data.

        Raises:
            CorruptValueError: it is not what its type says.
        """
        kind, body = typed
        try:
            if kind == _NULL:
                return None
            if kind in _CLEAR:
                return body
            if kind in (_JSON, _PLAIN):
                return decode_json(body, int(kind == _PLAIN))
            if kind == _MSGPACK:
                return unpack(body)
        except (ValueError, RecursionError) as exc:
            msg = f"a value of type {kind!r} in a checkpoint is malformed ({exc})"
            raise CorruptValueError(msg, key=b"") from exc
        return Opaque(kind, len(body))

    def seal(self, typed: Typed) -> Typed:
        """As it is."""
        return typed

    def open(self, typed: Typed) -> Typed:
        """As it is.

        Raises:
            CorruptValueError: the thread's serialiser encrypted it.
        """
        kind, mark, _ = typed[0].partition(_SEALED)
        if mark and kind in _OURS:
            msg = (
                "the thread was encrypted by the serialiser that wrote it: only a program that "
                "opens it with that serialiser (MemcoreSaver, say) can read it"
            )
            raise CorruptValueError(msg, key=b"")
        return typed
