"""Lines of an export: one JSON object for a session, an item, a view, a checkpoint, a state.

```
{"memcore":1,"session":...,"app":...,"user":...,"policy":...,"items":2,"views":1,...}
{"seq":1,"kind":"user","created_us":...,"item":{...}}
{"seq":2,"kind":"assistant","created_us":...,"meta":{...},"request_id":...,"item":{...}}
{"view":{"cut_seq":1,"summary":...}}
{"checkpoint":{"name":...,"segments":[[1,2]],"view":1,...}}
{"state":{"counter":3,"values":{...}}}
{"memcore":1,"shared":{"app":...,"user":...,"values":{...}}}
```

A session as messages alone is one line, which another program may have written as well:

```
{"id":...,"metadata":{"memcore":{"app":...,"user":...,"policy":...}},"messages":[{...},{...}]}
```

``states`` says more of the lines of a state, ``sharing`` of what sessions share.

An item's JSON is the stored text itself, so nothing is lost on the way. A lone surrogate is written
as an escape, which keeps the file UTF-8; only the second of two that stand together is kept as raw
bytes, because two escapes in a row would be read as one character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

from memcore.codec import values as codec
from memcore.codec.values import encode_json
from memcore.errors import InvalidItemError
from memcore.limits import META_BYTES_MAX
from memcore.log import Head, Segment, SessionTxn
from memcore.log.checkpoint import CheckpointRow, last_number, write_checkpoint
from memcore.model import Checkpoint, View
from memcore.privacy.write_filter import Redacts
from memcore.rows import names

__all__ = [
    "FORMATS",
    "Arrived",
    "Conversation",
    "Title",
    "arrived_of",
    "checked_fields",
    "is_part",
    "is_title",
    "parse_line",
    "portable",
    "portable_json",
    "redacted_lines",
    "refuse",
    "write_arrived",
]


# --- The lines of an export: a JSON object for a session, each item, view, checkpoint, and its ----

VERSION: Final = 1
FORMATS: Final[Mapping[str, str]] = {
    "jsonl": "",
    "openai-chat": "chat",
    "openai-responses": "responses",
    "anthropic": "anthropic",
}
"""Export formats, and the wire format that a session must have (jsonl: any)."""

COUNT_END: Final = 2**48
"""Seqs, revisions, counters and tokens end below it: whatever is added to one later still fits the
62 bits of a head."""
TIME_MS_END: Final = 2**52
"""Times are kept as seconds in a float, which gives back the milliseconds below it."""
CREATED_US_END: Final = 2**32 * 1_000_000
"""An index record holds the second in which an item was made as 32 bits."""
STAND_INS_A_LINE: Final = 64
"""Seqs without an item that a line pays for: an import stores a row of about 120 bytes for each."""


class LineField(NamedTuple):
    """The type of a field of a line, and its bounds if it is a number."""

    kind: type
    least: int = 0
    below: int = COUNT_END
    default: Any = ...
    """Value if the field is missing; ``...``: every line has it."""

    def fits(self, value: object) -> bool:
        """Return True if a value is of the type and within the bounds."""
        if self.kind is int:
            return type(value) is int and self.least <= value < self.below
        return isinstance(value, self.kind)

    @property
    def wanted(self) -> str:
        """The type and the bounds in words."""
        if self.kind is int:
            return f"a whole number from {self.least} to {self.below - 1}"
        return _WANTED[self.kind]


_WANTED: Final = {
    str: "a string",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}
_TEXT: Final = LineField(str)
_COUNT: Final = LineField(int)
_TIME: Final = LineField(int, below=TIME_MS_END)
_SEQ: Final = LineField(int, least=1)
_NULL: Final = LineField(int, default=None)

LINES: Final[Mapping[str, Mapping[str, LineField]]] = {
    "": {
        "session": _TEXT,
        "app": _TEXT,
        "user": _TEXT,
        "policy": _TEXT,
        "counter": _TEXT,
        "revision": _COUNT,
        "next_seq": _SEQ,
        "created_ms": _TIME,
        "updated_ms": _TIME,
        "items": _COUNT,
        "views": _COUNT,
        "checkpoints": _COUNT._replace(default=0),
        "state": _COUNT._replace(default=0),
    },
    "item": {
        "seq": _SEQ,
        "created_us": LineField(int, below=CREATED_US_END),
        "item": LineField(dict),
        "undone": LineField(bool, default=False),
        "after": _NULL,
    },
    "view": {
        "cut_seq": _COUNT,
        "covered": _COUNT,
        "summary": LineField(str, default=None),
        "pinned": LineField(list),
        "status": _TEXT,
        "tokens_before": _COUNT,
        "tokens_after": _COUNT,
        "created_ms": _TIME,
        "counter": LineField(str, default=None),
        "masks": LineField(list, default=()),
        "policy": LineField(str, default=None),
        "reason": LineField(str, default=None),
        "repair": LineField(str, default=None),
        "repairs": LineField(list, default=()),
    },
    "view.masks": {
        "seq": _SEQ,
        "action": _TEXT,
        "tokens": _COUNT,
        "message": LineField(dict, default=None),
        "because": _COUNT._replace(default=0),
    },
    "view.repairs": {
        "action": _TEXT,
        "seq": _NULL,
        "call_id": LineField(str, default=None),
    },
    "checkpoint": {
        "name": LineField(str, default=None),
        "segments": LineField(list),
        "view": _COUNT,
        "revision": _COUNT,
        "tokens": _COUNT,
        "counter": LineField(str, default=None),
        "created_ms": _TIME,
        "meta": LineField(dict, default=None),
        "state": _NULL,
    },
    "state": {
        "counter": _COUNT,
        "values": LineField(dict, default=None),
        "set": LineField(dict, default=None),
        "deleted": LineField(list, default=None),
        "floor": _NULL,
        "moments": LineField(list, default=()),
    },
    "metadata.memcore": {
        "app": _TEXT,
        "user": _TEXT,
        "policy": LineField(str, default=None),
    },
    "shared": {
        "app": _TEXT,
        "user": LineField(str, default=None),
        "values": LineField(dict),
    },
}
"""The fields of every sort of line: the one place that bounds what a foreign line may say."""


def checked_fields(sort: str, found: Any) -> dict[str, Any]:
    """Validate the fields of one of ``LINES``; unknown fields are ignored.

    Raises:
        InvalidItemError: it is no object, or a field is missing, of a wrong type or out of bounds.
    """
    if not isinstance(found, dict):
        refuse(f"{sort}: expected an object, got {found!r:.40}")
    prefix = f"{sort}." if sort not in ("", "item") else ""
    checked = {}
    for name, field in LINES[sort].items():
        value = found.get(name)
        if value is None and field.default is not ...:
            value = field.default
        elif not field.fits(value):
            refuse(f"{prefix}{name}: expected {field.wanted}, got {value!r:.40}")
        checked[name] = value
    return checked


def checked_numbers(where: str, found: Any, *, least: int = 1) -> tuple[int, ...]:
    """A list of whole numbers that are within the bounds of counts.

    Raises:
        InvalidItemError: it is none.
    """
    bounds = LineField(int, least=least)
    if not isinstance(found, list) or not all(map(bounds.fits, found)):
        refuse(f"{where}: expected a list; each is {bounds.wanted}; got {found!r:.40}")
    return tuple(found)


def refuse(text: str) -> NoReturn:
    """Raise for a line that cannot be read."""
    raise InvalidItemError(text)


_SURROGATE = re.compile("[\ud800-\udbff]|(?<![\ud800-\udbff])[\udc00-\udfff]")


@dataclass(frozen=True, slots=True)
class Title:
    """The line that a session begins with."""

    session: str
    app: str
    user: str
    policy: str
    counter: str
    revision: int
    next_seq: int
    created_ms: int
    updated_ms: int
    items: int
    """Number of item lines that follow."""
    views: int
    """Number of view lines that follow them."""
    checkpoints: int = 0
    """Number of checkpoint lines that follow these."""
    state: int = 0
    """Number of lines with values of the state that follow these."""
    forked_from: dict[str, Any] | None = None
    """Of a fork: name (null: it was deleted) and last shared seq of its parent; for the reader."""

    def line(self) -> bytes:
        """The line, without its end."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        if self.forked_from is None:
            del fields["forked_from"]
        if not self.state:
            del fields["state"]
        return portable_json({"memcore": VERSION, **fields})

    @classmethod
    def begins(cls, place: tuple[str, str, str], head: Head, **counts: Any) -> Title:
        """The title of a session by its application, user and name, its head, and what follows."""
        app, user, name = place
        return cls(
            session=name,
            app=app,
            user=user,
            policy=head.policy,
            counter=head.counter,
            revision=head.revision,
            next_seq=head.next_seq,
            created_ms=head.created_ms,
            updated_ms=head.updated_ms,
            **counts,
        )

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Title:
        """The title of a parsed line.

        Raises:
            InvalidItemError: a field is missing or out of bounds, or the version is unknown.
        """
        if found["memcore"] != VERSION:
            msg = f"memcore: expected version {VERSION} of the export format, got a later one: "
            raise InvalidItemError(msg + f"{found['memcore']!r}; read it with a newer memcore")
        return cls(**checked_fields("", found))


def is_title(found: object) -> bool:
    """Return True if a parsed line begins a session of an export, or a state shared by sessions."""
    return isinstance(found, dict) and "memcore" in found and "messages" not in found


def is_part(found: object) -> bool:
    """Return True if a parsed line looks like one that follows a title."""
    return (
        isinstance(found, dict) and "messages" not in found and not found.keys().isdisjoint(_PARTS)
    )


_PARTS: Final = ("item", "view", "checkpoint", "state")


class Conversation(NamedTuple):
    """A line of messages alone."""

    name: str | None
    """Name given in the line."""
    messages: list[dict[str, Any]]
    app: str = "default"
    user: str = "default"
    policy: str | None = None

    @classmethod
    def of(cls, found: Any) -> Conversation:
        """The conversation of a parsed line: an object, or its messages alone.

        Raises:
            InvalidItemError: it is none.
        """
        if not isinstance(found, dict):
            return cls(None, _messages("the line", found))
        name = found.get("id")
        if isinstance(name, bool) or not isinstance(name, str | int | None) or name == "":
            refuse(f"id: expected a non-empty string or a number, got {name!r:.40}")
        metadata = found.get("metadata")
        owner = metadata.get("memcore") if isinstance(metadata, dict) else None
        said = {} if owner is None else checked_fields("metadata.memcore", owner)
        messages = _messages("messages", found.get("messages"))
        return cls(None if name is None else str(name), messages, **said)


def _messages(what: str, found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, list):
        refuse(f"{what}: expected a list of messages, got {type(found).__name__}")
    for at, message in enumerate(found):
        if not isinstance(message, dict):
            refuse(f"messages[{at}]: expected an object, got {type(message).__name__}")
    return found


def parse_line(line: bytes) -> Any:
    """The value of a line; integers of any size and lone surrogates come back as they were.

    Raises:
        InvalidItemError: it is no JSON.
    """
    try:
        return json.loads(line.decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError as error:
        msg = f"not UTF-8 at byte {error.start}"
        raise InvalidItemError(msg) from error
    except (ValueError, RecursionError) as error:
        msg = f"not JSON: {error}"
        raise InvalidItemError(msg) from error


def portable_json(value: Any) -> bytes:
    """A value as compact JSON for a line."""
    return portable(*codec.encode_json(value))


def portable(encoded: bytes, flags: int) -> bytes:
    """JSON as the store holds it, with lone surrogates as escapes."""
    if not flags & codec.FLAG_PLAIN_JSON:
        return encoded
    text = encoded.decode("utf-8", "surrogatepass")
    text = _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text.encode("utf-8", "surrogatepass")


def view_fields(view: View) -> dict[str, Any]:
    """A view as its line holds it; its number is its place in the line of views."""
    return {
        "cut_seq": view.cut_seq,
        "covered": view.covered,
        "summary": view.summary,
        "pinned": list(view.pinned),
        "status": view.status,
        "tokens_before": view.tokens_before,
        "tokens_after": view.tokens_after,
        "created_ms": round(view.created_at * 1000),
        "counter": view.counter,
        "masks": [list(mask) for mask in view.masks],
        "policy": view.policy,
        "reason": view.reason,
        "repair": view.repair,
        "repairs": [[each.action, each.seq, each.call_id] for each in view.repairs],
    }


def checkpoint_fields(
    checkpoint: Checkpoint, runs: Iterable[tuple[int, int]], view: int
) -> dict[str, Any]:
    """A checkpoint as its line holds it; ``view`` is the place of its view, 0 for none."""
    return {
        "name": checkpoint.name,
        "revision": checkpoint.revision,
        "tokens": checkpoint.tokens,
        "counter": checkpoint.counter,
        "created_ms": round(checkpoint.created_at * 1000),
        "meta": checkpoint.meta,
        "segments": [list(run) for run in runs],
        "view": view,
        "state": checkpoint.state,
    }


# --- The lines of an export, redacted on their way out --------------------------------------------

_PARTS_REDACTED: Final = {"view": ("summary", "reason", "masks"), "checkpoint": ("name", "meta")}
_VALUES: Final = ("values", "set")


def redacted_lines(pieces: Iterable[bytes], redacts: Redacts) -> Iterator[bytes]:
    """Join the pieces to lines and redact each.

    Raises:
        InvalidItemError: a line is no JSON; no export writes such.
    """
    held: list[bytes] = []
    for piece in pieces:
        held.append(piece)
        if piece.endswith(b"\n"):
            for line in b"".join(held).splitlines():
                yield portable_json(_redacted(parse_line(line), redacts)) + b"\n"
            held = []
    if held:
        yield b"".join(held)


def _redacted(found: Any, redacts: Redacts) -> Any:
    if not isinstance(found, dict):
        return found
    made = dict(found)
    for name in ("item", "meta", "messages"):
        if name in made:
            made[name] = redacts.value(made[name])[0]
    for name, fields in _PARTS_REDACTED.items():
        if isinstance(made.get(name), dict):
            made[name] = {
                field: redacts.value(value)[0] if field in fields else value
                for field, value in made[name].items()
            }
    for name in ("state", "shared"):
        if isinstance(made.get(name), dict):
            made[name] = {
                field: redacts.value(value)[0] if field in _VALUES else value
                for field, value in made[name].items()
            }
    return made


# --- A checkpoint's line of an export -------------------------------------------------------------

_RUN: Final = 2


@dataclass(frozen=True, slots=True)
class Arrived:
    """A checkpoint that was read from its line."""

    name: str | None
    segments: tuple[tuple[int, int], ...]
    """First and last seqs."""
    view: int
    """Number of the session's current view, 0 for none."""
    revision: int
    tokens: int
    counter: str
    created_ms: int
    meta: dict[str, Any] | None
    state: int | None
    """The counter of the state then."""


def arrived_of(found: Any, title: Title, views: int) -> Arrived:
    """The checkpoint of a line; ``views`` is how many the session has.

    Raises:
        InvalidItemError: it is none.
    """
    said = checked_fields("checkpoint", found)
    name, meta = said["name"], said["meta"]
    if name is not None:
        names.check_name(name, "checkpoint")
    _check_meta(meta)
    if said["view"] > views:
        refuse(f"checkpoint.view: expected at most {views}, got {said['view']}")
    return Arrived(
        name,
        tuple(_run(run) for run in said["segments"]),
        said["view"],
        said["revision"],
        said["tokens"],
        title.counter if said["counter"] is None else said["counter"],
        said["created_ms"],
        meta,
        said["state"],
    )


def _check_meta(meta: dict[str, Any] | None) -> None:
    """Refuse what ``Session.checkpoint`` refuses; writing it later would fail with all the rest."""
    try:
        size = len(encode_json(meta)[0])
    except (ValueError, RecursionError) as error:
        refuse(f"checkpoint.meta cannot be stored as JSON: {error}")
    if size > META_BYTES_MAX:
        refuse(f"checkpoint.meta: expected at most {META_BYTES_MAX} bytes, got {size}")


def _run(found: Any) -> tuple[int, int]:
    """First and last seq of a segment."""
    numbers = checked_numbers("checkpoint.segments", found)
    if len(numbers) != _RUN:
        refuse(f"checkpoint.segments: expected pairs of seqs, got {found!r:.40}")
    return numbers[0], numbers[1]


def write_arrived(draft: SessionTxn, arrived: Arrived, *, states: Container[int | None]) -> None:
    """Save a checkpoint of a draft all of whose items and views are written.

    ``states``: the counters of the state whose values came with it.
    """
    head, scope, session = draft.head, draft.log.scope, draft.log.session
    seq = arrived.segments[-1][1] if arrived.segments else 0
    number = last_number(draft.txn, scope, session) + 1
    checkpoint = Checkpoint(
        number=number,
        name=arrived.name,
        seq=seq,
        revision=arrived.revision,
        items=sum(hi - lo + 1 for lo, hi in arrived.segments),
        tokens=arrived.tokens,
        counter=arrived.counter,
        view=arrived.view,
        state=arrived.state if arrived.state in states else None,
        created_at=arrived.created_ms / 1000,
        meta=arrived.meta,
    )
    saved = CheckpointRow(
        checkpoint,
        tuple(Segment(session, lo, hi) for lo, hi in arrived.segments),
        (0, 0, 0),
        draft.own_chain(seq),
        (session if arrived.view else 0, arrived.view),
        head.policy,
        (0, 0),
        head.epoch,
    )
    write_checkpoint(draft.txn, scope, session, saved)
