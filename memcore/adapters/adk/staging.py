"""Commits of rows with contents: large ones are stored ahead, in a thread and in short commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

from memcore.aio.commit import settled
from memcore.blobs import BlobRef, StagedBlobLost
from memcore.errors import MemcoreError, StoreLockedError
from memcore.kv import KeyValue, KeyValueTxn
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX

__all__ = ["Content", "commit_with", "in_thread"]

T = TypeVar("T")
Content: TypeAlias = bytes | BlobRef | None
_ATTEMPTS: Final = 8


def in_thread(fn: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """What ``fn`` returns, run in a thread."""
    return asyncio.ensure_future(asyncio.to_thread(fn, *args))


async def commit_with(
    kv: KeyValue,
    contents: Sequence[bytes | None],
    closure_of: Callable[[Sequence[Content]], Callable[[KeyValueTxn], T]],
    *,
    large: bool = False,
    is_choosy: bool = False,
    once_by: tuple[str, bytes] | None = None,
) -> T:
    """Run the closure for these contents in one commit; what it returned.

    Args:
        kv: where the closure writes.
        contents: those up to 192 KiB are written by the closure, larger ones are staged.
        closure_of: makes the closure of the contents as it is to put them, before all else.
        large: the closure computes for more than a millisecond.
        is_choosy: the closure may pass contents over.
        once_by: an idempotency key with its content: the closure is run once by it.

    Raises:
        StoreLockedError: staged contents were collected again and again.
    """
    for _ in range(_ATTEMPTS):
        held: list[Content] = []
        try:
            for content in contents:
                is_large = content is not None and len(content) > BLOB_INLINE_COMMIT_BYTES_MAX
                held.append(await _staged(kv, content) if is_large else content)
            loop = asyncio.get_running_loop()
            future = kv.submit(closure_of(held), loop, large=large, once_by=once_by)
            result = await settled(future)
        except StagedBlobLost:
            continue  # collected, or freed by its last entry, before the commit
        except BaseException:
            await _unstaged(kv, held)
            raise
        if is_choosy:
            with suppress(MemcoreError):  # it is stored all the same
                await _unstaged(kv, held)
        return result
    msg = f"a staged content was collected {_ATTEMPTS} times before it was put: try again"
    raise StoreLockedError(msg)


async def _unstaged(kv: KeyValue, held: Sequence[Content]) -> None:
    """Remove what was staged and has no entry."""
    for each in held:
        if isinstance(each, BlobRef):
            await settled(in_thread(kv.unstage, each))


async def _staged(kv: KeyValue, content: bytes | None) -> BlobRef:
    staging = in_thread(kv.stage, content or b"")
    try:
        return await settled(staging)
    except asyncio.CancelledError:
        if not staging.cancelled() and staging.exception() is None:
            await settled(in_thread(kv.unstage, staging.result()))
        raise
