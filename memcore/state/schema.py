"""StateSchema: what fields a state has, and what becomes of them when they are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, get_args, get_origin, get_type_hints

from memcore.errors import InvalidOptionError, InvalidUpdateError, StateSchemaError
from memcore.state.field import Field, read_field
from memcore.state.prefixes import is_shared
from memcore.state.trace import Trace
from memcore.state.update import MISSING, Update, writes_of

__all__ = ["OPEN", "StateSchema", "state_schema"]

_TYPED_DICT: Final = "__required_keys__"
"""What the classes of ``typing`` and of ``typing_extensions`` have, and no others."""
_AUDIENCES: Final = ("input", "output", "parent", "child")


class StateSchema:
    """The fields of one or more TypedDicts or dataclasses. Immutable; made by ``of``."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = dict(fields)

    @classmethod
    def of(cls, *classes: Any) -> StateSchema:
        """The schema of TypedDict classes or dataclasses; other StateSchemas may be among them.

        A field of several classes is one field. It has the reducer that any of them gives it, it is
        private if any says so, and required if any asks for it.

        Args:
            classes: fields are as they are annotated: ``Annotated[list[str], operator.add]`` has a
                reducer (the last entry that is no mark), ``Annotated[str, Private]`` a mark.

        Raises:
            StateSchemaError: an annotation cannot be resolved, a reducer does not take two
                arguments, or classes give one field different reducers.
        """
        if not classes:
            msg = "StateSchema.of: expected at least one TypedDict class or dataclass"
            raise StateSchemaError(msg)
        merged: dict[str, Field] = {}
        for each in classes:
            for field in _fields_of(each):
                known = merged.get(field.name)
                merged[field.name] = field if known is None else known.merged(field)
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
        """The fields by name."""
        return dict(self._fields)

    def field(self, key: str) -> Field:
        """One field; what sessions share takes any name and, unless the schema has it, any value.

        Raises:
            InvalidUpdateError: there is none of this name; the message names the nearest.
        """
        found = self._fields.get(key)
        if found is None and is_shared(key):  # other sessions write it, too, and by other schemas
            return Field(key, Any, required=False)
        if found is None:
            near = get_close_matches(key, self._fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(self._fields)}"
            msg = f"the schema of the state has no field {key!r:.80}: {hint}"
            raise InvalidUpdateError(msg, key=key)
        return found

    def missing(self, state: Mapping[str, Any]) -> tuple[str, ...]:
        """The required fields that a state has not."""
        return tuple(
            name for name, field in self._fields.items() if field.required and name not in state
        )

    def visible(
        self, state: Mapping[str, Any], *, to: str, exclude: Iterable[str] = ()
    ) -> dict[str, Any]:
        """The part of a state that may be handed over; fields without a place in the schema stay.

        Args:
            state: any state of this schema.
            to: ``"input"`` or ``"child"``: what goes into an agent; ``"output"`` or ``"parent"``:
                what comes out of it.
            exclude: more fields that are kept back.

        Raises:
            InvalidOptionError: ``to`` is none of the four.
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
        """The state after one step; ``state`` and ``update`` stay as they are.

        A field with a reducer is reduced write by write, in the order of the updates; the first
        write meets an empty value of the field's type, or is the value if the type has none. An
        Overwrite takes the field over, as Delete takes its value away, and other writes of the step
        to it are void. A field without a reducer takes the value, or what a Merge brings into it;
        one step writes it once.

        Args:
            state: fields and values; it may lack any.
            update: a mapping, a Command, or a list of them: the writers of the step.
            trace: gets a Reduction for every call of a reducer.

        Raises:
            InvalidUpdateError: a field that the schema does not have, two writers of a field
                without a reducer, two Overwrites of one field, or no update at all.
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
    """The schema of a state that was given none: any field, the last value counts."""

    __slots__ = ()

    def field(self, key: str) -> Field:
        """A field without a reducer."""
        return Field(key, Any, required=False)


OPEN: Final = _Open({})


def state_schema(found: Any) -> StateSchema:
    """A StateSchema, or that of a class or of several.

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
    if dataclasses.is_dataclass(origin):  # a ClassVar or InitVar is no field
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
