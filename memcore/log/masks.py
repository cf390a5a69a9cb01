"""The masks in force on a session's live history, kept in memory."""

from __future__ import annotations

from memcore._fast import Ledger
from memcore.log.ledger import count_message
from memcore.log.masked import AnyLedger, MaskedLedger
from memcore.log.positions import History
from memcore.model import Mask
from memcore.store.base import ReadTxn
from memcore.tokens import TokenCounter
from memcore.views import StoredView, masks_of

__all__ = ["Masks"]


class Masks:
    """The masks under the view that was asked for last.

    The next view is mostly its child, which adds a few: so a long chain of views is walked once.
    """

    __slots__ = ("_counter", "_known", "_place", "_seen")

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self._place: tuple[int, int, int] | None = None
        """(epoch, owner, number) of the view that ``_known`` belongs to."""
        self._known: dict[int, Mask] = {}
        self._seen: tuple[Ledger, int, dict[int, Mask], AnyLedger] | None = None

    def under(
        self, txn: ReadTxn, scope: int, stored: StoredView | None, at: tuple[int, History]
    ) -> dict[int, Mask]:
        """The masks in force under a view by seq, with tokens by the session's counter.

        ``at`` is the epoch and the live history.
        """
        if stored is None or not (stored.view.masks or stored.inherits):
            return {}
        epoch, history = at
        place = (epoch, stored.owner, stored.view.number)
        if self._place != place:
            same = self._place is not None and self._place[0] == epoch
            known = (self._place[1:], self._known) if self._place is not None and same else None
            places = history.owner_of, lambda seq: history.chain_at(txn, scope, seq)
            found = masks_of(txn, scope, stored, places, known=known, counter=self._counter.id)
            self._known = {seq: self._counted(mask, by) for seq, (mask, by) in found.items()}
            self._place = place
        return self._known

    def seen_through(
        self, ledger: Ledger, offset: int, masks: dict[int, Mask], history: History
    ) -> AnyLedger:
        """A ledger whose positions begin at ``offset``, with masked items at their masked size.

        ``masks`` are what ``under`` gave. What a mask saves stays the same when the ledger grows.
        """
        if not masks:
            return ledger
        last = self._seen
        if last is not None and last[0] is ledger and last[1] == offset and last[2] is masks:
            return last[3]
        found = {}
        for seq, mask in masks.items():
            position = history.position_of(seq)
            if position is not None and position >= offset:
                found[position - offset] = (mask.tokens, mask.message is None)
        seen = MaskedLedger(ledger, found) if found else ledger
        self._seen = (ledger, offset, masks, seen)
        return seen

    def _counted(self, mask: Mask, counter: str) -> Mask:
        if counter == self._counter.id or mask.message is None:
            return mask
        return mask._replace(tokens=count_message(mask.message, self._counter))
