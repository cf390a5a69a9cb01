"""Ordered map underneath everything: one LMDB file, one flush a commit."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "interface": "MapMovedError ReadTxn Store Txn",
        "offline": "build_detached open_detached",
        "store": "LmdbStore open_store",
    },
)
