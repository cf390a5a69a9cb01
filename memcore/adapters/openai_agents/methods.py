"""The four methods of the SDK's session protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agents.memory.session_settings import resolve_session_limit

from memcore.adapters.openai_agents.book import clearing
from memcore.adapters.openai_agents.current import BranchGone, Current
from memcore.adapters.openai_agents.history import Bound, finish_removal
from memcore.adapters.openai_agents.items import Unreadable
from memcore.adapters.openai_agents.sealing import unreadable_error
from memcore.aio.commit import commit_to
from memcore.database.scope import backing_of
from memcore.session.handle import store_of

__all__ = ["Methods"]


class _Refused(Exception):  # noqa: N818 - a signal
    """What a check raised, whatever it is: the store takes an OSError for the device's."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Methods(Current):
    """get, add, pop and clear, over a session's place."""

    async def get_items(
        self, limit: int | None = None, branch_id: str | None = None, *, wrapper: Any = None
    ) -> list[Any]:
        """The latest ``limit`` items, oldest first.

        Damaged items are left out with a warning in the log, and do not count. A session with
        ``compaction`` or ``budget_tokens`` gives a legal window of at most so many, the summary
        among them, for the limit of ``session_settings``, and the exact tail for any other one.

        Args:
            limit: None: that of ``session_settings``, else all; 0: none; negative: all. The Runner
                passes that of ``session_settings`` itself.
            branch_id: of which branch; None: of the current one.
            wrapper: the Runner's context wrapper.

        Raises:
            RuntimeError: the session is closed.
            UnreadableItemsError: some are encrypted otherwise.
        """
        bound = self.bound_at(branch_id, wrapper)
        bound.known.read(bound.session.sync.ending)
        usual = resolve_session_limit(None, self.session_settings)
        if limit is None or limit == usual:
            return await self.shown(bound, usual)
        return await self.read(bound, limit)

    async def add_items(
        self, items: Sequence[Any], *, wrapper: Any = None, idempotency_key: str | None = None
    ) -> None:
        """Store items behind the others, all of them or none.

        Args:
            items: whatever ``json.dumps`` writes.
            wrapper: the Runner's context wrapper.
            idempotency_key: a name for this batch: it is stored once, however often it is added.

        Raises:
            TypeError: an item is nothing that JSON can say; nothing is stored.
            DuplicateRequestError: the key was used for another batch.
            RuntimeError: the session is closed.
        """
        bound = self.bound(wrapper)
        if not items:
            return
        prepared = self.prepared(bound, list(items), idempotency_key)
        closure = bound.session.sync.appending.append(prepared, idempotency_key=idempotency_key)
        try:
            receipt = await bound.session.store(prepared, closure)
        except BranchGone:
            await self.add_items(items, wrapper=wrapper, idempotency_key=idempotency_key)
        else:
            log = bound.address.log
            if log is not None:
                bound.known.wrote(log.session, receipt.revision)

    async def pop_item(self, *, wrapper: Any = None) -> Any:
        """Remove and return the latest item; None if there is none.

        Damaged items behind it go with it.

        Raises:
            UnreadableItemsError: it is encrypted otherwise; it stays.
            RuntimeError: the session is closed.
        """
        return await self.pop(wrapper=wrapper)

    async def pop(self, check: Callable[[Any], None] | None = None, *, wrapper: Any = None) -> Any:
        """As ``pop_item``, once ``check`` has let the item pass inside the transaction."""
        while True:
            try:
                return await self._popped(self.bound(wrapper), check)
            except BranchGone:
                continue  # to the branch that is the current one now

    async def _popped(self, bound: Bound, check: Callable[[Any], None] | None) -> Any:
        await self.remove_due(bound)
        decode = bound.coder.decode

        def look(message: dict[str, Any]) -> None:
            try:
                item = decode(message)
            except Unreadable as exc:
                raise unreadable_error(self.session_id, {str(exc): 1}) from exc
            if check is not None:
                try:
                    check(item)
                except Exception as exc:
                    raise _Refused(exc) from exc

        store = store_of(bound.session.sync)
        try:
            closure = self.beside(bound, bound.session.sync.ending.take(look))
            taken = await commit_to(store, closure, makes_room=True)
        except _Refused as refused:
            raise refused.error from refused.error.__cause__
        bound.known.forget()
        return None if taken is None else decode(taken)

    async def clear_session(self, *, wrapper: Any = None) -> None:
        """Remove all that is stored of this session from the file, its branches included.

        What was ever the name of a branch stays taken.
        """
        scope = self.scope_for(wrapper)
        self.leave_branch(scope)
        closure = clearing(scope, self.session_id)
        _, rest = await commit_to(backing_of(scope).store, closure, makes_room=True)
        self.leave_branch(scope)
        bound = self.bound_in(scope)
        bound.known.forget()
        await finish_removal(bound, rest)
