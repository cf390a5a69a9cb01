"""What a function works with inside ``read`` or ``transact``: it dies when the function returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from memcore.blobs import BlobRef
from memcore.errors import ClosedError, InvalidItemError, InvalidOptionError
from memcore.kv.admitting import Gate
from memcore.kv.entries import Entry
from memcore.kv.namespace import Page, Reader, Writer, scan_pages
from memcore.kv.options import (
    bounds,
    checked_content,
    checked_count,
    checked_ttl_ms,
    encoded,
    packed_key,
)
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.options import checked_idempotency_key
from memcore.privacy.guard import as_operator

__all__ = ["KeyValueTxn", "KeyValueView", "increment", "lent", "once", "shown"]

T = TypeVar("T")


class KeyValueView:
    """Several reads of one snapshot: what the function given to ``read`` works with.

    Every method raises ClosedError when the function has returned.
    """

    def __init__(self, reader: Callable[[], Reader]) -> None:
        self._reader = reader

    def get(self, key: str, default: Any = None) -> Any:
        """As ``KeyValue.get``."""
        entry = self._reader().load(packed_key(key))
        return default if entry is None else entry.value()

    def content(self, key: str) -> bytes | None:
        """As ``KeyValue.content``."""
        return self._reader().content(packed_key(key))

    def content_size(self, key: str) -> int | None:
        """Bytes of the entry's content, which are not read; None if there is none."""
        entry = self._reader().load(packed_key(key))
        return None if entry is None or entry.ref is None else entry.ref.size

    @property
    def wants_no_memory(self) -> bool:
        """Whether the user opted out of memory (``Scope.opt_out_memory``)."""
        return self._reader().wants_no_memory

    def veiled(self, text: str) -> str:
        """A text of a content, for a place in a key, which is never encrypted.

        As it is; in an encrypted file a digest under a secret of the key file, of this scope's own.
        """
        return self._reader().veiled(text)

    def recall(self, idempotency_key: str, content: bytes = b"") -> tuple[Any] | None:
        """What was remembered under the key, in a tuple; None if nothing was yet.

        Raises:
            DuplicateRequestError: the key was used for other ``content``.
        """
        return self._reader().recall(idempotency_key, content)

    def scan(
        self,
        start: str = "",
        stop: str | None = None,
        *,
        prefix: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """As ``KeyValue.scan``; in a transaction, its writes between two pages are seen."""
        self._reader()
        low, high = bounds(start, stop, prefix)

        def next_page(low: bytes, high: bytes | None, wanted: int) -> Page:
            return self._reader().page(low, high, reverse=reverse, wanted=wanted)

        count = checked_count(limit, "limit")
        return scan_pages(next_page, low, high, reverse=reverse, limit=count)


class KeyValueTxn(KeyValueView):
    """Several keys in one transaction: what the function given to ``transact`` works with.

    Reads see the transaction's own writes. Every method raises ClosedError when the function has
    returned.
    """

    def __init__(self, writer: Callable[[], Writer], gate: Gate | None = None) -> None:
        super().__init__(writer)
        self._writer = writer
        self._gate = gate

    def put(
        self,
        key: str,
        value: Any,
        *,
        ttl_seconds: float | None = None,
        content: bytes | BlobRef | None = None,
    ) -> None:
        """As ``KeyValue.put``; a content above 192 KiB is staged before the transaction.

        A content that was staged makes it raise StagedBlobLost if it vanished: it must be the
        first that ``fn`` writes, and whoever gave ``fn`` stages it again.
        """
        if self._gate is not None:
            value, content = self._gate.value(value, key), self._gate.content(content)
        bytes_, ttl_ms = checked_content(content), checked_ttl_ms(ttl_seconds)
        if isinstance(bytes_, bytes) and len(bytes_) > BLOB_INLINE_COMMIT_BYTES_MAX:
            msg = (
                f"a content of {len(bytes_)} bytes is too large for this transaction: give what "
                "stage() made of it"
            )
            raise InvalidOptionError(msg)
        self._writer().put(packed_key(key), *encoded(value), ttl_ms, bytes_)

    def remember(self, idempotency_key: str, result: Any, content: bytes = b"") -> None:
        """Keep what a request returns, for who tries again: JSON, for a week.

        Raises:
            InvalidItemError: it is no JSON.
        """
        self._writer().remember(idempotency_key, content, result)

    @property
    def leaves_rows(self) -> bool:
        """Whether rows of large contents stay that nothing refers to any more.

        They leave with the next deletion. ``KeyValue.transact`` removes them when it has committed,
        but nobody does after ``submit``.
        """
        return bool(self._writer().leaving)

    @property
    def forgets(self) -> bool:
        """Whether it is memory of a user who opted out: ``put`` raises OptedOutError."""
        return self._writer().forgets

    def need_wanted(self) -> None:
        """Raise OptedOutError if it is memory of a user who opted out, as ``put`` does."""
        self._writer().need_wanted()

    def delete(self, key: str) -> bool:
        """As ``KeyValue.delete``."""
        if self._gate is not None:
            self._gate.change()
        return self._writer().remove(packed_key(key))

    def increment(self, key: str, n: int = 1) -> int:
        """As ``KeyValue.increment``."""
        if self._gate is not None:
            self._gate.change(key)
        return increment(self._writer(), key, n)


def _held(of: Reader) -> tuple[list[Any], Callable[[], Any]]:
    """A list to clear when the function has returned, and what gives the reader until then."""
    held = [of]

    def current() -> Any:
        if not held:
            msg = "this transaction is over: use its handle only inside the function"
            raise ClosedError(msg)
        return held[0]

    return held, current


def shown(fn: Callable[[KeyValueView], T]) -> Callable[[Reader], T]:
    """``fn`` with a view that dies when it returns."""

    def closure(reader: Reader) -> T:
        held, current = _held(reader)
        try:
            return fn(KeyValueView(current))
        finally:
            held.clear()

    return closure


def lent(fn: Callable[[KeyValueTxn], T], gate: Gate | None = None) -> Callable[[Writer], T]:
    """``fn`` with a handle that dies when it returns."""
    operator = gate is not None and gate.is_operator

    def closure(writer: Writer) -> T:
        held, current = _held(writer)
        try:
            if not operator:
                return fn(KeyValueTxn(current, gate))
            with as_operator():  # as whoever asked for it, on the leader's thread
                return fn(KeyValueTxn(current, gate))
        finally:
            held.clear()

    return closure


def once(
    change: Callable[[Writer], T], key: str | None, content: bytes = b""
) -> Callable[[Writer], T]:
    """``change``, or what it returned when it was carried out under that key; None: no key."""
    if key is None:
        return change
    checked_idempotency_key(key)

    def closure(writer: Writer) -> T:
        told = writer.recall(key, content)
        if told is not None:
            return told[0]  # type: ignore[no-any-return]
        result = change(writer)
        writer.remember(key, content, result)
        return result

    return closure


def increment(writer: Writer, key: str, n: object) -> int:
    """Add ``n`` to an integer; raises what ``KeyValue.increment`` raises."""
    if isinstance(n, bool) or not isinstance(n, int):
        msg = f"the step of an increment must be an int, got {type(n).__name__}"
        raise InvalidOptionError(msg)
    packed = packed_key(key)
    entry = writer.load(packed)
    number = 0 if entry is None else entry.value()
    if isinstance(number, bool) or not isinstance(number, int):
        msg = (
            f"the value under {key[:40]!r} is a {type(number).__name__}: expected an int to "
            "increment; put one first"
        )
        raise InvalidItemError(msg)
    flags, payload = encoded(number + n)
    writer.write(packed, Entry(flags, payload, None if entry is None else entry.expires_ms))
    return number + n
