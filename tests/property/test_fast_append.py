"""The short way of an append and the long way: the same rows, receipts and errors."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memcore
from memcore.limits import ITEM_INLINE_BYTES_MAX
from memcore.privacy.keyring import Secret
from memcore.session.append import Append
from memcore.session.engine import Engine, SessionRef
from memcore.store.commit import Leader, WriteBatch
from strategies import hostile_items, mixed_histories

EXAMPLES = int(os.environ.get("MEMCORE_LONG_TESTS") or 0) or 60
PADDING = "x" * (ITEM_INLINE_BYTES_MAX + 10)
NOW_US = 1_700_000_000_000_000


class Odd(dict[str, Any]):
    """No plain dict."""


LARGE = {"role": "user", "content": "too large for its row"}
"""Made so large when it is stored."""
_odd_items = st.sampled_from(
    [
        LARGE,
        {"role": "user", "content": 2**70},
        {"role": "user", "content": float("nan")},
        {"role": "user", "content": "\ud800"},
        {"role": "user", 1: "a key that is no text"},
        {"role": "tool", "tool_call_id": "nobody's", "content": "orphan"},
        Odd(role="user", content="a kind of dict"),
        ["no", "dict"],
        None,
        {},
    ]
)
_personal_items = st.lists(
    st.sampled_from(
        [
            {"role": "user", "content": "write to alice@example.com"},
            {"role": "user", "content": "nothing to hide here"},
            {"role": "user", "content": [{"type": "text", "text": "call +49 170 1234567"}]},
            {"role": "assistant", "content": None, "tool_calls": [{
                "id": "call_13912345678", "type": "function",
                "function": {"name": "f", "arguments": '{"password": "hunter2hunter2"}'}}]},
            {"role": "user", "content": "x", "phone": 13912345678},
            {"role": "user", "bob@example.com": 1},
        ]
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip
_items = st.one_of(
    _personal_items,
    mixed_histories().map(lambda found: [item for item in found if isinstance(item, dict)]),
    st.lists(hostile_items, max_size=3),
    st.lists(_odd_items, min_size=1, max_size=2),
)
_options = st.fixed_dictionaries(
    {},
    optional={
        "expected_revision": st.integers(0, 4),
        "idempotency_key": st.sampled_from(["a", "b"]),
        "request_id": st.sampled_from(["r1", "alice@example.com"]),
        "meta": st.sampled_from([{}, {"n": 1}, {"m": "alice@example.com"}, {"bad": {1}}]),
        "envelope": st.sampled_from([{"author": "bob"}, {"request_id": "r2"}, {"status": "ok"}]),
    },
)
_steps = st.lists(
    st.tuples(st.sampled_from(["append", "extend"]), _items, st.just({}) | _options), max_size=5
)


def carried_out(
    path: Path, steps: list[tuple[str, list[Any], dict[str, Any]]], orphans: str, redact: str | None
) -> list[Any]:
    """Receipts and errors of the steps, then every row of the file but its format record."""
    told: list[Any] = []

    def note(change: Callable[[], Any]) -> None:
        try:
            told.append(tuple(change()))
        except Exception as error:  # noqa: BLE001 - hostile items raise what they like
            told.append((type(error), str(error)))

    with memcore.open(path, durability="none", allow_unsafe=True, redact=redact) as db:
        session = db.session("s", orphans=orphans)
        for verb, given_items, options in steps:
            items = [
                {**LARGE, "content": PADDING} if each is LARGE else each for each in given_items
            ]
            if verb == "extend":
                note(lambda: session.extend(items, **options))  # noqa: B023 - called at once
                continue
            for item in items:
                note(lambda: session.append(item, **options))  # noqa: B023 - called at once
        told.append(db.engine.store.read(lambda txn: list(txn.scan(b"\x01", b"\xff"))))
        assert db.check() == []
    return told


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=_steps,
    orphans=st.sampled_from(["raise", "keep"]),
    redact=st.sampled_from([None, "default"]),
)
def test_both_ways_store_and_tell_the_same(steps, orphans, redact) -> None:
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        short, long = Path(made, "short"), Path(made, "long")
        patch.setattr(time, "time_ns", lambda: NOW_US * 1000)  # blobs have times, too
        # One secret, so that both ways write the same placeholders.
        patch.setattr(Secret, "value", lambda _: b"s" * 32)
        with memcore.open(short, durability="none", allow_unsafe=True, redact=redact) as db:
            db.session("s", orphans=orphans).append({"role": "user", "content": PADDING})
        shutil.copy(short, long)
        found = carried_out(short, steps, orphans, redact)
        patch.setattr(SessionRef, "begin_append", lambda *_: None)
        patch.setattr(Engine, "filter_writes", _take_the_long_way)
        assert carried_out(long, steps, orphans, redact) == found


class _Absent:
    """An encoder that leaves every item to others."""

    screens = False

    def encode(self, *_: Any) -> list[Any]:
        return []


def _take_the_long_way(engine: Engine, write_filter: Any) -> None:
    engine.write_filter = write_filter
    engine.encoder = _Absent()  # type: ignore[assignment]


def test_plain_items_take_the_short_way(tmp_path, monkeypatch) -> None:
    """Else the law above compares the long way with itself."""
    ways: list[bool] = []
    plain = SessionRef.begin_append

    def seen(ref: SessionRef, items: list[Any], change: Any) -> Any:
        begun = plain(ref, items, change)
        ways.append(type(begun) is Append)
        return begun

    monkeypatch.setattr(SessionRef, "begin_append", seen)
    with memcore.open(tmp_path / "db") as db:
        session = db.session("s")
        session.append({"role": "user", "content": "the first makes the session"})
        session.append({"role": "user", "content": "hi"})
        session.extend([{"role": "assistant", "content": "yes"}] * 2)
        session.append(Odd(role="user", content="a kind of dict"))
    assert ways == [False, True, True, False]


class Counting(memcore.BytesEstimate):
    """Notes what it counts, and may change the list that it comes from."""

    def __init__(self) -> None:
        super().__init__(4)
        self.seen: list[Any] = []
        self.then: Callable[[], object] = int

    def count_message(self, message: Any, encoded: bytes) -> int:
        """Count as ever."""
        if "content" in message:  # what a frame costs is counted once
            self.seen.append(message["content"])
            self.then()
        return super().count_message(message, encoded)


@pytest.mark.parametrize(
    "odd", [Odd(role="user", content="odd"), {"role": "user", "content": "\ud800"}]
)
def test_an_item_that_is_not_plain_has_no_other_counted_twice(tmp_path, odd) -> None:
    counter = Counting()
    with memcore.open(tmp_path / "db", counter=counter) as db:
        session = db.session("s")
        session.append({"role": "user", "content": "first"})
        counter.seen.clear()
        session.extend([{"role": "user", "content": "a"}, odd, {"role": "user", "content": "b"}])
        assert counter.seen == ["a", odd["content"], "b"]


def test_a_counter_that_empties_the_list_loses_no_item(tmp_path) -> None:
    """What was handed over is stored, and the receipt says so."""
    counter = Counting()
    with memcore.open(tmp_path / "db", counter=counter) as db:
        session = db.session("s")
        session.append({"role": "user", "content": "first"})
        for odd in ({"role": "user", "content": "plain"}, Odd(role="user", content="odd")):
            items = [{"role": "user", "content": "a"}, odd]
            counter.then = items.clear
            assert session.extend(items).appended == 2
        assert len(session) == 5


def test_fields_that_hold_nothing_are_errors_and_no_crash(tmp_path) -> None:
    with memcore.open(tmp_path / "db") as db:
        db.session("s").append({"role": "user", "content": "hi"})
        with pytest.raises(AttributeError):
            Append.__new__(Append)(object())
        with pytest.raises(AttributeError):
            Leader.__new__(Leader).run(WriteBatch(None))


class Asked(SessionRef):
    """A reference whose drafts somebody looks at."""

    __slots__ = ("drafts",)

    def draft(self, txn: Any, *, create: bool, guarded: bool = True) -> Any:
        self.drafts += 1
        return super().draft(txn, create=create, guarded=guarded)


@pytest.mark.parametrize("always", [True, False])
def test_a_draft_that_is_always_looked_at_is_asked_for_each_time(tmp_path, always) -> None:
    """Else only while the session is not known yet; a branch of the OpenAI adapter needs it."""
    with memcore.open(tmp_path / "db") as db:
        known = db.session("s")._ref
        ref = Asked(known.engine, known.app, known.user, known.name, known.options)
        ref.drafts, ref.always_drafts = 0, always
        session = memcore.Session(ref)
        for number in range(3):
            session.append({"role": "user", "content": str(number)})
        assert ref.drafts == (3 if always else 1)
