"""Retention rules as data: from mappings, TOML and JSON; archives and reports.

```toml
[[rules]]
what = "items"
max_age_seconds = 2592000
tools = ["search"]
[[rules]]
what = "sessions"
keep_last = 100
```
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, asdict, fields
from functools import lru_cache, partial
from hashlib import blake2b
from io import FileIO
from os import PathLike
from typing import Any, Final, Protocol, TypeAlias

from memcore.errors import CorruptValueError, InvalidOptionError, MemcoreError, NotFoundError
from memcore.files import open_private
from memcore.model import ItemKind
from memcore.options import (
    checked_choice,
    checked_optional_int,
    checked_path,
    need_known,
    read_mapping,
)
from memcore.records import record
from memcore.rows.lifecycle import is_erased
from memcore.session import Engine

__all__ = [
    "RETENTION_PRESETS",
    "ArchiveTarget",
    "AuditSweep",
    "Exporter",
    "RetentionRule",
    "SweepReport",
    "SweepRun",
    "archive_to",
    "read_rules",
    "retention_rules",
]


# --- Retention rules as data, from mappings, TOML and JSON ----------------------------------------

_THREADS: Final = ("threads", "thread_checkpoints")
_WHATS: Final = ("sessions", "items", "checkpoints", *_THREADS, "audit")
_LIMITS: Final = ("max_age_seconds", "keep_last", "max_bytes")
_CLASSES: Final = ("kinds", "types", "tools")
_KINDS: Final = tuple(kind.name.lower() for kind in ItemKind)
_AGE_SECONDS_MAX: Final = 2**40
_DAY: Final = 24 * 3600.0


@record(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """Limits beyond which data is deleted.

    Raises:
        InvalidOptionError: a field is out of range, or does not apply to ``what``.
    """

    what: str
    """``items`` of a session, ``sessions`` of a scope, ``checkpoints`` of a session, ``threads`` of
    a graph runtime, ``thread_checkpoints`` of a thread, or entries of the ``audit``."""
    max_age_seconds: float | None = None
    """Older ones are deleted; sessions and threads age by last change, others by creation."""
    keep_last: int | None = None
    """All but this many of the most recent are deleted, among the classes below; sessions and
    threads are ordered by last change, a thread's checkpoints are counted per namespace."""
    max_bytes: int | None = None
    """Items: those before the most recent ones that take up this many bytes are deleted."""
    kinds: tuple[str, ...] = ()
    """Items: only those of these kinds, such as ``result``; empty: any."""
    types: tuple[str, ...] = ()
    """Items: only those whose envelope or event has one of these types; empty: any."""
    tools: tuple[str, ...] = ()
    """Items: only calls and results of these tools; empty: any."""
    action: str = "expire"
    """Items: ``expire`` keeps their place and calls; ``remove`` removes the start of a history if
    nothing else refers to it, and expires it otherwise."""
    summaries: str = "keep"
    """Items: ``keep`` or ``drop`` the summaries that compaction made of expired items."""

    def __post_init__(self) -> None:
        checked_choice("what", self.what, _WHATS)
        for name in _CLASSES:
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        for kind in self.kinds:
            checked_choice("kinds", kind, _KINDS)
        checked_choice("action", self.action, ("expire", "remove"))
        checked_choice("summaries", self.summaries, ("keep", "drop"))
        checked_optional_int("keep_last", self.keep_last)
        checked_optional_int("max_bytes", self.max_bytes)
        age = self.max_age_seconds
        if age is not None and (
            isinstance(age, bool)
            or not isinstance(age, int | float)
            or not 0 <= age <= _AGE_SECONDS_MAX
        ):
            msg = f"max_age_seconds: expected 0 to {_AGE_SECONDS_MAX} seconds, got {age!r}"
            raise InvalidOptionError(msg)
        self._need_sense()

    def _need_sense(self) -> None:
        if all(getattr(self, name) is None for name in _LIMITS):
            msg = f"a rule about {self.what} needs a limit: one of {', '.join(_LIMITS)}"
            raise InvalidOptionError(msg)
        for name in ("max_bytes", *_CLASSES, "action", "summaries"):
            if self.what != "items" and getattr(self, name) != _DEFAULTS[name]:
                msg = f"{name}: is for rules about items, this one is about {self.what}"
                raise InvalidOptionError(msg)
        if self.what == "audit" and self.keep_last is not None:
            msg = "keep_last: the audit is kept by max_age_seconds alone"
            raise InvalidOptionError(msg)
        if self.action == "remove" and any(getattr(self, name) for name in _CLASSES):
            msg = "action: 'remove' takes the beginning of a history, so it asks for no classes"
            raise InvalidOptionError(msg)

    def mapping(self) -> dict[str, Any]:
        """Return a mapping that makes an equal rule."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in found.items()
            if name == "what" or value != _DEFAULTS[name]
        }

    @property
    def id(self) -> str:
        """Identifier of the rule, derived from its fields."""
        return _id_of(self)

    def since_ms(self, now_ms: int) -> int | None:
        """Return the time before which data is too old; None: no age limit."""
        return None if self.max_age_seconds is None else now_ms - int(self.max_age_seconds * 1000)


_DEFAULTS: Final = {
    each.name: each.default for each in fields(RetentionRule) if each.default is not MISSING
}


@lru_cache(maxsize=256)
def _id_of(rule: RetentionRule) -> str:
    told = json.dumps(rule.mapping(), sort_keys=True).encode()
    return blake2b(told, digest_size=8).hexdigest()


def _texts(name: str, given: object) -> tuple[str, ...]:
    if isinstance(given, list | tuple) and all(isinstance(each, str) for each in given):
        return tuple(given)
    msg = f"{name}: expected a list of str, got {given!r:.80}"
    raise InvalidOptionError(msg)


def _transient() -> tuple[RetentionRule, ...]:
    return (RetentionRule(what="sessions", max_age_seconds=_DAY),)


def _standard() -> tuple[RetentionRule, ...]:
    return (
        RetentionRule(what="items", max_age_seconds=30 * _DAY, kinds=("result",)),
        RetentionRule(what="items", max_age_seconds=90 * _DAY),
        RetentionRule(what="sessions", max_age_seconds=365 * _DAY),
        RetentionRule(what="audit", max_age_seconds=180 * _DAY),
    )


def _minimal() -> tuple[RetentionRule, ...]:
    return (
        RetentionRule(what="items", max_age_seconds=7 * _DAY, summaries="drop"),
        RetentionRule(what="sessions", max_age_seconds=30 * _DAY),
        RetentionRule(what="audit", max_age_seconds=30 * _DAY),
    )


RETENTION_PRESETS: Final[Mapping[str, Callable[[], tuple[RetentionRule, ...]]]] = {
    "transient": _transient,
    "standard": _standard,
    "minimal": _minimal,
}
"""Rules by name: sessions for a day; a year, contents for 90 days; a month, contents for 7."""


def retention_rules(given: object) -> tuple[RetentionRule, ...]:
    """Make rules from a preset's name, a mapping ``{"rules": [...]}``, a rule, or a list of rules.

    Raises:
        InvalidOptionError: an unknown name or key (with the closest match), or a bad value.
    """
    if isinstance(given, str):
        checked_choice("retention preset", given, RETENTION_PRESETS)
        return RETENTION_PRESETS[given]()
    if isinstance(given, RetentionRule):
        return (given,)
    if isinstance(given, Mapping):
        need_known("retention", given, ("rules", "preset"))
        preset = given.get("preset")
        if not given:  # of a file that was emptied by mistake, too
            msg = "retention: no rules: expected 'rules', which may be an empty list, or 'preset'"
            raise InvalidOptionError(msg)
        begun = () if preset is None else retention_rules(preset)
        return begun + retention_rules(given.get("rules", ()))
    if isinstance(given, list | tuple):
        return tuple(_rule(each) for each in given)
    msg = (
        "retention: expected a preset's name, a mapping, a RetentionRule or a list of them; got "
        f"{type(given).__name__}"
    )
    raise InvalidOptionError(msg)


def _rule(given: object) -> RetentionRule:
    if isinstance(given, RetentionRule):
        return given
    if not isinstance(given, Mapping):
        msg = f"retention rule: expected a mapping, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    need_known("retention rule", given, [each.name for each in fields(RetentionRule)])
    if "what" not in given:
        msg = f"retention rule: 'what' is missing; one of {', '.join(_WHATS)}"
        raise InvalidOptionError(msg)
    return RetentionRule(**given)


def read_rules(path: str | PathLike[str]) -> tuple[RetentionRule, ...]:
    """Read rules from a file: TOML, or JSON if its name ends in ``.json``.

    Raises:
        NotFoundError: the file does not exist.
        InvalidOptionError: it is not TOML or JSON, or as for ``retention_rules``.
    """
    return retention_rules(read_mapping("retention rules", path))


# --- Archives: expired data is written to them before it is deleted -------------------------------

_BEGINS: Final = (b'{"memcore":', b'{"expired":')
"""Beginnings of lines: those of an export, and those of entries, fields and memories."""


class LineArchive(Protocol):
    """An archive that takes the lines of a removal together, as ``memcore.Archive`` does."""

    def write_lines(self, lines: Iterable[bytes], /) -> int:
        """Write pieces of an export durably; return the number of lines."""


ArchiveTarget: TypeAlias = str | os.PathLike[str] | Callable[[bytes], Any] | LineArchive
"""A file that lines are appended to, a callable that gets each line, or an archive."""


def archive_to(
    target: ArchiveTarget, *, is_own: Callable[[str], bool]
) -> Callable[[Iterable[bytes]], int]:
    """Return a function that writes lines durably and returns their number.

    A file is flushed to the device. A callable's method ``flush`` is called, if it has one, and
    determines how durable the lines are. Errors are raised, and nothing is deleted.

    Raises:
        InvalidOptionError: it is neither a path nor callable, a file of the database itself, as
            ``is_own`` tells, or one that holds something else than exported lines.
    """
    write_lines: Callable[[Iterable[bytes]], int] | None = getattr(target, "write_lines", None)
    if write_lines is not None:
        return write_lines
    if callable(target):
        return _calling(target)
    if not isinstance(target, str | os.PathLike):
        msg = f"archive: expected a path, a callable or an Archive, got {type(target).__name__}"
        raise InvalidOptionError(msg)
    path = checked_path("archive", target)
    if is_own(path):
        msg = f"archive: {path} belongs to the database; name another file"
        raise InvalidOptionError(msg)
    _need_archive(path)

    def write(lines: Iterable[bytes]) -> int:
        with open(path, "a+b", buffering=0, opener=open_private) as file:
            # Items follow the title of their session: two sweeps must not mix their lines.
            fcntl.flock(file, fcntl.LOCK_EX)
            size = _finished_size(file)
            try:
                count = _put(lines, partial(_write_whole, file))
                os.fsync(file.fileno())
            except BaseException:  # an interrupt, too: half a line would take the next one along
                with suppress(OSError):
                    os.ftruncate(file.fileno(), size)
                raise
        return count

    return write


def _need_archive(path: str) -> None:
    """Refuse to add to a file that holds something else: what is swept could not be read again."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as exc:
        msg = f"archive: {path:.200}: {exc.strerror}; name another file"
        raise InvalidOptionError(msg) from exc
    if not stat.S_ISREG(kind):
        msg = f"archive: {path} is no regular file; name another one"
        raise InvalidOptionError(msg)
    with open(path, "rb", opener=open_private) as file:
        begin = file.read(max(map(len, _BEGINS)))
    # A crash may have torn the very first line.
    if not any(begin.startswith(each) or each.startswith(begin) for each in _BEGINS):
        msg = f"archive: {path} contains something other than exported lines; name another file"
        raise InvalidOptionError(msg)


def _write_whole(file: FileIO, line: bytes) -> None:
    left = memoryview(line)
    while left:
        left = left[file.write(left) :]


def _finished_size(file: FileIO) -> int:
    """Finish the last line of an archive, and return the size.

    Half a line, which a crash left, is taken away: what it was about is still in the database. A
    whole one that lacks only its end, which an editor may have taken, gets it.
    """
    size = start = file.seek(0, os.SEEK_END)
    tail = b""
    while start and b"\n" not in tail:
        step = min(start, 1 << 16)
        start = file.seek(start - step)
        tail = file.read(step) + tail
    tail = tail[tail.rfind(b"\n") + 1 :]
    if tail:
        try:
            json.loads(tail)
        except ValueError:
            size -= len(tail)
            os.ftruncate(file.fileno(), size)
        else:
            _write_whole(file, b"\n")
            size += 1
    return size


def _calling(target: Callable[[bytes], Any]) -> Callable[[Iterable[bytes]], int]:
    flush = getattr(target, "flush", None)

    def write(lines: Iterable[bytes]) -> int:
        count = _put(lines, target)
        if callable(flush):
            flush()
        return count

    return write


def _put(lines: Iterable[bytes], put: Callable[[bytes], Any]) -> int:
    """Pass on whole lines, one call each: an export comes in chunks of any size."""
    count, rest = 0, b""
    for piece in lines:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            put(line + b"\n")
            count += 1
    return count


# --- Report and state of a sweep ------------------------------------------------------------------

AuditSweep = Callable[[Engine, int, int, int, int], int]
"""Removes audit entries: ``(engine, scope, session, before ms, at most) -> count``; session 0 is
the scope's own audit, scope 0 the database's."""


class Exporter(Protocol):
    """Writes data about to be deleted as lines of an export."""

    def session(self, scope: int, name: str) -> Iterator[bytes]:
        """Export everything of a session.

        Raises:
            NotFoundError: it was removed, or its state trimmed, while it was exported.
        """

    def items(self, scope: int, session: int, seqs: Iterable[int]) -> Iterator[bytes]:
        """Export items that a session owns, after a title line of their own.

        Raises:
            NotFoundError: one of them was removed while they were exported.
        """

    def fields(self, scope: int, session: int, fields: Iterable[str]) -> Iterator[bytes]:
        """Export state fields as lines of a separate kind; session 0: of a shared state."""

    def entry(self, key: bytes) -> bytes:
        """Return a key/value entry as a line of a separate kind, which no import reads.

        Empty if it is not there any more.
        """

    def memory(self, key: bytes) -> bytes:
        """Return a long-term memory as a line of a separate kind, which no import reads.

        Empty if it is not there any more.
        """


@record(slots=True)
class SweepReport:
    """Counts of what a sweep removed, or would remove."""

    dry_run: bool = False
    entries: int = 0
    """Expired key/value entries, including memories of adapters."""
    memories: int = 0
    """Expired long-term memories."""
    forgotten: int = 0
    """Long-term memories that rested on removed items or sessions alone; in a dry run those of one
    session, so that there may be more."""
    items: int = 0
    """Items reduced to their place and calls."""
    items_removed: int = 0
    """Items removed with the beginning of their history."""
    sessions: int = 0
    fields: int = 0
    """Fields of states."""
    checkpoints: int = 0
    threads: int = 0
    thread_checkpoints: int = 0
    """Checkpoints of threads that are not removed."""
    audit: int = 0
    """Entries of the audit log."""
    bytes: int = 0
    """Approximate bytes of all this, without index rows."""
    archived: int = 0
    """Lines written to the archive."""
    held: int = 0
    """Due, but under a legal hold."""
    kept: int = 0
    """Due, but kept: threads if there is an archive, which cannot hold them; checkpoints encrypted
    by a serialiser; and whatever changed in the meantime or is leased."""
    damaged: int = 0
    """Rows that were due and cannot be read; ``check`` lists them."""
    complete: bool = True
    """True if everything due was examined; False: call it again."""

    @property
    def total(self) -> int:
        """Number of things removed."""
        return (
            self.entries + self.memories + self.items + self.items_removed + self.sessions
            + self.fields + self.checkpoints + self.threads + self.thread_checkpoints + self.audit
        )  # fmt: skip

    def mapping(self) -> dict[str, Any]:
        """Return the report in JSON types."""
        return asdict(self) | {"total": self.total}


@record(slots=True)
class SweepRun:
    """State and limits of one sweep."""

    engine: Engine
    now_ms: int
    limit: int
    report: SweepReport
    exporter: Exporter | None = None
    write: Callable[[Iterable[bytes]], int] | None = None
    """Writes lines to the archive and flushes it; None: nothing is archived."""
    audit: AuditSweep | None = None

    @property
    def dry(self) -> bool:
        """True if nothing may be changed."""
        return self.report.dry_run

    @property
    def left(self) -> int:
        """Number of things that it may still remove."""
        return max(self.limit - self.report.total, 0)

    @contextmanager
    def while_alive(self, scope: int) -> Iterator[None]:
        """Ignore errors in a scope whose user was erased concurrently: the erasure finishes it."""
        try:
            yield
        except MemcoreError:
            if not self.engine.store.read(lambda txn: is_erased(txn, scope)):
                raise

    @contextmanager
    def apart(self, scope: int) -> Iterator[None]:
        """Work in a scope ``while_alive``; damage ends it, is counted, and holds nobody else up."""
        try:
            with self.while_alive(scope):
                yield
        except CorruptValueError:
            self.report.damaged += 1

    def archive(self, lines: Callable[[Exporter], Iterable[bytes]]) -> bool:
        """Write data about to be deleted to the archive, if there is one, and flush it.

        False if another sweep, or its user, removed some of it in the meantime: nothing may be
        deleted then. Errors of the archive itself are raised, whatever they are.
        """
        if self.write is not None and self.exporter is not None and not self.dry:
            try:
                self.report.archived += self.write(_still_there(lines(self.exporter)))
            except _RemovedError:
                return False
        return True


class _RemovedError(Exception):
    """Data that was to be archived was removed while it was read."""


def _still_there(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines; raise _RemovedError where reading one, not writing one, finds nothing."""
    try:
        yield from lines
    except NotFoundError as exc:
        raise _RemovedError from exc
