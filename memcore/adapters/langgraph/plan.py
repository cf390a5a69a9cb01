"""One batch of operations: what is read, what is embedded, what is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, Final

from langgraph.store.base import (
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)

from memcore.adapters.langgraph import items
from memcore.adapters.langgraph.filters import (
    check_filter,
    literal_prefix,
    matches,
    matches_namespace,
)
from memcore.adapters.langgraph.items import Found, Put
from memcore.adapters.langgraph.rows import ItemRow, Labels
from memcore.adapters.langgraph.vectors import Index, Scorer, pack_vectors
from memcore.errors import InvalidOptionError
from memcore.kv import KeyValueTxn, KeyValueView
from memcore.options import checked_bool, need_known

__all__ = ["Plan", "checked_ttl"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHORT_OPS: Final = 16
"""Items that are read where the call is made, a few microseconds each."""
_ROOM_OPS: Final = 64
"""Deletions that may take the room that is kept for them; more of them need too much of it."""
_MS_PER_MINUTE: Final = 60_000
_TTL_MINUTES_MAX: Final = 10**12
_REFRESH_SLACK_MS: Final = 1000
"""A refresh that moves the end by less than this, and less than a hundredth, is not written."""

Scored = list[tuple[float | None, Found]]


class Plan:
    """Made of the operations, then filled with vectors, then read, then written.

    Args:
        ops: the operations; all are checked before anything is done.
        index: what is embedded, None: nothing.
        ttl: the store's option.
        newest_first: whether a search finds what was put last first, or in the order of creation.

    Raises:
        InvalidNamespaceError, InvalidItemError, InvalidOptionError: an operation is not legal.
    """

    def __init__(
        self, ops: Iterable[Op], index: Index | None, ttl: TTLConfig | None, *, newest_first: bool
    ) -> None:
        self._newest_first = newest_first
        self._index = index
        self._omit_expired = bool(ttl and ttl.get("omit_expired"))
        self._ops = list(ops)
        self._puts: dict[tuple[Labels, str], Put] = {}
        self._put_ops = 0
        self._values: dict[tuple[Labels, str], tuple[Any, Any]] = {}
        """What each put stores, and what of it is embedded."""
        self._texts: dict[tuple[Labels, str], list[str]] = {}
        self._scorers: dict[str, Scorer] = {}
        self._refreshes: dict[str, None] = {}
        self.is_short = len(self._ops) <= _SHORT_OPS
        """Whether reading takes some microseconds."""
        self.forgotten = False
        """Whether nothing was put, for the user wants no memory."""
        self.queries: list[str] = []
        """Texts to find the nearest items to: ``use_queries`` takes their vectors."""
        self.texts: list[str] = []
        """Texts of items to store: ``use_texts`` takes their vectors."""
        for op in self._ops:
            self._check(op)
        self.reads = len(self._ops) > self._put_ops
        self._deletes = all(put.row is None for put in self._puts.values())
        if index is not None:
            self._choose_texts(index)

    def _choose_texts(self, index: Index) -> None:
        queries = [op.query for op in self._ops if isinstance(op, SearchOp)]
        self.queries = list(dict.fromkeys(query for query in queries if query))
        for at, (value, paths) in self._values.items():
            if value is not None:
                self._texts[at] = list(dict.fromkeys(index.texts(value, paths)))
        self.texts = list(dict.fromkeys(t for texts in self._texts.values() for t in texts))

    def _check(self, op: Op) -> None:
        validate_op_namespace(op)
        if isinstance(op, PutOp):
            namespace, key = tuple(op.namespace), str(op.key)
            row = None
            if op.value is not None:
                row = ItemRow.of(namespace, key, op.value, ttl_ms=_ttl_ms(op.ttl))
            # A dict keeps the place of the first put of a key, and the last put.
            self._puts[namespace, key] = Put(namespace, key, row)
            self._values[namespace, key] = op.value, op.index
            self._put_ops += 1
        elif isinstance(op, SearchOp):
            check_filter(op.filter)
            self.is_short = False
        elif isinstance(op, ListNamespacesOp):
            self.is_short = False
        elif not isinstance(op, GetOp):
            msg = f"unknown operation: expected an Op of langgraph.store.base, got {op!r:.100}"
            raise InvalidOptionError(msg)

    # --- vectors ------------------------------------------------------------------------------

    def use_queries(self, vectors: Any) -> None:
        """Take the vectors of ``queries``."""
        if self._index is not None:
            found = self._index.checked(self.queries, vectors)
            distance = self._index.distance
            self._scorers = {query: Scorer(vector, distance) for query, vector in found.items()}

    def use_texts(self, vectors: Any) -> None:
        """Take the vectors of ``texts``."""
        if self._index is not None:
            found = self._index.checked(self.texts, vectors)
            for at, texts in self._texts.items():
                if texts:
                    self._puts[at].vectors = pack_vectors([found[text] for text in texts])

    # --- reading ------------------------------------------------------------------------------

    def nothing(self) -> list[Result]:
        """The results of operations that read nothing."""
        return [None] * len(self._ops)

    def read(self, view: KeyValueView, now_ms: int) -> list[Result]:
        """The results: what there is before anything of this batch is written."""
        self._refreshes.clear()
        return [self._result(view, op, now_ms) for op in self._ops]

    def _result(self, view: KeyValueView, op: Op, now_ms: int) -> Result:
        if isinstance(op, GetOp):
            found = items.find(view, tuple(op.namespace), str(op.key))
            if found is None or not self._is_shown(found.row, now_ms):
                return None
            if op.refresh_ttl:
                self._refresh(found, now_ms)
            return Item(**_fields(found))
        if isinstance(op, SearchOp):
            scored = self._search(view, op, now_ms)
            for _, found in scored if op.refresh_ttl else ():
                self._refresh(found, now_ms)
            return [SearchItem(**_fields(found), score=score) for score, found in scored]
        if isinstance(op, ListNamespacesOp):
            return self._list(view, op, now_ms)
        return None

    def _is_shown(self, row: ItemRow, now_ms: int) -> bool:
        return not (self._omit_expired and 0 < row.expires_ms <= now_ms)

    def _refresh(self, found: Found, now_ms: int) -> None:
        row = found.row
        if row.expires_ms:
            gain_ms = now_ms + row.ttl_ms - row.expires_ms
            if gain_ms > 0 and gain_ms >= min(_REFRESH_SLACK_MS, row.ttl_ms / 100):
                self._refreshes[found.place] = None

    def _search(self, view: KeyValueView, op: SearchOp, now_ms: int) -> Scored:
        omits, wants = self._omit_expired, op.filter

        def is_wanted(raw: bytes) -> bool:
            shown = not omits or not ItemRow.is_expired(raw, now_ms)
            return shown and (not wants or matches(ItemRow.value_of(raw), wants))

        scorer = self._scorers.get(op.query) if op.query else None
        ends = scorer is None and min(op.offset, op.limit) >= 0
        listed = items.newest_first if self._newest_first else items.in_order
        found = listed(
            view,
            tuple(op.namespace_prefix),
            is_wanted if omits or wants else None,
            limit=op.offset + op.limit if ends else None,
        )
        if scorer is None:
            return [(None, item) for item in found[op.offset : op.offset + op.limit]]
        return _ranked(scorer, found, items.vectors(view, found), op.offset, op.limit)

    def _list(self, view: KeyValueView, op: ListNamespacesOp, now_ms: int) -> list[tuple[str, ...]]:
        conditions = op.match_conditions or ()
        found = {
            labels[: op.max_depth] if op.max_depth is not None else labels
            for number, labels in items.namespaces(view, literal_prefix(conditions))
            if matches_namespace(labels, conditions)
            and (not self._omit_expired or items.any_lives(view, number, now_ms))
        }
        return sorted(found)[op.offset : op.offset + op.limit]

    # --- writing ------------------------------------------------------------------------------

    def changes(self, *, read_only: bool) -> bool:
        """Whether there is anything to write; a read-only handle lets nothing live on."""
        return bool(self._puts or (self._refreshes and not read_only))

    @property
    def makes_room(self) -> bool:
        """Whether it deletes and lets nothing live on: that writes values anew, of any size."""
        return self._deletes and not self._refreshes and len(self._puts) <= _ROOM_OPS

    def write(self, txn: KeyValueTxn, now_us: int) -> None:
        """Write everything: first what reading lets live on, then the puts.

        For a user who opted out of memory nothing is put; deletions are carried out.
        """
        self.forgotten = txn.forgets
        for place in self._refreshes:
            items.refresh(txn, place, now_us // 1000)
        for put in self._puts.values():
            if put.row is None or not self.forgotten:
                items.write(txn, put, now_us)


def _ranked(
    scorer: Scorer, found: Sequence[Found], vectors: dict[str, bytes], offset: int, limit: int
) -> Scored:
    """The nearest items first; where they do not fill the page, items without vectors do."""
    near = [item for item in found if item.place in vectors]
    scores = scorer.best([vectors[item.place] for item in near])
    ranked = sorted(zip(scores, near, strict=True), key=lambda pair: pair[0], reverse=True)
    kept: Scored = list(ranked[max(offset, 0) : max(offset + limit, 0)])
    if len(kept) < limit:
        rest = [item for item in found if item.place not in vectors]
        kept += [(None, item) for item in rest[: limit - len(kept)]]
    return kept


def _fields(found: Found) -> dict[str, Any]:
    row = found.row
    return {
        "namespace": found.namespace,
        "key": row.key,
        "value": row.value(),
        "created_at": _EPOCH + timedelta(microseconds=row.created_us),
        "updated_at": _EPOCH + timedelta(microseconds=row.updated_us),
    }


_TTL_OPTIONS: Final = ("default_ttl", "refresh_on_read", "omit_expired", "sweep_interval_minutes")


def checked_ttl(ttl: TTLConfig | None) -> TTLConfig | None:
    """The option ``ttl`` of a store.

    Raises:
        InvalidOptionError: it is no mapping, names what there is not, or a value is out of range.
    """
    if ttl is None:
        return None
    need_known("ttl", ttl, _TTL_OPTIONS)
    _ttl_ms(ttl.get("default_ttl"))
    for name in ("refresh_on_read", "omit_expired"):
        checked_bool(f"ttl: {name}", ttl.get(name, True))
    interval = ttl.get("sweep_interval_minutes")
    if interval is not None and (
        isinstance(interval, bool) or not isinstance(interval, int | float) or interval < 0
    ):
        msg = f"ttl: sweep_interval_minutes: expected minutes above 0, got {interval!r:.40}"
        raise InvalidOptionError(msg)
    return ttl


def _ttl_ms(minutes: Any) -> int | None:
    """A time to live in milliseconds; None stays None.

    Raises:
        InvalidOptionError: no number, below 0 or beyond what a row holds.
    """
    if minutes is None:
        return None
    is_number = isinstance(minutes, int | float) and not isinstance(minutes, bool)
    if not is_number or not 0 <= minutes <= _TTL_MINUTES_MAX:
        msg = f"ttl: expected minutes from 0 to {_TTL_MINUTES_MAX}, or None, got {minutes!r:.40}"
        raise InvalidOptionError(msg)
    whole: int = ceil(minutes * _MS_PER_MINUTE)
    return whole
