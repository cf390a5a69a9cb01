"""Stored items read back whole: decoded, with their encoded messages, large ones included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from memcore import blobs
from memcore._fast import pack_event, pack_facts
from memcore.codec import FLAG_BLOB, FLAG_REWRITTEN, decoding
from memcore.errors import CorruptValueError, NotFoundError
from memcore.log.history import StoredRow, read_rows
from memcore.log.item import ABANDON_EVENT, Prepared, decode_item, split_body
from memcore.log.positions import History
from memcore.model import Item, ItemKind, Message
from memcore.store.base import ReadTxn
from memcore.tokens import TokenCounter, checked_count

__all__ = ["Stored", "again", "facts_of", "looks_like", "opened", "stored_items", "tokens_of"]

_RESPONSES: Final = ("function_call", "function_call_output", "reasoning", "message")
_ANTHROPIC: Final = ("tool_use", "tool_result", "thinking")

Stored: TypeAlias = tuple[Item, bytes]
"""An item with its encoded message."""


def stored_items(
    txn: ReadTxn, scope: int, history: History, start: int, stop: int
) -> Iterator[Stored]:
    """The items at positions ``start .. stop``.

    Raises:
        CorruptValueError: one of them is damaged.
    """
    for position, session, lo, hi in history.spans(start, min(stop, history.count)):
        for row in read_rows(txn, scope, session, position=position, lo=lo, hi=hi):
            if isinstance(row, CorruptValueError):
                raise row
            yield opened(txn, scope, row)


def opened(txn: ReadTxn, scope: int, row: StoredRow) -> Stored:
    """The item of a row.

    Raises:
        CorruptValueError: it cannot be decoded, or its large content is damaged or missing.
    """
    _, seq, flags, body = row
    encoded = split_body(body)[3]
    if not flags & FLAG_BLOB:
        return decode_item(seq, body, flags, 0), encoded
    try:
        encoded = blobs.read(txn, scope, blobs.BlobRef.unpack(encoded))
    except NotFoundError as exc:
        msg = f"the large content of item {seq} is missing: {exc}; run 'memcore check'"
        raise CorruptValueError(msg, key=b"") from exc
    return decode_item(seq, body, flags, 0, encoded), encoded


def again(txn: ReadTxn, scope: int, row: StoredRow, counter: TokenCounter, seed: bytes) -> Prepared:
    """A stored item, ready to be appended once more; its row stays as it was written.

    Raises:
        CorruptValueError: it cannot be decoded, or its large content is damaged or missing.
    """
    _, seq, flags, body = row
    item, encoded = opened(txn, scope, row)
    facts = facts_of(item, seed)
    if facts is None:
        msg = f"item {seq} makes more calls than an item may"
        raise CorruptValueError(msg, key=b"")
    is_large = bool(flags & FLAG_BLOB)
    return Prepared(
        item.message,
        facts,
        tokens_of(item, encoded, counter),
        body[: len(body) - len(split_body(body)[3])] if is_large else body,
        flags & ~FLAG_REWRITTEN,
        int(item.created_at),
        counter.id,
        encoded if is_large else None,
        was=seq,
    )


def tokens_of(item: Item, encoded: bytes, counter: TokenCounter) -> int:
    """What the item would have counted if it had been appended with this counter."""
    return 0 if item.kind == ItemKind.EVENT else checked_count(counter, item.message, encoded)


def facts_of(item: Item, seed: bytes) -> bytes | None:
    """What the item's index record says of its calls; None if it makes no sense."""
    if item.kind != ItemKind.EVENT:
        return pack_facts(item.message, seed)
    given_up: tuple[tuple[int, str], ...] = ()
    with decoding(b"", f"event {item.seq}"):
        if item.message["type"] == ABANDON_EVENT:
            payload = item.message["payload"]
            given_up = ((payload["class"], payload["id"]),)
        return pack_event(given_up, seed)


def looks_like(messages: Iterable[Message]) -> str:
    """The pair policy that messages look as if they were held to."""
    for message in messages:
        if message.get("type") in _RESPONSES:
            return "openai_responses"
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        if any(isinstance(b, dict) and b.get("type") in _ANTHROPIC for b in blocks):
            return "anthropic"
    return "openai_chat"
