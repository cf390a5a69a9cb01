"""Every adapter asks for consent to a mode in which a power cut may destroy the file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import memcore

OPENERS = {
    "langgraph.MemcoreSaver": lambda cls: cls,
    "langgraph.MemcoreSaver.from_conn_string": lambda cls: cls.from_conn_string,
    "langgraph.AsyncMemcoreSaver.from_conn_string": lambda cls: cls.from_conn_string,
    "langgraph.MemcoreStore": lambda cls: cls,
    "langgraph.MemcoreStore.from_conn_string": lambda cls: cls.from_conn_string,
    "langgraph.MemcoreCache": lambda cls: cls,
    "langgraph.MemcoreCache.from_conn_string": lambda cls: cls.from_conn_string,
    "deepagents.MemcoreBackend.from_path": lambda cls: cls.from_path,
    "adk.MemcoreSessionService": lambda cls: cls,
    "adk.MemcoreArtifactService": lambda cls: cls,
    "adk.MemcoreMemoryService": lambda cls: cls,
    "openai_agents.MemcoreSession": lambda cls: lambda path, **options: cls("s", path, **options),
    "openai_agents.SessionManager": lambda cls: cls,
}


@pytest.mark.parametrize("name", OPENERS)
def test_a_file_that_promises_nothing_takes_consent(name: str, tmp_path: Path) -> None:
    framework, kind = name.split(".")[:2]
    try:
        module: Any = import_module(f"memcore.adapters.{framework}")
    except ImportError as missing:
        pytest.skip(str(missing))
    opened = OPENERS[name](getattr(module, kind))
    path = tmp_path / "agent.memcore"
    with pytest.raises(memcore.InvalidOptionError, match="allow_unsafe=True"):
        opened(path, durability="none")
    assert not path.exists()
    opened(path, durability="none", allow_unsafe=True).close()
    with memcore.open(path) as db:
        assert db.durability == "none"
