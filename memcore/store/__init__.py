"""Ordered map that everything is built on: one LMDB file, one flush per commit."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "audit_log": "anchored",
        "copy": "back_up compact_file refusal restore_file separators wipe_slots",
        "datafile": "refuse_network",
        "encryption": (
            "CLOSED_KINDS RowCipher copy_refused number_of owner_of packed_secret waiting_secret"
        ),
        "interface": "MapMovedError ReadTxn Store Txn",
        "offline": "build_detached count_sealed migrate_file open_detached reseal",
        "pages": "TXNID_MAX DamageError Tree free_lists free_pages walk_of",
        "store": "LmdbStore open_store",
    },
)
