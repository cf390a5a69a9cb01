"""MemcoreCache: cached results of LangGraph nodes in a memcore file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Self

from langgraph.cache.base import BaseCache, FullKey, Namespace, ValueT
from langgraph.checkpoint.serde.base import SerializerProtocol

from memcore.adapters.langgraph.items import address, exact_range, named
from memcore.adapters.langgraph.serde import (
    AllowedTypes,
    SerdeCoder,
    coder_of,
    default_serde,
    type_names,
)
from memcore.adapters.source import Opened, Source, scope_of
from memcore.aio.commit import settled
from memcore.codec.values import decoding
from memcore.database.scope import rows_of, scope_filter_of
from memcore.errors import CorruptValueError, InvalidItemError, UntrustedTypeError
from memcore.faces import logger
from memcore.graph import Coder, admitting
from memcore.kv import KeyValueTxn
from memcore.telemetry import adapting, adapts

__all__ = [
    "MemcoreCache",
]


_log = logger(__name__)
_LENGTH_BYTES: Final = 4
_UNREAD: Final = "pickle"
"""A type that is neither written nor read: unpickling executes code from the file."""

Key = tuple[tuple[str, ...], str]
Row = tuple[str, bytes, float | None]


@adapts(
    get="cache.get . count",
    aget="cache.get . count",
    set="cache.put . entries",
    aset="cache.put . entries",
    clear="cache.clear",
    aclear="cache.clear",
    sweep="sweep . number",
)
class MemcoreCache(Opened, BaseCache[ValueT]):
    """Values under (namespace, key), with a time to live in seconds.

    Expired values are hidden immediately.

    Every method exists in a synchronous and an asynchronous form (``get``, ``aget``, ...), usable
    from any thread; ``set`` commits all its values atomically. A value of a type that the
    serializer does not know, or that is not allowed, is a miss, so it is recomputed. A value of a
    known type that it cannot read raises CorruptValueError. Pickles are neither written nor read,
    whatever the serializer would do.

    Args:
        source: a database, a scope of one, or a path. A file that is opened here is closed by
            ``close``.
        serde: the serializer; None: LangGraph's own, without pickle.
        allowed_types: types that a value may have, as for MemcoreSaver. A value of another type is
            a miss until this process has stored one.
        namespace: the key/value namespace of the values.
        app: the application; None: ``"default"``, or the scope's.
        user: the user; as ``app``. A cache cannot reach values of another user or application.
        durability: the durability of a file that is created here, as in ``memcore.open``.
        allow_unsafe: consent to ``durability="none"`` for a file, as in ``memcore.open``.

    Raises:
        InvalidOptionError: an option has the wrong type or is out of range.
    """

    def __init__(
        self,
        source: Source,
        *,
        serde: SerializerProtocol | None = None,
        allowed_types: AllowedTypes = None,
        namespace: str = "langgraph.cache",
        app: str | None = None,
        user: str | None = None,
        durability: str | None = None,
        allow_unsafe: bool = False,
    ) -> None:
        super().__init__(serde=default_serde() if serde is None else serde)
        self._allowed = type_names(allowed_types)
        self._last_coder = self.serde, coder_of(self.serde, self._allowed)
        scope, self._owned = scope_of(
            source, app=app, user=user, durability=durability, allow_unsafe=allow_unsafe
        )
        self._kv = rows_of(scope, namespace)
        self._scope_filter = scope_filter_of(scope)
        self.observer = adapting(source, "langgraph", (scope.app, scope.user, None))

    @classmethod
    def from_conn_string(
        cls,
        path: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        allowed_types: AllowedTypes = None,
        durability: str | None = None,
        allow_unsafe: bool = False,
        namespace: str = "langgraph.cache",
        app: str | None = None,
        user: str | None = None,
    ) -> Self:
        """A cache over the file at a path, for ``with`` and ``async with``."""
        return cls(
            path, serde=serde, allowed_types=allowed_types, durability=durability,
            allow_unsafe=allow_unsafe, namespace=namespace, app=app, user=user,
        )  # fmt: skip

    @property
    def _coder(self) -> SerdeCoder:
        if self._last_coder[0] is not self.serde:
            self._last_coder = self.serde, coder_of(self.serde, self._allowed)
        return self._last_coder[1]

    def sweep(self) -> int:
        """Remove expired values, already hidden, from the file; return their number."""
        return self._kv.sweep(2**31)

    # --- reading ----------------------------------------------------------------------------------

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, ValueT]:
        """The values of those keys that have one.

        Raises:
            CorruptValueError: the serializer cannot read a value of a type that it knows, for
                example one encrypted with another key.
        """
        wanted = [(tuple(namespace), key) for namespace, key in keys]
        texts = [(full, address(*full)) for full in wanted]
        rows = self._kv.read(lambda view: [(*t, view.get(named("K", t[1]))) for t in texts])
        found: dict[FullKey, ValueT] = {}
        for full, text, raw in rows:
            typed = None if raw is None else _unpacked(raw, text)
            if typed is not None:
                self._load(found, full, typed)
        return found

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, ValueT]:
        """As ``get``."""
        return self.get(keys)

    def _load(self, found: dict[FullKey, ValueT], full: Key, typed: tuple[str, bytes]) -> None:
        if _is_pickle(typed[0]):
            return
        try:
            found[full] = self._coder.loads(self._coder.open(typed))
        except (NotImplementedError, UntrustedTypeError) as exc:
            _log.info("the cached value of %.200r is not read: %s", full, exc)  # a miss: recomputed
        except Exception as exc:
            msg = (
                f"the cached value of {full!r:.200} is no {typed[0]} that this serializer reads "
                f"({exc}): clear its namespace, or open the cache with the serializer that wrote it"
            )
            raise CorruptValueError(msg, key=named("K", address(*full)).encode()) from exc

    # --- writing ----------------------------------------------------------------------------------

    def set(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> None:
        """Store values, each with its time to live in seconds (None: forever; 0: not stored).

        Raises:
            InvalidItemError: the serializer can only pickle a value; nothing is stored.
        """
        self._kv.transact(self._writing(pairs))

    async def aset(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> None:
        """As ``set``; if cancelled, it still waits for the outcome of its commit."""
        closure = self._writing(pairs)
        await settled(self._kv.submit(closure, asyncio.get_running_loop()))

    def _writing(
        self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]
    ) -> Callable[[KeyValueTxn], None]:
        rows = [self._row(full, *value) for full, value in pairs.items()]

        def closure(txn: KeyValueTxn) -> None:
            for name, raw, ttl in rows:
                if ttl is not None and ttl <= 0:
                    txn.delete(name)
                else:
                    txn.put(name, raw, ttl_seconds=ttl)

        return closure

    def _row(self, full: FullKey, value: ValueT, ttl: float | None) -> Row:
        kind, payload = self._dumped(full, value)
        if _is_pickle(kind):
            msg = (
                f"the value of {full!r:.200} can only be pickled ({type(value).__name__}): return "
                "what msgpack or JSON can hold from nodes that are cached"
            )
            raise InvalidItemError(msg)
        text = address(tuple(full[0]), full[1])
        return named("K", text), _packed(text, kind, payload), ttl

    def _dumped(self, full: FullKey, value: ValueT) -> tuple[str, bytes]:
        coder: Coder = self._coder
        if self._scope_filter is not None:
            for name in (*full[0], full[1]):
                self._scope_filter.name(name, "key of a cached value")
            coder = admitting(self._scope_filter, coder, [("cache", value)])
        return coder.seal(coder.encode(value))

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Remove the values of these namespaces, but not of those below them; None: all values."""
        if namespaces is None:
            self._kv.clear()
            return
        for labels in map(tuple, namespaces):
            start, stop = exact_range("K", labels)
            self._kv.delete_range(start, stop)
            self._clear_long(start[1:])

    def _clear_long(self, start: str) -> None:
        """Remove the values of a namespace whose keys are digests because they were too long."""
        names = [name for name, raw in self._kv.scan(prefix="k") if _text(raw).startswith(start)]
        for name in names:
            self._kv.delete(name)

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """As ``clear``."""
        await asyncio.to_thread(self.clear, namespaces)


def _is_pickle(kind: str) -> bool:
    """Return whether the type is pickle, including encrypted (``pickle+aes``)."""
    return _UNREAD in kind.split("+")


def _packed(text: str, kind: str, payload: bytes) -> bytes:
    parts = (text.encode("utf-8", "surrogatepass"), kind.encode())
    return b"".join([len(part).to_bytes(_LENGTH_BYTES, "big") + part for part in parts]) + payload


def _parts(raw: bytes) -> Iterable[bytes]:
    for _ in range(2):
        end = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "big")
        if len(raw) < end:
            msg = "a cached value is cut short"
            raise ValueError(msg)
        yield raw[_LENGTH_BYTES:end]
        raw = raw[end:]
    yield raw


def _text(raw: bytes) -> str:
    with decoding(b"", "row of a cached value"):
        return next(iter(_parts(raw))).decode("utf-8", "surrogatepass")


def _unpacked(raw: bytes, text: str) -> tuple[str, bytes] | None:
    """Type and payload; None if the row belongs to another key with the same digest."""
    with decoding(b"", "row of a cached value"):
        found, kind, payload = _parts(raw)
        if found.decode("utf-8", "surrogatepass") != text:
            return None
        return kind.decode(), payload
