"""Plugin of pytest: Strands' tests get memcore's repository and storage, and do without moto."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import Any

from strands import storage
from strands.storage import in_memory_storage

from memcore.adapters.strands import MemcoreSessionRepository, MemcoreStorage

moto = ModuleType("moto")  # of the tests of S3, which are not run; conftest imports it
moto.mock_aws = contextlib.nullcontext  # type: ignore[attr-defined]
sys.modules["moto"] = moto


class MockedSessionRepository(MemcoreSessionRepository):
    """A repository in memory, in the place of the tests' own."""

    def __init__(self) -> None:
        super().__init__(":memory:", allow_unsafe=True)


class SwappedStorage(MemcoreStorage):
    """A storage in memory, in the place of ``InMemoryStorage``."""

    _ephemeral = in_memory_storage._EPHEMERAL

    def __init__(self, **options: Any) -> None:
        super().__init__(":memory:", allow_unsafe=True, **options)

    def clear(self) -> None:
        """Delete all that is stored."""
        for key, _ in list(self._kv.scan(prefix=self._prefix or None)):
            self._kv.delete(key)


mocked = ModuleType("tests.fixtures.mock_session_repository")
mocked.MockedSessionRepository = MockedSessionRepository  # type: ignore[attr-defined]
sys.modules["tests.fixtures.mock_session_repository"] = mocked
storage.InMemoryStorage = SwappedStorage
in_memory_storage.InMemoryStorage = SwappedStorage
