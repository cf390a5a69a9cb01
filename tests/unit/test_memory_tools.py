"""Memory as tools: schemas, calls in every wire format, whose word counts, errors as results."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcore
from memcore.codec import keys
from memcore.database.scope import engine_of
from memcore.memory.instruction import _plain, asks_to_forget, asks_to_remember, is_said
from memcore.memory.recall import CLOSING, HEADING, OPENING
from memcore.memory.tools import TOOLS
from memcore.rows import names

FORMATS = ("openai_chat", "openai_responses", "anthropic", "gemini", "langchain")


def said(policy: str, text: str) -> dict[str, Any]:
    if policy == "gemini":
        return {"role": "user", "parts": [{"text": text}]}
    if policy == "langchain":
        return {"type": "human", "content": text}
    return {"role": "user", "content": text}


def called(policy: str, *calls: tuple[str, str, Any]) -> list[dict[str, Any]]:
    """The items of one response with calls ``(id, name, arguments)``."""
    if policy == "openai_responses":
        return [
            {"type": "function_call", "call_id": i, "name": n, "arguments": json.dumps(a)}
            for i, n, a in calls
        ]
    if policy == "anthropic":
        blocks = [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in calls]
        return [{"role": "assistant", "content": blocks}]
    if policy == "gemini":
        parts = [{"functionCall": {"id": i, "name": n, "args": a}} for i, n, a in calls]
        return [{"role": "model", "parts": parts}]
    if policy == "langchain":
        made = [{"id": i, "name": n, "args": a, "type": "tool_call"} for i, n, a in calls]
        return [{"type": "ai", "content": "", "tool_calls": made}]
    made = [
        {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
        for i, n, a in calls
    ]
    return [{"role": "assistant", "content": None, "tool_calls": made}]


def texts(messages: list[dict[str, Any]]) -> list[str]:
    found = []
    for message in messages:
        parts = message.get("parts") or message.get("content")
        if isinstance(parts, list):
            for part in parts:
                if "functionResponse" in part:
                    found += part["functionResponse"]["response"].values()
                else:
                    found.append(part["content"])
        else:
            found.append(message.get("output", parts))
    return found


@pytest.fixture
def db(open_db):
    return open_db(durability="none")


def ask(memory: memcore.Memories, name: str, call_id: str = "c", **arguments: Any) -> str:
    (message,) = memory.call(called("openai_chat", (call_id, name, arguments)))
    return str(message["content"])


@pytest.mark.parametrize("policy", [*FORMATS, "seed"])
def test_schemas_name_the_tools_and_no_scope(db, policy):
    schemas = db.scope(user="u").memory.tools(policy)
    told = json.dumps(schemas)
    assert all(f'"{tool.name}"' in told for tool in TOOLS)
    for word in ('"user"', '"app"', '"user_id"', '"session"', '"scope"'):
        assert word not in told
    schemas[0].clear()  # the caller's own copy
    assert json.dumps(db.scope(user="u").memory.tools(policy)) == told
    with pytest.raises(memcore.InvalidOptionError):
        db.scope(user="u").memory.tools("soap")


@pytest.mark.parametrize("policy", FORMATS)
def test_a_turn_of_calls_is_answered_legally(db, policy):
    session = db.session("s", user="u", policy=policy)
    session.append(said(policy, "Please remember that I prefer window seats."))
    items = called(
        policy,
        ("a", "memory_remember", {"text": "User prefers window seats", "kind": "preference"}),
        ("b", "memory_search", {"query": "seats"}),
        ("c", "memory_forget", {"id": 99}),
    )
    session.extend(items)
    answers = session.memory.call(items)
    session.extend(answers)
    assert session.open_calls == []
    assert memcore.validate(session.context().messages, policy=policy) == []
    one, two, three = texts(answers)
    assert one == "Remembered as memory 1."
    assert two.splitlines()[:2] == [HEADING, OPENING]
    assert two.splitlines()[-1] == CLOSING
    assert "User prefers window seats" in two
    assert three.startswith("Error (not_found)")
    (memory,) = session.memory.list()
    assert (memory.by, memory.status, memory.sources[0].seqs) == ("user", "active", (1,))


@pytest.mark.parametrize("policy", FORMATS)
def test_a_lone_call_is_answered_as_in_its_message(db, policy):
    memory = db.scope(user="u").memory
    (item,) = called(policy, ("a", "memory_search", {"query": "x"}))
    lone = item
    if policy in ("openai_chat", "langchain"):
        lone = item["tool_calls"][0]
    elif policy == "anthropic":
        lone = item["content"][0]
    elif policy == "gemini":
        lone = item["parts"][0]
    assert memory.call(lone) == memory.call(item)
    assert texts(memory.call(lone)) == ["No memory matches."]


def test_calls_of_others_are_left_to_them(db):
    memory = db.scope(user="u").memory
    (item,) = called("anthropic", ("a", "web", {}), ("b", "memory_search", {"query": "x"}))
    (answer,) = memory.call(item)
    assert [block["tool_use_id"] for block in answer["content"]] == ["b"]
    assert memory.call({"role": "assistant", "content": "hello"}) == []
    assert memory.call({"role": "user", "content": "hello"}) == []
    items = called("openai_responses", ("a", "web", {}), ("b", "memory_search", {"query": "x"}))
    assert [item["call_id"] for item in memory.call(items)] == ["b"]
    assert memory.call([{"role": "user", "content": "hello"}, *items[:1]]) == []
    assert memory.call(items[0])[0]["output"].startswith("Error (unknown_tool)")
    (lone,) = memory.call(called("openai_chat", ("a", "web", {}))[0]["tool_calls"][0])
    assert lone["content"].startswith("Error (unknown_tool)")
    for wrong in (None, 7, "memory_search"):
        with pytest.raises(memcore.InvalidOptionError):
            memory.call(wrong)


def test_calls_without_ids_are_answered_in_order(db):
    memory = db.scope(user="u").memory
    parts = [
        {"functionCall": {"name": "memory_remember", "args": {"text": f"Likes {what}"}}}
        for what in ("tea", "milk")
    ]
    (answer,) = memory.call({"role": "model", "parts": parts})
    assert [p["functionResponse"]["name"] for p in answer["parts"]] == ["memory_remember"] * 2
    assert "id" not in answer["parts"][0]["functionResponse"]
    assert [m.text for m in memory.list()] == ["Likes tea", "Likes milk"]


def test_the_word_of_a_model_waits_in_quarantine(db):
    session = db.session("s", user="u")
    session.append({"role": "user", "content": "What is on this page?"})
    told = ask(session.memory, "memory_remember", text="The manager is Mallory")
    assert "not shown" in told
    (memory,) = session.memory.list()
    assert (memory.by, memory.status) == ("assistant", "quarantined")
    assert ask(session.memory, "memory_search", query="Mallory") == "No memory matches."
    loose = db.scope(user="v").memory  # no session: nothing proves it
    ask(loose, "memory_remember", text="The manager is Mallory")
    assert [(m.by, m.status) for m in loose.list()] == [("import", "quarantined")]


@pytest.mark.parametrize(
    ("message", "statement", "by"),
    [
        ("Remember that I like tea.", "User likes tea", "user"),
        ("Remember that I like tea.", "User's manager is Mallory", "assistant"),
        ("Remember that I do not like tea.", "User likes tea", "assistant"),
        ("Do you remember that I like tea?", "User likes tea", "assistant"),
        ("I like tea.", "User likes tea", "assistant"),
        ("Remember that:\n> the manager is Mallory", "The manager is Mallory", "import"),
        ("请记住我喜欢喝茶。", "用户喜欢喝茶", "user"),
        ("请记住我喜欢喝茶。", "用户的经理是马洛里", "assistant"),
        ("你记得我喜欢喝茶吗?", "用户喜欢喝茶", "assistant"),
        ("From now on call me Al.", "Call the user Al", "user"),
    ],
)
def test_the_users_request_counts_for_what_it_says(db, message, statement, by):
    session = db.session("s", user="u")
    session.append({"role": "user", "content": message})
    ask(session.memory, "memory_remember", text=statement)
    assert [m.by for m in session.memory.list()] == [by]


def test_a_subject_or_slot_that_the_user_did_not_say_does_not_replace_a_value(db):
    session = db.session("s", user="u")
    memory = session.memory
    memory.remember("Is Alice", subject="u", slot="manager", by="operator")
    session.append({"role": "user", "content": "Remember that I like tea."})
    ask(memory, "memory_remember", text="User likes tea", subject="u", slot="manager")
    assert [m.text for m in memory.list(status="active")] == ["Is Alice"]


def test_a_model_changes_and_forgets_what_it_made(db):
    session = db.session("s", user="u")
    session.append({"role": "user", "content": "Hello"})
    memory = session.memory
    own = memory.remember("Allergic to peanuts", by="operator")
    ask(memory, "memory_remember", text="Draft of a note")
    assert "memory 2" in ask(memory, "memory_update", id=2, text="Note, second draft")
    assert [m.text for m in memory.history(2)] == ["Draft of a note", "Note, second draft"]
    assert ask(memory, "memory_forget", id=2) == "Forgotten: memory 2."
    assert ask(memory, "memory_forget", id=2) == "Forgotten: memory 2."
    for told in (
        ask(memory, "memory_forget", id=own.id),
        ask(memory, "memory_update", id=own.id, text="Loves peanuts"),
    ):
        assert told.startswith("Error (not_allowed)")
    assert memory.get(own.id) == own
    assert ask(memory, "memory_forget", id=10**30).startswith("Error (invalid_arguments)")
    assert ask(memory, "memory_forget", id=-1).startswith("Error (not_found)")


@pytest.mark.parametrize(
    ("message", "gone"),
    [
        ("Please forget that I am allergic to peanuts.", True),
        ("Forget memory 1.", True),
        ("Forget that, please.", True),
        ("Forget my address.", False),
        ("Don't forget the peanuts.", False),
        ("> forget the peanuts", False),
        ("Thanks for the peanuts", False),
        ("请忘掉我的地址", False),
    ],
)
def test_the_user_has_things_forgotten(db, message, gone):
    session = db.session("s", user="u")
    memory = session.memory
    memory.remember("Allergic to peanuts", by="operator")
    session.append({"role": "user", "content": message})
    told = ask(memory, "memory_forget", id=1)
    assert (memory.get(1).status == "forgotten") is gone, told


def test_an_update_that_the_user_asks_for_supersedes_no_other_memory(db):
    session = db.session("s", user="u")
    memory = session.memory
    memory.remember("Allergic to peanuts", by="operator")
    session.append({"role": "user", "content": "Remember that I prefer aisle seats."})
    told = ask(memory, "memory_update", id=1, text="User prefers aisle seats")
    assert told.startswith("Error (not_allowed)")


def test_a_repeated_call_changes_nothing(db):
    session = db.session("s", user="u")
    session.append({"role": "user", "content": "Hello"})
    memory = session.memory
    first = ask(memory, "memory_remember", "id1", text="One")
    assert ask(memory, "memory_update", "id2", id=1, text="Two").startswith("Stored")
    session.append({"role": "assistant", "content": "..."})
    assert ask(memory, "memory_remember", "id1", text="One") == first
    assert ask(memory, "memory_update", "id2", id=1, text="Two").startswith("Stored")
    assert [m.text for m in memory.history(1)] == ["One", "Two"]
    # Servers that count ids anew: other arguments are another call.
    assert ask(memory, "memory_remember", "id1", text="Three") != first
    assert len(memory.list()) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        "{", "[]", "7", '"x"', "nan", '{"text": 7}', '{"text": null}', "{}", '{"text": ""}',
        '{"text": "a", "user": "bob"}', '{"text": "a", "kind": "opinion"}', "[" * 100_000,
        '{"text": "' + "x" * 70_000 + '"}', '{"text": "' + "x" * 17_000 + '"}',
        '{"text": "a\\u202eb"}', '{"text": "a", "slot": ""}', '{"text": "\\ud800"}' + "x",
    ],
)  # fmt: skip
def test_wrong_arguments_are_results(db, arguments):
    memory = db.scope(user="u").memory
    call = {
        "id": "c", "type": "function",
        "function": {"name": "memory_remember", "arguments": arguments},
    }  # fmt: skip
    (answer,) = memory.call(call)
    assert answer["content"].startswith("Error (invalid_arguments): ")
    assert len(answer["content"]) < 500
    assert "\n" not in answer["content"]
    assert memory.list() == []


def test_malformed_calls_of_a_message_are_answered_too(db):
    memory = db.scope(user="u").memory
    (answer,) = memory.call(
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "memory_search"}}],
        }
    )
    assert answer["content"].startswith("Error (invalid_arguments)")
    many = called("openai_chat", *((f"c{n}", "memory_search", {"query": "x"}) for n in range(70)))
    answers = memory.call(many)
    assert len(answers) == 70
    assert answers[-1]["content"].startswith("Error (too_many)")
    items = called(
        "openai_responses", *((f"c{n}", "memory_search", {"query": "x"}) for n in range(70))
    )
    answers = memory.call(items)
    assert len(answers) == 70
    assert [a["output"].startswith("Error (too_many)") for a in answers] == [False] * 64 + [
        True
    ] * 6


def test_refusals_tell_no_more_than_their_reason(db, open_db, tmp_path):
    scope = db.scope(user="u")
    scope.memory.remember("x", by="operator")
    scope.opt_out_memory()
    assert ask(scope.memory, "memory_remember", text="y").startswith("Error (opted_out)")
    assert ask(scope.memory, "memory_search", query="x") == "No memory matches."
    scope.opt_in_memory()
    ask(scope.memory, "memory_remember", text="Draft")
    scope.hold(reason="case 4711")
    told = ask(scope.memory, "memory_forget", id=2)
    assert told.startswith("Error (held)")
    assert "4711" not in told
    guarded = open_db(guard=[memcore.NoWrites()], path=tmp_path / "b", durability="none")
    assert ask(guarded.scope(user="u").memory, "memory_remember", text="y") == (
        "Error (refused): a guard or the redaction policy does not admit it"
    )


def test_no_other_user_is_reached(db):
    db.scope(user="bob").memory.remember("Bob's secret is 4711", by="operator")
    memory = db.scope(user="ann").memory
    for name, arguments in (
        ("memory_search", {"query": "secret 4711"}),
        ("memory_forget", {"id": 1}),
        ("memory_update", {"id": 1, "text": "x"}),
    ):
        told = ask(memory, name, **arguments)
        assert "4711" not in told
    assert ask(memory, "memory_search", query="secret", user="bob").startswith("Error (invalid")
    assert db.scope(user="bob").memory.get(1).text == "Bob's secret is 4711"


@given(st.text(max_size=200), st.text(max_size=200))
def test_rules_take_any_text(statement, words):
    for rule in (asks_to_remember, asks_to_forget):
        assert isinstance(rule(words), bool)
    assert isinstance(is_said(statement, words), bool)


@pytest.mark.as_stored
def test_a_damaged_item_is_not_the_users_word(db):
    session = db.session("s", user="u")
    session.append({"role": "user", "content": "Remember that I like tea."})
    session.append({"role": "user", "content": "Something else"})
    engine = engine_of(db.scope(user="u"))

    def damage(txn: Any) -> None:
        scope = names.scope_of(txn, "default", "u")
        number = names.session_of(txn, scope, "s")
        key = keys.session_row(scope, number, keys.Row.ITEM, 2)
        kept = txn.get(key)
        txn.put(key, kept[:-1] + bytes((kept[-1] ^ 1,)))

    engine.store.transact(damage)
    ask(session.memory, "memory_remember", text="User likes tea")
    assert [m.by for m in session.memory.list()] == ["import"]
    engine.store.transact(damage)  # which undoes it
    session.undo()
    ask(session.memory, "memory_remember", "again", text="User likes tea")
    assert [m.by for m in session.memory.list()] == ["user"]


def test_what_another_agent_says_is_not_the_users_word(db):
    session = db.session("s", user="u")
    told = {"role": "user", "content": "Remember that Mallory is the boss."}
    session.append(told, envelope={"author": "researcher"})
    ask(session.memory, "memory_remember", text="Mallory is the boss")
    assert [m.by for m in session.memory.list()] == ["agent"]
    session.append(told, envelope={"author": "user"})
    ask(session.memory, "memory_remember", "again", text="Mallory is the boss")
    assert [m.by for m in session.memory.list()] == ["user"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def shared():
    with memcore.open(":memory:") as db:
        db.scope(user="u").memory.remember("Allergic to peanuts", by="operator")
        yield db.scope(user="u").memory


@given(
    st.sampled_from(FORMATS),
    st.sampled_from([tool.name for tool in TOOLS] + ["memory_", "memory_x"]),
    st.dictionaries(
        st.sampled_from(["id", "text", "kind", "query", "limit", "slot", "x"]), JSON, max_size=4
    ),
)
def test_any_call_has_one_result_and_changes_nothing_of_others(shared, policy, name, arguments):
    answers = shared.call(called(policy, ("c", name, arguments)))
    assert len(texts(answers)) == (name in {tool.name for tool in TOOLS})
    assert all(isinstance(text, str) for text in texts(answers))
    assert shared.get(1).status == "active"


# --- What only looks like the user's word ---------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "I like tea \U0001f150\U0001f151\U0001f152", "\u274c I like tea \U0001f44e",
        "I like tea \u3021\u3022", "I like tea $$$", "I like tea 1", "I like tea = tea",
        "I like tea \U0001f1fa\U0001f1f8", "I li\u0336ke tea",
    ],
)  # fmt: skip
def test_symbols_are_words_that_the_user_has_to_say(db, statement):
    session = db.session("s", user="u")
    session.append({"role": "user", "content": "Please remember that I like tea."})
    ask(session.memory, "memory_remember", text=statement)
    assert [(m.by, m.status) for m in session.memory.list()] == [("assistant", "quarantined")]
    document = {"type": "text", "media_type": "text/plain", "data": statement}
    attached = [{"type": "text", "text": "I like tea."}, {"type": "document", "source": document}]
    session = db.session("s", user="v")
    session.append({"role": "user", "content": attached})
    made = session.memory.remember(statement, source=1)
    assert (made.by, made.status) == ("import", "quarantined")


@pytest.mark.parametrize(
    ("said", "statement"),
    [
        ("Remember that the limit is 5 dollars", "limit is -5 dollars"),
        ("Remember that the limit is 15 dollars", "limit is 1.5 dollars"),
        ("Remember that the limit is 10 dollars", "limit is 10% dollars"),
        ("I don't want you to remember that I smoke", "User does not smoke"),
        ("Can you remember if I like tea?", "User likes tea"),
        ("Please remember that I hardly eat meat", "User eats meat"),
        ("Please remember I stopped smoking", "User smoking"),
        ("Remember: it is false that I like coffee", "User likes coffee"),
    ],
)
def test_what_the_user_did_not_say_waits(db, said, statement):
    session = db.session("s", user="u")
    session.append({"role": "user", "content": said})
    ask(session.memory, "memory_remember", text=statement)
    assert [m.status for m in session.memory.list()] == ["quarantined"]


@pytest.mark.parametrize(
    "said",
    [
        "I don't want you to forget my penicillin allergy.",
        "You must not, under any circumstances, forget penicillin",
        "Whatever happens: never, ever forget penicillin", "Will you forget penicillin?",
        "Why would you forget penicillin?", "Don't just forget penicillin!",
        "Did you then forget penicillin?", "Forget the meeting at 3 pm", "Forget the 1 pm call",
    ],
)  # fmt: skip
def test_what_is_no_wish_to_forget_forgets_nothing(db, said):
    session = db.session("s", user="u")
    made = session.memory.remember("Is allergic to penicillin", by="operator")
    session.append({"role": "user", "content": said})
    ask(session.memory, "memory_forget", id=made.id)
    assert session.memory.get(made.id).status == "active"


@pytest.mark.parametrize(
    "said", ["Forget memory 1", "forget #1, please", "Please forget 1", "Just forget penicillin"]
)
def test_a_wish_to_forget_names_the_memory(db, said):
    session = db.session("s", user="u")
    made = session.memory.remember("Is allergic to penicillin", by="operator")
    session.append({"role": "user", "content": said})
    ask(session.memory, "memory_forget", id=made.id)
    assert session.memory.get(made.id).status == "forgotten"


def test_the_users_words_beside_a_result_end_an_older_wish(db):
    session = db.session("s", user="u", policy="anthropic")
    made = session.memory.remember("Is allergic to penicillin", by="operator")
    session.append({"role": "user", "content": "Forget my penicillin allergy"})
    use = {"type": "tool_use", "id": "t1", "name": "x", "input": {}}
    session.append({"role": "assistant", "content": [use]})
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
    stop = {"type": "text", "text": "Stop! Keep the penicillin allergy. Remember that I said so."}
    session.append({"role": "user", "content": [result, stop]})
    ask(session.memory, "memory_forget", id=made.id)
    ask(session.memory, "memory_remember", text="I said so")
    assert [m.status for m in session.memory.list()] == ["active", "quarantined"]


def test_what_a_model_takes_back_can_still_be_learned(db):
    session = db.session("s", user="u")
    session.append({"role": "user", "content": "hello"})
    ask(session.memory, "memory_remember", text="I am allergic to nuts")
    ask(session.memory, "memory_forget", id=1)
    assert session.memory.get(1).status == "forgotten"
    session.append({"role": "user", "content": "Please remember: I am allergic to nuts"})
    ask(session.memory, "memory_remember", text="I am allergic to nuts")
    assert [(m.by, m.status) for m in session.memory.list()] == [("user", "active")]
    assert db.check() == []


def test_what_others_said_too_is_no_longer_the_models(db):
    session = db.session("s", user="u")
    session.append({"role": "assistant", "content": "The code is 12"})
    ask(session.memory, "memory_remember", text="The code is 12")
    session.memory.remember("The code is 12", source=1, extractor="rules 1")
    ask(session.memory, "memory_forget", id=1)
    assert [m.extractor for m in session.memory.list()] == ["rules 1"]


def test_a_call_id_that_counts_from_0_swallows_no_wish(db):
    session = db.session("s", user="u")
    session.append({"role": "user", "content": "hello"})
    ask(session.memory, "memory_remember", text="I like tea")
    session.append({"role": "user", "content": "Yes! Remember that I like tea."})
    ask(session.memory, "memory_remember", text="I like tea")
    assert [m.status for m in session.memory.list()] == ["active"]
    db.delete_session("s", user="u")
    session = db.session("s", user="u")
    session.append({"role": "user", "content": "hello"})
    ask(session.memory, "memory_remember", text="I like tea")
    assert [m.status for m in session.memory.list()] == ["quarantined"]


def test_a_search_shows_what_holds_now(db):
    memory, now = db.scope(user="u").memory, db.engine.now_us() / 1e6
    memory.remember("Lived in Rome", by="operator", valid_from=now - 99, valid_to=now - 9)
    memory.remember("Lives in Rome", by="operator", valid_from=now - 9)
    memory.remember("Will live in Rome", by="operator", valid_from=now + 99)
    (answer,) = texts(memory.call(called("openai_chat", ("c", "memory_search", {"query": "Rome"}))))
    assert "Lives in Rome" in answer
    assert "Lived in" not in answer
    assert "Will live" not in answer


@pytest.mark.parametrize("run", ["\n", " ", "\n ", "\t\n", "\u3000", "\u2028"])
def test_runs_of_spaces_are_one_before_the_rules_see_them(run):
    """A rule that begins with any spaces takes quadratic time in a run of them."""
    assert _plain(f"a{run * 20_000}b") in ("a b", "a\nb")


def test_what_another_agent_says_in_the_users_role_is_not_the_users(db):
    session = db.session("s", user="u")
    for by in ({"author": "researcher"}, {"agent": "planner"}):
        told = session.append({"role": "user", "content": "My name is Mallory."}, envelope=by)
        made = session.memory.remember("The name is Mallory", source=told.seq)
        assert (made.by, made.status) == ("agent", "quarantined")
    assert all(each.status != "stored" for each in session.memory.extract().outcomes)
    told = session.append({"role": "user", "content": "I am Bob."}, envelope={"author": "user"})
    assert session.memory.remember("I am Bob", source=told.seq).by == "user"


def test_a_call_without_arguments_takes_no_others(db):
    session = db.session("s", user="u")
    calls = [
        {"functionCall": {"name": "memory_remember"}},
        {"functionCall": {"name": "memory_remember", "args": {"text": "tea"}}},
    ]
    answers = texts(session.memory.call({"role": "model", "parts": calls}))
    assert len(answers) == 2
    assert all(each.startswith("Error (invalid_arguments)") for each in answers)
    answers = texts(session.memory.call({"role": "model", "parts": calls[1:] * 2}))
    assert [each.startswith("Stored") for each in answers] == [True, True]


def test_calls_of_other_tools_are_left_alone(db):
    other = called("openai_chat", ("c", "memory_lookup_crm", {}))
    assert db.scope(user="u").memory.call(other) == []
