"""What the SDK's wrappers look for on a session, by name: atomic replacement and guarded pops.

With these ``OpenAIResponsesCompactionSession`` replaces what it compacted in one commit, and only
if nobody wrote meanwhile, and ``EncryptedSession`` authenticates an item before it is removed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import MethodType
from typing import Any, TypeVar

from agents.memory.session import _CompactionSnapshot
from agents.memory.sqlite_session import SQLiteSession

from memcore.adapters.openai_agents.current import BranchGone
from memcore.adapters.openai_agents.history import Bound, finish_removal
from memcore.adapters.openai_agents.items import Unreadable
from memcore.adapters.openai_agents.methods import Methods
from memcore.errors import CorruptValueError
from memcore.session.ending import Tail, message_of

__all__ = ["Hooks", "stands_for_sqlite"]

C = TypeVar("C", bound=type)


class _Pop:
    """A session's ``pop_item``; asked of the class, that of the SDK's SQLiteSession.

    It is the same: that one does nothing but call ``_pop_item_with_validation``, which is here.
    ``EncryptedSession`` has an item authenticated inside the transaction that pops it, so that a
    wrong key takes nothing away, if and only if it finds that very function on an SQLiteSession.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, session: Any, owner: type) -> Any:
        return SQLiteSession.pop_item if session is None else MethodType(self._method, session)


def stands_for_sqlite(cls: C) -> C:
    """Have the SDK's wrappers use the hooks of a class as they do those of SQLiteSession.

    A subclass with a ``pop_item`` of its own is passed over, as one of SQLiteSession is.
    """
    cls.pop_item = _Pop(cls.pop_item)  # type: ignore[attr-defined]
    SQLiteSession.register(cls)
    return cls


class Hooks(Methods):
    """The hooks of ``SQLiteSession``, under its names."""

    _ignore_ids_for_matching = False

    async def _pop_item_with_validation(self, validate: Callable[[Any], None] | None = None) -> Any:
        """As ``pop_item``; what ``validate`` raises leaves the item where it is."""
        return await self.pop(validate)

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[Any], bool] | None = None
    ) -> _CompactionSnapshot | None:
        """The last ``limit`` items, with a function that replaces their end if nobody wrote.

        None if a subclass transforms what goes in or out: it must bring a snapshot of its own.
        """
        if not self._is_untransformed():
            return None
        bound = self.bound()
        tail = bound.session.sync.ending.read(limit, since_us=self.since_us())
        items: list[Any] = []
        places: list[int] = []
        decode = bound.coder.decode
        for at, row in enumerate(tail.rows):
            if type(row) is not tuple:
                return None
            try:
                message = message_of(row)
                if message is None:
                    continue
                items.append(decode(message))
            except (CorruptValueError, Unreadable):
                return None
            places.append(at)

        async def replace_suffix(start: int, output: list[Any]) -> bool:
            if start >= len(places):
                return False
            return await self._replace(bound, tail, places[start], output, prune_prefix)

        return _CompactionSnapshot(items, tail.complete, replace_suffix)

    async def _replace(
        self,
        bound: Bound,
        tail: Tail,
        start: int,
        output: Sequence[Any],
        prune: Callable[[Any], bool] | None,
    ) -> bool:
        self.need_open()
        decode = bound.coder.decode

        def expired(message: dict[str, Any]) -> bool:
            try:
                return prune is not None and prune(decode(message))
            except Unreadable:
                return False

        prepared = self.prepared(bound, output)
        closure = bound.session.sync.ending.replace(
            tail,
            start,
            prepared,
            expired=None if prune is None else expired,
            renewed=self.moves(bound),
        )
        try:
            done, rest = await bound.session.store(prepared, self.beside(bound, closure))
        except BranchGone:
            return False
        bound.known.forget()
        await finish_removal(bound, rest)
        return done

    async def _atomic_replace_items(self, output: Sequence[Any]) -> bool:
        """Put ``output`` in the place of the whole history in one commit.

        Raises:
            RevisionConflict: somebody else changed the session since this instance first read it;
                nothing is lost or changed, and it may be compacted again.
        """
        if not self._is_untransformed():
            return False
        bound = self.bound()
        prepared = self.prepared(bound, output)
        closure = bound.session.sync.ending.overwrite(prepared, seen=bound.known.seen)
        try:
            await bound.session.store(prepared, self.beside(bound, closure))
        finally:
            bound.known.forget()
        return True

    @property
    def _read_compaction_items(
        self,
    ) -> Callable[[int | None], Awaitable[tuple[list[Any], bool]]]:
        """Reads what compaction may see; there is one only if that changes by itself, with age."""
        if self._ttl_us is None:
            msg = "a session without ttl_seconds has no such method"
            raise AttributeError(msg)
        return self._read_unexpired

    async def _read_unexpired(self, limit: int | None) -> tuple[list[Any], bool]:
        items = await self.get_items(limit)
        return items, limit is not None and len(items) < limit

    def _is_untransformed(self) -> bool:
        """Whether items are stored as they are given, so that the hooks may go past the methods.

        As for ``SQLiteSession``, a subclass may transform them or keep an index, and has no such
        hooks unless it says in its own body that they serve it, too.
        """
        return bool(type(self).__dict__.get("_is_as_stored"))
