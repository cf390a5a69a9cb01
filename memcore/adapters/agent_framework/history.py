"""Histories of the Agent Framework in a memcore file.

A conversation is a session of memcore, its messages are items in Anthropic's format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from agent_framework import HistoryProvider, Message

from memcore.adapters.lines import Lines, LineSessions, call_input, name_of
from memcore.adapters.source import Scoped, Source, in_thread
from memcore.model import Message as Item
from memcore.options import checked_optional_int
from memcore.session import ChangeBatch, Session
from memcore.telemetry import adapts

__all__ = [
    "MemcoreHistoryProvider",
]


_FIELD: Final = "agent_framework"
_SOURCE: Final = "memcore"


@adapts(get_messages="items . count", save_messages="append")
class MemcoreHistoryProvider(Scoped, HistoryProvider):
    """The framework's ``HistoryProvider``: ``Agent(context_providers=[...])``.

    A save is one commit and reads only as many messages as it is given. What is given again,
    because a run was given the transcript, is not stored again; a turn that is said again is.

    Args:
        source: a database, a scope, or the path of a file.
        source_id: the provider's name, a part of the names of its sessions.
        app: the application of the scope.
        user: the user of the scope, whose erasure removes all histories.
        limit: load only the last messages, from where no result is without its call; None: all.
        skip_excluded: leave out messages that compaction marked as excluded.
        durability: of a file that is created here, as for ``memcore.open``.
        allow_unsafe: consent to ``durability="none"``.
        **options: ``load_messages``, ``store_inputs`` and the others of the base class.

    Raises:
        InvalidOptionError: an option is invalid.
    """

    framework = "agent_framework"

    def __init__(
        self,
        source: Source,
        *,
        source_id: str = _SOURCE,
        app: str | None = None,
        user: str | None = None,
        limit: int | None = None,
        skip_excluded: bool = False,
        durability: str | None = None,
        allow_unsafe: bool = False,
        **options: Any,
    ) -> None:
        HistoryProvider.__init__(self, source_id, **options)
        self.limit = checked_optional_int("limit", limit)
        self.skip_excluded = skip_excluded
        Scoped.__init__(
            self, source, app=app, user=user, durability=durability, allow_unsafe=allow_unsafe
        )
        self._sessions = LineSessions(self.scope, _FIELD, _view)

    def session(self, session_id: str | None) -> Session:
        """Return the session with a history: to build contexts, to search it, to audit it."""
        return self._lines(session_id).session

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """Return the stored messages of a session, oldest first."""
        del state, kwargs

        def read() -> list[Message]:
            found = [line.value for line in self._lines(session_id).window(self.limit)]
            return [Message.from_dict(each) for each in found if not self._is_left_out(each)]

        return await in_thread(read)

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Store the messages that are new, in one commit.

        Raises:
            InvalidItemError: a message is not JSON.
            StorageError; nothing is stored.
        """
        del state, kwargs
        given = [message.to_dict() for message in messages]
        lines = self._lines(session_id)

        def save() -> None:
            shown = [lines.admitted(line) for line in given]

            def fill(batch: ChangeBatch) -> None:
                stored = [line.value for line in lines.window(len(given) + 1, legal=False)]
                for line in given[_repeated(stored, shown) :]:
                    lines.put(batch, line)

            lines.commit(fill)

        if given:
            await in_thread(save)

    def _lines(self, session_id: str | None) -> Lines:
        parts = [self.source_id] if session_id is None else [self.source_id, session_id]
        return self._sessions.at(name_of("agent-framework", *parts))

    def _is_left_out(self, message: Mapping[str, Any]) -> bool:
        return self.skip_excluded and bool(
            (message.get("additional_properties") or {}).get("_excluded")
        )


# --- New and repeated messages --------------------------------------------------------------------


def _identity(message: Mapping[str, Any]) -> tuple[str, Any]:
    """Return what the framework tells messages apart by: the id, or role and contents."""
    if message.get("message_id") is not None:
        return "id", str(message["message_id"])
    role = message.get("role")
    said = [str(role.get("value") if isinstance(role, dict) else role), message.get("contents")]
    return "content", json.dumps(said, sort_keys=True)


def _repeated(stored: Sequence[Mapping[str, Any]], given: Sequence[Mapping[str, Any]]) -> int:
    """Return how many of the messages, from the first on, are stored already.

    Args:
        stored: the last messages that are stored, one more than are given: if there are fewer,
            all.
        given: the messages of a run, or a transcript that the caller replays with more behind it.
    """
    old, new = [_identity(each) for each in stored], [_identity(each) for each in given]
    if old and len(old) <= len(new):  # a transcript, perhaps behind what other providers added
        for at in range(len(new) - len(old) + 1):
            if new[at : at + len(old)] == old and _is_replay(given[at : at + len(old)], new, at):
                return at + len(old)
    for count in range(min(len(old), len(new)), 0, -1):
        if old[-count:] == new[:count] and _is_replay(given[:count], new, 0):
            return count
    return 0


def _is_replay(overlap: Sequence[Mapping[str, Any]], new: Sequence[Any], at: int) -> bool:
    """Return False if messages that are stored already may have been said again.

    Without ids, one turn that says what the last one said is a turn of its own: nothing follows on
    it that is new. More than one turn, or something new behind it, is a replay; so is any id.
    """
    if any(kind == "id" for kind, _ in new[at : at + len(overlap)]):
        return True
    turns = sum(_identity_role(each) == "user" for each in overlap)
    has_more = len(new) > at + len(overlap)
    alone = len(overlap) == 1 and turns == 1
    return not alone and (turns > 1 or has_more)


def _identity_role(message: Mapping[str, Any]) -> str:
    role = message.get("role")
    return str(role.get("value") if isinstance(role, dict) else role)


# --- Messages as lines ----------------------------------------------------------------------------


def _view(line: dict[str, Any]) -> Item | None:
    """Return a message in Anthropic's format: what a model reads of it."""
    role = _identity_role(line)
    blocks = [block for each in line.get("contents") or () for block in _blocks(each)]
    if role == "system":
        text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        return {"role": "system", "content": text} if text else None
    if not blocks or role not in ("user", "assistant", "tool"):
        return None
    results = [block for block in blocks if block["type"] == "tool_result"]
    if results:  # behind a call, results come first
        others = [block for block in blocks if block["type"] != "tool_result"]
        return {"role": "user", "content": results + others}
    return {"role": "assistant" if role == "assistant" else "user", "content": blocks}


def _blocks(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    kind = content.get("type")
    if kind == "text" and content.get("text"):
        yield {"type": "text", "text": content["text"]}
    elif kind == "function_call" and content.get("call_id"):
        given = call_input(content.get("arguments"))
        name = str(content.get("name"))
        yield {"type": "tool_use", "id": content["call_id"], "name": name, "input": given}
    elif kind == "function_result" and content.get("call_id"):
        result = content.get("result")
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        block = {"type": "tool_result", "tool_use_id": content["call_id"], "content": text}
        yield {**block, "is_error": True} if content.get("exception") else block
    elif kind in ("data", "uri") and str(content.get("media_type")).startswith("image/"):
        yield {"type": "image", "source": _image(str(content.get("uri")), content["media_type"])}
    elif kind in ("data", "uri", "hosted_file"):
        yield {"type": "text", "text": f"[{content.get('media_type') or kind}]"}


def _image(uri: str, media: str) -> dict[str, Any]:
    head, _, data = uri.partition(";base64,")
    if head.startswith("data:") and data:
        return {"type": "base64", "media_type": media, "data": data}
    return {"type": "url", "url": uri}
