"""Planted bugs. Each must make images fail: that is the proof that the harness would see one.

They are planted in the processes of the harness, never by a switch in the product.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from threading import Event, Thread
from typing import Any, NamedTuple, Self

import memcore
from memcore import files, retention
from memcore import session as sessions
from memcore import store as stores
from memcore.database import redact as redacting
from memcore.memory import Memories, RollingSummary, statement, summary
from memcore.memory.rows import write_entry
from memcore.retention import erasure as compacting
from memcore.retention import erasure as scanning
from memcore.search import index
from memcore.session import rewrite as rewriting
from memcore.store import audit_log as recorder
from memcore.store import commit as leader
from memcore.store import copy as copying
from memcore.store import copy as replacing
from memcore.store import datafile as file
from memcore.store import open_file as attaching
from memcore.store import redo_log as redo
from memcore.store import redo_log as run
from memcore.store import steady
from memcore.store import steady as pin
from memcore.store import store as handle
from memcore.testing import faults

from . import frameworks, services

Plant = Callable[[], None]


class Control(NamedTuple):
    """A planted bug: in the processes that write, or in those that judge."""

    name: str
    durability: str
    workloads: tuple[str, ...]
    writing: Plant | None = None
    judging: Plant | None = None
    sealed: bool = False
    """Planted in encrypted files."""

    def plant(self) -> None:
        """Plant it in a process that is going to write."""
        if self.writing is not None:
            self.writing()

    def plant_in_judge(self) -> None:
        """Plant it in a process that is going to open an image."""
        if self.judging is not None:
            self.judging()


NO_CONTROL = Control("", "", ())
CONTROLS: dict[str, Control] = {}


def control(
    durability: str, *workloads: str, judging: bool = False, sealed: bool = False
) -> Callable[[Plant], Plant]:
    """Register the function that plants a bug."""

    def register(plant: Plant) -> Plant:
        name = plant.__name__
        where: dict[str, Any] = {"judging" if judging else "writing": plant}
        CONTROLS[name] = Control(name, durability, workloads, sealed=sealed, **where)
        return plant

    return register


@control("none", "sessions", "deletion")
def mode_none() -> None:
    """Nothing planted: the mode itself promises nothing."""


@control("full", "sessions", "facts")
def no_record() -> None:
    """No redo record is written."""
    redo.RedoLog.write = lambda *_: None  # type: ignore[method-assign]


@control("full", "sessions", "facts")
def late_record() -> None:
    """The record is written when the transaction has been committed."""
    write, commit = redo.RedoLog.write, leader.Leader._commit
    held: list[Any] = []
    redo.RedoLog.write = lambda *arguments: held.append(arguments)  # type: ignore[method-assign]

    def late(self: Any, txn: Any, batch: Any) -> None:
        ops = dict(txn.ops)
        commit(self, txn, batch)
        while held:
            log, txnid, _ = held.pop()
            write(log, txnid, ops)

    leader.Leader._commit = late  # type: ignore[method-assign]


@control("full", "facts", "sessions")
def one_slot() -> None:
    """Both records go into the same slot, and are looked for there."""
    begin = redo.RedoLog.__init__

    def one(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self._slots = (self._slots[0], self._slots[0])

    redo.RedoLog.__init__ = one  # type: ignore[method-assign]


@control("full", "facts", "sessions")
def acknowledge_before_flush() -> None:
    """A caller is told that its change is stored as soon as its closure has run."""

    def eager(self: Any, fn: Callable[[Any], Any], **options: Any) -> Any:
        ran, results = Event(), []

        def closure(txn: Any) -> None:
            results.append(fn(txn))
            ran.set()

        queue = self.environment().queue
        Thread(target=queue.call, args=(closure,), kwargs=options).start()
        ran.wait()
        return results[-1]

    handle.LmdbStore.transact = eager  # type: ignore[method-assign]


@control("full", "sessions", "undoing")
def visible_before_flush() -> None:
    """Every transaction goes the way of large ones: seen first, flushed then, acknowledged last.

    The flush waits a while: a reader has to come in between, or there is nothing to be seen.
    """
    begin = redo.RedoLog.__init__

    def tiny(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self.capacity = 0

    redo.RedoLog.__init__ = tiny  # type: ignore[method-assign]
    attaching.file_access = faults.failing("env.sync=delay:30")


@control("full", "creation", "backups")
def no_directory_flush() -> None:
    """A file gets its name without a flush of the directory."""
    file.sync_directory = lambda _: None


@control("full", "squeezing")
def no_directory_flush_after_rename() -> None:
    """A compacted copy takes the file's place without a flush of the directory.

    Whoever opens it would make up for that: so that is left out, too.
    """
    for module in (replacing, attaching, copying):
        module.sync_directory = lambda _: None


@control("full", "services")
def torn_delta() -> None:
    """Items are stored first, what they change of the states in a commit of its own."""

    def apply(self: Any, command: memcore.Command, **_: Any) -> None:
        self.extend(command.messages)
        self.state.update(command.update)

    memcore.Session.apply = apply  # type: ignore[method-assign, assignment]


@control("full", "services")
def torn_artifact() -> None:
    """A version gets its row first, its content in a commit of its own."""

    def torn(kv: Any, name: str, payload: bytes) -> None:
        version = sum(1 for _ in kv.scan(prefix=f"{name}/"))
        key, row = f"{name}/{version:06}", {"version": version, "size": len(payload)}
        kv.put(key, row)
        kv.put(key, row, content=payload)

    services.publish_next = torn  # type: ignore[assignment]


@control("full", "services")
def torn_replacement() -> None:
    """The end of a session goes first, what replaces it comes in a commit of its own."""

    class Torn:
        def __init__(self, session: Any) -> None:
            self.undo, self.extend = session.undo, session.extend

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    memcore.Session.batch = lambda self, **_: Torn(self)  # type: ignore[method-assign, assignment]


@control("full", "invocations")
def torn_invocation() -> None:
    """What an invocation left in the state goes first, its events in a commit of their own."""
    from memcore.adapters.adk import append

    whole = append._before

    def torn(session: Any, own: Any) -> dict[str, Any]:
        found = whole(session, own)
        for _ in range(16):  # a few of the cuts have to fall between the two
            session.state.update(found)
        return {}

    append._before = torn


@control("full", "waiting_runs")
def torn_run() -> None:
    """Items are added first, the run that waits behind them in a commit of its own."""
    from memcore.adapters.openai_agents import MemcoreSession

    save = MemcoreSession.save_run_state

    async def torn(self: Any, state: Any, *, items: Any) -> None:
        await self.add_items(items)
        await save(self, state)

    MemcoreSession.save_run_state = torn  # type: ignore[method-assign, assignment]


@control("full", "waiting_runs")
def torn_renewal() -> None:
    """A session is cleared first, what is not too old comes back in a commit of its own."""

    async def torn(session: Any, since_us: int) -> None:
        native = session.native().sync
        kept = [item.message for item in native if round(item.created_at * 1e6) >= since_us]
        await session.clear_session()
        await session.add_items(kept)

    frameworks.removed = torn


class _Lenient(int):
    """Equal to everything: a checksum that nobody looks at."""

    __hash__ = int.__hash__

    def __eq__(self, _: object) -> bool:
        return True

    def __ne__(self, _: object) -> bool:
        return False


@control("full", "facts", "sessions", judging=True)
def skipped_checksum() -> None:
    """A record is replayed without a look at its checksum (its base is still compared)."""
    digest = redo.xxh3_64

    def lenient(content: bytes, *seed: int) -> int:
        value = digest(content, *seed)
        return _Lenient(value) if seed else value

    redo.xxh3_64 = lenient


class _Unpinned:
    """Stands where a pin was; LMDB knows nothing of it."""

    def abort(self) -> None:
        """As a reader is given up."""


@control("relaxed", "sessions", "facts")
def no_pin() -> None:
    """A steady point lets go of its snapshot, so that later commits write over its pages."""
    point = pin.SteadySync.sync

    def unpinned(self: Any, *arguments: Any) -> None:
        point(self, *arguments)
        with self._mutex:
            if self._raw is not None:
                self._raw.abort()
                self._raw = _Unpinned()

    pin.SteadySync.sync = unpinned  # type: ignore[method-assign]


@control("relaxed", "sessions", "facts", judging=True)
def no_rollback() -> None:
    """A power cut is not noticed: whatever the file holds is taken for the truth."""
    steady.SteadyLog.newest = lambda _: None  # type: ignore[method-assign]


@control("relaxed", "sessions", "facts")
def early_steady_record() -> None:
    """The record of a steady point is written before its snapshot has been flushed."""
    flushes = itertools.count()

    def every_other(fd: int) -> None:
        if next(flushes) % 2:
            os.fdatasync(fd)

    pin.os = _But(os, fdatasync=every_other)  # type: ignore[assignment]


@control("full", "erasing", judging=True)
def remains_in_copies() -> None:
    """A compact copy takes over what LMDB leaves between rows and in the redo slots."""
    copying._forget_what_is_gone = lambda *_: None
    compacting.scan_copy = lambda *_: scanning.Scan()
    run.RedoArea.blank = lambda *_: None  # type: ignore[method-assign]


@control("full", "memories")
def torn_supersession() -> None:
    """The value of a slot that a new one replaces ends in a commit of its own."""
    write, remember = statement._write, Memories.remember
    left: dict[str, Callable[[Any], None]] = {}

    def torn(book: Any, after: Any, before: Any, beside: Any) -> Any:
        def end(txn: Any) -> None:
            for old, new in beside:
                write_entry(book._replace(txn=txn), new, old)

        left[after.text] = end
        return write(book, after, before, ())

    def late(self: Any, *arguments: Any, **options: Any) -> Any:
        found = remember(self, *arguments, **options)
        self._store.transact(left.pop(found.text))
        return found

    statement._write = torn
    Memories.remember = late  # type: ignore[method-assign]


@control("full", "memories")
def torn_summary() -> None:
    """What a rolling summary has read is written in a commit behind that of its text."""
    cover, stored = summary.cover, RollingSummary._stored
    left: list[Any] = []

    def late(self: Any, *arguments: Any, **options: Any) -> bool:
        done = stored(self, *arguments, **options)
        while left:
            read = left.pop()
            self._place.store.transact(lambda txn, read=read: cover(txn, *read))
        return done

    summary.cover = lambda _, *read: left.append(read)
    RollingSummary._stored = late  # type: ignore[method-assign]


@control("full", "embeddings")
def late_blanks() -> None:
    """The vector of a memory goes in a commit behind that of its text."""
    blank = index.blank_vectors
    left: list[tuple[int, list[int]]] = []

    def later(_txn: Any, scope: int, ordinals: Any) -> set[int]:
        left.append((scope, list(ordinals)))
        return set()

    def then_blanking(change: Callable[..., Any]) -> Callable[..., Any]:
        def late(self: Any, *arguments: Any, **options: Any) -> Any:
            done = change(self, *arguments, **options)
            while left:
                gone = left.pop()
                self._store.transact(lambda txn, gone=gone: blank(txn, *gone))
            return done

        return late

    index.blank_vectors = later
    for name in ("forget", "update", "remember"):
        setattr(Memories, name, then_blanking(getattr(Memories, name)))


@control("full", "tasks")
def late_frame() -> None:
    """The frame of a task goes in a commit behind that of its messages and parts."""
    from memcore.adapters.a2a import tasks

    store = tasks.store

    def torn(change: Any) -> Any:
        *items, frame = change.items
        if items:
            store(tasks.Append(change.ref, items))
        return store(tasks.Append(change.ref, [frame]))

    tasks.store = torn  # type: ignore[assignment]


@control("full", "lines")
def late_rows() -> None:
    """The rows of an adapter go in a commit behind that of the lines."""
    from memcore.adapters.lines import Rows

    commit = Rows.commit

    class Late:
        """Rows of which nothing is stored yet."""

        def __init__(self, rows: Any, put: dict[str, Any]) -> None:
            self.get, self.scan, self.put = rows.get, rows.scan, put.__setitem__

    def torn(self: Rows, fn: Any, **options: Any) -> Any:
        later: dict[str, Any] = {}
        done = commit(self, lambda txn, rows: fn(txn, Late(rows, later)), **options)
        self._kv.put_many(later)
        return done

    Rows.commit = torn  # type: ignore[method-assign]


@control("full", "imports")
def torn_import() -> None:
    """An imported conversation is stored in a commit for each of its items."""
    from . import imports

    def torn(place: Any, reading: Any) -> None:
        *_, new = reading
        for item in new.items:
            place.session(new.name).append(item.message)

    imports.load_from = torn


@control("full", "quarantines")
def late_drop() -> None:
    """A released original leaves the quarantine in a commit of its own."""
    release = sessions.rewrite_items

    def torn(engine: Any, *arguments: Any, along: Callable[[Any], None], **options: Any) -> Any:
        done = release(engine, *arguments, **options)
        engine.store.transact(along)
        return done

    sessions.rewrite_items = torn  # type: ignore[assignment]


@control("full", "redaction_kills")
def remembered_rewriting() -> None:
    """That items were written anew is remembered by the process that did it, not by their heads."""
    written = []
    write = rewriting.rewrite_planned

    class Remembered:
        def __rand__(self, _: int) -> bool:
            return bool(written)

    def remember(*arguments: Any, **options: Any) -> Any:
        written.append(True)
        return write(*arguments, **options)

    rewriting.FLAG_REWRITTEN = 0  # type: ignore[misc]
    redacting.FLAG_REWRITTEN = Remembered()  # type: ignore[misc, assignment]
    redacting.rewrite_planned = remember


@control("relaxed", "audited")
def early_anchor() -> None:
    """The audit is anchored before what it tells of is durable."""
    recorder.Recorder._make_durable = lambda _: True  # type: ignore[method-assign]


class _But:
    """A module or an object, but for some names."""

    def __init__(self, instead_of: Any, **names: Any) -> None:
        self._instead_of = instead_of
        self.__dict__ |= names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instead_of, name)


@control("relaxed", "rotations", "rotation_kills", "shredding", sealed=True)
def keys_leave_early() -> None:
    """Older data keys leave the key file before the contents under newer ones are durable."""
    from . import stage  # which imports this module

    stage._STEADY_MS = 500  # no steady point soon after makes good for it
    reseal = stores.reseal
    stores.reseal = lambda store, *arguments, **options: reseal(  # type: ignore[assignment]
        _But(store, make_durable=lambda: None), *arguments, **options
    )


@control("full", "rotations", "rotation_kills", sealed=True)
def unflushed_keys() -> None:
    """The key file is replaced by one that is not flushed."""
    files.os = _But(os, fsync=lambda _: None)  # type: ignore[assignment]


@control("full", "keepsakes", sealed=True, judging=True)
def unburied() -> None:
    """A backup is opened as if nobody had been erased since."""
    retention.bury_shredded = lambda _: None
