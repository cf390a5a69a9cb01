"""The key that receipts are signed with when the caller gives none."""

from __future__ import annotations

import hashlib
import hmac

from memcore.store import LmdbStore

__all__ = ["receipt_key"]


def receipt_key(store: LmdbStore) -> bytes:
    """32 bytes that follow from the database's secret, which is not in its file.

    Raises:
        NotFoundError: there is none yet, and the database is open read-only.
        StorageError: the file of the secret cannot be used.
    """
    return hmac.digest(store.secret.value(), b"memcore receipts", hashlib.sha256)
