"""In-place rewrite of item rows: another message, the same item.

Such a row keeps the checksum of the original, which prefix hashes are computed from, its time, its
kind and the calls that it makes and answers: so the index, views, checkpoints and forks stay valid.
The index keeps the old token count, so a replacement must not count for more.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple

from memcore import blobs
from memcore._fast import pack_facts
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import (
    FLAG_BLOB,
    FLAG_REWRITTEN,
    checksum_of,
    decode_json,
    encode_json,
    open_value,
    seal_rewritten,
)
from memcore.errors import InvalidItemError
from memcore.limits import ITEM_BYTES_MAX, ITEM_INLINE_BYTES_MAX
from memcore.model import ItemKind, Message
from memcore.rows.item import split_body
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "Rewriting",
    "plan_rewriting",
    "same_calls",
    "write_rewriting",
]


_HEADER: Final = Struct("<BBHIQ")
_FLAGS_AT: Final = 1
"""The byte of the facts that is unrelated to calls."""


class Rewriting(NamedTuple):
    """The new content of one row, planned on a snapshot."""

    key: bytes
    before: bytes
    """Leading bytes of the value that it was planned for: format, flags, checksum."""
    origin: bytes
    prefix: bytes
    """The row's body up to the message."""
    encoded: bytes
    flags: int
    size: int
    """Bytes that the row's value and its large content take now."""


def same_calls(facts: bytes | None, known: bytes) -> bool:
    """Return True if two items are of the same kind and make and answer the same calls."""
    if facts is None or len(facts) != len(known):
        return False
    return facts[:_FLAGS_AT] + facts[_FLAGS_AT + 1 :] == known[:_FLAGS_AT] + known[_FLAGS_AT + 1 :]


def plan_rewriting(
    place: tuple[int, int, int],
    value: bytes,
    messages: tuple[Message, Message],
    *,
    seed: bytes,
    envelope: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Rewriting:
    """Plan the replacement of an item's message.

    Args:
        place: scope, owner session and seq of the item.
        value: the item's row value.
        messages: the current and the new message.
        seed: the store's seed.
        envelope: returns the new envelope for the current one (``meta``, ``request_id``, ...).

    Raises:
        InvalidItemError: the new message is not JSON, is too large, or differs in kind or calls.
        CorruptValueError: the row is damaged.
    """
    scope, session, seq = place
    old, new = messages
    key = keys.session_row(scope, session, Row.ITEM, seq)
    flags, body = open_value(key, value)
    kind, created_us, beside, rest = split_body(body)
    _need_same(seq, kind, old, new, seed)
    try:
        encoded, added = encode_json(new)
        if envelope is not None and beside:
            made, form = encode_json(envelope(decode_json(beside[1:], beside[0])))
            beside = bytes((form,)) + made
    except (ValueError, RecursionError) as exc:
        msg = f"item {seq}: what is to stand in its place cannot be written as JSON: {exc}"
        raise InvalidItemError(msg) from exc
    if len(encoded) > ITEM_BYTES_MAX:
        msg = f"item {seq}: what is to stand in its place is {len(encoded)} bytes as JSON; at most "
        raise InvalidItemError(f"{msg}{ITEM_BYTES_MAX} are allowed")
    prefix = _HEADER.pack(kind, 1 if beside else 0, 0, len(beside), created_us) + beside
    size = len(value) + (blobs.BlobRef.unpack(rest).size if flags & FLAG_BLOB else 0)
    return Rewriting(key, value[:10], checksum_of(value), prefix, encoded, added, size)


def _need_same(seq: int, kind: int, old: Message, new: Message, seed: bytes) -> None:
    if kind == ItemKind.EVENT:
        if new.get("type") == old.get("type") and new.keys() == old.keys():
            return
    else:
        known = pack_facts(old, seed)
        if known is not None and same_calls(pack_facts(new, seed), known):
            return
    msg = f"item {seq}: what is to stand in its place is of another kind, or of other calls"
    raise InvalidItemError(msg)


def write_rewriting(txn: Txn, planned: Rewriting, *, seed: int) -> list[bytes] | None:
    """Write a planned row, and release the large content of the old one.

    Returns:
        The ``REMOVAL`` rows to continue with; None if the row is not the one it was planned for.
    """
    value = txn.get(planned.key)
    # Planned on a snapshot: since then it may have been removed, or rewritten by others.
    if value is None or value[:10] != planned.before:
        return None
    flags, body = open_value(planned.key, value)
    scope = keys.split_session_prefix(planned.key)[0]
    body_now, flags_now = planned.prefix + planned.encoded, planned.flags
    if len(planned.encoded) > ITEM_INLINE_BYTES_MAX:
        ref = blobs.write(txn, scope, planned.encoded, seed=seed)
        # Before the old content is let go: if both are one blob, a count of 0 would remove it.
        blobs.acquire(txn, scope, ref)
        body_now, flags_now = planned.prefix + ref.pack(), flags_now | FLAG_BLOB
    txn.put(planned.key, seal_rewritten(planned.key, body_now, flags_now, planned.origin))
    if not flags & FLAG_BLOB:
        return []
    return blobs.let_go(txn, scope, blobs.BlobRef.unpack(split_body(body)[3]))


def is_rewritten(txn: ReadTxn, scope: int, session: int, seq: int) -> bool:
    """Return True if an item was rewritten."""
    value = txn.get(keys.session_row(scope, session, Row.ITEM, seq))
    return value is not None and bool(value[1:2]) and bool(value[1] & FLAG_REWRITTEN)
