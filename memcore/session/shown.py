"""What a session shows: its items, the calls among them, and the context for a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memcore.errors import InvalidOptionError
from memcore.model import CallRecord, Context, Item, View
from memcore.options import checked_int, checked_optional_int
from memcore.session.joined import Joined
from memcore.session.outgoing import Redact, shown_context, shown_items
from memcore.session.voices import checked_voices

__all__ = ["Shown"]


class Shown(Joined):
    """A session that is read."""

    def items(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        skip_corrupt: bool = False,
        authors: Iterable[str] | None = None,
        share: str | None = None,
        redact: Redact = None,
    ) -> Iterator[Item]:
        """Live items with ``start <= seq < stop`` in order; lazy, a page at a time.

        ``authors``, ``share`` and ``redact``: as in ``context``; nothing shows of what is appended
        meanwhile.

        Raises:
            CorruptValueError: an item is damaged; ``skip_corrupt`` leaves it out instead.
        """
        checked_int("start", start)
        checked_optional_int("stop", stop)
        voices = checked_voices(authors, share)
        found = self._reading.items(start, stop, skip_corrupt=skip_corrupt)
        if redact not in (None, False):
            found = shown_items(self._address, found, redact)
        if voices is None:
            return found
        shown = self.metering.voicing.seqs(voices, skip_corrupt=skip_corrupt)
        return (item for item in found if item.seq in shown)

    def __iter__(self) -> Iterator[Item]:
        return self.items()

    def get(self, seq: int) -> Item:
        """One live item.

        Raises:
            NotFoundError: it is not in the live history.
        """
        checked_int("seq", seq)
        return self._reading.get(seq)

    def tail(self, count: int, *, skip_corrupt: bool = False, redact: Redact = None) -> list[Item]:
        """The last ``count`` live items, oldest first; ``redact`` as in ``context``."""
        checked_int("tail", count)
        found = self._reading.tail(count, skip_corrupt=skip_corrupt)
        if redact in (None, False):
            return found
        return list(shown_items(self._address, found, redact))

    def find_call(self, call_id: str) -> CallRecord:
        """Where a call was made and answered; the latest with this id.

        Raises:
            NotFoundError: no call of the live history has this id.
        """
        if not isinstance(call_id, str):
            msg = f"call_id: expected a str, got {type(call_id).__name__}"
            raise InvalidOptionError(msg)
        return self._reading.find_call(call_id)

    def context(
        self,
        budget_tokens: int | None = None,
        *,
        reserve_tokens: int = 0,
        calibrated: bool = False,
        model: str | None = None,
        view: View | int | None = None,
        authors: Iterable[str] | None = None,
        share: str | None = None,
        redact: Redact = None,
    ) -> Context:
        """What the model receives: legal for the policy and within the budget.

        Pins (the leading system items), the summary of a compaction, and the longest suffix from
        a safe cut. Late results stand behind their call, unanswered calls are answered
        synthetically, orphans are left out; ``Context.repairs`` lists it all. Equal histories and
        budgets give equal messages; ``calibrated`` ones depend on what was reported, too.

        Args:
            budget_tokens: at most this many tokens by the session's counter; None: no limit.
            reserve_tokens: of these, leave so many free (for the answer, tool schemas).
            calibrated: the budget is meant in the provider's tokens as well: what it is estimated
                to bill for the request stays within it, too (see ``report_usage``). That includes
                what was part of the reported requests beside the messages, as tool schemas: do not
                reserve for them again.
            model: whose calibration to go by; None: that of the model reported last.
            view: one of ``views()`` or its number: show the history as under that compaction; 0: as
                without any; None: under the newest that applies.
            authors: show the items of these agents (``Envelope.author``), and of the others only
                what ``share`` says; items of no author and of ``user`` are everybody's. Calls are
                left out together with their results. None: everybody's items.
            share: ``"results"`` (None as well): of others what is of type ``final`` or
                ``aggregate``; ``"none"``: nothing; ``"all"``: everything.
            redact: show placeholders in the place of what this policy looks for, as a database that
                was opened with it would have stored; tokens stay those of what is stored.

        Raises:
            ContextOverflowError: even the smallest legal context is larger.
            NotFoundError: the session has no such view, or the history was cut below it.
            InvalidOptionError, CorruptValueError
        """
        found = self.metering.context(
            budget_tokens,
            reserve_tokens,
            calibrated=calibrated,
            model=model,
            view=view,
            voices=checked_voices(authors, share),
        )
        return found if redact in (None, False) else shown_context(self._address, found, redact)
