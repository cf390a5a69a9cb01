"""A store without a database on it: what its tests look at."""

from __future__ import annotations


def rows(store) -> dict[bytes, bytes]:
    """All rows of the store."""
    return dict(store.read(lambda txn: list(txn.scan(b"", b"\xff"))))
