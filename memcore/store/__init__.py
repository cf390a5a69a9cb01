"""The ordered map underneath everything: one LMDB file, one flush a commit."""

from __future__ import annotations

from memcore.store.base import MapMovedError, ReadTxn, Store, Txn
from memcore.store.handle import LmdbStore, open_store
from memcore.store.loose import built, examined

__all__ = [
    "LmdbStore",
    "MapMovedError",
    "ReadTxn",
    "Store",
    "Txn",
    "built",
    "examined",
    "open_store",
]
