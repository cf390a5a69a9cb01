"""The check of the index by expiry: it leads to all that expires, and to nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from memcore import keys, kv, terms
from memcore.codec import FLAG_EXPIRES
from memcore.errors import CorruptValueError
from memcore.keys import Kind
from memcore.session import Backing
from memcore.store.base import ReadTxn
from memcore.tombstone import is_erased

__all__ = ["check_expiries"]

_PAGE: Final = 1000
_Look: TypeAlias = Callable[[ReadTxn, bytes, bytes], Iterator[str]]


def check_expiries(backing: Backing) -> Iterator[str]:
    """Rows of the index that lead astray, and what expires without one; a page a snapshot."""
    for kind, look in ((Kind.EXPIRY, _leads), (Kind.KV, _entry), (Kind.CARE, _terms)):
        start: bytes | None = bytes((kind,))
        while start is not None:

            def page(
                txn: ReadTxn, start: bytes = start, look: _Look = look, stop: int = kind + 1
            ) -> tuple[list[str], bytes | None]:
                rows = list(txn.scan(start, bytes((stop,)), limit=_PAGE))
                found = [what for row in rows for what in look(txn, *row)]
                return found, keys.behind(rows[-1][0]) if len(rows) == _PAGE else None

            found, start = backing.store.read(page)
            yield from found


def check_terms(txn: ReadTxn, key: bytes, value: bytes) -> Iterator[str]:
    """Whether the index leads to a row of terms."""
    return _terms(txn, key, value)


def _leads(txn: ReadTxn, row: bytes, _: bytes) -> Iterator[str]:
    due, key = keys.split_expiry_row(row)
    value = txn.get(key) if key else None
    at = None
    if value is not None:
        try:
            at = _due(key, value)
        except CorruptValueError:
            return  # found as a damaged row
    if at != due and not (key and is_erased(txn, keys.split_scoped(key)[0])):
        yield f"the index by expiry has a row {row.hex()} that leads to nothing that expires then"


def _due(key: bytes, value: bytes) -> int | None:
    if terms.is_terms(key):
        return terms.terms_of(key, value).due_ms
    return kv.entry_of(key, value).expires_ms if key[0] == Kind.KV else None


def _entry(txn: ReadTxn, key: bytes, value: bytes) -> Iterator[str]:
    if any(flags & FLAG_EXPIRES for flags in value[1:2]):
        yield from _has_row(txn, key, value)


def _terms(txn: ReadTxn, key: bytes, value: bytes) -> Iterator[str]:
    if terms.is_terms(key):
        yield from _has_row(txn, key, value)


def _has_row(txn: ReadTxn, key: bytes, value: bytes) -> Iterator[str]:
    try:
        due = _due(key, value)
    except CorruptValueError as exc:
        if terms.is_terms(key):
            yield str(exc)
        return
    if due is not None and txn.get(keys.expiry_row(due, key)) is None:
        yield f"the index by expiry has no row for {key.hex()}, which expires at {due} ms"
