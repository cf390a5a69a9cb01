"""What a handle remembers of values: copies that nobody else can reach.

A *version* is a value as it was put or read: its manifest, and for each part the node and a tree of
it. The next put compares with it, part by part; the next get of an equal manifest copies from it.
Decoded parts are kept by the id of their chunk, which names their content, so nothing here is ever
out of date. Only which chunks are stored can change under a handle: that is kept by the epoch of
the pool.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from memcore.checkpoint.nodes import Pages
from memcore.checkpoint.shapes import Shapes
from memcore.limits import KNOWN_CHUNKS, VALUES_CACHED_BYTES

__all__ = ["Cache", "Recent", "Version"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A bounded mapping in two generations: what is not asked for while one fills up is dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = max(limit // 2, 1)
        self._weight = 0
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: K) -> V | None:
        """The value; asked for, it stays."""
        found = self._young.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is None:
                return None
            self.put(key, found[0], weight=found[1])
        return found[0]

    def put(self, key: K, value: V, *, weight: int = 1) -> None:
        """Remember. Two threads at once may lose an entry: nothing but time is lost with it.

        There is no lock, for none could be held by nobody in the child of a fork.
        """
        before = self._young.get(key)
        if before is not None:
            self._weight -= before[1]
        elif self._weight >= self._limit:
            self._old, self._young, self._weight = self._young, {}, 0
        self._old.pop(key, None)
        self._young[key] = value, weight
        self._weight += weight

    def drop(self, key: K) -> None:
        """Forget."""
        self._weight -= self._young.pop(key, (None, 0))[1]
        self._old.pop(key, None)


@dataclass(slots=True)
class Version:
    """One value in its parts. A list without names, a dict with."""

    names: dict[str, int] | None
    """Where each key of a dict stands."""
    nodes: list[bytes]
    trees: list[Any]
    """A tree of each part, as it was put; opaque if it has none."""
    loaded: list[Any] = field(default_factory=list)
    """Trees as decoded, as far as they are known."""
    size: int = 0
    """Serialised bytes, about."""
    entries: list[bytes] = field(default_factory=list)
    """Of a dict: nodes with their keys; empty after it was read."""
    pages: Pages = field(default_factory=dict)
    """Those of its manifest, as far as they are known."""


@dataclass(slots=True)
class Decoded:
    """A whole value as it was decoded, by whom."""

    identity: object
    tree: Any
    size: int = 0
    """Serialised bytes, about."""


@dataclass(slots=True)
class Entries:
    """The entries of a container or page: nodes, keys (of a list: empty), trees."""

    nodes: list[bytes] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    trees: list[Any] = field(default_factory=list)
    identity: object = None
    size: int = 0
    """Serialised bytes, about."""
    repeated: int = 0
    """Of a page: how many came from pages that it names again."""

    def add(self, node: bytes, name: str, tree: Any, size: int) -> None:
        """One more."""
        self.size += size
        self.nodes.append(node)
        self.names.append(name)
        self.trees.append(tree)

    def extend(self, others: Entries) -> None:
        """Those of a page."""
        self.size += others.size
        self.nodes += others.nodes
        self.names += others.names
        self.trees += others.trees


MEMO_WEIGHT_MIN: Final = VALUES_CACHED_BYTES // 8192
"""What an object counts at least among those known by identity: so many are kept at most."""


class Memo(NamedTuple):
    """An object that was put: kept, so that its ``id()`` is nobody else's."""

    value: Any
    tree: Any
    node: bytes
    secret: bytes
    """Key of the pool for which the node holds."""
    identity: object
    size: int
    """Serialised bytes, about."""


class Cache:
    """All that the handles of one open database remember of graph values."""

    def __init__(self) -> None:
        self._shapes = Shapes()
        self.trees = self._shapes.trees
        self.forget()

    def forget(self) -> None:
        """Remember nothing any more: whose values these are was erased."""
        self.versions: Recent[Hashable, Version] = Recent(VALUES_CACHED_BYTES)
        """By scope, thread, namespace and channel: what the next put is compared with."""
        self._forget_decoded()
        self.known: Recent[tuple[int, int, bytes], bool] = Recent(KNOWN_CHUNKS)
        """Pool, epoch and id of chunks that are stored."""
        self.memo: Recent[int, Memo] = Recent(VALUES_CACHED_BYTES)
        """By ``id()`` of an object."""

    def refresh(self) -> None:
        """Forget what was decoded, if a class was replaced meanwhile (a module loaded anew)."""
        if self._shapes.take_replaced():
            self._forget_decoded()

    def _forget_decoded(self) -> None:
        self.values: Recent[tuple[int, bytes], Decoded] = Recent(VALUES_CACHED_BYTES)
        """By pool and manifest."""
        self.parts: Recent[bytes, Decoded] = Recent(VALUES_CACHED_BYTES)
        """By id of the chunk."""
        self.pages: Recent[tuple[int, bytes], Entries] = Recent(VALUES_CACHED_BYTES)
        """By sort of the container and id of the page."""
