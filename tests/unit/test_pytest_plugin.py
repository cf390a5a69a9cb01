"""The plugin of pytest: light at start-up, its fixtures, and what it reports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import sys

import pytest

from memcore.testing import assert_legal

made = []

def test_a_history_is_made(memcore_history):
    history = memcore_history(policy="anthropic")
    made.append(history)
    assert history[-1]["role"] == "assistant"
    assert memcore_history(policy="anthropic") != history
    assert memcore_history(seed=3) == memcore_history(seed=3)

def test_a_database_is_open(memcore_db, tmp_path):
    memcore_db.session("s").append({"role": "user", "content": "hi"})
    assert (tmp_path / "test.memcore").exists()

def test_one_that_is_closed_early_is_checked_too(memcore_db):
    memcore_db.close()

def test_a_damaged_file_is_reported(memcore_db, tmp_path):
    memcore_db.session("s").extend([{"role": "user", "content": "hello" * 50}] * 60)
    memcore_db.close()
    path = tmp_path / "test.memcore"
    path.write_bytes(path.read_bytes().replace(b"hellohello", b"HELLOHELLO"))

def test_an_illegal_context_is_reported(memcore_history):
    history = memcore_history(turns=(2, 2))
    assert_legal([{"role": "tool", "tool_call_id": "c1", "content": "x"}], history=history)
"""


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    if not installed():
        command += ["-p", "pytest_memcore"]
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def installed() -> bool:
    """Whether the entry point is there, and not the checkout alone."""
    from importlib.metadata import entry_points

    return any(each.value == "pytest_memcore" for each in entry_points(group="pytest11"))


def test_the_fixtures_work_and_what_is_wrong_is_told(tmp_path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    done = run("-q", cwd=tmp_path)
    assert "1 failed, 4 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "is damaged after the test" in done.stdout
    assert "IllegalContextError" in done.stdout
    assert "a result that its call is not right before ('c1')" in done.stdout
    assert "random_history(turns=(2, 2), seed='test_it.py::test_an_illegal" in done.stdout


def test_the_seed_can_be_given(tmp_path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_it(memcore_history):\n    print(memcore_history())\n", encoding="utf-8"
    )
    one, same, other = (
        run("-q", "-s", f"--memcore-seed={seed}", cwd=tmp_path).stdout.splitlines()[0]
        for seed in (1, 1, 2)
    )
    assert one == same != other


def test_starting_pytest_loads_nothing_of_memcore(tmp_path) -> None:
    code = (
        "import sys, pytest, pytest_memcore; pytest.main(['--collect-only', '-q', "
        "'-p', 'pytest_memcore']); "
        "print([name for name in sys.modules if name.partition('.')[0] == 'memcore'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
