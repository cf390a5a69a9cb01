"""Several agents on one session: views of a shared history, and calls that other agents answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import memcore
from memcore import InvalidItemError, InvalidOptionError, NotFoundError, OrphanResultError

ASK = {"role": "user", "content": "Write me a poem."}


def calling(policy: str, *ids: str) -> dict:
    """A message that calls ``write`` with some ids."""
    calls = [
        {"id": i, "type": "function", "function": {"name": "write", "arguments": "{}"}} for i in ids
    ]
    chat = [ASK, {"role": "assistant", "content": None, "tool_calls": calls}]
    if policy == "openai_chat":
        return chat[1]
    return memcore.convert(chat, to=policy).messages[-len(ids) if "resp" in policy else -1]


WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini", "langchain")


@pytest.fixture
def db(open_db):
    return open_db(durability="none")


@pytest.mark.parametrize("policy", WIRES)
def test_another_agent_answers_a_call_once_in_its_own_history(db, policy) -> None:
    session = db.session("chat", policy=policy)
    session.append(memcore.convert([ASK], to=policy).messages[0])
    session.append(calling(policy, "c1"))
    work = session.delegate("c1", agent="writer")
    assert (work.session.id, work.is_open) == ("chat::2-c1", True)
    work.session.append(memcore.convert([ASK], to=policy).messages[0])
    first = work.finish("Roses are red.", tokens=7)
    assert work.finish("Another poem.") == first == work.fail("late")
    assert not work.is_open
    made = session.context().messages
    assert memcore.validate(made, policy) == []
    assert "Roses are red." in str(made)
    item = session.tail(1)[0]
    assert (item.envelope.author, item.envelope.status, item.envelope.tokens) == ("writer", "ok", 7)
    assert item.meta == {"delegated": {"session": "chat::2-c1", "agent": "writer"}}
    assert len(session) == 3
    assert session.context().repairs == ()


@pytest.mark.parametrize("policy", WIRES)
def test_a_failure_answers_the_call_with_an_error(db, policy) -> None:
    session = db.session("chat", policy=policy)
    session.append(memcore.convert([ASK], to=policy).messages[0])
    session.append(calling(policy, "c1"))
    with pytest.raises(ZeroDivisionError), session.delegate("c1", agent="writer"):
        raise ZeroDivisionError
    assert session.open_calls == []
    assert session.tail(1)[0].envelope.status == "error"
    assert "the agent failed: ZeroDivisionError" in str(session.context().messages)
    assert memcore.validate(session.context().messages, policy) == []


def test_an_end_without_a_result_leaves_no_open_call(db) -> None:
    session = db.session("chat")
    session.extend([ASK, calling("openai_chat", "c1", "c2")])
    with session.delegate("c1", agent="writer"):
        pass
    with session.delegate("c2", agent="writer") as work:
        work.finish("done")
    assert session.open_calls == []
    contents = [item.message["content"] for item in session.tail(2)]
    assert contents == ["the agent ended without a result", "done"]


def test_a_repeat_goes_on_with_the_same_work(db) -> None:
    session = db.session("chat")
    session.extend([ASK, calling("openai_chat", "c1")])
    session.delegate("c1", agent="writer").session.append(ASK)
    again = db.session("chat").delegate("c1", agent="writer")
    assert [item.type for item in again.session] == ["delegated", "user_input"]
    again.finish("done")
    assert not session.delegate("c1", agent="writer").is_open
    with pytest.raises(InvalidOptionError, match="another agent"):
        session.delegate("c1", agent="painter")


def test_one_of_two_agents_gets_a_call(db) -> None:
    session = db.session("chat")
    session.extend([ASK, calling("openai_chat", "c1")])

    def run(agent: str) -> str:
        try:
            return session.delegate("c1", agent=agent).agent
        except InvalidOptionError:
            return ""

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, ["a", "b", "c", "d"]))
    assert len([each for each in found if each]) == 1


def test_an_answer_from_elsewhere_stands(db) -> None:
    session = db.session("chat")
    session.extend([ASK, calling("openai_chat", "c1")])
    work = session.delegate("c1", agent="writer")
    session.append({"role": "tool", "tool_call_id": "c1", "content": "from a human"})
    with pytest.raises(OrphanResultError):
        work.finish("late")
    assert len(session) == 3


@pytest.mark.parametrize("call_id", ["a::b", ":", "ü" * 80, "x" * 300, "a/../b", "call 1"])
def test_any_call_id_names_a_session(db, call_id) -> None:
    session = db.session("chat")
    session.extend([ASK, calling("openai_chat", call_id)])
    work = session.delegate(call_id, agent="writer")
    work.finish("done")
    assert session.open_calls == []
    assert session.delegate(call_id, agent="writer").session.id == work.session.id


def test_what_cannot_be_delegated_is_refused_and_stores_nothing(db) -> None:
    session = db.session("chat")
    session.extend([ASK, calling("openai_chat", "c1"),
                    {"role": "tool", "tool_call_id": "c1", "content": "ok"},
                    calling("openai_chat", "c2")])  # fmt: skip
    with pytest.raises(NotFoundError):
        session.delegate("c9", agent="writer")
    with pytest.raises(InvalidOptionError, match="already"):
        session.delegate("c1", agent="writer")
    for agent in ("", "user", 5, "x" * 2_000):
        with pytest.raises(InvalidOptionError, match="agent"):
            session.delegate("c2", agent=agent)
    responses = db.session("other", policy="openai_responses")
    responses.append({"type": "computer_call", "call_id": "c1", "action": {}})
    with pytest.raises(InvalidOptionError, match="no text"):
        responses.delegate("c1", agent="writer")
    assert [entry.session_id for entry in db.sessions()] == ["chat", "other"]
    with pytest.raises(InvalidItemError, match="result"):
        session.delegate("c2", agent="writer").finish(5)


def test_private_state_stays_with_its_agent(db) -> None:
    session = db.session("chat", user="ann")
    session.extend([ASK, calling("openai_chat", "c1")])
    session.state.update({"draft": 1, "user:name": "Ann", "app:limit": 2})
    child = session.delegate("c1", agent="writer").session
    child.state.update({"mine": 3})
    assert child.state.all() == {"mine": 3, "user:name": "Ann", "app:limit": 2}
    assert "mine" not in session.state.all()


def test_an_agent_sees_its_own_items_and_what_others_share(db) -> None:
    session = db.session("chat")
    session.append(ASK)
    planner, writer = session.as_agent("planner"), session.as_agent("writer", share="none")
    draft = {"type": "reflection"}
    planner.append({"role": "assistant", "content": "A private plan."}, envelope=draft)
    planner.append({"role": "assistant", "content": "The plan."})
    writer.extend([{"role": "assistant", "content": "A poem."}], envelope=draft)
    writer.record("note", {"x": 1})
    shown = [message["content"] for message in planner.context().messages]
    assert shown == ["Write me a poem.", "A private plan.", "The plan."]
    shown = [message["content"] for message in writer.context(500).messages]
    assert shown == ["Write me a poem.", "A poem."]
    assert [item.envelope.author for item in session.items(2)] == [
        "planner", "planner", "writer", "writer",
    ]  # fmt: skip


def test_a_view_writes_in_nobody_elses_name(db) -> None:
    session = db.session("chat")
    with pytest.raises(InvalidOptionError, match="write as"):
        session.as_agent("a").append(ASK, envelope={"author": "b"})
    for name, share in (("", "all"), ("user", "all"), ("a", "some"), (5, "all")):
        with pytest.raises(InvalidOptionError):
            session.as_agent(name, share=share)
    assert len(session) == 0


def test_two_agents_that_append_at_once_stay_legal(db) -> None:
    session = db.session("chat")
    session.append(ASK)

    def run(name: str) -> None:
        view = session.as_agent(name)
        for at in range(20):
            view.append(calling("openai_chat", f"{name}{at}"))
            view.append({"role": "tool", "tool_call_id": f"{name}{at}", "content": "ok"})

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, ["a", "b"]))
    assert len(session) == 81
    for name in ("a", "b"):
        made = session.as_agent(name, share="all").context().messages
        assert memcore.validate(made) == []
        assert len(session.as_agent(name).context().messages) == 41


def test_a_model_may_use_the_id_of_a_call_again(db) -> None:
    session = db.session("chat")
    session.extend([ASK, calling("openai_chat", "c1")])
    first = session.delegate("c1", agent="writer")
    answered = first.finish("one")
    session.append(calling("openai_chat", "c1"))
    again = session.delegate("c1", agent="painter")
    assert first.finish("late") == answered
    assert (first.is_open, again.is_open) == (False, True)
    again.finish("two")
    assert session.open_calls == []
    contents = [message["content"] for message in session.context().messages]
    assert contents[2::2] == ["one", "two"]
    assert again.session.id != first.session.id


def test_a_call_that_was_taken_back_needs_no_answer(db) -> None:
    session = db.session("chat")
    session.extend([ASK, calling("openai_chat", "c1")])
    with pytest.raises(ZeroDivisionError), session.delegate("c1", agent="writer"):
        session.undo()
        raise ZeroDivisionError
    assert len(session) == 1
