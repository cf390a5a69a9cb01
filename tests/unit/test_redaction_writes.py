"""What is stored of every feature of the core while a policy is on: nothing that was planted."""

import asyncio
import io
import json
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, TypedDict

import lmdb
import pytest
from click.testing import CliRunner

import memcore
from memcore import aio
from memcore.cli.app import app
from memcore.codec.keys import Kind, Row
from memcore.codec.values import seal_value
from memcore.database.redact import redact_all, sessions_in
from memcore.errors import CorruptValueError, NotFoundError, StorageError
from memcore.log import Head
from memcore.privacy import Redaction, RedactionPolicy, redaction_policy
from memcore.rows.head import head_key
from memcore.rows.names import scope_of
from memcore.session import rewrite as rewriting
from memcore.telemetry import Sink
from planting import Planted

MAIL = "alice@example.com"
ID = "call_13912345678"  # holds what looks like a mobile number, and is an id


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def _open(folder, name="a.memcore", **options):
    options.setdefault("redact", "default")
    return memcore.open(folder / name, **options)


def _chat(plant):
    return [
        {"role": "user", "content": plant()},
        {"role": "assistant", "content": plant(), "tool_calls": [{
            "id": ID, "type": "function",
            "function": {"name": "find", "arguments": json.dumps({"q": plant(), "n": 1})},
        }]},
        {"role": "tool", "tool_call_id": ID, "content": json.dumps({"rows": [plant(), plant()]})},
        {"role": "assistant", "content": [{"type": "text", "text": plant()}]},
    ]  # fmt: skip


def _responses(plant):
    return [
        {"role": "user", "content": [{"type": "input_text", "text": plant()}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": plant()}]},
        {"type": "function_call", "id": "fc_1", "call_id": ID, "name": "find",
         "arguments": json.dumps({"q": plant()})},
        {"type": "function_call_output", "call_id": ID, "output": plant()},
    ]  # fmt: skip


def _anthropic(plant):
    return [
        {"role": "user", "content": plant()},
        {"role": "assistant", "content": [
            {"type": "text", "text": plant()},
            {"type": "tool_use", "id": ID, "name": "find", "input": {"q": plant()}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": ID, "content": [
                {"type": "text", "text": plant()}]}]},
    ]  # fmt: skip


def _gemini(plant):
    return [
        {"role": "user", "parts": [{"text": plant()}]},
        {"role": "model", "parts": [
            {"functionCall": {"id": ID, "name": "find", "args": {"q": plant()}}}]},
        {"role": "user", "parts": [
            {"functionResponse": {"id": ID, "name": "find", "response": {"r": plant()}}}]},
    ]  # fmt: skip


HISTORIES = {
    "openai_chat": _chat,
    "openai_responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}


class Fields(TypedDict):
    notes: Annotated[list, lambda old, new: (old or []) + new]
    first: Any
    mail: Any
    deep: Any
    z: Any


def _sessions(db, plant, folder):
    for policy, make in HISTORIES.items():
        session = db.session(f"s-{policy}", user="u", policy=policy)
        for _ in range(12):
            session.extend(make(plant), meta={"note": plant(), "tags": [plant()]})
        session.record("planner", {"steps": [plant(), {"why": plant()}]})
        with session.batch() as batch:
            batch.append(make(plant)[0])
            batch.record("reflection", plant())
            batch.update_state({"b": plant()})
            batch.checkpoint(plant(), meta={"m": plant()})
        session.checkpoint(plant(), meta={"why": {"deep": [plant()]}})
        session.fork(f"f-{policy}").append(make(plant)[0])
        assert not memcore.validate(session.context().messages, policy=policy)
    session.append({"role": "user", "parts": [{"text": plant.many(400)}]})  # a blob beside its row
    session.append({"role": "user", "parts": [{"text": "x" * 250_000 + plant.many(9)}]})  # staged


def _states(db, plant, folder):
    session = db.session("state", user="u", state=Fields)
    session.begin({"first": plant(), "user:first": plant(), "app:first": {"a": plant()}})
    session.state.update({"mail": plant(), "notes": [plant()], "user:x": {"y": [plant()]}})
    session.state.update({"notes": [plant(), plant()]})
    session.state.update({"deep": memcore.Merge({"a": {"b": plant()}, "c": plant()})})
    session.state.update({"deep": memcore.Merge({"a": {"d": plant()}, "c": memcore.Delete})})
    session.apply(memcore.Command(update={"z": plant()}, messages=_chat(plant)[:1]))
    scope = db.scope(app="default", user="u")
    scope.state.update({"own": plant()})
    scope.app_state.put("all", [plant()])
    for _ in range(40):
        session.state.put("mail", plant())


def _maps(db, plant, folder):
    scope = db.scope(app="default", user="u")
    kv = scope.kv("notes")
    for at in range(40):
        kv.put(f"k{at}", {"text": plant(), "list": [plant()]}, content=plant().encode())
    kv.put("bytes", plant().encode())
    kv.put("large", 1, content=plant.many(6).encode() + b" " * 300_000)
    kv.put_many({"a": plant(), "b": (plant(), plant())})
    kv.transact(lambda txn: txn.put("t", plant(), content=plant().encode()))
    ref = kv.stage(plant().encode() + b" " * 300_000)
    kv.transact(lambda txn: txn.put("staged", 0, content=ref))
    assert plant.values.isdisjoint(kv.content("k1").split())
    for _ in range(40):
        scope.blobs.put(plant().encode())
    scope.blobs.put(io.BytesIO(plant.many(2000).encode()))
    scope.blobs.put(_Pipe(plant.many(40).encode() + b"." * 300_000))


class _Pipe:
    """A file that cannot seek."""

    def __init__(self, content):
        self._file = io.BytesIO(content)

    def read(self, size):
        return self._file.read(size)


def _compactions(db, plant, folder):
    def repeats(request):
        said = json.dumps(list(request.messages), ensure_ascii=False)
        return f"{plant()} {said[:80]} {request.previous_summary or ''} {plant()}"

    session = db.session("compacted", user="u")
    for _ in range(3):
        for _ in range(20):
            session.append({"role": "user", "content": plant() + " and so on" * 60})
            session.append({"role": "assistant", "content": plant()})
        assert session.compact(summarize=repeats, keep_last=4).status == "summarized"
    assert not memcore.validate(session.context().messages, policy="openai_chat")

    def fails(request):
        raise ValueError(plant())

    for _ in range(20):
        session.append({"role": "user", "content": plant() + " and so on" * 60})
    assert session.compact(summarize=fails, keep_last=4).status != "summarized"


def _imports(db, plant, folder):
    other = folder / "elsewhere"
    other.mkdir()
    with memcore.open(other / "clear.memcore") as clear:
        for make in (_sessions, _states, _compactions):
            make(clear, plant, other)
        lines = b"".join(clear.export()).splitlines()
    done = db.import_(lines, rename=lambda title: replace(title, app="imported"))
    assert not done.failures
    assert done.sessions > 5


def _awaited(db, plant, folder):
    async def work():
        session = aio.AsyncDatabase(db).session("async", user="u")
        await session.extend(_chat(plant))
        await session.record("error", {"text": plant()})
        await session.state.update({"a": plant()})
        scope = aio.AsyncDatabase(db).scope(user="u")
        kv = scope.kv("async")
        await kv.put("a", plant(), content=plant().encode())
        await kv.put_many({"b": plant()})
        await kv.transact(lambda txn: txn.put("c", plant()))
        await scope.blobs.put(plant().encode())

    asyncio.run(work())


FEATURES = (_sessions, _states, _maps, _compactions, _imports, _awaited)


def test_nothing_that_was_planted_is_in_any_file(folder):
    store = folder / "store"
    store.mkdir()
    plant = Planted()
    with _open(store) as db:
        for feature in FEATURES:
            feature(db, plant, folder)
            assert not plant.found_in(store), feature.__name__
        assert len(plant.values) >= 2_000
        assert not db.check()
    assert not plant.found_in(store)


def test_ids_stay_and_placeholders_are_stable(folder):
    with _open(folder) as db:
        session = db.session("s", user="u")
        receipt = session.extend(_chat(Planted()))
        assert receipt.appended == 4
        assert session.find_call(ID).result_seqs == (3,)
        session.append({"role": "user", "content": f"{MAIL}, {MAIL}"}, idempotency_key="k")
        again = session.append({"role": "user", "content": f"{MAIL}, {MAIL}"}, idempotency_key="k")
        assert again.seq == 5
        (item,) = session.tail(1)
        first, second = item.message["content"].split(", ")
        assert first == second
        assert item.envelope.redacted
        kept = first
    with _open(folder) as db:
        item = db.session("s", user="u").append({"role": "user", "content": MAIL})
        assert db.session("s", user="u").get(item.seq).message["content"] == kept
        db.session("other", user="u").append({"role": "user", "content": MAIL})
        assert db.session("other", user="u").get(1).message["content"] != kept


def test_what_callers_gave_is_not_changed_and_clean_items_say_that_they_are(folder):
    given = {"role": "user", "content": [{"type": "text", "text": MAIL}]}
    meta = {"m": [MAIL]}
    with _open(folder) as db:
        session = db.session("s")
        session.append(given, meta=meta)
        session.append({"role": "user", "content": "clean"})
        assert given["content"][0]["text"] == MAIL
        assert meta == {"m": [MAIL]}
        assert session.get(2).envelope == memcore.Envelope(redacted=False)


def test_the_secret_is_a_file_of_its_own(folder):
    with _open(folder) as db:
        db.session("s").append({"role": "user", "content": MAIL})
    path = folder / "a.memcore.secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = path.read_bytes()
    assert len(secret) == 32
    assert secret not in (folder / "a.memcore").read_bytes()
    path.write_bytes(b"short")
    with pytest.raises(StorageError, match="secret"):
        _open(folder)
    path.unlink()
    with _open(folder, read_only=True) as db:  # nothing is stored: nothing needs it
        assert len(list(db.session("s").items())) == 1
        with pytest.raises(NotFoundError, match="secret"):
            list(db.session("s").items(redact="default"))
    assert not path.exists()


def test_redaction_on_the_way_out(folder):
    with memcore.open(folder / "a.memcore") as db:
        session = db.session("s", user="u")
        session.extend(_chat(plant := Planted()), meta={"m": MAIL})
        session.checkpoint("cp", meta={"m": MAIL})
        session.state.put("m", MAIL)
        db.scope(app="default", user="u").state.put("m", MAIL)
        shown = [
            str(session.context(redact="default")),
            str(list(session.items(redact=True))),
            str(session.tail(9, redact={"preset": "default"})),
            b"".join(db.export(redact="default")).decode(),
            b"".join(db.export("s", format="openai-chat", left_out=str, redact=True)).decode(),
        ]
        for text in shown:
            assert ID in text
            assert MAIL not in text
            assert not any(value.decode() in text for value in plant.values)
        clear = session.context().messages
        assert not memcore.validate(session.context(redact=True).messages, policy="openai_chat")
        assert session.context(redact=False).messages == clear
        asynchronous = aio.AsyncDatabase(db).session("s", user="u")
        assert MAIL not in str(asyncio.run(asynchronous.tail(9, redact=True)))
        with _open(folder, "b.memcore") as other:
            done = other.import_(b"".join(db.export(redact="default")).splitlines())
            assert not done.failures
            assert other.session("s", user="u").context().messages == (
                session.context(redact="default").messages
            )


def test_a_policy_that_names_unknown_classes_opens_nothing(folder):
    for policy in ("strange", {"classes": ["nothing"]}, 7):
        with pytest.raises(memcore.InvalidOptionError):
            _open(folder, redact=policy)
    assert not os.listdir(folder)
    with _open(folder, redact=None) as db:
        assert db.engine.write_filter is None
    assert not (folder / "a.memcore.secret").exists()


def test_logs_hold_no_content(folder, caplog):
    with _open(folder) as db:
        session = db.session("s")
        for _ in range(30):
            session.append({"role": "user", "content": "word " * 60})

        def fails(request):
            raise ValueError(MAIL)

        result = session.compact(summarize=fails, keep_last=2)
        assert MAIL not in caplog.text
        assert all(MAIL not in str(view.reason) for view in session.views())
        assert result.status != "summarized"


def test_memcore_redact_counts_and_rewrites(folder, capsys):
    from memcore.cli import main

    path = folder / "a.memcore"
    with memcore.open(path) as db:
        session = db.session("s", user="u")
        session.extend(_chat(Planted()), meta={"m": MAIL})
        for _ in range(20):
            session.append({"role": "user", "content": f"{MAIL} " * 30})
        session.compact(summarize=lambda request: f"of {MAIL}", keep_last=3)
        session.fork("f").append({"role": "user", "content": MAIL})
        db.scope(app="default", user="u").kv("n").put("k", {"m": MAIL}, content=MAIL.encode())

    def run(*args):
        return main(["redact", "--store", str(path), *args]), capsys.readouterr().out

    before = path.read_bytes()
    code, out = run("--dry-run", "--json")
    assert code == 1
    assert path.read_bytes() == before
    found = {
        (each["session"], each["where"]): each["classes"] for each in json.loads(out)["findings"]
    }
    assert found["s", "items"]["email"] > 20
    assert found["s", "views"]["email"] == 1
    assert found["f", "items"] == {"email": 1}
    assert found[None, "kv"] == {"email": 2}
    assert MAIL not in out
    code, out = run("--yes")
    assert code == 0
    assert MAIL not in out
    with memcore.open(path) as db:
        assert not db.check()
        for name in ("s", "f"):
            session = db.session(name, user="u")
            assert MAIL not in str(list(session.items()) + session.views())
            assert not memcore.validate(session.context().messages, policy="openai_chat")
            assert session.find_call(ID).result_seqs == (3,)
        kv = db.scope(app="default", user="u").kv("n")
        assert kv.get("k")["m"].startswith("[EMAIL_")
        assert kv.content("k").startswith(b"[EMAIL_")
    code, out = run("--dry-run")
    assert code == 0
    assert run()[0] == 6


def test_what_is_said_of_an_item_that_is_too_large_is_redacted(tmp_path):
    """Its meta and its status are those that passed the filter, as are those of its parts."""
    path = tmp_path / "x.memcore"

    def told(text):
        return f"see {MAIL}"

    with memcore.open(path, redact=True, item_bytes=1000, oversize=told) as db:
        session = db.session("s")
        options = {"meta": {"who": MAIL}, "envelope": {"status": f"failed for {MAIL}"}}
        session.append({"role": "user", "content": "long " * 1000 + MAIL}, **options)
        session.record("x-event", {"text": "long " * 1000 + MAIL}, **options)
        session.append({"role": "user", "content": "short"}, **options)
        found = list(session.items())
    assert [item.envelope.redacted for item in found if item.envelope] == [True] * 3
    assert not [each.name for each in tmp_path.iterdir() if MAIL.encode() in each.read_bytes()]


def test_sinks_are_told_once_of_what_is_redacted(tmp_path):
    counts = []

    class Counts(Sink):
        def tell(self, record):
            pass

        def redacted(self, found, backend):
            counts.append(dict(found))

    with memcore.open(tmp_path / "x.memcore", redact=True, telemetry=Counts()) as db:
        session = db.session("s")
        session.append({"role": "user", "content": MAIL})
        session.append({"role": "user", "content": "nothing"})
        session.state.update({"who": [MAIL, MAIL]})
    assert counts == [{"email": 1}, {"email": 2}]


def test_an_encrypted_file_needs_no_other_secret(tmp_path):
    path, key = tmp_path / "x.memcore", b"k" * 32
    shown = []
    for _ in range(2):
        with memcore.open(path, redact=True, key=key) as db:
            session = db.session("s")
            session.append({"role": "user", "content": MAIL})
            shown.append(list(session.items())[-1].message)
            signed = db.receipt_key
    assert shown[0] == shown[1]
    assert not path.with_name("x.memcore.secret").exists()
    with memcore.open(path, read_only=True, key=key) as db:
        assert db.receipt_key == signed


def test_states_and_checkpoints_are_counted(tmp_path):
    path = tmp_path / "x.memcore"
    with memcore.open(path) as db:
        session = db.session("s")
        session.append({"role": "user", "content": "x"})
        session.state.update({"a": MAIL, "app:b": MAIL})
        session.checkpoint(f"for {MAIL}")
    told = CliRunner().invoke(app, ["redact", "--store", str(path), "--yes", "--json"])
    found = {each["where"]: each["classes"] for each in json.loads(told.stdout)["findings"]}
    assert found == {key: {"email": 1} for key in ("state", "app state", "checkpoints")}
    assert told.exit_code == 0
    assert MAIL.encode() not in _compacted(path)


def _compacted(path):
    with memcore.open(path) as db:
        assert db.check() == []
        db.copy_compact()
    return path.read_bytes()


@pytest.mark.parametrize("options", [{}, {"key": b"k" * 32, "audit": memcore.Audit(b"a" * 32)}])
def test_redacting_what_is_there_reaches_states_with_their_past_and_entries(folder, options):
    """Cut short anywhere, it goes on where it was."""
    path = folder / "a.memcore"
    plant = Planted()
    with memcore.open(path, **options) as db:
        session = db.session("s", user="u")
        for at in range(300):
            session.state.update({"a": plant(), f"f{at}": [plant(), at]})
        session.checkpoint(plant(), meta={"m": plant()})
        session.state.update({"user:x": plant(), "app:y": {"z": plant()}})
        session.fork("f").state.update({"a": plant()})
        kv = db.scope(user="u").kv("n")
        for at in range(300):
            kv.put(f"k{at}", {"m": plant()}, ttl_seconds=None if at % 2 else 3600)
        kv.put("bytes", plant().encode(), content=plant().encode())
        kv.put("large", 1, content=plant.many(9).encode() + b"x" * 300_000, ttl_seconds=3600)
        kv.put("same", 1, content=b"nothing in it")
        kv.put("of both", plant(), content=b"nothing in it")
        lasts = kv.expires("large")
        values = session.state.all()

        for stop in range(100, 2_000, 100):
            with suppress(_CutShort):
                list(_redacted(db, stop))
                break
            assert db.check() == []
        else:
            pytest.fail("it never came to an end")
        assert stop > 300
        assert not any(each.classes for each in _redacted(db))
        shown = session.state.all()
        assert shown.keys() == values.keys()
        assert shown["f7"][1] == 7
        assert not any(value.decode() in str(shown) for value in plant.values)
        assert kv.expires("large") == lasts
        assert len(kv.content("large")) > 300_000
        assert kv.content("same") == kv.content("of both") == b"nothing in it"
        kv.delete("same")
        assert kv.content("of both") == b"nothing in it"
        if options:
            assert db.verify_audit().ok
        assert db.check() == []
        db.copy_compact()
    assert not plant.found_in(folder)


class _CutShort(Exception):  # noqa: N818 - no mistake
    pass


class _Stopping:
    """A redactor that has had enough after so many values."""

    def __init__(self, redacts, left):
        self._redacts, self._left = redacts, left

    def value(self, value):
        self._count()
        return self._redacts.value(value)

    def counted_bytes(self, content, under=None):
        self._count()
        return self._redacts.counted_bytes(content, under)

    def _count(self):
        self._left[0] -= 1
        if not self._left[0]:
            raise _CutShort


def _redacted(db, stop=0):
    policy, left = Redaction(redaction_policy("default"), secret=b"s" * 32), [stop]

    def at(app, user, session):
        return _Stopping(policy.for_place(app, user, session), left)

    return redact_all(db.engine, at, user="u", write=True)


def test_views_are_rewritten_where_no_item_is(folder, capsys):
    from memcore.cli import main

    path = folder / "a.memcore"
    with memcore.open(path) as db:
        session = db.session("s", user="u")
        for _ in range(20):
            session.append({"role": "user", "content": "and so on " * 30})
        session.compact(summarize=lambda request: f"of {MAIL}", keep_last=3)
        assert MAIL in str(session.views())
    assert main(["redact", "--store", str(path), "--yes"]) == 0
    capsys.readouterr()
    with memcore.open(path) as db:
        session = db.session("s", user="u")
        assert "[EMAIL_" in session.views()[-1].summary
        assert MAIL not in str(session.context().messages)
        assert db.check() == []
    assert main(["redact", "--store", str(path), "--dry-run"]) == 0


def test_items_whose_names_hold_something_do_not_stop_a_redaction(folder, capsys):
    from memcore.cli import main

    path = folder / "a.memcore"
    with memcore.open(path) as db:
        session = db.session("s", user="u")
        session.record(f"of {MAIL}", {"why": MAIL})
        session.append({"role": "user", "content": MAIL})
    main(["redact", "--store", str(path), "--yes"])
    capsys.readouterr()
    with memcore.open(path) as db:
        event, item = db.session("s", user="u").items()
        assert event.message["payload"]["why"].startswith("[EMAIL_")
        assert item.message["content"].startswith("[EMAIL_")
        assert db.check() == []


# --- what is looked up by -------------------------------------------------------------------------

SEEN = f"of {MAIL}"


def _in_batch(session):
    with session.batch() as batch:
        batch.record(SEEN, {})


NAMED = {
    "event type": lambda db, s: s.record(SEEN, {}),
    "event type in a batch": lambda db, s: _in_batch(s),
    "request_id": lambda db, s: s.append({"role": "user", "content": "a"}, request_id=SEEN),
    **{
        f"envelope {name}": lambda db, s, name=name: s.append(
            {"role": "user", "content": "a"}, envelope={name: f"x-{MAIL}"}
        )
        for name in ("type", "request_id", "model", "tool", "author", "agent", "owner")
    },
    "lease": lambda db, s: s.lease(MAIL, ttl_seconds=9),
    "state": lambda db, s: s.state.update({MAIL: 1}),
    "state of a user": lambda db, s: db.scope(user="u").state.put(MAIL, 1),
    "key": lambda db, s: db.scope(user="u").kv("n").put(MAIL, 1),
    "key of many": lambda db, s: db.scope(user="u").kv("n").put_many({"a": 1, MAIL: 1}),
    "key in a transaction": lambda db, s: db.scope(user="u").kv("n").transact(
        lambda txn: txn.put(MAIL, 1)
    ),
    "counter": lambda db, s: db.scope(user="u").kv("n").increment(MAIL),
    "counter in a transaction": lambda db, s: db.scope(user="u").kv("n").transact(
        lambda txn: txn.increment(MAIL)
    ),
    "awaited counter": lambda db, s: asyncio.run(
        aio.AsyncDatabase(db).scope(user="u").kv("n").increment(MAIL)
    ),
    "namespace": lambda db, s: db.scope(user="u").kv(MAIL).put("a", 1),
}  # fmt: skip


@pytest.mark.parametrize("where", NAMED)
def test_what_is_looked_up_by_is_refused_if_something_is_found_in_it(folder, where):
    with _open(folder) as db:
        session = db.session("s", user="u")
        with pytest.raises(memcore.BlockedError, match="holds email") as told:
            NAMED[where](db, session)
        assert MAIL not in str(told.value)
        assert not list(session.items())
        db.scope(user="u").kv("n").delete(MAIL)  # what is there from before can be removed
    for name in os.listdir(folder):
        assert MAIL.encode() not in (folder / name).read_bytes()
    with memcore.open(folder / "clear.memcore") as db:
        NAMED[where](db, db.session("s", user="u"))


def test_a_key_inside_of_a_value_is_replaced(folder):
    with _open(folder) as db:
        session = db.session("s", user="u", state=Fields)
        session.state.update({"deep": memcore.Merge({MAIL: {MAIL: 1}, "a": {MAIL: 2}})})
        session.state.update({"deep": memcore.Merge({"a": {MAIL: 3}})})
        db.scope(user="u").kv("n").put("a", {MAIL: {MAIL: 1}})
        assert len(session.state.get("deep")) == 2
    for name in os.listdir(folder):
        assert MAIL.encode() not in (folder / name).read_bytes()


def _run_redact(path, *args):
    """Run the verb; what it does is what its dry run has said it would do."""
    said = None
    if "--yes" in args:
        said = _run_redact(path, "--dry-run", *(each for each in args if each != "--yes"))[1]
    told = CliRunner().invoke(app, ["redact", "--store", str(path), "--json", *args])
    found = {}
    for each in json.loads(told.stdout)["findings"]:
        found.setdefault((each["session"], each["where"]), []).append(each)
    assert said in (None, found)
    return told.exit_code, found


def _harm(path, kind, chosen):
    """Flip a bit in the rows of a kind that are chosen by key."""
    with lmdb.open(str(path), subdir=False) as env, env.begin(write=True) as txn:
        rows = [(k, v) for k, v in txn.cursor() if k[:1] == kind and chosen(k)]
        for key, value in rows:
            txn.put(key, value[:-1] + bytes((value[-1] ^ 1,)))
    return len(rows)


def test_what_is_held_is_not_redacted_and_said(folder):
    path = folder / "a.memcore"
    with memcore.open(path) as db:
        scope = db.scope(user="u")
        for name in ("free", "held", "parent"):
            session = scope.session(name)
            session.append({"role": "user", "content": MAIL})
            session.state.update({"a": MAIL})
            session.checkpoint(f"of {MAIL}")
        scope.session("held").hold(reason="case 7")
        session.fork("child").hold(reason="case 8")
        scope.kv("n").put("k", MAIL)
        other = db.scope(user="v")
        other.session("s").append({"role": "user", "content": MAIL})
        other.kv("n").put("k", MAIL)
        other.kv("n").put("large", 1, content=MAIL.encode() + b"x" * 300_000)
        other.hold(reason="case 9")
    code, found = _run_redact(path, "--yes")
    assert code == 1
    held = {key: sum(each["held"] for each in told) for key, told in found.items()}
    assert held == {
        ("free", "items"): 0, ("free", "state"): 0, ("free", "checkpoints"): 0,
        ("held", "items"): 1, ("held", "state"): 1, ("held", "checkpoints"): 1,
        ("parent", "items"): 1, ("parent", "state"): 0, ("parent", "checkpoints"): 0,
        ("child", "state"): 1, ("s", "items"): 1, (None, "kv"): 2,
    }  # fmt: skip
    with memcore.open(path) as db:
        assert db.check() == []
        scope = db.scope(user="u")
        texts = {name: scope.session(name).get(1).message["content"] for name in
                 ("free", "held", "parent", "child")}  # fmt: skip
        assert {name for name, text in texts.items() if text == MAIL} == {"held", "parent", "child"}
        assert scope.kv("n").get("k") != MAIL
        assert db.scope(user="v").kv("n").get("k") == MAIL
        scope.session("child").release()
    code, found = _run_redact(path, "--yes")
    assert found["parent", "items"][0]["rewritten"] == 1


@pytest.mark.parametrize("harmed", ["view", "head", "entry", "item", "state", "checkpoint"])
def test_one_damaged_row_does_not_stop_a_redaction(folder, harmed):
    path = folder / "a.memcore"
    with memcore.open(path) as db:
        scope = db.scope(user="u")
        for name in ("a", "b"):
            session = scope.session(name)
            for _ in range(20):
                session.append({"role": "user", "content": f"{MAIL} " * 30})
            session.compact(summarize=lambda request: f"of {MAIL}", keep_last=3)
            session.state.update({"x": MAIL})
            session.checkpoint(f"of {MAIL}")
        for key in ("a", "b"):
            scope.kv("n").put(key, MAIL)
    row = {"head": Row.HEAD, "view": Row.VIEW, "item": Row.ITEM, "state": Row.STATE,
           "checkpoint": Row.CHECKPOINT}.get(harmed)  # fmt: skip
    if row is None:
        assert _harm(path, b"\x0b", lambda key: b"a" in key[17:]) == 1
    else:
        assert _harm(path, b"\x05", lambda key: key[16:18] == bytes((1, row)))
    code, found = _run_redact(path, "--yes")
    assert code == 1
    with memcore.open(path) as db:
        kept = [e.message["content"] for e in db.session("b", user="u").items()]
        assert MAIL not in str(kept)
        assert MAIL not in str(db.session("b", user="u").views())
        assert db.scope(user="u").kv("n").get("b") != MAIL
    if harmed != "head":
        where = {"entry": "kv", "view": "views", "item": "items"}.get(harmed, harmed)
        where = "checkpoints" if harmed == "checkpoint" else where
        assert sum(e["unreadable"] for (_, at), told in found.items() for e in told if at == where)
    else:
        assert ("a", "items") in found


@pytest.mark.parametrize(
    ("kinds", "told", "left"),
    [
        ((Kind.SCOPE,), [("app", "u", 1)], []),
        ((Kind.SCOPE_NAME,), [("app", "u", 1)], []),
        ((Kind.SCOPE, Kind.SCOPE_NAME), [("", "", 2)], [("app", "u")]),
        ((Kind.SESSION_NAME,), [("app", "u", 2)], []),
        ((Kind.KV_NAMESPACE,), [("app", "u", 1)], []),
    ],
)
def test_damaged_names_do_not_stop_a_redaction(folder, kinds, told, left):
    """What a scope is called stands in two rows: one of them is enough."""
    path = folder / "a.memcore"
    users = [("app", "u"), ("app", "v"), ("other", "u")]
    with memcore.open(path) as db:
        for its_app, user in users:
            scope = db.scope(user=user, app=its_app)
            for name in ("a", "b"):
                session = scope.session(name)
                session.append({"role": "user", "content": f"{MAIL} of {its_app} {user}."})
                session.state.update({"app:x": MAIL, "user:y": f"{MAIL} of {its_app} {user}."})
            scope.kv("n").put("k", MAIL)
        number = db.engine.store.read(lambda txn: scope_of(txn, *users[0])).to_bytes(8, "big")

    def of_first(key):
        return key[1:9] == number or key == b"\x03app\x00u\x00"

    for kind in kinds:
        assert _harm(path, bytes((kind,)), of_first)
    code, found = _run_redact(path, "--yes")
    assert code == 1
    names = [(e["app"], e["user"], e["unreadable"]) for e in found[None, "names"]]
    assert names == told
    content = path.with_name("copy.memcore")
    shutil.copy(path, content)
    with lmdb.open(str(content), subdir=False) as env, env.begin() as txn:
        rows = b"".join(
            value for key, value in txn.cursor() if key[0] in (Kind.SESSION, Kind.STATE)
        )
    assert [each for each in users if f"{MAIL} of {' '.join(each)}.".encode() in rows] == left
    kept = sum(e["kept"] for e in found[None, "kv"])
    assert kept == (kinds == (Kind.KV_NAMESPACE,))  # it might be an adapter's
    assert _run_redact(path, "--yes")[1][None, "names"] == found[None, "names"]


def test_what_an_application_shares_is_told_once(folder):
    path = folder / "a.memcore"
    with memcore.open(path) as db:
        for user in ("u", "v", "w"):
            db.session("s", user=user).state.update({"app:x": MAIL, "user:y": MAIL})
        db.session("s", user="u", app="other").state.update({"app:x": MAIL, "y": 1})

    def told(*options):
        found = _run_redact(path, *options)[1]
        return [(e["app"], e["user"], e["classes"]["email"]) for e in found[None, "app state"]]

    of_all = [("default", "", 1), ("other", "", 1)]
    assert told("--dry-run") == of_all
    assert told("--dry-run", "--user", "u") == of_all
    assert told("--dry-run", "--user", "v") == [("default", "", 1)]
    assert told("--yes") == of_all
    assert _run_redact(path, "--dry-run") == (0, {})


def test_what_is_nested_as_deep_as_anything_is_redacted(folder):
    path = folder / "a.memcore"

    def nested(depth):
        value = [MAIL]
        for _ in range(depth - 1):
            value = [value]
        return value

    with memcore.open(path) as db:
        session = db.session("s", user="u")
        session.append({"role": "user", "content": "x", "deep": nested(511)})
        session.append({"role": "user", "content": MAIL}, meta={"deep": nested(500)})
        session.state.update({"deep": nested(512)})
        db.scope(user="u").kv("n").put("deep", nested(512))
    code, found = _run_redact(path, "--yes")
    assert code == 0
    assert {key: told[0]["rewritten"] for key, told in found.items()} == {
        ("s", "items"): 2, ("s", "state"): 1, (None, "kv"): 1,
    }  # fmt: skip
    assert MAIL.encode() not in _compacted(path)


def test_an_entry_that_would_become_too_large_is_told_and_the_rest_is_redacted(folder, monkeypatch):
    path = folder / "a.memcore"
    with memcore.open(path) as db:
        kv = db.scope(user="u").kv("n")
        kv.put("large", "a@b.co " * 20)
        kv.put("small", MAIL)
    monkeypatch.setattr("memcore.kv.rows.KV_VALUE_BYTES_MAX", 160)
    code, found = _run_redact(path, "--yes")
    assert code == 1
    assert [found[None, "kv"][0][name] for name in ("rewritten", "kept")] == [1, 1]


def test_contexts_keep_to_their_budget_after_a_redaction(folder):
    path = folder / "a.memcore"
    with memcore.open(path) as db:
        session = db.session("s", user="u")
        for at in range(40):
            session.append({"role": "user", "content": f"a@b{at}.co " * 20})
        tool = session.fork("f", at=30)
        tool.append({"role": "user", "content": "more"})
        plain = session.context(budget_tokens=2_000)
        assert len(plain.messages) > 5
    assert _run_redact(path, "--yes")[0] == 0
    for _ in range(2):
        with memcore.open(path) as db:
            for name in ("s", "f"):
                session = db.session(name, user="u")
                found = session.context(budget_tokens=2_000)
                told = memcore.count_messages(found.messages) - memcore.count_messages([])
                assert told <= found.tokens <= 2_000
                assert session.tokens == sum(item.tokens for item in session.items())
            assert db.check() == []
            size = path.stat().st_size
            revision = db.session("s", user="u").revision
        assert _run_redact(path, "--yes")[0] == 0  # and what is counted is not counted again
        with memcore.open(path) as db:
            assert (path.stat().st_size, db.session("s", user="u").revision) == (size, revision)


def test_a_dry_run_sees_the_past_of_states_and_what_expired(folder):
    path = folder / "a.memcore"
    with memcore.open(path) as db:
        session = db.session("s", user="u")
        session.append({"role": "user", "content": "x"})
        session.state.update({"a": MAIL})
        session.checkpoint("before")
        session.state.update({"a": "clean"})
        db.scope(user="u").kv("n").put("k", MAIL, ttl_seconds=0.001)
    code, found = _run_redact(path, "--dry-run")
    assert code == 1
    assert found["s", "state"][0]["classes"] == {"email": 1}
    assert found[None, "kv"][0]["classes"] == {"email": 1}
    assert _run_redact(path, "--yes")[0] == 0
    assert _run_redact(path, "--dry-run") == (0, {})


def test_a_dry_run_says_what_goes_along_with_items(folder):
    """Views of forks, memories that rest on two sessions, and sessions that nothing can count."""
    path = folder / "a.memcore"

    class Own:
        id = "own/1"

        def count(self, text):
            return len(text)

    with memcore.open(path) as db:
        scope = db.scope(user="u")
        first, second = scope.session("a"), scope.session("b")
        for session in (first, second):
            session.extend({"role": "user", "content": f"{MAIL} {n} " * 30} for n in range(6))
        fork = first.fork("f")
        fork.compact(summarize=lambda request: f"of {MAIL}", keep_last=2)
        sources = [memcore.Source("a", (1,)), memcore.Source("b", (1,))]
        both = scope.memory.remember(f"Both say {MAIL}", source=sources)
        scope.memory.remember("Clean, of the second", source=memcore.Source("b", (2,)))
        scope.memory.remember(f"Held by a clean one: {MAIL}", by="operator")
        scope.session("odd", counter=Own()).append({"role": "user", "content": MAIL})
        scope.memory.record_outcome("a", scenario="mail", passed=False, reason=f"told {MAIL}")
    code, found = _run_redact(path, "--yes")
    assert code == 1
    assert found["odd", "tokens"][0]["kept"] == 1
    assert found["f", "views"][0]["rewritten"] == 1
    assert sum(each["forgotten"] for each in found["b", "items"]) == 2
    assert found[None, "memories"][0]["rewritten"] == 3
    with memcore.open(path) as db:
        assert db.scope(user="u").memory.get(both.id).status == "forgotten"


def test_items_of_a_deleted_session_that_its_forks_share_are_redacted(folder):
    path = folder / "a.memcore"
    with memcore.open(path) as db:
        session = db.session("s", user="u")
        session.append({"role": "user", "content": MAIL})
        session.fork("f")
        db.delete_session("s", user="u")
    assert _run_redact(path, "--dry-run")[1][None, "items"][0]["classes"] == {"email": 1}
    assert _run_redact(path, "--yes")[0] == 0
    with memcore.open(path) as db:
        assert MAIL not in str(db.session("f", user="u").get(1).message)
        assert db.check() == []


def test_large_items_are_rewritten_in_commits_of_their_own(folder, monkeypatch):
    path = folder / "a.memcore"
    with memcore.open(path) as db:
        session = db.session("s", user="u")
        for _ in range(8):
            session.append({"role": "user", "content": MAIL + " y" * 350_000})
    sizes = []
    commit = rewriting.rewrite_planned

    def counted(txn, engine, scope, number, planned, **options):
        sizes.append(sum(len(each.encoded) for each in planned))
        return commit(txn, engine, scope, number, planned, **options)

    monkeypatch.setattr("memcore.database.redact.rewrite_planned", counted)
    assert _run_redact(path, "--yes")[0] == 0
    assert sum(sizes) > 5_600_000
    assert max(sizes) < 2 * 2**20


def test_a_head_that_promises_any_number_of_items_makes_no_redaction_endless(folder):
    path = folder / "a.memcore"
    with memcore.open(path) as db:
        db.session("s", user="u").append({"role": "user", "content": MAIL})
        scope, number = db.engine.store.read(lambda txn: sessions_in(txn, "default", "u"))[0][3:]
        key = head_key(scope, number)

        def promise(txn):
            head = Head.unpack(key, txn.get(key))
            head.next_seq = 2**46
            txn.put(key, seal_value(key, head.pack()))

        db.engine.store.transact(promise)
        with pytest.raises(CorruptValueError, match="nowhere stored"):
            list(db.export())
    code, found = _run_redact(path, "--dry-run")
    assert (code, found["s", "items"][0]["classes"]) == (1, {"email": 1})
    assert _run_redact(path, "--yes")[1]["s", "items"][0]["rewritten"] == 1


def test_bytes_are_what_the_key_of_their_entry_says(folder):
    with _open(folder) as db:
        kv = db.scope().kv("n")
        kv.put("password", b"Xq7pelican42zebra")
        kv.put("api", {"a": 1}, content=b"Xq7pelican42zebra")
        kv.put("my password", {"a": 1}, content=b"Xq8pelican42zebra")
        assert kv.get("password").startswith(b"[PASSWORD_")
        assert kv.content("my password").startswith(b"[PASSWORD_")
        assert kv.content("api") == b"Xq7pelican42zebra"


def test_a_placeholder_of_ones_own_fits_every_encoding():
    policy = RedactionPolicy(placeholders="【{id}】")
    redacts = Redaction(policy, secret=b"s" * 32).for_place("a", "u", None)
    made = redacts.bytes(b"\xff\xff caf\xe9\x80 alice@example.com")
    assert made.startswith(b"\xff\xff caf\xe9\x80 ")
    assert b"alice" not in made


def test_keys_of_a_message_that_nobody_knows_and_names_of_tools_are_redacted(folder):
    key = "sk-proj-PLANTED00000001abcdefghijklmnopqrstuvwxyz"
    message = {
        "role": "assistant", "content": "a", f"x_{MAIL}": 1, "name": key,
        "tool_calls": [{"id": ID, "type": "function", f"of {MAIL}": {MAIL: 2},
                        "function": {"name": key, "arguments": "{}"}}],
    }  # fmt: skip
    with _open(folder) as db:
        session = db.session("s", user="u")
        session.append(message)
        session.append({"role": "tool", "tool_call_id": ID, "name": key, "content": MAIL})
        session.append({"role": "user", "content": "a"}, idempotency_key=SEEN)
        shown = session.get(1).message
        assert shown["tool_calls"][0]["function"]["name"] == session.get(2).message["name"]
        assert shown["tool_calls"][0]["id"] == ID
        found = memcore.validate(session.context().messages, policy="openai_chat")
        assert [each for each in found if each.rule != "form"] == []  # no provider has such fields
    for name in os.listdir(folder):
        content = (folder / name).read_bytes()
        assert MAIL.encode() not in content
        assert key.encode() not in content


def test_an_import_is_refused_where_something_is_found_in_a_name(folder):
    with memcore.open(folder / "clear.memcore") as clear:
        for at, where in enumerate(("event type", "request_id", "envelope author", "state")):
            NAMED[where](clear, clear.session(f"s{at}", user="u"))
        lines = b"".join(clear.export()).splitlines()
    with _open(folder) as db:
        done = db.import_(lines)
        assert len(done.failures) == 4
        assert MAIL not in str(done.failures)
    for name in ("a.memcore", "a.memcore-lock"):
        path = folder / name
        assert not path.exists() or MAIL.encode() not in path.read_bytes()
