# Written by scripts/make_faces from __init__.py.
from memcore.store.audit_log import anchored as anchored
from memcore.store.copy import back_up as back_up
from memcore.store.copy import compact_file as compact_file
from memcore.store.copy import refusal as refusal
from memcore.store.copy import restore_file as restore_file
from memcore.store.copy import separators as separators
from memcore.store.copy import wipe_slots as wipe_slots
from memcore.store.datafile import refuse_network as refuse_network
from memcore.store.encryption import CLOSED_KINDS as CLOSED_KINDS
from memcore.store.encryption import RowCipher as RowCipher
from memcore.store.encryption import copy_refused as copy_refused
from memcore.store.encryption import number_of as number_of
from memcore.store.encryption import owner_of as owner_of
from memcore.store.encryption import packed_secret as packed_secret
from memcore.store.encryption import waiting_secret as waiting_secret
from memcore.store.interface import MapMovedError as MapMovedError
from memcore.store.interface import ReadTxn as ReadTxn
from memcore.store.interface import Store as Store
from memcore.store.interface import Txn as Txn
from memcore.store.offline import build_detached as build_detached
from memcore.store.offline import count_sealed as count_sealed
from memcore.store.offline import migrate_file as migrate_file
from memcore.store.offline import open_detached as open_detached
from memcore.store.offline import reseal as reseal
from memcore.store.pages import DamageError as DamageError
from memcore.store.pages import TXNID_MAX as TXNID_MAX
from memcore.store.pages import Tree as Tree
from memcore.store.pages import free_lists as free_lists
from memcore.store.pages import free_pages as free_pages
from memcore.store.pages import walk_of as walk_of
from memcore.store.store import LmdbStore as LmdbStore
from memcore.store.store import open_store as open_store

__all__ = [
    "CLOSED_KINDS",
    "TXNID_MAX",
    "DamageError",
    "LmdbStore",
    "MapMovedError",
    "ReadTxn",
    "RowCipher",
    "Store",
    "Tree",
    "Txn",
    "anchored",
    "back_up",
    "build_detached",
    "compact_file",
    "copy_refused",
    "count_sealed",
    "free_lists",
    "free_pages",
    "migrate_file",
    "number_of",
    "open_detached",
    "open_store",
    "owner_of",
    "packed_secret",
    "refusal",
    "refuse_network",
    "reseal",
    "restore_file",
    "separators",
    "waiting_secret",
    "walk_of",
    "wipe_slots",
]
