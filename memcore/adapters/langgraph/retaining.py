"""Threads as a whole: lists of them, what a model receives of one, what goes and what stays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Final

from memcore.adapters.langgraph.handle import Handle
from memcore.adapters.langgraph.messages import channel_messages, message_faults, messages_context
from memcore.aio.commit import commit_to
from memcore.checkpoint import RecoveredNamespace, Rule, ThreadEntry, keep_rule, run_rule
from memcore.checkpoint.graph import store_of
from memcore.errors import HistoryNeededError, InvalidOptionError, MemcoreError, NotFoundError
from memcore.model import Context
from memcore.tokens import TokenCounter

__all__ = ["Retaining"]

_log = logging.getLogger(__name__)
_STRATEGIES: Final = ("keep_latest", "delete")
_SLACK: Final = 16
"""A prune costs as much as many puts: a thread has at least so many of them in between."""


class Retaining(Handle):
    """What a saver does with whole threads."""

    def context(
        self,
        thread_id: str,
        budget_tokens: int | None = None,
        *,
        reserve_tokens: int = 0,
        channel: str = "messages",
        checkpoint_ns: str = "",
        checkpoint_id: str | None = None,
        policy: str = "langchain",
        counter: str | TokenCounter | None = None,
    ) -> Context:
        """What a model should receive of a thread's messages: legal, and within the budget.

        A ledger is laid over the channel as the checkpoint holds it: calls and results stay
        together, late results stand behind their call, unanswered calls are answered
        synthetically, orphans are left out. Nothing is stored, and the thread stays as it is.

        Args:
            thread_id: whose.
            budget_tokens: at most so many by ``counter``; None: all of it, made legal.
            reserve_tokens: of these, leave so many free.
            channel: which channel holds the messages; one of deltas is rebuilt by add_messages.
            checkpoint_ns: which namespace; by default the root's.
            checkpoint_id: which checkpoint; None: the newest.
            policy: what is legal; ``"openai_chat"`` and others for messages kept as their dicts.
            counter: a TokenCounter or the name of one; None: the database's default.

        Returns:
            A Context whose ``messages`` are of the channel's kind: LangChain's message objects, or
            dicts.

        Raises:
            NotFoundError: there is no such thread, checkpoint or channel.
            ContextOverflowError: even the smallest legal context is larger.
        """
        messages = channel_messages(self, thread_id, checkpoint_ns, checkpoint_id, channel)
        by = self._backing.counter if counter is None else counter
        return messages_context(
            messages, budget_tokens, reserve_tokens=reserve_tokens, policy=policy, counter=by
        )

    def check(self) -> list[str]:
        """What is wrong with the threads of the saver's scope, in words; empty: nothing.

        Besides what ``Database.check`` looks at: whether bodies, values and pending writes can be
        decoded, and whether tool results in lists of messages have their calls, and calls their
        results. A finding names thread, checkpoint, channel and position.
        """
        return self._graph.check(self._coder, message_faults)

    async def acheck(self) -> list[str]:
        """As ``check``, in a thread."""
        return await asyncio.to_thread(self.check)

    def recover(self, thread_id: str, *, dry_run: bool = False) -> list[RecoveredNamespace]:
        """Go back to the newest checkpoint of each namespace that can be read whole.

        Those behind it are removed with their pending writes, and told with the reason; in a
        namespace that has none that is whole nothing is removed.

        Args:
            thread_id: which thread.
            dry_run: only say what is whole and what is not.

        Raises:
            NotFoundError: there is no such thread.
            HeldError: a legal hold covers it.
            UndecodableError: something is sound, but not of this serialiser; nothing was removed.
        """
        found = self._graph.recover(str(thread_id), self._coder, dry_run=dry_run)
        if found is None:
            msg = f"there is no thread {str(thread_id)!r:.60}; threads() lists those there are"
            raise NotFoundError(msg)
        return found

    async def arecover(self, thread_id: str, *, dry_run: bool = False) -> list[RecoveredNamespace]:
        """As ``recover``, in a thread."""
        return await asyncio.to_thread(lambda: self.recover(thread_id, dry_run=dry_run))

    def threads(self) -> Iterator[ThreadEntry]:
        """The threads by name, with their newest checkpoint and its time; no state is read."""
        return self._graph.threads()

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all it has; it is gone at once for everybody."""
        self._graph.delete_thread(str(thread_id), self._coder)

    async def adelete_thread(self, thread_id: str) -> None:
        """As ``delete_thread``, in a thread."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, all namespaces and writes, in one commit; the values are shared.

        Raises:
            InvalidOptionError: the target has checkpoints.
        """
        self._graph.copy_thread(str(source_thread_id), str(target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As ``copy_thread``."""
        closure = self._graph.plan_copy_thread(str(source_thread_id), str(target_thread_id))
        await commit_to(store_of(self._graph), closure)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs (``run_id`` of the metadata), and their writes.

        Raises:
            HistoryNeededError: delta channels of checkpoints that stay are rebuilt from some of
                them; nothing was deleted.
        """
        _need_several("run_ids", run_ids)
        rule = run_rule(run_ids)
        for thread in tuple(self._needless(rule)):
            self._graph.prune(thread, rule, self._coder)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As ``delete_for_runs``."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    def _needless(self, rule: Rule) -> Iterator[str]:
        """The threads in which the rule takes checkpoints, if nothing is rebuilt from them."""
        for entry in self._graph.threads():
            plan = self._graph.would_prune(entry.thread, rule, self._coder)
            if plan is None:
                continue
            needed = [one for ids in plan.needed.values() for one in ids]
            if needed:
                msg = (
                    f"checkpoint {needed[0][:40]!r} of thread {entry.thread[:40]!r} belongs to "
                    "these runs, but later ones rebuild delta channels from it: delete the thread, "
                    "or prune it"
                )
                raise HistoryNeededError(msg)
            if any(plan.doomed.values()):
                yield entry.thread

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        max_age_seconds: float | None = None,
    ) -> None:
        """Remove old checkpoints of threads.

        A checkpoint whose delta channels are rebuilt from older ones keeps these.

        Args:
            thread_ids: which threads.
            strategy: ``"keep_latest"``: the newest of each namespace stays; ``"delete"``: none.
            keep_last: so many of each namespace stay instead of one.
            max_age_seconds: of the others, those younger than this stay, too.

        Raises:
            InvalidOptionError: the strategy is unknown, or an argument out of range.
            OutpacedError: checkpoints were stored faster than they could be looked at.
        """
        _need_several("thread_ids", thread_ids)
        if strategy not in _STRATEGIES:
            msg = f"strategy: expected 'keep_latest' or 'delete', got {strategy!r}"
            raise InvalidOptionError(msg)
        if strategy == "delete" and (keep_last is not None or max_age_seconds is not None):
            msg = "keep_last and max_age_seconds go with strategy 'keep_latest' only"
            raise InvalidOptionError(msg)
        kept = 1 if keep_last is None else keep_last
        rule = keep_rule(keep_last=kept, max_age_seconds=max_age_seconds)
        for thread in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread)
            else:
                self._graph.prune(thread, rule, self._coder)

    def _is_long(self, thread: str) -> bool:
        """Whether a thread, one put later, may have to be pruned: it is then to be seen to."""
        if self._keep_last is None:
            return False
        count = self._puts.get(thread)
        if count is None or count >= max(self._keep_last, _SLACK):
            self._puts.put(thread, 0)
            return True
        self._puts.put(thread, count + 1)
        return False

    def _shorten(self, thread: str) -> None:
        """Prune a thread to ``keep_last``; the put before it is acknowledged whatever happens."""
        try:
            self._graph.prune(thread, keep_rule(keep_last=self._keep_last or 1), self._coder)
        except MemcoreError as exc:
            _log.warning("thread %.40r was not pruned to keep_last; later again: %s", thread, exc)

    async def aprune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        max_age_seconds: float | None = None,
    ) -> None:
        """As ``prune``, in a thread."""
        await asyncio.to_thread(
            lambda: self.prune(
                thread_ids,
                strategy=strategy,
                keep_last=keep_last,
                max_age_seconds=max_age_seconds,
            )
        )


def _need_several(name: str, ids: Sequence[str]) -> None:
    """Refuse one string in place of several: its characters would be taken for ids."""
    if isinstance(ids, str):
        msg = f"{name}: expected a list of strings, got the string {ids[:40]!r}"
        raise InvalidOptionError(msg)
