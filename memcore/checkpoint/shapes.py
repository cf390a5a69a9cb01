"""What the objects of a value are made of, so that they can be copied and compared.

Only what is known to be all of an object's state counts: the built-in containers, pydantic models,
dataclasses and named tuples of such. Whatever else is opaque: it is serialised at every put and
decoded at every get, as every other saver does with everything.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import PurePath
from re import Pattern
from types import MemberDescriptorType
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from memcore._fast import Trees

__all__ = ["Shapes", "classify"]

_OPAQUE: Final = 0
_LEAF: Final = 1
_OBJECT: Final = 2
_TUPLE: Final = 3
_HEAP_TYPE: Final = 1 << 9
"""Flag of types that Python code made: a type without it keeps state where we do not see it."""
_LEAVES: Final = (
    date,
    datetime,
    time,
    timedelta,
    timezone,
    Decimal,
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    Pattern,
    UUID,
    ZoneInfo,
    complex,
    range,
)

Shape = tuple[int, bool, tuple[str, ...], tuple[str, ...]]
_POINTER_BYTES: Final = struct.calcsize("P")
_FIELDS_SET: Final = "__pydantic_fields_set__"
"""Which fields were given and which left to their defaults: pydantic itself does not store it."""


class Shapes:
    """The shapes of the types that a handle has met."""

    def __init__(self) -> None:
        self.trees = Trees(self._classify)
        """Copies and compares by them."""
        self._named: dict[tuple[str, str], type] = {}
        """Types that a serialiser finds by module and name."""

    def _classify(self, kind: type) -> Shape:
        shape = classify(kind)
        if shape[0] != _OPAQUE and kind.__flags__ & _HEAP_TYPE:
            where = kind.__module__, kind.__name__
            if _named(where) is kind:
                self._named[where] = kind
        return shape

    def take_replaced(self) -> bool:
        """Whether a type went since this was asked: its module was loaded anew, say.

        What was decoded before is then of types that no serialiser would make any more.
        """
        gone = [where for where, kind in tuple(self._named.items()) if _named(where) is not kind]
        for where in gone:
            self._named.pop(where, None)
        return bool(gone)


def _named(where: tuple[str, str]) -> Any:
    module, name = where
    return getattr(sys.modules.get(module), "__dict__", {}).get(name)


def classify(kind: type) -> Shape:
    """``(sort, has a __dict__, slots, slots that count)`` of a type, as ``Trees`` asks for it."""
    if kind in _LEAVES or issubclass(kind, Enum | PurePath):
        return _LEAF, False, (), ()
    if issubclass(kind, tuple):
        named = hasattr(kind, "_fields") and _made_by_python(kind, tuple)
        return (_TUPLE if named else _OPAQUE), False, (), ()
    pydantic = sys.modules.get("pydantic")
    is_model = pydantic is not None and issubclass(kind, pydantic.BaseModel)
    if (is_model or dataclasses.is_dataclass(kind)) and _made_by_python(kind, object):
        slots = _slots(kind)
        # A copy that goes must not close what the original holds.
        if slots is None or hasattr(kind, "__del__"):
            return _OPAQUE, False, (), ()
        uncounted = _FIELDS_SET if is_model and _dumps_all(kind, pydantic) else None
        counting = tuple(name for name in slots if name != uncounted)
        return _OBJECT, kind.__dictoffset__ != 0, slots, counting
    return _OPAQUE, False, (), ()


def _dumps_all(kind: Any, pydantic: Any) -> bool:
    """Whether a model is stored without code that may look which fields were given."""
    made = kind.__pydantic_decorators__
    return kind.model_dump is pydantic.BaseModel.model_dump and not (
        made.model_serializers or made.field_serializers or made.computed_fields
    )


def _made_by_python(kind: type, base: type) -> bool:
    """Whether all classes above, up to ``base``, were made by Python code and hold nothing else."""
    above = [cls for cls in kind.__mro__ if cls not in (base, object)]
    return all(cls.__flags__ & _HEAP_TYPE for cls in above) and (
        base is object or kind.__dictoffset__ == 0
    )


def _slots(kind: type) -> tuple[str, ...] | None:
    """The names of the slots; None if an instance holds more than them, or one is overlaid."""
    found: list[str] = []
    for cls in kind.__mro__[:-1]:
        for name, slot in cls.__dict__.items():
            if type(slot) is MemberDescriptorType:
                found.append(name)
                if next(c for c in kind.__mro__ if name in c.__dict__) is not cls:
                    return None
    # In C a class may keep state that has no name.
    counted = len(found) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    whole = object.__basicsize__ + counted * _POINTER_BYTES
    return tuple(found) if kind.__basicsize__ == whole else None
