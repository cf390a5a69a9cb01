"""The four methods of the SDK's session protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memcore import names
from memcore.adapters.openai_agents.history import (
    Bound,
    History,
    finish_removal,
    unreadable_error,
)
from memcore.adapters.openai_agents.items import Unreadable
from memcore.aio.commit import commit_to
from memcore.session import start_removal
from memcore.store.base import Txn

__all__ = ["Methods"]


class _Refused(Exception):  # noqa: N818 - a signal
    """What a check raised, whatever it is: the store takes an OSError for the device's."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Methods(History):
    """get, add, pop and clear, over a session's place."""

    async def get_items(self, limit: int | None = None, *, wrapper: Any = None) -> list[Any]:
        """The latest ``limit`` items, oldest first.

        Damaged items are left out with a warning in the log, and do not count.

        Args:
            limit: None: that of ``session_settings``, else all; 0: none; negative: all.
            wrapper: the Runner's context wrapper.

        Raises:
            RuntimeError: the session is closed.
            UnreadableItemsError: some are encrypted otherwise.
        """
        bound = self.bound(wrapper)
        return await self.read(bound, self.limit_of(limit))

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
        await bound.session.store(prepared, closure)

    async def pop_item(self, *, wrapper: Any = None) -> Any:
        """Remove and return the latest item; None if there is none.

        Damaged items behind it go with it.

        Raises:
            UnreadableItemsError: it is encrypted otherwise; it stays.
            RuntimeError: the session is closed.
        """
        return await self.pop(self.bound(wrapper))

    async def pop(self, bound: Bound, check: Callable[[Any], None] | None = None) -> Any:
        """The latest item, once ``check`` has let it pass inside the transaction."""
        if self._ttl_us is not None:
            await self._remove_expired(bound, self.since_us())
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

        store, ending = bound.session.sync.store, bound.session.sync.ending
        try:
            taken = await commit_to(store, ending.take(look), makes_room=True)
        except _Refused as refused:
            raise refused.error from refused.error.__cause__
        return None if taken is None else decode(taken)

    async def clear_session(self, *, wrapper: Any = None) -> None:
        """Remove all that is stored of this session from the file."""
        bound = self.bound(wrapper)
        backing, session = self._scope.backing, bound.session

        def closure(txn: Txn) -> list[bytes]:
            scope = names.scope_of(txn, session.app, session.user)
            return [] if scope is None else start_removal(txn, backing, scope, session.id)[1]

        await finish_removal(bound, await commit_to(backing.store, closure, makes_room=True))
