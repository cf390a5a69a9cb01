"""Every question under pytest-benchmark: ``pytest bench``, at sizes for a look (``--effort``)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import FULL, QUICK, SMOKE, Effort, scratch  # noqa: E402 - needs the path above

EFFORTS = {effort.name: effort for effort in (SMOKE, QUICK, FULL)}
SECONDS = "0.2"
"""How long pytest-benchmark repeats one action, unless --benchmark-max-time says otherwise."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("memcore's benchmarks")
    group.addoption(
        "--effort", choices=list(EFFORTS), default=QUICK.name, help="sizes of the questions"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    given = config.invocation_params.args
    if hasattr(config.option, "benchmark_max_time"):
        if not any(str(each).startswith("--benchmark-max-time") for each in given):
            config.option.benchmark_max_time = SECONDS
        if not any(str(each).startswith("--benchmark-min-rounds") for each in given):
            config.option.benchmark_min_rounds = 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:  # a rival's warning is no failure of ours
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture
def effort(request: pytest.FixtureRequest) -> Effort:
    """The sizes that ``--effort`` names."""
    return EFFORTS[request.config.getoption("--effort")]


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
