"""Records in the standard library's logging."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from memcore import errors
from memcore.telemetry.record import Record, Sink, checked_names

__all__ = ["LogSink"]

_STEADY: Final = frozenset(
    {
        "append", "extend", "record", "batch", "begin", "apply", "load", "items", "context",
        "views", "masks", "covered", "find_call", "plan", "read_offloaded", "checkpoints",
        "get_checkpoint", "calibrations", "report_usage", "sessions", "scopes", "stats", "flush",
    }
)  # fmt: skip
"""What happens at every turn, beside all of ``kv``, ``state``, ``blob``, ``graph``, ``memory``."""


class LogSink(Sink):
    """Logs records to ``logging.getLogger("memcore")``, or another logger.

    What happens at every turn is logged at DEBUG, what happens now and then (compact, checkpoint,
    fork, undo, delete, backup, erase, ...) at INFO; an operation that the caller got wrong at
    WARNING, and one that failed for the file's or memcore's sake at ERROR. The fields of the record
    are attributes of the log record: ``memcore_operation``, ``memcore_user``,
    ``memcore_duration_seconds`` and so on; all are there, None or not.

    Args:
        logger: where to.
        names: ``"clear"``; ``"hashed"`` shows users, actors and sessions as pseudonyms that are the
            same for every process of the file; ``"none"`` leaves them out.

    Raises:
        InvalidOptionError: ``names`` is none of these.
    """

    def __init__(self, logger: logging.Logger | None = None, *, names: str = "clear") -> None:
        self._logger = logger or logging.getLogger("memcore")
        self._within = threading.local()
        self.names = checked_names(names)

    def tell(self, record: Record) -> None:
        """Log it, unless a handler's own use of a database is what it is about."""
        level = _level(record)
        if not self._logger.isEnabledFor(level) or getattr(self._within, "logging", False):
            return
        self._within.logging = True
        try:
            self._logger.log(
                level,
                "%s %s in %.6f s",
                record.operation,
                record.status,
                record.duration_seconds,
                extra={f"memcore_{name}": value for name, value in record._asdict().items()},
            )
        finally:
            self._within.logging = False


def _level(record: Record) -> int:
    if record.is_error:
        kind: Any = getattr(errors, record.status, None)
        fault = isinstance(kind, type) and issubclass(
            kind, errors.StorageError | errors.InternalError
        )
        return logging.ERROR if fault else logging.WARNING
    steady = record.operation in _STEADY or "." in record.operation
    return logging.DEBUG if steady else logging.INFO
