"""Plugin of pytest for tests of agents' memories; it comes with ``memcore-db[testing]``.

Fixtures: ``memcore_history`` makes histories of agents, ``memcore_db`` is a database whose file is
checked when the test has ended. Nothing of memcore or hypothesis is imported before a test asks for
one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import memcore

__all__ = [
    "memcore_db",
    "memcore_history",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--memcore-seed``."""
    group = parser.getgroup("memcore")
    group.addoption(
        "--memcore-seed",
        metavar="SEED",
        help="seed of the histories that memcore_history makes (each test has its own)",
    )


@pytest.fixture
def memcore_history(request: pytest.FixtureRequest) -> Callable[..., list[dict[str, Any]]]:
    """Make histories: ``memcore_history(policy="anthropic", faults=Faults(late=0.5))``.

    Arguments are those of ``memcore.testing.random_history``. Each call makes another history;
    those of a test are the same in each run. The report of a failing test has their seeds.
    """
    from memcore.testing import random_history

    base = request.config.getoption("--memcore-seed", None) or request.node.nodeid
    made = 0

    def history(**options: Any) -> list[dict[str, Any]]:
        nonlocal made
        made += 1
        options.setdefault("seed", f"{base}#{made}")
        told = ", ".join(f"{name}={value!r}" for name, value in options.items())
        request.node.add_report_section("call", "memcore", f"random_history({told})")
        made_history: list[dict[str, Any]] = random_history(**options)
        return made_history

    return history


@pytest.fixture
def memcore_db(tmp_path: Path) -> Iterator[memcore.Database]:
    """Open a new database; when the test has ended, every page and row of its file is checked."""
    import memcore

    path = tmp_path / "test.memcore"
    with memcore.open(path) as db:
        yield db
    if path.exists():
        with memcore.open(path, verify=True, read_only=True) as db:
            findings = db.check()
        if findings:
            told = "\n".join(map(str, findings))
            pytest.fail(f"{path} is damaged after the test:\n{told}", pytrace=False)
