# Written by scripts/make_faces from __init__.py.
from memcore.kv.keyvalue import KeyValue as KeyValue
from memcore.kv.namespace import EntryFilter as EntryFilter
from memcore.kv.namespace import KeyValueTxn as KeyValueTxn
from memcore.kv.namespace import KeyValueView as KeyValueView
from memcore.kv.namespace import REQUESTS as REQUESTS
from memcore.kv.namespace import Requests as Requests
from memcore.kv.namespace import transaction_of as transaction_of
from memcore.kv.rows import clear_scope as clear_scope
from memcore.kv.rows import entry_of as entry_of
from memcore.kv.rows import expire_rows as expire_rows
from memcore.kv.rows import reference_in as reference_in
from memcore.kv.rows import references as references
from memcore.kv.rows import sweep as sweep

__all__ = [
    "REQUESTS",
    "EntryFilter",
    "KeyValue",
    "KeyValueTxn",
    "KeyValueView",
    "Requests",
    "clear_scope",
    "entry_of",
    "expire_rows",
    "reference_in",
    "references",
    "sweep",
    "transaction_of",
]
