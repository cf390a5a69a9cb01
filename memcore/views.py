"""View records: compactions as rows.

A view represents the items before its cut; the log keeps them. It is chained to the one before it
and names the last seq that it covers and the prefix hash there. It applies only if that seq is
live and the hash matches; else its newest valid ancestor does, so undo, rewind and fork need not
touch views at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memcore import keys
from memcore.codec import decode_json, encode_json, open_value, seal_value
from memcore.keys import Row
from memcore.model import View
from memcore.store.base import ReadTxn, Txn

__all__ = ["StoredView", "read_view", "resolve_view", "view_chain", "write_view"]


@dataclass(frozen=True, slots=True)
class StoredView:
    """A view with what only the storage layers need."""

    view: View
    chain: int
    """Prefix hash of the log at the last covered item."""
    owner: int
    """The session that owns the row (a fork shares its parent's views)."""
    parent_owner: int


def write_view(txn: Txn, scope: int, stored: StoredView) -> None:
    """Write one view record."""
    view = stored.view
    key = keys.session_row(scope, stored.owner, Row.VIEW, view.number)
    body, flags = encode_json(
        {
            "chain": stored.chain,
            "parent": view.parent,
            "parent_owner": stored.parent_owner,
            "cut_seq": view.cut_seq,
            "covered": view.covered,
            "summary": view.summary,
            "pinned": list(view.pinned),
            "status": view.status,
            "tokens_before": view.tokens_before,
            "tokens_after": view.tokens_after,
            "created_at": view.created_at,
        }
    )
    txn.put(key, seal_value(key, body, flags))


def read_view(txn: ReadTxn, scope: int, owner: int, number: int) -> StoredView | None:
    """One view record, None if there is none.

    Raises:
        CorruptValueError: the row is damaged.
    """
    key = keys.session_row(scope, owner, Row.VIEW, number)
    value = txn.get(key)
    if value is None:
        return None
    flags, body = open_value(key, value)
    found = decode_json(body, flags)
    chain, parent_owner = found.pop("chain"), found.pop("parent_owner")
    pinned = tuple(found.pop("pinned"))
    return StoredView(View(number=number, pinned=pinned, **found), chain, owner, parent_owner)


def view_chain(txn: ReadTxn, scope: int, owner: int, number: int) -> Iterator[StoredView]:
    """A view and its ancestors, newest first."""
    while number:
        found = read_view(txn, scope, owner, number)
        if found is None:
            return
        yield found
        owner, number = found.parent_owner, found.view.parent


def resolve_view(
    txn: ReadTxn,
    scope: int,
    owner: int,
    number: int,
    chain_at: Callable[[int], int | None],
) -> StoredView | None:
    """The newest view of the chain that still applies.

    ``chain_at`` gives the prefix hash at a live seq, None for a seq that is not live.
    """
    for stored in view_chain(txn, scope, owner, number):
        if chain_at(stored.view.cut_seq) == stored.chain:
            return stored
    return None
