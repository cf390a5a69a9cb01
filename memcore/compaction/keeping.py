"""What a compaction keeps as items, and the cut that follows from it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from memcore.errors import InvalidOptionError
from memcore.log import AnyLedger
from memcore.model import ItemKind
from memcore.options import (
    checked_bool,
    checked_int,
    checked_optional_int,
    checked_optional_share,
)

__all__ = ["Keep", "units_around"]

TOKENS_MAX: Final = 1 << 62
"""More than any history has, and less than the ledger's integers hold."""

USERS: Final = 1 << ItemKind.USER
KEY_ITEMS: Final = (
    1 << ItemKind.USER | 1 << ItemKind.RESULT | 1 << ItemKind.ASSISTANT | 1 << ItemKind.EVENT
)
"""What counts for ``Keep.key_items``: what the user said, what tools returned, what the model
answered without calling anything, what was recorded (plans, errors, decisions of a human)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What stays: of the numbers for the end that are given, the one that keeps most decides.

    A pair is never split: the cut lies at or before the place that a number names.
    """

    last_items: int | None = 3
    """At least so many items."""
    last_turns: int | None = None
    """At least so many turns: from that user item on."""
    key_items: int | None = None
    """At least the items from the one on that has so many user items, results, final answers and
    events from it on."""
    tokens: int | None = None
    """The longest suffix within these tokens."""
    fraction: float | None = None
    """The longest suffix within this share of the policy's ``window_tokens``."""
    max_tokens: int | None = None
    """Of what the others keep, no more than these tokens if a later cut is safe."""
    turn_start: bool = False
    """What stays has to start at an item at which a context may start (a user item), if there is
    such a cut."""
    first_items: int = 0
    """The first so many items behind the pins stay visible before the summary."""
    pinned: tuple[tuple[int, int], ...] = ()
    """Ranges of seqs, both ends included, that stay visible."""
    tools: tuple[str, ...] = ()
    """Calls of these tools and their results stay visible."""
    protect_open_items: int = 200
    """A call that is open stays out of the fold until this many items came after it; so one that
    is never answered cannot block compaction for ever."""

    def __post_init__(self) -> None:
        for name in ("last_items", "last_turns", "key_items"):
            checked_optional_int(name, getattr(self, name))
        for name in ("tokens", "max_tokens"):
            checked_optional_int(name, getattr(self, name), least=1)
        checked_optional_share("fraction", self.fraction)
        checked_bool("turn_start", self.turn_start)
        checked_int("first_items", self.first_items)
        checked_int("protect_open_items", self.protect_open_items)
        object.__setattr__(self, "pinned", _checked_ranges(self.pinned))
        object.__setattr__(self, "tools", _checked_names(self.tools))
        if self.max_tokens is not None and self.max_tokens < (self.tokens or 0):
            msg = f"keep: tokens={self.tokens} is above max_tokens={self.max_tokens}"
            raise InvalidOptionError(msg)

    def cut(self, ledger: AnyLedger, *, first: int, window_tokens: int | None = None) -> int:
        """The position from which on items stay; at least ``first``.

        O(log n), and the kinds of what stays for turns and key items.
        """
        end = len(ledger)
        cuts = [end]
        if self.last_items is not None:
            cuts.append(ledger.cut_keep_last(min(self.last_items, ledger.shown_count)))
        if self.last_turns is not None:
            turn = ledger.last_of(USERS, min(self.last_turns, end), at_least=first)
            cuts.append(ledger.cut_at_most(turn))
        if self.key_items is not None:
            key = ledger.last_of(KEY_ITEMS, min(self.key_items, end), at_least=first)
            cuts.append(ledger.cut_at_most(key))
        for budget in (self.tokens, self._share_of(window_tokens)):
            if budget is not None:
                most = min(budget, TOKENS_MAX)
                found = ledger.cut_for_budget(most, at_least=first, starts=False)
                cuts.append(found if found >= 0 else end)
        cut = min(cuts)
        if self.max_tokens is not None:
            most = min(self.max_tokens, TOKENS_MAX)
            found = ledger.cut_for_budget(most, at_least=max(cut, 0), starts=False)
            cut = found if 0 <= found <= ledger.last_shown else cut
        opened = [at for at in ledger.open_positions() if end - at <= self.protect_open_items]
        latest = ledger.cut_at_most(opened[0]) if opened else end
        cut = min(cut, latest)
        if self.turn_start and cut > first:
            cut = self._at_start(ledger, cut, first, latest=latest)
        return max(cut, first)

    @property
    def pins(self) -> bool:
        """Whether anything before the cut stays."""
        return bool(self.first_items or self.pinned or self.tools)

    def _share_of(self, window_tokens: int | None) -> int | None:
        if self.fraction is None or window_tokens is None:
            return None
        return max(int(self.fraction * min(window_tokens, TOKENS_MAX)), 1)

    def _at_start(self, ledger: AnyLedger, cut: int, first: int, *, latest: int) -> int:
        """The start of a context nearest to a cut: a later one if tokens are bounded.

        Never one behind ``latest``, where the first protected call lies.
        """
        starts = ledger.safe_cuts(starts=True)
        at = bisect_left(starts, cut)
        bounded = self.max_tokens is not None or self.last_items is None
        if bounded and at < len(starts) and starts[at] <= latest:
            return starts[at]
        at = bisect_right(starts, cut)
        return starts[at - 1] if at and starts[at - 1] >= first else cut


def units_around(cuts: Sequence[int], positions: Iterable[int], *, stop: int) -> list[int]:
    """The positions with all that may not be separated from them, below ``stop``, ascending.

    That is everything between the safe cuts around each: no pair crosses a safe cut, so the parts
    between two of them are whole by themselves. ``cuts`` are the safe cuts in ascending order and
    ``stop`` is one of them.
    """
    found: set[int] = set()
    for position in positions:
        at = bisect_right(cuts, position)
        lo = cuts[at - 1] if at else 0
        hi = cuts[at] if at < len(cuts) else stop
        found.update(range(lo, min(hi, stop)))
    return sorted(found)


def _checked_ranges(given: object) -> tuple[tuple[int, int], ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        msg = f"pinned: expected ranges of seqs, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    found = []
    for entry in given:
        pair = entry if isinstance(entry, Sequence) and not isinstance(entry, str | bytes) else ()
        if len(pair) != 2:  # noqa: PLR2004 - a range has two ends
            msg = f"pinned: expected (first seq, last seq), got {entry!r:.80}"
            raise InvalidOptionError(msg)
        lo = checked_int("pinned", pair[0], least=1)
        found.append((lo, checked_int("pinned", pair[1], least=lo)))
    return tuple(found)


def _checked_names(given: object) -> tuple[str, ...]:
    if (
        isinstance(given, str | bytes)
        or not isinstance(given, Sequence)
        or not all(isinstance(name, str) and name for name in given)
    ):
        msg = f"tools: expected names of tools, got {given!r:.80}"
        raise InvalidOptionError(msg)
    return tuple(given)
