"""Ordered map underneath everything: one LMDB file, one flush a commit."""

from __future__ import annotations

from memcore.store.interface import MapMovedError, ReadTxn, Store, Txn
from memcore.store.offline import build_detached, open_detached
from memcore.store.store import LmdbStore, open_store

__all__ = [
    "LmdbStore",
    "MapMovedError",
    "ReadTxn",
    "Store",
    "Txn",
    "build_detached",
    "open_detached",
    "open_store",
]
