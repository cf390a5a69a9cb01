"""Log sinks: the standard library's logging, and the access log."""

from __future__ import annotations

import atexit
import fcntl
import json
import logging
import os
import threading
from contextlib import suppress
from threading import RLock
from time import monotonic
from typing import Any, Final
from weakref import WeakSet

import orjson

from memcore import errors
from memcore.errors import InvalidOptionError
from memcore.files import open_private
from memcore.options import checked_int, checked_path, shown
from memcore.telemetry.record import Record, Sink, checked_names

__all__ = [
    "AccessLog",
    "LogSink",
]


# --- Records in the standard library's logging ----------------------------------------------------

_STEADY: Final = frozenset(
    {
        "append", "extend", "record", "batch", "begin", "apply", "load", "items", "context",
        "views", "masks", "covered", "find_call", "plan", "read_offloaded", "checkpoints",
        "get_checkpoint", "calibrations", "report_usage", "sessions", "scopes", "stats", "flush",
    }
)  # fmt: skip
"""Per-turn operations, in addition to all of ``kv``, ``state``, ``blob``, ``graph``, ``memory``."""


class LogSink(Sink):
    """Logs records to ``logging.getLogger("memcore")``, or another logger.

    Per-turn operations are logged at DEBUG, occasional ones (compact, checkpoint, fork, undo,
    delete, backup, erase, ...) at INFO, caller errors at WARNING, and failures of the file or of
    memcore itself at ERROR. The fields of the record are attributes of the log record:
    ``memcore_operation``, ``memcore_user``, ``memcore_duration_seconds`` and so on; all are always
    present, even if None.

    Args:
        logger: the destination; None: ``"memcore"``.
        names: ``"clear"``; ``"hashed"``: users, actors and sessions appear as pseudonyms that are
            the same in every process using the file; ``"none"``: they are left out.

    Raises:
        InvalidOptionError: ``names`` is none of these.
    """

    def __init__(self, logger: logging.Logger | None = None, *, names: str = "clear") -> None:
        self._logger = logger or logging.getLogger("memcore")
        self._within = threading.local()
        self.names = checked_names(names)

    def tell(self, record: Record) -> None:
        """Log the record, unless it comes from a log handler's own use of a database."""
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


# --- AccessLog: who did what when, as JSON lines in a separate file -------------------------------

_MODE: Final = 0o600
_KEPT_BYTES_MAX: Final = 1 << 20
"""Maximum bytes buffered while the device accepts no writes; the oldest lines are dropped first."""
_logs: WeakSet[AccessLog] = WeakSet()


class AccessLog(Sink):
    """Writes records as JSON lines, one per operation, to a file that only its owner may read.

    A line has ``at`` (seconds since 1970), ``operation``, ``status``, ``duration_seconds`` and
    every other ``Record`` field that is not None. Lines are buffered, and written when there are
    ``buffer_bytes`` of them, when an operation finds the oldest one older than ``flush_seconds``,
    when a database is closed, and when the process exits; a kill loses the buffer. Several
    databases, threads and processes may share a file.

    Args:
        path: the file, created if missing in an existing directory. Symbolic links are resolved
            now; one placed there later is not followed.
        rotate_bytes: a file that would grow beyond this becomes ``<path>.1``, that one
            ``<path>.2``, and so on.
        keep: number of rotated files to keep: the log's own retention. 0: none.
        buffer_bytes: bytes to buffer; 0 writes every line immediately.
        flush_seconds: maximum age of buffered lines, checked at the next operation.
        names: as for ``LogSink``.

    Raises:
        InvalidOptionError: an option has the wrong type or is out of range.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rotate_bytes: int = 16 << 20,
        keep: int = 4,
        buffer_bytes: int = 1 << 16,
        flush_seconds: float = 1.0,
        names: str = "clear",
    ) -> None:
        self.path = os.path.realpath(checked_path("path", path))
        if os.path.isdir(self.path):
            msg = f"path: {self.path} is a directory; name a file in it"
            raise InvalidOptionError(msg)
        self._rotate_bytes = checked_int("rotate_bytes", rotate_bytes, least=1)
        self._keep = checked_int("keep", keep)
        self._buffer_bytes = checked_int("buffer_bytes", buffer_bytes)
        is_number = isinstance(flush_seconds, int | float) and not isinstance(flush_seconds, bool)
        if not is_number or not flush_seconds >= 0:
            msg = f"flush_seconds: expected 0 or more seconds, got {shown(flush_seconds)}"
            raise InvalidOptionError(msg)
        self._flush_seconds = flush_seconds
        self.names = checked_names(names)
        self.lines_lost = 0
        """Lines lost because the device was full or failed."""
        self._renew()
        _logs.add(self)

    def __repr__(self) -> str:
        return f"AccessLog({self.path!r})"

    def tell(self, record: Record) -> None:
        """Buffer a line, and write the buffer if it is due."""
        line = _line(record)
        with self._lock:
            if not self._lines:
                self._since = monotonic()
            self._lines.append(line)
            self._bytes += len(line)
            due = self._bytes >= self._next_bytes
            if due or monotonic() - self._since >= self._flush_seconds:
                self._write()

    def flush(self) -> None:
        """Write the buffered lines.

        Raises:
            OSError: the file cannot be written; the lines stay buffered.
        """
        with self._lock:
            self._write()

    def _renew(self) -> None:
        """Reset the buffer, initially or in a forked child: buffered lines belong to the parent."""
        self._lock = RLock()
        self._lines: list[bytes] = []
        self._bytes = 0
        self._next_bytes = self._buffer_bytes
        self._since = 0.0

    def _write(self) -> None:
        if not self._lines:
            return
        lines, self._lines, self._bytes = self._lines, [], 0
        try:
            _append(self.path, b"".join(lines), self._rotate_bytes, self._keep)
        except OSError:
            self._keep_for_later(lines)
            raise
        self._next_bytes = self._buffer_bytes

    def _keep_for_later(self, lines: list[bytes]) -> None:
        """Keep the newest lines, and retry after another ``buffer_bytes``."""
        lines += self._lines
        kept = sum(map(len, lines))
        lost = 0
        while kept > _KEPT_BYTES_MAX:
            kept -= len(lines[lost])
            lost += 1
        self.lines_lost += lost
        self._lines, self._bytes, self._since = lines[lost:], kept, monotonic()
        self._next_bytes = kept + max(self._buffer_bytes, 1)


def _line(record: Record) -> bytes:
    figures = record.figures()
    line = {"at": figures.pop("started_at"), **figures}
    try:
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate in a name
        return json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"


def _append(path: str, payload: bytes, rotate_bytes: int, keep: int) -> None:
    """Append whole lines to the file currently at the path, rotating it first if it would be full.

    Raises:
        OSError
    """
    while True:
        file = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _has_name(file, path):
                continue  # another process rotated it meanwhile
            size = os.fstat(file).st_size
            if size and size + len(payload) > rotate_bytes:
                _rotate(path, keep)
                continue
            os.fchmod(file, _MODE)
            _write_whole(file, payload, size)
            return
        finally:
            os.close(file)


def _has_name(file: int, path: str) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), os.lstat(path))
    return False


def _rotate(path: str, keep: int) -> None:
    beyond = keep + 1
    while os.path.lexists(f"{path}.{beyond}"):  # left from a larger ``keep``
        os.unlink(f"{path}.{beyond}")
        beyond += 1
    for number in range(keep - 1, 0, -1):
        with suppress(FileNotFoundError):
            os.replace(f"{path}.{number}", f"{path}.{number + 1}")
    if keep:
        os.replace(path, f"{path}.1")
    else:
        os.unlink(path)


def _write_whole(file: int, payload: bytes, size: int) -> None:
    """Write all of the payload or nothing: a truncated line would corrupt the next one.

    Raises:
        OSError
    """
    left = memoryview(payload)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError:
        os.ftruncate(file, size)
        raise


def _flush_all() -> None:
    for log in list(_logs):
        with suppress(OSError):  # the process is exiting, so there is no one to report to
            log.flush()


def _renew_all() -> None:
    for log in list(_logs):
        log._renew()  # noqa: SLF001 - same module


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_renew_all)
