"""In-place rewrite of a session's items.

Forks that share a row see its new content; heads get a new epoch, so that all handles reread their
sessions. What views show in place of an item is rewritten with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from memcore import blobs, search
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import seal_value
from memcore.errors import CorruptValueError, InvalidItemError, NotFoundError
from memcore.log import Head
from memcore.log.history import read_rows, sound
from memcore.log.read import opened
from memcore.log.rewrite import Rewriting, plan_rewriting, write_rewriting
from memcore.model import ItemKind, Message
from memcore.rows import index
from memcore.rows.head import FLAG_REWRITTEN, head_key
from memcore.rows.views import StoredView, read_view, write_view
from memcore.session.engine import Engine
from memcore.session.memory import forget_items
from memcore.store.interface import ReadTxn, Txn
from memcore.tokens import checked_count

__all__ = [
    "Rewritten",
    "family_of",
    "rewrite_items",
    "rewrite_planned",
    "rewrite_views",
    "shown_instead",
]


class Rewritten(NamedTuple):
    """Result of a rewrite."""

    seqs: tuple[int, ...]
    """The items that were rewritten."""
    size: int
    """Bytes previously taken by their rows and large contents."""
    leaving: list[bytes]
    """Blobs with rows still to be removed, for ``blobs.finish_leaving`` after the commit."""
    forgotten: int = 0
    """Memories that rested on these items alone."""


def rewrite_items(
    engine: Engine,
    scope: int,
    session: int,
    changes: Mapping[int, Message],
    *,
    may_grow: bool = False,
    along: Callable[[Txn], object] | None = None,
) -> Rewritten:
    """Replace the messages of items that a session owns, live or undone, in one commit.

    An item keeps its seq, time, kind and calls. What a view shows in its place is not changed.

    Args:
        engine: the open database's engine.
        scope: the number of the scope.
        session: the number of the session that owns the rows.
        changes: the new messages by seq.
        may_grow: allow messages with more tokens than the old ones; the token sums of contexts are
            then too low until the session is recounted.
        along: called in the same commit, if anything is rewritten.

    Raises:
        NotFoundError: the session has no such item.
        InvalidItemError: a message is of another kind, makes or answers other calls, or grew.
        CorruptValueError: an item is damaged.
    """

    def plan(txn: ReadTxn) -> list[Rewriting]:
        head = _head(txn, scope, session)
        counter = engine.counter_named(head.counter)
        found = []
        for seq, message in sorted(changes.items()):
            value = txn.get(keys.session_row(scope, session, Row.ITEM, seq))
            if value is None:
                msg = f"session {session} of scope {scope} has no item {seq}"
                raise NotFoundError(msg)
            row = sound(next(read_rows(txn, scope, session, position=0, lo=seq, hi=seq)))
            item, _ = opened(txn, scope, row)
            place = (scope, session, seq)
            planned = plan_rewriting(place, value, (item.message, message), seed=engine.seed)
            if item.kind != ItemKind.EVENT and not may_grow:
                known = index.RECORD.unpack_from(index.record_at(txn, scope, session, seq))[0]
                if checked_count(counter, message, planned.encoded) > known:
                    msg = f"item {seq}: what is to stand in its place counts more than {known}"
                    raise InvalidItemError(msg)
            found.append(planned)
        return found

    # Decoding, counting and encoding stay outside the write transaction, which compares the rows
    # with those planned for.
    planned = engine.store.read(plan)

    def closure(txn: Txn) -> Rewritten:
        done = rewrite_planned(txn, engine, scope, session, planned)
        if done.seqs and along is not None:
            along(txn)
        return done

    done = engine.store.transact(closure, makes_room=True)
    blobs.finish_leaving(engine.store, done.leaving)
    return done


def rewrite_planned(
    txn: Txn,
    engine: Engine,
    scope: int,
    session: int,
    planned: Sequence[Rewriting],
    *,
    views: Callable[[StoredView], StoredView] | None = None,
) -> Rewritten:
    """Carry out planned rewrites of those rows that have not changed since.

    Memories that rest on these items alone are forgotten: what is rewritten was to go.

    Args:
        txn: the transaction.
        engine: the open database's engine.
        scope: the number of the scope.
        session: the number of the session that owns the rows.
        planned: the rewrites, all of rows of this session.
        views: returns the replacement for a view of the session or of one of its forks.
    """
    family = family_of(txn, scope, session)
    # Items that other changes of this transaction appended are compared as rows below.
    for each in family:
        engine.drafts.flush_opened(txn, scope, each)
    fresh = [each for each in planned if _is_fresh(txn, each)]
    if not fresh:
        return Rewritten((), 0, [])
    # Drafts and caches of the whole family hold the old content, epoch and masks.
    for each in family:
        engine.drafts.close_unused(txn, scope, each)
    seed, leaving = int.from_bytes(engine.seed[:8], "little"), []
    for change in fresh:
        leaving += write_rewriting(txn, change, seed=seed) or []
    for each in family:
        _renew_head(txn, scope, each)
        if views is not None:
            _rewrite_views(txn, scope, each, views)
    seqs = tuple(keys.number_of(change.key) for change in fresh)
    forgotten = forget_items(txn, engine, scope, session, seqs)
    search.forget_items(txn, scope, family, session, list(seqs))
    return Rewritten(seqs, sum(change.size for change in fresh), leaving, forgotten)


def rewrite_views(
    txn: Txn,
    engine: Engine,
    scope: int,
    session: int,
    change: Callable[[StoredView], StoredView],
) -> int:
    """Replace views of a session, leaving its items alone; return the number changed."""
    engine.drafts.flush_opened(txn, scope, session)
    engine.drafts.close_unused(txn, scope, session)
    done = _rewrite_views(txn, scope, session, change)
    if done:
        _renew_head(txn, scope, session)
    return done


def _is_fresh(txn: ReadTxn, planned: Rewriting) -> bool:
    value = txn.get(planned.key)
    return value is not None and value[:10] == planned.before


def family_of(txn: ReadTxn, scope: int, session: int) -> list[int]:
    """Return a session and all of its forks, direct or not."""
    found, seen = [session], {session}
    for each in found:
        rows = keys.session_rows(scope, each, Row.CHILD)
        forks = {keys.number_of(key) for key, _ in txn.scan(rows, keys.after(rows))} - seen
        found += sorted(forks)
        seen |= forks  # damaged rows may lead in a circle
    return found


def _head(txn: ReadTxn, scope: int, session: int) -> Head:
    key = head_key(scope, session)
    value = txn.get(key)
    if value is None:
        msg = f"there is no session {session} in scope {scope}"
        raise NotFoundError(msg)
    return Head.unpack(key, value)


def _renew_head(txn: Txn, scope: int, session: int) -> None:
    """Advance the epoch, which invalidates all caches of the session."""
    key = head_key(scope, session)
    value = txn.get(key)
    if value is None:
        return
    try:
        head = Head.unpack(key, value)
    except CorruptValueError:
        return  # check() reports it; nobody can read the session
    head.epoch += 1
    head.flags |= FLAG_REWRITTEN
    txn.put(key, seal_value(key, head.pack()))


def _rewrite_views(
    txn: Txn, scope: int, session: int, change: Callable[[StoredView], StoredView]
) -> int:
    """Rewrite the views of a session and count those that changed."""
    done = 0
    rows = keys.session_rows(scope, session, Row.VIEW)
    numbers = [keys.number_of(key) for key, _ in txn.scan(rows, keys.after(rows))]
    for number in numbers:
        try:
            stored = read_view(txn, scope, session, number)
        except CorruptValueError:
            continue  # check() reports it; nobody can read the view
        changed = None if stored is None else change(stored)
        if changed is not None and changed != stored:
            write_view(txn, scope, changed)
            done += 1
    return done


def shown_instead(
    stored: StoredView,
    owner: int,
    seqs: Iterable[int],
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> StoredView:
    """Return the view with other messages in its masks of these items, owned by ``owner``."""
    wanted = set(seqs)
    masks = tuple(
        mask._replace(message=change(mask.message))
        if mask.seq in wanted and its_owner == owner and mask.message is not None
        else mask
        for mask, its_owner in zip(stored.view.masks, stored.mask_owners, strict=True)
    )
    if masks == stored.view.masks:
        return stored
    return stored._replace(view=replace(stored.view, masks=masks))
