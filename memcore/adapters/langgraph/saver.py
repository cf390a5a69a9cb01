"""MemcoreSaver: LangGraph's checkpointer over a memcore file, for threads and for loops."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)

from memcore.adapters.langgraph.filters import field_at
from memcore.adapters.langgraph.retaining import Retaining
from memcore.aio.driving import drive
from memcore.checkpoint import (
    MISSING,
    Found,
    NewCheckpoint,
    NewWrites,
)
from memcore.checkpoint.graph import store_of
from memcore.telemetry import adapts

__all__ = ["AsyncMemcoreSaver", "MemcoreSaver"]


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
    """A checkpointer that stores what changed, once.

    Elements of lists, entries of dicts and arguments of Sends are stored once a thread, whatever
    number of checkpoints holds them; those that did not change are not serialised again. An object
    that was changed in place is found out: no state is ever taken for another.

    Synchronous and asynchronous methods are those of one class; any thread and any loop may use it,
    and several savers and processes one file. Copies (``copy.copy``) share the file, and each may
    have a ``serde`` of its own, which is read at every call.

    Args:
        database: an open Database or AsyncDatabase, a Scope, or the path of a file (which ``close``
            closes).
        serde: LangGraph's serialiser; by default a JsonPlusSerializer without pickle. An
            EncryptedSerializer encrypts all content; ids of threads, checkpoints and tasks,
            namespaces, channel names, versions and names of types stay in clear.
        allowed_types: types that a stored value may have besides messages and other safe ones:
            classes, schemas of states (with the types of their fields), ``(module, name)``. What
            this process itself has stored is allowed anyway; any other type is refused
            (UntrustedTypeError). ``"all"``: the file may run any code; only for files that nobody
            else can write.
        user, app: whose threads these are: a saver reaches no other scope.
        durability: how a file that is opened by its path acknowledges (see ``memcore.open``).
        allow_unsafe: consent to ``durability="none"`` of a file, as in ``memcore.open``.
        compare_parent: refuse a checkpoint whose parent is not the newest one of its namespace
            (StaleParentError), unless it replaces the newest: two writers on one thread then cannot
            both go on from the same state. Forks from older checkpoints are refused, too.
        keep_last: of each namespace of a thread, at least so many of the newest checkpoints stay,
            and what they are rebuilt from; older ones leave as new ones are put, in one prune for
            as many puts, or for 16. Other savers of the file need the option, too; a retention
            rule about ``thread_checkpoints`` holds for all.
    """

    # --- reading ----------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint of the config's id, or the newest; None if there is none."""
        thread, namespace = _place(config)
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
        """Checkpoints, the greatest id first, of whatever thread and namespace.

        A consumer that stops half-way holds nothing up.

        Args:
            config: whose ``checkpoint_ns`` and ``checkpoint_id`` narrow it down; None or empty: all
                threads.
            filter: metadata that must be equal, by name or by a path with dots.
            before: only ids below its id.
            limit: at most so many.
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
        """Writes and seed of channels along the parents of a checkpoint, oldest first."""
        thread, namespace = _place(config)
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
        """Store a checkpoint; it is acknowledged when this returns.

        Raises:
            InvalidItemError: a value cannot be serialised; the message names channel and path.
            StaleParentError: ``compare_parent``, and another checkpoint is the newest.
        """
        thread, namespace = _place(config)
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
        """As ``put``; cancelled, it waits for the outcome all the same."""
        thread, namespace = _place(config)
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
        """Store the writes of a task, which may come before their checkpoint.

        A write that the task has stored already stays, but for errors, interrupts, resumes and
        schedules: of these the last one counts.

        Raises:
            InvalidItemError: a value cannot be serialised.
        """
        thread, namespace = _place(config)
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
        """As ``put_writes``; cancelled, it waits for the outcome all the same."""
        thread, namespace = _place(config)
        new = _writes(config, writes, task_id, task_path)
        await drive(
            store_of(self._graph), self._graph.plan_put_writes(thread, namespace, new, self._coder)
        )

    def get_next_version(self, current: str | int | None, channel: None) -> str:  # noqa: ARG002
        """A number and a random part: versions of two forks are never the same.

        Threads that another saver wrote go on, whether it counted in strings or ints.
        """
        number = int(current.split(".")[0]) if isinstance(current, str) else int(current or 0)
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - told apart, not kept secret


AsyncMemcoreSaver = MemcoreSaver
"""The same class under the name by which an asynchronous saver is looked for."""


def _place(config: RunnableConfig) -> tuple[str, str]:
    """Thread and namespace of a config."""
    configurable = config["configurable"]
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns") or ""


def _config(found: Found, config: RunnableConfig | None) -> RunnableConfig:
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
    return _config_of(config["configurable"]["thread_id"], _place(config)[1], checkpoint["id"])


def _tuple(found: Found, config: RunnableConfig, asked: RunnableConfig) -> CheckpointTuple:
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
