"""What a session's handle says of its size: items, tokens, and what a provider bills for them."""

from __future__ import annotations

from memcore.model import Calibration, OpenCall
from memcore.session.address import Address
from memcore.session.metering import Metering
from memcore.session.reading import Reading, head_of

__all__ = ["Measured"]


class Measured:
    """The totals of a session, and the calibration of its counter."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reading = Reading(address)
        self.metering = Metering(address)

    def __len__(self) -> int:
        return self._reading.run(lambda log, _: log.history.count, 0)

    def __bool__(self) -> bool:
        return True  # an empty session is a session all the same

    @property
    def reading(self) -> Reading:
        """Several reads of one snapshot (for memcore's own facades)."""
        return self._reading

    def exists(self) -> bool:
        """Whether anything was ever stored under this name."""
        return self._reading.exists()

    @property
    def revision(self) -> int:
        """Counter of changes to the log: what ``expected_revision`` is compared with."""
        return self._reading.run(lambda log, _: head_of(log).revision, 0)

    def seen_revision(self) -> int | None:
        """The revision as this process knew it last, if it did; looks nothing up."""
        log = self._address.log
        head = None if log is None else log.head
        return None if head is None else head.revision

    @property
    def tokens(self) -> int:
        """Tokens of the whole live history."""
        return self._reading.run(lambda log, _: head_of(log).tokens, 0)

    @property
    def policy(self) -> str:
        """The pair policy that the session is held to."""
        default = self._address.options.policy or self._address.backing.policy
        return self._reading.run(lambda log, _: log.policy.name, default)

    @property
    def open_calls(self) -> list[OpenCall]:
        """Calls that wait for a result, oldest first."""
        return [call for _, call in self._reading.open_calls()]

    # --- what the provider bills ------------------------------------------------------------------

    def report_usage(
        self, input_tokens: int, *, model: str | None = None, counted_tokens: int | None = None
    ) -> Calibration:
        """Tell what a provider billed for a request; it calibrates the estimates for that model.

        The report is about the last ``context()`` made through this handle; if none was made, about
        the whole live history as it is shown now: then report before the answer is appended. It is
        kept as an anchor: the next request is estimated at ``input_tokens + factor * counted
        since``. The factor comes from the differences of reports alone, so whatever every request
        holds beside the messages (tool schemas, a system prompt outside of the session) drops out
        of it. It is 1.0 until there are two reports, and stays within 0.8 to 2.0.

        The anchor does not apply once its last item was undone, the session was compacted or given
        another policy or counter; the factor stays. A report that comes late, about less than one
        before it, changes neither. The log and the revision stay as they are.

        Args:
            input_tokens: all input tokens of the request, those read from or written to a prompt
                cache included (Anthropic's API lists them apart): 1 to 2**48.
            model: the model's name; factors and anchors are kept for each of the last 8.
            counted_tokens: what the session's counter says of the messages that were sent. Which
                of the last 16 contexts is meant if requests overlap (``Context.tokens`` of it); or
                your own count, if you sent other messages than the context's.

        Returns:
            What is known of the model now.

        Raises:
            InvalidOptionError: an argument is no int or str, or out of range.
            NotFoundError: there is no such session (any more).
            ReadOnlyError, ClosedError, StorageError
        """
        closure = self.metering.report(input_tokens, model=model, counted_tokens=counted_tokens)
        return self._address.backing.store.transact(closure)

    @property
    def estimated_tokens(self) -> int:
        """What the provider is estimated to bill for the next full request.

        For the model reported last: what was billed for the anchored context and the factor times
        what was appended since; where no anchor applies, the factor times the tokens of the context
        without a budget. Without any report that is the plain count.

        Raises:
            CorruptValueError: the calibration is damaged; the next report writes it anew.
        """
        return self.metering.estimated_tokens()

    def calibrations(self) -> list[Calibration]:
        """What was learned by ``report_usage``, the model reported last first.

        Raises:
            CorruptValueError: the calibration is damaged; the next report writes it anew.
        """
        return self.metering.calibrations()
