"""Rules for pruning: which checkpoints of a namespace may go, and how old threads are."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from memcore.checkpoint import rows, threads
from memcore.checkpoint.coding import StoredCoder
from memcore.checkpoint.pruning import Candidate, Rule
from memcore.checkpoint.rows import CheckpointRow, Place
from memcore.errors import CorruptValueError, InvalidOptionError
from memcore.store.base import ReadTxn

__all__ = ["changed_ms", "is_encrypted", "keep_rule", "limits_rule", "run_rule"]

_UUID6: Final = re.compile(
    r"([0-9a-f]{8})-([0-9a-f]{4})-6([0-9a-f]{3})-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
)
"""Ids of LangGraph's checkpoints: the high bits of a time first, in clear in every file."""
_UUID_EPOCH: Final = 0x01B21DD213814000
"""1970 in the units of a uuid, tenths of a microsecond since 1582."""


def keep_rule(
    *, keep_last: int = 1, max_age_seconds: float | None = None, now: float | None = None
) -> Rule:
    """All go but the newest ``keep_last``, and those younger than ``max_age_seconds``.

    ``now``: seconds since 1970; None: the clock's. The age is by ``ts`` of the checkpoint's body.

    Raises:
        InvalidOptionError: an argument is out of range.
    """
    if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1:
        msg = f"keep_last: expected an int of at least 1, got {keep_last!r}"
        raise InvalidOptionError(msg)
    if max_age_seconds is not None and not max_age_seconds >= 0:
        msg = f"max_age_seconds: expected a number of at least 0, got {max_age_seconds!r}"
        raise InvalidOptionError(msg)
    since = None
    if max_age_seconds is not None:
        since = (time.time() if now is None else now) - max_age_seconds

    def rule(found: list[Candidate]) -> set[str]:
        doomed = found[:-keep_last]
        if since is not None:
            # One without a time that can be read is kept: nothing says that it is old.
            doomed = [one for one in doomed if _made_at(one.body) < since]
        return {one.checkpoint for one in doomed}

    return rule


def limits_rule(*, keep_last: int | None, since_ms: int | None, at_most: int | None = None) -> Rule:
    """All go that are beyond a limit: not of the newest ``keep_last``, or older than ``since_ms``.

    The newest checkpoint of a namespace always stays, and so does one whose age nothing tells; of
    those that may go the first ``at_most`` do.
    """

    def rule(found: list[Candidate]) -> set[str]:
        beyond = 0 if keep_last is None else len(found) - max(keep_last, 1)
        doomed = [
            one.checkpoint
            for at, one in enumerate(found[:-1])
            if at < beyond or _is_older(one, since_ms)
        ]
        return set(doomed[:at_most])

    return rule


def _is_older(one: Candidate, since_ms: int | None) -> bool:
    if since_ms is None:
        return False
    made = _time_ms(one.checkpoint, one.body)
    return made is not None and made < since_ms


def changed_ms(txn: ReadTxn, place: Place) -> int | None:
    """When the newest checkpoint of a thread, of whatever namespace, was made; None: nothing tells.

    The time is that in the checkpoint's id, if it is one of LangGraph's, or else ``ts`` of its
    body, if that is not encrypted: milliseconds since 1970 by the writer's clock. A copy is at
    least as young as the thread itself.
    """
    times = []
    for number, _ in threads.namespaces_of(txn, place):
        newest = rows.newest(txn, place, number)
        if newest is not None:
            found = _id_ms(newest)
            if found is None:
                found = _stored_ms(txn, place, number, newest)
            if found is None:
                return None
            times.append(found)
    return max([threads.read_head(txn, place.scope, place.thread)[1], *times])


def is_encrypted(txn: ReadTxn, place: Place) -> bool:
    """Whether a serialiser encrypted the newest checkpoint of a namespace of the thread.

    Raises:
        CorruptValueError: it is damaged.
    """
    for number, _ in threads.namespaces_of(txn, place):
        newest = rows.newest(txn, place, number)
        key = None if newest is None else rows.checkpoint_key(place, number, newest)
        value = None if key is None else txn.get(key)
        if key is not None and value is not None:
            return rows.SEALED in CheckpointRow.unpack(key, value).body[0]
    return False


def _stored_ms(txn: ReadTxn, place: Place, number: int, checkpoint: str) -> int | None:
    key = rows.checkpoint_key(place, number, checkpoint)
    value = txn.get(key)
    if value is None:
        return None
    try:
        return _time_ms(checkpoint, CheckpointRow.unpack(key, value).body_by(StoredCoder()))
    except CorruptValueError:
        return None  # encrypted, or damaged: check() tells


def _time_ms(checkpoint: str, body: Any) -> int | None:
    """When a checkpoint was made."""
    found = _id_ms(checkpoint)
    if found is None:
        made = _made_at(body)
        found = None if math.isinf(made) else int(made * 1000)
    return found


def _id_ms(checkpoint: str) -> int | None:
    found = _UUID6.fullmatch(checkpoint)
    if found is None:
        return None
    return (int("".join(found.groups()), 16) - _UUID_EPOCH) // 10_000


def run_rule(run_ids: Sequence[str]) -> Rule:
    """The checkpoints of these runs go."""
    wanted = set(run_ids)

    def rule(found: list[Candidate]) -> set[str]:
        return {one.checkpoint for one in found if _run_of(one.metadata) in wanted}

    return rule


def _run_of(metadata: Any) -> Any:
    run = metadata.get("run_id") if isinstance(metadata, dict) else None
    return run if isinstance(run, str) else None


def _made_at(body: Any) -> float:
    try:
        return datetime.fromisoformat(body["ts"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return float("inf")
