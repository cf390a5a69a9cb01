"""Item row: validated and encoded before it is queued, decoded when it is read.

The body of an item's row is ``kind u8 | envelope flag u8 | reserved u16 | envelope length u32 |
created microseconds u64 | envelope JSON | item JSON``; a large item has a blob reference in place
of the item JSON. The envelope JSON holds ``meta``, ``request_id`` and, before ``meta``, the fields
of an ``Envelope``; it is absent if all of them are. In an encrypted database it is preceded by 8
random bytes (a salt): the prefix hash covers the whole row and is stored in clear, and without the
salt it could confirm a guess of the item's content.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

from memcore._fast import PreparedFields, classify, encode_plain, pack_event, pack_facts
from memcore.codec import values as codec
from memcore.errors import (
    CallerError,
    CorruptValueError,
    InvalidItemError,
    InvalidOptionError,
    OrphanResultError,
)
from memcore.limits import (
    CALLS_PER_ITEM_MAX,
    ITEM_BYTES_MAX,
    ITEM_INLINE_BYTES_MAX,
    ITEM_TOKENS_MAX,
    META_BYTES_MAX,
)
from memcore.model import Envelope, Item, ItemKind, Message, stored_envelope
from memcore.options import plain_message
from memcore.tokens import TokenCounter, checked_count, checked_tokens

__all__ = [
    "Prepared",
    "decode_item",
    "decode_message",
    "pack_envelope",
    "prepare_event",
    "prepare_item",
    "split_body",
]


_HEADER = Struct("<BBHIQ")
_ENVELOPE: Final = Struct("<I")
KINDS: Final = tuple(ItemKind)
_HAS_ENVELOPE: Final = 1
_HAS_SALT: Final = 2
_SALT_BYTES: Final = 8
_SALTED: Final = struct.pack("<BHI", _HAS_SALT, 0, _SALT_BYTES)
"""Bytes between kind and creation time in the row of an item with a salt and no envelope."""
_PLAIN_FIELDS: Final = 2
"""Number of fields in envelope JSON that holds only ``meta`` and ``request_id``."""
ABANDON_EVENT: Final = "abandon"


class Prepared(PreparedFields):
    """An item that is ready to be written; only its pairing can still fail."""

    __slots__ = ()

    @property
    def size(self) -> int:
        """Size of the item's JSON in bytes."""
        return len(split_body(self.body)[3] if self.payload is None else self.payload)

    def recount(self, counter: TokenCounter) -> None:
        """Count the tokens again, as the session turned out to use another counter."""
        if self.facts[0] != ItemKind.EVENT:
            encoded = split_body(self.body)[3] if self.payload is None else self.payload
            self.tokens = checked_count(counter, self.message, encoded)
        self.counter = counter.id


def _encode(value: Any, what: str) -> tuple[bytes, int]:
    try:
        return codec.encode_json(value)
    except (TypeError, ValueError, RecursionError) as exc:
        msg = f"{what} cannot be written as JSON: {exc}"
        raise InvalidItemError(msg) from exc


def pack_envelope(
    meta: Mapping[str, Any] | None, request_id: str | None, told: Envelope | None = None
) -> bytes:
    """Encode what is stored beside an item's JSON; empty if there is nothing.

    Raises:
        InvalidItemError: ``meta`` is not JSON, or too large.
        InvalidOptionError: a value has the wrong type, or two request ids differ.
    """
    if meta is None and request_id is None and told is None:
        return b""
    if meta is not None and not isinstance(meta, Mapping):
        msg = f"meta: expected a mapping or None, got {type(meta).__name__}"
        raise InvalidOptionError(msg)
    if request_id is not None and not isinstance(request_id, str):
        msg = f"request_id: expected a str or None, got {type(request_id).__name__}"
        raise InvalidOptionError(msg)
    envelope: dict[str, Any] = {"meta": None if meta is None else dict(meta)}
    if told is None:
        envelope["request_id"] = request_id
    else:
        envelope = _with_envelope(told, request_id, envelope)
    encoded, flags = _encode(envelope, "meta")
    if len(encoded) > META_BYTES_MAX:
        msg = f"meta is {len(encoded)} bytes as JSON; at most {META_BYTES_MAX} are allowed"
        raise InvalidItemError(msg)
    return bytes((flags,)) + encoded


def _with_envelope(told: Envelope, request_id: str | None, rest: dict[str, Any]) -> dict[str, Any]:
    """Add the envelope's fields before ``meta``, so that ``meta`` is last and easy to locate."""
    fields = told.mapping()
    its_request = fields.pop("request_id", None)
    if None not in (request_id, its_request) and request_id != its_request:
        msg = (
            f"request_id: the call says {request_id!r:.80} and the envelope {its_request!r:.80}: "
            "give one of them"
        )
        raise InvalidOptionError(msg)
    said = its_request if request_id is None else request_id
    return {"request_id": said, "envelope": fields, **rest}


def _prepare(
    message: Message,
    facts: bytes,
    encoded: bytes,
    flags: int,
    *,
    tokens: int | None,
    counter: TokenCounter,
    envelope: bytes,
    now_us: int,
) -> Prepared:
    """Count the tokens of an encoded item and build its row."""
    if len(encoded) > ITEM_BYTES_MAX:
        msg = (
            f"the item is {len(encoded)} bytes as JSON; at most {ITEM_BYTES_MAX} are allowed: "
            "store the large part as a blob and append a reference"
        )
        raise InvalidItemError(msg)
    if tokens is None:
        tokens = counter.count_message(message, encoded)  # direct call: no extra frame per append
        if type(tokens) is not int or not 0 <= tokens <= ITEM_TOKENS_MAX:
            tokens = checked_tokens(counter.id, tokens)
    flag = _HAS_ENVELOPE if envelope else 0
    prefix = _HEADER.pack(facts[0], flag, 0, len(envelope), now_us) + envelope
    created_s = now_us // 1_000_000
    if len(encoded) > ITEM_INLINE_BYTES_MAX:
        flags |= codec.FLAG_BLOB
        return Prepared(message, facts, tokens, prefix, flags, created_s, counter.id, encoded)
    return Prepared(message, facts, tokens, prefix + encoded, flags, created_s, counter.id)


def prepare_item(
    item: Any,
    *,
    counter: TokenCounter,
    seed: bytes,
    now_us: int,
    meta: Mapping[str, Any] | None = None,
    request_id: str | None = None,
    envelope: Envelope | None = None,
) -> Prepared:
    """Validate, classify, count and encode one wire object.

    Raises:
        InvalidItemError: it is not a mapping, not JSON, too large or makes too many calls.
    """
    found = encode_plain(item, seed, codec.ORJSON_OPTIONS) if type(item) is dict else None
    flags = 0
    if found is not None:
        facts, encoded = found
    else:
        item, facts = _classified(plain_message(item), seed)
        encoded, flags = _encode(item, "item")
    beside = b""
    if not (meta is None and request_id is None and envelope is None):
        beside = pack_envelope(meta, request_id, envelope)
    return _prepare(
        item, facts, encoded, flags,
        tokens=None, counter=counter, envelope=beside, now_us=now_us,
    )  # fmt: skip


def _classified(item: Any, seed: bytes) -> tuple[Message, bytes]:
    """Return an item as a dict, and its facts for the ledger; raises as ``prepare_item``."""
    if type(item) is not dict:
        if not isinstance(item, Mapping):
            msg = f"item: expected a mapping (one message as a dict), got {type(item).__name__}"
            raise InvalidItemError(msg)
        item = dict(item)
    facts = pack_facts(item, seed)
    if facts is None:
        msg = f"the item makes or answers more than {CALLS_PER_ITEM_MAX} calls"
        raise InvalidItemError(msg)
    return item, facts


def prepare_event(
    event_type: str,
    payload: Any,
    *,
    counter: TokenCounter,
    seed: bytes,
    now_us: int,
    abandons: tuple[tuple[int, str], ...] = (),
    meta: Mapping[str, Any] | None = None,
    request_id: str | None = None,
    envelope: Envelope | None = None,
) -> Prepared:
    """Validate and encode one event; it counts no tokens.

    Raises:
        InvalidItemError: the payload is not JSON or too large.
        InvalidOptionError: the type is not a non-empty string.
    """
    if not isinstance(event_type, str) or not event_type:
        msg = f"type: expected a non-empty str, got {event_type!r}"
        raise InvalidOptionError(msg)
    facts = pack_event(abandons, seed)
    assert facts is not None  # noqa: S101 - the caller abandons one call at a time
    message = {"type": event_type, "payload": payload}
    encoded, flags = _encode(message, "item")
    beside = pack_envelope(meta, request_id, envelope)
    return _prepare(
        message, facts, encoded, flags,
        tokens=0, counter=counter, envelope=beside, now_us=now_us,
    )  # fmt: skip


def orphan_error(item: Prepared, at: int) -> OrphanResultError:
    """Return the error for a result, at position ``at`` of its change, that answers no call."""
    closes = classify(item.message)[2]
    call_id = closes[0][1] if closes else ""
    what = f"answers call {call_id!r}, which is not in the history; append the call first"
    if not closes:
        what = "names no call; give the call's id (tool_call_id, call_id or tool_use_id)"
    msg = (
        f"the tool result at position {at} {what}, or open the session with orphans='keep' to "
        "store it as it is"
    )
    return OrphanResultError(msg, call_id=call_id, position=at)


def split_body(body: bytes) -> tuple[int, int, bytes, bytes]:
    """Split an item's row into ``(kind, created microseconds, envelope, rest)``.

    Raises:
        CorruptValueError: the row is truncated.
    """
    if len(body) < _HEADER.size:
        msg = f"the row of an item has {len(body)} bytes; run 'memcore check'"
        raise CorruptValueError(msg, key=b"")
    kind, flag, _, size, created = _HEADER.unpack_from(body)
    at = _HEADER.size + size
    first = _HEADER.size + (_SALT_BYTES if flag & _HAS_SALT else 0)
    return kind, created, body[first:at], body[at:]


class Random(Protocol):
    """Source of random bytes."""

    def random(self, count: int, /) -> bytes:
        """Return ``count`` random bytes."""


def salted(body: bytes, source: Random | None) -> bytes:
    """Replace the salt in an item row's body with a new one; unchanged without a source."""
    if source is None:
        return body
    salt = source.random(_SALT_BYTES)
    if not body[1]:  # no envelope: the common case
        return b"".join((body[:1], _SALTED, body[8:16], salt, body[16:]))
    kind, flag, reserved, size, created = _HEADER.unpack_from(body)
    at = _HEADER.size
    if flag & _HAS_SALT:
        at, size = at + _SALT_BYTES, size - _SALT_BYTES
    head = _HEADER.pack(kind, flag | _HAS_SALT, reserved, size + len(salt), created)
    return b"".join((head, salt, body[at:]))


def unsalted(body: bytes) -> bytes:
    """Remove the salt from an item row's body, which makes it the same wherever it is stored."""
    if len(body) < _HEADER.size:
        return body
    kind, flag, reserved, size, created = _HEADER.unpack_from(body)
    if not flag & _HAS_SALT:
        return body
    head = _HEADER.pack(kind, flag & ~_HAS_SALT, reserved, size - _SALT_BYTES, created)
    return head + body[_HEADER.size + _SALT_BYTES :]


_META: Final = b'{"meta":'
_NO_REQUEST: Final = b',"request_id":null}'
_TOLD: Final = b'{"request_id":'
_LAST_META: Final = b',"meta":'


class Json(NamedTuple):
    """JSON of a row, with the flags to decode it: envelope and message have separate ones."""

    text: bytes
    flags: int

    def value(self) -> Any:
        """Decode the text.

        Raises:
            CorruptValueError: it is not JSON.
        """
        return codec.decode_json(self.text, self.flags)

    def part(self, start: int, stop: int | None = None) -> Json:
        """Return the JSON in a byte range of the text."""
        return Json(self.text[start:stop], self.flags)


_NO_JSON: Final = Json(b"", 0)


def stored_json(body: bytes, flags: int, payload: bytes | None = None) -> tuple[Json, Json]:
    """Return ``(meta, message)`` of an item's row, formatted as by orjson; meta is empty if absent.

    Text already written that way is not decoded, unless there is a ``request_id`` alone.

    Raises:
        CorruptValueError: the row has a valid seal, but is not an item.
    """
    _, _, envelope, text = split_body(body)
    message = Json(text if payload is None else payload, flags & codec.FLAG_PLAIN_JSON)
    if message.flags:
        message = Json(*codec.encode_json(decode_message(0, body, flags, payload)))
    return _meta_in(envelope), message


def stored_meta(body: bytes) -> Json:
    """Return only the meta, as in ``stored_json``, without parsing the message."""
    return _meta_in(split_body(body)[2])


def _meta_in(envelope: bytes) -> Json:
    if not envelope:
        return _NO_JSON
    if not envelope[0]:
        if envelope.endswith(_NO_REQUEST):
            return Json(envelope[1 + len(_META) : -len(_NO_REQUEST)], 0)
        at = envelope.find(_LAST_META) if envelope.startswith(_TOLD, 1) else -1
        if at >= 0:  # no string contains these quotes unescaped, so it is the field
            meta = envelope[at + len(_LAST_META) : -1]
            return _NO_JSON if meta == b"null" else Json(meta, 0)
    try:
        found = codec.decode_json(envelope[1:], envelope[0])["meta"]
    except (CorruptValueError, LookupError, TypeError) as exc:
        raise _malformed(0, exc) from exc
    return _NO_JSON if found is None else Json(*codec.encode_json(found))


def decode_item(
    seq: int, body: bytes, flags: int, tokens: int, payload: bytes | None = None
) -> Item:
    """Decode the item in a row's body; ``payload`` is the content of its blob if it has one.

    Raises:
        CorruptValueError: the row has a valid seal, but is not an item.
    """
    meta = request_id = told = None
    at = _HEADER.size
    try:
        kind, flag, _, size, created = _HEADER.unpack_from(body)
        if flag & _HAS_SALT:
            at, size = at + _SALT_BYTES, size - _SALT_BYTES
        if size:
            found = codec.decode_json(body[at + 1 : at + size], body[at])
            meta, request_id = found["meta"], found["request_id"]
            if len(found) > _PLAIN_FIELDS:
                told = stored_envelope(found["envelope"], request_id)
            at += size
        message = codec.decode_json(body[at:] if payload is None else payload, flags)
        if type(message) is dict and created < codec.CLOCK_US:
            kind = KINDS[kind]
            return Item(seq, kind, message, tokens, created / 1e6, meta, request_id, told)
    except (CorruptValueError, CallerError, struct.error, LookupError, TypeError) as exc:
        raise _malformed(seq, exc) from exc
    if created >= codec.CLOCK_US:
        raise _malformed(seq, "it is of a time after 2106")
    raise _malformed(seq, f"a {type(message).__name__} in place of an object")


def decode_message(seq: int, body: bytes, flags: int, payload: bytes | None = None) -> Message:
    """Decode only the message in a row's body.

    Raises:
        CorruptValueError: the row has a valid seal, but is not an item.
    """
    try:
        encoded = body[_HEADER.size + _ENVELOPE.unpack_from(body, 4)[0] :]
        message = codec.decode_json(encoded if payload is None else payload, flags)
    except (CorruptValueError, struct.error) as exc:
        raise _malformed(seq, exc) from exc
    if type(message) is dict:
        return message
    raise _malformed(seq, f"a {type(message).__name__} in place of an object")


def _malformed(seq: int, why: object) -> CorruptValueError:
    msg = f"item {seq} cannot be decoded: {why}; run 'memcore check'"
    return CorruptValueError(msg, key=b"")
