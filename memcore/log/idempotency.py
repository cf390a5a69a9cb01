"""Idempotent requests of a session: the first receipt of each, under the caller's key.

Requests of key/value entries, shared state and files are handled by ``Requests`` in
``kv/namespace.py``.

The row's body is ``expires ms u64 | content digest 32 | receipt``. A receipt is ``seq u64 |
revision u64 | tokens u64 | open calls u32 | items u64``, and is extensible: later versions append
fields, so its length determines which ones are present. A reader uses the fields that it knows;
``carry_requests`` copies the others unchanged.

The content digest is keyed by the store's seed and covers what the caller asked for, so reuse of a
key with other content is detected. An entry is valid only while its seq is live; undo deletes
nothing. One that never expires has the maximum u64 as its expiry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

from memcore._fast import sized_parts
from memcore.codec import keys
from memcore.codec.keys import Row, blake2b
from memcore.codec.values import decoding, open_value, seal_value
from memcore.errors import CorruptValueError, DuplicateRequestError
from memcore.limits import IDEMPOTENCY_TTL_SECONDS
from memcore.log.session_txn import SessionTxn
from memcore.model import Receipt
from memcore.options import checked_idempotency_key
from memcore.rows.item import Prepared, split_body
from memcore.store.interface import Txn

__all__ = [
    "IdempotentRequest",
    "carry_requests",
    "find_request",
    "prepare_request",
    "record_request",
    "request_of",
]


_BODY = Struct("<Q32sQQQIQ")
"""Fields present in every row. Frozen: fields of later receipts follow it, in a struct of their own
that is read only if the row is long enough."""
_NEVER: Final = 2**64 - 1


class IdempotentRequest(NamedTuple):
    """A checked idempotency key and the digest of the request's content."""

    digest: bytes
    content: bytes
    text: str
    ttl_ms: int | None = IDEMPOTENCY_TTL_SECONDS * 1000
    """Milliseconds it is kept; None: as long as its items are live."""


def prepare_request(
    key: object, items: Sequence[Prepared], *, seed: bytes
) -> IdempotentRequest | None:
    """Return the request for an ``idempotency_key`` argument; None without a key.

    Raises:
        InvalidOptionError: the key is not a str, is empty or too long.
    """
    if key is None:
        return None
    return request_of(key, content_of_items(items), seed=seed)


def content_of_items(items: Sequence[Prepared]) -> list[bytes]:
    """Return the parts of items that must be equal when a request is repeated."""
    content: list[bytes] = []
    for item in items:
        kind, _, envelope, rest = split_body(item.body)
        if item.content is not None:
            rest = item.content
        elif item.payload is not None:
            rest = item.payload
        content += (bytes((kind,)), envelope, rest)
    return content


def request_of(
    key: object,
    content: Sequence[bytes],
    *,
    seed: bytes,
    ttl_ms: int | None = IDEMPOTENCY_TTL_SECONDS * 1000,
    about: bytes = b"",
) -> IdempotentRequest:
    """Return the request with that key and with these content parts, in this order.

    ``about``: up to 16 bytes that name the operation; each operation has its own key space.

    Raises:
        InvalidOptionError: the key is not a str, is empty or too long.
    """
    text = checked_idempotency_key(key)
    told = blake2b(sized_parts(content), digest_size=32, key=seed)
    named = text.encode("utf-8", "surrogatepass")
    digest = blake2b(named, digest_size=32, key=seed, person=about).digest()
    return IdempotentRequest(digest, told.digest(), text, ttl_ms)


def find_request(
    draft: SessionTxn, request: IdempotentRequest, *, now_ms: int, is_live: bool = True
) -> Receipt | None:
    """Return the first receipt of this request, if it was made before and its items are live.

    After a recount it has the current token total: counts of two counters must not be mixed.
    ``is_live``: False if the request appended nothing, so that its receipt names no live item.

    Raises:
        DuplicateRequestError: the key was used for other content.
    """
    key = keys.request_row(draft.log.scope, draft.log.session, request.digest)
    value = draft.txn.get_new(key)
    if value is None:
        return None
    _, body = open_value(key, value)
    with decoding(key, "receipt of a request"):
        expires_ms, content, seq, revision, tokens, open_calls, count = _BODY.unpack_from(body)
    # Before the contents are compared: an expired or undone request leaves its key free. It expires
    # by the clock of the store, which all writers share.
    # Seq 0: the request left the history empty, and there is no item to be live.
    if expires_ms <= now_ms or (is_live and seq and draft.position_of(seq) is None):
        return None
    if content != request.content:
        msg = (
            f"idempotency_key {request.text[:64]!r} was used before for other content"
            f"{f' (item {seq})' if is_live else ''}; a new request needs a new key"
        )
        raise DuplicateRequestError(msg)
    if is_live and seq < draft.head.recount_stop:
        tokens = draft.tokens  # the stored total may be by another counter than the session's
    return Receipt(seq, revision, tokens, open_calls, count)


def record_request(
    draft: SessionTxn, request: IdempotentRequest, receipt: Receipt, *, now_ms: int
) -> None:
    """Record a request's receipt in the transaction that carries it out."""
    key = keys.request_row(draft.log.scope, draft.log.session, request.digest)
    body = _BODY.pack(
        _NEVER if request.ttl_ms is None else now_ms + request.ttl_ms,
        request.content,
        receipt.seq,
        receipt.revision,
        receipt.tokens,
        receipt.open_calls,
        receipt.appended,
    )
    draft.txn.put(key, seal_value(key, body))


def carry_requests(
    txn: Txn, scope: int, old: int, new: int, *, moved: Mapping[int, int], now_ms: int
) -> None:
    """Copy the requests of a session to the one that replaces it.

    Args:
        txn: the transaction of the replacement.
        scope: the scope of both sessions.
        old: the number of the old session.
        new: the number of the new session.
        moved: new seqs by old seq; requests whose items are gone are dropped.
        now_ms: the current time; requests that have expired are dropped, too.
    """
    start = keys.session_rows(scope, old, Row.REQUEST)
    for key, value in list(txn.scan(start, keys.after(start))):
        try:
            with decoding(key, "receipt of a request"):
                _, old_body = open_value(key, value)
                expires_ms, content, seq, *totals, count = _BODY.unpack_from(old_body)
        except CorruptValueError:
            continue  # check() reports it; a retry is a new request
        has_items = count > 0  # otherwise the number is not a seq
        if expires_ms <= now_ms or (has_items and seq not in moved):
            continue
        row = keys.request_row(scope, new, key[len(start) :])
        seq = moved[seq] if has_items else seq
        body = _BODY.pack(expires_ms, content, seq, *totals, count)
        body += old_body[_BODY.size :]
        txn.put(row, seal_value(row, body))
