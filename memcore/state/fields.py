"""What every handle of a state offers: fields read, changed and watched, wherever they lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from memcore.errors import InvalidUpdateError, NotFoundError
from memcore.state.asked import Asked, asked
from memcore.state.trace import Trace
from memcore.state.update import Update
from memcore.state.watching import StateChanges, Watching

__all__ = ["Change", "Fields"]


class Change(Protocol):
    """What is to be written of a state in one commit."""

    request: Asked | None

    def update(
        self, update: Update | Iterable[Update], *, schema: Any = None, trace: Trace | None = None
    ) -> None:
        """One step."""

    def delete(self, names: Iterable[str]) -> None:
        """Fields that are to have no value any more."""

    def clear(self) -> None:
        """No field is to have a value any more."""

    def tell(self) -> None:
        """After the commit."""


C = TypeVar("C", bound=Change)


class Fields(ABC, Generic[C]):
    """Fields and JSON values, as a mapping that can be read, and by methods that change it."""

    __slots__ = ()

    # --- what a state of its own kind brings ------------------------------------------------------

    @property
    @abstractmethod
    def label(self) -> str:
        """Whose state it is, for messages."""

    @property
    @abstractmethod
    def watching(self) -> Watching:
        """What waits for its changes (for memcore's own facades)."""

    @abstractmethod
    def plan(self, expected: int | None = None) -> C:
        """A change that is to be filled, then stored by ``closure``."""

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
        """Give a field a value; as ``update`` of this one."""
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
        """Apply one step and store it; the counter after it (the same if nothing changed).

        Other fields stay. All that is written is stored in one commit; if a session's handle writes
        fields of other prefixes with its own, the counter is that of its own.

        Reducers run inside the write transaction, on the values that are there then, and maybe
        more than once: they must be pure.

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
        """Take the values of fields away; the counter after it."""
        change = self.plan(expected)
        change.delete(fields)
        return self._commit(change)

    def replace(self, values: Mapping[str, Any], *, expected: int | None = None) -> int:
        """Make these the only fields; the counter after it. A session's are its own fields."""
        change = self.plan(expected)
        change.clear()
        change.update(values)
        return self._commit(change)

    def clear(self, *, expected: int | None = None) -> int:
        """Take all values away, of a session those of its own; the counter after it."""
        change = self.plan(expected)
        change.clear()
        return self._commit(change)

    # --- watching ---------------------------------------------------------------------------------

    def wait(
        self, *, since: int | None = None, timeout_seconds: float | None = None
    ) -> StateChanges | None:
        """What changed since a counter, as soon as something did; of a session its own fields.

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
