"""A pytest plugin for the tests of the Agents SDK: MemcoreSession in the place of its sessions.

``SQLiteSession`` is replaced wherever the SDK's tests import it from, and the tests' own
``SimpleListSession`` (and what derives from it) by a subclass of its shape. The report says which
tests made one of them, for the others say nothing about memcore.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agents
import agents.extensions.memory.advanced_sqlite_session  # made of SQLiteSession: before the swap
import agents.memory
import agents.memory.sqlite_session
import pytest

from memcore.adapters.openai_agents import MemcoreSession

_current: list[str] = [""]
_made: set[str] = set()
_outcomes: dict[str, str] = {}
_reasons: dict[str, str] = {}


class ListSession(MemcoreSession):
    """Of the shape of the tests' ``SimpleListSession``."""

    def __init__(self, session_id: str = "test", history: list[Any] | None = None) -> None:
        super().__init__(session_id)
        self._ignore_ids_for_matching = False
        if history:
            self.native().sync.extend(history)

    @property
    def saved_items(self) -> list[Any]:
        """What some tests look at: all that is stored."""
        return [item.message for item in self.native().sync.items()]

    _items = saved_items


def _swap() -> None:
    made = MemcoreSession.__init__

    def noted(self: Any, *args: Any, **options: Any) -> None:
        _made.add(_current[0])
        made(self, *args, **options)

    MemcoreSession.__init__ = noted  # type: ignore[method-assign]
    for module in (agents, agents.memory, agents.memory.sqlite_session):
        module.SQLiteSession = MemcoreSession  # type: ignore[attr-defined]
    import tests.utils.simple_session as simple

    # What derives from SimpleListSession there is made once more, of the class in its place.
    tree = ast.parse(inspect.getsource(simple))
    tree.body = [part for part in tree.body if getattr(part, "name", "") != "SimpleListSession"]
    simple.SimpleListSession = ListSession
    exec(compile(tree, simple.__file__, "exec"), simple.__dict__)


if os.environ.get("MEMCORE_KIT_SWAP") != "0":
    _swap()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _current[0] = item.nodeid
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    at = report.nodeid
    if report.failed:
        _outcomes[at] = "failed"
        crash = getattr(report.longrepr, "reprcrash", None)
        lines = (crash.message if crash else str(report.longrepr)).splitlines()
        _reasons.setdefault(at, " ".join(lines[:1])[:160])
    elif report.when == "call" or report.skipped:
        _outcomes.setdefault(at, report.outcome)


def pytest_sessionfinish() -> None:
    found = {
        at: {"outcome": outcome, "made": at in _made, "why": _reasons.get(at, "")}
        for at, outcome in sorted(_outcomes.items())
    }
    Path(os.environ["MEMCORE_KIT_REPORT"]).write_text(json.dumps(found), encoding="utf-8")
