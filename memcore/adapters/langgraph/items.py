"""The rows of a store: items by name and in order, their vectors, their ends.

In one key/value namespace lie, each under a letter: ``N`` labels -> the namespace's number; ``K``
labels and key -> where the item lies; ``O`` place -> the item; ``V`` place -> its vectors; ``E``
time and place -> nothing, for the sweep; ``#`` -> the last number given out. A place is two numbers
that are never given out again, so a scan is in the order in which things came into being.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Final

from memcore.adapters.langgraph.rows import (
    ItemRow,
    Labels,
    address,
    labels_text,
    named,
    place,
    split,
)
from memcore.kv import KeyValueTxn, KeyValueView

__all__ = [
    "Found",
    "Put",
    "any_lives",
    "find",
    "in_order",
    "is_due",
    "namespaces",
    "newest_first",
    "refresh",
    "sweep",
    "vectors",
    "write",
]

_COUNTER: Final = "#"
_NUMBER_BYTES: Final = 6
_SWEEP_ITEMS: Final = 64
_SWEEP_BYTES: Final = 512 * 1024
"""What one transaction of a sweep removes at most, about: it may come on a full device."""
_SINGLY: Final = 16
"""Vectors of so many items of a namespace are read one by one, those of more in one scan."""
_PLACE_CHARS: Final = len(place(0, 0))
_NUMBER_DIGITS: Final = _PLACE_CHARS // 2


@dataclass(slots=True)
class Found:
    """An item where it lies."""

    place: str
    namespace: Labels
    row: ItemRow


@dataclass(slots=True)
class Put:
    """A change: ``row`` None removes the item."""

    namespace: Labels
    key: str
    row: ItemRow | None
    vectors: bytes | None = None


# --- reading ------------------------------------------------------------------------------------


def find(view: KeyValueView, namespace: Labels, key: str) -> Found | None:
    """The item of that name."""
    text = address(namespace, key)
    name = named("K", text)
    where = view.get(name)
    if where is None:
        return None
    at = place(*_numbers(where))
    raw = view.get("O" + at)
    if raw is None:
        return None  # it was lost: salvage keeps what it can read
    row = ItemRow.unpack(raw)
    if name[0] == "k" and (row.key != key or row.labels != labels_text(namespace)):
        return None
    return Found(at, namespace, row)


def namespaces(view: KeyValueView, prefix: Labels) -> list[tuple[int, Labels]]:
    """Number and labels of the namespaces at and below ``prefix``, the oldest first."""
    text = labels_text(prefix)
    rows = [raw for _, raw in view.scan(prefix="N" + text)]
    rows += [raw for _, raw in view.scan(prefix="n") if _text(raw).startswith(text)]
    return sorted((_numbers(raw)[0], split(_text(raw))) for raw in rows)


def in_order(
    view: KeyValueView,
    prefix: Labels,
    wanted: Callable[[bytes], bool] | None,
    *,
    limit: int | None = None,
) -> list[Found]:
    """The first ``limit`` items at and below ``prefix``, the oldest first.

    ``wanted`` says of a packed row whether it counts; None: all do.
    """
    found: list[Found] = []
    for number, labels in namespaces(view, prefix):
        if limit is not None and len(found) >= limit:
            break
        left = None if wanted or limit is None else limit - len(found)
        for key, raw in view.scan(prefix=_within(number), limit=left):
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
    """As ``in_order``, the last put first; it has to look at all items at and below ``prefix``."""
    rows = (
        (ItemRow.updated_us_of(raw), key, labels, raw)
        for number, labels in namespaces(view, prefix)
        for key, raw in view.scan(prefix=_within(number))
        if wanted is None or wanted(raw)
    )
    chosen = sorted(rows, reverse=True) if limit is None else nlargest(limit, rows)
    return [Found(key[1:], labels, ItemRow.unpack(raw)) for _, key, labels, raw in chosen]


def vectors(view: KeyValueView, items: Sequence[Found]) -> dict[str, bytes]:
    """The vectors of those of the items that have some, by place."""
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
    """Whether a namespace has an item that has not expired."""
    rows = view.scan(prefix=_within(number))
    return any(not ItemRow.is_expired(raw, now_ms) for _, raw in rows)


def is_due(view: KeyValueView, now_ms: int) -> bool:
    """Whether an item has expired and was not removed yet."""
    return any(True for _ in view.scan("E", _expiry(now_ms + 1, ""), limit=1))


def _within(number: int) -> str:
    return "O" + place(number, 0)[: _PLACE_CHARS // 2]


def _numbers(raw: bytes) -> tuple[int, int]:
    middle, end = _NUMBER_BYTES, 2 * _NUMBER_BYTES
    return int.from_bytes(raw[:middle], "big"), int.from_bytes(raw[middle:end], "big")


def _text(raw: bytes) -> str:
    return raw[_NUMBER_BYTES:].decode("utf-8", "surrogatepass")


# --- writing ------------------------------------------------------------------------------------


def write(txn: KeyValueTxn, put: Put, now_us: int) -> None:
    """Store or remove an item with all its rows.

    An item that was there keeps its place and the time of its creation, unless it has expired.
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
    """Let an item live for its time to live again, if it is still there and has one."""
    raw = txn.get("O" + at)
    if raw is None:
        return
    row = ItemRow.unpack(raw)
    if row.expires_ms:
        _forget_expiry(txn, Found(at, (), row))
        row.expires_ms = now_ms + row.ttl_ms
        _put_row(txn, at, row)


def sweep(txn: KeyValueTxn, now_ms: int) -> int:
    """Remove some of the items that have expired; how many, 0 if there are no more."""
    removed = size = 0
    due = [key for key, _ in txn.scan("E", _expiry(now_ms + 1, ""), limit=_SWEEP_ITEMS)]
    for key in due:
        at = key[-_PLACE_CHARS:]
        raw = txn.get("O" + at)
        if raw is None:
            txn.delete(key)  # its item was lost
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
    number = _numbers(raw)[0] if raw is not None else _next_number(txn)
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
    # The first of all; or the counter was lost, and numbers of rows that are there must not come
    # again.
    given = [max(int(at[:_NUMBER_DIGITS], 16), int(at[_NUMBER_DIGITS:], 16)) for at in _places(txn)]
    given += [_numbers(raw)[0] for kind in "Nn" for _, raw in txn.scan(prefix=kind)]
    return txn.increment(_COUNTER, max(given)) if given else number


def _places(view: KeyValueView) -> Iterator[str]:
    """Where anything lies, or lay."""
    for kind in "OV":
        for key, _ in view.scan(prefix=kind):
            yield key[1:]
    for kind in "Kk":
        for _, raw in view.scan(prefix=kind):
            yield place(*_numbers(raw))


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
