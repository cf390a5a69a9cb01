"""Loading of what a reader yields into an open database: batched, resumable, and reported.

Conversations become lines of an export and are stored by its import: some hundreds of items a
commit, each conversation whole or not at all, and one that is stored already is compared item by
item. So a killed import is simply run again. Branches are stored beside the live history of their
conversation, as named checkpoints, and then forked from it: forks share its items.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Final

import orjson

from memcore.codec.values import encode_json
from memcore.database import Database, Scope
from memcore.errors import CallerError, CorruptValueError, InvalidOptionError
from memcore.exchange import ImportOptions, import_lines
from memcore.exchange.lines import TIME_MS_END, VERSION, Title, portable_json
from memcore.exchange.load import Imported, ParsedLine
from memcore.importing.readers import Reading
from memcore.importing.source import (
    ItemTree,
    Owner,
    Record,
    SourceBranch,
    SourceConversation,
    SourceFailure,
    SourceItem,
    SourceMemory,
    SourceState,
    SourceThread,
    checked_meta,
    reported,
)
from memcore.limits import META_BYTES_MAX
from memcore.model import Checkpoint
from memcore.options import checked_choice
from memcore.records import record
from memcore.rows import names
from memcore.rows.head import Head, head_key
from memcore.state import values_at
from memcore.store.interface import ReadTxn
from memcore.tokens import TokenCounter

__all__ = [
    "ImportReport",
    "checked_conflict",
    "load",
]

_PAGE: Final = 64
_PAGE_ITEMS: Final = 256
_LINE_BYTES: Final = 300
"""About what a line has beside its content."""
_ID: Final = "source_id"
"""Label of a memory with its id in the source."""
Place = tuple[str, str, str]
"""Application, user and session."""


@record(slots=True)
class ImportReport:
    """Result of an import: what was kept, what was there, mended, left out, and why."""

    kind: str
    path: str
    read: int = 0
    """Records that the source holds: conversations, memories, checkpoints, shared states."""
    conversations: int = 0
    """Conversations stored now; the next counts are of what was stored now, too."""
    items: int = 0
    """Items of their live histories."""
    aside: int = 0
    """Items of their branches alone."""
    forks: int = 0
    summaries: int = 0
    states: int = 0
    memories: int = 0
    checkpoints: int = 0
    """Checkpoints of graph threads."""
    writes: int = 0
    """Pending writes of graph threads."""
    present: int = 0
    """Records that were stored already, with equal content."""
    renamed: int = 0
    mended: dict[str, int] = field(default_factory=dict)
    """Counts of what is stored in another form than the source has, by what was done."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Counts of what is not stored, by what it is."""
    left_out: list[str] = field(default_factory=list)
    """Conversations left out because another one has their name (``on_conflict="skip"``)."""
    failures: list[str] = field(default_factory=list)
    """Failures to read or to store, each with the place and the reason."""


def load(
    db: Database,
    reading: Reading,
    *,
    prefix: str = "",
    counter: TokenCounter | None = None,
    on_conflict: str = "error",
    progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Store what a reader yields; return what became of it.

    What is stored already is compared and not stored again, so an interrupted import is repeated,
    and a second one adds nothing. The source is only read.

    Args:
        db: an open database.
        reading: what ``read`` returned.
        prefix: put before the name of every session and thread.
        counter: counts tokens in new sessions; None: the counter of the database.
        on_conflict: if another session has the name: ``"error"`` (listed in ``failures``),
            ``"skip"`` (listed in ``left_out``) or ``"rename"`` (``NAME (2)``).
        progress: called with the number of records read so far.

    Raises:
        SourceError: nothing of the source can be read; an error after the first record is listed.
        InvalidOptionError, ReadOnlyError, AccessDeniedError, StorageError
    """
    checked_conflict(on_conflict)
    if db.engine.access is not None:
        db.engine.access.need("import", app=None, user=None, name=None)
    loading = _Loading(db, reading, prefix, progress)
    loading.counter = counter or db.engine.counter
    options = ImportOptions(
        counter=counter, format="jsonl", on_conflict=on_conflict, listener=loading
    )
    done = import_lines(db.engine, loading.lines(), options)
    loading.fork_all()
    return loading.finish(done)


def checked_conflict(given: str) -> str:
    """Return what to do with a session whose name another one has.

    Raises:
        InvalidOptionError: it is unknown.
    """
    return checked_choice("on_conflict", given, ("error", "skip", "rename"))


@record(slots=True)
class _Waiting:
    """Branches of a conversation that waits for its commit."""

    place: str
    branches: list[SourceBranch]
    positions: list[int | None]
    """Seq of the last item of each, if it is live; None: the checkpoint of the branch's name."""


class _Loading:
    """One run over the records of a reader."""

    def __init__(
        self,
        db: Database,
        reading: Reading,
        prefix: str,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.db = db
        self.reading = reading
        self.prefix = prefix
        self.progress = progress
        self.counter: TokenCounter = db.engine.counter
        self.report = ImportReport(reading.kind, reading.path)
        self.number = 0
        """Number of the line that was yielded last."""
        self.starts: list[int] = []
        """Numbers of the first lines of records, ascending; beside it, their places."""
        self.places: list[str] = []
        self.undated_us = _changed_us(reading.path)
        """The time of conversations without one: each run over a file has the same."""
        self.begun: set[Place] = set()
        """Names of the conversations that were read."""
        self.waiting: dict[int, _Waiting] = {}
        """Conversations with branches, by the numbers of their first lines."""
        self.forks: list[tuple[Place, _Waiting]] = []
        """Branches of stored conversations, under their names here."""
        self.remembered: dict[Owner, set[str]] = {}
        """Ids in the source of the memories that a user has already."""
        self.threads: Any = None

    # --- what the import asks for and tells -------------------------------------------------------

    def where(self, line: int) -> str:
        """Return the place in the source of a line."""
        at = bisect_right(self.starts, line) - 1
        return self.places[at] if at >= 0 else self.reading.path

    def settled(self, line: int, place: Place) -> None:
        """Note that the conversation that begins on a line is stored, now or before."""
        waiting = self.waiting.pop(line, None)
        if waiting is not None:
            self.forks.append((place, waiting))

    # --- records as lines -------------------------------------------------------------------------

    def lines(self) -> Iterator[ParsedLine]:
        """Yield the lines of all records."""
        for records in _pages(reported(self.reading)):
            heads = self._heads(records)
            for each in records:
                self.report.read += not isinstance(each, SourceFailure)
                self.starts.append(self.number + 1)
                self.places.append(each.place)
                for line in self._lines(each, heads):
                    self.number += 1
                    yield line
                if self.progress is not None:
                    self.progress(self.report.read)

    def _heads(self, records: list[Record]) -> dict[Place, Head]:
        """Return the heads of the conversations that are stored already, from one snapshot."""
        wanted = [self._place(each) for each in records if isinstance(each, SourceConversation)]

        def look(txn: ReadTxn) -> dict[Place, Head]:
            found = ((place, _head_of(txn, place)) for place in wanted)
            return {place: head for place, head in found if head is not None}

        return self.db.engine.store.read(look) if wanted else {}

    def _place(self, record: SourceConversation) -> Place:
        owner = self.reading.owner
        return (
            owner.app if record.app is None else record.app,
            owner.user if record.user is None else record.user,
            self.prefix + record.name,
        )

    def _lines(self, record: Record, heads: Mapping[Place, Head]) -> Iterator[ParsedLine]:
        match record:
            case SourceConversation():
                place = self._place(record)
                # Another one of its name is not what is stored under it.
                head = None if place in self.begun else heads.get(place)
                self.begun.add(place)
                yield from self._conversation(record, place, head)
            case SourceState() if self.db.engine.store.read(lambda txn: _has_state(txn, record)):
                self.report.present += 1
            case SourceState():
                body = {"app": record.app, "user": record.user, "values": record.values}
                yield ParsedLine({"memcore": VERSION, "shared": body}, _LINE_BYTES)
            case SourceMemory():
                self._remember(record)
            case SourceThread():
                self._put(record)
            case SourceFailure():
                self.report.failures.append(f"{record.place}: {record.reason}")

    def _conversation(
        self, record: SourceConversation, place: Place, head: Head | None
    ) -> Iterator[ParsedLine]:
        """Yield the lines of a conversation: title, items, views, checkpoints, state.

        ``head``: of the session of this name that is stored already.
        """
        tree = ItemTree(record.place)
        tree.items = record.items
        live = tree.path(len(record.items) - 1 if record.leaf is None else record.leaf)
        shown = set(live)
        known = self.undated_us if head is None else head.created_ms * 1000
        began, times = _times(record, known)
        steps = list(_state_lines(record))
        created, updated = began // 1000, max((record.updated_us or 0, began, *times)) // 1000
        if head is not None:  # a fork renews its parent's time, and unknown times are those of then
            created, updated = head.created_ms, head.updated_ms
        aside = [each for each in record.branches if each.leaf >= 0 and each.leaf not in shown]
        summaries = [each for each in record.summaries if each.last in shown]
        title = Title(
            session=place[2],
            app=place[0],
            user=place[1],
            policy=record.policy,
            counter=self.counter.id,
            revision=max(len(record.items), 1),
            next_seq=len(record.items) + 1,
            created_ms=created,
            updated_ms=updated,
            items=len(record.items),
            views=len(summaries),
            checkpoints=len(aside),
            state=len(steps),
        )
        if record.branches:
            on_path = shown | {-1}
            positions = [
                each.leaf + 1 if each.leaf in on_path else None for each in record.branches
            ]
            self.waiting[self.number + 1] = _Waiting(record.place, record.branches, positions)
        yield ParsedLine(title.fields(), _LINE_BYTES)
        held = {at for branch in aside for at in tree.path(branch.leaf)}
        for at, item in enumerate(record.items):
            # What an item of no path follows is in no export either.
            placed = item if at in held else item._replace(after=None)
            yield self._item(at, placed, times[at], is_live=at in shown)
        for summary in summaries:
            yield _view_line(live.index(summary.last) + 1, summary, times)
        for branch in aside:
            yield _checkpoint_line(branch, tree, times, title.created_ms)
        yield from steps

    def _item(self, at: int, item: SourceItem, created_us: int, *, is_live: bool) -> ParsedLine:
        if item.meta is not None:
            item = item._replace(meta=checked_meta(item.meta, self.reading.notes))
        meta_size = 0 if item.meta is None else _size_of(item.meta)
        if meta_size > META_BYTES_MAX and not item.event:
            self.reading.notes.skip("ids and details of items that are too large beside them")
            item, meta_size = item._replace(meta=None), 0
        body = _item_body(at, item, created_us, is_live=is_live)
        return ParsedLine(body, _size_of(item.message) + meta_size)

    # --- memories and threads ---------------------------------------------------------------------

    def _remember(self, record: SourceMemory) -> None:
        """Store a statement about a user; it waits in quarantine until somebody promotes it."""
        owner = Owner(record.app, record.user)
        try:
            memory = self.db.scope(app=owner.app, user=owner.user).memory
            if owner not in self.remembered:
                self.remembered[owner] = {each.labels.get(_ID, "") for each in memory.list()}
            found = memory.remember(
                record.text,
                by="import",
                attributes=record.attributes,
                labels={**record.labels, _ID: record.key},
                observed_at=record.created,
                extractor=self.reading.kind,
                idempotency_key=f"import:{self.reading.kind}:{record.key}",
            )
        except CallerError as error:
            self.report.failures.append(f"{record.place}: {error}")
            return
        if record.key in self.remembered[owner] or found.status == "forgotten":
            self.report.present += 1
        else:
            self.remembered[owner].add(record.key)
            self.report.memories += 1

    def _put(self, record: SourceThread) -> None:
        """Store a checkpoint of a thread with its pending writes."""
        from memcore.importing.graphs import ThreadWriter  # noqa: PLC0415 - needs LangGraph

        if self.threads is None:
            self.threads = ThreadWriter(self.db, self.reading.owner, self.prefix)
        try:
            stored, writes = self.threads.put(record)
        except CallerError as error:
            self.report.failures.append(f"{record.place}: {error}")
            return
        except CorruptValueError as error:
            self.report.failures.append(f"{record.place}: the stored checkpoint: {error}")
            return
        self.report.checkpoints += stored
        self.report.writes += writes
        self.report.present += not stored and not writes

    # --- forks ------------------------------------------------------------------------------------

    def fork_all(self) -> None:
        """Fork the branches of the conversations that are stored, where they are not yet."""
        for place, waiting in self.forks:
            app, user, name = place
            scope = self.db.scope(app=app, user=user)
            saved = _checkpoints_of(scope, name) if None in waiting.positions else {}
            for branch, position in zip(waiting.branches, waiting.positions, strict=True):
                try:
                    at = saved.get(branch.name, branch.name) if position is None else position
                    self._fork(scope, name, branch, at)
                except CallerError as error:
                    told = f"{waiting.place}: branch {_fork_name(branch, name)!r}: {error}"
                    self.report.failures.append(told)

    def _fork(
        self, scope: Scope, name: str, branch: SourceBranch, at: Checkpoint | int | str
    ) -> None:
        fork = _fork_name(branch, name)
        found = self.db.engine.store.read(
            lambda txn: _parent_of(txn, (scope.app, scope.user, name), fork)
        )
        if found is None:
            scope.session(name, orphans="keep").fork(fork, at=at)
            self.report.forks += 1
        elif found != (True, branch.leaf + 1):
            msg = f"session {fork!r} exists with another history"
            raise InvalidOptionError(msg)
        if branch.settle is not None:
            branch.settle(scope, name)

    # --- the report -------------------------------------------------------------------------------

    def finish(self, done: Imported) -> ImportReport:
        """Return the report, with what the import of the lines counted."""
        report, notes = self.report, self.reading.notes
        report.conversations += done.sessions
        report.items += done.items
        report.aside += done.aside
        report.summaries += done.views
        report.states += done.shared
        report.present += done.skipped
        report.renamed += done.renamed
        report.mended = dict(sorted(notes.mended.items()))
        report.skipped = notes.all_skipped()
        report.left_out += done.left_out
        report.failures += done.failures
        return report


def _checkpoints_of(scope: Scope, name: str) -> dict[str, Checkpoint]:
    """Return a session's checkpoints by name: to look one up by its name reads all of them."""
    saved = scope.session(name, orphans="keep").checkpoints()
    return {each.name: each for each in saved if each.name is not None}


def _fork_name(branch: SourceBranch, session: str) -> str:
    return f"{session}/{branch.name}" if branch.fork is None else branch.fork(session)


def _pages(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield some records at a time, few if they are large."""
    page: list[Record] = []
    items = 0
    for each in records:
        page.append(each)
        items += len(each.items) if isinstance(each, SourceConversation) else 1
        if items >= _PAGE_ITEMS or len(page) >= _PAGE:
            yield page
            page, items = [], 0
    yield page


# --- Lines of one conversation --------------------------------------------------------------------


def _changed_us(path: str) -> int:
    """Return when a source was changed last, in microseconds, to the millisecond, or else now."""
    try:
        found = os.stat(path).st_mtime_ns
    except (OSError, ValueError):  # the address of a server, or no such file, which is told later
        found = time.time_ns()
    return found // 1_000_000 * 1000


def _times(record: SourceConversation, known_us: int) -> tuple[int, list[int]]:
    """Return when a conversation began, and the times of its items, in microseconds.

    An item without a time has that of the one before it, those in front the first that is known;
    ``known_us`` is that of an earlier import, or of the source.
    """
    given = [item.created_us for item in record.items]
    first = next(each for each in (record.created_us, *given, known_us) if each is not None)
    last = began = first
    found: list[int] = []
    for each in given:
        last = last if each is None else each
        found.append(last)
    return min(began, *found) if found else began, found


def _item_body(at: int, item: SourceItem, created_us: int, *, is_live: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"seq": at + 1, "kind": "event" if item.event else "item"}
    body["created_us"] = created_us
    if not is_live:
        body["undone"] = True
        if item.after is not None and item.after != at - 1:
            body["after"] = item.after + 1
    if item.meta is not None:
        body["meta"] = item.meta
    if item.author is not None:
        body["envelope"] = {"author": item.author}
    if item.request_id is not None:
        body["request_id"] = item.request_id
    message = {"type": item.event, "payload": item.message} if item.event else item.message
    body["item"] = message
    return body


def _size_of(value: Any) -> int:
    """Return about how many bytes a value has as JSON."""
    try:
        return len(orjson.dumps(value))
    except (orjson.JSONEncodeError, RecursionError):  # large numbers, lone surrogates
        return len(portable_json(value))


def _view_line(covered: int, summary: Any, times: list[int]) -> ParsedLine:
    body = {
        "cut_seq": summary.last + 1,
        "covered": covered,
        "summary": summary.text,
        "pinned": [],
        "status": "summarized",
        "tokens_before": 0,
        "tokens_after": 0,
        "created_ms": min(times[summary.last] // 1000, TIME_MS_END - 1),
        "reason": "import",
    }
    return ParsedLine({"view": body}, _LINE_BYTES + len(summary.text))


def _checkpoint_line(
    branch: SourceBranch, tree: ItemTree, times: list[int], created_ms: int
) -> ParsedLine:
    segments: list[list[int]] = []
    for at in tree.path(branch.leaf):
        if segments and segments[-1][1] == at:
            segments[-1][1] = at + 1
        else:
            segments.append([at + 1, at + 1])
    body = {
        "name": branch.name,
        "segments": segments,
        "view": 0,
        "revision": branch.leaf + 1,
        "tokens": 0,
        "created_ms": times[branch.leaf] // 1000 or created_ms,
    }
    return ParsedLine({"checkpoint": body}, _LINE_BYTES)


def _state_lines(record: SourceConversation) -> Iterator[ParsedLine]:
    """Yield the values of the state: none before the first item, then each change."""
    now: dict[str, tuple[bytes, int]] = {}
    changes: list[tuple[int, dict[str, Any]]] = []
    for at, values in record.state:
        encoded = {name: encode_json(value) for name, value in values.items()}
        fresh = {name: values[name] for name, each in encoded.items() if now.get(name) != each}
        now |= encoded
        if fresh:
            changes.append((at, fresh))
    if not changes:
        return
    moments = [[at + 2, number] for number, (at, _) in enumerate(changes, 1)]
    first = {"counter": 0, "values": {}, "floor": 0, "moments": moments}
    yield ParsedLine({"state": first}, _LINE_BYTES)
    for number, (_, values) in enumerate(changes, 1):
        body = {"counter": number, "set": values, "deleted": []}
        yield ParsedLine({"state": body}, _LINE_BYTES + _size_of(values))


def _has_state(txn: ReadTxn, record: SourceState) -> bool:
    """Return whether a shared state has these values already."""
    app, user = record.app, record.user
    scope = names.app_scope_of(txn, app) if user is None else names.scope_of(txn, app, user)
    there = {} if scope is None else values_at(txn, scope, 0)
    return all(
        name in there and (there[name].body, there[name].flags) == encode_json(value)
        for name, value in record.values.items()
    )


def _head_of(txn: ReadTxn, place: Place) -> Head | None:
    """Return the head of a session; None if there is none of that name, or it is no name."""
    try:
        scope = names.scope_of(txn, *place[:2])
        number = None if scope is None else names.session_of(txn, scope, place[2])
    except InvalidOptionError:
        return None  # its import says why
    if scope is None or number is None:
        return None
    key = head_key(scope, number)
    value = txn.get(key)
    return None if value is None else Head.unpack(key, value)


def _parent_of(txn: ReadTxn, place: Place, fork: str) -> tuple[bool, int] | None:
    """Return whether a session was forked from another one, and at which seq; None: it is new."""
    head = _head_of(txn, (*place[:2], fork))
    scope = names.scope_of(txn, *place[:2])
    if head is None or scope is None:
        return None
    return head.parent_session == names.session_of(txn, scope, place[2]), head.parent_seq
