"""An event of ADK as rows of the log, and back.

Its content is an item in Gemini's wire form, so pairs, token counts and contexts are memcore's own;
all else is the item's ``meta["adk"]``. An event without parts is an event row that holds all of it.
What is too large for a meta is a row of its own before the item. Together they are the event's
JSON as ADK wrote it: fields that this ADK does not know stay.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from google.adk.events.event import Event
from pydantic_core import PydanticSerializationError, to_jsonable_python

from memcore import blobs, codec
from memcore._fast import scan_json
from memcore.adapters.adk.newer import read_event
from memcore.errors import CorruptValueError, InvalidItemError, NotFoundError
from memcore.log.history import StoredRow
from memcore.log.item import split_body, stored_json
from memcore.model import ItemKind
from memcore.store.base import ReadTxn

__all__ = ["COVERS", "EVENT", "REST", "Encoded", "Stored", "encode_event", "json_state"]

logger = logging.getLogger("memcore.adk")

EVENT: Final = "adk.event"
"""Type of the row of an event without parts."""
REST: Final = "adk.rest"
"""Type of the row of what was too large for the meta of the item behind it."""
COVERS: Final = "memcoreCovers"
"""Beside the fields of a compaction event: the first and the last seq that it covers, and the
prefix hash there. ADK leaves out what it does not know."""
TEMPORARY: Final = "temp:"
BY_NAME: Final = "\0"
_META: Final = b'{"adk":'
_SPLIT: Final = b'{"adk":null}'
_EVENT_ROW: Final = b'{"type":"%b","payload":' % EVENT.encode()
_NOTHING: Final = b'"payload":null}'
"""How the row of an event ends that expired, or was deleted."""
_REST_ROW: Final = b'{"type":"%b","payload":' % REST.encode()
_PLAIN: Final = frozenset(
    ("actions", "author", "branch", "customMetadata", "id", "invocationId", "isolationScope")
) | {"nodeInfo", "timestamp"}
_DELTAS: Final = frozenset(("stateDelta", "artifactDelta"))


class Pairs(NamedTuple):
    """The ids of the calls that an event makes, and of those that it answers.

    A call without one goes by ``BY_NAME`` and its name.
    """

    called: list[str]
    answered: list[str]
    answers_only: bool
    """Whether it holds nothing but responses."""


class Encoded(NamedTuple):
    """An event as it is stored."""

    content: dict[str, Any] | None
    """None: the event has no parts."""
    rest: dict[str, Any]
    """All but the content."""
    delta: dict[str, Any]
    """What of the state changes."""
    identity: bytes = b""
    """What must be the same when the event comes again; empty: all of it."""

    @property
    def is_state_only(self) -> bool:
        """Whether it changes the state, or names artifacts, and says and does nothing else."""
        actions = {name for name, value in self.rest["actions"].items() if value}
        return self.content is None and self.rest.keys() <= _PLAIN and actions <= _DELTAS

    def event(self) -> Event:
        """What will be read of it."""
        whole = self.rest if self.content is None else {**self.rest, "content": self.content}
        return read_event(codec.encode_json(whole)[0], 0)


def encode_event(event: Event) -> Encoded:
    """Write an event as JSON; what is temporary is left out, whatever it is.

    Raises:
        InvalidItemError: it holds what neither JSON nor a string can say.
    """
    given = event.actions.state_delta
    kept = {key: value for key, value in given.items() if not key.startswith(TEMPORARY)}
    if len(kept) < len(given):
        actions = event.actions.model_copy(update={"state_delta": kept})
        event = event.model_copy(update={"actions": actions})
    dumped = _dumped(event)
    if _has_replaced(dumped) and _has_broken(event.model_dump()):
        # pydantic writes such a key as another one.
        raise _unsayable(f"event {event.id}", ValueError("a key has half of a surrogate pair"))
    delta: dict[str, Any] = {}
    if given:
        actions = dumped["actions"]
        delta = actions["stateDelta"]
        if scan_json(kept):  # where events have null, the state has the number as a string
            delta = json_state(kept)
        actions["stateDelta"] = delta
    content = dumped.get("content")
    if content and content.get("parts"):
        del dumped["content"]
        return Encoded(content, dumped, delta)
    return Encoded(None, dumped, delta)


def _dumped(event: Event) -> dict[str, Any]:
    try:
        # As model_dump does, which takes half as long again.
        serializer = type(event).__pydantic_serializer__
        with suppress(PydanticSerializationError):
            return serializer.to_python(  # type: ignore[no-any-return]
                event, mode="json", by_alias=True, exclude_none=True
            )
        logger.warning(
            "event %s holds values that are no JSON: they are stored as strings", event.id
        )
        return event.model_dump(mode="json", by_alias=True, exclude_none=True, fallback=_text_of)
    except (ValueError, RecursionError) as exc:
        raise _unsayable(f"event {event.id}", exc) from exc


def _has_replaced(dumped: Any) -> bool:
    """Whether a key may stand in place of one that is no valid Unicode."""
    if isinstance(dumped, dict):
        return any("\ufffd" in key or _has_replaced(each) for key, each in dumped.items())
    return isinstance(dumped, list) and any(map(_has_replaced, dumped))


def _has_broken(value: Any) -> bool:
    """Whether a key is no valid Unicode."""
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
    """Values as JSON says them; those that it cannot say as strings, with a warning.

    Raises:
        InvalidItemError: they hold what neither JSON nor a string can say.
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
    logger.warning("the state holds values that are no JSON: they are stored as strings")
    return {str(key): _finite(value) for key, value in said.items()}


def _text_of(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - the code of others: what it is has to do
        return object.__repr__(value)


def _unsayable(what: str, why: Exception) -> InvalidItemError:
    msg = (
        f"{what} holds what neither JSON nor a string can say ({why}): expected values that do not "
        "contain themselves, nested a few levels, whose keys are valid Unicode"
    )
    return InvalidItemError(msg)


def _finite(value: Any) -> Any:
    """The value with its numbers that JSON has not as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list) else value


class Stored(NamedTuple):
    """A row of the log as it was read."""

    seq: int
    body: bytes
    flags: int
    payload: bytes | None

    @classmethod
    def of(cls, txn: ReadTxn, scope: int, row: StoredRow) -> Stored:
        """A row with its large content.

        Raises:
            CorruptValueError: that is damaged or missing.
        """
        _, seq, flags, body = row
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
        """Whether it is an event of ADK, and not a row of another sort."""
        meta, message = stored_json(self.body, self.flags, self.payload)
        if self.body[0] == ItemKind.EVENT:
            return message.startswith(_EVENT_ROW) and not message.endswith(_NOTHING)
        return meta.startswith(_META)

    @property
    def is_split(self) -> bool:
        """Whether the row before it holds what is not its content."""
        return self.body[0] != ItemKind.EVENT and self._meta() == _SPLIT

    def _meta(self) -> bytes:
        return stored_json(self.body, self.flags, self.payload)[0]

    def decode(self, rest: bytes | None) -> Event | None:
        """The event; None for a row that is none.

        Args:
            rest: the JSON of what was too large for its meta: that of the row before it.

        Raises:
            CorruptValueError: it makes no event.
        """
        meta, message = stored_json(self.body, self.flags, self.payload)
        if self.body[0] == ItemKind.EVENT:
            if not self.is_event:
                return None
            return read_event(message[len(_EVENT_ROW) : -1], self.seq)
        if not meta.startswith(_META):
            return None
        told = meta[len(_META) : -1]
        if meta == _SPLIT:
            if rest is None:
                msg = f"the row before item {self.seq}, which holds the rest of its event, is gone"
                raise CorruptValueError(msg, key=b"")
            told = rest
        return read_event(b'{"content":%b,%b' % (message, told[1:]), self.seq)

    def said(self, rest: bytes | None) -> dict[str, Any]:
        """What is stored of an event beside its content; ``rest`` is as in ``decode``."""
        meta, message = stored_json(self.body, self.flags, self.payload)
        if self.body[0] == ItemKind.EVENT:
            told = message[len(_EVENT_ROW) : -1]
        else:
            told = meta[len(_META) : -1] if meta != _SPLIT else rest or b"{}"
        found = codec.decode_json(told, self.flags)
        if not isinstance(found, dict):
            raise self._damaged("its event is no object")
        return found

    def whole_time(self) -> float | None:
        """When an event was that is this one row; None: it is another row.

        Raises:
            CorruptValueError: it does not say.
        """
        meta, message = stored_json(self.body, self.flags, self.payload)
        if self.body[0] == ItemKind.EVENT:
            if not self.is_event:
                return None
            told = message[len(_EVENT_ROW) : -1]
        elif not meta.startswith(_META) or meta == _SPLIT:
            return None
        else:
            told = meta[len(_META) : -1]
        return self._time_in(codec.decode_json(told, self.flags))

    def time(self, rest: bytes | None) -> float:
        """When an event was; ``rest`` is as in ``decode``.

        Raises:
            CorruptValueError: it does not say.
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
        """The calls that its content makes and answers."""
        found = Pairs([], [], answers_only=False)
        if self.body[0] == ItemKind.EVENT:
            return found
        _, message = stored_json(self.body, self.flags, self.payload)
        others = 0
        for part in codec.decode_json(message, self.flags).get("parts") or ():
            call, answer = part.get("functionCall"), part.get("functionResponse")
            others += answer is None
            for told, keys in ((call, found.called), (answer, found.answered)):
                if told is not None:
                    keys.append(told.get("id") or BY_NAME + (told.get("name") or ""))
        return found._replace(answers_only=bool(found.answered) and not others)

    def timestamp(self) -> float | None:
        """When a row was that is no event; None if it belongs to another row."""
        if self.rest() is not None:
            return None
        meta, _ = stored_json(self.body, self.flags, self.payload)
        if meta.startswith(_META):  # what a session begins with
            return self._time_in(codec.decode_json(meta, 0).get("adk"))
        return split_body(self.body)[1] / 1e6

    def rest(self) -> bytes | None:
        """What this row says of the item behind it; None if it is no such row."""
        if self.body[0] != ItemKind.EVENT:
            return None
        _, message = stored_json(self.body, self.flags, self.payload)
        return message[len(_REST_ROW) : -1] if message.startswith(_REST_ROW) else None
