"""The state that sessions share: what ``scope.state`` and ``scope.app_state`` are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from memcore.errors import InvalidUpdateError, NotFoundError
from memcore.state.change import StateChange
from memcore.state.rows import fields_at, packed_field, read_header, value_at, values_at
from memcore.state.trace import Trace
from memcore.state.update import Update
from memcore.state.watching import StateChanges, Watching
from memcore.store.base import ReadTxn, Store, Txn

__all__ = ["SharedState"]


class SharedState:
    """Fields and JSON values of a user, or of an application: the values of now, without a past.

    Every commit that changes a field gives the state its next *counter*. Names are without prefix
    here; the sessions that share the state see its fields as ``user:NAME`` or ``app:NAME``.
    """

    __slots__ = ("_ensure", "_find", "_label", "_store")

    def __init__(
        self,
        store: Store,
        find: Callable[[ReadTxn], int | None],
        ensure: Callable[[Txn], int],
        *,
        label: str,
    ) -> None:
        self._store = store
        self._find = find
        self._ensure = ensure
        self._label = label

    def __repr__(self) -> str:
        return f"SharedState({self._label})"

    @property
    def store(self) -> Store:
        """The open store that it lies in."""
        return self._store

    # --- reading ----------------------------------------------------------------------------------

    @property
    def counter(self) -> int:
        """The number of the last change; what ``expected`` is compared with."""
        return self._store.read(lambda txn: read_header(txn, self._scope(txn), 0).counter)

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
            msg = f"the state of {self._label} has no value for {key!r:.80}"
            raise NotFoundError(msg)
        return found[0]

    def __contains__(self, key: object) -> bool:
        try:
            return self._value(key) is not None  # type: ignore[arg-type]
        except InvalidUpdateError:  # what cannot be a name is none of them
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.read(lambda txn: fields_at(txn, self._scope(txn), 0)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return True  # an empty state is a state all the same

    def all(self) -> dict[str, Any]:
        """Every field that has a value, with it, in the order of their names; one snapshot."""
        return self._store.read(self.read)

    def read(self, txn: ReadTxn) -> dict[str, Any]:
        """``all`` as a transaction of ``store`` sees it."""
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

    def put(self, key: str, value: Any, *, expected: int | None = None) -> int:
        """Give a field a value; the counter after it (the same if nothing changed).

        Raises:
            InvalidUpdateError: the value is no JSON, or too large.
            RevisionConflict: the state is not at ``expected``; ``current`` is its counter.
            ReadOnlyError, ClosedError, StorageError
        """
        return self.update({key: value}, expected=expected)

    def update(
        self,
        update: Update | Iterable[Update],
        *,
        schema: Any = None,
        expected: int | None = None,
        trace: Trace | None = None,
    ) -> int:
        """Apply one step and store it; other fields stay. Arguments as ``SessionState.update``.

        Raises:
            InvalidUpdateError, StateSchemaError, RevisionConflict, ReadOnlyError, StorageError
        """
        change = self.plan(expected)
        change.update(update, schema=schema, trace=trace)
        return self._commit(change)

    def delete(self, *fields: str, expected: int | None = None) -> int:
        """Take the values of fields away; the counter after it."""
        change = self.plan(expected)
        change.delete(fields)
        return self._commit(change)

    def replace(self, values: Mapping[str, Any], *, expected: int | None = None) -> int:
        """Make these the only fields; the counter after it."""
        change = self.plan(expected)
        change.clear()
        change.update(values)
        return self._commit(change)

    def clear(self, *, expected: int | None = None) -> int:
        """Take all values away; the counter after it."""
        change = self.plan(expected)
        change.clear()
        return self._commit(change)

    def plan(self, expected: int | None = None) -> StateChange:
        """A change that is to be filled, then stored by ``closure``."""
        change = StateChange(None)
        change.expect(expected)
        return change

    def closure(self, change: StateChange) -> Callable[[Txn], int]:
        """What stores a change."""

        def work(txn: Txn) -> int:
            writer = change.prepare(txn, self._scope(txn), 0)
            return writer.header.counter if writer.is_idle else writer.write(self._ensure(txn))

        return work

    # --- watching ---------------------------------------------------------------------------------

    @property
    def watching(self) -> Watching:
        """What waits for its changes (for memcore's own facades)."""

        def find(txn: ReadTxn) -> tuple[int, int] | None:
            scope = self._find(txn)
            return None if scope is None else (scope, 0)

        return Watching(self._store, find)

    def wait(
        self, *, since: int | None = None, timeout_seconds: float | None = None
    ) -> StateChanges | None:
        """What changed since a counter, as soon as something did.

        A commit of this process wakes it; those of others are found four times a second.

        Args:
            since: the counter; None: that of now.
            timeout_seconds: how long to wait at most; None: without end.

        Returns:
            The changes; None if there was none in time.
        """
        watching = self.watching
        return watching.wait(watching.since(since), timeout_seconds)

    def watch(self, *, since: int | None = None) -> Iterator[StateChanges]:
        """Every change from a counter on (None: from now), each as ``wait`` tells it; endless."""
        watching = self.watching
        return watching.run(watching.since(since))

    def _commit(self, change: StateChange) -> int:
        counter = self._store.transact(self.closure(change))
        change.tell()
        return counter
