"""``memcore import`` of files as people have them: arrays, one object, a thousand bad lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import memcore
from memcore.cli.app import app
from memcore.cli.options import ExitCode
from messages import assistant, texts, user

TALK = [user("q"), assistant("a")]
NAMED = [{"id": "x", "messages": TALK}, {"id": "y", "messages": TALK[:1]}]


def load(store: Path, file: Path) -> tuple[Any, dict[str, list[str]]]:
    ran = CliRunner().invoke(app, ["import", str(file), "--store", str(store)])
    with memcore.open(store) as db:
        assert db.check() == []
        return ran, {e.session_id: texts(db.session(e.session_id)) for e in db.sessions()}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (NAMED, {"x": ["q", "a"], "y": ["q"]}),
        ([TALK, TALK[:1]], {"f-000001": ["q", "a"], "f-000002": ["q"]}),
        (TALK, {"f-000001": ["q", "a"]}),
        (NAMED[0], {"x": ["q", "a"]}),
        ([NAMED[0], TALK], {"x": ["q", "a"], "f-000002": ["q", "a"]}),
    ],
)
def test_a_file_that_is_one_json_value(tmp_path, value, expected, indent) -> None:
    file = tmp_path / "f.json"
    file.write_text(json.dumps(value, indent=indent))
    ran, found = load(tmp_path / "a.memcore", file)
    assert (ran.exit_code, found) == (0, expected), ran.output


def test_lines_that_are_lists_are_conversations_of_their_own(tmp_path) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text(f"{json.dumps([TALK[0]])}\n{json.dumps(TALK)}\n")
    ran, found = load(tmp_path / "a.memcore", file)
    assert (ran.exit_code, found) == (0, {"f-000001": ["q"], "f-000002": ["q", "a"]})


def test_a_thousand_lines_of_one_mistake_are_three_warnings(tmp_path) -> None:
    file = tmp_path / "f.jsonl"
    lines = [f'{{"id": "c{n}", "messages": 7}}' for n in range(1000)]
    file.write_text("\n".join(["{", *lines, json.dumps(NAMED[0])]))
    ran, found = load(tmp_path / "a.memcore", file)
    assert (ran.exit_code, list(found)) == (ExitCode.FINDINGS, ["x"])
    told = ran.stderr.splitlines()
    assert len(told) == 5, told
    assert told[-1].endswith("and 997 more like these")
