"""Changes of several callers in one batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def together(db, *changes: Callable[[], Any]) -> list[Any]:
    """Run changes in one batch, each on a thread of its own; results or errors in their order."""
    queue = db.engine.store.environment().queue
    outcomes: list[Any] = [None] * len(changes)

    def run(at: int) -> None:
        try:
            outcomes[at] = changes[at]()
        except Exception as error:  # noqa: BLE001 - it is the outcome
            outcomes[at] = error

    lead = queue.claim(5)
    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(changes))]
    for at, thread in enumerate(threads):
        thread.start()
        while len(queue.waiting) <= at:
            thread.join(0.001)
    queue.release(lead)
    for thread in threads:
        thread.join()
    return outcomes
