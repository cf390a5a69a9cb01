"""Plain key/value of a scope: ordered keys, ranges, time to live, multi-key transactions.

An entry is one row ``KV | scope | namespace | packed key``. Its codec flags record whether the body
is JSON or the caller's own bytes, and whether it is preceded by an expiry time and by a reference
to a content (a blob of the scope, of which the entry holds one reference). An entry with an expiry
time has a second row, ``EXPIRY | expires_ms | full key``, by which the sweeper finds it. Visibility
is decided by the entry alone: expired entries are hidden immediately, swept or not, and an expiry
row that does not match its entry has no effect.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "keyvalue": "KeyValue",
        "namespace": ("REQUESTS EntryFilter KeyValueTxn KeyValueView Requests transaction_of"),
        "rows": "clear_scope entry_of expire_rows reference_in references sweep",
    },
)
