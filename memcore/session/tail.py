"""Tail of a history: raw reads, pop, compare-and-replace; replacement of expired sessions.

Reads here use no ledger, so they tolerate damage that contexts do not, and decode only messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

from memcore import blobs
from memcore._fast import Ledger
from memcore.codec.values import FLAG_BLOB
from memcore.errors import CorruptValueError, NotFoundError
from memcore.log import CachedSession, Head, History, Prepared, SessionTxn
from memcore.log.history import StoredRow, read_rows
from memcore.log.idempotency import carry_requests
from memcore.log.read import again
from memcore.log.session_txn import revision_conflict
from memcore.model import ItemKind, Message
from memcore.rows import names
from memcore.rows.head import FLAG_LEASED
from memcore.rows.item import decode_message, split_body, unsalted
from memcore.rows.lifecycle import (
    has_quarantine,
    is_held,
    move_terms,
    packed_held,
    read_lease,
    write_lease,
)
from memcore.rows.usage import inherit_usage
from memcore.session.change import Change, Unchanged
from memcore.session.delete import remove_nameless
from memcore.session.engine import OFFLOADED, SessionRef, move_uses
from memcore.session.memory import move_items
from memcore.session.read import head_of, read_log
from memcore.state import inherit
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "ExpireItems",
    "Overwrite",
    "RawItem",
    "Renewal",
    "Renewed",
    "ReplaceTail",
    "Seen",
    "Tail",
    "TakeLast",
    "encode_again",
    "mark_of",
    "marked",
    "message_of",
    "read_tail",
    "renew",
    "seen_now",
    "with_texts",
]


# --- Renewal: replace a session by one that keeps some items and no trace of the rest -------------
# A session's history is never rewritten, so the only way to drop its beginning is to replace the
# session. The replacement inherits the name, the revision, the state, the requests carried out, the
# token calibration and the access counts; not the old checkpoints and views, which refer to items
# that are gone.


class Renewal(NamedTuple):
    """Replacement of a session by another one."""

    old: int
    """The number of the session being replaced."""
    new: int
    revision: int
    """Revision of the old session; the new one continues with the next."""
    kept: Sequence[Prepared]
    """The new session's items, with seqs from 1; ``was`` is each one's old seq."""


Renewed = Callable[[Txn, Renewal], None]
"""Called inside a renewal's transaction, for code that stores seqs elsewhere to remap them."""


def renew(
    txn: Txn,
    ref: SessionRef,
    draft: SessionTxn,
    kept: Sequence[Prepared],
    renewed: Renewed | None = None,
) -> list[bytes]:
    """Replace the draft's session by a session of the ``kept`` items.

    Args:
        txn: the draft's transaction.
        ref: the session's reference.
        draft: the draft of the session being replaced.
        kept: the items of its replacement.
        renewed: called once the replacement exists.

    Returns:
        The rest of the old session to be removed, for ``resume_removals``; its forks keep what
        they share with it.
    """
    engine, old = ref.engine, draft.head
    scope, number = draft.log.place
    draft.flush()
    _carry_originals(draft, kept)
    # Later changes of this transaction must not find the draft of a session that is going.
    engine.drafts.close(txn, draft)
    names.drop_session_name(txn, scope, ref.name)
    session = names.new_session(txn, scope, ref.name)
    head = Head(policy=old.policy, counter=old.counter, now_ms=old.created_ms)
    # The revision goes on: if it began anew, it could come to equal one that somebody expects.
    head.revision = old.revision
    held = read_lease(txn, scope, number) if old.leased else None
    if held is not None:  # the lease's owner keeps it
        head.flags |= FLAG_LEASED
        write_lease(txn, scope, session, held)
    fresh = engine.drafts.create(txn, scope, session, head)
    if kept:
        fresh.append(kept, orphans="keep")
    fresh.finish(now_ms=engine.now_ms())
    # All that is carried over is read from the old rows, so the removal comes last.
    inherit(txn, scope, number, session, seq=head.next_seq)
    # Factors stay; an anchor names a seq and a view of the old session.
    inherit_usage(txn, scope, number, session, at=0)
    move_terms(txn, scope, number, session)
    moved = {item.was: seq for seq, item in enumerate(kept, 1) if item.was}
    carry_requests(txn, scope, number, session, moved=moved, now_ms=engine.now_ms())
    move_uses(txn, scope, number, session, moved=moved)
    if renewed is not None:
        renewed(txn, Renewal(number, session, old.revision, kept))
    # Before the removal: it takes what then still rests on the old session from the memories.
    move_items(txn, engine, (scope, number), session, moved=moved)
    rest = remove_nameless(txn, engine, scope, number)
    txn.on_commit(lambda: ref.settle(scope, session))
    return rest


def _carry_originals(draft: SessionTxn, kept: Sequence[Prepared]) -> None:
    """Let quarantined originals go along with their items: the old session's are removed."""
    txn, scope = draft.txn, draft.log.scope
    if not has_quarantine(txn, scope):
        return
    history = History(draft.head.all_segments(txn, scope))
    for item in kept:
        owner = history.owner_of(item.was) if item.was and item.held is None else None
        position = history.position_of(item.was)
        if owner is None or position is None:
            continue
        item.held = packed_held(txn, scope, owner, item.was)
        if item.held is not None:
            # Budgets are cut by the original's tokens, as it may be released at any time.
            item.tokens = max(item.tokens, draft.tokens_at(position))


# --- The end of a session's history: raw reads, pop, replace if unchanged -------------------------

RawItem: TypeAlias = tuple[int, int, bytes, bytes | None]
"""``(seq, flags, body, content of its blob)`` of a live item's row."""
Check: TypeAlias = Callable[[Message], None]
_EVENT: Final = bytes((ItemKind.EVENT,))
_OFFLOADED: Final = f'"{OFFLOADED}":'.encode()
"""Member of the meta of an event that holds the texts of an oversized item."""
_LOOK: Final = 8
_MARK_BYTES: Final = 16
_PAGE: Final = 256


class Tail(NamedTuple):
    """The last items of a history as of one snapshot."""

    place: tuple[int, int] | None
    """``(scope, session)``; None: there is no session."""
    rows: list[RawItem | CorruptValueError]
    """Oldest first, events included; errors in place of damaged ones."""
    complete: bool
    """True if only expired items precede them."""
    expired: int = 0
    """Number of items at the beginning of the history left out because of their age."""
    live: int = 0
    """Number of live items, without the expired ones."""


class Seen(NamedTuple):
    """A session as last seen by a caller."""

    session: int = 0
    """Its number; 0: it did not exist."""
    revision: int = 0


def read_tail(ref: SessionRef, count: int | None = None, *, since_us: int = 0) -> Tail:
    """Read the last ``count`` live items (None: all), to be decoded with ``message_of``.

    Args:
        ref: the session.
        count: at most this many.
        since_us: leave out items at the beginning older than this time, in microseconds since
            1970; a call stays as long as its result.
    """
    return read_log(ref, _collect_tail, Tail(None, [], complete=True), count, since_us)


def _collect_tail(log: CachedSession, txn: ReadTxn, count: int | None, since_us: int) -> Tail:
    stop, scope, first = log.history.count, log.scope, 0
    if since_us:
        first = _old(log.history, txn, scope, since_us, lambda: log.load(txn))
    start = first if count is None else max(stop - count, first)
    rows: list[RawItem | CorruptValueError] = []
    for row in log.rows(txn, start, stop):
        if isinstance(row, CorruptValueError):
            rows.append(row)
            continue
        _, seq, flags, body = row
        try:
            rows.append((seq, flags, body, payload_of(txn, scope, flags, body)))
        except CorruptValueError as exc:
            rows.append(exc)
    return Tail(log.place, rows, start == first, first, stop - first)


def seen_now(ref: SessionRef) -> Seen:
    """Return the session's current number and revision."""
    return read_log(ref, lambda log, _: Seen(log.session, head_of(log).revision), Seen())


class TakeLast(Change[Message | None]):
    """Pop the last item, with all damaged ones and events after it; the result is its message.

    Args:
        ref: the session.
        check: called with the message inside the transaction; an error leaves everything unchanged.
    """

    __slots__ = ("check",)
    creates = False

    def __init__(self, ref: SessionRef, check: Check | None = None) -> None:
        self.check = check
        super().__init__(ref)

    def run(self, session: SessionTxn) -> Message | Unchanged | None:
        """Cut the history before the last readable item."""
        found = _last_message(session)
        if found is None:
            return Unchanged(None)
        position, message = found
        if message is not None and self.check is not None:
            # Before the cut, so that a refusal leaves nothing to take back.
            self.check(message)
        session.cut_to(position)
        return message

    def missing(self) -> None:
        """Pop nothing."""


class ReplaceTail(Change[tuple[bool, list[bytes]]]):
    """Replace ``tail.rows[start:]`` by other items, if the history still ends with those rows.

    Args:
        ref: the session.
        tail: the rows that were read.
        start: index of the first row to replace.
        items: encoded items.
        expired: returns True for messages to be deleted for good, evaluated from the beginning of
            the history up to the first that is not. The session is then replaced by a new one.
        renewed: called if the session was replaced.

    The result is ``(True if replaced, rest to be removed)``, the latter for ``resume_removals``.
    """

    __slots__ = ("expired", "items", "renewed", "seen", "tail")
    creates = False

    def __init__(
        self,
        ref: SessionRef,
        tail: Tail,
        start: int,
        items: Sequence[Prepared],
        *,
        expired: Callable[[Message], bool] | None = None,
        renewed: Renewed | None = None,
    ) -> None:
        seen = [row[:3] for row in tail.rows[start:] if type(row) is tuple]
        self.seen = seen if len(seen) == len(tail.rows) - start else []  # damaged rows have no seq
        self.tail, self.items, self.expired, self.renewed = tail, items, expired, renewed
        super().__init__(ref)

    def run(self, session: SessionTxn) -> tuple[bool, list[bytes]] | Unchanged:
        """Replace the rows in the history, or in a session that replaces this one."""
        seen, last = self.seen, len(self.seen)
        # A session that was created again under the name may have the same seqs.
        if session.log.place != self.tail.place or not seen:
            return Unchanged((False, []))
        # Seqs are never reused: the same ones at the end are the same items, whatever was appended
        # and undone in between. Their content may have been redacted or released since, though,
        # and the caller's copies would bring the former one back.
        found = session.last_found(last) if session.count >= last else []
        if [row[1:] for row in found if type(row) is tuple] != seen:
            return Unchanged((False, []))
        gone = 0
        if self.expired is not None and not is_held(session.txn, *session.log.place):
            gone = _leading(session, last, self.expired)
        if not gone:
            _swap(session, last, self.items)
            return True, []
        kept = encode_again(session, gone, session.count - last, seed=self.ref.engine.seed)
        rest = _renewed(self.ref, session, [*kept, *self.items], self.renewed)
        # The old draft is closed and the new session finished: there is nothing left to write.
        return Unchanged((True, rest))

    def missing(self) -> tuple[bool, list[bytes]]:
        """Replace nothing."""
        return False, []


class Overwrite(Change[None]):
    """Replace the whole history, damaged or not, by other items.

    Args:
        ref: the session.
        items: encoded items.
        seen: the caller's last view of the session; None: overwrite unconditionally.

    Raises (when run):
        RevisionConflict: the session was changed since; it is left as it was.
    """

    __slots__ = ("creates", "items", "seen")

    def __init__(
        self, ref: SessionRef, items: Sequence[Prepared], *, seen: Seen | None = None
    ) -> None:
        self.items, self.seen, self.creates = items, seen, bool(items)
        super().__init__(ref)

    def run(self, session: SessionTxn) -> Unchanged | None:
        """Check that the session is as last seen, then replace everything."""
        seen = self.seen
        if seen is not None:
            # 0: there was no session; whether there is one now, the revision tells.
            if seen.session not in (0, session.log.session):
                raise revision_conflict(seen.revision, session.head.revision)
            session.expect(seen.revision)
        if not session.count and not self.items:
            return Unchanged(None)
        _swap(session, session.count, self.items)
        return None

    def missing(self) -> None:
        """Do nothing: there is nothing to replace and nothing to write."""


class ExpireItems(Change[tuple[int, list[bytes]]]):
    """Remove the items at the beginning that ``read_tail`` leaves out for a given time.

    The session is replaced by a new one, so that they are gone from the file; ``renewed`` is then
    called. The result is the number removed, and the rest to be removed, for ``resume_removals``.
    """

    __slots__ = ("renewed", "since_us")
    creates = False

    def __init__(self, ref: SessionRef, since_us: int, *, renewed: Renewed | None = None) -> None:
        self.since_us, self.renewed = since_us, renewed
        super().__init__(ref)

    def run(self, session: SessionTxn) -> Unchanged:
        """Replace the session by one of the remaining items."""
        if is_held(session.txn, *session.log.place):
            return Unchanged((0, []))  # a legal hold covers them
        session.flush()
        # The draft's: the log does not know what this transaction has changed.
        history = _history(session, session.count)
        load = partial(session.log.load, session.txn, history=history)
        gone = _old(history, session.txn, session.log.scope, self.since_us, load)
        if not gone:
            return Unchanged((0, []))
        kept = encode_again(session, gone, session.count, seed=self.ref.engine.seed)
        return Unchanged((gone, _renewed(self.ref, session, kept, self.renewed)))

    def missing(self) -> tuple[int, list[bytes]]:
        """Remove nothing."""
        return 0, []


def _renewed(
    ref: SessionRef, session: SessionTxn, kept: Sequence[Prepared], renewed: Renewed | None
) -> list[bytes]:
    """As ``renew``; an error in it spoils the transaction, which must be rerun for the others."""
    txn = session.txn
    try:
        return renew(txn, ref, session, kept, renewed)
    except BaseException:
        txn.spoil()
        raise


def _swap(session: SessionTxn, count: int, items: Sequence[Prepared]) -> None:
    session.cut_to(session.count - count)
    if items:
        # The caller's list decides, even where it has a result whose call was replaced.
        session.append(items, orphans="keep")


def encode_again(session: SessionTxn, start: int, stop: int, *, seed: bytes) -> list[Prepared]:
    """Encode the intact items at positions ``start .. stop`` so that they can be appended again."""
    counter = session.log.counter
    found: list[Prepared] = []
    for row in session.last_found(session.count - start)[: stop - start]:
        if not isinstance(row, CorruptValueError):
            with suppress(CorruptValueError):  # only its large content is damaged
                found.append(again(session.txn, session.log.scope, row, counter, seed))
    return found


def message_of(row: RawItem) -> Message | None:
    """Return the message of a raw item; None for an event.

    Raises:
        CorruptValueError: the row is not an item.
    """
    seq, flags, body, payload = row
    return None if body[:1] == _EVENT else decode_message(seq, body, flags, payload)


def payload_of(txn: ReadTxn, scope: int, flags: int, body: bytes) -> bytes | None:
    """Return the content of a row's blob, if it has one.

    Raises:
        CorruptValueError: it is damaged or missing.
    """
    if not flags & FLAG_BLOB:
        return None
    try:
        return blobs.read(txn, scope, blobs.BlobRef.unpack(split_body(body)[3]))
    except NotFoundError as exc:
        msg = f"the large content of an item is missing: {exc}; run 'memcore check'"
        raise CorruptValueError(msg, key=b"") from exc


def mark_of(draft: SessionTxn) -> str:
    """Return a mark that identifies the last item and survives a renewal of the session."""
    return _mark(draft.last_found, draft.count)


def marked(log: CachedSession, txn: ReadTxn) -> str:
    """As ``mark_of``, on a snapshot. For ``read_log``."""
    stop = log.history.count
    return _mark(lambda count: list(log.rows(txn, stop - count, stop)), stop)


def _mark(last: Callable[[int], Sequence[StoredRow | CorruptValueError]], total: int) -> str:
    count = min(_LOOK, total)
    while True:
        for row in reversed(last(count)):
            if isinstance(row, CorruptValueError):
                return "damaged " + blake2b(row.key, digest_size=_MARK_BYTES).hexdigest()
            if row[3][:1] != _EVENT:
                # Encrypted files salt each row anew, so a renewal changes the salt of an item.
                return blake2b(unsalted(row[3]), digest_size=_MARK_BYTES).hexdigest()
        if count == total:
            return ""
        count = min(2 * count, total)


def _last_message(draft: SessionTxn) -> tuple[int, Message | None] | None:
    """Return ``(position, message)`` of the last readable item.

    If there is none, the position of the first damaged item and None; None if all are events.
    """
    count, damaged = _LOOK, None
    while True:
        count = min(count, draft.count)
        rows = draft.last_found(count)
        for back, row in enumerate(reversed(rows), 1):
            try:
                message = _message_in(draft, row)
            except CorruptValueError:
                damaged = draft.count - back
                continue
            if message is not None:
                return draft.count - back, message
        if count == draft.count:
            return None if damaged is None else (damaged, None)
        count *= 2


def _message_in(draft: SessionTxn, row: Any) -> Message | None:
    if isinstance(row, CorruptValueError):
        raise row
    _, seq, flags, body = row
    payload = payload_of(draft.txn, draft.log.scope, flags, body)
    return message_of((seq, flags, body, payload))


def _history(draft: SessionTxn, count: int) -> History:
    """Return segments that cover at least the last ``count`` live items."""
    head = draft.head
    if count <= head.count - head.base_count:
        return History(head.segments)
    return History(head.all_segments(draft.txn, draft.log.scope))


def _leading(draft: SessionTxn, behind: int, expired: Callable[[Message], bool]) -> int:
    """Count the leading expired items, not looking at the last ``behind``."""
    draft.flush()
    stop = draft.count - behind
    history, txn, scope = _history(draft, draft.count), draft.txn, draft.log.scope
    for at, row in _first_rows(history, txn, scope, stop):
        try:
            message = _message_in(draft, row)
        except CorruptValueError:
            # Whether it has expired nobody can tell, so it stays, and all behind it.
            return at
        if message is not None and not expired(message):
            return with_texts(history, txn, scope, at)
    return with_texts(history, txn, scope, stop)


def _old(
    history: History, txn: ReadTxn, scope: int, since_us: int, load: Callable[[], Ledger]
) -> int:
    """Count the leading items older than a time and not needed by later ones."""
    old = 0
    for at, row in _first_rows(history, txn, scope, history.count):
        # A damaged row has no time: it goes if an intact one behind it is old enough.
        if not isinstance(row, CorruptValueError):
            if split_body(row[3])[1] >= since_us:
                break
            old = at + 1
    if old not in (0, history.count):
        # Back to a safe cut, so that no call goes while its result stays.
        old = load().cut_at_most(old)
    return with_texts(history, txn, scope, old)


def with_texts(history: History, txn: ReadTxn, scope: int, at: int) -> int:
    """Move a cut in front of the event that holds the texts of the item behind it, if one does."""
    if not 0 < at < history.count:
        return at
    for position, session, lo, hi in history.spans(at - 1, at):
        for row in read_rows(txn, scope, session, position=position, lo=lo, hi=hi):
            # Its texts may lie in a blob, so it is known by its meta.
            if not isinstance(row, CorruptValueError) and row[3][:1] == _EVENT:
                return at - (_OFFLOADED in split_body(row[3])[2])
    return at


def _first_rows(
    history: History, txn: ReadTxn, scope: int, stop: int
) -> Iterator[tuple[int, StoredRow | CorruptValueError]]:
    """Yield the rows up to ``stop`` with their positions, a page at a time."""
    at = 0
    while at < stop:
        for position, session, lo, hi in history.spans(at, min(at + _PAGE, stop)):
            yield from enumerate(
                read_rows(txn, scope, session, position=position, lo=lo, hi=hi), position
            )
        at += _PAGE
