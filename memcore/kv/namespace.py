"""Entries of a namespace in a snapshot or transaction: reader, writer, idempotent requests.

``Requests`` serves everything except sessions, whose requests ``log/idempotency.py`` keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final, TypeVar

from memcore.blobs import BlobRef
from memcore.codec import keys
from memcore.codec.values import decode_json, encode_json, plain_json
from memcore.errors import (
    ClosedError,
    DuplicateRequestError,
    InternalError,
    InvalidItemError,
    InvalidOptionError,
    OptedOutError,
)
from memcore.kv.rows import (
    Ensure,
    Find,
    KvEntry,
    bounds,
    checked_content,
    checked_count,
    checked_ttl_ms,
    clear_range,
    due_rows,
    encoded,
    entry_of,
    expire_rows,
    forget,
    hold,
    packed_key,
    read_content,
    write_entry,
)
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX, IDEMPOTENCY_TTL_SECONDS
from memcore.options import checked_idempotency_key
from memcore.privacy.guards import as_operator, is_operator
from memcore.privacy.write_filter import ScopeFilter
from memcore.records import record
from memcore.rows.lifecycle import is_opted_out, mark_memory
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "REQUESTS",
    "Change",
    "EntryFilter",
    "EntryPage",
    "KeyValueTxn",
    "KeyValueView",
    "KvRequest",
    "NamespaceReader",
    "NamespaceWriter",
    "Requests",
    "deleting",
    "increment",
    "incrementing",
    "is_staged",
    "lent",
    "once",
    "opted_out",
    "putting",
    "putting_many",
    "scan_pages",
    "shown",
    "transaction_of",
]


# --- Idempotent requests: their results, in a namespace of their own ------------------------------
# A retry under the same key gets the result of the first attempt. The row is written in the
# transaction that executes the request, so it exists if and only if that was committed. It expires.

T = TypeVar("T")
REQUESTS: Final = "\x00requests"
"""The namespace; names that begin with U+0000 are refused from users."""


@record(frozen=True, slots=True)
class KvRequest:
    """A checked idempotency key, and the digest of its request."""

    packed: bytes
    content: str
    text: str


class Requests:
    """Idempotent requests about one subject in a scope.

    Args:
        find: returns the numbers of the scope and its namespace ``REQUESTS``, if they exist.
        ensure: returns the same numbers, allocating them if needed.
        now_ms: the clock for expiry.
        seed: the store's seed, which keys the digests.
        about: the subject; each subject has its own keys.
    """

    def __init__(
        self, find: Find, ensure: Ensure, *, now_ms: Callable[[], int], seed: bytes, about: str
    ) -> None:
        self._find = find
        self._ensure = ensure
        self._now_ms = now_ms
        self._seed = seed
        self._about = about

    def request(self, key: object, content: Iterable[bytes] = ()) -> KvRequest:
        """Build the request of a key whose content is these parts, in this order.

        Raises:
            InvalidOptionError: the key is not a str, is empty or is too long.
        """
        text = checked_idempotency_key(key)
        named = keys.pack_text(self._about) + keys.pack_text(text)
        digest = blake2b(named, digest_size=32, key=self._seed).hexdigest()
        parts = b"".join(len(part).to_bytes(8, "little") + part for part in content)
        told = blake2b(parts, digest_size=16, key=self._seed).hexdigest()
        return KvRequest(keys.pack_text(digest), told, text)

    def recall(self, txn: ReadTxn, request: KvRequest) -> tuple[Any] | None:
        """Return the request's result in a tuple if it was executed; None if it was not.

        Raises:
            DuplicateRequestError: the key was used for a different request.
        """
        place = self._find(txn)
        if place is None:
            return None
        key = keys.kv_prefix(*place) + request.packed
        value = txn.get_new(key)
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

    def remember(self, txn: Txn, request: KvRequest, result: Any) -> None:
        """Store the result of the request, in the transaction that executes it.

        Raises:
            InvalidItemError: the result is not JSON.
        """
        try:
            payload, flags = encode_json([request.content, result])
            if decode_json(payload, flags)[1] != result:
                raise ValueError("it would come back as something else")
        except (TypeError, ValueError, RecursionError) as exc:
            msg = f"what a request with an idempotency_key returns has to be JSON: {exc}"
            raise InvalidItemError(msg) from exc
        now_ms = self._now_ms()
        entry = KvEntry(flags, payload, now_ms + IDEMPOTENCY_TTL_SECONDS * 1000)
        key = keys.kv_prefix(*self._ensure(txn)) + request.packed
        write_entry(txn, key, entry, now_ms, [])

    def once(self, fn: Callable[[Txn], T], request: KvRequest) -> Callable[[Txn], T]:
        """Wrap ``fn`` so that it returns its first result if it was already executed."""

        def closure(txn: Txn) -> T:
            told = self.recall(txn, request)
            if told is not None:
                return told[0]  # type: ignore[no-any-return]
            result = fn(txn)
            self.remember(txn, request, result)
            return result

        return closure


# --- Entries of one namespace in one snapshot or transaction --------------------------------------

_PAGE_ROWS: Final = 256
_PAGE_BYTES: Final = 4 * 1024**2
"""A page of a scan ends at this size even if it holds fewer rows: values reach 64 MiB."""


@record(frozen=True, slots=True)
class EntryPage:
    """Visible entries from one read."""

    rows: list[tuple[str, KvEntry]]
    last: bytes | None
    """Packed key of the last row read; None at the end of the range."""


_DONE: Final = EntryPage([], None)


def _page(
    txn: ReadTxn,
    prefix: bytes,
    low: bytes,
    high: bytes | None,
    *,
    reverse: bool,
    now_ms: int,
    wanted: int,
) -> EntryPage:
    start = prefix + low
    stop = keys.after(prefix) if high is None else prefix + high
    rows: list[tuple[str, KvEntry]] = []
    size = 0
    for seen, (key, value) in enumerate(
        txn.scan(start, stop, reverse=reverse, limit=_PAGE_ROWS), 1
    ):
        packed = key[len(prefix) :]
        entry = entry_of(key, value)
        if entry.is_visible(now_ms):
            rows.append((keys.unpack_text(packed), entry))
        size += len(value)
        if seen == _PAGE_ROWS or size >= _PAGE_BYTES or len(rows) == wanted:
            return EntryPage(rows, packed)
    return EntryPage(rows, None)


def scan_pages(
    next_page: Callable[[bytes, bytes | None, int], EntryPage],
    low: bytes,
    high: bytes | None,
    *,
    reverse: bool,
    limit: int | None,
) -> Iterator[tuple[str, Any]]:
    """Yield decoded entries, page by page, until ``limit`` or the end of the range."""
    left = limit
    while left is None or left > 0:
        page = next_page(low, high, _PAGE_ROWS if left is None else min(left, _PAGE_ROWS))
        for key, entry in page.rows:
            yield key, entry.value()
        if page.last is None:
            return
        if left is not None:
            left -= len(page.rows)
        low, high = (low, page.last) if reverse else (keys.behind(page.last), high)


class NamespaceReader:
    """Entries of one namespace in one snapshot; keys and bounds are packed.

    With ``memory``, nothing is found while the user of the scope is opted out.
    """

    def __init__(
        self,
        txn: ReadTxn,
        find: Find,
        now_ms: int,
        *,
        requests: Requests | None = None,
        memory: bool = False,
    ) -> None:
        self._txn = txn
        self._requests = requests
        self._now_ms = now_ms
        self._place = find(txn)
        self._memory = memory
        self._is_hidden = memory and self.wants_no_memory
        # None: nothing was ever stored in this namespace.
        self._prefix = None if self._place is None else keys.kv_prefix(*self._place)

    @property
    def wants_no_memory(self) -> bool:
        """True if the user of the scope opted out of memory."""
        return self._place is not None and is_opted_out(self._txn, self._place[0])

    def transaction(self) -> tuple[ReadTxn, int | None]:
        """Return the transaction, and the number of the scope; see ``transaction_of``."""
        return self._txn, None if self._place is None else self._place[0]

    def veiled(self, text: str) -> str:
        """Return a text in a form that may be used in a key; see ``KeyValueView.veiled``."""
        vault = self._txn.vault
        # A reader without a place finds nothing under any key.
        return text if vault is None or self._place is None else vault.veiled(self._place[0], text)

    def load(self, packed: bytes) -> KvEntry | None:
        """Return the entry if it exists and is visible."""
        if self._prefix is None or self._is_hidden:
            return None
        key = self._prefix + packed
        value = self._txn.get(key)
        if value is None:
            return None
        entry = entry_of(key, value)
        return entry if entry.is_visible(self._now_ms) else None

    def recall(self, key: str, content: bytes) -> tuple[Any] | None:
        """Return a request's result in a tuple if it was executed; None if it was not."""
        requests = self._needed()
        return requests.recall(self._txn, requests.request(key, (content,)))

    def _needed(self) -> Requests:
        if self._requests is None:
            raise InternalError("this key/value handle was made without requests")
        return self._requests

    def content(self, packed: bytes) -> bytes | None:
        """Return the content of the entry; None if it does not exist or has no content.

        Raises:
            CorruptValueError: the content is damaged or missing.
        """
        entry = self.load(packed)
        if entry is None or entry.ref is None or self._place is None:
            return None
        return read_content(self._txn, self._place[0], entry.ref)

    def page(self, low: bytes, high: bytes | None, *, reverse: bool, wanted: int) -> EntryPage:
        """Read the first visible entries of a range, from its end if reversed."""
        if self._prefix is None or self._is_hidden:
            return _DONE
        return _page(
            self._txn,
            self._prefix,
            low,
            high,
            reverse=reverse,
            now_ms=self._now_ms,
            wanted=wanted,
        )

    def due(self, limit: int) -> list[bytes]:
        """List the first ``limit`` expiry rows that are due."""
        if self._prefix is None:
            return []
        return due_rows(self._txn, self._prefix, self._now_ms, limit)


class NamespaceWriter(NamespaceReader):
    """Entries of one namespace in one write transaction.

    With ``memory``, stored entries are visible even if the user opted out, so that they can be
    deleted.
    """

    def __init__(
        self,
        txn: Txn,
        find: Find,
        ensure: Ensure,
        now_ms: int,
        *,
        seed: int | None = None,
        requests: Requests | None = None,
        memory: bool = False,
    ) -> None:
        super().__init__(txn, find, now_ms, requests=requests)
        self._memory = memory
        self._txn: Txn = txn
        self._ensure = ensure
        self._seed = seed
        self.leaving: list[bytes] = []
        """Keys of the ``REMOVAL`` rows of released contents that are yet to be removed."""

    def put(
        self,
        packed: bytes,
        flags: int,
        payload: bytes,
        ttl_ms: int | None,
        content: bytes | BlobRef | None = None,
    ) -> None:
        """Write an entry that expires in ``ttl_ms``; acquires a reference to its content.

        Raises:
            StagedBlobLost: the content was staged, and has been removed since.
        """
        expires_ms = None if ttl_ms is None else self._now_ms + ttl_ms
        ref = None
        if content is not None:
            ref = hold(self._txn, self._ensured()[0], content, self._seed)
        self.write(packed, KvEntry(flags, payload, expires_ms, ref))

    def remember(self, key: str, content: bytes, result: Any) -> None:
        """Store the result of a request that this transaction executes."""
        requests = self._needed()
        requests.remember(self._txn, requests.request(key, (content,)), result)

    def write(self, packed: bytes, entry: KvEntry) -> None:
        """Write an entry and its expiry row; the caller has acquired its content.

        Raises:
            OptedOutError: it is memory, and the user opted out.
        """
        place = self._ensured()
        self.need_wanted()
        if self._memory:
            mark_memory(self._txn, *place)
        key = keys.kv_prefix(*place) + packed
        write_entry(self._txn, key, entry, self._now_ms, self.leaving)

    @property
    def forgets(self) -> bool:
        """True if this is memory of a user who opted out, so that ``put`` is refused."""
        return self._memory and is_opted_out(self._txn, self._ensured()[0])

    def need_wanted(self) -> None:
        """Raise OptedOutError if this is memory of a user who opted out."""
        if self.forgets:
            raise opted_out()

    def veiled(self, text: str) -> str:
        """As ``NamespaceReader.veiled``; creates the namespace."""
        self._ensured()
        return super().veiled(text)

    def _ensured(self) -> tuple[int, int]:
        if self._place is None:
            self._place = self._ensure(self._txn)
            self._prefix = keys.kv_prefix(*self._place)
        return self._place

    def remove(self, packed: bytes) -> bool:
        """Remove an entry; returns whether it was visible."""
        if self._prefix is None:
            return False
        visible = forget(self._txn, self._prefix + packed, self._now_ms, self.leaving)
        if visible is None:
            return False
        self._txn.delete(self._prefix + packed)
        return visible

    def clear(self, low: bytes, high: bytes | None) -> tuple[int, bytes | None]:
        """Remove a range's first piece; returns the visible count and the next piece's start."""
        if self._prefix is None:
            return 0, None
        stop = keys.after(self._prefix) if high is None else self._prefix + high
        start = self._prefix + low
        visible, following = clear_range(self._txn, start, stop, self._now_ms, self.leaving)
        return visible, following and following[len(self._prefix) :]

    def expire(self, due: list[bytes]) -> tuple[int, list[bytes]]:
        """Remove a piece of these expiry rows' entries, if they are still due.

        Returns the number of entries removed, and the expiry rows of the next piece.
        """
        return expire_rows(self._txn, due, self._now_ms, self.leaving)


# --- Content filter of entries: guarded and redacted before encoding ------------------------------


class EntryFilter:
    """Content filter for the entries of one namespace."""

    __slots__ = ("_is_named", "_namespace", "_scope_filter")

    def __init__(self, scope_filter: ScopeFilter, namespace: str) -> None:
        self._scope_filter = scope_filter
        self._namespace = namespace
        self._is_named = False
        """True once the name of the namespace has been checked."""

    @property
    def is_operator(self) -> bool:
        """True if the caller is an operator."""
        return is_operator()

    def value(self, value: Any, key: Any) -> Any:
        """Filter a value that is put under ``key``.

        Values that are not JSON are rejected later, by the encoder.

        Raises:
            BlockedError: a guard refuses it, or its key or namespace contains a finding.
        """
        self._name(key)
        under = key if isinstance(key, str) else None
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._scope_filter.bytes(bytes(value), "kv", name=self._namespace, under=under)
        with suppress(TypeError, ValueError, RecursionError):
            value = plain_json(value)
        return self._scope_filter.value(value, "kv", name=self._namespace, under=under)

    def values(self, entries: Any) -> Any:
        """Filter the values of a mapping; raises what ``value`` raises."""
        if not isinstance(entries, Mapping):
            return entries
        return {key: self.value(value, key) for key, value in entries.items()}

    def content(self, content: Any, key: Any) -> Any:
        """Filter a content that is put under ``key``; raises what ``value`` raises."""
        if isinstance(content, BlobRef) or not isinstance(content, bytes | bytearray | memoryview):
            return content
        under = key if isinstance(key, str) else None
        return self._scope_filter.bytes(bytes(content), "kv", name=self._namespace, under=under)

    def change(self, key: Any = None) -> None:
        """Run the guards on a change without a value, such as a deletion.

        ``key`` is given if the change may create that entry. Raises what ``value`` raises.
        """
        if key is not None:
            self._name(key)
        self._scope_filter.judge(None, "kv", name=self._namespace)

    def _name(self, key: Any) -> None:
        if not self._is_named:
            self._scope_filter.name(self._namespace, "name of a namespace")
            self._is_named = True
        self._scope_filter.name(key, "key of an entry")


# --- Views and handles inside ``read`` and ``transact``: closed when the function returns


class KeyValueView:
    """Several reads of one snapshot: the argument of a function passed to ``read``.

    Every method raises ClosedError once the function has returned.
    """

    def __init__(self, reader: Callable[[], NamespaceReader]) -> None:
        self._reader = reader

    def get(self, key: str, default: Any = None) -> Any:
        """As ``KeyValue.get``."""
        entry = self._reader().load(packed_key(key))
        return default if entry is None else entry.value()

    def content(self, key: str) -> bytes | None:
        """As ``KeyValue.content``."""
        return self._reader().content(packed_key(key))

    def content_size(self, key: str) -> int | None:
        """Size of the entry's content in bytes, without reading it; None if there is none."""
        entry = self._reader().load(packed_key(key))
        return None if entry is None or entry.ref is None else entry.ref.size

    @property
    def wants_no_memory(self) -> bool:
        """True if the user opted out of memory (``Scope.opt_out_memory``)."""
        return self._reader().wants_no_memory

    def veiled(self, text: str) -> str:
        """Return a text from a content in a form for use in a key, since keys are not encrypted.

        Unchanged; in an encrypted file, a digest keyed by a secret of this scope in the key file.
        """
        return self._reader().veiled(text)

    def recall(self, idempotency_key: str, content: bytes = b"") -> tuple[Any] | None:
        """Return the result that ``remember`` stored under the key, in a tuple; None if none.

        Raises:
            DuplicateRequestError: the key was used with different ``content``.
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
        """As ``KeyValue.scan``; in a transaction, its writes between two pages are visible."""
        self._reader()
        low, high = bounds(start, stop, prefix)

        def next_page(low: bytes, high: bytes | None, wanted: int) -> EntryPage:
            return self._reader().page(low, high, reverse=reverse, wanted=wanted)

        count = checked_count(limit, "limit")
        return scan_pages(next_page, low, high, reverse=reverse, limit=count)


class KeyValueTxn(KeyValueView):
    """Several keys in one transaction: the argument of a function passed to ``transact``.

    Reads see the transaction's own writes. Every method raises ClosedError once the function has
    returned.
    """

    def __init__(
        self, writer: Callable[[], NamespaceWriter], gate: EntryFilter | None = None
    ) -> None:
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
        """As ``KeyValue.put``; a content above 192 KiB must be staged before the transaction.

        Raises StagedBlobLost if the staged content has been removed, so this must be the first
        write of ``fn``; the caller of ``transact`` then stages the content again.
        """
        if self._gate is not None:
            value, content = self._gate.value(value, key), self._gate.content(content, key)
        bytes_, ttl_ms = checked_content(content), checked_ttl_ms(ttl_seconds)
        if isinstance(bytes_, bytes) and len(bytes_) > BLOB_INLINE_COMMIT_BYTES_MAX:
            msg = (
                f"a content of {len(bytes_)} bytes is too large for this transaction: give what "
                "stage() made of it"
            )
            raise InvalidOptionError(msg)
        self._writer().put(packed_key(key), *encoded(value), ttl_ms, bytes_)

    def remember(self, idempotency_key: str, result: Any, content: bytes = b"") -> None:
        """Store the result of a request for retries: JSON, kept for a week.

        Raises:
            InvalidItemError: the result is not JSON.
        """
        self._writer().remember(idempotency_key, content, result)

    @property
    def leaves_rows(self) -> bool:
        """True if this transaction leaves rows of large contents that are no longer referenced.

        The next deletion removes them. ``KeyValue.transact`` does so after its commit; ``submit``
        does not.
        """
        return bool(self._writer().leaving)

    @property
    def forgets(self) -> bool:
        """True if this is memory of a user who opted out, so that ``put`` raises OptedOutError."""
        return self._writer().forgets

    def need_wanted(self) -> None:
        """Raise OptedOutError if this is memory of a user who opted out, as ``put`` does."""
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


def transaction_of(view: KeyValueView) -> tuple[Any, int | None]:
    """Return the transaction of a view and its scope, for rows that are derived from entries.

    It is a ``ReadTxn``, or of a ``KeyValueTxn`` a ``Txn``; the scope is None as long as nothing is
    stored in the namespace.
    """
    return view._reader().transaction()  # noqa: SLF001 - the module's own


def _held(of: NamespaceReader) -> tuple[list[Any], Callable[[], Any]]:
    """Return a list to clear once the function has returned, and a getter of the reader."""
    held = [of]

    def current() -> Any:
        if not held:
            msg = "this transaction is over: use its handle only inside the function"
            raise ClosedError(msg)
        return held[0]

    return held, current


def shown(fn: Callable[[KeyValueView], T]) -> Callable[[NamespaceReader], T]:
    """Wrap ``fn`` to be called with a view that is closed when it returns."""

    def closure(reader: NamespaceReader) -> T:
        held, current = _held(reader)
        try:
            return fn(KeyValueView(current))
        finally:
            held.clear()

    return closure


def lent(
    fn: Callable[[KeyValueTxn], T], gate: EntryFilter | None = None
) -> Callable[[NamespaceWriter], T]:
    """Wrap ``fn`` to be called with a handle that is closed when it returns."""
    operator = gate is not None and gate.is_operator

    def closure(writer: NamespaceWriter) -> T:
        held, current = _held(writer)
        try:
            if not operator:
                return fn(KeyValueTxn(current, gate))
            with as_operator():  # the submitter's rights, on the group commit leader's thread
                return fn(KeyValueTxn(current, gate))
        finally:
            held.clear()

    return closure


def once(
    change: Callable[[NamespaceWriter], T], key: str | None, content: bytes = b""
) -> Callable[[NamespaceWriter], T]:
    """Make ``change`` idempotent under a key: a retry gets the first result. None: no key."""
    if key is None:
        return change
    checked_idempotency_key(key)

    def closure(writer: NamespaceWriter) -> T:
        told = writer.recall(key, content)
        if told is not None:
            return told[0]  # type: ignore[no-any-return]
        result = change(writer)
        writer.remember(key, content, result)
        return result

    return closure


def opted_out() -> OptedOutError:
    """Return the error of a write to the memory of a user who opted out."""
    return OptedOutError(
        "the user opted out of memory, so nothing was stored; opt_in_memory() of the scope takes "
        "that back"
    )


def increment(writer: NamespaceWriter, key: str, n: object) -> int:
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
    writer.write(packed, KvEntry(flags, payload, None if entry is None else entry.expires_ms))
    return number + n


# --- Single changes of a namespace: checked and encoded first, then run in a transaction ----------
# Shared by the synchronous and the asynchronous handle.


Change = Callable[[NamespaceWriter], T]


def is_staged(content: object) -> bool:
    """Return whether a content is so large that it is stored ahead, in separate commits."""
    size = content.nbytes if isinstance(content, memoryview) else 0
    if isinstance(content, bytes | bytearray):
        size = len(content)
    return size > BLOB_INLINE_COMMIT_BYTES_MAX


def putting(
    key: str, value: Any, *, ttl_seconds: float | None, content: bytes | BlobRef | None
) -> Change[None]:
    """Build the change of ``KeyValue.put``; raises what ``put`` raises for its arguments."""
    packed, (flags, payload) = packed_key(key), encoded(value)
    ttl_ms, held = checked_ttl_ms(ttl_seconds), checked_content(content)
    return lambda writer: writer.put(packed, flags, payload, ttl_ms, held)


def putting_many(entries: Mapping[str, Any], *, ttl_seconds: float | None) -> Change[None] | None:
    """Build the change of ``KeyValue.put_many``; None if there are no entries."""
    given: object = entries
    if not isinstance(given, Mapping):
        msg = f"put_many takes a mapping of keys to values, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    rows = [(packed_key(key), *encoded(value)) for key, value in entries.items()]
    ttl_ms = checked_ttl_ms(ttl_seconds)

    def change(writer: NamespaceWriter) -> None:
        for packed, flags, payload in rows:
            writer.put(packed, flags, payload, ttl_ms)

    return change if rows else None


def deleting(key: str) -> Change[bool]:
    """Build the change of ``KeyValue.delete``."""
    packed = packed_key(key)
    return lambda writer: writer.remove(packed)


def incrementing(key: str, n: int, idempotency_key: str | None = None) -> Change[int]:
    """Build the change of ``KeyValue.increment``."""
    try:
        said = b"" if idempotency_key is None else repr((key, n)).encode("utf-8", "surrogatepass")
    except ValueError as exc:  # Python writes no integer of that many digits
        msg = f"the step of an increment is too large: {exc}"
        raise InvalidItemError(msg) from exc
    return once(lambda writer: increment(writer, key, n), idempotency_key, said)
