"""The lease row of a session: who alone may change it, since which change of hands, until when.

One row a session, ``05 | scope | session | 0E | 0``, written by those who take, renew or give up a
lease and by nobody else. It stays when the lease is given up, for its *epoch* never goes back: that
is what a writer is found out by whose lease somebody else has taken meanwhile. A row without an
owner says that nobody holds the session. The head's flag says that the row is to be looked at.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from memcore import keys
from memcore.codec import decoding, open_value, seal_value
from memcore.keys import Row
from memcore.store.base import ReadTxn, Txn

__all__ = ["LeaseRow", "is_lease", "lease_key", "read_lease", "write_lease"]

_BODY: Final = Struct("<QQ")


class LeaseRow(NamedTuple):
    """What is stored of a session's lease."""

    epoch: int
    """How often it was taken by somebody else than before; from 1 on."""
    expires_ms: int
    """When it may be taken by others, in milliseconds since 1970; 0: now."""
    owner: str
    """Who holds it; empty: nobody."""

    def is_held(self, now_ms: int) -> bool:
        """Whether somebody holds it at that time."""
        return bool(self.owner) and now_ms < self.expires_ms

    def vacant(self) -> LeaseRow:
        """The same epoch without an owner."""
        return LeaseRow(self.epoch, 0, "")


def lease_key(scope: int, session: int) -> bytes:
    """The key of a session's lease row."""
    return keys.session_row(scope, session, Row.LEASE, 0)


def read_lease(txn: ReadTxn, scope: int, session: int) -> LeaseRow | None:
    """The row, None if the session was never leased.

    Raises:
        CorruptValueError: the row is damaged.
    """
    key = lease_key(scope, session)
    value = txn.get(key)
    return None if value is None else _unpack(key, value)


def write_lease(txn: Txn, scope: int, session: int, row: LeaseRow) -> None:
    """Store the row in place of the one before."""
    key = lease_key(scope, session)
    owner = row.owner.encode("utf-8", "surrogatepass")
    txn.put(key, seal_value(key, _BODY.pack(row.epoch, row.expires_ms) + owner))


def is_lease(key: bytes, value: bytes) -> bool:
    """Whether a row is what ``write_lease`` writes; raises CorruptValueError if it is none."""
    return keys.number_of(key) == 0 and _unpack(key, value).epoch > 0


def _unpack(key: bytes, value: bytes) -> LeaseRow:
    _, body = open_value(key, value)
    with decoding(key, "lease row"):
        epoch, expires_ms = _BODY.unpack_from(body)
        owner = body[_BODY.size :].decode("utf-8", "surrogatepass")
        if not epoch or (owner == "") != (expires_ms == 0):
            raise ValueError
    return LeaseRow(epoch, expires_ms, owner)
