"""The state of a session: what ``session.state`` is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from memcore.errors import InvalidOptionError, NotFoundError
from memcore.log import Draft
from memcore.log.saved import saved_states
from memcore.options import checked_int
from memcore.session.address import Address
from memcore.session.changes import Changes, Closure
from memcore.state import (
    StateChange,
    StateSchema,
    Trace,
    Trimmed,
    Update,
    Version,
    begin_trim,
    packed_field,
    read_header,
    trim_piece,
    value_at,
    values_at,
)
from memcore.store.base import ReadTxn, Txn

__all__ = ["SessionState"]

T = TypeVar("T")
M = TypeVar("M")


class SessionState:
    """Fields and JSON values beside the log of a session, with their history.

    Every commit that changes a field gives the state its next *counter*; ``at(counter)`` shows the
    values as they were then. ``undo`` and ``rewind(seq)`` change the log alone; a fork begins with
    the values of its parent. Without a schema any field takes any JSON, and the last value counts.
    """

    __slots__ = ("_address",)

    def __init__(self, address: Address) -> None:
        self._address = address

    def __repr__(self) -> str:
        return f"SessionState({self._address.name!r})"

    @property
    def schema(self) -> StateSchema | None:
        """The schema that the session was opened with."""
        return self._address.options.state

    # --- reading ----------------------------------------------------------------------------------

    @property
    def counter(self) -> int:
        """The number of the last change; what ``expected`` is compared with."""
        return self._read(lambda txn, place: read_header(txn, *place).counter, 0)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a field.

        Raises:
            CorruptValueError: it is damaged.
        """
        found = self._value(key)
        return default if found is None else found[0]

    def __getitem__(self, key: str) -> Any:
        found = self._value(key)
        if found is None:
            msg = f"the state of session {self._address.name!r} has no value for {key!r:.80}"
            raise NotFoundError(msg)
        return found[0]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(key) and self._value(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self.all())

    def __bool__(self) -> bool:
        return True  # an empty state is a state all the same

    def all(self) -> dict[str, Any]:
        """Every field that has a value, with it, in the order of their names; one snapshot."""
        return self._values(None)

    def at(self, counter: int) -> dict[str, Any]:
        """The values as they were at a counter.

        Raises:
            NotFoundError: there was no such change, or its values were trimmed.
        """
        return self._values(checked_int("counter", counter))

    def visible(self, *, to: str, exclude: Iterable[str] = ()) -> dict[str, Any]:
        """The part of the state that may be handed over; see ``StateSchema.visible``.

        Raises:
            InvalidOptionError: the session was opened without a schema, or ``to`` is wrong.
        """
        if self.schema is None:
            msg = "the session was opened without state=: what is private, a schema tells"
            raise InvalidOptionError(msg)
        return self.schema.visible(self.all(), to=to, exclude=exclude)

    def _value(self, key: str) -> tuple[Any] | None:
        packed_field(key)

        def look(txn: ReadTxn, place: tuple[int, int]) -> tuple[Any] | None:
            version = value_at(txn, *place, key, read_header(txn, *place).counter)
            return None if version is None else (version.value(),)

        return self._read(look, None)

    def _values(self, counter: int | None) -> dict[str, Any]:
        def look(txn: ReadTxn, place: tuple[int, int]) -> dict[str, Version]:
            return values_at(txn, *place, counter)

        found = self._read(look, None)
        if found is None and counter:
            msg = f"there is no session {self._address.name!r}"
            raise NotFoundError(msg)
        return {key: version.value() for key, version in (found or {}).items()}

    def _read(self, look: Callable[[ReadTxn, tuple[int, int]], T], missing: M) -> T | M:
        def closure(txn: ReadTxn) -> T | M:
            place = self._address.find(txn)
            return missing if place is None else look(txn, place)

        return self._address.backing.store.read(closure)

    # --- changing ---------------------------------------------------------------------------------

    def update(
        self,
        update: Update | Iterable[Update],
        *,
        schema: Any = None,
        expected: int | None = None,
        trace: Trace | None = None,
    ) -> int:
        """Apply one step and store it; the counter after it (the same if nothing changed).

        Reducers run inside the write transaction, on the values that are there then, and maybe
        more than once: they must be pure.

        Args:
            update: a mapping, a Command, or a list of them: the writers of the step.
            schema: the fields and reducers, in place of those that the session was opened with.
            expected: do it only if the state is at this counter.
            trace: gets a Reduction for every call of a reducer, once it is stored.

        Raises:
            InvalidUpdateError: see ``StateSchema.apply``; or a value is no JSON or too large.
            RevisionConflict: the state is not at ``expected``; ``current`` is its counter.
            ReadOnlyError, ClosedError, StorageError
        """
        change = self.plan(expected)
        change.update(update, schema=schema, trace=trace)
        return self._commit(change)

    def delete(self, *fields: str, expected: int | None = None) -> int:
        """Take the values of fields away; the counter after it."""
        change = self.plan(expected)
        change.delete(fields)
        return self._commit(change)

    def plan(self, expected: int | None = None) -> StateChange:
        """A change that is to be filled, then stored by ``closure``."""
        change = StateChange(self.schema)
        change.expect(expected)
        return change

    def closure(self, change: StateChange) -> Closure[int]:
        """What stores a change."""

        def work(draft: Draft) -> int:
            return change.run(draft.txn, *draft.log.place)

        def missing() -> int:
            change.check(0)
            return 0

        return Changes(self._address).change(
            work, create=change.writes, revised=False, missing=missing
        )

    def _commit(self, change: StateChange) -> int:
        counter = self._address.backing.store.transact(self.closure(change))
        change.tell()
        return counter

    # --- the past ---------------------------------------------------------------------------------

    def trim(self, *, keep: int = 1) -> int:
        """Forget the values of old counters; how many stored versions went.

        The last ``keep`` counters stay, and those that checkpoints of the session need.

        Raises:
            InvalidOptionError, ReadOnlyError, ClosedError, StorageError
        """
        checked_int("keep", keep, least=1)
        self._address.refuse_read_only()
        transact = self._address.backing.store.transact
        done = transact(lambda txn: self._begin_trim(txn, keep), makes_room=True)
        removed = 0
        while done.following is not None:
            start = done.following
            done = transact(lambda txn, start=start: self._trim(txn, start), makes_room=True)  # type: ignore[misc]
            removed += done.removed
        return removed

    def _begin_trim(self, txn: Txn, keep: int) -> Trimmed:
        place = self._address.find(txn)
        if place is None:
            return Trimmed(0, None)
        return Trimmed(0, begin_trim(txn, *place, keep=keep, pinned=saved_states(txn, *place)))

    def _trim(self, txn: Txn, start: bytes) -> Trimmed:
        place = self._address.find(txn)
        return Trimmed(0, None) if place is None else trim_piece(txn, *place, start)
