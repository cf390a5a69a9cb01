"""Summarizers over the real client libraries, against a provider on loopback."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import anthropic
import openai
import pytest

import memcore
import providers
from memcore.compaction import AnthropicSummarizer, LiteLLMSummarizer, OpenAISummarizer, Recursive
from memcore.errors import InvalidOptionError, SummarizerError
from memcore.model import SummaryRequest
from messages import assistant, call, result, turns, user
from providers import CHAT, MESSAGES, RESPONSES

REQUEST = SummaryRequest(
    (user("read /src/a.py"), call("1"), result("1", "x = 1"), assistant("It holds x = 1.")),
    previous_summary="The user is Ada.",
    max_tokens=300,
)
KEY = "test-key"


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    """The provider, and a client of each library (making one loads all certificates)."""
    with pytest.MonkeyPatch.context() as patch, providers.serving() as server:
        patch.setenv("NO_PROXY", "127.0.0.1")
        options = {"api_key": KEY, "max_retries": 0}
        with (
            openai.OpenAI(base_url=f"{server.url}/v1", **options) as first,
            anthropic.Anthropic(base_url=server.url, **options) as second,
        ):
            yield Clients(server, {"openai": first, "anthropic": second})


@pytest.fixture
def provider(clients: Clients) -> Iterator[providers.Provider]:
    clients.server.start()
    yield clients.server
    clients.server.release.set()


class Clients(NamedTuple):
    server: providers.Provider
    of: dict[str, Any]


class Wire(NamedTuple):
    """One API: how it is reached."""

    path: str
    kind: str
    options: dict[str, Any]

    def summarizer(self, client: Any, **options: Any) -> Any:
        cls = AnthropicSummarizer if self.kind == "anthropic" else OpenAISummarizer
        return cls(client, model="m", **self.options, **options)

    def ask(self, clients: Clients, **options: Any) -> str:
        return self.summarizer(clients.of[self.kind], **options)(REQUEST)

    def asynchronous(self, provider: providers.Provider) -> Any:
        options = {"api_key": KEY, "max_retries": 0}
        if self.kind == "anthropic":
            return anthropic.AsyncAnthropic(base_url=provider.url, **options)
        return openai.AsyncOpenAI(base_url=f"{provider.url}/v1", **options)


CHAT_WIRE = Wire(CHAT, "openai", {})
RESPONSES_WIRE = Wire(RESPONSES, "openai", {"api": "responses"})
MESSAGES_WIRE = Wire(MESSAGES, "anthropic", {})
GOOD = {
    CHAT: providers.chat(" The gist.\n"),
    RESPONSES: providers.responses(
        providers.RESPONSE_REASONING, providers.response_text("The gist.")
    ),
    MESSAGES: providers.anthropic("The ", "gist.", blocks=(providers.ANTHROPIC_THINKING,)),
}

every_wire = pytest.mark.parametrize(
    "wire", [CHAT_WIRE, RESPONSES_WIRE, MESSAGES_WIRE], ids=["chat", "responses", "messages"]
)


def sent(provider: providers.Provider) -> tuple[str, str, dict[str, Any]]:
    """The rules, the user message and the other members of the one request."""
    (asked,) = provider.asked
    body = dict(asked.body)
    if asked.path == CHAT:
        system, user_message = body.pop("messages")
        assert system["role"] == "system"
        rules = system["content"]
    elif asked.path == RESPONSES:
        rules = body.pop("instructions")
        (user_message,) = body.pop("input")
    else:
        rules = body.pop("system")
        (user_message,) = body.pop("messages")
    assert user_message["role"] == "user"
    return rules, user_message["content"], body


# --- requests -------------------------------------------------------------------------------------


@every_wire
def test_one_user_message_and_the_rules_apart(wire, provider, clients):
    provider.answer(GOOD[wire.path])
    assert wire.ask(clients) == "The gist."
    assert provider.asked[0].path == wire.path
    rules, text, rest = sent(provider)
    assert "at most 300 tokens" in rules
    assert text == (
        "<previous_summary>\nThe user is Ada.\n</previous_summary>\n\n<transcript>\n"
        "user: read /src/a.py\nassistant calls f: {}\nresult of f: x = 1\n"
        "assistant: It holds x = 1.\n</transcript>\n\nWrite the summary now."
    )
    fixed = {CHAT: {}, RESPONSES: {"store": False}, MESSAGES: {"max_tokens": 4096}}
    assert rest == {"model": "m", **fixed[wire.path]}


@every_wire
def test_options_are_sent_as_the_provider_calls_them(wire, provider, clients):
    provider.answer(GOOD[wire.path])
    wire.ask(
        clients, max_tokens=200, temperature=0, language="zh", instructions="only paths",
        extra={"metadata": {"user_id": "u"}},
    )  # fmt: skip
    rules, text, rest = sent(provider)
    assert "不超过 200 个 token" in rules
    assert rules.endswith("only paths")
    assert "f 的结果：x = 1" in text
    limit = {CHAT: "max_completion_tokens", RESPONSES: "max_output_tokens"}.get(
        wire.path, "max_tokens"
    )
    assert (rest[limit], rest["temperature"], rest["metadata"]) == (200, 0, {"user_id": "u"})


def test_an_older_compatible_server_is_told_max_tokens(provider, clients):
    provider.answer(providers.chat("<think>\nhm\n</think>\n\nThe gist."))
    assert CHAT_WIRE.ask(clients, max_tokens=50, limit_name="max_tokens") == "The gist."
    assert sent(provider)[2] == {"model": "m", "max_tokens": 50}


@every_wire
def test_an_asynchronous_client_gives_an_awaitable(wire, provider, clients):
    provider.answer(GOOD[wire.path])

    async def ask() -> str:
        async with wire.asynchronous(provider) as client:
            return await wire.summarizer(client)(REQUEST)

    assert asyncio.run(ask()) == "The gist."
    assert "x = 1" in sent(provider)[1]


@every_wire
def test_nothing_to_fold_asks_nobody(wire, provider, clients):
    summarizer = wire.summarizer(clients.of[wire.kind])
    assert summarizer(SummaryRequest((), previous_summary="so far")) == "so far"
    assert summarizer(SummaryRequest(())) == "(nothing of note)"
    assert provider.asked == []


# --- answers that are no summary ------------------------------------------------------------------

BAD = [
    (CHAT_WIRE, providers.chat("The gi", finish="length"), "cut"),
    (CHAT_WIRE, providers.chat("", finish="content_filter"), "refused"),
    (CHAT_WIRE, providers.chat(None, refusal="I can't."), "refused"),
    (CHAT_WIRE, providers.chat(" \n"), "empty"),
    (CHAT_WIRE, providers.chat("<think>hm</think>"), "empty"),
    (CHAT_WIRE, providers.chat(None, finish="tool_calls", tool_calls=[providers.CHAT_CALL]),
     "tool_calls"),
    (CHAT_WIRE, providers.chat(None, tool_calls=[providers.CHAT_CALL]), "tool_calls"),
    (CHAT_WIRE, {**providers.chat("x"), "choices": []}, "failed"),
    (CHAT_WIRE, {"error": {"message": "upstream is down"}}, "failed"),
    (RESPONSES_WIRE, providers.responses(
        providers.response_text("The gi"), status="incomplete",
        incomplete_details={"reason": "max_output_tokens"}), "cut"),
    (RESPONSES_WIRE, providers.responses(
        status="incomplete", incomplete_details={"reason": "content_filter"}), "refused"),
    (RESPONSES_WIRE, providers.responses(
        status="failed", error={"code": "server_error", "message": "upstream is down"}), "failed"),
    (RESPONSES_WIRE, providers.responses(providers.response_refusal("I can't.")), "refused"),
    (RESPONSES_WIRE, providers.responses(providers.RESPONSE_CALL), "tool_calls"),
    (RESPONSES_WIRE, providers.responses(providers.RESPONSE_REASONING), "empty"),
    (MESSAGES_WIRE, providers.anthropic("The gi", stop="max_tokens"), "cut"),
    (MESSAGES_WIRE, providers.anthropic(stop="refusal"), "refused"),
    (MESSAGES_WIRE, providers.anthropic(stop="tool_use", blocks=(providers.ANTHROPIC_CALL,)),
     "tool_calls"),
    (MESSAGES_WIRE, providers.anthropic(blocks=(providers.ANTHROPIC_THINKING,)), "empty"),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "body", "reason"), BAD)
def test_an_answer_that_is_no_summary_says_why(wire, body, reason, provider, clients):
    provider.answer(body)
    with pytest.raises(SummarizerError, match=r"Summarizer \(m\): the answer") as caught:
        wire.ask(clients)
    assert caught.value.reason == reason


@every_wire
@pytest.mark.parametrize("status", [400, 429, 500])
def test_an_error_of_the_client_is_raised_as_it_is(wire, status, provider, clients):
    provider.answer(providers.error(wire.path, "some_error", "no"), status=status)
    library = anthropic if wire.kind == "anthropic" else openai
    with pytest.raises(library.APIStatusError) as caught:
        wire.ask(clients)
    assert caught.value.status_code == status
    assert len(provider.asked) == 1


@every_wire
def test_a_slow_provider_runs_into_the_timeout(wire, provider, clients):
    provider.answer(GOOD[wire.path], wait=True)
    library = anthropic if wire.kind == "anthropic" else openai
    with pytest.raises(library.APITimeoutError):
        wire.ask(clients, timeout_seconds=0.05)


def test_a_summary_that_is_cancelled_asks_no_further(provider, clients):
    provider.answer(GOOD[CHAT], wait=True)

    async def ask() -> None:
        async with CHAT_WIRE.asynchronous(provider) as client:
            task = asyncio.ensure_future(CHAT_WIRE.summarizer(client)(REQUEST))
            await asyncio.to_thread(provider.arrived.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(ask())


# --- with a session -------------------------------------------------------------------------------


def test_a_session_is_compacted_by_a_model_and_falls_back_without_it(session, provider, clients):
    session.extend(turns(6))
    summarizer = CHAT_WIRE.summarizer(clients.of["openai"])
    provider.answer(GOOD[CHAT])
    assert session.compact(summarizer, force=True).status == "summarized"
    assert session.context().summary == "The gist."
    session.extend(turns(6, start=6))
    provider.answer(providers.chat("The gi", finish="length"))
    done = session.compact(summarizer, force=True)
    assert done.status == "fallback_slice"
    assert isinstance(done.error, SummarizerError)
    assert session.context().summary == "The gist."
    assert "<previous_summary>\nThe gist.\n" in provider.asked[1].body["messages"][1]["content"]


def test_under_aio_too(tmp_path, provider, clients):
    async def run() -> memcore.CompactionResult:
        async with (
            MESSAGES_WIRE.asynchronous(provider) as client,
            memcore.aio.open(tmp_path / "a.memcore") as db,
        ):
            session = db.session("chat")
            await session.extend(turns(6))
            provider.answer(GOOD[MESSAGES])
            assert (
                await session.compact(MESSAGES_WIRE.summarizer(client), force=True)
            ).status == "summarized"
            await session.extend(turns(6, start=6))
            provider.answer(providers.anthropic(stop="refusal"))
            return await session.compact(MESSAGES_WIRE.summarizer(client), force=True)

    done = asyncio.run(run())
    assert done.status == "fallback_slice"
    assert done.error.reason == "refused"


def test_parts_are_summarized_one_after_the_other_and_then_merged(provider, clients):
    messages = tuple(m for n in range(6) for m in (user(f"q{n} " + "word " * 40), assistant("ok")))
    request = SummaryRequest(messages, previous_summary="before", max_tokens=100)

    async def ask() -> str:
        async with CHAT_WIRE.asynchronous(provider) as client:
            summarizer = CHAT_WIRE.summarizer(client, input_tokens_max=64)
            return await Recursive(summarizer, fanout=3)(request)

    provider.answer(*(providers.chat(f"s{n}") for n in range(9)))
    assert asyncio.run(ask()) == "s8"
    texts = [asked.body["messages"][1]["content"] for asked in provider.asked]
    assert [f"q{n} word" in texts[n] for n in range(6)] == [True] * 6
    assert "user: s0\nuser: s1\nuser: s2\n" in texts[6]
    assert "<previous_summary>\nbefore\n" in texts[8]
    assert "summaries of consecutive parts" in provider.asked[8].body["messages"][0]["content"]


# --- options --------------------------------------------------------------------------------------


def test_a_client_of_another_kind_is_refused(provider, clients):
    right, wrong = clients.of["openai"], clients.of["anthropic"]
    with pytest.raises(InvalidOptionError, match=r"openai\.OpenAI .* got Anthropic"):
        OpenAISummarizer(wrong, model="m")
    with pytest.raises(InvalidOptionError, match=r"anthropic\.Anthropic .* got OpenAI"):
        AnthropicSummarizer(right, model="m")
    assert "client" not in repr(OpenAISummarizer(right, model="m"))


# --- litellm --------------------------------------------------------------------------------------


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it is fetched at the import
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        return pytest.importorskip("litellm")


@pytest.mark.filterwarnings("ignore")  # litellm's own, which differ from release to release
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_litellm_speaks_to_both_providers(litellm, path, provider, clients):
    model = "openai/m" if path == CHAT else "anthropic/claude-sonnet-4-5"
    base = provider.url + ("/v1" if path == CHAT else "")
    extra = {"api_base": base, "api_key": KEY, "num_retries": 0, "max_retries": 0}
    summarizer = LiteLLMSummarizer(litellm.completion, model=model, max_tokens=200, extra=extra)
    provider.answer(GOOD[path])
    assert summarizer(REQUEST) == "The gist."
    assert provider.asked[0].path == path
    assert "x = 1" in str(provider.asked[0].body["messages"][-1]["content"])
    cut = {CHAT: providers.chat("x", finish="length"),
           MESSAGES: providers.anthropic("x", stop="max_tokens")}  # fmt: skip
    provider.answer(cut[path])
    with pytest.raises(SummarizerError) as caught:
        summarizer(REQUEST)
    assert caught.value.reason == "cut"
    provider.answer(providers.error(path, "rate_limit_error", "slow down"), status=429)
    with pytest.raises(litellm.RateLimitError):
        summarizer(REQUEST)
    later = LiteLLMSummarizer(litellm.acompletion, model=model, extra=extra)
    provider.answer(GOOD[path])

    async def ask() -> str:
        return await later(REQUEST)

    assert asyncio.run(ask()) == "The gist."
    gc.collect()  # loops and sockets that litellm left open, while its warnings are ignored
