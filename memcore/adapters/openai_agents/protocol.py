"""Methods of the SDK's session protocol, atomic replacement hooks and compaction on write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MethodType
from typing import Any, Final, TypeVar

from agents.memory.session import _CompactionSnapshot
from agents.memory.session_settings import (
    SessionSettings,
    coerce_session_settings,
    resolve_session_limit,
)
from agents.memory.sqlite_session import SQLiteSession

import memcore
from memcore.adapters.openai_agents.branch_rows import BranchGone, Current, clearing
from memcore.adapters.openai_agents.history import (
    Bound,
    Unreadable,
    finish_removal,
    unreadable_error,
)
from memcore.aio.commit import commit_to
from memcore.compaction import compaction_policy
from memcore.database.scope import engine_of, need_access
from memcore.errors import ContextOverflowError, CorruptValueError, MemcoreError
from memcore.log import prepare_request
from memcore.model import Context, Message
from memcore.options import checked_optional_int, checked_optional_seconds
from memcore.session.append import Append
from memcore.session.compact import AnySummarizer, checked_summarizer
from memcore.session.session import AnyPolicy, store_of
from memcore.session.tail import Overwrite, ReplaceTail, Tail, TakeLast, message_of, read_tail
from memcore.telemetry import seen_compacting
from memcore.wire.render import SUMMARY_PREFIX

__all__ = [
    "Compacting",
    "Hooks",
    "Methods",
    "WindowLimit",
    "WindowSettings",
    "stands_for_sqlite",
]


# --- The four methods of the SDK's session protocol -----------------------------------------------


class _Refused(Exception):  # noqa: N818 - a signal
    """Carries an error raised by a check out of a transaction.

    An OSError raised there directly would be mistaken for a device error.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class WindowLimit(int):
    """The limit of a run's initial read, which returns a window; other ints read an exact tail."""

    __slots__ = ()


class WindowSettings(SessionSettings):  # noqa: PLW1641 - unhashable, as SessionSettings
    """Settings of a windowed session; their limit is a ``WindowLimit``.

    The Runner uses them, overridden by those of its RunConfig, only for the initial read of a run.
    To compare with what it wrote, it counts items itself.
    """

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(limit)
        self.limit = limit  # pydantic sets the plain int, bypassing ``__setattr__``

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "limit" and isinstance(value, int):
            value = WindowLimit(value)
        super().__setattr__(name, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SessionSettings):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def resolve(self, override: SessionSettings | dict[str, Any] | None) -> SessionSettings:
        """As ``SessionSettings``."""
        return WindowSettings(**SessionSettings(**self.to_dict()).resolve(override).to_dict())


class Methods(Current):
    """The protocol's get, add, pop and clear methods."""

    async def get_items(
        self, limit: int | None = None, branch_id: str | None = None, *, wrapper: Any = None
    ) -> list[Any]:
        """The latest ``limit`` items, oldest first.

        Damaged items are omitted with a logged warning, and do not count towards the limit. A
        session with ``compaction`` or ``budget_tokens`` treats a limit from settings as the maximum
        size of a legal window, including the summary; for an explicit number it returns the exact
        tail.

        Args:
            limit: None: that of ``session_settings``, else all; 0: none; negative: all. The Runner
                itself passes the limit from the settings, as the same object that
                ``session_settings`` or their ``resolve`` returned (``WindowLimit``).
            branch_id: the branch; None: the current one.
            wrapper: the Runner's context wrapper.

        Raises:
            RuntimeError: the session is closed.
            UnreadableItemsError: some are not readable with the session's key.
        """
        bound = self.bound_at(branch_id, wrapper)
        bound.known.read(bound.address)
        if limit is None or isinstance(limit, WindowLimit):
            return await self.shown(bound, resolve_session_limit(limit, self.session_settings))
        return await self.read(bound, limit)

    async def add_items(
        self, items: Sequence[Any], *, wrapper: Any = None, idempotency_key: str | None = None
    ) -> None:
        """Append items atomically.

        Args:
            items: anything serializable by ``json.dumps``.
            wrapper: the Runner's context wrapper.
            idempotency_key: identifies this batch, which is stored only once however often it is
                added.

        Raises:
            TypeError: an item is not JSON-serializable; nothing is stored.
            DuplicateRequestError: the key was used for another batch.
            RuntimeError: the session is closed.
        """
        bound = self.bound(wrapper)
        if not items:
            return
        prepared = self.prepared(bound, list(items), idempotency_key)
        ref = bound.address
        request = prepare_request(idempotency_key, prepared, seed=ref.engine.seed)
        try:
            receipt = await bound.session.store(Append(ref, prepared, request=request))
        except BranchGone:
            await self.add_items(items, wrapper=wrapper, idempotency_key=idempotency_key)
        else:
            log = bound.address.log
            if log is not None:
                bound.known.wrote(log.session, receipt.revision)

    async def pop_item(self, *, wrapper: Any = None) -> Any:
        """Remove and return the latest item; None if there is none.

        Damaged items after it are removed, too.

        Raises:
            UnreadableItemsError: it is not readable with the session's key; it is not removed.
            RuntimeError: the session is closed.
        """
        return await self.pop(wrapper=wrapper)

    async def pop(self, check: Callable[[Any], None] | None = None, *, wrapper: Any = None) -> Any:
        """As ``pop_item``, unless ``check``, called in the transaction, rejects the item."""
        while True:
            try:
                return await self._popped(self.bound(wrapper), check)
            except BranchGone:
                continue  # retry on the branch that is now current

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
            change = self.beside(bound, TakeLast(bound.address, look))
            taken = await commit_to(store, change, makes_room=True)
        except _Refused as refused:
            raise refused.error from refused.error.__cause__
        bound.known.forget()
        return None if taken is None else decode(taken)

    async def clear_session(self, *, wrapper: Any = None) -> None:
        """Remove everything stored for this session from the file, including its branches.

        The ids of its branches remain reserved.

        Raises:
            AccessDeniedError: the authorizer refuses to delete the session.
            RuntimeError: the session is closed.
        """
        scope = self.scope_for(wrapper)
        need_access(scope, "delete_session", self.session_id)
        self.leave_branch(scope)
        closure = clearing(scope, self.session_id)
        _, rest = await commit_to(engine_of(scope).store, closure, makes_room=True)
        self.leave_branch(scope)
        bound = self.bound_in(scope)
        bound.known.forget()
        await finish_removal(bound, rest)


# --- Hooks that the SDK's wrappers look up by name: atomic replacement and guarded pops -----------
# They let ``OpenAIResponsesCompactionSession`` replace the items it compacted in one commit, and
# only if there was no concurrent write, and ``EncryptedSession`` authenticate an item before it is
# removed.

C = TypeVar("C", bound=type)


class _Pop:
    """A session's ``pop_item``; accessed on the class, it is that of the SDK's SQLiteSession.

    The two are equivalent: SQLiteSession's only calls ``_pop_item_with_validation``, which is
        implemented here. ``EncryptedSession`` authenticates an item inside the transaction that
        pops it, so that a wrong key removes nothing, but only if it finds exactly that function on
        an instance of SQLiteSession.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, session: Any, owner: type) -> Any:
        return SQLiteSession.pop_item if session is None else MethodType(self._method, session)


def stands_for_sqlite(cls: C) -> C:
    """Class decorator that makes the SDK's wrappers use the hooks as for SQLiteSession.

    A subclass that overrides ``pop_item`` is excluded, like such a subclass of SQLiteSession.
    """
    cls.pop_item = _Pop(cls.pop_item)  # type: ignore[attr-defined]
    SQLiteSession.register(cls)
    return cls


class Hooks(Methods):
    """The hooks of ``SQLiteSession``, under its names."""

    _ignore_ids_for_matching = False

    async def _pop_item_with_validation(self, validate: Callable[[Any], None] | None = None) -> Any:
        """As ``pop_item``; if ``validate`` raises, the item is not removed."""
        return await self.pop(validate)

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[Any], bool] | None = None
    ) -> _CompactionSnapshot | None:
        """The last ``limit`` items, with a function that replaces a suffix of them if unchanged.

        None if a subclass transforms items when storing or reading: it must provide its own
        snapshot.
        """
        if not self._is_untransformed():
            return None
        bound = self.bound()
        tail = read_tail(bound.address, limit, since_us=self.since_us())
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
        change = ReplaceTail(
            bound.address,
            tail,
            start,
            prepared,
            expired=None if prune is None else expired,
            renewed=self.moves(bound),
        )
        try:
            done, rest = await bound.session.store(self.beside(bound, change))
        except BranchGone:
            return False
        bound.known.forget()
        await finish_removal(bound, rest)
        return done

    async def _atomic_replace_items(self, output: Sequence[Any]) -> bool:
        """Replace the whole history with ``output`` in one commit.

        Raises:
            RevisionConflict: someone else has changed the session since this instance first read
                it; nothing is lost or changed, and compaction may be retried.
        """
        if not self._is_untransformed():
            return False
        bound = self.bound()
        prepared = self.prepared(bound, output)
        change = Overwrite(bound.address, prepared, seen=bound.known.seen)
        try:
            await bound.session.store(self.beside(bound, change))
        finally:
            bound.known.forget()
        return True

    @property
    def _read_compaction_items(
        self,
    ) -> Callable[[int | None], Awaitable[tuple[list[Any], bool]]]:
        """Reads compaction candidates; defined only if they change on their own, by expiry."""
        if self._ttl_us is None:
            msg = "a session without ttl_seconds has no such method"
            raise AttributeError(msg)
        return self._read_unexpired

    async def _read_unexpired(self, limit: int | None) -> tuple[list[Any], bool]:
        items = await self.get_items(limit)
        return items, limit is not None and len(items) < limit

    def _is_untransformed(self) -> bool:
        """Return whether items are stored unchanged, so that hooks may bypass the methods.

        As with ``SQLiteSession``, a subclass may transform items or maintain an index, and gets no
        such hooks unless its own body declares that they are valid for it (``_is_as_stored``).
        """
        return bool(type(self).__dict__.get("_is_as_stored"))


# --- Options beyond the protocol: compaction after a turn, legal windows --------------------------
# The Runner calls any method named ``run_compaction`` after saving a turn, so it exists only if the
# option is set. It adds a view to the session and removes nothing from the log. A run begins with a
# read that has no limit, or one from settings: such reads return a legal window. A read with any
# other limit returns the exact tail, which the Runner compares with what it wrote.

_POLICY: Final = "openai_responses"
_STAGES: Final = 8
"""Maximum number of stages per call; each runs only if the previous one did too little."""


class Compacting(Hooks):
    """A session with ``compaction`` or ``budget_tokens``; ``MemcoreSession`` documents them."""

    def __init__(
        self,
        *args: Any,
        compaction: AnyPolicy | bool | None = None,
        summarize: AnySummarizer | None = None,
        summarize_timeout_seconds: float | None = None,
        budget_tokens: int | None = None,
        **options: Any,
    ) -> None:
        asked = None if compaction is False else compaction
        preset = None if asked is True else asked
        self._policy = None if asked is None else compaction_policy(preset)
        self._budget = checked_optional_int("budget_tokens", budget_tokens)
        self._timeout = checked_optional_seconds(
            "summarize_timeout_seconds", summarize_timeout_seconds
        )
        checked_summarizer(summarize, awaits=True)
        self._summarize = summarize
        if self._policy is None and summarize is not None:
            msg = "summarize: only compaction asks for summaries; pass compaction=True, too"
            raise ValueError(msg)
        if self.is_windowed and options.get("encryption_key") is not None:
            msg = (
                "compaction, budget_tokens: they read what is stored, which encryption_key= hides; "
                "leave one of them out, or use safe_session_input_callback"
            )
            raise ValueError(msg)
        super().__init__(*args, **options)

    @property
    def session_settings(self) -> SessionSettings | None:
        """The SDK's settings of the session."""
        settings: SessionSettings | None = self._settings
        return settings

    @session_settings.setter
    def session_settings(self, settings: SessionSettings | dict[str, Any] | None) -> None:
        if self.is_windowed:
            given = SessionSettings() if settings is None else coerce_session_settings(settings)
            settings = WindowSettings(**given.to_dict())
        self._settings: Any = settings

    @property
    def is_windowed(self) -> bool:
        """True if reads without a limit return a model's window instead of everything stored."""
        return self._policy is not None or self._budget is not None

    # --- reading ----------------------------------------------------------------------------------

    async def shown(self, bound: Bound, limit: int | None = None) -> list[Any]:
        """As ``History.shown``; if windowed, a legal window of at most ``limit`` items."""
        if limit == 0 or not self.is_windowed:
            return await super().shown(bound, limit)
        since_us = self.since_us()
        if since_us:
            await self._remove_expired(bound, since_us)
        try:
            context = await self._legal(bound.session.context)
        except CorruptValueError:  # reported by the read, which omits the damaged item
            items = await self.read(bound)

            async def window(budget: int | None) -> Context:
                return memcore.fit(items, budget, policy=_POLICY)

            context = await self._legal(window)
        most = None if limit is None or limit < 0 else limit
        try:
            return [bound.coder.decode(message) for message in _last(context, most)]
        except Unreadable as exc:
            raise unreadable_error(self.session_id, {str(exc): 1}) from exc

    async def _legal(self, ask: Callable[[int | None], Awaitable[Context]]) -> Context:
        """The context within the budget, or else the smallest one, so that a run does not fail."""
        try:
            return await ask(self._budget)
        except ContextOverflowError as exc:
            self._logger.warning(
                "session %r: the smallest legal window has %d tokens, more than the budget of %d",
                self.session_id,
                exc.needed_tokens,
                exc.budget_tokens,
            )
            return await ask(exc.needed_tokens)

    # --- compaction -------------------------------------------------------------------------------

    @property
    def run_compaction(self) -> Callable[..., Awaitable[None]]:
        """Compact the session if a stage of its policy is due; the Runner calls it after a turn.

        Raises:
            AttributeError: the session was created without ``compaction``.
        """
        if self._policy is None:
            msg = f"{type(self).__name__} was made without compaction=: it has no run_compaction"
            raise AttributeError(msg)
        return self._run_compaction

    async def _run_compaction(
        self, args: Mapping[str, Any] | None = None, *, wrapper: Any = None
    ) -> None:
        """Run the stages of the compaction that are due.

        Errors are logged: the turn is stored, and its result may not be lost because of a summary.

        Args:
            args: as the SDK's ``OpenAIResponsesCompactionArgs``; only ``force`` is used, which
                compacts even if nothing is due.
            wrapper: the Runner's context wrapper.
        """
        session = self.bound(wrapper).session
        forced = bool((args or {}).get("force"))
        for _ in range(_STAGES):
            if not (forced or session.needs_compaction(policy=self._policy)):
                return
            try:
                with seen_compacting(self) as seen:
                    done = await session.compact(
                        self._summarize,
                        policy=self._policy,
                        force=forced,
                        timeout_seconds=self._timeout,
                    )
                    seen.append(done)
            except MemcoreError as exc:
                reason = type(exc).__name__  # the message may contain content
                self._logger.error("session %r was not compacted: %s", self.session_id, reason)  # noqa: TRY400
                return
            if done.error is not None or done.view is None:
                reason = "refused" if done.error is None else type(done.error).__name__
                level = self._logger.info if done.error is None else self._logger.warning
                level("compaction of session %r: %s (%s)", self.session_id, done.status, reason)
            if done.view is None:
                return
            forced = False


def _last(context: Context, most: int | None) -> list[Message]:
    """At most ``most`` messages from the end of a context, legal, preceded by its summary."""
    messages = context.messages
    if most is None or len(messages) <= most:
        return messages
    head = [message for message in messages if most > 1 and _tells(message, context.summary)][:1]
    rest = messages[messages.index(head[0]) + 1 :] if head else messages
    first = len(rest) - most + len(head)
    cuts = memcore.safe_cuts(rest, policy=_POLICY)
    return head + rest[next((cut for cut in cuts if cut >= first), len(rest)) :]


def _tells(message: Message, summary: str | None) -> bool:
    return summary is not None and message.get("content") == SUMMARY_PREFIX + summary
