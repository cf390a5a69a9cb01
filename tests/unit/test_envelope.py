"""Envelopes of items: what is stored, what is read, what is refused, and who keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import memcore
from memcore import Envelope, aio
from memcore.codec.values import encode_json
from memcore.rows.item import _HEADER, decode_item, split_body, stored_json
from memcore.session.append import ItemOptions, encode_items
from memcore.session.session import ref_of
from messages import assistant, call, result, system, user

FULL = Envelope(
    type="planner",
    request_id="r1",
    model="m",
    tool="t",
    duration_ms=12.5,
    status="ok",
    redacted=False,
    tokens=7,
    author="ann",
    agent="run",
    owner="o",
)


def test_every_field_comes_back(session) -> None:
    session.append(user(), envelope=FULL)
    session.append(user(), envelope=FULL.mapping())
    assert [item.envelope for item in session] == [FULL, FULL]
    assert session.get(1).request_id == "r1"
    assert session.get(1).meta is None


def test_all_ways_to_append_take_one(session) -> None:
    options: Any = {
        "envelope": Envelope(author="ann", status="error"), "meta": {"a": 1}, "request_id": "r"
    }  # fmt: skip
    session.append(user(), **options)
    session.extend([user(), user()], **options)
    session.record("planner", {}, **options)
    with session.batch() as batch:
        batch.append(user(), **options)
        batch.extend([user()], **options)
        batch.record("planner", **options)
    asyncio.run(aio.AsyncSession(session).append(user(), **options))
    items = list(session)
    assert len(items) == 8
    for item in items:
        assert (item.meta, item.request_id) == ({"a": 1}, "r")
        assert item.envelope == Envelope(author="ann", status="error", request_id="r")


def test_nothing_is_stored_when_nothing_is_said(db) -> None:
    plain, empty = db.session("plain"), db.session("empty")
    plain.append(user())
    empty.append(user(), envelope=Envelope())
    empty.append(user(), envelope={})
    rows = [prepared.body for prepared in encode_items(ref_of(plain), [user()], ItemOptions())]
    assert split_body(rows[0])[2] == b""
    assert [item.envelope for item in (*plain, *empty)] == [None, None, None]


def test_types_are_told_by_the_item_itself(db) -> None:
    session = db.session("s", shape="keep")
    session.append(system())
    session.append(user())
    session.append(call("c1"))
    session.append(result("c1"))
    session.append(assistant())
    session.append({"type": "reasoning", "summary": []})
    session.append({"hello": 1})
    session.record("hitl", {})
    session.record("ticks", {})
    session.append(assistant(), envelope={"type": "x-draft"})
    assert [item.type for item in session] == [
        *("system", "user_input", "tool_call", "tool_result", "final", "reasoning", "other"),
        *("hitl", "ticks", "x-draft"),
    ]


WRONG = [
    ({"typ": "final"}, "author"),
    ({"type": "finale"}, "planner"),
    ({"type": "x-"}, "planner"),
    ({"type": ""}, "type"),
    ({"author": ""}, "author"),
    ({"author": "a" * 1025}, "author"),
    ({"author": 1}, "author"),
    ({"tokens": -1}, "tokens"),
    ({"tokens": True}, "tokens"),
    ({"tokens": 2**49}, "tokens"),
    ({"duration_ms": float("nan")}, "duration_ms"),
    ({"duration_ms": float("inf")}, "duration_ms"),
    ({"duration_ms": "1"}, "duration_ms"),
    ({"redacted": 1}, "redacted"),
    ({"request_id": 5}, "request_id"),
    ({1: 2}, "author"),
    ([], "mapping"),
]


def test_what_is_wrong_is_refused_and_named(session) -> None:
    for given, named in WRONG:
        for write, first in ((session.append, user()), (session.record, "planner")):
            with pytest.raises(memcore.InvalidOptionError, match=named):
                write(first, envelope=given)
    assert not session.exists()


def test_two_request_ids_are_one_too_many(session) -> None:
    with pytest.raises(memcore.InvalidOptionError, match="request_id"):
        session.append(user(), request_id="a", envelope={"request_id": "b"})
    session.append(user(), request_id="a", envelope={"request_id": "a"})
    assert session.get(1).request_id == "a"


def test_the_meta_is_found_without_decoding(session) -> None:
    for meta, request_id, told in product(
        (None, {}, {"k": ',"meta":{"envelope":1}'}, {"request_id": None}),
        (None, "r", ',"meta":', 'q","meta":"'),
        (None, Envelope(author=',"meta":')),
    ):
        (row,) = encode_items(ref_of(session), [user()], ItemOptions(meta, request_id, told))
        expected = b"" if meta is None else encode_json(meta)[0]
        if meta is None and request_id is None and told is None:
            assert split_body(row.body)[2] == b""
        said, message = stored_json(row.body, row.flags)
        assert (said.text, message.text) == (expected, encode_json(user())[0])
        assert said.flags == message.flags == 0
        item = decode_item(1, row.body, row.flags, 0)
        assert (item.meta, item.request_id) == (meta, request_id)


def test_rows_of_earlier_and_later_versions_are_read(session) -> None:
    (row,) = encode_items(ref_of(session), [user()], ItemOptions())

    def body(envelope: dict[str, Any]) -> bytes:
        packed = b"\0" + encode_json(envelope)[0]
        return _HEADER.pack(2, 1, 0, len(packed), 0) + packed + split_body(row.body)[3]

    old = decode_item(1, body({"meta": {"a": 1}, "request_id": "r"}), 0, 0)
    assert (old.meta, old.request_id, old.envelope) == ({"a": 1}, "r", None)
    told = {"author": "ann", "mood": "sunny"}
    new = decode_item(1, body({"meta": None, "request_id": None, "envelope": told}), 0, 0)
    assert new.envelope == Envelope(author="ann")
    for damaged in ([], "x", {"tokens": -1}):
        rest = {"meta": None, "request_id": None, "envelope": damaged}
        with pytest.raises(memcore.CorruptValueError):
            decode_item(1, body(rest), 0, 0)


def test_exports_forks_and_salvage_keep_it(open_db: Callable[..., Any], path: Path) -> None:
    db = open_db(counter="bytes/4")
    session = db.session("a")
    session.append(user(), envelope=FULL, meta={"m": 1})
    session.append(user(), envelope=Envelope(request_id="only"))
    session.record("hitl", {}, envelope={"owner": "o"})
    session.append(user(), request_id="r")
    expected = [(i.envelope, i.meta, i.request_id, i.type) for i in session]
    fork = session.fork("b")
    assert [(i.envelope, i.meta, i.request_id, i.type) for i in fork] == expected
    lines = b"".join(db.export())
    with memcore.open(":memory:", counter="bytes/4") as other:
        other.import_(lines.splitlines(keepends=True))
        found = other.session("a")
        assert [(i.envelope, i.meta, i.request_id, i.type) for i in found] == expected
        assert other.check() == []
    db.close()
    saved = path.with_name("saved.memcore")
    memcore.salvage(path, saved)
    with memcore.open(saved) as other:
        found = other.session("a")
        assert [(i.envelope, i.meta, i.request_id, i.type) for i in found] == expected


def test_a_line_with_a_wrong_envelope_is_not_imported() -> None:
    with memcore.open(":memory:") as db:
        db.session("a").append(user(), envelope={"author": "ann"})
        lines = b"".join(db.export()).replace(b'{"author":"ann"}', b'{"autor":"ann"}')
    with memcore.open(":memory:") as db:
        (failure,) = db.import_(lines.splitlines(keepends=True)).failures
        assert "autor" in failure
        assert not list(db.sessions())
