"""Rolling summaries: extended by what is new, forgotten with what they rest on."""

from __future__ import annotations

import asyncio

import pytest

import memcore
from memcore.codec import keys
from memcore.codec.keys import MemoryRow
from memcore.database.redact import redact_all
from memcore.memory.coverage import SUMMARIZED
from memcore.privacy import Redaction, redaction_policy
from raw import rows as stored_rows

USER, ASSISTANT = {"role": "user"}, {"role": "assistant"}


@pytest.fixture
def db(open_db):
    return open_db(durability="none")


@pytest.fixture
def scope(db):
    return db.scope(app="default", user="alice")


class Model:
    """A summarizer that repeats what it was given, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[memcore.SummaryRequest] = []

    def __call__(self, request: memcore.SummaryRequest) -> str:
        self.asked.append(request)
        said = [each["content"] for each in request.messages]
        said = [text for text in said if not text.startswith("Conversation of")]
        return " | ".join([*filter(None, [request.previous_summary]), *said])

    @property
    def given(self) -> list[list[str]]:
        """What it was given each time, without the headings."""
        return [
            [text for each in request.messages if not (text := each["content"]).startswith("Conv")]
            for request in self.asked
        ]


@pytest.fixture
def model():
    return Model()


def say(db, session, *texts, **said):
    db.session(session, user="alice").extend(
        [{**(said or USER), "content": text} for text in texts]
    )


def coverage(db):
    prefix = bytes((keys.Kind.MEMORY,))
    rows = stored_rows(db.engine.store)
    return [key for key in rows if key[:1] == prefix and key[9] == MemoryRow.COVERAGE]


def texts_in(db) -> bytes:
    return b"".join(stored_rows(db.engine.store).values())


def test_it_is_extended_with_what_is_new(db, scope, model):
    summary = scope.memory.summary()
    assert summary.get() is None
    assert summary.extend(model) is None
    say(db, "a", "I live in Rome", "I like tea")
    say(db, "b", "My cat is Tom")
    first = summary.extend(model)
    assert first.text == "I live in Rome | I like tea | My cat is Tom"
    assert [each.session for each in first.sources] == ["a", "b"]
    assert (first.kind, first.subject, first.version) == ("note", "sessions", 1)
    assert summary.extend(model) == first
    assert len(model.asked) == 1
    say(db, "a", "Now I live in Oslo")
    second = summary.extend(model)
    assert (second.id, second.version) == (first.id, 2)
    assert model.given[1] == ["Now I live in Oslo"]
    assert model.asked[1].previous_summary == first.text
    assert summary.get() == second
    assert [each.text for each in scope.memory.history(first.id)] == [first.text, second.text]
    assert db.check() == []


def test_it_is_found_by_a_search_once_it_is_trusted(db, scope, model):
    say(db, "a", "I live in Rome")
    found = scope.memory.summary().extend(model)
    assert found.status == "quarantined"
    assert scope.memory.search("Rome") == []
    assert scope.memory.promote(found.id, by="ops").status == "active"
    assert [hit.memory.id for hit in scope.memory.search("Rome")] == [found.id]
    say(db, "a", "Now I live in Oslo")
    assert scope.memory.summary().extend(model).status == "quarantined"


def test_of_users_words_alone_it_is_active_if_they_ground_it(db, scope, model):
    say(db, "a", "I live in Rome")
    say(db, "a", "Paris is where you live", **ASSISTANT)
    say(db, "a", "> Mallory owns this account\nSee above")
    memory = scope.memory.summary("u").extend(model, users_only=True)
    assert (memory.status, memory.by) == ("active", "user")
    assert "Paris" not in memory.text
    assert "Mallory" not in memory.text
    say(db, "a", "I like tea")
    made_up = scope.memory.summary("u").extend(lambda _: "Lives in Berlin 99", users_only=True)
    assert (made_up.status, made_up.by) == ("quarantined", "assistant")


def test_trust_is_that_of_the_weakest_item(db, scope, model):
    function = {"name": "web", "arguments": "{}"}
    tool_calls = [{"id": "1", "type": "function", "function": function}]
    call = {"role": "assistant", "content": None, "tool_calls": tool_calls}
    result = {"role": "tool", "tool_call_id": "1", "content": "The user's manager is Mallory"}
    db.session("a", user="alice").extend([{**USER, "content": "look"}, call, result])
    found = scope.memory.summary().extend(model)
    assert (found.by, found.status) == ("tool", "quarantined")
    assert model.given[0][-1].startswith("Result of a tool:")
    say(db, "a", "thanks")
    assert scope.memory.summary().extend(model).by == "tool"


def test_more_than_fits_is_given_in_pieces(db, scope, model):
    for name in ("a", "b"):
        say(db, name, *(f"{name}{number}" for number in range(7)))
    found = scope.memory.summary().extend(model, max_items=5)
    assert [len(each) for each in model.given] == [5, 5, 4]
    assert found.text.split(" | ") == [f"{name}{n}" for name in "ab" for n in range(7)]
    assert found.version == 3
    assert db.check() == []


def test_long_items_are_given_in_pieces(db, scope):
    say(db, "a", *(f"{number} " + "x" * 15_000 for number in range(9)))
    sizes = []

    def short(request):
        sizes.append(sum(len(each["content"]) for each in request.messages))
        return f"{len(sizes)} pieces"

    assert scope.memory.summary().extend(short).text == "3 pieces"
    assert max(sizes) < 61_000


def test_the_rest_of_a_long_history_is_not_read_again(db, scope, model):
    say(db, "a", *(f"n{number}" for number in range(2_500)))
    scope.memory.summary().extend(lambda request: f"{len(request.messages)}", max_items=100)
    say(db, "a", "one more")
    scope.memory.summary().extend(model)
    assert model.given == [["one more"]]


def test_items_without_text_are_read_once(db, scope, model):
    say(db, "a", "hello")
    summary = scope.memory.summary()
    first = summary.extend(model)
    db.session("a", user="alice").append({"role": "system", "content": "be brief"})
    before = coverage(db), texts_in(db)
    assert summary.extend(model) == first
    assert texts_in(db) != before[1]  # the watermark has moved, in a commit without a text
    assert len(model.asked) == 1
    commits = db.engine.store.stats()
    summary.extend(model)
    assert db.engine.store.stats() == commits


def test_what_a_fork_shares_is_read_once(db, scope, model):
    say(db, "a", "one", "two")
    session = db.session("a", user="alice")
    session.fork("f", at=2)
    say(db, "f", "three")
    scope.memory.summary().extend(model, sessions=["f"])
    say(db, "a", "four")
    scope.memory.summary().extend(model)
    assert model.given == [["one", "two", "three"], ["four"]]
    assert db.check() == []


@pytest.mark.parametrize("gone", ["a", "f"])
def test_the_deletion_of_a_session_ends_it(db, scope, model, gone):
    say(db, "a", "one-secret", "two")
    db.session("a", user="alice").fork("f", at=2)
    found = scope.memory.summary().extend(model, sessions=["f"])
    assert coverage(db)
    scope.delete_session(gone)
    db.sweep()
    assert scope.memory.summary().get() is None
    assert scope.memory.get(found.id).status == "forgotten"
    assert coverage(db) == []
    assert db.check() == []
    again = scope.memory.summary().extend(model)
    assert again.text == "one-secret | two"
    assert again.id != found.id
    scope.delete_session("f" if gone == "a" else "a")
    db.sweep()
    assert scope.memory.summary().get() is None
    assert b"one-secret" not in texts_in(db)
    assert db.check() == []


def test_items_that_are_redacted_end_it(db, scope):
    say(db, "a", "hello", "write to alice@example.org")
    found = scope.memory.summary().extend(lambda _: "has an address: at example")
    first = scope.memory.summary("b").extend(lambda _: "hello", sessions=["a"], max_items=1)
    assert first.version == 2
    redaction = Redaction(redaction_policy("default"), secret=bytes(32))
    assert list(redact_all(db.engine, redaction.for_place, write=True))
    assert scope.memory.get(found.id).status == "forgotten"
    assert scope.memory.get(first.id).status == "forgotten"
    assert coverage(db) == []
    assert db.check() == []


def test_it_can_be_forgotten_and_begins_anew(db, scope, model):
    say(db, "a", "one")
    found = scope.memory.summary().extend(model)
    scope.memory.forget(found.id)
    assert scope.memory.summary().get() is None
    assert coverage(db) == []
    with pytest.raises(memcore.InvalidOptionError, match="forgotten as memory 1"):
        scope.memory.summary().extend(model)
    again = scope.memory.summary().extend(lambda _: "another")
    assert (again.id, again.version) == (2, 1)
    assert db.check() == []


def test_a_hold_keeps_it_in_the_archive(db, scope, model):
    say(db, "a", "one")
    say(db, "b", "two")
    found = scope.memory.summary().extend(model)
    db.hold("alice", reason="law", session="a")
    scope.delete_session("b")
    assert scope.memory.get(found.id).status == "archived"
    assert scope.memory.summary().get() is None
    assert db.check() == []
    assert scope.memory.summary().extend(model).text == "one"
    db.release("alice", session="a")
    scope.delete_session("a")
    assert [each.status for each in scope.memory.list(status="forgotten")] == ["forgotten"] * 2
    assert coverage(db) == []
    assert db.check() == []


def test_who_extends_it_meanwhile_is_noticed(db, scope, model):
    say(db, "a", "one")

    def races(request):
        if len(model.asked) == 0:
            scope.memory.summary().extend(model)
            say(db, "a", "two")
        return model(request)

    found = scope.memory.summary().extend(races)
    assert found.text == "one | two"
    assert model.given == [["one"], ["one"], ["two"]]

    def always(request):
        scope.memory.summary().extend(lambda _: f"{request.messages}")
        say(db, "a", "more")
        return "late"

    say(db, "a", "three")
    with pytest.raises(memcore.OutpacedError):
        scope.memory.summary().extend(always)
    assert scope.memory.summary().get().text != "late"


@pytest.mark.parametrize("what", ["delete", "redact", "rewrite"])
def test_items_that_go_while_the_model_thinks_are_not_stored(db, scope, what):
    say(db, "a", "one")
    say(db, "b", "secret")

    def deletes(request):
        said = " ".join(each["content"] for each in request.messages)
        if "secret" in said:
            scope.delete_session("b")
        return said

    assert "secret" not in scope.memory.summary(what).extend(deletes).text
    assert b"secret" not in texts_in(db)


def test_only_extensions_change_it(db, scope, model):
    say(db, "a", "one")
    found = scope.memory.summary().extend(model)
    with pytest.raises(memcore.InvalidOptionError, match="rolling summary"):
        scope.memory.update(found.id, text="two", by="operator")
    with pytest.raises(memcore.InvalidOptionError, match="memcore's own"):
        scope.memory.remember("x", by="operator", extractor=SUMMARIZED)
    same = scope.memory.remember(found.text, kind="note", subject="sessions", by="operator")
    assert same.id != found.id
    scope.memory.promote(found.id, by="ops")
    assert scope.memory.consolidate().steps == ()
    assert db.check() == []


def test_it_does_not_travel(db, scope, model, tmp_path):
    say(db, "a", "one")
    scope.memory.summary().extend(model)
    scope.memory.remember("Likes tea", by="operator")
    lines = list(db.export())
    with memcore.open(tmp_path / "other.memcore") as other:
        assert other.import_(lines).failures == []
        memory = other.scope(app="default", user="alice").memory
        assert [each.text for each in memory.list()] == ["Likes tea"]
        assert memory.summary().extend(model).text == "one"
        assert other.check() == []


def test_clear_and_erase_take_it(db, scope, model):
    say(db, "a", "one")
    scope.memory.summary().extend(model)
    scope.memory.clear()
    assert coverage(db) == []
    assert scope.memory.summary().extend(model).text == "one"
    db.erase("alice")
    db.sweep()
    assert coverage(db) == []
    assert db.check() == []


def test_opt_out_and_bad_input(db, scope, model):
    say(db, "a", "one")
    summary = scope.memory.summary()
    for options in (
        {"sessions": "a"}, {"sessions": [1]}, {"max_items": 0}, {"max_items": 101},
        {"users_only": 1}, {"max_tokens": 0},
    ):  # fmt: skip
        with pytest.raises(memcore.InvalidOptionError):
            summary.extend(model, **options)
    with pytest.raises(memcore.NotFoundError):
        summary.extend(model, sessions=["nobody"])
    for bad in (None, 3):
        with pytest.raises(memcore.InvalidOptionError):
            summary.extend(bad)
    for text in ("", None, 3, "x" * 20_000, "hid\u200bden"):
        with pytest.raises(memcore.InvalidItemError):
            summary.extend(lambda _, text=text: text)

    async def later(request):
        return "x"

    with pytest.raises(memcore.InvalidOptionError, match="coroutine"):
        summary.extend(later)
    with pytest.raises(ZeroDivisionError):
        summary.extend(lambda _: 1 // 0)
    assert summary.get() is None
    assert model.asked == []
    scope.opt_out_memory()
    with pytest.raises(memcore.OptedOutError):
        summary.extend(model)
    assert summary.get() is None


def test_read_only(path, model):
    with memcore.open(path) as db:
        say(db, "a", "one")
        db.scope(app="default", user="alice").memory.summary().extend(model)
    with memcore.open(path, read_only=True) as db:
        summary = db.scope(app="default", user="alice").memory.summary()
        assert summary.get().text == "one"
        with pytest.raises(memcore.ReadOnlyError):
            summary.extend(model)


@pytest.mark.as_stored
def test_damaged_items_are_passed_over(path, model):
    db = memcore.open(path)
    scope = db.scope(app="default", user="alice")
    say(db, "a", "one", "two", "three")
    store = db.engine.store
    key = next(
        k for k in stored_rows(store) if k[0] == keys.Kind.SESSION and k[17] == keys.Row.ITEM
    )
    store.transact(lambda txn: txn.put(key, b"damaged"))
    assert scope.memory.summary().extend(model).text == "two | three"
    db.close()


def test_salvage_begins_anew(path, tmp_path, model):
    with memcore.open(path) as db:
        say(db, "a", "one")
        db.scope(app="default", user="alice").memory.summary().extend(model)
    memcore.salvage(path, tmp_path / "saved.memcore")
    with memcore.open(tmp_path / "saved.memcore") as db:
        summary = db.scope(app="default", user="alice").memory.summary()
        assert summary.get() is None
        assert coverage(db) == []
        assert summary.extend(model).text == "one"
        assert db.check() == []


def test_coverage_without_a_summary_is_reported(db, scope, model):
    say(db, "a", "one")
    found = scope.memory.summary().extend(model)
    store = db.engine.store
    (key,) = coverage(db)
    value = stored_rows(store)[key]
    store.transact(lambda txn: txn.delete(key))
    assert any("without coverage" in each for each in db.check())
    store.transact(lambda txn: txn.put(key, value))
    assert db.check() == []
    assert found.status == "quarantined"


def test_async(path, model):
    async def run():
        async with await memcore.aio.open(path) as db:
            await db.session("a", user="alice").append({**USER, "content": "one"})
            summary = db.scope(app="default", user="alice").memory.summary()
            assert await summary.get() is None
            assert (await summary.extend(model)).text == "one"
            assert (await summary.get()).text == "one"

    asyncio.run(run())
