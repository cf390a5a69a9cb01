"""Stored items read back: decoded, with their messages, large ones from blobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from memcore import blobs
from memcore._fast import pack_event, pack_facts
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import FLAG_BLOB, FLAG_REWRITTEN, decoding, named, open_value
from memcore.errors import CorruptValueError, NotFoundError
from memcore.log.history import History, StoredRow, missing_row, read_rows
from memcore.model import Item, ItemKind, Message
from memcore.rows import index
from memcore.rows.item import ABANDON_EVENT, Prepared, decode_item, split_body
from memcore.store.interface import ReadTxn
from memcore.tokens import TokenCounter, checked_count

__all__ = [
    "Stored",
    "again",
    "facts_of",
    "item_at",
    "looks_like",
    "opened",
    "predecessor",
    "stored_items",
    "tokens_of",
]


# --- Stored items read back in full: decoded, with their encoded messages, including large ones ---

_RESPONSES: Final = ("function_call", "function_call_output", "reasoning", "message")
_ANTHROPIC: Final = ("tool_use", "tool_result", "thinking")

Stored: TypeAlias = tuple[Item, bytes]
"""An item with its encoded message."""


def stored_items(
    txn: ReadTxn, scope: int, history: History, start: int, stop: int
) -> Iterator[Stored]:
    """Yield the items at positions ``start .. stop``.

    Raises:
        CorruptValueError: one of them is damaged.
    """
    for position, session, lo, hi in history.spans(start, min(stop, history.count)):
        for row in read_rows(txn, scope, session, position=position, lo=lo, hi=hi):
            if isinstance(row, CorruptValueError):
                raise row
            try:
                found = opened(txn, scope, row)
            except CorruptValueError as exc:
                named(exc, keys.session_row(scope, session, Row.ITEM, row[1]))
                raise
            yield found


def item_at(txn: ReadTxn, scope: int, session: int, seq: int) -> Item:
    """Return the item with a seq, of the session that owns it.

    Raises:
        CorruptValueError: it is damaged or missing.
    """
    key = keys.session_row(scope, session, Row.ITEM, seq)
    value = txn.get(key)
    if value is None:
        raise missing_row(scope, session, seq)
    return opened(txn, scope, (0, seq, *open_value(key, value)))[0]


def opened(txn: ReadTxn, scope: int, row: StoredRow) -> Stored:
    """Return the item of a row.

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
        # Damage, and no NotFoundError: the caller named nothing that could be missing.
        msg = f"the large content of item {seq} is missing: {exc}; run 'memcore check'"
        raise CorruptValueError(msg, key=b"") from exc
    return decode_item(seq, body, flags, 0, encoded), encoded


def again(txn: ReadTxn, scope: int, row: StoredRow, counter: TokenCounter, seed: bytes) -> Prepared:
    """Prepare a stored item to be appended again; its row stays as it was written.

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
        # The new row's prefix hash is of its own checksum, not of the original's.
        flags & ~FLAG_REWRITTEN,
        int(item.created_at),
        counter.id,
        encoded if is_large else None,
        was=seq,
    )


def tokens_of(item: Item, encoded: bytes, counter: TokenCounter) -> int:
    """Return the item's tokens as if it were appended with this counter."""
    return 0 if item.kind == ItemKind.EVENT else checked_count(counter, item.message, encoded)


def facts_of(item: Item, seed: bytes) -> bytes | None:
    """Make the part of the item's index record that names its calls; None if it is invalid."""
    if item.kind != ItemKind.EVENT:
        return pack_facts(item.message, seed)
    given_up: tuple[tuple[int, str], ...] = ()
    with decoding(b"", f"event {item.seq}"):
        if item.message["type"] == ABANDON_EVENT:
            payload = item.message["payload"]
            given_up = ((payload["class"], payload["id"]),)
        return pack_event(given_up, seed)


def looks_like(messages: Iterable[Message]) -> str:
    """Guess the pair policy that messages conform to."""
    for message in messages:
        if message.get("type") in _RESPONSES:
            return "openai_responses"
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        if any(isinstance(b, dict) and b.get("type") in _ANTHROPIC for b in blocks):
            return "anthropic"
    return "openai_chat"


# --- Predecessor of an item, derived from the prefix hashes in the index --------------------------

_TRIES: Final = 4096
"""Earlier items that are tried as an item's predecessor."""


def predecessor(
    seq: int,
    chain: int,
    sums: Sequence[bytes],
    chains: Mapping[int, int | None],
    before: Mapping[int, int],
    *,
    first: int,
) -> tuple[int, int] | None:
    """Return ``(predecessor's seq, index of the checksum that proves it)``; None if unknown.

    Args:
        seq: the item, one that its session owns.
        chain: the prefix hash at it.
        sums: its candidate checksums.
        chains: the prefix hashes at earlier own items; at ``first - 1``, that of the item that the
            session was forked from (0: it is not a fork).
        before: the predecessor of each earlier own seq.
        first: the first seq that the session owns.
    """
    at = seq - 1
    for _ in range(_TRIES if sums else 0):
        known = chains.get(at)
        if known is not None:
            for which, checksum in enumerate(sums):
                if index.chain_after(known, checksum) == chain:
                    return at, which
        if at < first:
            break
        at = before[at]
    for which, checksum in enumerate(sums):
        if first == 1 and index.chain_after(0, checksum) == chain:
            return 0, which
    return None
