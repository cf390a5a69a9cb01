"""MemcoreSaver: LangGraph's checkpointer over a memcore file, for threads and event loops."""

from __future__ import annotations

import asyncio
import copy
import os
import random
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from memcore.adapters.langgraph.items import field_at
from memcore.adapters.langgraph.messages import channel_messages, message_faults, messages_context
from memcore.adapters.langgraph.serde import (
    ALL_TYPES,
    AllowedTypes,
    SerdeCoder,
    TypeNames,
    coder_of,
    default_serde,
    takes_types,
    type_names,
    with_types,
)
from memcore.adapters.source import Done, Opened, Source, scope_of
from memcore.aio import AsyncDatabase
from memcore.aio.commit import commit_to, drive
from memcore.database import Database, Scope
from memcore.database.scope import engine_of
from memcore.errors import HistoryNeededError, InvalidOptionError, MemcoreError, NotFoundError
from memcore.faces import logger
from memcore.graph import (
    MISSING,
    GraphStore,
    NewCheckpoint,
    NewWrites,
    RecoveredNamespace,
    Rule,
    StoredCheckpoint,
    ThreadEntry,
    keep_rule,
    run_rule,
)
from memcore.graph.decode import DecodeCache
from memcore.graph.store import store_of
from memcore.model import Context
from memcore.options import checked_optional_int
from memcore.telemetry import adapting, adapts
from memcore.telemetry.observer import Place
from memcore.tokens import TokenCounter

__all__ = [
    "AsyncMemcoreSaver",
    "Handle",
    "MemcoreSaver",
    "Retaining",
]


# --- Handle: the file of a saver, opened and closed -----------------------------------------------

_COUNTED_THREADS: Final = 4096


class Handle(Opened, BaseCheckpointSaver[str]):
    """The file, scope and serializer of a saver."""

    def __init__(
        self,
        database: Source,
        *,
        serde: SerializerProtocol | None = None,
        allowed_types: AllowedTypes = None,
        user: str | None = None,
        app: str | None = None,
        durability: str | None = None,
        allow_unsafe: bool = False,
        compare_parent: bool = False,
        keep_last: int | None = None,
    ) -> None:
        super().__init__(serde=default_serde() if serde is None else serde)
        self._allowed = type_names(allowed_types)
        coder_of(self.serde, self._allowed)  # rejects an incompatible combination
        scope, self._owned = scope_of(
            database, app=app, user=user, durability=durability, allow_unsafe=allow_unsafe
        )
        self._engine = engine_of(scope)
        given = database.sync if isinstance(database, AsyncDatabase) else database
        self.database = given if isinstance(given, Database) else self._owned
        """The database that the saver was given or opened; None if it was given a scope."""
        self._graph: GraphStore = scope.graph
        self._compare_parent = compare_parent
        self._keep_last = checked_optional_int("keep_last", keep_last, least=1)
        self._puts: DecodeCache[str, int] = DecodeCache(_COUNTED_THREADS)
        """Puts since the last prune, by thread; an absent thread counts as due for one."""
        self.observer = adapting(
            database, "langgraph", (scope.app, scope.user, None), place_of=partial(_place, scope)
        )
        self._last_coder: tuple[SerializerProtocol, SerdeCoder] | None = None

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        allowed_types: AllowedTypes = None,
        durability: str | None = None,
        allow_unsafe: bool = False,
        user: str | None = None,
        app: str | None = None,
        compare_parent: bool = False,
        keep_last: int | None = None,
    ) -> Self:
        """A saver over the file at a path, for ``with`` and ``async with``.

        ``durability``: ``"full"`` (a checkpoint that was put survives a power failure),
        ``"relaxed"`` (it survives a process crash; a power failure may lose the last fraction of a
        second), ``"none"`` (a power failure may destroy the file; requires ``allow_unsafe``). By
        default a new file is ``"full"`` and an existing file keeps its setting.
        """
        return cls(
            conn_string,
            serde=serde,
            allowed_types=allowed_types,
            durability=durability,
            allow_unsafe=allow_unsafe,
            user=user,
            app=app,
            compare_parent=compare_parent,
            keep_last=keep_last,
        )

    def setup(self) -> Done:
        """Do nothing. Other savers require this call, some of them with ``await``."""
        return Done()

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """A saver of the same file that may also build these types, as with ``allowed_types``.

        LangGraph calls this for every graph in its strict mode. A custom serializer decides itself
        what it builds: one derived from LangGraph's receives the types; any other is left
        unchanged.

        Raises:
            InvalidOptionError: an entry is not a type.
        """
        extra = type_names(extra_allowlist)
        if not takes_types(self.serde):
            told = self.serde if extra == ALL_TYPES else with_types(self.serde, extra)
            if told is self.serde:
                return self
            clone = copy.copy(self)
            vars(clone).update(serde=told, _last_coder=None)
            return clone
        if ALL_TYPES in (self._allowed, extra):
            allowed: TypeNames = ALL_TYPES
        else:
            allowed = frozenset({*self._allowed, *extra})
        if allowed == self._allowed:
            return self
        clone = copy.copy(self)
        vars(clone).update(_allowed=allowed, _last_coder=None)
        return clone

    @property
    def _coder(self) -> SerdeCoder:
        last = self._last_coder
        if last is None or last[0] is not self.serde:
            last = self._last_coder = self.serde, coder_of(self.serde, self._allowed)
        return last[1]


def _place(scope: Scope, args: tuple[Any, ...], options: dict[str, Any]) -> Place:
    """App, user and thread of a call, whose first argument is a config or a thread id."""
    first = args[0] if args else next(iter(options.values()), None)
    if isinstance(first, dict):
        first = first.get("configurable", {}).get("thread_id")
    return scope.app, scope.user, first if isinstance(first, str) else None


# --- Whole threads: lists, contexts for a model, deletion and pruning -----------------------------

_log = logger(__name__)
_STRATEGIES: Final = ("keep_latest", "delete")
_SLACK: Final = 16
"""Minimum number of puts between prunes of a thread: a prune costs as much as many puts."""


class Retaining(Handle):
    """Whole-thread operations of a saver."""

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
        """Build a model context from a thread's messages: legal and within the budget.

        Calls and results stay together, late results are moved next to their calls, unanswered
        calls get synthetic results, and orphans are dropped. Nothing is stored or changed in the
        thread.

        Args:
            thread_id: the thread.
            budget_tokens: the token limit as measured by ``counter``; None: all messages, made
                legal.
            reserve_tokens: tokens of the budget to leave free.
            channel: the message channel; a delta channel is rebuilt with add_messages.
            checkpoint_ns: the namespace; the root namespace by default.
            checkpoint_id: the checkpoint; None: the newest.
            policy: the rules; ``"openai_chat"`` and others are for messages stored as their dicts.
            counter: a TokenCounter or the name of one; None: the database's default.

        Returns:
            A Context whose ``messages`` have the channel's representation: LangChain message
            objects or dicts.

        Raises:
            NotFoundError: there is no such thread, checkpoint or channel.
            ContextOverflowError: even the smallest legal context exceeds the budget.
        """
        messages = channel_messages(self, thread_id, checkpoint_ns, checkpoint_id, channel)
        by = self._engine.counter if counter is None else counter
        return messages_context(
            messages, budget_tokens, reserve_tokens=reserve_tokens, policy=policy, counter=by
        )

    def check(self) -> list[str]:
        """Check the threads of the saver's scope; return a description of each finding.

        In addition to ``Database.check``, this decodes bodies, values and pending writes, and
        checks lists of messages for tool results without calls and calls without results. A finding
        names the thread, checkpoint, channel and position.
        """
        return self._graph.check(self._coder, message_faults)

    async def acheck(self) -> list[str]:
        """As ``check``, in a thread."""
        return await asyncio.to_thread(self.check)

    def recover(self, thread_id: str, *, dry_run: bool = False) -> list[RecoveredNamespace]:
        """Roll each namespace back to its newest checkpoint that can be read completely.

        Later checkpoints are removed with their pending writes, and reported with the reason; a
        namespace without an intact checkpoint is left unchanged.

        Args:
            thread_id: the thread.
            dry_run: report only; remove nothing.

        Raises:
            NotFoundError: there is no such thread.
            HeldError: a legal hold covers it.
            UndecodableError: data is intact, but not decodable by this serializer; nothing was
                removed.
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
        """The threads by name, with their newest checkpoint and its time, without reading state."""
        return self._graph.threads()

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its rows; readers stop seeing it immediately."""
        self._graph.delete_thread(str(thread_id), self._coder)

    async def adelete_thread(self, thread_id: str) -> None:
        """As ``delete_thread``, in a thread."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its namespaces and writes in one commit; values are shared.

        Raises:
            InvalidOptionError: the target already has checkpoints.
        """
        self._graph.copy_thread(str(source_thread_id), str(target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As ``copy_thread``."""
        closure = self._graph.plan_copy_thread(str(source_thread_id), str(target_thread_id))
        await commit_to(store_of(self._graph), closure)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs (``run_id`` in the metadata) and their writes.

        Raises:
            HistoryNeededError: delta channels of remaining checkpoints are rebuilt from some of
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
        """The threads that the rule prunes; raises HistoryNeededError if one is still needed."""
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

        Older checkpoints needed to rebuild the delta channels of a kept one are kept, too.

        Args:
            thread_ids: the threads.
            strategy: ``"keep_latest"`` keeps the newest checkpoint of each namespace; ``"delete"``
                keeps none.
            keep_last: keep this many checkpoints per namespace instead of one.
            max_age_seconds: also keep the others that are younger than this.

        Raises:
            InvalidOptionError: the strategy is unknown, or an argument is out of range.
            OutpacedError: checkpoints were stored faster than they could be examined.
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
        """Count a put; return whether the thread should be pruned now."""
        if self._keep_last is None:
            return False
        count = self._puts.get(thread)
        if count is None or count >= max(self._keep_last, _SLACK):
            self._puts.put(thread, 0)
            return True
        self._puts.put(thread, count + 1)
        return False

    def _shorten(self, thread: str) -> None:
        """Prune a thread to ``keep_last``.

        Errors are only logged, because the put that triggered it is already committed.
        """
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
    """Reject a single string, whose characters would be taken for ids."""
    if isinstance(ids, str):
        msg = f"{name}: expected a list of strings, got the string {ids[:40]!r}"
        raise InvalidOptionError(msg)


# --- MemcoreSaver: LangGraph's checkpointer over a memcore file, for threads and for loops --------


@adapts(
    get_tuple="graph.get",
    aget_tuple="graph.get",
    list="graph.get iterator",
    get_delta_channel_history="graph.get",
    aget_delta_channel_history="graph.get",
    put="graph.put",
    aput="graph.put",
    put_writes="graph.put_writes",
    aput_writes="graph.put_writes",
    delete_thread="graph.delete",
    adelete_thread="graph.delete",
    copy_thread="graph.fork",
    acopy_thread="graph.fork",
    delete_for_runs="graph.prune",
    adelete_for_runs="graph.prune",
    prune="graph.prune",
    aprune="graph.prune",
    check="graph.check . count",
    acheck="graph.check . count",
    recover="graph.recover",
    arecover="graph.recover",
    threads="graph.threads iterator",
    context="context . context",
)
class MemcoreSaver(Retaining):
    """A checkpointer that stores only what changed, once.

    List elements, dict entries and Send arguments are stored once per thread, however many
    checkpoints contain them. Unchanged ones are not serialized again. In-place mutations are
    detected: one state is never mistaken for another.

    One class has both the synchronous and the asynchronous methods. It is safe to use from any
    thread and event loop, and several savers and processes may share one file. Copies
    (``copy.copy``) share the file; each may have its own ``serde``, which is looked up on every
    call.

    Args:
        database: an open Database or AsyncDatabase, a Scope, or the path of a file (which ``close``
            closes).
        serde: LangGraph's serializer; by default a JsonPlusSerializer without pickle. An
            EncryptedSerializer encrypts all content; ids of threads, checkpoints and tasks,
            namespaces, channel names, versions and type names stay in plaintext.
        allowed_types: types that a stored value may have in addition to messages and other safe
            ones: classes, state schemas (with the types of their fields), ``(module, name)``. Types
            that this process itself has stored are allowed anyway; any other type is refused
            (UntrustedTypeError). ``"all"``: the file may execute arbitrary code; only for files
            that nobody else can write.
        user, app: the owner of the threads; a saver reaches no other scope.
        durability: the durability of a file that is opened by its path (see ``memcore.open``).
        allow_unsafe: consent to ``durability="none"`` for a file, as in ``memcore.open``.
        compare_parent: refuse a checkpoint whose parent is not the newest one of its namespace
            (StaleParentError), unless it replaces the newest: a compare-and-set, so that two
            writers on one thread cannot both continue from the same state. Forks from older
            checkpoints are refused, too.
        keep_last: keep at least this many of the newest checkpoints in each namespace of a thread,
            along with those that they are rebuilt from; older ones are pruned once every
            ``max(keep_last, 16)`` puts. Other savers of the file need the option, too; a retention
            rule for ``thread_checkpoints`` applies to all.
    """

    # --- reading ----------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint with the config's id, or the newest; None if there is none."""
        thread, namespace = _place_saver(config)
        found = self._graph.get(thread, namespace, get_checkpoint_id(config), self._coder)
        if found is None:
            return None
        given = config if get_checkpoint_id(config) else _config(found, config)
        return _tuple(found, given, config)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As ``get_tuple``, in a thread."""
        return await asyncio.to_thread(self.get_tuple, config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints by descending id, of the given or of all threads and namespaces.

        A consumer that stops early blocks nothing.

        Args:
            config: its thread, ``checkpoint_ns`` and ``checkpoint_id`` select checkpoints; None or
                empty: all threads.
            filter: metadata values to match for equality, by name or by dotted path.
            before: only ids less than this config's id.
            limit: the maximum number of checkpoints.
        """
        config, before = config or None, before or None
        thread = None if config is None else str(config["configurable"]["thread_id"])
        namespace = None if config is None else config["configurable"].get("checkpoint_ns")
        for found in self._graph.checkpoints(
            thread,
            namespace,
            self._coder,
            checkpoint=None if config is None else get_checkpoint_id(config) or None,
            before=None if before is None else get_checkpoint_id(before) or None,
            matches=None if not filter else lambda metadata: _matches(metadata, filter),
            limit=limit,
        ):
            given = _config(found, config)
            yield _tuple(found, given, given)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As ``list``, each page read in a thread."""
        steps = self.list(config, filter=filter, before=before, limit=limit)
        end = object()
        while (found := await asyncio.to_thread(next, steps, end)) is not end:
            yield found  # type: ignore[misc]

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Writes and seed of channels along a checkpoint's ancestry, oldest first."""
        thread, namespace = _place_saver(config)
        wanted = get_checkpoint_id(config) or None
        found = self._graph.deltas(thread, namespace, wanted, channels, self._coder)
        history: dict[str, DeltaChannelHistory] = {}
        for channel, delta in found.items():
            history[channel] = {"writes": delta.writes}
            if delta.seed is not MISSING:
                history[channel]["seed"] = delta.seed
        return history

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As ``get_delta_channel_history``, in a thread."""
        return await asyncio.to_thread(
            lambda: self.get_delta_channel_history(config=config, channels=channels)
        )

    # --- writing ----------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; it is committed when this returns.

        Raises:
            InvalidItemError: a value cannot be serialized; the message names the channel and path.
            StaleParentError: ``compare_parent`` is set, and another checkpoint is the newest.
        """
        thread, namespace = _place_saver(config)
        new = self._new(config, checkpoint, metadata, new_versions)
        self._graph.put(thread, namespace, new, self._coder)
        if self._is_long(thread):
            self._shorten(thread)
        return _made(config, checkpoint)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As ``put``; if cancelled, it still waits for the outcome."""
        thread, namespace = _place_saver(config)
        new = self._new(config, checkpoint, metadata, new_versions)
        await drive(
            store_of(self._graph), self._graph.plan_put(thread, namespace, new, self._coder)
        )
        if self._is_long(thread):
            await asyncio.to_thread(self._shorten, thread)
        return _made(config, checkpoint)

    def _new(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> NewCheckpoint:
        body: dict[str, Any] = dict(checkpoint)
        values = body.pop("channel_values")
        return NewCheckpoint(
            checkpoint=checkpoint["id"],
            parent=get_checkpoint_id(config),
            body=body,
            metadata=get_checkpoint_metadata(config, metadata),
            values={
                channel: (version, values.get(channel, MISSING))
                for channel, version in new_versions.items()
            },
            others={
                channel: (checkpoint["channel_versions"][channel], value)
                for channel, value in values.items()
                if channel in checkpoint["channel_versions"]
            },
            follows=self._compare_parent,
        )

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task, which may arrive before their checkpoint.

        A write that the task has already stored is kept, except that for errors, interrupts,
        resumes and schedules the last write wins.

        Raises:
            InvalidItemError: a value cannot be serialized.
        """
        thread, namespace = _place_saver(config)
        self._graph.put_writes(
            thread, namespace, _writes(config, writes, task_id, task_path), self._coder
        )

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """As ``put_writes``; if cancelled, it still waits for the outcome."""
        thread, namespace = _place_saver(config)
        new = _writes(config, writes, task_id, task_path)
        await drive(
            store_of(self._graph), self._graph.plan_put_writes(thread, namespace, new, self._coder)
        )

    def get_next_version(self, current: str | int | None, channel: None) -> str:  # noqa: ARG002
        """A counter with a random suffix, so that versions of two forks never collide.

        Continues from versions that another saver wrote, whether str or int.
        """
        number = int(current.split(".")[0]) if isinstance(current, str) else int(current or 0)
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - for uniqueness, not secrecy


AsyncMemcoreSaver = MemcoreSaver
"""Alias, for users who look for an asynchronous saver by name."""


def _place_saver(config: RunnableConfig) -> tuple[str, str]:
    """Thread and namespace of a config."""
    configurable = config["configurable"]
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns") or ""


def _config(found: StoredCheckpoint, config: RunnableConfig | None) -> RunnableConfig:
    thread = found.thread if config is None else config["configurable"]["thread_id"]
    return _config_of(thread, found.namespace, found.checkpoint)


def _config_of(thread: Any, namespace: str, checkpoint: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": thread,
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint,
        }
    }


def _made(config: RunnableConfig, checkpoint: Checkpoint) -> RunnableConfig:
    return _config_of(
        config["configurable"]["thread_id"], _place_saver(config)[1], checkpoint["id"]
    )


def _tuple(
    found: StoredCheckpoint, config: RunnableConfig, asked: RunnableConfig
) -> CheckpointTuple:
    thread = asked["configurable"]["thread_id"]
    parent = _config_of(thread, found.namespace, found.parent) if found.parent else None
    return CheckpointTuple(
        config=config,
        checkpoint=cast("Checkpoint", {**found.body, "channel_values": found.values}),
        metadata=found.metadata,
        parent_config=parent,
        pending_writes=found.writes,
    )


def _matches(metadata: Any, wanted: dict[str, Any]) -> bool:
    return all(field_at(metadata, key) == value for key, value in wanted.items())


def _writes(
    config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> NewWrites:
    numbered = [
        (WRITES_IDX_MAP.get(channel, at), channel, value)
        for at, (channel, value) in enumerate(writes)
    ]
    return NewWrites(config["configurable"]["checkpoint_id"], task_id, task_path, numbered)
