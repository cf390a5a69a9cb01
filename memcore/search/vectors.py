"""Vectors of the documents in a scope's index: the embedder, their rows, and changes of these.

- head: version u16, dimensions u16, embedded u64 (the first ordinal that was not embedded yet),
  removals u64 (counts changes of blocks below it), the id of the embedder in UTF-8
- block of ``vectors_in_block`` consecutive ordinals: the scale of each, float32, then the int8
  numbers of each. A vector is its numbers by its scale, and of length 1; scale 0: there is none;
  -0: the embedder returned only zeros, which are like nothing

Everything is little-endian. Documents are embedded behind the watermark ``embedded``, outside any
write transaction. Removing one blanks its vector in the transaction that removes its content.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol

from memcore._fast import quantized
from memcore.codec import keys
from memcore.codec.keys import SearchRow
from memcore.codec.values import decoding, open_value, seal_value
from memcore.errors import EmbedderError, InvalidOptionError
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "BLOCK_PAGES",
    "EMBED_CHARS",
    "EMBED_ITEMS",
    "MODES",
    "VECTOR_SCALE",
    "Embedder",
    "VectorHead",
    "Vectors",
    "blank_vectors",
    "check_vectors",
    "checked_embedder",
    "checked_mode",
    "cosine",
    "drop_vectors",
    "embed",
    "embedded_ordinals",
    "is_vector_row",
    "put_vectors",
    "read_vector_head",
    "read_vectors",
    "vectors_beside",
]


# --- The embedder ---------------------------------------------------------------------------------

MODES: Final = ("auto", "lexical", "vector", "hybrid")
DIMENSIONS_MAX: Final = 4096
EMBEDDER_ID_BYTES_MAX: Final = 256


EMBED_ITEMS: Final = 128
"""Documents that the embedder is given at once, at most."""
EMBED_CHARS: Final = 16_384
"""Characters of a document that it is given: models read less."""


class Embedder(Protocol):
    """A model that turns texts into vectors whose cosine similarity is that of their meaning."""

    @property
    def id(self) -> str:
        """Name and version of the model; vectors of another id are replaced."""

    @property
    def dimensions(self) -> int:
        """Length of a vector, 1 to 4,096."""

    def __call__(self, texts: list[str], /) -> Sequence[Sequence[float]]:
        """Return a vector of finite numbers for each text, in their order."""


def checked_embedder(embedder: Embedder | None) -> Embedder | None:
    """Return an embedder whose id and dimensions are valid; None for None.

    Raises:
        InvalidOptionError: it is no embedder.
    """
    if embedder is None:
        return None
    id_, dimensions = getattr(embedder, "id", None), getattr(embedder, "dimensions", None)
    if not callable(embedder):
        msg = f"embedder: expected a callable or None, got {type(embedder).__name__}"
        raise InvalidOptionError(msg)
    if not isinstance(id_, str) or not id_ or len(_packed(id_)) > EMBEDDER_ID_BYTES_MAX:
        msg = f"embedder: expected an id of 1 to 256 bytes, got {id_!r:.80}"
        raise InvalidOptionError(msg)
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not (
        0 < dimensions <= DIMENSIONS_MAX
    ):  # fmt: skip
        msg = f"embedder: expected 1 to {DIMENSIONS_MAX} dimensions, got {dimensions!r:.80}"
        raise InvalidOptionError(msg)
    return embedder


def checked_mode(mode: object, embedder: Embedder | None) -> str:
    """Return the mode of a search with this embedder: lexical, vector or hybrid.

    Raises:
        InvalidOptionError: it is none, or needs an embedder.
    """
    if not isinstance(mode, str) or mode not in MODES:
        msg = f"mode: expected one of {', '.join(MODES)}, got {mode!r:.80}"
        raise InvalidOptionError(msg)
    if mode == "auto":
        return "lexical" if embedder is None else "hybrid"
    if mode != "lexical" and embedder is None:
        msg = f"mode: {mode!r} needs an embedder: memcore.open(path, embedder=...)"
        raise InvalidOptionError(msg)
    return mode


def _packed(id_: str) -> bytes:
    return id_.encode("utf-8", "surrogatepass")


def embed(embedder: Embedder, texts: list[str]) -> list[bytes]:
    """Return the packed vector of each text: scale float32, numbers int8.

    Raises:
        EmbedderError: the embedder failed, or returned something else than a vector for each text.
    """
    try:
        given = [tuple(vector) for vector in embedder(list(texts))]
        made = [quantized(vector) for vector in given]
    except Exception as exc:
        msg = f"the embedder {embedder.id!r} failed: {type(exc).__name__}: {exc!s:.200}"
        raise EmbedderError(msg) from exc
    if len(given) != len(texts):
        msg = f"the embedder {embedder.id!r} returned {len(given)} vectors for {len(texts)} texts"
        raise EmbedderError(msg)
    return [_checked(embedder, len(each), one) for each, one in zip(given, made, strict=True)]


_SCALE: Final = Struct("<f")
VECTOR_SCALE: Final = _SCALE.size
"""Bytes of the scale, at the start of a packed vector."""


def _checked(embedder: Embedder, dimensions: int, packed: bytes | None) -> bytes:
    if dimensions != embedder.dimensions:
        msg = (
            f"the embedder {embedder.id!r} returned a vector of {dimensions} numbers; it has "
            f"{embedder.dimensions} dimensions"
        )
        raise EmbedderError(msg)
    if packed is None:
        msg = f"the embedder {embedder.id!r} returned a vector with NaN or infinity"
        raise EmbedderError(msg)
    return packed


# --- Rows -----------------------------------------------------------------------------------------

_VERSION: Final = 1
_HEAD: Final = Struct("<HHQQ")
_BLOCK_VECTORS: Final = 128
"""Vectors of a row: 100,000 are read in 1 ms; as a row each they took 156."""
_BLOCK_NUMBERS: Final = 64 * 1024
"""Numbers of a row, at most: blanking a vector rewrites it, also on a full device."""
BLOCK_PAGES: Final = 18
"""Pages of the file that blanking a vector may rewrite."""
_NUMBERS_MAX: Final = 2**48


def vectors_in_block(dimensions: int) -> int:
    """Return the number of vectors of a block."""
    return min(_BLOCK_VECTORS, _BLOCK_NUMBERS // dimensions)


class VectorHead(NamedTuple):
    """Embedder of an index's vectors, and their progress; ``pack`` is its row's body."""

    embedder: str
    """Id of the embedder."""
    dimensions: int
    embedded: int = 0
    """The first ordinal that was not embedded yet."""
    removals: int = 0
    """Number of changes of vectors below it."""

    def pack(self) -> bytes:
        """Return the body of its row."""
        head = _HEAD.pack(_VERSION, self.dimensions, self.embedded, self.removals)
        return head + _packed(self.embedder)

    def is_of(self, embedder: Embedder) -> bool:
        """Return True if the vectors are of this embedder."""
        return (self.embedder, self.dimensions) == (embedder.id, embedder.dimensions)


class Vectors(NamedTuple):
    """Vectors of an index in memory."""

    head: VectorHead
    blocks: list[tuple[int, bytes]]
    """``(first ordinal, block)``, ascending."""

    @property
    def size(self) -> int:
        """Number of bytes."""
        return sum(len(block) for _, block in self.blocks)


def _head_key(scope: int) -> bytes:
    return keys.search_rows(scope, SearchRow.VECTOR_HEAD)


def read_vector_head(txn: ReadTxn, scope: int) -> VectorHead | None:
    """Return the head of a scope's vectors; None if there are none.

    Raises:
        CorruptValueError: it is damaged.
    """
    key = _head_key(scope)
    value = txn.get(key)
    return None if value is None else _unpacked(key, value)


def _unpacked(key: bytes, value: bytes) -> VectorHead:
    body = open_value(key, value)[1]
    with decoding(key, "head of the vectors of a search index"):
        version, dimensions, embedded, removals = _HEAD.unpack_from(body)
        name = body[_HEAD.size :]
        if version != _VERSION or not 0 < dimensions <= DIMENSIONS_MAX:
            raise ValueError("its version or dimensions are unknown")
        if max(embedded, removals) > _NUMBERS_MAX or not 0 < len(name) <= EMBEDDER_ID_BYTES_MAX:
            raise ValueError("its numbers or the id of its embedder are too large")
        return VectorHead(name.decode("utf-8", "surrogatepass"), dimensions, embedded, removals)


def _block(key: bytes, value: bytes, dimensions: int) -> bytes:
    body = open_value(key, value)[1]
    with decoding(key, "vectors of a search index"):
        if len(body) != vectors_in_block(dimensions) * (_SCALE.size + dimensions):
            raise ValueError("it has another size")
    return body


def read_vectors(
    txn: ReadTxn, scope: int, head: VectorHead, known: Vectors | None = None
) -> Vectors:
    """Return a scope's vectors; of ``known`` ones, only blocks that were added to are read.

    Raises:
        CorruptValueError: a row is damaged.
    """
    kept: list[tuple[int, bytes]] = []
    each_has, first = vectors_in_block(head.dimensions), 0
    if known is not None and known.head._replace(embedded=0) == head._replace(embedded=0):
        first = known.head.embedded // each_has
        kept = [each for each in known.blocks if each[0] < first * each_has]
    prefix = keys.search_rows(scope, SearchRow.VECTORS)
    for key, value in txn.scan(keys.numbered(prefix, first), keys.after(prefix)):
        number = keys.number_of(key)
        if number * each_has >= head.embedded:
            break
        kept.append((number * each_has, _block(key, value, head.dimensions)))
    return Vectors(head, kept)


def put_vectors(
    txn: Txn, scope: int, head: VectorHead, vectors: Iterable[tuple[int, bytes]]
) -> None:
    """Write vectors by ordinal, and the head that says how far documents are embedded.

    Raises:
        CorruptValueError: a block is damaged.
    """
    _rewrite(txn, scope, head, dict(vectors))
    key = _head_key(scope)
    txn.put(key, seal_value(key, head.pack()))


def blank_vectors(txn: Txn, scope: int, ordinals: Iterable[int]) -> set[int]:
    """Remove the vectors of documents that leave the index; return the numbers of their blocks.

    Raises:
        CorruptValueError: a row is damaged.
    """
    head = read_vector_head(txn, scope)
    if head is None:
        return set()
    gone = {each: bytes(_SCALE.size + head.dimensions) for each in ordinals if each < head.embedded}
    if gone:
        put_vectors(txn, scope, head._replace(removals=head.removals + 1), gone.items())
    return {each // vectors_in_block(head.dimensions) for each in gone}


def _rewrite(txn: Txn, scope: int, head: VectorHead, vectors: dict[int, bytes]) -> None:
    """Replace vectors in their blocks; a block without any is deleted."""
    count, width = vectors_in_block(head.dimensions), head.dimensions
    by_block: dict[int, list[int]] = {}
    for ordinal in sorted(vectors):
        by_block.setdefault(ordinal // count, []).append(ordinal)
    for number, ordinals in by_block.items():
        key = keys.search_vectors(scope, number)
        value = txn.get(key)
        size = count * (_SCALE.size + width)
        block = bytearray(size if value is None else _block(key, value, width))
        for ordinal in ordinals:
            at, packed = ordinal % count, vectors[ordinal]
            block[_SCALE.size * at : _SCALE.size * (at + 1)] = packed[: _SCALE.size]
            start = _SCALE.size * count + width * at
            block[start : start + width] = packed[_SCALE.size :]
        if any(block[: _SCALE.size * count]):
            txn.put(key, seal_value(key, bytes(block)))
        elif value is not None:
            txn.delete(key)


def embedded_ordinals(txn: ReadTxn, scope: int, head: VectorHead) -> Iterator[int]:
    """Yield the ordinals of the documents that have a vector, ascending.

    Raises:
        CorruptValueError: a row is damaged.
    """
    count = vectors_in_block(head.dimensions)
    prefix = keys.search_rows(scope, SearchRow.VECTORS)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        block, first = _block(key, value, head.dimensions), keys.number_of(key) * count
        for at in range(count):
            if any(block[_SCALE.size * at : _SCALE.size * (at + 1)]):
                yield first + at


def drop_vectors(txn: Txn, scope: int) -> None:
    """Remove all vectors of an index: those of another embedder."""
    prefix = keys.search_rows(scope, SearchRow.VECTORS)
    txn.delete_range(prefix, keys.after(prefix))
    txn.delete(_head_key(scope))


def vectors_beside(embedder: Embedder, packed: Sequence[bytes]) -> Vectors:
    """Return vectors of documents that are in no index, by their places; empty: there is none."""
    count, width = vectors_in_block(embedder.dimensions), embedder.dimensions
    blank = bytes(_SCALE.size + width)
    blocks: list[tuple[int, bytes]] = []
    for first in range(0, len(packed), count):
        some = [each or blank for each in packed[first : first + count]]
        some += [blank] * (count - len(some))
        scales, numbers = ([each[: _SCALE.size] for each in some], [e[_SCALE.size :] for e in some])
        blocks.append((first, b"".join(scales + numbers)))
    return Vectors(VectorHead(embedder.id, width, len(packed)), blocks)


def cosine(vectors: Vectors, ordinal: int, query: bytes) -> float:
    """Return the cosine similarity of a document's vector to a query's; 0 if it has none."""
    width = vectors.head.dimensions
    count = vectors_in_block(width)
    block = next((b for first, b in vectors.blocks if first == ordinal - ordinal % count), None)
    if block is None:
        return 0.0
    at = ordinal % count
    start = _SCALE.size * count + width * at
    scale = _SCALE.unpack_from(block, _SCALE.size * at)[0] * _SCALE.unpack_from(query)[0]
    pairs = zip(
        array("b", block[start : start + width]), array("b", query[_SCALE.size :]), strict=True
    )
    found: float = scale * sum(a * b for a, b in pairs)
    return max(-1.0, min(1.0, found))


# --- Check ----------------------------------------------------------------------------------------


def check_vectors(txn: ReadTxn, scope: int, following: int) -> Iterator[str]:
    """Compare the vectors of an index with its documents; yield findings as text.

    Args:
        txn: the snapshot.
        scope: the scope.
        following: the next ordinal.

    Raises:
        CorruptValueError: a row is damaged.
    """
    head = read_vector_head(txn, scope)
    prefix = keys.search_rows(scope, SearchRow.VECTORS)
    if head is None:
        if next(txn.scan(prefix, keys.after(prefix), limit=1), None) is not None:
            yield "it has vectors without a head"
        return
    if head.embedded > following:
        yield "its head of vectors is beyond its documents"
    count = vectors_in_block(head.dimensions)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        block, first = _block(key, value, head.dimensions), keys.number_of(key) * count
        for at, (scale,) in enumerate(_SCALE.iter_unpack(block[: _SCALE.size * count])):
            start = _SCALE.size * count + head.dimensions * at
            if not 0 <= scale <= 1:
                yield f"the scale of vector {first + at} is impossible"
            elif not scale and any(block[start : start + head.dimensions]):
                yield f"the vector of document {first + at} was not blanked"
            elif scale and first + at >= head.embedded:
                yield f"document {first + at} has a vector and is not embedded"
            elif scale and txn.get(keys.search_forward(scope, first + at)) is None:
                yield f"it has a vector of document {first + at}, which it has not"


def is_vector_row(key: bytes, value: bytes) -> bool:
    """Return True if a proven row can be a head or a block of vectors."""
    if key[9] == SearchRow.VECTOR_HEAD:
        _unpacked(key, value)
        return True
    size = len(open_value(key, value)[1])
    return 0 < size <= _BLOCK_VECTORS * _SCALE.size + _BLOCK_NUMBERS
