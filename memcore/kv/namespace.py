"""The entries of one namespace in one snapshot or transaction: ``Reader``, ``Writer``, pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from memcore import keys
from memcore.blobs import BlobRef
from memcore.errors import InternalError, OptedOutError
from memcore.held import is_opted_out, mark_memory
from memcore.kv.content import hold, read_content
from memcore.kv.entries import (
    Ensure,
    Entry,
    Find,
    clear_range,
    due_rows,
    entry_of,
    expire_rows,
    forget,
    write_entry,
)
from memcore.kv.requests import Requests
from memcore.store.base import ReadTxn, Txn

__all__ = ["Page", "Reader", "Writer", "scan_pages"]

_PAGE_ROWS: Final = 256
_PAGE_BYTES: Final = 4 * 1024**2
"""A page of a scan ends here even if it holds fewer rows: values reach 64 MiB."""


@dataclass(frozen=True, slots=True)
class Page:
    """Visible entries of one read."""

    rows: list[tuple[str, Entry]]
    last: bytes | None
    """Packed key of the last row looked at; None if the range is done."""


_DONE: Final = Page([], None)


def _page(
    txn: ReadTxn,
    prefix: bytes,
    low: bytes,
    high: bytes | None,
    *,
    reverse: bool,
    now_ms: int,
    wanted: int,
) -> Page:
    start = prefix + low
    stop = keys.after(prefix) if high is None else prefix + high
    rows: list[tuple[str, Entry]] = []
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
            return Page(rows, packed)
    return Page(rows, None)


def scan_pages(
    next_page: Callable[[bytes, bytes | None, int], Page],
    low: bytes,
    high: bytes | None,
    *,
    reverse: bool,
    limit: int | None,
) -> Iterator[tuple[str, Any]]:
    """Decoded entries, one page after the other, until ``limit`` or the end of the range."""
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


class Reader:
    """The entries of one namespace in one snapshot; keys and bounds are packed.

    One of ``memory`` finds nothing while the user of the scope wants none.
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
        """Whether the user of the scope opted out of memory."""
        return self._place is not None and is_opted_out(self._txn, self._place[0])

    def veiled(self, text: str) -> str:
        """A text for a place in a key; see ``KeyValueView.veiled``."""
        vault = self._txn.vault
        # A reader without a place finds nothing under any key.
        return text if vault is None or self._place is None else vault.veiled(self._place[0], text)

    def load(self, packed: bytes) -> Entry | None:
        """The entry if it is there and visible."""
        if self._prefix is None or self._is_hidden:
            return None
        key = self._prefix + packed
        value = self._txn.get(key)
        if value is None:
            return None
        entry = entry_of(key, value)
        return entry if entry.is_visible(self._now_ms) else None

    def recall(self, key: str, content: bytes) -> tuple[Any] | None:
        """What a request returned; None if it was not carried out yet."""
        requests = self._needed()
        return requests.recall(self._txn, requests.request(key, (content,)))

    def _needed(self) -> Requests:
        if self._requests is None:
            raise InternalError("this key/value handle was made without requests")
        return self._requests

    def content(self, packed: bytes) -> bytes | None:
        """The content of the entry, None if it is not there or has none.

        Raises:
            CorruptValueError: the content is damaged or missing.
        """
        entry = self.load(packed)
        if entry is None or entry.ref is None or self._place is None:
            return None
        return read_content(self._txn, self._place[0], entry.ref)

    def page(self, low: bytes, high: bytes | None, *, reverse: bool, wanted: int) -> Page:
        """The first visible entries of a range, from its end if reversed."""
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
        """Up to ``limit`` expiry rows whose time has come."""
        if self._prefix is None:
            return []
        return due_rows(self._txn, self._prefix, self._now_ms, limit)


class Writer(Reader):
    """The entries of one namespace in one write transaction.

    One of ``memory`` sees what is there even if the user wants none, so that it can be deleted.
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
        """Rows that say which contents were let go and are still to be removed, piece by piece."""

    def put(
        self,
        packed: bytes,
        flags: int,
        payload: bytes,
        ttl_ms: int | None,
        content: bytes | BlobRef | None = None,
    ) -> None:
        """Write an entry that expires in ``ttl_ms``; of its content it takes hold.

        Raises:
            StagedBlobLost: the content was staged, and is gone.
        """
        expires_ms = None if ttl_ms is None else self._now_ms + ttl_ms
        ref = None
        if content is not None:
            ref = hold(self._txn, self._ensured()[0], content, self._seed)
        self.write(packed, Entry(flags, payload, expires_ms, ref))

    def remember(self, key: str, content: bytes, result: Any) -> None:
        """Keep what a request returns that this transaction carries out."""
        requests = self._needed()
        requests.remember(self._txn, requests.request(key, (content,)), result)

    def write(self, packed: bytes, entry: Entry) -> None:
        """Write an entry with its expiry row; of its content the caller has taken hold.

        Raises:
            OptedOutError: it is memory, and the user wants none.
        """
        place = self._ensured()
        self.need_wanted()
        if self._memory:
            mark_memory(self._txn, *place)
        key = keys.kv_prefix(*place) + packed
        write_entry(self._txn, key, entry, self._now_ms, self.leaving)

    @property
    def forgets(self) -> bool:
        """Whether it is memory of a user who wants none: what is put is refused."""
        return self._memory and is_opted_out(self._txn, self._ensured()[0])

    def need_wanted(self) -> None:
        """Refuse to store what its user does not want to be remembered."""
        if self.forgets:
            raise OptedOutError(
                "the user opted out of memory, so nothing was stored; opt_in_memory() of the scope "
                "takes that back"
            )

    def veiled(self, text: str) -> str:
        """As a reader's; the namespace is there from then on."""
        self._ensured()
        return super().veiled(text)

    def _ensured(self) -> tuple[int, int]:
        if self._place is None:
            self._place = self._ensure(self._txn)
            self._prefix = keys.kv_prefix(*self._place)
        return self._place

    def remove(self, packed: bytes) -> bool:
        """Remove an entry; whether it was visible."""
        if self._prefix is None:
            return False
        visible = forget(self._txn, self._prefix + packed, self._now_ms, self.leaving)
        if visible is None:
            return False
        self._txn.delete(self._prefix + packed)
        return visible

    def clear(self, low: bytes, high: bytes | None) -> tuple[int, bytes | None]:
        """Remove the first piece of a range; how many were visible, and where the next starts."""
        if self._prefix is None:
            return 0, None
        stop = keys.after(self._prefix) if high is None else self._prefix + high
        start = self._prefix + low
        visible, following = clear_range(self._txn, start, stop, self._now_ms, self.leaving)
        return visible, following and following[len(self._prefix) :]

    def expire(self, due: list[bytes]) -> tuple[int, list[bytes]]:
        """Remove the entries behind a piece of these expiry rows if they are still due.

        Returns how many, and the expiry rows of the next piece.
        """
        return expire_rows(self._txn, due, self._now_ms, self.leaving)
