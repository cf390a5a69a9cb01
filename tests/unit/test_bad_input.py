"""Every line of the issue's "Bad input": a typed error that helps, nothing stored, nothing lost."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections import UserList
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import memcore
from memcore import limits
from memcore.wire import get_policy
from messages import result, turns, user

CIRCULAR: dict[str, Any] = {"role": "user"}
CIRCULAR["content"] = CIRCULAR
DEEP: list[Any] = []
for _ in range(600):
    DEEP = [DEEP]


@pytest.fixture
def full(session: memcore.Session) -> memcore.Session:
    """A session with something in it."""
    session.extend(turns(2))
    return session


@pytest.fixture(autouse=True)
def nothing_stored_nothing_lost(request: pytest.FixtureRequest):
    """After the test the database holds exactly what it held when the test began."""
    if "full" not in request.fixturenames:
        yield
        return
    session = request.getfixturevalue("full")
    db = request.getfixturevalue("db")
    before = (list(session), session.revision, db.stats()["entries"])
    yield
    assert (list(session), session.revision, db.stats()["entries"]) == before
    assert session.append(user("still works")).seq == 5


# --- items ----------------------------------------------------------------------------------------

BAD_ITEMS = {
    "None": None,
    "str": "hello",
    "bytes": b"hello",
    "int": 7,
    "list": [("role", "user")],
    "object": object(),
    "set": {"role": "user", "content": {1, 2}},
    "bytes inside": {"role": "user", "content": b"raw"},
    "datetime": {"role": "user", "content": datetime.now(UTC)},
    "NaN": {"role": "user", "content": float("nan")},
    "infinity deep": {"role": "user", "content": [{"x": [1, -float("inf")]}]},
    "key is int": {"role": "user", "content": {1: "a"}},
    "circular": CIRCULAR,
    "too deep": {"role": "user", "content": DEEP},
    "huge integer": {"role": "user", "content": 10**5_000},
}


@pytest.mark.parametrize("item", BAD_ITEMS.values(), ids=BAD_ITEMS)
def test_what_is_no_json_object_is_refused(full, item):
    with pytest.raises(memcore.InvalidItemError) as caught:
        full.append(item)
    assert len(str(caught.value)) > 10
    with pytest.raises(memcore.InvalidItemError):
        full.extend([user("good"), item])

    def batch() -> None:
        with full.batch() as changes:
            changes.undo()
            changes.append(item)

    with pytest.raises(memcore.InvalidItemError):
        batch()


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"role": "user", "content": {"a": [0, float("nan")]}}, ".content.a[1]"),
        ({"role": "user", "content": {"a": {b"k": 1}}}, ".content.a"),
        (user("x").items(), "dict_items"),
    ],
)
def test_the_error_says_where(full, item, words):
    with pytest.raises(memcore.InvalidItemError) as caught:
        full.append(item)
    assert words in str(caught.value)


@pytest.mark.parametrize("items", [None, 7, "text", b"x", {"role": "user"}], ids=repr)
def test_extend_takes_nothing_but_items(full, items):
    with pytest.raises(memcore.InvalidItemError):
        full.extend(items)
    with pytest.raises(memcore.InvalidItemError), full.batch() as batch:
        batch.extend(items)


def test_an_item_above_the_size_limit_is_refused(full):
    with pytest.raises(memcore.InvalidItemError) as caught:
        full.append(user("x" * limits.ITEM_BYTES_MAX))
    assert str(limits.ITEM_BYTES_MAX) in str(caught.value)


def test_an_item_with_too_many_calls_is_refused(full):
    calls = [{"id": f"c{n}"} for n in range(limits.CALLS_PER_ITEM_MAX + 1)]
    with pytest.raises(memcore.InvalidItemError):
        full.append({"role": "assistant", "tool_calls": calls})


def test_an_orphan_result_is_refused_by_id(full):
    with pytest.raises(memcore.OrphanResultError) as caught:
        full.extend([user(), result("call_lost")])
    assert (caught.value.call_id, caught.value.position) == ("call_lost", 1)
    assert "call_lost" in str(caught.value)
    for nameless in ({"role": "tool", "content": "x"}, {"role": "tool", "tool_call_id": None}):
        with pytest.raises(memcore.OrphanResultError):
            full.append(nameless)


@pytest.mark.parametrize("payload", [object(), float("inf"), {1: 2}, CIRCULAR])
def test_a_payload_that_is_no_json_is_refused(full, payload):
    with pytest.raises(memcore.InvalidItemError):
        full.record("note", payload)


@pytest.mark.parametrize("kind", [None, "", 7, b"note", "abandon"])
def test_a_type_that_is_no_text_or_reserved_is_refused(full, kind):
    with pytest.raises(memcore.InvalidOptionError):
        full.record(kind, 1)


# --- options of changes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"idempotency_key": 7},
        {"idempotency_key": b"k"},
        {"idempotency_key": ""},
        {"idempotency_key": "k" * (limits.IDEMPOTENCY_KEY_CHARS_MAX + 1)},
        {"expected_revision": "1"},
        {"expected_revision": -1},
        {"expected_revision": 1.0},
        {"expected_revision": True},
        {"request_id": 7},
        {"meta": [1]},
        {"meta": "x"},
    ],
    ids=str,
)
def test_wrong_options_are_refused_before_anything_is_stored(full, options):
    for change in (
        lambda: full.append(user(), **options),
        lambda: full.extend([user()], **options),
        lambda: full.record("note", 1, **options),
    ):
        with pytest.raises(memcore.InvalidOptionError) as caught:
            change()
        assert next(iter(options)) in str(caught.value)


@pytest.mark.parametrize("key", [7, "", b"k"])
def test_wrong_options_are_refused_also_without_items(full, key):
    with pytest.raises(memcore.InvalidOptionError):
        full.extend([], idempotency_key=key)


@pytest.mark.parametrize(
    "meta", [{"x": object()}, {"x": float("nan")}, {1: 2}, {"x": "y" * 70_000}]
)
def test_meta_that_is_no_json_or_too_large_is_refused(full, meta):
    with pytest.raises(memcore.InvalidItemError):
        full.append(user(), meta=meta)


def test_an_unknown_option_is_an_error(full, db, path):
    for attempt in (
        lambda: full.append(user(), idempotence="k"),
        lambda: full.context(budget=5),
        lambda: db.session("x", polices="anthropic"),
        lambda: memcore.open(path, durable=True),
    ):
        with pytest.raises(TypeError, match="unexpected keyword"):
            attempt()


@pytest.mark.parametrize("count", [0, -1, "1", 1.5, None, True], ids=repr)
def test_undo_takes_a_positive_count(full, count):
    with pytest.raises(memcore.InvalidOptionError):
        full.undo(count)
    with pytest.raises(memcore.InvalidOptionError), full.batch() as batch:
        batch.undo(count)


@pytest.mark.parametrize("seq", [-1, "1", 1.5, None, True], ids=repr)
def test_a_seq_is_a_non_negative_int(full, seq):
    for attempt in (full.get, full.items, lambda s: full.items(0, s or "x"), full.tail):
        with pytest.raises(memcore.InvalidOptionError):
            list(attempt(seq) or ())


@pytest.mark.parametrize("position", [-1, 1.5, True, b"x", [1]], ids=repr)
def test_a_position_is_a_seq_or_a_checkpoint(full, position):
    for attempt in (full.rewind, lambda at: full.fork("fork", at=at)):
        with pytest.raises(memcore.InvalidOptionError):
            attempt(position)
        with pytest.raises(memcore.NotFoundError, match="no checkpoint 'nowhere'"):
            attempt("nowhere")
    with pytest.raises(memcore.InvalidOptionError):
        full.rewind(None)


def test_what_is_not_there_is_named(full):
    for attempt in (
        lambda: full.rewind(99),
        lambda: full.get(99),
        lambda: full.fork("fork", at=99),
        lambda: full.find_call("nope"),
        lambda: full.abandon("nope"),
    ):
        with pytest.raises(memcore.NotFoundError) as caught:
            attempt()
        assert "99" in str(caught.value) or "nope" in str(caught.value)


# --- budgets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0, -1, 1.5, "100", True, float("nan")], ids=repr)
def test_a_budget_is_a_positive_int(full, budget):
    with pytest.raises(memcore.InvalidOptionError):
        full.context(budget)
    with pytest.raises(memcore.InvalidOptionError):
        memcore.fit(turns(1), budget)
    with pytest.raises(memcore.InvalidOptionError):
        full.compact(keep_tokens=budget)


@pytest.mark.parametrize("reserve", [-1, 1.5, None, "5", True], ids=repr)
def test_a_reserve_is_a_non_negative_int(full, reserve):
    with pytest.raises(memcore.InvalidOptionError):
        full.context(100, reserve_tokens=reserve)


def test_a_budget_too_small_says_what_is_needed(full):
    with pytest.raises(memcore.ContextOverflowError) as caught:
        full.context(3)
    assert caught.value.budget_tokens == 3
    assert full.context(caught.value.needed_tokens).messages == turns(2)[2:]
    with pytest.raises(memcore.ContextOverflowError):
        full.context(100, reserve_tokens=100)


# --- compaction -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"keep_last": -1},
        {"keep_last": "3"},
        {"keep_tokens": 0},
        {"keep_tokens": -5},
        {"summarize": 7},
        {"summarize": "a summary"},
    ],
    ids=str,
)
def test_compaction_options_are_checked_up_front(full, options):
    with pytest.raises(memcore.InvalidOptionError):
        full.compact(**options)


@pytest.mark.parametrize("value", [-1, 1.5, "x", True])
def test_a_policy_is_checked_when_it_is_made(value):
    for kind, name in (
        (memcore.Keep, "last_items"),
        (memcore.Keep, "last_turns"),
        (memcore.Keep, "tokens"),
        (memcore.Keep, "protect_open_items"),
        (memcore.Trigger, "items"),
        (memcore.Trigger, "tokens"),
        (memcore.SummaryStyle, "max_tokens"),
        (memcore.CompactionPolicy, "max_turns"),
    ):
        with pytest.raises(memcore.InvalidOptionError, match=name):
            kind(**{name: value})


# --- names and sessions ---------------------------------------------------------------------------

NAMES = (
    "\x00",
    "a\x00b",
    "x" * 5_000,
    "ü😀",
    "\ud800",
    " ",
    "..",
    "a/b",
    "\xff" * 600,
    "\U0010ffff",
)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_any_text_is_a_name(db, name):
    session = db.session(name, user=name, app=name)
    session.append(user("here"), request_id=name, idempotency_key=name[:4_096])
    assert [(e.session_id, e.user, e.app) for e in db.sessions()] == [(name,) * 3]
    assert db.session(name, user=name, app=name).get(1).request_id == name
    assert not db.session(name, user=name).exists()
    assert session.fork(name + "!").get(1).message == user("here")
    assert db.delete_session(name, user=name, app=name)


@pytest.mark.parametrize("name", ["", None, 7, b"chat", ["chat"]], ids=repr)
def test_what_is_no_text_is_no_name(full, db, name):
    for attempt in (
        lambda: db.session(name),
        lambda: db.session("chat", user=name),
        lambda: db.session("chat", app=name),
        lambda: db.scope(user=name),
        lambda: db.delete_session(name),
        lambda: full.fork(name),
        lambda: db.scope().kv(name),
    ):
        with pytest.raises(memcore.InvalidOptionError):
            attempt()


def test_long_names_that_differ_at_the_end_are_two(db):
    first, second = "x" * 5_000 + "1", "x" * 5_000 + "2"
    db.session(first).append(user("1"))
    db.session(second).append(user("2"))
    assert db.session(first).get(1).message == user("1")
    assert sorted(e.session_id for e in db.sessions()) == [first, second]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_any_text_is_a_call_id(session, name):
    session.extend([user(), {"role": "assistant", "tool_calls": [{"id": name}]}, result(name)])
    assert session.find_call(name).result_seqs == (3,)
    context = session.context()
    call, answer = context.messages[1]["tool_calls"][0]["id"], context.messages[2]["tool_call_id"]
    assert call == answer
    most = get_policy("openai_chat").id_chars_max
    assert call == name or (len(name) > most >= len(call))
    assert {repair.action for repair in context.repairs} == (set() if call == name else {"renamed"})


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "openai"},
        {"policy": 7},
        {"policy": ""},
        {"orphans": "drop"},
        {"orphans": None},
        {"counter": "words"},
        {"counter": 7},
        {"counter": "bytes/0"},
    ],
    ids=str,
)
def test_session_options_are_checked_up_front(full, db, options):
    with pytest.raises(memcore.InvalidOptionError) as caught:
        db.session("new", **options)
    assert next(iter(options)) in str(caught.value)


def test_a_session_that_must_exist_is_not_made(full, db):
    with pytest.raises(memcore.NotFoundError):
        db.session("new", create=False)
    for change in (lambda s: s.rewind(1), lambda s: s.fork("fork"), lambda s: s.abandon("c")):
        with pytest.raises(memcore.NotFoundError):
            change(db.session("new"))


def test_a_policy_is_checked_before_it_is_set(full):
    for policy in ("openai", None, 7):
        with pytest.raises(memcore.InvalidOptionError):
            full.set_policy(policy)
    with pytest.raises(memcore.InvalidOptionError):
        full.fork("fork", policy="openai")


# --- counters -------------------------------------------------------------------------------------


class Counts:
    exact = False

    def __init__(self, value: Any) -> None:
        self.id = "counts"
        self.value = value

    def count(self, _: str) -> Any:
        return self.value

    def count_message(self, *_: Any) -> Any:
        return self.value


@pytest.mark.parametrize("value", [-1, 2**40, 1.5, "7", None, float("nan")], ids=repr)
def test_a_counter_that_returns_nonsense_is_a_typed_error(full, db, value):
    with pytest.raises(memcore.InvalidOptionError):
        db.session("new", counter=Counts(value)).append(user())
    by_text = memcore.CallableCounter(lambda _: value, name="by-text")
    if value != 2**40:
        with pytest.raises(memcore.InvalidOptionError):
            db.session("new", counter=by_text).append(user())


@pytest.mark.parametrize("name", ["", "n" * 300, "\ud800", 7], ids=ascii)
def test_a_counter_has_a_short_name(full, db, name):
    with pytest.raises(memcore.InvalidOptionError):
        db.session("new", counter=memcore.CallableCounter(len, name=name)).append(user())


def test_an_error_of_the_counter_reaches_the_caller_and_stores_nothing(full, db):
    def broken(_: str) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        db.session("new", counter=memcore.CallableCounter(broken, name="broken")).append(user())


# --- lists ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("messages", [None, "text", {"role": "user"}, 7, (m for m in ()), [None]])
def test_the_functions_on_lists_take_lists_of_mappings(messages):
    for function in (memcore.validate, memcore.safe_cuts, memcore.fit):
        with pytest.raises(memcore.InvalidItemError):
            function(messages)


def test_the_functions_on_lists_take_any_sequence():
    assert memcore.fit(UserList(turns(1))).messages == turns(1)
    assert memcore.validate(tuple(turns(1))) == []


def test_fit_refuses_what_is_no_json():
    for bad in ({"role": "user", "content": float("nan")}, {"role": "user", "content": object()}):
        with pytest.raises(memcore.InvalidItemError):
            memcore.fit([bad])


def test_an_unknown_policy_is_refused_everywhere():
    for function in (memcore.validate, memcore.safe_cuts, memcore.fit):
        with pytest.raises(memcore.InvalidOptionError, match="openai_chat"):
            function([], policy="openai")


# --- closed and read-only -------------------------------------------------------------------------


def test_a_closed_database_says_so(open_db):
    db = open_db()
    session = db.session("chat")
    session.extend(turns(1))
    scope = db.scope()
    reading = session.items()
    db.close()
    db.close()
    for attempt in (
        lambda: session.append(user()),
        session.undo,
        session.context,
        lambda: next(reading),
        lambda: len(session),
        session.compact,
        lambda: session.fork("fork"),
        lambda: db.session("chat"),
        lambda: list(db.sessions()),
        lambda: db.delete_session("chat"),
        db.check,
        db.stats,
        db.flush,
        lambda: db.backup("nowhere"),
        lambda: list(scope.sessions()),
        lambda: scope.kv("n").get("k"),
    ):
        with pytest.raises(memcore.ClosedError):
            attempt()


def test_a_read_only_handle_reads_everything_and_writes_nothing(open_db, path):
    with open_db() as db:
        db.session("chat").extend(turns(6))
        db.session("chat").compact(lambda _: "s", force=True)
    before = path.read_bytes()
    with memcore.open(path, read_only=True) as db:
        session = db.session("chat")
        assert (len(session), session.context().summary) == (12, "s")
        assert db.check() == []
        for change in (
            lambda: session.append(user()),
            lambda: session.extend([]) and session.extend([user()]),
            lambda: session.record("note"),
            session.undo,
            lambda: session.rewind(1),
            lambda: session.fork("fork"),
            lambda: session.set_policy("seed"),
            lambda: session.compact(lambda _: "t", force=True),
            session.uncompact,
            lambda: db.delete_session("chat"),
            lambda: db.session("new").append(user("x" * 300_000)),
            lambda: db.scope().kv("n").put("k", 1),
        ):
            with pytest.raises(memcore.ReadOnlyError):
                change()
    assert path.read_bytes() == before


# --- files ----------------------------------------------------------------------------------------


def test_a_file_that_is_none_of_ours_is_refused_and_untouched(tmp_path: Path):
    text = tmp_path / "notes.txt"
    text.write_text("dear diary " * 5_000)
    for path in (tmp_path, text, tmp_path / "no" / "such" / "folder"):
        with pytest.raises(memcore.StorageError) as caught:
            memcore.open(path)
        assert str(path) in str(caught.value)
    assert text.read_text() == "dear diary " * 5_000


@pytest.mark.parametrize("path", [None, 7, "", ["a"]], ids=repr)
def test_what_is_no_path_is_refused(path):
    with pytest.raises(memcore.InvalidOptionError):
        memcore.open(path)


def test_a_path_with_nul_is_refused(tmp_path: Path):
    with pytest.raises(memcore.MemcoreError):
        memcore.open(f"{tmp_path}/a\x00b")


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "fast"},
        {"durability": "none"},
        {"durability": 7},
        {"read_only": "yes"},
        {"create": 1},
        {"map_bytes": 0},
        {"map_bytes": "1G"},
        {"map_bytes": 2**60},
        {"policy": "openai"},
        {"counter": "words"},
        {"compaction": {"keep_last": 3}},
        {"verify": None},
    ],
    ids=str,
)
def test_wrong_options_of_open_make_no_file(tmp_path: Path, options):
    with pytest.raises(memcore.InvalidOptionError):
        memcore.open(tmp_path / "new.memcore", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_not_made_when_it_must_not_be(tmp_path: Path):
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(memcore.MemcoreError, match=r"new\.memcore"):
            memcore.open(tmp_path / "new.memcore", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to read-only files")
def test_a_read_only_file_is_a_typed_error(open_db, path):
    open_db().close()
    path.chmod(stat.S_IRUSR)
    with pytest.raises(memcore.StoreAccessError):
        memcore.open(path)
    path.chmod(0o600)


def test_a_truncated_file_is_refused_before_it_is_mapped(open_db, path, tmp_path):
    with open_db() as db:
        db.session("chat").extend([user("x" * 3_000)] * 50)
    whole = path.read_bytes()
    for size in (1, 100, 4_096, 8_192, len(whole) // 2, len(whole) - 4_096):
        cut = tmp_path / f"cut-{size}"
        cut.write_bytes(whole[:size])
        code = (
            "import memcore, sys\ntry: memcore.open(sys.argv[1])\nexcept memcore.StorageError: pass"
        )
        assert subprocess.run([sys.executable, "-c", code, str(cut)], check=False).returncode == 0


def test_an_honest_file_is_never_taken_for_a_truncated_one(open_db, path):
    """LMDB does not write pages that one transaction takes and frees: the file may be short."""
    with open_db() as db:
        first = db.session("p")
        first.extend([user(str(n)) for n in range(40)])
        db.delete_session("p")
        first.extend([user("z" * 40_000 + str(n)) for n in range(40)])
        fork = first.fork("f", at=20)
        fork.append(user())
        below = fork.fork("g", at=10)
        below.append(user())
        below.fork("h", at=0).append(user())
        for name in "pfgh":
            db.delete_session(name)
            assert db.check() == []
    with memcore.open(path) as db:
        assert db.check() == []
        db.session("again").append(user())


def test_a_newer_format_is_refused_by_name(open_db, path):
    with open_db() as db:
        db.session("chat").append(user())
    raw = path.read_bytes()
    assert raw.count(b"memcore\x00") >= 1
    code = (
        "import memcore.limits as l, memcore.store.datafile as f, sys\n"
        "l.FORMAT_VERSION = f.FORMAT_VERSION = 99\nimport memcore\n"
        "memcore.open(sys.argv[1]).session('x').append({'role': 'user', 'content': 'x'})"
    )
    other = path.with_name("newer.memcore")
    subprocess.run([sys.executable, "-c", code, str(other)], check=True)
    with pytest.raises(memcore.StoreFormatError, match="99"):
        memcore.open(other)


@pytest.mark.parametrize(
    "call",
    [
        memcore.open,
        lambda path: memcore.open(":memory:").backup(path),
        lambda path: memcore.restore(path, "x"),
        lambda path: memcore.salvage("x", path),
        lambda path: memcore.copy_store(path, "x"),
    ],
)
@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", 7], ids=ascii)
def test_a_path_that_no_system_takes(call, path) -> None:
    with pytest.raises(memcore.InvalidOptionError, match="expected a"):
        call(path)
