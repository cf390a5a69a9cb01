"""Faults of stores: failing and slow calls, kills, power cuts; in this process or in a child.

Rules name the calls into LMDB, the redo log and the steady log that fail, joined by ``;``. A rule
is ``point=action``, then ``@N`` (the N-th hit alone) or ``~P`` (each hit with probability P), or
neither (every hit). ``seed=N`` sets the seed of the probabilities.

    txn.put=error:ENOSPC@17; redo.write=kill@3; env.sync=error:EIO; txn.commit=delay:5~0.1

*Points*: ``area.call`` is hit before the call, ``area.call.after`` after it returned; a ``*``
stands for any part of the name. *Actions*: ``error:NAME`` raises what LMDB (for the logs: the
system) would raise, ``NAME`` being that of an errno or of a class of LMDB's errors; ``delay:MS``
sleeps; ``kill`` is a SIGKILL of this process.

Nothing of this is in the way of a store that is opened without it: ``failing_stores`` replaces the
one function, ``memcore.store.open_file.file_access``, through which a store gets its file.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any, Final, NamedTuple, NoReturn

from memcore.errors import InvalidOptionError
from memcore.store import lmdb as binding
from memcore.store import open_file, steady
from memcore.store.open_file import FileAccess

__all__ = [
    "POINTS",
    "VARIABLE",
    "FailPoints",
    "PowerCut",
    "child_env",
    "failing",
    "failing_stores",
    "faults_of",
    "install",
    "parse",
    "power_cuts",
    "restarted",
]

VARIABLE: Final = "MEMCORE_TEST_FAULTS"
"""Holds the rules of a child process."""

_FALLIBLE: Final = {
    "env": ("copyfd", "reader_check", "set_mapsize", "sync"),
    "read": ("begin", "cursor", "get"),
    "txn": ("begin", "commit", "cursor", "delete", "get", "put"),
    "cursor": ("delete", "last", "next", "prev", "set_range"),
    "redo": ("holds_ours", "pending", "withdraw", "write"),
    "steady": ("newest", "write"),
}
_INFALLIBLE: Final = {"env": ("close",), "read": ("abort",), "txn": ("abort",)}
_FAILS_AFTER: Final = ("txn.commit", "env.sync", "redo.write", "redo.withdraw", "steady.write")
"""Calls whose failure may hide that they took effect."""

_CAN_FAIL: Final = {f"{area}.{call}" for area, calls in _FALLIBLE.items() for call in calls} | {
    f"{call}.after" for call in _FAILS_AFTER
}
POINTS: Final = tuple(
    f"{area}.{call}{after}"
    for table in (_FALLIBLE, _INFALLIBLE)
    for area, calls in table.items()
    for call in calls
    for after in ("", ".after")
)
"""Every name that a rule may give."""

_RAW_KINDS: Final = {kind.__name__: kind for kind in binding.RawError.__subclasses__()}
_RAW_OF_ERRNO: Final = {
    errno.EACCES: "ReadonlyError",
    errno.EINVAL: "InvalidParameterError",
    errno.EAGAIN: "LockError",
    errno.ENOMEM: "MemoryError",
    errno.ENOSPC: "DiskError",
}
_RULE: Final = re.compile(
    r"(?P<points>[\w.*]+)=(?P<action>error|delay|kill)(?::(?P<what>[\w.]+))?"
    r"(?:@(?P<hit>\d+)|~(?P<chance>[\d.]+))?"
)
_ERRNO_OF: Final = {name: number for number, name in errno.errorcode.items()}


class Rule(NamedTuple):
    """Fault at some fail points: on hit number ``hit`` (0: each), with probability ``chance``."""

    points: frozenset[str]
    action: str
    what: str
    hit: int
    chance: float


def parse(text: str) -> tuple[list[Rule], int]:
    """The rules of ``text`` and the seed; InvalidOptionError says which one is wrong."""
    rules: list[Rule] = []
    seed = 0
    for part in filter(None, (part.strip() for part in text.split(";"))):
        if part.startswith("seed=") and part[5:].isdecimal():
            seed = int(part[5:])
        else:
            rules.append(_rule(part))
    return rules, seed


def _rule(part: str) -> Rule:
    found = _RULE.fullmatch(part)
    if found is None:
        _refuse(part, "expected point=error:NAME, point=delay:MS or point=kill, then @N or ~P")
    action, what = found["action"], found["what"] or ""
    points = frozenset(point for point in POINTS if fnmatchcase(point, found["points"]))
    if not points:
        _refuse(part, f"there is no such point; there are {', '.join(POINTS)}")
    if action == "error":
        points &= _CAN_FAIL
        if not points:
            _refuse(part, "this call cannot fail; it takes delay and kill only")
        if what not in _RAW_KINDS and what not in _ERRNO_OF:
            _refuse(part, f"{what!r} names no errno and no error of LMDB")
    elif (action == "delay") != _is_number(what) or (action == "kill" and what):
        _refuse(part, "delay takes milliseconds, kill takes nothing")
    chance = found["chance"] or "1"
    if not _is_number(chance) or not 0 < float(chance) <= 1:
        _refuse(part, "a probability is above 0 and at most 1")
    if found["hit"] is not None and int(found["hit"]) < 1:
        _refuse(part, "hits are counted from 1")
    return Rule(points, action, what, int(found["hit"] or 0), float(chance))


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d*)?|\.\d+", text) is not None


def _refuse(part: str, why: str) -> NoReturn:
    raise InvalidOptionError(f"fault rule {part!r}: {why}")


class FailPoints:
    """The rules of one open environment and how often each point was hit."""

    def __init__(self, text: str) -> None:
        self._lock = Lock()
        self.arm(text)

    def arm(self, text: str) -> None:
        """Put other rules in place of the present ones; hits are counted from 1 again."""
        rules, seed = parse(text)
        with self._lock:
            self._rules = rules
            self._random = Random(seed)  # noqa: S311 - made to be repeated
            self._hits = [0] * len(rules)
            self.seen: set[str] = set()

    def hit(self, point: str) -> None:
        """Do what the rules say for ``point``."""
        for rule in self._due(point):
            if rule.action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif rule.action == "delay":
                time.sleep(float(rule.what) / 1000)
            else:
                raise _error(rule.what, point)

    def _due(self, point: str) -> list[Rule]:
        due = []
        with self._lock:
            self.seen.add(point)
            for number, rule in enumerate(self._rules):
                if point not in rule.points:
                    continue
                self._hits[number] += 1
                if rule.hit in (0, self._hits[number]) and (
                    rule.chance == 1 or self._random.random() < rule.chance
                ):
                    due.append(rule)
        return due


def _error(name: str, point: str) -> Exception:
    """The error as the layer under memcore raises it."""
    if name in _RAW_KINDS:
        return _RAW_KINDS[name](f"{point}: {name} (injected)")
    number = _ERRNO_OF[name]
    if point.startswith(("redo.", "steady.")):
        return OSError(number, f"{os.strerror(number)} (injected at {point})")
    kind = _RAW_KINDS.get(_RAW_OF_ERRNO.get(number, ""), binding.RawError)
    return kind(f"{point}: {os.strerror(number)} (injected)")


class _WatchedCalls:
    """Stands before an object: each of its calls that is a point is hit before and after."""

    __slots__ = ("_area", "_target", "faults")

    def __init__(self, target: Any, area: str, faults: FailPoints) -> None:
        self._target = target
        self._area = area
        self.faults = faults

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._target, name)
        if f"{self._area}.{name}" in POINTS:
            return self._watched(f"{self._area}.{name}", call)
        return call

    def _watched(self, point: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            self.faults.hit(point)
            result = call(*args, **options)
            self.faults.hit(f"{point}.after")
            return result

        return run


class _WatchedCursor(_WatchedCalls):
    __slots__ = ()

    def iternext(self) -> Iterator[Any]:
        return self._steps(self._target.iternext())

    def iterprev(self) -> Iterator[Any]:
        return self._steps(self._target.iterprev())

    def _steps(self, rows: Iterator[Any]) -> Iterator[Any]:
        step = self._watched("cursor.next", lambda: next(rows, None))
        while (row := step()) is not None:
            yield row


class _WatchedTxn(_WatchedCalls):
    __slots__ = ()

    def cursor(self) -> _WatchedCursor:
        made = self._watched(f"{self._area}.cursor", self._target.cursor)()
        return _WatchedCursor(made, "cursor", self.faults)

    def commit(self) -> None:
        try:
            self.faults.hit("txn.commit")
        except binding.RawError:
            self._target.abort()  # as LMDB does when a commit fails
            raise
        self._target.commit()
        self.faults.hit("txn.commit.after")


class _WatchedEnv(_WatchedCalls):
    __slots__ = ()

    def begin(self, *args: Any, **options: Any) -> _WatchedTxn:
        area = "txn" if options.get("write") else "read"
        begun = self._watched(f"{area}.begin", self._target.begin)(*args, **options)
        return _WatchedTxn(begun, area, self.faults)


_file_access = open_file.file_access


def failing(rules: str = "") -> Callable[..., Any]:
    """Replacement of ``file_access``: each store behind fail points of its own with these rules.

    ``faults_of`` finds them again. Without any rule nothing lies between.

    Raises:
        InvalidOptionError: a rule is malformed; it is named.
    """
    parse(rules)
    if not rules:
        return _file_access

    def watched(raw: Any, fd: int, run: Any, **mode: Any) -> FileAccess:
        return _watched_access(FailPoints(rules), raw, fd, run, **mode)

    return watched


def _watched_access(points: Any, raw: Any, fd: int, run: Any, **mode: Any) -> FileAccess:
    env: Any = _WatchedEnv(raw, "env", points)
    redo, steady = _file_access(raw, fd, run, **mode)[1:]
    watched_redo: Any = None if redo is None else _WatchedCalls(redo, "redo", points)
    watched_steady: Any = None if steady is None else _WatchedCalls(steady, "steady", points)
    return FileAccess(env, watched_redo, watched_steady)


def faults_of(store: Any) -> FailPoints:
    """The fail points of an open store."""
    found: FailPoints = store.environment().raw.faults
    return found


def child_env(rules: str, **variables: str) -> dict[str, str]:
    """The environment of a child process all of whose stores are behind these fail points.

    Python imports ``faulty/sitecustomize.py`` before the program. The child finds the modules of
    this process.

    Raises:
        InvalidOptionError: a rule is malformed; it is named.
    """
    parse(rules)
    env = os.environ | variables | {VARIABLE: rules}
    ours = [str(Path(__file__).parent / "faulty"), str(Path(__file__).parents[2])]
    here = [path for path in sys.path if path and not path.startswith(_INSTALLED)]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [*ours, env.get("PYTHONPATH", ""), *here]))
    return env


_INSTALLED: Final = (sys.prefix, sys.base_prefix)
"""Places that every child of the same interpreter looks in by itself."""


def install() -> None:
    """Put the stores of this process behind the fail points that its environment names."""
    open_file.file_access = failing(os.environ.get(VARIABLE, ""))


@contextmanager
def failing_stores(rules: str) -> Iterator[None]:
    """Have the stores that are opened inside the block fail by these rules.

    Raises:
        InvalidOptionError: a rule is malformed; it is named.
    """
    with _access(failing(rules)):
        yield


@contextmanager
def _access(replacement: Callable[..., Any]) -> Iterator[None]:
    before = open_file.file_access
    open_file.file_access = replacement
    try:
        yield
    finally:
        open_file.file_access = before


# --- power cuts -----------------------------------------------------------------------------------

PAGE_BYTES: Final = 4096
_FLUSHES: Final = ("env.sync.after", "redo.withdraw.after", "steady.write.after")
_HEAD_BYTES: Final = 2 * PAGE_BYTES
"""LMDB's meta pages, which a commit writes behind its flush."""


class PowerCut:
    """The file as the last flush left it, and the images that a disk may hold after a power cut."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = Lock()
        self._flushed = self._now()
        self._head = b""
        self.is_synced = False
        """Commits flush, as in mode ``full``."""
        self.flushes = 0

    def _now(self) -> bytes:
        return self.path.read_bytes() if self.path.exists() else b""

    def hit(self, point: str) -> None:
        """Take note of a flush: all that is written by now is durable."""
        with self._lock:
            if point == "txn.commit":
                self._head = self._now()[:_HEAD_BYTES]
            elif point == "txn.commit.after" and self.is_synced:
                self._flushed = self._head + self._now()[_HEAD_BYTES:]
                self.flushes += 1
            elif point in _FLUSHES:
                self._flushed = self._now()
                self.flushes += 1

    def images(self, count: int, *, seed: int = 0) -> Iterator[bytes]:
        """Yield images of a cut at this moment: any part of the pages written since is on disk.

        The first has none of them and the second all; the others are random.
        """
        with self._lock:
            flushed, now = self._flushed, self._now()
        random = Random(seed)  # noqa: S311 - made to be repeated
        pages = range(0, len(now), PAGE_BYTES)
        written = [at for at in pages if now[at : at + PAGE_BYTES] != flushed[at : at + PAGE_BYTES]]
        for number in range(count):
            share = float(number) if number < 2 else random.random()  # noqa: PLR2004 - none, all
            image = bytearray(flushed.ljust(len(now), b"\0"))
            for at in written:
                if random.random() < share:
                    image[at : at + PAGE_BYTES] = now[at : at + PAGE_BYTES]
            yield bytes(image)


@contextmanager
def power_cuts(path: str | os.PathLike[str]) -> Iterator[PowerCut]:
    """Follow the flushes of a store that is opened inside the block; for small files.

    It knows the pages of the data file, each whole or not there, at the moments between two calls.
    Open an image in ``restarted()``. ``tests/crash`` of memcore's repository goes further: every
    write, torn pages, and the moments inside of calls.
    """
    cut = PowerCut(path)

    def watched(raw: Any, fd: int, run: Any, **mode: Any) -> FileAccess:
        cut.hit(_FLUSHES[0])  # what opening finds is on disk
        cut.is_synced = mode["durability"] == "full"
        return _watched_access(cut, raw, fd, run, **mode)

    with _access(watched):
        yield cut


@contextmanager
def restarted() -> Iterator[None]:
    """Have the stores that are opened inside the block believe that the machine was restarted."""
    before = steady.boot_id
    another = bytes(byte ^ 0xFF for byte in before())
    steady.boot_id = lambda: another
    try:
        yield
    finally:
        steady.boot_id = before
