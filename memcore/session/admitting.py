"""Items at the border of the file: judged and redacted before they are classified and counted.

What a guard quarantines is replaced by a placeholder with the same ids, so that calls and results
stay pairs; the original goes to a row of the quarantine in the same commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from memcore import codec
from memcore._fast import classify, pack_facts
from memcore.envelope import Envelope
from memcore.errors import BlockedError, InvalidItemError
from memcore.formats.arguments import arguments_of
from memcore.formats.editing import Path, edited
from memcore.formats.parts import results_of, texts_of
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.model import ItemKind, Message
from memcore.privacy.border import Passage

__all__ = ["QUARANTINED", "Admitted", "admitted_event", "admitted_item", "told"]

QUARANTINED: Final = "[QUARANTINED]"
"""What stands in the log in place of a quarantined text."""
DROPPED: Final = "[DROPPED]"
"""What stands in the log in place of a text of which nothing was kept."""
_CLEAN, _REDACTED = Envelope(redacted=False), Envelope(redacted=True)
_NAMES: Final = ("type", "request_id", "model", "tool", "author", "agent", "owner")
"""Fields of an envelope by which items are chosen."""
_SOURCES: Final = ("other", "system", "user", "model", "model", "tool", "model", "event")
"""By the number of an ItemKind."""
_STRUCTURE: Final = frozenset((
    "id", "type", "role", "name", "call_id", "tool_call_id", "tool_use_id", "toolCallId", "status",
    "object", "model", "index", "lc", "function", "is_error", "thought", "media_type", "mimeType",
    "mime_type", "detail", "author", "invocationId", "invocation_id", "parent_id", "server_label",
))  # fmt: skip
"""Members that say how a message is built; all other texts of a quarantined one are replaced."""


class Admitted(NamedTuple):
    """An item and its meta as they may be stored."""

    message: Any
    meta: Mapping[str, Any] | None
    redacted: bool | None
    """Whether something in it was replaced; None: nobody looked."""
    held: bytes | None
    original: Any = None
    """What a quarantined message would have been stored as."""


def admitted_item(
    passage: Passage, item: Any, meta: Mapping[str, Any] | None, *, source: str | None = None
) -> Admitted:
    """One wire object that may be stored; without ``source`` its kind says who said it.

    Raises:
        BlockedError: a guard refuses it.
        InvalidItemError: it is not JSON.
    """
    if not isinstance(item, Mapping):
        return Admitted(item, meta, redacted=None, held=None)  # whoever prepares it refuses it
    message: Message = _plain(dict(item), "item")
    source = source or _SOURCES[classify(message)[0]]
    passed = passage.item(message, "item", source)
    if passed.dropped:
        return Admitted(placeholder(message, DROPPED), None, True, None)
    told, is_told = _meta(passage, meta, source)
    if passed.reason is None:
        return Admitted(passed.value, told, is_told or passed.redacted, None)
    held = _held(passed.value, source, passed.reason)
    return Admitted(placeholder(message), told, True, held, passed.value)


def admitted_event(
    passage: Passage, event_type: str, payload: Any, meta: Mapping[str, Any] | None
) -> Admitted:
    """The payload of an event; raises what ``admitted_item`` raises."""
    passage.name(event_type, "type of an event")
    plain = _plain(payload, "item")
    passed = passage.item({"type": event_type, "payload": plain}, "event", "event")
    if passed.dropped:
        return Admitted(DROPPED, None, True, None)
    told, is_told = _meta(passage, meta, "event")
    if passed.reason is None:
        return Admitted(passed.value["payload"], told, is_told or passed.redacted, None)
    held = _held(passed.value, "event", passed.reason)
    return Admitted(QUARANTINED, told, True, held, passed.value)


def told(
    passage: Passage,
    envelope: Envelope | None,
    *,
    redacted: bool | None,
    request_id: str | None = None,
) -> Envelope | None:
    """The envelope of an item as it may be stored; ``redacted``: something in it was replaced.

    None: nobody looked; then it says what the caller says.
    Its status may be any text, and is redacted; who wrote it and with what are names, and stay.

    Raises:
        BlockedError: something is found in one of its names, or in ``request_id``.
    """
    passage.name(request_id, "request_id")
    if envelope is not None:
        for name in _NAMES:
            passage.name(getattr(envelope, name), f"{name} of an envelope")
    if envelope is not None and envelope.status is not None:
        status = passage.again(envelope.status)
        if status != envelope.status:
            return replace(envelope, status=status, redacted=True)
    if redacted is None or (envelope is not None and envelope.redacted):
        return envelope
    if envelope is None:
        return _REDACTED if redacted else _CLEAN
    return replace(envelope, redacted=redacted)


def _meta(
    passage: Passage, meta: Mapping[str, Any] | None, source: str
) -> tuple[Mapping[str, Any] | None, bool]:
    if not meta or not isinstance(meta, Mapping):
        return meta, False
    plain = _plain(dict(meta), "meta")
    told = passage.value(plain, "meta", source=source)
    return told, told is not plain


def _plain(value: Any, what: str) -> Any:
    try:
        return codec.plain_json(value)
    except (TypeError, ValueError, RecursionError) as exc:
        msg = f"{what} cannot be written as JSON: {exc}"
        raise InvalidItemError(msg) from exc


def _held(message: Any, source: str, reason: str) -> bytes:
    said = {"source": source, "reason": reason, "message": message}
    encoded, flags = codec.encode_json(said)
    if len(encoded) > BLOB_INLINE_COMMIT_BYTES_MAX:
        msg = (
            f"an item of {len(encoded)} bytes is to be quarantined ({reason:.100}), which takes at "
            f"most {BLOB_INLINE_COMMIT_BYTES_MAX}: nothing was stored"
        )
        raise BlockedError(msg, verdict="quarantine", reason=reason)
    return bytes((flags,)) + encoded


# --- placeholders ---------------------------------------------------------------------------------


def placeholder(message: Message, said: str = QUARANTINED) -> Message:
    """A message of the same calls and results that says nothing else than ``said``.

    Raises:
        BlockedError: it cannot be replaced without breaking a pair.
    """
    seed = bytes(16)
    edits: dict[Path, Any] = {}
    for result in results_of(message):
        edits |= result.cleared(said)
    for text in texts_of(message):
        edits[text.path] = said
    for each in arguments_of(message):
        edits[each.path] = {"json": "{}", "object": {}, "text": said}[each.form]
    made: Message = _silenced(edited(message, edits) if edits else message, said)
    if pack_facts(made, seed) != pack_facts(message, seed):
        kind = ItemKind(classify(message)[0]).name.lower()
        msg = f"an item ({kind}) cannot be replaced without breaking its pair; nothing was stored"
        raise BlockedError(
            msg, verdict="quarantine" if said == QUARANTINED else "drop", reason="no placeholder"
        )
    return made


def _silenced(value: Any, said: str, name: str = "") -> Any:
    """A copy in which only what builds the message is left."""
    if isinstance(value, dict):
        return {key: _silenced(entry, said, key) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_silenced(entry, said, name) for entry in value]
    if isinstance(value, bool) or value is None or name in _STRUCTURE:
        return value
    if isinstance(value, str):
        return value if value in ("", "{}") else said
    return 0
