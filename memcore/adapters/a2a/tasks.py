"""MemcoreTaskStore: the tasks of an A2A server, each a session of its caller.

A save appends what is new, the messages as items and the parts of artifacts as events, and behind
them an event with the task's frame: its state, which messages and parts belong to it, and what has
changed of its metadata and artifacts. So a task that streams costs what it streams, and its session
tells how it went.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar

from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
from a2a.server.tasks.task_store import TaskStore
from a2a.types.a2a_pb2 import Artifact, ListTasksRequest, ListTasksResponse, Message, Task
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import ListTasksCursor, decode_list_tasks_cursor, encode_list_tasks_cursor
from google.protobuf.json_format import Error as JsonError
from typing_extensions import override

from memcore import session as sessions
from memcore.adapters.a2a.messages import (
    FIELD,
    filled,
    from_a2a,
    packed,
    remade,
    row_of,
    to_a2a,
)
from memcore.adapters.source import Opened, Source, database_of, in_thread
from memcore.aio.commit import settled
from memcore.codec.values import encode_json
from memcore.errors import InvalidItemError, InvalidOptionError, RevisionConflict, StoreLockedError
from memcore.faces import logger
from memcore.log import Prepared, SessionTxn
from memcore.log.session_txn import revision_conflict
from memcore.model import Envelope, Item, ItemKind
from memcore.records import record
from memcore.session import Session
from memcore.session.append import PLAIN, Append, ItemOptions, encode_event, encode_items, store
from memcore.session.change import Unchanged
from memcore.session.engine import SessionRef
from memcore.telemetry import adapting, adapts

__all__ = [
    "MemcoreTaskStore",
]


T = TypeVar("T")
_PREFIX: Final = "a2a:"
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
_FRAME: Final = "a2a.task"
"""Type of the event with a task's frame."""
_PART: Final = "a2a.part"
_REST: Final = "a2a.rest"
"""Type of the event with what is kept of a message, if that is large."""
_REST_BYTES: Final = 16 * 1024
_ATTEMPTS: Final = 64
_DIGITS_END: Final = 12
"""Digits that the number of an artifact never has: anybody may record one."""
_KNOWN_MAX: Final = 256
"""Tasks whose frames are remembered for their next save."""
_ENUM_END: Final = 2**31
_TIME_END: Final = 253_402_300_800 * 10**9
"""End of the times that a timestamp can hold, the year 9999, in nanoseconds."""
_log: Final = logger("memcore.a2a")
_UNKNOWN: Final = -1, None
_DIGEST: Final = "digest"
"""Field of a message's digest, as it came: what is stored may be redacted."""
_NUMBERED: Final = "n"
"""Field of the number of a message or part: they are numbered in the order of their arrival."""


# --- Runs of numbers, and digests of sequences ----------------------------------------------------


def _joined(runs: Sequence[Sequence[int]], numbers: Iterable[int]) -> list[list[int]]:
    """Return runs of first and last number, with more numbers behind them."""
    found = [list(run) for run in runs]
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def _within(runs: Iterable[Sequence[int]], known: Iterable[int]) -> Iterator[int]:
    """Yield which of the known numbers are in the runs; what expired is in none."""
    ascending = sorted(known)
    for first, last in runs:
        yield from ascending[bisect_left(ascending, first) : bisect_right(ascending, last)]


class _Digests:
    """Digests of what was saved, under the secret of the file: nobody else can test guesses."""

    def __init__(self, ref: SessionRef) -> None:
        store_ = ref.engine.store
        self._key = store_.secret.found() or store_.seed

    def of(self, messages: Sequence[Any], first: int = 0) -> tuple[str, str]:
        """Return the digests of the first protobuf messages of a sequence, and of all."""
        found = blake2b(digest_size=16, key=self._key)
        before = ""
        for at, message in enumerate((*messages, None)):
            if at == first:
                before = found.hexdigest()
            if message is not None:
                content = packed(message)
                found.update(len(content).to_bytes(8, "little"))
                found.update(content)
        return before, found.hexdigest()

    def one(self, message: Any) -> str:
        """Return the digest of one protobuf message."""
        return self.of([message])[1]


_NOTHING: Final[dict[str, Any]] = {"count": 0, "digest": "", "runs": []}
"""Row of a history or an artifact before its first save."""


# --- A stored task --------------------------------------------------------------------------------


@record(slots=True)
class _StoredTask:
    """A task's session, read: what its frames say, and what they refer to."""

    frame: dict[str, Any] = field(default_factory=dict)
    """The last one; empty if there is no task."""
    head: dict[str, Any] = field(default_factory=dict)
    """Row of the task without history, artifacts and status, and its digest."""
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Rows of artifacts by number."""
    messages: dict[int, Item] = field(default_factory=dict)
    rests: dict[int, Any] = field(default_factory=dict)
    parts: dict[tuple[str, int], Any] = field(default_factory=dict)
    following: int = 0
    """Number of the next message."""

    @classmethod
    def of(cls, items: Iterable[Item]) -> _StoredTask:
        """Read the items of a session."""
        found = cls()
        for item in items:
            found.take(item)
        return found

    def take(self, item: Item) -> None:
        """Read one item; other ones than a task's, and placeholders of such, are ignored."""
        if item.kind != ItemKind.EVENT:
            kept = (item.meta or {}).get(FIELD)
            if isinstance(kept, dict) and _is_number(kept.get(_NUMBERED)):
                self.messages[kept[_NUMBERED]] = item
                self.following = max(self.following, kept[_NUMBERED] + 1)
            return
        kind, payload = item.message["type"], item.message["payload"]
        if kind == _FRAME and _is_frame(payload):
            self.frame = payload
            self.head = payload.get("head", self.head)
            self.artifacts |= payload["changed"]
            self.following = max(self.following, payload["next"])
        elif kind in (_PART, _REST) and isinstance(payload, dict):
            number, artifact = payload.get(_NUMBERED), payload.get("of")
            if _is_number(number) and kind == _REST:
                self.rests[number] = payload
            elif _is_number(number) and isinstance(artifact, str):
                self.parts[artifact, number] = payload

    def message(self, number: int) -> Message | None:
        """Return a message; None if its item is gone: it expired or was erased.

        Of one that waits in quarantine, or was cut, what is shown of it.
        """
        item = self.messages.get(number)
        if item is None:
            return None
        kept = self.kept(number)
        try:
            return remade(item.message, kept)
        except InvalidItemError:
            name = kept.get("message_id")
            return to_a2a(item.message, message_id=name if isinstance(name, str) else None)

    def kept(self, number: int) -> dict[str, Any]:
        """Return what is kept of a message beside its item."""
        found = {**(self.messages[number].meta or {})[FIELD], **self.rests.get(number, {})}
        return {name: value for name, value in found.items() if name not in (_NUMBERED, _DIGEST)}

    def numbers(self) -> dict[str, int]:
        """Return the numbers of the messages by their digests."""
        kept = {number: (item.meta or {})[FIELD] for number, item in self.messages.items()}
        return {
            each[_DIGEST]: number
            for number, each in kept.items()
            if isinstance(each.get(_DIGEST), str)
        }

    def task(self) -> Task | None:
        """Return the task, as far as it is there; None if there is none."""
        if not self.frame:
            return None
        frame = self.frame
        task = Task()
        _fill_row(self.head.get("row"), task)
        task.id, task.context_id = frame["id"], frame["context"]
        if frame["state"] is not None:
            task.status.state = frame["state"]
            if frame["at"] is not None:
                task.status.timestamp.FromNanoseconds(frame["at"])
            said = None if frame["said"] is None else self.message(frame["said"])
            if said is not None:
                task.status.message.CopyFrom(said)
        for number in _within(frame["history"]["runs"], self.messages):
            found = self.message(number)
            if found is not None:
                task.history.append(found)
        numbers: dict[str, list[int]] = {}
        for name, number in self.parts:
            numbers.setdefault(name, []).append(number)
        for name in frame["artifacts"]:
            row = self.artifacts.get(name)
            if row is not None:
                artifact = task.artifacts.add()
                _fill_row(row.get("row"), artifact)
                for number in _within(row["runs"], numbers.get(name, ())):
                    _fill_row(self.parts[name, number].get("row"), artifact.parts.add())
        return task


_PAIR: Final = [True, True]


def _is_number(found: Any) -> TypeGuard[int]:
    return isinstance(found, int) and not isinstance(found, bool) and found >= 0


def _is_frame(frame: Any) -> bool:
    """Return whether a save wrote the payload of an event: anybody may record one."""
    if not isinstance(frame, dict):
        return False
    fields = {
        "id": str, "context": str, "state": int | None, "at": int | None, "said": int | None,
        "said_digest": str | None, "history": dict, "artifacts": list, "changed": dict, "next": int,
    }  # fmt: skip
    return (
        all(isinstance(frame.get(name, ...), kind) for name, kind in fields.items())
        and isinstance(frame.get("head", {}), dict)
        and all(isinstance(name, str) for name in frame["artifacts"])
        and all(map(_is_row, (frame["history"], *frame["changed"].values())))
        and all(
            isinstance(row.get("id"), str) and _is_number(row.get("next", 0))
            for row in frame["changed"].values()
        )
        and abs(frame["state"] or 0) < _ENUM_END
        and abs(frame["at"] or 0) < _TIME_END
    )


def _is_row(row: Any) -> bool:
    """Return whether it is the row of a history or an artifact."""
    return (
        isinstance(row, dict)
        and isinstance(row.get("count"), int)
        and isinstance(row.get("digest"), str)
        and isinstance(row.get("runs"), list)
        and all(isinstance(run, list) and [*map(_is_number, run)] == _PAIR for run in row["runs"])
    )


def _fill_row(row: Any, into: Any) -> None:
    """Fill a protobuf message from its row, as far as that can be read: it may be a placeholder."""
    made = type(into)()
    try:
        into.CopyFrom(filled(row, made))
    except (JsonError, ValueError, TypeError, LookupError, AttributeError):
        _log.warning("a part of an A2A task cannot be read: it was cut, or waits in quarantine")


# --- A save ---------------------------------------------------------------------------------------


class _Save:
    """Items that a save appends to the session of a task."""

    def __init__(self, ref: SessionRef, stored: _StoredTask, agent: str) -> None:
        self.items: list[Prepared] = []
        self.frame: dict[str, Any] = {}
        self._ref = ref
        self._stored = stored
        self._agent = agent
        self._digests = _Digests(ref)
        self._next = stored.following

    def take(self, task: Task, whole: Callable[[], _StoredTask]) -> None:
        """Append what is new of a task, and a frame if anything is.

        ``whole``: reads the session, whose messages are needed if the history was rewritten.
        """
        old = self._stored.frame
        has_status = task.HasField("status")
        status = task.status.message if task.status.HasField("message") else None
        said_digest = None if status is None else self._digests.one(status)
        history = self._history(list(task.history), old, whole)
        said: int | None = None
        if status is not None:
            is_old = old.get("said_digest") == said_digest
            said = old["said"] if is_old else self._message(status, str(said_digest))
        names, changed = self._artifacts(task.artifacts)
        has_time = task.status.HasField("timestamp")
        frame = {
            "id": task.id,
            "context": task.context_id,
            "state": task.status.state if has_status else None,
            "at": task.status.timestamp.ToNanoseconds() if has_time else None,
            "said": said,
            "said_digest": said_digest,
            "history": history,
            "artifacts": names,
            "next": self._next,
        }
        head = self._head(task)
        if changed or head or any(old.get(name) != value for name, value in frame.items()):
            self.frame = {**frame, "changed": changed, **head}
            self.items.append(encode_event(self._ref, _FRAME, self.frame, PLAIN))

    def _head(self, task: Task) -> dict[str, Any]:
        """Return what has no place elsewhere in the frame, if it has changed."""
        head = Task()
        head.CopyFrom(task)
        del head.history[:], head.artifacts[:]
        for name in ("id", "context_id", "status"):
            head.ClearField(name)
        digest = self._digests.one(head)
        if self._stored.head.get("digest") == digest:
            return {}
        return {"head": {"row": row_of(head), "digest": digest}}

    def _history(
        self, messages: list[Message], old: dict[str, Any], whole: Callable[[], _StoredTask]
    ) -> dict[str, Any]:
        """Return which messages the history has; those that are new are appended."""
        had = old.get("history", _NOTHING)
        before, digest = self._digests.of(messages, had["count"])
        runs, fresh = had["runs"], messages[had["count"] :]
        known: dict[str, int] = {}
        if had["count"] and before != had["digest"]:  # rewritten: nothing is stored twice
            runs, fresh = [], messages
            known = whole().numbers()
        if old.get("said") is not None:
            known[old["said_digest"]] = old["said"]  # its way into the history is usual
        numbers = []
        for message in fresh:
            digest_of_one = self._digests.one(message)
            number = known.get(digest_of_one)
            if number is None:
                number = self._message(message, digest_of_one)
            numbers.append(number)
        return {"count": len(messages), "digest": digest, "runs": _joined(runs, numbers)}

    def _message(self, message: Message, digest: str) -> int:
        """Append a message; return its number."""
        number = self._next
        self._next += 1
        said = from_a2a(message, author=self._agent)
        kept = said["meta"][FIELD]
        if len(encode_json(kept)[0]) > _REST_BYTES:
            rest = {_NUMBERED: number, **kept}
            self.items.append(encode_event(self._ref, _REST, rest, PLAIN))
            kept = {}
        meta = {FIELD: {_NUMBERED: number, _DIGEST: digest, **kept}}
        options = ItemOptions(meta, None, Envelope(author=self._agent))
        self.items += encode_items(self._ref, [said["item"]], options)
        return number

    def _artifacts(
        self, artifacts: Iterable[Artifact]
    ) -> tuple[list[str], dict[str, dict[str, Any]]]:
        """Return the numbers of the artifacts in their order, and the rows that have changed."""
        stored = self._stored
        by_id: dict[str, list[str]] = {}
        for name in reversed(stored.frame.get("artifacts", ())):
            row = stored.artifacts.get(name)
            if row is not None:  # nothing keeps an agent from using an id twice
                by_id.setdefault(row["id"], []).append(name)
        names: list[str] = []
        changed: dict[str, dict[str, Any]] = {}
        taken = {*stored.artifacts, *(name for name, _ in stored.parts)}
        numbers = (int(name) for name in taken if len(name) < _DIGITS_END and name.isdecimal())
        following = max(numbers, default=-1) + 1
        for artifact in artifacts:
            same = by_id.get(artifact.artifact_id)
            if same:
                name = same.pop()
                had = stored.artifacts[name]
            else:
                name, had, following = str(following), _NOTHING, following + 1
            row = self._artifact(name, artifact, had)
            names.append(name)
            if row is not had:
                changed[name] = row
        return names, changed

    def _artifact(self, name: str, artifact: Artifact, had: dict[str, Any]) -> dict[str, Any]:
        """Return the row of an artifact: ``had`` itself if nothing has changed."""
        parts = list(artifact.parts)
        before, digest = self._digests.of(parts, had["count"])
        is_longer = not had["count"] or before == had["digest"]
        runs = had["runs"] if is_longer else []
        fresh = parts[had["count"] :] if is_longer else parts
        head = Artifact()
        head.CopyFrom(artifact)
        del head.parts[:]
        head_digest = self._digests.one(head)
        if not fresh and len(parts) == had["count"] and head_digest == had.get("head"):
            return had
        first = had.get("next", 0)
        for number, part in enumerate(fresh, first):
            row = {_NUMBERED: number, "of": name, "row": row_of(part)}
            self.items.append(encode_event(self._ref, _PART, row, PLAIN))
        return {
            "id": artifact.artifact_id,
            "row": row_of(head),
            "head": head_digest,
            "count": len(parts),
            "digest": digest,
            "runs": _joined(runs, range(first, first + len(fresh))),
            "next": first + len(fresh),
        }


class _AppendFrame(Append):
    """Append what a save makes, to the very session that it was made for."""

    __slots__ = ("place",)

    def __init__(
        self,
        ref: SessionRef,
        items: Sequence[Prepared],
        place: tuple[int, int] | None,
        revision: int,
    ) -> None:
        super().__init__(ref, items, expected_revision=revision)
        self.place = place

    def run(self, session: SessionTxn) -> Unchanged | None:
        """Append the items.

        Raises:
            RevisionConflict: another session has the name now, or it has another revision.
        """
        if self.place is not None and session.log.place != self.place:
            raise revision_conflict(self.expected_revision or 0, session.head.revision)
        return super().run(session)


# --- The store ------------------------------------------------------------------------------------


class _Listed(NamedTuple):
    """A task as it is listed."""

    order: tuple[bool, int, str]
    """True if it has a time, the time in nanoseconds, and its id."""
    state: int
    session: Session

    @property
    def cursor(self) -> ListTasksCursor:
        """Return its place in a listing."""
        has_time, at, task_id = self.order
        return ListTasksCursor(timestamp_ns=at if has_time else None, task_id=task_id)


@adapts(
    save="task.put . single",
    get="task.get",
    list="task.list",
    delete="task.delete",
    history="task.list . count",
)
class MemcoreTaskStore(Opened, TaskStore):
    """The tasks of an A2A server in a memcore file.

    Every authenticated caller has a scope of its own, named by ``owner_resolver``, never by a
    message. Each task is a session ``a2a:ID`` there. A save is one commit; of two at once, the
    later one counts, and both are in the log.

    Args:
        source: a database, or the path of a file.
        app: the application of all scopes.
        agent: author of the messages: their word is not the user's.
        owner_resolver: returns the user of a call; by default the name of the authenticated user.
        anonymous: the user of calls that nobody is authenticated for.
        durability: of a file that is created here, as for ``memcore.open``.
        allow_unsafe: consent to ``durability="none"``.

    Raises:
        InvalidOptionError: an option is invalid.
    """

    def __init__(
        self,
        source: Source,
        *,
        app: str = "default",
        agent: str = "a2a",
        owner_resolver: OwnerResolver = resolve_user_scope,
        anonymous: str = "anonymous",
        durability: str | None = None,
        allow_unsafe: bool = False,
    ) -> None:
        Envelope(author=agent)  # refuses an invalid one
        self.database, self._owned = database_of(
            source, durability=durability, allow_unsafe=allow_unsafe
        )
        self.app = app
        self.agent = agent
        self.anonymous = anonymous
        self._owner_resolver = owner_resolver
        self._saving: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._lock = Lock()
        self._known: dict[tuple[int, int], tuple[int, _StoredTask]] = {}
        """Of tasks that were saved here, by the numbers of scope and session, which are never given
        again: the revision, and the frames behind it. Guarded by the lock: saves run in threads."""
        self.observer = adapting(source, "a2a")

    def session(self, task_id: str, context: ServerCallContext) -> Session:
        """Return the session of a task of the caller.

        Raises:
            InvalidOptionError: the caller or the id cannot be a name.
        """
        return self._session(task_id, self._owner(context))

    @override
    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Store a task: what is new since its last save.

        Raises:
            InvalidOptionError: it has no id, or the caller cannot be a name.
            BlockedError: a guard or a redaction rule finds something in an id.
            StoreLockedError: others saved it again and again meanwhile.
            InvalidItemError, StorageError
        """
        given = Task()
        given.CopyFrom(task)  # the caller may change it meanwhile
        owner = self._owner(context)
        loop = asyncio.get_running_loop()
        place = (owner, task.id)
        before = self._saving.get(place)
        if before is not None and before.get_loop() is not loop:
            before = None
        saving = loop.create_task(self._save_after(before, given, owner))
        self._saving[place] = saving
        try:
            await settled(saving)
        finally:
            if self._saving.get(place) is saving:
                self._saving.pop(place, None)

    async def _save_after(self, before: asyncio.Task[None] | None, task: Task, owner: str) -> None:
        """Save a task behind the save that was asked for before: the later one counts."""
        if before is not None:
            await asyncio.wait([before])
        await asyncio.to_thread(self._save, task, owner)

    @override
    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a task of the caller; None if there is none.

        Raises:
            StorageError
        """
        session = self.session(task_id, context)
        return await in_thread(lambda: _read(session).task())

    @override
    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """List the caller's tasks, the one with the latest status first.

        Raises:
            InvalidParamsError: the page token is invalid.
            StorageError
        """
        return await in_thread(self._list, params, self._owner(context))

    @override
    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete a task of the caller with all that was said in it.

        Raises:
            HeldError, StorageError
        """
        owner = self._owner(context)
        scope = self.database.scope(app=self.app, user=owner)
        await in_thread(scope.delete_session, _name(task_id))

    async def history(
        self, context_id: str, context: ServerCallContext
    ) -> Sequence[dict[str, Any]]:
        """Return what was said in all tasks of a context, each message once, for a model.

        Give it to ``memcore.Payload.history``; its messages are those of OpenAI's chat format.

        Raises:
            StorageError
        """
        return await in_thread(self._said, context_id, self._owner(context))

    # --- in a thread ------------------------------------------------------------------------------

    def _owner(self, context: ServerCallContext) -> str:
        """Return the user of a call.

        Raises:
            InvalidOptionError: an authenticated one has the name of those who are not.
        """
        owner = self._owner_resolver(context)
        if owner == self.anonymous:
            msg = f"the user {owner!r} has the name of callers without one: set anonymous="
            raise InvalidOptionError(msg)
        return owner or self.anonymous

    def _session(self, task_id: str, owner: str) -> Session:
        return self.database.session(_name(task_id), app=self.app, user=owner, orphans="keep")

    def _save(self, task: Task, owner: str) -> None:
        scope_filter = sessions.ref_of(self._session(task.id, owner)).scope_filter
        if scope_filter is not None:
            ids = [task.id, task.context_id, *(each.artifact_id for each in task.artifacts)]
            for each in filter(None, ids):
                scope_filter.name(each, "id of a task, a context or an artifact")
        for _ in range(_ATTEMPTS):
            session = self._session(task.id, owner)  # another one may have the name by now
            ref = sessions.ref_of(session)
            log = ref.resolve()
            place = None if log is None else log.place
            revision = session.revision  # first, so that a later change is noticed
            with self._lock:
                known, stored = self._known.pop(place, _UNKNOWN) if place else _UNKNOWN
            if known != revision or stored is None:
                stored = _read(session)
            save = _Save(ref, stored, self.agent)
            save.take(task, partial(_read, session))
            if save.items:
                try:
                    receipt = store(_AppendFrame(ref, save.items, place, revision))
                except RevisionConflict:
                    continue
                revision = receipt.revision
                stored.frame = save.frame
                stored.head = save.frame.get("head", stored.head)
                stored.artifacts |= save.frame["changed"]
                stored.following = save.frame["next"]
            stored.messages, stored.rests, stored.parts = {}, {}, {}
            if place is not None:  # of a new session the next save reads what this one wrote
                with self._lock:
                    self._known[place] = revision, stored
                    if len(self._known) > _KNOWN_MAX:
                        del self._known[next(iter(self._known))]
            return
        msg = f"task {task.id[:80]!r} was saved {_ATTEMPTS} times by others meanwhile: try again"
        raise StoreLockedError(msg)

    def _tasks(self, owner: str, context_id: str) -> Iterator[_Listed]:
        """Yield the caller's tasks, of one context or of all."""
        scope = self.database.scope(app=self.app, user=owner)
        for entry in scope.sessions():
            if not entry.session_id.startswith(_PREFIX):
                continue
            session = scope.session(entry.session_id, orphans="keep")
            frame = _StoredTask.of(session.tail(1)).frame or _read(session).frame
            if not frame or context_id not in ("", frame["context"]):
                continue
            if _name(frame["id"]) != entry.session_id:  # a copy under another name
                continue
            order = frame["at"] is not None, frame["at"] or 0, frame["id"]
            yield _Listed(order, frame["state"] or 0, session)

    def _list(self, params: ListTasksRequest, owner: str) -> ListTasksResponse:
        found = [
            task
            for task in self._tasks(owner, params.context_id)
            if params.status in (0, task.state)
        ]
        if params.HasField("status_timestamp_after"):
            least = params.status_timestamp_after.ToNanoseconds()
            found = [task for task in found if task.order[0] and task.order[1] >= least]
        found.sort(key=lambda task: task.order, reverse=True)
        total, size = len(found), params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
        if params.page_token:
            cursor = decode_list_tasks_cursor(params.page_token)
            if cursor is None:
                msg = f"Invalid page token: {params.page_token}"
                raise InvalidParamsError(msg)
            after = cursor.sort_key()
            found = [task for task in found if task.order < after]
        page = found[:size]
        token = encode_list_tasks_cursor(page[-1].cursor) if len(found) > size else None
        tasks = (_read(task.session).task() for task in page)
        return ListTasksResponse(
            tasks=[task for task in tasks if task is not None],
            next_page_token=token,
            total_size=total,
            page_size=size,
        )

    def _said(self, context_id: str, owner: str) -> Sequence[dict[str, Any]]:
        found: list[tuple[float, int, Any, Item]] = []
        for task in self._tasks(owner, context_id):
            stored = _read(task.session)
            found += (
                (item.created_at, number, stored.kept(number).get("message_id"), item)
                for number, item in stored.messages.items()
            )
        found.sort(key=lambda each: each[:2])
        said: dict[object, dict[str, Any]] = {}
        for at, (_, _, message_id, item) in enumerate(found):
            # Ids are chosen by whoever sends them: another message may have the same.
            text = encode_json(item.message)[0]
            said.setdefault(at if message_id is None else (str(message_id), text), item.message)
        return [*said.values()]


def _name(task_id: str) -> str:
    """Return the name of a task's session.

    Raises:
        InvalidOptionError: the id is empty.
    """
    if not task_id:
        msg = "task: expected an id, got an empty text"
        raise InvalidOptionError(msg)
    is_plain = _PLAIN_ID.fullmatch(task_id) is not None
    text = task_id.encode("utf-8", "surrogatepass")
    return _PREFIX + (task_id if is_plain else f"={blake2b(text, digest_size=16).hexdigest()}")


def _read(session: Session) -> _StoredTask:
    return _StoredTask.of(session.items())
