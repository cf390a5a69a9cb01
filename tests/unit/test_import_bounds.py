"""Numbers of foreign lines: refused by name, or stored in a database that works."""

from __future__ import annotations

import io
import json
import math
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import pytest

import memcore
from memcore.compaction import ElideOutputs
from thinned import thinned

CALL: Final = {
    "role": "assistant",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
VALUES: Final = (
    -1,
    0,
    2**31,
    2**32,
    2**48 - 1,
    2**53,
    2**63 - 1,
    2**64,
    1e308,
    math.nan,
    "x",
    None,
)
CLEARING: Final = memcore.CompactionPolicy(
    stages=(memcore.Stage(keep=None, reducers=(ElideOutputs(max_tokens=20),)),), min_gain=0.0
)
GROWTH_MAX: Final = 1024**2
"""Bytes of file and of memory that a mutated line may cost beyond the untouched ones."""
BIG_GAP: Final = {
    "memcore": 1, "session": "s", "app": "a", "user": "u", "policy": "openai_chat",
    "counter": "o200k_base", "revision": 1, "next_seq": 4_000_000, "created_ms": 1,
    "updated_ms": 1, "items": 0, "views": 0, "checkpoints": 0,
}  # fmt: skip


def said(number: int, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": f"Message {number} of many, with some words in it."}


def lively(db: memcore.Database) -> None:
    """Sessions with every sort of line that an export has."""
    session = db.session("s", user="u", app="a")
    session.append(said(0), meta={"n": 1}, envelope={"duration_ms": 2.5, "tokens": 7})
    session.append(CALL, request_id="r")
    session.abandon("c1")
    session.state.update({"a": 1})
    for number in range(1, 12):
        session.append(said(number, "assistant" if number % 2 else "user"))
    session.undo(2)
    session.checkpoint("one", meta={"n": 2})
    session.append(said(20))
    session.state.update({"b": [2]})
    session.state.delete("a")
    session.append(CALL | {"tool_calls": [CALL["tool_calls"][0] | {"id": "c2"}]})  # type: ignore[index]
    session.append({"role": "tool", "tool_call_id": "c2", "content": "word " * 400})
    for number in range(21, 26):
        session.append(said(number, "assistant" if number % 2 else "user"))
    session.compact(policy=CLEARING)
    session.compact(memcore.extractive, keep_last=4)
    session.append(said(30))
    session.undo()
    session.append(said(31))
    session.checkpoint("two")  # and what it refers to is undone, and follows another
    session.undo()
    session.append(said(32))
    db.scope(user="u", app="a").state.update({"shared": 1})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all numbers in a parsed line."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from places(entry, (*path, key))
    elif isinstance(value, list):
        for at, entry in enumerate(value):
            yield from places(entry, (*path, at))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def changed(line: Any, path: tuple[Any, ...], value: Any) -> Any:
    made = json.loads(json.dumps(line))
    place = made
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return made


@pytest.fixture(scope="module")
def parsed() -> list[Any]:
    with memcore.open(":memory:") as db:
        lively(db)
        return [json.loads(line) for line in b"".join(db.export(undone=True)).splitlines()]


def kinds_of(lines: list[Any]) -> dict[tuple[str, ...], tuple[int, tuple[Any, ...]]]:
    """The first and the last number of each field: ``{what: (line, path)}``."""
    found: dict[tuple[str, ...], tuple[int, tuple[Any, ...]]] = {}
    for at, line in enumerate(lines):
        for path in places(line):
            named = tuple("*" if isinstance(step, int) and step > 3 else str(step) for step in path)
            found.setdefault(named, (at, path))
            found[("last", *named)] = (at, path)
    return found


def used(db: memcore.Database) -> None:
    """Ask of every session what is asked of a healthy one."""
    for entry in db.sessions():
        session = db.session(entry.session_id, user=entry.user, app=entry.app, orphans="keep")
        for options in ({}, {"budget_tokens": 10_000}, {"view": 0}):
            session.context(**options)
        assert len(list(session.items())) == entry.items
        session.append(said(99))
        session.context(budget_tokens=10_000)
        session.compact(memcore.extractive, keep_last=1)
        session.context()
        for checkpoint in session.checkpoints():
            session.fork(f"fork {checkpoint.number}", at=checkpoint)
        session.state.update({"new": 1})
        session.undo()
    assert db.check() == []
    b"".join(db.export(undone=True))


def test_the_lines_that_are_mutated_hold_every_field_with_a_number(parsed) -> None:
    names = {step for path in kinds_of(parsed) for step in path}
    assert names >= {
        "memcore", "revision", "next_seq", "created_ms", "updated_ms", "items", "views",
        "checkpoints", "state", "seq", "created_us", "after", "duration_ms", "tokens", "cut_seq",
        "covered", "tokens_before", "tokens_after", "masks", "segments", "view", "counter",
        "floor", "moments", "class",
    }  # fmt: skip


@pytest.mark.parametrize("value", thinned(VALUES, 4), ids=repr)
def test_a_number_of_a_line_is_refused_or_does_no_harm(parsed, value) -> None:
    whole = [json.dumps(line).encode() + b"\n" for line in parsed]
    with memcore.open(":memory:") as db:
        assert db.import_(whole).failures == []
        plain = db.stats()["file_bytes"]
    for at, path in kinds_of(parsed).values():
        lines = list(whole)
        lines[at] = json.dumps(changed(parsed[at], path, value)).encode() + b"\n"
        with memcore.open(":memory:") as db:
            tracemalloc.start()
            try:
                done = db.import_(lines)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < GROWTH_MAX, (path, value)
            assert db.stats()["file_bytes"] - plain < GROWTH_MAX, (path, value)
            assert len(done.failures) <= 2, (path, value, done.failures)
            assert done.failures or done.sessions == 1
            try:
                used(db)
            except Exception as error:
                raise AssertionError(f"{path} = {value!r}: {error!r}") from error


def test_a_short_line_makes_no_large_file(db) -> None:
    before = db.stats()["file_bytes"]
    done = db.import_([json.dumps(BIG_GAP).encode()])
    assert db.stats()["file_bytes"] - before < GROWTH_MAX
    assert done.failures[0].startswith("line 1: next_seq: ")
    assert "--undone" in done.failures[0]


def test_many_short_lines_make_no_large_file(db) -> None:
    """What each line may ask for alone is bounded for all of them together, too."""
    before = db.stats()["file_bytes"]
    lines = [
        json.dumps(BIG_GAP | {"session": f"s{at}", "next_seq": 10_000}).encode() for at in range(60)
    ]
    done = db.import_(io.BytesIO(b"\n".join(lines)))
    assert done.failures
    assert db.stats()["file_bytes"] - before < 16 * GROWTH_MAX


def test_a_session_of_which_most_is_undone_comes_back(db, open_db, path) -> None:
    """An export never holds what its own import refuses: it writes stand-ins."""
    for name in ("a", "b"):
        session = db.session(name)
        session.extend([said(number) for number in range(300)])
        session.undo(300)
    session.append(said(0))
    export = b"".join(db.export())
    other = open_db(path=path.with_name("other.memcore"))
    assert other.import_(io.BytesIO(export)).failures == []
    assert b"".join(other.export()) == export


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("title", "next_seq", 2**62),
        ("title", "revision", 2**62),
        ("view", "tokens_after", 2**63 - 1),
        ("view", "tokens_before", 2**62),
        ("view", "created_ms", 2**62),
        ("checkpoint", "tokens", 2**62),
        ("checkpoint", "revision", 2**62),
    ],
)
def test_the_error_names_the_line_and_the_field(db, parsed, kind, field, value) -> None:
    lines = [json.loads(json.dumps(line)) for line in parsed]
    at = next(at for at, line in enumerate(lines) if kind in line or kind == "title")
    inner = lines[at] if kind == "title" else lines[at][kind]
    inner[field] = value
    done = db.import_([json.dumps(line).encode() for line in lines])
    named = field if kind == "title" else f"{kind}.{field}"
    assert f"line {at + 1}" in done.failures[0]
    assert named in done.failures[0]
    assert list(db.sessions()) == []


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("name", memcore.PRESETS)
def test_a_number_of_a_policy_is_refused_or_does_no_harm(name, value) -> None:
    mapping = json.loads(json.dumps(memcore.policy_mapping(memcore.compaction_policy(name))))
    for path in [*places(mapping), ("window_tokens",), ("max_turns",), ("min_gain",)]:
        try:
            policy = memcore.compaction_policy(changed(mapping, path, value))
        except memcore.InvalidOptionError:
            continue
        with memcore.open(":memory:", compaction=policy) as db:
            session = db.session("s")
            session.extend(
                [said(number, "assistant" if number % 2 else "user") for number in range(9)]
            )
            assert session.pressure() is not None
            with suppress(memcore.CallerError):
                session.compact(memcore.extractive)
            session.context()
            assert db.check() == []


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("field", ["max_age_seconds", "keep_last", "max_bytes"])
def test_a_number_of_a_retention_rule_is_refused_or_does_no_harm(field, value) -> None:
    with memcore.open(":memory:") as db:
        session = db.session("s")
        session.extend([said(number) for number in range(5)])
        try:
            db.retention.set([{"what": "items", field: value}])
        except memcore.InvalidOptionError:
            return
        db.sweep(dry_run=True)
        db.sweep()
        session.context()
        assert db.check() == []
