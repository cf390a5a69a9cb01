"""Which items and namespaces a search asks for: the rules of LangGraph's InMemoryStore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import ge, gt, le, lt
from typing import Any, Final

from langgraph.store.base import MatchCondition

from memcore.adapters.langgraph.rows import Labels
from memcore.errors import InvalidOptionError

__all__ = ["check_filter", "field_at", "literal_prefix", "matches", "matches_namespace"]

_ANY: Final = "*"
_ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "$gt": gt,
    "$gte": ge,
    "$lt": lt,
    "$lte": le,
}
_OPERATORS: Final = ("$eq", "$ne", *_ORDERS)


def check_filter(wanted: Any) -> None:
    """Refuse a filter that no value could be held to.

    Raises:
        InvalidOptionError: an operator is unknown, or one of ``$gt``, ``$gte``, ``$lt``, ``$lte``
            got no number.
    """
    if isinstance(wanted, list | tuple):
        for want in wanted:
            check_filter(want)
    if not isinstance(wanted, Mapping):
        return
    if not all(isinstance(name, str) for name in wanted):
        msg = f"filter: expected names of fields, got {list(wanted)!r:.100}"
        raise InvalidOptionError(msg)
    has_operators = any(name.startswith("$") for name in wanted)
    for name, want in wanted.items():
        if not has_operators:
            check_filter(want)
        elif name not in _OPERATORS:
            msg = f"filter: unknown operator {name!r}; there are {', '.join(_OPERATORS)}"
            raise InvalidOptionError(msg)
        elif name in _ORDERS and _number(want) is None:
            msg = f"filter: {name} compares numbers, got {want!r:.80}"
            raise InvalidOptionError(msg)


def matches(value: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether an item's value is one that the filter wants; every field must be.

    A field is wanted as a plain value (equal), a mapping of fields (each of them; others may be
    there), a list (of that length, each element) or a mapping of operators: ``$eq``, ``$ne``,
    ``$gt``, ``$gte``, ``$lt``, ``$lte``. The last four compare numbers, also those in strings;
    what is none, or not there, does not match. A name with dots is that of a field, or else a path
    through mappings, as in SqliteStore.
    """
    return all(_wants(field_at(value, field), want) for field, want in wanted.items())


def field_at(value: Mapping[str, Any], name: str) -> Any:
    """The field of that name, or else what a path with dots leads to; None: nothing."""
    if "." not in name or name in value:
        return value.get(name)
    found: Any = value
    for part in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def _wants(value: Any, want: Any) -> bool:
    if isinstance(want, dict):
        if any(name.startswith("$") for name in want):
            return all(_holds(value, operator, operand) for operator, operand in want.items())
        return isinstance(value, dict) and all(_wants(value.get(k), w) for k, w in want.items())
    if isinstance(want, list | tuple):
        return (
            isinstance(value, list)
            and len(value) == len(want)
            and all(_wants(v, w) for v, w in zip(value, want, strict=True))
        )
    return bool(value == want)


def _holds(value: Any, operator: str, operand: Any) -> bool:
    if operator == "$eq":
        return bool(value == operand)
    if operator == "$ne":
        return bool(value != operand)
    number, bound = _number(value), _number(operand)
    return number is not None and bound is not None and _ORDERS[operator](number, bound)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def matches_namespace(namespace: Labels, conditions: Iterable[MatchCondition]) -> bool:
    """Whether a namespace meets every condition; ``*`` is any one label.

    Raises:
        InvalidOptionError: a condition is neither ``prefix`` nor ``suffix``.
    """
    return all(_meets(namespace, condition) for condition in conditions)


def _meets(namespace: Labels, condition: MatchCondition) -> bool:
    kind, path = condition
    if kind not in ("prefix", "suffix"):
        msg = f"match condition: expected 'prefix' or 'suffix', got {kind!r}"
        raise InvalidOptionError(msg)
    size = len(path)
    if len(namespace) < size:
        return False
    labels = namespace[:size] if kind == "prefix" else namespace[len(namespace) - size :]
    return all(want in (_ANY, label) for label, want in zip(labels, path, strict=True))


def literal_prefix(conditions: Iterable[MatchCondition]) -> Labels:
    """The longest run of plain labels with which every namespace that is asked for begins."""
    longest: Labels = ()
    for kind, path in conditions:
        labels = tuple(path)
        if kind == "prefix":
            until = labels.index(_ANY) if _ANY in labels else len(labels)
            longest = max(longest, labels[:until], key=len)
    return longest
