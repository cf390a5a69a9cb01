"""A ledger seen through the masks of a view: the cuts are its own, the tokens those that are shown.

A mask changes neither kinds nor pairs, so every safe cut stays one. Only sums change: the tokens of
a suffix are those of the ledger less what the masks in it save. Masks are few beside items, so the
savings are kept as suffix sums over the masked positions, and nothing has to follow an append.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, TypeAlias

from memcore._fast import Ledger

__all__ = ["AnyLedger", "MaskedLedger"]

_NO_BOUND: Final = 2**62


class MaskedLedger:
    """What a context or a compaction asks of a ledger, with masked items at their masked size."""

    __slots__ = ("_at", "_hidden", "_saved", "ledger")

    def __init__(self, ledger: Ledger, masks: Mapping[int, tuple[int, bool]]) -> None:
        """``masks``: by position of the ledger, ``(tokens as shown, whether it is hidden)``."""
        self.ledger = ledger
        self._at = sorted(masks)
        self._hidden = {at for at in self._at if masks[at][1]}
        saved = [0]
        for at in reversed(self._at):
            # An orphan that no context shows counts nothing, whatever it is masked by.
            saved.append(saved[-1] + max(ledger.sum_between(at, at + 1) - masks[at][0], 0))
        self._saved = saved[::-1]

    def __len__(self) -> int:
        return len(self.ledger)

    @property
    def tokens(self) -> int:
        """Tokens of all positions."""
        return self.ledger.tokens - self._saved[0]

    @property
    def shown_count(self) -> int:
        """How many items are no events."""
        return self.ledger.shown_count

    @property
    def last_shown(self) -> int:
        """The last position that a context can show, -1 if there is none."""
        at = self.ledger.last_shown
        while at in self._hidden:
            at -= 1
        return at

    def kind_at(self, position: int) -> int:
        """The kind of the item at ``position``."""
        return self.ledger.kind_at(position)

    def leading(self, kind: int) -> int:
        """As ``Ledger.leading``."""
        return self.ledger.leading(kind)

    def is_safe(self, position: int) -> bool:
        """Whether a cut at ``position`` splits nothing."""
        return self.ledger.is_safe(position)

    def irregular_from(self, position: int) -> bool:
        """As ``Ledger.irregular_from``: masks make no pair irregular."""
        return self.ledger.irregular_from(position)

    def safe_cuts(self, *, starts: bool = False) -> list[int]:
        """All safe cuts in ascending order."""
        return self.ledger.safe_cuts(starts=starts)

    def cut_at_most(self, position: int) -> int:
        """The greatest safe cut <= ``position``, or -1."""
        return self.ledger.cut_at_most(position)

    def cut_keep_last(self, keep: int, *, starts: bool = False) -> int:
        """The greatest cut that keeps at least ``keep`` items that are no events, or -1."""
        return self.ledger.cut_keep_last(keep, starts=starts)

    def last_of(self, kinds: int, count: int, *, at_least: int = 0) -> int:
        """As ``Ledger.last_of``."""
        return self.ledger.last_of(kinds, count, at_least=at_least)

    def count_of(self, kinds: int, start: int) -> int:
        """As ``Ledger.count_of``."""
        return self.ledger.count_of(kinds, start)

    def open_positions(self) -> list[int]:
        """Positions of the items whose calls are open."""
        return self.ledger.open_positions()

    def cost(self, position: int) -> int:
        """Upper bound of the tokens of the suffix from ``position`` as a context renders it."""
        return self.ledger.cost(position) - self._saved_from(position)

    def sum_between(self, start: int, stop: int) -> int:
        """Tokens of positions ``start <= r < stop``."""
        return (
            self.ledger.sum_between(start, stop) - self._saved_from(start) + self._saved_from(stop)
        )

    def tokens_of(self, start: int, stop: int) -> list[int]:
        """The tokens of each position ``start <= r < stop``."""
        found = self.ledger.tokens_of(start, stop)
        lo, hi = bisect_left(self._at, start), bisect_left(self._at, stop)
        for at in range(lo, hi):
            found[self._at[at] - start] -= self._saved[at] - self._saved[at + 1]
        return found

    def cut_for_budget(self, budget: int, *, at_least: int = 0, starts: bool = True) -> int:
        """The smallest cut >= ``at_least`` whose suffix costs at most ``budget``, or -1.

        The cost falls as the cut moves on, and between two masked positions the savings are
        constant. So the first masked position that is within the budget tells between which two
        the answer begins; from there on every cut that the ledger finds with these savings added
        to the budget is within it.
        """
        fits = bisect_left(self._at, True, key=lambda at: self.cost(at) <= budget)
        fits = max(fits, bisect_left(self._at, at_least))
        least = max(at_least, self._at[fits - 1] + 1 if fits else 0)
        return self.ledger.cut_for_budget(
            min(budget + self._saved[fits], _NO_BOUND), at_least=least, starts=starts
        )

    def _saved_from(self, position: int) -> int:
        """Tokens that masks at or after a position save."""
        return self._saved[bisect_left(self._at, position)]


AnyLedger: TypeAlias = Ledger | MaskedLedger
