"""A session written anew under its name: what it is to keep, without a trace of the rest.

The history of a session is never rewritten, so the way to lose its beginning is another session
in its place. It has the name, the revision, the state, the requests that were carried out, what was
learned of token counts and how often it was read; not the checkpoints and views of the old one,
which told of items that are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from memcore import names
from memcore.lease import read_lease, write_lease
from memcore.log import Draft, Head, Prepared
from memcore.log.head import FLAG_LEASED
from memcore.log.request import carry_requests
from memcore.session.address import Address
from memcore.session.removal import remove_nameless
from memcore.session.uses import move_uses
from memcore.state import inherit
from memcore.store.base import Txn
from memcore.terms import move_terms
from memcore.usage import inherit_usage

__all__ = ["Renewal", "Renewed", "renew"]


class Renewal(NamedTuple):
    """A session in the place of another one."""

    old: int
    """The number of the session that goes."""
    new: int
    revision: int
    """Of the one that goes; that of the other is the next one."""
    kept: Sequence[Prepared]
    """Its items, whose seqs are 1, 2 and so on; ``was`` tells the seq that each had."""


Renewed = Callable[[Txn, Renewal], None]
"""Told of a renewal inside its transaction: whoever keeps seqs elsewhere moves them."""


def renew(
    txn: Txn,
    address: Address,
    draft: Draft,
    kept: Sequence[Prepared],
    renewed: Renewed | None = None,
) -> list[bytes]:
    """Put a session of ``kept`` in the place of the draft's.

    Args:
        txn: the transaction of the draft.
        address: the session's.
        draft: of the session that goes.
        kept: what the other one consists of.
        renewed: called when it is there.

    Returns:
        What is left to remove of the old one, for ``resume_removals``; its forks keep what they
        share with it.
    """
    backing, old = address.backing, draft.head
    scope, number = draft.log.place
    draft.flush()
    backing.drafts.close(txn, draft)
    names.drop_session_name(txn, scope, address.name)
    session = names.new_session(txn, scope, address.name)
    head = Head(policy=old.policy, counter=old.counter, now_ms=old.created_ms)
    head.revision = old.revision
    held = read_lease(txn, scope, number) if old.leased else None
    if held is not None:  # whoever holds the session goes on
        head.flags |= FLAG_LEASED
        write_lease(txn, scope, session, held)
    fresh = backing.drafts.create(txn, scope, session, head)
    if kept:
        fresh.append(kept, orphans="keep")
    fresh.finish(now_ms=backing.now_ms())
    inherit(txn, scope, number, session, seq=head.next_seq)
    inherit_usage(txn, scope, number, session, at=0)
    move_terms(txn, scope, number, session)
    moved = {item.was: seq for seq, item in enumerate(kept, 1) if item.was}
    carry_requests(txn, scope, number, session, moved=moved, now_ms=backing.now_ms())
    move_uses(txn, scope, number, session, moved=moved)
    if renewed is not None:
        renewed(txn, Renewal(number, session, old.revision, kept))
    rest = remove_nameless(txn, scope, number)
    txn.on_commit(lambda: address.settle(scope, session))
    return rest
