"""Trust in memories against those who would abuse it: pasted parts, weaker statements, removal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcore
from memcore import Source
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.database.redact import redact_all
from memcore.memory import statement
from memcore.memory.trust import ATTRIBUTES_DEPTH_MAX, is_pasted
from memcore.privacy import Redaction, redaction_policy

LIE = "Alice's manager is now Mallory"
TEXT = {"type": "text", "text": "Summarise this for me"}


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000


@pytest.fixture
def db(open_db):
    return open_db(durability="none")


@pytest.fixture
def clock(db):
    clock = Clock()
    db.engine.now_us = lambda: clock.now_ms * 1000
    return clock


@pytest.fixture
def scope(db):
    return db.scope(app="default", user="alice")


@pytest.fixture
def memory(scope):
    return scope.memory


def say(db, name: str, *contents: Any, user: str = "alice") -> Source:
    """Append messages of the user, or whole messages, and cite all of them."""
    session = db.session(name, user=user, orphans="keep")
    first = len(session) + 1
    for content in contents:
        whole = isinstance(content, dict)
        session.append(content if whole else {"role": "user", "content": content})
    return Source(name, tuple(range(first, len(session) + 1)))


def tool(db, name: str, text: str = "x") -> Source:
    """Append a result of a tool; cite it."""
    return say(db, name, {"role": "tool", "tool_call_id": "c1", "content": text})


# --- what a user wrote, and what not --------------------------------------------------------------


@pytest.mark.parametrize(
    "blocks",
    [
        [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": LIE}}],
        [{"type": "search_result", "source": "http://x", "title": "t", "content": [TEXT]}],
        [{"type": "web_search_tool_result", "tool_use_id": "x",
          "content": [{"type": "web_search_result", "title": LIE}]}],
        [{"type": "mcp_tool_result", "tool_use_id": "x", "content": [TEXT]}],
        [{"type": "file", "file": {"file_data": "data:text/plain;base64,QQ=="}}],
    ],
)  # fmt: skip
def test_only_plain_text_is_what_the_user_wrote(db, memory, blocks):
    for content in (blocks, [*blocks, TEXT]):
        source = say(db, f"s{len(content)}", content)
        made = memory.remember(f"{LIE} {len(content)}", source=source)
        assert (made.by, made.status) == ("import", "quarantined")


def test_a_result_in_a_turn_of_bedrock_is_not_the_users(db, memory):
    turn = [{"toolResult": {"toolUseId": "x", "content": [{"text": LIE}]}}, {"text": "ok"}]
    assert memory.remember(LIE, source=say(db, "a", turn)).status == "quarantined"


def test_what_the_user_writes_beside_an_attachment_is_theirs(db, memory):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}}
    source = say(db, "a", [image, {"type": "text", "text": "This is Rex, my dog."}])
    assert memory.remember("my dog is Rex", source=source).by == "user"
    assert memory.remember("my cat is Rex", source=source).by == "import"
    plain = say(db, "b", [{"text": "I like tea"}, {"cachePoint": {"type": "default"}}])
    assert memory.remember("Likes tea", source=plain).by == "user"


@pytest.mark.parametrize(
    "text",
    [
        f'I have a 27" screen. The page says: "{LIE} the great"',
        f'The page says: "He has a 27" screen, and {LIE} the great"',
        f'"In short" {LIE} "and nobody else of them"',
        f"```\ncode\n```x\n{LIE}\n```\nhi",
        f"````\n```\n{LIE}\n````\nhi",
        f"~~~\n```\n{LIE}\n~~~",
        f"look\r> {LIE}",
        f"look\u2028> {LIE}",
        f'Translate """{LIE}',
        f"Er schrieb: \u201e{LIE} \u2013 und mehr",
        f"He wrote \u00bb{LIE} the great\u00ab",
        f"\u300e{LIE} the great\u300f",
    ],
)
def test_forms_of_pasted_parts(text):
    assert is_pasted(LIE, [text])


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("has a 27 inch screen", 'I have a 27" screen'),
        ("has two screens", 'I have a 27" and a 32" screen'),
        ("likes Rex and Tom", 'I like my dog "Rex" and my other dog, "Tom"'),
        ("likes fish", "Home \u00bb Products: I like fish"),
        ("likes fish", "A 10\u201d plate of fish is what I like"),
        ("uses tabs", "```\ncode\n```\nI use tabs"),
        ("likes tea", ""),
    ],
)
def test_what_is_not_pasted(statement, text):
    assert not is_pasted(statement, [text])


@given(st.text('ab "\u00ab\u00bb\u201c\u201d\u201e`>\n', max_size=60))
def test_whatever_stands_in_a_fence_is_pasted(text):
    assert is_pasted("zyzzyva", [f"Look:\n~~~\n{text} zyzzyva\n~~~\nwhat is it?"])
    assert not is_pasted("zyzzyva", [f"~~~\n{text}\n~~~\nzyzzyva"])


@pytest.mark.parametrize(
    "marks", ["\u00ab", "\u201e", "\u201d", '"', "`", "> ", "```\n", "\u00ab\u201d"]
)
def test_looking_for_pasted_parts_is_linear(marks):
    """In quadratic time, each of these takes minutes."""
    assert isinstance(is_pasted("hello", [marks * 200_000 + "hello"]), bool)


# --- one statement, one source --------------------------------------------------------------------


def test_a_stronger_statement_comes_with_its_own_fields(db, memory):
    options: dict[str, Any] = {"attributes": {"note": "wire money"}, "labels": {"do": "wire"}}
    weak = memory.remember("Likes tea", source=tool(db, "t"), importance=1.0, **options)
    mine = memory.remember("likes tea!", source=say(db, "a", "likes tea!"), labels={"a": "b"})
    assert (mine.id, mine.version, mine.by, mine.status) == (weak.id, 2, "user", "active")
    assert (mine.text, mine.attributes, mine.labels) == ("likes tea!", {}, {"a": "b"})
    assert (mine.importance, mine.support) == (None, 2)
    assert memory.get(weak.id, version=1) == weak
    memory.remember("Likes milk", source=tool(db, "t", "y"), **options)
    stated = memory.remember("likes milk", by="operator", attributes={"mine": 1})
    assert (stated.by, stated.text, stated.attributes, stated.labels) == (
        "operator", "likes milk", {"mine": 1}, {},
    )  # fmt: skip


def test_what_a_removed_statement_said_goes_with_it(db, scope, memory):
    weak = memory.remember("Likes tea", source=tool(db, "t"), attributes={"of": "tool"})
    for name in "ab":
        memory.remember("likes tea!", source=say(db, name, "likes tea!"), attributes={"of": "user"})
    scope.delete_session("a")
    assert memory.get(weak.id).by == "user"
    scope.delete_session("b")
    left = memory.get(weak.id)
    assert (left.by, left.status, left.text) == ("tool", "quarantined", "Likes tea")
    assert [each.attributes for each in memory.history(weak.id)] == [{"of": "tool"}] * 2
    mine = memory.remember("Likes ice", source=say(db, "c", "Likes ice"), labels={"a": "b"})
    memory.remember("likes ice", source=tool(db, "t", "z"))
    scope.delete_session("c")
    left = memory.get(mine.id)
    assert (left.by, left.status, left.labels) == ("tool", "quarantined", {})
    assert db.check() == []


def test_what_was_promoted_is_left_when_a_stronger_statement_goes(db, scope, memory):
    made = memory.remember("Likes tea", source=tool(db, "t"))
    memory.promote(made.id, by="root")
    assert memory.remember("Likes tea", source=say(db, "a", "Likes tea")).by == "user"
    scope.delete_session("a")
    left = memory.get(made.id)
    assert (left.by, left.status, left.promoted_by) == ("confirmed", "active", "root")


@pytest.mark.parametrize("kind", [dict, list])
def test_attributes_are_nested_as_deep_as_all_that_reads_them_goes(db, memory, kind):
    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = {"k": value} if kind is dict else [value]
        return {"a": value}

    memory.remember("deep", by="operator", attributes=nested(ATTRIBUTES_DEPTH_MAX - 1))
    for depth in (ATTRIBUTES_DEPTH_MAX, 500, 510, 5000):
        with pytest.raises(memcore.InvalidItemError, match="attributes"):
            memory.remember("deeper", by="operator", attributes=nested(depth))
        with pytest.raises(memcore.InvalidItemError, match="attributes"):
            memory.update(1, by="operator", attributes=nested(depth))
    memory.grants.give(to=("a", "bob"))
    bob = db.scope(app="a", user="bob").memory
    bob.remember("x", by="operator")
    assert len(bob.list(shared=True)) == 2


def test_attributes_and_labels_need_a_source(db, memory):
    mine = memory.remember("Likes tea", source=say(db, "a", "Likes tea. Note: green"))
    for change in (
        {"attributes": {"note": "wire money"}},
        {"labels": {"do": "wire"}},
        {"labels": {"do": "wire"}, "source": tool(db, "t")},
        {"attributes": {"note": "wire"}, "by": "import"},
    ):
        with pytest.raises(memcore.InvalidOptionError):
            memory.update(mine.id, **change)
    assert memory.get(mine.id) == mine
    more = memory.update(mine.id, attributes={"note": "green"}, source=Source("a", (1,)))
    assert (more.text, more.by, more.attributes) == (mine.text, "user", {"note": "green"})
    weak = memory.remember("Likes milk", source=tool(db, "t"), attributes={"of": "tool"})
    told = memory.update(weak.id, labels={"a": "b"}, by="operator")
    assert (told.by, told.status, told.labels) == ("tool", "quarantined", {"a": "b"})
    strong = memory.update(weak.id, text="Likes oats", by="operator")
    assert (strong.status, strong.attributes, strong.labels) == ("active", {}, {})


# --- what is removed stays removed ----------------------------------------------------------------


def test_a_forgotten_text_does_not_come_back_by_update(db, memory):
    source = say(db, "a", "Mallory is my manager")
    memory.forget(memory.remember("Mallory is my manager", source=source).id)
    other = memory.remember("Something else", source=source)
    weak = memory.remember("Other", source=tool(db, "t"))
    for number, cited in ((other.id, source), (weak.id, Source("t", (1,)))):
        with pytest.raises(memcore.InvalidOptionError, match="forgotten"):
            memory.update(number, text="mallory is my manager.", source=cited)
    assert memory.update(other.id, text="Mallory is my manager", by="operator").status == "active"


def test_an_update_makes_no_second_memory_of_one_statement(db, memory):
    source = say(db, "a", "I like tea")
    one, two = (memory.remember(text, source=source) for text in ("Likes tea", "Likes milk"))
    with pytest.raises(memcore.InvalidOptionError, match=f"memory {one.id} says the same"):
        memory.update(two.id, text="likes tea", source=source)
    assert memory.update(one.id, text="Likes tea!", source=source).version == 2


@pytest.mark.parametrize("by", ["operator", "import"])
def test_a_statement_goes_with_its_only_source(db, scope, memory, by):
    made = memory.remember("Lives in Rome", source=say(db, "a", "> Lives in Rome"), by=by)
    scope.delete_session("a")
    assert (memory.get(made.id).status, memory.get(made.id).text) == ("forgotten", "")
    again = memory.remember("Lives in Rome", by=by)
    memory.remember("Lives in Rome", source=tool(db, "t"))
    scope.delete_session("t")
    assert (memory.get(again.id).text, memory.get(again.id).by) == ("Lives in Rome", by)
    assert db.check() == []


def test_many_sources_crowd_nobody_out(db, scope, memory):
    for n in range(64):
        memory.remember("Likes tea", source=tool(db, f"t{n}"))
    assert memory.remember("Likes tea", source=say(db, "u", "Likes tea")).status == "active"
    for n in range(66):
        made = memory.remember("Likes milk", source=say(db, f"m{n}", "Likes milk"))
    for n in range(64):
        scope.delete_session(f"m{n}")
    assert memory.get(made.id).sources == (Source("m64", (1,)), Source("m65", (1,)))


# --- legal holds ----------------------------------------------------------------------------------


def test_a_hold_keeps_earlier_versions(db, scope, memory):
    first = say(db, "held", "Likes tea")
    made = memory.remember("Likes tea", source=first)
    memory.update(made.id, text="Likes milk", source=say(db, "free", "Likes milk"))
    db.session("held", user="alice").hold(reason="a lawsuit")
    with pytest.raises(memcore.HeldError):
        memory.forget(made.id)
    scope.delete_session("free")
    (left,) = memory.history(made.id)
    assert (left.text, left.status, left.sources) == ("Likes tea", "archived", (first,))
    assert db.check() == []
    db.session("held", user="alice").release()
    scope.delete_session("held")
    assert memory.get(made.id).status == "forgotten"


def test_a_hold_covers_the_items_that_a_fork_cites(db, scope, memory):
    say(db, "parent", "Likes tea")
    parent = db.session("parent", user="alice")
    parent.fork("fork")
    made = memory.remember("Likes tea", source=Source("fork", (1,)))
    parent.hold(reason="a lawsuit")
    with pytest.raises(memcore.HeldError):
        memory.forget(made.id)
    scope.delete_session("fork")
    left = memory.get(made.id)
    assert (left.text, left.sources) == ("Likes tea", (Source("parent", (1,)),))
    assert db.check() == []
    parent.release()
    scope.delete_session("parent")
    assert memory.get(made.id).status == "forgotten"


# --- opting out, expiry, clocks -------------------------------------------------------------------


def test_a_retry_tells_nothing_while_opted_out_or_expired(scope, memory, clock):
    options = {"by": "operator", "expires_at": clock.now_ms / 1000 + 10, "idempotency_key": "k"}
    made = memory.remember("Likes tea", **options)
    scope.opt_out_memory()
    with pytest.raises(memcore.OptedOutError):
        memory.remember("Likes tea", **options)
    scope.opt_in_memory()
    assert memory.remember("Likes tea", **options) == made
    clock.now_ms += 20_000
    with pytest.raises(memcore.NotFoundError):
        memory.remember("Likes tea", **options)


def test_what_has_expired_does_not_change(memory, clock):
    soon = clock.now_ms / 1000 + 10
    good = memory.remember("good", by="operator", slot="s")
    weak = memory.remember("bad", by="import", slot="s", expires_at=soon)
    clock.now_ms += 10_000
    for change in (
        lambda: memory.update(weak.id, importance=0.5),
        lambda: memory.update(weak.id, text="x", by="operator"),
        lambda: memory.promote(weak.id, by="root"),
    ):
        with pytest.raises(memcore.NotFoundError):
            change()
    assert memory.list() == [good]
    with pytest.raises(memcore.InvalidOptionError, match="expires_at"):
        memory.update(good.id, expires_at=soon)


def test_the_last_statement_that_is_not_weaker_decides_on_the_expiry(db, memory, clock):
    soon = clock.now_ms / 1000 + 5
    memory.remember("plan", by="operator")
    assert memory.remember("plan", by="operator", expires_at=soon).expires_at == soon
    assert memory.remember("plan", source=tool(db, "t")).expires_at == soon
    assert memory.remember("plan", by="operator").expires_at is None
    clock.now_ms += 9_000
    assert [each.text for each in memory.list()] == ["plan"]


def test_a_clock_that_was_ahead_changes_no_answer(db, memory, clock):
    day = 86_400_000
    clock.now_ms += day
    memory.remember("a day ahead", by="operator")
    ahead = memory.remember("A", by="operator", slot="z")
    clock.now_ms -= day
    now = clock.now_ms / 1000
    soon = now + 3600
    made = memory.remember("operator's", by="operator", slot="s", expires_at=soon)
    mine = memory.remember("user's", source=say(db, "u", "user's"), slot="s")
    assert (memory.get(made.id).status, mine.status) == ("active", "quarantined")
    value = memory.remember("B", by="operator", slot="z")
    assert (value.status, memory.get(ahead.id).status) == ("active", "superseded")
    assert memory.list(slot="z", valid_at=now) == [value]
    assert memory.list(slot="z", as_of=now) == [value]
    same = [memory.remember("dup", by="operator", expires_at=soon).id for _ in range(2)]
    assert same[0] == same[1]
    assert db.check() == []


# --- slots ----------------------------------------------------------------------------------------


def test_a_value_that_waits_cannot_end_before_it_begins(db, memory, clock):
    memory.remember("good", by="operator", slot="s")
    weak = memory.remember("q", by="import", slot="s")
    clock.now_ms += 100_000
    with pytest.raises(memcore.InvalidOptionError, match="valid_to"):
        memory.update(weak.id, valid_to=clock.now_ms / 1000 - 50)
    done = memory.promote(weak.id, by="root")
    assert memory.list(slot="s", valid_at=clock.now_ms / 1000) == [done]
    assert db.check() == []


def test_what_is_promoted_becomes_the_value(db, memory, clock):
    now = clock.now_ms / 1000
    good = memory.remember("good", by="operator", slot="s")
    older = memory.remember("older", by="import", slot="s", valid_from=now - 100)
    over = memory.remember(
        "over", by="import", slot="s", valid_from=now - 100, valid_to=now - 50
    )  # fmt: skip
    clock.now_ms += 1000
    done = memory.promote(older.id, by="root")
    assert (done.status, done.valid_from) == ("active", now + 1)
    assert memory.get(good.id).superseded_by == older.id
    past = memory.promote(over.id, by="root")
    assert (past.status, past.valid_to) == ("superseded", now - 50)
    assert db.check() == []


def test_a_value_that_ended_is_said_again(db, memory, clock):
    now = clock.now_ms / 1000
    for slot in ("home", None):
        old = memory.remember("Rome", by="operator", slot=slot, valid_from=now, valid_to=now + 10)
        same = memory.remember("Rome", by="operator", slot=slot, valid_from=now, valid_to=now + 10)
        assert same.id == old.id
    clock.now_ms += 50_000
    for slot in ("home", None):
        new = memory.remember("Rome", source=say(db, "a", "Rome"), slot=slot)
        assert (new.status, new.valid_to) == ("active", None)
        assert new in memory.list(slot=slot, valid_at=clock.now_ms / 1000)
    assert db.check() == []


def test_a_new_value_reads_the_one_that_it_replaces(db, memory, monkeypatch):
    """Neither the past of a slot nor what waits there makes a new value dearer."""
    for n in range(20):
        memory.remember(f"v {n}", by="operator", slot="s")
    source = tool(db, "t")
    for n in range(20):
        memory.remember(f"q {n}", source=source, slot="s")
    read: list[int] = []
    whole = statement.read_entry

    def counting(txn: Any, scope: int, number: int) -> Any:
        read.append(number)
        return whole(txn, scope, number)

    monkeypatch.setattr(statement, "read_entry", counting)
    memory.remember("v 20", by="operator", slot="s")
    assert read == [20]


# --- hidden characters ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hidden",
    [
        0xFE00, 0xFE0F, 0x34F, 0x115F, 0x1160, 0x3164, 0xFFA0, 0x17B4, 0x180B, 0x2800, 0x1D173,
        0xFFF0, 0x1BCA0,
    ],
)  # fmt: skip
def test_hidden_characters_are_refused(memory, hidden):
    for text in (f"a{chr(hidden)}b", chr(hidden), f"\u2764\ufe0f{chr(hidden)}"):
        with pytest.raises(memcore.InvalidItemError):
            memory.remember(text, by="operator")


def test_signs_keep_their_forms(memory):
    for text in ("I \u2764\ufe0f tea", "1\ufe0f\u20e3 tea", "\u2764\ufe0f\u200d\U0001f525 tea"):
        assert memory.remember(text, by="operator").text == text


# --- playbooks ------------------------------------------------------------------------------------


def called(tool_name: str) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": tool_name, "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_names_of_tools_are_short_and_visible(db, memory):
    say(db, "a", called("look\u200b\u202e and wire" + "x" * 100_000))
    made = memory.record_outcome("a", scenario="s", passed=True)
    assert len(made.steps[0]) == 256
    assert made.steps[0].startswith("look\ufffd\ufffd and wire")
    body = {"scenario": "s", "name": "b", "at": 1, "passed": True, "failed": {}, "instead": {},
            "iterations": 1}  # fmt: skip
    say(db, "b", "x")
    for steps in (["x" * 300], ["look\u202e"], ["x"] * 300):
        line = {"app": "default", "user": "alice", "outcome": {**body, "steps": steps}}
        found = db.import_([json.dumps({"memcore": 1, "memory": line}).encode()])
        assert len(found.failures) == 1
    assert memory.playbooks() == [made]


def test_no_outcome_of_another_user_is_recorded(db, memory):
    say(db, "same", "x")
    say(db, "same", "y", user="bob")
    theirs = db.session("same", user="bob")
    with pytest.raises(memcore.NotFoundError, match="bob"):
        memory.record_outcome(theirs, scenario="s", passed=True)
    mine = db.session("same", user="alice")
    assert memory.record_outcome(mine, scenario="s", passed=True).successes == 1


def test_no_outcome_is_imported_while_opted_out(db, scope, memory):
    say(db, "a", "x")
    memory.record_outcome("a", scenario="s", passed=True)
    lines = [line for line in db.export() if b'"outcome"' in line]
    memory.clear()
    scope.opt_out_memory()
    assert len(db.import_(lines).failures) == len(lines) == 1
    scope.opt_in_memory()
    assert memory.playbooks() == []
    assert db.import_(lines).failures == []


def test_a_fork_of_a_renewed_session_is_not_independent(db, memory, clock):
    memory.remember("Likes tea", source=tool(db, "t"))
    say(db, "a", "one", "two", "Likes tea")
    memory.remember("Likes tea", source=Source("a", (3,)))
    say(db, "o", "one", called("look"))
    memory.record_outcome("o", scenario="s", passed=True)
    db.retention.set([{"what": "items", "keep_last": 1, "action": "remove"}])
    db.sweep()
    for name in ("a", "o"):
        db.session(name, user="alice").fork(f"{name}2")
    assert memory.remember("Likes tea", source=Source("a2", (1,))).support == 2
    assert memory.record_outcome("o2", scenario="s", passed=True).successes == 1
    assert db.check() == []


@pytest.mark.as_stored
def test_redaction_of_what_memory_keeps_beside_texts(db, memory):
    mail = "ann@example.com"
    say(db, "a", called(f"mail_{mail}"))
    memory.record_outcome("a", scenario="mail", passed=False, reason="down")
    memory.record_outcome("a", scenario=f"mail {mail}", passed=True)
    memory.remember("x", by="operator", subject=mail, slot=f"of {mail}")
    at = Redaction(redaction_policy("default"), secret=bytes(32)).for_place
    found = [each for each in redact_all(db.engine, at, write=True) if each.where == "memories"]
    assert (found[0].kept, found[0].rewritten) == (3, 2)
    assert all(mail not in step for each in memory.playbooks() for step in each.steps)
    assert all(mail not in each.step for book in memory.playbooks() for each in book.patches)
    assert db.check() == []


def test_who_promotes_is_redacted(open_db):
    memory = open_db(durability="none", redact="default").scope(app="a", user="alice").memory
    made = memory.promote(memory.remember("x", by="import").id, by="ann@example.com")
    assert "ann@example.com" not in made.promoted_by


def test_attributes_go_with_the_session_that_gave_them(db, scope, memory):
    first, second, third = (say(db, name, "Likes tea, green") for name in "abc")
    made = memory.remember("Likes tea", source=first, attributes={"cups": 3}, labels={"of": "a"})
    memory.remember("Likes tea", source=second, attributes={"cups": 5})
    memory.update(made.id, labels={"of": "c"}, source=third)
    scope.delete_session("a")
    left = memory.get(made.id)
    assert (left.text, left.attributes, left.labels) == ("Likes tea", {}, {"of": "c"})
    assert left.version > 2  # whoever holds the old version notices
    scope.delete_session("c")
    assert (memory.get(made.id).text, memory.get(made.id).labels) == ("Likes tea", {})
    scope.delete_session("b")
    assert memory.get(made.id).status == "forgotten"
    assert db.check() == []


def test_a_source_of_attributes_alone_does_not_hold_the_text(db, scope, memory):
    made = memory.remember("Likes tea", source=say(db, "a", "Likes tea"))
    memory.update(made.id, attributes={"cups": 3}, source=say(db, "b", "cups 3"))
    assert memory.get(made.id).support == 1
    memory.update(made.id, text="Loves tea", source=say(db, "c", "Loves tea"))
    scope.delete_session("b")
    assert memory.get(made.id).attributes == {}
    scope.delete_session("c")
    assert memory.get(made.id).status == "forgotten"


def test_what_an_operator_said_of_a_memory_stays_without_a_source(db, scope, memory):
    made = memory.remember("Likes tea", source=say(db, "a", "Likes tea"))
    memory.remember("Likes tea", source=say(db, "b", "Likes tea"))
    memory.update(made.id, attributes={"cups": 3}, by="operator")
    scope.delete_session("a")
    assert memory.get(made.id).attributes == {"cups": 3}
    assert db.check() == []


def test_sources_keep_what_they_hold_in_an_export(db, open_db, memory, tmp_path):
    made = memory.remember("Likes tea", source=say(db, "a", "Likes tea"), attributes={"cups": 3})
    memory.remember("Likes tea", source=say(db, "b", "Likes tea"))
    other = open_db(durability="none", path=tmp_path / "other.memcore")
    assert other.import_(db.export()).failures == []
    there = other.scope(app="default", user="alice")
    there.delete_session("a")
    assert [(each.text, each.attributes) for each in there.memory.list()] == [("Likes tea", {})]
    assert made.attributes == {"cups": 3}


def test_attributes_that_two_sessions_gave_alike_stay_with_one_of_them(db, scope, memory):
    first, second, third = (say(db, name, "Likes tea, 3 cups") for name in "abc")
    made = memory.remember("Likes tea", source=first, attributes={"cups": 3})
    memory.remember("Likes tea", source=second, attributes={"cups": 3})
    memory.update(made.id, attributes={"cups": 3}, source=third)
    for name in "ca":
        scope.delete_session(name)
        assert memory.get(made.id).attributes == {"cups": 3}
    scope.delete_session("b")
    assert memory.get(made.id).status == "forgotten"


def test_sources_of_attributes_do_not_crowd_out_that_of_the_text(db, scope, memory):
    made = memory.remember("Likes tea", source=say(db, "s0", "Likes tea"), labels={"of": "x"})
    for at in range(1, 65):
        memory.update(made.id, labels={"of": "x"}, source=say(db, f"s{at}", "of x"))
    memory.update(made.id, text="Likes green tea", source=say(db, "last", "Likes green tea"))
    assert db.check() == []
    scope.delete_session("last")
    assert memory.get(made.id).status == "forgotten"


def test_an_operators_text_stays_beside_attributes_of_a_user(db, open_db, memory, scope, tmp_path):
    made = memory.remember("Likes tea", source=say(db, "a", "Likes tea"), attributes={"cups": 3})
    memory.update(made.id, text="Likes green tea", by="operator")
    assert db.check() == []
    other = open_db(durability="none", path=tmp_path / "other.memcore")
    assert other.import_(db.export()).failures == []
    memory.remember("Likes green tea", source=say(db, "b", "Likes green tea"))
    scope.delete_session("b")
    scope.delete_session("a")
    left = memory.get(made.id)
    assert (left.text, left.status, left.attributes) == ("Likes green tea", "active", {})


def test_a_users_attributes_stay_when_only_a_tool_still_says_the_text(db, scope, memory):
    made = memory.remember("Likes tea", source=say(db, "a", "Likes tea"))
    memory.update(made.id, attributes={"cups": 3}, source=say(db, "b", "cups 3"))
    memory.remember("Likes tea", source=tool(db, "c"))
    scope.delete_session("a")
    left = memory.get(made.id)
    assert (left.by, left.status, left.attributes) == ("tool", "quarantined", {"cups": 3})
    scope.delete_session("b")
    assert memory.get(made.id).attributes == {}
    scope.delete_session("c")
    assert memory.get(made.id).status == "forgotten"
    assert db.check() == []


def test_an_import_cannot_say_that_a_text_rests_on_nothing(db, open_db, memory, tmp_path):
    memory.remember("Likes tea", source=say(db, "a", "Likes tea"), attributes={"cups": 3})
    lines = [bytes(line) for line in db.export()]
    cited = b'"seqs":[1]'
    assert sum(line.count(cited) for line in lines) == 1
    for at, holds in enumerate((b"0", b"2", b"6", b"8", b"-1", b'"1"')):
        other = open_db(durability="none", path=tmp_path / f"{at}.memcore")
        planted = [line.replace(cited, cited + b',"holds":' + holds) for line in lines]
        assert len(other.import_(planted).failures) == 1


def test_forks_of_forks_are_not_independent(db, memory):
    memory.remember("Likes tea", source=say(db, "a", "Likes tea"))
    line = db.session("a", user="alice")
    for number in range(3):
        line = line.fork(f"fork {number}")
        line.append({"role": "user", "content": "Likes tea"})
        seqs = tuple(range(1, len(line) + 1))
        assert memory.remember("Likes tea", source=Source(line.id, seqs)).support == 1
    assert memory.remember("Likes tea", source=say(db, "b", "Likes tea")).support == 2
    assert db.check() == []


@pytest.mark.as_stored
@pytest.mark.parametrize("damage", [None, b"\x01\x00damaged"])
def test_a_damaged_or_missing_item_supports_nothing(db, memory, damage):
    source = say(db, "a", "Likes tea", "Likes milk")
    key = keys.session_row(1, 1, Row.ITEM, 2)
    sound = db.engine.store.read(lambda txn: txn.get(key))
    spoil = (lambda txn: txn.delete(key)) if damage is None else lambda txn: txn.put(key, damage)
    db.engine.store.transact(spoil)
    with pytest.raises(memcore.CorruptValueError, match="missing" if damage is None else "damaged"):
        memory.remember("Likes milk", source=source)
    assert memory.list() == []
    made = memory.remember("Likes tea", source=Source("a", (1,)))
    assert (made.by, made.status) == ("user", "active")
    db.engine.store.transact(lambda txn: txn.put(key, sound))
