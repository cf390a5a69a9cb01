"""Every program in examples/ runs: with a scripted model, without a key and without a network."""

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def imported(path):
    """The top-level packages that a program imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_each_framework_has_an_example():
    shown = {name for path in EXAMPLES for name in imported(path)}
    assert {
        "a2a",
        "agent_framework",
        "agents",
        "claude_agent_sdk",
        "deepagents",
        "google",
        "langchain",
        "langgraph",
        "llama_index",
        "mcp",
        "pydantic_ai",
        "strands",
    } <= shown


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_says_what_it_promises(path, tmp_path):
    missing = sorted(name for name in imported(path) if find_spec(name) is None)
    if missing:
        pytest.skip(f"{path.name} needs {', '.join(missing)}")
    expected = ast.get_docstring(ast.parse(path.read_text("utf-8"))).partition("It prints:\n")[2]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    run = subprocess.run(  # noqa: PLW1510 - judged below
        [sys.executable, str(path)],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert [line.strip() for line in expected.strip().splitlines()] == run.stdout.splitlines()
    assert list(tmp_path.iterdir()) == []  # it cleans up
