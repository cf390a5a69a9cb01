"""Changing a session: every change is a closure that the store may run again.

The same closures serve the synchronous handle and the asynchronous one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from memcore import blobs, keys, names
from memcore.codec import FLAG_BLOB, seal_value
from memcore.errors import InvalidOptionError, NotFoundError
from memcore.formats import policy_name
from memcore.keys import Row
from memcore.log import (
    Draft,
    Head,
    History,
    decode_item,
)
from memcore.log.carried import carry_counts
from memcore.log.item import split_body
from memcore.log.saved import Saved
from memcore.model import Item
from memcore.options import checked_bool, checked_int, checked_optional_int
from memcore.session.address import Address
from memcore.session.past import state_at, unknown_state
from memcore.state import inherit, state_counter
from memcore.store.base import Txn
from memcore.usage import inherit_usage
from memcore.views import read_view

__all__ = ["Changes", "Closure"]

T = TypeVar("T")
Closure = Callable[[Txn], T]


@dataclass(frozen=True, slots=True)
class Settled:
    """What a change returns that has nothing to write: the revision stays as it is."""

    result: Any


class Changes:
    """Makes the closures of all changes of one session."""

    __slots__ = ("_address",)

    def __init__(self, address: Address) -> None:
        self._address = address

    def change(
        self,
        work: Callable[[Draft], T],
        *,
        create: bool = True,
        revised: bool | Callable[[], bool] = True,
        after: Callable[[Draft], Any] | None = None,
        missing: Callable[[], Any] | None = None,
        atomic: bool = False,
    ) -> Closure[Any]:
        """A closure that does ``work`` on the session's draft and finishes it.

        If ``work`` fails before it wrote anything, the draft is as it was before (``atomic``: by
        itself). ``revised``: whether the log changed, and so has another revision; it may be told
        once the work is done. ``after`` gives the closure's result once the change is numbered;
        without it ``work``'s result is it. ``missing`` gives the result for a session that does not
        exist; else NotFoundError.
        """
        self._address.need_writable()

        def closure(txn: Txn) -> Any:
            draft = self._address.draft(txn, create=create)
            if draft is None:
                if missing is not None:
                    return missing()
                msg = f"there is no session {self._address.name!r}"
                raise NotFoundError(msg)
            mark = None if atomic else draft.mark()
            try:
                result = work(draft)
            except BaseException:
                if mark is not None:
                    draft.restore(mark)
                raise
            if isinstance(result, Settled):
                return result.result
            try:
                is_revised = revised if isinstance(revised, bool) else revised()
                draft.finish(now_ms=self._address.backing.now_ms(), revised=is_revised)
                if self._address.uses is not None:
                    self._address.uses.write(txn, draft.log.place)
                if after is not None:
                    result = after(draft)
                if draft.is_rebased:
                    self._address.backing.drafts.close(txn, draft)
                return result
            except BaseException:
                txn.spoil()  # neighbours in the batch share this draft
                raise

        return closure

    # --- taking back ------------------------------------------------------------------------------

    def undo(self, count: int, *, expected_revision: int | None = None) -> Closure[list[Item]]:
        """Take the last items off the live history."""
        checked_int("undo", count, least=1)
        revision = checked_optional_int("expected_revision", expected_revision)

        def work(draft: Draft) -> Any:
            draft.expect(revision)
            return take_back(draft, count) or Settled([])

        return self.change(work, create=False, missing=list)

    def live_count(self, draft: Draft, seq: int) -> int:
        """How many live items there are up to and including ``seq``."""
        if seq == 0:
            return 0
        position = draft.position_of(seq)
        if position is None:
            msg = f"item {seq} is not in the live history of session {self._address.name!r}"
            raise NotFoundError(msg)
        return position + 1

    def fork(
        self,
        target: Address,
        at: int | Callable[[Draft], Saved] | None,
        *,
        state: bool = True,
        expected_revision: int | None = None,
    ) -> Closure[None]:
        """A new session that shares this one's history up to ``at``, or what ``at`` finds.

        ``state`` says whether it begins with the values of then, or else of now.
        """
        checked_bool("state", state)
        if at is not None and not callable(at):
            checked_int("at", at)
        revision = checked_optional_int("expected_revision", expected_revision)
        names.check_name(target.name, "session")
        policy = target.options.policy

        def work(draft: Draft) -> None:
            draft.expect(revision)
            if target.find(draft.txn) is not None:
                msg = f"session {target.name!r} exists already: choose another name for the fork"
                raise InvalidOptionError(msg)
            saved = at(draft) if callable(at) else None
            seq = draft.last_seq if at is None or callable(at) else at
            count = self.live_count(draft, seq) if saved is None else 0
            draft.flush()
            txn, log, parent = draft.txn, draft.log, draft.head
            session = names.new_session(txn, log.scope, target.name)
            head = parent.changed()
            head.policy = policy or parent.policy
            now_ms = self._address.backing.now_ms()
            if saved is None:
                _begin_fork(head, log.session, seq, now_ms)
                head.trim(txn, log.scope, count)
            else:
                seq, count = saved.checkpoint.seq, saved.checkpoint.items
                _begin_fork(head, log.session, seq, now_ms)
                saved.put_in(head)
                old = History(parent.all_segments(txn, log.scope))
                carry_counts(txn, (log.scope, session), head, log.counter, old=old)
            row = keys.session_row(log.scope, log.session, Row.CHILD, session)
            txn.put(row, seal_value(row, b""))
            shared = saved is None and head.policy == parent.policy
            base = draft.ledger_of(count) if shared else None
            drafts = self._address.backing.drafts
            child = drafts.create(txn, log.scope, session, head, base=base)
            head.chain = child.chain_at(seq) if count else 0
            if saved is not None and head.chain != saved.chain:
                raise saved.mismatch()
            child.finish(now_ms=now_ms)
            inherit_usage(txn, log.scope, log.session, session, at=seq)
            try:
                owner, counter = self._state_point(draft, seq, saved) if state else (0, None)
                inherit(txn, log.scope, owner or log.session, session, counter=counter, seq=seq + 1)
            except NotFoundError as exc:
                raise unknown_state(seq, exc) from exc
            txn.on_commit(lambda: target.settle(log.scope, session))

        return self.change(work, create=False, revised=False)

    @staticmethod
    def _state_point(draft: Draft, seq: int, saved: Saved | None) -> tuple[int, int | None]:
        """Whose values a fork begins with, and at which counter (None: now)."""
        txn, log = draft.txn, draft.log
        if saved is not None or seq == draft.last_seq:
            return log.session, None if saved is None else saved.checkpoint.state
        if not state_counter(txn, *log.place):
            return log.session, None  # it never had a state, nor had what it was forked from
        history = History(draft.head.all_segments(txn, log.scope))
        return state_at(txn, *log.place, history, seq)

    def set_policy(self, policy: str) -> Closure[None]:
        """Hold the session to another policy from now on; the log stays as it is."""
        name = policy_name(policy)

        def work(draft: Draft) -> None:
            draft.set_policy(name)

        return self.change(work)

    def uncompact(self) -> Closure[bool]:
        """Go back to the view before the current one; whether there was one."""
        return self.change(step_back, create=False, revised=False, missing=bool)


def _begin_fork(head: Head, parent: int, seq: int, now_ms: int) -> None:
    """Make a copy of the parent's head the head of its fork."""
    head.parent_session, head.parent_seq = parent, seq
    head.next_seq = seq + 1
    head.revision = head.epoch = 0
    head.next_view = head.next_block = 1
    head.flags = 0
    head.recount_stop = min(head.recount_stop, seq + 1)
    head.created_ms = now_ms


def take_back(draft: Draft, count: int) -> list[Item]:
    """Take the last items off a draft and return them, oldest first."""
    count = min(count, draft.count)
    items = [
        decode_item(seq, body, flags, draft.tokens_at(position), _payload_of(draft, flags, body))
        for position, seq, flags, body in draft.last_rows(count)
    ]
    draft.cut_to(draft.count - count)
    return items


def _payload_of(draft: Draft, flags: int, body: bytes) -> bytes | None:
    if not flags & FLAG_BLOB:
        return None
    ref = blobs.BlobRef.unpack(split_body(body)[3])
    return blobs.read(draft.txn, draft.log.scope, ref)


def step_back(draft: Draft) -> bool:
    """Make the parent of the current view the current one."""
    head = draft.head
    stored = read_view(draft.txn, draft.log.scope, head.view_session, head.view_number)
    if stored is None:
        return False
    head.view_session, head.view_number = stored.parent_owner, stored.view.parent
    return True
