"""LangGraph's serialisers as the graph store sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Send

from memcore.checkpoint import Typed, Wrapper
from memcore.errors import CorruptValueError

__all__ = ["SerdeCoder", "coder_of", "default_coder"]

_WRAPPERS: Final = {
    Send: (
        "send",
        Wrapper(
            lambda send: [send.node, send.arg, send.timeout],
            lambda fields: Send(fields[0], fields[1], timeout=fields[2]),
        ),
    ),
    _DeltaSnapshot: (
        "delta",
        Wrapper(lambda snapshot: [snapshot.value], lambda fields: _DeltaSnapshot(fields[0])),
    ),
}
_SEALED: Final = "+"
"""Between the type and the cipher's name, as EncryptedSerializer writes it."""
_OURS: Final = frozenset(("node", "page", "writes"))
"""Types of the graph store's own content that no serialiser has."""


@dataclass(frozen=True, slots=True)
class SerdeCoder:
    """A serialiser; with ``cipher``, content is sealed after it was addressed by its plaintext."""

    serde: SerializerProtocol
    identity: object
    splits: bool
    cipher: CipherProtocol | None = None

    @property
    def secret(self) -> bool:
        """Whether content is encrypted."""
        return self.cipher is not None

    @property
    def wrappers(self) -> Mapping[type, tuple[str, Wrapper]]:
        """Send and the snapshots of delta channels."""
        return _WRAPPERS if self.splits else {}

    def encode(self, value: Any) -> Typed:
        """As ``dumps_typed``."""
        return self.serde.dumps_typed(value)

    def decode(self, typed: Typed) -> Any:
        """As ``loads_typed``."""
        return self.serde.loads_typed(typed)

    def seal(self, typed: Typed) -> Typed:
        """Encrypt, if there is a cipher."""
        if self.cipher is None:
            return typed
        name, content = self.cipher.encrypt(typed[1])
        return f"{typed[0]}{_SEALED}{name}", content

    def open(self, typed: Typed) -> Typed:
        """Decrypt, if there is a cipher; what was stored in clear is refused.

        Raises:
            CorruptValueError: it was stored in clear though there is a cipher, or under another.
        """
        kind, _, name = typed[0].partition(_SEALED)
        if self.cipher is None:
            if name and (self.splits or kind in _OURS):
                raise _refused(f"is encrypted ({name[:40]!r}), and this saver's serialiser is not")
            return typed
        if not name:
            raise _refused("was stored in clear, and this saver's serialiser encrypts")
        try:
            return kind, self.cipher.decrypt(name, typed[1])
        except Exception as exc:  # whatever a cipher raises
            raise _refused(f"cannot be decrypted with this key ({exc})") from exc


def _refused(what: str) -> CorruptValueError:
    msg = f"the stored value {what}: open the thread with the serialiser that wrote it"
    return CorruptValueError(msg, key=b"")


def coder_of(serde: SerializerProtocol) -> SerdeCoder:
    """The coder for a serialiser.

    Values are stored by their parts if it is LangGraph's own, encrypted or not; of another one
    nothing is known, so each value is stored whole.
    """
    if isinstance(serde, EncryptedSerializer) and _is_own(serde, EncryptedSerializer):
        inner = serde.serde
        return SerdeCoder(inner, serde, _splits(inner), serde.cipher)
    return SerdeCoder(serde, serde, _splits(serde))


def _splits(serde: SerializerProtocol) -> bool:
    return isinstance(serde, JsonPlusSerializer) and _is_own(serde, JsonPlusSerializer)


def _is_own(serde: object, kind: type) -> bool:
    """Whether a subclass left the methods as they are."""
    return all(
        getattr(type(serde), name) is getattr(kind, name) for name in ("dumps_typed", "loads_typed")
    )


def default_coder() -> SerdeCoder:
    """The coder of a saver that was given no serialiser."""
    return coder_of(JsonPlusSerializer())
