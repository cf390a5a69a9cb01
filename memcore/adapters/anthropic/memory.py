"""Anthropic's memory tool in a memcore file: the files under ``/memories`` that a model edits.

The replies are those of the SDK's own tool for local files, byte for byte
(``anthropic/lib/tools/_beta_builtin_memory_tool.py`` of SDK 2.14, MIT licence; tests compare them).
Each change of a file is a version of a memory, so ``memory.history(id)`` has all of them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
from anthropic.types.beta import (
    BetaCacheControlEphemeralParam,
    BetaMemoryTool20250818CreateCommand,
    BetaMemoryTool20250818DeleteCommand,
    BetaMemoryTool20250818InsertCommand,
    BetaMemoryTool20250818RenameCommand,
    BetaMemoryTool20250818StrReplaceCommand,
    BetaMemoryTool20250818ViewCommand,
)

from memcore.aio.memory import AsyncMemories
from memcore.errors import InvalidOptionError
from memcore.memory import Memories, MemoryFiles, tool_handle
from memcore.telemetry import plain

__all__ = [
    "AsyncMemcoreMemoryTool",
    "MemcoreMemoryTool",
]


_ARGUMENTS: Final = {
    "view": ("path", "view_range"),
    "create": ("path", "file_text"),
    "str_replace": ("path", "old_str", "new_str"),
    "insert": ("path", "insert_line", "insert_text"),
    "delete": ("path",),
    "rename": ("old_path", "new_path"),
    "clear": (),
}
_OPTIONAL: Final = ("view_range",)


def _files_of(memory: object) -> MemoryFiles:
    """Return the files in a user's memory.

    Raises:
        InvalidOptionError: it is not a memory.
    """
    found = memory.sync if isinstance(memory, AsyncMemories) else memory
    found = plain(found)
    if not isinstance(found, Memories):
        msg = f"memory: expected scope.memory or session.memory, got {type(memory).__name__}"
        raise InvalidOptionError(msg)
    return MemoryFiles(tool_handle(found))


def _run(files: MemoryFiles, name: str, command: object = None) -> str:
    """Execute a command of the SDK; its fields may be missing or of any type.

    Raises:
        ToolError: it is refused; the text is for the model.
        StorageError, ClosedError
    """
    given: dict[str, Any] = {}
    for field in _ARGUMENTS[name]:
        value = getattr(command, field, None)
        if value is not None or field not in _OPTIONAL:
            given[field] = value
    answer = files.run(name, **given)
    if answer.failed:
        raise ToolError(answer.text)
    return answer.text


class MemcoreMemoryTool(BetaAbstractMemoryTool):
    """Anthropic's memory tool (``memory_20250818``) over a user's memory, for synchronous clients.

    Args:
        memory: ``scope.memory`` or ``session.memory`` of the user whose files these are.
        cache_control: as in the SDK.

    Raises:
        InvalidOptionError: it is not a memory.
    """

    def __init__(
        self,
        memory: Memories | AsyncMemories,
        *,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._files = _files_of(memory)

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """Return a file with line numbers, or a listing of a directory.

        Raises:
            ToolError: it is refused; likewise for all commands.
        """
        return _run(self._files, "view", command)

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """Create a file, and the directories above it."""
        return _run(self._files, "create", command)

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replace the only occurrence of a text in a file."""
        return _run(self._files, "str_replace", command)

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Insert a text behind a line of a file."""
        return _run(self._files, "insert", command)

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Delete a file, or a directory with all that is in it; the versions are kept."""
        return _run(self._files, "delete", command)

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Move a file or a directory to a path where nothing is."""
        return _run(self._files, "rename", command)

    def clear_all_memory(self) -> str:
        """Delete all files and directories; the versions are kept."""
        return _run(self._files, "clear")


class AsyncMemcoreMemoryTool(BetaAsyncAbstractMemoryTool):
    """As ``MemcoreMemoryTool``, for asynchronous clients: each command runs in a thread."""

    def __init__(
        self,
        memory: Memories | AsyncMemories,
        *,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._files = _files_of(memory)

    async def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """As ``MemcoreMemoryTool.view``."""
        return await asyncio.to_thread(_run, self._files, "view", command)

    async def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """As ``MemcoreMemoryTool.create``."""
        return await asyncio.to_thread(_run, self._files, "create", command)

    async def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """As ``MemcoreMemoryTool.str_replace``."""
        return await asyncio.to_thread(_run, self._files, "str_replace", command)

    async def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """As ``MemcoreMemoryTool.insert``."""
        return await asyncio.to_thread(_run, self._files, "insert", command)

    async def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """As ``MemcoreMemoryTool.delete``."""
        return await asyncio.to_thread(_run, self._files, "delete", command)

    async def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """As ``MemcoreMemoryTool.rename``."""
        return await asyncio.to_thread(_run, self._files, "rename", command)

    async def clear_all_memory(self) -> str:
        """As ``MemcoreMemoryTool.clear_all_memory``."""
        return await asyncio.to_thread(_run, self._files, "clear")
