"""Messages of A2A as items of a session, and back.

A model reads texts, and of the user's role images and files; what else a message says is kept
beside the item, in its ``meta``, so that the same message is made of it again. Fields that JSON
cannot hold (of a later version of the protocol, NaN) are kept there as the message's bytes.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from uuid import uuid4

from a2a.types.a2a_pb2 import Artifact, Message, Part, Role, Task, TaskState
from google.protobuf.json_format import Error as JsonError
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError

from memcore._fast import classify
from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.model import Envelope, Item, ItemKind, Receipt
from memcore.session import Delegation
from memcore.wire.convert import attachment_of
from memcore.wire.message import body_path, texts_of, value_at

__all__ = [
    "FIELD",
    "from_a2a",
    "json_of",
    "packed",
    "remade",
    "settle",
    "text_of",
    "to_a2a",
]


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
    kept = {**json_of(head), "parts": entries}
    item = {"role": "user" if is_users else "assistant", "content": _content(blocks)}
    if packed(_built(item, kept)) != packed(message):
        kept["bytes"] = b64encode(packed(message)).decode()
    return {"item": item, "meta": {FIELD: kept}, "envelope": Envelope(author=author)}


def _entry(part: Part, at: int, *, is_users: bool, blocks: list[dict[str, Any]]) -> Any:
    """Add the block of a part; return how to make the part again: the block's number, or more."""
    told = json_of(part)
    beside = {name: value for name, value in told.items() if name not in ("text", "raw", "data")}
    kind = part.WhichOneof("content")
    if kind == "text" and part.text.strip():
        blocks.append({"type": "text", "text": part.text})
        return {"block": at, **beside} if beside else at
    if kind == "data" and "data" in told:
        text = json.dumps(_plain(told["data"]), ensure_ascii=False, separators=(",", ":"))
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


def _plain(value: Any) -> Any:
    """Return JSON with whole numbers as such: in A2A all numbers are floats."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return int(value) if is_whole and str(value) != "-0.0" else value


def packed(message: Any) -> bytes:
    """Return the bytes of a protobuf message, the same for equal ones."""
    found: bytes = message.SerializeToString(deterministic=True)
    return found


def json_of(message: Any) -> dict[str, Any]:
    """Return a protobuf message as JSON; of what JSON cannot hold, nothing."""
    try:
        found: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    except (JsonError, ValueError):  # NaN, or a value of no kind
        found = {}
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
        if "bytes" in kept:
            return Message.FromString(b64decode(kept["bytes"], validate=True))
        return _built(item, kept)
    except (JsonError, DecodeError, ValueError, TypeError, LookupError) as error:
        msg = f"what was kept of a message of A2A does not fit its item: {error}"
        raise InvalidItemError(msg) from error


def _built(item: Mapping[str, Any], kept: Mapping[str, Any]) -> Message:
    """Make a message of an item and of the fields that were kept of it."""
    head = {name: value for name, value in kept.items() if name != "parts"}
    made = ParseDict(head, Message())
    content = item["content"]
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for entry in kept["parts"]:
        if isinstance(entry, int):
            made.parts.append(Part(text=blocks[entry]["text"]))
        elif "part" in entry:
            made.parts.append(ParseDict(entry["part"], Part()))
        else:
            made.parts.append(_part(entry, blocks[entry["block"]]))
    return made


def _part(entry: Mapping[str, Any], block: Mapping[str, Any]) -> Part:
    """Make a part of its entry and its block."""
    beside = {name: value for name, value in entry.items() if name not in ("block", "kind")}
    part: Part = ParseDict(beside, Part())
    kind = entry.get("kind", "text")
    if kind == "text":
        part.text = block["text"]
    elif kind == "data":
        ParseDict(json.loads(block["text"]), part.data)
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
