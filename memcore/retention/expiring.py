"""Items of one session that expire: planned, archived, and rewritten piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from memcore import blobs, keys
from memcore.errors import CorruptValueError
from memcore.formats.expired import expired_message
from memcore.held import is_held
from memcore.log import Head
from memcore.log.head import head_key
from memcore.log.rewriting import Rewriting
from memcore.retention.report import Run
from memcore.retention.rules import RetentionRule
from memcore.retention.settling import Settled, Settler, pieces
from memcore.session.rewriting import Rewritten, rewrite_planned, shown_instead
from memcore.store.base import ReadTxn, Txn
from memcore.terms import read_terms, session_terms, write_terms
from memcore.tombstone import need_alive
from memcore.views import StoredView

__all__ = ["expire_items", "head_of_session"]

_PLAN_ITEMS: Final = 2048
"""Items that are archived together."""
_PIECE_ITEMS: Final = 256
_PIECE_BYTES: Final = 96 * 1024
"""What one transaction writes at most, about: it fits a redo slot beside what others write."""
_MARK_STEP: Final = 1024
"""Items that did not expire after which it is written down that they were looked at."""


def head_of_session(txn: ReadTxn, scope: int, session: int) -> Head | None:
    """The head of a session, hidden ones included; None if there is none.

    Raises:
        CorruptValueError: it is damaged.
    """
    key = head_key(scope, session)
    value = txn.get(key)
    return None if value is None else Head.unpack(key, value)


def expire_items(run: Run, scope: int, session: int, rules: Sequence[RetentionRule]) -> None:
    """Let the items of a session expire that are beyond one of the rules."""
    for rule in rules:
        mark: int | None = None
        seen = 0
        while run.left:
            found = _look(run, (scope, session), rule, mark, seen)
            if found is None:
                break
            settled, begun = found
            run.report.damaged += settled.damaged
            if not _carry_out(run, (scope, session), rule, begun, settled):
                break
            mark, seen = settled.mark, settled.seen
            if not settled.more:
                break
        if not run.left:
            run.report.complete = False
            return


def _look(
    run: Run, place: tuple[int, int], rule: RetentionRule, mark: int | None, seen: int
) -> tuple[Settled, int] | None:
    """What is due behind the mark, and the mark; None if there is no session."""

    def look(txn: ReadTxn) -> tuple[Settled, int] | None:
        head = head_of_session(txn, *place)
        if head is None or head.unfinished:
            return None
        begun = mark
        if begun is None:
            begun = read_terms(txn, session_terms(*place)).marks.get(rule.id, 0)
        settler = Settler(run.backing, place, head, run.now_ms)
        limit = min(run.left, _PLAN_ITEMS)
        return settler.settle(txn, rule, begun, limit, seen=seen), begun

    try:
        return run.backing.store.read(look)
    except CorruptValueError:
        run.report.damaged += 1
        return None


def _carry_out(
    run: Run, place: tuple[int, int], rule: RetentionRule, begun: int, settled: Settled
) -> bool:
    """Whether to go on with the session."""
    planned = settled.planned
    if run.dry:
        run.report.items += len(planned)
        run.report.bytes += sum(each.size for each in planned)
        return True
    held: bool = run.backing.store.read(lambda txn: is_held(txn, *place))
    if planned and held:
        run.report.held += len(planned)
        return False
    seqs = [keys.number_of(each.key) for each in planned]
    if planned:
        run.archive(lambda exporter: exporter.items(*place, seqs))
    for piece, mark in _marked(planned, settled.mark, begun):
        done = run.backing.store.transact(
            lambda txn, piece=piece, mark=mark: _write(  # type: ignore[misc]
                txn, run, place, rule, piece=piece, mark=mark
            ),
            makes_room=True,
        )
        if done is None:
            run.report.held += len(piece)
            return False
        blobs.finish_leaving(run.backing.store, done.leaving)
        run.report.items += len(done.seqs)
        run.report.bytes += done.size
    return True


def _marked(
    planned: list[Rewriting], mark: int, begun: int
) -> Iterator[tuple[list[Rewriting], int]]:
    """The pieces, each with the mark that stands once it is done; the last one with ``mark``."""
    listed = list(pieces(planned, rows=_PIECE_ITEMS, size=_PIECE_BYTES))
    if not listed and mark - begun >= _MARK_STEP:
        listed = [[]]
    for at, piece in enumerate(listed):
        is_last = at + 1 == len(listed)
        yield piece, mark if is_last else min(mark, keys.number_of(piece[-1].key))


def _write(
    txn: Txn,
    run: Run,
    place: tuple[int, int],
    rule: RetentionRule,
    *,
    piece: list[Rewriting],
    mark: int,
) -> Rewritten | None:
    """One piece with its mark; None if it is held."""
    need_alive(txn, place[0])
    if is_held(txn, *place) or head_of_session(txn, *place) is None:
        return None
    key = session_terms(*place)
    terms = read_terms(txn, key)
    seqs = [keys.number_of(each.key) for each in piece]

    def instead(stored: StoredView) -> StoredView:
        found = shown_instead(stored, place[1], seqs, lambda message: expired_message(message, "."))
        view = found.view
        if rule.summaries == "drop" and view.summary is not None and view.cut_seq >= min(seqs):
            return replace(found, view=replace(view, summary=None))
        return found

    done = rewrite_planned(txn, run.backing, *place, piece, views=instead)
    if terms.marks.get(rule.id, 0) < mark:
        write_terms(txn, key, replace(terms, marks={**terms.marks, rule.id: mark}))
    return done
