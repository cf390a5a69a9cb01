"""Queries of a scope's index: terms, ranking of documents, explanations; tables in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import log
from threading import Lock
from typing import Any, Final, NamedTuple, overload

from memcore._fast import SearchTable, search_spans, search_words, times_in
from memcore.codec import keys
from memcore.codec.keys import Kind, SearchRow
from memcore.codec.values import decoding
from memcore.errors import CorruptValueError, InvalidOptionError
from memcore.model import TermScore
from memcore.options import checked_int
from memcore.search.index import (
    HOLES_MAX,
    RECORD_BYTES,
    DocumentKind,
    Forward,
    IndexHead,
    PreparedDocument,
    author_hash,
    forward_of,
    is_sparse,
    ordinal_of,
    pending_documents,
    posting_blocks,
    table_pages,
)
from memcore.search.text import folded
from memcore.search.vectors import (
    EMBED_CHARS,
    EMBED_ITEMS,
    VECTOR_SCALE,
    Embedder,
    VectorHead,
    Vectors,
    checked_mode,
    cosine,
    embed,
    read_vector_head,
    read_vectors,
    vectors_beside,
)
from memcore.store.interface import ReadTxn

try:  # the module behind hashlib.blake2b; importing hashlib would load OpenSSL (3 MB)
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = [
    "EmbeddedQuery",
    "IndexCache",
    "Match",
    "Query",
    "Ranking",
    "checked_query",
    "embedded_query",
    "parts_of_score",
    "rank",
]


# Recipe A of the retrieval kit, chosen by measurement on LoCoMo (docs/search.md has the table).
# BM25's values for short texts; the usual 1.2 and 0.75 find 2 points less.
BM25_K1: Final = 0.9
BM25_B: Final = 0.4
LEND: Final = 0.3
"""Part of its score that a document lends each neighbour: an answer often lacks the words of its
question. Measured: +4 points of recall."""
HYBRID_MIX: Final = 0.4
"""Part of the similarity in the score of a hybrid search; docs/search.md has the measurement."""
QUERY_TERMS_MAX: Final = 256
"""Distinct terms of a query that are used: its first ones."""
_CACHED_SCOPES: Final = 64
_DECODED_SCOPES: Final = 16
_CACHED_VECTOR_BYTES: Final = 256 * 1024**2
"""Bytes of vectors that are kept in memory; those of the last search always are."""
_CACHED_TEXT_BYTES: Final = 4 * 1024**2
"""Bytes of vectors of texts in no index that are kept in memory."""
_TEXTS_EMBEDDED: Final = 1024
_TIME_END: Final = 2**32 - 1
_LENGTH_AT: Final = 16
"""Place of the length in a record."""
_LENGTH_BYTES: Final = 4
_KIND_AT: Final = 28
_WEIGHT_AT: Final = 30
_ALL: Final = 2**64 - 1


# --- Tables in memory -----------------------------------------------------------------------------


class _Cached(NamedTuple):
    """Table of an index, of one generation of it."""

    key: bytes
    generation: int
    pages: list[tuple[int, bytes]]
    table_generation: int
    pending: list[tuple[int, bytes]]
    """Ordinal and packed terms of the documents that no posting has yet."""
    table: SearchTable


class IndexCache:
    """Tables of the most recently searched indexes of a database. Thread-safe.

    Numbers of snapshots and generations belong to one file: a compaction replaces it, and the new
    one numbers its transactions anew. So nothing is kept once another file was opened, which
    ``opened`` counts; while a read runs, none is.
    """

    __slots__ = (
        "_decoded", "_file", "_lock", "_opened", "_seen", "_tables", "_texts", "_vectors", "wanted",
    )  # fmt: skip

    def __init__(self, opened: Callable[[], int]) -> None:
        self._opened = opened
        self._file = 0
        self.wanted: dict[int, CorruptValueError | None] = {}
        """Scopes in which readers had to rank what is not indexed, or met damage of the index."""
        self._lock = Lock()
        self._decoded: OrderedDict[int, dict[bytes, tuple[bytes, Any]]] = OrderedDict()
        self._tables: OrderedDict[int, _Cached] = OrderedDict()
        self._seen: dict[int, tuple[int, Any]] = {}
        self._vectors: OrderedDict[int, tuple[bytes, Vectors]] = OrderedDict()
        self._texts: OrderedDict[tuple[str, int, bytes], bytes] = OrderedDict()

    def _keep_to_file(self) -> None:
        """Drop everything that was read from another file. Needs the lock."""
        now = self._opened()
        if now != self._file:
            for each in (self._decoded, self._tables, self._seen, self._vectors):
                each.clear()
            self._file = now

    def forget(self, scope: int) -> None:
        """Drop what is known of a scope."""
        with self._lock:
            self._tables.pop(scope, None)
            self._seen.pop(scope, None)
            self._decoded.pop(scope, None)
            self._vectors.pop(scope, None)
            self._texts.clear()

    def decoded(self, scope: int) -> dict[bytes, tuple[bytes, Any]]:
        """Return a scope's values that were decoded: by key, the value and what it holds."""
        with self._lock:
            self._keep_to_file()
            known = self._decoded.setdefault(scope, {})
            self._decoded.move_to_end(scope)
            while len(self._decoded) > _DECODED_SCOPES:
                self._decoded.popitem(last=False)
            return known

    def recall(self, scope: int) -> tuple[int, Any]:
        """Return what ``remember`` was given last for a scope; ``(-1, None)``: nothing."""
        with self._lock:
            self._keep_to_file()
            return self._seen.get(scope, (-1, None))

    def remember(self, scope: int, snapshot: int, found: object) -> None:
        """Keep something that was read of a scope in a snapshot, by LMDB's number of it."""
        with self._lock:
            self._keep_to_file()
            if len(self._seen) >= _CACHED_SCOPES:
                self._seen.clear()
            self._seen[scope] = snapshot, found

    def get(
        self, txn: ReadTxn, scope: int, head: IndexHead
    ) -> tuple[SearchTable, list[tuple[int, bytes]]]:
        """Return a scope's table, and ordinal and packed terms of each pending document.

        Raises:
            CorruptValueError: a row is damaged.
        """
        with self._lock:
            self._keep_to_file()
            known = self._tables.get(scope)
        if known is None or (known.key, known.generation) != (head.key, head.generation):
            known = self._load(txn, scope, head, known)
            with self._lock:
                self._tables[scope] = known
                self._tables.move_to_end(scope)
                while len(self._tables) > _CACHED_SCOPES:
                    self._tables.popitem(last=False)
        return known.table, known.pending

    def vectors(self, txn: ReadTxn, scope: int, head: IndexHead) -> Vectors | None:
        """Return the vectors of a scope's index; None if there are none.

        Raises:
            CorruptValueError: a row is damaged.
        """
        now = read_vector_head(txn, scope)
        if now is None:
            return None
        with self._lock:
            self._keep_to_file()
            key, known = self._vectors.get(scope, (b"", None))
            if known is not None and (key, known.head) == (head.key, now):
                self._vectors.move_to_end(scope)
                return known
        known = read_vectors(txn, scope, now, known if key == head.key else None)
        with self._lock:
            self._vectors[scope] = head.key, known
            self._vectors.move_to_end(scope)
            size = sum(each.size for _, each in self._vectors.values())
            while size > _CACHED_VECTOR_BYTES and len(self._vectors) > 1:
                size -= self._vectors.popitem(last=False)[1][1].size
        return known

    def of_texts(self, embedder: Embedder, texts: Sequence[str]) -> Vectors:
        """Return vectors of texts that no index has, by their places; the last ones are kept.

        At most 1,024 are embedded in a call, so that a user with many does not wait for all; the
        rest has none yet.

        Raises:
            EmbedderError: the embedder failed.
        """
        names = [_text_name(embedder, text) for text in texts]
        with self._lock:
            found = {name: self._texts[name] for name in names if name in self._texts}
        missing = {name: text for name, text in zip(names, texts, strict=True) if name not in found}
        some = list(missing.items())[:_TEXTS_EMBEDDED]
        for at in range(0, len(some), EMBED_ITEMS):
            part = some[at : at + EMBED_ITEMS]
            made = embed(embedder, [text[:EMBED_CHARS] for _, text in part])
            found.update(zip((name for name, _ in part), made, strict=True))
        with self._lock:
            for name in names:
                if name in found:
                    self._texts[name] = found[name]
                    self._texts.move_to_end(name)
            room = max(_CACHED_TEXT_BYTES // embedder.dimensions, 1)
            while len(self._texts) > room:
                self._texts.popitem(last=False)
        return vectors_beside(embedder, [found.get(name, b"") for name in names])

    @staticmethod
    def _load(txn: ReadTxn, scope: int, head: IndexHead, known: _Cached | None) -> _Cached:
        if known is None or (known.key, known.table_generation) != (
            head.key, head.table_generation
        ):  # fmt: skip
            pages = list(table_pages(txn, scope))
        else:
            pages = known.pages
        pending = pending_documents(txn, scope, head)
        table = _table_of(head, pages, pending, (), ())
        packed = [(each.ordinal, each.packed) for each in pending]
        return _Cached(head.key, head.generation, pages, head.table_generation, packed, table)


def _text_name(embedder: Embedder, text: str) -> tuple[str, int, bytes]:
    """Return the name of a text's vector; the text itself is not kept."""
    packed = text.encode("utf-8", "surrogatepass")
    return embedder.id, embedder.dimensions, blake2b(packed, digest_size=16).digest()


def _totals(records: bytes) -> tuple[int, int]:
    """Return the number of documents in records, and the sum of their lengths."""
    size = RECORD_BYTES
    kinds = records[_KIND_AT::size]
    length = sum(
        sum(records[_LENGTH_AT + byte :: size]) << 8 * byte for byte in range(_LENGTH_BYTES)
    )
    return len(kinds) - kinds.count(0), length


def _table_of(
    head: IndexHead,
    pages: Sequence[tuple[int, bytes]],
    pending: Sequence[Forward],
    beside: Sequence[PreparedDocument],
    absent: Iterable[Forward],
) -> SearchTable:
    with decoding(bytes((Kind.SEARCH,)), "table of a search index"):
        if is_sparse(head, most=HOLES_MAX):
            raise ValueError("more ordinals were given out than its documents can have had")
        found = [_totals(records) for _, records in pages]
        documents = sum(count for count, _ in found) + len(pending)
        length = sum(each for _, each in found) + sum(each.length for each in pending)
        if (documents, length) != (head.documents, head.length):
            raise ValueError("it has other totals than its head says")
        table = SearchTable(head.next + len(beside))
        for first, records in pages:
            table.load(first, records)
        for each in pending:
            table.load(each.ordinal, each.record)
        for ordinal, made in enumerate(beside, head.next):
            table.load(ordinal, made.record)
        for each in absent:
            table.load(each.ordinal, bytes(len(each.record)))
        table.link()
    return table


# --- Queries --------------------------------------------------------------------------------------


QUERY_CHARS_MAX: Final = 100_000
RESULTS_MAX: Final = 1000


def checked_query(query: object, k: object) -> tuple[str, int]:
    """Return the text of a query and the most results, checked.

    Raises:
        InvalidOptionError: the text has no word or is too long, or there may be too many results.
    """
    if not isinstance(query, str) or not query.strip():
        msg = f"query: expected text with at least one word, got {query!r:.80}"
        raise InvalidOptionError(msg)
    if len(query) > QUERY_CHARS_MAX:
        msg = f"query: at most {QUERY_CHARS_MAX} characters are allowed, got {len(query)}"
        raise InvalidOptionError(msg)
    most = checked_int("k", k, least=1)
    if most > RESULTS_MAX:
        msg = f"k: expected 1 to {RESULTS_MAX}, got {k!r:.20}"
        raise InvalidOptionError(msg)
    return query[:], most  # of a subclass, such as a StrEnum, the text itself


class Query:
    """Words to search for, and the documents wanted; 0 or empty filters want all."""

    __slots__ = ("authors", "kinds", "ranges", "roles", "since", "text", "until")

    def __init__(
        self,
        text: str,
        *,
        kinds: Iterable[int] = (),
        roles: Iterable[int] = (),
        authors: Iterable[str] = (),
        since: int = 0,
        until: int = _TIME_END,
        ranges: bytes | None = None,
    ) -> None:
        self.text = folded(text)
        self.kinds = sum(1 << kind for kind in set(kinds)) or _ALL
        self.roles = sum(1 << role for role in set(roles)) or _ALL
        self.authors = tuple(authors)
        self.since = since
        self.until = until
        self.ranges = ranges
        """``group | first number | last number`` wanted, u64 in native order; None: all."""

    def terms(self, key: bytes) -> dict[int, str]:
        """Return the distinct terms by hash, at most 256, in the order of the text."""
        found: dict[int, str] = {}
        spans = search_spans(self.text, key)
        for (term, _, _), word in zip(spans, search_words(self.text), strict=True):
            if len(found) == QUERY_TERMS_MAX:
                break
            found.setdefault(term, word)
        return found


class EmbeddedQuery(NamedTuple):
    """A query's vector, and what it counts."""

    embedder: Embedder
    vector: bytes
    mix: float
    """Part of the similarity in a score, 0 to 1."""

    def vectors(
        self, txn: ReadTxn, scope: int, head: IndexHead, cache: IndexCache | None
    ) -> Vectors:
        """Return the vectors that its embedder made; none are left of another one's.

        Raises:
            CorruptValueError: a row is damaged.
        """
        found = None if cache is None or not head.next else cache.vectors(txn, scope, head)
        is_own = found is not None and found.head.is_of(self.embedder)
        return found if found is not None and is_own else Vectors(VectorHead("", 0), [])


def embedded_query(
    text: str, mode: object, embedder: Embedder | None, *, known: dict[str, bytes] | None = None
) -> EmbeddedQuery | None:
    """Embed a query; None if it is searched by its words alone.

    ``known`` has the vectors of texts that were embedded for the same search.

    Raises:
        InvalidOptionError: the mode is none, or needs an embedder.
        EmbedderError: the embedder failed.
    """
    asked = checked_mode(mode, embedder)
    if embedder is None or asked == "lexical":
        return None
    vectors = {} if known is None else known
    if text not in vectors:
        vectors[text] = embed(embedder, [text])[0]
    return EmbeddedQuery(embedder, vectors[text], 1.0 if asked == "vector" else HYBRID_MIX)


class Match(NamedTuple):
    """A document that a query found."""

    kind: int
    id: bytes
    score: float
    own: float
    """Its score without what its neighbours lend it."""
    ordinal: int


class Ranking(NamedTuple):
    """The best documents of a query, and what their scores are made of."""

    head: IndexHead
    beside: Sequence[PreparedDocument]
    """Documents that were ranked along with those of the index."""
    terms: dict[int, str]
    """Terms of the query by hash."""
    matches: Sequence[Match]
    total: int
    """Number of documents in the index."""
    average: float
    """Average length of a document, in terms."""
    frequencies: list[int]
    """Number of documents with each term."""
    vectors: Vectors | None = None
    """Vectors that took part."""
    vector: bytes = b""
    """The query's vector."""

    def similarity(self, match: Match) -> float:
        """Return the cosine similarity of a match to the query; 0 if it has no vector."""
        if self.vectors is None or not self.vectors.blocks:
            return 0.0
        return cosine(self.vectors, match.ordinal, self.vector)


def rank(
    txn: ReadTxn,
    scope: int,
    head: IndexHead,
    cache: IndexCache | None,
    query: Query,
    *,
    k: int,
    beside: Sequence[PreparedDocument] = (),
    absent: Iterable[tuple[int, bytes]] = (),
    like: EmbeddedQuery | None = None,
    vectors: Vectors | None = None,
    lent: Mapping[tuple[int, bytes], float] | None = None,
) -> Ranking:
    """Rank the documents of a scope's index, and those ``beside`` it, by BM25.

    It is as if those that are ``absent``, by kind and id, had been removed. With the vector of the
    query, ``like``, the similarity of each document's vector to it is a part of its score: of the
    vectors of the index, or of ``vectors``. ``lent`` is added to the scores of documents, by kind
    and id.

    Raises:
        CorruptValueError: a row of the index is damaged.
    """
    terms = query.terms(head.key)
    gone = _forwards(txn, scope, absent)
    total = head.documents + len(beside) - len(gone)
    length = head.length + sum(each.length for each in beside) - sum(e.length for e in gone)
    nothing = Ranking(head, beside, terms, [], total, 0.0, [])
    if like is None:
        vectors = None
    elif vectors is None:
        vectors = like.vectors(txn, scope, head, cache)
    if not (terms or vectors):
        return nothing
    if cache is None or beside or gone:
        pages = [] if not head.next else list(table_pages(txn, scope))
        pending = pending_documents(txn, scope, head)
        table = _table_of(head, pages, pending, beside, gone)
        left = {each.ordinal for each in gone}
        unmerged = [(each.ordinal, each.packed) for each in pending if each.ordinal not in left]
        unmerged += [(head.next + at, each.packed) for at, each in enumerate(beside)]
    else:
        table, unmerged = cache.get(txn, scope, head)
    if total <= 0 or (length <= 0 and not vectors):  # the table has proved the head's totals
        return nothing
    blocks = [(term, posting_blocks(txn, scope, keys.u64(term), head.merged)) for term in terms]
    hashes = {author_hash(author, head.key) for author in query.authors}
    vector = b"" if like is None else like.vector
    with decoding(keys.search_rows(scope, SearchRow.POSTINGS), "postings of a search index"):
        best, frequencies = table.rank(
            blocks,
            unmerged,
            [each.packed for each in gone if each.ordinal < head.merged],
            k=k,
            total=total,
            k1=BM25_K1,
            b=BM25_B,
            average=length / total,
            lend=LEND,
            kinds=query.kinds,
            roles=query.roles,
            since=query.since,
            until=query.until,
            authors=b"".join(each.to_bytes(4, "little") for each in sorted(hashes)),
            ranges=query.ranges,
            vectors=None if vectors is None else _blocks_for(vectors, vector, len(table)),
            query=vector,
            mix=0.0 if like is None else like.mix,
            lent=None if lent is None else _by_ordinal(txn, scope, head, beside, lent),
        )
    matches = _Matches(best, partial(_place, txn, scope, head=head, beside=beside, table=table))
    return Ranking(
        head, beside, terms, matches, total, length / total, frequencies, vectors, vector
    )


class _Matches(Sequence[Match]):
    """Matches, each read when it is asked for: more are ranked than are shown.

    They can be read as long as the transaction of the search.
    """

    def __init__(
        self,
        best: Sequence[tuple[int, float, float]],
        place: Callable[[int], tuple[int, bytes]],
    ) -> None:
        self._best = best
        self._place = place

    def __len__(self) -> int:
        return len(self._best)

    def __iter__(self) -> Iterator[Match]:
        for ordinal, score, own in self._best:
            yield Match(*self._place(ordinal), score, own, ordinal)

    @overload
    def __getitem__(self, at: int) -> Match: ...

    @overload
    def __getitem__(self, at: slice) -> list[Match]: ...

    def __getitem__(self, at: int | slice) -> Match | list[Match]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self._best)))]
        ordinal, score, own = self._best[at]
        return Match(*self._place(ordinal), score, own, ordinal)


def _by_ordinal(
    txn: ReadTxn,
    scope: int,
    head: IndexHead,
    beside: Sequence[PreparedDocument],
    lent: Mapping[tuple[int, bytes], float],
) -> list[tuple[int, float]]:
    """Return what is lent to documents by their ordinals; what is no document gets nothing."""
    found = [
        (head.next + at, lent.get((each.kind, each.id), 0.0)) for at, each in enumerate(beside)
    ]
    for place, score in lent.items() if head.next else ():
        ordinal = ordinal_of(txn, scope, *place)
        if ordinal is not None:
            found.append((ordinal, score))
    return found


def _blocks_for(vectors: Vectors, vector: bytes, count: int) -> list[tuple[int, bytes]]:
    """Return the blocks of ``count`` documents; none if the query's vector is zero."""
    blank = not any(vector[VECTOR_SCALE:])
    return [] if blank else [each for each in vectors.blocks if each[0] < count]


def _forwards(txn: ReadTxn, scope: int, ids: Iterable[tuple[int, bytes]]) -> list[Forward]:
    """Return the forward rows of those documents that are indexed."""
    found = (
        None if ordinal is None else forward_of(txn, scope, ordinal)
        for ordinal in (ordinal_of(txn, scope, *each) for each in ids)
    )
    return [each for each in found if each is not None]


def _place(
    txn: ReadTxn,
    scope: int,
    ordinal: int,
    *,
    head: IndexHead,
    beside: Sequence[PreparedDocument],
    table: SearchTable,
) -> tuple[int, bytes]:
    """Return kind and id of a document by its ordinal."""
    if ordinal >= head.next:
        made = beside[ordinal - head.next]
        return made.kind, made.id
    record = table.record(ordinal)
    if record is not None and record[0] == DocumentKind.ITEM:
        return record[0], keys.u64(record[1]) + keys.u64(record[2])
    if record is not None and record[0] == DocumentKind.MEMORY:  # its id is eight bytes
        return record[0], keys.u64(record[1])
    found = forward_of(txn, scope, ordinal)
    if found is None:
        with decoding(keys.search_forward(scope, ordinal), "forward row of a search index"):
            raise ValueError("it is missing")
    return found.kind, found.id


def parts_of_score(
    txn: ReadTxn, scope: int, ranking: Ranking, match: Match
) -> tuple[TermScore, ...]:
    """Return what each term of the query that a match has adds to its own score."""
    first = ranking.head.next
    if match.ordinal >= first:
        made = ranking.beside[match.ordinal - first]
        packed, length, weight = made.packed, made.length, made.record[_WEIGHT_AT]
    else:
        found = forward_of(txn, scope, match.ordinal)
        if found is None:
            return ()
        packed, length, weight = found.packed, found.length, found.record[_WEIGHT_AT]
    parts = []
    for (term, word), having in zip(ranking.terms.items(), ranking.frequencies, strict=True):
        times = times_in(packed, term)
        if times:
            idf = log(1 + (ranking.total - having + 0.5) / (having + 0.5))
            share = length / ranking.average if ranking.average else 0.0
            floor = BM25_K1 * (1 - BM25_B + BM25_B * share)
            score = idf * times * (BM25_K1 + 1) / (times + floor) * weight / 100
            parts.append(TermScore(word, times, having, score))
    return tuple(parts)
