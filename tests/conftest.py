"""Fixtures: databases that are checked when a test ends, and the corpus of real conversations.

``MEMCORE_TEST_OPTIONS`` (see ``turned_on.py``) makes ``memcore.open`` turn features on that are off
by default, so that the tests of everything else run with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import on_server
import pytest
import servers
import turned_on
from hypothesis import settings

import memcore
from memcore.store import LmdbStore, open_store
from pytest_memcore import memcore_db, memcore_history

__all__ = ["memcore_db", "memcore_history"]  # of a checkout that is not installed

CORPUS = Path(__file__).parents[2] / "shared" / "corpus" / "conversations.jsonl"


turned_on.install()

settings.register_profile("long", deadline=None)
settings.register_profile("gate", deadline=None, max_examples=40)
settings.load_profile("long" if os.environ.get("MEMCORE_LONG_TESTS") else "gate")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what looks at the stored bytes while an option changes them."""
    marker = item.get_closest_marker("as_stored")
    if marker is not None and turned_on.changes_bytes():
        pytest.skip(f"looks at stored bytes; {turned_on.VARIABLE}={','.join(turned_on.NAMES)}")


@pytest.fixture(scope="session")
def server() -> Iterator[servers.Server]:
    """A PostgreSQL server; skips where none is installed."""
    pytest.importorskip("psycopg_pool")
    with servers.postgres() as running:
        yield running


@pytest.fixture(scope="session")
def redirect() -> Iterator[on_server.Redirect | None]:
    """Opens paths on a server, if the environment asks for it."""
    if not on_server.IS_ON:
        yield None
        return
    with on_server.redirected() as found:
        yield found


@pytest.fixture(autouse=True)
def _on_server(
    redirect: on_server.Redirect | None, request: pytest.FixtureRequest
) -> Iterator[None]:
    if redirect is None:
        yield
        return
    if request.node.originalname in on_server.NEED_A_FILE:
        pytest.skip("needs a file")
    yield
    redirect.drop()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's database lies."""
    return tmp_path / "agent.memcore"


@pytest.fixture
def open_db(path: Path) -> Iterator[Callable[..., memcore.Database]]:
    """Opens the test's database (``durability="full"`` unless asked otherwise), as often as asked.

    When the test ends, the file is checked through a fresh handle and everything is closed.
    """
    opened: list[memcore.Database] = []

    def open_one(**options: Any) -> memcore.Database:
        if options.get("durability") == "none":
            options["allow_unsafe"] = True
        db = memcore.open(options.pop("path", path), **options)
        opened.append(db)
        return db

    yield open_one
    for db in opened:
        db.close()
    if path.exists():
        audits = [db.engine.audit for db in opened]
        # As one who has none of the guards that the file may demand.
        audit, guard = next(filter(None, audits), None), memcore.NoWrites()
        with memcore.open(path, audit=audit, guard=guard) as fresh:
            assert fresh.check() == []


@pytest.fixture
def store(path: Path) -> Iterator[LmdbStore]:
    """A store without a database on it; checked and closed when the test ends."""
    store = open_store(path)
    yield store
    assert store.check() == []
    store.close()


@pytest.fixture
def durability(request: pytest.FixtureRequest) -> str:
    """``"full"``; parametrize it indirectly for another one."""
    return str(getattr(request, "param", "full"))


@pytest.fixture
def counter() -> str:
    """What counts in ``db``: budgets in tests are reckoned in bytes."""
    return "bytes/4"


@pytest.fixture
def db(
    open_db: Callable[..., memcore.Database], durability: str, counter: str
) -> Iterator[memcore.Database]:
    """An open database; ``check()`` is clean when the test ends."""
    found = open_db(durability=durability, counter=counter)
    yield found
    assert found.check() == []


@pytest.fixture
def session(db: memcore.Database) -> memcore.Session:
    """A session that does not exist yet."""
    return db.session("chat")


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The file of real conversations; the test is skipped without it."""
    found = Path(os.environ.get("MEMCORE_CORPUS") or CORPUS)
    if not found.is_file():
        pytest.skip(f"no corpus of real conversations at {found} (set MEMCORE_CORPUS)")
    return found
