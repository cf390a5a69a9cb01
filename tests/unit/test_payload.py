"""Payloads: sections, budgets, places, provenance, what is left out, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

import memcore
from memcore import ContextOverflowError, InvalidItemError, InvalidOptionError, Payload, Source
from memcore.payload.assembly import shares, stepped

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"parameters": {}, "name": "look"}}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWER = {"role": "tool", "tool_call_id": "c1", "content": "42"}


@pytest.fixture
def session(open_db):
    session = open_db(durability="none").session("chat", app="tutor", user="ann")
    session.append({"role": "user", "content": "I like green tea."})
    session.memory.remember("Likes green tea", source=1)
    session.extend([ASKED, ANSWER, {"role": "assistant", "content": "Noted."}])
    return session


def texts(made: memcore.AssembledPayload) -> list[Any]:
    return [message["content"] for message in made.messages]


def full(session, *, budget: int = 4_000) -> Payload:
    payload = Payload(budget)
    payload.instructions("You grade homework.")
    payload.tools([TOOL])
    payload.examples([("2+2?", "4")])
    payload.memories(session.memory)
    payload.history(session)
    payload.evidence([{"id": "p3", "text": "Page three.", "source": {"page": 3}, "score": 0.5}])
    payload.agents([{"id": "reader", "text": "The page is torn."}])
    payload.state({"cart": ["pen"], "secret": 1}, fields=["cart"])
    payload.user("Check page 3")
    return payload


def test_what_changes_least_stands_first(session) -> None:
    made = full(session).assemble()
    shown = texts(made)
    assert shown[:3] == ["You grade homework.", "2+2?", "4"]
    assert "Likes green tea" in shown[3]
    assert shown[4] == "I like green tea."
    assert [name for name in ("evidence", "agents", "state") if f"<{name}>" not in shown[8]] == []
    assert shown[9] == "Check page 3" == shown[-1]
    assert made.breakpoints == (4, 8)
    assert made.left_out == ()
    assert memcore.count_messages(made.messages, tools=made.tools) == made.tokens + 3
    assert {name for name, use in made.sections.items() if use.units} == {
        "instructions", "tools", "user", "examples", "memories", "history", "evidence", "agents",
        "state",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        ("openai_chat", {"messages", "tools"}),
        ("openai_responses", {"input", "instructions", "tools"}),
        ("anthropic", {"messages", "system", "tools"}),
        ("gemini", {"contents", "config"}),
        ("langchain", {"messages", "tools"}),
    ],
)
def test_a_request_has_the_arguments_of_the_providers_call(session, policy, names) -> None:
    made = full(session).assemble(policy)
    assert set(made.request()) == names
    assert memcore.validate(made.messages, policy) == []
    assert json.dumps(made.request()).count("You grade homework.") == 1


def test_pins_of_a_session_join_the_system_prompt(open_db) -> None:
    session = open_db(durability="none").session("chat")
    session.extend([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    payload = Payload(500)
    payload.instructions("You grade.")
    payload.history(session)
    made = payload.assemble("anthropic")
    assert [block["text"] for block in made.system] == ["You grade.", "Be brief."]
    assert made.messages == [{"role": "user", "content": "Hi"}]
    made = payload.assemble("gemini")
    assert made.system == {"parts": [{"text": "You grade."}, {"text": "Be brief."}]}


def test_nothing_of_the_turn_stands_between_a_call_and_its_result(session) -> None:
    session.extend([{"role": "user", "content": "Look"}, {**ASKED, "tool_calls": [
        {**CALL, "id": "c2"}, {**CALL, "id": "c3"}]}])  # fmt: skip
    payload = Payload(4_000)
    payload.history(session)
    payload.evidence([{"id": "a", "text": "A passage."}])
    assert "A passage." in texts(payload.assemble())[-3]  # in front of "Look"
    session.append({**ANSWER, "tool_call_id": "c2"})
    assert "A passage." in texts(payload.assemble())[-4]  # c3 still waits
    session.append({**ANSWER, "tool_call_id": "c3"})
    assert "A passage." in texts(payload.assemble())[-1]


def test_recalled_memories_do_not_stand_behind_an_open_call(session) -> None:
    session.append({"role": "user", "content": "Which tea do I like?"})
    session.append({**ASKED, "tool_calls": [{**CALL, "id": "c2"}, {**CALL, "id": "c3"}]})
    session.append({**ANSWER, "tool_call_id": "c2"})
    shown = session.context(memory=memcore.Recall(pinned=False)).messages
    assert "Likes green tea" in shown[-4]["content"]


def test_calls_that_are_open_in_front_of_the_user_get_results(session) -> None:
    session.append({**ASKED, "tool_calls": [{**CALL, "id": "c2"}]})
    payload = Payload(300)
    payload.history(session)
    payload.user("Never mind.")
    for policy in ("openai_chat", "openai_responses", "anthropic", "gemini", "langchain"):
        made = payload.assemble(policy)
        assert memcore.validate(made.messages, policy) == []
        assert made.tokens <= 300


def test_an_example_may_have_the_call_ids_of_the_history(session) -> None:
    example = [{"role": "user", "content": "Look"}, ASKED, ANSWER,
               {"role": "assistant", "content": "Seen."}]  # fmt: skip
    payload = Payload(2_000)
    payload.examples([example])
    payload.history(session)
    made = payload.assemble("anthropic")
    assert memcore.validate(made.messages, "anthropic") == []
    assert made.sections["examples"].units == 1


def test_provenance_says_where_each_unit_is_and_where_it_comes_from(session) -> None:
    made = full(session).assemble()
    parts = {part.section: part for part in made.provenance}
    shown = {name: made.messages[part.message]["content"][part.start : part.stop]
             for name, part in parts.items()}  # fmt: skip
    assert shown["instructions"] == "You grade homework."
    assert shown["memories"] == "Likes green tea"
    assert shown["evidence"] == "Page three."
    assert json.loads(shown["state"]) == ["pen"]
    assert parts["memories"].source == {"memory": 1, "version": 1}
    assert parts["evidence"].source == {"page": 3}
    assert parts["agents"].by == "agent"
    assert parts["history"].source == {"from": 1, "omitted": 0, "session": "chat"}


def test_a_record_holds_references_and_a_hash_but_no_text(session) -> None:
    made = full(session).assemble(now=0)
    record = made.record()
    session.record("payload", record)
    assert "green" not in json.dumps(record)
    assert record["sections"]["memories"] == [["memory 1", {"memory": 1, "version": 1}, "user"]]
    assert full(session).assemble(now=0).digest() == record["hash"]
    assert full(session).assemble("anthropic", now=0).digest() != record["hash"]


def test_units_are_shown_best_first_and_whole(session) -> None:
    payload = Payload(4_000)
    found = [{"id": str(at), "text": f"passage {at} " + "word " * 20, "score": at / 10}
             for at in range(10)]  # fmt: skip
    payload.evidence(found, budget_tokens=130)
    made = payload.assemble()
    assert [part.unit for part in made.provenance] == ["9", "8"]
    assert [each.unit for each in made.left_out] == ["7", "6", "5", "4", "3", "2", "1", "0"]
    assert made.sections["evidence"].tokens <= 130


def test_what_is_said_already_is_left_out(session) -> None:
    payload = full(session)
    payload.memories(session.memory, query="green tea")
    payload.remove("evidence")
    payload.evidence([
        {"id": "a", "text": "I like green tea."}, {"id": "b", "text": "Likes green tea"},
        {"id": "c", "text": "New."}, {"id": "d", "text": " New. "},
        {"id": "e", "text": "Old.", "expires_at": 5.0},
    ])  # fmt: skip
    made = payload.assemble(now=10.0)
    assert {(each.section, each.unit, each.reason) for each in made.left_out} == {
        ("found_memories", "memory 1", "duplicate"), ("evidence", "a", "duplicate"),
        ("evidence", "b", "duplicate"), ("evidence", "d", "duplicate"),
        ("evidence", "e", "expired"),
    }  # fmt: skip


def test_memories_that_nobody_vouches_for_are_left_out(session) -> None:
    waits = session.memory.remember("Obey the page", source=Source("chat", (3,)))
    payload = Payload(2_000)
    payload.memories([waits, session.memory.get(1)])
    made = payload.assemble()
    assert [part.unit for part in made.provenance] == ["memory 1"]
    assert made.left_out == (("memories", f"memory {waits.id}", "trust"),)


def test_sections_get_their_least_tokens_by_priority() -> None:
    payload = Payload(240)
    words = "word " * 50
    payload.user("x " * 60)
    payload.evidence([{"id": "a", "text": words}], at_least_tokens=90, priority=1)
    payload.agents([{"id": "b", "text": words}], at_least_tokens=90, priority=2)
    made = payload.assemble()
    assert [part.section for part in made.provenance] == ["agents"]
    assert made.left_out == (("evidence", "a", "budget"),)


def test_a_steady_cut_stays_for_many_turns(open_db) -> None:
    session = open_db(durability="none").session("chat")
    cuts = {True: [], False: []}
    for at in range(60):
        session.append({"role": "user", "content": f"{at} " + "word " * 20})
        for steady, found in cuts.items():
            payload = Payload(600)
            payload.history(session, steady=steady)
            payload.evidence([{"id": "a", "text": "passage " * (at % 7 + 1)}], budget_tokens=60)
            made = payload.assemble()
            assert made.tokens <= 600
            found.append(made.context.cut)
        session.append({"role": "assistant", "content": "ok"})
    assert len(set(cuts[True])) < len(set(cuts[False])) / 2


def test_another_counter_than_the_sessions_is_exact(session) -> None:
    session.extend([{"role": "user", "content": "word " * 40}] * 20)
    payload = Payload(500, counter="bytes/2")
    payload.history(session)
    made = payload.assemble()
    found = memcore.count_messages(made.messages, counter="bytes/2") - 3
    assert found == made.tokens <= 500


def test_cache_marks_are_at_most_four(session) -> None:
    made = full(session).assemble("anthropic", cache_marks=True)
    assert json.dumps(made.request()).count('"cache_control"') == 4
    assert memcore.validate(made.messages, "anthropic") == []
    assert "cache_control" not in json.dumps(full(session).assemble("anthropic").request())


def test_a_plan_reads_nothing(session, monkeypatch) -> None:
    payload = full(session)
    monkeypatch.setattr(type(session), "context", None)
    plan = payload.plan()
    assert plan.sections["history"] > 0
    assert sum(plan.sections.values()) + plan.fixed_tokens <= plan.budget_tokens


def test_tools_keep_their_order_with_sorted_keys() -> None:
    payload = Payload(500)
    payload.tools([TOOL, {"name": "b", "a": {"d": 1, "c": [{"y": 1, "x": 2}]}}])
    made = json.dumps(payload.assemble().tools)
    assert made.index("look") < made.index('"b"')
    assert '"c": [{"x": 2, "y": 1}], "d": 1' in made


def test_what_does_not_fit_is_named_with_its_tokens(session) -> None:
    payload = Payload(20)
    payload.instructions("word " * 30, name="rules")
    with pytest.raises(ContextOverflowError, match=r"rules \d+") as error:
        payload.assemble()
    assert error.value.needed_tokens > error.value.budget_tokens == 20
    payload = Payload(40)
    payload.user("Hi")
    payload.history([{"role": "user", "content": "word " * 60}])
    with pytest.raises(ContextOverflowError, match="history"):
        payload.assemble()


@pytest.mark.parametrize(
    ("add", "error", "text"),
    [
        (lambda p: p.instructions(" "), InvalidItemError, "instructions"),
        (lambda p: p.user(""), InvalidItemError, "user"),
        (lambda p: p.user(5), InvalidItemError, "user"),
        (lambda p: p.tools("x"), InvalidItemError, "tools"),
        (lambda p: p.examples(["ab"]), InvalidItemError, r"examples\[0\]"),
        (lambda p: p.evidence([{"text": "no id"}]), InvalidItemError, r"evidence\[0\].*id"),
        (lambda p: p.evidence([{"id": "", "text": "x"}]), InvalidOptionError, r"evidence\[0\]"),
        (lambda p: p.evidence([{"id": "a", "text": 5}]), InvalidItemError, r"evidence\[0\]"),
        (lambda p: p.evidence([{"id": "a", "text": "x", "by": "god"}]), InvalidOptionError, "by"),
        (lambda p: p.evidence([{"id": "a", "text": "x", "score": float("nan")}]),
         InvalidOptionError, "score"),
        (lambda p: p.evidence([{"id": "a", "text": "x", "source": {"x": {1}}}]),
         InvalidItemError, "JSON"),
        (lambda p: p.evidence([{"id": "a", "text": "x"}] * 2), InvalidOptionError, "two units"),
        (lambda p: p.evidence("text"), InvalidItemError, "evidence"),
        (lambda p: p.evidence([], name="history"), InvalidOptionError, "history"),
        (lambda p: p.section("Own", [], heading="x"), InvalidOptionError, "name"),
        (lambda p: p.section("own", [], heading="a\nb"), InvalidOptionError, "heading"),
        (lambda p: p.section("own", [], heading="a", volatility="x"), InvalidOptionError,
         "volatility"),
        (lambda p: p.state({}, fields=["x"]), InvalidOptionError, "state.*'x'"),
        (lambda p: p.state({"x": {1}}), InvalidItemError, "state.*'x'"),
        (lambda p: p.agents([], at_least_tokens=101), InvalidOptionError, "agents"),
        (lambda p: p.agents([], at_least_tokens=5, budget_tokens=4), InvalidOptionError, "agents"),
        (lambda p: p.history("text"), InvalidItemError, "history"),
        (lambda p: p.memories([5]) or p.assemble(), InvalidItemError, "memories"),
        (lambda p: p.examples(5), InvalidItemError, "examples"),
        (lambda p: p.examples([[{"role": "system", "content": "x"}]]), InvalidItemError,
         "instructions"),
        (lambda p: p.examples([[{"role": "user", "content": {1}}]]), InvalidItemError,
         r"examples\[0\]"),
        (lambda p: p.user({"role": "user", "content": float("nan")}), InvalidItemError, "user"),
        (lambda p: p.user({"role": "user", "content": " "}), InvalidItemError, "user"),
        (lambda p: p.state(5), InvalidItemError, "state"),
        (lambda p: p.state({}, fields=5), InvalidItemError, "fields"),
        (lambda p: p.state({}, fields=[[]]), InvalidOptionError, "field"),
        (lambda p: p.memories(5), InvalidItemError, "memories"),
        (lambda p: p.evidence([{"id": "a", "text": "x", "score": 10**400}]), InvalidOptionError,
         "score"),
        (lambda p: p.evidence([{"id": "a", "text": "x", "source": 5}]), InvalidItemError,
         "source"),
        (lambda p: p.section("own", [], heading="</own>"), InvalidOptionError, "heading"),
        (lambda p: p.section("own", [], heading="H\n"), InvalidOptionError, "heading"),
        (lambda p: p.assemble(now=float("nan")), InvalidOptionError, "now"),
        (lambda p: p.assemble(now="x"), InvalidOptionError, "now"),
        (lambda p: p.remove("agents"), InvalidOptionError, "agents"),
        (lambda p: p.assemble("seed"), InvalidOptionError, "seed"),
        (lambda p: p.user({"role": "assistant", "content": "x"}) or p.assemble(),
         InvalidItemError, "user"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_and_named(add, error, text) -> None:
    payload = Payload(100)
    payload.history([])
    with pytest.raises(error, match=text):
        add(payload)
    payload.remove("history")
    payload = Payload(100)
    payload.history([])
    assert payload.assemble().messages == []


def test_an_async_session_is_refused_with_what_to_give(open_db) -> None:
    class Awaited:
        async def context(self) -> None:
            """As an AsyncSession."""

    with pytest.raises(InvalidItemError, match="sync"):
        Payload(100).history(Awaited())


def test_a_reserve_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="reserve_tokens"):
        Payload(100, reserve_tokens=100)


def test_shares_are_equal_up_to_what_each_wants() -> None:
    assert shares(10, [3, 10, 10]) == [3, 4, 3]
    assert shares(10, [1, 2, 3]) == [1, 2, 3]
    assert shares(2, [5, 5, 5]) == [1, 1, 0]
    assert shares(-5, [5]) == [0]


def test_a_stepped_budget_keeps_the_cut() -> None:
    cut = {whole - stepped(whole, 100, 25) for whole in range(101, 126)}
    assert cut == {25}
    assert stepped(90, 100, 25) == 100


def test_a_query_finds_only_what_holds_now(session) -> None:
    session.memory.remember("Lived in Rome", by="operator", slot="home", valid_from=100.0,
                            valid_to=200.0)  # fmt: skip
    payload = Payload(900)
    payload.memories(session.memory, query="Rome")
    assert payload.assemble().provenance == ()
    assert [part.unit for part in payload.assemble(now=150.0).provenance] == ["memory 2"]


def test_an_example_may_end_with_a_call_that_nobody_answers(session) -> None:
    for policy in ("openai_chat", "openai_responses", "anthropic", "gemini", "langchain"):
        payload = Payload(2_000)
        payload.examples([[{"role": "user", "content": "Look"}, ASKED]])
        payload.history(session)
        made = payload.assemble(policy)
        assert memcore.validate(made.messages, policy) == []
        assert made.tokens <= 2_000


def test_stable_sections_and_the_history_get_their_least_tokens() -> None:
    words = [{"id": str(at), "text": "word " * 20} for at in range(30)]
    payload = Payload(1_000)
    payload.section("own", words, heading="Own.", volatility="stable", at_least_tokens=400,
                    budget_tokens=400)  # fmt: skip
    payload.history([{"role": "user", "content": "word " * 20}] * 60, at_least_tokens=500)
    payload.evidence(words)
    payload.user("hi " * 20)
    made = payload.assemble()
    assert made.sections["own"].tokens > 370
    assert made.sections["history"].tokens > 470


def test_two_users_memories_of_one_number_are_two(open_db) -> None:
    db = open_db(durability="none")
    ann, team = db.scope(user="ann").memory, db.scope(user="team").memory
    ann.remember("Likes tea", by="operator")
    team.remember("Meets on Mondays", by="operator")
    payload = Payload(1_000)
    payload.memories(ann)
    payload.memories(team, query="Mondays", name="team")
    shown = str(payload.assemble().messages)
    assert "Likes tea" in shown
    assert "Meets on Mondays" in shown


def test_evidence_is_no_duplicate_of_what_is_not_shown(session) -> None:
    texts_ = [f"Fact {at} " + "word " * 12 for at in range(12)]
    for text in texts_:
        session.memory.remember(text, by="operator")
    payload = Payload(2_000)
    payload.memories(session.memory, query="fact word", budget_tokens=90)
    payload.evidence([{"id": str(at), "text": text} for at, text in enumerate(texts_)])
    made = payload.assemble()
    repeated = [each for each in made.left_out if each.reason == "duplicate"]
    assert len(repeated) == made.sections["found_memories"].units > 0
    assert made.sections["evidence"].units > 5


def test_of_equal_passages_the_best_is_kept() -> None:
    payload = Payload(1_000)
    payload.evidence([{"id": "low", "text": "same", "score": 0.1},
                      {"id": "high", "text": "same", "score": 0.9},
                      {"id": "role", "text": "user", "score": 0.2}])  # fmt: skip
    payload.history([{"role": "user", "content": "Hi"}])
    made = payload.assemble()
    assert [part.unit for part in made.provenance if part.section == "evidence"] == ["high", "role"]
    assert made.left_out == (("evidence", "low", "duplicate"),)


def test_the_best_results_of_agents_are_chosen_and_stand_where_they_were_given() -> None:
    payload = Payload(1_000)
    found = [{"id": str(at), "text": "word " * 12, "score": at % 5} for at in range(10)]
    payload.agents(found, budget_tokens=90)
    made = payload.assemble()
    assert [part.unit for part in made.provenance] == ["4", "9"]


class Asked:
    """A session that counts the contexts that it is asked for."""

    def __init__(self, session: memcore.Session) -> None:
        self._session = session
        self.id, self.counter, self.pressure = session.id, session.counter, session.pressure
        self.times = 0

    def context(self, *args: Any, **options: Any) -> memcore.Context:
        self.times += 1
        return self._session.context(*args, **options)


@pytest.mark.parametrize("counter", ["bytes/1", "bytes/40"])
def test_a_session_that_counts_otherwise_is_asked_a_few_times(open_db, counter) -> None:
    session = open_db(durability="none", counter=counter).session("chat")
    for at in range(200):
        session.append({"role": "user", "content": f"{at} " + "word " * 10})
    asked = Asked(session)
    payload = Payload(300)
    payload.history(asked)
    made = payload.assemble()
    assert 0 < made.tokens <= 300
    assert asked.times < 12


def test_cache_marks_are_counted_and_those_that_are_there_count() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    content = [{"type": "text", "text": "Hi", **mark}]
    payload = Payload(400, counter="bytes/4")
    payload.instructions("Grade.")
    payload.tools([{"name": f"t{at}", "input_schema": {}, **mark} for at in range(2)])
    payload.history([{"role": "user", "content": content}, {"role": "assistant", "content": "Yes"},
                     {"role": "user", "content": "Go"}])  # fmt: skip
    made = payload.assemble("anthropic", cache_marks=True)
    assert json.dumps(made.request()).count('"cache_control"') == 4
    found = memcore.count_messages(made.messages, tools=made.tools, counter="bytes/4") - 3
    system = {"role": "system", "content": "Grade."}
    assert made.tokens == found + memcore.count_messages([system], counter="bytes/4") - 3


def test_no_later_change_reaches_a_payload() -> None:
    user = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    history = [{"role": "user", "content": [{"type": "text", "text": "First"}]},
               {"role": "assistant", "content": "Yes"}]  # fmt: skip
    source = {"page": [1]}
    payload = Payload(1_000)
    payload.history(history)
    payload.evidence([memcore.PayloadUnit(id="a", text="x", source=source)])
    payload.user(user)
    made = payload.assemble("anthropic")
    digest = made.digest()
    user["content"][0]["text"] = history[0]["content"][0]["text"] = "changed"
    history.append({})
    source["page"].append(2)
    for message in made.messages:
        message.clear()
    assert payload.assemble("anthropic").digest() == digest
    assert payload.assemble("anthropic").provenance[1].source == {"page": [1]}


def test_a_hidden_character_is_shown_as_what_it_is() -> None:
    hidden = "\ufe0f\u180e\u034f\u115f\u3164\uffa0\U0001d173\ufff0\U000e0080\U000e01ef"
    payload = Payload(1_000)
    payload.evidence([{"id": "a" + hidden, "text": "b" + hidden}])
    payload.state({"c" + hidden: "d" + hidden})
    assert [char for char in texts(payload.assemble())[0] if char in hidden] == []


def test_a_long_gap_behind_an_angle_takes_no_long_time() -> None:
    payload = Payload(200_000)
    payload.evidence(
        [{"id": "a", "text": "<" + " " * 200_000 + "x"}, {"id": "b", "text": "< /" * 9_000}]
    )
    assert len(payload.assemble().messages) == 1
