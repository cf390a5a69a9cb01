"""What the hot paths cost in calls of Python functions and in modules: it may fall, not rise.

A frame takes some fifty nanoseconds and a reader's attention; both add up where a runtime calls on
every message. Who makes a path longer finds it here, not in a profile a year later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import memcore

HOME = str(Path(memcore.__file__).parent)
BUDGETS = {  # path: calls, modules
    "append": (6, 5),
    "append with a key": (30, 10),
    "extend by four": (6, 5),
    "tail": (23, 8),
    "get": (24, 8),
    "context": (40, 13),
    "kv.put": (58, 11),
    "remember": (174, 27),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Callable[[], Any]]]:
    if os.environ.get("MEMCORE_TEST_OPTIONS"):
        pytest.skip("what the options ask for is done beside it")
    with memcore.open(tmp_path_factory.mktemp("paths") / "a.memcore") as db:
        session, space = db.session("c"), db.scope().kv("n")
        for number in range(40):
            session.append({"role": "user", "content": f"hello {number}"})
            session.append({"role": "assistant", "content": "yes"})
        item = {"role": "user", "content": "x"}
        turn = iter(range(1000))
        memory = session.memory
        yield {
            "append": lambda: session.append(item),
            "append with a key": lambda: session.append(item, idempotency_key=str(next(turn))),
            "extend by four": lambda: session.extend([item] * 4),
            "tail": lambda: session.tail(50),
            "get": lambda: session.get(30),
            "context": lambda: session.context(200),
            "kv.put": lambda: space.put("k", {"a": 1}),
            "remember": lambda: memory.remember(f"Tea {next(turn)}", source=1),
        }


def traced(path: Callable[[], Any]) -> tuple[int, int]:
    """How many functions of memcore are called, in how many modules."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            calls.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        path()
    finally:
        sys.setprofile(before)
    return len(calls), len(set(calls))


@pytest.mark.parametrize("name", BUDGETS)
def test_a_hot_path_stays_as_short_as_it_is(paths, name) -> None:
    # The first runs import and fill caches; an append in 32 begins an index page, which takes more.
    found = [traced(paths[name]) for _ in range(8)]
    calls, modules = min(found)
    assert (calls, modules) <= BUDGETS[name], f"{name}: {calls} calls in {modules} modules"
    assert modules <= BUDGETS[name][1]
    assert calls, "nothing was traced"
