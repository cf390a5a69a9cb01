"""LangGraph serializers for the graph store, with the allow-list of types that a file may build.

A msgpack value written by LangGraph names Python objects to import and call. A type is built only
if it is one of LangGraph's safe types, was allowed by the caller, or is named in a value that this
process itself has stored; anything else is refused before it is imported.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterable, Mapping
from threading import local
from typing import Any, Final, Literal, TypeGuard

from langgraph._internal._serde import collect_allowlist_from_schemas
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import (
    EXT_DELTA_SNAPSHOT,
    EXT_NUMPY_ARRAY,
    JsonPlusSerializer,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Send

from memcore._fast import types_in_packed
from memcore.errors import (
    CorruptValueError,
    InvalidOptionError,
    MemcoreError,
    UndecodableError,
    UntrustedTypeError,
)
from memcore.faces import logger
from memcore.graph import Typed, Wrapper
from memcore.records import record

__all__ = [
    "ALL_TYPES",
    "AllowedTypes",
    "SerdeCoder",
    "TypeNames",
    "coder_of",
    "default_serde",
    "takes_types",
    "type_names",
    "with_types",
]


TypeName = tuple[str, ...]
"""Module and name of a type, as in LangGraph's lists."""
TypeNames = frozenset[TypeName] | Literal["all"]
ALL_TYPES: Final = "all"
AllowedTypes = Collection[type | TypeName] | Literal["all"] | None
"""For ``allowed_types``: classes, state schemas, ``(module, name)``; or ``"all"``."""

_log = logger(__name__)
_MSGPACK: Final = "msgpack"
_JSON: Final = "json"
_PICKLE: Final = "pickle"
_OWN_CONSTRUCTOR: Final = 2
"""LangGraph's constructor version; 1 is LangChain's, which imports by its own tables."""
_ATOMS: Final = frozenset((str, int, float, bool, bytes, bytearray, type(None)))
"""Types whose values name no type."""

_WRAPPERS: Final = {
    Send: (
        "send",
        Wrapper(
            lambda send: [send.node, send.arg, send.timeout],
            lambda fields: Send(fields[0], fields[1], timeout=fields[2]),
            content=1,
        ),
    ),
    _DeltaSnapshot: (
        "delta",
        Wrapper(lambda snapshot: [snapshot.value], lambda fields: _DeltaSnapshot(fields[0])),
    ),
}
_NAMELESS: Final = 1 << EXT_DELTA_SNAPSHOT | 1 << EXT_NUMPY_ARRAY
"""Codes of the msgpack extensions that name no type, as bits."""
_SEALED: Final = "+"
"""Separates the type from the cipher's name, as EncryptedSerializer does."""
_OURS: Final = frozenset(("node", "page", "writes"))
"""Types of the graph store's own content, which no serializer has."""


@record(frozen=True, slots=True)
class SerdeCoder:
    """A serializer; with ``cipher``, content is addressed by its plaintext and then sealed.

    ``guard`` decides which types are built; None: the serializer does, because it is the caller's
    own.
    """

    serde: SerializerProtocol
    identity: object
    splits: bool
    cipher: CipherProtocol | None = None
    guard: _TypeGuard | None = None

    @property
    def secret(self) -> bool:
        """True if content is encrypted."""
        return self.cipher is not None

    @property
    def wrappers(self) -> Mapping[type, tuple[str, Wrapper]]:
        """Send and the snapshots of delta channels."""
        return _WRAPPERS if self.splits else {}

    def encode(self, value: Any) -> Typed:
        """As ``dumps_typed``; from then on this process may read the types that the value names."""
        typed = self.serde.dumps_typed(value)
        if self.guard is not None and typed[0] == _MSGPACK and type(value) not in _ATOMS:
            self.guard.note_stored(typed[1])
        return typed

    def loads(self, typed: Typed) -> Any:
        """As ``loads_typed``.

        Raises:
            UntrustedTypeError: the value names a type that is not allowed.
            NotImplementedError: the serializer does not know the value's type.
        """
        return self.serde.loads_typed(typed) if self.guard is None else self.guard.loads(typed)

    def decode(self, typed: Typed) -> Any:
        """Decode a value.

        Raises:
            UntrustedTypeError: it names a type that is not allowed.
            UndecodableError: the serializer cannot read it.
        """
        try:
            return self.loads(typed)
        except MemcoreError:
            raise
        except Exception as exc:  # a serializer may raise anything
            msg = (
                f"a stored value of type {typed[0][:40]!r} cannot be read by this serialiser "
                f"({type(exc).__name__}: {exc!s:.200}): open the thread with the one that wrote it"
            )
            raise UndecodableError(msg, key=b"") from exc

    def seal(self, typed: Typed) -> Typed:
        """Encrypt, if there is a cipher."""
        if self.cipher is None:
            return typed
        name, content = self.cipher.encrypt(typed[1])
        return f"{typed[0]}{_SEALED}{name}", content

    def open(self, typed: Typed) -> Typed:
        """Decrypt, if there is a cipher; values stored in plaintext are then refused.

        Raises:
            CorruptValueError: it was stored in plaintext or with another cipher.
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
        except Exception as exc:  # a cipher may raise anything
            raise _refused(f"cannot be decrypted with this key ({exc})") from exc


def _refused(what: str) -> CorruptValueError:
    msg = f"the stored value {what}: open the thread with the serialiser that wrote it"
    return CorruptValueError(msg, key=b"")


def default_serde() -> JsonPlusSerializer:
    """The default serializer of savers and caches: safe types only, no pickle."""
    return _STRICT


_STRICT: Final = JsonPlusSerializer(allowed_msgpack_modules=None)


def coder_of(serde: SerializerProtocol, allowed: TypeNames = frozenset()) -> SerdeCoder:
    """The coder for a serializer.

    With LangGraph's own serializer, encrypted or not, values are stored by their parts. Nothing is
    known about any other one, so each value is stored whole, and the serializer decides which types
    it builds.

    Args:
        serde: the serializer.
        allowed: types that may be built in addition to the safe ones and those listed in ``serde``.

    Raises:
        InvalidOptionError: types are given for a serializer that is not LangGraph's.
    """
    inner, cipher = _unwrapped(serde)
    # A value decoded by one coder may not be returned by another that may build fewer types.
    identity = object() if allowed else serde
    if _is_json_plus(inner):
        own_hook = getattr(inner, "_custom_unpack_ext_hook", False)
        guard = None if own_hook else _TypeGuard(inner, allowed)
        return SerdeCoder(inner, identity, splits=True, cipher=cipher, guard=guard)
    if allowed:
        msg = (
            "allowed_types: goes with LangGraph's JsonPlusSerializer, alone or inside an "
            f"EncryptedSerializer; {type(inner).__name__} decides for itself what it builds"
        )
        raise InvalidOptionError(msg)
    return SerdeCoder(inner, identity, splits=False, cipher=cipher)


def takes_types(serde: SerializerProtocol) -> bool:
    """Return whether ``coder_of`` accepts allowed types for a serializer."""
    return _is_json_plus(_unwrapped(serde)[0])


def with_types(serde: SerializerProtocol, extra: Collection[TypeName]) -> SerializerProtocol:
    """A copy of a serializer derived from LangGraph's that may also build these types, else itself.

    LangGraph's own function for this replaces a subclass of ``EncryptedSerializer`` with a plain
    one, which cannot read what the subclass wrote.
    """
    if isinstance(serde, JsonPlusSerializer):
        return serde.with_msgpack_allowlist(extra)
    if isinstance(serde, EncryptedSerializer) and isinstance(serde.serde, JsonPlusSerializer):
        inner = serde.serde.with_msgpack_allowlist(extra)
        if inner is not serde.serde:
            clone = copy.copy(serde)
            clone.serde = inner
            return clone
    wrapped = serde.serde if isinstance(serde, EncryptedSerializer) else serde
    if not isinstance(wrapped, JsonPlusSerializer):
        name = type(wrapped).__name__
        _log.warning("%s decides itself what it builds: strict mode does not apply", name)
    return serde


def _unwrapped(serde: Any) -> tuple[Any, Any]:
    """The serializer inside LangGraph's encrypting one and its cipher; or itself and None."""
    if isinstance(serde, EncryptedSerializer) and _is_own(serde, EncryptedSerializer):
        return serde.serde, serde.cipher
    return serde, None


def _is_json_plus(inner: object) -> TypeGuard[JsonPlusSerializer]:
    return isinstance(inner, JsonPlusSerializer) and _is_own(inner, JsonPlusSerializer)


def _is_own(serde: object, kind: type) -> bool:
    """Return whether a serializer's class overrides neither method of ``kind``."""
    return all(
        getattr(type(serde), name) is getattr(kind, name) for name in ("dumps_typed", "loads_typed")
    )


# --- which types may be built ---------------------------------------------------------------------


def type_names(allowed: AllowedTypes) -> TypeNames:
    """The types named by the ``allowed_types`` option, including those of schema fields.

    Raises:
        InvalidOptionError: an entry is neither a class nor ``(module, name)``.
    """
    if allowed is None:
        return frozenset()
    if allowed == ALL_TYPES:
        return ALL_TYPES
    if isinstance(allowed, str) or not isinstance(allowed, Iterable):
        msg = f"allowed_types: expected a list of types, or 'all', got {allowed!r:.80}"
        raise InvalidOptionError(msg)
    found: set[TypeName] = set()
    for entry in allowed:
        if isinstance(entry, type):
            found.add((entry.__module__, entry.__name__))
            found |= collect_allowlist_from_schemas(schemas=[entry])
        elif _is_name(entry):
            found.add(tuple(entry))
        else:
            msg = f"allowed_types: expected a class or (module, name), got {entry!r:.80}"
            raise InvalidOptionError(msg)
    return frozenset(found)


def _is_name(entry: Any) -> bool:
    return (
        isinstance(entry, tuple | list)
        and len(entry) == 2  # noqa: PLR2004 - module and name
        and all(isinstance(part, str) and part for part in entry)
    )


class _TypeGuard:
    """Decodes like a JsonPlusSerializer, but refuses to build types that are not allowed.

    LangGraph's own hook decides. For a type that it does not build it returns the raw content,
    which would silently be a wrong value; here that is an error.
    """

    def __init__(self, serde: JsonPlusSerializer, allowed: TypeNames) -> None:
        self._serde = serde
        self._allowed = allowed
        # True is also LangGraph's default, which means no list.
        listed = getattr(serde, "_allowed_msgpack_modules", None)
        self._listed = frozenset(() if listed in (None, True) else listed)
        self._reader: JsonPlusSerializer | None = None
        self._names: frozenset[TypeName] = frozenset()
        self._stored = -1

    def loads(self, typed: Typed) -> Any:
        """As ``loads_typed``.

        Raises:
            UntrustedTypeError: the value names a type that is not allowed, or is a pickle.
            NotImplementedError: the serializer does not know the type of the value.
        """
        kind, content = typed
        if kind == _PICKLE and not self._serde.pickle_fallback:
            msg = (
                "a stored value is a pickle, and to read it is to run what the file says: it was "
                "not read; serde=JsonPlusSerializer(pickle_fallback=True) reads it, for files that "
                "nobody else can write"
            )
            raise UntrustedTypeError(msg, module="pickle", name="loads")
        reader = self._current_reader()
        if kind == _JSON and self._allowed != ALL_TYPES:
            json.loads(content, object_hook=self._need_allowed)
        # Building a type may read another value, so each read has its own list.
        before = getattr(_blocked, "types", None)
        blocked: list[TypeName] = []
        _blocked.types = blocked
        try:
            value = reader.loads_typed(typed)
        finally:
            _blocked.types = before
        if blocked:
            raise _untrusted(*blocked[0])
        return value

    def note_stored(self, content: bytes) -> None:
        """Allow the types named in a value that this process has just serialized."""
        for name in types_in_packed(content, _NAMELESS):
            if name not in SAFE_MSGPACK_TYPES and name not in _stored_types:
                self._note_type(name)

    def _note_type(self, name: TypeName) -> None:
        if self._allowed == ALL_TYPES or name in self._listed or name in self._allowed:
            return
        _stored_types.add(name)
        # Otherwise this would only surface when the program is restarted.
        _log.warning(
            "values of type %s.%s are stored, which no option allows: this process reads them, "
            "another one needs allowed_types=[(%r, %r)], the class, or the schema of the state",
            *name, *name,
        )  # fmt: skip

    def _current_reader(self) -> JsonPlusSerializer:
        """The serializer with everything that is currently allowed."""
        reader = self._reader
        # Types stored by this process are only ever added, so their count shows whether there are
        # new ones.
        if reader is None or self._stored != len(_stored_types):
            count = len(_stored_types)
            if self._allowed == ALL_TYPES:
                reader = self._made(True)
            else:
                self._names = self._listed | self._allowed | _stored_types.copy()
                reader = self._made(self._names)
            self._reader = reader
            self._stored = count  # set last: other threads check it before they take the reader
        return reader

    def _made(self, names: frozenset[TypeName] | Literal[True]) -> JsonPlusSerializer:
        constructors: Any = True
        if names is not True:
            constructors = [(*name[0].split("."), *name[1:]) for name in names]
        return JsonPlusSerializer(
            pickle_fallback=self._serde.pickle_fallback,
            allowed_json_modules=constructors,
            allowed_msgpack_modules=names,
        )

    def _need_allowed(self, found: dict[str, Any]) -> None:
        """Refuse constructors in the JSON that LangGraph wrote before it used msgpack."""
        if "lc" not in found or found.get("type") not in ("constructor", "secret"):
            return
        path = found.get("id")
        parts = [str(part) for part in path] if isinstance(path, list) else [str(path)]
        name = (".".join(parts[:-1]), parts[-1])
        is_listed = name in SAFE_MSGPACK_TYPES or name in self._names
        if found["lc"] != _OWN_CONSTRUCTOR or not is_listed:
            raise _untrusted(*name)


_stored_types: Final[set[TypeName]] = set()
"""Types of values stored by this process; it uses them itself, so they are already imported."""
_blocked: Final = local()
"""``types``: the types refused while this thread reads a value; None or unset if it reads none."""


def _note_blocked(event: SerdeEvent) -> None:
    found: list[TypeName] | None = getattr(_blocked, "types", None)
    if found is not None and event["kind"] in ("msgpack_blocked", "msgpack_method_blocked"):
        found.append((event["module"], event["name"]))


# The only place where LangGraph reports what it did not build; called in the decoding thread.
register_serde_event_listener(_note_blocked)


def _untrusted(module: object, name: object) -> UntrustedTypeError:
    msg = (
        f"a stored value names the type {module!s:.200}.{name!s:.200}, which is not allowed: "
        f"nothing of it was imported or run; if it is yours, open the file with "
        f"allowed_types=[({module!r:.200}, {name!r:.200})] (classes and schemas of states do, too)"
    )
    return UntrustedTypeError(msg, module=str(module), name=str(name))
