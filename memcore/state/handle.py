"""SharedState: the fields of a user or an application; the base of state handles; watches."""

from __future__ import annotations

import time
from _thread import allocate_lock
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from memcore.errors import InternalError, InvalidUpdateError, NotFoundError
from memcore.limits import STATE_LOOK_SECONDS
from memcore.options import checked_optional_int, checked_optional_seconds, refuse_copies
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
from memcore.store.commit import release
from memcore.store.interface import NAMES, ReadTxn, Store, Txn

__all__ = [
    "Fields",
    "FieldsChange",
    "SharedState",
    "StateChanges",
    "Watching",
    "store_of",
]


# --- Watching a state: changes since a counter, and waking the waiters ----------------------------

_now: Final = time.monotonic
Place = tuple[int, int]


class StateChanges(NamedTuple):
    """Changes of a state since a counter."""

    counter: int
    """The state's current counter; the next ``since``."""
    written: tuple[str, ...]
    """Names of the fields that were written, even if the value is the same as before."""
    deleted: tuple[str, ...]
    """Names of the fields that no longer have a value."""
    is_complete: bool
    """True if all deletions are known; if not, read ``all()`` instead."""


class Watching:
    """Watch on one state.

    ``find`` returns its scope and session, or None if the state does not exist yet.
    """

    __slots__ = ("_find", "_place", "_store")

    def __init__(self, store: Store, find: Callable[[ReadTxn], Place | None]) -> None:
        self._store = store
        self._find = find
        self._place: Place | None = None
        """Place of the state at the last look; a session made anew under its name has another."""

    def counter(self) -> int:
        """Return the current counter."""
        self._place, counter = self._store.read(self._current)
        return counter

    def _current(self, txn: ReadTxn) -> tuple[Place | None, int]:
        place = self._find(txn)
        return place, 0 if place is None else read_header(txn, *place).counter

    def since(self, counter: int | None) -> int:
        """Return the counter at which a watch starts; the current one if ``counter`` is None.

        Raises:
            InvalidOptionError: it is not a counter.
        """
        checked_optional_int("since", counter)
        return self.counter() if counter is None else counter

    def wait(self, since: int, timeout_seconds: float | None) -> StateChanges | None:
        """Block until something has changed since a counter.

        Returns:
            The changes; None on timeout.
        """
        checked_optional_seconds("timeout_seconds", timeout_seconds, may_be_0=True)  # 0 looks once
        until = None if timeout_seconds is None else _now() + timeout_seconds
        # Not an Event: whoever commits calls the listener, and has the lead; an interrupt in
        # ``Event.set`` may leave the Event locked, where its next call would wait for ever.
        bell = allocate_lock()
        bell.acquire()
        with self.listening(partial(release, bell)) as look:
            while True:
                bell.acquire(False)
                found = look(since)
                left = STATE_LOOK_SECONDS if until is None else until - _now()
                if found is not None or left <= 0:
                    return found
                bell.acquire(True, min(left, STATE_LOOK_SECONDS))

    def run(self, since: int) -> Iterator[StateChanges]:
        """Yield every change from a counter on.

        Changes in quick succession may be combined into one.
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

        Yields a function that returns the changes since a counter, or None if there are none.
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
                    self._place = place
                    return found
                notifier.subscribe(wanted, wake)
                notifier.unsubscribe(topic, wake)
                topic = wanted  # check again: it may have changed before the subscription

        try:
            yield look
        finally:
            with suppress(ValueError, KeyError):  # the process was forked in the meantime
                notifier.unsubscribe(topic, wake)

    def _look(self, txn: ReadTxn, since: int) -> tuple[Place | None, StateChanges | None]:
        place, counter = self._current(txn)
        is_other = None not in (place, self._place) and place != self._place
        if counter == since and not is_other:
            return place, None
        if place is None:
            return place, StateChanges(0, (), (), is_complete=False)
        # A counter that decreased is that of a new session with the same name, too.
        is_same = since < counter and not is_other
        is_known, written, deleted = changed_since(txn, *place, since if is_same else 0)
        is_known = is_known and is_same
        return place, StateChanges(counter, tuple(written), tuple(deleted), is_known)


# --- Common base of state handles: fields read, changed and watched -------------------------------


class FieldsChange(Protocol):
    """Protocol of a change to a state, written by one commit."""

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
        """Call the traces; must be called after the commit."""


C = TypeVar("C", bound=FieldsChange)


class Fields(ABC, Generic[C]):
    """A read-only mapping of fields to JSON values, with methods that change it."""

    __slots__ = ()
    __reduce__ = refuse_copies

    # --- implemented by each kind of state --------------------------------------------------------

    @property
    @abstractmethod
    def label(self) -> str:
        """Owner of the state, for messages."""

    @property
    @abstractmethod
    def watching(self) -> Watching:
        """Watch on its changes (for memcore's own adapters)."""

    @abstractmethod
    def plan(self, expected: int | None = None) -> C:
        """Create an empty change, to be filled and then stored by ``closure``."""

    @abstractmethod
    def _value(self, key: str) -> tuple[Any] | None: ...

    @abstractmethod
    def _commit(self, change: C) -> int: ...

    # --- reading ----------------------------------------------------------------------------------

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a field, or ``default`` if it has none.

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
        except InvalidUpdateError:  # an invalid name is not a field
            return False

    @abstractmethod
    def __iter__(self) -> Iterator[str]: ...

    def keys(self) -> list[str]:
        """Return the names of the fields, so that ``dict(state)`` copies them."""
        return list(self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return True  # an empty state still exists

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
        packed_field(key)
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
        """Apply one step and store it; return the counter after it (unchanged if nothing changed).

        Other fields keep their values. Everything is stored in one commit. If a session's handle
        also writes fields with other prefixes, the returned counter is that of its own state.

        Reducers run inside the write transaction, on the values current at that time, and possibly
        more than once: they must be pure.

        Args:
            update: a mapping, a Command, or a list of them: the writers of the step. None, which a
                node returns that has no update, changes nothing.
            schema: fields and reducers, instead of those that the session was opened with.
            expected: apply the step only if the state is at this counter.
            trace: receives a Reduction for every call of a reducer, once the step is stored.
            idempotency_key: within a week, repeating the same update with the same key stores it
                only once and returns the counter of the first call. A call with a key creates the
                session.

        Raises:
            InvalidUpdateError: see ``StateSchema.apply``; or a value is not JSON or is too large.
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
        """Replace all fields with these, for a session only its own; return the counter after."""
        change = self.plan(expected)
        change.clear()
        change.update(values)
        return self._commit(change)

    def clear(self, *, expected: int | None = None) -> int:
        """Delete all values, for a session only its own; return the counter after it."""
        change = self.plan(expected)
        change.clear()
        return self._commit(change)

    # --- watching ---------------------------------------------------------------------------------

    def wait(
        self, *, since: int | None = None, timeout_seconds: float | None = None
    ) -> StateChanges | None:
        """Wait for a change since a counter; for a session, a change of its own fields.

        A commit of this process wakes the call immediately; commits of other processes are polled
        for four times a second.

        Args:
            since: the counter; None: the current one.
            timeout_seconds: maximum time to wait; 0: only look; None: no limit.

        Returns:
            The changes; None on timeout.
        """
        watching = self.watching
        return watching.wait(watching.since(since), timeout_seconds)

    def watch(self, *, since: int | None = None) -> Iterator[StateChanges]:
        """Yield every change from a counter on (None: from now), as ``wait`` returns it.

        The iterator is infinite.
        """
        watching = self.watching
        return watching.run(watching.since(since))


# --- The state that sessions share: ``scope.state`` and ``scope.app_state`` -----------------------

Once: TypeAlias = Callable[[Callable[[Txn], int], str, bytes], Callable[[Txn], int]]
"""Makes a closure idempotent, given the closure, an idempotency key and its content."""


class SharedState(Fields[StateChange]):
    """Fields and JSON values of a user or an application: current values, without a history.

    Every commit that changes a field advances the state's *counter*. Names have no prefix here; the
    sessions that share the state see its fields as ``user:NAME`` or ``app:NAME``.
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
        """Owner of the state, for messages."""
        return self._label

    # --- reading ----------------------------------------------------------------------------------

    @property
    def counter(self) -> int:
        """Number of the last change, with which ``expected`` is compared."""
        return self._store.read(lambda txn: read_header(txn, self._scope(txn), 0).counter)

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.read(lambda txn: fields_at(txn, self._scope(txn), 0)))

    def all(self) -> dict[str, Any]:
        """Return all fields that have a value, ordered by name, from one snapshot."""
        return self._store.read(self.read)

    def read(self, txn: ReadTxn) -> dict[str, Any]:
        """Return ``all`` as seen by a transaction of its store."""
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
        """Create an empty change, to be filled and then stored by ``closure``."""
        scope_filter = self._scope_filter
        shown = "" if scope_filter is None else USER if scope_filter.user else APP
        change = StateChange(None, scope_filter=scope_filter, shown=shown)
        change.expect(expected)
        return change

    def closure(self, change: StateChange) -> Callable[[Txn], int]:
        """Make the transaction closure that stores a change and returns the counter after it."""

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
        """Watch on its changes (for memcore's own adapters)."""

        def find(txn: ReadTxn) -> tuple[int, int] | None:
            scope = self._find(txn)
            return None if scope is None else (scope, 0)

        return Watching(self._store, find)

    def _commit(self, change: StateChange) -> int:
        counter = self._store.transact(self.closure(change))
        change.tell()
        return counter


def store_of(state: SharedState) -> Store:
    """Return the open store that holds a state (for memcore's own adapters)."""
    return state._store  # noqa: SLF001 - this module's
