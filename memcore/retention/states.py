"""Fields of states and checkpoints whose time has come."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from memcore import keys
from memcore.errors import CorruptValueError
from memcore.held import is_held
from memcore.log.saved import drop_saved, read_saved
from memcore.retention.expiring import head_of_session
from memcore.retention.report import Run
from memcore.state import StateChange, packed_field, read_header, value_at
from memcore.store.base import ReadTxn, Txn
from memcore.terms import Terms, read_terms, write_terms
from memcore.tombstone import need_alive

__all__ = ["drop_checkpoints", "expire_fields"]

_PIECE: Final = 64


class _Due(NamedTuple):
    fields: list[str]
    checkpoints: list[int]


def expire_fields(run: Run, key: bytes, place: tuple[int, int]) -> None:
    """Remove the fields and checkpoints of a session whose time has come; session 0: of a scope.

    Of a field nothing stays, not what it was before either.
    """
    while run.left:
        due = run.backing.store.read(lambda txn: _due(run, read_terms(txn, key)))
        if not due.fields and not due.checkpoints:
            return
        if run.backing.store.read(lambda txn: is_held(txn, place[0], place[1] or None)):
            run.report.held += len(due.fields) + len(due.checkpoints)
            return
        if run.dry:
            run.report.fields += len(due.fields)
            run.report.checkpoints += len(due.checkpoints)
            return
        run.archive(lambda exporter, due=due: exporter.fields(*place, due.fields))  # type: ignore[misc]
        done = run.backing.store.transact(
            lambda txn, due=due: _remove(txn, run, key, place, due),  # type: ignore[misc]
            makes_room=True,
        )
        if done is None:
            run.report.held += len(due.fields) + len(due.checkpoints)
            return
        run.report.fields += done[0]
        run.report.checkpoints += done[1]


def _due(run: Run, terms: Terms) -> _Due:
    fields = [name for name, at in terms.fields.items() if at <= run.now_ms]
    checkpoints = [number for number, at in terms.checkpoints.items() if at <= run.now_ms]
    return _Due(fields[: min(run.left, _PIECE)], checkpoints[: min(run.left, _PIECE)])


def _remove(
    txn: Txn, run: Run, key: bytes, place: tuple[int, int], asked: _Due
) -> tuple[int, int] | None:
    """How many fields and checkpoints went; None: a hold was set meanwhile."""
    need_alive(txn, place[0])
    if is_held(txn, place[0], place[1] or None):
        return None
    terms = read_terms(txn, key)
    due = _due(run, terms)
    fields = [name for name in asked.fields if name in due.fields]
    numbers = [number for number in asked.checkpoints if number in due.checkpoints]
    if place[1]:
        run.backing.drafts.flush_opened(txn, *place)
        head = head_of_session(txn, *place)
        seq = 0 if head is None else head.next_seq
        gone = _clear(txn, place, fields, seq=seq) if head is not None else 0
    else:
        gone = _clear(txn, place, fields, seq=0)
    dropped = sum(drop_one(txn, place, number) for number in numbers)
    rest = replace(
        terms,
        fields={name: at for name, at in terms.fields.items() if name not in fields},
        checkpoints={n: at for n, at in terms.checkpoints.items() if n not in numbers},
    )
    write_terms(txn, key, rest)
    return gone, dropped


def _clear(txn: Txn, place: tuple[int, int], fields: list[str], *, seq: int) -> int:
    """Remove fields with all that they were; how many had a value."""
    there = [name for name in fields if _has_value(txn, place, name)]
    if there:
        change = StateChange(None)
        change.delete(there)
        change.run(txn, *place, seq=seq)
    for name in fields:
        versions = keys.state_field(keys.state_rows(*place), packed_field(name))
        size = len(versions) + 8
        rows = [key for key, _ in txn.scan(versions, keys.after(versions)) if len(key) == size]
        for key in rows[:-1]:  # the last one says that it was deleted
            txn.delete(key)
    return len(there)


def _has_value(txn: ReadTxn, place: tuple[int, int], name: str) -> bool:
    try:
        return value_at(txn, *place, name, read_header(txn, *place).counter) is not None
    except CorruptValueError:
        return True


def drop_one(txn: Txn, place: tuple[int, int], number: int) -> bool:
    """Remove a checkpoint; whether there was one. A damaged one goes as well."""
    try:
        if read_saved(txn, *place, number) is None:
            return False
    except CorruptValueError:
        pass
    drop_saved(txn, *place, number)
    return True


def drop_checkpoints(run: Run, place: tuple[int, int], numbers: list[int]) -> None:
    """Remove checkpoints that rules say are to go."""
    numbers = numbers[: run.left]
    if not numbers:
        return
    if run.backing.store.read(lambda txn: is_held(txn, *place)):
        run.report.held += len(numbers)
        return
    if run.dry:
        run.report.checkpoints += len(numbers)
        return
    for at in range(0, len(numbers), _PIECE):
        run.report.checkpoints += run.backing.store.transact(
            lambda txn, at=at: (  # type: ignore[misc]
                0
                if is_held(txn, *place)
                else sum(drop_one(txn, place, number) for number in numbers[at : at + _PIECE])
            ),
            makes_room=True,
        )
