"""Exports as Parquet: a row for each item, in pieces, whatever its texts hold."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli.app import app
from memcore.cli.options import ExitCode
from memcore.exchange import parquet as parquet_module

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q": 1}'}}


@pytest.fixture
def db(tmp_path):
    with memcore.open(tmp_path / "agent.memcore") as found:
        session = found.session("chat", user="ann", app="shop")
        session.append(
            {"role": "user", "content": "Where is bob@example.org?"},
            envelope={"author": "ann", "duration_ms": 1.5}, meta={"k": [1]}, request_id="r1",
        )  # fmt: skip
        session.append({"role": "assistant", "content": None, "tool_calls": [CALL]})
        session.append({"role": "tool", "tool_call_id": "c1", "content": "there \ud800"})
        session.record("x-note", "seen")
        found.session("other", user="ben").append({"role": "user", "content": "Hi."})
        yield found


def rows_of(pieces) -> list[dict]:
    return parquet.read_table(io.BytesIO(b"".join(pieces))).to_pylist()


def test_a_row_has_what_its_item_has(db) -> None:
    first, second, third, event, other = rows_of(db.export(format="parquet"))
    assert (first["app"], first["user"], first["session"]) == ("shop", "ann", "chat")
    assert [row["seq"] for row in (first, second, third, event, other)] == [1, 2, 3, 4, 1]
    item = next(db.session("chat", user="ann", app="shop").items())
    assert first["created_at"] == datetime.fromtimestamp(item.created_at, UTC)
    assert (first["kind"], first["tokens"], first["text"]) == (
        "user", item.tokens, "Where is bob@example.org?",
    )  # fmt: skip
    assert (first["author"], first["duration_ms"], first["request_id"]) == ("ann", 1.5, "r1")
    assert json.loads(first["meta"]) == {"k": [1]}
    assert json.loads(first["message"]) == item.message
    assert (second["tools"], second["call_ids"], second["kind"]) == (["look"], ["c1"], "assistant")
    assert (third["tools"], third["call_ids"]) == ([], ["c1"])
    assert third["text"] == "there ?"
    assert json.loads(third["message"])["content"] == "there \ud800"
    assert (event["kind"], event["tokens"], event["text"]) == ("event", 0, "")
    assert (other["app"], other["user"], other["session"]) == ("default", "ben", "other")
    assert {row["undone"] for row in (first, second, third, event, other)} == {False}


def test_only_what_is_asked_for(db) -> None:
    assert [row["user"] for row in rows_of(db.export(user="ben", format="parquet"))] == ["ben"]
    assert rows_of(db.export("nobody", format="parquet")) == []
    session = db.session("other", user="ben")
    session.undo(1)
    assert rows_of(db.export(user="ben", format="parquet")) == []
    (row,) = rows_of(db.export(user="ben", format="parquet", undone=True))
    assert row["undone"]
    redacted = rows_of(db.export(user="ann", format="parquet", redact="strict"))
    assert "bob@example.org" not in str(redacted)
    assert [row["seq"] for row in redacted] == [1, 2, 3, 4]


def test_a_large_table_comes_in_pieces(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(parquet_module, "_ROWS", 10)
    monkeypatch.setattr(parquet_module, "_BYTES", 2_000)
    with memcore.open(tmp_path / "large.memcore") as db:
        texts = [f"number {n}" + " and more" * (220 * (n % 7 == 0)) for n in range(95)]
        db.session("chat").extend({"role": "user", "content": text} for text in texts)
        pieces = [*db.export(format="parquet")]
        assert len(pieces) > 14
        assert [row["text"] for row in rows_of(pieces)] == texts
        left = db.export(format="parquet")
        next(left)
        left.close()  # what is not read to its end leaves nothing behind


def test_a_counter_that_is_not_here_counts_nothing(db) -> None:
    lines = [
        line.replace(b'"o200k_base"', b'"theirs/1"') for line in db.export("other", user="ben")
    ]
    (row,) = rows_of(parquet_module.parquet_of(lines))
    assert row["tokens"] is None


def test_the_command_writes_a_whole_file(db, tmp_path) -> None:
    db.close()
    to = tmp_path / "items.parquet"
    store = ["--store", str(tmp_path / "agent.memcore")]
    asked = ["export", "--all", "--format", "parquet", "--to", str(to), *store]
    ran = CliRunner().invoke(app, asked)
    assert ran.exit_code == ExitCode.OK, ran.output
    assert parquet.read_table(to).num_rows == 5
    assert CliRunner().invoke(app, asked).exit_code == ExitCode.REFUSED  # it exists
    ran = CliRunner().invoke(app, ["import", str(to), *store])
    assert ran.exit_code not in (ExitCode.OK, ExitCode.BUG)


def test_without_pyarrow_one_line_says_what_to_install(tmp_path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError('no', name='pyarrow')")
    program = (
        "import memcore; db = memcore.open(':memory:')\n"
        "try: db.export(format='parquet')\n"
        "except ImportError as error: print(error)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": ":".join([str(tmp_path), *sys.path])},
    )  # fmt: skip
    assert ran.stdout == 'parquet needs pyarrow: pip install "memcore-db[parquet]"\n'
