"""Manifests into values: what was decoded before is copied instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memcore.checkpoint.cache import Cache, Decoded, Version
from memcore.checkpoint.coding import Coder, Typed
from memcore.checkpoint.nodes import Node, Sort, parse
from memcore.checkpoint.pool import id_of
from memcore.errors import CorruptValueError

__all__ = ["Joiner", "MISSING"]

MISSING: Any = object()
"""In place of a value: the channel is empty."""


class Joiner:
    """Reads values of one pool. ``fetch(id)`` gives what is stored under a chunk's id.

    What it returns is the caller's: it shares nothing with what is remembered.
    """

    def __init__(
        self,
        cache: Cache,
        coder: Coder,
        fetch: Callable[[bytes], Typed],
        *,
        pool: int,
        secret: bytes,
    ) -> None:
        self._cache = cache
        self._coder = coder
        self._fetch = fetch
        self._pool = pool
        self._secret = secret
        self.version: Version | None = None
        """The parts of the last value that ``join`` returned, if it was a list or dict."""

    def join(self, node: bytes) -> Any:
        """The value of a manifest, MISSING if it is that of an empty channel.

        Raises:
            CorruptValueError: the manifest or a chunk is damaged, missing or of another cipher.
        """
        kept = self._cache.values.get((self._pool, node))
        if kept is not None and kept.identity is self._coder.identity:
            self.version = None
            return self._cache.trees.copy(kept.tree)
        value, tree = self._value(node)
        if tree is not self._cache.trees.OPAQUE:
            weight = 1 + len(tree) if isinstance(tree, list | dict) else 1
            kept = Decoded(self._coder.identity, tree)
            self._cache.values.put((self._pool, node), kept, weight=weight)
        return value

    def _value(self, node: bytes) -> tuple[Any, Any]:
        """A value for the caller and a tree to keep."""
        parsed = parse(node, self._page)
        opaque = self._cache.trees.OPAQUE
        if parsed.sort == Sort.EMPTY:
            return MISSING, opaque
        if parsed.sort == Sort.CHUNK:
            return self._chunk(parsed.id)
        if parsed.sort == Sort.PART:
            return self._decoded((parsed.name, parsed.content))
        if parsed.sort == Sort.PIECES:
            whole = b"".join(self._open(part)[1] for part in parsed.entries)
            return self._decoded((parsed.name, whole))
        pairs = [self._entry(entry) for entry in parsed.entries]
        values = [value for value, _ in pairs]
        trees = [tree for _, tree in pairs]
        if parsed.sort == Sort.WRAPPED:
            return self._wrapped(parsed, values)
        whole_tree: Any = opaque
        if parsed.sort == Sort.DICT:
            if not any(tree is opaque for tree in trees):
                whole_tree = dict(zip(parsed.names, trees, strict=True))
            names = {name: at for at, name in enumerate(parsed.names)}
            self.version = Version(names, parsed.entries, trees)
            return dict(zip(parsed.names, values, strict=True)), whole_tree
        if not any(tree is opaque for tree in trees):
            whole_tree = trees
        self.version = Version(None, parsed.entries, trees)
        return values, whole_tree

    def _entry(self, node: bytes) -> tuple[Any, Any]:
        if node[0] == Sort.CHUNK:
            return self._chunk(node[1:])
        return self._value(node)

    def _wrapped(self, parsed: Node, fields: list[Any]) -> tuple[Any, Any]:
        for name, wrapper in self._coder.wrappers.values():
            if name == parsed.name:
                value = wrapper.make(fields)
                return value, self._cache.trees.copy(value)
        msg = f"a value of the wrapper {parsed.name[:40]!r} was not written by this serialiser"
        raise CorruptValueError(msg, key=b"")

    def _chunk(self, part: bytes) -> tuple[Any, Any]:
        kept = self._cache.parts.get(part)
        if kept is not None and kept.identity is self._coder.identity:
            return self._cache.trees.copy(kept.tree), kept.tree
        value, tree = self._decoded(self._open(part))
        if tree is not self._cache.trees.OPAQUE:
            self._cache.parts.put(part, Decoded(self._coder.identity, tree))
        return value, tree

    def _decoded(self, typed: Typed) -> tuple[Any, Any]:
        value = self._coder.decode(typed)
        return value, self._cache.trees.copy(value)

    def _page(self, part: bytes) -> bytes:
        return self._open(part)[1]

    def _open(self, part: bytes) -> Typed:
        typed = self._coder.open(self._fetch(part))
        if self._coder.secret and id_of(self._secret, typed) != part:
            # Ciphertext of another place, put here by whoever can write to the file.
            msg = f"the chunk {part.hex()} holds other content than its id says"
            raise CorruptValueError(msg, key=part)
        return typed
