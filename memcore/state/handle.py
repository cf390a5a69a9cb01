"""The state that sessions share: what ``scope.state`` and ``scope.app_state`` are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from memcore.errors import InternalError
from memcore.privacy.border import Passage
from memcore.state.change import StateChange
from memcore.state.fields import Fields
from memcore.state.prefixes import APP, USER
from memcore.state.rows import fields_at, packed_field, read_header, value_at, values_at
from memcore.state.watching import Watching
from memcore.store.base import ReadTxn, Store, Txn

__all__ = ["SharedState", "store_of"]


Once: TypeAlias = Callable[[Callable[[Txn], int], str, bytes], Callable[[Txn], int]]
"""Makes a closure that is carried out once of one, an idempotency key and its content."""


class SharedState(Fields[StateChange]):
    """Fields and JSON values of a user, or of an application: the values of now, without a past.

    Every commit that changes a field gives the state its next *counter*. Names are without prefix
    here; the sessions that share the state see its fields as ``user:NAME`` or ``app:NAME``.
    """

    __slots__ = ("_ensure", "_find", "_label", "_once", "_passage", "_store")

    def __init__(
        self,
        store: Store,
        find: Callable[[ReadTxn], int | None],
        ensure: Callable[[Txn], int],
        *,
        label: str,
        once: Once | None = None,
        passage: Passage | None = None,
    ) -> None:
        self._once = once
        self._passage = passage
        self._store = store
        self._find = find
        self._ensure = ensure
        self._label = label

    def __repr__(self) -> str:
        return f"SharedState({self._label})"

    @property
    def label(self) -> str:
        """Whose state it is, for messages."""
        return self._label

    # --- reading ----------------------------------------------------------------------------------

    @property
    def counter(self) -> int:
        """The number of the last change; what ``expected`` is compared with."""
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
        """A change that is to be filled, then stored by ``closure``."""
        passage = self._passage
        shown = "" if passage is None else USER if passage.user else APP
        change = StateChange(None, passage=passage, shown=shown)
        change.expect(expected)
        return change

    def closure(self, change: StateChange) -> Callable[[Txn], int]:
        """What stores a change."""

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
        """What waits for its changes (for memcore's own facades)."""

        def find(txn: ReadTxn) -> tuple[int, int] | None:
            scope = self._find(txn)
            return None if scope is None else (scope, 0)

        return Watching(self._store, find)

    def _commit(self, change: StateChange) -> int:
        counter = self._store.transact(self.closure(change))
        change.tell()
        return counter


def store_of(state: SharedState) -> Store:
    """The open store that a state lies in (for memcore's own facades)."""
    return state._store  # noqa: SLF001 - this module's
