"""Which memories have which term: an inverted index in the rows of a key/value namespace.

A row holds up to 256 ordinals of memories, ascending; a term has as many rows as it needs, in the
order of their first ordinals. So a search reads what it finds, and no other memories.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import pack, unpack
from typing import Final

from memcore.adapters.adk.labels import END, label
from memcore.kv import KeyValueTxn, KeyValueView

__all__ = ["add_postings", "drop_posting", "postings_of"]

_TERM_BYTES_MAX: Final = 120
_ORDINAL_CHARS: Final = 8
_ORDINAL_BYTES: Final = 4
_ROW_BYTES_MAX: Final = 256 * _ORDINAL_BYTES


def _prefix(term: str) -> str:
    return "t" + label(term, _TERM_BYTES_MAX) + END


def _key(prefix: str, first: int) -> str:
    return f"{prefix}{first:0{_ORDINAL_CHARS}x}"


def add_postings(txn: KeyValueTxn, terms: Mapping[str, Iterable[int]]) -> None:
    """Add ordinals to terms; they ascend, and are larger than all that the term has."""
    for term, ordinals in terms.items():
        prefix = _prefix(term)
        last = next(txn.scan(prefix=prefix, reverse=True, limit=1), None)
        more = b"".join(pack("<I", ordinal) for ordinal in ordinals)
        if last is not None and len(last[1]) + len(more) <= _ROW_BYTES_MAX:
            txn.put(last[0], last[1] + more)
            continue
        for start in range(0, len(more), _ROW_BYTES_MAX):
            row = more[start : start + _ROW_BYTES_MAX]
            txn.put(_key(prefix, _unpacked(row)[0]), row)


def postings_of(view: KeyValueView, term: str) -> list[int]:
    """The ordinals of a term, ascending."""
    found: list[int] = []
    for _, row in view.scan(prefix=_prefix(term)):
        found += _unpacked(row)
    return found


def drop_posting(txn: KeyValueTxn, term: str, ordinal: int) -> None:
    """Take an ordinal from a term."""
    prefix = _prefix(term)
    stop = _key(prefix, ordinal) + END
    row = next(txn.scan(prefix, stop, prefix=prefix, reverse=True, limit=1), None)
    if row is None:
        return
    left = [each for each in _unpacked(row[1]) if each != ordinal]
    if left:
        txn.put(row[0], pack(f"<{len(left)}I", *left))
    else:
        txn.delete(row[0])


def _unpacked(row: bytes) -> tuple[int, ...]:
    return unpack(f"<{len(row) // _ORDINAL_BYTES}I", row)
