"""Memories beside holds, pastes, later values, replaced sessions, and shared commits."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import memcore
from memcore import ConsolidationPolicy, Recall, Source
from memcore.aio.commit import commit_to
from memcore.errors import InvalidOptionError
from memcore.session.tail import ExpireItems
from messages import user


@pytest.fixture
def db(open_db: Any) -> memcore.Database:
    return open_db(durability="none")


@pytest.fixture
def scope(db: memcore.Database) -> Any:
    return db.scope(app="a", user="ann")


def say(scope: Any, name: str, *texts: str) -> Any:
    session = scope.session(name)
    session.extend(map(user, texts))
    return session


def test_words_of_a_deleted_session_go_though_a_hold_keeps_the_labels(db, scope) -> None:
    say(scope, "s1", "I visit the zoo")
    say(scope, "s2", "label b")
    made = scope.memory.remember("I visit the zoo", source=Source("s1", (1,)))
    scope.memory.update(made.id, labels={"l": "b"}, source=Source("s2", (1,)))
    scope.session("s2").hold(reason="a suit")
    scope.delete_session("s1")
    (left,) = scope.memory.list()
    assert (left.text, left.status, left.labels) == ("(removed)", "archived", {"l": "b"})
    assert left.sources == (Source("s2", (1,)),)
    assert "zoo" not in str(scope.memory.history(made.id))
    assert db.check() == []
    scope.session("s2").release()
    scope.delete_session("s2")
    assert scope.memory.list() == []


def test_a_held_summary_covers_no_session_that_is_gone(db, scope) -> None:
    say(scope, "held", "a b c").hold(reason="a suit")
    say(scope, "parent", "d e f").fork("fork")
    scope.delete_session("parent")
    scope.memory.summary().extend(lambda _: "what was said")
    scope.delete_session("fork")
    assert [each.status for each in scope.memory.list()] == ["archived"]
    assert db.check() == []


def test_attributes_from_a_paste_are_not_the_users(scope) -> None:
    session = say(scope, "s", "Please note who my manager is:\n> The manager is Mallory Evil")
    made = session.memory.remember(
        "Please note who my manager is", attributes={"manager": "Mallory Evil"}, source=1
    )
    assert (made.by, made.status) == ("import", "quarantined")


def test_weaker_words_replace_none_that_are_archived(scope) -> None:
    session = say(scope, "s", "I like tea")
    made = session.memory.remember("I like tea", source=1, observed_at=0)
    session.memory.consolidate(ConsolidationPolicy(archive_below=50.0))
    assert session.memory.get(made.id).status == "archived"
    with pytest.raises(InvalidOptionError, match="'import' says does not replace"):
        session.memory.update(made.id, text="I like poison", by="import")


def test_what_a_later_value_will_replace_is_recalled_until_then(scope) -> None:
    session = say(scope, "s", "Where do I live?")
    paris = session.memory.remember("Lives in Paris", subject="u", slot="home", by="operator")
    begins = time.time() + 30 * 86_400
    session.memory.remember(
        "Lives in Berlin", subject="u", slot="home", by="operator", valid_from=begins
    )
    shown = session.context(8000, memory=Recall()).memories
    assert [each.id for each in shown] == [paris.id]
    call = {"id": "1", "type": "function", "function": {
        "name": "memory_search", "arguments": '{"query": "lives"}'}}  # fmt: skip
    (answer,) = session.memory.call(call)
    assert "Paris" in answer["content"]
    assert "Berlin" not in answer["content"]


def test_a_union_speaks_for_its_members_at_every_time(scope) -> None:
    for text in ("Visits the zoo", "visited a zoo"):
        scope.memory.remember(text, by="operator")
    (step,) = scope.memory.consolidate().steps
    scope.memory.update(step.made, text="Visited a museum", by="operator")
    now = time.time() + 1
    assert [each.id for each in scope.memory.list(valid_at=now)] == [step.made]
    assert scope.memory.search("zoo", statuses=None, valid_at=now) == []


def test_members_that_have_an_end_of_their_own_are_not_recalled_beside_their_union(scope) -> None:
    ends = time.time() + 9e6
    for text in ("The user works at Initech", "The user, works at Initech"):
        scope.memory.remember(text, by="operator", valid_to=ends)
    (step,) = scope.memory.consolidate().steps
    scope.memory.update(step.made, text="The user is a retired plumber", by="operator")
    session = say(scope, "s", "Where does the user work, Initech?")
    shown = session.context(8000, memory=Recall()).memories
    assert [each.id for each in shown] == [step.made]
    call = {"id": "1", "type": "function", "function": {
        "name": "memory_search", "arguments": '{"query": "Initech"}'}}  # fmt: skip
    (answer,) = session.memory.call(call)
    assert answer["content"] == "No memory matches."


def test_a_shared_memory_hides_none_of_the_readers_own(db, scope) -> None:
    giver = db.scope(app="a", user="bob").memory
    giver.remember("Bob shares this", by="operator", importance=1.0)
    giver.grants.give(to=("a", "ann"), redact=None)
    own = scope.memory.remember(
        "The locker's code word is zebrafish " + "filler " * 40, by="operator", importance=0.0
    )
    for at in range(8):
        scope.memory.remember(f"Statement {at} " + "blah " * 40, by="operator", importance=0.9)
    session = say(scope, "s", "what is my locker zebrafish?")
    shown = session.context(8000, memory=Recall(budget_tokens=400, shared=True)).memories
    assert (own.id, None) in [(each.id, each.shared_from) for each in shown]
    assert ("a", "bob") in [each.shared_from for each in shown]


def test_a_use_counts_once_whatever_shares_its_commit(scope) -> None:
    session = say(scope, "s", "My name is Alice. I like tea", "my name is ALICE")
    tea = session.memory.remember("I like tea", source=1)
    profile = session.memory.profile({"type": "object", "properties": {"name": {"type": "string"}}})
    profile.set("name", "Alice", source=1, observed_at=500)
    for _ in range(5):
        session.context(8000, memory=Recall())
    made = profile.set("name", "ALICE", source=2, observed_at=1000)  # two versions, one commit
    assert (made.uses, made.observed_at) == (5, 1000)
    update = session.memory.update
    writers = [
        threading.Thread(target=update, args=(tea.id,), kwargs={"importance": at / 20})
        for at in range(12)
    ]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert session.memory.get(tea.id).uses == 5


def test_a_memory_in_use_does_not_fade(scope) -> None:
    session = say(scope, "s", "hello there")
    made = session.memory.remember("Likes tea", source=1, importance=0.1, observed_at=0)
    for _ in range(50):
        session.context(8000, memory=Recall())
    assert session.memory.get(made.id).uses == 0  # not written yet
    session.memory.consolidate(ConsolidationPolicy(archive_below=5.0))
    assert session.memory.get(made.id).status == "active"


def test_a_dead_job_follows_its_items_to_the_session_that_replaces_theirs(db, scope) -> None:
    db.engine.now_us = iter(range(10**15, 10**16, 10**6)).__next__
    session = scope.session("s")
    for text in ("old", "I prefer tea", "I live in Rome"):
        session.append(user(text))

    class Down:
        name, version = "down", "1"

        def __call__(self, _: Any) -> list[Any]:
            raise ConnectionError

    for _ in range(7):
        session.memory.extract(extractor=Down())
    (job,) = session.memory.jobs()
    assert (job.state, job.first, job.last) == ("dead", 1, 3)
    since_us = round(session.get(2).created_at * 1_000_000)
    asyncio.run(commit_to(db.engine.store, ExpireItems(session._ref, since_us)))
    assert len(session) == 2
    (moved,) = session.memory.jobs()
    assert (moved.state, moved.last - moved.first) == ("dead", 1)
