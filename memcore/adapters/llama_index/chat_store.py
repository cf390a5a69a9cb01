"""MemcoreChatStore: the chat histories of LlamaIndex in a memcore file.

Each key is a session, each message an item of it. The statuses of messages and what was deleted
are ranges of seqs in the session's state: so archiving the oldest messages writes one small row,
however long they are.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus

from memcore.adapters.lines import Line, Lines, name_of, parts_of
from memcore.adapters.source import Opened, Source, in_thread, scope_of
from memcore.context import fit
from memcore.database import Database, Scope
from memcore.database.scope import sessions_under
from memcore.errors import InvalidOptionError
from memcore.model import ItemKind, Message
from memcore.session import ChangeBatch, Session
from memcore.telemetry import adapting, adapts

__all__ = [
    "MemcoreChatStore",
]


_PREFIX: Final = "llama-index"
_FIELD: Final = "llama_index"
_STATE: Final = "llama_index.ranges"
_ROLES: Final = {
    "user": "user",
    "assistant": "assistant",
    "chatbot": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
}
"""Roles of LlamaIndex by those of OpenAI's chat format."""
_NAMES: Final = ("archived", "deleted", "due")

Ranges = list[list[int]]
"""First and last seq of each range, ascending; between two ranges is a line of neither."""


@adapts(
    get_messages="session.items",
    add_message="session.append . single",
    add_messages="session.append . single",
    get_keys="sessions",
)
class MemcoreChatStore(Opened, AsyncDBChatStore):
    """LlamaIndex's chat store: ``Memory.from_defaults(..., chat_store=MemcoreChatStore(...))``.

    Each method is one commit. The index by which ``delete_message`` deletes is the item's ``seq``.
    Deleting a message removes its text from the file; its place in the session stays.

    Args:
        source: a database, a scope, or the path of a file.
        app: the application of the scope.
        user: the user of the scope, whose erasure removes all histories with it.
        durability: of a file that is created here, as for ``memcore.open``.
        allow_unsafe: consent to ``durability="none"``.

    Raises:
        InvalidOptionError: an option is invalid.
    """

    _scope: Scope = PrivateAttr()
    _owned: Database | None = PrivateAttr()

    def __init__(
        self,
        source: Source,
        *,
        app: str | None = None,
        user: str | None = None,
        durability: str | None = None,
        allow_unsafe: bool = False,
    ) -> None:
        super().__init__()
        self._scope, self._owned = scope_of(
            source, app=app, user=user, durability=durability, allow_unsafe=allow_unsafe
        )
        type(self).observer = adapting(source, "llama_index")

    def session(self, key: str) -> Session:
        """Return the session of a key: to search it, to audit it, to fork it.

        Raises:
            InvalidOptionError: the key is no text, or empty.
        """
        return self._lines(key).session

    def context(self, key: str, budget_tokens: int | None = None) -> list[ChatMessage]:
        """Return the newest active messages that fit: never a result without its call.

        A call that was never answered gets a result that says so.

        Raises:
            ContextOverflowError: even the smallest legal context is larger.
        """
        lines = _Ranges.of(self._lines(key)).read(MessageStatus.ACTIVE)
        shown = [line for line in lines if line.item.kind != ItemKind.EVENT]
        items = [line.item.message for line in shown]
        found = fit(items, budget_tokens, policy="openai_chat").messages
        kept = {id(item): line for item, line in zip(items, shown, strict=True)}
        return [
            _chat_message(kept[id(each)]) if id(each) in kept else _made(each) for each in found
        ]

    # --- LlamaIndex's interface -------------------------------------------------------------------

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """Return the messages of a key, oldest first; with a status of None, those of any.

        Args:
            key: the key.
            status: only messages of this status.
            limit: at most this many, from the oldest on.
            offset: behind this many.
        """

        def read() -> list[ChatMessage]:
            first = offset or 0
            stop = None if limit is None else first + limit
            found = _Ranges.of(self._lines(key)).read(status)
            return [_chat_message(line) for line in islice(found, first, stop)]

        return await in_thread(read)

    async def count_messages(
        self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE
    ) -> int:
        """Return the number of messages of a key; with a status of None, of any status."""

        def count() -> int:
            return sum(1 for _ in _Ranges.of(self._lines(key)).read(status))

        return await in_thread(count)

    async def add_message(
        self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Add a message."""
        await self.add_messages(key, [message], status)

    async def add_messages(
        self,
        key: str,
        messages: Sequence[ChatMessage],
        status: MessageStatus = MessageStatus.ACTIVE,
    ) -> None:
        """Add messages in one commit, all or none."""
        if messages:
            await in_thread(self._add, key, list(messages), status)

    async def set_messages(
        self,
        key: str,
        messages: Sequence[ChatMessage],
        status: MessageStatus = MessageStatus.ACTIVE,
    ) -> None:
        """Replace all messages of a key in one commit."""
        await in_thread(self._replace, key, list(messages), status)

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message with this seq and return it; None if there is none."""
        found = await in_thread(self._delete, key, None, idx, None)
        return found[0] if found else None

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Delete the messages of a key; without a status all, and the session with them.

        Raises:
            HeldError: a legal hold covers the session.
        """

        def delete() -> None:
            lines = self._lines(key)
            if status is None:
                self._scope.delete_session(lines.session.id)
            else:
                self._delete(key, status, None, None)

        await in_thread(delete)

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Delete the oldest ``n`` active messages and return them."""
        return await in_thread(self._delete, key, MessageStatus.ACTIVE, None, n)

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Archive the oldest ``n`` active messages and return them."""

        def archive() -> list[ChatMessage]:
            lines = self._lines(key)

            def fill(batch: ChangeBatch) -> list[Line]:
                ranges = _Ranges.of(lines)
                found = list(islice(ranges.read(MessageStatus.ACTIVE), max(n, 0)))
                ranges.put(batch, archived=found)
                return found

            return [_chat_message(line) for line in lines.commit(fill)]

        return await in_thread(archive)

    async def get_keys(self) -> list[str]:
        """Return the keys that have messages, in order."""

        def read() -> list[str]:
            found = sessions_under(self._scope, name_of(_PREFIX, ""))
            return [parts_of(entry.session_id)[0] for entry in found]

        return await in_thread(read)

    @classmethod
    def class_name(cls) -> str:
        """Return the class name."""
        return "MemcoreChatStore"

    # --- in a thread ------------------------------------------------------------------------------

    def _lines(self, key: str) -> Lines:
        if not isinstance(key, str) or not key:
            msg = f"key: expected a text that is not empty, got {key!r:.200}"
            raise InvalidOptionError(msg)
        name = name_of(_PREFIX, key)
        return Lines.of(self._scope, name, _FIELD, _message_of, policy="openai_chat")

    def _add(self, key: str, messages: list[ChatMessage], status: MessageStatus) -> None:
        lines = self._lines(key)
        with lines.session.batch() as batch:
            for message in messages:
                lines.put(batch, _line(message, status))

    def _replace(self, key: str, messages: list[ChatMessage], status: MessageStatus) -> None:
        lines = self._lines(key)

        def fill(batch: ChangeBatch) -> None:
            ranges = _Ranges.of(lines)
            ranges.put(batch, deleted=list(ranges.read(None)))
            for message in messages:
                lines.put(batch, _line(message, status))

        lines.commit(fill)
        _wipe(lines)

    def _delete(
        self, key: str, status: MessageStatus | None, seq: int | None, limit: int | None
    ) -> list[ChatMessage]:
        lines = self._lines(key)

        def fill(batch: ChangeBatch) -> list[Line]:
            ranges = _Ranges.of(lines)
            meant = (line for line in ranges.read(status) if seq is None or line.seq == seq)
            found = list(islice(meant, None if limit is None else max(limit, 0)))
            ranges.put(batch, deleted=found)
            return found

        found = lines.commit(fill)
        _wipe(lines)
        return [_chat_message(line) for line in found]


# --- Ranges of lines by what became of them -------------------------------------------------------


class _Ranges(NamedTuple):
    """Ranges of archived and deleted lines, as a session's state has them."""

    lines: Lines
    archived: Ranges
    deleted: Ranges
    due: Ranges
    """The deleted lines whose text is to be removed from the file."""
    counter: int
    """The number of the last change to the state, before the ranges were read."""

    @classmethod
    def of(cls, lines: Lines) -> _Ranges:
        """Read the ranges of a session."""
        counter = lines.session.state.counter
        found = lines.session.state.get(_STATE) or {}
        archived, deleted, due = (found.get(name, []) for name in _NAMES)
        return cls(lines, archived, deleted, due, counter)

    def read(self, status: MessageStatus | None) -> Iterator[Line]:
        """Yield the lines of a status, of any with None; deleted ones are of none."""
        start = 1
        skipped = self.archived if status is MessageStatus.ACTIVE else []
        for first, last in sorted(self.deleted + skipped):
            if first <= start:
                start = max(start, last + 1)  # what begins the session is not even read
        for line in self.lines.read(self.lines.session.items(start)):
            if _has(self.deleted, line.seq):
                continue
            is_archived = line.value["status"] == "archived" or _has(self.archived, line.seq)
            if status is None or is_archived == (status is MessageStatus.ARCHIVED):
                yield line

    def put(
        self, batch: ChangeBatch, *, archived: Sequence[Line] = (), deleted: Sequence[Line] = ()
    ) -> None:
        """Add lines to the ranges, in a batch; nothing if there are none."""
        if archived or deleted:
            more = zip(self[1:4], (archived, deleted, deleted), strict=True)
            self.write(batch, *(_joined(old, new) for old, new in more))

    def write(self, batch: ChangeBatch, *ranges: Ranges) -> None:
        """Write all ranges in a batch, which fails if others wrote them since they were read."""
        # A change to the state alone leaves the session's revision as it is.
        value = dict(zip(_NAMES, ranges, strict=True))
        batch.update_state({_STATE: value}, expected=self.counter)


def _joined(ranges: Ranges, more: Iterable[Line]) -> Ranges:
    """Return ranges with further lines, which are in none of them."""
    joined: Ranges = []
    for first, last in sorted([*ranges, *([line.seq, line.seq] for line in more)]):
        if joined and joined[-1][1] == first - 1:
            joined[-1][1] = last
        else:
            joined.append([first, last])
    return joined


def _has(ranges: Ranges, seq: int) -> bool:
    at = bisect_left(ranges, seq, key=itemgetter(1))  # the first that ends there or behind
    return at < len(ranges) and ranges[at][0] <= seq


def _wipe(lines: Lines) -> None:
    """Remove the texts of deleted lines from the file; also those that a crash left over."""
    ranges = _Ranges.of(lines)
    if not ranges.due:
        return
    for first, last in ranges.due:
        for line in lines.read(lines.session.items(first, last + 1)):
            lines.rewrite(line, _blank(line.value))

    def fill(batch: ChangeBatch) -> None:
        now = _Ranges.of(lines)
        left = [each for each in now.due if each not in ranges.due]
        now.write(batch, now.archived, now.deleted, left)

    lines.commit(fill)


# --- Messages as lines ----------------------------------------------------------------------------


def _line(message: ChatMessage, status: MessageStatus) -> dict[str, Any]:
    return {"status": status.value, "message": message.model_dump(mode="json")}


def _chat_message(line: Line) -> ChatMessage:
    return ChatMessage.model_validate(line.value["message"])


def _blank(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line without what it says, which makes and answers the same calls."""
    message = line["message"]
    calls = [
        {"block_type": "tool_call", "tool_call_id": call["id"], "tool_name": "deleted"}
        for call in _calls(message)
    ]
    told = message["additional_kwargs"].get("tool_call_id")
    return {
        "status": line["status"],
        "message": {
            "role": message["role"],
            "blocks": calls,
            "additional_kwargs": {} if told is None else {"tool_call_id": told},
        },
    }


def _message_of(line: dict[str, Any]) -> Message | None:
    """Return what a model reads in a line, in OpenAI's chat format; None: an answer to no call."""
    message = line["message"]
    role = _ROLES.get(message["role"])
    texts = [block["text"] for block in message["blocks"] if block.get("block_type") == "text"]
    text = "\n".join(texts)
    if role == "tool":
        call_id = message["additional_kwargs"].get("tool_call_id")
        if not isinstance(call_id, str) or not call_id:
            return None
        return {"role": "tool", "tool_call_id": call_id, "content": text}
    found: Message = {"role": role, "content": text}
    calls = _calls(message) if role == "assistant" else []
    if calls:
        found |= {"content": text or None, "tool_calls": calls}
    return found


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of a message that have an id, from its blocks and from older versions'."""
    found: dict[str, dict[str, Any]] = {}
    for block in message["blocks"]:
        if block.get("block_type") == "tool_call":
            arguments = block.get("tool_kwargs") or {}
            said = arguments if isinstance(arguments, str) else json.dumps(arguments)
            _note(found, block.get("tool_call_id"), block.get("tool_name"), said)
    older = message["additional_kwargs"].get("tool_calls")
    for call in older if isinstance(older, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            _note(found, call.get("id"), function.get("name"), function.get("arguments"))
    return list(found.values())


def _note(found: dict[str, dict[str, Any]], call_id: Any, name: Any, arguments: Any) -> None:
    if isinstance(call_id, str) and call_id and isinstance(name, str) and name:
        said = arguments if isinstance(arguments, str) else "{}"
        function = {"name": name, "arguments": said}
        found.setdefault(call_id, {"id": call_id, "type": "function", "function": function})


def _made(message: Message) -> ChatMessage:
    """Return a message that a repair wrote."""
    told = {} if "tool_call_id" not in message else {"tool_call_id": message["tool_call_id"]}
    return ChatMessage(
        role=message["role"], content=str(message.get("content") or ""), additional_kwargs=told
    )
