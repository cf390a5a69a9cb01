"""Every benchmark runs: once, on tiny sizes, no time is looked at. Rivals may be absent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from thinned import thinned

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
NAMES = sorted(path.stem for path in BENCH.glob("bench_*.py"))
SHORT = {"bench_append", "bench_compaction", "bench_openai_agents", "bench_search"}
"""What the gate runs: rivals of some others take half a minute to import."""

SMOKE = """
import dataclasses, importlib, json, sys, traceback
sys.path.insert(0, {bench!r})
import harness, report
for name in {names!r}:
    try:
        rows = list(importlib.import_module(name).rows(harness.SMOKE))
        texts = [report.cells(row) for row in rows]
        told = [dataclasses.asdict(row) for row in rows]
    except BaseException:
        told = traceback.format_exc()
    print(json.dumps([name, told]), flush=True)
"""

PAIRS = """
import sys
sys.path.insert(0, {bench!r})
from random import Random
from histories import WIRES, Broken, broken, random_script, signs_of, wired
for seed in range(40):
    script = random_script(Random(seed), late=seed % 2 == 1)
    caller = next((at for at, step in enumerate(script) if step.what == "call"), None)
    for policy in WIRES:
        assert broken(signs_of(wired(script, policy))) == Broken(0, 0), (seed, policy)
        if caller is None:
            continue
        calls = len(script[caller].ids)
        beheaded = signs_of(wired(script[caller + 1 :], policy))
        assert broken(beheaded) == Broken(calls, 0), (seed, policy)
        stopped = signs_of(wired(script[: caller + 1], policy))
        assert broken(stopped) == Broken(0, calls), (seed, policy)
"""

COMMAND = """
import runpy, sys
from memcore import _fast
_fast.build_flavour = lambda: {flavour!r}
sys.argv = ["bench", *{arguments!r}]
runpy.run_module("bench", run_name="__main__")
"""

IN_MEMORY = {"MEMCORE_BENCH_DIR": "/dev/shm"} if os.access("/dev/shm", os.W_OK) else {}
"""No figure means anything here, so nobody waits for a disk."""


def python(code: str, *, timeout_seconds: float = 120) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **IN_MEMORY},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )


@pytest.fixture(scope="module")
def smoke(request):
    """What each benchmark gave, all of them in one program: rivals take seconds to import."""
    names = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.name.startswith("test_it_runs[")
    ]
    done = python(SMOKE.format(bench=str(BENCH), names=names), timeout_seconds=600)
    return dict(map(json.loads, done.stdout.splitlines())), done.stderr


@pytest.mark.parametrize("name", thinned(NAMES, lambda at: NAMES[at] in SHORT))
def test_it_runs(smoke, name):
    told, errors = smoke
    rows = told.get(name, errors)
    assert isinstance(rows, list), rows
    assert rows
    for row in rows:
        assert row["question"]
        assert row["ours"] is None or row["ours"]["median"] >= 0
        assert row["ours"] is not None or row["note"]  # absent, and it says why


def test_the_histories_are_valid_and_their_judge_sees_what_is_broken():
    done = python(PAIRS.format(bench=str(BENCH)))
    assert done.returncode == 0, done.stderr


def test_the_command_knows_all_of_them():
    done = python(COMMAND.format(flavour="release", arguments=["--help"]))
    assert done.returncode == 0, done.stderr
    for name in NAMES:
        assert name.removeprefix("bench_") in done.stdout


def test_the_command_refuses_other_builds():
    done = python(COMMAND.format(flavour="trace", arguments=["--quick", "--only", "push"]))
    assert done.returncode == 2
    assert "trace build" in done.stderr
    assert not done.stdout


def test_the_command_prints_and_writes(tmp_path):
    target = tmp_path / "figures.json"
    arguments = ["--quick", "--only", "push", "--markdown", "--json", str(target)]
    done = python(COMMAND.format(flavour="release", arguments=arguments))
    assert done.returncode == 0, done.stderr
    assert "| ledger push, an item" in done.stdout
    written = json.loads(target.read_text(encoding="utf-8"))
    assert {"date", "cpu", "versions", "build_flavour", "load"} <= set(written["run"])
    assert [row["benchmark"] for row in written["rows"]] == ["push", "push"]


def test_the_command_draws(tmp_path):
    saved, plots = tmp_path / "figures.json", tmp_path / "plots"
    arguments = ["--quick", "--only", "push", "--json", str(saved), "--plots", str(plots)]
    done = python(COMMAND.format(flavour="release", arguments=arguments))
    assert done.returncode == 0, done.stderr
    first = (plots / "push.svg").read_bytes()
    root = ET.fromstring(first)
    assert len(root.findall("{http://www.w3.org/2000/svg}rect")) == 2
    again = ["--from", str(saved), "--plots", str(tmp_path / "again")]
    done = python(COMMAND.format(flavour="trace", arguments=again))  # nothing is measured
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again" / "push.svg").read_bytes() == first


def test_pytest_runs_every_question(tmp_path):
    pytest.importorskip("pytest_benchmark")
    command = [sys.executable, "-m", "pytest", "bench", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **IN_MEMORY}
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True}
    listed = subprocess.run([*command, "--collect-only"], check=True, **options).stdout
    for name in NAMES:
        assert f"test_question[{name.removeprefix('bench_')}]" in listed
    assert "bench_push.py::test_push" in listed
    target = tmp_path / "figures.json"
    command += ["-k", "push", "--effort", "smoke", f"--benchmark-json={target}"]
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0, done.stdout
    found = {each["name"]: each for each in json.loads(target.read_text("utf-8"))["benchmarks"]}
    assert found.keys() == {"test_question[push]", "test_push", "test_classify_and_push"}
    assert found["test_question[push]"]["extra_info"]["rows"][0]["ours"]["median"] > 0


def test_only_the_rivals_modules_import_rivals():
    for path in BENCH.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for rival in ("import sqlite3", "import lmdb", "import tiktoken"):
            assert rival not in text or path.name == "rivals.py", path
        for rival in (
            "from agents",
            "from langchain",
            "from langgraph",
            "from llama_index",
            "from autogen",
            "from google",
        ):
            assert rival not in text or path.name.startswith("rivals"), path
