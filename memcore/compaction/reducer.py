"""What a reducer is: a pure function from visible items to masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from memcore.formats import PairPolicy
from memcore.model import ItemKind, Mask, Message
from memcore.tokens import TokenCounter

__all__ = ["Embed", "Reducer", "Reduction", "Visible"]


Embed: TypeAlias = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""One vector a text, all of one length."""


class Visible(NamedTuple):
    """One item as the model is shown it at present: masks of earlier views are applied."""

    seq: int
    kind: ItemKind
    message: Message
    tokens: int
    protected: bool = False
    """Pinned, of a protected tool, or with an open call: a reducer reads it and leaves it be."""
    masked: str | None = None
    """The action of the mask that it is shown by, if it is."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """What reducers work with."""

    policy: PairPolicy
    counter: TokenCounter
    offload: Callable[[int, str | None, str], str] | None = None
    """Keeps a text that item ``seq`` shows, of its result for ``call_id`` (None: without an id),
    and returns the reference to read it by: ``offload(seq, call_id, text)``. None: no place."""
    embed: Embed | None = None
    """One vector a text, all of one length; None: no embedder."""


class Reducer(Protocol):
    """Makes items smaller without a model. Frozen dataclasses: equal ones do equal things."""

    @property
    def name(self) -> str:
        """What a policy in a mapping calls it."""

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks of some of the items, in their order, each with fewer tokens than the item.

        Deterministic. A mask is of its item's kind, and makes and answers the same calls, in order.
        """

    def settings(self) -> Mapping[str, object]:
        """The options that differ from the defaults, as a policy in a mapping states them."""
