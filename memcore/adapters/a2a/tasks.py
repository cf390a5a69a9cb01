"""MemcoreTaskStore: the tasks of an A2A server, each a session of its caller.

A save appends what is new, the messages as items and the parts of artifacts as events, and behind
them an event with the task's frame: all else, and which messages and parts belong to it. So a task
that streams costs what it streams, and its session tells how it went.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeVar

from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
from a2a.server.tasks.task_store import TaskStore
from a2a.types.a2a_pb2 import Artifact, ListTasksRequest, ListTasksResponse, Message, Part, Task
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import ListTasksCursor, decode_list_tasks_cursor, encode_list_tasks_cursor
from google.protobuf.json_format import Error as JsonError
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from typing_extensions import override

from memcore import session as sessions
from memcore.adapters.a2a.messages import FIELD, from_a2a, json_of, packed, remade
from memcore.adapters.source import Opened, Source, database_of
from memcore.aio.commit import settled
from memcore.codec.values import encode_json
from memcore.errors import InvalidItemError, InvalidOptionError, RevisionConflict, StoreLockedError
from memcore.log import Prepared
from memcore.model import Envelope, Item, ItemKind
from memcore.session import Session
from memcore.session.append import PLAIN, Append, ItemOptions, encode_event, encode_items, store
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


def _digests(messages: Sequence[Any], first: int) -> tuple[str, str]:
    """Return the digests of the first protobuf messages of a sequence, and of all."""
    found = blake2b(digest_size=16)
    before = ""
    for at, message in enumerate((*messages, None)):
        if at == first:
            before = found.hexdigest()
        if message is not None:
            content = packed(message)
            found.update(len(content).to_bytes(8, "little"))
            found.update(content)
    return before, found.hexdigest()


def _digest(message: Message) -> str:
    return _digests([message], 0)[1]


_NOTHING: Final[dict[str, Any]] = {"count": 0, "digest": _digests([], 0)[0], "runs": []}
"""Frame of a history or an artifact before its first save."""


# --- A stored task --------------------------------------------------------------------------------


@dataclass(slots=True)
class _StoredTask:
    """A task's session, read: its last frame, and what the frames refer to."""

    revision: int = 0
    frame: dict[str, Any] = field(default_factory=dict)
    """Empty if there is no task."""
    messages: dict[int, Item] = field(default_factory=dict)
    rests: dict[int, Any] = field(default_factory=dict)
    parts: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, items: Iterable[Item], revision: int) -> _StoredTask:
        """Read the items of a session."""
        found = cls(revision)
        for item in items:
            found.take(item)
        return found

    def take(self, item: Item) -> None:
        """Read one item; other ones than a task's are ignored."""
        if item.kind != ItemKind.EVENT:
            kept = (item.meta or {}).get(FIELD)
            if isinstance(kept, dict) and isinstance(kept.get(_NUMBERED), int):
                self.messages[kept[_NUMBERED]] = item
            return
        payload = item.message["payload"]
        if item.message["type"] == _FRAME:
            self.frame = _checked_frame(payload)
        elif item.message["type"] in (_PART, _REST) and isinstance(payload, dict):
            number = payload.get(_NUMBERED)
            if isinstance(number, int):
                rows = self.parts if item.message["type"] == _PART else self.rests
                rows[number] = payload

    def message(self, number: int) -> Message | None:
        """Return a message; None if its item is gone: it expired or was erased."""
        item = self.messages.get(number)
        return None if item is None else remade(item.message, self.kept(number))

    def kept(self, number: int) -> dict[str, Any]:
        """Return what is kept of a message beside its item."""
        found = {**(self.messages[number].meta or {})[FIELD], **self.rests.get(number, {})}
        del found[_NUMBERED]
        return found

    def task(self) -> Task | None:
        """Return the task; None if there is none.

        Raises:
            InvalidItemError: it is damaged.
        """
        if not self.frame:
            return None
        try:
            task = _opened(self.frame["task"], Task())
            if self.frame["said"] is not None:
                said = self.message(self.frame["said"])
                if said is not None:
                    task.status.message.CopyFrom(said)
            for number in _within(self.frame["history"]["runs"], self.messages):
                found = self.message(number)
                if found is not None:
                    task.history.append(found)
            for row in self.frame["artifacts"]:
                artifact = _opened(row["head"], task.artifacts.add())
                for number in _within(row["runs"], self.parts):
                    artifact.parts.append(_opened(self.parts[number], Part()))
        except (JsonError, DecodeError, ValueError, TypeError, LookupError) as error:
            msg = f"a task of A2A is damaged: {error}"
            raise InvalidItemError(msg) from error
        return task


def _checked_frame(frame: Any) -> dict[str, Any]:
    """Return a frame that was read: anybody may record an event.

    Raises:
        InvalidItemError: no save wrote it.
    """
    fields = {
        "id": str, "context": str, "state": int, "at": int | None, "task": dict,
        "said": int | None, "said_digest": str | None, "history": dict, "artifacts": list,
        "next": list,
    }  # fmt: skip
    if isinstance(frame, dict) and all(
        isinstance(frame.get(name, ...), kind) for name, kind in fields.items()
    ):
        rows = [frame["history"], *frame["artifacts"]]
        numbers = [frame["next"], *(run for row in rows if _is_row(row) for run in row["runs"])]
        if all(map(_is_row, rows)) and all(map(_is_pair, numbers)):
            return frame
    msg = f"an event {_FRAME!r} is not what a save of a task writes"
    raise InvalidItemError(msg)


def _is_row(row: Any) -> bool:
    """Return whether it is the row of a history or an artifact."""
    return (
        isinstance(row, dict)
        and isinstance(row.get("count"), int)
        and isinstance(row.get("digest"), str)
        and isinstance(row.get("runs"), list)
        and isinstance(row.get("id", ""), str)
    )


def _is_pair(found: Any) -> bool:
    return (
        isinstance(found, list)
        and len(found) == len(("first", "last"))
        and all(isinstance(each, int) and each >= 0 for each in found)
    )


P = TypeVar("P", Task, Artifact, Part)


def _sealed(message: Any, *, is_filtered: bool) -> dict[str, Any]:
    """Return a protobuf message as a row: its JSON, and its bytes if that does not hold all.

    No filter of contents looks into bytes: where there is one, they are left out.
    """
    row: dict[str, Any] = {"json": json_of(message)}
    exact = packed(message)
    if not is_filtered and packed(ParseDict(row["json"], type(message)())) != exact:
        row["bytes"] = b64encode(exact).decode()
    return row


def _opened(row: dict[str, Any], into: P) -> P:
    """Read a row of ``_sealed``."""
    if "bytes" in row:
        into.MergeFromString(b64decode(row["bytes"], validate=True))
    else:
        ParseDict(row["json"], into)
    return into


# --- A save ---------------------------------------------------------------------------------------


class _Save:
    """Items that a save appends to the session of a task."""

    def __init__(self, ref: SessionRef, stored: _StoredTask, agent: str) -> None:
        self.items: list[Prepared] = []
        self._ref = ref
        self._stored = stored
        self._agent = agent
        self._is_filtered = ref.scope_filter is not None
        self._next = list(stored.frame.get("next", (0, 0)))
        """Number of the next message, and of the next part."""

    def take(self, task: Task) -> None:
        """Append what is new of a task, and its frame if anything is."""
        old = self._stored.frame
        status = task.status.message if task.status.HasField("message") else None
        said_digest = None if status is None else _digest(status)
        history = self._history(list(task.history), old)
        said: int | None = None
        if status is not None:
            is_old = old.get("said_digest") == said_digest
            said = old["said"] if is_old else self._message(status)
        artifacts = self._artifacts(task.artifacts, old.get("artifacts", []))
        head = Task()
        head.CopyFrom(task)
        del head.history[:], head.artifacts[:]
        head.status.ClearField("message")
        if not task.HasField("status"):
            head.ClearField("status")
        has_time = task.status.HasField("timestamp")
        frame = {
            "id": task.id,
            "context": task.context_id,
            "state": task.status.state,
            "at": task.status.timestamp.ToNanoseconds() if has_time else None,
            "task": _sealed(head, is_filtered=self._is_filtered),
            "said": said,
            "said_digest": said_digest,
            "history": history,
            "artifacts": artifacts,
            "next": self._next,
        }
        if frame != old:
            self.items.append(encode_event(self._ref, _FRAME, frame, PLAIN))

    def _history(self, messages: list[Message], old: dict[str, Any]) -> dict[str, Any]:
        """Return which messages the history has; those that are new are appended."""
        had = old.get("history", _NOTHING)
        before, whole = _digests(messages, had["count"])
        runs, fresh = had["runs"], messages[had["count"] :]
        known: dict[str, int] = {}
        if before != had["digest"]:  # it was rewritten: what is stored is not stored again
            runs, fresh = [], messages
            known = {
                _digest(found): number
                for number in self._stored.messages
                if (found := self._stored.message(number)) is not None
            }
        if old.get("said") is not None:
            known[old["said_digest"]] = old["said"]  # its way into the history is usual
        numbers = []
        for message in fresh:
            number = known.get(_digest(message)) if known else None
            numbers.append(self._message(message) if number is None else number)
        return {"count": len(messages), "digest": whole, "runs": _joined(runs, numbers)}

    def _message(self, message: Message) -> int:
        """Append a message; return its number."""
        number: int = self._next[0]
        self._next[0] += 1
        said = from_a2a(message, author=self._agent)
        kept = said["meta"][FIELD]
        if self._is_filtered:
            kept.pop("bytes", None)
        if len(encode_json(kept)[0]) > _REST_BYTES:
            rest = {_NUMBERED: number, **kept}
            self.items.append(encode_event(self._ref, _REST, rest, PLAIN))
            kept = {}
        meta = {FIELD: {_NUMBERED: number, **kept}}
        options = ItemOptions(meta, None, Envelope(author=self._agent))
        self.items += encode_items(self._ref, [said["item"]], options)
        return number

    def _artifacts(
        self, artifacts: Iterable[Artifact], old: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return which parts the artifacts have; those that are new are appended."""
        by_id: dict[str, list[dict[str, Any]]] = {}
        for row in reversed(old):  # nothing keeps an agent from using an id twice
            by_id.setdefault(row["id"], []).append(row)
        rows = []
        for artifact in artifacts:
            same = by_id.get(artifact.artifact_id)
            had = same.pop() if same else _NOTHING
            parts = list(artifact.parts)
            before, whole = _digests(parts, had["count"])
            is_longer = before == had["digest"]
            runs = had["runs"] if is_longer else []
            fresh = parts[had["count"] :] if is_longer else parts
            head = Artifact()
            head.CopyFrom(artifact)
            del head.parts[:]
            rows.append({
                "id": artifact.artifact_id,
                "head": _sealed(head, is_filtered=self._is_filtered),
                "count": len(parts),
                "digest": whole,
                "runs": _joined(runs, map(self._part, fresh)),
            })  # fmt: skip
        return rows

    def _part(self, part: Part) -> int:
        """Append a part of an artifact; return its number."""
        number: int = self._next[1]
        self._next[1] += 1
        row = {_NUMBERED: number, **_sealed(part, is_filtered=self._is_filtered)}
        self.items.append(encode_event(self._ref, _PART, row, PLAIN))
        return number


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
            StoreLockedError: others saved it again and again meanwhile.
            InvalidItemError, BlockedError, StorageError
        """
        given = Task()
        given.CopyFrom(task)  # the caller may change it meanwhile
        await _in_thread(self._save, given, self._owner(context))

    @override
    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a task of the caller; None if there is none.

        Raises:
            InvalidItemError, StorageError: it is damaged.
        """
        session = self.session(task_id, context)
        return await _in_thread(lambda: _read(session).task())

    @override
    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """List the caller's tasks, the one with the latest status first.

        Raises:
            InvalidParamsError: the page token is invalid.
            StorageError
        """
        return await _in_thread(self._list, params, self._owner(context))

    @override
    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete a task of the caller with all that was said in it.

        Raises:
            HeldError, StorageError
        """
        owner = self._owner(context)
        scope = self.database.scope(app=self.app, user=owner)
        await _in_thread(scope.delete_session, _name(task_id))

    async def history(
        self, context_id: str, context: ServerCallContext
    ) -> Sequence[dict[str, Any]]:
        """Return what was said in all tasks of a context, each message once, for a model.

        Give it to ``memcore.Payload.history``; its messages are those of OpenAI's chat format.

        Raises:
            InvalidItemError, StorageError
        """
        return await _in_thread(self._said, context_id, self._owner(context))

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
        session = self._session(task.id, owner)
        ref = sessions.ref_of(session)
        for _ in range(_ATTEMPTS):
            stored = _read(session)
            save = _Save(ref, stored, self.agent)
            save.take(task)
            if not save.items:
                return
            try:
                store(Append(ref, save.items, expected_revision=stored.revision))
            except RevisionConflict:
                continue
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
            frame = _StoredTask.of(session.tail(1), 0).frame or _read(session).frame
            if not frame or context_id not in ("", frame["context"]):
                continue
            order = frame["at"] is not None, frame["at"] or 0, frame["id"]
            yield _Listed(order, frame["state"], session)

    def _list(self, params: ListTasksRequest, owner: str) -> ListTasksResponse:
        found = [
            task
            for task in self._tasks(owner, params.context_id)
            if params.status in (0, task.state)
        ]
        if params.HasField("status_timestamp_after"):
            least = params.status_timestamp_after.ToNanoseconds()
            found = [task for task in found if task.order[0] and task.order[1] >= least]
        found.sort(reverse=True)
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
        found: list[tuple[float, int, str | None, Item]] = []
        for task in self._tasks(owner, context_id):
            stored = _read(task.session)
            found += (
                (item.created_at, number, stored.kept(number).get("message_id"), item)
                for number, item in stored.messages.items()
            )
        found.sort(key=lambda each: each[:2])
        said: dict[object, dict[str, Any]] = {}
        for at, (_, _, message_id, item) in enumerate(found):
            said.setdefault(at if message_id is None else message_id, item.message)
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
    """Read the session of a task; the revision is read first, so that a later change is noticed."""
    revision = session.revision
    return _StoredTask.of(session.items(), revision)


async def _in_thread(fn: Callable[..., T], *args: Any) -> T:
    """Run a function in a thread to its end, even if the caller is cancelled: no late save."""
    return await settled(asyncio.ensure_future(asyncio.to_thread(fn, *args)))
