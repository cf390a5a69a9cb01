"""Evaluation of a search: the figures, the file of questions, ``memcore memory eval``."""

from __future__ import annotations

import json
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcore
from memcore.cli import main
from memcore.errors import InvalidItemError
from memcore.search import measure, read_questions
from memcore.search.evaluation import LINE_BYTES_MAX, QUESTIONS_MAX, Quality, Question

A, B, C, D = (("s", seq) for seq in range(1, 5))


def figures(expected, *results, k=10) -> Quality:
    [quality] = measure(
        [Question("q", frozenset(expected))], lambda query, most: list(results), k=k
    ).values()
    return quality


def test_figures_by_hand() -> None:
    assert figures([A], [A]) == (1, 1.0, 1.0, 1.0, 1.0)
    assert figures([A], [B], [C]) == (1, 0.0, 0.0, 0.0, 0.0)
    assert figures([A], [B], [A]) == (1, 1.0, 1.0, 1 / log2(3), 0.5)
    ideal = 1 + 1 / log2(3)
    assert figures([A, B], [C], [B]) == (1, 0.5, 1.0, 1 / log2(3) / ideal, 0.5)
    assert figures([A, B], [A], [A], [B]) == (1, 1.0, 1.0, (1 + 1 / 2) / ideal, 1.0)
    assert figures([A, B], [A, B]) == (1, 1.0, 1.0, 1 / ideal, 1.0)
    assert figures([A], [B], [A], k=1) == (1, 0.0, 0.0, 0.0, 0.0)
    assert figures([A, B, C], [A], k=1) == (1, 1 / 3, 1.0, 1.0, 1.0)


def test_groups_are_means_of_their_own() -> None:
    asked = [Question("a", frozenset([A]), "x"), Question("b", frozenset([B]), "x"),
             Question("c", frozenset([C]))]  # fmt: skip
    found = measure(asked, lambda query, most: [[A]] if query == "a" else [[C]], k=3)
    assert {group: (each.questions, each.recall) for group, each in found.items()} == {
        "": (3, 2 / 3), "x": (2, 0.5),
    }  # fmt: skip
    assert measure([], lambda query, most: [], k=3) == {}


places = st.tuples(st.sampled_from("ab"), st.integers(1, 4))


@given(
    st.frozensets(places, min_size=1),
    st.lists(st.frozensets(places, max_size=3), max_size=8),
    st.integers(1, 8),
)
def test_figures_are_shares_and_agree(expected, results, k) -> None:
    found = figures(expected, *results, k=k)
    assert all(0 <= each <= 1 + 1e-9 for each in found[1:])
    assert (found.recall > 0) == (found.hits > 0) == (found.ndcg > 0) == (found.mrr > 0)
    longer = figures(expected, *results, k=k + 1)
    assert (longer.recall, longer.mrr) >= (found.recall, found.mrr)


GOOD = b'{"query": "tea", "expected": [["s", 1], ["t", 2]], "group": "x"}'


def test_questions_are_read() -> None:
    [first, second] = read_questions([GOOD, b" \n", GOOD.replace(b', "group": "x"', b"")])
    assert first == Question("tea", frozenset({("s", 1), ("t", 2)}), "x")
    assert second.group == ""


@pytest.mark.parametrize(
    "line",
    [
        b"", b"nonsense", b"[]", b"{}", b'"tea"', b"\xff", b"[" * 100_000,
        GOOD.replace(b'"tea"', b'" "'), GOOD.replace(b'"tea"', b"7"),
        GOOD.replace(b'"tea"', b'"' + b"x" * 200_000 + b'"'),
        GOOD.replace(b'["s", 1]', b'["s"]'), GOOD.replace(b'["s", 1]', b'["", 1]'),
        GOOD.replace(b'["s", 1]', b"1"), GOOD.replace(b'["s", 1]', b'["s", 0]'),
        GOOD.replace(b'["s", 1]', b'["s", true]'), GOOD.replace(b'["s", 1]', b'["s", 1e3]'),
        GOOD.replace(b'["s", 1]', b'["s", 281474976710656]'), GOOD.replace(b'["s", 1]', b"{}"),
        GOOD.replace(b'[["s", 1], ["t", 2]]', b"[]"),
        GOOD.replace(b'[["s", 1], ["t", 2]]', json.dumps([["s", 1]] * 1001).encode()),
        GOOD.replace(b'"x"', b"7"), GOOD.replace(b'"x"', b'"' + b"x" * 65 + b'"'),
        GOOD + b" " * LINE_BYTES_MAX,
    ],
)  # fmt: skip
def test_what_is_no_question_is_refused(line) -> None:
    with pytest.raises(InvalidItemError):
        read_questions([line])


def test_no_more_questions_than_allowed() -> None:
    with pytest.raises(InvalidItemError, match=f"line {QUESTIONS_MAX + 1}"):
        read_questions(GOOD for _ in range(QUESTIONS_MAX + 1))


@pytest.fixture
def store(path):
    with memcore.open(path) as db:
        session = db.session("chat", user="alice")
        session.append({"role": "user", "content": "I like green tea in the morning"})
        session.append({"role": "user", "content": "My flat has a large window"})
        db.session("other", user="alice").append({"role": "user", "content": "a window seat"})
        db.session("chat", user="bob").append({"role": "user", "content": "green tea"})
        session.memory.remember("Likes green tea", source=1)
    return str(path)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["memory", "eval", *arguments])
    return code, *capsys.readouterr()


def test_on_the_command_line(store, capsys, tmp_path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(
        '{"query": "green tea", "expected": [["chat", 1]], "group": "drinks"}\n'
        '{"query": "window", "expected": [["chat", 2], ["gone", 1]], "group": "home"}\n'
    )
    asked = ("--store", store, "--user", "alice", "--questions", str(file))
    code, out, _ = run(capsys, *asked, "--json")
    told = json.loads(out)
    assert (code, told["k"], told["questions"], told["recall"]) == (0, 10, 2, 0.75)
    assert {name: each["recall"] for name, each in told["groups"].items()} == {
        "drinks": 1.0, "home": 0.5,
    }  # fmt: skip
    code, out, _ = run(capsys, *asked, "-k", "1")
    assert (code, "RECALL@1" in out.upper(), "drinks" in out, "all" in out) == (0, True, True, True)
    told = json.loads(run(capsys, *asked, "--json", "--memories")[1])
    assert told["groups"]["drinks"]["recall"] == 1.0
    assert told["groups"]["home"]["recall"] == 0.0
    told = json.loads(run(capsys, *asked[:3], "nobody", *asked[4:], "--json")[1])
    assert told["recall"] == 0.0


def test_items_that_were_not_searched_are_told(store, capsys, tmp_path, monkeypatch) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text('{"query": "green tea", "expected": [["chat", 1]]}\n')
    asked = ("--store", store, "--user", "alice", "--questions", str(file))
    assert run(capsys, *asked)[2] == ""
    monkeypatch.setattr("memcore.session.search.UNINDEXED_MAX", 1)
    code, _, error = run(capsys, *asked)
    assert (code, "2 items are not indexed and not searched" in error) == (0, True)
    with memcore.open(store) as db:
        db.index_sessions()
    assert run(capsys, *asked)[2] == ""


def test_bad_files_end_with_a_message(store, capsys, tmp_path) -> None:
    file = tmp_path / "questions.jsonl"
    asked = ("--store", store, "--questions", str(file))
    assert run(capsys, *asked)[0] == 3
    file.write_bytes(b"x" * (LINE_BYTES_MAX + 10))
    code, _, error = run(capsys, *asked)
    assert (code, "line 1" in error) == (5, True)
    file.write_bytes(b"")
    assert run(capsys, *asked)[0] == 5
