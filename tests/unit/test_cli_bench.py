"""``memcore bench``: tables, JSON and pages of the user's own data and policy; wrong input."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import pytest
from click.testing import CliRunner

import memcore
from memcore.bench import QUESTIONS, Bar, bar_chart, generated, line_chart, measured, read_workload
from memcore.cli.app import app
from memcore.testing import random_history

SVG = "{http://www.w3.org/2000/svg}"


def run(*arguments):
    return CliRunner().invoke(app, ["bench", "--seconds", "0", *map(str, arguments)])


@pytest.fixture
def data(tmp_path):
    """Ten conversations, one of them in another format, and a line that is none."""
    path = tmp_path / "talks.jsonl"
    lines = [{"id": f"t{at}", "messages": random_history(seed=at)} for at in range(9)]
    path.write_text("\n".join([*map(json.dumps, lines), "{oops"]) + "\n", encoding="utf-8")
    return path


def test_every_question_is_answered_on_generated_data() -> None:
    done = run("--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert tuple(dict.fromkeys(row["question"] for row in told["rows"])) == QUESTIONS
    for row in told["rows"]:
        assert 0 < row["p10"] <= row["median"] <= row["p90"], row
        assert row["samples"] >= 5
        assert len(row["spread"]) == 21
    assert told["run"]["conversations"] == 20


def test_the_users_data_policy_and_format_are_measured(data, tmp_path) -> None:
    policy = tmp_path / "mine.toml"
    policy.write_text(
        'name = "mine"\n[[stages]]\nkeep = { last_items = 4 }\ntriggers = [{ items = 6 }]\n',
        encoding="utf-8",
    )
    before = data.read_bytes()
    done = run(data, "--policy", policy, "--counter", "bytes/4", "--budget", 60, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["run"]["policy"] == "mine"
    assert (told["run"]["conversations"], told["run"]["left out"]) == (9, 1)
    assert told["run"]["items"] == sum(len(random_history(seed=at)) for at in range(9))
    notes = {row["what"]: row["note"] for row in told["rows"]}
    assert "policy mine" in notes["compaction, extractive summary"]
    assert "bytes/4" in notes["tokens counted"]
    assert "left out: line 10" in done.stderr
    assert data.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.toml", "talks.jsonl"]


def test_the_table_is_shown_and_questions_can_be_chosen(data) -> None:
    done = run(data, "--only", "cut", "--only", "tokens")
    assert done.exit_code == 0, done.output
    assert "search of the cut for a budget" in done.stdout
    assert "append of one item" not in done.stdout
    assert "conversations  9" in done.stdout


@pytest.mark.parametrize("pairs", ["anthropic", "gemini", "openai_responses"])
def test_other_formats_are_measured(tmp_path, pairs) -> None:
    path = tmp_path / "talks.jsonl"
    lines = [{"id": "t", "messages": random_history(policy=pairs, seed=at)} for at in range(2)]
    lines[1]["id"] = "u"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    workload = read_workload(path, pairs=pairs)
    assert {each.pairs for each in workload.conversations} == {pairs}
    rows = measured(workload, seconds=0)
    assert {row.question for row in rows} == set(QUESTIONS)


def test_an_export_is_data(tmp_path) -> None:
    with memcore.open(":memory:") as db:
        db.session("a", policy="anthropic").extend(random_history(policy="anthropic", seed=1))
        (tmp_path / "out.jsonl").write_bytes(b"".join(db.export()))
    workload = read_workload(tmp_path / "out.jsonl")
    assert [each.pairs for each in workload.conversations] == ["anthropic"]


def test_the_page_is_self_contained_and_its_plots_are_well_formed(data, tmp_path) -> None:
    target = tmp_path / "page.html"
    done = run(data, "--html", target)
    assert done.exit_code == 0, done.output
    text = target.read_text(encoding="utf-8")
    assert not re.search(r"<script|<link|<img|@import|url\(|(?:src|href)=", text)
    again = run(data, "--html", target)
    assert (again.exit_code, target.read_text(encoding="utf-8")) == (6, text)
    charts = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text)]
    assert len(charts) >= 5
    bars = charts[0].findall(f"{SVG}rect")
    assert len(bars) == 4  # two appends, the cut, the context
    assert all(float(bar.get("width")) > 0 for bar in bars)
    assert len(charts[1].findall(f"{SVG}polyline")) == 4


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('name = "x"\nlast = 3\n', "last"),
        ("[[stages]]\nkeep = { last_item = 3 }\n", "last_item"),
        ("[[stages]]\ntriggers = [{ item = 3 }]\n", "item"),
        ('preset = "tail"\nkeep_lsat = 3\n', "keep_lsat"),
        ("stages = [\n", "cannot read"),
    ],
)
def test_a_wrong_policy_is_refused_and_the_field_named(tmp_path, content, named) -> None:
    (tmp_path / "p.toml").write_text(content, encoding="utf-8")
    done = run("--policy", tmp_path / "p.toml")
    assert done.exit_code == 2
    assert named in done.stderr
    assert not done.stdout
    with pytest.raises(memcore.InvalidOptionError, match=named):
        memcore.read_policy(tmp_path / "p.toml")


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["nowhere.jsonl"], 3, "nowhere.jsonl"),
        (["--policy", "nowhere.toml"], 3, "nowhere.toml"),
        (["--pairs", "openai"], 2, "openai"),
        (["--counter", "words"], 2, "words"),
        (["--only", "speed"], 2, "speed"),
        (["--place", "nowhere"], 3, "nowhere"),
        (["--html", "nowhere/page.html"], 3, "nowhere"),
        (["--budget", "0"], 2, "budget"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments, code, named) -> None:
    done = run(*arguments)
    assert done.exit_code == code, done.output
    assert named in done.stderr
    assert not done.stdout


def test_a_file_without_a_conversation_is_refused_with_its_first_line(tmp_path) -> None:
    path = tmp_path / "none.jsonl"
    path.write_text("[7]\n", encoding="utf-8")
    done = run(path)
    assert done.exit_code == 5
    assert "line 1" in done.stderr
    with pytest.raises(memcore.SourceError, match=r"none\.jsonl"):
        read_workload(path)


def test_generated_conversations_are_the_same_each_time() -> None:
    assert generated().conversations == generated().conversations
    assert {each.pairs for each in generated(pairs="gemini").conversations} == {"gemini"}


def test_plots_escape_texts_and_bear_odd_figures() -> None:
    bars = [
        Bar("<a & b>", 0.0, "0"),
        Bar("x" * 200, float("inf"), "?"),
        Bar("", 3.0, "3", 1.0, 9.0),
    ]
    for log in (False, True):
        assert ET.fromstring(bar_chart("T & <U>", bars, log=log)) is not None
    assert ET.fromstring(bar_chart("none", []))
    assert ET.fromstring(line_chart("none", {}, x="a", y="b"))
    found = ET.fromstring(line_chart("<", {"&": [(0, 1), (1, 1)]}, x="<", y=">", log=True))
    assert found.find(f"{SVG}polyline") is not None


def test_conversations_of_one_name_are_measured_apart(tmp_path) -> None:
    said = [{"role": ("user", "assistant")[at % 2], "content": "hi"} for at in range(20)]
    with memcore.open(tmp_path / "a.memcore") as db:
        for user, policy in (("a", "openai_chat"), ("b", "anthropic")):
            db.session("n" * 65_536, user=user, policy=policy).extend(said)
        (tmp_path / "a.jsonl").write_bytes(b"".join(db.export()))
    workload = read_workload(tmp_path / "a.jsonl")
    assert [each.pairs for each in workload.conversations] == ["openai_chat", "anthropic"]
    rows = measured(workload, questions=["append", "context"], seconds=0.01)
    assert {row.question for row in rows} == {"append", "context"}
