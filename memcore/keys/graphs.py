"""Rows of graphs: threads, their checkpoints, and pools of chunks."""

from __future__ import annotations

from memcore.keys.kinds import Kind
from memcore.keys.numbers import KIND_U64_2, U32

__all__ = [
    "chunk_prefix",
    "graph_rows",
    "thread_prefix",
    "thread_rows",
]


def thread_prefix(scope: int, thread: int) -> bytes:
    """The prefix of all rows of a thread of a graph."""
    return KIND_U64_2.pack(Kind.THREAD, scope, thread)


def thread_rows(scope: int, thread: int, row: int) -> bytes:
    """The prefix of one thread's rows of one sort."""
    return thread_prefix(scope, thread) + bytes((row,))


def graph_rows(scope: int, thread: int, row: int, namespace: int) -> bytes:
    """``0F | scope u64 | thread u64 | row u8 | namespace u32``: checkpoints, values, writes."""
    return thread_rows(scope, thread, row) + U32.pack(namespace)


def chunk_prefix(scope: int, pool: int) -> bytes:
    """``10 | scope u64 | pool u64``: the row of the pool itself, and before an id, a chunk's."""
    return KIND_U64_2.pack(Kind.CHUNK, scope, pool)
