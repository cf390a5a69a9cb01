"""Lines of an export: one JSON object for a session, an item, a view, a checkpoint, a state.

```
{"memcore":1,"session":...,"app":...,"user":...,"policy":...,"items":2,"views":1,...}
{"seq":1,"kind":"user","created_us":...,"item":{...}}
{"seq":2,"kind":"assistant","created_us":...,"meta":{...},"request_id":...,"item":{...}}
{"view":{"cut_seq":1,"summary":...}}
{"checkpoint":{"name":...,"segments":[[1,2]],"view":1,...}}
{"state":{"counter":3,"values":{...}}}
{"memcore":1,"shared":{"app":...,"user":...,"values":{...}}}
{"memcore":1,"memory":{"app":...,"user":...,"entry":{...},"versions":[...]}}
{"memcore":1,"memory":{"app":...,"user":...,"outcome":{...}}}
```

A session as messages only is one line, which another program may have written as well:

```
{"id":...,"metadata":{"memcore":{"app":...,"user":...,"policy":...}},"messages":[{...},{...}]}
```

``memcore.exchange.state`` describes the lines of a session's state and of shared states.

An item's JSON is the stored text itself, so nothing is lost. A lone surrogate is written as an
escape, which keeps the file UTF-8; only the second of two adjacent ones is kept as raw bytes,
because two escapes in a row would be read as one character.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from memcore.codec import values as codec
from memcore.codec.values import encode_json
from memcore.errors import InvalidItemError
from memcore.limits import JSON_DEPTH_MAX, META_BYTES_MAX
from memcore.log import Head, Segment, SessionTxn
from memcore.log.checkpoint import CheckpointRow, last_number, write_checkpoint
from memcore.model import Checkpoint, View
from memcore.privacy.write_filter import Redacts
from memcore.records import record
from memcore.rows import names

__all__ = [
    "EXPORTS",
    "FORMATS",
    "Arrived",
    "Conversation",
    "StandIns",
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
    "root_in",
    "write_arrived",
]


# --- Lines of an export: a JSON object for each session, item, view, checkpoint and state ---------

VERSION: Final = 1
FORMATS: Final[Mapping[str, str]] = {
    "jsonl": "",
    "openai-chat": "chat",
    "openai-responses": "responses",
    "anthropic": "anthropic",
    "gemini": "gemini",
    "langchain": "langchain",
}
"""Export formats, and the wire format of their messages (jsonl: any). Each is named like its
policy, with a hyphen."""

EXPORTS: Final = (*FORMATS, "parquet")
"""Formats of an export; all but the last can be imported."""

COUNT_END: Final = 2**48
"""Exclusive limit of seqs, revisions, counters and tokens: whatever is added later still fits the
62 bits of a head."""
TIME_MS_END: Final = 2**52
"""Exclusive limit of times: below it, seconds in a float are exact to the millisecond."""
CREATED_US_END: Final = 2**32 * 1_000_000
"""Exclusive limit of creation times: an index record holds the second as 32 bits."""
STAND_INS_A_LINE: Final = 64
"""Seqs without an item that each line pays for: an import stores about 120 bytes for each seq."""
STAND_INS_FREE: Final = 4096
"""Seqs without an item that an import stores beyond those its lines pay for: half a megabyte."""


class LineField(NamedTuple):
    """Type of a field of a line, and its bounds if it is a number."""

    kind: type
    least: int = 0
    below: int = COUNT_END
    default: Any = ...
    """Value if the field is missing; ``...``: the field is required."""

    def fits(self, value: object) -> bool:
        """Return True if a value has the type and is within the bounds."""
        if self.kind is int:
            return type(value) is int and self.least <= value < self.below
        return isinstance(value, self.kind)

    @property
    def wanted(self) -> str:
        """Type and bounds in words."""
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
        "part": _COUNT._replace(default=0),
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
    "memory": {
        "app": _TEXT,
        "user": _TEXT,
        "entry": LineField(dict, default=None),
        "versions": LineField(list, default=()),
        "outcome": LineField(dict, default=None),
    },
}
"""Fields of every kind of line: the only place that bounds the contents of foreign lines."""


def checked_fields(sort: str, found: Any) -> dict[str, Any]:
    """Validate the fields of one of ``LINES``; unknown fields are ignored.

    Raises:
        InvalidItemError: it is not an object, or a field is missing, of a wrong type or out of
            bounds.
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
    """Validate a list of whole numbers within the bounds of counts.

    Raises:
        InvalidItemError: it is not such a list.
    """
    bounds = LineField(int, least=least)
    if not isinstance(found, list) or not all(map(bounds.fits, found)):
        refuse(f"{where}: expected a list; each is {bounds.wanted}; got {found!r:.40}")
    return tuple(found)


def refuse(text: str) -> NoReturn:
    """Raise InvalidItemError for a line that cannot be read."""
    raise InvalidItemError(text)


class StandIns:
    """Limit on the placeholder items of an import: a few lines must not demand a large file."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = STAND_INS_FREE

    def pay(self, count: int = STAND_INS_A_LINE) -> None:
        """Credit a line that was read, or as many stand-ins as are stored already."""
        self.left += count

    def spend(self, count: int, field: str, value: int, *, lines: int = 0) -> None:
        """Take ``count`` stand-ins; with ``lines`` only check, as if that many more were read.

        Raises:
            InvalidItemError: not enough are left.
        """
        if count > self.left + lines * STAND_INS_A_LINE:
            refuse(
                f"{field}: {value} leaves {count:,} seqs without an item, more than so few lines "
                "may; export the session again, with --undone (undone=True)"
            )
        if not lines:
            self.left -= count


_SURROGATE = re.compile("[\ud800-\udbff]|(?<![\ud800-\udbff])[\udc00-\udfff]")


@record(frozen=True, slots=True)
class Title:
    """The first line of a session."""

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
    """Number of view lines after them."""
    checkpoints: int = 0
    """Number of checkpoint lines after these."""
    state: int = 0
    """Number of lines with values of the state after these."""
    part: int = 0
    """First seq of a part of the session's items, which an archive has in several; 0: all of it."""
    forked_from: dict[str, Any] | None = None
    """Name (null: deleted, or in another file) and last shared seq of a fork's parent, and name of
    the first one."""

    @property
    def gaps(self) -> int:
        """Number of seqs without an item line."""
        return self.next_seq - 1 - self.items

    def line(self) -> bytes:
        """Return the line, without its newline."""
        return portable_json(self.fields())

    def fields(self) -> dict[str, Any]:
        """Return the fields of the line."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        if self.forked_from is None:
            del fields["forked_from"]
        for name in ("state", "part"):
            if not fields[name]:
                del fields[name]
        return {"memcore": VERSION, **fields}

    @classmethod
    def begins(cls, place: tuple[str, str, str], head: Head, **counts: Any) -> Title:
        """Make a title from a session's application, user, name and head, and its line counts."""
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
        """Validate the title of a parsed line.

        Raises:
            InvalidItemError: a field is missing or out of bounds, or the version is unknown.
        """
        if found["memcore"] != VERSION:
            msg = f"memcore: expected version {VERSION} of the export format, got a later one: "
            raise InvalidItemError(msg + f"{found['memcore']!r}; read it with a newer memcore")
        return cls(**checked_fields("", found))


def root_in(found: Mapping[str, Any]) -> tuple[str | None] | None:
    """Return the name of the session that a title's session was forked from in the end.

    In a tuple, with None for one that was deleted; None if the session is no fork.
    """
    parent = found.get("forked_from")
    if not isinstance(parent, dict):
        return None
    root = parent.get("root", parent.get("session"))
    return (root if isinstance(root, str) else None,)


def is_title(found: object) -> bool:
    """Return True if a parsed line begins an exported session, or stands beside sessions."""
    return isinstance(found, dict) and "memcore" in found and "messages" not in found


def is_part(found: object) -> bool:
    """Return True if a parsed line looks like one that follows a title."""
    return (
        isinstance(found, dict) and "messages" not in found and not found.keys().isdisjoint(_PARTS)
    )


def is_expired(found: object) -> bool:
    """Return True for a line of an archive that stands for itself: an entry, fields, a memory."""
    return isinstance(found, dict) and found.keys() == {"expired"}


_PARTS: Final = ("item", "view", "checkpoint", "state")


class Conversation(NamedTuple):
    """A line of messages only."""

    name: str | None
    """Name given in the line."""
    messages: list[dict[str, Any]]
    ignored: tuple[str, ...] = ()
    """Names of its other fields, which have no place in a session."""
    app: str = "default"
    user: str = "default"
    policy: str | None = None

    @classmethod
    def of(cls, found: Any) -> Conversation:
        """Validate the conversation of a parsed line: an object, or just its messages.

        Instructions beside the messages, as Anthropic's ``system``, become the first one.

        Raises:
            InvalidItemError: it is neither.
        """
        if not isinstance(found, dict):
            return cls(None, _messages("", found))
        name = found.get("id")
        if isinstance(name, bool) or not isinstance(name, str | int | None) or name == "":
            refuse(f"id: expected a non-empty string or a number, got {name!r:.40}")
        metadata = found.get("metadata")
        owner = metadata.get("memcore") if isinstance(metadata, dict) else None
        said = {} if owner is None else checked_fields("metadata.memcore", owner)
        if "messages" not in found:
            _refuse_foreign(found)
            refuse('\'messages\' is missing: a conversation is {"id": ..., "messages": [...]}')
        messages = _messages("messages", found["messages"])
        system = found.get("system")
        if isinstance(system, str | list) and system:
            messages = [{"role": "system", "content": system}, *messages]
        has_owner = isinstance(metadata, dict) and metadata.keys() == {"memcore"}
        known = {"id", "messages"}
        known |= {"metadata"} if has_owner else set()
        known |= {"system"} if isinstance(system, str | list | None) else set()
        ignored = tuple(str(each) for each in found if each not in known)
        return cls(None if name is None else str(name), messages, ignored, **said)


_JSON_NAMES: Final[Mapping[type, str]] = {
    type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string",
    list: "an array", dict: "an object",
}  # fmt: skip


def _messages(what: str, found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, list):
        where = f"{what}: " if what else ""
        refuse(f"{where}expected a list of messages, got {_JSON_NAMES[type(found)]}")
    for at, message in enumerate(found):
        if not isinstance(message, dict):
            refuse(f"messages[{at}]: expected an object, got {_JSON_NAMES[type(message)]}")
        _refuse_foreign(message)
    return found


def _refuse_foreign(found: dict[str, Any]) -> None:
    """Refuse a conversation or a message of an export that another reader knows."""
    if "role" in found:  # as nearly all have
        return
    kind = ""
    if isinstance(found.get("mapping"), dict):
        kind = "chatgpt"
    elif isinstance(found.get("conversations"), list) or {"from", "value"} <= found.keys():
        kind = "sharegpt"
    if kind:
        refuse(f"it is of another format: --from {kind} (memcore.importing.read) reads it")


def parse_line(line: bytes) -> Any:
    """Parse a line; integers of any size and lone surrogates are preserved.

    A byte order mark, with which some editors begin a file, is skipped.

    Raises:
        InvalidItemError: it is not JSON.
    """
    try:
        return json.loads(line.removeprefix(BOM_UTF8).decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError as error:
        msg = f"not UTF-8 at byte {error.start}"
        raise InvalidItemError(msg) from error
    except RecursionError as error:
        msg = f"nested deeper than the {JSON_DEPTH_MAX} levels that can be stored"
        raise InvalidItemError(msg) from error
    except ValueError as error:
        told = str(error).replace("line 1 column ", "column ")  # the caller names the line
        msg = f"not JSON: {told}"
        if "set_int_max_str_digits" in msg:  # Python's limit, which a stored value has, too
            msg = "it holds an integer of more than 4,300 digits, which cannot be stored"
        raise InvalidItemError(msg) from error


def portable_json(value: Any) -> bytes:
    """Encode a value as compact JSON for a line."""
    return portable(*codec.encode_json(value))


def portable(encoded: bytes, flags: int) -> bytes:
    """Convert stored JSON for a line, with lone surrogates as escapes."""
    if not flags & codec.FLAG_PLAIN_JSON:
        return encoded
    text = encoded.decode("utf-8", "surrogatepass")
    text = _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text.encode("utf-8", "surrogatepass")


def view_fields(view: View) -> dict[str, Any]:
    """Return the fields of a view's line; its number is its position among the view lines."""
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
    """Return the fields of a checkpoint's line; ``view``: its view's position, 0 for none."""
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


# --- Redaction of the lines of an export ----------------------------------------------------------

_PARTS_REDACTED: Final = {"view": ("summary", "reason", "masks"), "checkpoint": ("name", "meta")}
_VALUES: Final = ("values", "set")
_LINKS: Final = ("sources", "name")
"""Fields of a memory or an outcome that name sessions."""


def redacted_lines(pieces: Iterable[bytes], redacts: Redacts) -> Iterator[bytes]:
    """Join the chunks to lines and redact each.

    Raises:
        InvalidItemError: a line is not JSON, which no export writes.
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
    if isinstance(made.get("memory"), dict):
        made["memory"] = redacted_memory(made["memory"], lambda value: redacts.value(value)[0])
    return made


def redacted_memory(line: dict[str, Any], redact: Callable[[Any], Any]) -> dict[str, Any]:
    """Redact what the line of a memory says, except the names of sessions.

    They stay in the titles of these, and what removes a session has to find its memories.
    """
    made = dict(line)
    for field in ("entry", "outcome"):
        if isinstance(line.get(field), dict):
            made[field] = _redacted_body(line[field], redact)
    if isinstance(line.get("versions"), list):
        made["versions"] = [
            _redacted_body(body, redact) if isinstance(body, dict) else redact(body)
            for body in line["versions"]
        ]
    return made


def _redacted_body(body: dict[str, Any], redact: Callable[[Any], Any]) -> dict[str, Any]:
    kept = {field: body[field] for field in _LINKS if field in body}
    rest = {field: value for field, value in body.items() if field not in _LINKS}
    return {**redact(rest), **kept}


# --- Checkpoint lines of an export ----------------------------------------------------------------

_RUN: Final = 2


@record(frozen=True, slots=True)
class Arrived:
    """A checkpoint read from its line."""

    name: str | None
    segments: tuple[tuple[int, int], ...]
    """First and last seq of each."""
    view: int
    """Number of the session's current view, 0 for none."""
    revision: int
    tokens: int
    counter: str
    created_ms: int
    meta: dict[str, Any] | None
    state: int | None
    """Counter of the state at the checkpoint."""


def arrived_of(found: Any, title: Title, views: int) -> Arrived:
    """Validate the checkpoint of a line; ``views`` is the number of the session's views.

    Raises:
        InvalidItemError: it is invalid.
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
    """Refuse what ``Session.checkpoint`` refuses: a later write would fail as a whole."""
    try:
        size = len(encode_json(meta)[0])
    except (ValueError, RecursionError) as error:
        refuse(f"checkpoint.meta cannot be stored as JSON: {error}")
    if size > META_BYTES_MAX:
        refuse(f"checkpoint.meta: expected at most {META_BYTES_MAX} bytes, got {size}")


def _run(found: Any) -> tuple[int, int]:
    """Validate the first and last seq of a segment."""
    numbers = checked_numbers("checkpoint.segments", found)
    if len(numbers) != _RUN:
        refuse(f"checkpoint.segments: expected pairs of seqs, got {found!r:.40}")
    return numbers[0], numbers[1]


def write_arrived(draft: SessionTxn, arrived: Arrived, *, states: Container[int | None]) -> None:
    """Save a checkpoint in a draft whose items and views are all written.

    ``states``: counters of the state whose values were imported with it.
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
