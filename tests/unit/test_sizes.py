"""The limit on the size of items, what is offloaded, and how often sessions are read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memcore
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import encode_json, seal_value
from memcore.session.read import read_log
from memcore.session.session import ref_of
from messages import assistant, call, result, turns, user

REFERENCE = re.compile(r"offload:[0-9a-f]+:[0-9]+")


def references(value: Any) -> list[str]:
    return REFERENCE.findall(json.dumps(value))


def test_larger_items_are_refused_by_their_size() -> None:
    with memcore.open(":memory:", item_bytes=1000) as db:
        session = db.session("a")
        item = user("x" * 2000)
        for write in (lambda: session.append(item), lambda: session.record("planner", item)):
            with pytest.raises(memcore.InvalidItemError, match=r"20\d\d bytes.*1000"):
                write()
        with pytest.raises(memcore.InvalidItemError), session.batch() as batch:
            batch.append(user())
            batch.append(item)
        assert not session.exists()
        session.append(user("x" * (1000 - len(encode_json(user(""))[0]))))


def test_long_texts_lie_beside_the_item_and_come_back_whole() -> None:
    long = ["héllo wörld " * 300, "\n".join(f"row {n}" for n in range(900)), "z" * 3000]
    arguments = {"query": long[2], "n": 1}
    calls = call("c1")
    calls["tool_calls"][0]["function"]["arguments"] = json.dumps(arguments)
    with memcore.open(":memory:", item_bytes=2000, oversize="offload") as db:
        session = db.session("a")
        receipt = session.append(user(long[0]), envelope={"author": "ann"}, request_id="r")
        assert (receipt.seq, receipt.appended) == (2, 2)
        session.append(calls)
        session.append(result("c1", long[1]))
        session.record("planner", {"plan": long[0], "short": "s"})
        session.record("planner", long[2])
        shown = [item for item in session if item.type != "offloaded"]
        assert all(len(encode_json(item.message)[0]) <= 2000 for item in shown)
        whole = [session.read_offloaded(ref) for i in shown for ref in references(i.message)]
        assert whole == [long[0], long[2], long[1], long[0], long[2]]
        assert shown[0].envelope == memcore.Envelope(author="ann", request_id="r")
        told = json.loads(shown[1].message["tool_calls"][0]["function"]["arguments"])
        assert told["n"] == 1
        assert shown[0].message["content"].endswith(long[0][-200:])
        found = session.context()
        assert memcore.validate(found.messages) == []
        assert session.open_calls == []
        assert len(found.messages) == 3
        fork = session.fork("b")
        assert fork.read_offloaded(references(shown[2].message)[0]) == long[1]
        with memcore.open(":memory:") as other:
            other.import_(b"".join(db.export()).splitlines(keepends=True))
            copy = other.session("a")
            assert copy.read_offloaded(references(shown[2].message)[0]) == long[1]
        assert db.check() == []


def test_a_function_makes_the_summary_and_ids_stay() -> None:
    with memcore.open(":memory:", item_bytes=600, oversize=lambda text: text[:3]) as db:
        session = db.session("a")
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 300}}
        session.append({"role": "user", "content": [{"type": "text", "text": "abc" * 500}, image]})
        shown = session.tail(1)[0].message["content"]
        assert shown[0]["text"].endswith(":0]\nabc")
        assert shown[1] == image
        long_ids = call(*("c" * 60 + str(n) for n in range(9)))
        with pytest.raises(memcore.InvalidItemError, match="without its long texts"):
            session.append(long_ids)
    with memcore.open(":memory:", item_bytes=500, oversize=len) as db:
        with pytest.raises(memcore.InvalidItemError, match="expected a str"):
            db.session("a").append(user("x" * 900))
        assert not db.session("a").exists()


def test_a_retry_of_an_offloaded_item_is_stored_once() -> None:
    with memcore.open(":memory:", item_bytes=500, oversize="offload") as db:
        session = db.session("a")
        first = session.append(user("x" * 900), idempotency_key="k")
        session.append(user("y"))
        assert session.append(user("x" * 900), idempotency_key="k") == first
        assert len(session) == 3


def test_odd_limits_are_refused(session) -> None:
    for options in (
        {"item_bytes": 1}, {"item_bytes": 2**40}, {"item_bytes": "1"}, {"oversize": "offload"},
        {"item_bytes": 1000, "oversize": "cut"}, {"access_counts": 1},
    ):  # fmt: skip
        with pytest.raises(memcore.InvalidOptionError):
            memcore.open(":memory:", **options)
    session.append(user())
    for reference in ("offload:", "offload:00:0", "offload:" + "0" * 24 + ":x"):
        with pytest.raises(memcore.InvalidOptionError):
            session.read_offloaded(reference)
    with pytest.raises(memcore.NotFoundError):
        session.read_offloaded("offload:" + "0" * 24 + ":0")


# --- how often it is read -------------------------------------------------------------------------


def commits(db: memcore.Database) -> int:
    return int(db.stats()["last_txnid"])


def test_reading_is_counted_and_written_along(open_db: Callable[..., Any]) -> None:
    db = open_db(access_counts=True, counter="bytes/4")
    session = db.session("a")
    assert (session.accessed().count, session.accessed().last_at) == (0, None)
    session.extend(turns(300))
    before = commits(db)
    session.get(5)
    session.tail(2)
    list(session.items(599, 600))
    session.context()
    session.context(authors=["p"])
    list(db.session("a").items(7, 8))  # another handle of the same session
    assert commits(db) == before
    counts = [session.accessed(seq).count for seq in (1, 5, 7, 599, 600)]
    assert counts == [2, 3, 3, 4, 3]
    assert session.accessed().count == 6
    session.append(user())
    session.get(601)
    db.close()
    again = open_db()
    session = again.session("a")
    assert session.accessed().count == 7
    assert [session.accessed(seq).count for seq in (1, 5, 7, 599, 600, 601)] == [2, 3, 3, 4, 3, 1]
    assert session.accessed(9999).count == 0
    session.get(1)
    assert session.accessed().count == 7  # this database counts nothing
    assert again.check() == []


def test_a_session_of_the_same_name_begins_anew(open_db: Callable[..., Any]) -> None:
    db = open_db()
    session = db.session("a", access_counts=True)
    session.append(user())
    session.get(1)
    db.delete_session("a")
    session.append(user())
    session.get(1)
    session.get(1)
    assert session.accessed(1).count == 2
    db.delete_session("a")
    db.close()
    assert not open_db().session("a").exists()


def test_damaged_counts_are_found_and_keep_nobody_from_writing(path: Path) -> None:
    with memcore.open(path, access_counts=True) as db:
        session = db.session("a")
        session.append(user())
        place = read_log(ref_of(session), lambda log, _: log.place, None)
        key = keys.session_row(*place, Row.USES, 0)
        db.engine.store.transact(lambda txn: txn.put(key, seal_value(key, b"odd")))
        with pytest.raises(memcore.CorruptValueError):
            session.accessed()
        assert any("access counts" in finding for finding in db.check())
        session.get(1)
        session.append(assistant())
        assert session.accessed().count == 1
        assert db.check() == []


def test_salvage_keeps_the_counts(path: Path) -> None:
    with memcore.open(path, access_counts=True) as db:
        session = db.session("a")
        session.extend(turns(2))
        session.get(2)
    saved = path.with_name("saved.memcore")
    memcore.salvage(path, saved)
    with memcore.open(saved) as db:
        assert (db.session("a").accessed().count, db.session("a").accessed(2).count) == (1, 1)
        assert db.check() == []


def test_many_pages_wait_for_the_close(open_db: Callable[..., Any]) -> None:
    db = open_db(access_counts=True, counter="bytes/4")
    session = db.session("a")
    session.extend(turns(800))
    session.context()
    session.append(user())
    place = read_log(ref_of(session), lambda log, _: log.place, None)

    def rows(found: memcore.Database) -> int:
        start = keys.session_rows(*place, Row.USES)
        return found.engine.store.read(lambda txn: len(list(txn.scan(start, keys.after(start)))))

    assert rows(db) == 1
    assert session.accessed(1).count == 1
    db.close()
    again = open_db()
    assert rows(again) == 8
    assert again.session("a").accessed(1).count == 1
