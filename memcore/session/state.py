"""SessionState: the fields of one session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from memcore import state
from memcore.errors import InvalidOptionError, NotFoundError
from memcore.log import Head, History, SessionTxn, find_request, record_request, request_of
from memcore.log.checkpoint import checkpoint_states
from memcore.options import checked_bool, checked_int
from memcore.rows.head import head_key
from memcore.session.change import Change, Unchanged, state_at, state_before
from memcore.session.engine import Place, SessionRef
from memcore.state import Fields, ScopedChange
from memcore.store.interface import ReadTxn, Txn

if TYPE_CHECKING:
    from memcore.state import FieldVersion, StateSchema, Trimmed, Watching

__all__ = [
    "SessionState",
    "UpdateState",
]


T = TypeVar("T")
M = TypeVar("M")
_ABOUT: Final = b"state"


class SessionState(Fields[ScopedChange]):
    """Fields and JSON values kept alongside a session's log, with their history.

    Every commit that changes a field gives the state its next *counter*; ``at(counter)`` returns
    the values as of then. ``rewind`` and ``fork`` take the values of the position they go to;
    ``undo`` changes only the log. Without a schema any field takes any JSON, and the last write
    wins.

    A name's prefix determines the field's owner. ``app:NAME`` belongs to the application and
    ``user:NAME`` to the user: all their sessions read and write it, and it has no history.
    ``temp:NAME`` belongs to this handle and is never stored; it takes any object. Counters,
    checkpoints, forks and exports cover only the session's own fields.
    """

    __slots__ = ("_ref",)

    def __init__(self, ref: SessionRef) -> None:
        self._ref = ref

    def __repr__(self) -> str:
        return f"SessionState({self._ref.name!r})"

    @property
    def label(self) -> str:
        """Owner of the state, for messages."""
        return f"session {self._ref.name!r}"

    @property
    def schema(self) -> StateSchema | None:
        """The schema that the session was opened with."""
        return self._ref.options.state

    # --- reading ----------------------------------------------------------------------------------

    @property
    def counter(self) -> int:
        """The number of the last change to its own fields, which ``expected`` is compared with."""
        return self._read(lambda txn, place: state.read_header(txn, *place).counter, 0)

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def all(self, *, shared: bool = True) -> dict[str, Any]:
        """Return every field that has a value, sorted by name; from one snapshot.

        Args:
            shared: False leaves out the fields with a prefix, which are not the session's own.
        """
        checked_bool("shared", shared)
        return self._ref.engine.store.read(lambda txn: self.read(txn, shared=shared))

    def read(self, txn: ReadTxn, *, shared: bool = True) -> dict[str, Any]:
        """``all`` as seen by a transaction of the session's store."""
        place = self._ref.find(txn)
        found = {} if place is None else _decoded(state.values_at(txn, *place))
        if shared:
            for prefix in (state.APP, state.USER):
                scope = self._ref.find_scope(txn, prefix)
                if scope is not None:
                    found |= _decoded(state.values_at(txn, scope, 0), prefix)
            found |= self._ref.temporary
        return found

    def at(self, counter: int) -> dict[str, Any]:
        """Return the values of its own fields as of a counter.

        Raises:
            NotFoundError: there was no such change, or its values were trimmed.
        """
        checked_int("counter", counter)
        found = self._read(lambda txn, place: _decoded(state.values_at(txn, *place, counter)), None)
        if found is None and counter:
            msg = f"there is no session {self._ref.name!r}"
            raise NotFoundError(msg)
        return found or {}

    def at_seq(self, seq: int) -> dict[str, Any]:
        """Return its own fields as of when the live history ended at ``seq``; 0: before it began.

        That is before the following item was appended, or now for the last item.

        Raises:
            NotFoundError: there is no such live item, or the values from that time were trimmed.
            CorruptValueError: a row is damaged.
        """
        checked_int("seq", seq)
        return self._past(lambda txn, place, history: state_at(txn, *place, history, seq), seq)

    def before(self, seq: int) -> dict[str, Any]:
        """Return the values of its own fields just before a live item was appended.

        Raises:
            NotFoundError, CorruptValueError: as for ``at_seq``.
        """
        checked_int("seq", seq, least=1)
        return self._past(
            lambda txn, place, history: state_before(txn, place[0], history, seq), seq
        )

    def _past(
        self, find: Callable[[ReadTxn, tuple[int, int], History], tuple[int, int]], seq: int
    ) -> dict[str, Any]:
        def look(txn: ReadTxn, place: tuple[int, int]) -> dict[str, Any]:
            key = head_key(*place)
            value = txn.get(key)
            if value is None:
                raise self._ref.headless(*place)
            history = History(Head.unpack(key, value).all_segments(txn, place[0]))
            owner, counter = find(txn, place, history)
            return _decoded(state.values_at(txn, place[0], owner, counter))

        found = self._read(look, None)
        if found is None and seq:
            msg = f"there is no session {self._ref.name!r}"
            raise NotFoundError(msg)
        return found or {}

    def visible(self, *, to: str, exclude: Iterable[str] = ()) -> dict[str, Any]:
        """Return the part of the state that may be handed over; see ``StateSchema.visible``.

        Raises:
            InvalidOptionError: the session was opened without a schema, or ``to`` is invalid.
        """
        if self.schema is None:
            msg = "the session was opened without state=: what is private, a schema tells"
            raise InvalidOptionError(msg)
        return self.schema.visible(self.all(), to=to, exclude=exclude)

    def _value(self, key: str) -> tuple[Any] | None:
        ref, prefix = self._ref, state.prefix_of(key)
        state.packed_field(key, prefix=prefix)
        if prefix == state.TEMPORARY:
            found = ref.temporary
            return (found[key],) if key in found else None

        def look(txn: ReadTxn) -> tuple[Any] | None:
            if prefix:
                # Scope 0 has no rows: it stands for one that was never created.
                place: tuple[int, int] | None = (ref.find_scope(txn, prefix) or 0, 0)
            else:
                place = ref.find(txn)
            if place is None:
                return None
            name = key.removeprefix(prefix)
            version = state.value_at(txn, *place, name, state.read_header(txn, *place).counter)
            return None if version is None else (version.value(),)

        return ref.engine.store.read(look)

    def _read(self, look: Callable[[ReadTxn, tuple[int, int]], T], missing: M) -> T | M:
        def closure(txn: ReadTxn) -> T | M:
            place = self._ref.find(txn)
            return missing if place is None else look(txn, place)

        return self._ref.engine.store.read(closure)

    # --- changing ---------------------------------------------------------------------------------

    def plan(self, expected: int | None = None) -> ScopedChange:
        """Return a change to be filled in, then stored by ``UpdateState``."""
        ref = self._ref
        change = ScopedChange(self.schema, ref.temporary, ref.scope_filter)
        change.expect(expected)
        return change

    def write(self, change: ScopedChange, draft: SessionTxn, *, ahead: int = 0) -> int:
        """Store a change in a draft's transaction; return the counter after it.

        ``ahead`` items that the change belongs to are still to be appended: ``before`` them, the
        state is the old one.
        """
        seq = draft.head.next_seq + ahead
        return change.run(draft.txn, draft.log.place, self._ref, seq=seq)

    def _commit(self, change: ScopedChange) -> int:
        # No transaction, so a handle that is read-only may set its temporary fields.
        if change.is_temporary:
            counter = self.counter
        else:
            counter = self._ref.engine.store.transact(UpdateState(self._ref, change))
        change.tell()
        return counter

    # --- watching ---------------------------------------------------------------------------------

    @property
    def watching(self) -> Watching:
        """Return an object that waits for its changes (for memcore's own facades)."""
        return state.Watching(self._ref.engine.store, self._ref.find)

    # --- history ----------------------------------------------------------------------------------

    def trim(self, *, keep: int = 1) -> int:
        """Drop the values of old counters; return the number of stored versions removed.

        The last ``keep`` counters stay, and those that the session's checkpoints need.

        Raises:
            InvalidOptionError, ReadOnlyError, ClosedError, StorageError
        """
        checked_int("keep", keep, least=1)
        self._ref.refuse_read_only()
        transact = self._ref.engine.store.transact
        # First the header drops the counters, then pieces their rows: nobody reads a counter of
        # which some values are gone already, even if the trim is killed.
        begun = transact(lambda txn: self._begin_trim(txn, keep), makes_room=True)
        if begun is None:
            return 0
        place, following = begun
        removed = 0
        while following is not None:
            trim = partial(self._trim, place=place, start=following)
            done = transact(trim, makes_room=True)
            removed, following = removed + done.removed, done.following
        return removed

    def _begin_trim(self, txn: Txn, keep: int) -> tuple[Place, bytes | None] | None:
        """Drop the counters; return where their rows are, None if there is no session."""
        place = self._ref.find(txn)
        if place is None:
            return None
        self._ref.admit(txn, place)
        pinned = checkpoint_states(txn, *place)
        return place, state.begin_trim(txn, *place, keep=keep, pinned=pinned)

    def _trim(self, txn: Txn, *, place: Place, start: bytes) -> Trimmed:
        # Another session may have the name by now; from ``start``, a key of the former one, a scan
        # up to its rows would take those of all sessions in between.
        if self._ref.find(txn) != place:
            return state.Trimmed(0, None)
        # Each piece is a commit of its own, and a lease may have been taken since the last one.
        self._ref.admit(txn, place)
        return state.trim_piece(txn, *place, start)


class UpdateState(Change[int]):
    """Store a filled-in change of the state; the result is the counter after it.

    If it has no fields of the session's own, the session need not exist.
    """

    __slots__ = ("change", "creates", "request")
    revised = False

    def __init__(self, ref: SessionRef, change: ScopedChange) -> None:
        self.change, self.request = change, None
        # The record of a request is a row of the session, so it needs one even for shared fields.
        self.creates = True
        if change.request is not None:
            key, content = change.request
            self.request = request_of(key, (content,), seed=ref.engine.seed, about=_ABOUT)
        else:
            self.creates = change.writes
        super().__init__(ref)

    def __call__(self, txn: Txn) -> int:
        """Change the session's fields, together with those of the user and the application."""
        ref, change = self.ref, self.change
        place = ref.find(txn)
        is_own = change.writes or (place is not None and not change.own.is_empty)
        if is_own or self.request is not None:
            return super().__call__(txn)
        if place is None:
            # Without a session nobody else compares the expected counter.
            change.check(0)
        change.run(txn, None, ref)
        return 0 if place is None else state.read_header(txn, *place).counter

    def run(self, session: SessionTxn) -> int | Unchanged:
        """Write the fields, unless the request was already carried out."""
        request = self.request
        if request is None:
            return self._write(session)
        now_ms = self.ref.engine.now_ms()
        # Before the expected counter is compared, which the first run has moved on.
        first = find_request(session, request, now_ms=now_ms, is_live=False)
        if first is not None:
            return Unchanged(first.seq)
        counter = self._write(session)
        receipt = session.receipt(0)._replace(seq=counter)
        record_request(session, request, receipt, now_ms=now_ms)
        return counter

    def _write(self, session: SessionTxn) -> int:
        place, seq = session.log.place, session.head.next_seq
        return self.change.run(session.txn, place, self.ref, seq=seq)


def _decoded(found: Mapping[str, FieldVersion], prefix: str = "") -> dict[str, Any]:
    return {prefix + key: version.value() for key, version in found.items()}
