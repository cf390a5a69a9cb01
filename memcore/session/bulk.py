"""Many items at once: rows in one go, proven and decoded by the compiled core, and remembered.

It serves what is regular. Where a row is damaged, missing, large, or was written by the standard
library's JSON, ``Ending.read`` looks at each.

What a session's seq stands for never changes but by a rewriting, which makes another epoch and leaves
a flag in the head: then all is forgotten. Else what was decoded once is never out of date; which
seqs are live is asked of the head every time. Whoever reads gets copies.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import orjson
from xxhash import xxh3_64_digest

from memcore import keys
from memcore._fast import fresh_json, open_messages
from memcore.keys import Row
from memcore.limits import VALUE_FORMAT
from memcore.log import SessionLog
from memcore.log.head import FLAG_REWRITTEN
from memcore.model import Message
from memcore.session.reading import Reading, head_of
from memcore.store.base import ReadTxn

__all__ = ["Recall"]

_HEAD: Final = bytes((VALUE_FORMAT, 0))
_ABSENT: Final = object()
_RUN_ITEMS: Final = 512
_ALL_BYTES: Final = 64 * 1024**2
"""What all sessions of the process remember together, about, as encoded JSON."""

Items: TypeAlias = list[Any]
"""Decoded items in their order; ``_ABSENT`` for what is none (an event)."""
Decode: TypeAlias = Callable[[list[Message]], Items]


class Run(NamedTuple):
    """Rows of consecutive seqs that one session owns, sealed as they are stored."""

    owner: int
    prefix: bytes
    first: int
    rows: list[tuple[bytes, bytes]]
    size: int
    """How many rows there should be."""

    def messages(self) -> list[Message | None] | None:
        """The messages, None in the place of events; None if some row needs a look of its own."""
        if len(self.rows) != self.size:
            return None
        rows = self.rows
        return open_messages(rows, self.prefix, self.first, _HEAD, xxh3_64_digest, orjson.loads)


class Recall:
    """Reads one session's items, and remembers the last of them.

    Threads may share it: what two do at once is at worst done twice. There is no lock, for none
    could be held by nobody in the child of a fork.

    Args:
        reading: of the session.
        decode: what becomes of messages; it raises what it likes.
        most_bytes: how much encoded JSON to remember decoded, about; 0: none.
    """

    def __init__(self, reading: Reading, decode: Decode, *, most_bytes: int) -> None:
        self._reading = reading
        self._decode = decode
        self._most_bytes = most_bytes
        self._known: dict[int, dict[int, Any]] = {}
        self._weight = self._newest = self._epoch = 0
        self.used = 0
        """When it was last read."""
        _all.add(self)

    @property
    def weight(self) -> int:
        """How much is remembered, in bytes of encoded JSON."""
        return self._weight

    async def last(self, count: int | None) -> tuple[Items, bool] | None:
        """The items at the last ``count`` positions, all for None, and whether nothing is before.

        Events stand among the positions, and are left out. None if ``Ending.read`` must be asked.
        """
        self.used = time.monotonic_ns()

        def collect(log: SessionLog, txn: ReadTxn) -> tuple[list[Items | Run], bool]:
            return self._collect(log, txn, count)

        nothing: tuple[list[Items | Run], bool] = ([], True)
        parts, complete = self._reading.run(collect, nothing)
        found: Items = []
        new: list[tuple[Run, Items]] = []
        for part in parts:
            if found:
                await asyncio.sleep(0)
            if isinstance(part, Run):
                messages = part.messages()
                if messages is None:
                    return None
                items = self._decoded(messages)
                new.append((part, items))
                found += fresh_json(items, _ABSENT)
            else:
                found += fresh_json(part, _ABSENT)
        self._remember(new)
        return found, complete

    def _decoded(self, messages: list[Message | None]) -> Items:
        if None not in messages:
            return self._decode(messages)  # type: ignore[arg-type]
        items = iter(self._decode([each for each in messages if each is not None]))
        return [_ABSENT if each is None else next(items) for each in messages]

    # --- what is remembered -----------------------------------------------------------------------

    def _collect(
        self, log: SessionLog, txn: ReadTxn, count: int | None
    ) -> tuple[list[Items | Run], bool]:
        head, history = head_of(log), log.history
        if head.flags & FLAG_REWRITTEN and head.epoch != self._epoch:
            self.forget()
            self._epoch = head.epoch
        stop = history.count
        start = 0 if count is None else max(stop - count, 0)
        parts: list[Items | Run] = []
        for _, owner, lo, hi in history.spans(start, stop):
            known = self._known.get(owner, {})
            prefix = keys.session_rows(log.scope, owner, Row.ITEM)
            for first in range(lo, hi + 1, _RUN_ITEMS):
                last = min(first + _RUN_ITEMS - 1, hi)
                held = _held(known, first, last) if known else []
                if held:
                    parts.append(held)
                    first += len(held)  # noqa: PLW2901 - what is not remembered is read
                if first <= last:
                    size = last + 1 - first
                    rows = txn.take(keys.numbered(prefix, first), size)
                    parts.append(Run(owner, prefix, first, rows, size))
        return parts, start == 0

    def _remember(self, new: list[tuple[Run, Items]]) -> None:
        """Keep what was decoded, the latest first, as far as there is room."""
        room = self._most_bytes
        if not new or not room:
            return
        for run, items in reversed(new):
            weight = sum(len(value) for _, value in run.rows)
            if self._weight + weight > room and run.first > self._newest:
                self.forget()
            if self._weight + weight > room:
                return
            known = self._known.setdefault(run.owner, {})
            known.update(zip(range(run.first, run.first + run.size), items, strict=True))
            self._newest = max(self._newest, run.first + run.size - 1)
            self._weigh(weight)

    def _weigh(self, weight: int) -> None:
        self._weight += weight
        _all.weight += weight
        if _all.weight > _ALL_BYTES:
            _all.lighten(self)

    def forget(self) -> None:
        """Remember nothing."""
        _all.weight -= self._weight
        self._known, self._weight, self._newest = {}, 0, 0


class _All:
    """All that is remembered in this process."""

    def __init__(self) -> None:
        self.weight = 0
        self.members: dict[int, weakref.ref[Recall]] = {}

    def add(self, recall: Recall) -> None:
        """One more; whoever drops it makes room."""
        at = id(recall)
        self.members[at] = weakref.ref(recall, lambda _: self.members.pop(at, None))

    def lighten(self, last: Recall) -> None:
        """Half of it is forgotten, of those first that were not read for the longest time."""
        members = [found for ref in list(self.members.values()) if (found := ref())]
        members.sort(key=lambda member: (member is last, member.used))
        self.weight = sum(member.weight for member in members)
        for member in members:
            if self.weight <= _ALL_BYTES // 2:
                return
            member.forget()


_all = _All()


def _held(known: dict[int, Any], first: int, last: int) -> Items:
    """The items from ``first`` on that are remembered without a gap."""
    if first not in known:
        return []
    try:
        return [known[seq] for seq in range(first, last + 1)]
    except KeyError as exc:
        return [known[seq] for seq in range(first, exc.args[0])]
