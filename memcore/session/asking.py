"""Asking a summarizer in a thread of its own: whoever asked need not wait for it."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from memcore.model import SummaryRequest

__all__ = ["ask", "begin", "discard"]

Tell = Callable[[object, BaseException | None], object]


def ask(
    summarize: Callable[[SummaryRequest], object],
    request: SummaryRequest,
    timeout_seconds: float | None,
) -> object:
    """What the summarizer returns; a coroutine only as a closed one, which is no summary.

    Raises:
        TimeoutError: it took longer; its thread goes on, and what it returns is not looked at.
    """
    if timeout_seconds is None:
        return discard(summarize(request))
    answers: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
    begin(summarize, request, lambda found, error: answers.put((discard(found), error)))
    try:
        found, error = answers.get(timeout=min(timeout_seconds, threading.TIMEOUT_MAX))
    except Empty:
        msg = f"no summary within {timeout_seconds:g} seconds"
        raise TimeoutError(msg) from None
    if error is not None:
        raise error
    return found


def begin(
    summarize: Callable[[SummaryRequest], object], request: SummaryRequest, tell: Tell
) -> None:
    """Call the summarizer in a thread; ``tell(answer, error)`` is called there when it ends.

    It is a daemon thread: one that hangs holds up neither the exit of the process nor, as a thread
    of the event loop's pool would, the end of ``asyncio.run`` or the calls behind it.
    """
    context = contextvars.copy_context()

    def run() -> None:
        try:
            found = context.run(summarize, request)
        except BaseException as exc:  # noqa: BLE001 - raised again by whoever asked
            tell(None, exc)
        else:
            tell(found, None)

    threading.Thread(target=run, name="memcore-summary", daemon=True).start()


def discard(found: object) -> object:
    """The answer; a coroutine that nobody will await is closed, so that nothing warns of it."""
    if inspect.iscoroutine(found):
        found.close()
    return found
