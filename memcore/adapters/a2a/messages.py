"""Messages of A2A as items of a session, and back.

A model reads texts, and of the user's role images and files; what else a message says is kept
beside the item, in its ``meta``, so that the same message is made of it again. Nothing is kept
twice: what is redacted in the item or its meta is redacted in the message that is made of them.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar
from uuid import uuid4

from a2a.types.a2a_pb2 import Artifact, Message, Part, Role, Task, TaskState
from google.protobuf.json_format import Error as JsonError
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import NULL_VALUE, Struct, Value

from memcore._fast import classify
from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.model import Envelope, Item, ItemKind, Receipt
from memcore.session import Delegation
from memcore.wire.convert import attachment_of
from memcore.wire.message import body_path, texts_of, value_at

__all__ = [
    "FIELD",
    "filled",
    "from_a2a",
    "packed",
    "remade",
    "row_of",
    "settle",
    "text_of",
    "to_a2a",
]


P = TypeVar("P", Task, Message, Artifact, Part)
FIELD: Final = "a2a"
"""Name in an item's meta of what is kept of a message."""
_PEER: Final = "a2a"
"""Author of a message if none is said: what another agent says is never the user's word."""
_EXACT: Final = 2.0**53
_FILE: Final = "application/octet-stream"
_ENDED: Final = {
    TaskState.TASK_STATE_FAILED: "failed",
    TaskState.TASK_STATE_REJECTED: "was rejected",
    TaskState.TASK_STATE_CANCELED: "was canceled",
}


# --- A message becomes an item --------------------------------------------------------------------


def from_a2a(message: Message, *, author: str = _PEER) -> dict[str, Any]:
    """Return what ``session.append`` takes for a message: ``session.append(**from_a2a(message))``.

    The item is a message of OpenAI's chat format, which any policy takes. Texts are its content,
    and images and files of the user's role; data are shown as JSON, other parts as a note.

    Args:
        message: the message.
        author: name of the agent that says it, or ``user`` if a person wrote it to yours. What an
            agent says is ``agent``'s word for long-term memory, and waits in quarantine.

    Raises:
        InvalidOptionError: it is no message, or the author is invalid.
    """
    if not isinstance(message, Message):
        msg = f"message: expected an a2a Message, got {type(message).__name__}"
        raise InvalidOptionError(msg)
    is_users = message.role != Role.ROLE_AGENT
    blocks: list[dict[str, Any]] = []
    entries: list[Any] = []
    for part in message.parts:
        entry = _entry(part, len(blocks), is_users=is_users, blocks=blocks)
        entries.append(entry)
    head = Message()
    head.CopyFrom(message)
    del head.parts[:]
    kept = {**row_of(head), "parts": entries}
    item = {"role": "user" if is_users else "assistant", "content": _content(blocks)}
    return {"item": item, "meta": {FIELD: kept}, "envelope": Envelope(author=author)}


def _entry(part: Part, at: int, *, is_users: bool, blocks: list[dict[str, Any]]) -> Any:
    """Add the block of a part; return how to make the part again: the block's number, or more."""
    told = row_of(part)
    beside = {name: value for name, value in told.items() if name not in ("text", "raw", "data")}
    kind = part.WhichOneof("content")
    if kind == "text" and part.text.strip():
        blocks.append({"type": "text", "text": part.text})
        return {"block": at, **beside} if beside else at
    if kind == "data" and "data" in told:
        text = json.dumps(told["data"], ensure_ascii=False, separators=(",", ":"))
        blocks.append({"type": "text", "text": text})
        return {"block": at, "kind": "data", **beside}
    is_image = part.media_type.startswith("image/")
    if kind == "raw" and is_users and part.raw:
        url = f"data:{part.media_type or _FILE};base64,{b64encode(part.raw).decode()}"
        if is_image:
            blocks.append({"type": "image_url", "image_url": {"url": url}})
        else:
            held = {"file_data": url, "filename": part.filename or "file"}
            blocks.append({"type": "file", "file": held})
        return {"block": at, "kind": "raw", **beside}
    if kind == "url" and is_users and is_image:
        blocks.append({"type": "image_url", "image_url": {"url": part.url}})
    elif kind != "text":
        said = " ".join(filter(None, (part.filename, part.media_type, part.url)))
        blocks.append({"type": "text", "text": f"[{said or 'a part without text'}]"})
    return {"part": told}


# --- Protobuf messages as JSON, without loss ------------------------------------------------------


def row_of(message: Any) -> dict[str, Any]:
    """Return a protobuf message as JSON from which ``filled`` makes an equal one.

    Fields of a later version of the protocol are a text of their bytes: a filter of contents finds
    in it what is plain text there.
    """
    bare = type(message)()
    bare.CopyFrom(message)
    row: dict[str, Any] = {}
    names = [field.name for field in bare.DESCRIPTOR.fields]
    if "metadata" in names and bare.HasField("metadata"):
        row["metadata"] = _members(bare.metadata)
        bare.ClearField("metadata")
    if "data" in names and bare.HasField("data"):
        row["data"] = _json(bare.data)
        bare.ClearField("data")
    row |= MessageToDict(bare, preserving_proto_field_name=True)
    for name in names:
        bare.ClearField(name)
    unknown = packed(bare)
    if unknown:
        row["unknown"] = unknown.decode("latin-1")
    return row


def filled(row: Mapping[str, Any], into: P) -> P:
    """Fill a protobuf message from ``row_of`` another one.

    Raises:
        JsonError, ValueError, TypeError, LookupError: it is no such row.
    """
    rest = {name: value for name, value in row.items() if name not in _APART}
    ParseDict(rest, into)
    if "metadata" in row and not isinstance(into, Task | Message | Part | Artifact):
        raise TypeError
    if "metadata" in row:
        into.metadata.SetInParent()
        _fill_members(row["metadata"], into.metadata)
    if "data" in row and isinstance(into, Part):
        _fill(row["data"], into.data)
    if "unknown" in row:
        with suppress(DecodeError, UnicodeEncodeError):  # it was redacted
            into.MergeFromString(row["unknown"].encode("latin-1"))
    return into


_APART: Final = frozenset(("metadata", "data", "unknown"))
_ODD: Final = "$"
"""Only key of an object that stands for what JSON does not have: a number that is none, a value of
no kind; or for an object that has this key alone."""


def _json(value: Value) -> Any:
    """Return a value as JSON; whole numbers as such, although all are floats in A2A."""
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        if not math.isfinite(number) or str(number) == "-0.0":
            return {_ODD: str(number)}
        return int(number) if number.is_integer() and abs(number) < _EXACT else number
    if kind == "struct_value":
        return _members(value.struct_value)
    if kind == "list_value":
        return [_json(each) for each in value.list_value.values]
    if kind == "null_value":
        return None
    return {_ODD: "unset"} if kind is None else getattr(value, kind)


def _members(struct: Struct) -> dict[str, Any]:
    found = {name: _json(value) for name, value in struct.fields.items()}
    return {_ODD: found} if found.keys() == {_ODD} else found


def _fill(found: Any, into: Value) -> None:
    """Fill a value from ``_json`` of another one."""
    if found is None:
        into.null_value = NULL_VALUE
    elif isinstance(found, bool):
        into.bool_value = found
    elif isinstance(found, int | float):
        into.number_value = found
    elif isinstance(found, str):
        into.string_value = found
    elif isinstance(found, list):
        into.list_value.SetInParent()
        for each in found:
            _fill(each, into.list_value.values.add())
    elif found.keys() == {_ODD} and isinstance(found[_ODD], str):
        if found[_ODD] == "unset":
            into.SetInParent()
        else:
            into.number_value = float(found[_ODD])
    else:
        into.struct_value.SetInParent()
        _fill_members(found, into.struct_value)


def _fill_members(found: Any, into: Struct) -> None:
    members = found[_ODD] if found.keys() == {_ODD} else found
    for name, value in members.items():
        _fill(value, into.fields[name])


def packed(message: Any) -> bytes:
    """Return the bytes of a protobuf message, the same for equal ones."""
    found: bytes = message.SerializeToString(deterministic=True)
    return found


def _content(blocks: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if not blocks:
        return "[an empty message]"
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        return str(blocks[0]["text"])
    return blocks


# --- An item becomes a message --------------------------------------------------------------------


def to_a2a(
    item: Item | Mapping[str, Any],
    *,
    message_id: str | None = None,
    context_id: str = "",
    task_id: str = "",
) -> Message:
    """Return an item as a message: the one that it was made of, or a new one of its texts.

    A text that was changed since, by redaction, stays changed.

    Args:
        item: an item of a session, or a message in any wire format.
        message_id: id of a new message; None: a random one.
        context_id: context of a new message.
        task_id: task of a new message.

    Raises:
        InvalidItemError: what is kept beside the item is damaged.
        InvalidOptionError: it is neither an item nor a message.
    """
    held = item.message if isinstance(item, Item) else item
    if not isinstance(held, Mapping):
        msg = f"item: expected an Item or a message, got {type(item).__name__}"
        raise InvalidOptionError(msg)
    kept = (item.meta or {}).get(FIELD) if isinstance(item, Item) else None
    if isinstance(kept, dict):
        return remade(held, kept)
    message = dict(held)
    kind = classify(message)[0]
    if kind not in (ItemKind.USER, ItemKind.ASSISTANT):
        msg = f"item: of kind {ItemKind(kind).name.lower()}, which says nothing to another agent"
        raise InvalidOptionError(msg)
    made = Message(message_id=message_id or str(uuid4()), context_id=context_id, task_id=task_id)
    made.role = Role.ROLE_USER if kind == ItemKind.USER else Role.ROLE_AGENT
    made.parts.extend(Part(text=found.text) for found in texts_of(message))
    made.parts.extend(_attached(value_at(message, body_path(message)).get("content")))
    return made


def _attached(content: Any) -> Iterator[Part]:
    """Yield the images and files of a message's content."""
    for block in content if isinstance(content, list) else ():
        media = attachment_of(block) if isinstance(block, dict) else None
        if media is None or not (media.data or media.url):
            continue
        part = Part(media_type=media.mime or "", filename=media.name or "")
        if media.data:
            part.raw = b64decode(media.data)
        else:
            part.url = media.url or ""
        yield part


def remade(item: Mapping[str, Any], kept: Mapping[str, Any]) -> Message:
    """Make a message of an item and of what was kept beside it.

    Raises:
        InvalidItemError: that is damaged, or does not fit the item.
    """
    try:
        return _built(item, kept)
    except (JsonError, ValueError, TypeError, LookupError, AttributeError) as error:
        msg = f"what was kept of a message of A2A does not fit its item: {error}"
        raise InvalidItemError(msg) from error


def _built(item: Mapping[str, Any], kept: Mapping[str, Any]) -> Message:
    """Make a message of an item and of the fields that were kept of it."""
    head = {name: value for name, value in kept.items() if name != "parts"}
    made = filled(head, Message())
    content = item["content"]
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for entry in kept["parts"]:
        if isinstance(entry, int):
            made.parts.append(Part(text=blocks[entry]["text"]))
        elif "part" in entry:
            made.parts.append(filled(entry["part"], Part()))
        else:
            made.parts.append(_part(entry, blocks[entry["block"]]))
    return made


def _part(entry: Mapping[str, Any], block: Mapping[str, Any]) -> Part:
    """Make a part of its entry and its block."""
    beside = {name: value for name, value in entry.items() if name not in ("block", "kind")}
    part = filled(beside, Part())
    kind = entry.get("kind", "text")
    if kind == "text":
        part.text = block["text"]
    elif kind == "data":
        _fill(json.loads(block["text"]), part.data)
    else:
        is_image = block["type"] == "image_url"
        held = block["image_url"]["url"] if is_image else block["file"]["file_data"]
        part.raw = b64decode(held.partition(";base64,")[2], validate=True)
    return part


# --- Tasks that another agent works on ------------------------------------------------------------


def text_of(parts: Iterable[Part]) -> str:
    """Return the texts and data of parts, and notes of the others, as one text."""
    blocks: list[dict[str, Any]] = []
    for part in parts:
        _entry(part, len(blocks), is_users=False, blocks=blocks)
    return "\n".join(block["text"] for block in blocks)


def settle(delegation: Delegation, task: Task) -> Receipt | None:
    """Answer the call of a delegation with what a task brought; None while the task goes on.

    A completed task answers with its artifacts, else with its last message; one that failed, was
    rejected or canceled answers with an error. A repeat returns the first receipt.

    Raises:
        InvalidOptionError: it is no task.
        OrphanResultError: the call was answered by somebody else, or given up.
    """
    if not isinstance(task, Task):
        msg = f"task: expected an a2a Task, got {type(task).__name__}"
        raise InvalidOptionError(msg)
    said = text_of(task.status.message.parts)
    if task.status.state == TaskState.TASK_STATE_COMPLETED:
        found = "\n".join(filter(None, map(_artifact_text, task.artifacts))) or said
        return delegation.finish(found or "(the agent returned nothing)")
    why = _ENDED.get(task.status.state)
    if why is None:
        return None
    return delegation.fail(f"the agent's task {why}" + (f": {said}" if said else ""))


def _artifact_text(artifact: Artifact) -> str:
    return text_of(artifact.parts)
