"""Manifests into values: what was decoded before is copied instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from memcore.checkpoint.cache import Cache, Decoded, Entries, Version
from memcore.checkpoint.coding import Coder, Typed
from memcore.checkpoint.nodes import (
    DEPTH_MAX,
    EMPTY,
    RUN,
    Node,
    Run,
    Sort,
    entries_in,
    flattened,
    ids,
    parse,
)
from memcore.checkpoint.pool import id_of
from memcore.errors import CorruptValueError

__all__ = ["MISSING", "Joiner"]

_REPEATED_MAX: Final = 2**22
"""So many entries of a value may come from pages that it names again: they cost no bytes, and a few
pages of pages would make any number of them."""
_PAGE: Final = bytes((Sort.PAGE,))
_RUN_WEIGHT: Final = 4
"""So many times the bytes of a run its values take in memory, about."""
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
        self._depth = 0
        self._pages: set[bytes] = set()
        """Those that the value has named so far."""
        self._repeated = 0
        """Entries that came from pages that were named before."""
        self.version: Version | None = None
        """The parts of the last value that ``join`` returned, if it was a list or dict."""

    def join(self, node: bytes) -> Any:
        """The value of a manifest, MISSING if it is that of an empty channel.

        Raises:
            CorruptValueError: the manifest or a chunk is damaged, missing or of another cipher.
        """
        cache = self._cache
        self._begin()
        self.version = None
        kept = cache.values.get((self._pool, node))
        if kept is None or kept.identity is not self._coder.identity:
            tree, size = self._tree(node)
            if tree is cache.trees.opaque:
                self._begin()
                return self._decoded(node)
            if type(tree) is Run:
                raise _malformed("holds entries of a list outside of one")
            kept = Decoded(self._coder.identity, tree, size)
            cache.values.put((self._pool, node), kept, weight=size)
        return kept.tree if kept.tree is MISSING else cache.trees.copy(kept.tree)

    def _begin(self) -> None:
        self._depth = self._repeated = 0
        self._pages = set()

    def _tree(self, node: bytes) -> tuple[Any, int]:
        """The value, not to be handed out, opaque if it cannot be copied; and its size."""
        parsed = parse(node)
        if parsed.sort == Sort.EMPTY:
            return MISSING, len(node)
        if parsed.sort == Sort.CHUNK:
            part = self._chunk(parsed.content)
            return part.tree, part.size
        if parsed.sort in (Sort.PART, Sort.PIECES):
            typed = self._typed(parsed)
            return self._kept(self._decode(typed)), len(node) + len(typed[1])
        entries = self._entries(parsed.sort, parsed.content)
        return self._container(parsed, entries), len(node) + entries.size

    def _container(self, parsed: Node, entries: Entries) -> Any:
        opaque = self._cache.trees.opaque
        is_whole = not any(tree is opaque for tree in entries.trees)
        if parsed.sort == Sort.WRAPPED:
            return self._kept(self._made(parsed.name, entries.trees)) if is_whole else opaque
        if parsed.sort == Sort.LIST:
            self.version = Version(None, entries.nodes, entries.trees, size=entries.size)
            return flattened(entries.trees) if is_whole else opaque
        names = {name: at for at, name in enumerate(entries.names)}
        self.version = Version(names, entries.nodes, entries.trees, size=entries.size)
        return dict(zip(entries.names, entries.trees, strict=True)) if is_whole else opaque

    def _entries(self, container: int, body: bytes) -> Entries:
        """The entries of a container, those of its pages among them."""
        found = Entries()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _malformed("runs into itself")
        for node, name in entries_in(container, body):
            if node[0] == Sort.PAGE:
                page = self._page(container, node[1:])
                self._need_few(node, page)
                found.extend(page)
            else:
                if node == EMPTY:
                    raise _malformed("holds an entry that is empty")
                if node[0] == Sort.CHUNK:  # most of them are: no call for it
                    part = self._chunk(node[1:])
                    tree, size = part.tree, part.size
                else:
                    tree, size = self._tree(node)
                if type(tree) is Run:
                    if container != Sort.LIST:
                        raise _malformed("holds entries of a list outside of one")
                    size *= _RUN_WEIGHT
                found.add(node, name, tree, size)
        self._depth -= 1
        return found

    def _need_few(self, node: bytes, page: Entries) -> None:
        """Have entries that come again be no more than somebody may have put."""
        if node in self._pages:
            self._repeated += len(page.nodes)
        else:
            self._pages.add(node)
        if self._repeated > _REPEATED_MAX:
            raise _malformed(f"repeats more than {_REPEATED_MAX:,} entries")

    def _page(self, container: int, part: bytes) -> Entries:
        key = (container, part)
        kept = self._cache.pages.get(key)
        if kept is None or kept.identity is not self._coder.identity:
            before = self._repeated
            kept = self._entries(container, self._open(part)[1])
            kept.identity = self._coder.identity
            kept.repeated = self._repeated - before
            self._cache.pages.put(key, kept, weight=kept.size)
        elif _PAGE + part not in self._pages:
            self._repeated += kept.repeated
        return kept

    def _chunk(self, part: bytes) -> Decoded:
        kept = self._cache.parts.get(part)
        if kept is None or kept.identity is not self._coder.identity:
            typed = self._open(part)
            tree = self._kept(self._decode(typed))
            kept = Decoded(self._coder.identity, tree, len(typed[1]) + len(part))
            self._cache.parts.put(part, kept, weight=kept.size)
        return kept

    def _kept(self, value: Any) -> Any:
        """A decoded value that nobody else has, if copies of it can be made."""
        opaque = self._cache.trees.opaque
        return opaque if self._cache.trees.copy(value) is opaque else value

    def _decoded(self, node: bytes) -> Any:
        """A value for the caller, of which some part cannot be copied: that is decoded anew."""
        parsed = parse(node)
        if parsed.sort == Sort.CHUNK:
            tree = self._chunk(parsed.content).tree
            if tree is not self._cache.trees.opaque:
                return self._cache.trees.copy(tree)
            return self._decode(self._open(parsed.content))
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
        # Only who splits lists has runs: another serialiser may call its types as it likes.
        is_run = typed[0] == RUN and self._coder.splits
        return Run(typed[1]) if is_run else self._coder.decode(typed)

    def _typed(self, parsed: Node) -> Typed:
        if parsed.sort == Sort.PART:
            return parsed.name, parsed.content
        return parsed.name, b"".join(self._open(part)[1] for part in ids(parsed.content))

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
            # Ciphertext of another place, put here by whoever can write to the file.
            msg = f"the chunk {part.hex()} holds other content than its id says"
            raise CorruptValueError(msg, key=part)
        return typed


def _malformed(what: str) -> CorruptValueError:
    msg = f"the manifest of a checkpoint's value {what}; run 'memcore check'"
    return CorruptValueError(msg, key=b"")
