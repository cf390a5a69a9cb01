"""Our services where ``adk web`` makes them: by a URI, from a ``services.yaml``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from google.adk.cli import service_registry
from google.adk.cli.utils.service_factory import (
    create_artifact_service_from_options,
    create_memory_service_from_options,
    create_session_service_from_options,
)
from google.genai import types

import memcore
from memcore.adapters.adk import MemcoreArtifactService, MemcoreMemoryService, MemcoreSessionService
from memcore.errors import ClosedError, InvalidOptionError
from tests.conformance.adk_events import said

YAML = """\
services:
  - {scheme: memcore, type: session, class: memcore.adapters.adk.MemcoreSessionService}
  - {scheme: memcore, type: artifact, class: memcore.adapters.adk.MemcoreArtifactService}
  - {scheme: memcore, type: memory, class: memcore.adapters.adk.MemcoreMemoryService}
"""
CLASSES = [MemcoreSessionService, MemcoreArtifactService, MemcoreMemoryService]
ME = {"app_name": "shop", "user_id": "ann"}


@pytest.fixture
def loaded(tmp_path, monkeypatch) -> Path:
    """A directory of agents whose services ADK has loaded, into a registry of its own."""
    monkeypatch.setattr(service_registry, "_service_registry_instance", None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "services.yaml").write_text(YAML)
    service_registry.load_services_module(str(tmp_path))
    return tmp_path


def test_the_services_of_a_yaml_share_a_file(loaded) -> None:
    uri = f"memcore:///{loaded}/agent.memcore"
    sessions = create_session_service_from_options(
        base_dir=loaded, session_service_uri=uri, session_db_kwargs={"durability": "relaxed"}
    )
    artifacts = create_artifact_service_from_options(
        base_dir=loaded, artifact_service_uri=uri, strict_uri=True
    )
    memory = create_memory_service_from_options(
        base_dir=loaded, memory_service_uri=uri + "?max_results=1"
    )
    assert [type(each) for each in (sessions, artifacts, memory)] == CLASSES

    async def work() -> None:
        session = await sessions.create_session(**ME, session_id="s")
        for text in ("tea please", "more tea"):
            await sessions.append_event(session, said(text))
        part = types.Part(text="t")
        await artifacts.save_artifact(**ME, session_id="s", filename="f", artifact=part)
        await memory.add_session_to_memory(await sessions.get_session(**ME, session_id="s"))
        found = await memory.search_memory(**ME, query="tea")
        assert len(found.memories) == 1

    asyncio.run(work())
    assert sessions.database.durability == "relaxed"
    for service in (memory, artifacts, sessions):
        service.close()
    with MemcoreSessionService(loaded / "agent.memcore") as again:
        listed = asyncio.run(again.list_sessions(**ME)).sessions
        assert [each.id for each in listed] == ["s"]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("memcore:///agent.memcore", "agent.memcore"),
        ("memcore://agent.memcore", "agent.memcore"),
        ("memcore://sub/agent.memcore", "sub/agent.memcore"),
        ("memcore:///sub/a%23b%3F.memcore", "sub/a#b?.memcore"),
        ("memcore:///sub/a\tb.memcore", "sub/a\tb.memcore"),
        ("memcore:///sub/[a%C3%A4.memcore", "sub/[aä.memcore"),
        ("any:///sub/a%20b.memcore?durability=none&allow_unsafe=true", "sub/a b.memcore"),
    ],
)
def test_paths_and_options_of_uris(tmp_path, monkeypatch, kind, uri, path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    with kind(uri=uri, agents_dir=str(tmp_path)) as service:
        assert Path(service.database.path).resolve() == (tmp_path / path).resolve()
        assert service.database.durability == ("none" if "none" in uri else "full")
    with kind(uri=f"memcore:///{tmp_path}/absolute.memcore"):
        assert (tmp_path / "absolute.memcore").exists()


def test_options_of_a_uri_are_those_of_the_service(tmp_path) -> None:
    uri = f"memcore:///{tmp_path}/a.memcore?mend=false&pair_safe_recent=true&cache_bytes=0"
    with MemcoreSessionService(uri=uri) as service:
        assert (service._mend, service._pair_safe, service._copies is None) == (False, True, False)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"uri": "agent.memcore"},
        {"uri": "memcore://"},
        {"uri": "memcore:///"},
        {"uri": 5},
        {"uri": "memcore:///x.memcore?colour=red"},
        {"uri": "memcore:///x.memcore?durability=7"},
        {"uri": "memcore:///x#y.memcore"},
        {"uri": "memcore:///x.memcore?durability=full#y"},
        {"uri": "memcore://[x"},
        {"uri": " memcore:///b.memcore"},
        {"uri": "memcore:///a%00b.memcore"},
        {"uri": "memcore:///%FF.memcore"},
        {"uri": "memcore:///\udcff.memcore"},
        {"uri": "memcore:///x.memcore?durability=" + "[" * 100_000},
        {"source": ":memory:", "uri": "memcore:///x.memcore"},
    ],
)
def test_what_says_no_place_is_refused(tmp_path, monkeypatch, kind, wrong: dict[str, Any]) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidOptionError):
        kind(**wrong)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("owns", [True, False])
@pytest.mark.parametrize("awaits", [True, False])
@pytest.mark.parametrize("kind", CLASSES)
def test_a_service_is_closed_with_await_as_those_of_adk_and_without(
    tmp_path, kind, awaits, owns
) -> None:
    path = tmp_path / "agent.memcore"
    with memcore.open(tmp_path / "other.memcore") as other:
        service = kind(path if owns else other)

        async def work() -> None:
            for _ in range(2):
                if awaits:
                    assert await service.close() is None
                else:
                    service.close()

        asyncio.run(work())
        assert not owns or is_closed(service.database)
        assert not is_closed(other)


def is_closed(database: memcore.Database) -> bool:
    try:
        database.stats()
    except ClosedError:
        return True
    return False
