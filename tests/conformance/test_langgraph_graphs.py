"""Compiled graphs that go on in another process, against InMemorySaver in one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver

import memcore
import stories

TESTS = Path(stories.__file__).parent


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[str]]]:
    """What each leg saw over memcore, each in a process of its own."""
    path = tmp_path_factory.mktemp("graphs") / "agent.memcore"
    done = subprocess.run(
        [sys.executable, "-m", "stories", path],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == stories.LEGS
    with memcore.open(path) as db:
        assert db.check() == []
    return found


@pytest.fixture(scope="module")
def expected() -> list[dict[str, list[str]]]:
    """The same with InMemorySaver, in one process."""
    saver = InMemorySaver()
    return [stories.tell(saver, leg) for leg in range(stories.LEGS)]


@pytest.mark.parametrize("story", [story.__name__ for story in stories.STORIES])
def test_a_graph_goes_on_in_another_process(
    story: str, told: list[dict[str, list[str]]], expected: list[dict[str, list[str]]]
) -> None:
    for leg in range(stories.LEGS):
        threads = [name for name in expected[leg] if name.startswith(story)]
        assert len(threads) == len(stories.MODES)
        for thread in threads:
            assert told[leg][thread] == expected[leg][thread], (thread, leg)
            assert len(told[leg][thread]) >= 3
