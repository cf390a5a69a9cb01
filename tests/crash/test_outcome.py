"""Parts of the crash checks: their outcomes added up, runs that go on, and runs that are shared."""

from __future__ import annotations

import pytest

from crash import __main__ as program
from crash import hostile, hostile_verbs, kill, power
from crash.outcome import Outcome, Part, Plan, merged
from crash.sealed import AVAILABLE


def part(name: str, done: list[str], findings: list[str] | None = None) -> Part:
    def work(_) -> Outcome:
        done.append(name)
        return Outcome("made", 2, findings or [], {"seen": 1, "MiB at most": len(done)})

    return Part(name, work)


def test_outcomes_of_one_name_are_added_up() -> None:
    facts = {"seen": 3, "MiB at most": 7, "by moment": {"a": 1}}
    other = {"seen": 4, "MiB at most": 5, "by moment": {"a": 1, "b": 2}}
    outcomes = [
        Outcome("x", 1, ["one"], facts),
        Outcome("y", 1, [], {}),
        Outcome("x", 2, [], other),
    ]
    added = {"seen": 7, "MiB at most": 7, "by moment": {"a": 2, "b": 2}}
    assert merged(outcomes) == [Outcome("x", 3, ["one"], added), Outcome("y", 1, [], {})]


def test_a_journal_goes_on_behind_what_was_done(tmp_path) -> None:
    done: list[str] = []
    parts = [part("one", done, ["it fails"]), part("two", done)]
    program.run(parts[:1], program.Journal(tmp_path / "journal"))
    ran = program.run(parts, program.Journal(tmp_path / "journal"))
    assert done == ["one", "two"]
    assert [outcome.findings for outcome, _ in ran] == [["one: it fails"], []]
    assert program.table(ran)[-1] == "total: 4 cases, 1 findings in 2 parts"


def test_a_journal_of_another_tree_is_none(tmp_path, monkeypatch) -> None:
    done: list[str] = []
    program.run([part("one", done)], program.Journal(tmp_path / "journal"))
    monkeypatch.setattr(program, "_tree", lambda: "another")
    program.run([part("one", done)], program.Journal(tmp_path / "journal"))
    assert done == ["one", "one"]


def test_a_part_that_raises_is_a_finding() -> None:
    def work(_) -> Outcome:
        raise RuntimeError("no luck")

    ((outcome, _),) = program.run([Part("one", work)], program.Journal(None))
    assert "RuntimeError: no luck" in outcome.findings[0]


@pytest.mark.parametrize("check", [hostile, hostile_verbs, kill, power])
def test_parts_have_names_of_their_own_and_make_up_the_whole(check) -> None:
    parts = check.parts(Plan(long=True, seed=7))
    assert len({each.name for each in parts}) == len(parts)
    assert not {each.name for each in parts} & {each.name for each in check.parts(Plan(seed=8))}


def test_a_long_run_of_power_cuts_has_ten_thousand_images_a_mode() -> None:
    parts = power.parts(Plan(long=True, seed=7))
    images = dict.fromkeys(power.MODES if AVAILABLE else power.MODES[:2], 0)
    for each in parts:
        if "control" not in each.name:
            ((case,),) = each.work.args
            images[case.durability, case.sealed] += case.images
    assert all(10_000 <= count < 10_100 for count in images.values())
