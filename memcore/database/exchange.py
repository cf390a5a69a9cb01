"""The lines of an export: a JSON object for a session, each item, view, checkpoint, and its state.

```
{"memcore":1,"session":...,"app":...,"user":...,"policy":...,"items":2,"views":1,...}
{"seq":1,"kind":"user","created_us":...,"item":{...}}
{"seq":2,"kind":"assistant","created_us":...,"meta":{...},"request_id":...,"item":{...}}
{"view":{"cut_seq":1,"summary":...}}
{"checkpoint":{"name":...,"segments":[[1,2]],"view":1,...}}
{"state":{"counter":3,"values":{...}}}
{"memcore":1,"shared":{"app":...,"user":...,"values":{...}}}
```

``states`` says more of the lines of a state, ``sharing`` of what sessions share.

An item's JSON is the stored text itself, so nothing is lost on the way. A lone surrogate is written
as an escape, which keeps the file UTF-8; only the second of two that stand together is kept as raw
bytes, because two escapes in a row would be read as one character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from memcore import codec
from memcore.errors import InvalidItemError
from memcore.log import Head
from memcore.model import Checkpoint, View

__all__ = ["FORMATS", "Title", "is_title", "parse_line", "portable", "portable_json"]

VERSION: Final = 1
FORMATS: Final[Mapping[str, str]] = {
    "jsonl": "",
    "openai-chat": "chat",
    "openai-responses": "responses",
    "anthropic": "anthropic",
}
"""What can be exported, and the wire format that a session must be in (jsonl: any)."""

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
    """How many lines of items follow."""
    views: int
    """How many lines of views follow them."""
    checkpoints: int = 0
    """How many lines of checkpoints follow these."""
    state: int = 0
    """How many lines of the state's values follow these."""
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
            InvalidItemError: a field is missing or of a wrong type, or the version is unknown.
        """
        if found["memcore"] != VERSION:
            msg = f"memcore: expected version {VERSION} of the export format, got a later one: "
            raise InvalidItemError(msg + f"{found['memcore']!r}; read it with a newer memcore")
        fields: dict[str, Any] = {"checkpoints": 0, "state": 0}  # older exports have none
        fields |= {name: found.get(name, fields.get(name)) for name in cls.__slots__[:-1]}
        for name, value in fields.items():
            if name in _TEXTS:
                is_fit, wanted = isinstance(value, str), "a string"
            else:
                is_fit, wanted = type(value) is int and 0 <= value < 2**63, "a whole number"
            if not is_fit:
                msg = f"{name}: expected {wanted}, got {value!r:.40}"
                raise InvalidItemError(msg)
        return cls(**fields)


_TEXTS: Final = ("session", "app", "user", "policy", "counter")


def is_title(found: object) -> bool:
    """Whether a parsed line begins a session of an export, or is about what sessions share."""
    return isinstance(found, dict) and "memcore" in found


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
