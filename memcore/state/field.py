"""One field of a state: what its annotation says."""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, NotRequired, Required, get_args, get_origin

from memcore.errors import InvalidUpdateError, StateSchemaError
from memcore.state.copying import copied
from memcore.state.markers import omission
from memcore.state.trace import Reduction, Trace
from memcore.state.update import MISSING, Merge, merged, overwritten

__all__ = ["Field", "Reducer", "read_field"]

_OPERANDS: Final = 2
_CONCRETE: Final[dict[Any, type]] = {
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
}
"""What a field of an abstract type begins with, as in LangGraph."""


@dataclass(frozen=True, slots=True)
class Reducer:
    """How a written value and the one that is there become one."""

    function: Callable[[Any, Any], Any]
    batched: bool = False
    """Whether it takes the list of all writes of a step (LangGraph's DeltaChannel)."""

    @property
    def name(self) -> str:
        """The function's name with its module."""
        function = self.function
        label = getattr(function, "__qualname__", None) or type(function).__qualname__
        return f"{getattr(function, '__module__', None) or type(function).__module__}.{label}"


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its type, who sees it, and how writes are reduced."""

    name: str
    type: Any
    """The annotation without ``Annotated``, ``Required`` and ``NotRequired``."""
    required: bool = True
    reducer: Reducer | None = None
    """None: the last value counts, and a step has one writer."""
    omit_input: bool = False
    omit_output: bool = False
    stored: bool = True
    """Whether sessions keep it; not what LangGraph calls ephemeral or untracked."""

    def merged(self, other: Field) -> Field:
        """The field of two schemas that share it: reduced, private or transient if either is.

        Raises:
            StateSchemaError: both have a reducer, and not the same.
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
        """What the first write is reduced with: an empty value of the type; MISSING if none is."""
        kind = self.type
        kind = get_origin(kind) or kind
        kind = _CONCRETE.get(kind, kind)
        try:
            return kind()
        except Exception:  # noqa: BLE001 - types are the caller's: whatever cannot be made is none
            return MISSING

    def written(self, current: Any, values: Sequence[Any], trace: Trace | None) -> Any:
        """The value after the writes of one step; MISSING stands for none, before as after.

        Nothing that was given is changed, and nothing of ``current`` is shared with the result of
        a reducer.

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
        assert reducer is not None  # noqa: S101 - fields without one have no such call
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
    """The field of a resolved annotation.

    Args:
        name: the key.
        hint: the annotation, with its extras.
        required: whether the class asks for it; ``Required`` and ``NotRequired`` have the last
            word.

    Raises:
        StateSchemaError: what the annotation ends with is callable and no reducer.
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
    """Whether it is what ``typing`` or ``typing_extensions`` call so; older Pythons lack it."""
    label = getattr(found, "__name__", None) or getattr(found, "_name", None)
    module = getattr(found, "__module__", None)
    return label == name and module in ("typing", "typing_extensions")


def _reducer_of(name: str, marks: Sequence[Any]) -> Reducer | None:
    for mark in marks:
        if _is_channel(mark):
            if hasattr(mark, "snapshot_frequency"):
                return Reducer(mark.reducer, batched=True)
            operator = getattr(mark, "operator", None)
            return Reducer(operator) if callable(operator) else None
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
    return Reducer(marks[-1])


def _is_channel(mark: Any) -> bool:
    """Whether it is one of LangGraph's channels, or a class of them."""
    return all(hasattr(mark, name) for name in ("from_checkpoint", "checkpoint", "UpdateType"))


def _is_transient(mark: Any) -> bool:
    kind = mark if isinstance(mark, type) else type(mark)
    return _is_channel(mark) and kind.__name__ in ("EphemeralValue", "UntrackedValue")
