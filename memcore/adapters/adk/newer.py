"""What a newer ADK wrote: what this one does not know is left out of what is read."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar
from uuid import uuid4

from google.adk.events.event import Event
from pydantic import BaseModel, ValidationError

from memcore.errors import CorruptValueError

__all__ = ["read_event", "read_known"]

logger = logging.getLogger("memcore.adk")
T = TypeVar("T")
Path = tuple[int | str, ...]
_ROUNDS: Final = 8
_told: set[str] = set()


def read_event(text: bytes, seq: int) -> Event:
    """The event of its JSON. What this ADK does not know, or takes otherwise, is left out.

    The log says once which field that was; the file keeps it.

    Raises:
        CorruptValueError: what is left is no event.
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
    """The value with tokens in place of texts with half of a surrogate pair.

    Python's strings may have one, JSON may say it, and pydantic takes no such JSON.
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
    """What was validated, with the texts again that its tokens stand for."""
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
    """What ``validate`` makes of ``found``, from which is taken what this ADK does not know.

    Raises:
        ValueError: what is left is not what was asked for; also LookupError, TypeError.
    """
    for _ in range(_ROUNDS):
        try:
            return validate(found)
        except ValidationError as exc:
            _leave_out(found, exc, what)
    return validate(found)


def _leave_out(found: Any, error: ValidationError, what: str) -> None:
    """Take away what an error is about, or what holds it if the place itself is empty."""
    places: set[Path] = set()
    for each in error.errors(include_url=False, include_context=False):
        where = each["loc"]
        places.add(_there(found, where[:-1] if each["type"] == "missing" else where))
    for place in sorted(places, key=_order, reverse=True):
        name = ".".join(map(str, place))
        if name not in _told:
            _told.add(name)
            logger.warning("%s holds %s, which this ADK does not read: it is left out", what, name)
        holder = found
        for key in place[:-1]:
            holder = holder[key]
        del holder[place[-1]]


def _there(found: Any, where: Path) -> Path:
    """As much of a place as there is: errors also name what was tried there."""
    for at, key in enumerate(where):
        if not _has(found, key):
            return where[:at]
        found = found[key]
    return where


def _order(place: Path) -> list[tuple[bool, int | str]]:
    """By which the entries of a list come in their order, and what holds them before them."""
    return [(isinstance(key, str), key) for key in place]


def _has(value: Any, key: int | str) -> bool:
    if isinstance(value, dict):
        return key in value
    return isinstance(value, list) and isinstance(key, int) and key < len(value)


def _unreadable(seq: int, why: object) -> CorruptValueError:
    msg = f"item {seq} is no event that this ADK reads ({why}); session.get({seq}) shows what it is"
    return CorruptValueError(msg, key=b"")
