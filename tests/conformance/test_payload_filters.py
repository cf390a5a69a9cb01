"""Payloads in the requests of the OpenAI Agents SDK, ADK and LangChain, with scripted models."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import memcore

pytest.importorskip("agents")
pytest.importorskip("google.adk")
pytest.importorskip("langchain")

from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled
from agents.run_config import CallModelData, ModelInputData
from agents.testing import ScriptedModel, assistant_message, function_call
from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.models.llm_request import LlmRequest
from google.adk.runners import Runner as AdkRunner
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from memcore.adapters.adk import MemcorePlugin, MemcoreSessionService
from memcore.adapters.langchain import PayloadMiddleware
from memcore.adapters.openai_agents import MemcoreSession, payload_call_model_input_filter
from tests.conformance.adk_agent import Scripted

BUDGET = 1_500


@pytest.fixture
def tutor(db):
    """A user's memory of her own, and that of another one."""
    for user, text in (("ann", "Ann reads best in the morning"), ("bob", "Bob is a secret agent")):
        session = db.session("lesson", user=user)
        session.append({"role": "user", "content": text})
        session.memory.remember(text, source=1)
    return db


class Made:
    """Makes payloads, and keeps what they were made for."""

    def __init__(self, db, budget=BUDGET):
        self.db, self.budget, self.asked = db, budget, []

    def __call__(self, text, request):
        self.asked.append((text, request))
        payload = memcore.Payload(self.budget)
        payload.memories(self.db.scope(user="ann").memory, query=text, budget_tokens=300)
        payload.evidence([{"id": "page", "text": "Only today"}], budget_tokens=100)
        return payload

    async def later(self, text, request):
        await asyncio.sleep(0)
        return self(text, request)


def text_in(value: Any) -> str:
    return str(value)


# --- the OpenAI Agents SDK ------------------------------------------------------------------------


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"18 °C in {city} " + "and so on " * 40


def agents_run(path, made, turns):
    """Run turns with a call each; the inputs of all calls of the model."""
    set_tracing_disabled(disabled=True)

    async def play():
        seen = []
        with MemcoreSession("chat", path) as session:
            for turn in range(turns):
                model = ScriptedModel([
                    [function_call("weather", {"city": "Paris"}, call_id=f"c{turn}")],
                    [assistant_message(f"Answer {turn}")],
                ])  # fmt: skip
                agent = Agent(name="Tutor", instructions="Be short.", model=model, tools=[weather])
                config = RunConfig(call_model_input_filter=payload_call_model_input_filter(made))
                question = f"When does Ann read best? {turn}"
                await Runner.run(agent, question, session=session, run_config=config)
                seen += model.calls
            return seen, await session.get_items()

    return asyncio.run(play())


@pytest.mark.parametrize("is_async", [False, True])
def test_the_runner_sends_a_payload(tutor, tmp_path, is_async):
    made = Made(tutor)
    seen, stored = agents_run(tmp_path / "agents.memcore", made.later if is_async else made, 8)
    assert len(seen) == 16
    for call in seen:
        assert call.system_instructions == "Be short."
        assert memcore.validate(call.input, policy="openai_responses") == []
        assert "Ann reads best" in text_in(call.input)
        assert "Only today" in text_in(call.input)
        assert "secret agent" not in text_in(call.input)
    assert len(seen[-1].input) < len(stored)  # the budget cut the history
    assert "Only today" not in text_in(stored)
    assert made.asked[-1][0] == "When does Ann read best? 7"
    assert made.asked[0][1].agent.name == "Tutor"


def test_what_does_not_fit_is_an_error_of_the_run(tutor, tmp_path):
    with pytest.raises(memcore.ContextOverflowError):
        agents_run(tmp_path / "agents.memcore", Made(tutor, budget=8), 1)


def test_a_payload_is_for_one_request(tutor, tmp_path):
    payload = memcore.Payload(BUDGET)
    with pytest.raises(memcore.InvalidOptionError, match="there is a section"):
        agents_run(tmp_path / "agents.memcore", lambda _text, _data: payload, 2)
    with pytest.raises(memcore.InvalidOptionError, match=r"expected a memcore\.Payload, got str"):
        agents_run(tmp_path / "b.memcore", lambda _text, _data: "payload", 1)


# --- ADK ------------------------------------------------------------------------------------------


def look(q: str) -> dict[str, Any]:
    """Looks something up."""
    return {"found": q, "more": "and so on " * 40}


def adk_run(db, made, turns, session="s"):
    async def play():
        answers = [answer for _ in range(turns) for answer in ([("look", {"q": "x"})], "Said.")]
        model = Scripted(answers=answers)
        requests = []
        real = model.generate_content_async

        async def kept(request, stream=False):
            requests.append((request.config.system_instruction, list(request.contents)))
            async for answer in real(request, stream):
                yield answer

        object.__setattr__(model, "generate_content_async", kept)
        agent = LlmAgent(name="tutor", instruction="Be short.", model=model, tools=[look])
        app = App(name="app", root_agent=agent, plugins=[MemcorePlugin(payload=made)])
        service = MemcoreSessionService(db)
        await service.create_session(app_name="app", user_id="ann", session_id=session)
        runner = AdkRunner(app=app, session_service=service)
        for turn in range(turns):
            said = types.Content(
                role="user", parts=[types.Part(text=f"When does Ann read? {turn}")]
            )
            async for _ in runner.run_async(user_id="ann", session_id=session, new_message=said):
                pass
        stored = await service.get_session(app_name="app", user_id="ann", session_id=session)
        return requests, stored

    return asyncio.run(play())


@pytest.mark.parametrize("is_async", [False, True])
def test_adk_sends_a_payload(tutor, is_async):
    made = Made(tutor)
    requests, stored = adk_run(tutor, made.later if is_async else made, 8)
    assert len(requests) == 16
    for instruction, contents in requests:
        assert "Be short." in instruction
        plain = [each.model_dump(mode="json", exclude_none=True) for each in contents]
        assert memcore.validate(plain, policy="gemini") == []
        assert "Ann reads best" in text_in(plain)
        assert "Only today" in text_in(plain)
        assert "secret agent" not in text_in(plain)
    calls = [part for _, contents in requests[-1:] for each in contents for part in each.parts
             if part.function_call is not None]  # fmt: skip
    assert calls[-1].thought_signature == b"signed"  # it is the part that ADK had
    assert len(requests[-1][1]) < len(stored.events)
    assert "Only today" not in text_in(stored.events)
    assert isinstance(made.asked[0][1], LlmRequest)
    with pytest.raises(RuntimeError, match="more than its budget"):  # as ADK tells it
        adk_run(tutor, Made(tutor, budget=8), 1, session="tight")


# --- LangChain ------------------------------------------------------------------------------------


class Chat(BaseChatModel):
    """Calls a tool, then answers; keeps what it was asked."""

    seen: list[Any] = []  # noqa: RUF012 - pydantic copies it
    calls: bool = True

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **_):
        return self

    def _generate(self, messages, *_, **__):
        self.seen.append(messages)
        reply = AIMessage(f"Said {len(self.seen)}", id=f"a{len(self.seen)}")
        if self.calls and len(self.seen) % 2:  # then what the turn adds stands behind the result
            call = {"name": "look", "args": {"q": "x"}, "id": f"c{len(self.seen)}"}
            reply = AIMessage("", tool_calls=[call], id=f"a{len(self.seen)}")
        return ChatResult(generations=[ChatGeneration(message=reply)])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_middleware_sends_a_payload(tutor, is_async):
    def search(q: str) -> str:
        """Looks something up."""
        return q + "and so on " * 40

    made, model = Made(tutor), Chat()
    search.__name__ = "look"
    middleware = PayloadMiddleware(made.later if is_async else made)
    agent = create_agent(model, [search], system_prompt="Be short.", middleware=[middleware])
    messages = []
    for turn in range(8):
        messages.append(HumanMessage(f"When does Ann read? {turn}", id=f"h{turn}"))
        state = {"messages": messages}
        found = asyncio.run(agent.ainvoke(state)) if is_async else agent.invoke(state)
        messages = found["messages"]
    assert len(model.seen) == 16
    for asked in model.seen:
        assert isinstance(asked[0], SystemMessage)
        assert asked[0].text == "Be short."
        assert memcore.validate(list(asked[1:]), policy="langchain") == []
        assert "Ann reads best" in text_in(asked)
        assert "Only today" in text_in(asked)
        assert "secret agent" not in text_in(asked)
    assert len(model.seen[-1]) < len(messages)
    assert "Only today" not in text_in(messages)
    assert isinstance(made.asked[0][1], ModelRequest)
    known = {id(message) for message in messages}
    assert sum(id(message) in known for message in model.seen[-1]) > 1  # they stay themselves


def test_an_awaitable_payload_needs_an_await(tutor):
    agent = create_agent(Chat(calls=False), [], middleware=[PayloadMiddleware(Made(tutor).later)])
    with pytest.raises(memcore.InvalidOptionError, match="not awaited"):
        agent.invoke({"messages": [HumanMessage("Hi")]})
    tight = create_agent(
        Chat(calls=False), [], middleware=[PayloadMiddleware(Made(tutor, budget=8))]
    )
    with pytest.raises(memcore.ContextOverflowError):
        tight.invoke({"messages": [HumanMessage("Hi, " * 30)]})


# --- odd requests ---------------------------------------------------------------------------------


def test_results_of_a_conversation_that_a_server_stores_are_passed_on(tutor):
    async def send(items):
        asked = ModelInputData(items, "Be short.")
        data = CallModelData(model_data=asked, agent=Agent(name="Tutor"), context=None)
        return await payload_call_model_input_filter(Made(tutor))(data)

    result = {"type": "function_call_output", "call_id": "c", "output": "18 °C"}
    assert asyncio.run(send([result])).input == [result]
    assert len(asyncio.run(send([{"role": "user", "content": "Hi"}])).input) > 1


def sent_by_langchain(payload, messages, system=None):
    seen = []
    request = ModelRequest(model=Chat(), messages=messages, system_message=system)
    PayloadMiddleware(payload).wrap_model_call(request, seen.append)
    return seen[0]


def test_what_no_model_receives_may_be_anything(tutor):
    call = {"name": "look", "args": {}, "id": "c1"}
    odd = ToolMessage("found", tool_call_id="c1", artifact=object(), id="t")
    odd.response_metadata, odd.additional_kwargs = {"at": {1, 2}}, {"raw": b"x", "kept": 1}
    messages = [HumanMessage("Hi"), AIMessage("", tool_calls=[call]), odd]
    request = sent_by_langchain(Made(tutor), messages)
    assert any(message is odd for message in request.messages)


def test_a_system_message_keeps_its_blocks(tutor):
    block = {"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}
    system = SystemMessage([block, {"type": "text", "text": "Be kind."}])
    request = sent_by_langchain(Made(tutor), [HumanMessage("Hi")], system)
    assert request.system_message is system

    def made(text, asked):
        payload = Made(tutor)(text, asked)
        payload.instructions("Be safe.")
        return payload

    request = sent_by_langchain(made, [HumanMessage("Hi")], system)
    assert request.system_message.content == [{"type": "text", "text": "Be safe."}, *system.content]
    request = sent_by_langchain(made, [HumanMessage("Hi")], SystemMessage("Be short."))
    assert request.system_message.text == "Be safe.\n\nBe short."


@pytest.mark.parametrize(
    "said",
    [
        "Be short.", ["Be short."], types.Part(text="Be short."),
        types.Content(parts=[types.Part(text="Be short.")]),
    ],
)  # fmt: skip
def test_an_instruction_of_any_form_counts(tutor, said):
    def made(text, asked):
        payload = Made(tutor)(text, asked)
        payload.instructions("Be safe.")
        return payload

    config = types.GenerateContentConfig(system_instruction=said)
    part = types.Part(text="Hi")
    request = LlmRequest(contents=[types.Content(role="user", parts=[part])], config=config)
    plugin = MemcorePlugin(payload=made)
    sending = plugin.before_model_callback(callback_context=None, llm_request=request)
    assert asyncio.run(sending) is None
    assert request.config.system_instruction == "Be safe.\n\nBe short."
    assert request.contents[-1].parts[-1] is part


def test_an_instruction_that_is_no_text_is_refused(tutor):
    image = types.Part(inline_data=types.Blob(data=b"x", mime_type="image/png"))
    config = types.GenerateContentConfig(system_instruction=image)
    request = LlmRequest(contents=[], config=config)
    plugin = MemcorePlugin(payload=Made(tutor))
    with pytest.raises(memcore.InvalidOptionError, match="system_instruction"):
        asyncio.run(plugin.before_model_callback(callback_context=None, llm_request=request))


def test_an_unanswered_tool_that_runs_long_is_pending(tutor):
    call = types.Part(function_call=types.FunctionCall(name="slow", args={}, id="c1"))
    contents = [
        types.Content(role="user", parts=[types.Part(text="Go")]),
        types.Content(role="model", parts=[call]),
        types.Content(role="user", parts=[types.Part(text="And?")]),
    ]
    request = LlmRequest(contents=contents)
    request.tools_dict["slow"] = LongRunningFunctionTool(look)
    plugin = MemcorePlugin(payload=Made(tutor))
    asyncio.run(plugin.before_model_callback(callback_context=None, llm_request=request))
    answers = [part.function_response for each in request.contents for part in each.parts
               if part.function_response is not None]  # fmt: skip
    assert [answer.response for answer in answers] == [{"status": "pending"}]
