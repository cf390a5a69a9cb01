"""The table of reducers, and applying several of them one after another."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from memcore._fast import classify
from memcore.compaction.clearing import ClearResults
from memcore.compaction.duplicates import DropDuplicates, DropSimilar
from memcore.compaction.offloading import OffloadResults
from memcore.compaction.reducer import Reducer, Reduction, Visible
from memcore.compaction.shortening import ElideOutputs, TruncateArguments
from memcore.compaction.thinking import StripReasoning
from memcore.errors import InternalError, InvalidOptionError
from memcore.log import count_message
from memcore.model import Mask

__all__ = ["REDUCERS", "reduce_all", "reducer_from"]

REDUCERS: Final[Mapping[str, type[Any]]] = {
    kind.name: kind
    for kind in (
        StripReasoning,
        DropDuplicates,
        DropSimilar,
        OffloadResults,
        ElideOutputs,
        TruncateArguments,
        ClearResults,
    )
}
"""Reducers by name, in the order in which they serve best: what loses least comes first."""
NAME_KEY: Final = "reducer"


def reducer_from(given: str | Mapping[str, Any]) -> Reducer:
    """A reducer from its name, or from a mapping of its name under ``reducer`` and its options.

    ``{"reducer": r.name, **r.settings()}`` gives a reducer equal to ``r``.

    Raises:
        InvalidOptionError: an unknown name or option (with the near match), or a bad value.
    """
    if isinstance(given, str):
        given = {NAME_KEY: given}
    if not isinstance(given, Mapping):
        msg = f"reducer: expected a name or a mapping, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    name = given.get(NAME_KEY)
    kind = REDUCERS.get(name) if isinstance(name, str) else None
    if kind is None:
        hint = _near(name, list(REDUCERS))
        msg = f"{NAME_KEY}: expected one of {', '.join(REDUCERS)}; got {name!r:.80}{hint}"
        raise InvalidOptionError(msg)
    options = {key: value for key, value in given.items() if key != NAME_KEY}
    known = [field.name for field in fields(kind)]
    unknown = [key for key in options if key not in known]
    if unknown:
        hint = _near(unknown[0], known)
        names = ", ".join(repr(key) for key in unknown)
        msg = f"reducer {name!r} has no option {names:.200}; it has {', '.join(known)}{hint}"
        raise InvalidOptionError(msg)
    made: Reducer = kind(**options)
    return made


def _near(name: object, known: list[str]) -> str:
    close: list[str] = difflib.get_close_matches(str(name)[:100], known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def reduce_all(
    items: Sequence[Visible], reducers: Iterable[Reducer], by: Reduction
) -> dict[int, Mask]:
    """The masks, by seq, of applying reducers in order, each to what the ones before it show.

    The mask of an item that several reducers changed has the action of the last.

    Raises:
        InternalError: a reducer broke a rule of ``Reducer.reduce``.
    """
    shown = list(items)
    masks: dict[int, Mask] = {}
    for reducer in reducers:
        made = {}
        before = {item.seq: at for at, item in enumerate(shown)}
        last = -1
        for mask in reducer.reduce(shown, by):
            at = before.get(mask.seq, -1)
            _check(shown[at] if at > last else None, mask, reducer, by)
            made[at], last = mask, at
        masks.update({mask.seq: mask for mask in made.values()})
        shown = [
            _masked(item, made[at]) if at in made else item
            for at, item in enumerate(shown)
            if at not in made or made[at].message is not None
        ]
    return masks


def _masked(item: Visible, mask: Mask) -> Visible:
    message = mask.message if mask.message is not None else item.message
    return item._replace(message=message, tokens=mask.tokens, masked=mask.action)


def _check(item: Visible | None, mask: Mask, reducer: Reducer, by: Reduction) -> None:
    """Hold a mask to the rules: a broken one would break pairs, and must never be stored."""
    problem = None
    if item is None:
        problem = "is of no item that is shown, or not in the order of the items"
    elif item.protected:
        problem = "is of a protected item"
    elif mask.tokens >= item.tokens:
        problem = f"has {mask.tokens} tokens, not fewer than the item's {item.tokens}"
    else:
        facts = classify(item.message)
        shown = (facts[0], (), ()) if mask.message is None else classify(mask.message)[:3]
        tokens = 0 if mask.message is None else count_message(mask.message, by.counter)
        if shown[1:] != facts[1:3]:
            problem = "does not make and answer the calls of its item"
        elif shown[0] != facts[0]:
            problem = "is of another kind than its item"
        elif tokens != mask.tokens:
            problem = f"says {mask.tokens} tokens, its message has {tokens}"
    if problem is not None:
        msg = f"reducer {reducer.name!r}: the mask of seq {mask.seq} {problem}; nothing was masked"
        raise InternalError(msg)
