"""Changes that an MCP client may make of one user's memory and sessions, where it is let.

A client's word is a program's: what it remembers waits in quarantine until somebody promotes it,
and what it appends names ``mcp`` as its author, so nothing in it counts as the user's own words.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import BaseModel, Field

from memcore._fast import classify
from memcore.database import Scope
from memcore.errors import BlockedError, InvalidItemError, InvalidOptionError, NotFoundError
from memcore.memory import revise_noted, take_note, tool_handle
from memcore.model import ItemKind, Memory, Receipt, Source

__all__ = [
    "AUTHOR",
    "MESSAGES_MAX",
    "AppendedItems",
    "DeletedSession",
    "StoredMemory",
    "append_messages",
    "delete_session",
    "forget_memory",
    "record_event",
    "remember_text",
    "update_text",
]


AUTHOR: Final = "mcp"
"""Author of the items that a client appends."""
MESSAGES_MAX: Final = 64
MESSAGES_BYTES_MAX: Final = 1024 * 1024
SEQS_MAX: Final = 64
_WHY: Final = "forgotten by an MCP client"


class StoredMemory(BaseModel):
    """A memory after a change."""

    id: int
    version: int
    status: str
    by: str
    note: str = Field(description="What this means, in a sentence.")


class AppendedItems(BaseModel):
    """A session after items were appended."""

    session: str
    seq: int = Field(description="The last item.")
    appended: int
    revision: int
    tokens: int
    open_calls: int


class DeletedSession(BaseModel):
    """A session that is gone."""

    session: str


_NOTES: Final = {
    "quarantined": "It waits, and no model is shown it, until the user promotes it "
    "('memcore memory promote').",
    "forgotten": "It is forgotten; the same statement is not stored again.",
    "active": "It was known already, and somebody vouches for it.",
}


def _stored(memory: Memory) -> StoredMemory:
    return StoredMemory(
        id=memory.id,
        version=memory.version,
        status=memory.status,
        by=memory.by,
        note=_NOTES.get(memory.status, f"It is {memory.status}."),
    )


def _sources(session: str | None, seqs: list[int] | None) -> tuple[Source, ...]:
    """Return the source that a client names.

    Raises:
        InvalidOptionError: it names a session without items, items without a session, or too many.
    """
    if session is None and not seqs:
        return ()
    if session is None or not seqs:
        msg = "seqs: give a session and the seqs of its items, or neither"
        raise InvalidOptionError(msg)
    if len(seqs) > SEQS_MAX or min(seqs) < 1:
        msg = f"seqs: expected at most {SEQS_MAX} numbers from 1 on"
        raise InvalidOptionError(msg)
    return (Source(session, tuple(sorted(set(seqs)))),)


def _key(given: str | None) -> str | None:
    """Return a client's idempotency key, apart from those of other programs."""
    return None if given is None else f"{AUTHOR} {given}"


def remember_text(
    scope: Scope,
    text: str,
    *,
    kind: str = "fact",
    subject: str | None = None,
    slot: str | None = None,
    session: str | None = None,
    seqs: list[int] | None = None,
    idempotency_key: str | None = None,
) -> StoredMemory:
    """Remember a statement; it waits in quarantine.

    Raises:
        InvalidItemError, InvalidOptionError, NotFoundError, OptedOutError, BlockedError,
        DuplicateRequestError, StorageError
    """
    made = take_note(
        tool_handle(scope.memory),
        text,
        _sources(session, seqs),
        kind=kind,
        subject=subject,
        slot=slot,
        key=_key(idempotency_key),
    )
    return _stored(made)


def update_text(
    scope: Scope,
    number: int,
    text: str,
    *,
    session: str | None = None,
    seqs: list[int] | None = None,
    expected_version: int | None = None,
    idempotency_key: str | None = None,
) -> StoredMemory:
    """Correct the text of a memory that tools made and nobody vouches for.

    Raises:
        BlockedError: it is not one of these.
        RevisionConflict, InvalidItemError, InvalidOptionError, NotFoundError, OptedOutError,
        DuplicateRequestError, StorageError
    """
    made = revise_noted(
        tool_handle(scope.memory),
        number,
        text,
        _sources(session, seqs),
        expected=expected_version,
        key=_key(idempotency_key),
    )
    return _stored(made)


def forget_memory(scope: Scope, number: int) -> StoredMemory:
    """Forget a memory of the user, whoever said it.

    Raises:
        NotFoundError, HeldError, InvalidOptionError, StorageError
    """
    return _stored(scope.memory.forget(number, reason=_WHY))


def append_messages(
    scope: Scope,
    name: str,
    messages: list[dict[str, Any]],
    *,
    create: bool = False,
    expected_revision: int | None = None,
    idempotency_key: str | None = None,
) -> AppendedItems:
    """Append messages to a session in one commit, all or none, with ``mcp`` as their author.

    Raises:
        BlockedError: one is a system prompt, which speaks for the program.
        NotFoundError: there is no such session, and ``create`` is not set.
        InvalidItemError, OrphanResultError, RevisionConflict, DuplicateRequestError, StorageError
    """
    if not 0 < len(messages) <= MESSAGES_MAX:
        msg = f"messages: expected 1 to {MESSAGES_MAX}, got {len(messages)}"
        raise InvalidOptionError(msg)
    if len(json.dumps(messages)) > MESSAGES_BYTES_MAX:
        msg = f"messages: have more than {MESSAGES_BYTES_MAX} bytes; append fewer at once"
        raise InvalidItemError(msg)
    if any(classify(each)[0] == ItemKind.SYSTEM for each in messages):
        msg = "messages: system prompts are the program's own, and no client's"
        raise BlockedError(msg, verdict="not_allowed", reason=msg)
    session = scope.session(name, create=create)
    receipt = session.extend(
        messages,
        expected_revision=expected_revision,
        idempotency_key=_key(idempotency_key),
        envelope={"author": AUTHOR},
    )
    return _appended(name, receipt)


def record_event(
    scope: Scope,
    name: str,
    type_: str,
    payload: object = None,
    *,
    idempotency_key: str | None = None,
) -> AppendedItems:
    """Log an event of a session, which no context shows.

    Raises:
        NotFoundError: there is no such session.
        InvalidItemError, InvalidOptionError, DuplicateRequestError, StorageError
    """
    session = scope.session(name, create=False)
    receipt = session.record(
        type_, payload, idempotency_key=_key(idempotency_key), envelope={"author": AUTHOR}
    )
    return _appended(name, receipt)


def _appended(name: str, receipt: Receipt) -> AppendedItems:
    return AppendedItems(
        session=name,
        seq=receipt.seq,
        appended=receipt.appended,
        revision=receipt.revision,
        tokens=receipt.tokens,
        open_calls=receipt.open_calls,
    )


def delete_session(scope: Scope, name: str) -> DeletedSession:
    """Delete a session with what is remembered from it alone.

    Raises:
        NotFoundError: there is no such session.
        HeldError, LeaseHeldError, StorageError
    """
    if not scope.delete_session(name):
        msg = f"there is no session {name!r:.80}"
        raise NotFoundError(msg)
    return DeletedSession(session=name)
