"""A handle that has loaded only the end of a history answers as one that has loaded all of it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import memcore
import strategies
from memcore.log import history as log_history
from memcore.session import context as picking
from memcore.wire import POLICIES
from messages import assistant, attempt, call, failing, result, user
from oracle import Event

LONG = bool(os.environ.get("MEMCORE_LONG_TESTS"))
relaxed = settings(
    max_examples=120 if LONG else 40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
WHOLE = 10**6
BUDGETS = (None, 10, 20, 30, 45, 60, 100, 200)
ids = st.sampled_from(strategies.IDS[:3])
chats = st.lists(
    st.one_of(
        st.builds(user),
        st.builds(assistant),
        st.builds(user),
        st.builds(call, ids),
        st.builds(result, ids),
        st.builds(Event),
        st.builds(lambda key: Event(((0, key),)), ids),
    ),
    min_size=10,
    max_size=40,
)
"""Chats in which results come late, twice and for ids that come again."""


@contextmanager
def loading(records: int) -> Iterator[None]:
    """Handles load so many records at first, and look for pins so far."""
    with (
        mock.patch.object(log_history, "RECENT_RECORDS", records),
        mock.patch.object(picking, "PINS_LOOK", min(records + 1, 1_024)),
    ):
        yield


def put(session: memcore.Session, item: Any) -> Any:
    """Append one entry of a drawn history; the receipt or the refusal."""
    try:
        if not isinstance(item, Event):
            return session.append(json.loads(json.dumps(item)))
        if not item.abandons:
            return session.record("note", 1)
        return session.abandon(item.abandons[0][1])
    except memcore.CallerError as refused:
        return type(refused), str(refused).replace(session.id, "?")


def anew(session: memcore.Session) -> memcore.Session:
    """The session with nothing loaded."""
    log = session._ref.resolve()
    if log is not None:
        with log.lock:
            log.forget()
    return session


def found_call(session: memcore.Session, name: str) -> memcore.CallRecord | None:
    try:
        return session.find_call(name)
    except memcore.NotFoundError:
        return None


def answers(session: memcore.Session) -> list[str]:
    """All that a session can be asked, each question on what it loads for it."""
    asked = [
        len,
        lambda s: (s.tokens, s.revision, s.open_calls),
        lambda s: (list(s), s.tail(3), s.views()),
        *(lambda s, b=b: attempt(s.context, b) for b in BUDGETS),
        *(lambda s, b=b: attempt(s.context, b, reserve_tokens=5) for b in BUDGETS[1:]),
        *(lambda s, n=n: s.needs_compaction(max_items=n) for n in (0, 3, 8)),
        *(lambda s, n=n: found_call(s, n) for n in (*strategies.IDS, *strategies.NAMES)),
    ]
    return [repr(ask(anew(session))) for ask in asked]  # refusals have no equality of their own


def opened(path: Path) -> memcore.Database:
    db = memcore.open(path, durability="none", allow_unsafe=True, counter="bytes/4")
    db.engine.now_us = lambda: 10**15  # equal changes give equal items
    return db


def outcome(session: memcore.Session, change: tuple[Any, ...]) -> Any:
    anew(session)
    what, *rest = change
    if what == "put":
        return put(session, rest[0])
    if what == "undo":
        return session.undo(rest[0])
    if what == "rewind":
        count = len(session) * rest[0] // 100
        return session.rewind(list(session)[count - 1].seq if count else 0)
    if what == "fork":
        count = len(session) * rest[0] // 100
        at = list(session)[count - 1].seq if count else 0
        fork = session.fork(f"{session.id}-{rest[0]}", at=at)
        return [each.replace(fork.id, "?") for each in answers(fork)]
    if what == "policy":
        return session.set_policy(rest[0])
    summarize = {"ok": lambda request: f"{len(request.messages)} folded", "fails": failing}
    done = session.compact(summarize.get(rest[0]), keep_last=rest[1], keep_tokens=rest[2])
    return done.status, done.plan, None if done.view is None else done.view.tokens_after


@st.composite
def scenarios(draw):
    policy = draw(st.sampled_from(tuple(POLICIES)))
    fmt = "openai_chat" if policy == "seed" else policy
    orderly = draw(st.booleans())
    written = draw(strategies.histories(fmt, orderly=orderly))
    written += draw(strategies.histories(fmt, orderly=orderly))
    if draw(st.booleans()):
        policy, written = draw(st.sampled_from(("openai_chat", "seed"))), draw(chats)
    more = draw(strategies.histories(fmt, orderly=orderly))[:8]
    kinds = st.one_of(
        st.tuples(st.just("undo"), st.integers(1, 12)),
        st.tuples(st.just("rewind"), st.integers(0, 100)),
        st.tuples(
            st.just("compact"),
            st.sampled_from(("ok", "fails", "trim")),
            st.integers(0, 5),
            st.sampled_from((None, 20, 80)),
        ),
        st.tuples(st.just("policy"), st.sampled_from(tuple(POLICIES))),
        st.tuples(st.just("fork"), st.integers(0, 100)),
    )
    changes = [("put", item) for item in more]
    for change in draw(st.lists(kinds, max_size=4, unique=True)):
        changes.insert(draw(st.integers(0, len(changes))), change)
    return policy, written, changes


ORPHAN_BEFORE_THE_END = (
    "openai_chat",
    [*[user()] * 8, assistant(), result("c2"), Event(())],
    [
        ("compact", "fails", 4, 20),
        *(("put", at) for at in (user("hello"), call("a"), call("b", "c"))),
    ],
)
"""The smallest suffix begins with an orphan and an event before the end that is loaded first."""


@relaxed
@given(scenarios(), st.sampled_from((1, 2, 3, 5, 8)), st.sampled_from(("raise", "keep")))
@example(ORPHAN_BEFORE_THE_END, 5, "keep")
def test_a_short_ledger_answers_like_the_whole(scenario, records, orphans):
    policy, written, changes = scenario
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.memcore"
        with opened(path) as db, loading(WHOLE):
            session = db.session("chat", policy=policy, orphans="keep")
            for item in written:
                put(session, item)
            for name in ("one-way", "another") if session.exists() else ():
                session.fork(name)
        if not written:
            return
        with opened(path) as first, opened(path) as second:
            for change in ((), *changes):
                whole = first.session("one-way", orphans=orphans)
                with opened(path) as fresh:
                    for db in (second, fresh):  # one that goes on, one that begins here
                        with loading(WHOLE):
                            expected = answers(whole)
                        with loading(records):
                            found = answers(db.session("another", orphans=orphans))
                        assert found == [each.replace("one-way", "another") for each in expected]
                if not change:
                    continue
                with loading(WHOLE):
                    expected = outcome(whole, change)
                with loading(records):
                    found = outcome(second.session("another", orphans=orphans), change)
                assert repr(found).replace("another", "?") == repr(expected).replace("one-way", "?")
            assert second.check() == []


RESULT_WITHOUT_ITS_CALL = ("openai_chat", [user(), call("a"), result("a"), user()], [])
ABANDONED_BEFORE = ("openai_chat", [user(), call("a"), user(), Event(((0, "a"),))], [])


@relaxed
@given(scenarios(), st.sampled_from((1, 3, 8, WHOLE)))
@example(RESULT_WITHOUT_ITS_CALL, WHOLE)
@example(ABANDONED_BEFORE, WHOLE)
@example(("openai_chat", [], [("rewind", 0)]), 1)
def test_the_first_read_of_a_few_items_is_a_slice_of_them_all(scenario, records):
    """Their token counts too: a result counts by its call, which may lie before them."""
    policy, written, changes = scenario
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder) / "agent.memcore") as db:
        session = db.session("chat", policy=policy, orphans="keep")
        for item in written:
            put(session, item)
        if not session.exists():
            return
        with loading(records):
            for change in ((), *(each for each in changes if each[0] != "fork")):
                if change:
                    outcome(session, change)
                whole = list(anew(session).items())
                assert sum(item.tokens for item in whole) == session.tokens
                for at, item in enumerate(whole):
                    assert anew(session).get(item.seq) == item
                    assert list(anew(session).items(start=item.seq)) == whole[at:]
                    assert anew(session).tail(len(whole) - at) == whole[at:]
                    assert list(anew(session).items(start=item.seq, stop=item.seq + 3)) == [
                        each for each in whole if item.seq <= each.seq < item.seq + 3
                    ]
