"""MemcoreSessionRepository: the sessions, agents and messages of Strands in a memcore file.

The messages of an agent are the items of a session, in Anthropic's format; sessions, agents and
multi-agent states are rows of a namespace. A message that was redacted is nowhere in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, Unpack

from strands.session.repository_session_manager import RepositorySessionManager
from strands.session.session_repository import SessionRepository
from strands.types.exceptions import SessionException
from strands.types.session import (
    Session,
    SessionAgent,
    SessionMessage,
    decode_bytes_values,
    encode_bytes_values,
)

from memcore.adapters.lines import Line, Lines, LineSessions, Rows, key_of, name_of
from memcore.adapters.source import Opened, Scoped, Source, Where
from memcore.database.scope import sessions_under
from memcore.kv.namespace import KeyValueTxn
from memcore.model import Message
from memcore.session import Session as MemcoreSession
from memcore.store.interface import Txn
from memcore.telemetry import adapts

__all__ = [
    "MemcoreSessionManager",
    "MemcoreSessionRepository",
]


_FIELD: Final = "strands"
_TAIL: Final = 8
_DENSE: Final = "dense"
"""Key of a line: True if the lines up to it have the ids from 0 on, in order."""


@adapts(
    create_message="append",
    read_message="get",
    update_message="rewrite",
    list_messages="items . count",
    delete_session="delete",
)
class MemcoreSessionRepository(Scoped, SessionRepository):
    """Strands' ``SessionRepository``, for one or many session managers.

    Args:
        source: a database, a scope, or the path of a file.
        **where: ``app`` and ``user``, whose erasure removes all sessions; ``durability`` and
            ``allow_unsafe`` of a file that is created here, as in ``memcore.open``.

    Raises:
        InvalidOptionError: an option is invalid.
    """

    framework = "strands"

    def __init__(self, source: Source, **where: Unpack[Where]) -> None:
        super().__init__(source, **where)
        self._kv = self.scope.kv(_FIELD)
        self._rows = Rows(self.scope, _FIELD)
        self._sessions = LineSessions(self.scope, _FIELD, _view)

    def session(self, session_id: str, agent_id: str) -> MemcoreSession:
        """Return the session with an agent's messages: to build contexts, to search, to audit."""
        return self._lines(session_id, agent_id).session

    def _lines(self, session_id: str, agent_id: str) -> Lines:
        return self._sessions.at(name_of(_FIELD, session_id, agent_id))

    # --- rows -------------------------------------------------------------------------------------

    def _create(self, key: str, row: Any, *needed: str) -> None:
        """Store a new row.

        Raises:
            SessionException: it exists, or one that it needs does not.
        """

        def change(rows: KeyValueTxn) -> None:
            for each in needed:
                if rows.get(each) is None:
                    raise SessionException(f"{_told(each)} does not exist")
            if rows.get(key) is not None:
                raise SessionException(f"{_told(key)} already exists")
            rows.put(key, encode_bytes_values(row))

        self._kv.transact(change)

    def _update(self, key: str, row: Any) -> None:
        """Replace a row; its time of creation stays.

        Raises:
            SessionException: it does not exist.
        """

        def change(rows: KeyValueTxn) -> None:
            old = rows.get(key)
            if old is None:
                raise SessionException(f"{_told(key)} does not exist")
            kept = {"created_at": old["created_at"]} if "created_at" in row else {}
            rows.put(key, encode_bytes_values({**row, **kept}))

        self._kv.transact(change)

    # --- sessions and agents ----------------------------------------------------------------------

    def create_session(self, session: Session, **kwargs: Any) -> Session:
        """Store a new session.

        Raises:
            SessionException: it exists.
        """
        del kwargs
        self._create(key_of("s", session.session_id), session.to_dict())
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Session | None:
        """Return a session; None if there is none."""
        del kwargs
        row = self._kv.get(key_of("s", session_id))
        return None if row is None else Session.from_dict(row)

    def delete_session(self, session_id: str, **kwargs: Any) -> None:
        """Delete a session with its agents and their messages.

        Raises:
            SessionException: it does not exist.
            HeldError: a legal hold covers messages.
        """
        del kwargs
        if self.read_session(session_id) is None:
            raise SessionException(f"session {session_id!r} does not exist")
        self._delete_messages(session_id)  # first: a legal hold keeps all
        for kind in "am":
            for key, _ in list(self._kv.scan(prefix=key_of(kind, session_id, ""))):
                self._kv.delete(key)
        self._delete_messages(session_id)  # of writers who still found their agent
        self._kv.delete(key_of("s", session_id))  # last: until then it can be deleted again

    def _delete_messages(self, session_id: str) -> None:
        prefix = name_of(_FIELD, session_id, "")
        for name in [prefix, *(entry.session_id for entry in sessions_under(self.scope, prefix))]:
            self.scope.delete_session(name)

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Store a new agent.

        Raises:
            SessionException: it exists, or its session does not.
        """
        del kwargs
        key = key_of("a", session_id, session_agent.agent_id)
        self._create(key, session_agent.to_dict(), key_of("s", session_id))

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        """Return an agent; None if there is none."""
        del kwargs
        row = self._kv.get(key_of("a", session_id, agent_id))
        return None if row is None else SessionAgent.from_dict(row)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Replace an agent; its time of creation stays.

        Raises:
            SessionException: it does not exist.
        """
        del kwargs
        self._update(key_of("a", session_id, session_agent.agent_id), session_agent.to_dict())

    def create_multi_agent(self, session_id: str, multi_agent: Any, **kwargs: Any) -> None:
        """Store the state of several agents.

        Raises:
            SessionException: it exists, or its session does not.
        """
        del kwargs
        key = key_of("m", session_id, multi_agent.id)
        self._create(key, multi_agent.serialize_state(), key_of("s", session_id))

    def read_multi_agent(
        self, session_id: str, multi_agent_id: str, **kwargs: Any
    ) -> dict[str, Any] | None:
        """Return the state of several agents; None if there is none."""
        del kwargs
        row = self._kv.get(key_of("m", session_id, multi_agent_id))
        found: dict[str, Any] | None = decode_bytes_values(row)
        return found

    def update_multi_agent(self, session_id: str, multi_agent: Any, **kwargs: Any) -> None:
        """Replace the state of several agents.

        Raises:
            SessionException: it does not exist.
        """
        del kwargs
        self._update(key_of("m", session_id, multi_agent.id), multi_agent.serialize_state())

    # --- messages ---------------------------------------------------------------------------------

    def create_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Store a new message; of two writers that choose one id, one is refused.

        Raises:
            SessionException: its id is taken, or there is no such agent.
        """
        del kwargs
        lines, agent = self._lines(session_id, agent_id), key_of("a", session_id, agent_id)
        lines.attempt(partial(self._add, lines, agent, _line(session_message)))

    def _add(self, lines: Lines, agent: str, line: dict[str, Any]) -> None:
        """Append a message in the commit that finds its agent.

        Raises:
            SessionException: its id is taken, or there is no such agent.
            RevisionConflict: others wrote meanwhile.
        """
        revision, number = lines.session.revision, line["message_id"]
        last = lines.last()
        is_dense = number == 0 if last is None else _is_dense(last, number)
        if not (is_dense and (last is not None or not len(lines.session))):
            is_dense = False
            if _found(lines, number) is not None:
                raise SessionException(f"message {number} already exists")
        writing = lines.writing([{**line, _DENSE: is_dense}], revision=revision)

        def change(txn: Txn, rows: KeyValueTxn) -> None:
            if rows.get(agent) is None:
                raise SessionException(f"{_told(agent)} does not exist")
            writing.run(txn)

        self._rows.commit(change, writings=[writing])

    def read_message(
        self, session_id: str, agent_id: str, message_id: int, **kwargs: Any
    ) -> SessionMessage | None:
        """Return a message; None if there is none."""
        del kwargs
        found = _found(self._lines(session_id, agent_id), message_id)
        return None if found is None else SessionMessage.from_dict(found.value)

    def update_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Replace a message; a redacted one loses what it was, in the file too.

        Raises:
            SessionException: it does not exist.
        """
        del kwargs
        lines = self._lines(session_id, agent_id)
        lines.attempt(partial(_replace, lines, session_message))

    def list_messages(
        self,
        session_id: str,
        agent_id: str,
        limit: int | None = None,
        offset: int = 0,
        **kwargs: Any,
    ) -> list[SessionMessage]:
        """Return an agent's messages by their ids, from an offset."""
        del kwargs
        lines = self._lines(session_id, agent_id)
        found = sorted((line.value for line in lines.read()), key=lambda each: each["message_id"])
        stop = None if limit is None else offset + limit
        return [SessionMessage.from_dict(each) for each in found[offset:stop]]


class MemcoreSessionManager(Opened, RepositorySessionManager):
    """Strands' session manager on a memcore file: ``Agent(session_manager=...)``.

    Args:
        session_id: the session.
        source: a database, a scope, or the path of a file.
        app: the application of the scope.
        user: the user of the scope.
        **kwargs: those of ``RepositorySessionManager``.

    Raises:
        InvalidOptionError: an option is invalid.
    """

    def __init__(
        self,
        session_id: str,
        source: Source,
        *,
        app: str | None = None,
        user: str | None = None,
        **kwargs: Any,
    ) -> None:
        repository = MemcoreSessionRepository(source, app=app, user=user)
        self._owned = repository._owned  # noqa: SLF001 - closed by whichever is closed
        super().__init__(session_id=session_id, session_repository=repository, **kwargs)


def _told(key: str) -> str:
    kind, _, name = key.partition(":")
    return f"{ {'s': 'session', 'a': 'agent', 'm': 'multi-agent state'}[kind] } {name}"


# --- Messages as lines ----------------------------------------------------------------------------


def _line(message: SessionMessage) -> dict[str, Any]:
    """Return what is stored of a message: of a redacted one, only what is to be shown."""
    line: dict[str, Any] = message.to_dict()
    if line["redact_message"] is not None:
        line["message"] = line["redact_message"]
    return line


def _is_dense(last: Line, message_id: int) -> bool:
    """Return True if an id follows on lines that have all ids from 0 on, in order."""
    return bool(last.value.get(_DENSE)) and message_id == last.value["message_id"] + 1


def _replace(lines: Lines, message: SessionMessage) -> None:
    """Put a message in the place of the one with its id; its time of creation stays."""
    found = _found(lines, message.message_id)
    if found is None:
        raise SessionException(f"message {message.message_id} does not exist")
    message.created_at = found.value["created_at"]
    lines.rewrite(found, {**_line(message), _DENSE: found.value.get(_DENSE, False)})


def _found(lines: Lines, message_id: int) -> Line | None:
    """Return a message's line; the newest are looked at first."""
    tail = list(lines.read(lines.session.tail(_TAIL)))
    for line in tail:
        if line.value["message_id"] == message_id:
            return line
    return next((line for line in lines.read() if line.value["message_id"] == message_id), None)


def _view(line: dict[str, Any]) -> Message | None:
    """Return a message of Bedrock's format in Anthropic's: what a model reads of it."""
    message = line["message"]
    content = [block for each in message.get("content") or () for block in _blocks(each)]
    if message.get("role") not in ("user", "assistant") or not content:
        return None
    return {"role": message["role"], "content": content}


def _blocks(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if block.get("text"):
        yield {"type": "text", "text": block["text"]}
    elif "toolUse" in block:
        use = block["toolUse"]
        given = use.get("input")
        yield {"type": "tool_use", "id": use["toolUseId"], "name": use["name"],
               "input": given if isinstance(given, dict) else {"input": given}}  # fmt: skip
    elif "toolResult" in block:
        result = block["toolResult"]
        content = [made for each in result.get("content") or () for made in _blocks(each)]
        made = {"type": "tool_result", "tool_use_id": result["toolUseId"], "content": content}
        yield {**made, "is_error": True} if result.get("status") == "error" else made
    elif "json" in block:
        yield {"type": "text", "text": json.dumps(block["json"], ensure_ascii=False)}
    elif "image" in block:
        yield _image(block["image"])
    elif "document" in block:
        yield {"type": "text", "text": f"[document {block['document'].get('name', '')}]"}
    elif "reasoningContent" in block:
        told = block["reasoningContent"].get("reasoningText") or {}
        if told.get("text") and told.get("signature"):
            yield {"type": "thinking", "thinking": told["text"], "signature": told["signature"]}


def _image(image: Mapping[str, Any]) -> dict[str, Any]:
    data = (image.get("source") or {}).get("bytes")
    if not isinstance(data, dict):
        return {"type": "text", "text": "[image]"}
    media = f"image/{image.get('format', 'png')}"
    return {"type": "image",
            "source": {"type": "base64", "media_type": media, "data": data["data"]}}  # fmt: skip
