"""Putting a session where its recovery says: index, head, items once more, in one commit."""

from __future__ import annotations

from typing import Final

from memcore import keys
from memcore.codec import seal_value
from memcore.errors import CorruptValueError, NotFoundError
from memcore.keys import Row
from memcore.log import Draft, Head, History, Prepared, index, prepare_event
from memcore.log.carried import carry_counts
from memcore.log.counts import NO_COUNTS, recount_numbers
from memcore.log.saved import Saved, last_number, mend_last, saved_states, write_saved
from memcore.log.stored import facts_of, tokens_of
from memcore.model import Checkpoint
from memcore.session.address import Address
from memcore.session.diagnosing import Diagnosis, Way
from memcore.state import mend_state, restore, state_counter
from memcore.store.base import Txn

__all__ = ["BEFORE_RECOVERY", "Restoring"]

BEFORE_RECOVERY: Final = "before recovery"
"""Name of the checkpoint that says where a session was."""
_LEAP: Final = 1_000_000
"""What a lost revision is taken to be below: one that was told once must never come again."""
_LOST_EVENT: Final = "lost"
_NO_SUM: Final = bytes(8)


class Restoring:
    """One recovery on its way."""

    def __init__(self, address: Address, txn: Txn, found: Diagnosis, way: Way) -> None:
        self._backing = address.backing
        self._log = address.log
        self._txn = txn
        self._found = found
        self._way = way
        self._survivors = found.survivors
        self.notes: list[str] = []

    def run(self, moved: list[Prepared]) -> Checkpoint | None:
        """Write everything; the checkpoint that says where the session was."""
        txn, found, way, survivors = self._txn, self._found, self._way, self._survivors
        scope, session = survivors.scope, survivors.session
        if survivors.missing_records:
            self._write_index()
        mend_last(txn, scope, session)
        mend_state(txn, scope, session, pinned=saved_states(txn, scope, session))
        head = self._head()
        saved = None if way.is_mended else self._before(head)
        if not way.is_mended:
            head.segments = list(way.kept.segments)
            head.link_session = head.link_block = head.base_count = 0
            head.count = way.kept.count
        last = way.kept.count - 1
        head.chain = 0 if last < 0 else way.kept.chain_at(txn, scope, way.kept.seq_at(last)) or 0
        head.epoch += 1
        head.view_session, head.view_number = self._view()
        old = found.live
        if old is None or not found.is_counted:
            NO_COUNTS.point(head)
            old = History([])
        carry_counts(txn, (scope, session), head, found.counter, old=old)
        if saved is not None:
            write_saved(txn, scope, session, saved)
        self._restore_state(head.next_seq)
        drafts = self._backing.drafts
        draft: Draft = drafts.start_over(txn, scope, session, head)
        if moved:
            draft.append(moved, orphans="keep")
        draft.finish(now_ms=self._backing.now_ms())
        drafts.close(txn, draft)
        return None if saved is None else saved.checkpoint

    # --- state ------------------------------------------------------------------------------------

    def _restore_state(self, seq: int) -> None:
        """The values of the checkpoint that the session goes back to."""
        saved, survivors = self._way.saved, self._survivors
        counter = None if saved is None else saved.checkpoint.state
        if counter is None:
            return
        try:
            restore(self._txn, survivors.scope, survivors.session, counter, seq=seq)
        except (CorruptValueError, NotFoundError) as exc:
            self.notes.append(f"its state stays as it is: {exc}")

    # --- head -------------------------------------------------------------------------------------

    def _head(self) -> Head:
        """The head as it was, or a new one that knows of all rows that there are."""
        survivors, found = self._survivors, self._found
        if survivors.head is not None:
            head = survivors.head.changed()
            head.next_seq = max(head.next_seq, survivors.stop)
            return head
        known = [saved.checkpoint for saved in survivors.saved]
        now_ms = self._backing.now_ms()
        created_ms = min((round(each.created_at * 1000) for each in known), default=now_ms)
        head = Head(policy=found.policy, counter=found.counter.id, now_ms=created_ms)
        cached = None if self._log is None else self._log.head
        told = [survivors.stop, *(each.revision for each in known)]
        epochs = [*recount_numbers(survivors.txn, survivors.scope, survivors.session), 0]
        epochs += [saved.epoch for saved in survivors.saved]
        if cached is not None:
            told.append(cached.revision)
            epochs.append(cached.epoch)
        head.revision, head.epoch = max(told) + _LEAP, max(epochs) + _LEAP
        head.next_seq = survivors.stop
        head.next_view = survivors.last_of(Row.VIEW) + 1
        head.next_block = survivors.last_of(Row.SEGMENTS) + 1
        head.parent_session, head.parent_seq = survivors.parent, survivors.first - 1
        self.notes.append(
            f"its head was lost: policy {head.policy!r} and counter {head.counter!r} are "
            + ("those of its newest checkpoint" if survivors.saved else "the database's")
        )
        if self._way.moved or (self._way.kept.count and self._way.saved is None):
            self.notes.append("items that were undone last may be back")
        return head

    def _view(self) -> tuple[int, int]:
        saved, found = self._way.saved, self._found
        if saved is None:
            return found.view
        return saved.view if found.is_whole_view(*saved.view) else found.view

    def _before(self, head: Head) -> Saved | None:
        """Where the session was, if what is left of it can be held to a prefix hash."""
        survivors, old = self._survivors, self._found.old
        chain = 0
        for owner, seq in old.steps():
            total = survivors.sum_of(owner, seq)
            proven = None if total is None else index.chain_after(chain, total)
            try:
                here = index.chain_of(self._txn, survivors.scope, owner, seq)
            except CorruptValueError:
                if proven is None:
                    return None
                here = proven  # an ancestor's index is damaged: its own recovery mends it
            if proven not in (here, None):
                return None
            chain = here
        was = survivors.head
        checkpoint = Checkpoint(
            number=last_number(self._txn, survivors.scope, survivors.session) + 1,
            name=BEFORE_RECOVERY,
            seq=old.seq_at(old.count - 1) if old.count else 0,
            revision=head.revision,
            items=old.count,
            tokens=0 if was is None else was.tokens,
            counter=head.counter,
            view=self._found.view[1],
            state=state_counter(self._txn, survivors.scope, survivors.session),
            created_at=self._backing.now_ms() / 1000,
        )
        return Saved(
            checkpoint,
            tuple(old.segments),
            (0, 0, 0),
            chain,
            self._found.view,
            head.policy,
            (head.parent_session, head.parent_seq),
            head.epoch,
        )

    # --- index ------------------------------------------------------------------------------------

    def _write_index(self) -> None:
        """Write the session's index anew: records that can be read stay, others are made again."""
        survivors, txn = self._survivors, self._txn
        scope, session = survivors.scope, survivors.session
        before = dict(survivors.before)
        last = 0
        for owner, seq in self._found.old.steps():
            if owner == session:
                before[seq] = last
            last = seq
        records: list[bytes] = []
        for seq in range(survivors.first, survivors.stop):
            record = survivors.records.get(seq)
            if record is None:
                chain = survivors.chain_of(before.get(seq, seq - 1)) or 0
                record = survivors.records[seq] = self._record(seq, chain)
            records.append(record)
        start = keys.session_rows(scope, session, Row.INDEX)
        txn.delete_range(start, keys.after(start))
        for first, body in index.laid_out(survivors.first, records):
            key = index.page_key(scope, session, first)
            txn.put(key, seal_value(key, body))

    def _record(self, seq: int, before: int) -> bytes:
        """The index record of an item, behind the prefix hash ``before``."""
        survivors, counter = self._survivors, self._found.counter
        tag = index.counter_tag(counter.id)
        total = survivors.sums.get(seq)
        chain = index.chain_after(before, total or _NO_SUM)
        found = survivors.item(survivors.session, seq)
        facts = None if isinstance(found, str) else facts_of(found[0], self._backing.seed)
        if facts is None or isinstance(found, str):
            event = prepare_event(
                _LOST_EVENT,
                None,
                counter=counter,
                seed=self._backing.seed,
                now_us=self._backing.now_us(),
            )
            return index.RECORD.pack(0, event.created_s, chain, tag) + event.facts
        tokens = tokens_of(*found, counter)
        return index.RECORD.pack(tokens, int(found[0].created_at), chain, tag) + facts
