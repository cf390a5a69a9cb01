"""Compaction from an event loop: awaits the summarizer, then records the view."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from memcore.aio.commit import commit
from memcore.compaction import Pressure
from memcore.errors import ClosedError, NotFoundError, PlanStaleError, StorageError
from memcore.model import CompactionResult, Plan, SummaryRequest
from memcore.session import Session
from memcore.session.compact import (
    AnySummarizer,
    Attempts,
    CompactionDraft,
    call_in_thread,
    check,
    checked_summarizer,
    discard,
    failed,
    make_request,
    record_change,
    settled,
    with_summary,
)
from memcore.session.session import ref_of

__all__ = [
    "recorded",
    "run_due",
    "summarized",
]


async def summarized(
    session: Session,
    draft: CompactionDraft,
    summarize: AnySummarizer | None,
    timeout_seconds: float | None,
) -> CompactionDraft:
    """The draft with its summary, or what serves if there is none to be had.

    Raises:
        CancelledError: whoever waits here was cancelled; not if only the summarizer was.
        StorageError, ClosedError: the database is in trouble, not the summarizer.
    """
    ref = ref_of(session)
    if summarize is None or not draft.wants_summary:
        return await asyncio.to_thread(settled, ref, draft)
    found = await _answer(summarize, make_request(ref, draft), timeout_seconds)
    if isinstance(found, Exception):
        return await asyncio.to_thread(failed, ref, draft, found)
    return await asyncio.to_thread(with_summary, ref, draft, found)


async def recorded(session: Session, draft: CompactionDraft) -> CompactionResult:
    """Record what there is to record.

    Raises:
        PlanStaleError, NotFoundError: the session changed under the plan, or is gone.
    """
    if draft.is_empty:
        return draft.nothing()
    return draft.recorded(await commit(session, record_change(ref_of(session), draft)))


async def run_due(
    session: Session,
    attempts: Attempts,
    summarize: AnySummarizer | None,
    *,
    timeout_seconds: float | None = None,
    before: Callable[[Plan, Pressure], Awaitable[object]] | None = None,
    after: Callable[[CompactionResult], Awaitable[object]] | None = None,
) -> CompactionResult | None:
    """Compact what is due; the result of the attempts.

    Raises:
        PlanStaleError, NotFoundError: others changed the session again and again.
        CancelledError, StorageError, ClosedError, and what the hooks raise
    """
    await asyncio.to_thread(check, ref_of(session), summarize, awaits=True)
    while (found := await asyncio.to_thread(attempts.next)) is not None:
        draft, pressure = found
        asked = not draft.is_empty
        if asked and before is not None and await before(draft.plan, pressure) is False:
            break
        draft = await summarized(session, draft, summarize, timeout_seconds)
        try:
            result = await recorded(session, draft)
        except (PlanStaleError, NotFoundError) as exc:
            attempts.lost(exc)
            continue
        await asyncio.to_thread(attempts.ended, draft, result)
        if asked and after is not None:
            await after(result)
    return attempts.result


async def _answer(
    summarize: AnySummarizer, request: SummaryRequest, timeout_seconds: float | None
) -> object:
    """Await the summarizer; return its result, or the exception that it failed with."""
    waiting = asyncio.current_task()
    assert waiting is not None  # noqa: S101 - a coroutine of asyncio runs in a task
    cancelled_before = waiting.cancelling()
    limit = None if timeout_seconds is None else min(timeout_seconds, threading.TIMEOUT_MAX)
    try:
        # Not wait_for: up to Python 3.11 it loses a cancellation that comes with the answer.
        async with asyncio.timeout(limit) as timing:
            return await _summary(summarize, request)
    except asyncio.CancelledError as exc:
        if waiting.cancelling() > cancelled_before:
            raise
        failure = RuntimeError("the summarizer was cancelled")
        failure.__cause__ = exc
        return failure
    except (StorageError, ClosedError):
        raise
    except TimeoutError as exc:
        if not timing.expired():
            return exc  # the summarizer's own
        return TimeoutError(f"no summary within {timeout_seconds:g} seconds")
    except Exception as exc:  # noqa: BLE001 - the caller's model may fail in any way
        return exc


async def _summary(summarize: AnySummarizer, request: SummaryRequest) -> object:
    if checked_summarizer(summarize, awaits=True):
        call: Any = summarize
        return await call(request)
    found = await _in_thread(summarize, request)
    return await found if inspect.isawaitable(found) else found


async def _in_thread(summarize: AnySummarizer, request: SummaryRequest) -> object:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()

    def settle(found: object, error: BaseException | None) -> None:
        if answer.done():  # nobody waits any more
            discard(found)
        else:
            answer.set_result((found, error))  # as a value: a future takes no StopIteration

    def tell(found: object, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(settle, found, error)
        except RuntimeError:  # the loop was closed meanwhile
            discard(found)

    call_in_thread(summarize, request, tell)
    found, error = await answer
    if error is not None:
        raise error
    return found
