"""Asynchronous facade: the same surface with ``await``.

Commits go through one writer thread of the store: appends that are awaited together share one
commit and one wake-up of the loop. Reads of a session take microseconds and run where they are
called; whatever walks the file or may wait runs in a thread.

A cancelled ``await`` of a change still waits for the outcome of the commit before it raises
CancelledError: the change is then stored or refused, never in doubt. An ``idempotency_key`` makes
a retry safe.
"""

from memcore.aio.compactor import CompactionFailure, Compactor
from memcore.aio.database import AsyncDatabase, AsyncScope
from memcore.aio.database import open_async as open  # noqa: A004 - memcore.aio.open is the name
from memcore.aio.memory import (
    AsyncGrants,
    AsyncMemories,
    AsyncMemoryWorker,
    AsyncProfile,
    AsyncRollingSummary,
)
from memcore.aio.session import AsyncLease, AsyncSession
from memcore.aio.state import AsyncSessionState, AsyncSharedState
from memcore.aio.values import AsyncBlobStore, AsyncKeyValue, AsyncQuarantine

__all__ = [
    "AsyncBlobStore",
    "AsyncDatabase",
    "AsyncGrants",
    "AsyncKeyValue",
    "AsyncLease",
    "AsyncMemories",
    "AsyncMemoryWorker",
    "AsyncProfile",
    "AsyncQuarantine",
    "AsyncRollingSummary",
    "AsyncScope",
    "AsyncSession",
    "AsyncSessionState",
    "AsyncSharedState",
    "CompactionFailure",
    "Compactor",
    "open",
]
