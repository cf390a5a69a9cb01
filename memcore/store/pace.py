"""How fast commits go: a loop's own thread makes one only while they are quick.

A commit that flushes nothing takes less time than waking a thread twice. Whether one will wait all
the same (for the write lock of another process, for a slow page cache) cannot be asked beforehand;
so it is judged by those that were made. A single slow one may have met a busy processor; two close
to each other, or a very slow one, mean that there is something to wait for.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Pace"]

_QUICK_NS: Final = 1_000_000
_LONG_NS: Final = 20_000_000
_CLOSE: Final = 4
_PROOFS: Final = 4
_PENALTY: Final = 32


class Pace:
    """Judges commits that were made for loops. Exact under the lead, a hint without it."""

    __slots__ = ("_doubt", "_owed")

    def __init__(self) -> None:
        self._owed = _PROOFS
        self._doubt = 0

    @property
    def is_quick(self) -> bool:
        """Whether the last ones were: the first few prove it, slow ones take it back for long."""
        return self._owed <= 0

    def judge(self, elapsed_ns: int, calls: int) -> None:
        """Take note of a batch; one of several calls proves nothing."""
        each = max(calls, 1)
        if elapsed_ns > _QUICK_NS * each:
            if self._doubt > 0 or elapsed_ns > _LONG_NS * each:
                self._owed = _PENALTY
            self._doubt = _CLOSE
        else:
            self._doubt -= 1
            if calls == 1 and self._owed > 0:
                self._owed -= 1
