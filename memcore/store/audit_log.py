"""Audit entries of a write transaction: one for each row that it writes.

Rows are noted as they are stored, and their entries are written after each closure, so the entries
are part of the same transaction, roll back with it, and count as its writes. A chain belongs to a
session, to a scope (its names, blobs, entries, graphs, shared state: session 0) or to the database
(0, 0).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from memcore.codec import keys
from memcore.codec.audit_entry import (
    FIRST_MAC,
    MAC_BYTES,
    Chainer,
    ChainPage,
    Op,
    digest_of,
    head_digest_of,
    pack_event,
    pack_front,
    pack_page,
    pack_range,
    pack_tip,
)
from memcore.codec.keys import OWNER_KEY, SECRET_KEY, WARM_KEY, Care, Kind, Row
from memcore.codec.table import ROWS
from memcore.codec.values import clock_ms, seal_value
from memcore.errors import AuditError, MemcoreError
from memcore.faces import logger
from memcore.store.commit import WriterNeeded
from memcore.store.interface import MapMovedError

if TYPE_CHECKING:
    from memcore.store.environment import Environment
    from memcore.store.transaction import WriteTxn

__all__ = [
    "AnchorFullError",
    "Anchorage",
    "Place",
    "Recorder",
    "Recording",
    "Tip",
    "anchored",
    "chain_of",
    "rest_of",
]


# --- The audit of one open file: its key, the heads of its chains, and when they are anchored -----

_TIPS_MAX: Final = 4096
_ANCHORED_MAX: Final = 4096
_log = logger("memcore.audit")


class AnchorFullError(AuditError):
    """No space is left for an anchor; deletions proceed without one."""


class Anchorage(Protocol):
    """Stores the heads of audit chains outside the data file."""

    def write(self, tips: Mapping[Place, tuple[int, bytes]]) -> None:
        """Durably store the number and MAC of each chain's last entry.

        Raises:
            AnchorFullError: no space is left.
            AuditError: the anchor cannot be written now.
        """


class Recorder:
    """Audit state shared by all transactions of an environment; only the leader writes to it."""

    __slots__ = (
        "_anchorage",
        "_env",
        "_every_entries",
        "_every_seconds",
        "_failure",
        "_file",
        "_since",
        "_strict",
        "_txnid",
        "_waiting",
        "anchored",
        "chainer",
        "changed",
        "clock",
        "tips",
    )

    def __init__(
        self,
        env: Environment,
        chainer: Chainer,
        *,
        anchorage: Anchorage | None,
        every_entries: int,
        every_seconds: float,
        strict: bool,
    ) -> None:
        self._env = env
        self.chainer = chainer
        self._anchorage = anchorage
        self._every_entries = every_entries
        self._every_seconds = every_seconds
        self._strict = strict
        self._failure = ""
        self._txnid = 0
        self._file = env.key
        self._waiting = 0
        self.clock: Callable[[], float] = time.monotonic  # the time of day may be set back
        self._since = self.clock()
        self.tips: dict[Place, Tip] = {}
        """Last entry of each chain; valid until another process commits."""
        self.changed: dict[Place, tuple[int, bytes]] = {}
        """Heads of chains that no anchor covers yet."""
        self.anchored: dict[Place, int] = {}
        """Chains covered by an anchor whose mark row has not been deleted yet."""

    # --- transactions -----------------------------------------------------------------------------

    def begin(self, txn: WriteTxn, txnid: int) -> Recording:
        """Start the recording of a new transaction."""
        if txnid != self._txnid + 1 or self._file != self._env.key:
            self.tips.clear()  # another process has committed, or the file was compacted
            self._file = self._env.key
        return Recording(self, txn, txnid)

    def committed(
        self, txnid: int, tips: Mapping[Place, Tip], wrote: int, unmarked: Sequence[Place]
    ) -> None:
        """Take over the chain heads of a committed transaction; idempotent."""
        if len(self.tips) > _TIPS_MAX:
            self.tips.clear()
        for place in unmarked:
            self.anchored.pop(place, None)
        self.tips.update(tips)
        if wrote and self._anchorage is not None:
            for place, tip in tips.items():
                if tip.marked and tip.number:
                    self.changed[place] = tip.number, tip.mac
            # After an interrupt this runs again, and entries must not count twice.
            if self._txnid != txnid:
                self._waiting += wrote
        self._txnid = txnid

    def owe(self, tips: Mapping[Place, tuple[int, bytes]]) -> None:
        """Add chain heads that other processes left unanchored to the next anchor."""
        for place, tip in tips.items():
            self.changed.setdefault(place, tip)

    # --- anchoring --------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """True if an anchor is due with this commit; writing one waits for the device."""
        return (
            self._anchorage is not None
            and bool(self.changed)
            and (
                self._waiting >= self._every_entries
                or self.clock() - self._since >= self._every_seconds
                or (self._strict and bool(self._failure))
            )
        )

    def need_anchored(self, *, hurried: bool) -> AnchorFullError | None:
        """Retry a failed anchor before a transaction begins.

        Returns:
            The error for requests that do not free space, if the anchor's device is full; None
            otherwise. Deletions proceed, as they may be what frees space. Mark rows in the file
            record the chains that are not anchored.

        Raises:
            WriterNeeded: ``hurried``, and an anchor is due.
            AuditError: it fails again, and ``on_failure`` is ``"raise"``.
        """
        if hurried and self.is_due:
            raise WriterNeeded
        if self._failure and self._strict:
            try:
                self.anchor()
            except AnchorFullError as error:
                return error
        return None

    def anchor_if_due(self) -> None:
        """Anchor after a commit if due. An error fails the next commit, as this one is stored."""
        if self.is_due:
            try:
                self.anchor()
            except MemcoreError as error:
                self._failure = str(error)

    def anchor(self, _: object = None) -> None:
        """Write the heads of the chains that have grown to the anchor. Needs the lead.

        They are made durable in the file first: otherwise a power failure would look like a
        truncated chain.

        Raises:
            AuditError: it cannot be done now, and ``on_failure`` is ``"raise"``.
        """
        if self._anchorage is None or not self.changed or self._env.raw is None:
            return
        try:
            if not self._make_durable():
                return  # the next commit follows the map first
            self._anchorage.write(self.changed)
        except AuditError as error:
            self._failure = str(error)
            # Else every commit would wait for a device that fails; only ``strict`` retries at once.
            self._waiting, self._since = 0, self.clock()
            _log.error("%s: the audit could not be anchored: %s", self._env.path, error)
            if self._strict:
                raise
            return
        self._failure = ""
        self._waiting, self._since = 0, self.clock()
        if len(self.anchored) < _ANCHORED_MAX:
            self.anchored.update((place, tip[0]) for place, tip in self.changed.items())
        self.changed.clear()

    def _make_durable(self) -> bool:
        env = self._env
        if env.steady_sync is not None:
            try:
                env.steady_sync.sync()
            except MapMovedError:
                return False
        elif env.redo is None and not env.private:
            env.leader.sync()
        return True


@contextmanager
def anchored(recorder: Recorder | None) -> Iterator[None]:
    """Write a last anchor before a file is closed; the file is closed even if that fails.

    On a full device the anchor is left to the next process that opens the file; this is logged.

    Raises:
        MemcoreError: the anchor failed for another reason; the file is closed.
    """
    failure: MemcoreError | None = None
    if recorder is not None:
        try:
            recorder.anchor()
        except AnchorFullError:
            pass
        except MemcoreError as error:
            failure = error
    yield
    # Raised only afterwards: what closes the file runs in the ``with`` block.
    if failure is not None:
        raise failure


# --- Recording of one write transaction: an audit entry for each row that it wrote ----------------

Place = tuple[int, int]
"""``(scope, session)`` that a chain belongs to."""

DATABASE: Final[Place] = (0, 0)
_AUDITED: Final = tuple(each for each in ROWS if each.audited)
SESSION_ROWS: Final = tuple(each.row or 0 for each in _AUDITED if each.kind == Kind.SESSION)
"""Rows of a session that are audited, besides its head. Others are derived from them or learned."""
SCOPE_KINDS: Final = tuple(
    sorted({each.kind for each in _AUDITED if each.owner == "scope"} - {Kind.SESSION})
)
DATABASE_KINDS: Final = tuple(each.kind for each in _AUDITED if each.owner == "database")
_UNNOTED: Final = (OWNER_KEY, SECRET_KEY, WARM_KEY)
"""Rows that differ between a file and its copies."""
NAME_KINDS: Final = frozenset(
    (Kind.SCOPE, Kind.SCOPE_NAME, Kind.SESSION_NAME, Kind.KV_NAMESPACE, Kind.THREAD_NAME)
)
"""Kinds whose keys name users and sessions; chains outlive these and hold keyed hashes instead."""
HEAD: Final = bytes((Row.HEAD,)) + bytes(8)
OF_SESSION: Final = bytes((Kind.SESSION,))
"""Prefix of a scope chain's records about a session: that its chain began or ended."""
OF_SCOPE: Final = bytes((Kind.BLOB,))
"""The same for a scope, in the database's chain. Neither chain notes rows of these kinds."""
BEGUN: Final = bytes(32)

_IN_SESSION: Final = frozenset((*SESSION_ROWS, Row.HEAD))
_PLACE = Struct(">QQ")
_PLACE_BYTES: Final = 17
_SCOPED_BYTES: Final = 9
NAME_BYTES: Final = 20
_UNMARKED_MAX: Final = 16


class Tip(NamedTuple):
    """Last entry of a chain: its number and MAC, and the state of the chain."""

    number: int
    mac: bytes
    closed: bool
    marked: bool
    """True if the row exists that marks the chain as not fully anchored."""
    rows: bytes
    """Key prefix of the chain's entries."""


def chain_of(key: bytes) -> Place | None:
    """Return the chain that records a row, or None if no chain does."""
    kind = key[0]
    if kind == Kind.SESSION:
        if len(key) > _PLACE_BYTES and key[_PLACE_BYTES] in _IN_SESSION:
            return _PLACE.unpack_from(key, 1)
        return None
    if kind in SCOPE_KINDS and len(key) > _SCOPED_BYTES:
        if kind == Kind.CARE and (key[_SCOPED_BYTES] == Care.AUDIT or key in _UNNOTED):
            return None
        return int.from_bytes(key[1:9], "big"), 0
    return DATABASE if kind in DATABASE_KINDS else None


def rest_of(place: Place, key: bytes) -> bytes:
    """Return the part of a key that its chain does not imply."""
    if place[1]:
        return key[_PLACE_BYTES:]
    if place == DATABASE and key[0] != Kind.CARE:
        return key
    return key[:1] + key[_SCOPED_BYTES:]


def told_name(chainer: Chainer, rest: bytes) -> bytes:
    """Return the keyed digest by which a chain refers to a name row."""
    return rest[:1] + chainer.sign(b"name" + rest)[:NAME_BYTES]


def told_digest(chainer: Chainer, place: Place, value: bytes) -> bytes:
    """Return the digest of a value in a chain: keyed in the database's chain, which names users."""
    return chainer.sign(b"value" + value) if place == DATABASE else digest_of(value)


def told_row(chainer: Chainer, place: Place, key: bytes) -> bytes:
    """Return the identifier of a row in a chain: its key, or a keyed digest for a name row."""
    rest = rest_of(place, key)
    return rest if place[1] or rest[0] not in NAME_KINDS else told_name(chainer, rest)


class Recording:
    """The audit of one transaction."""

    __slots__ = (
        "_is_told",
        "_pending",
        "_recorder",
        "_tips",
        "_txn",
        "_txnid",
        "_unmarked",
        "wrote",
    )

    def __init__(self, recorder: Recorder, txn: WriteTxn, txnid: int) -> None:
        self._recorder = recorder
        self._txn = txn
        self._txnid = txnid
        self._pending: dict[Place, dict[Any, bytes | None]] = {}
        self._tips: dict[Place, Tip] = {}
        self._is_told = False
        self._unmarked: list[Place] = []
        self.wrote = 0
        """Entries of this transaction."""

    # --- noting -----------------------------------------------------------------------------------

    def note(self, key: bytes, value: bytes | None) -> None:
        """Note that a row was written, or deleted (None)."""
        place = chain_of(key)
        if place is not None:
            rows = self._pending.get(place)
            if rows is None:
                rows = self._pending[place] = {}
            rest = key[_PLACE_BYTES:] if place[1] else rest_of(place, key)
            if rest in rows:  # move it to the end: a range deleted since may contain it
                del rows[rest]
            rows[rest] = value

    def note_range(self, start: bytes, stop: bytes) -> None:
        """Note that the rows in ``start <= key < stop``, of one kind and scope, were deleted."""
        if start[0] == Kind.SESSION:
            if len(start) <= _PLACE_BYTES or (
                start[_PLACE_BYTES] not in _IN_SESSION
                and stop[: _PLACE_BYTES + 1] == start[: _PLACE_BYTES + 1]
            ):
                return
            place: Place | None = keys.split_session_prefix(start)
            within = start[:_PLACE_BYTES]
        else:
            place = chain_of(start + b"\0")
            within = start[:_SCOPED_BYTES]
        if place is None:
            return
        inside = stop.startswith(within)
        end = rest_of(place, stop) if inside else b"\xff" if place[1] else bytes((start[0] + 1,))
        self._pending.setdefault(place, {})[rest_of(place, start), end] = None

    # --- writing ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Write the entries of the noted rows."""
        pending = self._pending
        if not pending:
            return
        now = clock_ms()
        if len(pending) == 1:
            for place, rows in pending.items():
                self._write(place, rows, now)
            self._pending = {}
            if self._recorder.anchored:
                self._unmark()
            return
        # Sessions first, the database last: a chain that begins is recorded in the one above.
        for last in ((False, False), (True, False), (True, True)):
            for place in sorted(p for p in pending if (not p[1], p == DATABASE) == last):
                self._write(place, pending[place], now)
        self._pending = {}
        if self._recorder.anchored:
            self._unmark()

    def _write(self, place: Place, rows: dict[Any, bytes | None], now: int) -> None:
        tip = self._tip(place)
        if tip.closed:
            return
        if not tip.number:
            if all(value is None for value in rows.values()):
                return  # the last rows of a scope or session that was deleted with its chain
            self._begin(place, now)
        head = b""
        if rows.get(HEAD) is not None and place[1]:
            head = head_digest_of(rows.pop(HEAD) or b"")
        left, chainer = len(rows), self._recorder.chainer
        for rest, value in rows.items():
            left -= 1
            told = b"" if left else head
            if not isinstance(rest, bytes):
                self._append(place, Op.RANGE, pack_range(*rest), now, told)
                continue
            if not place[1] and rest[0] in NAME_KINDS:
                rest = told_name(chainer, rest)  # noqa: PLW2901 - its identifier in the chain
            if value is not None:
                self._append(place, Op.PUT, told_digest(chainer, place, value) + rest, now, told)
            else:
                self._append(place, Op.DELETE, rest, now, told)
        if head and not rows:
            self._append(place, Op.HEAD, b"", now, head)

    def _append(self, place: Place, op: Op, said: bytes, now: int, head: bytes = b"") -> None:
        tip = self._tips.get(place) or self._tip(place)
        number = tip.number + 1
        body = pack_front(op, number, now, head) + said
        mac = self._recorder.chainer.seal(place, number, tip.mac, body)
        self._put(keys.numbered(tip.rows, number), body + mac)
        # Whoever opens the file after a crash learns from the mark that an anchor is owed.
        if not tip.marked:
            key = keys.audit_mark(*place)
            self._txn.put(key, seal_value(key, b""))
        self._tips[place] = Tip(number, mac, op is Op.CLOSED, True, tip.rows)

    def _put(self, key: bytes, body: bytes) -> None:
        self._txn.put(key, seal_value(key, body))
        self.wrote += 1
        if not self._is_told:
            self._is_told = True
            self._txn.on_commit(self._committed)

    def _begin(self, place: Place, now: int) -> None:
        """Record a chain's beginning in the chain above it, and for a fork the parent's head."""
        if place == DATABASE:
            return
        above = (place[0], 0) if place[1] else DATABASE
        named = place[1] or place[0]
        if not self._tip(above).number:
            self._begin(above, now)
        self._append(above, Op.BEGIN, pack_tip(named, 0, FIRST_MAC), now)
        parent = self._parent_of(place)
        if parent:
            tip = self._tip((place[0], parent))
            self._append(place, Op.FORK, pack_tip(parent, tip.number, tip.mac), now)

    def _parent_of(self, place: Place) -> int:
        """Return the session that this transaction forks ``place`` from; 0 if none."""
        if place[1]:
            child = bytes((Row.CHILD,)) + place[1].to_bytes(8, "big")
            for (scope, session), rows in self._pending.items():
                if scope == place[0] and rows.get(child) is not None:
                    return session
        return 0

    def _tip(self, place: Place) -> Tip:
        tip = self._tips.get(place)
        if tip is None:
            tip = self._recorder.tips.get(place) or read_tip(self._txn, place)
            self._tips[place] = tip
        return tip

    # --- entries without a row --------------------------------------------------------------------

    def event(self, scope: int, what: str, details: dict[str, Any]) -> None:
        """Append an event to a scope's chain; scope 0 is the database's."""
        now = clock_ms()
        place = scope, 0
        if not self._tip(place).number:
            self._begin(place, now)
        if not self._tip(place).closed:
            self._append(place, Op.EVENT, pack_event(what, details), now)

    def end(self, place: Place) -> None:
        """Close a chain before its rows are deleted; the chain above records its last MAC."""
        # First what was noted so far: nothing is written to a chain that is closed.
        self.settle()
        tip = self._tip(place)
        if not tip.number or tip.closed:
            return
        now = clock_ms()
        self._append(place, Op.CLOSED, b"", now)
        tip = self._tip(place)
        above = (place[0], 0) if place[1] else DATABASE
        self._append(above, Op.END, pack_tip(place[1] or place[0], tip.number, tip.mac), now)
        self._txn.delete(keys.audit_mark(*place))
        self._tips[place] = tip._replace(marked=False)

    def page(self, place: Place, op: Op, page: ChainPage, head: bytes) -> None:
        """Append an entry that covers rows older than the chain."""
        now = clock_ms()
        if not self._tip(place).number:
            self._begin(place, now)
        self._append(place, op, pack_page(page), now, head)

    @property
    def chainer(self) -> Chainer:
        """Chainer with the audit key."""
        return self._recorder.chainer

    def cut(self, place: Place, number: int, before: bytes, page: ChainPage, head: bytes) -> None:
        """Replace the last of a run of entries with a CUT entry that stands for all of them."""
        now = clock_ms()
        body = pack_front(Op.CUT, number, now, head) + pack_page(page)
        key = keys.numbered(keys.audit_rows(*place), number)
        self._put(key, body + self.chainer.seal(place, number, before, body))

    # --- marks and the commit ---------------------------------------------------------------------

    def _unmark(self) -> None:
        """Delete the marks of some chains that have not grown since an anchor covered them."""
        anchored = self._recorder.anchored
        for place in list(anchored)[:_UNMARKED_MAX]:
            tip = self._tip(place)
            if tip.marked and tip.number == anchored[place]:
                self._txn.delete(keys.audit_mark(*place))
                self._tips[place] = tip._replace(marked=False)
            self._unmarked.append(place)

    def _committed(self) -> None:
        """Hand the chain heads to the recorder once the transaction is stored."""
        self._recorder.committed(self._txnid, self._tips, self.wrote, self._unmarked)


def read_tip(txn: Any, place: Place) -> Tip:
    """Read a chain's last entry from the file; its number is 0 if the chain is empty."""
    rows = keys.audit_rows(*place)
    marked = txn.get(keys.audit_mark(*place)) is not None
    for key, value in txn.scan(rows, keys.after(rows), reverse=True, limit=1):
        # A damaged entry is left for verification to report: the chain continues from it.
        mac = value[-MAC_BYTES:].rjust(MAC_BYTES, b"\0")
        return Tip(keys.number_of(key), mac, value[10:11] == bytes((Op.CLOSED,)), marked, rows)
    return Tip(0, FIRST_MAC, False, marked, rows)
