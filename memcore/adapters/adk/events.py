"""Encoding of ADK events as log items.

An event's content is an item in Gemini's wire format, so memcore handles its pairs, token counts
and contexts itself; everything else goes into the item's ``meta["adk"]``. An event without parts is
a single event row. Fields too large for a meta get a row of their own before the item. Together the
rows are the event's JSON as ADK wrote it: fields unknown to this version of ADK are preserved.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

import orjson
from google.adk.events.event import Event, NodeInfo
from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session
from google.genai import types
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from memcore import blobs
from memcore._fast import Trees, scan_json
from memcore.codec import values as codec
from memcore.errors import CorruptValueError, InvalidItemError, NotFoundError
from memcore.faces import logger
from memcore.graph.decode import Shapes, classify
from memcore.log.history import StoredRow
from memcore.model import ItemKind
from memcore.rows.item import Json, split_body, stored_json, stored_meta
from memcore.store.interface import ReadTxn

__all__ = [
    "COVERS",
    "EVENT",
    "REST",
    "TIMED",
    "Copies",
    "Encoded",
    "Stored",
    "Told",
    "encode_event",
    "is_shown",
    "json_state",
    "marker_in",
    "marker_of",
    "new_session",
    "put_marker",
    "read_event",
    "read_known",
    "rewound_spans",
]


# --- Events of a newer ADK: fields that this version does not know are left out -------------------

_log = logger("memcore.adk")
T = TypeVar("T")
Path = tuple[int | str, ...]
_ROUNDS: Final = 8
_told: set[str] = set()


def read_event(text: bytes, seq: int) -> Event:
    """Parse an event from JSON, leaving out fields that this version of ADK does not accept.

    Each such field is logged once; the file keeps it.

    Raises:
        CorruptValueError: the remaining fields do not form an event.
    """
    with suppress(ValidationError):
        return Event.model_validate_json(text)
    held: dict[str, str] = {}
    try:
        found = _hidden(json.loads(text.decode("utf-8", "surrogatepass")), held)
        event = read_known(
            lambda found: Event.model_validate_json(json.dumps(found)), found, "an event"
        )
    except (ValueError, LookupError, TypeError) as exc:
        raise _unreadable(seq, exc) from exc
    return _shown(event, held) if held else event


def _hidden(found: Any, held: dict[str, str]) -> Any:
    """The value with tokens in place of texts that contain an unpaired surrogate.

    Python strings and JSON can represent one, but pydantic rejects such JSON.
    """
    if isinstance(found, str):
        try:
            found.encode()
        except UnicodeEncodeError:
            token = f"memcore-text-{uuid4().hex}"
            held[token] = found
            return token
    if isinstance(found, list):
        return [_hidden(each, held) for each in found]
    if isinstance(found, dict):
        return {_hidden(key, held): _hidden(each, held) for key, each in found.items()}
    return found


def _shown(found: Any, held: Mapping[str, str]) -> Any:
    """The validated object with the tokens replaced by the original texts."""
    if isinstance(found, str):
        return held.get(found, found)
    if isinstance(found, BaseModel):
        for name, each in found.__dict__.items():
            found.__dict__[name] = _shown(each, held)
        return found
    if isinstance(found, list | set):
        return type(found)(_shown(each, held) for each in found)
    if isinstance(found, dict):
        return {_shown(key, held): _shown(each, held) for key, each in found.items()}
    return found


def read_known(validate: Callable[[Any], T], found: Any, what: str) -> T:
    """Validate ``found``, leaving out whatever this version of ADK does not accept.

    Raises:
        ValueError: the remaining fields are invalid; also LookupError, TypeError.
    """
    for _ in range(_ROUNDS):
        try:
            return validate(found)
        except ValidationError as exc:
            _leave_out(found, exc, what)
    return validate(found)


def _leave_out(found: Any, error: ValidationError, what: str) -> None:
    """Remove the value that an error refers to, or its container if the value is missing."""
    places: set[Path] = set()
    for each in error.errors(include_url=False, include_context=False):
        where = each["loc"]
        places.add(_there(found, where[:-1] if each["type"] == "missing" else where))
    for place in sorted(places, key=_order, reverse=True):
        name = ".".join(map(str, place))
        if name not in _told:
            _told.add(name)
            _log.warning("%s holds %s, which this ADK does not read: it is left out", what, name)
        holder = found
        for key in place[:-1]:
            holder = holder[key]
        del holder[place[-1]]


def _there(found: Any, where: Path) -> Path:
    """The part of a path that exists; errors also name the union alternatives tried."""
    for at, key in enumerate(where):
        if not _has(found, key):
            return where[:at]
        found = found[key]
    return where


def _order(place: Path) -> list[tuple[bool, int | str]]:
    """A sort key that orders list entries before the list itself."""
    return [(isinstance(key, str), key) for key in place]


def _has(value: Any, key: int | str) -> bool:
    if isinstance(value, dict):
        return key in value
    return isinstance(value, list) and isinstance(key, int) and key < len(value)


def _unreadable(seq: int, why: object) -> CorruptValueError:
    msg = f"item {seq} is no event that this ADK reads ({why}); session.get({seq}) shows what it is"
    return CorruptValueError(msg, key=b"")


# --- ADK events as rows of the log, and back ------------------------------------------------------


EVENT: Final = "adk.event"
"""Type of the row of an event without parts."""
REST: Final = "adk.rest"
"""Type of the row with the fields too large for the meta of the following item."""
COVERS: Final = "memcoreCovers"
"""An extra field of a compaction event: the first and last seq that it covers, and the prefix hash
at the last. ADK ignores unknown fields."""
TEMPORARY: Final = "temp:"
BY_NAME: Final = "\0"
_META: Final = b'{"adk":'
_SPLIT: Final = b'{"adk":null}'
_EVENT_ROW: Final = b'{"type":"%b","payload":' % EVENT.encode()
_NO_FIELDS: Final = Json(b"{}", 0)
_NOTHING: Final = b'"payload":null}'
"""The end of the row of an expired or deleted event."""
_REST_ROW: Final = b'{"type":"%b","payload":' % REST.encode()
TIMED: Final = _EVENT_ROW, _REST_ROW, _META, b'"timestamp":'
"""Arguments of ``SessionRows``: prefixes of event rows, rest rows and metas, and the time's key."""
_PLAIN: Final = frozenset(
    ("actions", "author", "branch", "customMetadata", "id", "invocationId", "isolationScope")
) | {"nodeInfo", "timestamp"}
_DELTAS: Final = frozenset(("stateDelta", "artifactDelta"))


class Pairs(NamedTuple):
    """The ids of the calls that an event makes and of those that it answers.

    A call without an id is identified by ``BY_NAME`` and its name.
    """

    called: list[str]
    answered: list[str]
    answers_only: bool
    """True if its parts are all responses."""


class Told(NamedTuple):
    """The stored fields of an event that affect other events or the state."""

    invocation: str | None
    author: str | None
    delta: dict[str, Any]
    """The state changes."""
    rewinds_to: str | None
    """The invocation before which it rewinds the session."""
    long_ids: list[str]
    """The ids of its long-running calls."""


class Encoded(NamedTuple):
    """An event in its stored form."""

    content: dict[str, Any] | None
    """None: the event has no parts."""
    rest: dict[str, Any]
    """Everything except the content."""
    delta: dict[str, Any]
    """The state changes."""
    identity: bytes = b""
    """The bytes that must match on a retry; empty: the whole event."""

    @property
    def is_state_only(self) -> bool:
        """True if it only changes the state or names artifacts."""
        actions = {name for name, value in self.rest["actions"].items() if value}
        return self.content is None and self.rest.keys() <= _PLAIN and actions <= _DELTAS

    def event(self) -> Event:
        """The event as it will be read back."""
        whole = self.rest if self.content is None else {**self.rest, "content": self.content}
        return read_event(codec.encode_json(whole)[0], 0)


_REPLACED: Final = "\ufffd".encode()


def encode_event(event: Event) -> Encoded:
    """Encode an event as JSON, without temporary state.

    Raises:
        InvalidItemError: it holds a value that cannot be represented as JSON or a string.
    """
    given = event.actions.state_delta
    kept = {key: value for key, value in given.items() if not key.startswith(TEMPORARY)}
    if len(kept) < len(given):
        actions = event.actions.model_copy(update={"state_delta": kept})
        event = event.model_copy(update={"actions": actions})
    dumped = _dumped(event)
    if _may_have_replaced(dumped) and _has_replaced(dumped) and _has_broken(event.model_dump()):
        # pydantic silently rewrites such a key.
        raise _unsayable(f"event {event.id}", ValueError("a key has half of a surrogate pair"))
    delta: dict[str, Any] = {}
    if given:
        actions = dumped["actions"]
        delta = actions["stateDelta"]
        if scan_json(kept):  # numbers that are null in events are strings in the state
            delta = json_state(kept)
        actions["stateDelta"] = delta
    content = dumped.get("content")
    if content and content.get("parts"):
        del dumped["content"]
        return Encoded(content, dumped, delta)
    return Encoded(None, dumped, delta)


def _dumped(event: Event) -> dict[str, Any]:
    try:
        # Equivalent to model_dump, which takes 1.5 times as long.
        serializer = type(event).__pydantic_serializer__
        with suppress(PydanticSerializationError):
            return serializer.to_python(  # type: ignore[no-any-return]
                event, mode="json", by_alias=True, exclude_none=True
            )
        _log.warning("event %s holds values that are no JSON: they are stored as strings", event.id)
        return event.model_dump(mode="json", by_alias=True, exclude_none=True, fallback=_text_of)
    except (ValueError, RecursionError) as exc:
        raise _unsayable(f"event {event.id}", exc) from exc


def _may_have_replaced(dumped: Any) -> bool:
    """A fast, conservative pre-check for ``_has_replaced``, which rules out most events."""
    try:
        return _REPLACED in orjson.dumps(dumped)
    except orjson.JSONEncodeError:  # contains something that is not plain JSON
        return True


def _has_replaced(dumped: Any) -> bool:
    """Return whether a key may have had invalid Unicode replaced."""
    if isinstance(dumped, dict):
        return any("\ufffd" in key or _has_replaced(each) for key, each in dumped.items())
    return isinstance(dumped, list) and any(map(_has_replaced, dumped))


def _has_broken(value: Any) -> bool:
    """Return whether a key is not valid Unicode."""
    if isinstance(value, dict):
        return any(_is_broken(key) or _has_broken(each) for key, each in value.items())
    return isinstance(value, list | tuple) and any(map(_has_broken, value))


def _is_broken(key: object) -> bool:
    try:
        str(key).encode()
    except UnicodeEncodeError:
        return True
    return False


def json_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values to JSON; those that JSON cannot represent become strings, with a warning.

    Raises:
        InvalidItemError: a value cannot be represented as JSON or a string.
    """
    try:
        try:
            said = to_jsonable_python(state, bytes_mode="base64")  # as in events
            if not scan_json(said):
                return dict(said)
        except PydanticSerializationError:
            said = to_jsonable_python(state, bytes_mode="base64", fallback=_text_of)
    except (ValueError, RecursionError) as exc:
        raise _unsayable("the state", exc) from exc
    _log.warning("the state holds values that are no JSON: they are stored as strings")
    return {str(key): _finite(value) for key, value in said.items()}


def _text_of(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - third-party code; the default repr is good enough
        return object.__repr__(value)


def _unsayable(what: str, why: Exception) -> InvalidItemError:
    msg = (
        f"{what} holds what neither JSON nor a string can say ({why}): expected values that do not "
        "contain themselves, nested a few levels, whose keys are valid Unicode"
    )
    return InvalidItemError(msg)


def _finite(value: Any) -> Any:
    """The value with numbers that JSON lacks (NaN, infinities) as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list) else value


class Stored(NamedTuple):
    """A row of the log as read."""

    seq: int
    body: bytes
    flags: int
    payload: bytes | None

    @classmethod
    def of(cls, txn: ReadTxn, scope: int, row: StoredRow) -> Stored:
        """Build a row, reading its large content.

        Raises:
            CorruptValueError: the content is damaged or missing.
        """
        _, seq, flags, body = row
        if not body:
            msg = f"the row of item {seq} is empty; run 'memcore check'"
            raise CorruptValueError(msg, key=b"")
        if not flags & codec.FLAG_BLOB:
            return cls(seq, body, flags, None)
        try:
            payload = blobs.read(txn, scope, blobs.BlobRef.unpack(split_body(body)[3]))
        except NotFoundError as exc:
            msg = f"the large content of item {seq} is missing: {exc}; run 'memcore check'"
            raise CorruptValueError(msg, key=b"") from exc
        return cls(seq, body, flags, payload)

    @property
    def is_event(self) -> bool:
        """True if the row is an ADK event rather than a row of another kind."""
        if self.body[0] != ItemKind.EVENT:
            return is_shown(self.body)
        text = self._json()[1].text
        return text.startswith(_EVENT_ROW) and not text.endswith(_NOTHING)

    @property
    def is_split(self) -> bool:
        """True if the preceding row holds the event's other fields."""
        return self.body[0] != ItemKind.EVENT and stored_meta(self.body).text == _SPLIT

    def _json(self) -> tuple[Json, Json]:
        return stored_json(self.body, self.flags, self.payload)

    def decode(self, rest: Json | None) -> Event | None:
        """The event; None if the row is not one.

        Args:
            rest: the JSON of fields too large for its meta, from the preceding row.

        Raises:
            CorruptValueError: the row does not form a valid event.
        """
        meta, message = self._json()
        if self.body[0] == ItemKind.EVENT:
            if not self.is_event:
                return None
            return read_event(message.text[len(_EVENT_ROW) : -1], self.seq)
        if not meta.text.startswith(_META):
            return None
        told = meta.text[len(_META) : -1]
        if meta.text == _SPLIT:
            if rest is None:
                msg = f"the row before item {self.seq}, which holds the rest of its event, is gone"
                raise CorruptValueError(msg, key=b"")
            told = rest.text
        return read_event(b'{"content":%b,%b' % (message.text, told[1:]), self.seq)

    def said(self, rest: Json | None) -> dict[str, Any]:
        """The stored fields of an event except its content; ``rest`` is as in ``decode``."""
        meta, message = self._json()
        if self.body[0] == ItemKind.EVENT:
            told = message.part(len(_EVENT_ROW), -1)
        else:
            told = meta.part(len(_META), -1) if meta.text != _SPLIT else rest or _NO_FIELDS
        found = told.value()
        if not isinstance(found, dict):
            raise self._damaged("its event is no object")
        return found

    def told(self, rest: Json | None) -> Told:
        """The stored fields of an event that affect others; ``rest`` is as in ``decode``.

        Raises:
            CorruptValueError: a field has a type that ADK does not write.
        """
        said = self.said(rest)
        actions = self._given(said, "actions", dict) or {}
        long_ids = self._given(said, "longRunningToolIds", list) or []
        if not all(isinstance(each, str) for each in long_ids):
            raise self._damaged("its longRunningToolIds are no strings")
        return Told(
            self._given(said, "invocationId", str),
            self._given(said, "author", str),
            self._given(actions, "stateDelta", dict) or {},
            self._given(actions, "rewindBeforeInvocationId", str) or None,
            long_ids,
        )

    def _given(self, fields: dict[str, Any], name: str, kind: type[T]) -> T | None:
        """The value of a field, None if it is absent; checks its type."""
        found = fields.get(name)
        if found is not None and not isinstance(found, kind):
            raise self._damaged(f"its {name} is of type {type(found).__name__}")
        return found

    def whole_time(self) -> float | None:
        """The timestamp of an event stored in this single row; None for any other row.

        Raises:
            CorruptValueError: the event has no timestamp.
        """
        meta, message = self._json()
        if self.body[0] == ItemKind.EVENT:
            if not self.is_event:
                return None
            told = message.part(len(_EVENT_ROW), -1)
        elif not meta.text.startswith(_META) or meta.text == _SPLIT:
            return None
        else:
            told = meta.part(len(_META), -1)
        return self._time_in(told.value())

    def time(self, rest: Json | None) -> float:
        """The timestamp of an event; ``rest`` is as in ``decode``.

        Raises:
            CorruptValueError: it has no timestamp.
        """
        return self._time_in(self.said(rest))

    def _time_in(self, said: Any) -> float:
        told = said.get("timestamp") if isinstance(said, dict) else None
        if isinstance(told, bool) or not isinstance(told, int | float):
            raise self._damaged("its event has no time")
        try:
            return float(told)
        except OverflowError as exc:
            raise self._damaged("its event has no time") from exc

    def _damaged(self, why: str) -> CorruptValueError:
        msg = f"item {self.seq} is damaged: {why}; session.get({self.seq}) shows what it is"
        return CorruptValueError(msg, key=b"")

    def pairs(self) -> Pairs:
        """The calls that its content makes and answers.

        Raises:
            CorruptValueError: the content is not in Gemini's format.
        """
        found = Pairs([], [], answers_only=False)
        if self.body[0] == ItemKind.EVENT:
            return found
        content = self._json()[1].value()
        if not isinstance(content, dict):
            raise self._damaged("its content is no object")
        others = 0
        for part in self._given(content, "parts", list) or ():
            if not isinstance(part, dict):
                raise self._damaged("a part of its content is no object")
            call = self._given(part, "functionCall", dict)
            answer = self._given(part, "functionResponse", dict)
            others += answer is None
            for told, keys in ((call, found.called), (answer, found.answered)):
                if told is not None:
                    name = self._given(told, "name", str) or ""
                    keys.append(self._given(told, "id", str) or BY_NAME + name)
        return found._replace(answers_only=bool(found.answered) and not others)

    def timestamp(self) -> float | None:
        """The time of a row that is not an event; None if it is part of another row."""
        if self.rest() is not None:
            return None
        meta = stored_meta(self.body)
        if meta.text.startswith(_META):  # the first row of a session
            return self._time_in(meta.value().get("adk"))
        return split_body(self.body)[1] / 1e6

    def rest(self) -> Json | None:
        """The fields that this row holds for the item after it; None for any other row."""
        if self.body[0] != ItemKind.EVENT:
            return None
        message = self._json()[1]
        return message.part(len(_REST_ROW), -1) if message.text.startswith(_REST_ROW) else None


def is_shown(body: bytes) -> bool:
    """Return whether a content item's row is an event, rather than an emptied placeholder.

    Raises:
        CorruptValueError: the row is sealed, but not an item.
    """
    return stored_meta(body).text.startswith(_META)


# --- Rewinds: events that ADK no longer shows -----------------------------------------------------


def rewound_spans(events: Sequence[tuple[str | None, str | None]]) -> list[tuple[int, int]]:
    """Index spans of events undone by rewinds; each ends with its rewind.

    Matches ADK's ``_apply_rewinds``: found from the end backwards, so a rewind that was itself
    undone has no effect.

    Args:
        events: for each event, its invocation and the one it rewinds to, if it is a rewind.
    """
    firsts: dict[str, int] = {}
    for at, (invocation, _) in enumerate(events):
        if invocation:
            firsts.setdefault(invocation, at)
    spans: list[tuple[int, int]] = []
    at = len(events) - 1
    while at >= 0:
        goal = events[at][1]
        first = firsts.get(goal, at) if goal else at
        if first < at:
            spans.append((first, at))
        at = min(first, at) - 1
    return spans[::-1]


# --- Copies of decoded events: callers get objects of their own -----------------------------------

_PLAIN_COPIES: Final = frozenset(
    {
        Event,
        EventActions,
        NodeInfo,
        types.Blob,
        types.Content,
        types.FunctionCall,
        types.FunctionResponse,
        types.GenerateContentResponseUsageMetadata,
        types.ModalityTokenCount,
        types.Part,
    }
)
_OPAQUE: Final = (0, False, (), ())
_FIELDS: Final = frozenset(
    {
        "actions",
        "author",
        "branch",
        "errorCode",
        "errorMessage",
        "finishReason",
        "id",
        "interrupted",
        "invocationId",
        "isolationScope",
        "longRunningToolIds",
        "modelVersion",
        "nodeInfo",
        "partial",
        "timestamp",
        "turnComplete",
        "usageMetadata",
    }
)
_NEEDED: Final = frozenset({"actions", "author", "id", "invocationId", "nodeInfo", "timestamp"})
_ACTIONS: Final = frozenset(
    {"artifactDelta", "requestedAuthConfigs", "requestedToolConfirmations", "stateDelta"}
)
_PARTS: Final = frozenset(
    {"text", "thought", "thoughtSignature", "functionCall", "functionResponse", "inlineData"}
)


class Copies:
    """Copies events without executing code of the copied objects."""

    __slots__ = ("_plain", "_trees")

    def __init__(self) -> None:
        self._trees = Shapes().trees
        self._plain = Trees(_shape_of_plain)

    def of(self, events: list[Event]) -> list[Event]:
        """Copies of events that share no mutable data with them."""
        copied = self._trees.copy(events)
        if copied is self._trees.opaque:
            return [event.model_copy(deep=True) for event in events]
        return copied  # type: ignore[no-any-return]

    def as_stored(self, event: Event, encoded: Encoded) -> Event | None:
        """A copy of an event equal to what reading it back would return; None if in doubt.

        Values that change in a JSON round trip (a tuple, a date) may occur anywhere.
        """
        rest = encoded.rest
        if not _NEEDED <= rest.keys() <= _FIELDS or rest["actions"].keys() != _ACTIONS:
            return None
        if event.actions.state_delta != encoded.delta or rest["actions"]["requestedAuthConfigs"]:
            return None
        if rest["actions"]["requestedToolConfirmations"]:
            return None
        if encoded.content is None:
            if event.content is not None:
                return None
        elif not _is_plain(event.content, encoded.content):
            return None
        copied = self._plain.copy(event)
        return None if copied is self._plain.opaque else copied


def _shape_of_plain(kind: type) -> Any:
    if kind in _PLAIN_COPIES or (issubclass(kind, enum.Enum) and kind.__module__ == types.__name__):
        return classify(kind)
    return _OPAQUE


def _is_plain(content: types.Content | None, stored: dict[str, Any]) -> bool:
    """Return whether the arguments and results of calls equal their JSON form."""
    for part, said in zip((content and content.parts) or (), stored["parts"], strict=True):
        if not said.keys() <= _PARTS:
            return False
        if part.function_call and part.function_call.args != said["functionCall"].get("args"):
            return False
        told = part.function_response
        if told and (told.parts or told.response != said["functionResponse"].get("response")):
            return False
    return True


# --- Markers of Session objects: the version of the log that an object shows ----------------------
# The marker is in the slot that ADK's own services use for it; copies of the object keep it, JSON
# does not. It is accessed through pydantic's internal storage, because attribute access takes ten
# times as long.

_SLOT: Final = "_storage_update_marker"
_OURS: Final = "memcore:"
_put: Final = object.__setattr__


def marker_of(place: tuple[int, int], revision: int) -> str:
    """The marker of a session's revision; session numbers are never reused."""
    return f"{_OURS}{place[1]}:{revision}"


def marker_in(session: Session) -> str | None:
    """The marker of an object, None if it has none of memcore's."""
    found = (session.__pydantic_private__ or {}).get(_SLOT)
    return found if isinstance(found, str) and found.startswith(_OURS) else None


_SESSION_FIELDS: Final = frozenset(
    ("id", "app_name", "user_id", "state", "events", "last_update_time")
)
_IS_PLAIN_SESSION: Final = (
    Session.model_fields.keys() == _SESSION_FIELDS
    and Session.__private_attributes__.keys() == {_SLOT}
)
"""True if Session has exactly these fields, so that it can be built without validation."""


def new_session(
    names: tuple[str, str, str], state: dict[str, Any], last: float, marker: str
) -> Session:
    """Make a Session without events; ``names`` are its application, user and id."""
    app, user, name = names
    if not _IS_PLAIN_SESSION:
        made = Session(id=name, app_name=app, user_id=user, state=state, last_update_time=last)
        put_marker(made, marker)
        return made
    fields = {
        "id": name, "app_name": app, "user_id": user, "state": state, "events": [],
        "last_update_time": last,
    }  # fmt: skip
    made = Session.__new__(Session)
    _put(made, "__dict__", fields)
    _put(
        made, "__pydantic_fields_set__", {"id", "app_name", "user_id", "state", "last_update_time"}
    )
    _put(made, "__pydantic_extra__", None)
    _put(made, "__pydantic_private__", {_SLOT: marker})
    return made


def put_marker(session: Session, marker: str) -> None:
    """Set an object's marker."""
    private = session.__pydantic_private__
    if private is None:
        session._storage_update_marker = marker  # noqa: SLF001 - ADK's own slot for it
    else:
        private[_SLOT] = marker
