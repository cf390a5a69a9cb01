"""Changes to one session: objects that the store runs in its write transaction.

A handle validates and prepares its arguments, makes a change of them and has the store run it; the
asynchronous facade has the writer thread run it. A transaction that has to be rerun calls the
change again, so a change carries no state from one run to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from memcore import blobs, state
from memcore._fast import ChangeFields
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import FLAG_BLOB, seal_value
from memcore.errors import InvalidOptionError, NotFoundError
from memcore.log import Head, History, Prepared, SessionTxn, decode_item
from memcore.log.checkpoint import CheckpointRow
from memcore.log.session_txn import rebase_counts
from memcore.model import Item
from memcore.options import checked_bool, checked_int, checked_optional_int
from memcore.rows import names
from memcore.rows.item import split_body
from memcore.rows.usage import inherit_usage
from memcore.rows.views import read_view
from memcore.store.interface import ReadTxn, Txn
from memcore.wire import policy_name

if TYPE_CHECKING:
    from memcore.session.engine import SessionRef

__all__ = [
    "Change",
    "Fork",
    "SetPolicy",
    "StatePoint",
    "Unchanged",
    "Uncompact",
    "Undo",
    "live_count",
    "restore_state_at",
    "state_at",
    "state_before",
    "take_back",
    "unknown_state",
]

T = TypeVar("T")


class Unchanged(NamedTuple):
    """Result of a ``Change.run`` after which the session's log and head are not written."""

    result: Any


class Change(ChangeFields, Generic[T]):
    """A change to one session; ``store.transact(change)`` runs it and returns its result.

    The call is ``ChangeFields.__call__`` in ``_session.pxi``: it makes the session's draft, runs
    the change and finishes the draft.

    Subclasses define in ``run`` what happens to the session, and in ``done`` what the caller gets
    once the change has its revision.

    Raises (when created):
        ReadOnlyError: the database was opened read-only.
    """

    __slots__ = ()
    unchanged = Unchanged
    ref: SessionRef

    creates: bool = True
    """True if a missing session is created."""
    revised: bool = True
    """True if the log changes, and so gets a new revision."""
    atomic: bool = False
    """True if a ``run`` that raises has changed nothing; otherwise the caller rolls it back."""
    guarded: bool = True
    """True if the session's lease is enforced."""
    makes_room: bool = False
    """True if it may run even on a full device."""
    items: Sequence[Prepared] = ()
    """Items that it appends; large ones are staged before it runs."""

    if TYPE_CHECKING:

        def __call__(self, txn: Txn) -> T:
            """Run the change in a write transaction."""

    def __init__(self, ref: SessionRef) -> None:
        if ref.due is not None or ref.engine.store.read_only:
            ref.need_writable()
        self.ref = ref

    def run(self, session: SessionTxn) -> T | Unchanged | None:
        """Change the session; return the result, or Unchanged if nothing (more) needs writing.

        An exception leaves the session as it was, provided that nothing was written.
        """
        raise NotImplementedError

    def done(self, session: SessionTxn, result: Any) -> T:  # noqa: ARG002 - used by overrides
        """Return the result of the change, whose revision is known by now."""
        return result  # type: ignore[no-any-return]

    def missing(self) -> T:
        """Return the result if there is no such session.

        Raises:
            NotFoundError: the change requires the session to exist.
        """
        msg = f"there is no session {self.ref.name!r}"
        raise NotFoundError(msg)


# --- State of a session as of one of its items ----------------------------------------------------

StatePoint = tuple[int, int]
"""The session that had the values, and their counter."""


def state_at(txn: ReadTxn, scope: int, session: int, history: History, seq: int) -> StatePoint:
    """Return the state when the history ended at ``seq`` (0: before its first item).

    That is the state to which the next item was appended, or the current one after the last item.

    Raises:
        NotFoundError: the item is not in the history, or its state is not known.
        CorruptValueError: a row is damaged.
    """
    position = _position(history, seq) if seq else -1
    if position + 1 == history.count:
        # The current counter, and no moment: the state may have changed since the last item.
        return session, state.state_counter(txn, scope, session)
    return _before(txn, scope, history, position + 1)


def state_before(txn: ReadTxn, scope: int, history: History, seq: int) -> StatePoint:
    """Return the state to which an item of the history was appended.

    Raises:
        NotFoundError: the item is not in the history, or its state is not known.
        CorruptValueError: a row is damaged.
    """
    return _before(txn, scope, history, _position(history, seq))


def _before(txn: ReadTxn, scope: int, history: History, position: int) -> StatePoint:
    owner, seq = history.locate(position)
    counter = state.counter_before(txn, scope, owner, seq)
    if counter is None and state.read_header(txn, scope, owner).floor:
        msg = f"the state before item {seq} is not known: it was trimmed, or came without its past"
        raise NotFoundError(msg)
    # No moment and nothing trimmed: the item is older than the first change of the state.
    return owner, counter or 0


def _position(history: History, seq: int) -> int:
    position = history.position_of(seq)
    if position is None:
        msg = f"item {seq} is not in the live history"
        raise NotFoundError(msg)
    return position


def restore_state_at(draft: SessionTxn, seq: int) -> None:
    """Restore the state's values as of a live item; writes nothing if they are current.

    Raises:
        NotFoundError: they are no longer known.
        CorruptValueError: a row is damaged.
    """
    txn, (scope, session) = draft.txn, draft.log.place
    if not state.state_counter(txn, scope, session):
        return  # neither it nor the session it was forked from ever had one
    # Of the draft's head: the log does not know yet what this transaction cut or appended.
    history = History(draft.head.all_segments(txn, scope))
    try:
        owner, counter = state_at(txn, scope, session, history, seq)
        state.restore(txn, scope, session, counter, seq=draft.head.next_seq, owner=owner)
    except NotFoundError as exc:
        raise unknown_state(seq, exc) from exc


def unknown_state(seq: int, why: NotFoundError) -> NotFoundError:
    """Return the error for an item whose state is not known."""
    return NotFoundError(f"at item {seq}, {why}; state=False leaves the state alone")


# --- Undo -----------------------------------------------------------------------------------------


class Undo(Change[list[Item]]):
    """Remove the last items from the live history; the result is these, oldest first."""

    __slots__ = ("count", "expected_revision")
    creates = False
    makes_room = True

    def __init__(
        self, ref: SessionRef, count: int, *, expected_revision: int | None = None
    ) -> None:
        self.count = checked_int("undo", count, least=1)
        self.expected_revision = checked_optional_int("expected_revision", expected_revision)
        super().__init__(ref)

    def run(self, session: SessionTxn) -> list[Item] | Unchanged:
        """Remove them."""
        session.expect(self.expected_revision)
        return take_back(session, self.count) or Unchanged([])

    def missing(self) -> list[Item]:
        """Remove nothing."""
        return []


def take_back(session: SessionTxn, count: int) -> list[Item]:
    """Remove the last items of a session and return them, oldest first."""
    count = min(count, session.count)
    # Read before the cut: an item that cannot be decoded fails the undo with nothing changed.
    items = [
        decode_item(seq, body, flags, session.tokens_at(at), _payload_of(session, flags, body))
        for at, seq, flags, body in session.last_rows(count)
    ]
    session.cut_to(session.count - count)
    return items


def _payload_of(session: SessionTxn, flags: int, body: bytes) -> bytes | None:
    if not flags & FLAG_BLOB:
        return None
    ref = blobs.BlobRef.unpack(split_body(body)[3])
    return blobs.read(session.txn, session.log.scope, ref)


def live_count(session: SessionTxn, seq: int, name: str) -> int:
    """Count the live items up to and including ``seq``; ``name`` is the session's, for errors.

    Raises:
        NotFoundError: the item is not live.
    """
    if seq == 0:
        return 0
    position = session.position_of(seq)
    if position is None:
        msg = f"item {seq} is not in the live history of session {name!r}"
        raise NotFoundError(msg)
    return position + 1


# --- Forks ----------------------------------------------------------------------------------------


class Fork(Change[None]):
    """Create a session that shares this one's history up to a seq, or that of a checkpoint.

    Args:
        ref: the session.
        target: the fork; its name must not exist yet.
        at: a live seq, or a function that finds a checkpoint; None: the whole live history.
        state: True starts it with the state's values as of ``at``; False, with the current ones.
        expected_revision: fork only if the session is at this revision.
    """

    __slots__ = ("at", "expected_revision", "state", "target")
    creates = False

    def __init__(
        self,
        ref: SessionRef,
        target: SessionRef,
        at: int | Callable[[SessionTxn], CheckpointRow] | None,
        *,
        state: bool = True,
        expected_revision: int | None = None,
    ) -> None:
        self.state = checked_bool("state", state)
        self.at = at if at is None or callable(at) else checked_int("at", at)
        self.expected_revision = checked_optional_int("expected_revision", expected_revision)
        names.check_name(target.name, "session")
        self.target = target
        super().__init__(ref)

    def run(self, session: SessionTxn) -> Unchanged:
        """Create the fork; the session itself gets a row that names it."""
        session.expect(self.expected_revision)
        txn, log, parent, target = session.txn, session.log, session.head, self.target
        if target.find(txn) is not None:
            msg = f"session {target.name!r} exists already: choose another name for the fork"
            raise InvalidOptionError(msg)
        saved = self.at(session) if callable(self.at) else None
        seq = session.last_seq if self.at is None or callable(self.at) else self.at
        count = live_count(session, seq, self.ref.name) if saved is None else 0
        session.flush()
        number = names.new_session(txn, log.scope, target.name)
        head = parent.changed()
        head.policy = target.options.policy or parent.policy
        now_ms = self.ref.engine.now_ms()
        if saved is None:
            _begin_fork(head, log.session, seq, now_ms)
            head.trim(txn, log.scope, count)
        else:
            seq, count = saved.checkpoint.seq, saved.checkpoint.items
            _begin_fork(head, log.session, seq, now_ms)
            saved.put_in(head)
            old = History(parent.all_segments(txn, log.scope))
            rebase_counts(txn, (log.scope, number), head, log.counter, old=old)
        # By this row a deletion of the parent learns that its rows are shared: without it they
        # would be removed from under the fork.
        row = keys.session_row(log.scope, log.session, Row.CHILD, number)
        txn.put(row, seal_value(row, b""))
        # Another policy pairs and cuts by other rules, which takes a ledger of its own.
        shares_ledger = saved is None and head.policy == parent.policy
        base = session.ledger_of(count) if shares_ledger else None
        child = self.ref.engine.drafts.create(txn, log.scope, number, head, base=base)
        head.chain = child.chain_at(seq) if count else 0
        if saved is not None and head.chain != saved.chain:
            raise saved.mismatch()
        child.finish(now_ms=now_ms)
        inherit_usage(txn, log.scope, log.session, number, at=seq)
        # Refused rather than begun with made-up values, although rows were written: the error
        # aborts the transaction, and the other changes of the batch run again.
        try:
            owner, counter = _state_point(session, seq, saved) if self.state else (0, None)
            state.inherit(
                txn, log.scope, owner or log.session, number, counter=counter, seq=seq + 1
            )
        except NotFoundError as exc:
            raise unknown_state(seq, exc) from exc
        txn.on_commit(lambda: target.settle(log.scope, number))
        return Unchanged(None)  # the session is as it was, the time of its last change included


def _state_point(
    session: SessionTxn, seq: int, saved: CheckpointRow | None
) -> tuple[int, int | None]:
    """Return the session whose values a fork begins with, and their counter (None: current)."""
    txn, log = session.txn, session.log
    if saved is not None or seq == session.last_seq:
        return log.session, None if saved is None else saved.checkpoint.state
    if not state.state_counter(txn, *log.place):
        return log.session, None  # neither it nor the session it was forked from ever had a state
    history = History(session.head.all_segments(txn, log.scope))
    return state_at(txn, *log.place, history, seq)


def _begin_fork(head: Head, parent: int, seq: int, now_ms: int) -> None:
    """Turn a copy of the parent's head into the head of its fork."""
    head.parent_session, head.parent_seq = parent, seq
    # Both sessions give out the same seqs from here on; each finds its own by the segment's owner.
    head.next_seq = seq + 1
    head.revision = head.epoch = 0
    head.next_view = head.next_block = 1
    # A lease is not inherited, and nothing of the fork is cached yet that a rewrite made stale.
    head.flags = 0
    # The token pages count the parent's items; those of the fork have their index records.
    head.recount_stop = min(head.recount_stop, seq + 1)
    head.created_ms = now_ms


# --- Settings and views ---------------------------------------------------------------------------


class SetPolicy(Change[None]):
    """Switch the session to another pair policy; the log is unchanged."""

    __slots__ = ("policy",)

    def __init__(self, ref: SessionRef, policy: str) -> None:
        self.policy = policy_name(policy)
        super().__init__(ref)

    def run(self, session: SessionTxn) -> None:
        """Set the policy in the head."""
        session.set_policy(self.policy)


class Uncompact(Change[bool]):
    """Revert to the view before the current one; the result is True if there was one."""

    __slots__ = ()
    creates = False
    revised = False
    makes_room = True

    def run(self, session: SessionTxn) -> bool | Unchanged:
        """Make the current view's parent current."""
        # Only the head moves: forks and checkpoints may refer to the row of the view.
        head = session.head
        stored = read_view(session.txn, session.log.scope, head.view_session, head.view_number)
        if stored is None:
            return Unchanged(result=False)
        head.view_session, head.view_number = stored.parent_owner, stored.view.parent
        return True

    def missing(self) -> bool:
        """Return False: there is no view."""
        return False
