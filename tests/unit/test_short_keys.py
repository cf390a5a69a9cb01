"""Rows whose keys end early, or lead nowhere: every call ends, with an answer or a typed error."""

from __future__ import annotations

import pytest

import memcore
from memcore.codec.keys import Kind, Row, session_row, u64
from memcore.codec.table import KINDS_END
from memcore.codec.values import seal_value
from memcore.errors import MemcoreError

SCOPE = u64(1)
TAILS = (
    b"", SCOPE[:4], SCOPE, SCOPE + b"\x05", SCOPE + b"\x05\0\0\0", SCOPE + b"\x05" + SCOPE,
    SCOPE + b"\x0f" + SCOPE, SCOPE + b"\x10", SCOPE + b"\xff", SCOPE + SCOPE + b"\x01" + SCOPE,
)  # fmt: skip


@pytest.mark.parametrize("tail", TAILS, ids=bytes.hex)
@pytest.mark.parametrize("kind", range(Kind.COUNTER, KINDS_END[0]))
def test_every_call_ends(tmp_path, kind, tail) -> None:
    path = tmp_path / "a.memcore"
    with memcore.open(path, durability="none", allow_unsafe=True) as db:
        db.session("s", user="ada").append({"role": "user", "content": "hello"})
        row = bytes((kind,)) + tail
        db.engine.store.transact(lambda txn: txn.put(row, seal_value(row, b"")))
    try:
        db = memcore.open(path, durability="none", allow_unsafe=True)
    except MemcoreError:
        return
    with db:
        _call_all(db, path)


def _call_all(db, path) -> None:
    calls = (
        db.sweep, db.check, db.scopes, lambda: list(db.export()), lambda: db.search("hello"),
        lambda: list(db.sessions()), lambda: memcore.salvage(path, f"{path}.new"),
        lambda: db.erase("ada"),
    )  # fmt: skip
    for call in calls:
        try:
            call()
        except MemcoreError:
            continue


def _poison(scope: int, session: int) -> dict[str, tuple[bytes, bytes]]:
    item = session_row(scope, session, Row.ITEM, 1)
    return {
        "a removal of what is too short": (bytes((Kind.REMOVAL,)) + SCOPE + b"\x10", b""),
        "a session that is its own fork": (session_row(scope, session, Row.CHILD, session), b""),
        "an item of no kind": (item, b'{"a":1}'),
        "an item without a body": (item, b""),
        "a session whose key is cut short": (b"\x05" + SCOPE + bytes(4), b""),
    }


@pytest.mark.parametrize("what", _poison(1, 1))
def test_a_damaged_session_keeps_no_sweep_from_others(tmp_path, what) -> None:
    path = tmp_path / "a.memcore"
    with memcore.open(path, durability="none", allow_unsafe=True) as db:
        for owner in ("ada", "bob"):
            said = [{"role": "user", "content": f"{n} and many more words"} for n in range(5)]
            db.session("s", user=owner).extend(said)
        key, value = _poison(1, 1)[what]
        db.engine.store.transact(lambda txn: txn.put(key, seal_value(key, value)))
        db.retention.set([{"what": "items", "keep_last": 2}])
    with memcore.open(path, durability="none", allow_unsafe=True) as db:
        db.sweep()
        kept = [item.message["content"][:9] for item in db.session("s", user="bob").items()]
        assert kept == ["[expired]"] * 3 + ["3 and man", "4 and man"]
