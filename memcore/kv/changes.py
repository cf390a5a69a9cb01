"""Single changes of a namespace: checked and encoded first, then to be run in a transaction.

The same serve the synchronous handle and the asynchronous one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from memcore.blobs import BlobRef
from memcore.errors import InvalidOptionError
from memcore.kv.lent import increment, once
from memcore.kv.namespace import Writer
from memcore.kv.options import checked_content, checked_ttl_ms, encoded, packed_key
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX

__all__ = ["Change", "deleting", "incrementing", "is_staged", "putting", "putting_many"]

T = TypeVar("T")
Change = Callable[[Writer], T]


def is_staged(content: object) -> bool:
    """Whether a content is so large that it is stored ahead, in commits of its own."""
    size = content.nbytes if isinstance(content, memoryview) else 0
    if isinstance(content, bytes | bytearray):
        size = len(content)
    return size > BLOB_INLINE_COMMIT_BYTES_MAX


def putting(
    key: str, value: Any, *, ttl_seconds: float | None, content: bytes | BlobRef | None
) -> Change[None]:
    """What ``KeyValue.put`` writes; it raises what that raises."""
    packed, (flags, payload) = packed_key(key), encoded(value)
    ttl_ms, held = checked_ttl_ms(ttl_seconds), checked_content(content)
    return lambda writer: writer.put(packed, flags, payload, ttl_ms, held)


def putting_many(entries: Mapping[str, Any], *, ttl_seconds: float | None) -> Change[None] | None:
    """What ``KeyValue.put_many`` writes; None if that is nothing."""
    given: object = entries
    if not isinstance(given, Mapping):
        msg = f"put_many takes a mapping of keys to values, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    rows = [(packed_key(key), *encoded(value)) for key, value in entries.items()]
    ttl_ms = checked_ttl_ms(ttl_seconds)

    def change(writer: Writer) -> None:
        for packed, flags, payload in rows:
            writer.put(packed, flags, payload, ttl_ms)

    return change if rows else None


def deleting(key: str) -> Change[bool]:
    """What ``KeyValue.delete`` does."""
    packed = packed_key(key)
    return lambda writer: writer.remove(packed)


def incrementing(key: str, n: int, idempotency_key: str | None = None) -> Change[int]:
    """What ``KeyValue.increment`` does."""
    content = b"" if idempotency_key is None else repr((key, n)).encode("utf-8", "surrogatepass")
    return once(lambda writer: increment(writer, key, n), idempotency_key, content)
