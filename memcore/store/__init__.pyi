# Written by scripts/make_faces from __init__.py.
from memcore.store.interface import MapMovedError as MapMovedError
from memcore.store.interface import ReadTxn as ReadTxn
from memcore.store.interface import Store as Store
from memcore.store.interface import Txn as Txn
from memcore.store.offline import build_detached as build_detached
from memcore.store.offline import open_detached as open_detached
from memcore.store.store import LmdbStore as LmdbStore
from memcore.store.store import open_store as open_store

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
