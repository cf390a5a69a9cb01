"""MemcoreChatStore: the chats of LlamaIndex in a memcore file.

The messages of a key are the items of a session, in Anthropic's format. Each line has an id, which
is never given again; a field of the session's state has the ids of those that are archived.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Unpack

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus

from memcore.adapters.lines import Line, Lines, LineSessions, call_input, name_of, parts_of
from memcore.adapters.source import Opened, Source, Where, in_thread, scope_of
from memcore.database import Database, Scope
from memcore.database.scope import sessions_under
from memcore.model import Message
from memcore.session import ChangeBatch, Session
from memcore.telemetry import adapting, adapts

__all__ = [
    "MemcoreChatStore",
]


_FIELD: Final = "llama_index"
_ARCHIVED: Final = "llama_index.archived"
"""Field of a state: ranges ``[first, last]`` of the ids of archived messages."""
_NAME: Final = "llama-index"


@adapts(
    get_messages="items . count",
    add_message="append",
    add_messages="append",
    set_messages="replace",
    delete_messages="delete",
    get_keys="sessions . count",
)
class MemcoreChatStore(AsyncDBChatStore, Opened):
    """LlamaIndex's ``AsyncDBChatStore``: ``Memory.from_defaults(chat_store=...)``.

    Each method is one commit, but ``set_messages`` of archived ones, which are added before the old
    ones go. What is deleted is removed from the file.

    Args:
        source: a database, a scope, or the path of a file.
        **where: ``app`` and ``user``, whose erasure removes all chats; ``durability`` and
            ``allow_unsafe`` of a file that is created here, as in ``memcore.open``.

    Raises:
        InvalidOptionError: an option is invalid.
    """

    _scope: Scope = PrivateAttr()
    _owned: Database | None = PrivateAttr(default=None)
    _sessions: LineSessions = PrivateAttr()

    def __init__(self, source: Source, **where: Unpack[Where]) -> None:
        super().__init__()
        self._scope, self._owned = scope_of(source, **where)
        self._sessions = LineSessions(self._scope, _FIELD, _view)
        object.__setattr__(self, "observer", adapting(source, _FIELD))

    def session(self, key: str) -> Session:
        """Return the session with a key's messages: to build contexts, to search, to audit."""
        return self._lines(key).session

    # --- LlamaIndex's protocol --------------------------------------------------------------------

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """Return a key's messages with a status (None: any), oldest first, from an offset."""
        found = await in_thread(self._with_status, key, status)
        start = offset or 0
        return _messages(found[start : None if limit is None else start + limit])

    async def count_messages(
        self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE
    ) -> int:
        """Return how many messages of a key have a status (None: any)."""
        return len(await in_thread(self._with_status, key, status))

    async def get_ids(
        self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE
    ) -> list[int]:
        """Return the ids of a key's messages, which ``delete_message`` takes."""
        found = await in_thread(self._with_status, key, status)
        return [line.value["id"] for line in found]

    async def add_message(
        self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Append a message to a key."""
        await self.add_messages(key, [message], status)

    async def add_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Append messages to a key, in one commit.

        Raises:
            InvalidItemError: a message is not JSON.
            StorageError; nothing is stored.
        """
        lines, given = self._lines(key), _dumped(messages)

        def fill(batch: ChangeBatch) -> None:
            last = lines.last()
            first = _next_id(0 if last is None else last.value["id"])
            for number, message in enumerate(given, first):
                lines.put(batch, {"id": number, "message": message})
            if status is MessageStatus.ARCHIVED:
                ids = [line.value["id"] for line in lines.read()]
                added = range(first, first + len(given))
                batch.update_state({_ARCHIVED: _runs([*ids, *added], _archived(lines), {*added})})

        if given:
            await in_thread(lines.commit, fill)

    async def set_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Replace a key's messages, whatever their status; they get new ids.

        Raises:
            HeldError: a legal hold covers the messages.
        """
        lines, given = self._lines(key), _dumped(messages)
        if status is MessageStatus.ARCHIVED:
            old = set(await self.get_ids(key, None))
            await self.add_messages(key, messages, status)  # first: a crash loses neither
            await in_thread(lines.replace, lambda line: line.value["id"] in old)
            return

        def change() -> None:
            last = lines.last()
            first = _next_id(0 if last is None else last.value["id"])
            values = [{"id": number, "message": each} for number, each in enumerate(given, first)]
            lines.replace(None, values)

        await in_thread(change)

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message of an id, and return it; None if there is none."""
        found = await in_thread(self._lines(key).replace, lambda line: line.value["id"] == idx)
        return _messages(found)[0] if found else None

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Delete a key's messages with a status; None: all, and the key with them.

        Raises:
            HeldError: a legal hold covers them.
        """

        def change() -> None:
            lines = self._lines(key)
            if status is None:
                self._scope.delete_session(lines.session.id)
                return

            def choose() -> Callable[[Line], bool]:
                archived, wanted = _archived(lines), status is MessageStatus.ARCHIVED
                return lambda line: _is_in(archived, line.value["id"]) == wanted

            lines.replace(None, prepare=choose)

        await in_thread(change)

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Delete the oldest active messages of a key, and return them."""

        def change() -> list[Line]:
            lines = self._lines(key)

            def choose() -> Callable[[Line], bool]:
                oldest = {line.value["id"] for line in _active(lines)[:n]}
                return lambda line: line.value["id"] in oldest

            return lines.replace(None, prepare=choose)

        return _messages(await in_thread(change))

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Archive the oldest active messages of a key, and return them."""

        def change() -> list[Line]:
            lines = self._lines(key)

            def fill(batch: ChangeBatch) -> list[Line]:
                oldest = _active(lines)[:n]
                if oldest:
                    ids = [line.value["id"] for line in lines.read()]
                    chosen = {line.value["id"] for line in oldest}
                    batch.update_state({_ARCHIVED: _runs(ids, _archived(lines), chosen)})
                return oldest

            return lines.commit(fill)

        return _messages(await in_thread(change))

    async def get_keys(self) -> list[str]:
        """Return the keys that have messages."""

        def read() -> list[str]:
            found = sessions_under(self._scope, name_of(_NAME, ""))
            return [parts_of(entry.session_id)[0] for entry in found if entry.items]

        return await in_thread(read)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class."""
        return "MemcoreChatStore"

    # --- in a thread ------------------------------------------------------------------------------

    def _lines(self, key: str) -> Lines:
        return self._sessions.at(name_of(_NAME, key))

    def _with_status(self, key: str, status: MessageStatus | None) -> list[Line]:
        lines = self._lines(key)
        if status is None:
            return list(lines.read())
        archived, wanted = _archived(lines), status is MessageStatus.ARCHIVED
        return [line for line in lines.read() if _is_in(archived, line.value["id"]) == wanted]


# --- Ids and statuses -----------------------------------------------------------------------------


def _next_id(last: int) -> int:
    """Return an id that was never given, in the order of ids: the time in microseconds."""
    return max(last + 1, time.time_ns() // 1000)


def _archived(lines: Lines) -> list[list[int]]:
    """Return the ranges of the ids of archived messages."""
    return lines.session.state.get(_ARCHIVED) or []


def _is_in(ranges: Sequence[Sequence[int]], number: int) -> bool:
    return any(first <= number <= last for first, last in ranges)


def _runs(ids: Sequence[int], archived: Sequence[Sequence[int]], more: set[int]) -> list[list[int]]:
    """Return the ranges of archived ids and more: one for each run without an active id."""
    runs: list[list[int]] = []
    was_archived = False
    for number in ids:
        is_archived = number in more or _is_in(archived, number)
        if is_archived and was_archived:
            runs[-1][1] = number
        elif is_archived:
            runs.append([number, number])
        was_archived = is_archived
    return runs


def _active(lines: Lines) -> list[Line]:
    archived = _archived(lines)
    return [line for line in lines.read() if not _is_in(archived, line.value["id"])]


# --- Messages as lines ----------------------------------------------------------------------------


def _dumped(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    return [message.model_dump(mode="json") for message in messages]


def _messages(lines: Sequence[Line]) -> list[ChatMessage]:
    return [ChatMessage.model_validate(line.value["message"]) for line in lines]


def _view(line: dict[str, Any]) -> Message | None:
    """Return a message in Anthropic's format: what a model reads of it."""
    message = line["message"]
    role, more = message.get("role"), message.get("additional_kwargs") or {}
    blocks = [made for block in message.get("blocks") or () for made in _blocks(block)]
    if role in ("system", "developer"):
        text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        return {"role": "system", "content": text} if text else None
    if role in ("tool", "function") and isinstance(more.get("tool_call_id"), str):
        result = {"type": "tool_result", "tool_use_id": more["tool_call_id"], "content": blocks}
        return {"role": "user", "content": [result]}
    if role == "assistant":
        known = {block["id"] for block in blocks if block["type"] == "tool_use"}
        blocks += [each for each in _calls(more.get("tool_calls")) if each["id"] not in known]
    if not blocks:
        return None
    return {"role": "assistant" if role == "assistant" else "user", "content": blocks}


def _blocks(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    kind = block.get("block_type")
    if kind == "text" and block.get("text"):
        yield {"type": "text", "text": block["text"]}
    elif kind == "tool_call" and isinstance(block.get("tool_call_id"), str):
        yield _call(block["tool_call_id"], block.get("tool_name"), block.get("tool_kwargs"))
    elif kind == "image" and block.get("url"):
        yield {"type": "image", "source": {"type": "url", "url": block["url"]}}
    elif kind == "image" and block.get("image"):
        media = block.get("image_mimetype") or "image/png"
        source = {"type": "base64", "media_type": media, "data": block["image"]}
        yield {"type": "image", "source": source}
    elif kind not in ("text", "tool_call", "thinking", "cache", None):
        yield {"type": "text", "text": f"[{kind}]"}


def _calls(given: Any) -> Iterator[dict[str, Any]]:
    """Yield the calls that a client of OpenAI's put beside a message."""
    for each in given if isinstance(given, list) else ():
        function = each.get("function") if isinstance(each, dict) else None
        if isinstance(function, dict) and isinstance(each.get("id"), str):
            yield _call(each["id"], function.get("name"), function.get("arguments"))


def _call(call_id: str, name: Any, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": str(name), "input": call_input(given)}
