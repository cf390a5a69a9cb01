"""Rows of a LangGraph store: items by name and order, filters, vectors, expiry.

One key/value namespace holds these rows, each under a letter: ``N`` labels -> the namespace's
number; ``K`` labels and key -> the item's place; ``O`` place -> the item; ``V`` place -> its
vectors; ``E`` expiry time and place -> empty, for the sweep; ``#`` -> the last number assigned. A
place is a pair of numbers that are never reused, so scans return namespaces and items in creation
order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import blake2b
from heapq import nlargest
from importlib import import_module
from importlib.util import find_spec
from math import dist, isfinite, sqrt
from operator import ge, gt, le, lt, mul
from struct import Struct, error, pack, unpack_from
from typing import Any, Final, Self

from langgraph.store.base import (
    IndexConfig,
    MatchCondition,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

from memcore import search
from memcore.codec.keys import pack_text
from memcore.codec.values import decode_json, decoding, encode_json
from memcore.errors import CorruptValueError, InvalidItemError, InvalidOptionError
from memcore.kv import KeyValueTxn, KeyValueView, transaction_of
from memcore.limits import KV_KEY_BYTES_MAX, KV_VALUE_BYTES_MAX
from memcore.options import checked_choice, need_known
from memcore.records import record

__all__ = [
    "Found",
    "Index",
    "ItemRow",
    "Labels",
    "Put",
    "Scorer",
    "address",
    "any_lives",
    "by_words",
    "check_filter",
    "exact_range",
    "field_at",
    "find",
    "in_order",
    "is_due",
    "labels_text",
    "literal_prefix",
    "matches",
    "matches_namespace",
    "named",
    "namespaces",
    "newest_first",
    "pack_vectors",
    "place",
    "refresh",
    "split",
    "sweep",
    "text_of",
    "vectors",
    "write",
]


# --- Keys and values of the rows of items: the only place that knows their format -----------------
# A label is encoded with its NULs escaped, followed by a terminator, so the encoding is
# prefix-free: the rows of a namespace and of all namespaces below it form one exact key range.

Labels = tuple[str, ...]

_SURELY_FITS_CHARS: Final = (KV_KEY_BYTES_MAX - 1) // 4
_BORDER: Final = "\0\0"  # between a namespace and a key: no encoded label begins with it
_HEADER: Final = Struct(">BBQQQQII")
_UPDATED: Final = slice(10, 18)
_EXPIRES: Final = slice(26, 34)
_LENGTHS: Final = Struct(">II")
_FORMAT: Final = 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PLACE_DIGITS: Final = 12


def labels_text(labels: Labels) -> str:
    """The encoding of a namespace: a prefix of exactly those of the namespaces below it."""
    return "".join([label.replace("\0", "\0\2") + "\0\1" for label in labels])


def split(text: str) -> Labels:
    """The inverse of ``labels_text``."""
    return tuple(label.replace("\0\2", "\0") for label in text.split("\0\1")[:-1])


def address(labels: Labels, key: str) -> str:
    """A text that uniquely identifies a namespace and a key in it."""
    return f"{labels_text(labels)}{_BORDER}{key}"


def exact_range(kind: str, labels: Labels) -> tuple[str, str]:
    """The key range of ``named(kind, address(labels, ...))``, excluding namespaces below it."""
    start = kind + labels_text(labels) + _BORDER
    return start, start[:-1] + "\1"


def named(kind: str, text: str) -> str:
    """The key of a row looked up by a text of any length; ``kind`` is an upper-case letter.

    A text that does not fit is replaced by its digest under the lower-case letter: the value then
    holds the full text, and readers must compare it.
    """
    key = kind + text
    if len(key) <= _SURELY_FITS_CHARS or len(pack_text(key)) <= KV_KEY_BYTES_MAX:
        return key
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
    return kind.lower() + digest


def place(namespace: int, number: int) -> str:
    """The key part of an item, which sorts in creation order of namespaces and items."""
    return f"{namespace:0{_PLACE_DIGITS}x}{number:0{_PLACE_DIGITS}x}"


@record(slots=True)
class ItemRow:
    """An item as stored: full ``labels`` and ``key``, and the value as JSON."""

    labels: str
    """Encoded by ``labels_text``."""
    key: str
    created_us: int
    updated_us: int
    ttl_ms: int
    expires_ms: int
    """The expiry time in milliseconds since the Unix epoch; 0: never."""
    flags: int
    """The codec flags of ``json``."""
    json: bytes

    @classmethod
    def of(cls, namespace: Labels, key: str, value: Any, *, ttl_ms: int | None) -> Self:
        """Make a row for a new value; its times are set when it is written.

        Raises:
            InvalidItemError: the value is not a mapping of strings to JSON, or is too large.
        """
        where = f"the value of {key[:80]!r} in {namespace!r:.200}"
        if not isinstance(value, Mapping):
            msg = f"{where}: expected a mapping, got {type(value).__name__}"
            raise InvalidItemError(msg)
        try:
            json, flags = encode_json(dict(value))
        except (TypeError, ValueError, RecursionError) as exc:
            msg = f"{where} is no JSON: {exc}"
            raise InvalidItemError(msg) from exc
        expires = 0 if ttl_ms is None else 1  # the actual time is set on writing
        row = cls(labels_text(namespace), key, 0, 0, ttl_ms or 0, expires, flags, json)
        size = len(row.pack())
        if size > KV_VALUE_BYTES_MAX:
            msg = (
                f"{where} takes {size} bytes: expected at most {KV_VALUE_BYTES_MAX}; keep large "
                "content in blobs or files and store its address"
            )
            raise InvalidItemError(msg)
        return row

    def pack(self) -> bytes:
        """Encode the row."""
        labels = self.labels.encode("utf-8", "surrogatepass")
        key = self.key.encode("utf-8", "surrogatepass")
        times = (self.created_us, self.updated_us, self.ttl_ms, self.expires_ms)
        head = _HEADER.pack(_FORMAT, self.flags, *times, len(labels), len(key))
        return b"".join((head, labels, key, self.json))

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        """Decode a row written by ``pack``.

        Raises:
            CorruptValueError: it is malformed.
        """
        with decoding(b"", "row of a store's item"):
            _, flags, created, updated, ttl, expires, labels, key = _HEADER.unpack_from(raw)
            begin = _HEADER.size + labels
            end = begin + key
            return cls(
                raw[_HEADER.size : begin].decode("utf-8", "surrogatepass"),
                raw[begin:end].decode("utf-8", "surrogatepass"),
                created, updated, ttl, expires, flags, raw[end:],
            )  # fmt: skip

    @property
    def times(self) -> tuple[datetime, datetime]:
        """The times of creation and of the last put.

        Raises:
            CorruptValueError: a time is out of range.
        """
        with decoding(b"", "time of a store's item"):
            return (
                _EPOCH + timedelta(microseconds=self.created_us),
                _EPOCH + timedelta(microseconds=self.updated_us),
            )

    @staticmethod
    def is_expired(raw: bytes, now_ms: int) -> bool:
        """Return whether a packed row has expired."""
        return 0 < int.from_bytes(raw[_EXPIRES], "big") <= now_ms

    @staticmethod
    def updated_us_of(raw: bytes) -> int:
        """The time a packed row was last put, in microseconds since the Unix epoch."""
        return int.from_bytes(raw[_UPDATED], "big")

    @staticmethod
    def value_of(raw: bytes) -> dict[str, Any]:
        """The value of a packed row, decoding nothing else."""
        labels, key = _LENGTHS.unpack_from(raw, _EXPIRES.stop)
        return _mapping(raw[_HEADER.size + labels + key :], raw[1])

    def value(self) -> dict[str, Any]:
        """The value, decoded on each call.

        Raises:
            CorruptValueError: it is not JSON, or not of a mapping.
        """
        return _mapping(self.json, self.flags)


def _mapping(json: bytes, flags: int) -> dict[str, Any]:
    found = decode_json(json, flags)
    if not isinstance(found, dict):
        raise _damaged("value of a store's item")
    return found


def _damaged(what: str) -> CorruptValueError:
    return CorruptValueError(f"the {what} is malformed; run 'memcore check'", key=b"")


# --- The rows of a store: items by name and in order, their vectors, their expiry -----------------

_COUNTER: Final = "#"
_NUMBER_BYTES: Final = 6
_SWEEP_ITEMS: Final = 64
_SWEEP_BYTES: Final = 512 * 1024
"""Approximate limit on the bytes removed per sweep transaction, since the device may be full."""
_SINGLY: Final = 16
"""Vectors of up to this many items of a namespace are read singly, of more in one scan."""
_PLACE_CHARS: Final = len(place(0, 0))
_PLACE_PARTS: Final = slice(_PLACE_CHARS // 2), slice(_PLACE_CHARS // 2, None)


@record(slots=True)
class Found:
    """An item with its place and namespace."""

    place: str
    namespace: Labels
    row: ItemRow


@record(slots=True)
class Put:
    """A change to an item; ``row`` None removes it."""

    namespace: Labels
    key: str
    row: ItemRow | None
    vectors: bytes | None = None


# --- reading --------------------------------------------------------------------------------------


def find(view: KeyValueView, namespace: Labels, key: str) -> Found | None:
    """The item with that name; None if there is none."""
    text = address(namespace, key)
    name = named("K", text)
    where = view.get(name)
    if where is None:
        return None
    at = place(*_place_of(where))
    raw = view.get("O" + at)
    if raw is None:
        return None  # it was lost: a salvage keeps only what it can read
    row = ItemRow.unpack(raw)
    if name[0] == "k" and (row.key != key or row.labels != labels_text(namespace)):
        return None
    return Found(at, namespace, row)


def namespaces(view: KeyValueView, prefix: Labels) -> list[tuple[int, Labels]]:
    """Numbers and labels of the namespaces at and below ``prefix``, oldest first."""
    text = labels_text(prefix)
    rows = [raw for _, raw in view.scan(prefix="N" + text)]
    rows += [raw for _, raw in view.scan(prefix="n") if _text(raw).startswith(text)]
    return sorted((_number_of(raw), split(_text(raw))) for raw in rows)


def in_order(
    view: KeyValueView,
    prefix: Labels,
    wanted: Callable[[bytes], bool] | None,
    *,
    limit: int | None = None,
) -> list[Found]:
    """The first ``limit`` items at and below ``prefix``, oldest first.

    ``wanted`` is a predicate on packed rows; None: all are included.
    """
    found: list[Found] = []
    for number, labels in namespaces(view, prefix):
        if limit is not None and len(found) >= limit:
            break
        left = None if wanted or limit is None else limit - len(found)
        for key, raw in _rows_of(view, number, limit=left):
            if wanted is None or wanted(raw):
                found.append(Found(key[1:], labels, ItemRow.unpack(raw)))
                if len(found) == limit:
                    break
    return found


def newest_first(
    view: KeyValueView,
    prefix: Labels,
    wanted: Callable[[bytes], bool] | None,
    *,
    limit: int | None = None,
) -> list[Found]:
    """As ``in_order``, but most recently put first; reads all items at and below ``prefix``."""
    rows = (
        (ItemRow.updated_us_of(raw), key, labels, raw)
        for number, labels in namespaces(view, prefix)
        for key, raw in _rows_of(view, number)
        if wanted is None or wanted(raw)
    )
    chosen = sorted(rows, reverse=True) if limit is None else nlargest(limit, rows)
    return [Found(key[1:], labels, ItemRow.unpack(raw)) for _, key, labels, raw in chosen]


def vectors(view: KeyValueView, items: Sequence[Found]) -> dict[str, bytes]:
    """The vectors of the items that have any, by place."""
    by_namespace: dict[str, list[str]] = {}
    for item in items:
        by_namespace.setdefault(item.place[: _PLACE_CHARS // 2], []).append(item.place)
    found: dict[str, bytes] = {}
    for number, places in by_namespace.items():
        if len(places) > _SINGLY:
            found.update((key[1:], raw) for key, raw in view.scan(prefix="V" + number))
        else:
            rows = [(at, view.get("V" + at)) for at in places]
            found.update((at, raw) for at, raw in rows if raw is not None)
    return found


def any_lives(view: KeyValueView, number: int, now_ms: int) -> bool:
    """Return whether a namespace has an unexpired item."""
    return any(not ItemRow.is_expired(raw, now_ms) for _, raw in _rows_of(view, number))


def is_due(view: KeyValueView, now_ms: int) -> bool:
    """Return whether any expired item has not been removed yet."""
    return any(True for _ in view.scan("E", _expiry(now_ms + 1, ""), limit=1))


def _within(number: int) -> str:
    return "O" + place(number, 0)[: _PLACE_CHARS // 2]


def _rows_of(
    view: KeyValueView, number: int, *, limit: int | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield keys and packed rows of the items of a namespace.

    Raises:
        CorruptValueError: a row is not bytes, or is too short for an item.
    """
    for key, raw in view.scan(prefix=_within(number), limit=limit):
        if type(raw) is not bytes or len(raw) < _HEADER.size:
            raise _damaged("row of a store's item")
        yield key, raw


def _place_of(raw: Any) -> tuple[int, int]:
    """The numbers of a namespace and of an item in it, from a ``K`` row."""
    if type(raw) is not bytes or len(raw) != 2 * _NUMBER_BYTES:
        raise _damaged("place of a store's item")
    middle = _NUMBER_BYTES
    return int.from_bytes(raw[:middle], "big"), int.from_bytes(raw[middle:], "big")


def _number_of(raw: Any) -> int:
    """The number of a namespace, from its ``N`` row."""
    if type(raw) is not bytes or len(raw) < _NUMBER_BYTES:
        raise _damaged("number of a store's namespace")
    return int.from_bytes(raw[:_NUMBER_BYTES], "big")


def _text(raw: bytes) -> str:
    with decoding(b"", "namespace of a store's items"):
        return raw[_NUMBER_BYTES:].decode("utf-8", "surrogatepass")


# --- writing --------------------------------------------------------------------------------------


def write(txn: KeyValueTxn, put: Put, now_us: int) -> None:
    """Store or remove an item with all its rows.

    An existing item keeps its place and creation time, unless it has expired.
    """
    old = find(txn, put.namespace, put.key)
    now_ms = now_us // 1000
    if old is not None and (put.row is None or 0 < old.row.expires_ms <= now_ms):
        _remove(txn, old)
        old = None
    if put.row is None:
        return
    created_us = now_us if old is None else old.row.created_us
    expires_ms = now_ms + put.row.ttl_ms if put.row.expires_ms else 0
    row = replace(put.row, created_us=created_us, updated_us=now_us, expires_ms=expires_ms)
    if old is None:
        at = _new_place(txn, put)
    else:
        at = old.place
        _forget_expiry(txn, old)
    _put_row(txn, at, row)
    if put.vectors is not None:
        txn.put("V" + at, put.vectors)
    elif old is not None:
        txn.delete("V" + at)


def refresh(txn: KeyValueTxn, at: str, now_ms: int) -> None:
    """Restart an item's time to live, if the item still exists and has one."""
    raw = txn.get("O" + at)
    if raw is None:
        return
    row = ItemRow.unpack(raw)
    if row.expires_ms:
        _forget_expiry(txn, Found(at, (), row))
        row.expires_ms = now_ms + row.ttl_ms
        _put_row(txn, at, row)


def sweep(txn: KeyValueTxn, now_ms: int) -> int:
    """Remove a batch of expired items; return its size, 0 if there are no more."""
    removed = size = 0
    due = [key for key, _ in txn.scan("E", _expiry(now_ms + 1, ""), limit=_SWEEP_ITEMS)]
    for key in due:
        at = key[-_PLACE_CHARS:]
        raw = txn.get("O" + at)
        if raw is None:
            txn.delete(key)  # the item itself was lost
            continue
        row = ItemRow.unpack(raw)
        size += len(row.json) + len(txn.get("V" + at) or b"")
        if removed and size > _SWEEP_BYTES:
            break
        _remove(txn, Found(at, split(row.labels), row))
        removed += 1
    return removed


def _new_place(txn: KeyValueTxn, put: Put) -> str:
    text = labels_text(put.namespace)
    name = named("N", text)
    raw = txn.get(name)
    number = _number_of(raw) if raw is not None else _next_number(txn)
    if raw is None:
        txn.put(name, number.to_bytes(_NUMBER_BYTES, "big") + text.encode("utf-8", "surrogatepass"))
    item = _next_number(txn)
    where = number.to_bytes(_NUMBER_BYTES, "big") + item.to_bytes(_NUMBER_BYTES, "big")
    txn.put(named("K", address(put.namespace, put.key)), where)
    return place(number, item)


def _next_number(txn: KeyValueTxn) -> int:
    number = txn.increment(_COUNTER)
    if number > 1:
        return number
    # Either the first number ever, or the counter was lost; numbers in use must not be assigned
    # again.
    with decoding(b"", "key of a store's item"):
        given = [int(at[part], 16) for at in _places(txn) for part in _PLACE_PARTS]
    given += [_number_of(raw) for kind in "Nn" for _, raw in txn.scan(prefix=kind)]
    return txn.increment(_COUNTER, max(given)) if given else number


def _places(view: KeyValueView) -> Iterator[str]:
    """Yield the places referred to by any row, including those of removed items."""
    for kind in "OV":
        for key, _ in view.scan(prefix=kind):
            yield key[1:]
    for kind in "Kk":
        for _, raw in view.scan(prefix=kind):
            yield place(*_place_of(raw))


def _remove(txn: KeyValueTxn, item: Found) -> None:
    txn.delete(named("K", address(item.namespace, item.row.key)))
    txn.delete("O" + item.place)
    txn.delete("V" + item.place)
    _forget_expiry(txn, item)
    for _ in txn.scan(prefix="O" + item.place[: _PLACE_CHARS // 2], limit=1):
        return
    txn.delete(named("N", item.row.labels))


def _put_row(txn: KeyValueTxn, at: str, row: ItemRow) -> None:
    txn.put("O" + at, row.pack())
    if row.expires_ms:
        txn.put(_expiry(row.expires_ms, at), b"")


def _forget_expiry(txn: KeyValueTxn, item: Found) -> None:
    if item.row.expires_ms:
        txn.delete(_expiry(item.row.expires_ms, item.place))


def _expiry(expires_ms: int, at: str) -> str:
    return f"E{expires_ms:016x}{at}"


# --- Filters of a search for items and namespaces: the rules of LangGraph's InMemoryStore ---------

_ANY: Final = "*"
_ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "$gt": gt,
    "$gte": ge,
    "$lt": lt,
    "$lte": le,
}
_OPERATORS: Final = ("$eq", "$ne", *_ORDERS)


def check_filter(wanted: Any) -> None:
    """Reject a filter that cannot be compared with any value.

    Raises:
        InvalidOptionError: an operator is unknown, or the operand of ``$gt``, ``$gte``, ``$lt`` or
            ``$lte`` is not a number.
    """
    if isinstance(wanted, list | tuple):
        for want in wanted:
            check_filter(want)
    if not isinstance(wanted, Mapping):
        return
    if not all(isinstance(name, str) for name in wanted):
        msg = f"filter: expected names of fields, got {list(wanted)!r:.100}"
        raise InvalidOptionError(msg)
    has_operators = any(name.startswith("$") for name in wanted)
    for name, want in wanted.items():
        if not has_operators:
            check_filter(want)
        elif name not in _OPERATORS:
            msg = f"filter: unknown operator {name!r}; there are {', '.join(_OPERATORS)}"
            raise InvalidOptionError(msg)
        elif name in _ORDERS and _number(want) is None:
            msg = f"filter: {name} compares numbers, got {want!r:.80}"
            raise InvalidOptionError(msg)


def matches(value: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether an item's value matches a filter; every field must match.

    A field's condition is a plain value (equality), a mapping of fields (each must match; others
    are allowed), a list (same length, element by element) or a mapping of operators: ``$eq``,
    ``$ne``, ``$gt``, ``$gte``, ``$lt``, ``$lte``. The last four compare numbers, including numeric
    strings; a missing or non-numeric value does not match. A dotted name refers to the field of
    that name, or else to a path through mappings, as in SqliteStore.
    """
    return all(_wants(field_at(value, field), want) for field, want in wanted.items())


def field_at(value: Mapping[str, Any], name: str) -> Any:
    """The field of that name, or else the value at a dotted path; None if there is none."""
    if "." not in name or name in value:
        return value.get(name)
    found: Any = value
    for part in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def _wants(value: Any, want: Any) -> bool:
    if isinstance(want, dict):
        if any(name.startswith("$") for name in want):
            return all(_holds(value, operator, operand) for operator, operand in want.items())
        return isinstance(value, dict) and all(_wants(value.get(k), w) for k, w in want.items())
    if isinstance(want, list | tuple):
        return (
            isinstance(value, list)
            and len(value) == len(want)
            and all(_wants(v, w) for v, w in zip(value, want, strict=True))
        )
    return bool(value == want)


def _holds(value: Any, operator: str, operand: Any) -> bool:
    if operator == "$eq":
        return bool(value == operand)
    if operator == "$ne":
        return bool(value != operand)
    number, bound = _number(value), _number(operand)
    return number is not None and bound is not None and _ORDERS[operator](number, bound)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def matches_namespace(namespace: Labels, conditions: Iterable[MatchCondition]) -> bool:
    """Return whether a namespace meets every condition; ``*`` matches any one label.

    Raises:
        InvalidOptionError: a condition is neither ``prefix`` nor ``suffix``.
    """
    return all(_meets(namespace, condition) for condition in conditions)


def _meets(namespace: Labels, condition: MatchCondition) -> bool:
    kind, path = condition
    if kind not in ("prefix", "suffix"):
        msg = f"match condition: expected 'prefix' or 'suffix', got {kind!r}"
        raise InvalidOptionError(msg)
    size = len(path)
    if len(namespace) < size:
        return False
    labels = namespace[:size] if kind == "prefix" else namespace[len(namespace) - size :]
    return all(want in (_ANY, label) for label, want in zip(labels, path, strict=True))


def literal_prefix(conditions: Iterable[MatchCondition]) -> Labels:
    """The longest literal prefix that every matching namespace begins with."""
    longest: Labels = ()
    for kind, path in conditions:
        labels = tuple(path)
        if kind == "prefix":
            until = labels.index(_ANY) if _ANY in labels else len(labels)
            longest = max(longest, labels[:until], key=len)
    return longest


# --- Words of items: ranking without embeddings ---------------------------------------------------

_WORDS_CHARS: Final = 256 * 1024
"""Only this much text of an item is ranked, as of any document of ``memcore.search``."""
_QUERY_CHARS: Final = 100_000


def text_of(value: Any) -> str:
    """The texts and numbers in a value, without the names of its fields."""
    found: list[str] = []
    chars = 0
    left = [value]
    while left and chars < _WORDS_CHARS:
        each = left.pop()
        if isinstance(each, dict):
            left += reversed(each.values())
        elif isinstance(each, list):
            left += reversed(each)
        elif isinstance(each, str | int | float) and not isinstance(each, bool):
            found.append(str(each))
            chars += len(found[-1])
    return "\n".join(found)


def by_words(view: KeyValueView, items: Sequence[Found], query: str) -> list[tuple[float, Found]]:
    """The items that share a word with a query and their scores, the best first.

    Only these items count: words in items of other namespaces change no score, and nothing is
    stored that is derived from a text.
    """
    txn, scope = transaction_of(view)
    if scope is None or not items:
        return []
    head = search.IndexHead(os.urandom(16))
    kind = search.DocumentKind.STORE
    made = [
        search.Document(kind, item.place.encode(), text_of(item.row.value())).prepared(head.key)
        for item in items
    ]
    asked = search.Query(query[:_QUERY_CHARS], kinds=(kind,))
    ranking = search.rank(txn, scope, head, None, asked, k=len(items), beside=made)
    return [(match.score, items[match.ordinal]) for match in ranking.matches]


# --- Vectors of items: embedding, byte layout, similarity to a query ------------------------------

_HEADER_VECTORS: Final = Struct("<II")  # dimensions, number of vectors
_FLOAT_BYTES: Final = 4
_WHOLE: Final = "$"
_OPTIONS: Final = ("dims", "embed", "fields", "text_fields", "distance_type")
_COSINE: Final = "cosine"
_L2: Final = "l2"
_DISTANCES: Final = (_COSINE, _L2, "inner_product")
_SCORE_DIGITS: Final = 12
"""Float sums depend on summation order; rounding keeps scores and ranks stable."""


class Index:
    """The ``index`` option of a store: the embedder and the paths of the texts to embed."""

    def __init__(self, config: IndexConfig) -> None:
        need_known("index", config, _OPTIONS)
        self.distance = checked_choice(
            "index: distance_type", config.get("distance_type", _COSINE), _DISTANCES
        )
        """``cosine``, ``l2`` or ``inner_product``."""
        dims: Any = config.get("dims")
        if dims is not None and (isinstance(dims, bool) or not isinstance(dims, int) or dims < 1):
            msg = f"index: dims must be a positive int, got {dims!r}"
            raise InvalidOptionError(msg)
        self._dims: int | None = dims
        # The SQL stores read "text_fields", a list or a single path; LangGraph's own name is
        # "fields".
        given: Any = config.get("text_fields")
        fields: Any = config.get("fields") or ([given] if isinstance(given, str) else given)
        fields = fields or [_WHOLE]
        if not isinstance(fields, list | tuple) or not all(
            isinstance(path, str) for path in fields
        ):
            msg = f"index: fields: expected a list of paths, got {fields!r:.80}"
            raise InvalidOptionError(msg)
        self._paths = [_tokens(path) for path in fields]
        try:
            self.embeddings = ensure_embeddings(config.get("embed"))
        except ValueError as exc:
            msg = f"index: {exc}"
            raise InvalidOptionError(msg) from exc

    def texts(self, value: Any, paths: Any) -> list[str]:
        """The texts of a value to embed; ``paths`` is as ``index`` in ``put``."""
        if paths is False:
            return []
        chosen = self._paths if paths is None else [_tokens(path) for path in paths]
        return [text for path in chosen for text in get_text_at_path(value, path)]

    def checked(self, texts: Sequence[str], found: Any) -> dict[str, list[float]]:
        """Check the embedder's vectors; return one for each text.

        Raises:
            InvalidOptionError: the number of vectors or their dimensions are wrong, or a number is
                not finite.
        """
        vectors = _listed(found)
        if len(vectors) != len(texts):
            msg = f"index: embed gave {len(vectors)} vectors for {len(texts)} texts"
            raise InvalidOptionError(msg)
        return {
            text: _rounded(vector, self._dims) for text, vector in zip(texts, vectors, strict=True)
        }


def _tokens(path: str) -> str | list[str]:
    return path if path == _WHOLE else tokenize_path(path)


def _listed(found: Any) -> list[Any]:
    return list(found.tolist() if hasattr(found, "tolist") else found)


def _rounded(vector: Any, dims: int | None) -> list[float]:
    """The vector as stored: rounded to single precision."""
    numbers = _listed(vector)
    if not numbers or dims not in (None, len(numbers)):
        msg = f"index: dims is {dims}, but embed gave a vector of {len(numbers)} numbers"
        raise InvalidOptionError(msg)
    form = f"<{len(numbers)}f"
    try:
        stored = list(unpack_from(form, pack(form, *numbers)))
    except (error, OverflowError) as exc:
        msg = f"index: embed gave a vector that is none of single-precision numbers: {exc}"
        raise InvalidOptionError(msg) from exc
    if not all(map(isfinite, stored)):
        msg = "index: embed gave a vector that holds NaN or infinity"
        raise InvalidOptionError(msg)
    return stored


def pack_vectors(vectors: Sequence[Sequence[float]]) -> bytes:
    """Encode an item's vectors, which have the same dimensions."""
    dims = len(vectors[0])
    numbers = [number for vector in vectors for number in vector]
    return _HEADER_VECTORS.pack(dims, len(vectors)) + pack(f"<{len(numbers)}f", *numbers)


class Scorer:
    """Scores items by similarity to a query; the nearest item scores highest.

    ``cosine``: cosine similarity; ``inner_product``: the inner product; ``l2``: the negated
    Euclidean distance; as in PostgresStore. Uses numpy if it is installed.
    """

    def __init__(self, query: list[float], distance: str = _COSINE) -> None:
        self._query = query
        self._distance = distance
        self._norm = sqrt(sum(map(mul, query, query)))
        self._numpy = _numpy()

    def best(self, rows: Iterable[bytes]) -> list[float]:
        """The score of each item, which is that of its nearest vector.

        The cosine of a zero vector is 0.

        Raises:
            InvalidOptionError: an item was embedded with other dimensions than the query.
        """
        found = []
        for row in rows:
            with decoding(b"", "vectors of a store's item"):
                dims, count = _HEADER_VECTORS.unpack_from(row)
                if not count or len(row) != _HEADER_VECTORS.size + _FLOAT_BYTES * dims * count:
                    raise _damaged("vectors of a store's item")
            if dims != len(self._query):
                msg = (
                    f"index: embed gave {len(self._query)} numbers for the query, but items were "
                    f"stored with vectors of {dims}: put them again with this embedder"
                )
                raise InvalidOptionError(msg)
            score = self._by_numpy if self._numpy else self._by_hand
            found.append(round(max(score(row, dims, count)), _SCORE_DIGITS))
        return found

    def _by_hand(self, row: bytes, dims: int, count: int) -> list[float]:
        numbers = unpack_from(f"<{dims * count}f", row, _HEADER_VECTORS.size)
        scores = []
        for at in range(0, dims * count, dims):
            vector = numbers[at : at + dims]
            if self._distance != _COSINE:
                scores.append(self._by_distance(vector))
                continue
            norm = sqrt(sum(map(mul, vector, vector))) * self._norm
            scores.append(sum(map(mul, vector, self._query)) / norm if norm else 0.0)
        return scores

    def _by_distance(self, vector: Sequence[float]) -> float:
        if self._distance == _L2:
            return -dist(vector, self._query)
        return float(sum(map(mul, vector, self._query)))

    def _by_numpy(self, row: bytes, dims: int, count: int) -> list[float]:
        np = self._numpy
        matrix = np.frombuffer(row, "<f4", dims * count, _HEADER_VECTORS.size).astype("f8")
        matrix = matrix.reshape(count, dims)
        if self._distance == _L2:
            return (-np.linalg.norm(matrix - np.array(self._query), axis=1)).tolist()  # type: ignore[no-any-return]
        if self._distance != _COSINE:
            return (matrix @ np.array(self._query)).tolist()  # type: ignore[no-any-return]
        norms = np.linalg.norm(matrix, axis=1) * self._norm
        scores = np.zeros(count)
        np.divide(matrix @ np.array(self._query), norms, out=scores, where=norms != 0)
        return scores.tolist()  # type: ignore[no-any-return]


@cache
def _numpy() -> Any:
    """The numpy module, or None if it is not installed."""
    return import_module("numpy") if find_spec("numpy") else None
