"""Plain key/value of a scope: ordered keys, ranges, time to live, transactions over several keys.

An entry is one row ``KV | scope | namespace | packed key``; its codec flags say whether the body
is JSON or the caller's own bytes, and whether an expiry time and the reference of a content (a blob
of the scope, of which the entry holds one reference) precede it. An entry with an expiry time has
one more row, ``EXPIRY | expires_ms | full key``, by which the sweeper finds it. The entry alone
decides whether it is visible: expired entries are hidden at once, swept or not, and an expiry row
that does not match its entry has no effect.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "keyvalue": "KeyValue",
        "namespace": "REQUESTS EntryFilter KeyValueTxn KeyValueView Requests",
        "rows": "clear_scope entry_of expire_rows reference_in references sweep",
    },
)
