"""A checkpoint's line of an export, and what lines of all sorts are refused with."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from memcore.database.exchange import Title
from memcore.errors import InvalidItemError
from memcore.log import Draft, Segment
from memcore.log.saved import Saved, last_number, write_saved
from memcore.model import Checkpoint

__all__ = ["Arrived", "arrived_of", "refuse", "whole", "write_arrived"]


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
    if not isinstance(found, dict):
        refuse(f"checkpoint: expected an object, got {type(found).__name__}")
    name, meta, counter = found.get("name"), found.get("meta"), found.get("counter", title.counter)
    if not isinstance(name, str | None) or name == "" or not isinstance(counter, str):
        refuse(f"checkpoint: expected a name and a counter, got {name!r:.40} and {counter!r:.40}")
    if not isinstance(meta, dict | None):
        refuse(f"checkpoint.meta: expected an object, got {type(meta).__name__}")
    listed = found.get("segments")
    if not isinstance(listed, list) or not all(map(_is_run, listed)):
        refuse(f"checkpoint.segments: expected pairs of seqs, got {listed!r:.40}")
    return Arrived(
        name,
        tuple((lo, hi) for lo, hi in listed),
        whole(found, "view", below=views + 1),
        whole(found, "revision"),
        whole(found, "tokens"),
        counter,
        whole(found, "created_ms"),
        meta,
        None if found.get("state") is None else whole(found, "state", below=2**62),
    )


def _is_run(found: Any) -> bool:
    return isinstance(found, list) and len(found) == 2 and all(type(seq) is int for seq in found)  # noqa: PLR2004


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


def refuse(text: str) -> NoReturn:
    """Raise for a line that cannot be read."""
    raise InvalidItemError(text)


def whole(found: Mapping[str, Any], name: str, *, least: int = 0, below: int = 2**63) -> int:
    """The whole number of a field."""
    value = found.get(name)
    if type(value) is not int or not least <= value < below:
        wanted = f"from {least} " + ("on" if below == 2**63 else f"to {below - 1}")
        refuse(f"{name}: expected a whole number {wanted}, got {value!r:.40}")
    return value
