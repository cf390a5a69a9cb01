"""Requests that are carried out once: what they returned, in a namespace of their own.

Whoever tries again under the same key gets what the first try returned. The row is written in the
transaction that carries the request out, so it is there if, and only if, that is. It expires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeVar

from memcore import keys
from memcore.codec import decode_json, encode_json
from memcore.errors import DuplicateRequestError, InvalidItemError
from memcore.kv.entries import Ensure, Entry, Find, entry_of, write_entry
from memcore.limits import IDEMPOTENCY_TTL_SECONDS
from memcore.options import checked_idempotency_key
from memcore.store.base import ReadTxn, Txn

__all__ = ["REQUESTS", "Request", "Requests"]

T = TypeVar("T")
REQUESTS: Final = "\x00requests"
"""The namespace; what a handle of the user may do there touches nothing but the user's own."""


@dataclass(frozen=True, slots=True)
class Request:
    """A checked key, and the digest of what it stands for."""

    packed: bytes
    content: str
    text: str


class Requests:
    """The requests about one thing of a scope.

    Args:
        find: the numbers of the scope and of the namespace ``REQUESTS`` in it, if there are any.
        ensure: the same, given now.
        now_ms: the clock that they expire by.
        seed: the store's, which keys the digests.
        about: what the keys are about: the same key may be used for each.
    """

    def __init__(
        self, find: Find, ensure: Ensure, *, now_ms: Callable[[], int], seed: bytes, about: str
    ) -> None:
        self._find = find
        self._ensure = ensure
        self._now_ms = now_ms
        self._seed = seed
        self._about = about

    def request(self, key: object, content: Iterable[bytes] = ()) -> Request:
        """The request of a key whose content is these parts in this order.

        Raises:
            InvalidOptionError: the key is no str, empty or too long.
        """
        text = checked_idempotency_key(key)
        named = keys.pack_text(self._about) + keys.pack_text(text)
        digest = blake2b(named, digest_size=32, key=self._seed).hexdigest()
        parts = b"".join(len(part).to_bytes(8, "little") + part for part in content)
        told = blake2b(parts, digest_size=16, key=self._seed).hexdigest()
        return Request(keys.pack_text(digest), told, text)

    def recall(self, txn: ReadTxn, request: Request) -> tuple[Any] | None:
        """What the request returned when it was carried out; None if it was not yet.

        Raises:
            DuplicateRequestError: the key was used for something else.
        """
        place = self._find(txn)
        if place is None:
            return None
        key = keys.kv_prefix(*place) + request.packed
        value = txn.get(key)
        if value is None:
            return None
        entry = entry_of(key, value)
        if not entry.is_visible(self._now_ms()):
            return None
        content, result = entry.value()
        if content != request.content:
            msg = (
                f"idempotency_key {request.text[:64]!r} was used before for something else; a new "
                "request needs a new key"
            )
            raise DuplicateRequestError(msg)
        return (result,)

    def remember(self, txn: Txn, request: Request, result: Any) -> None:
        """Keep what the request returned, in the transaction that carries it out.

        Raises:
            InvalidItemError: it is no JSON.
        """
        try:
            payload, flags = encode_json([request.content, result])
            if decode_json(payload, flags)[1] != result:
                raise ValueError("it would come back as something else")
        except (TypeError, ValueError, RecursionError) as exc:
            msg = f"what a request with an idempotency_key returns has to be JSON: {exc}"
            raise InvalidItemError(msg) from exc
        now_ms = self._now_ms()
        entry = Entry(flags, payload, now_ms + IDEMPOTENCY_TTL_SECONDS * 1000)
        key = keys.kv_prefix(*self._ensure(txn)) + request.packed
        write_entry(txn, key, entry, now_ms, [])

    def once(self, fn: Callable[[Txn], T], request: Request) -> Callable[[Txn], T]:
        """``fn``, or what it returned when it was carried out first."""

        def closure(txn: Txn) -> T:
            told = self.recall(txn, request)
            if told is not None:
                return told[0]  # type: ignore[no-any-return]
            result = fn(txn)
            self.remember(txn, request, result)
            return result

        return closure
