"""Session: the object that a runtime holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from memcore.blobs import StagedBlobLost
from memcore.errors import InvalidOptionError, StorageError
from memcore.formats import policy_name
from memcore.log import Prepared
from memcore.model import (
    CallRecord,
    CompactionResult,
    Context,
    Item,
    OpenCall,
    Plan,
    Receipt,
    Summarize,
    View,
)
from memcore.options import checked_int, checked_optional_int
from memcore.session.address import Address, SessionOptions
from memcore.session.appending import Appending
from memcore.session.batch import Batch, BatchContext
from memcore.session.changes import Changes, Closure
from memcore.session.compacting import Compacting
from memcore.session.reading import Reading, head_of
from memcore.store import LmdbStore

__all__ = ["Session"]

T = TypeVar("T")
_STAGE_ATTEMPTS = 8


class Session:
    """One append-only conversation in a scope. May be shared by threads.

    Made by ``db.session(...)``. A session comes into being with its first change; reading one that
    does not exist gives an empty history.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reading = Reading(address)
        # The asynchronous facade commits what these three plan.
        self.appending = Appending(address)
        self.changes = Changes(address)
        self.compacting = Compacting(address)

    def __repr__(self) -> str:
        address = self._address
        return f"Session({address.name!r}, user={address.user!r}, app={address.app!r})"

    @property
    def store(self) -> LmdbStore:
        """The open store that the session lies in."""
        return self._address.backing.store

    @property
    def id(self) -> str:
        """The session's name."""
        return self._address.name

    @property
    def user(self) -> str:
        """The user who owns it."""
        return self._address.user

    @property
    def app(self) -> str:
        """The application it belongs to."""
        return self._address.app

    # --- totals -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._reading.run(lambda log, _: log.history.count, 0)

    def __bool__(self) -> bool:
        return True  # an empty session is a session all the same

    def exists(self) -> bool:
        """Whether anything was ever stored under this name."""
        return self._reading.run(lambda *_: True, default=False)

    @property
    def revision(self) -> int:
        """Counter of changes to the log: what ``expected_revision`` is compared with."""
        return self._reading.run(lambda log, _: head_of(log).revision, 0)

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

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        item: Mapping[str, Any],
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """Append one item; it is stored when this returns.

        Args:
            item: a message in any supported wire format: a JSON object.
            expected_revision: store it only if the session is at this revision.
            idempotency_key: the same key with the same content stores it once and returns the
                first receipt.
            request_id: kept beside the item.
            meta: a JSON object kept beside the item.

        Raises:
            InvalidItemError, OrphanResultError, RevisionConflict, DuplicateRequestError,
            InvalidOptionError, ReadOnlyError, ClosedError, StorageError
        """
        return self._store(
            *self.appending.extend(
                [item],
                expected_revision=expected_revision,
                idempotency_key=idempotency_key,
                request_id=request_id,
                meta=meta,
            )
        )

    def extend(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """Append items in one commit: all of them or none. Arguments and errors as ``append``."""
        return self._store(
            *self.appending.extend(
                items,
                expected_revision=expected_revision,
                idempotency_key=idempotency_key,
                request_id=request_id,
                meta=meta,
            )
        )

    def record(
        self,
        type: str,  # noqa: A002 - the architecture's name
        payload: Any = None,
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """Append an event (planner, reflection, error, ...): in the log, never in a context."""
        return self._store(
            *self.appending.record(
                type,
                payload,
                expected_revision=expected_revision,
                idempotency_key=idempotency_key,
                request_id=request_id,
                meta=meta,
            )
        )

    def abandon(self, call_id: str) -> Receipt:
        """Give up an open call: it blocks nothing any more, contexts answer it synthetically.

        Raises:
            NotFoundError: there is no open call with this id.
        """
        return self._store(*self.appending.abandon(call_id))

    def batch(self, *, expected_revision: int | None = None) -> BatchContext:
        """``with session.batch() as b:`` commits b's changes together when the block ends."""
        return BatchContext(
            self.plan_batch(expected_revision),
            lambda batch: self._store(batch.prepared, batch.closure()),
        )

    def plan_batch(self, expected_revision: int | None) -> Batch:
        """An empty batch of this session."""
        return Batch(self._address, expected_revision)

    def _store(self, prepared: list[Prepared], closure: Closure[T]) -> T:
        """Commit; very large items are staged ahead, again if they were collected meanwhile."""
        for item in prepared:
            if item.payload is not None:
                break
        else:
            return self._commit(closure)
        for _ in range(_STAGE_ATTEMPTS):
            self.appending.stage(prepared)
            try:
                return self._commit(closure)
            except StagedBlobLost:
                continue
        msg = "a large item was collected again and again before it could be referred to; try again"
        raise StorageError(msg)

    def _commit(self, closure: Closure[T]) -> T:
        return self._address.backing.store.transact(closure)

    # --- reading ----------------------------------------------------------------------------------

    def items(
        self, start: int = 0, stop: int | None = None, *, skip_corrupt: bool = False
    ) -> Iterator[Item]:
        """Live items with ``start <= seq < stop`` in order; lazy, a page at a time.

        Raises:
            CorruptValueError: an item is damaged; ``skip_corrupt`` leaves it out instead.
        """
        checked_int("start", start)
        checked_optional_int("stop", stop)
        return self._reading.items(start, stop, skip_corrupt=skip_corrupt)

    def __iter__(self) -> Iterator[Item]:
        return self.items()

    def get(self, seq: int) -> Item:
        """One live item.

        Raises:
            NotFoundError: it is not in the live history.
        """
        checked_int("seq", seq)
        return self._reading.get(seq)

    def tail(self, count: int, *, skip_corrupt: bool = False) -> list[Item]:
        """The last ``count`` live items, oldest first."""
        checked_int("tail", count)
        return self._reading.tail(count, skip_corrupt=skip_corrupt)

    def find_call(self, call_id: str) -> CallRecord:
        """Where a call was made and answered; the latest with this id.

        Raises:
            NotFoundError: no call of the live history has this id.
        """
        if not isinstance(call_id, str):
            msg = f"call_id: expected a str, got {type(call_id).__name__}"
            raise InvalidOptionError(msg)
        return self._reading.find_call(call_id)

    def context(self, budget_tokens: int | None = None, *, reserve_tokens: int = 0) -> Context:
        """What the model receives: legal for the policy and within the budget.

        Pins (the leading system items), the summary of a compaction, and the longest suffix from
        a safe cut. Late results stand behind their call, unanswered calls are answered
        synthetically, orphans are left out; ``Context.repairs`` lists it all. Equal histories and
        budgets give equal messages.

        Args:
            budget_tokens: at most this many tokens by the session's counter; None: no limit.
            reserve_tokens: of these, leave so many free (for the answer, tool schemas).

        Raises:
            ContextOverflowError: even the smallest legal context is larger.
            InvalidOptionError, CorruptValueError
        """
        return self._reading.context(budget_tokens, reserve_tokens)

    # --- taking back and branching ----------------------------------------------------------------

    def undo(self, count: int = 1, *, expected_revision: int | None = None) -> list[Item]:
        """Take the last ``count`` items off the live history and return them, oldest first."""
        return self._commit(self.changes.undo(count, expected_revision=expected_revision))

    def rewind(self, seq: int, *, expected_revision: int | None = None) -> Receipt:
        """Make ``seq`` the last live item; 0 empties the live history.

        Raises:
            NotFoundError: the item is not in the live history.
        """
        return self._commit(self.changes.rewind(seq, expected_revision=expected_revision))

    def fork(self, session_id: str, *, at: int | None = None, policy: str | None = None) -> Session:
        """A new session of the same scope that shares the history up to and including ``at``.

        Args:
            session_id: name of the fork; no session may have it.
            at: a live seq; None: all of the history; 0: none of it.
            policy: another pair policy for the fork.

        Raises:
            NotFoundError, InvalidOptionError
        """
        closure, target = self.plan_fork(session_id, at=at, policy=policy)
        self._commit(closure)
        return target

    def plan_fork(
        self, session_id: str, *, at: int | None, policy: str | None
    ) -> tuple[Closure[None], Session]:
        """The closure of ``fork`` and the handle of the new session."""
        mine = self._address
        name = None if policy is None else policy_name(policy)
        options = SessionOptions(name, None, mine.options.orphans, mine.options.rule)
        target = Address(mine.backing, mine.app, mine.user, session_id, options)
        return self.changes.fork(target, at), Session(target)

    def set_policy(self, policy: str) -> None:
        """Hold the session to another pair policy; the log stays, the ledger is built anew."""
        self._commit(self.changes.set_policy(policy))
        self._address.allow_policy(policy)

    # --- compaction -------------------------------------------------------------------------------

    def needs_compaction(self, *, max_items: int | None = None) -> bool:
        """Whether more than ``max_items`` items are not covered by a summary; O(1).

        False while the last item is a tool result: the model has yet to see it.
        """
        rule = self.compacting.rule(max_items=max_items)
        return self._reading.run(
            lambda log, txn: self.compacting.is_due(log, txn, rule), default=False
        )

    def plan(self, *, keep_last: int | None = None, keep_tokens: int | None = None) -> Plan:
        """What ``compact`` with the same arguments would fold; writes nothing."""
        rule = self.compacting.rule(keep_last=keep_last, keep_tokens=keep_tokens)
        return self.compacting.prepare(rule).plan

    def compact(
        self,
        summarize: Summarize | None = None,
        *,
        keep_last: int | None = None,
        keep_tokens: int | None = None,
    ) -> CompactionResult:
        """Represent the older items by a summary. The log keeps them; ``uncompact`` shows them.

        The cut never splits a call from its result. ``summarize`` is called outside of any
        transaction; if it fails, a short safe suffix stays without a summary and the result holds
        the error. Without ``summarize`` the older items are trimmed.

        Args:
            summarize: gets a SummaryRequest, returns the summary.
            keep_last: keep at least this many items (default 3).
            keep_tokens: keep the longest safe suffix within these tokens.

        Raises:
            PlanStaleError: the history was cut or compacted by someone else meanwhile.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        self.compacting.check(summarize)
        rule = self.compacting.rule(keep_last=keep_last, keep_tokens=keep_tokens)
        draft = self.compacting.prepare(rule)
        draft = self.compacting.summarized(draft, summarize)
        if draft.is_empty:
            return draft.nothing()
        view = self._commit(self.compacting.closure(draft))
        return CompactionResult(draft.status, draft.plan, view, draft.error)

    def views(self) -> list[View]:
        """The compaction records, oldest first."""
        return self._reading.views()

    def uncompact(self) -> bool:
        """Take the last compaction back; whether there was one."""
        return self._commit(self.changes.uncompact())
