"""Encoding of values into manifests and chunks; unchanged parts are not serialised again."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

from memcore.errors import InvalidItemError
from memcore.graph import decode
from memcore.graph.decode import (
    MEMO_WEIGHT_MIN,
    Cache,
    Memo,
    ValueParts,
    weight_of,
)
from memcore.graph.manifest import (
    ATOMS,
    ID_BYTES,
    NUMBERS,
    PAGE,
    RUN,
    Coder,
    ListRun,
    Sort,
    Typed,
    chunk_node,
    container,
    entry_of,
    flattened,
    part_node,
    pieces_node,
    units_of,
    wrapped,
)
from memcore.graph.rows import begun_id
from memcore.limits import CHUNK_BYTES_MAX, PART_INLINE_BYTES_MAX

__all__ = [
    "Splitter",
]


_NESTED_MIN: Final = 4
"""Minimum length at which a list inside a value is stored by its elements."""
_MOVED_MIN: Final = 4
"""Minimum number of unknown parts of a list that are searched for at other positions."""
_DEPTH_MAX: Final = 8
_ATOMS: Final = frozenset((type(None), bool, int, float, str, bytes))
_MEMORY_TIMES: Final = 128
"""Maximum memory of a value, as a multiple of its serialised bytes."""
_NUMBER_BYTES: Final = 40
"""Memory of a number in a list, in bytes, including its pointer in the list."""


class Splitter:
    """Splits values for one pool and collects the chunks that may have to be stored.

    ``fresh`` maps the ids of chunks to store to their plaintext contents.
    """

    def __init__(
        self,
        cache: Cache,
        coder: Coder,
        *,
        pool: int,
        epoch: int,
        secret: bytes,
        is_new: bool = False,
    ) -> None:
        self._cache = cache
        self._coder = coder
        self._encode = coder.encode
        self._under: Callable[[str, Any], Typed] | None = getattr(coder, "encode_under", None)
        """Serialises a value under a key, if the coder needs the key."""
        self._key_of: Callable[[str | None, str], str] | None = getattr(coder, "key_of", None)
        """Returns the key that classifies an entry of a dict, if the coder uses keys."""
        self._holds: Callable[[str], bool] | None = getattr(coder, "holds", None)
        """Returns true for a key that may not be stored in clear next to the parts, if the coder
        has such keys."""
        # A coder that redacts has to see the content, so runs hold only what cannot be redacted.
        self._run_kinds = ATOMS if self._under is None else NUMBERS
        self._finite = bool(getattr(coder, "finite", False))
        self._pool = pool
        self._epoch = epoch
        self._secret = secret
        self._is_new = is_new
        """True if the pool has yet to be created, so nothing is stored in it."""
        self._begun: dict[str, blake2b] = {}
        """Hashes of ids, by the type of the content that completes them."""
        self.fresh: dict[bytes, Typed] = {}
        self.encoded = 0
        """Bytes of the parts serialised so far, or known by identity."""
        self._repeated = 0
        """Approximate memory of repetitions of equal parts, in bytes."""
        self.has_runs = False
        """True if a run was stored, which older versions of memcore cannot read."""

    def split(
        self, value: Any, base: ValueParts | None, path: str, name: str | None = None
    ) -> tuple[bytes, ValueParts | None]:
        """Split a value; returns its manifest, and its parts as a baseline for the next version.

        ``base`` is an earlier version, stored in this pool and epoch. ``path`` locates the value
        in errors, and ``name`` is the name of its channel.

        Raises:
            InvalidItemError: a part cannot be serialised; the message locates it.
        """
        return self._value(value, base, path, 0, name)

    def _value(
        self, value: Any, base: ValueParts | None, path: str, depth: int, under: str | None = None
    ) -> tuple[bytes, ValueParts | None]:
        kind = type(value)
        if self._coder.splits and depth < _DEPTH_MAX:
            if kind is list:
                # A copy, because another thread may resize the list in the meantime.
                return self._listed(value.copy(), base, path, depth, under)
            before = {} if base is None else base.pages
            # A copy, because another thread may add or remove entries in the meantime.
            version = None
            if kind is dict:
                version = self._dict(value.copy(), base, path, depth, under)
            if version is not None:
                self._weigh(version, path)
                node, version.pages = container(Sort.DICT, version.entries, self._page, before)
                return node, version
            if kind in self._coder.wrappers:
                return self._wrapped(value, base, path, depth, under)
        return self._part(value, path, under)[0], None

    def _weigh(self, parts: ValueParts, path: str) -> None:
        """Reject a value whose repeated parts exceed the memory that a reader allows."""
        if parts.size < decode.REPEATED_BYTES_MAX // _MEMORY_TIMES:  # certainly within the limit
            return
        seen: set[bytes] = set()
        mean = parts.size // len(parts.nodes)
        for node, tree in zip(parts.nodes, parts.trees, strict=True):
            if node not in seen:
                seen.add(node)
            elif tree is self._cache.trees.opaque:
                self._repeated += mean
            else:
                weight = weight_of(tree)
                if type(tree) is list and tree and type(tree[0]) in (int, float):
                    weight = max(weight, _NUMBER_BYTES * len(tree))
                self._repeated += weight
        # The stored size is only estimated here, so half of what a reader allows for it is used.
        stored = mean * len(seen)
        if self._repeated > decode.REPEATED_BYTES_MAX + decode.REPEATED_TIMES // 2 * stored:
            msg = (
                f"{path}: its equal parts would take {self._repeated >> 20:,} MiB of memory "
                "whenever it is read: store what repeats once, and refer to it"
            )
            raise InvalidItemError(msg)

    def _listed(
        self, value: list[Any], base: ValueParts | None, path: str, depth: int, under: str | None
    ) -> tuple[bytes, ValueParts]:
        made = self._list(value, base, path, depth, under)
        self._weigh(made, path)
        before = {} if base is None else base.pages
        node, made.pages = container(Sort.LIST, made.nodes, self._page, before)
        return node, made

    def _list(
        self, value: list[Any], base: ValueParts | None, path: str, depth: int, under: str | None
    ) -> ValueParts:
        value, starts = units_of(value, self._run_kinds, finite=self._finite)
        head = tail = 0
        size = len(value)
        trees = self._cache.trees
        if base is None or base.names is not None:
            base = ValueParts(None, [], [])
        else:
            head = trees.head(base.trees, base.loaded, value)
            if head < size and head < len(base.nodes):
                # Elements were inserted or removed before the rest, as in a trimmed history.
                end = slice(None, head - min(len(base.nodes), size) - 1, -1)
                loaded = base.loaded if len(base.loaded) == len(base.trees) else []
                tail = trees.head(base.trees[end], loaded[end], value[end])
        version = ValueParts(None, base.nodes[:head], base.trees[:head], base.loaded[:head])
        run = self._moved(value, base, head, size - tail)
        version.nodes += base.nodes[run]
        version.trees += base.trees[run]
        at = head + run.stop - run.start
        kept = at + tail
        encoded = self.encoded
        for place in range(at, size - tail):
            unit = value[place]
            if type(unit) is ListRun:
                node, tree = self._stored(RUN, unit.content), unit
                self.has_runs = True
            else:
                where = place if starts is None else starts[place]
                node, tree = self._entry(unit, path, where, depth, under)
            version.nodes.append(node)
            version.trees.append(tree)
        if tail:
            version.nodes += base.nodes[-tail:]
            version.trees += base.trees[-tail:]
        version.size = self.encoded - encoded
        if base.nodes:
            version.size += base.size * kept // len(base.nodes)
        return version

    def _moved(self, value: list[Any], base: ValueParts, at: int, stop: int) -> slice:
        """Find the parts of the values from ``at`` on, if they were later in the previous list."""
        trees = self._cache.trees
        if stop - at >= _MOVED_MIN:
            for start in range(at + 1, len(base.trees)):
                if trees.same(base.trees[start], value[at]):
                    run = trees.head(base.trees[start:], base.loaded[start:], value[at:stop])
                    return slice(start, start + run)
        return slice(0, 0)

    def _dict(
        self,
        value: dict[Any, Any],
        base: ValueParts | None,
        path: str,
        depth: int,
        under: str | None,
    ) -> ValueParts | None:
        """Split a dict; None if not all keys are strings, or a key requires redacting the whole."""
        if base is None or base.names is None:
            base = ValueParts({}, [], [])
        names = base.names or {}
        entries = base.entries or list(map(entry_of, names, base.nodes))
        carried = self._cache.trees.carried(
            names, base.trees, base.loaded, base.nodes, entries, value
        )
        if carried is None:
            return None
        keys, nodes, entries, trees, fresh = carried
        if self._holds is not None and any(self._holds(keys[at]) for at in fresh):
            return None
        if fresh or len(keys) != len(names) or keys != list(names):
            names = dict(zip(keys, range(len(keys)), strict=True))
        encoded = self.encoded
        for at in fresh:
            name = keys[at]
            key = name if self._key_of is None else self._key_of(under, name)
            nodes[at], trees[at] = self._entry(value[name], path, name, depth, key)
            entries[at] = entry_of(name, nodes[at])
        size = self.encoded - encoded
        if base.nodes:
            size += base.size * (len(keys) - len(fresh)) // len(base.nodes)
        return ValueParts(names, nodes, trees, entries=entries, size=size)

    def _wrapped(
        self,
        value: Any,
        base: ValueParts | None,
        path: str,
        depth: int,
        under: str | None,
    ) -> tuple[bytes, ValueParts | None]:
        name, wrapper = self._coder.wrappers[type(value)]
        nodes = []
        kept = None
        for at, field in enumerate(wrapper.fields(value)):
            entry = bytes(field) if type(field) is bytearray else field
            node, version = self._value(
                entry,
                None if at else base,
                f"{path}.{name}",
                depth + 1,
                under if at == wrapper.content else None,
            )
            kept = kept or version
            nodes.append(node)
        return wrapped(name, nodes), kept

    def _entry(
        self, value: Any, path: str, at: str | int, depth: int, under: str | None
    ) -> tuple[bytes, Any]:
        """Return the node and the tree of the entry at a key or index of a list or dict."""
        kind = type(value)
        opaque = self._cache.trees.opaque
        if kind is bytearray:
            value = bytes(value)  # as it is read, as a part of anything
        elif kind is list and len(value) >= _NESTED_MIN and depth + 1 < _DEPTH_MAX:
            value = value.copy()  # another thread may change the list in the meantime
            node, made = self._listed(value, None, _below(path, at), depth + 1, under)
            if set(map(type, made.trees)) == {ListRun}:
                return node, value
            whole = not any(tree is opaque for tree in made.trees)
            return node, flattened(made.trees) if whole else opaque
        elif kind in self._coder.wrappers and depth + 1 < _DEPTH_MAX:
            tree = self._cache.trees.copy(value)
            stored = value if tree is opaque else tree
            return self._value(stored, None, _below(path, at), depth + 1, under)[0], tree
        return self._part(value, path, under, at)

    def _part(
        self, value: Any, path: str, under: str | None, at: str | int | None = None
    ) -> tuple[bytes, Any]:
        """Return the node and the tree of a value that is stored as a whole.

        ``at``: its key or index in the container at ``path``; None: it is what is at ``path``.
        """
        if type(value) in _ATOMS:
            return self._serialised(value, path, under, at), value
        seen = self._cache.memo.get(id(value))
        if (
            seen is not None
            and seen.value is value
            and seen.identity is self._coder.identity
            and seen.secret == self._secret
            and (self._under is None or seen.under == under)
            and self._is_stored(seen.node)
            and self._cache.trees.same(seen.tree, value)
        ):
            self.encoded += seen.size
            return seen.node, seen.tree
        # Serialise the copy: another thread may change the value in the meantime, and back.
        tree = self._cache.trees.copy(value)
        encoded = self.encoded
        whole = value if tree is self._cache.trees.opaque else tree
        node = self._serialised(whole, path, under, at)
        if tree is not self._cache.trees.opaque and node[0] != Sort.PIECES:
            size = self.encoded - encoded
            memo = Memo(value, tree, node, self._secret, self._coder.identity, size, under)
            self._cache.memo.put(id(value), memo, weight=max(size, MEMO_WEIGHT_MIN))
        return node, tree

    def _is_stored(self, node: bytes) -> bool:
        """Return whether the node needs no storing: not a chunk, or already stored or ``fresh``."""
        if node[0] != Sort.CHUNK:
            return True
        part = node[1:]
        return part in self.fresh or (
            self._cache.known.get((self._pool, self._epoch, part)) is not None
        )

    def _serialised(self, value: Any, path: str, under: str | None, at: str | int | None) -> bytes:
        try:
            if under is None or self._under is None:
                kind, content = self._encode(value)
            else:
                kind, content = self._under(under, value)
        except Exception as exc:
            raise self._refusal(value, path if at is None else _below(path, at), exc) from exc
        return self._stored(kind, bytes(content))  # some return the caller's own bytearray

    def _stored(self, kind: str, content: bytes) -> bytes:
        """Return the node of a serialised part, collecting its chunks."""
        self.encoded += len(content) + ID_BYTES
        if len(content) <= PART_INLINE_BYTES_MAX:
            return part_node(kind, content)
        if len(content) <= CHUNK_BYTES_MAX:
            return chunk_node(self._chunk(kind, content))
        pieces = range(0, len(content), CHUNK_BYTES_MAX)
        return pieces_node(
            kind, [self._chunk(kind, content[at : at + CHUNK_BYTES_MAX]) for at in pieces]
        )

    def _page(self, content: bytes) -> bytes:
        return self._chunk(PAGE, content)

    def _chunk(self, kind: str, content: bytes) -> bytes:
        begun = self._begun.get(kind)
        if begun is None:
            begun = self._begun[kind] = begun_id(self._secret, kind)
        hashed = begun.copy()
        hashed.update(content)
        part = hashed.digest()
        if self._is_new or self._cache.known.get((self._pool, self._epoch, part)) is None:
            self.fresh[part] = kind, content
        return part

    def _refusal(self, value: Any, path: str, exc: Exception) -> InvalidItemError:
        """Build the error for a value that the serialiser rejects, with the path of the culprit."""
        place, culprit = self._culprit(value, path, 0)
        msg = (
            f"{place} cannot be stored: {exc} (it is a {type(culprit).__name__}); make it a type "
            "that the serialiser knows, or leave it out of the state"
        )
        return InvalidItemError(msg)

    def _culprit(self, value: Any, path: str, depth: int) -> tuple[str, Any]:
        if isinstance(value, dict):
            below = [(f"{path}[{name!r:.60}]", entry) for name, entry in value.items()]
        elif isinstance(value, list | tuple):
            below = [(f"{path}[{at}]", entry) for at, entry in enumerate(value)]
        else:
            below = (
                [(f"{path}.{name}", entry) for name, entry in vars(value).items()]
                if hasattr(value, "__dict__")
                else []
            )
        for place, entry in below if depth < _DEPTH_MAX else ():
            try:
                self._coder.encode(entry)
            except Exception:  # noqa: BLE001 - whatever a serialiser raises
                return self._culprit(entry, place, depth + 1)
        return path, value


def _below(path: str, at: str | int) -> str:
    """Return the path of an entry; an error of a thousand entries would name only one of them."""
    return f"{path}[{at!r:.60}]"
