"""Sessions of Google ADK as MemcoreSessionService stores them; needs ADK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from google.adk.events.event import Event

from memcore.adapters.adk.events import EVENT, REST, encode_event, read_known
from memcore.adapters.adk.names import fields_of, name_of
from memcore.codec.values import check_json, encode_json
from memcore.errors import InvalidItemError, SourceError
from memcore.importing.source import (
    Notes,
    Record,
    SourceConversation,
    SourceFailure,
    SourceItem,
    fault_of_text,
    json_of,
    micros_of,
    refuse_source,
)
from memcore.importing.sqlite import UNREADABLE, SqliteSource
from memcore.limits import ENVELOPE_TEXT_CHARS_MAX, META_BYTES_MAX

__all__ = [
    "sessions",
]
_SHARED = ("app:", "user:", "temp:")


def sessions(db: SqliteSource, notes: Notes) -> Iterator[Record]:
    """Yield the sessions with their events in the order in which the service returns them."""
    sql = (
        "SELECT app_name, user_id, id, state, create_time, update_time FROM sessions "
        "ORDER BY app_name, user_id, id"
    )
    for app, user, name, state, created, updated in db.rows(sql, "sessions"):
        place = f"{db.path}: session {name!r:.80} of user {user!r:.80} in app {app!r:.80}"
        names = {"app_name": app, "user_id": user, "id": name}
        wrong = next(filter(None, (fault_of_text(each, what) for what, each in names.items())), "")
        if wrong:
            yield SourceFailure(place, wrong)
            continue
        try:
            found = SourceConversation(
                place, name, "gemini", [], app=name_of(app), user=name_of(user),
                created_us=micros_of(created), updated_us=micros_of(updated),
            )  # fmt: skip
            _fill(found, db, (app, user, name), json_of(state, place), notes)
        except (SourceError, TypeError) as error:
            yield SourceFailure(place, str(error).removeprefix(f"{place}: "))
            continue
        yield found


def _fill(
    found: SourceConversation,
    db: SqliteSource,
    place: tuple[str, str, str],
    state: Any,
    notes: Notes,
) -> None:
    """Add the events of a session, and the states that they lead to."""
    if not isinstance(state, dict):
        refuse_source(found.place, f"state: expected an object, got {type(state).__name__}")
    try:
        check_json(state)
    except ValueError as exc:
        refuse_source(found.place, f"state: no JSON ({exc})", exc)
    second = "id" if "adk_internal_metadata" in db.tables else "rowid"  # as each service reads them
    sql = (
        "SELECT id, invocation_id, timestamp, event_data FROM events WHERE app_name = ? AND "  # noqa: S608
        f"user_id = ? AND session_id = ? ORDER BY timestamp, {second}"
    )
    changes: list[tuple[int, dict[str, Any]]] = []
    rows: list[SourceItem] = []
    for number, invocation, at, text in db.rows(sql, "events", place):
        items, delta = _event(number, invocation, at, text, notes)
        rows += items
        own = {key: value for key, value in delta.items() if not key.startswith(_SHARED)}
        if own:
            changes.append((len(rows), own))
    touched = {key for _, delta in changes for key in delta}
    first = {key: value for key, value in state.items() if key not in touched}
    now = dict(first)
    for _, delta in changes:
        now |= delta
    if now != state:
        notes.mend("states that the events do not explain, stored as they are now")
        kept = {key: value for key, value in now.items() if key in state}
        if kept != now:  # a service never deletes a field
            first, changes = dict(state), []
        else:
            changes.append((len(rows), {k: v for k, v in state.items() if now.get(k, ...) != v}))
    created = found.created_us
    meta = {"adk": {"timestamp": (created or 0) / 1_000_000}}
    found.items = [SourceItem(fields_of(first), created, meta, event="state"), *rows]
    found.state = [(-1, dict(fields_of(first))), *((at, dict(fields_of(v))) for at, v in changes)]


def _event(
    number: Any, invocation: Any, at: Any, text: Any, notes: Notes
) -> tuple[list[SourceItem], dict[str, Any]]:
    """Return the rows of an event, as the adapter stores it, and the state that it changes."""
    try:
        raw = json_of(text, "")
        said = {**raw, "id": raw.get("id", number)}
        said.setdefault("invocation_id", invocation)
        event = read_known(lambda each: Event.model_validate_json(json.dumps(each)), said, "event")
        encoded = encode_event(event)
        check_json([encoded.rest, encoded.content, dict(encoded.delta)])
    except (SourceError, InvalidItemError, LookupError, TypeError, ValueError, AttributeError):
        notes.mend("events that this ADK does not read, kept as events of another type")
        told = {"id": number, "text": text if isinstance(text, str) else repr(text)}
        return [SourceItem(told, micros_of(at), event=UNREADABLE)], {}
    rest, content = encoded.rest, encoded.content
    created_us = micros_of(event.timestamp)
    author, said_invocation = rest.get("author"), rest.get("invocationId")
    is_told = author and said_invocation and len(author) <= ENVELOPE_TEXT_CHARS_MAX
    author, request_id = (author, said_invocation) if is_told else (None, None)
    if content is None:
        item = SourceItem(rest, created_us, event=EVENT, author=author, request_id=request_id)
        return [item], encoded.delta
    item = SourceItem(content, created_us, {"adk": rest}, author=author, request_id=request_id)
    if len(encode_json(item.meta)[0]) <= META_BYTES_MAX:
        return [item], encoded.delta
    split = [SourceItem(rest, created_us, event=REST), item._replace(meta={"adk": None})]
    return split, encoded.delta
