"""Each question of ``python -m bench`` as one benchmark; its rows are in the ``extra_info``."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import pytest

NAMES = sorted(
    path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py")
)


@pytest.mark.parametrize("name", NAMES)
def test_question(benchmark, effort, name):
    module = importlib.import_module(f"bench_{name}")
    rows = benchmark.pedantic(lambda: list(module.rows(effort)), rounds=1, iterations=1)
    benchmark.extra_info["rows"] = [dataclasses.asdict(row) for row in rows]
    assert rows
    for row in rows:
        assert row.ours is not None or row.note  # absent, and it says why
