"""Deleting an invocation: its events leave a session in one commit, and no pair is torn.

The rows stay as empty places of their kind, which keeps numbers, prefix hashes, views and forks
valid, as where items expire: what was said, called and answered is gone from the file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from memcore import blobs, keys
from memcore.adapters.adk.events import Stored
from memcore.adapters.adk.labels import fields_of
from memcore.audit import record_event
from memcore.errors import CorruptValueError, OutpacedError
from memcore.formats.expired import expired_event, expired_message
from memcore.held import need_free
from memcore.keys import Row
from memcore.log import SessionLog
from memcore.log.draft import Draft
from memcore.log.history import StoredRow, sound
from memcore.log.rewriting import Rewriting, plan_rewriting
from memcore.log.stored import opened
from memcore.model import ItemKind
from memcore.session import Session
from memcore.session.backing import Backing
from memcore.session.reading import head_of
from memcore.session.rewriting import Rewritten, rewrite_planned, shown_instead
from memcore.state import APP, USER, Delete
from memcore.store.base import ReadTxn, Txn

__all__ = ["delete_invocation"]

_ATTEMPTS: Final = 8
_EMPTY: Final = "."
"""What stands in the place of a text: it counts as little as any."""
_SHARED: Final = (APP, USER, "temp:")


@dataclass(slots=True)
class _Plan:
    """What one snapshot showed of an invocation."""

    scope: int
    session: int
    revision: int
    events: int = 0
    first: int = 0
    """The seq of its first row."""
    rows: dict[int, list[Rewriting]] = field(default_factory=lambda: defaultdict(list))
    """By the session that owns them."""
    own: set[str] = field(default_factory=set)
    """Keys of the session's state that its events changed last."""


def delete_invocation(backing: Backing, session: Session, invocation: str, *, rewinds: bool) -> int:
    """Delete the events of an invocation; how many there were.

    Responses of other invocations to its calls go with it.

    Args:
        backing: of the open database.
        session: the session.
        invocation: the invocation's id.
        rewinds: the session's own values that it changed last become what they were before it.

    Raises:
        HeldError: the session is under a legal hold.
        CorruptValueError: a row of the session is damaged.
        OutpacedError: others wrote to the session again and again.
    """
    for _ in range(_ATTEMPTS):
        plan = session.reading.run(
            lambda log, txn: _planned(log, txn, backing.seed, invocation), None
        )
        if plan is None or not plan.events:
            return 0
        before = session.state.before(plan.first) if rewinds and plan.own else {}
        done = backing.store.transact(
            _closure(backing, session, plan, before if rewinds else None), makes_room=True
        )
        if done is not None:
            blobs.finish_leaving(backing.store, done)
            return plan.events
    msg = f"others wrote to the session {_ATTEMPTS} times while an invocation was to be deleted"
    raise OutpacedError(msg)


def _closure(
    backing: Backing, session: Session, plan: _Plan, before: Mapping[str, Any] | None
) -> Any:
    """What does it, and returns the contents that are still to go; None: others wrote meanwhile."""
    change = None
    if before is not None and plan.own:
        values = fields_of(dict.fromkeys(plan.own))
        change = session.state.plan()
        change.update({name: before.get(name, Delete) for name in values})

    def work(draft: Draft) -> bool:
        if draft.head.revision != plan.revision:
            return False
        need_free(draft.txn, plan.scope, plan.session, what="the invocation")
        if change is not None:
            session.state.write(change, draft)
        return True

    renew = session.changes.change(work, create=False, missing=bool, atomic=True)

    def closure(txn: Txn) -> list[bytes] | None:
        if not renew(txn):
            return None
        leaving: list[bytes] = []
        for owner, rows in plan.rows.items():
            leaving += _rewrite(txn, backing, (plan.scope, owner), rows).leaving
        record_event(txn, plan.scope, "delete", {"session": plan.session, "events": plan.events})
        return leaving

    return closure


def _rewrite(
    txn: Txn, backing: Backing, place: tuple[int, int], rows: list[Rewriting]
) -> Rewritten:
    seqs = [keys.number_of(each.key) for each in rows]
    return rewrite_planned(
        txn,
        backing,
        *place,
        rows,
        views=lambda stored: shown_instead(
            stored, place[1], seqs, lambda message: expired_message(message, _EMPTY)
        ),
    )


def _planned(log: SessionLog, txn: ReadTxn, seed: bytes, invocation: str) -> _Plan:
    plan = _Plan(log.scope, log.place[1], head_of(log).revision)
    calls: dict[str, bool] = {}
    rest: StoredRow | None = None
    for found in log.rows(txn, 0, log.history.count):
        row = sound(found)
        stored = Stored.of(txn, log.scope, row)
        if stored.rest() is not None:
            rest = row
            continue
        if not stored.is_event:
            rest = None
            continue
        told = None if rest is None else Stored.of(txn, log.scope, rest).rest()
        said, pairs = stored.said(told), stored.pairs()
        is_doomed = said.get("invocationId") == invocation or (
            pairs.answers_only and all(calls.get(id_, False) for id_ in pairs.answered)
        )
        calls.update(dict.fromkeys(pairs.called, is_doomed))
        delta = (said.get("actions") or {}).get("stateDelta") or {}
        changed = {key for key in delta if not key.startswith(_SHARED)}
        plan.own = plan.own | changed if is_doomed else plan.own - changed
        if is_doomed:
            plan.events += 1
            plan.first = plan.first or (row if rest is None else rest)[1]
            for each in (rest, row):
                if each is not None:
                    _plan_row(plan, log, txn, seed, each)
        rest = None
    return plan


def _plan_row(plan: _Plan, log: SessionLog, txn: ReadTxn, seed: bytes, row: StoredRow) -> None:
    owner, seq = log.history.locate(row[0])
    item, _ = opened(txn, log.scope, row)
    value = txn.get(keys.session_row(log.scope, owner, Row.ITEM, seq))
    if value is None:
        msg = f"item {seq} is missing; run 'memcore check'"
        raise CorruptValueError(msg, key=b"")
    if item.kind == ItemKind.EVENT:
        left = expired_event(item.message)
    else:
        left = expired_message(item.message, _EMPTY)
    place = (log.scope, owner, seq)
    planned = plan_rewriting(place, value, (item.message, left), seed=seed, envelope=_without_meta)
    plan.rows[owner].append(planned)


def _without_meta(envelope: dict[str, Any]) -> dict[str, Any]:
    """What stays beside an empty place: that it was redacted, if it was."""
    found: dict[str, Any] = {"meta": None, "request_id": None}
    told = envelope.get("envelope") or {}
    if "redacted" in told:
        found["envelope"] = {"redacted": told["redacted"]}
    return found
