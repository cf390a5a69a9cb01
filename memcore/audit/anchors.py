"""Anchors: heads of audit chains, written outside the file, line by line.

A line is one JSON object: ``v``, ``file`` (id of the database), ``run`` and ``n`` (number of the
line in its run; a file is one run, a callback one per open), ``at`` ms, ``heads`` (scope, session,
number, MAC of each chain that has grown), ``prev`` (MAC of the previous line), ``mac``. So a line
that is changed, dropped or inserted is detected as an entry would be; lines cut off the end of an
anchor are not, so it should be kept where the database's writers can only append.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from hmac import compare_digest
from typing import Any, Final

from memcore.codec.audit_entry import Chainer
from memcore.errors import AuditError
from memcore.files import open_private, sync_directory
from memcore.store.audit_log import AnchorFullError, Place
from memcore.store.datafile import FULL

__all__ = [
    "AnchorFile",
    "AnchorLines",
    "Anchored",
    "read_anchor",
]


_LINE_HEADS: Final = 500
_TAIL_BYTES: Final = 64 * 1024
_TORN_BYTES: Final = 64 * 1024
"""Most bytes that a torn first line has: a line has at most ``_LINE_HEADS`` heads."""
_MAC_HEX: Final = 32
"""Half of a chain's MAC, in hexadecimal digits, suffices to identify it."""
_FILE_RUN: Final = "file"
_SEAM: Final = b',"mac":"'

Tips = Mapping[Place, tuple[int, bytes]]


class AnchorLines:
    """Makes the lines of one run and passes each to a callable."""

    def __init__(self, chainer: Chainer, file_id: bytes, put: Callable[[str], Any]) -> None:
        self._chainer = chainer
        self._file = file_id.hex()
        self._put = put
        self._run = secrets.token_hex(8)
        self._number, self._prev = 0, ""

    def write(self, tips: Tips, *, reset: bool = False) -> None:
        """Write the heads of chains as lines.

        Raises:
            AuditError: the callable raised.
        """
        for line, number, mac in self._lines(tips, self._number, self._prev, reset=reset):
            try:
                self._put(line)
            except Exception as exc:
                raise AuditError(f"the anchor's callable failed: {exc!r}") from exc
            self._number, self._prev = number, mac

    def _lines(
        self, tips: Tips, number: int, prev: str, *, reset: bool
    ) -> Iterable[tuple[str, int, str]]:
        heads = [[*place, n, mac.hex()[:_MAC_HEX]] for place, (n, mac) in sorted(tips.items())]
        for at in range(0, max(len(heads), 1), _LINE_HEADS):
            number += 1
            fields: dict[str, Any] = {
                "v": 1,
                "file": self._file,
                "run": self._run,
                "n": number,
                "at": time.time_ns() // 1_000_000,
                "heads": heads[at : at + _LINE_HEADS],
                "prev": prev,
            }
            if reset and not at:
                fields["reset"] = True
            text = json.dumps(fields, separators=(",", ":"))[:-1]
            prev = self._chainer.sign_line(text.encode())
            yield f'{text},"mac":"{prev}"}}', number, prev


class AnchorFile(AnchorLines):
    """Appends lines to a file, each durable before it counts; several processes may share it."""

    def __init__(self, chainer: Chainer, file_id: bytes, path: str) -> None:
        super().__init__(chainer, file_id, lambda _: None)
        self._path = path
        self._run = _FILE_RUN

    def write(self, tips: Tips, *, reset: bool = False) -> None:
        """Append the heads of chains, durably.

        Raises:
            AnchorFullError: no space is left on its device.
            AuditError: the file cannot be written, is truncated, or is not this database's anchor.
        """
        try:
            is_new = not os.path.lexists(self._path)
            fd = open_private(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                self._append(fd, tips, reset=reset)
            finally:
                os.close(fd)
            if is_new:
                sync_directory(self._path)
        except OSError as exc:
            if exc.errno in FULL:
                raise AnchorFullError(
                    f"{self._path}: cannot be written: {exc.strerror}; deletions go on, and are "
                    "anchored when there is room"
                ) from exc
            raise AuditError(f"{self._path}: cannot be written: {exc.strerror}") from exc

    def _append(self, fd: int, tips: Tips, *, reset: bool) -> None:
        size = os.fstat(fd).st_size
        number, prev = self._last(fd, size)
        if number < self._number:
            raise AuditError(
                f"{self._path} ends at line {number}, and had {self._number}: it was cut; "
                "keep it, and name another file as the anchor"
            )
        lines = list(self._lines(tips, number, prev, reset=reset))
        # A line torn by a crash stays, as a line of its own: its MAC gives it away.
        torn = b"\n" if size and os.pread(fd, 1, size - 1) != b"\n" else b""
        left = torn + "".join(f"{line}\n" for line, _, _ in lines).encode()
        try:
            while left:
                left = left[os.write(fd, left) :]
            os.fsync(fd)
        except OSError:
            with suppress(OSError):  # the file may be append-only
                os.ftruncate(fd, size)
            raise
        self._number, self._prev = lines[-1][1:]

    def _last(self, fd: int, size: int) -> tuple[int, str]:
        """Return number and MAC of the last whole line."""
        first = os.pread(fd, 1, 0)
        # A file system may have extended the file before a power failure without writing the line:
        # then it begins with NULs. A whole line after them, or nothing else, makes it an anchor.
        may_be_torn = first == b"\0"
        if size and first not in b"{\n" and not may_be_torn:
            raise self._is_no_anchor()
        tail = b""
        start = size
        while start:
            step = min(start, _TAIL_BYTES + len(tail))
            start -= step
            tail = os.pread(fd, step, start) + tail
            lines = tail.split(b"\n")
            for line in reversed(lines if not start else lines[1:]):
                fields = _fields_of(line)
                if fields is None:
                    continue
                if fields.get("file") != self._file:
                    raise AuditError(
                        f"{self._path} is the anchor of another database; name another file"
                    )
                if _is_signed(line, fields, self._chainer):
                    return int(fields["n"]), str(fields["mac"])
        if may_be_torn and size > _TORN_BYTES:
            raise self._is_no_anchor()
        return 0, ""

    def _is_no_anchor(self) -> AuditError:
        return AuditError(f"{self._path} is no anchor of an audit; name another file")


# --- reading --------------------------------------------------------------------------------------


class Anchored:
    """Heads of chains read from anchor lines: 24 bytes for each head on each line."""

    __slots__ = ("_macs", "is_empty", "lines", "problems", "resets")

    def __init__(self) -> None:
        self._macs: dict[Place, dict[int, str]] = defaultdict(dict)
        self.is_empty = True
        """False if there is a line of any kind, torn ones included."""
        self.lines = 0
        self.resets = 0
        """Number of resets, made with the key: lines before a reset are void."""
        self.problems: list[str] = []

    def of(self, place: Place) -> Mapping[int, str]:
        """Return a chain's anchored MACs by number, in hex."""
        return self._macs.get(place, {})

    def places(self) -> list[Place]:
        """List the chains that were anchored."""
        return list(self._macs)

    def take(self, fields: Mapping[str, Any]) -> None:
        """Add a line whose signature was verified."""
        self.lines += 1
        if fields.get("reset"):
            self.resets += 1
            self._macs.clear()
        for scope, session, number, mac in fields["heads"]:
            known = self._macs[scope, session]
            if known.setdefault(number, mac) != mac:
                self.problems.append(
                    f"line {self.lines}: entry {number} of session {session} of scope {scope} was "
                    "anchored before, and was another one then: the file had been rolled back"
                )


def matches(mac: bytes, anchored: str) -> bool:
    """Return True if a chain's MAC equals the anchored one."""
    return compare_digest(mac.hex()[:_MAC_HEX], anchored)


def read_anchor(lines: Iterable[bytes | str], chainer: Chainer, file_id: bytes) -> Anchored:
    """Read and verify the lines of an anchor; findings go to ``problems``.

    Args:
        lines: lines of a file, or those passed to a callable.
        chainer: the chainer of the audit key.
        file_id: id of the database.
    """
    found = Anchored()
    runs: dict[str, tuple[int, str]] = {}
    torn = 0
    for at, text in enumerate(lines, 1):
        line = (text.encode() if isinstance(text, str) else text).strip()
        fields = _fields_of(line)
        if not line:
            continue
        found.is_empty = False
        if fields is None:
            # A crash may tear a line; the next one shows if a line is missing.
            torn = torn if _may_be_torn(line, file_id) else at
            continue
        if fields.get("file") != file_id.hex():
            found.problems.append(f"line {at} is of another database")
        elif not _is_signed(line, fields, chainer):
            found.problems.append(f"line {at} was changed, or made with another key")
        else:
            number, prev = runs.get(str(fields["run"]), (0, ""))
            if (fields["n"], fields["prev"]) != (number + 1, prev):
                found.problems.append(
                    f"line {at} does not follow the one before: lines are missing"
                )
            runs[str(fields["run"])] = fields["n"], fields["mac"]
            found.take(fields)
    if torn and not runs:
        found.problems.append(f"line {torn} is no line of an anchor")
    return found


def _fields_of(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b'"}') or _SEAM not in line:
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    known = isinstance(fields, dict) and {"file", "run", "n", "heads", "prev", "mac"} <= set(fields)
    return fields if known and isinstance(fields["mac"], str) else None


def _may_be_torn(line: bytes, file_id: bytes) -> bool:
    """Return True if a power failure may leave this: the start of a line, or NULs instead."""
    begin = f'{{"v":1,"file":"{file_id.hex()}"'.encode()
    return line[:1] == b"\0" or line[: len(begin)] == begin[: len(line)]


def _is_signed(line: bytes, fields: Mapping[str, Any], chainer: Chainer) -> bool:
    text = line[: line.rindex(_SEAM)]
    # As bytes: text that is not ASCII cannot be compared in constant time.
    mac: str = fields["mac"]
    return compare_digest(chainer.sign_line(text).encode(), mac.encode("utf-8", "surrogatepass"))
