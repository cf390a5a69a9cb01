"""Lets ``pytest bench/bench_push.py`` import the siblings, and gives benchmarks a directory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import scratch


@pytest.fixture
def place() -> Iterator[Path]:
    """A scratch directory."""
    with scratch() as path:
        yield path


@pytest.fixture(autouse=True)
def _release_build() -> None:
    from memcore import _fast

    if _fast.build_flavour() != "release":
        pytest.skip(f"a {_fast.build_flavour()} build measures nothing: build for release")
