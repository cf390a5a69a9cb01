"""StateSchema: fields, their reducers and scopes; updates of a state."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import field, replace
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    TypedDict,
    get_args,
    get_origin,
    get_type_hints,
)

from memcore.codec.values import encode_json
from memcore.errors import InvalidOptionError, InvalidUpdateError, StateSchemaError
from memcore.options import checked_idempotency_key, closest, shown
from memcore.records import record

__all__ = [
    "APP",
    "MISSING",
    "OPEN",
    "TEMPORARY",
    "USER",
    "Command",
    "Delete",
    "Field",
    "FieldReducer",
    "FileData",
    "Merge",
    "Omit",
    "OmitInput",
    "OmitOutput",
    "Overwrite",
    "Private",
    "Reduction",
    "StateRequest",
    "StateSchema",
    "Trace",
    "Update",
    "Write",
    "append_messages",
    "asked",
    "content_of",
    "copied",
    "is_shared",
    "merge_entries",
    "merged",
    "omission",
    "overwritten",
    "prefix_of",
    "read_field",
    "state_schema",
    "writes_of",
]


# --- Updates of a state: a mapping or a Command, and markers in place of values -------------------

_OVERWRITE: Final = "__overwrite__"
_PAIR: Final = 2

Write = tuple[str, Any]
"""A field name and the value written to it."""


@record(frozen=True, slots=True)
class Overwrite:
    """A value that replaces the stored one, bypassing the reducer of its field."""

    value: Any


@record(frozen=True, slots=True)
class Merge:
    """Entries merged recursively into the stored value; entries that it does not name are kept.

    A mapping is merged into a mapping; any other value, including None, replaces the current one;
    ``Delete`` removes an entry. Only a field without a reducer accepts a Merge.
    """

    entries: Mapping[str, Any]


class _Delete:
    """Marker in place of a value: the field or entry is deleted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Delete"

    def __reduce__(self) -> str:
        return "Delete"  # copying returns the object itself


Delete: Final = _Delete()
"""Marker in place of a field's value, or an entry in a ``Merge``, to delete it. None is a value."""
MISSING: Final = object()
"""Sentinel for a field without a value."""


@record(frozen=True, slots=True)
class Command:
    """A change of several fields, and messages for the log, in one commit: ``session.apply``."""

    update: Mapping[str, Any] = field(default_factory=dict)
    """Values to write, by field."""
    messages: Iterable[Mapping[str, Any]] = ()
    """Messages to append to the session."""


Update = Mapping[str, Any] | Command
"""The writes of one writer in one step.

An object with an ``update`` attribute, such as LangGraph's Command, is also accepted as a
Command."""


def overwritten(value: Any, *, reduced: bool = True) -> tuple[Any] | None:
    """Return an Overwrite's value as a 1-tuple (MISSING for Delete); None for any other value.

    LangGraph's Overwrite counts too; and if the field is ``reduced``, so do the dicts that
    represent it in JSON: ``{"__overwrite__": value}`` and ``{"type": "__overwrite__", "value":
    value}``. Without a reducer there is nothing to bypass, and those are ordinary values.
    """
    if isinstance(value, Overwrite):
        return (value.value,)
    if value is Delete:
        return (MISSING,)
    if isinstance(value, dict):
        return _overwritten_json(value) if reduced else None
    if type(value).__name__ == Overwrite.__name__ and hasattr(value, "value"):
        return (value.value,)
    return None


def _overwritten_json(value: dict[Any, Any]) -> tuple[Any] | None:
    if len(value) == 1 and _OVERWRITE in value:
        return (value[_OVERWRITE],)
    is_typed = value.get("type") == _OVERWRITE and "value" in value
    return (value["value"],) if is_typed else None


def merged(current: Any, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value with the entries of a Merge applied; ``current`` is not modified.

    Raises:
        InvalidUpdateError: ``entries`` is not a mapping.
    """
    if not isinstance(entries, Mapping):
        msg = f"Merge: expected a mapping of entries, got {type(entries).__name__}"
        raise InvalidUpdateError(msg)
    found = dict(current) if isinstance(current, Mapping) else {}
    for name, entry in entries.items():
        if entry is Delete:
            found.pop(name, None)
        elif isinstance(entry, Mapping):
            found[name] = merged(found.get(name), entry)
        else:
            found[name] = entry
    return found


def writes_of(update: Any) -> list[Write]:
    """Return the writes of one or several updates, in order.

    Raises:
        InvalidUpdateError: it is not a mapping, a Command or a list of them; or a Command has
            messages, which only a session can store.
    """
    if update is None:
        return []
    if isinstance(update, Mapping):
        return _checked(list(update.items()))
    if isinstance(update, list | tuple):
        return [write for each in update for write in writes_of(each)]
    if not hasattr(update, "update"):
        msg = f"update: expected a mapping, a Command or a list of them, got {_named(update)}"
        raise InvalidUpdateError(msg)
    if any(True for _ in getattr(update, "messages", None) or ()):
        msg = "a Command with messages changes a session: give it to session.apply()"
        raise InvalidUpdateError(msg)
    return fields_of(update)


def fields_of(command: Any) -> list[Write]:
    """Return the field writes of a Command, given as pairs or as a mapping.

    Raises:
        InvalidUpdateError: they are neither.
    """
    update = getattr(command, "update", None)
    is_one = hasattr(command, "update") or hasattr(command, "messages")
    if isinstance(command, Mapping) or not is_one:
        msg = f"command: expected a memcore.Command(update, messages), got {shown(command)}"
        raise InvalidUpdateError(msg)
    if update is None:
        return []
    if isinstance(update, Mapping):
        return _checked(list(update.items()))
    if isinstance(update, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == _PAIR for pair in update
    ):
        return _checked([(key, value) for key, value in update])
    msg = f"the update of a Command: expected a mapping, got {_named(update)}"
    raise InvalidUpdateError(msg)


def _checked(writes: list[Write]) -> list[Write]:
    for key, _ in writes:
        if not isinstance(key, str) or not key:
            msg = f"a field of the state has a name: expected a non-empty str, got {key!r:.40}"
            raise InvalidUpdateError(msg)
    return writes


def _named(value: object) -> str:
    return type(value).__name__


# --- Content of an idempotent update, by which a retry is recognised ------------------------------
# It is the same in every process: a value that JSON cannot represent is identified by its type.


class StateRequest(NamedTuple):
    """An idempotency key, and the canonical bytes of its update."""

    key: str
    content: bytes


def asked(key: Any, update: Update | Iterable[Update]) -> StateRequest | None:
    """Return the request of an update; None without a key.

    Raises:
        InvalidOptionError: the key is not a str, is empty or is too long.
        InvalidUpdateError: ``update`` is not an update.
    """
    return None if key is None else StateRequest(checked_idempotency_key(key), content_of(update))


def content_of(update: Update | Iterable[Update]) -> bytes:
    """Return the canonical bytes of an update's writes, the content of an idempotent request.

    Raises:
        InvalidUpdateError: it is not an update.
    """
    return b"".join(_said([key, _plain(value)]) + b"\n" for key, value in writes_of(update))


def _said(value: Any) -> bytes:
    try:
        return encode_json(value)[0]
    except (TypeError, ValueError, RecursionError):
        return encode_json([value[0], type(value[1]).__name__])[0]


def _plain(value: Any) -> Any:
    """Return a value as JSON; a marker becomes an object with an empty key."""
    if value is Delete or value is MISSING:
        return {"": "delete"}
    if isinstance(value, Merge):
        entries = value.entries
        return {"": ["merge", _entries(entries) if isinstance(entries, Mapping) else None]}
    given = overwritten(value, reduced=False)
    if given is None:
        # A value that looks like a marker is not one.
        return {"": ["value", value]} if isinstance(value, dict) and "" in value else value
    return {"": ["overwrite", _plain(given[0])]}


def _entries(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(name): _entries(entry) if isinstance(entry, Mapping) else _plain(entry)
        for name, entry in entries.items()
    }


# --- Copies of values, so that no reducer modifies stored ones ------------------------------------


def copied(value: Any) -> Any:
    """Return a copy that shares no mutable object with ``value``.

    JSON is copied directly, ten times as fast as ``copy.deepcopy``, which copies everything else.
    """
    kind = type(value)
    if kind is str or kind is int or value is None or kind is bool or kind is float:
        return value
    if kind is dict:
        return {key: copied(entry) for key, entry in value.items()}
    if kind is list:
        return [copied(entry) for entry in value]
    return deepcopy(value)


# --- Visibility of a field: marks in its annotation -----------------------------------------------


@record(frozen=True, slots=True)
class Omit:
    """Mark that hides a field from an agent's input or output."""

    input: bool = True
    """True: hidden from the agent's input."""
    output: bool = True
    """True: hidden from the agent's output."""


Private: Final = Omit()
"""Private to the agent: neither a parent nor a child agent sees the field."""
OmitInput: Final = Omit(output=False)
"""Part of the agent's output, but not of its input."""
OmitOutput: Final = Omit(input=False)
"""Part of the agent's input, but not of its output."""


def omission(mark: object) -> tuple[bool, bool] | None:
    """Return ``(input, output)`` of a mark; None for any other object.

    LangChain's ``OmitFromSchema`` (and therefore ``PrivateStateAttr``) has the same two attributes.
    """
    into, out = getattr(mark, "input", None), getattr(mark, "output", None)
    return (into, out) if isinstance(into, bool) and isinstance(out, bool) else None


# --- Trace of reducer calls -----------------------------------------------------------------------


@record(frozen=True, slots=True)
class Reduction:
    """One call of a reducer; the values are copies made at the time of the call."""

    key: str
    """Name of the field."""
    left: Any
    """Value before the call."""
    right: Any
    """Written value (a list of all writes of the step, if the reducer is batched)."""
    result: Any
    reducer: str
    """Name of the reducer."""


Trace = Callable[[Reduction], None]


# --- One field of a state, parsed from its annotation ---------------------------------------------

_OPERANDS: Final = 2
_CONCRETE: Final[dict[Any, type]] = {
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
}
"""Type of the initial value for a field of an abstract type, as in LangGraph."""


@record(frozen=True, slots=True)
class FieldReducer:
    """A function that combines a field's current value with a written one."""

    function: Callable[[Any, Any], Any]
    batched: bool = False
    """True if it takes the list of all writes of a step (LangGraph's DeltaChannel)."""

    @property
    def name(self) -> str:
        """Qualified name of the function, with its module."""
        function = self.function
        label = getattr(function, "__qualname__", None) or type(function).__qualname__
        return f"{getattr(function, '__module__', None) or type(function).__module__}.{label}"


@record(frozen=True, slots=True)
class Field:
    """A field: its type, visibility, and reducer."""

    name: str
    type: Any
    """Annotation without ``Annotated``, ``Required`` and ``NotRequired``."""
    required: bool = True
    reducer: FieldReducer | None = None
    """None: the last value wins, and a step may have only one writer."""
    omit_input: bool = False
    omit_output: bool = False
    stored: bool = True
    """True if sessions store it; false for fields that LangGraph calls ephemeral or untracked."""

    def merged(self, other: Field) -> Field:
        """Combine a field of two schemas: reduced, private or transient if either one is.

        Raises:
            StateSchemaError: they have different reducers.
        """
        mine, theirs = self.reducer, other.reducer
        if mine is not None and theirs is not None and mine != theirs:
            msg = (
                f"field {self.name!r} has two reducers, {mine.name} and {theirs.name}: give it "
                "the same one in all schemas, or another name in one of them"
            )
            raise StateSchemaError(msg)
        return replace(
            self,
            type=self.type if mine is not None or theirs is None else other.type,
            required=self.required or other.required,
            reducer=mine or theirs,
            omit_input=self.omit_input or other.omit_input,
            omit_output=self.omit_output or other.omit_output,
            stored=self.stored and other.stored,
        )

    def initial(self) -> Any:
        """Return the left operand of the first reduction: an empty value of the type.

        MISSING if the type has none.
        """
        kind = self.type
        kind = get_origin(kind) or kind
        kind = _CONCRETE.get(kind, kind)
        try:
            return kind()
        except Exception:  # noqa: BLE001 - callers' types may raise anything: no empty value
            return MISSING

    def written(self, current: Any, values: Sequence[Any], trace: Trace | None) -> Any:
        """Return the value after one step's writes; MISSING, here and as ``current``: no value.

        The arguments are not modified, and a reducer's result shares nothing with ``current``.

        Raises:
            InvalidUpdateError: several writers of a field that takes one, or two Overwrites.
        """
        told = [overwritten(value, reduced=self.reducer is not None) for value in values]
        found = [value for value in told if value is not None]
        if self.reducer is None:
            if len(values) > 1:
                msg = (
                    f"field {self.name!r} was written {len(values)} times in one step: it takes "
                    "one value; give it a reducer to combine several"
                )
                raise InvalidUpdateError(msg, key=self.name)
            value = found[0][0] if found else values[0]
            if isinstance(value, Merge):
                return merged(None if current is MISSING else copied(current), value.entries)
            return value
        if any(isinstance(value, Merge) for value in values):
            msg = f"field {self.name!r} has a reducer, which decides what is merged: write no Merge"
            raise InvalidUpdateError(msg, key=self.name)
        if len(found) > 1:
            msg = f"field {self.name!r} got {len(found)} Overwrites in one step: it takes one"
            raise InvalidUpdateError(msg, key=self.name)
        if found:
            return found[0][0]
        left = self.initial() if current is MISSING else copied(current)
        rights = [copied(value) for value in values]
        if self.reducer.batched:
            return self._reduced([] if left is MISSING else left, rights, trace)
        if left is MISSING:
            left = rights.pop(0)
        for right in rights:
            left = self._reduced(left, right, trace)
        return left

    def _reduced(self, left: Any, right: Any, trace: Trace | None) -> Any:
        reducer = self.reducer
        assert reducer is not None  # noqa: S101 - only called for fields with a reducer
        before = None if trace is None else (copied(left), copied(right))
        try:
            result = reducer.function(left, right)
        except Exception as exc:
            exc.add_note(f"in reducer {reducer.name} of state field {self.name!r}")
            raise
        if trace is not None and before is not None:
            trace(Reduction(self.name, *before, copied(result), reducer.name))
        return result


def read_field(name: str, hint: Any, *, required: bool) -> Field:
    """Parse a resolved annotation into a field.

    Args:
        name: name of the field.
        hint: the annotation, with its extras.
        required: True if the class requires it; ``Required`` and ``NotRequired`` take precedence.

    Raises:
        StateSchemaError: the last entry of the annotation is callable, but not a reducer.
    """
    marks: list[Any] = []
    while True:
        origin = get_origin(hint)
        if origin is Annotated:
            marks = [*hint.__metadata__, *marks]
            hint = hint.__origin__
        elif origin is Required or origin is NotRequired:
            required = origin is Required
            hint = get_args(hint)[0]
        elif origin is Final or _is_named(origin, "ReadOnly"):
            hint = get_args(hint)[0]
        elif _is_named(type(hint), "TypeAliasType"):  # ``type Secret = Annotated[str, Private]``
            hint = hint.__value__
        else:
            break
    omitted = [found for found in map(omission, marks) if found is not None]
    rest = [mark for mark in marks if omission(mark) is None]
    return Field(
        name,
        hint,
        required,
        _reducer_of(name, rest),
        any(found for found, _ in omitted),
        any(found for _, found in omitted),
        not any(_is_transient(mark) for mark in rest),
    )


def _is_named(found: object, name: str) -> bool:
    """Return True if it is this special form of ``typing`` or ``typing_extensions``."""
    label = getattr(found, "__name__", None) or getattr(found, "_name", None)
    module = getattr(found, "__module__", None)
    return label == name and module in ("typing", "typing_extensions")


def _reducer_of(name: str, marks: Sequence[Any]) -> FieldReducer | None:
    for mark in marks:
        if _is_channel(mark):
            if hasattr(mark, "snapshot_frequency"):
                return FieldReducer(mark.reducer, batched=True)
            operator = getattr(mark, "operator", None)
            return FieldReducer(operator) if callable(operator) else None
    if not marks or not callable(marks[-1]):
        return None
    try:
        parameters = inspect.signature(marks[-1]).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if sum(each.kind in places for each in parameters) != _OPERANDS:
        msg = (
            f"field {name!r} ends with {marks[-1]!r:.80}, which is no reducer: expected a callable "
            "of exactly two positional parameters, (left, right)"
        )
        raise StateSchemaError(msg)
    return FieldReducer(marks[-1])


def _is_channel(mark: Any) -> bool:
    """Return True if it is one of LangGraph's channels, or a channel class."""
    return all(hasattr(mark, name) for name in ("from_checkpoint", "checkpoint", "UpdateType"))


def _is_transient(mark: Any) -> bool:
    kind = mark if isinstance(mark, type) else type(mark)
    return _is_channel(mark) and kind.__name__ in ("EphemeralValue", "UntrackedValue")


# --- Prefixes of names: the owner of a field ------------------------------------------------------

APP: Final = "app:"
"""Prefix of the application's fields, which all sessions of all its users see."""
USER: Final = "user:"
"""Prefix of the user's fields, which all their sessions in the application see."""
TEMPORARY: Final = "temp:"
"""Prefix of the handle's fields, which are never stored."""
_ALL: Final = (APP, USER, TEMPORARY)


def prefix_of(key: object) -> str:
    """Return the prefix of a field's name; empty for the session's own fields."""
    if isinstance(key, str):
        for prefix in _ALL:
            if key.startswith(prefix):
                return prefix
    return ""


def is_shared(key: object) -> bool:
    """Return True if a field has a prefix, so that it is not one of the session's own."""
    return bool(prefix_of(key))


# --- StateSchema: the fields of a state, and how they are written ---------------------------------

_TYPED_DICT: Final = "__required_keys__"
"""Attribute that only TypedDict classes of ``typing`` and ``typing_extensions`` have."""
_AUDIENCES: Final = ("input", "output", "parent", "child")


class StateSchema:
    """Fields of one or more TypedDicts or dataclasses. Immutable; created by ``of``."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = dict(fields)

    @classmethod
    def of(cls, *classes: Any) -> StateSchema:
        """Build the schema of TypedDict classes, dataclasses or other StateSchemas.

        A field that several classes have is one field. It has the reducer that any of them gives
        it, and is private or required if it is in any of them.

        Args:
            classes: their annotations define the fields: ``Annotated[list[str], operator.add]`` has
                a reducer (the last entry that is not a mark), ``Annotated[str, Private]`` a mark.

        Raises:
            StateSchemaError: an annotation cannot be resolved, a reducer does not take two
                arguments, or classes give one field different reducers.
        """
        if not classes:
            msg = "StateSchema.of: expected at least one TypedDict class or dataclass"
            raise StateSchemaError(msg)
        merged: dict[str, Field] = {}
        for each in classes:
            for found in _fields_of(each):
                known = merged.get(found.name)
                merged[found.name] = found if known is None else known.merged(found)
        return cls(merged)

    def __repr__(self) -> str:
        return f"StateSchema({', '.join(self._fields)})"

    def __contains__(self, key: object) -> bool:
        return key in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    @property
    def fields(self) -> dict[str, Field]:
        """Fields by name."""
        return dict(self._fields)

    def field(self, key: str) -> Field:
        """Return one field; a shared field that the schema lacks takes any value.

        Raises:
            InvalidUpdateError: no field has this name; the message suggests the closest one.
        """
        found = self._fields.get(key)
        if found is None and is_shared(key):  # other sessions also write it, with other schemas
            return Field(key, Any, required=False)
        if found is None:
            near = closest(key, self._fields)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(self._fields)}"
            msg = f"the schema of the state has no field {key!r:.80}: {hint}"
            raise InvalidUpdateError(msg, key=key)
        return found

    def missing(self, state: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the required fields that a state lacks."""
        return tuple(
            name for name, field in self._fields.items() if field.required and name not in state
        )

    def visible(
        self, state: Mapping[str, Any], *, to: str, exclude: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Return the part of a state that may be passed on.

        Fields that the schema does not have are omitted.

        Args:
            state: any state of this schema.
            to: ``"input"`` or ``"child"``: an agent's input; ``"output"`` or ``"parent"``: its
                output.
            exclude: additional fields to omit.

        Raises:
            InvalidOptionError: ``to`` is not one of the four.
        """
        if to not in _AUDIENCES:
            msg = f"to: expected one of {', '.join(_AUDIENCES)}; got {to!r:.40}"
            raise InvalidOptionError(msg)
        into = to in ("input", "child")
        kept_back = {exclude} if isinstance(exclude, str) else set(exclude)
        return {
            name: state[name]
            for name, field in self._fields.items()
            if name in state
            and name not in kept_back
            and not (field.omit_input if into else field.omit_output)
        }

    def apply(
        self,
        state: Mapping[str, Any],
        update: Update | Iterable[Update],
        *,
        trace: Trace | None = None,
    ) -> dict[str, Any]:
        """Return the state after one step; ``state`` and ``update`` are not modified.

        A field with a reducer is reduced write by write, in the order of the updates; the first
        write is reduced with an empty value of the field's type, or becomes the value if the type
        has none. An Overwrite replaces the value, and Delete removes it; the step's other writes to
        that field then have no effect. A field without a reducer is set to the value, or changed by
        a Merge; one step may write it only once.

        Args:
            state: fields and values; any may be missing.
            update: a mapping, a Command, or a list of them: the writers of the step.
            trace: receives a Reduction for every call of a reducer.

        Raises:
            InvalidUpdateError: the schema lacks a field, a field without a reducer has two writers,
                a field has two Overwrites, or ``update`` is not an update.
        """
        writes: dict[str, list[Any]] = {}
        for key, value in writes_of(update):
            writes.setdefault(key, []).append(value)
        fields = {key: self.field(key) for key in writes}
        after = dict(state)
        for key, values in writes.items():
            value = fields[key].written(state.get(key, MISSING), values, trace)
            if value is MISSING:
                after.pop(key, None)
            else:
                after[key] = value
        return after


class _Open(StateSchema):
    """Schema of a state that was given none: any field, and the last value wins."""

    __slots__ = ()

    def field(self, key: str) -> Field:
        """Return a field without a reducer."""
        return Field(key, Any, required=False)


OPEN: Final = _Open({})


def state_schema(found: Any) -> StateSchema:
    """Return a StateSchema as it is, or build one from a class or several.

    Raises:
        StateSchemaError: as ``StateSchema.of``.
    """
    if isinstance(found, StateSchema):
        return found
    return StateSchema.of(*found) if isinstance(found, list | tuple) else StateSchema.of(found)


def _fields_of(source: Any) -> Iterator[Field]:
    if isinstance(source, StateSchema):
        yield from source.fields.values()
        return
    origin = get_origin(source) or source
    if not isinstance(origin, type) or not (
        hasattr(origin, _TYPED_DICT) or dataclasses.is_dataclass(origin)
    ):
        msg = f"expected a TypedDict class, a dataclass or a StateSchema, got {source!r:.80}"
        raise StateSchemaError(msg)
    try:
        hints = get_type_hints(origin, include_extras=True)
    except (NameError, TypeError, AttributeError) as exc:
        msg = (
            f"the annotations of {origin.__qualname__} cannot be resolved ({exc}): define the "
            "names that they use at module level, and import them at run time"
        )
        raise StateSchemaError(msg) from exc
    given = dict(zip(getattr(origin, "__parameters__", ()), get_args(source), strict=False))
    required = getattr(origin, _TYPED_DICT, None)
    if dataclasses.is_dataclass(origin):  # a ClassVar or InitVar is not a field
        fields = {each.name for each in dataclasses.fields(origin)}
        hints = {name: hint for name, hint in hints.items() if name in fields}
    for name, hint in hints.items():
        asked = name in required if required is not None else _has_no_default(origin, name)
        field = read_field(name, hint, required=asked)
        yield dataclasses.replace(field, type=given.get(field.type, field.type))


def _has_no_default(source: Any, name: str) -> bool:
    field = next((each for each in dataclasses.fields(source) if each.name == name), None)
    none = dataclasses.MISSING
    return field is not None and field.default is none and field.default_factory is none


# --- Reducers that most states need: entries by name, messages by id ------------------------------

_REMOVE: Final = "remove"


class FileData(TypedDict):
    """A file in a state; ``files: Annotated[dict[str, FileData], merge_entries]`` holds several."""

    content: str
    """Text, or bytes in base64."""
    encoding: NotRequired[Literal["utf-8", "base64"]]
    created_at: NotRequired[str]
    """ISO 8601."""
    modified_at: NotRequired[str]
    """ISO 8601."""


def merge_entries(
    left: Mapping[str, Any] | None, right: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the entries of both mappings.

    Those of ``right`` take precedence, and a None in it deletes an entry.

    Raises:
        InvalidUpdateError: one of both is neither a mapping nor None.
    """
    for each in (left, right):
        if each and not isinstance(each, Mapping):
            msg = f"merge_entries: expected a mapping of entries, got {type(each).__name__}"
            raise InvalidUpdateError(msg)
    merged = dict(left or {})
    for name, entry in (right or {}).items():
        if entry is None:
            merged.pop(name, None)
        else:
            merged[name] = entry
    return merged


def append_messages(left: list[Any] | None, right: Any) -> list[Any]:
    """Return the messages of both in order.

    A message with the ``id`` of an earlier one replaces it. ``{"remove": id}`` removes that
    message; a missing one is not an error, so that an update can be repeated. Messages without an
    id are always appended, and are not assigned one.

    Args:
        left: the current messages.
        right: a message, or a list of them: mappings, or objects with an ``id``.

    Raises:
        InvalidUpdateError: ``left`` is no list, or ``right`` contains text or None instead of a
            message.
    """
    if left and not isinstance(left, list | tuple):
        msg = f"append_messages: expected a list of messages, got {type(left).__name__}"
        raise InvalidUpdateError(msg)
    messages = list(left or [])
    for message in right if isinstance(right, list | tuple) else [right]:
        if message is None or isinstance(message, str | bytes):
            msg = f"append_messages: expected a message, got {type(message).__name__}"
            raise InvalidUpdateError(msg)
        gone = _removed(message)
        ident = _id_of(message) if gone is None else gone
        at = None if ident is None else _position(messages, ident)
        if gone is not None:
            if at is not None:
                del messages[at]
        elif at is None:
            messages.append(message)
        else:
            messages[at] = message
    return messages


def _removed(message: Any) -> Any:
    is_mark = isinstance(message, Mapping) and len(message) == 1
    return message.get(_REMOVE) if is_mark else None


def _id_of(message: Any) -> Any:
    return message.get("id") if isinstance(message, Mapping) else getattr(message, "id", None)


def _position(messages: list[Any], ident: Any) -> int | None:
    return next((at for at, found in enumerate(messages) if _id_of(found) == ident), None)
