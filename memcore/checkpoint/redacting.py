"""Values of a graph at the border of the file: what a serialiser wrote is redacted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from memcore.checkpoint.coding import Coder, Typed, Wrapper
from memcore.codec import decode_json, encode_json
from memcore.errors import InvalidItemError
from memcore.privacy.border import Passage, Redacts
from memcore.privacy.packed import Opaque, redact_packed

__all__ = ["RedactingCoder", "admitting"]

_NULL: Final = "null"
_BYTES: Final = frozenset(("bytes", "bytearray"))
_MSGPACK: Final = "msgpack"
_JSON: Final = {"json": 0, "json-plain": 1}


@dataclass(frozen=True, slots=True)
class RedactingCoder:
    """A coder whose values are redacted when they are written; it reads what any other wrote."""

    inner: Coder
    redacts: Redacts
    allow_opaque: bool = False

    @property
    def identity(self) -> object:
        """The inner coder's: what is decoded is the same."""
        return self.inner.identity

    @property
    def splits(self) -> bool:
        """The inner coder's."""
        return self.inner.splits

    @property
    def finite(self) -> bool:
        """The inner coder's."""
        return bool(getattr(self.inner, "finite", False))

    @property
    def secret(self) -> bool:
        """The inner coder's."""
        return self.inner.secret

    @property
    def wrappers(self) -> Mapping[type, tuple[str, Wrapper]]:
        """The inner coder's."""
        return self.inner.wrappers

    def encode(self, value: Any) -> Typed:
        """Serialise and redact.

        Raises:
            InvalidItemError: what was written cannot be looked into (it is pickled, or encrypted).
        """
        return self._redacted(*self.inner.encode(value), None)

    def encode_under(self, key: str, value: Any) -> Typed:
        """As ``encode``, of what stands under a key: that tells ids from numbers."""
        return self._redacted(*self.inner.encode(value), key)

    def holds(self, key: str) -> bool:
        """Whether something is found in the key of an entry."""
        return bool(self.redacts.counted(key)[1])

    def encode_plain(self, value: Any) -> Typed:
        """Serialise what holds ids and versions alone."""
        return self.inner.encode(value)

    def decode(self, typed: Typed) -> Any:
        """The value."""
        return self.inner.decode(typed)

    def seal(self, typed: Typed) -> Typed:
        """As the inner coder."""
        return self.inner.seal(typed)

    def open(self, typed: Typed) -> Typed:
        """As the inner coder."""
        return self.inner.open(typed)

    def _redacted(self, kind: str, content: bytes, under: str | None) -> Typed:
        if kind == _NULL:
            return kind, content
        if kind in _BYTES:
            return kind, self.redacts.counted_bytes(bytes(content))[0]
        if kind in _JSON:
            return self._redacted_json(kind, content, under)
        why = f"it was written as {kind[:40]!r}"
        if kind == _MSGPACK:
            try:
                return kind, redact_packed(self.redacts, bytes(content), under)
            except Opaque as exc:
                why = str(exc)
        if self.allow_opaque:
            return kind, content
        msg = (
            f"the value cannot be redacted: {why}; store what msgpack or JSON can hold, or allow "
            "it by a policy with allow_opaque=True"
        )
        raise InvalidItemError(msg)

    def _redacted_json(self, kind: str, content: bytes, under: str | None) -> Typed:
        found = decode_json(content, _JSON[kind])
        made = self.redacts.value(found if under is None else {under: found})[0]
        if under is not None:
            (made,) = made.values()
        if made is found:
            return kind, content
        body, flags = encode_json(made)
        return ("json-plain" if flags else "json"), body


def admitting(passage: Passage, coder: Coder, values: Sequence[tuple[str, Any]]) -> Coder:
    """The coder that writes these values, by channel, once they were judged.

    Raises:
        BlockedError: a guard refuses one of them, or something is found in the name of a channel.
    """
    for name, _ in values:
        passage.name(name, "name of a channel")
    redacts = passage.redactor(values, "graph")
    return coder if redacts is None else RedactingCoder(coder, redacts, passage.allow_opaque)
