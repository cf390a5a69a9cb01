"""What a policy finds in a database that holds clear text, and items and views written anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from memcore import blobs, keys, names
from memcore.audit import record_event
from memcore.database.scope import Scope, backing_of, rows_of
from memcore.errors import CorruptValueError
from memcore.keys import Row
from memcore.log import Head
from memcore.log.head import head_key
from memcore.log.history import read_rows, sound
from memcore.log.rewriting import Rewriting, plan_rewriting
from memcore.log.stored import opened
from memcore.model import Item
from memcore.privacy.border import Redacts
from memcore.session import Backing, Session
from memcore.session.rewriting import Rewritten, rewrite_planned
from memcore.state import prefix_of
from memcore.store.base import ReadTxn, Txn
from memcore.views import StoredView, read_view

__all__ = ["Finding", "findings_beside", "findings_in", "findings_of", "redact_session"]

_PAGE: Final = 256


@dataclass(slots=True)
class Finding:
    """How often each class was found at one place; never what."""

    app: str
    user: str
    session: str | None
    where: str
    """``items``, ``views``, ``state``, ``app state``, ``checkpoints`` or ``kv``."""
    classes: Counter[str] = field(default_factory=Counter)
    rewritten: int = 0
    """Items that were written anew."""
    unreadable: int = 0
    """Items that are damaged, and stay as they are."""


def findings_in(
    backing: Backing, place: tuple[str, str, str], redacts: Redacts
) -> Iterator[Finding]:
    """What is found in the items of a session (undone ones, too) and in its views."""
    found = backing.store.read(lambda txn: _numbers(txn, *place))
    if found is None:
        return
    items, views = Finding(*place, "items"), Finding(*place, "views")
    for row in _rows(backing, *found, items):
        items.classes.update(redacts.value([row[1].message, row[1].meta])[1])
    for stored in backing.store.read(lambda txn: list(_views(txn, *found))):
        views.classes.update(redacts.value(_said(stored))[1])
    yield items
    yield views


def findings_of(session: Session, redacts: Redacts) -> Iterator[Finding]:
    """What is found in the state of a session and in the names and meta of its checkpoints."""
    place = session.app, session.user, session.id
    state, saved = Finding(*place, "state"), Finding(*place, "checkpoints")
    own = {key: value for key, value in session.state.all().items() if not prefix_of(key)}
    state.classes.update(redacts.value(own)[1])
    for each in session.checkpoints():
        saved.classes.update(redacts.value([each.name, each.meta])[1])
    yield state
    yield saved


def findings_beside(scope: Scope, redacts: Redacts) -> Iterator[Finding]:
    """What is found in the state of a user, in key/value entries and in blobs of a scope."""
    app, user, backing = scope.app, scope.user, backing_of(scope)
    state = Finding(app, user, None, "state")
    state.classes.update(redacts.value(scope.state.all())[1])
    yield state
    shared = Finding(app, user, None, "app state")
    shared.classes.update(redacts.value(scope.app_state.all())[1])
    yield shared
    for name in backing.store.read(lambda txn: _namespaces(txn, app, user)):
        entries, kv = Finding(app, user, None, "kv"), rows_of(scope, name)
        for key, value in kv.scan():
            entries.classes.update(_classes(redacts, value))
            content = kv.content(key)
            if content is not None:
                entries.classes.update(redacts.counted_bytes(content)[1])
        yield entries


def _classes(redacts: Redacts, value: Any) -> Any:
    return (redacts.counted_bytes if isinstance(value, bytes) else redacts.value)(value)[1]


def _namespaces(txn: ReadTxn, app: str, user: str) -> list[str]:
    scope = names.scope_of(txn, app, user)
    if scope is None:
        return []
    return [name for name, _ in names.namespaces(txn, scope)]


def redact_session(backing: Backing, place: tuple[str, str, str], redacts: Redacts) -> Finding:
    """Write the items of a session anew that hold what is looked for, and the views with them.

    Items keep seq, time, calls and prefix hash; forks that share them see what stands there now.
    The old bytes leave the file with the next copy-compact.

    Raises:
        StorageError: what was written until then stays written.
    """
    done = Finding(*place, "items")
    found = backing.store.read(lambda txn: _numbers(txn, *place))
    if found is None:
        return done

    def views(stored: StoredView) -> StoredView:
        return _shown(stored, redacts)

    planned: list[Rewriting] = []
    for value, item, seq in _rows(backing, *found, done):
        made, classes = redacts.value([item.message, item.meta])
        if not classes:
            continue
        done.classes.update(classes)
        told = made[1]
        planned.append(
            plan_rewriting(
                (*found, seq),
                value,
                (item.message, made[0]),
                seed=backing.seed,
                envelope=lambda envelope, told=told: _marked(envelope, told),  # type: ignore[misc]
            )
        )
        if len(planned) == _PAGE:
            done.rewritten += _commit(backing, found, planned, views)
            planned = []
    done.rewritten += _commit(backing, found, planned, views)
    return done


def _commit(backing: Backing, found: tuple[int, int], planned: list[Rewriting], views: Any) -> int:
    if not planned:
        return 0

    def closure(txn: Txn) -> Rewritten:
        rewritten = rewrite_planned(txn, backing, *found, planned, views=views)
        if rewritten.seqs:
            told = {"session": found[1], "items": len(rewritten.seqs)}
            record_event(txn, found[0], "redact", told)
        return rewritten

    done = backing.store.transact(closure)
    blobs.finish_leaving(backing.store, done.leaving)
    return len(done.seqs)


def _marked(envelope: dict[str, Any], meta: Any) -> dict[str, Any]:
    told = {**(envelope.get("envelope") or {}), "redacted": True}
    return {"request_id": envelope.get("request_id"), "envelope": told, "meta": meta}


def _numbers(txn: ReadTxn, app: str, user: str, name: str) -> tuple[int, int] | None:
    scope = names.scope_of(txn, app, user)
    session = None if scope is None else names.session_of(txn, scope, name)
    return None if scope is None or session is None else (scope, session)


def _rows(
    backing: Backing, scope: int, session: int, told: Finding
) -> Iterator[tuple[bytes, Item, int]]:
    """Row, item and seq of all that a session owns; damaged ones are counted."""
    key = head_key(scope, session)
    value = backing.store.read(lambda txn: txn.get(key))
    if value is None:
        return
    head = Head.unpack(key, value)
    for first in range(head.parent_seq + 1, head.next_seq, _PAGE):
        last = min(first + _PAGE, head.next_seq) - 1
        yield from backing.store.read(
            lambda txn, first=first, last=last: list(  # type: ignore[misc]
                _page(txn, (scope, session), first, last, told)
            )
        )


def _page(
    txn: ReadTxn, place: tuple[int, int], first: int, last: int, told: Finding
) -> Iterator[tuple[bytes, Item, int]]:
    for row in read_rows(txn, *place, position=0, lo=first, hi=last):
        try:
            item, _ = opened(txn, place[0], sound(row))
        except CorruptValueError:
            told.unreadable += 1
            continue
        value = txn.get(keys.session_row(*place, Row.ITEM, item.seq))
        if value is not None:
            yield value, item, item.seq


def _views(txn: ReadTxn, scope: int, session: int) -> Iterator[StoredView]:
    rows = keys.session_rows(scope, session, Row.VIEW)
    for number in [keys.number_of(key) for key, _ in txn.scan(rows, keys.after(rows))]:
        stored = read_view(txn, scope, session, number)
        if stored is not None:
            yield stored


def _said(stored: StoredView) -> list[Any]:
    view = stored.view
    return [view.summary, view.reason, [mask.message for mask in view.masks]]


def _shown(stored: StoredView, redacts: Redacts) -> StoredView:
    said = _said(stored)
    made = redacts.value(said)[0]
    if made is said:
        return stored
    summary, reason, messages = made
    masks = tuple(
        mask._replace(message=message)
        for mask, message in zip(stored.view.masks, messages, strict=True)
    )
    return replace(stored, view=replace(stored.view, summary=summary, reason=reason, masks=masks))
