"""Which memories have which term: an inverted index in the rows of a key/value namespace.

A row holds up to 256 ordinals of memories, ascending; a term has as many rows as it needs. The last
one, to which more are added, has a key that needs no looking for; the full ones have their first
ordinals in theirs. So a search reads what it finds, and no other memories.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import pack, unpack
from typing import Final

from memcore.adapters.adk.labels import END, label
from memcore.errors import CorruptValueError
from memcore.kv import KeyValueTxn, KeyValueView

__all__ = ["add_postings", "drop_posting", "postings_of"]

_TERM_BYTES_MAX: Final = 120
_ORDINAL_CHARS: Final = 8
_LAST: Final = "g"
"""Behind all ordinals in hex digits."""
_ORDINAL_BYTES: Final = 4
_ROW_BYTES_MAX: Final = 256 * _ORDINAL_BYTES


def _prefix(view: KeyValueView, term: str) -> str:
    return "t" + label(view.veiled(term), _TERM_BYTES_MAX) + END


def _key(prefix: str, first: int) -> str:
    return f"{prefix}{first:0{_ORDINAL_CHARS}x}"


def add_postings(txn: KeyValueTxn, terms: Mapping[str, Iterable[int]]) -> None:
    """Add ordinals to terms; they ascend, and are larger than all that the term has."""
    for term, ordinals in terms.items():
        prefix = _prefix(txn, term)
        before = txn.get(prefix + _LAST, b"")
        _unpacked(before)
        rows = before + b"".join(pack("<I", each) for each in ordinals)
        while len(rows) > _ROW_BYTES_MAX:
            full, rows = rows[:_ROW_BYTES_MAX], rows[_ROW_BYTES_MAX:]
            txn.put(_key(prefix, _unpacked(full)[0]), full)
        txn.put(prefix + _LAST, rows)


def postings_of(view: KeyValueView, term: str) -> list[int]:
    """The ordinals of a term, ascending."""
    found: list[int] = []
    for _, row in view.scan(prefix=_prefix(view, term)):
        found += _unpacked(row)
    return found


def drop_posting(txn: KeyValueTxn, term: str, ordinal: int) -> None:
    """Take an ordinal from a term."""
    prefix = _prefix(txn, term)
    key, row = prefix + _LAST, txn.get(prefix + _LAST, b"")
    if ordinal < next(iter(_unpacked(row)), ordinal + 1):
        stop = _key(prefix, ordinal) + END
        found = next(txn.scan(prefix, stop, prefix=prefix, reverse=True, limit=1), None)
        if found is None:
            return
        key, row = found
    left = [each for each in _unpacked(row) if each != ordinal]
    if left:
        txn.put(key, pack(f"<{len(left)}I", *left))
    else:
        txn.delete(key)


def _unpacked(row: object) -> tuple[int, ...]:
    if not isinstance(row, bytes) or len(row) % _ORDINAL_BYTES:
        msg = "a row of the index of memories is damaged; run 'memcore check'"
        raise CorruptValueError(msg, key=b"")
    return unpack(f"<{len(row) // _ORDINAL_BYTES}I", row)
