"""Contents of entries: blobs to which an entry holds one reference each.

A reference is counted in the transaction that writes the entry, and let go in the one that
overwrites, deletes or expires it: a blob is there as long as an entry has it, and no longer.
"""

from __future__ import annotations

from memcore import blobs
from memcore.blobs import BlobRef
from memcore.errors import CorruptValueError, InternalError, NotFoundError
from memcore.store.base import ReadTxn, Txn

__all__ = ["hold", "read_content"]


def hold(txn: Txn, scope: int, content: bytes | BlobRef, seed: int | None) -> BlobRef:
    """Count a reference to a content, which is stored first unless it was staged.

    Raises:
        StagedBlobLost: it was staged, and is gone.
    """
    if isinstance(content, BlobRef):
        ref = content
    elif seed is None:
        raise InternalError("a key/value handle without a seed was given a content")
    else:
        ref = blobs.write(txn, scope, content, seed=seed)
    blobs.acquire(txn, scope, ref)
    return ref


def read_content(txn: ReadTxn, scope: int, ref: BlobRef) -> bytes:
    """The whole content.

    Raises:
        CorruptValueError: it is damaged or missing.
    """
    try:
        return blobs.read(txn, scope, ref)
    except NotFoundError as error:
        msg = f"the content of an entry is missing: {error}; run 'memcore check'"
        raise CorruptValueError(msg, key=b"") from error
