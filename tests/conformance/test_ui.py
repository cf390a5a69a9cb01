"""The inspector: what its pages say, who gets them, and what a hostile file can do with them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import memcore

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("jinja2")
pytest.importorskip("httpx")

import httpx

from memcore.ui import Inspector, make_app
from memcore.ui.server import PAGES

TOKEN = "t" * 43
HOST = "127.0.0.1:8000"
EVIL = (
    "<script>document.title='owned'</script> <img src=x onerror=alert(1)> </pre></td>"
    "<iframe src=//e>"
    " \u202egnp.exe\u202c \x1b[31m \u200bhidden [x](javascript:alert(1)) {{7*7}} \ufeff&lt;"
)
MAIL = "ann.lee@example.org"
THREAD = "graph <b>\u202e"
OF = {"app": "default", "user": "ann", "session": "trip/plan 1"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A file with what each page shows, hostile in every field that holds a text."""
    found = tmp_path_factory.mktemp("ui") / "ui.memcore"
    with memcore.open(found) as db:
        session = db.session(OF["session"], user="ann")
        session.append({"role": "system", "content": "Be short."})
        for turn in range(6):
            call = {
                "id": f"c{turn}",
                "type": "function",
                "function": {"name": "look", "arguments": json.dumps({"q": EVIL})},
            }
            session.append(
                {"role": "user", "content": f"Question {turn} {MAIL} {EVIL}"},
                envelope={"author": EVIL},
            )
            session.append({"role": "assistant", "content": None, "tool_calls": [call]})
            if turn < 5:
                session.append(
                    {"role": "tool", "tool_call_id": f"c{turn}", "content": "seen " * 30}
                )
                session.append({"role": "assistant", "content": f"Answer {turn}"})
            session.state.put("step", {"turn": turn, "note": EVIL})
        session.record("note", {"text": EVIL})
        session.checkpoint(f"before {EVIL}")
        session.compact(lambda _: f"A summary. {EVIL}", keep_last=9)
        fork = session.fork("other way", at=6)
        fork.append({"role": "user", "content": f"Only here {EVIL}"})
        session.memory.remember(f"Ann likes trains {MAIL}", source=2)
        db.session(EVIL[:60], user=EVIL[:50], app=EVIL[:40]).append(
            {"role": "user", "content": EVIL}
        )
        db.hold("ann", reason=EVIL)
        db.scope(user="ann").index_sessions()
        steps_of_a_graph(db)
    return found  # fmt: skip


def steps_of_a_graph(db):
    """Three checkpoints of a thread, with a write that waits at the last one."""
    pytest.importorskip("langgraph")
    from langgraph.checkpoint.base import empty_checkpoint

    from memcore.adapters.langgraph import MemcoreSaver

    saver = MemcoreSaver(db, user="ann")
    at = {"configurable": {"thread_id": THREAD, "checkpoint_ns": ""}}
    for step in range(3):
        channels = {"messages": [EVIL, MAIL][: step + 1], "step": step, "same": "stays"}
        checkpoint = {
            **empty_checkpoint(),
            "channel_values": channels,
            "channel_versions": {"messages": str(step), "step": str(step), "same": "0"},
        }
        fresh = {"messages": str(step), "step": str(step), **({} if step else {"same": "0"})}
        at = saver.put(at, checkpoint, {"step": step, "source": "loop", "note": EVIL}, fresh)
    saver.put_writes(at, [("messages", {"next": EVIL, "raw": b"12345"})], "task 1")


@pytest.fixture
def path(made, tmp_path):
    """A copy of the file, for tests that write to it or damage it."""
    return Path(shutil.copy(made, tmp_path))


@pytest.fixture
def database(path):
    with memcore.open(path, read_only=True) as db:
        yield db


def fetched(app, *paths, cookie=True, host=HOST, method="GET", headers=None):
    """The responses of an application to requests for paths with parameters."""

    async def get():
        cookies = {"memcore-ui-8000": TOKEN} if cookie else {}
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(
            transport=transport, base_url=f"http://{host}", cookies=cookies
        ) as client:
            return [await client.request(method, p, params=params or None, headers=headers)
                    for p, params in paths]  # fmt: skip

    return asyncio.run(get())


@pytest.fixture
def app(database):
    inspector = Inspector(database)
    yield make_app(inspector, port=8000, token=TOKEN)
    inspector.close()


def page(served, where, /, **parameters):
    (found,) = fetched(served, (where, parameters))
    assert found.status_code == 200, found.text
    return found.json() if where.endswith(".json") else found.text


# --- what pages say -------------------------------------------------------------------------------


def test_sessions_are_listed_and_filtered(app):
    rows = page(app, "/sessions.json")["rows"]
    assert {row["session_id"] for row in rows} == {OF["session"], "other way", EVIL[:60]}
    (row,) = page(app, "/sessions.json", filter="PLAN", user="ann")["rows"]
    assert (row["items"], row["open_calls"], row["user"]) == (24, 1, "ann")


def test_a_timeline_says_what_answers_what(app):
    rows = {row["seq"]: row for row in page(app, "/session.json", **OF)["rows"]}
    assert rows[3]["pairs"] == [{"what": "calls", "call_id": "c0", "seqs": [4], "mark": ""}]
    assert rows[4]["pairs"] == [{"what": "answers", "call_id": "c0", "seqs": [3], "mark": ""}]
    opened = [row for row in rows.values() if any(p["mark"] == "open" for p in row["pairs"])]
    assert [row["pairs"][0]["call_id"] for row in opened] == ["c5"]
    assert "answered by 4" in page(app, "/session", **OF)


def test_a_context_of_the_past_is_what_the_engine_sends(app, path, tmp_path):
    found = page(app, "/context.json", **OF, at=13, budget=1500)
    copy = tmp_path / "copy.memcore"
    shutil.copy(path, copy)
    with memcore.open(copy) as db:
        fork = db.session(OF["session"], user="ann").fork("past", at=13)
        expected = fork.context(1500)
    assert found["sent"]["tokens"] == expected.tokens
    assert found["sent"]["messages"] == len(expected.messages) == len(found["messages"])
    assert found["sent"]["cut"] == expected.cut
    assert [row["seq"] for row in found["rows"]] == list(range(1, 14))
    shown = [row for row in found["rows"] if row["fate"] in {"sent", "pinned"}]
    assert len(shown) == len(expected.messages)


def test_a_context_says_what_became_of_each_item(app):
    found = page(app, "/context.json", **OF)
    fates = {row["seq"]: row["fate"] for row in found["rows"]}
    assert fates[1] == "pinned"
    assert fates[2] == "folded"
    assert found["sent"]["summary"].startswith("A summary.")
    assert fates[24] == "event"
    assert sum(part["tokens"] for part in found["bar"]) == sum(r["tokens"] for r in found["rows"])
    small = page(app, "/context.json", **OF, budget=700)
    assert small["refused"] or small["sent"]["tokens"] <= 700
    refused = page(app, "/context.json", **OF, budget=1)
    assert "tokens" in refused["refused"]


def test_another_policy_and_format_are_built_by_the_engine(app):
    found = page(app, "/context.json", **OF, policy="anthropic", format="anthropic", at=9)
    assert {each["role"] for each in found["messages"]} <= {"user", "assistant", "system"}
    assert found["refused"] is None


def test_compactions_stand_beside_their_source(app):
    (row,) = page(app, "/compactions.json", **OF)["rows"]
    assert row["summary"].startswith("A summary.")
    assert row["source"][0]["seq"] == 2


def test_forks_and_their_difference(app):
    rows = page(app, "/forks.json", app="default", user="ann")["rows"]
    assert [(row["session_id"], row["depth"], row["parent_name"]) for row in rows] == [
        (OF["session"], 0, None), ("other way", 1, OF["session"])]  # fmt: skip
    found = page(app, "/compare.json", **OF, other="other way")
    assert found["shared"] == 6
    assert [row["seq"] for row in found["only_b"]] == [7] or len(found["only_b"]) == 1


def test_state_now_and_then(app):
    found = page(app, "/state.json", **OF, at=3)
    (row,) = [each for each in found["rows"] if each["field"] == "step"]
    assert json.loads(row["now"])["turn"] == 5
    assert row["changed"]
    assert [each["seq"] for each in found["checkpoints"]] == [24]


def test_a_memory_shows_what_it_rests_on(app):
    (row,) = page(app, "/memories.json", app="default", user="ann")["rows"]
    found = page(app, "/memory.json", app="default", user="ann", id=row["id"])
    (source,) = found["sources"]
    assert (source["session"], source["seq"]) == (OF["session"], 2)
    assert source["text"].startswith("Question 0")


def test_search_audit_and_figures(app):
    found = page(app, "/search.json", q="question", user="ann")
    assert len(found["rows"]) >= 6
    assert page(app, "/audit.json")["holds"][0]["user"] == "ann"
    assert "audit" in page(app, "/audit.json")["refused"]  # this file has none
    assert page(app, "/stats.json")["durability"] == "full"


def test_an_unfinished_erasure_is_shown_without_a_name(path):
    with memcore.open(path) as db:
        db.session("secret", user="bob").append({"role": "user", "content": "Hi."})
        receipt = db.erase(user="bob", compact=False)
    with memcore.open(path, read_only=True) as db:
        inspector = Inspector(db)
        served = make_app(inspector, port=8000, token=TOKEN)
        (found,) = page(served, "/audit.json")["erasures"]
        assert (found["id"], found["stage"], found["scopes"]) == (receipt.id, "removed", 1)
        shown = page(served, "/audit")
        assert receipt.id in shown
        assert "bob" not in shown
        inspector.close()
    with memcore.open(path) as db:
        db.finish_erasures()
    with memcore.open(path, read_only=True) as db:
        inspector = Inspector(db)
        assert inspector.audit()["erasures"] == []
        inspector.close()


def test_a_long_session_is_shown_a_page_at_a_time(tmp_path):
    with memcore.open(tmp_path / "long.memcore", durability="none", allow_unsafe=True) as db:
        session = db.session("long")
        for _ in range(21):
            session.extend([{"role": "user", "content": "word"}] * 1000)
        app = make_app(Inspector(db), port=8000, token=TOKEN)
        first = page(app, "/session.json", session="long")
        assert (len(first["rows"]), first["next"]) == (200, 201)
        second = page(app, "/session.json", session="long", start=first["next"])
        assert second["rows"][0]["seq"] == 201
        found = page(app, "/context.json", session="long", budget=1000)
        assert len(found["rows"]) == 200
        assert sum(part["share"] for part in found["bar"]) == pytest.approx(1)
        (refused,) = fetched(app, ("/context", {"session": "long", "at": 7}))
        assert refused.status_code == 400
        assert "20,000" in refused.text


# --- what a file can do ---------------------------------------------------------------------------


class Tags(HTMLParser):
    """Names and attributes of all tags of a page."""

    def __init__(self, text):
        super().__init__()
        self.names, self.attributes = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += [(tag, *each) for each in attrs]


def all_pages(app):
    memory = page(app, "/memories.json", app="default", user="ann")["rows"][0]["id"]
    evil = {"app": EVIL[:40], "user": EVIL[:50], "session": EVIL[:60]}
    given = {
        "/item": [OF | {"seq": 2}, OF | {"seq": 3}, evil | {"seq": 1}],
        "/compare": [OF | {"other": "other way"}],
        "/memory": [{"app": "default", "user": "ann", "id": memory}],
        "/search": [{"q": "question"}, {"q": EVIL}, {}],
        "/": [{}, {"filter": EVIL}],
        "/context": [OF, OF | {"at": 9, "budget": 900}, evil],
        "/session": [OF, evil], "/compactions": [OF], "/state": [OF, OF | {"at": 4}],
        "/forks": [{"user": "ann"}], "/memories": [{"user": "ann"}], "/threads": [{"user": "ann"}],
        "/thread": [{"user": "ann", "thread": THREAD}],
        "/step": [
            {"user": "ann", "thread": THREAD, "checkpoint": row["checkpoint"]}
            for row in page(app, "/thread.json", user="ann", thread=THREAD)["rows"]
        ],
        "/audit": [{}], "/stats": [{}],
    }  # fmt: skip
    assert given.keys() == PAGES.keys()
    return [(where, each) for where, several in given.items() for each in several]


def test_no_text_becomes_markup_and_none_hides(app):
    for where, parameters in all_pages(app):
        for extra in ({}, {"export": "1"}):
            text = page(app, where, **parameters, **extra)
            tags = Tags(text)
            assert set(tags.names).isdisjoint({"iframe", "img", "object", "embed", "base"}), where
            assert tags.names.count("script") <= (where == "/context" and not extra)
            assert not [each for each in tags.attributes if each[1].startswith("on")]
            links = [v for _, name, v in tags.attributes if name in {"href", "src", "action"}]
            assert all(re.match(r"[/#?]", each) and not each.startswith("//") for each in links)
            told = re.sub(r'value="[^"]*"', "", text)  # what a reader types stays as it is
            assert not re.search("[\\u202a-\\u202e\\u2066-\\u2069\\u200b\\ufeff\\x1b]", told), where
            assert "49" not in re.findall(r"\{\{.*?\}\}|hidden.{0,40}", text)


def test_secrets_are_placeholders_unless_revealed(app, database):
    for where, parameters in all_pages(app):
        assert MAIL not in page(app, where, **parameters), where
        name = "/sessions" if where == "/" else where
        assert MAIL not in json.dumps(page(app, f"{name}.json", **parameters)), where
    revealed = make_app(Inspector(database, redact=False), port=8000, token=TOKEN)
    assert MAIL in page(revealed, "/session", **OF)


def test_nothing_is_written(path, app):
    before = path.read_bytes()
    for where, parameters in all_pages(app):
        page(app, where, **parameters)
    assert path.read_bytes() == before


def test_two_checkpoints_of_a_graph_are_compared(app):
    assert [row["thread"] for row in page(app, "/threads.json", user="ann")["rows"]] == [THREAD]
    rows = page(app, "/thread.json", user="ann", thread=THREAD)["rows"]
    assert [(row["step"], row["source"]) for row in rows] == [
        ("2", '"loop"'), ("1", '"loop"'), ("0", '"loop"'),
    ]  # fmt: skip
    assert [(row["channels"], row["writes"]) for row in rows] == [(3, 1), (3, 0), (3, 0)]
    of = {"user": "ann", "thread": THREAD, "checkpoint": rows[0]["checkpoint"]}
    found = page(app, "/step.json", **of)
    assert found["other"] == rows[1]["checkpoint"]
    changed = {row["channel"]: row["changed"] for row in found["rows"]}
    assert changed == {"messages": False, "same": False, "step": True}
    assert json.loads(found["writes"][0]["value"])["raw"] == "<5 bytes>"
    first = page(app, "/step.json", **of | {"other": rows[2]["checkpoint"]})
    assert {row["channel"] for row in first["rows"] if row["changed"]} == {"messages", "step"}
    alone = page(app, "/step.json", **of | {"checkpoint": rows[2]["checkpoint"]})
    assert (alone["other"], alone["rows"][0]["was"]) == (None, None)
    for wrong in ({"checkpoint": "none"}, {"other": "none"}, {"thread": "none"}):
        (refused,) = fetched(app, ("/step", of | wrong))
        assert (refused.status_code, "no checkpoint" in refused.text) == (404, True)


# --- who gets pages -------------------------------------------------------------------------------


def test_the_token_becomes_a_cookie_and_leaves_the_address(app):
    (found,) = fetched(app, ("/session", OF | {"token": TOKEN}), cookie=False)
    assert found.status_code == 303
    assert "token" not in found.headers["location"]
    cookie = found.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"cookie": False}, 403),
        ({"host": "evil.example:8000"}, 421),
        ({"host": "127.0.0.1:9000"}, 421),
        ({"headers": {"sec-fetch-site": "cross-site"}}, 403),
        ({"headers": {"sec-fetch-site": "same-site"}}, 403),
        ({"method": "POST"}, 405),
        ({"method": "DELETE"}, 405),
        ({"method": "OPTIONS"}, 405),
    ],
)
def test_strangers_are_refused(app, options, status):
    for where in ("/", "/session", "/stats.json", "/nothing"):
        (found,) = fetched(app, (where, OF), **options)
        assert found.status_code == status
        assert "trip" not in found.text


def test_the_token_leads_to_no_other_host(app):
    (found,) = fetched(app, (f"http://{HOST}//evil.example/", {"token": TOKEN}), cookie=False)
    assert found.headers["location"] == "/evil.example/"


def test_a_wrong_token_is_refused(app):
    for token in ("", "t", "t" * 42 + "u", "ü"):
        (found,) = fetched(app, ("/", {"token": token}), cookie=False)
        assert found.status_code == 403


def test_every_response_has_the_headers(app):
    found = fetched(app, ("/", {}), ("/nope", {}), ("/item", {}), ("/stats.json", {}))
    assert [each.status_code for each in found] == [200, 404, 400, 200]
    for each in found:
        policy = each.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert each.headers["x-content-type-options"] == "nosniff"
        assert each.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in each.headers


@pytest.mark.parametrize(
    ("where", "parameters", "status"),
    [
        ("/session", {"session": "none"}, 404),
        ("/item", OF | {"seq": "999"}, 404),
        ("/item", OF, 400),
        ("/session", OF | {"start": "-1"}, 400),
        ("/session", OF | {"start": "x"}, 400),
        ("/session", OF | {"start": "9" * 30}, 400),
        ("/context", OF | {"policy": "nonsense"}, 400),
        ("/search", {"q": "w" * 5000}, 400),
        ("/memory", {"id": "77"}, 404),
        ("/compare", OF | {"other": "none"}, 404),
        ("/compare", OF, 400),
    ],
)
def test_wrong_parameters_are_one_line(app, where, parameters, status):
    page_, told = fetched(app, (where, parameters), (f"{where}.json", parameters))
    assert (page_.status_code, told.status_code) == (status, status)
    assert told.json()["error"]
    assert "Traceback" not in page_.text


# --- the process ----------------------------------------------------------------------------------


def started(path, *options):
    """A process that serves a file, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "memcore", "ui", str(path), "--no-browser", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    line = process.stdout.readline()
    return process, re.search(r"http://\S+", line).group() if line else None


def ended(process):
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    return process.returncode, out, error


def test_the_verb_serves_a_file_and_ends(path):
    process, address = started(path)
    try:
        with httpx.Client(follow_redirects=True, trust_env=False) as client:
            found = client.get(address)
            assert found.status_code == 200
            assert "trip/plan 1" in found.text
            assert "token" not in str(found.url)
        with memcore.open(path) as db:  # a writer beside it
            db.session("new").append({"role": "user", "content": "hi"})
    finally:
        code, _, error = ended(process)
    assert (code, error) == (0, "")


@pytest.mark.parametrize("what", ["missing", "damaged", "port"])
def test_the_verb_says_what_is_wrong_in_one_line(tmp_path, path, what):
    options = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if what == "missing":
            path = tmp_path / "missing.memcore"
        elif what == "damaged":
            path.write_bytes(b"no database" * 1000)
        else:
            options = ["--port", str(taken.getsockname()[1])]
        process, address = started(path, *options)
        out, error = process.communicate(timeout=60)
    assert (address, out) == (None, "")
    assert process.returncode == {"missing": 3, "damaged": 5, "port": 7}[what]
    assert len(error.splitlines()) == 1


# --- fields beside the texts, and sessions that change --------------------------------------------


def look(*ids):
    return [
        {"id": each, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for each in ids
    ]


def test_only_a_result_behind_something_else_is_late(tmp_path):
    with memcore.open(tmp_path / "late.memcore") as db:
        session = db.session("s")
        session.append({"role": "user", "content": "q"})
        session.append({"role": "assistant", "content": None, "tool_calls": look(*"abc")})
        session.record("note", {})
        for each in "cab":
            session.append({"role": "tool", "tool_call_id": each, "content": each})
        session.append({"role": "assistant", "content": None, "tool_calls": look("d")})
        session.append({"role": "user", "content": "well?"})
        session.append({"role": "tool", "tool_call_id": "d", "content": "there"})
        parted = db.session("parted", policy="openai_responses")
        for each in "ab":
            call = {"type": "function_call", "call_id": each, "name": "f", "arguments": "{}"}
            parted.append(call)
        for each in "ab":
            parted.append({"type": "function_call_output", "call_id": each, "output": "o"})
        app = make_app(Inspector(db), port=8000, token=TOKEN)
        marks = {
            (row["seq"], pair["call_id"]): pair["mark"]
            for row in page(app, "/session.json", session="s")["rows"]
            for pair in row["pairs"]
        }
        assert [key for key, mark in marks.items() if mark] == [(9, "d")]
        assert marks[9, "d"] == "late"
        rows = page(app, "/session.json", session="parted")["rows"]
        assert not [pair for row in rows for pair in row["pairs"] if pair["mark"]]


def test_no_field_beside_the_texts_has_a_secret(tmp_path):
    with memcore.open(tmp_path / "secrets.memcore") as db:
        session = db.session("s")
        said = {"role": "user", "content": "x"}
        session.append(said, envelope={"author": f"Ann {MAIL}", "agent": f"a {MAIL}"})
        session.append(said, envelope={"model": f"m {MAIL}"}, request_id=f"Ann {MAIL}")
        session.state.put(f"of {MAIL}", 1)
        session.checkpoint(f"for {MAIL}", meta={"to": f"Ann {MAIL}", f"Ann {MAIL}": 1})
        memory = session.memory.remember(
            "Likes trains", by="import", subject=f"Ann {MAIL}", slot=f"mail {MAIL}",
            extractor=f"made by {MAIL}",
        )  # fmt: skip
        session.memory.promote(memory.id, by=f"Ann {MAIL}")
        db.hold("default", reason=f"asked by {MAIL}")
        app = make_app(Inspector(db), port=8000, token=TOKEN)
        of = {"session": "s"}
        for where, given in [
            ("/session", of), ("/item", of | {"seq": 1}), ("/item", of | {"seq": 2}),
            ("/context", of), ("/context", of | {"at": 1}), ("/state", of),
            ("/state", of | {"at": 1}), ("/memories", {}), ("/memory", {"id": memory.id}),
            ("/audit", {}), ("/forks", {}),
        ]:  # fmt: skip
            assert MAIL not in page(app, where, **given), where
            assert MAIL not in json.dumps(page(app, f"{where}.json", **given)), where


def test_what_no_utf_8_can_hold_is_shown(tmp_path):
    name = "half \ud800"
    with memcore.open(tmp_path / "half.memcore") as db:
        session = db.session(name, user=name)
        session.append({"role": "user", "content": f"said {name}"}, request_id="r\u202eq")
        session.append({"role": "assistant", "content": "x"})
        app = make_app(Inspector(db), port=8000, token=TOKEN)
        (row,) = page(app, "/sessions.json")["rows"]
        assert row["session_id"] == name
        links = re.findall(r'href="(/session\?[^"]*)"', page(app, "/"))
        found = page(app, links[0].replace("&amp;", "&"))
        assert "said half" in found
        (as_json,) = re.findall(r'href="(/session.json\?[^"]*)"', found)
        told = json.loads(page(app, as_json.replace("&amp;", "&")))
        assert told["rows"][0]["text"] == f"said {name}"
        asked = as_json.partition("?")[2].replace("&amp;", "&")
        for where in ("/item", "/item.json", "/context", "/context.json", "/state", "/forks",
                      "/forks.json", "/memories", "/search", "/search.json"):  # fmt: skip
            seq = "&seq=1" if where.startswith("/item") else "&q=said"
            text = page(app, f"{where}?{asked}{seq}")
            assert where.endswith("json") or "\u202e" not in text
        (found,) = fetched(app, ("/session.json?session=%ff", {}))
        assert found.status_code == 404


def test_subjects_of_memories_hide_nothing(database, monkeypatch):
    inspector = Inspector(database)
    row = inspector.memories("default", "ann")["rows"][0]
    row |= {"subject": "su\u202eb", "slot": "sl\u200bot"}
    monkeypatch.setattr(Inspector, "_memory", lambda *_: row)
    text = page(make_app(inspector, port=8000, token=TOKEN), "/memories", user="ann")
    assert not re.search("[\u202e\u200b]", text)


def test_a_session_made_anew_under_a_name_is_not_the_deleted_one(tmp_path):
    with memcore.open(tmp_path / "anew.memcore") as db:
        app = make_app(Inspector(db), port=8000, token=TOKEN)
        for said in ("old", "new"):
            session = db.session("past-1")
            session.append({"role": "user", "content": said})
            session.append({"role": "assistant", "content": "x"})
            found = page(app, "/context.json", session="past-1", at=1)
            assert [each["text"] for each in found["messages"]] == [said]
            db.delete_session("past-1")


def test_copies_stay_open_while_they_are_used_and_keep_no_forks(tmp_path):
    with memcore.open(tmp_path / "copies.memcore") as db:
        for number in range(6):
            session = db.session(f"s{number}")
            for said in ("user", "assistant", "user"):
                session.append({"role": said, "content": f"{number}"})
        inspector = Inspector(db)
        with inspector._past(db.session("s0"), 2, None) as past:
            for number in range(1, 6):  # each replaces the oldest copy
                inspector.context("default", "default", f"s{number}", at=2)
            assert past.context().messages[0]["content"] == "0"
        for at in (1, 2, 3):
            inspector.context("default", "default", "s5", at=at)
        with inspector._past(db.session("s5"), 2, None) as past:
            assert past.id.startswith("past-")
            copy = [*inspector._copies.values()][-1].database
            assert len(list(copy.sessions())) == 2
        inspector.close()
        with pytest.raises(memcore.ClosedError):
            list(copy.sessions())


# --- a real browser -------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser():
    """Chromium, driven by playwright; it never fetches a browser of its own."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(made):
    process, found = started(made)
    yield found
    ended(process)


def visited(browser, address, **options):
    """A page of a new profile on the address, and what it complained about."""
    context = browser.new_context(**options)
    tab = context.new_page()
    told = []
    tab.on("console", lambda message: told.append(message.text))
    tab.on("pageerror", lambda error: told.append(str(error)))
    tab.on("dialog", lambda dialog: told.append(dialog.message))
    tab.on("request", lambda request: told.append(request.url)
           if not request.url.startswith(address.partition("?")[0]) else None)  # fmt: skip
    tab.goto(address)
    return tab, told


def test_a_reader_finds_what_the_model_saw(browser, address):
    tab, told = visited(browser, address)
    tab.get_by_role("link", name="trip/plan 1").click()
    assert tab.get_by_role("heading", level=1).inner_text() == "Timeline: trip/plan 1"
    tab.get_by_role("link", name="Context", exact=True).click()
    tab.get_by_label("Budget in tokens").fill("900")
    tab.get_by_role("button", name="Show").click()
    assert "of 900" in tab.locator("main").inner_text()
    tab.locator("#slider").focus()
    tab.keyboard.press("ArrowLeft")  # the script sends the form
    tab.wait_for_url("**budget=899**")
    assert tab.title().startswith("Context")
    assert told == []


def test_hostile_texts_do_nothing_in_a_browser(browser, address):
    tab, told = visited(browser, address)
    tab.get_by_role("link", name="trip/plan 1").click()
    for name in ("Context", "Compactions", "State", "Timeline"):
        tab.get_by_role("link", name=name, exact=True).click()
        assert not tab.title().startswith("owned")
        assert tab.locator("iframe, img").count() == 0
        assert "U+202E" in tab.locator("body").inner_text()
    assert told == []


def test_the_keyboard_is_enough(browser, address):
    tab, _ = visited(browser, address)
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the content"
    for _ in range(40):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.textContent") == "trip/plan 1":
            break
    outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/session**")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_a_page_is_readable_in_any_window(browser, address, scheme, width):
    tab, _ = visited(browser, address, color_scheme=scheme,
                     viewport={"width": width, "height": 800})  # fmt: skip
    tab.get_by_role("link", name="trip/plan 1").click()
    tab.wait_for_url("**/session**")  # a click does not wait until the page has a root element
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for selector in ("body", "p.about", "a", ".code", ".mark"):
        assert tab.evaluate(CONTRAST, selector) >= 4.5, selector


CONTRAST = """selector => {
  const light = text => {
    const [r, g, b] = text.match(/[0-9.]+/g).slice(0, 3).map(v => {
      v = v / 255; return v <= 0.04045 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4); });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const front = light(getComputedStyle(document.querySelector(selector)).color);
  const back = light(getComputedStyle(document.body).backgroundColor);
  return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05); }"""
"""Contrast of the first element that matches, by WCAG 2.2, 1.4.3."""


def test_without_script_every_page_works(browser, address):
    tab, _ = visited(browser, address, java_script_enabled=False)
    tab.get_by_role("link", name="trip/plan 1").click()
    tab.get_by_role("link", name="Context", exact=True).click()
    tab.get_by_label("Budget in tokens").fill("900")
    tab.get_by_role("button", name="Show").click()
    assert "of 900" in tab.locator("main").inner_text()


# --- pictures for the documentation: MEMCORE_SCREENSHOTS=docs/figures renews them -----------------


@pytest.fixture(scope="module")
def trip(tmp_path_factory):
    """A file such as an agent leaves behind: calls, a compaction, memories; nothing hostile."""
    found = tmp_path_factory.mktemp("pictures") / "agent.memcore"
    with memcore.open(found) as db:
        session = db.session("trip to Lisbon", user="ann")
        session.append({"role": "system", "content": "You plan trips. Ask before you book."})
        for turn, (asked, name, told, answer) in enumerate(TALK):
            call = {
                "id": f"call_{turn}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps({"city": "Lisbon"})},
            }
            session.extend(
                [
                    {"role": "user", "content": asked},
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": call["id"], "content": told},
                    {"role": "assistant", "content": answer},
                ]
            )
        session.compact(lambda _: SUMMARY, keep_last=9, force=True)
        db.session("weekly report", user="ben").append({"role": "user", "content": "Draft it."})
        memory = db.scope(user="ann").memory
        memory.remember("Prefers window seats", source=memcore.Source(session.id, (2,)))
    process, address = started(found)
    yield address
    ended(process)


TALK = (
    ("A week in Lisbon in May, and I prefer window seats.", "search_flights",
     "TP 571, 08:40, 149 EUR; LH 1166, 12:15, 182 EUR", "TP 571 at 08:40 fits: 149 EUR."),
    ("Which quarter should I stay in?", "search_hotels",
     "Alfama 118 EUR; Baixa 142 EUR; Belém 96 EUR", "Alfama: quiet at night, 118 EUR."),
    ("What is the weather like?", "forecast", "21 to 24 degrees, one day of rain",
     "Mild: 21 to 24 degrees, one wet day."),
    ("Book the flight, please.", "book_flight", "booked: TP 571, seat 14A",
     "Booked: TP 571, window seat 14A."),
)  # fmt: skip
SUMMARY = (
    "Ann plans a week in Lisbon in May, prefers window seats; Alfama at 118 EUR was suggested."
)


PICTURES = {
    "ui-timeline": ("light", ["trip to Lisbon"], "search_flights"),
    "ui-context": ("light", ["trip to Lisbon", "Context"], SUMMARY),
    "ui-dark": ("dark", ["trip to Lisbon", "Compactions"], SUMMARY),
}
"""Color scheme, links to follow, and what the page must show, by name."""


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_the_page(browser, trip, tmp_path, name):
    scheme, links, shows = PICTURES[name]
    size = {"width": 1200, "height": 760}
    tab, told = visited(browser, trip, color_scheme=scheme, viewport=size)
    for link in links:
        tab.get_by_role("link", name=link, exact=True).click()
    assert shows in tab.locator("main").inner_text()
    picture = Path(os.environ.get("MEMCORE_SCREENSHOTS") or tmp_path) / f"{name}.png"
    tab.screenshot(path=picture)
    width, height = (each.to_bytes(4, "big") for each in size.values())
    assert picture.read_bytes()[16:24] == width + height
    assert told == []
