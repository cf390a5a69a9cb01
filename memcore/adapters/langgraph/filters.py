"""Which items and namespaces a search asks for: the rules of LangGraph's InMemoryStore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from langgraph.store.base import MatchCondition

from memcore.adapters.langgraph.rows import Labels
from memcore.errors import InvalidOptionError

__all__ = ["literal_prefix", "matches", "matches_namespace"]

_ANY: Final = "*"
_ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
}


def matches(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether an item's value is one that the filter wants; every field must be.

    A field is wanted as a plain value (equal), a mapping of fields (each of them; others may be
    there), a list (of that length, each element) or a mapping of operators: ``$eq``, ``$ne``,
    ``$gt``, ``$gte``, ``$lt``, ``$lte``. The last four compare numbers.

    Raises:
        InvalidOptionError: the operator is unknown, or one that compares numbers met something
            else, as a field that is not there.
    """
    return all(_wants(value.get(field), want) for field, want in (wanted or {}).items())


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
    if operator not in _ORDERS:
        msg = f"filter: unknown operator {operator!r}; there are $eq, $ne and {', '.join(_ORDERS)}"
        raise InvalidOptionError(msg)
    try:
        numbers = float(value), float(operand)
    except (TypeError, ValueError, OverflowError) as exc:
        msg = (
            f"filter: {operator} compares numbers, got {value!r:.80} in an item and "
            f"{operand!r:.80} in the filter"
        )
        raise InvalidOptionError(msg) from exc
    return _ORDERS[operator](*numbers)


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
