"""Consolidation of memories: what is united, what is not, and what comes of removals afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest

import memcore
from memcore import ConsolidationPolicy, Source
from memcore.cli import main
from memcore.errors import InvalidOptionError, OptedOutError, ReadOnlyError
from memcore.memory.consolidate import make_plan, wording
from memcore.memory.rows import MemoryVersion, entry_at
from memcore.rows import names
from messages import user

DAY = 86_400


@pytest.fixture
def alice(db) -> Any:
    return db.scope(user="alice")


def said(scope: Any, session: str, text: str, **values: Any) -> memcore.Memory:
    """A statement of the user's in a session of its own."""
    scope.session(session).append(user(f"Please note: {text}"))
    return scope.memory.remember(text, source=Source(session, seqs=(1,)), **values)


def test_statements_of_the_same_words_become_one_with_all_their_sources(db, alice) -> None:
    first = said(alice, "a", "Likes the window seats")
    second = said(alice, "b", "likes a window seat")
    plan = alice.memory.consolidate(dry_run=True)
    assert [each.status for each in alice.memory.list()] == ["active", "active"]

    (step,) = alice.memory.apply(plan).steps

    made = alice.memory.get(step.made)
    assert (step.action, step.outcome, made.status, made.by) == ("unite", "done", "active", "user")
    assert made.derived_from == (first.id, second.id)
    assert {each.session for each in made.sources} == {"a", "b"}
    assert made.support == 2
    for old in (first, second):
        now = alice.memory.get(old.id)
        assert (now.status, now.superseded_by, now.text) == ("superseded", made.id, old.text)
    assert alice.memory.apply(plan).steps[0].outcome == "changed"
    assert alice.memory.consolidate().steps == ()
    assert db.check() == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Flies from Paris to Rome", "Flies to Paris from Rome"),
        ("Has 2 cats", "Has 3 cats"),
        ("Likes tea", "Does not like tea"),
        ("Alice manages Bob", "Bob manages Alice"),
        ("Likes tea", "Likes milk"),
        ("Meets Ann on May 3", "Meets Ann on May 4"),
        ("喜欢茶", "不喜欢茶"),
    ],
)
def test_what_differs_in_a_word_is_not_united(alice, one: str, other: str) -> None:
    said(alice, "a", one)
    said(alice, "b", other)
    assert alice.memory.consolidate().steps == ()
    judged = alice.memory.consolidate(consolidator=lambda *_: "same", dry_run=True)
    united = [step for step in judged.steps if step.action == "unite"]
    # A judge may join what differs in a plain word, never in a number, a name or a negation.
    assert bool(united) == (other in ("Likes milk", "Flies to Paris from Rome"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Prefers C++", "Prefers C#"),
        ("Likes 🍕", "Likes 🍔"),
        ("Likes it 👍", "Likes it"),
        ("Balance is -5 euros", "Balance is 5 euros"),
        ("Temperature +3", "Temperature -3"),
        ("Pays $50 a month", "Pays €50 a month"),
        ("Lost 2 % weight", "Lost 2 weight"),
        ("Wants plan A", "Wants a plan"),
        ("Likes Apple", "Likes apples"),
        ("Gave 3/4 of it", "Gave 3-4 of it"),
        ("Rated it 1.5", "Rated it 1-5"),
        ("Prefers >18 degrees", "Prefers <18 degrees"),
        ("x = 1", "x != 1"),
        ("Knows x² by heart", "Knows x2 by heart"),
        ("Waits 5s for it", "Waits 5 for it"),
        ("Lives in Rome?", "Lives in a Rome"),
        ("Is 60 años old", "Is 60 anos old"),
    ],
)
def test_signs_say_as_much_as_words(alice, one: str, other: str) -> None:
    said(alice, "a", one)
    said(alice, "b", other)
    assert alice.memory.consolidate(dry_run=True).steps == ()


def test_punctuation_that_only_ends_a_part_says_nothing(alice) -> None:
    said(alice, "a", "Likes tea, milk; and a cake!")
    said(alice, "b", "likes tea milk, and cakes.")
    assert len(alice.memory.consolidate(dry_run=True).steps) == 1


@pytest.mark.parametrize(
    ("one", "other", "is_united"),
    [
        ("Anna is my sister", "Maria is my sister", False),
        ("anna is my sister", "maria is my sister", False),
        ("Anna is my sister", "My sister is Anna", True),
        ("It is so. Anna is my sister", "It is so. Maria is my sister", False),
        ("Has two cats", "Has three cats", False),
        ("Has two cats", "Owns 2 cats", True),
        ("Visits it twice a week", "Visits it once a week", False),
        ("Has 三只 cats", "Has 四只 cats", False),
        ("They love dogs", "They hate dogs", False),
        ("They hated dogs", "They hate dogs so much", True),
        ("Not cats but dogs", "Cats but not dogs", False),
        ("Does not like tea", "Doesn't like the tea at all", True),
        ("Pays $50 rent", "Pays 50 € rent", False),
        ("Wants x != 1 here", "Wants x = 1 here", False),
        ("Moves -5 steps", "Moves by 5 steps", False),
        ("Uses C++ at work", "Uses C at work", False),
        ("The user enjoys green tea", "Likes green tea", True),
        ("Used to like green tea", "Likes green tea", False),
    ],
)
def test_a_judge_is_believed_within_limits(alice, one: str, other: str, is_united: bool) -> None:
    said(alice, "a", one)
    said(alice, "b", other)
    steps = alice.memory.consolidate(consolidator=lambda *_: "same", dry_run=True).steps
    assert bool(steps) == is_united


@pytest.mark.parametrize(
    "values",
    [
        ({"kind": "fact"}, {"kind": "preference"}),
        ({"subject": "alice"}, {"subject": "bob"}),
        ({"labels": {"agent": "x"}}, {"labels": {"agent": "y"}}),
        ({}, {"valid_to": 4_000_000_000.0}),
        ({}, {"expires_at": 4_000_000_000.0}),
        ({"expires_at": 3_000_000_000.0}, {"expires_at": 4_000_000_000.0}),
    ],
)
def test_what_is_about_something_else_is_not_united(alice, values: Any) -> None:
    said(alice, "a", "Likes the seat", **values[0])
    said(alice, "b", "likes seats", **values[1])
    assert alice.memory.consolidate().steps == ()


def test_quarantined_statements_and_values_of_slots_take_no_part(alice) -> None:
    alice.session("a").extend([user("x"), {"role": "assistant", "content": "y"}])
    alice.memory.remember("Likes the seat", source=Source("a", seqs=(2,)))
    said(alice, "b", "likes seats")
    said(alice, "c", "Likes a seat", subject="alice", slot="seat")
    assert alice.memory.consolidate().steps == ()


def test_the_strongest_has_the_say(alice) -> None:
    said(alice, "a", "Likes the seat", attributes={"n": 1, "m": "theirs"})
    alice.memory.remember("likes seats", by="operator", attributes={"n": 10})
    policy = ConsolidationPolicy(merge={"n": "sum"})
    (step,) = alice.memory.consolidate(policy).steps
    made = alice.memory.get(step.made)
    assert (made.by, made.text, made.attributes) == ("operator", "likes seats", {"n": 10})
    assert made.support == 1


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        ("sum", (1, 2, 4), 7),
        ("max", (1, 4, 2), 4),
        ("min", (2, 1, 4), 1),
        ("mean", (1, 2, 6), 3),
        ("newest", ("a", "b", "c"), "c"),
        ("surer", ("a", "b", "c"), "b"),
        ("union", ([1, 2], [2, 3], []), [1, 2, 3]),
        ("sum", ("x", 2, 4), "{first}"),
        ("sum", (1e308, 1e308, 1e308), "{first}"),
        ("sum", (10**400, 1.5, 2), "{first}"),
        ("mean", (10**400, 1, 2), "{first}"),
    ],
)
def test_attributes_follow_their_rules(alice, rule: str, values: Any, expected: Any) -> None:
    texts = ("Likes the seat", "likes seats", "Liked a seat")
    sure = (0.5, 0.9, 0.1)
    for at, text in enumerate(texts):
        said(alice, f"s{at}", text, attributes={"n": values[at]}, confidence=sure[at])
    (step,) = alice.memory.consolidate(ConsolidationPolicy(merge={"n": rule})).steps
    made = alice.memory.get(step.made).attributes["n"]
    first = alice.memory.get(step.memories[0]).attributes["n"]
    if rule == "union":
        assert sorted(made) == expected
    else:
        assert made == (first if expected == "{first}" else expected)


def test_a_contradiction_is_settled_by_time_and_trust(db, alice) -> None:
    old = said(alice, "a", "Lives in an old red house")
    new = said(alice, "b", "Lives in a new red house")
    (step,) = alice.memory.consolidate(consolidator=lambda *_: "contradicts").steps
    assert (step.action, step.memories) == ("supersede", (new.id, old.id))
    gone = alice.memory.get(old.id)
    assert (gone.status, gone.superseded_by) == ("superseded", new.id)
    assert gone.valid_to is not None

    strong = alice.memory.remember("Owns a grey boat", by="operator")
    weak = said(alice, "c", "Owns a grey bicycle")
    steps = alice.memory.consolidate(
        consolidator=lambda one, other: "contradicts" if "grey" in one.text + other.text else None
    ).steps
    assert [step.action for step in steps] == ["quarantine"]
    assert alice.memory.get(weak.id).status == "quarantined"
    assert alice.memory.get(strong.id).status == "active"
    assert db.check() == []


def contradicts(one: Any, other: Any) -> str | None:
    return "contradicts" if ("Rome" in one.text) != ("Rome" in other.text) else None


def test_a_union_or_a_change_does_not_make_a_statement_newer(db, alice) -> None:
    at = 1_000_000_000
    db.engine.now_us = lambda: at * 10**6
    said(alice, "a", "Lives in Paris now")
    said(alice, "b", "lives in a Paris now")
    db.engine.now_us = lambda: (at + 10) * 10**6
    rome = said(alice, "c", "Lives in Rome now")
    db.engine.now_us = lambda: (at + 20) * 10**6
    (step,) = alice.memory.consolidate(consolidator=contradicts).steps
    assert alice.memory.get(step.made).observed_at == at
    alice.memory.update(step.made, importance=0.9)
    (settled,) = alice.memory.consolidate(consolidator=contradicts).steps
    assert (settled.action, settled.memories) == ("supersede", (rome.id, step.made))
    assert alice.memory.get(step.made).valid_to == at + 10
    assert [each.text for each in alice.memory.list(status="active")] == ["Lives in Rome now"]
    assert db.check() == []


@pytest.mark.parametrize("span", [{"valid_from": 2_000_000_000.0}, {"valid_to": 999_999_999.0}])
def test_what_does_not_hold_now_contradicts_nothing(db, alice, span: dict[str, float]) -> None:
    db.engine.now_us = lambda: 1_000_000_000 * 10**6
    paris = said(alice, "a", "Lives in Paris")
    rome = said(alice, "b", "Lives in Rome", **span)
    assert alice.memory.consolidate(consolidator=contradicts).steps == ()
    if "valid_from" in span:
        db.engine.now_us = lambda: 2_000_000_001 * 10**6
        alice.memory.consolidate(consolidator=contradicts)
        assert alice.memory.get(paris.id).superseded_by == rome.id
        assert alice.memory.get(paris.id).valid_to == span["valid_from"]
    assert db.check() == []


@pytest.mark.parametrize(
    "step",
    [
        ("erase user", (1,), (1,)),
        ("supersede", (2,), (1,)),
        ("quarantine", (2,), (1,)),
        ("archive", (1, 2), (1, 1)),
        ("unite", (), ()),
        ("unite", (2,), (1,)),
        ("unite", (2, 2), (1, 1)),
        ("unite", (1, 2), (1,)),
        ("unite", (1, "2"), (1, 1)),
        ("unite", (1, 2.0), (1, 1)),
        ("unite", (1, 3), (1, 1)),
        ("unite", 1, 1),
        (["unite"], (1, 2), (1, 1)),
    ],
)
def test_a_step_that_no_plan_has_is_refused_and_not_audited(step: Any) -> None:
    with memcore.open(":memory:", audit=memcore.Audit(b"k" * 32)) as db:
        alice = db.scope(user="alice")
        said(alice, "a", "Likes the seat")
        said(alice, "b", "likes seats")
        said(alice, "c", "likes seats", kind="preference")
        plan = memcore.Consolidation(
            ConsolidationPolicy(), (memcore.ConsolidationStep(*step, reason="x"),)
        )
        with pytest.raises(InvalidOptionError):
            alice.memory.apply(plan)
        assert [each.version for each in alice.memory.list()] == [1, 1, 1]
        assert not [each for each in db.audit_entries(user="alice") if each.operation == "event"]


def test_what_faded_is_archived_but_never_an_operators_word(alice, db) -> None:
    db.engine.now_us = lambda: 1_000_000_000 * 10**6
    faded = said(alice, "a", "Saw a bird", kind="event", importance=0.4)
    kept = said(alice, "b", "Allergic to nuts", importance=1.0)
    alice.memory.remember("Speak softly", by="operator", kind="event", importance=0.0)
    db.engine.now_us = lambda: (1_000_000_000 + 90 * DAY) * 10**6
    assert alice.memory.consolidate().steps == ()
    (step,) = alice.memory.consolidate(ConsolidationPolicy(archive_below=1.2)).steps
    assert (step.action, step.memories) == ("archive", (faded.id,))
    assert alice.memory.get(faded.id).status == "archived"
    assert alice.memory.get(kept.id).status == "active"
    assert alice.memory.promote(faded.id, by="ann").status == "active"


def test_a_legal_hold_keeps_what_faded_in_place(alice, db) -> None:
    said(alice, "a", "Saw a bird", kind="event", importance=0.0)
    alice.hold(reason="case 1")
    (step,) = alice.memory.consolidate(ConsolidationPolicy(archive_below=2.0)).steps
    assert step.outcome == "held"


def test_a_step_is_left_out_if_a_memory_changed_since(alice) -> None:
    first = said(alice, "a", "Likes the seat")
    said(alice, "b", "likes seats")
    plan = alice.memory.consolidate(dry_run=True)
    alice.memory.update(first.id, importance=0.5)
    done = alice.memory.apply(plan)
    assert [step.outcome for step in done.steps] == ["changed"]
    assert done.done == 0
    assert alice.memory.consolidate().done == 1


def united(alice: Any) -> tuple[list[memcore.Memory], memcore.Memory]:
    olds = [
        said(alice, f"s{at}", text) for at, text in enumerate(("Likes the seat", "liked seats"))
    ]
    (step,) = alice.memory.consolidate().steps
    return olds, alice.memory.get(step.made)


def test_the_words_go_with_the_sources_of_whoever_said_them(db, alice) -> None:
    _, made = united(alice)
    assert made.text == "liked seats"
    alice.delete_session("s1")
    left = alice.memory.get(made.id)
    assert (left.text, left.status, left.support) == ("Likes the seat", "active", 1)
    assert all("liked seats" not in each.text for each in alice.memory.history(made.id))
    assert db.check() == []
    alice.delete_session("s0")
    assert {each.status for each in alice.memory.list(status="forgotten")} == {"forgotten"}
    assert alice.memory.list() == []
    assert db.check() == []


def test_forgetting_a_united_memory_forgets_what_it_was_made_of(db, alice) -> None:
    olds, made = united(alice)
    alice.memory.forget(made.id)
    assert alice.memory.list() == []
    assert [alice.memory.get(each.id).text for each in (*olds, made)] == ["", "", ""]
    alice.session("s2").append(user("Please note: Likes the seat"))
    again = alice.memory.remember("Likes the seat", source=Source("s2", seqs=(1,)))
    assert again.status == "forgotten"
    assert db.check() == []


def texts(alice: Any) -> list[str]:
    return sorted(each.text for each in alice.memory.list() if each.text)


@pytest.mark.parametrize("by", ["user", "operator"])
def test_a_correction_of_a_united_memory_stands_on_its_own_sources(db, alice, by: str) -> None:
    _, made = united(alice)
    if by == "user":
        alice.session("s2").append(user("I like to stand, no longer the seat"))
        source: Any = {"source": Source("s2", seqs=(1,))}
    else:
        source = {"by": "operator"}
    alice.memory.update(made.id, text="Likes to stand", **source)
    for session in ("s1", "s0"):
        alice.delete_session(session)
        left = alice.memory.get(made.id)
        cited = {each.session for each in left.sources}
        assert (left.text, left.status, left.by) == ("Likes to stand", "active", by)
        assert cited == ({"s2"} if by == "user" else set())
        assert db.check() == []
    assert texts(alice) == ["Likes to stand"]
    assert all("seat" not in each.text for each in alice.memory.history(made.id))


def test_a_correction_under_a_hold_outlives_the_members(db, alice) -> None:
    _, made = united(alice)
    held = alice.session("s2")
    held.append(user("I like to stand, no longer the seat"))
    alice.memory.update(made.id, text="Likes to stand", source=Source("s2", seqs=(1,)))
    held.hold(reason="case 7")
    alice.delete_session("s0")
    alice.delete_session("s1")
    assert alice.memory.get(made.id).text == "Likes to stand"
    assert db.check() == []


@pytest.mark.parametrize("by", ["user", "assistant", "operator"])
def test_what_others_say_too_outlives_the_members(db, alice, by: str) -> None:
    _, made = united(alice)
    if by == "operator":
        alice.memory.remember(made.text, by="operator")
    else:
        message = user(made.text) if by == "user" else {"role": by, "content": made.text}
        alice.session("s2").append(message)
        alice.memory.remember(made.text, source=Source("s2", seqs=(1,)))
    alice.delete_session("s0")
    alice.delete_session("s1")
    left = alice.memory.get(made.id)
    status = "quarantined" if by == "assistant" else "active"
    assert (left.text, left.by, left.status) == (made.text, by, status)
    assert db.check() == []
    if by != "operator":
        alice.delete_session("s2")
        assert texts(alice) == []
        assert db.check() == []


def test_a_weak_supporter_does_not_hold_words_that_a_stronger_one_no_longer_has(db, alice) -> None:
    _, made = united(alice)
    alice.session("s2").append({"role": "assistant", "content": made.text})
    alice.memory.remember(made.text, source=Source("s2", seqs=(1,)))
    alice.delete_session("s1")
    left = alice.memory.get(made.id)
    assert (left.text, left.by, left.status) == ("Likes the seat", "user", "active")
    alice.delete_session("s0")
    assert texts(alice) == []
    assert db.check() == []


def test_attributes_of_a_united_memory_go_with_those_who_said_them(db, alice) -> None:
    said(alice, "s0", "Likes the seat", attributes={"phones": ["111"], "n": 1}, importance=0.1)
    said(alice, "s1", "likes seats", attributes={"phones": ["222"], "n": 2}, importance=0.2)
    said(alice, "s2", "Liked a seat", attributes={"phones": ["333"], "n": 4}, importance=0.3)
    rules = {"phones": "union", "n": "sum"}
    (step,) = alice.memory.consolidate(ConsolidationPolicy(merge=rules)).steps
    made = alice.memory.get(step.made)
    assert (sorted(made.attributes["phones"]), made.attributes["n"]) == (["111", "222", "333"], 7)
    alice.memory.update(made.id, expires_at=4_000_000_000.0)
    alice.delete_session("s0")
    for each in (alice.memory.get(made.id), *alice.memory.history(made.id)):
        assert (each.text, sorted(each.attributes["phones"])) == (made.text, ["222", "333"])
        assert (each.attributes["n"], each.importance) == (6, 0.3)
    alice.delete_session("s2")
    left = alice.memory.get(made.id)
    assert (left.text, left.attributes) == ("likes seats", {"phones": ["222"], "n": 2})
    assert left.importance == 0.2
    assert db.check() == []


def test_attributes_of_its_own_stay_when_the_words_change(db, alice) -> None:
    _, made = united(alice)
    alice.session("s2").append(user("12 seats"))
    alice.memory.update(made.id, attributes={"seats": 12}, source=Source("s2", seqs=(1,)))
    alice.delete_session("s1")
    left = alice.memory.get(made.id)
    assert (left.text, left.attributes) == ("Likes the seat", {"seats": 12})
    alice.delete_session("s0")
    assert alice.memory.get(made.id).status == "forgotten"
    assert db.check() == []


@pytest.mark.parametrize("change", ["support", "correct", "travel"])
def test_forgetting_reaches_the_members_whatever_became_of_the_union(
    db, alice, open_db, tmp_path, change: str
) -> None:
    olds, made = united(alice)
    if change == "support":
        alice.memory.remember(made.text, by="operator")
    elif change == "correct":
        alice.memory.update(made.id, text="Likes to stand", by="operator")
    else:  # the session of one member stays behind, so the member waits in quarantine
        lines = [
            line for line in db.export(user="alice") if b'"s1"' not in line or b'"entry"' in line
        ]
        db = open_db(path=tmp_path / "b")
        db.import_(lines)
        alice = db.scope(user="alice")
        assert alice.memory.get(olds[1].id).status == "quarantined"
    alice.memory.forget(made.id)
    assert texts(alice) == []
    assert alice.memory.search("seat", statuses=None) == []
    assert db.check() == []


def test_a_member_that_is_promoted_stands_for_itself(db, alice, open_db, tmp_path) -> None:
    olds, made = united(alice)
    lines = [line for line in db.export(user="alice") if b'"s1"' not in line or b'"entry"' in line]
    other = open_db(path=tmp_path / "b")
    other.import_(lines)
    memory = other.scope(user="alice").memory
    left = memory.promote(olds[1].id, by="ann")
    assert (left.status, left.superseded_by) == ("active", None)
    memory.forget(made.id)
    assert memory.get(left.id).text == olds[1].text
    assert other.check() == []


@pytest.mark.parametrize(
    "change",
    [
        (b'"text","attributes"', b'"status","attributes"'),
        (b'"merger":[[1,2],{}', b'"merger":[[1,"2"],{}'),
        (b'"merger":[[1,2],{}', b'"merger":[[1,2],{"n":1}'),
        (b'"merger":[[1,2],{}', b'"merger":[[1,2],[[1,"sum"]]'),
    ],
)
def test_an_origin_that_no_export_writes_is_refused(
    db, alice, open_db, tmp_path, change: tuple[bytes, bytes]
) -> None:
    _, made = united(alice)
    old, new = change
    lines = [line.replace(old, new) for line in db.export(user="alice")]
    assert sum(new in line for line in lines) == 1
    other = open_db(path=tmp_path / "b")
    assert len(other.import_(lines).failures) == 1
    assert made.id not in {each.id for each in other.scope(user="alice").memory.list()}


def test_a_member_is_not_forgotten_alone(db, alice) -> None:
    olds, made = united(alice)
    with pytest.raises(InvalidOptionError, match=f"united memory, {made.id}"):
        alice.memory.forget(olds[1].id)
    alice.memory.forget(made.id)
    assert alice.memory.forget(olds[1].id).status == "forgotten"


def test_members_expire_with_the_union(db, alice) -> None:
    at = 1_000_000_000
    db.engine.now_us = lambda: at * 10**6
    olds, made = united(alice)
    alice.memory.update(made.id, expires_at=at + 10.0)
    assert {alice.memory.get(each.id).expires_at for each in olds} == {at + 10.0}
    assert db.check() == []
    db.engine.now_us = lambda: (at + 20) * 10**6
    assert db.sweep().memories == 3
    assert texts(alice) == []
    assert db.check() == []


def test_members_do_not_expire_before_the_union(db, alice) -> None:
    at = 1_000_000_000
    db.engine.now_us = lambda: at * 10**6
    for session, text in (("s0", "Likes the seat"), ("s1", "liked seats")):
        said(alice, session, text, expires_at=at + 10.0)
    (step,) = alice.memory.consolidate().steps
    said(alice, "s2", alice.memory.get(step.made).text)
    db.engine.now_us = lambda: (at + 20) * 10**6
    assert db.sweep().memories == 0
    alice.delete_session("s2")
    assert alice.memory.get(step.made).status == "active"
    assert db.check() == []


def test_a_damaged_member_does_not_keep_the_words() -> None:
    with memcore.open(":memory:") as db:
        alice = db.scope(user="alice")
        olds, made = united(alice)

        def damage(txn: Any) -> None:
            key = entry_at(names.scope_of(txn, "default", "alice"), olds[0].id)
            txn.put(key, txn.get(key)[:-3] + b"xxx")

        db.engine.store.transact(damage)
        alice.delete_session("s1")
        assert alice.memory.get(made.id).status == "forgotten"
        assert alice.memory.search("seat", statuses=None) == []
        assert all("checksum" in each for each in db.check())


def test_a_union_of_a_union_follows_the_first_members(db, alice) -> None:
    _, made = united(alice)
    said(alice, "s2", "Liked the seat")
    (step,) = alice.memory.consolidate().steps
    assert made.id in step.memories
    for session in ("s1", "s2"):
        alice.delete_session(session)
        assert db.check() == []
    assert alice.memory.get(step.made).text == "Likes the seat"
    alice.memory.forget(step.made)
    assert texts(alice) == []
    assert db.check() == []


def test_sources_beyond_the_limit_still_take_their_words_along(db, alice) -> None:
    for at in range(40):
        said(alice, f"one{at}", "Liked the seat")
        said(alice, f"other{at}", "likes seats") if at < 30 else None
    (step,) = alice.memory.consolidate().steps
    made = alice.memory.get(step.made)
    cited = {each.session for each in made.sources}
    assert (made.text, len(cited), "one0" in cited) == ("Liked the seat", 64, False)
    for at in reversed(range(40)):  # those that are cited first
        assert alice.memory.get(made.id).text == "Liked the seat"
        alice.delete_session(f"one{at}")
    left = alice.memory.get(made.id)
    assert (left.text, left.status) == ("likes seats", "active")
    assert db.check() == []


def test_united_memories_travel_and_survive_a_salvage(open_db, tmp_path) -> None:
    path = tmp_path / "a"
    db = open_db(path=path)
    alice = db.scope(user="alice")
    _, made = united(alice)
    lines = list(db.export(user="alice"))
    with memcore.open(":memory:") as other:
        other.import_(lines)
        found = other.scope(user="alice").memory.get(made.id)
        assert (found.text, found.derived_from, found.status) == (
            made.text, made.derived_from, "active",
        )  # fmt: skip
        assert other.check() == []
    db.close()
    memcore.salvage(path, tmp_path / "b")
    with memcore.open(tmp_path / "b") as saved:
        found = saved.scope(user="alice").memory.get(made.id)
        assert (found.text, found.derived_from) == (made.text, made.derived_from)
        assert saved.check() == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConsolidationPolicy(merge={"n": "median"}),
        lambda: ConsolidationPolicy(archive_below=float("nan")),
        lambda: ConsolidationPolicy(archive_below=-1),
        lambda: ConsolidationPolicy(half_life_days={"fact": 0}),
        lambda: ConsolidationPolicy(half_life_days={"dream": 3}),
        lambda: ConsolidationPolicy(pairs_max=-1),
        lambda: ConsolidationPolicy(merge=["n"]),
        lambda: ConsolidationPolicy(merge=None),
        lambda: ConsolidationPolicy(merge={"n": ["sum"]}),
        lambda: ConsolidationPolicy(half_life_days=["fact"]),
        lambda: ConsolidationPolicy(half_life_days={"fact": None}),
        lambda: ConsolidationPolicy(archive_below=True),
    ],
)
def test_a_policy_is_checked(make: Any) -> None:
    with pytest.raises(InvalidOptionError):
        make()


def test_bad_input_is_refused(alice, open_db, tmp_path) -> None:
    said(alice, "a", "Likes the red seat")
    said(alice, "b", "likes the green seat")
    for call in (
        lambda: alice.memory.consolidate({"merge": {}}),
        lambda: alice.memory.consolidate(consolidator=lambda *_: "maybe"),
        lambda: alice.memory.consolidate(consolidator=5),
        lambda: alice.memory.apply([]),
        lambda: alice.memory.apply(memcore.Consolidation(None, ())),
        lambda: alice.memory.apply(memcore.Consolidation(ConsolidationPolicy(), (1,))),
        lambda: alice.memory.consolidate(dry_run=1),
    ):
        with pytest.raises(InvalidOptionError):
            call()

    def fails(*_: Any) -> str:
        raise LookupError("no model")

    with pytest.raises(LookupError):
        alice.memory.consolidate(consolidator=fails)
    assert [each.version for each in alice.memory.list()] == [1, 1]
    plan = alice.memory.consolidate(consolidator=lambda *_: "same", dry_run=True)
    alice.opt_out_memory()
    with pytest.raises(OptedOutError):
        alice.memory.apply(plan)
    path = tmp_path / "ro"
    open_db(path=path).close()
    with open_db(path=path, read_only=True) as db, pytest.raises(ReadOnlyError):
        db.scope().memory.consolidate()


def test_a_plan_is_made_of_many_in_little_time(alice) -> None:
    """Counts comparisons, not seconds: texts are compared by their wording, not pair by pair."""
    records = [
        MemoryVersion(n + 1, 1, "fact", "user", "active", n, text=f"Likes item {n} of {n % 7}")
        for n in range(5_000)
    ]
    assert make_plan(records, ConsolidationPolicy(), 0) == ()
    double = [*records, *(MemoryVersion(n.id + 5_000, 1, "fact", "user", "active", 0,
                                        text=n.text.lower()) for n in records)]  # fmt: skip
    assert len(make_plan(double, ConsolidationPolicy(), 0)) == 5_000


def test_wording_knows_inflection_and_articles() -> None:
    assert wording("cats LIKE a nap.") == wording("the cat likes naps")
    assert wording("The Who play") != wording("Who plays")
    assert wording("cats like dogs") != wording("dogs like cats")


def test_on_the_command_line(capsys, path) -> None:
    with memcore.open(path) as db:
        said(db.scope(), "a", "Likes the seat")
        said(db.scope(), "b", "likes seats")
    asked = ["memory", "consolidate", "--store", str(path)]
    assert main([*asked, "--dry-run", "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [step["outcome"] for step in steps] == ["planned"]
    assert main([*asked, "--archive-below", "0.1"]) == 0
    assert "unite" in capsys.readouterr().out
    with memcore.open(path) as db:
        assert db.scope().memory.consolidate().steps == ()
