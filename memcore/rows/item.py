"""Item row: checked and encoded before it is queued, decoded when it is read.

The body of an item's row is ``kind u8 | envelope flag u8 | reserved u16 | envelope length u32 |
created microseconds u64 | envelope JSON | item JSON``; the item JSON of a large item is a blob
reference instead. The envelope JSON holds ``meta``, ``request_id`` and, in front of ``meta``, what
was told in an ``Envelope``; it is absent when all of them are. In an encrypted database 8 random
bytes stand before it: the prefix hash, which rests on the whole row and stands in clear, then
confirms no guess of what the item says.
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
from memcore.tokens import TokenCounter, checked_count, checked_tokens

__all__ = [
    "Prepared",
    "decode_item",
    "decode_message",
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
"""Bytes between kind and creation time in the row of an item with salt and no envelope."""
_PLAIN_FIELDS: Final = 2
"""Of an envelope's JSON that holds ``meta`` and ``request_id`` alone."""
ABANDON_EVENT: Final = "abandon"


class Prepared(PreparedFields):
    """An item that is ready to be written; nothing about it can fail any more but its pairing."""

    __slots__ = ()

    @property
    def size(self) -> int:
        """Bytes of the item's JSON."""
        return len(split_body(self.body)[3] if self.payload is None else self.payload)

    def recount(self, counter: TokenCounter) -> None:
        """Count again: the session turned out to be counted by another counter."""
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


def _envelope(
    meta: Mapping[str, Any] | None, request_id: str | None, told: Envelope | None = None
) -> bytes:
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
    """The envelope in front of the meta, which so begins at a place that can be found."""
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
    """Count an encoded item, and lay out its row."""
    if len(encoded) > ITEM_BYTES_MAX:
        msg = (
            f"the item is {len(encoded)} bytes as JSON; at most {ITEM_BYTES_MAX} are allowed: "
            "store the large part as a blob and append a reference"
        )
        raise InvalidItemError(msg)
    if tokens is None:
        tokens = counter.count_message(message, encoded)  # no frame between an append and C
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
    """Check, classify, count and encode one wire object.

    Raises:
        InvalidItemError: it is not a mapping, not JSON, too large or makes too many calls.
    """
    found = encode_plain(item, seed, codec.ORJSON_OPTIONS) if type(item) is dict else None
    flags = 0
    if found is not None:
        facts, encoded = found
    else:
        item, facts = _classified(item, seed)
        encoded, flags = _encode(item, "item")
    beside = b""
    if not (meta is None and request_id is None and envelope is None):
        beside = _envelope(meta, request_id, envelope)
    return _prepare(
        item, facts, encoded, flags,
        tokens=None, counter=counter, envelope=beside, now_us=now_us,
    )  # fmt: skip


def _classified(item: Any, seed: bytes) -> tuple[Message, bytes]:
    """An item as a dict, and what the ledger asks of it; errors as ``prepare_item``."""
    if type(item) is not dict:
        if not isinstance(item, Mapping):
            hint = "; pass item.model_dump()" if hasattr(item, "model_dump") else ""
            msg = (
                f"item: expected a mapping (one message as a dict), got {type(item).__name__}{hint}"
            )
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
    """Check and encode one event; it counts no tokens.

    Raises:
        InvalidItemError: the payload is not JSON or too large.
        InvalidOptionError: the type is no non-empty string.
    """
    if not isinstance(event_type, str) or not event_type:
        msg = f"type: expected a non-empty str, got {event_type!r}"
        raise InvalidOptionError(msg)
    facts = pack_event(abandons, seed)
    assert facts is not None  # noqa: S101 - the caller gives up one call at a time
    message = {"type": event_type, "payload": payload}
    encoded, flags = _encode(message, "item")
    return _prepare(
        message, facts, encoded, flags,
        tokens=0, counter=counter, envelope=_envelope(meta, request_id, envelope), now_us=now_us,
    )  # fmt: skip


def orphan_error(item: Prepared, at: int) -> OrphanResultError:
    """The error of a result, ``at`` in its change, that answers no call."""
    closes = classify(item.message)[2]
    call_id = closes[0][1] if closes else ""
    what = f"answers call {call_id!r}, which is not in the history" if closes else "names no call"
    msg = (
        f"the tool result at position {at} {what}; append the call first, or open the session with "
        "orphans='keep' to store it as it is"
    )
    return OrphanResultError(msg, call_id=call_id, position=at)


def split_body(body: bytes) -> tuple[int, int, bytes, bytes]:
    """``(kind, created microseconds, envelope, rest)`` of an item's row.

    Raises:
        CorruptValueError: the row is cut short.
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
    """Replace the random bytes in an item row's body; unchanged without a source."""
    if source is None:
        return body
    salt = source.random(_SALT_BYTES)
    if not body[1]:  # no envelope, as in most
        return b"".join((body[:1], _SALTED, body[8:16], salt, body[16:]))
    kind, flag, reserved, size, created = _HEADER.unpack_from(body)
    at = _HEADER.size
    if flag & _HAS_SALT:
        at, size = at + _SALT_BYTES, size - _SALT_BYTES
    head = _HEADER.pack(kind, flag | _HAS_SALT, reserved, size + len(salt), created)
    return b"".join((head, salt, body[at:]))


def unsalted(body: bytes) -> bytes:
    """The body of an item's row as it was before ``salted``: the same wherever it is stored."""
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
    """JSON of a row, and the flags to decode it with: envelope and message have their own."""

    text: bytes
    flags: int

    def value(self) -> Any:
        """Decode the text.

        Raises:
            CorruptValueError: it is not JSON.
        """
        return codec.decode_json(self.text, self.flags)

    def part(self, start: int, stop: int | None = None) -> Json:
        """Return the JSON in a range of its bytes."""
        return Json(self.text[start:stop], self.flags)


_NO_JSON: Final = Json(b"", 0)


def stored_json(body: bytes, flags: int, payload: bytes | None = None) -> tuple[Json, Json]:
    """``(meta, message)`` of an item's row, laid out as orjson does; meta is empty if absent.

    Nothing is decoded where that is how it was written, unless there is a ``request_id`` alone.

    Raises:
        CorruptValueError: the row is sealed, but no item.
    """
    _, _, envelope, text = split_body(body)
    message = Json(text if payload is None else payload, flags & codec.FLAG_PLAIN_JSON)
    if message.flags:
        message = Json(*codec.encode_json(decode_message(0, body, flags, payload)))
    return _meta_in(envelope), message


def stored_meta(body: bytes) -> Json:
    """Return the meta alone, as in ``stored_json``, without parsing the message."""
    return _meta_in(split_body(body)[2])


def _meta_in(envelope: bytes) -> Json:
    if not envelope:
        return _NO_JSON
    if not envelope[0]:
        if envelope.endswith(_NO_REQUEST):
            return Json(envelope[1 + len(_META) : -len(_NO_REQUEST)], 0)
        at = envelope.find(_LAST_META) if envelope.startswith(_TOLD, 1) else -1
        if at >= 0:  # no string holds these quotes unescaped, so it is the field
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
    """The item of a row's body; ``payload`` is the content of its blob if it has one.

    Raises:
        CorruptValueError: the row is sealed, but no item.
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
    """The message alone of a row's body.

    Raises:
        CorruptValueError: the row is sealed, but no item.
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
