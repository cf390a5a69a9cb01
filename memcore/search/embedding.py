"""Embedding: the documents of a scope's index are given to the embedder, and its vectors stored.

Documents are embedded behind a watermark, in batches. The embedder runs outside any transaction: a
short commit then stores the vectors of those documents that are still the same. An ordinal is never
given to another document.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from memcore.rows.lifecycle import is_erased, is_opted_out
from memcore.search.index import Forward, forward_of, forward_rows, read_head
from memcore.search.vectors import (
    EMBED_CHARS,
    EMBED_ITEMS,
    Embedder,
    VectorHead,
    drop_vectors,
    embed,
    put_vectors,
    read_vector_head,
)
from memcore.store.interface import ReadTxn, Stale, Store, Txn

__all__ = [
    "Embedding",
]


EMBED_BATCH_CHARS: Final = 2**19
_EMBED_ROWS: Final = 4096
"""Documents that one step goes through, most of which have no text to embed."""


class _Batch(NamedTuple):
    """Documents to embed next."""

    key: bytes
    """The index's key."""
    before: VectorHead | None
    """Head of the vectors as stored."""
    stop: int
    """The first ordinal that is not among them."""
    texts: list[tuple[Forward, str]]


class Embedding(NamedTuple):
    """Embedding of the documents in a file's indexes."""

    store: Store
    embedder: Embedder
    text_of: Callable[[ReadTxn, int, Forward], str]
    """Returns the text of a document to embed; nothing: it gets no vector."""

    def lacks(self, txn: ReadTxn, scope: int) -> bool:
        """Return True if indexed documents were not embedded yet."""
        head = read_head(txn, scope)
        return head is not None and head.next > self._embedded(read_vector_head(txn, scope))

    def _embedded(self, head: VectorHead | None) -> int:
        """Return the first ordinal without a vector of this embedder."""
        return head.embedded if head is not None and head.is_of(self.embedder) else 0

    def catch_up(self, scope: int, tries: int) -> None:
        """Embed the documents that have no vector of this embedder yet.

        Only those that are indexed when it begins: others may go on indexing for ever.

        Raises:
            EmbedderError: the embedder failed.
            Stale: so many steps in a row were lost to changes by others.
        """
        head = self.store.read(lambda txn: read_head(txn, scope))
        lost = 0
        while head is not None:
            part = self.store.read(lambda txn: self._next(txn, scope, head.key, head.next))
            if part is None:
                return
            texts = [text for _, text in part.texts]
            made = embed(self.embedder, texts) if texts else []
            try:
                self.store.transact(partial(self._put, scope, part, made))
                lost = 0
            except Stale:
                lost += 1
                if lost == tries:
                    raise

    def _next(self, txn: ReadTxn, scope: int, key: bytes, end: int) -> _Batch | None:
        """Return what to embed next of the ordinals below ``end``; None if there is nothing."""
        now = read_head(txn, scope)
        if now is None or now.key != key or _is_closed(txn, scope):
            return None
        before = read_vector_head(txn, scope)
        start = self._embedded(before)
        if start >= end:
            return None
        texts: list[tuple[Forward, str]] = []
        size = 0
        for seen, each in enumerate(forward_rows(txn, scope, start, end)):
            full = len(texts) == EMBED_ITEMS or size > EMBED_BATCH_CHARS
            if full or seen == _EMBED_ROWS:
                return _Batch(key, before, each.ordinal, texts)
            text = self.text_of(txn, scope, each)[:EMBED_CHARS]
            if text:
                texts.append((each, text))
                size += len(text)
        return _Batch(key, before, end, texts)

    def _put(self, scope: int, part: _Batch, made: list[bytes], txn: Txn) -> None:
        """Store vectors of the documents that are still there.

        Raises:
            Stale: the index, its vectors or the user's wishes have changed since they were read.
        """
        head = read_head(txn, scope)
        if head is None or head.key != part.key or _is_closed(txn, scope):
            raise Stale
        if read_vector_head(txn, scope) != part.before:
            raise Stale
        after = VectorHead(self.embedder.id, self.embedder.dimensions, part.stop)
        if part.before is not None and part.before.is_of(self.embedder):
            after = after._replace(removals=part.before.removals)
        else:
            drop_vectors(txn, scope)
        pairs = zip((row for row, _ in part.texts), made, strict=True)
        same = (
            (row.ordinal, packed) for row, packed in pairs
            if forward_of(txn, scope, row.ordinal) == row
        )  # fmt: skip
        put_vectors(txn, scope, after, same)


def _is_closed(txn: ReadTxn, scope: int) -> bool:
    """Return True if nothing of the scope may be embedded."""
    return is_erased(txn, scope) or is_opted_out(txn, scope)
