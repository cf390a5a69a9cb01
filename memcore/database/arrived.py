"""A checkpoint's line of an export."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Final

from memcore import names
from memcore.codec import encode_json
from memcore.database.exchange import Title, checked_fields, checked_numbers, refuse
from memcore.limits import META_BYTES_MAX
from memcore.log import Draft, Segment
from memcore.log.saved import Saved, last_number, write_saved
from memcore.model import Checkpoint

__all__ = ["Arrived", "arrived_of", "write_arrived"]

_RUN: Final = 2


@dataclass(frozen=True, slots=True)
class Arrived:
    """A checkpoint that was read from its line."""

    name: str | None
    segments: tuple[tuple[int, int], ...]
    """First and last seqs."""
    view: int
    """Which of the session's views was current, 0 for none."""
    revision: int
    tokens: int
    counter: str
    created_ms: int
    meta: dict[str, Any] | None
    state: int | None
    """The counter of the state then."""


def arrived_of(found: Any, title: Title, views: int) -> Arrived:
    """The checkpoint of a line; ``views`` is how many the session has.

    Raises:
        InvalidItemError: it is none.
    """
    said = checked_fields("checkpoint", found)
    name, meta = said["name"], said["meta"]
    if name is not None:
        names.check_name(name, "checkpoint")
    _check_meta(meta)
    if said["view"] > views:
        refuse(f"checkpoint.view: expected at most {views}, got {said['view']}")
    return Arrived(
        name,
        tuple(_run(run) for run in said["segments"]),
        said["view"],
        said["revision"],
        said["tokens"],
        title.counter if said["counter"] is None else said["counter"],
        said["created_ms"],
        meta,
        said["state"],
    )


def _check_meta(meta: dict[str, Any] | None) -> None:
    """Refuse what ``Session.checkpoint`` refuses; writing it later would fail with all the rest."""
    try:
        size = len(encode_json(meta)[0])
    except (ValueError, RecursionError) as error:
        refuse(f"checkpoint.meta cannot be stored as JSON: {error}")
    if size > META_BYTES_MAX:
        refuse(f"checkpoint.meta: expected at most {META_BYTES_MAX} bytes, got {size}")


def _run(found: Any) -> tuple[int, int]:
    """First and last seq of a segment."""
    numbers = checked_numbers("checkpoint.segments", found)
    if len(numbers) != _RUN:
        refuse(f"checkpoint.segments: expected pairs of seqs, got {found!r:.40}")
    return numbers[0], numbers[1]


def write_arrived(draft: Draft, arrived: Arrived, *, states: Container[int | None]) -> None:
    """Save a checkpoint of a draft all of whose items and views are written.

    ``states``: the counters of the state whose values came with it.
    """
    head, scope, session = draft.head, draft.log.scope, draft.log.session
    seq = arrived.segments[-1][1] if arrived.segments else 0
    number = last_number(draft.txn, scope, session) + 1
    checkpoint = Checkpoint(
        number=number,
        name=arrived.name,
        seq=seq,
        revision=arrived.revision,
        items=sum(hi - lo + 1 for lo, hi in arrived.segments),
        tokens=arrived.tokens,
        counter=arrived.counter,
        view=arrived.view,
        state=arrived.state if arrived.state in states else None,
        created_at=arrived.created_ms / 1000,
        meta=arrived.meta,
    )
    saved = Saved(
        checkpoint,
        tuple(Segment(session, lo, hi) for lo, hi in arrived.segments),
        (0, 0, 0),
        draft.own_chain(seq),
        (session if arrived.view else 0, arrived.view),
        head.policy,
        (0, 0),
        head.epoch,
    )
    write_saved(draft.txn, scope, session, saved)
