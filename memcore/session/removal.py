"""Deleting a session: its rows leave at once, or when the last fork that shares them goes."""

from __future__ import annotations

from memcore import blobs, keys, names
from memcore.codec import FLAG_BLOB, open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.keys import Row
from memcore.log import Head
from memcore.log.head import FLAG_HIDDEN, head_key
from memcore.log.item import split_body
from memcore.session.address import Backing
from memcore.store.base import ReadTxn, Txn

__all__ = ["delete_session"]


def delete_session(txn: Txn, backing: Backing, scope: int, name: str) -> bool:
    """Delete a session by name; whether there was one.

    While forks share its rows the session is only hidden; its last fork takes it along.
    """
    session = names.session_of(txn, scope, name)
    if session is None:
        return False
    draft = backing.drafts.open(txn, scope, session)
    if draft is not None:
        draft.flush()
        backing.drafts.close(txn, draft)
    names.drop_session_name(txn, scope, name)
    _remove_or_hide(txn, scope, session)
    return True


def _read_head(txn: ReadTxn, scope: int, session: int) -> Head | None:
    key = head_key(scope, session)
    value = txn.get(key)
    return None if value is None else Head.unpack(key, value)


def _remove_or_hide(txn: Txn, scope: int, session: int) -> None:
    head = _read_head(txn, scope, session)
    while head is not None:
        if _has_children(txn, scope, session):
            head.flags |= FLAG_HIDDEN
            key = head_key(scope, session)
            txn.put(key, seal_value(key, head.pack()))
            return
        _release_blobs(txn, scope, session)
        prefix = keys.session_prefix(scope, session)
        txn.delete_range(prefix, keys.after(prefix))
        parent = head.parent_session
        if not parent:
            return
        txn.delete(keys.session_row(scope, parent, Row.CHILD, session))
        head = _read_head(txn, scope, parent)
        if head is None or not head.hidden:
            return
        session = parent


def _has_children(txn: ReadTxn, scope: int, session: int) -> bool:
    start = keys.session_row(scope, session, Row.CHILD, 0)
    stop = keys.session_row(scope, session, Row.CHILD + 1, 0)
    return any(True for _ in txn.scan(start, stop, limit=1))


def _release_blobs(txn: Txn, scope: int, session: int) -> None:
    start = keys.session_row(scope, session, Row.ITEM, 0)
    stop = keys.session_row(scope, session, Row.ITEM + 1, 0)
    found = []
    for key, value in txn.scan(start, stop):
        if value[1] & FLAG_BLOB:
            try:
                body = open_value(key, value)[1]
            except CorruptValueError:
                continue  # its reference is lost with it; check() reports the blob as unreferenced
            found.append(blobs.BlobRef.unpack(split_body(body)[3]))
    for ref in found:
        blobs.release(txn, scope, ref)
