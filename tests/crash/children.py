"""Forked processes that are waited for, but not for ever."""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any


def forked(work: Callable[[], Any]) -> int:
    """A child process that does ``work`` and ends; its id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def ending(status: int) -> str:
    """What a wait status says, in words."""
    if os.WIFSIGNALED(status):
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit code {os.WEXITSTATUS(status)}"


class Children:
    """Several children with names; all of them are aborted when their time is over."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._running: dict[int, tuple[int, str]] = {}
        self.hung: list[str] = []

    def start(self, name: str, work: Callable[[], Any]) -> None:
        """Fork one more."""
        child = forked(work)
        self._running[os.pidfd_open(child)] = (child, name)

    @property
    def names(self) -> set[str]:
        """Who is still running."""
        return {name for _, name in self._running.values()}

    def wait(self) -> tuple[str, int]:
        """The next one that ends, and its wait status."""
        while True:
            left = None if self.hung else max(0.0, self._deadline - time.monotonic())
            ready = select.select(list(self._running), [], [], left)[0]
            if ready:
                child, name = self._running.pop(ready[0])
                os.close(ready[0])
                return name, os.waitpid(child, 0)[1]
            for child, name in self._running.values():
                self.hung.append(name)
                os.kill(child, signal.SIGABRT)  # faulthandler tells where it was
