"""SharedState: the fields of a user or an application; watches."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from memcore.errors import InternalError, InvalidUpdateError, NotFoundError
from memcore.limits import STATE_LOOK_SECONDS
from memcore.options import checked_optional_int, checked_optional_seconds
from memcore.privacy.write_filter import ScopeFilter
from memcore.state.change import StateChange
from memcore.state.rows import (
    changed_since,
    fields_at,
    header_key,
    packed_field,
    read_header,
    value_at,
    values_at,
)
from memcore.state.schema import APP, USER, StateRequest, Trace, Update, asked
from memcore.store.interface import NAMES, ReadTxn, Store, Txn

__all__ = [
    "Fields",
    "FieldsChange",
    "SharedState",
    "StateChanges",
    "Watching",
    "store_of",
]


# --- Watching a state: changes since a counter, and waking of those who wait ----------------------

_now: Final = time.monotonic
Place = tuple[int, int]


class StateChanges(NamedTuple):
    """The changes of a state since a counter."""

    counter: int
    """Its counter now; the next ``since``."""
    written: tuple[str, ...]
    """The fields that have another value, or were given the same once more, by name."""
    deleted: tuple[str, ...]
    """The fields that have none any more."""
    is_complete: bool
    """True if all deletions are known; if not, read ``all()`` instead."""


class Watching:
    """Watches one state.

    ``find`` returns its scope and session, None if there is no such state yet.
    """

    __slots__ = ("_find", "_store")

    def __init__(self, store: Store, find: Callable[[ReadTxn], Place | None]) -> None:
        self._store = store
        self._find = find

    def counter(self) -> int:
        """The counter now."""
        return self._store.read(lambda txn: self._counter(txn, self._find(txn)))

    @staticmethod
    def _counter(txn: ReadTxn, place: Place | None) -> int:
        return 0 if place is None else read_header(txn, *place).counter

    def since(self, counter: int | None) -> int:
        """The counter at which a watch starts; the current one if ``counter`` is None.

        Raises:
            InvalidOptionError: it is no counter.
        """
        checked_optional_int("since", counter)
        return self.counter() if counter is None else counter

    def wait(self, since: int, timeout_seconds: float | None) -> StateChanges | None:
        """Block until something changed since a counter.

        Return the changes, None after the timeout.
        """
        checked_optional_seconds("timeout_seconds", timeout_seconds)
        until = None if timeout_seconds is None else _now() + timeout_seconds
        woken = Event()
        with self.listening(woken.set) as look:
            while True:
                woken.clear()
                found = look(since)
                left = STATE_LOOK_SECONDS if until is None else until - _now()
                if found is not None or left <= 0:
                    return found
                woken.wait(min(left, STATE_LOOK_SECONDS))

    def run(self, since: int) -> Iterator[StateChanges]:
        """Yield every change from a counter on.

        Several in quick succession may be yielded as one.
        """
        while True:
            found = self.wait(since, None)
            if found is not None:
                since = found.counter
                yield found

    @contextmanager
    def listening(
        self, wake: Callable[[], object]
    ) -> Iterator[Callable[[int], StateChanges | None]]:
        """Call ``wake`` after each commit that may change the state, within the block.

        Yields a function that returns the changes since a counter; None: none.
        """
        notifier = self._store.notifier
        topic = NAMES
        notifier.subscribe(topic, wake)

        def look(since: int) -> StateChanges | None:
            nonlocal topic
            while True:
                place, found = self._store.read(lambda txn: self._look(txn, since))
                wanted = NAMES if place is None else header_key(*place)
                if wanted == topic:
                    return found
                notifier.subscribe(wanted, wake)
                notifier.unsubscribe(topic, wake)
                topic = wanted  # look once more: it may have changed before anyone listened

        try:
            yield look
        finally:
            with suppress(ValueError, KeyError):  # the process was forked meanwhile
                notifier.unsubscribe(topic, wake)

    def _look(self, txn: ReadTxn, since: int) -> tuple[Place | None, StateChanges | None]:
        place = self._find(txn)
        counter = self._counter(txn, place)
        if counter == since:
            return place, None
        if place is None:
            return place, StateChanges(0, (), (), is_complete=False)
        # A counter that decreased is that of another session of the name.
        is_known, written, deleted = changed_since(txn, *place, since if since < counter else 0)
        is_known = is_known and since < counter
        return place, StateChanges(counter, tuple(written), tuple(deleted), is_known)


# --- Common base of state handles: fields read, changed and watched -------------------------------


class FieldsChange(Protocol):
    """Protocol of a change that one commit writes to a state."""

    request: StateRequest | None

    def update(
        self, update: Update | Iterable[Update], *, schema: Any = None, trace: Trace | None = None
    ) -> None:
        """Add one step."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete the values of fields."""

    def clear(self) -> None:
        """Delete the values of all fields."""

    def tell(self) -> None:
        """Call the traces; to be called after the commit."""


C = TypeVar("C", bound=FieldsChange)


class Fields(ABC, Generic[C]):
    """A read-only mapping of fields to JSON values, with methods that change it."""

    __slots__ = ()

    # --- what a state of its own kind brings ------------------------------------------------------

    @property
    @abstractmethod
    def label(self) -> str:
        """The owner of the state, for messages."""

    @property
    @abstractmethod
    def watching(self) -> Watching:
        """The watch on its changes (for memcore's own adapters)."""

    @abstractmethod
    def plan(self, expected: int | None = None) -> C:
        """An empty change, to be filled and then stored by ``closure``."""

    @abstractmethod
    def _value(self, key: str) -> tuple[Any] | None: ...

    @abstractmethod
    def _commit(self, change: C) -> int: ...

    # --- reading ----------------------------------------------------------------------------------

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
            msg = f"the state of {self.label} has no value for {key!r:.80}"
            raise NotFoundError(msg)
        return found[0]

    def __contains__(self, key: object) -> bool:
        try:
            return self._value(key) is not None  # type: ignore[arg-type]
        except InvalidUpdateError:  # what cannot be a name is none of them
            return False

    @abstractmethod
    def __iter__(self) -> Iterator[str]: ...

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return True  # an empty state is a state all the same

    # --- changing ---------------------------------------------------------------------------------

    def put(
        self,
        key: str,
        value: Any,
        *,
        expected: int | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Set a field; as ``update`` with this one write."""
        return self.update({key: value}, expected=expected, idempotency_key=idempotency_key)

    def update(
        self,
        update: Update | Iterable[Update],
        *,
        schema: Any = None,
        expected: int | None = None,
        trace: Trace | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Apply one step and store it; return the counter after it (the same if nothing changed).

        Other fields stay. All that is written is stored in one commit; if a session's handle writes
        fields of other prefixes with its own, the counter is that of its own.

        Reducers run inside the write transaction, on the values that are there then, and maybe more
        than once: they must be pure.

        Args:
            update: a mapping, a Command, or a list of them: the writers of the step.
            schema: the fields and reducers, in place of those that the session was opened with.
            expected: do it only if the state is at this counter.
            trace: gets a Reduction for every call of a reducer, once it is stored.
            idempotency_key: the same key with the same update is stored once, within a week, and
                returns the first counter. A session comes into being with it.

        Raises:
            InvalidUpdateError: see ``StateSchema.apply``; or a value is no JSON or too large.
            DuplicateRequestError: the key was used for another update.
            RevisionConflict: the state is not at ``expected``; ``current`` is its counter.
            StateSchemaError, ReadOnlyError, ClosedError, StorageError
        """
        change = self.plan(expected)
        change.update(update, schema=schema, trace=trace)
        change.request = asked(idempotency_key, update)
        return self._commit(change)

    def delete(self, *fields: str, expected: int | None = None) -> int:
        """Delete the values of fields; return the counter after it."""
        change = self.plan(expected)
        change.delete(fields)
        return self._commit(change)

    def replace(self, values: Mapping[str, Any], *, expected: int | None = None) -> int:
        """Make these the only fields; return the counter after it. Of a session, its own fields."""
        change = self.plan(expected)
        change.clear()
        change.update(values)
        return self._commit(change)

    def clear(self, *, expected: int | None = None) -> int:
        """Delete all values, of a session those of its own; return the counter after it."""
        change = self.plan(expected)
        change.clear()
        return self._commit(change)

    # --- watching ---------------------------------------------------------------------------------

    def wait(
        self, *, since: int | None = None, timeout_seconds: float | None = None
    ) -> StateChanges | None:
        """Wait for a change since a counter; of a session, a change of its own fields.

        A commit of this process wakes the call at once; those of other processes are polled for
        four times a second.

        Args:
            since: the counter; None: the current one.
            timeout_seconds: the longest time to wait; None: no limit.

        Returns:
            The changes; None if there was none in time.
        """
        watching = self.watching
        return watching.wait(watching.since(since), timeout_seconds)

    def watch(self, *, since: int | None = None) -> Iterator[StateChanges]:
        """Yield every change from a counter on (None: from now), as ``wait`` returns it.

        Endless.
        """
        watching = self.watching
        return watching.run(watching.since(since))


# --- The state that sessions share: what ``scope.state`` and ``scope.app_state`` are --------------

Once: TypeAlias = Callable[[Callable[[Txn], int], str, bytes], Callable[[Txn], int]]
"""Makes a closure that is carried out once of one, an idempotency key and its content."""


class SharedState(Fields[StateChange]):
    """Fields and JSON values of a user, or of an application: current values, without a history.

    Every commit that changes a field gives the state its next *counter*. Names are without prefix
    here; the sessions that share the state see its fields as ``user:NAME`` or ``app:NAME``.
    """

    __slots__ = ("_ensure", "_find", "_label", "_once", "_scope_filter", "_store")

    def __init__(
        self,
        store: Store,
        find: Callable[[ReadTxn], int | None],
        ensure: Callable[[Txn], int],
        *,
        label: str,
        once: Once | None = None,
        scope_filter: ScopeFilter | None = None,
    ) -> None:
        self._once = once
        self._scope_filter = scope_filter
        self._store = store
        self._find = find
        self._ensure = ensure
        self._label = label

    def __repr__(self) -> str:
        return f"SharedState({self._label})"

    @property
    def label(self) -> str:
        """The owner of the state, for messages."""
        return self._label

    # --- reading ----------------------------------------------------------------------------------

    @property
    def counter(self) -> int:
        """The number of the last change, with which ``expected`` is compared."""
        return self._store.read(lambda txn: read_header(txn, self._scope(txn), 0).counter)

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.read(lambda txn: fields_at(txn, self._scope(txn), 0)))

    def all(self) -> dict[str, Any]:
        """Every field that has a value, with it, in the order of their names; one snapshot."""
        return self._store.read(self.read)

    def read(self, txn: ReadTxn) -> dict[str, Any]:
        """``all`` as a transaction of its store sees it."""
        found = values_at(txn, self._scope(txn), 0)
        return {key: version.value() for key, version in found.items()}

    def _value(self, key: str) -> tuple[Any] | None:
        packed_field(key)

        def look(txn: ReadTxn) -> tuple[Any] | None:
            place = self._scope(txn), 0
            version = value_at(txn, *place, key, read_header(txn, *place).counter)
            return None if version is None else (version.value(),)

        return self._store.read(look)

    def _scope(self, txn: ReadTxn) -> int:
        return self._find(txn) or 0  # no scope has this number

    # --- changing ---------------------------------------------------------------------------------

    def plan(self, expected: int | None = None) -> StateChange:
        """An empty change, to be filled and then stored by ``closure``."""
        scope_filter = self._scope_filter
        shown = "" if scope_filter is None else USER if scope_filter.user else APP
        change = StateChange(None, scope_filter=scope_filter, shown=shown)
        change.expect(expected)
        return change

    def closure(self, change: StateChange) -> Callable[[Txn], int]:
        """The transaction closure that stores a change and returns the counter after it."""

        def work(txn: Txn) -> int:
            writer = change.prepare(txn, self._scope(txn), 0)
            return writer.header.counter if writer.is_idle else writer.write(self._ensure(txn))

        if change.request is None:
            return work
        if self._once is None:
            raise InternalError("this state was opened without requests")
        return self._once(work, *change.request)

    # --- watching ---------------------------------------------------------------------------------

    @property
    def watching(self) -> Watching:
        """The watch on its changes (for memcore's own adapters)."""

        def find(txn: ReadTxn) -> tuple[int, int] | None:
            scope = self._find(txn)
            return None if scope is None else (scope, 0)

        return Watching(self._store, find)

    def _commit(self, change: StateChange) -> int:
        counter = self._store.transact(self.closure(change))
        change.tell()
        return counter


def store_of(state: SharedState) -> Store:
    """The open store that holds a state (for memcore's own adapters)."""
    return state._store  # noqa: SLF001 - this module's
