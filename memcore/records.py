"""Dataclasses with slots that are cheap to define.

``dataclasses.dataclass`` compiles six functions for each class when its module is imported: 0.5 ms
a class, which was a quarter of the time to open a database in a new process. The methods of a
record are compiled once, in ``memcore._fast``, and read the fields of the class. To callers, to
type checkers and to the functions of ``dataclasses`` (``fields``, ``asdict``, ``replace``) a record
is a dataclass.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, FrozenInstanceError, field, make_dataclass, replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from memcore import _fast

__all__ = [
    "record",
]


class _Borrowed:
    """An attribute that ``dataclasses`` or ``inspect`` asks a record for.

    It is that of a dataclass with the same fields, which is made when one is first asked for.
    """

    def __init__(self, name: str, fields: dict[str, Field[Any]], options: dict[str, bool]) -> None:
        self._name = name
        self._fields = fields
        self._options = options

    def __get__(self, instance: object, owner: type) -> Any:
        if self._name == "__signature__":
            # A callable record is asked for that of ``__call__``, a subclass for its own.
            by: Any = owner.__init__  # type: ignore[misc]
            if instance is not None or by is not _fast.record_init:
                raise AttributeError(self._name)
        home: Any = next(each for each in owner.__mro__ if "__record__" in vars(each))
        types = home.__annotations__
        options: dict[str, Any] = self._options
        fields = [(name, types[name], of) for name, of in self._fields.items()]
        twin: Any = make_dataclass(home.__name__, fields, slots=True, **options)
        if self._name == "__signature__":
            return signature(twin)
        setattr(home, self._name, getattr(twin, self._name))
        return getattr(home, self._name)


def _replaced(self: Any, /, **changes: Any) -> Any:
    """Return a copy with other values of some fields: ``copy.replace`` of Python 3.13."""
    return replace(self, **changes)


def _set(self: Any, name: str, value: object) -> None:
    """Set an attribute that a subclass adds; refuse to change a field."""
    if name in self.__record__.names or "__record__" in vars(type(self)):
        msg = f"cannot assign to field {name!r}"
        raise FrozenInstanceError(msg)
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    """Delete an attribute that a subclass adds; refuse to delete a field."""
    if name in self.__record__.names or "__record__" in vars(type(self)):
        msg = f"cannot delete field {name!r}"
        raise FrozenInstanceError(msg)
    object.__delattr__(self, name)


_METHODS: Final = {
    "__init__": _fast.record_init,
    "__repr__": _fast.record_repr,
    "__replace__": _replaced,
}
_EQUAL: Final = {"__eq__": _fast.record_eq}
_FROZEN: Final = {
    "__getstate__": _fast.record_getstate,
    "__setstate__": _fast.record_setstate,
    "__setattr__": _set,
    "__delattr__": _delete,
}


def _made(cls: type, *, frozen: bool, kw_only: bool, eq: bool) -> type:
    """Return a class like ``cls`` with slots for its fields and the methods of records."""
    types = cls.__annotations__  # the class's own: Python 3.14 has them no longer in its dictionary
    space = dict(vars(cls))
    fields = {
        name: _field(space.pop(name, MISSING))
        for name, kind in types.items()
        if not kind.startswith("ClassVar")
    }
    by_place, by_name, others = _parts(fields, kw_only=kw_only)
    if fields and any(hasattr(base, "__record__") for base in cls.__bases__):
        msg = f"{cls.__qualname__}: fields on top of a record's: use dataclasses.dataclass"
        raise TypeError(msg)
    names = (*by_place, *by_name, *others)
    of = [fields[name] for name in names]
    for name in ("__dict__", "__weakref__"):
        space.pop(name, None)
    has_hash = space.get("__hash__") is not None  # it is None in a class that defines ``__eq__``
    methods = _METHODS | (_EQUAL if eq else {}) | (_FROZEN if frozen else {})
    for name, method in methods.items():
        space.setdefault(name, method)
    if eq and not has_hash:
        space["__hash__"] = _fast.record_hash if frozen else None
    for name in ("__dataclass_fields__", "__dataclass_params__", "__signature__"):
        space[name] = _Borrowed(name, fields, {"frozen": frozen, "kw_only": kw_only, "eq": eq})
    space["__slots__"] = names
    space["__match_args__"] = by_place
    space["__record__"] = _fast.RecordLayout(
        names,
        tuple([each.default for each in of]),
        tuple([None if each.default_factory is MISSING else each.default_factory for each in of]),
        MISSING,
        len(by_place) + len(by_name),
        len(by_place),
        tuple([name for name, each in fields.items() if each.repr]),
        tuple([name for name, each in fields.items() if each.compare]),
        hasattr(cls, "__post_init__"),
    )
    made = type(cls)(cls.__name__, cls.__bases__, space)
    made.__qualname__ = cls.__qualname__
    return made


def _field(default: Any) -> Field[Any]:
    """Return what a class says of a field, as ``dataclasses.field`` has it."""
    found: Field[Any] = default if isinstance(default, Field) else field(default=default)
    if type(found.default).__hash__ is None:
        msg = f"mutable default {found.default!r:.60}: use field(default_factory=...)"
        raise ValueError(msg)
    if found.hash is not None:
        msg = "hash= of a field: a record's hash is that of what is compared"
        raise ValueError(msg)
    return found


def _parts(
    fields: dict[str, Field[Any]], *, kw_only: bool
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the fields that are given by position or name, by name alone, and not at all.

    Raises:
        TypeError: a field with a default is given before one without.
    """
    by_place: list[str] = []
    by_name: list[str] = []
    others: list[str] = []
    for name, each in fields.items():
        is_named = kw_only if each.kw_only is MISSING else each.kw_only
        (by_name if is_named else by_place).append(name) if each.init else others.append(name)
    had_default = False
    for name in by_place:
        each = fields[name]
        has_default = each.default is not MISSING or each.default_factory is not MISSING
        if had_default and not has_default:
            msg = f"field {name!r} has no default, and one before it has"
            raise TypeError(msg)
        had_default = had_default or has_default
    return tuple(by_place), tuple(by_name), tuple(others)


if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, slots: bool, frozen: bool = False, kw_only: bool = False, eq: bool = True) -> Any:
        """Return the decorator that makes a class a record; the options are those of ``dataclass``.

        Fields may have the options ``default``, ``default_factory``, ``init``, ``repr``,
        ``compare`` and ``kw_only``.

        Raises:
            TypeError: the record would have no slots, or add to the fields of another record; or a
                field without a default is behind one with a default.
            ValueError: the default of a field could be changed, or it has the option ``hash``.
        """
        if not slots:
            msg = "a record has slots: use dataclasses.dataclass for what has none"
            raise TypeError(msg)
        return partial(_made, frozen=frozen, kw_only=kw_only, eq=eq)
