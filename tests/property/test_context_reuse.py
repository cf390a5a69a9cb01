"""What contexts reuse of earlier ones never shows: they equal those of a log that knows nothing."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore.session.rewrite import rewrite_items
from memcore.session.session import Session, ref_of
from messages import assistant, call, result, system, turns, user

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["turns", "tools", "undo", "compact"]), st.integers(1, 12)),
        st.tuples(st.sampled_from(["fork", "rewrite", "start over"]), st.just(0)),
        st.tuples(st.sampled_from(["turns", "turns", "event", "odd"]), st.just(1)),
    ),
    min_size=3,
    max_size=14,
)


def change(db: Any, session: Session, step: str, size: int, number: int) -> Session:
    """Carry out a step; returns the session to go on with."""
    match step:
        case "turns":
            for at in range(size):
                session.extend([user(f"{number}.{at} asks"), assistant("é" * at)])
        case "tools":
            for at in range(size):
                session.append(call(f"c{number}.{at}"))
                session.append(result(f"c{number}.{at}", "r" * at))
        case "event":
            session.record("note", {"n": number})
        case "odd":
            session.append({"role": "user", "content": "x", "n": 1 << 70})
        case "fork":
            return session.fork(f"s{number}")
        case "undo":
            session.undo(size)
        case "rewrite":
            rewrite_one(session)
        case "compact":
            session.compact(lambda _: f"summary {number}", keep_last=size)
        case "start over":
            db.delete_session(session.id)
            session.extend([system(), user(f"{number}"), assistant()])
    return session


def rewrite_one(session: Session) -> None:
    """Rewrite the first user item in place, in the session that owns its row."""
    ref = ref_of(session)
    log = ref.log or ref.resolve()
    assert log is not None
    for item in session:
        if item.kind == memcore.ItemKind.USER:
            owner = log.history.owner_of(item.seq)
            assert owner is not None
            rewrite_items(ref.engine, log.scope, owner, {item.seq: user("-")})
            return


@settings(max_examples=80, deadline=None)
@given(STEPS, st.sampled_from([None, 400, 4000]))
def test_a_context_is_that_of_a_log_that_knows_nothing(steps, budget):
    with memcore.open(":memory:") as db:
        session = db.session("s")
        session.extend([system(), *turns(4)])
        for number, (step, size) in enumerate(steps):
            session = change(db, session, step, size, number)
            if step == "fork" and number % 2:
                continue  # its first context comes behind the next step
            shown = session.context(budget)
            kept = copy.deepcopy(shown)
            for message in shown.messages:  # what is handed out is the caller's
                message["content"] = [message.get("content"), "changed"]
            again = session.context(budget)
            log = ref_of(session).log
            if log is not None:
                log.forget_all()
                log.shown = None
            assert kept == again == session.context(budget)
