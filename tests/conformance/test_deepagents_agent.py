"""Agents of DeepAgents whose files are in memcore, across a restart of the process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("deepagents")

from deepagents.backends import CompositeBackend
from deepagents.middleware.summarization import SummarizationMiddleware
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from memcore.adapters.deepagents import MemcoreBackend
from memcore.adapters.langgraph import MemcoreSaver
from tests.conformance.deep_worker import LOG, Scripted, run

ROOT = Path(__file__).parents[2]
CHECKPOINTERS = {"memory": lambda _: InMemorySaver(), "memcore": MemcoreSaver}


@pytest.fixture(scope="module")
def first_process(tmp_path_factory):
    """What the tools answered an agent of another process, and its file."""
    path = tmp_path_factory.mktemp("first") / "agent.memcore"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.conformance.deep_worker", str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, path


@pytest.fixture
def left_behind(first_process, path):
    """As ``first_process``, with a copy of the file at ``path``."""
    shutil.copy(first_process[1], path)
    return first_process[0]


@pytest.mark.parametrize("checkpointer", CHECKPOINTERS.values(), ids=CHECKPOINTERS)
def test_an_agent_finds_its_files_after_a_restart(left_behind, path, open_db, checkpointer):
    assert "/large_tool_results/call_look_up_3" in left_behind
    assert LOG not in left_behind
    db = open_db()
    backend = MemcoreBackend(db)
    answers = run(
        backend,
        checkpointer(db),
        ("ls", {"path": "/"}),
        ("read_file", {"file_path": "/plan.md"}),
        ("glob", {"pattern": "*.md"}),
        ("grep", {"pattern": "line 3999 of", "output_mode": "content"}),
        (
            "read_file",
            {"file_path": "/large_tool_results/call_look_up_3", "offset": 3_000, "limit": 2},
        ),
        ("delete", {"file_path": "/plan.md"}),
        ("read_file", {"file_path": "/plan.md"}),
    )
    assert "/plan.md" in answers[0]
    assert "/large_tool_results/" in answers[0]
    assert "one" in answers[1]
    assert "2" in answers[1]
    assert "two" not in answers[1]
    assert "/plan.md" in answers[2]
    assert "/large_tool_results/call_look_up_3" in answers[3]
    assert "line 3000 of what" in answers[4]
    assert "line 3002 of what" not in answers[4]
    assert "not found" in answers[6]
    assert backend.download_files(["/large_tool_results/call_look_up_3"])[0].content == LOG.encode()


def test_offloaded_histories_grow_at_their_end(db):
    backend = MemcoreBackend(db)
    middleware = SummarizationMiddleware(model=Scripted(turns=[]), backend=backend)
    told = [f"{number}: {'word ' * 4_000}" for number in range(4)]
    kv, seen = db.scope().kv("deepagents:files"), {}
    for text in told:
        path = middleware._offload_to_backend(backend, [HumanMessage(text)], "s")
        assert path == "/conversation_history/s.md"
        parts = dict(kv.scan(prefix="p"))
        assert seen.items() <= parts.items()  # what was offloaded before is not written again
        seen = parts
    whole = backend.download_files([path])[0].content.decode()
    assert [whole.count(text) for text in told] == [1] * len(told)
    assert whole.count("## Summarized at") == len(told)


def test_it_can_be_routed_to(db):
    composite = CompositeBackend(
        default=MemcoreBackend(db), routes={"/memories/": MemcoreBackend(db, namespace="memories")}
    )
    composite.write("/memories/a.md", "kept TODO")
    composite.write("/b.md", "here TODO")
    assert {one["path"] for one in composite.ls("/").entries} == {"/b.md", "/memories/"}
    assert {one["path"] for one in composite.glob("*.md").matches} == {"/b.md", "/memories/a.md"}
    assert {one["path"] for one in composite.grep("TODO").matches} == {"/b.md", "/memories/a.md"}
    assert MemcoreBackend(db, namespace="memories").read("/a.md").file_data["content"]


@pytest.mark.parametrize("namespace", [lambda runtime: (runtime.context["user"], "files")])
def test_a_namespace_may_come_from_the_runtime(db, namespace):
    from deepagents import create_deep_agent

    backend = MemcoreBackend(db, namespace=namespace)
    turns = [("write_file", {"file_path": "/f", "content": "text"})]
    agent = create_deep_agent(model=Scripted(turns=turns), backend=backend, context_schema=dict)
    agent.invoke({"messages": [{"role": "user", "content": "go"}]}, context={"user": "ann"})
    assert MemcoreBackend(db, namespace=("ann", "files")).read("/f").file_data["content"] == "text"
