"""What a session's owner may ask for beside the protocol: compaction by itself, legal reads.

The Runner calls any method named ``run_compaction`` after it saved a turn, so there is one only if
it was asked for. It adds a view to the session and takes nothing from the log. A run begins with a
read without a limit, or with that of the session's settings: these give a legal window. A read with
any other limit stays the exact tail that the Runner compares with what it wrote.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import memcore
from memcore.adapters.openai_agents.history import Bound
from memcore.adapters.openai_agents.hooks import Hooks
from memcore.adapters.openai_agents.items import Unreadable
from memcore.adapters.openai_agents.sealing import unreadable_error
from memcore.compaction import compaction_policy
from memcore.errors import ContextOverflowError, CorruptValueError, MemcoreError
from memcore.formats.wire import SUMMARY_PREFIX
from memcore.model import Context, Message
from memcore.options import checked_optional_int, checked_optional_seconds
from memcore.session.compacting import AnySummarizer, checked_summarizer
from memcore.session.condensed import AnyPolicy
from memcore.telemetry import seen_compacting

__all__ = ["Compacting"]

_POLICY: Final = "openai_responses"
_STAGES: Final = 8
"""So many stages one call goes through; each is due only if the one before did too little."""


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
    def is_windowed(self) -> bool:
        """Whether a read that names no limit gives what a model may see, not all that is stored."""
        return self._policy is not None or self._budget is not None

    # --- reading ----------------------------------------------------------------------------------

    async def shown(self, bound: Bound, limit: int | None = None) -> list[Any]:
        """As ``History.shown``; a legal window of at most so many items, if one was asked for."""
        if limit == 0 or not self.is_windowed:
            return await super().shown(bound, limit)
        since_us = self.since_us()
        if since_us:
            await self._remove_expired(bound, since_us)
        try:
            context = await self._legal(bound.session.context)
        except CorruptValueError:  # told by the read, which leaves it out
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
        """The context within the budget, or the smallest there is: a run must not end for it."""
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
        """Compact the session if its policy says that it is due; the Runner calls it after a turn.

        Raises:
            AttributeError: the session was made without ``compaction``.
        """
        if self._policy is None:
            msg = f"{type(self).__name__} was made without compaction=: it has no run_compaction"
            raise AttributeError(msg)
        return self._run_compaction

    async def _run_compaction(
        self, args: Mapping[str, Any] | None = None, *, wrapper: Any = None
    ) -> None:
        """Run what is due.

        What fails is logged: the turn is stored, and its result must not be lost for a summary.

        Args:
            args: as the SDK's ``OpenAIResponsesCompactionArgs``; only ``force`` counts, which
                compacts whether it is due or not.
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
                reason = type(exc).__name__  # its text may hold content
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
    """The last messages of a context, its summary before them; at most so many, and legal."""
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
