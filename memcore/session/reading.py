"""Reading a session: take the log's lock, begin the snapshot, catch up, collect; decode outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from memcore import blobs
from memcore._fast import classify
from memcore.codec import FLAG_BLOB
from memcore.errors import CorruptValueError, NotFoundError
from memcore.formats.binding import SECOND
from memcore.limits import ITEMS_PAGE
from memcore.log import Head, SessionLog, decode_item
from memcore.log.history import Recent
from memcore.log.item import split_body
from memcore.model import CallRecord, Item, OpenCall, View
from memcore.session.address import Address
from memcore.session.uses import spans_of
from memcore.store.base import ReadTxn
from memcore.views import view_chain

__all__ = ["Reading"]

T = TypeVar("T")
D = TypeVar("D")
Found = tuple[int, bytes, int, int, bytes | None]
"""``(seq, body, flags, tokens, content of its blob)``: what an item is decoded from."""


CALL_CLASSES: Final = (*range(10), 0x40, 0x46)
"""Every class of call id that _fast.classify yields; 0x40 marks calls without an id."""


class Reading:
    """All reads of one session."""

    __slots__ = ("_address",)

    def __init__(self, address: Address) -> None:
        self._address = address

    def run(self, fn: Callable[[SessionLog, ReadTxn], T], default: D) -> T | D:
        """Run ``fn`` on the caught-up log under its lock; ``default`` if there is no session."""
        address = self._address
        address.touch()
        for _ in range(2):
            log = address.resolve()
            if log is None:
                break
            found: list[T] = []
            address.backing.read_locked(
                log,
                lambda txn, log=log, found=found: self._caught_up(log, txn, fn, found),  # type: ignore[misc]
            )
            if found:
                return found[0]
            address.forget()  # deleted since; its name may stand for a new session
        else:
            address.backing.store.read(address.need_gone)
        return default

    def _caught_up(
        self,
        log: SessionLog,
        txn: ReadTxn,
        fn: Callable[[SessionLog, ReadTxn], T],
        found: list[T],
    ) -> None:
        if log.catch_up(txn):
            self._address.check_head(head_of(log))
            found.append(fn(log, txn))

    def exists(self) -> bool:
        """Whether there is a session; to look is no use of the handle: what is due stays due.

        One whose head is damaged is there: whoever reads it meets the error, and may recover it.
        """
        address = self._address
        try:
            if address.due is None:
                return self.run(lambda *_: True, default=False)
            head = address.peek()
        except CorruptValueError:
            return True
        if head is not None:
            address.check_head(head)
        return head is not None

    # --- items ------------------------------------------------------------------------------------

    def collect(
        self, log: SessionLog, txn: ReadTxn, start: int, stop: int, *, by: Recent | None = None
    ) -> list[Found | CorruptValueError]:
        """The rows at positions ``start .. stop`` with their blobs; damaged ones as errors.

        ``by`` is a ledger that holds these positions, if there is one at hand.
        """
        found: list[Found | CorruptValueError] = []
        if start >= stop:
            return found
        recent = by or log.covering(txn, head_of(log), start)
        tokens = recent.ledger.tokens_of(start - recent.offset, stop - recent.offset)
        for row in log.rows(txn, start, stop):
            if isinstance(row, CorruptValueError):
                found.append(row)
                continue
            position, seq, flags, body = row
            payload = None
            if flags & FLAG_BLOB:
                try:
                    payload = blobs.read(txn, log.scope, blobs.BlobRef.unpack(split_body(body)[3]))
                except (NotFoundError, CorruptValueError) as exc:
                    found.append(_damaged(seq, exc))
                    continue
            found.append((seq, body, flags, tokens[position - start], payload))
        return found

    def page(self, start: int, stop: int | None, *, limit: int) -> tuple[list[Any], int | None]:
        """Rows with ``start <= seq < stop``, at most ``limit``; and the seq to go on from."""

        def collect(log: SessionLog, txn: ReadTxn) -> tuple[list[Any], int | None]:
            history = log.history
            first = history.position_from(start)
            last = history.count if stop is None else history.position_from(stop)
            end = min(first + limit, last)
            rows = self.collect(log, txn, first, end)
            return rows, (history.seq_at(end) if end < last else None)

        nothing: tuple[list[Any], int | None] = ([], None)
        return self.run(collect, nothing)

    def items(self, start: int, stop: int | None, *, skip_corrupt: bool) -> Iterator[Item]:
        """Live items in seq order, a page a read transaction."""
        following: int | None = start
        while following is not None:
            rows, following = self.page(following, stop, limit=ITEMS_PAGE)
            self._note(rows)
            yield from decoded(rows, skip_corrupt=skip_corrupt)

    def tail(self, count: int, *, skip_corrupt: bool) -> list[Item]:
        """The last ``count`` live items, oldest first."""

        def collect(log: SessionLog, txn: ReadTxn) -> list[Any]:
            end = log.history.count
            return self.collect(log, txn, max(end - count, 0), end)

        rows: list[Any] = self.run(collect, [])
        self._note(rows)
        return list(decoded(rows, skip_corrupt=skip_corrupt))

    def before(self, stop: int | None, count: int) -> list[Item]:
        """The last ``count`` live items before seq ``stop`` (None: of all), oldest first."""

        def collect(log: SessionLog, txn: ReadTxn) -> list[Any]:
            history = log.history
            end = history.count if stop is None else history.position_from(stop)
            return self.collect(log, txn, max(end - count, 0), end)

        return list(decoded(self.run(collect, [])))

    def get(self, seq: int) -> Item:
        """One live item."""

        def collect(log: SessionLog, txn: ReadTxn) -> list[Any]:
            position = log.history.position_of(seq)
            return [] if position is None else self.collect(log, txn, position, position + 1)

        rows: list[Any] = self.run(collect, [])
        if not rows:
            msg = f"session {self._address.name!r} has no live item {seq}"
            raise NotFoundError(msg)
        self._note(rows)
        return next(decoded(rows, skip_corrupt=False))

    def _note(self, rows: list[Any]) -> None:
        """Count a reading of these rows, if that is wanted."""
        uses, log = self._address.uses, self._address.log
        if uses is not None and log is not None:
            spans = spans_of(row[0] for row in rows if type(row) is tuple)
            uses.note(log.session, spans, self._address.backing.now_ms())

    # --- calls ------------------------------------------------------------------------------------

    def find_call(self, call_id: str) -> CallRecord:
        """Where a call was made and answered; the latest with this id."""

        def find(log: SessionLog, txn: ReadTxn) -> CallRecord | None:
            best: tuple[int, list[int], bool] | None = None
            ledger = log.full(txn, head_of(log)).ledger
            for cls in CALL_CLASSES:
                found = ledger.find_call(cls, call_id, self._address.backing.seed)
                if found is not None and (best is None or found[0] > best[0]):
                    best = found
            if best is None:
                return None
            seq_at = log.history.seq_at
            return CallRecord(call_id, seq_at(best[0]), tuple(map(seq_at, best[1])), best[2])

        record = self.run(find, None)
        if record is None:
            msg = f"session {self._address.name!r} has no call {call_id!r} in its live history"
            raise NotFoundError(msg)
        return record

    def open_calls(self) -> list[tuple[tuple[int, str], OpenCall]]:
        """Calls that wait for a result, oldest first, each with its (class, id)."""

        def collect(log: SessionLog, txn: ReadTxn) -> list[Any]:
            head = head_of(log)
            recent = log.recent(txn, head)
            if recent.offset and recent.ledger.open_count != head.open_calls:
                recent = log.full(txn, head)
            found = []
            item: Item | None = None
            for at, ordinal in recent.ledger.open_calls():
                seq = log.history.seq_at(recent.offset + at)
                if item is None or item.seq != seq:
                    rows = self.collect(log, txn, recent.offset + at, recent.offset + at + 1)
                    item = next(decoded(rows))
                keys = [key for key in classify(item.message)[1] if not key[0] & SECOND]
                key = keys[ordinal]
                found.append((key, OpenCall(key[1], _name_of(item.message, key), seq)))
            return found

        return self.run(collect, [])

    def view(self, wanted: View | int | None) -> View | None:
        """A view that applies to the live history; None: the newest, 0: none.

        Raises:
            NotFoundError: there is none like ``wanted``.
        """

        def find(log: SessionLog, txn: ReadTxn) -> View | None:
            stored = log.current_view(txn) if wanted is None else log.chosen_view(txn, wanted)
            return None if stored is None else stored.view

        return self.run(find, None)

    def pins(self) -> int:
        """The seq of the last leading item that is pinned, 0 if none is."""

        def find(log: SessionLog, txn: ReadTxn) -> int:
            count = log.policy.pin_count(log.full(txn, head_of(log)).ledger)
            return log.history.seq_at(count - 1) if count else 0

        return self.run(find, 0)

    def views(self) -> list[View]:
        """All view records of the chain, oldest first, whether they apply now or not."""

        def collect(log: SessionLog, txn: ReadTxn) -> list[View]:
            head = head_of(log)
            chain = view_chain(txn, log.scope, head.view_session, head.view_number)
            return [stored.view for stored in chain][::-1]

        return self.run(collect, [])


def head_of(log: SessionLog) -> Head:
    """The head of a log that has caught up."""
    assert log.head is not None  # noqa: S101 - what catch_up promises
    return log.head


def decoded(rows: list[Any], *, skip_corrupt: bool = False) -> Iterator[Item]:
    """Items of collected rows.

    Raises:
        CorruptValueError: a row was damaged and ``skip_corrupt`` is false.
    """
    for found in rows:
        if type(found) is tuple:
            yield decode_item(*found)
        elif not skip_corrupt:
            raise found


def _damaged(seq: int, cause: Exception) -> CorruptValueError:
    error = CorruptValueError(f"the large content of item {seq} is damaged: {cause}", key=b"")
    error.__cause__ = cause
    return error


def _name_of(message: dict[str, Any], key: tuple[int, str]) -> str | None:
    """The function's name of a call, in any wire format."""
    candidates: list[Any] = [message, message.get("data"), message.get("kwargs")]
    for body in list(candidates):
        for field in ("tool_calls", "content", "parts") if isinstance(body, dict) else ():
            value = body.get(field)
            candidates += value if isinstance(value, list) else []
    for call in candidates:
        if not isinstance(call, dict):
            continue
        inner = call.get("function") or call.get("functionCall") or call
        name = inner.get("name") if isinstance(inner, dict) else None
        if isinstance(name, str) and key[1] in (call.get("id"), call.get("call_id"), name):
            return name
    return None
