"""MemcoreSessionStore: the transcripts of the Claude Agent SDK in a memcore file.

Each transcript is a session: what the user, the model and its tools said are items of Anthropic's
format, and other lines are events. The summary that the SDK lists sessions by is a field of the
session's state. So one commit stores a batch of lines with its summary, and deleting or erasing the
session leaves nothing of either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, Final, Unpack

from memcore.adapters.lines import Lines, LineSessions, name_of, parts_of
from memcore.adapters.source import Scoped, Source, Where, in_thread
from memcore.context import fit
from memcore.database import Scope
from memcore.database.scope import sessions_under
from memcore.errors import InvalidOptionError
from memcore.log import CachedSession
from memcore.model import Context, Message, SessionEntry
from memcore.session import ChangeBatch, Session
from memcore.session.read import read_log
from memcore.session.session import ref_of
from memcore.store.interface import ReadTxn
from memcore.telemetry import adapts

__all__ = [
    "MemcoreSessionStore",
]


_FIELD: Final = "claude"
_SUMMARY: Final = "claude.summary"
_ROLES: Final = ("user", "assistant")
_KNOWN_MAX: Final = 256

_Known = tuple[int, int, set[str]]
"""Number of live items of a session, the last seq, and the uuids up to it."""
Key = Mapping[str, str]
"""``project_key``, ``session_id`` and perhaps ``subpath``."""
Entry = dict[str, Any]


@adapts(
    append="append",
    load="items . count",
    list_sessions="sessions . count",
    delete="delete",
)
class MemcoreSessionStore(Scoped):
    """The SDK's ``SessionStore``: ``ClaudeAgentOptions(session_store=MemcoreSessionStore(...))``.

    ``append`` is one commit, all or nothing. A line whose ``uuid`` is stored already is not stored
    again, so a batch may be repeated, and two processes may write one transcript.

    Args:
        source: a database, a scope, or the path of a file.
        **where: ``app`` and ``user``, whose erasure removes all transcripts with it; ``durability``
            and ``allow_unsafe`` of a file that is created here, as in ``memcore.open``.

    Raises:
        InvalidOptionError: an option is invalid.
    """

    framework = "claude_agent"

    def __init__(self, source: Source, **where: Unpack[Where]) -> None:
        super().__init__(source, **where)
        self._sessions = LineSessions(self.scope, _FIELD, _message_of)
        self._lock = Lock()
        self._known: dict[tuple[int, int], _Known] = {}
        """Lines known of a session, by its numbers, which are never given again. Guarded by the
        lock: appends run in threads."""

    def session(self, key: Key) -> Session:
        """Return the session of a transcript: to search it, to build contexts, to audit it.

        Raises:
            InvalidOptionError: the key is invalid.
        """
        return self._lines(key).session

    def context(self, key: Key, budget_tokens: int | None = None) -> Context:
        """Build the model's input from where the transcript stands: legal, within the budget.

        It follows ``parentUuid`` from the last line, so what was rewound or compacted is left out,
        and a call never goes without its result.

        Raises:
            ContextOverflowError: even the smallest legal context is larger.
            StorageError
        """
        lines = [line.value for line in self._lines(key).read()]
        return fit(_chain(lines), budget_tokens, policy="anthropic")

    # --- the SDK's protocol -----------------------------------------------------------------------

    async def append(self, key: Key, entries: Sequence[Entry]) -> None:
        """Store the lines of a batch that are not stored yet, in one commit.

        Raises:
            InvalidOptionError: the key is invalid.
            InvalidItemError: a line is no JSON object.
            StorageError; nothing is stored.
        """
        if entries:
            await in_thread(self._append, key, list(entries))

    async def load(self, key: Key) -> list[Entry] | None:
        """Return the lines of a transcript in the order of their appends; None if there is none."""

        def read() -> list[Entry] | None:
            found = [line.value for line in self._lines(key).read()]
            return found or None

        return await in_thread(read)

    async def list_sessions(self, project_key: str) -> list[dict[str, Any]]:
        """Return ``session_id`` and ``mtime`` of a project's sessions, without subagents."""
        found = await in_thread(_main_sessions, self.scope, project_key)
        return [{"session_id": name, "mtime": _mtime(entry)} for name, entry in found]

    async def list_session_summaries(self, project_key: str) -> list[dict[str, Any]]:
        """Return the summaries of a project's sessions, as the SDK's fold made them."""

        def read() -> list[dict[str, Any]]:
            summaries = []
            for name, entry in _main_sessions(self.scope, project_key):
                data = self.scope.session(entry.session_id).state.get(_SUMMARY)
                if data is not None:
                    summary = {"session_id": name, "mtime": _mtime(entry), "data": data}
                    summaries.append(summary)
            return summaries

        return await in_thread(read)

    async def delete(self, key: Key) -> None:
        """Delete a transcript; without a ``subpath``, those of its subagents go first.

        Raises:
            HeldError: a legal hold covers it.
            StorageError
        """
        name, subpath = _name(key), key.get("subpath")

        def remove() -> None:
            if not subpath:
                for entry in list(sessions_under(self.scope, name + "/")):
                    self.scope.delete_session(entry.session_id)
            self.scope.delete_session(name)

        await in_thread(remove)

    async def list_subkeys(self, key: Key) -> list[str]:
        """Return the subpaths of a session that have a transcript."""

        def read() -> list[str]:
            found = sessions_under(self.scope, _name({**key, "subpath": ""}) + "/")
            return [parts_of(entry.session_id)[2] for entry in found]

        return await in_thread(read)

    # --- in a thread ------------------------------------------------------------------------------

    def _lines(self, key: Key) -> Lines:
        return self._sessions.at(_name(key))

    def _append(self, key: Key, entries: list[Entry]) -> None:
        lines, uuids = self._lines(key), set[str]()

        def fill(batch: ChangeBatch) -> None:
            known = self._uuids(lines)
            uuids.clear()
            fresh = []
            for entry in entries:
                uuid = entry.get("uuid") if isinstance(entry, dict) else None
                if isinstance(uuid, str) and uuid:
                    if uuid in known or uuid in uuids:
                        continue
                    uuids.add(uuid)
                fresh.append(entry)
                lines.put(batch, entry)
            if fresh and not key.get("subpath"):
                before = lines.session.state.get(_SUMMARY)
                data = _folded(before, key, fresh)
                if data != before:
                    batch.update_state({_SUMMARY: data})

        lines.commit(fill)

    def _uuids(self, lines: Lines) -> set[str]:
        """Return the uuids of the lines that are stored; reads what is new since the last call."""
        found = read_log(ref_of(lines.session), _place_and_count, None)
        if found is None:
            return set()
        place, count = found
        with self._lock:
            seen, last, known = self._known.pop(place, (0, 0, set[str]()))
        fresh = list(lines.session.items(last + 1))
        if seen + len(fresh) != count:  # some were taken back, or came meanwhile
            known, fresh = set(), list(lines.session.items())
            count = len(fresh)
        for line in lines.read(fresh):
            if isinstance(line.value.get("uuid"), str):
                known.add(line.value["uuid"])
        last = fresh[-1].seq if fresh else last
        with self._lock:
            self._known[place] = count, last, known
            if len(self._known) > _KNOWN_MAX:
                del self._known[next(iter(self._known))]
        return known


def _place_and_count(log: CachedSession, txn: ReadTxn) -> tuple[tuple[int, int], int]:
    del txn
    return log.place, log.history.count


def _name(key: Key) -> str:
    """Return the name of a transcript's session.

    Raises:
        InvalidOptionError: a part of the key is missing or no text.
    """
    parts = [key.get("project_key"), key.get("session_id")]
    parts += [key["subpath"]] if key.get("subpath") else []
    for part in parts:
        if not isinstance(part, str) or not part:
            msg = f"key: expected texts for project_key and session_id, got {dict(key)!r:.200}"
            raise InvalidOptionError(msg)
    return name_of("claude", *(str(part) for part in parts))


def _main_sessions(scope: Scope, project_key: str) -> list[tuple[str, SessionEntry]]:
    """Return a project's sessions that are of no subagent, by their ids."""
    found = []
    for entry in sessions_under(scope, name_of("claude", project_key, "")):
        parts = parts_of(entry.session_id)
        if len(parts) == 2:  # noqa: PLR2004 - project and session
            found.append((parts[1], entry))
    return found


def _mtime(entry: SessionEntry) -> int:
    """Return when a session was last changed, in milliseconds since 1970."""
    return round(entry.updated_at * 1000)


def _folded(before: Any, key: Key, entries: Iterable[Entry]) -> Any:
    """Return the data of a session's summary with further lines, by the SDK's own function."""
    try:
        from claude_agent_sdk import fold_session_summary  # noqa: PLC0415 - 168 MB come with it
    except ModuleNotFoundError as exc:
        msg = (
            "MemcoreSessionStore needs the Claude Agent SDK: install it with pip install "
            f'"memcore-db[claude-agent-sdk]" ({exc})'
        )
        raise ImportError(msg, name=exc.name) from exc
    prev = None if before is None else {"session_id": key["session_id"], "mtime": 0, "data": before}
    return fold_session_summary(prev, dict(key), list(entries))["data"]


# --- Lines of a transcript ------------------------------------------------------------------------


def _message_of(entry: Entry) -> Message | None:
    """Return what a model reads in a line; None: nothing."""
    message = entry.get("message")
    if entry.get("type") not in _ROLES or not isinstance(message, dict):
        return None
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES or not content or not isinstance(content, str | list):
        return None
    return {"role": role, "content": content}


def _chain(entries: Sequence[Entry]) -> list[Message]:
    """Return the messages from the root to the last line, each response of the model as one.

    The SDK writes a line for each block of a response, all with the response's id, and the results
    of parallel calls have their calls for parents: the walk reaches one of them, the others are
    those that answer a call of a response on it.
    """
    by_uuid = {entry["uuid"]: entry for entry in entries if isinstance(entry.get("uuid"), str)}
    said = [entry for entry in by_uuid.values() if _message_of(entry) is not None]
    main = [entry for entry in said if not any(entry.get(flag) for flag in _ASIDE)]
    walked: set[str] = set()
    at: Any = main[-1]["uuid"] if main else None
    while isinstance(at, str) and at in by_uuid and at not in walked:
        walked.add(at)
        at = by_uuid[at].get("parentUuid")
    responses = {_response_of(by_uuid[uuid]) for uuid in walked} - {None}
    calls = set[str]()
    chain: list[Message] = []
    last: str | None = None
    for entry in said:
        response = _response_of(entry)
        message = _message_of(entry)
        assert message is not None  # noqa: S101 - chosen above
        answers = _ids(message, "tool_result", "tool_use_id")
        is_meant = entry["uuid"] in walked or response in responses or bool(answers & calls)
        if not is_meant:
            continue
        calls |= _ids(message, "tool_use", "id")
        if response is not None and response == last:
            chain[-1] = {"role": "assistant", "content": _blocks(chain[-1]) + _blocks(message)}
        else:
            chain.append(message)
        last = response
    return chain


_ASIDE: Final = ("isSidechain", "isMeta", "teamName")


def _response_of(entry: Entry) -> str | None:
    """Return the id of the response that a line is a part of; None: of none."""
    message = entry.get("message")
    found = message.get("id") if isinstance(message, dict) else None
    return found if entry.get("type") == "assistant" and isinstance(found, str) else None


def _ids(message: Message, kind: str, field: str) -> set[str]:
    return {
        block[field]
        for block in _blocks(message)
        if isinstance(block, dict)
        and block.get("type") == kind
        and isinstance(block.get(field), str)
    }


def _blocks(message: Message) -> list[Any]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
