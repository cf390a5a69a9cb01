"""What a session's handle does to be shown as less than it is: compaction, views, repair."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from memcore.compaction import CompactionPolicy, Pressure
from memcore.errors import InvalidOptionError, NotFoundError, PlanStaleError, RevisionConflict
from memcore.formats.parts import results_of
from memcore.model import CompactionResult, Item, Mask, Plan, RepairResult, Summarize, View
from memcore.options import checked_optional_int, checked_optional_seconds
from memcore.session.address import Address
from memcore.session.changes import Changes, Closure
from memcore.session.compacting import Compacting
from memcore.session.measured import Measured
from memcore.session.offloaded import read_offloaded
from memcore.session.repairing import REPAIR_ATTEMPTS, Repairing
from memcore.session.sizes import REFERENCE

__all__ = ["Condensed"]

T = TypeVar("T")
_SEQ: Final = re.compile("[0-9]{1,20}")
AnyPolicy = CompactionPolicy | str | Mapping[str, Any]


class Condensed(Measured):
    """The compaction of a session."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        # The asynchronous facade commits what these plan.
        self.changes = Changes(address)
        self.compacting = Compacting(address)
        self.repairing = Repairing(address)

    def _commit(self, closure: Closure[T], *, makes_room: bool = False) -> T:
        return self._address.backing.store.transact(closure, makes_room=makes_room)

    # --- when -------------------------------------------------------------------------------------

    def pressure(self, *, policy: AnyPolicy | None = None) -> Pressure:
        """How full the session is, which stage of the policy is due, and how many turns are left.

        From sums that are kept: its time does not grow with the history.
        """
        return self.compacting.pressure(self.compacting.policy(policy))

    def needs_compaction(
        self, *, policy: AnyPolicy | None = None, max_items: int | None = None
    ) -> bool:
        """Whether a stage of the policy is due; ``max_items`` asks for items alone instead.

        False while the last item is a tool result: the model has yet to see it.
        """
        most = checked_optional_int("max_items", max_items)
        found = self.pressure(policy=policy)
        if most is not None:
            return not found.waiting and found.items > most
        return found.stage is not None

    # --- compaction -------------------------------------------------------------------------------

    def plan(
        self,
        *,
        policy: AnyPolicy | None = None,
        stage: str | None = None,
        keep_last: int | None = None,
        keep_tokens: int | None = None,
        force: bool = False,
    ) -> Plan:
        """What ``compact`` with the same arguments would fold and mask; writes nothing.

        Empty if no stage is due. With ``force`` it is that of a compaction with a summarizer.
        """
        rule, asked = self.compacting.asked(
            policy, stage, keep_last=keep_last, keep_tokens=keep_tokens, force=force
        )
        return self.compacting.begin(rule, asked, fold=False).plan

    def compact(
        self,
        summarize: Summarize | None = None,
        *,
        policy: AnyPolicy | None = None,
        stage: str | None = None,
        keep_last: int | None = None,
        keep_tokens: int | None = None,
        force: bool = False,
        timeout_seconds: float | None = None,
    ) -> CompactionResult:
        """Represent the older items by a summary. The log keeps them; ``uncompact`` shows them.

        When no stage of the policy is due nothing is done, and the result's ``reason`` says why;
        ``force``, ``stage``, ``keep_last`` and ``keep_tokens`` compact all the same.

        The cut never splits a call from its result. ``summarize`` is called outside of any
        transaction, and writers go on meanwhile. If it fails or saves too little, the policy's
        fallback serves: masks, a short safe suffix without a new summary, or one item; the result
        holds the error and the reason. Without ``summarize`` the older items are trimmed. What
        saves nothing is refused.

        Args:
            summarize: gets a SummaryRequest, returns the summary.
            policy: a CompactionPolicy, a preset's name or a mapping; None: the session's.
            stage: the stage to run, due or not; None: the heaviest that is due.
            keep_last: keep at least this many items, in place of the policy's number.
            keep_tokens: keep the longest safe suffix within these tokens, likewise.
            force: if no stage is due, run the heaviest; with ``summarize``, the heaviest that
                makes a summary.
            timeout_seconds: how long ``summarize`` may take; it then runs in a thread.

        Raises:
            PlanStaleError: the history was cut or compacted by someone else meanwhile.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        compacting = self.compacting
        compacting.check(summarize)
        checked_optional_seconds("timeout_seconds", timeout_seconds)
        rule, asked = compacting.asked(
            policy, stage, keep_last=keep_last, keep_tokens=keep_tokens, force=force
        )
        draft = compacting.begin(rule, replace(asked, summarizes=summarize is not None))
        return compacting.recorded(
            compacting.summarized(draft, summarize, timeout_seconds=timeout_seconds)
        )

    # --- repair -----------------------------------------------------------------------------------

    def repair(
        self, mode: str = "drop", *, plan: bool = False, close_open: bool = False
    ) -> RepairResult:
        """Mend a foreign history by a recorded view; the log keeps it as it is.

        Contexts mend what they show by themselves, each time: a repair decides once. Results that
        answer nothing or that a newer one replaces are not shown any more. Calls that were passed
        over are taken out (``drop``) or keep being answered synthetically (``synthesize``); a
        result that comes for a call that was taken out is not shown. Late and split results are
        put in order by rendering; under the view that holds for the pair policy ``seed``, too.
        What the repair rests on may be undone: then the items show as before. Calls at the end
        that nothing follows stay open. A second repair finds nothing to do.

        Args:
            mode: ``drop`` or ``synthesize``.
            plan: report what would be done; write nothing.
            close_open: give up the open calls first, by an event each, as ``abandon`` does.

        Raises:
            RevisionConflict, PlanStaleError: others kept changing the session.
            InvalidOptionError, ReadOnlyError, CorruptValueError, StorageError
        """
        repairing = self.repairing
        mode = repairing.check(mode, plan=plan, close_open=close_open)
        draft = repairing.prepare(mode, close_open=close_open)
        if plan:
            return draft.result()
        given_up = draft.open_calls
        if given_up:
            self._commit(repairing.give_up(draft))
            draft = repairing.prepare(mode)
        for left in range(REPAIR_ATTEMPTS, 0, -1):
            draft = replace(draft, open_calls=given_up)
            if draft.is_empty:
                break
            try:
                return draft.result(self._commit(repairing.closure(draft)))
            except (RevisionConflict, PlanStaleError):
                if left == 1:
                    raise
            draft = repairing.prepare(mode)
        return draft.result()

    # --- views ------------------------------------------------------------------------------------

    def views(self) -> list[View]:
        """The compaction records, oldest first."""
        return self._reading.views()

    def uncompact(self) -> bool:
        """Take the last compaction back; whether there was one."""
        return self._commit(self.changes.uncompact(), makes_room=True)

    def masks(self) -> list[Mask]:
        """What contexts show in place of items at present, in the order of the items."""
        found = self._reading.run(lambda log, txn: log.masks(txn, log.current_view(txn)), {})
        return [found[seq] for seq in sorted(found)]

    def covered(self, view: View | None = None) -> Iterator[Item]:
        """The items that a view (None: the current one) represents and does not show, oldest first.

        Raises:
            NotFoundError: there is no such view in force or among its ancestors.
        """
        found = self._reading.view(view)
        if found is None:
            return
        pinned = set(found.pinned)
        pins = self._reading.pins()
        for item in self._reading.items(0, found.cut_seq + 1, skip_corrupt=False):
            if item.seq > pins and item.seq not in pinned:
                yield item

    def read_offloaded(self, reference: str) -> str:
        """The whole text that an offloaded result left a preview of.

        Args:
            reference: as the preview names it: ``item:SEQ`` or ``item:SEQ:CALL_ID``; of an item
                that was too large to be stored as it was, ``offload:KEY:NUMBER``.

        Raises:
            NotFoundError: the item is not in the live history, or has no such result.
            InvalidOptionError: it is no reference.
        """
        if isinstance(reference, str) and reference.startswith(REFERENCE):
            return read_offloaded(self._reading, reference)
        seq, call_id = _split_reference(reference)
        texts = [
            result.text
            for result in results_of(self._reading.get(seq).message)
            if call_id is None or (result.key is not None and result.key[1] == call_id)
        ]
        if not texts:
            msg = f"item {seq} has no result for call {call_id!r}"
            raise NotFoundError(msg)
        return "\n".join(texts)


def _split_reference(reference: object) -> tuple[int, str | None]:
    parts = reference.split(":", 2) if isinstance(reference, str) else []
    if len(parts) < 2 or parts[0] != "item" or not _SEQ.fullmatch(parts[1]):  # noqa: PLR2004
        msg = f"reference: expected 'item:SEQ' or 'item:SEQ:CALL_ID', got {reference!r:.80}"
        raise InvalidOptionError(msg)
    return int(parts[1]), parts[2] if len(parts) > 2 else None  # noqa: PLR2004
