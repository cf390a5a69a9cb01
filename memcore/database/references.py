"""Which rows refer to which blobs: what the counts of references must say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from memcore import blobs, keys, kv
from memcore.blobs import BlobRef
from memcore.codec import FLAG_BLOB, open_value
from memcore.errors import CorruptValueError
from memcore.keys import Kind, Row
from memcore.log.item import split_body
from memcore.store.base import ReadTxn

__all__ = ["check_references", "counted_references"]

_ROW_AT = 17


def counted_references(txn: ReadTxn, scope: int) -> Counter[bytes]:
    """How many rows of the scope refer to each slot; damaged rows are passed over."""
    found: Counter[bytes] = Counter()
    for ref in (*_of_items(txn, scope), *_of_addresses(txn, scope)):
        found[blobs.slot_of(ref)] += 1
    for _, ref in kv.references(txn, scope):
        found[blobs.slot_of(ref)] += 1
    return found


def _of_items(txn: ReadTxn, scope: int) -> Iterator[BlobRef]:
    prefix = keys.scoped(Kind.SESSION, scope)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        if key[_ROW_AT : _ROW_AT + 1] == bytes((Row.ITEM,)) and _has_blob(value):
            with suppress(CorruptValueError):
                yield BlobRef.unpack(split_body(open_value(key, value)[1])[3])


def _has_blob(value: bytes) -> bool:
    return any(flags & FLAG_BLOB for flags in value[1:2])  # a damaged value may have no flags


def _of_addresses(txn: ReadTxn, scope: int) -> Iterator[BlobRef]:
    prefix = keys.scoped(Kind.BLOB_ADDRESS, scope)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        with suppress(CorruptValueError):
            yield BlobRef.unpack(open_value(key, value)[1])


def check_references(txn: ReadTxn, scope: int) -> Iterator[str]:
    """Counts of references that are not those of the rows, and contents of entries that are gone.

    ``blobs.check`` tells of counts that cannot be read, and of blobs that are damaged.
    """
    for key, ref in kv.references(txn, scope):
        with suppress(CorruptValueError):
            if not blobs.exists(txn, scope, ref):
                yield f"the entry under key {key.hex()}: its content is not stored"
    found = counted_references(txn, scope)
    prefix = keys.scoped(Kind.BLOB_REFS, scope)
    counted = {keys.split_scoped(key)[1] for key, _ in txn.scan(prefix, keys.after(prefix))}
    for slot in sorted(found.keys() | counted):
        with suppress(CorruptValueError):
            says = blobs.references(txn, scope, slot)
            if says != found[slot] and blobs.header_of(txn, scope, slot) is not None:
                yield (
                    f"scope {scope}: reference count of the blob {slot.hex()}: it says {says}, "
                    f"{found[slot]} rows refer to it"
                )
