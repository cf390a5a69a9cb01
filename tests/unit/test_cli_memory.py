"""``memcore memory``: what is remembered, shown and decided on the command line."""

from __future__ import annotations

import json
import sys

import pytest

import memcore
from memcore import Source, aio
from memcore.cli import main


@pytest.fixture
def store(path):
    with memcore.open(path) as db:
        session = db.session("chat", user="alice")
        session.append({"role": "user", "content": "I like tea"})
        session.append({"role": "assistant", "content": "You like milk"})
        session.memory.remember("Likes tea", subject="alice", slot="drink", source=1)
        session.memory.remember("Likes milk", source=2)
        session.memory.record_outcome(scenario="chat", passed=True)
    return str(path)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["memory", *arguments])
    return code, *capsys.readouterr()


def test_list_show_and_history(store, capsys):
    asked = ("--store", store, "--user", "alice")
    code, out, _ = run(capsys, "list", *asked)
    assert code == 0
    assert "Likes tea" in out
    assert "quarantined" in out
    code, out, _ = run(capsys, "list", *asked, "--status", "active", "--json")
    assert [each["text"] for each in json.loads(out)["memories"]] == ["Likes tea"]
    code, out, _ = run(capsys, "show", "1", *asked)
    assert "slot: drink" in out
    code, out, _ = run(capsys, "show", "1", *asked, "--json")
    assert json.loads(out)["sources"] == [{"session": "chat", "seqs": [1]}]
    assert run(capsys, "show", "9", *asked)[0] != 0
    code, out, _ = run(capsys, "history", "1", *asked, "--json")
    assert len(json.loads(out)["versions"]) == 1
    assert run(capsys, "history", "1", *asked)[0] == 0
    assert run(capsys, "history", "9", *asked)[0] != 0


def test_promote_and_forget(store, capsys, path):
    asked = ("--store", store, "--user", "alice")
    assert run(capsys, "promote", "2", "--by", "root", *asked)[1] == "memory 2 is active\n"
    assert json.loads(run(capsys, "promote", "2", "--by", "x", *asked, "--json")[1])["version"] == 2
    assert run(capsys, "forget", "1", *asked)[0] != 0
    assert run(capsys, "forget", "1", *asked, "--yes", "--reason", "no")[1].endswith("forgotten\n")
    assert json.loads(run(capsys, "forget", "1", *asked, "--yes", "--json")[1])["text"] == ""
    with memcore.open(path) as db:
        memory = db.scope(app="default", user="alice").memory
        assert [each.id for each in memory.list(status="active")] == [2]


def test_playbooks(store, capsys):
    asked = ("--store", store, "--user", "alice")
    assert "chat" in run(capsys, "playbooks", *asked)[1]
    code, out, _ = run(capsys, "playbooks", "chat", *asked, "--json")
    assert (code, json.loads(out)["playbooks"][0]["successes"]) == (0, 1)


def test_extract_and_jobs(store, capsys, path):
    asked = ("--store", store, "--user", "alice")
    with memcore.open(path) as db:
        session = db.session("talk", user="alice")
        session.append({"role": "user", "content": "I always prefer green tea."})
    code, out, _ = run(capsys, "extract", "talk", *asked)
    assert code == 0
    assert "stored" in out
    code, out, _ = run(capsys, "extract", "talk", *asked, "--json")
    assert (code, json.loads(out)["reports"][0]["items"]) == (0, 0)
    code, out, _ = run(capsys, "extract", *asked, "--json")
    assert (code, json.loads(out)["reports"]) == (0, [])
    assert run(capsys, "extract", "nowhere", *asked)[0] == 3
    code, out, _ = run(capsys, "jobs", *asked, "--json")
    assert (code, json.loads(out)["jobs"]) == (0, [])

    class Down:
        name, version = "down", "1"

        def __call__(self, _: memcore.Extraction) -> list[memcore.Candidate]:
            raise ConnectionError

    with memcore.open(path) as db:
        session = db.session("talk", user="alice")
        session.memory.extract(session, Down())
    code, out, _ = run(capsys, "jobs", *asked)
    assert code == 0
    assert "down 1" in out
    assert "waiting" in out


def test_asynchronous_memory(path):
    import asyncio

    async def go() -> None:
        async with aio.open(path) as db:
            session = db.session("chat", user="alice")
            await session.append({"role": "user", "content": "I like tea"})
            made = await session.memory.remember("Likes tea", source=1)
            memory = db.scope(app="default", user="alice").memory
            assert await memory.get(made.id) == made
            assert await memory.list() == [made]
            changed = await memory.update(made.id, importance=1)
            assert await memory.history(made.id) == [made, changed]
            other = await memory.remember("Likes milk", source=Source("chat", (1,)), by="agent")
            assert await memory.quarantined() == [other]
            assert (await memory.promote(other.id, by="x")).status == "active"
            assert (await memory.forget(other.id)).status == "forgotten"
            await session.memory.record_outcome(scenario="s", passed=True)
            assert len(await memory.playbooks()) == 1
            assert await memory.clear() == 1

    asyncio.run(go())


def test_an_id_that_no_memory_can_have_is_no_bug(store, capsys):
    asked = ("--store", store, "--user", "alice")
    large = str(2**64)
    for arguments in (
        ("show", large), ("history", large), ("list", "--after", large),
        ("promote", large, "--by", "x"), ("forget", large, "--yes"),
    ):  # fmt: skip
        code, _, told = run(capsys, *arguments, *asked)
        assert code != 0
        assert "below 2**48" in told
        assert "bug" not in told


def test_summary(store, capsys, path):
    asked = ("--store", store, "--user", "carl")
    assert "no summary" in run(capsys, "summary", *asked)[2]
    with memcore.open(path) as db:
        db.session("a", user="carl").append({"role": "user", "content": "hello"})
        db.scope(user="carl").memory.summary("mine").extend(lambda _: "Says hello.")
    assert "text: Says hello." in run(capsys, "summary", *asked, "--name", "mine")[1]
    code, out, _ = run(capsys, "summary", *asked, "--name", "mine", "--json")
    assert (code, json.loads(out)["text"]) == (0, "Says hello.")


def test_grants(store, capsys, path):
    asked = ("--store", store, "--user", "alice")
    code, out, _ = run(capsys, "grant", *asked, "--to-user", "bob", "--kind", "fact", "--json")
    assert code == 0
    grant = json.loads(out)
    assert (grant["to_user"], grant["kinds"], grant["redact"]) == ("bob", ["fact"], "default")
    assert run(capsys, "grant", *asked, "--to-user", "carl", "--redact", "")[1].endswith("given\n")
    code, out, _ = run(capsys, "grants", "--store", store, "--user", "bob")
    assert "alice in default" in out
    code, out, _ = run(capsys, "grants", *asked, "--json")
    assert [each["id"] for each in json.loads(out)["grants"]] == [grant["id"], grant["id"] + 1]
    number = str(grant["id"])
    assert run(capsys, "revoke", number, *asked)[1] == f"grant {number} is revoked\n"
    assert run(capsys, "revoke", number, *asked)[0] != 0
    assert run(capsys, "grant", *asked, "--to-user", "alice")[0] != 0
    with memcore.open(path) as db:
        assert db.scope(user="bob").memory.grants.received() == []


def test_a_search_by_meaning(store, capsys, monkeypatch):
    asked = ("search", "beverages", "--store", store, "--user", "alice", "--json")
    code, out, _ = run(capsys, *asked)
    assert (code, json.loads(out)["memories"]) == (0, [])
    assert run(capsys, *asked, "--mode", "semantic")[0] == 2
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, "wordllama", None)
        code, _, told = run(capsys, *asked, "--mode", "hybrid")
        assert code == 2
        assert 'pip install "memcore-db[embed]"' in told
    pytest.importorskip("wordllama")
    code, out, _ = run(capsys, *asked, "--mode", "vector")
    assert (code, json.loads(out)["memories"]) == (0, [])  # nothing is embedded yet
    code, out, _ = run(capsys, *asked, "--mode", "hybrid", "--index")
    assert [each["text"] for each in json.loads(out)["memories"]] == ["Likes tea"]
    code, out, _ = run(capsys, *asked, "--mode", "vector")
    assert [each["text"] for each in json.loads(out)["memories"]] == ["Likes tea"]


@pytest.fixture
def resting(path):
    """Memories on one item with personal data, on two items, on none, and on an old session."""
    with memcore.open(path) as db:
        session = db.session("chat", user="alice")
        session.append({"role": "user", "content": "I like tea, write to ann@example.org"})
        session.append({"role": "user", "content": "I like tea, I said"})
        session.append({"role": "user", "content": "I have a dog, ask bob@example.org"})
        session.memory.remember("Likes tea", source=Source("chat", [1, 2]))
        session.memory.remember("Has a dog", source=3)
        session.memory.remember("Is an admin", by="operator")
    return str(path)


def texts(path):
    with memcore.open(path, read_only=True) as db:
        memory = db.scope(user="alice").memory
        return {each.text for each in memory.list() if each.status != "forgotten"}


def program(capsys, *arguments):
    code = main(list(arguments))
    return code, *capsys.readouterr()


def test_a_redaction_counts_the_memories_that_go_with_items(resting, capsys):
    asked = ("redact", "--store", resting)
    for words in (["--dry-run"], ["--yes"]):
        _, out, _ = program(capsys, *asked, *words, "--json")
        found = {each["where"]: each for each in json.loads(out)["findings"]}
        assert found["items"]["forgotten"] == 1
        assert "Has a dog" in texts(resting) or words == ["--yes"]
    assert texts(resting) == {"Likes tea", "Is an admin"}


def test_a_deletion_counts_the_memories_that_go_with_the_session(resting, capsys):
    told = "3 items, 36 tokens, and 2 memories that rest on it alone"
    _, out, _ = program(capsys, "delete", "chat", "--dry-run", "--store", resting)
    assert told in out, out
    assert len(texts(resting)) == 3
    _, out, _ = program(capsys, "delete", "chat", "--yes", "--store", resting)
    assert out == f"deleted chat: {told}\n"
    assert texts(resting) == {"Is an admin"}


@pytest.mark.parametrize("what", ["items", "sessions"])
def test_a_sweep_counts_and_archives_the_memories_that_go(resting, capsys, tmp_path, what):
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"rules": [{"what": what, "max_age_seconds": 0}]}))
    assert program(capsys, "retention", "set", str(rules), "--yes", "--store", resting)[0] == 0
    archive = tmp_path / "archive.jsonl"
    for words in (["--dry-run"], ["--yes", "--archive", str(archive)]):
        _, out, _ = program(capsys, "sweep", *words, "--store", resting, "--json")
        assert json.loads(out)["report"]["forgotten"] == 2, out
    assert texts(resting) == {"Is an admin"}
    lines = archive.read_text()
    assert "Likes tea" in lines
    assert "Has a dog" in lines
    assert "Is an admin" not in lines
