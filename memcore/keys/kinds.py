"""Which rows there are: the bytes that tell them apart."""

from __future__ import annotations

from typing import Final

__all__ = [
    "Care",
    "Counter",
    "Kind",
    "Row",
    "ThreadRow",
]


class Kind:
    """First byte of a key. ``00`` is reserved for the store itself."""

    COUNTER: Final = 0x01
    SCOPE: Final = 0x02
    SCOPE_NAME: Final = 0x03
    SESSION_NAME: Final = 0x04
    SESSION: Final = 0x05
    BLOB: Final = 0x06
    BLOB_CHUNK: Final = 0x07
    BLOB_REFS: Final = 0x08
    BLOB_ADDRESS: Final = 0x09
    KV_NAMESPACE: Final = 0x0A
    KV: Final = 0x0B
    EXPIRY: Final = 0x0C
    REMOVAL: Final = 0x0D
    THREAD_NAME: Final = 0x0E
    THREAD: Final = 0x0F
    CHUNK: Final = 0x10
    STATE: Final = 0x11
    CARE: Final = 0x12


class Care:
    """Which row of a scope's care: the byte behind the scope. Scope 0 is the database."""

    HOLD: Final = 0x01
    ERASURE: Final = 0x02
    TERMS: Final = 0x03
    AUDIT: Final = 0x04
    QUARANTINE: Final = 0x05
    MEMORY: Final = 0x06
    DEMAND: Final = 0x07
    SECRET: Final = 0x08


class Row:
    """Row byte of a session's key: the rows of one session lie together."""

    HEAD: Final = 0x01
    INDEX: Final = 0x02
    ITEM: Final = 0x03
    VIEW: Final = 0x04
    SEGMENTS: Final = 0x05
    CHILD: Final = 0x06
    REQUEST: Final = 0x07
    TOKENS: Final = 0x08
    USAGE: Final = 0x09
    CHECKPOINT: Final = 0x0A
    STATE: Final = 0x0B
    MOMENT: Final = 0x0C
    AUDIT: Final = 0x0D
    LEASE: Final = 0x0E
    USES: Final = 0x0F
    TERMS: Final = 0x10


class ThreadRow:
    """Row byte of a thread's key: the rows of one thread of a graph lie together."""

    HEAD: Final = 0x01
    NAMESPACE: Final = 0x02
    CHECKPOINT: Final = 0x03
    VALUE: Final = 0x04
    WRITES: Final = 0x05


class Counter:
    """Second byte of a counter's key: the last number that was given out."""

    SCOPE: Final = 0x01
    SESSION: Final = 0x02
    NAMESPACE: Final = 0x03
    THREAD: Final = 0x04
    POOL: Final = 0x05
    GRAPH_NAMESPACE: Final = 0x06
    DATA_KEY: Final = 0x07
    """Not given out here: the newest key of the key file that the file has seen (`Vault.note`)."""
