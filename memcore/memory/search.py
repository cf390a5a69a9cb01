"""Search over a scope's memories: ranking in the scope's index, filters, hits.

The index has the documents of entries beside those of items (``rows``). A search adds those that it
lacks; a handle that may not write ranks them beside the index, with the same results.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from memcore import search
from memcore.codec import keys
from memcore.errors import (
    CorruptValueError,
    EmbedderError,
    InvalidOptionError,
    MemcoreError,
    StoreFullError,
)
from memcore.faces import logger
from memcore.memory.rows import (
    MemoryVersion,
    document_of,
    entries,
    index_piece,
    indexed_to,
    is_indexed,
    known_at,
    memory_of,
    read_entry,
    role_of,
    sound_entries,
    sound_entry,
)
from memcore.memory.trust import KINDS, STATUSES
from memcore.model import MemoryHit
from memcore.options import checked_bool, checked_choices
from memcore.store.interface import ReadTxn, Stale, Store

__all__ = [
    "MemoryQuery",
    "best_hits",
    "bring_up_to_date",
    "checked_query",
    "drop_damaged",
    "embedded_recall",
    "find_memories",
    "index_memories",
    "index_wanted",
    "is_up_to_date",
    "lent_scores",
]


_SPARE: Final = 32
"""Matches ranked beyond those asked for, of which filters may leave out some."""
_MORE: Final = 4
_LENDERS: Final = 100
"""Memories of which the best lend to items."""
_LENT: Final = 0.5
"""Part of its score that a memory lends each item that it cites."""
_EMBED_TRIES: Final = 8
"""Batches in a row that a search may lose to others' changes; the rest is found by its words."""


class MemoryQuery(NamedTuple):
    """A checked search for memories."""

    text: str
    k: int
    kinds: tuple[str, ...]
    statuses: tuple[str, ...]
    fits: Callable[[MemoryVersion], bool]
    """Returns True if a version passes all other filters."""
    as_of_ms: int | None
    explain: bool
    like: search.EmbeddedQuery | None = None
    """The query's vector; None: words alone count."""

    def admits(self, record: MemoryVersion) -> bool:
        """Return True if a version is what is asked for, whatever the index says about it."""
        is_of_kind = record.kind in self.kinds and record.status in self.statuses
        return is_of_kind and self.fits(record)


def checked_query(
    query: object, *, k: object, kinds: object, statuses: object, explain: object
) -> MemoryQuery:
    """Check the arguments of a search.

    Raises:
        InvalidOptionError: one of them is invalid.
    """
    text, most = search.checked_query(query, k)
    return MemoryQuery(
        text,
        most,
        _choices("kinds", kinds, KINDS),
        _choices("statuses", statuses, STATUSES),
        lambda _: True,
        None,
        checked_bool("explain", explain),
    )


def _choices(name: str, value: object, allowed: Sequence[str]) -> tuple[str, ...]:
    if value is None:
        return tuple(allowed)
    found = checked_choices(name, value, allowed)
    if not found:
        msg = f"{name}: expected at least one, or None for all"
        raise InvalidOptionError(msg)
    return found


def index_memories(store: Store, find: Callable[[ReadTxn], int | None]) -> None:
    """Bring the search index of a scope up to its last memory, in short commits.

    Raises:
        CorruptValueError: the index is damaged.
    """
    scope = store.read(find)
    if scope is None:
        return
    is_whole = store.read(lambda txn: is_indexed(txn, scope, search.read_head(txn, scope)))
    if not is_whole:
        search.clear_index(store, scope)
    while not is_whole:
        is_whole = store.transact(lambda txn: index_piece(txn, scope))
        search.merge_pending(store, scope)
    search.merge_pending(store, scope)


def is_up_to_date(txn: ReadTxn, scope: int, embedding: search.Embedding | None) -> bool:
    """Return True if a scope's index has all memories and, with an embedding, their vectors.

    Raises:
        CorruptValueError: the index is damaged.
    """
    head = search.read_head(txn, scope)
    if head is None or head.is_long() or not is_indexed(txn, scope, head):
        return False
    return embedding is None or not embedding.lacks(txn, scope)


def bring_up_to_date(
    store: Store, find: Callable[[ReadTxn], int | None], embedding: search.Embedding | None
) -> None:
    """Index a scope's memories for a search and, with an embedding, embed what has no vector.

    Without room in the file, what has no vector is found by its words.

    Raises:
        EmbedderError: the embedder failed.
        CorruptValueError: the index is damaged.
    """
    index_memories(store, find)
    if embedding is None:
        return

    def is_behind(txn: ReadTxn) -> int | None:
        scope = find(txn)
        return scope if scope is not None and embedding.lacks(txn, scope) else None

    scope = store.read(is_behind)
    try:
        if scope is not None:
            embedding.catch_up(scope, _EMBED_TRIES)
    except (StoreFullError, Stale) as error:
        told = "others change too much" if isinstance(error, Stale) else error
        logger("memcore.search").warning("searching without embedding: %s", told)


def embedded_recall(
    store: Store,
    find: Callable[[ReadTxn], int | None],
    embedding: search.Embedding | None,
    text: str,
) -> search.EmbeddedQuery | None:
    """Embed the query of a context, if its user has vectors of this embedder; None if not.

    A context is built without what an embedder fails to return, and without a damaged index; the
    log is told of it.
    """

    def has_vectors(txn: ReadTxn) -> bool:
        scope = find(txn)
        head = None if scope is None else search.read_vector_head(txn, scope)
        return head is not None and embedding is not None and head.is_of(embedding.embedder)

    if embedding is None or not text.strip():
        return None
    try:
        if store.read(has_vectors):
            return search.embedded_query(text, "auto", embedding.embedder)
    except (EmbedderError, CorruptValueError) as error:
        logger("memcore.search").warning("memories are found by their words alone: %s", error)
    return None


def index_wanted(
    store: Store, find: Callable[[ReadTxn], int | None], indexes: search.IndexCache
) -> None:
    """Bring the index up to date if a context, which writes nothing, had to do without it.

    The statement before it is stored already, so a failure is told to the log alone: the index is
    derived, and a search that finds it damaged builds it anew.
    """
    scope = store.read(find) if indexes.wanted else None
    if scope is None or scope not in indexes.wanted:
        return
    damage = indexes.wanted.pop(scope)
    try:
        if damage is not None:
            drop_damaged(store, find, damage)
        index_memories(store, find)
    except MemcoreError as error:
        logger("memcore.search").warning("memories were not indexed: %s", error)


def find_memories(
    txn: ReadTxn,
    scope: int,
    indexes: search.IndexCache,
    asked: MemoryQuery,
    now_ms: int,
    *,
    sound: bool = False,
) -> list[MemoryHit]:
    """Rank a scope's memories on one snapshot, the best first.

    ``sound``: memories that are damaged are left out, and the log is told of them.

    Raises:
        CorruptValueError: a row of the index is damaged, or one of the memory, unless ``sound``.
    """
    read = sound_entry if sound else read_entry
    head = search.read_head(txn, scope) if asked.as_of_ms is None else None
    past: dict[int, MemoryVersion] = {}
    if asked.as_of_ms is not None:  # only what is current is indexed
        all_entries = sound_entries(txn, scope) if sound else entries(txn, scope)
        # What has expired since is hidden from every view of the past, too.
        current = (each for each in all_entries if each.is_visible(now_ms))
        versions = (known_at(txn, scope, each, asked.as_of_ms) for each in current)
        past = {each.id: each for each in versions if each is not None}
    cache = None if head is None else indexes
    head = head or search.IndexHead(os.urandom(16))
    beside = []
    known = 0 if cache is None else indexed_to(txn, scope, head)
    now = sound_entries(txn, scope, known) if sound else entries(txn, scope, known)
    for each in now if asked.as_of_ms is None else past.values():
        made = document_of(each)
        if made is not None:
            beside.append(made.prepared(head.key))
    query = search.Query(
        asked.text,
        kinds=(search.DocumentKind.MEMORY,),
        roles=_roles(asked.kinds, asked.statuses),
    )
    count = asked.k + _SPARE
    while True:
        ranking = search.rank(
            txn, scope, head, cache, query, k=count, beside=beside, like=asked.like
        )
        found: list[MemoryHit] = []
        for match in ranking.matches:
            number = keys.number_of(match.id)
            record = past.get(number) or read(txn, scope, number)
            if record is None or not record.is_visible(now_ms) or not asked.admits(record):
                continue
            snippet, shown = search.snippet_of(record.text, head.key, ranking.terms)
            why = search.parts_of_score(txn, scope, ranking, match) if asked.explain else ()
            near = ranking.similarity(match) if asked.explain else 0.0
            found.append(MemoryHit(memory_of(record), match.score, snippet, shown, why, near))
            if len(found) == asked.k:
                return found
        if len(ranking.matches) < count:
            return found
        count *= _MORE


@lru_cache(64)
def _roles(kinds: tuple[str, ...], statuses: tuple[str, ...]) -> frozenset[int]:
    """Return the roles of documents of memories of some kinds and statuses."""
    return frozenset(role_of(kind, status) for kind in kinds for status in statuses)


def lent_scores(
    txn: ReadTxn,
    scope: int,
    indexes: search.IndexCache,
    query: str,
    now_ms: int,
    *,
    like: search.EmbeddedQuery | None = None,
) -> dict[tuple[int, bytes], float]:
    """Return what active memories lend to the items that they rest on, by kind and id of documents.

    An item is lent half of the best score of a memory that cites it. Of what is said in other words
    than it is asked, a memory may be in the words of the question. With the query's vector the
    scores are those of a hybrid search, on the same scale as the items'. A damaged memory lends
    nothing.

    Raises:
        CorruptValueError: a row of the index is damaged.
    """
    head = search.read_head(txn, scope)
    if head is None:
        return {}
    roles = _roles(KINDS, ("active",))
    asked = search.Query(query, kinds=(search.DocumentKind.MEMORY,), roles=roles)
    found: dict[tuple[int, bytes], float] = {}
    for match in search.rank(txn, scope, head, indexes, asked, k=_LENDERS, like=like).matches:
        number = keys.number_of(match.id)
        record = sound_entry(txn, scope, number)
        if record is None or record.status != "active" or not record.is_visible(now_ms):
            continue
        for row in record.sources:
            for seq in row.seqs:
                item = search.DocumentKind.ITEM, keys.u64(row.owner) + keys.u64(seq)
                found[item] = max(found.get(item, 0.0), _LENT * match.score)
    return found


def best_hits(own: list[MemoryHit], beside: list[MemoryHit], k: int) -> list[MemoryHit]:
    """Return the best of two lists of hits; the user's own come first among equals."""
    return sorted([*own, *beside], key=lambda hit: -hit.score)[:k] if beside else own


def drop_damaged(
    store: Store, find: Callable[[ReadTxn], int | None], error: CorruptValueError
) -> None:
    """Drop a scope's search index if it is what is damaged; otherwise raise the error again."""
    scope = store.read(find)
    if scope is None or not search.is_index_error(error):
        raise error
    logger("memcore.search").warning("a damaged search index is dropped: %s", error)
    store.transact(lambda txn: search.drop_index(txn, scope), makes_room=True)
    search.clear_index(store, scope)
