"""What the objects of a value are made of, so that they can be copied and compared.

Only what is known to be all of an object's state counts: the built-in containers, pydantic models,
dataclasses and named tuples of such. Whatever else is opaque: it is serialised at every put and
decoded at every get, as every other saver does with everything.
"""

from __future__ import annotations

import dataclasses
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
from typing import Final
from uuid import UUID
from zoneinfo import ZoneInfo

from memcore._fast import Trees

__all__ = ["classify", "new_trees"]

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
_FIELDS_SET: Final = "__pydantic_fields_set__"
"""Which fields were given and which left to their defaults: serialisers do not store it."""


def new_trees() -> Trees:
    """The copier and comparer for these shapes."""
    return Trees(classify)


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
        counting = tuple(name for name in slots if name != _FIELDS_SET)
        return _OBJECT, kind.__dictoffset__ != 0, slots, counting
    return _OPAQUE, False, (), ()


def _made_by_python(kind: type, base: type) -> bool:
    """Whether all classes above, up to ``base``, were made by Python code and hold nothing else."""
    above = [cls for cls in kind.__mro__ if cls not in (base, object)]
    return all(cls.__flags__ & _HEAP_TYPE for cls in above) and (
        base is object or kind.__dictoffset__ == 0
    )


def _slots(kind: type) -> tuple[str, ...]:
    found: list[str] = []
    for cls in kind.__mro__:
        names = cls.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                found.append(f"_{cls.__name__.lstrip('_')}{name}" if private else name)
    return tuple(found)
