"""A call that waits for its commit, and the batch of calls that one transaction serves.

States of a call: NEW -> QUEUED -> TAKEN -> DONE, or -> LEAD (its thread must run a batch) -> DONE.
An interrupted batch sends its undecided calls back to QUEUED.
"""

from __future__ import annotations

import asyncio
from _thread import LockType
from collections.abc import Callable
from typing import Any

from memcore.errors import MemcoreError

__all__ = ["DONE", "LEAD", "NEW", "QUEUED", "TAKEN", "Batch", "Call", "WriterNeeded"]

NEW, QUEUED, TAKEN, LEAD, DONE = range(5)


class WriterNeeded(Exception):  # noqa: N818 - no failure: the batch runs elsewhere
    """A batch would have to wait on a thread that must not: the writer thread runs it."""


class Call:
    """One closure and what became of it."""

    __slots__ = (
        "done", "error", "fn", "future", "job", "makes_room", "result", "state", "struck", "waiter",
    )  # fmt: skip

    def __init__(self, fn: Callable[[Any], Any], *, makes_room: bool = False) -> None:
        self.fn = fn
        self.makes_room = makes_room
        self.result: Any = None
        self.error: BaseException | None = None
        self.state = NEW
        self.done = False
        self.struck = False
        self.job = False
        self.waiter: LockType | None = None
        self.future: asyncio.Future[Any] | None = None


class Batch:
    """The calls of one transaction. ``back`` holds those that were taken back for the next one.

    ``decided`` says that every call has its result or error; a call alone may be ``done`` earlier.
    ``hurried``: it runs on a loop's own thread, which waits for nothing and works for nobody else.
    """

    __slots__ = ("back", "calls", "decided", "hurried", "own", "refusal", "settled")

    def __init__(self, own: Call | None, *, hurried: bool = False) -> None:
        self.own = own
        self.hurried = hurried
        self.calls: list[Call] = [] if own is None else [own]
        self.back: list[Call] = []
        self.decided = False
        self.refusal: MemcoreError | None = None
        """What calls that make no room get: they must not be carried out now."""
        self.settled = False

    def take_back(self, index: int) -> None:
        """Leave the calls from ``index`` on to the next batch."""
        self.calls, self.back = self.calls[:index], self.calls[index:] + self.back
