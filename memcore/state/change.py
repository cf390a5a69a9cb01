"""Changes of a state, prepared before the commit that writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from memcore.codec import keys
from memcore.codec.values import decode_json, encode_json, plain_json
from memcore.errors import CorruptValueError, InvalidUpdateError, RevisionConflict
from memcore.limits import STATE_DELETIONS_TOLD, STATE_VALUE_BYTES_MAX
from memcore.options import checked_callable, checked_optional_int
from memcore.privacy.write_filter import ScopeFilter
from memcore.records import record
from memcore.state.rows import (
    fields_at,
    forget_deletions,
    packed_field,
    put_moment,
    put_version,
    read_header,
    version_at,
    write_header,
)
from memcore.state.schema import (
    APP,
    MISSING,
    OPEN,
    TEMPORARY,
    USER,
    Delete,
    Merge,
    Overwrite,
    Reduction,
    StateRequest,
    StateSchema,
    Trace,
    Update,
    Write,
    copied,
    fields_of,
    merged,
    overwritten,
    prefix_of,
    state_schema,
    writes_of,
)
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "ScopedChange",
    "Scopes",
    "StateChange",
    "admitted_write",
    "too_deep",
]


# --- Content filter of state values: judged and redacted where the change is made -----------------


def admitted_write(scope_filter: ScopeFilter, name: str, value: Any) -> Any:
    """Filter a write to a field; ``name`` is the field's name with its full prefix.

    A value for a reducer that is not JSON is only judged here; the reducer's result is redacted
    when it is stored.

    Raises:
        BlockedError: a guard refuses it.
    """
    if value is Delete:
        scope_filter.judge(None, "state", name=name)
        return value
    if isinstance(value, Overwrite):
        return Overwrite(admitted_write(scope_filter, name, value.value))
    if isinstance(value, Merge):
        return Merge(_entries(scope_filter, name, value.entries))
    with suppress(TypeError, ValueError, RecursionError):  # raised again when it is encoded
        plain = plain_json(value)
        return scope_filter.value(plain, "state", name=name, under=name[len(prefix_of(name)) :])
    scope_filter.judge(value, "state", name=name)
    return value


def _entries(scope_filter: ScopeFilter, name: str, entries: Any) -> Any:
    if not isinstance(entries, Mapping):
        return entries  # rejected when it is merged
    return {
        key: _entries(scope_filter, name, entry)
        if isinstance(entry, Mapping)
        else _entry(scope_filter, name, key, entry)
        for key, entry in entries.items()
    }


def _entry(scope_filter: ScopeFilter, name: str, key: Any, entry: Any) -> Any:
    admitted = admitted_write(scope_filter, name, entry)
    return (
        admitted
        if admitted is Delete or not isinstance(key, str)
        else _named(scope_filter, key, admitted)
    )


def _named(scope_filter: ScopeFilter, key: str, entry: Any) -> Any:
    """Filter an entry again by its key in a Merge, which may classify it."""
    with suppress(TypeError, ValueError, RecursionError):
        return scope_filter.again(plain_json(entry), key)
    return entry


# --- A change of one state: written in one commit, and prepared before it -------------------------

_Stored = tuple[bytes, int] | None
"""Body and flags of a value; None: no value."""
_DAMAGED: Final[_Stored] = (b"", -1)
"""Differs from every value."""


@record(frozen=True, slots=True)
class _Ready:
    """A value in its stored form, decoded only for a reducer."""

    body: bytes
    flags: int

    def value(self) -> Any:
        return decode_json(self.body, self.flags)


class StateChange:
    """Steps on one state; ``run`` may be called again for a retry.

    Reducers run inside the write transaction, on its values. All names begin with ``prefix``, as
    in the schema and in messages; rows omit it. Values pass through ``scope_filter``, which gets
    field names with ``shown`` prepended.
    """

    __slots__ = (
        "_expected",
        "_prefix",
        "_schema",
        "_scope_filter",
        "_shown",
        "_steps",
        "_traced",
        "request",
        "writes",
    )

    def __init__(
        self,
        schema: StateSchema | None,
        *,
        prefix: str = "",
        scope_filter: ScopeFilter | None = None,
        shown: str = "",
    ) -> None:
        self._schema = schema or OPEN
        self._scope_filter = scope_filter
        self._shown = shown
        self._prefix = prefix
        self._steps: list[Callable[[StateWriter], None]] = []
        self._expected: list[int] = []
        self._traced: list[tuple[Trace, Reduction]] = []
        self.request: StateRequest | None = None
        """Idempotency key and content of the change; None: not idempotent."""
        self.writes = False
        """True if it may set a field, so that it may have to create the session."""

    @property
    def is_empty(self) -> bool:
        """True if there is no step and no expected counter."""
        return not self._steps and not self._expected

    def expect(self, counter: int | None) -> None:
        """Apply the change only if the state is at this counter."""
        checked_optional_int("expected", counter)
        if counter is not None:
            self._expected.append(counter)

    def update(
        self,
        update: Update | Iterable[Update],
        *,
        schema: Any = None,
        trace: Trace | None = None,
    ) -> None:
        """Add one step; its values are copied, so that later changes to them have no effect.

        Raises:
            InvalidUpdateError: it is not an update, or names an unknown field.
            StateSchemaError: ``schema`` is not a schema.
        """
        by = self._schema if schema is None else state_schema(schema)
        checked_callable("trace", trace)
        self.write(self.kept(writes_of(update), by), by, trace)

    def kept(self, writes: Iterable[Write], schema: StateSchema) -> list[Write]:
        """Prepare the writes of a step: encoded, or copied if there is a reducer.

        Does not modify this object.
        """
        kept: list[Write] = []
        for key, value in writes:
            self._packed(key)
            field = schema.field(key)
            if field.stored:
                if self._scope_filter is not None:
                    self._scope_filter.name(key, "name of a field")
                    value = admitted_write(self._scope_filter, self._shown + key, value)  # noqa: PLW2901
                is_final = field.reducer is None and value is not Delete
                kept.append((key, _final(key, value) if is_final else _kept(key, value)))
        return kept

    def write(self, kept: list[Write], schema: StateSchema, trace: Trace | None) -> None:
        """Add a step from writes that ``kept`` returned."""
        if kept:
            self.writes = True
            self._steps.append(lambda writer: writer.step(schema, kept, trace))

    def delete(self, names: Iterable[str]) -> None:
        """Delete the values of fields."""
        gone = list(names)
        for key in gone:
            self._packed(key)
            if self._scope_filter is not None:
                self._scope_filter.judge(None, "state", name=self._shown + key)
        if gone:
            self._steps.append(lambda writer: writer.delete(gone))

    def clear(self) -> None:
        """Delete the values of all fields."""
        if self._scope_filter is not None:
            self._scope_filter.judge(None, "state", name=f"{self._shown or self._prefix}*")
        self._steps.append(lambda writer: writer.delete(writer.fields()))

    def run(self, txn: Txn, scope: int, session: int, *, seq: int) -> int:
        """Write the changed fields; return the new counter. ``seq`` is the session's next seq.

        Raises:
            RevisionConflict: the state is not at the expected counter.
            InvalidUpdateError: the schema does not allow it, or a value is not JSON.
        """
        return self.prepare(txn, scope, session).write(scope, seq=seq)

    def prepare(self, txn: Txn, scope: int, session: int) -> StateWriter:
        """Do everything that ``run`` does except writing.

        Scope 0 stands for a scope that has not been created yet.
        """
        self._traced.clear()
        writer = StateWriter(txn, (scope, session), self._prefix, self._traced, self._scope_filter)
        self.check(writer.header.counter)
        for step in self._steps:
            step(writer)
        writer.settle()
        return writer

    def _packed(self, key: str) -> bytes:
        return packed_field(key, prefix=self._prefix)

    def check(self, current: int) -> None:
        """Compare the expected counters with the current one.

        Raises:
            RevisionConflict: one of them differs.
        """
        for expected in self._expected:
            if expected != current:
                msg = (
                    f"expected the state at counter {expected}, it is at {current}: read what was "
                    "written since and try again"
                )
                raise RevisionConflict(msg, expected=expected, current=current)

    def tell(self) -> None:
        """Call the traces with the reductions; must be called after the commit."""
        for trace, reduction in self._traced:
            trace(reduction)


class StateWriter:
    """One state in one transaction, with the steps that have not been written yet."""

    def __init__(
        self,
        txn: Txn,
        place: tuple[int, int],
        prefix: str,
        traced: list[tuple[Trace, Reduction]],
        scope_filter: ScopeFilter | None,
    ) -> None:
        self.header = read_header(txn, *place)
        self._txn = txn
        self._place = place
        self._prefix = prefix
        self._rows = keys.state_rows(*place)
        self._traced = traced
        self._scope_filter = scope_filter
        self._changed: dict[str, _Stored] = {}
        self._before: dict[str, _Stored] = {}
        self._damaged: dict[str, CorruptValueError] = {}
        """Fields whose value is unreadable; they can still be deleted and overwritten."""
        self._values: dict[str, Any] = {}
        """Values of the fields that were read and have one."""

    def step(self, schema: StateSchema, writes: list[Write], trace: Trace | None) -> None:
        """Apply one step."""
        for key, value in writes:
            self._load(key)
            is_reduced = schema.field(key).reducer is not None and overwritten(value) is None
            if not is_reduced and not isinstance(value, Merge):
                continue
            if key in self._damaged:
                raise self._damaged[key]
            found = self._values.get(key)
            if type(found) is _Ready:
                self._values[key] = found.value()
        for key, _ in writes:
            self._damaged.pop(key, None)

        def traced(reduction: Reduction) -> None:
            if trace is not None:
                self._traced.append((trace, reduction))

        # One update per write, as a field may be written several times.
        updates = [{key: value} for key, value in writes]
        self._values = schema.apply(self._values, updates, trace=None if trace is None else traced)

    def delete(self, names: list[str]) -> None:
        """Delete values."""
        for key in names:
            self._load(key)
            self._values.pop(key, None)

    def _load(self, key: str) -> None:
        if key in self._before:
            return
        try:
            version = version_at(self._txn, self._rows, self._packed(key), self.header.counter)
        except CorruptValueError as exc:
            self._damaged[key] = exc
            self._before[key] = _DAMAGED
            return
        self._before[key] = None if version is None else (version.body, version.flags)
        if version is not None:
            self._values[key] = _Ready(version.body, version.flags)

    def fields(self) -> list[str]:
        """Return the names of the fields that have a value, from the rows and the steps so far."""
        scope, session = self._place
        stored = (self._prefix + key for key in fields_at(self._txn, scope, session))
        return [*dict.fromkeys((*stored, *self._values))]

    def settle(self) -> None:
        """Determine the changed fields. This is the last step that may fail before any write."""
        for key, before in self._before.items():
            value = self._values.get(key, self)  # no value
            if type(value) is _Ready:
                after: _Stored = (value.body, value.flags)
            else:
                after = None if value is self else self._made(key, value)
            if after != before:
                self._changed[key] = after

    def _made(self, key: str, value: Any) -> tuple[bytes, int]:
        """Encode the result of a reducer or a merge, redacted."""
        body, flags = _encoded(key, value)
        if self._scope_filter is None:
            return body, flags
        plain = decode_json(body, flags)
        made = self._scope_filter.again(plain, key.removeprefix(self._prefix))
        return (body, flags) if made is plain else _encoded(key, made)

    @property
    def is_idle(self) -> bool:
        """True if no field changes."""
        return not self._changed

    def write(self, scope: int, *, seq: int = 0) -> int:
        """Append versions of the changed fields, all under the next counter; returns it.

        A shared state keeps no older versions; for a session's state, its next ``seq`` is recorded
        along with the counter.
        """
        header, session = self.header, self._place[1]
        if not self._changed:
            return header.counter
        txn, rows = self._txn, keys.state_rows(scope, session)
        counter = header.counter + 1
        for key, stored in self._changed.items():
            packed = self._packed(key)
            if not session:
                versions = keys.state_field(rows, packed)
                txn.delete_range(keys.numbered(versions, 0), keys.numbered(versions, counter))
            put_version(txn, rows, packed, counter, stored)
        header = header._replace(counter=counter)
        if not session and not counter % STATE_DELETIONS_TOLD:
            header = forget_deletions(txn, scope, header)
        write_header(txn, scope, session, header)
        if session:
            put_moment(txn, scope, session, seq, counter)
        return counter

    def _packed(self, key: str) -> bytes:
        return packed_field(key, prefix=self._prefix)


_WHAT: Final = "the value of state field"


def _encoded(key: str, value: Any) -> tuple[bytes, int]:
    try:
        body, flags = encode_json(value)
    except (ValueError, RecursionError) as exc:
        msg = f"{_WHAT} {key!r:.80} is no JSON: {exc}"
        raise InvalidUpdateError(msg, key=key) from exc
    if len(body) > STATE_VALUE_BYTES_MAX:
        msg = (
            f"{_WHAT} {key!r:.80} takes {len(body)} bytes: expected at most "
            f"{STATE_VALUE_BYTES_MAX}; put it into a blob and keep the address"
        )
        raise InvalidUpdateError(msg, key=key)
    return body, flags


def _final(key: str, value: Any) -> Any:
    """Prepare a write to a field without a reducer: an encoded value, or a Merge that is JSON."""
    given = overwritten(value, reduced=False)
    value = value if given is None else given[0]
    if isinstance(value, Merge):
        value = _kept(key, value)
        try:
            whole = merged(None, value.entries)
        except RecursionError as exc:
            raise too_deep(key) from exc
        _encoded(key, whole)
        return value
    return _Ready(*_encoded(key, value))


def _kept(key: str, value: Any) -> Any:
    """Return a copy of a value.

    Raises:
        InvalidUpdateError: it is circular, or nested too deep to traverse.
    """
    try:
        return copied(value)
    except RecursionError as exc:
        raise too_deep(key) from exc


def too_deep(key: str) -> InvalidUpdateError:
    """Return the error for a value that is circular or nested too deep to traverse."""
    msg = f"the value of field {key!r} is circular or nested too deep: flatten it"
    return InvalidUpdateError(msg, key=key)


# --- A change of everything that a session sees as its state: its own and its shared fields -------


class Scopes(Protocol):
    """Protocol that finds the scopes of a user's and an application's state."""

    def find_scope(self, txn: ReadTxn, prefix: str) -> int | None:
        """Return the scope of a prefix's owner; None if nothing was ever stored in it."""

    def ensure_scope(self, txn: Txn, prefix: str) -> int:
        """Return the scope of a prefix's owner, creating it if it is missing."""


class ScopedChange:
    """Steps on fields of several owners, by their prefixes, stored atomically in one commit.

    Temporary fields are kept in the handle, and are set once the rest is stored.
    """

    __slots__ = ("_later", "_schema", "_temporary", "app", "own", "request", "user")

    def __init__(
        self,
        schema: StateSchema | None,
        temporary: dict[str, Any],
        scope_filter: ScopeFilter | None = None,
    ) -> None:
        self._schema = schema or OPEN
        self._temporary = temporary
        user, app = (None, None) if scope_filter is None else scope_filter.shared
        self.own = StateChange(schema, scope_filter=scope_filter)
        self.user = StateChange(schema, prefix=USER, scope_filter=user)
        self.app = StateChange(schema, prefix=APP, scope_filter=app)
        self.request: StateRequest | None = None
        """As in ``StateChange``."""
        self._later: list[Callable[[], object]] = []

    @property
    def is_empty(self) -> bool:
        """True if there is no step and no expected counter."""
        return not self._later and self.is_temporary

    @property
    def is_temporary(self) -> bool:
        """True if nothing has to be stored."""
        return self.own.is_empty and self.is_own

    @property
    def is_own(self) -> bool:
        """True if no shared field is changed."""
        return self.user.is_empty and self.app.is_empty

    @property
    def writes(self) -> bool:
        """True if it may set a field of the session, so that it may have to create the session."""
        return self.own.writes

    def expect(self, counter: int | None) -> None:
        """Expect the session's own counter, as ``StateChange.expect`` does."""
        self.own.expect(counter)

    def check(self, current: int) -> None:
        """Check the session's own counter, as ``StateChange.check`` does."""
        self.own.check(current)

    def update(
        self,
        update: Update | Iterable[Update],
        *,
        schema: Any = None,
        trace: Trace | None = None,
    ) -> None:
        """Add one step, as ``StateChange.update`` does."""
        by = self._schema if schema is None else state_schema(schema)
        self._write(writes_of(update), by, trace)

    def apply(self, command: Any, *, trace: Trace | None = None) -> None:
        """Add the field writes of a Command as one step."""
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
            msg = f"a field of the state needs a name after the prefix {key!r}"
            raise InvalidUpdateError(msg, key=key)
        given = overwritten(value, reduced=False)
        value = value if given is None else given[0]
        if isinstance(value, Merge):
            try:
                merged(None, value.entries)  # reject errors before the rest is stored
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
        """Delete the values of fields."""
        listed = list(names)
        for change, prefix in ((self.own, ""), (self.user, USER), (self.app, APP)):
            change.delete([key for key in listed if prefix_of(key) == prefix])
        gone = [key for key in listed if prefix_of(key) == TEMPORARY]
        if gone:
            self._later.append(lambda: [self._temporary.pop(key, None) for key in gone])

    def clear(self) -> None:
        """Delete the values of all of the session's own fields."""
        self.own.clear()

    def run(self, txn: Txn, place: tuple[int, int] | None, scopes: Scopes, *, seq: int = 0) -> int:
        """Write the changed fields; return the counter of the session's own state after it.

        Args:
            txn: the transaction.
            place: scope and session; None: there is no session, so no own fields are written.
            scopes: finds the scopes of the shared parts.
            seq: the session's next seq.

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
        """Set the handle's temporary fields and call the traces; call it after the commit."""
        for step in self._later:
            step()
        for change in (self.own, self.user, self.app):
            change.tell()
