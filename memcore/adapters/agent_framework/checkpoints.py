"""MemcoreCheckpointStorage: checkpoints of the Agent Framework's workflows in a memcore file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Unpack

from agent_framework import WorkflowCheckpoint
from agent_framework._workflows._checkpoint_encoding import (
    decode_checkpoint_value,
    encode_checkpoint_value,
)
from agent_framework.exceptions import WorkflowCheckpointException

from memcore.adapters.lines import key_of
from memcore.adapters.source import Scoped, Source, Where, in_thread
from memcore.blobs import StagedBlobLost
from memcore.errors import StorageError
from memcore.kv.namespace import KeyValueTxn
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.session.append import STAGE_ATTEMPTS
from memcore.telemetry import adapts

__all__ = [
    "MemcoreCheckpointStorage",
]


_NAMESPACE: Final = "agent_framework.checkpoints"


@adapts(
    save="kv.put",
    load="kv.get",
    list_checkpoints="kv.scan . count",
    delete="kv.delete",
)
class MemcoreCheckpointStorage(Scoped):
    """The framework's ``CheckpointStorage``: each save is one commit, of any process.

    Checkpoints of a workflow are listed by their timestamps. Types are decoded under the
    framework's own restrictions, and a save that could not be loaded is refused.

    Args:
        source: a database, a scope, or the path of a file.
        allowed_checkpoint_types: further types that may be decoded, as ``"module:qualname"``.
        **where: ``app`` and ``user``; ``durability`` and ``allow_unsafe`` of a file that is created
            here, as in ``memcore.open``.

    Raises:
        InvalidOptionError: an option is invalid.
    """

    framework = "agent_framework"

    def __init__(
        self,
        source: Source,
        *,
        allowed_checkpoint_types: Iterable[str] = (),
        **where: Unpack[Where],
    ) -> None:
        super().__init__(source, **where)
        self._kv = self.scope.kv(_NAMESPACE)
        self._allowed = frozenset(allowed_checkpoint_types)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint, in place of one of the same id; return its id.

        Raises:
            WorkflowCheckpointException: it cannot be encoded, or could not be loaded again.
        """
        told = checkpoint.to_dict()
        try:
            encoded = encode_checkpoint_value(told)
            decode_checkpoint_value(encoded, allowed_types=self._allowed)
            content = json.dumps(encoded, ensure_ascii=False).encode("utf-8", "surrogatepass")
        except WorkflowCheckpointException:
            raise
        except Exception as exc:
            msg = f"checkpoint {checkpoint.checkpoint_id} cannot be stored and loaded again"
            raise WorkflowCheckpointException(msg) from exc
        await in_thread(self._put, told, content)
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint.

        Raises:
            WorkflowCheckpointException: there is none, or one of its types is not allowed.
        """

        def read() -> bytes | None:
            return self._kv.content(key_of("c", checkpoint_id))

        content = await in_thread(read)
        if content is None:
            msg = f"No checkpoint found with ID {checkpoint_id}"
            raise WorkflowCheckpointException(msg)
        return self._decoded(content)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, the oldest first."""
        ids = await self.list_checkpoint_ids(workflow_name=workflow_name)

        def read() -> list[bytes | None]:
            return [self._kv.content(key_of("c", each)) for each in ids]

        contents = await in_thread(read)
        return [self._decoded(content) for content in contents if content is not None]

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; return whether there was one."""

        def change(rows: KeyValueTxn) -> bool:
            key = key_of("c", checkpoint_id)
            row = rows.get(key)
            if row is not None:
                rows.delete(key)
                rows.delete(key_of("w", row["workflow"], checkpoint_id))
            return row is not None

        return await in_thread(lambda: self._kv.transact(change))

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the checkpoint of a workflow with the latest timestamp; None if there is none."""
        ids = await self.list_checkpoint_ids(workflow_name=workflow_name)
        return await self.load(ids[-1]) if ids else None

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of a workflow's checkpoints, the oldest first; decodes nothing."""
        prefix = key_of("w", workflow_name, "")
        rows = await in_thread(lambda: list(self._kv.scan(prefix=prefix)))
        found = sorted((value for _, value in rows), key=lambda value: _moment(value["at"]))
        return [value["id"] for value in found]

    # --- in a thread ------------------------------------------------------------------------------

    def _put(self, told: dict[str, Any], content: bytes) -> None:
        key = key_of("c", told["checkpoint_id"])
        row = {"workflow": told["workflow_name"]}
        listed = {"id": told["checkpoint_id"], "at": told["timestamp"]}
        for _ in range(STAGE_ATTEMPTS):
            is_large = len(content) > BLOB_INLINE_COMMIT_BYTES_MAX
            held = self._kv.stage(content) if is_large else content

            def change(rows: KeyValueTxn, held: Any = held) -> None:
                old = rows.get(key)
                rows.put(key, row, content=held)
                if old is not None and old != row:
                    rows.delete(key_of("w", old["workflow"], told["checkpoint_id"]))
                rows.put(key_of("w", row["workflow"], told["checkpoint_id"]), listed)

            try:
                self._kv.transact(change)
            except StagedBlobLost:
                continue
            return
        msg = "a large checkpoint was collected again and again before it could be referred to"
        raise StorageError(msg)

    def _decoded(self, content: bytes) -> WorkflowCheckpoint:
        encoded = json.loads(content.decode("utf-8", "surrogatepass"))
        found = decode_checkpoint_value(encoded, allowed_types=self._allowed)
        return WorkflowCheckpoint.from_dict(found)


def _moment(text: str) -> float:
    """Return a timestamp in seconds since 1970; one that is none comes first."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return float("-inf")
