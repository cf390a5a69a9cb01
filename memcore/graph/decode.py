"""Decoding of manifests into values; values decoded before are copied instead."""

from __future__ import annotations

import dataclasses
import gc
import os
import struct
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import PurePath
from re import Pattern
from types import MemberDescriptorType
from typing import Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from memcore._fast import Trees
from memcore.errors import CorruptValueError
from memcore.graph.manifest import (
    DEPTH_MAX,
    EMPTY,
    ID_BYTES,
    RUN,
    Coder,
    ListRun,
    Pages,
    ParsedNode,
    Sort,
    Typed,
    entries_in,
    flattened,
    ids,
    parse,
    rows_in,
    rows_of,
)
from memcore.graph.rows import id_of
from memcore.limits import KNOWN_CHUNKS, VALUES_CACHED_BYTES
from memcore.records import record

__all__ = [
    "MISSING",
    "REPEATED_BYTES_MAX",
    "REPEATED_TIMES",
    "Cache",
    "DecodeCache",
    "Joiner",
    "Shapes",
    "ValueParts",
    "classify",
]


# --- Shapes of types: the state of an object, for copies and comparison ---------------------------
# Only types whose entire state is known are copied: the built-in containers, and pydantic models,
# dataclasses and named tuples of such. All others are opaque: serialised at every put and decoded
# at every get, as other savers do with everything.

_OPAQUE: Final = 0
_LEAF: Final = 1
_OBJECT: Final = 2
_TUPLE: Final = 3
_HEAP_TYPE: Final = 1 << 9
"""Flag of types created by Python code; other types may keep state that is not visible here."""
_LEAVES: Final = (
    date,
    datetime,
    time,
    timedelta,
    timezone,
    Decimal,
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    Pattern,
    UUID,
    ZoneInfo,
    complex,
    range,
)

Shape = tuple[int, bool, tuple[str, ...], tuple[str, ...]]
_POINTER_BYTES: Final = struct.calcsize("P")
_FIELDS_SET: Final = "__pydantic_fields_set__"
"""pydantic's record of the fields that were set, which pydantic itself does not serialise."""


class Shapes:
    """Shapes of the types that a handle has encountered."""

    def __init__(self) -> None:
        self.trees = Trees(self._classify)
        """Copies and compares values by their shapes."""
        self._named: dict[tuple[str, str], type] = {}
        """Types that a serialiser looks up by module and name."""

    def _classify(self, kind: type) -> Shape:
        shape = classify(kind)
        if shape[0] != _OPAQUE and kind.__flags__ & _HEAP_TYPE:
            where = kind.__module__, kind.__name__
            if _named(where) is kind:
                self._named[where] = kind
        return shape

    def take_replaced(self) -> bool:
        """Return whether a type was replaced since the last call, for example by a module reload.

        Values decoded before are then instances of types that no serialiser would create any more.
        """
        gone = [where for where, kind in tuple(self._named.items()) if _named(where) is not kind]
        for where in gone:
            self._named.pop(where, None)
        return bool(gone)


def _named(where: tuple[str, str]) -> Any:
    module, name = where
    return getattr(sys.modules.get(module), "__dict__", {}).get(name)


def classify(kind: type) -> Shape:
    """``(sort, has a __dict__, slots, slots that count)`` of a type, as ``Trees`` requires."""
    if kind in _LEAVES or issubclass(kind, Enum | PurePath):
        return _LEAF, False, (), ()
    if issubclass(kind, tuple):
        named = hasattr(kind, "_fields") and _made_by_python(kind, tuple)
        return (_TUPLE if named else _OPAQUE), False, (), ()
    pydantic = sys.modules.get("pydantic")
    is_model = pydantic is not None and issubclass(kind, pydantic.BaseModel)
    if (is_model or dataclasses.is_dataclass(kind)) and _made_by_python(kind, object):
        slots = _slots(kind)
        # Deleting a copy could close what the original holds.
        if slots is None or hasattr(kind, "__del__"):
            return _OPAQUE, False, (), ()
        uncounted = _FIELDS_SET if is_model and _dumps_all(kind, pydantic) else None
        counting = tuple(name for name in slots if name != uncounted)
        return _OBJECT, kind.__dictoffset__ != 0, slots, counting
    return _OPAQUE, False, (), ()


def _dumps_all(kind: Any, pydantic: Any) -> bool:
    """Return whether pydantic alone serialises a model, so that unset fields cannot matter."""
    made = kind.__pydantic_decorators__
    return kind.model_dump is pydantic.BaseModel.model_dump and not (
        made.model_serializers or made.field_serializers or made.computed_fields
    )


def _made_by_python(kind: type, base: type) -> bool:
    """Return whether all classes up to ``base`` are Python classes that add no storage."""
    above = [cls for cls in kind.__mro__ if cls not in (base, object)]
    return all(cls.__flags__ & _HEAP_TYPE for cls in above) and (
        base is object or kind.__dictoffset__ == 0
    )


def _slots(kind: type) -> tuple[str, ...] | None:
    """Names of the slots; None if an instance holds more than these, or one is shadowed."""
    found: list[str] = []
    for cls in kind.__mro__[:-1]:
        for name, slot in cls.__dict__.items():
            if type(slot) is MemberDescriptorType:
                found.append(name)
                if next(c for c in kind.__mro__ if name in c.__dict__) is not cls:
                    return None
        # In C a class may keep state that has no name.
    counted = len(found) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    whole = object.__basicsize__ + counted * _POINTER_BYTES
    return tuple(found) if kind.__basicsize__ == whole else None


# --- Cache of values: copies that no caller can reach ---------------------------------------------
# A *version* is a value as it was put or read: its manifest, and the node and tree of each part.
# The next put is compared with it part by part; the next get of an equal manifest copies from it.
# Decoded parts are cached by the id of their chunk, which identifies their content, so no entry is
# ever stale. Only the set of stored chunks can change under a handle: it is cached per epoch of the
# pool.

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class DecodeCache(Generic[K, V]):
    """A bounded two-generation cache: entries not read while one generation fills are evicted."""

    def __init__(self, limit: int) -> None:
        self._limit = max(limit // 2, 1)
        self._weight = 0
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: K) -> V | None:
        """The value, moved to the young generation; None if it is not cached."""
        found = self._young.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is None:
                return None
            self.put(key, found[0], weight=found[1])
        return found[0]

    def put(self, key: K, value: V, *, weight: int = 1) -> None:
        """Cache a value. Concurrent calls may lose an entry, which costs only time.

        There is no lock: a fork could leave it locked in the child by a thread that does not exist.
        """
        before = self._young.get(key)
        if before is not None:
            self._weight -= before[1]
        elif self._weight >= self._limit:
            self._old, self._young, self._weight = self._young, {}, 0
        self._old.pop(key, None)
        self._young[key] = value, weight
        self._weight += weight

    def put_all(self, keys: Iterable[K], value: V) -> None:
        """Cache the same value, of weight 1, under many keys that are new, as ``put`` does."""
        for key in keys:
            if self._weight >= self._limit:
                self._old, self._young, self._weight = self._young, {}, 0
            self._weight += key not in self._young
            self._old.pop(key, None)
            self._young[key] = value, 1

    def drop(self, key: K) -> None:
        """Remove an entry."""
        self._weight -= self._young.pop(key, (None, 0))[1]
        self._old.pop(key, None)


@record(slots=True)
class ValueParts:
    """The parts of one value: of a list without names, of a dict with names."""

    names: dict[str, int] | None
    """Position of each key of a dict."""
    nodes: list[bytes]
    trees: list[Any]
    """Tree of each part as it was put; opaque if it has none."""
    loaded: list[Any] = field(default_factory=list)
    """Trees as decoded, as far as known."""
    size: int = 0
    """Approximate serialised size in bytes."""
    entries: list[bytes] = field(default_factory=list)
    """For a dict: nodes with their keys; empty if it was read."""
    pages: Pages = field(default_factory=dict)
    """Pages of its manifest, as far as known."""


@record(slots=True)
class Decoded:
    """A decoded value, with the identity of the coder that decoded it."""

    identity: object
    tree: Any
    size: int = 0
    """Approximate serialised size in bytes."""
    repeated: int = 0
    """For a whole value: memory taken by repetitions of its parts, in bytes."""
    weight: int = 0
    """Approximate memory of a copy in bytes; 0: not computed yet."""


@record(slots=True)
class Entries:
    """Entries of a container or page: nodes, keys (empty for a list), trees."""

    nodes: list[bytes] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    trees: list[Any] = field(default_factory=list)
    identity: object = None
    size: int = 0
    """Approximate serialised size in bytes."""
    repeated: int = 0
    """For a page: memory taken by repetitions of its parts, in bytes."""
    weight: int = 0
    """For a page: approximate memory of a copy in bytes; 0: not computed yet."""
    own: list[Any] = field(default_factory=list)
    """Trees that come from no nested page."""
    below: list[Entries] = field(default_factory=list)

    def add(self, node: bytes, name: str, tree: Any, size: int) -> None:
        """Add an entry."""
        self.size += size
        self.nodes.append(node)
        self.names.append(name)
        self.trees.append(tree)
        self.own.append(tree)

    def extend(self, others: Entries) -> None:
        """Add the entries of a page."""
        self.size += others.size
        self.nodes += others.nodes
        self.names += others.names
        self.trees += others.trees
        self.below.append(others)

    def weigh(self) -> None:
        """Compute the weight, unless it is known."""
        if not self.weight:
            for page in self.below:
                page.weigh()
            own = sum(_POINTERS + weight_of(tree) for tree in self.own)
            self.weight = own + sum(page.weight for page in self.below)


MEMO_WEIGHT_MIN: Final = VALUES_CACHED_BYTES // 8192
"""Minimum weight of an object in the identity cache, which bounds their number."""


class Memo(NamedTuple):
    """An object that was put, kept alive so that its ``id()`` is not reused."""

    value: Any
    tree: Any
    node: bytes
    secret: bytes
    """Key of the pool for which the node is valid."""
    identity: object
    size: int
    """Approximate serialised size in bytes."""
    under: str | None
    """Key that determined the parts of the value that may stay in clear."""


class Cache:
    """Everything that the handles of one open database cache of graph values."""

    def __init__(self) -> None:
        self._shapes = Shapes()
        self.trees = self._shapes.trees
        self.forget()

    def forget(self) -> None:
        """Clear the cache, after an erasure of the data that it may hold."""
        self.versions: DecodeCache[Hashable, ValueParts] = DecodeCache(VALUES_CACHED_BYTES)
        """By scope, thread, namespace and channel: the baseline for the next put."""
        self._forget_decoded()
        self.known: DecodeCache[tuple[int, int, bytes], bool] = DecodeCache(KNOWN_CHUNKS)
        """Stored chunks, by pool, epoch and id."""
        self.memo: DecodeCache[int, Memo] = DecodeCache(VALUES_CACHED_BYTES)
        """By ``id()`` of an object."""

    def refresh(self) -> None:
        """Drop decoded values if a class was replaced in the meantime, by a module reload."""
        if self._shapes.take_replaced():
            self._forget_decoded()

    def _forget_decoded(self) -> None:
        self.values: DecodeCache[tuple[int, bytes], Decoded] = DecodeCache(VALUES_CACHED_BYTES)
        """By pool and manifest."""
        self.parts: DecodeCache[bytes, Decoded] = DecodeCache(VALUES_CACHED_BYTES)
        """By id of the chunk."""
        self.pages: DecodeCache[tuple[int, bytes], Entries] = DecodeCache(VALUES_CACHED_BYTES)
        """By sort of the container and id of the page."""


# --- Decoding of manifests; values decoded before are copied instead ------------------------------


def _memory_bytes() -> int:
    """Physical memory of the machine in bytes; 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


REPEATED_BYTES_MAX: Final = max(2**32, _memory_bytes())
"""Memory that repeated parts of a checkpoint may take: a reference takes 17 bytes, so a few pages
of references could expand to a value of any size. A value that was put has to stay readable, but
none that was ever in memory takes more."""
REPEATED_TIMES: Final = 64
"""Additional bytes allowed per stored byte."""
_RUN_WEIGHT: Final = 4
"""Approximate memory of a run's values, as a multiple of its bytes."""
_AHEAD: Final = 1024
"""Maximum number of chunks announced at once: 64 MiB of the largest ones."""
_POINTERS: Final = 10 * _POINTER_BYTES
"""Bytes of an entry in addition to its tree."""
_OPAQUE_TIMES: Final = 16
"""Approximate memory of an object that cannot be weighed, as a multiple of its bytes."""
_SHARED: Final = frozenset((type(None), bool, int, float, str, bytes, *_LEAVES))
"""Types whose instances a copy shares with the original."""


def weight_of(tree: Any) -> int:
    """Approximate memory of a copy of a tree, in bytes."""
    total, work = 0, [tree]
    while work:
        each = work.pop()
        kind = type(each)
        if kind is ListRun:
            total += each.weight
        elif kind not in _SHARED and not isinstance(each, type):
            total += sys.getsizeof(each)
            work += gc.get_referents(each)
            if total > REPEATED_BYTES_MAX:
                return total
    return total


MISSING: Any = object()
"""Stands for the value of an empty channel."""


class Joiner:
    """Decodes values of one pool; ``fetch(id)`` returns the content stored under a chunk's id.

    Results belong to the caller: they share no object with the cache.
    """

    def __init__(
        self,
        cache: Cache,
        coder: Coder,
        fetch: Callable[[bytes], Typed],
        *,
        pool: int,
        secret: bytes,
        ahead: Callable[[Sequence[bytes]], None] | None = None,
    ) -> None:
        """``ahead(ids)`` is told which chunks will be fetched, where that saves trips."""
        self._cache = cache
        self._coder = coder
        self._fetch = fetch
        self._ahead = ahead
        self._pool = pool
        self._secret = secret
        self._depth = self._repeated = 0
        self.begin()
        self.version: ValueParts | None = None
        """The parts of the last value that ``join`` returned, if it was a list or dict."""

    def join(self, node: bytes) -> Any:
        """Decode the value of a manifest; MISSING for an empty channel.

        Raises:
            CorruptValueError: the manifest or a chunk is damaged, missing or of another cipher.
        """
        cache = self._cache
        self._depth = 0
        self.version = None
        kept = cache.values.get((self._pool, node))
        if kept is None or kept.identity is not self._coder.identity:
            if self._ahead is not None:
                self._read_ahead(node, self._ahead)
            before = self._repeated
            tree, size = self._tree(node)
            if tree is cache.trees.opaque:
                self._depth = 0
                self._repeated = before  # it is decoded again, which charges its parts again
                return self._decoded(node)
            if type(tree) is ListRun:
                raise _malformed("holds entries of a list outside of one")
            kept = Decoded(self._coder.identity, tree, size, self._repeated - before)
            cache.values.put((self._pool, node), kept, weight=size + kept.repeated)
        elif node in self._named:
            self._repeat(kept)
        else:
            self._name(node, kept.size)
            self._spend(kept.repeated)
        return kept.tree if kept.tree is MISSING else cache.trees.copy(kept.tree)

    def _read_ahead(self, node: bytes, ahead: Callable[[Sequence[bytes]], None]) -> None:
        """Announce the chunks of a manifest that are not cached, level by level of its pages."""
        level, seen = set(rows_of(node)), set[tuple[int, bytes]]()
        while level:
            new = [row for row in level - seen if not self._is_cached(*row)]
            seen |= level
            for at in range(0, len(new), _AHEAD):
                ahead([part for _, part in new[at : at + _AHEAD]])
            pages = [(sort, part) for sort, part in new if sort]
            level = {row for sort, part in pages for row in rows_in(sort, self._open(part)[1])}

    def _is_cached(self, sort: int, part: bytes) -> bool:
        """Return whether a chunk, or a page of a container, need not be fetched."""
        cached = self._cache.pages.get((sort, part)) if sort else self._cache.parts.get(part)
        return cached is not None and cached.identity is self._coder.identity

    def begin(self) -> None:
        """Reset the memory budget before decoding the values of another checkpoint."""
        self._named: set[bytes] = set()
        """Nodes of referenced chunks and pages, and ids of referenced pieces."""
        self._pages: dict[tuple[int, bytes], Entries] = {}
        """By sort of the container and id."""
        self._stored = 0
        """Stored bytes of the referenced chunks, pages and pieces."""
        self._repeated = 0
        """Memory taken by repeated references, in bytes."""

    def _name(self, node: bytes, size: int) -> None:
        self._named.add(node)
        self._stored += size

    def _repeat(self, part: Decoded) -> None:
        """Charge a part that was referenced before."""
        if not part.weight:
            part.weight = _POINTERS + weight_of(part.tree)
        self._spend(part.weight)

    def _spend(self, weight: int) -> None:
        """Charge repeated parts to the memory budget; reject more than a writer may have put.

        Raises:
            CorruptValueError: the budget is exceeded.
        """
        self._repeated += weight
        if self._repeated > REPEATED_BYTES_MAX + REPEATED_TIMES * self._stored:
            msg = (
                f"a checkpoint repeats more than {self._repeated >> 20:,} MiB of "
                f"{self._stored:,} stored bytes: more than this machine's memory holds"
            )
            raise CorruptValueError(msg, key=b"")

    def _tree(self, node: bytes) -> tuple[Any, int]:
        """Return the cached value, opaque if it cannot be copied, and its size.

        The value may not be handed out to callers.
        """
        parsed = parse(node)
        if parsed.sort == Sort.EMPTY:
            return MISSING, len(node)
        if parsed.sort == Sort.CHUNK:
            part = self._named_chunk(node)
            return part.tree, part.size
        if parsed.sort in (Sort.PART, Sort.PIECES):
            typed = self._typed(parsed)
            return self._kept(self._decode(typed)), len(node) + len(typed[1])
        entries = self._entries(parsed.sort, parsed.content)
        return self._container(parsed, entries), len(node) + entries.size

    def _container(self, parsed: ParsedNode, entries: Entries) -> Any:
        opaque = self._cache.trees.opaque
        is_whole = not any(tree is opaque for tree in entries.trees)
        if parsed.sort == Sort.WRAPPED:
            return self._kept(self._made(parsed.name, entries.trees)) if is_whole else opaque
        if parsed.sort == Sort.LIST:
            self.version = ValueParts(None, entries.nodes, entries.trees, size=entries.size)
            return flattened(entries.trees) if is_whole else opaque
        names = {name: at for at, name in enumerate(entries.names)}
        self.version = ValueParts(names, entries.nodes, entries.trees, size=entries.size)
        return dict(zip(entries.names, entries.trees, strict=True)) if is_whole else opaque

    def _entries(self, container: int, body: bytes) -> Entries:
        """Decode the entries of a container, including those of its pages."""
        found = Entries()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _malformed("runs into itself")
        for node, name in entries_in(container, body):
            if node[0] == Sort.PAGE:
                found.extend(self._page(container, node))
            else:
                if node == EMPTY:
                    raise _malformed("holds an entry that is empty")
                if node[0] == Sort.CHUNK:  # the common case, without a call
                    part = self._named_chunk(node)
                    tree, size = part.tree, part.size
                else:
                    tree, size = self._tree(node)
                if type(tree) is ListRun:
                    if container != Sort.LIST:
                        raise _malformed("holds entries of a list outside of one")
                    size *= _RUN_WEIGHT
                found.add(node, name, tree, size)
        self._depth -= 1
        return found

    def _page(self, container: int, node: bytes) -> Entries:
        key = (container, node[1:])
        kept = self._pages.get(key) or self._cache.pages.get(key)
        is_known = kept is not None and kept.identity is self._coder.identity
        if kept is None or not is_known:
            before = self._repeated
            content = self._open(node[1:])[1]
            self._stored += len(content)
            kept = self._entries(container, content)
            kept.identity = self._coder.identity
            kept.repeated = self._repeated - before
            self._cache.pages.put(key, kept, weight=kept.size + kept.repeated)
        self._pages[key] = kept  # even if the cache evicts it: nested pages are not built twice
        if node in self._named:
            kept.weigh()
            self._spend(kept.weight)
        else:
            self._named.add(node)
            if is_known:
                self._name_entries(kept)
        return kept

    def _name_entries(self, page: Entries) -> None:
        """Charge the entries of a page that was decoded for another value."""
        self._spend(page.repeated)
        distinct = set(page.nodes)
        if not self._named.isdisjoint(distinct):
            for node in self._named & distinct:
                if node[0] == Sort.CHUNK:
                    self._named_chunk(node)
        self._named |= distinct
        self._stored += ID_BYTES * len(distinct)

    def _named_chunk(self, node: bytes) -> Decoded:
        part = self._chunk(node[1:])
        if node not in self._named:
            self._named.add(node)
            self._stored += part.size
        elif part.tree is not self._cache.trees.opaque:  # else it is charged when decoded
            self._repeat(part)
        return part

    def _chunk(self, part: bytes) -> Decoded:
        kept = self._cache.parts.get(part)
        if kept is None or kept.identity is not self._coder.identity:
            typed = self._open(part)
            tree = self._kept(self._decode(typed))
            kept = Decoded(self._coder.identity, tree, len(typed[1]) + len(part))
            self._cache.parts.put(part, kept, weight=kept.size)
        return kept

    def _kept(self, value: Any) -> Any:
        """The decoded value in the form in which it is cached; opaque if it cannot be copied."""
        opaque = self._cache.trees.opaque
        return opaque if self._cache.trees.copy(value) is opaque else value

    def _decoded(self, node: bytes) -> Any:
        """Decode a value with parts that cannot be copied; those are decoded again."""
        parsed = parse(node)
        if parsed.sort == Sort.CHUNK:
            tree = self._chunk(parsed.content).tree
            if tree is not self._cache.trees.opaque:
                return self._cache.trees.copy(tree)
            typed = self._open(parsed.content)
            value = self._decode(typed)
            if b"+" + node in self._named:  # else it is the first reference
                weight = getattr(value, "nbytes", None)
                if type(weight) is not int or weight < 0:
                    weight = _OPAQUE_TIMES * len(typed[1])
                self._spend(weight)
            self._named.add(b"+" + node)
            return value
        if parsed.sort in (Sort.PART, Sort.PIECES):
            return self._decode(self._typed(parsed))
        entries = self._entries(parsed.sort, parsed.content)
        values = [self._decoded(entry) for entry in entries.nodes]
        if parsed.sort == Sort.WRAPPED:
            return self._made(parsed.name, values)
        if parsed.sort == Sort.LIST:
            return flattened(values)
        return dict(zip(entries.names, values, strict=True))

    def _decode(self, typed: Typed) -> Any:
        # Only coders that split lists write runs: another serialiser may use the same type name.
        is_run = typed[0] == RUN and self._coder.splits
        return ListRun(typed[1]) if is_run else self._coder.decode(typed)

    def _typed(self, parsed: ParsedNode) -> Typed:
        if parsed.sort == Sort.PART:
            return parsed.name, parsed.content
        pieces = []
        for part in ids(parsed.content):
            content = self._open(part)[1]
            if part in self._named:
                self._spend(len(content))
            else:
                self._name(part, len(content))
            pieces.append(content)
        return parsed.name, b"".join(pieces)

    def _made(self, wrapper: str, fields: list[Any]) -> Any:
        for name, known in self._coder.wrappers.values():
            if name == wrapper:
                try:
                    return known.make(fields)
                except (LookupError, TypeError, ValueError) as exc:
                    raise _malformed(f"names no {wrapper} ({exc})") from exc
        msg = f"a value of the wrapper {wrapper[:40]!r} was not written by this serialiser"
        raise CorruptValueError(msg, key=b"")

    def _open(self, part: bytes) -> Typed:
        typed = self._coder.open(self._fetch(part))
        if self._coder.secret and id_of(self._secret, typed) != part:
            # Ciphertext of another chunk: anyone with write access to the file may have moved it.
            msg = f"the chunk {part.hex()} holds other content than its id says"
            raise CorruptValueError(msg, key=part)
        return typed


def _malformed(what: str) -> CorruptValueError:
    msg = f"the manifest of a checkpoint's value {what}; run 'memcore check'"
    return CorruptValueError(msg, key=b"")
