"""A change of all that a session sees as its state: its own fields and those that it shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from memcore.errors import InvalidUpdateError
from memcore.options import checked_callable
from memcore.privacy.border import Passage
from memcore.state.asked import Asked
from memcore.state.change import StateChange, too_deep
from memcore.state.prefixes import APP, TEMPORARY, USER, prefix_of
from memcore.state.schema import OPEN, StateSchema, state_schema
from memcore.state.trace import Trace
from memcore.state.update import (
    MISSING,
    Merge,
    Update,
    Write,
    fields_of,
    merged,
    overwritten,
    writes_of,
)
from memcore.store.base import ReadTxn, Txn

__all__ = ["ScopedChange", "Scopes"]


class Scopes(Protocol):
    """Where the state of a user, and that of an application, lie."""

    def find_scope(self, txn: ReadTxn, prefix: str) -> int | None:
        """The scope of what a prefix says; None: nothing was ever stored in it."""

    def ensure_scope(self, txn: Txn, prefix: str) -> int:
        """As ``find_scope``; it makes the scope."""


class ScopedChange:
    """Steps on fields whose prefixes say whose they are; all are stored in one commit, or none.

    Temporary fields are the handle's: it gets them once the rest is stored.
    """

    __slots__ = ("_later", "_schema", "_temporary", "app", "own", "request", "user")

    def __init__(
        self,
        schema: StateSchema | None,
        temporary: dict[str, Any],
        passage: Passage | None = None,
    ) -> None:
        self._schema = schema or OPEN
        self._temporary = temporary
        user, app = (None, None) if passage is None else passage.shared
        self.own = StateChange(schema, passage=passage)
        self.user = StateChange(schema, prefix=USER, passage=user)
        self.app = StateChange(schema, prefix=APP, passage=app)
        self.request: Asked | None = None
        """As of a ``StateChange``."""
        self._later: list[Callable[[], object]] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was asked for."""
        return not self._later and self.is_temporary

    @property
    def is_temporary(self) -> bool:
        """Whether nothing is to be stored."""
        return self.own.is_empty and self.is_own

    @property
    def is_own(self) -> bool:
        """Whether nothing that is shared is changed."""
        return self.user.is_empty and self.app.is_empty

    @property
    def writes(self) -> bool:
        """Whether it may give a field of the session a value: then it may begin one."""
        return self.own.writes

    def expect(self, counter: int | None) -> None:
        """As ``StateChange.expect``, of the session's own counter."""
        self.own.expect(counter)

    def check(self, current: int) -> None:
        """As ``StateChange.check``, of the session's own counter."""
        self.own.check(current)

    def update(
        self,
        update: Update | Iterable[Update],
        *,
        schema: Any = None,
        trace: Trace | None = None,
    ) -> None:
        """As ``StateChange.update``."""
        by = self._schema if schema is None else state_schema(schema)
        self._write(writes_of(update), by, trace)

    def apply(self, command: Any, *, trace: Trace | None = None) -> None:
        """The fields of a Command."""
        self._write(fields_of(command), self._schema, trace)

    def _write(self, writes: list[Write], by: StateSchema, trace: Trace | None) -> None:
        checked_callable("trace", trace)
        parts: dict[str, list[Write]] = {"": [], USER: [], APP: [], TEMPORARY: []}
        for write in writes:
            parts[prefix_of(write[0])].append(write)
        changes = (self.own, self.user, self.app)
        kept = [
            change.kept(parts[prefix], by)
            for change, prefix in zip(changes, ("", USER, APP), strict=True)
        ]
        for key, value in parts[TEMPORARY]:
            self._keep_temporary(key, value)
        for change, found in zip(changes, kept, strict=True):
            change.write(found, by, trace)

    def _keep_temporary(self, key: str, value: Any) -> None:
        if key == TEMPORARY:
            msg = f"a field of the state has a name: {key!r} is a prefix, expected a name behind it"
            raise InvalidUpdateError(msg, key=key)
        given = overwritten(value, reduced=False)
        value = value if given is None else given[0]
        if isinstance(value, Merge):
            try:
                merged(None, value.entries)  # what is wrong is refused before the rest is stored
            except RecursionError as exc:
                raise too_deep(key) from exc
        self._later.append(lambda: self._set_temporary(key, value))

    def _set_temporary(self, key: str, value: Any) -> None:
        found = self._temporary
        if value is MISSING:
            found.pop(key, None)
        elif isinstance(value, Merge):
            found[key] = merged(found.get(key), value.entries)
        else:
            found[key] = value

    def delete(self, names: Iterable[str]) -> None:
        """Fields that are to have no value any more."""
        listed = list(names)
        for change, prefix in ((self.own, ""), (self.user, USER), (self.app, APP)):
            change.delete([key for key in listed if prefix_of(key) == prefix])
        gone = [key for key in listed if prefix_of(key) == TEMPORARY]
        if gone:
            self._later.append(lambda: [self._temporary.pop(key, None) for key in gone])

    def clear(self) -> None:
        """No field of the session's own is to have a value any more."""
        self.own.clear()

    def run(self, txn: Txn, place: tuple[int, int] | None, scopes: Scopes, *, seq: int = 0) -> int:
        """Write what changes; the counter of the session's own state after it.

        Args:
            txn: the transaction.
            place: scope and session; None: there is no session, and nothing of its own is written.
            scopes: where the shared parts lie.
            seq: the session's next one.

        Raises:
            RevisionConflict, InvalidUpdateError: as ``StateChange.run``; nothing is written then.
        """
        ready = []
        own = None
        if place is not None:
            own = self.own.prepare(txn, *place)
        for change, prefix in ((self.user, USER), (self.app, APP)):
            if not change.is_empty:
                writer = change.prepare(txn, scopes.find_scope(txn, prefix) or 0, 0)
                if not writer.is_idle:
                    ready.append((writer, prefix))
        for writer, prefix in ready:
            writer.write(scopes.ensure_scope(txn, prefix))
        return 0 if own is None or place is None else own.write(place[0], seq=seq)

    def tell(self) -> None:
        """After the commit: the handle gets what is temporary, the traces what reducers did."""
        for step in self._later:
            step()
        for change in (self.own, self.user, self.app):
            change.tell()
