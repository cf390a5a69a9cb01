"""Summarizers that ask a model, over a client that the caller made.

No client library is imported: a client is whatever has the methods of one. A client that answers
with an awaitable makes the summarizer return one, for ``memcore.aio``. Retries, keys and
connections are the client's; what it raises is raised as it is.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from memcore.compaction.answers import from_anthropic, from_chat, from_responses
from memcore.compaction.prompts import Prompt, checked_language, detect_language, make_prompt
from memcore.compaction.transcript import DEFAULT_CAPS, Caps, transcribe
from memcore.errors import InvalidOptionError
from memcore.model import Message, SummaryRequest
from memcore.options import checked_int, checked_optional_int
from memcore.tokens import get_counter

__all__ = ["AnthropicSummarizer", "LiteLLMSummarizer", "ModelSummarizer", "OpenAISummarizer"]

SUMMARY_TOKENS: Final = 1_024
"""What a model is told to stay within if nobody says; a judgement."""
INPUT_TOKENS_MAX: Final = 32_000
"""Of what is summarized in one call; fits every current model with room for the answer."""
INPUT_TOKENS_LEAST: Final = 64
ANTHROPIC_MAX_TOKENS: Final = 4_096
"""Anthropic wants a limit: well above the summary, since an answer that is cut is worth nothing."""
COUNTER: Final = "o200k_base"
NOTHING: Final = "(nothing of note)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummarizer(ABC):
    """The base: makes the prompt, has it sent, and judges the answer.

    A summarizer is a function of a ``SummaryRequest``: it returns the summary, or with an
    asynchronous client an awaitable of it.

    Raises (when made):
        InvalidOptionError: an option is of a wrong type or out of range, or the client lacks the
            method that is called.

    Raises (when called):
        SummarizerError: the answer was cut, refused, empty, or a tool call.
        Exception: whatever the client raises.
    """

    model: str
    max_tokens: int | None = None
    """The limit of the answer that the provider is told, reasoning included. None: none (Anthropic:
    4,096). What the model is *asked* to stay within is the request's ``max_tokens``, or 1,024."""
    language: str | None = None
    """``"en"`` or ``"zh"``; None: that of the messages. The request's comes first."""
    instructions: str | None = None
    """What is asked for beside the usual, in addition to the request's."""
    timeout_seconds: float | None = None
    """Of one call; None: the client's."""
    input_tokens_max: int = INPUT_TOKENS_MAX
    """The previous summary and the transcript together, by o200k_base; above, messages in the
    middle are left out. ``Recursive`` summarizes more than that without loss."""
    temperature: float | None = None
    """None: the provider's (models that reason accept no other)."""
    caps: Caps = DEFAULT_CAPS
    """How much of one text, of a call's arguments and of a result the model is shown."""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further arguments of the client's call, such as ``reasoning_effort``."""

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            msg = f"model: expected the name of a model, got {self.model!r:.80}"
            raise InvalidOptionError(msg)
        checked_optional_int("max_tokens", self.max_tokens, least=1)
        checked_language(self.language)
        checked_int("input_tokens_max", self.input_tokens_max, least=INPUT_TOKENS_LEAST)
        _check_number("timeout_seconds", self.timeout_seconds, zero=False)
        _check_number("temperature", self.temperature, zero=True)
        if self.instructions is not None and not isinstance(self.instructions, str):
            msg = f"instructions: expected a text, got {type(self.instructions).__name__}"
            raise InvalidOptionError(msg)
        if not isinstance(self.caps, Caps):
            msg = f"caps: expected a Caps, got {type(self.caps).__name__}"
            raise InvalidOptionError(msg)
        if not isinstance(self.extra, Mapping):
            msg = f"extra: expected a mapping, got {type(self.extra).__name__}"
            raise InvalidOptionError(msg)

    def __call__(self, request: SummaryRequest, /) -> str | Awaitable[str]:
        """The summary. Where there is nothing to summarize no model is asked."""
        if not request.messages:
            return request.previous_summary or NOTHING
        answer = self._send(self.prompt(request))
        return self._later(answer) if inspect.isawaitable(answer) else self._read(answer)

    def prompt(self, request: SummaryRequest) -> Prompt:
        """What the model is going to be sent."""
        asked = request.max_tokens or SUMMARY_TOKENS
        return make_prompt(
            request,
            counter=get_counter(COUNTER),
            summary_tokens=min(asked, self.max_tokens or asked),
            input_tokens_max=self.input_tokens_max,
            language=self.language,
            instructions=self.instructions,
            caps=self.caps,
        )

    def measure(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of each message as the model is shown it; ``Recursive`` splits by them."""
        language = self.language or detect_language(messages)
        blocks = transcribe(messages, caps=self.caps, language=language)
        return [tokens + 1 for tokens in get_counter(COUNTER).count_many(blocks)]

    async def _later(self, answer: Awaitable[Any]) -> str:
        return self._read(await answer)

    @abstractmethod
    def _send(self, prompt: Prompt) -> Any:
        """The client's answer, or an awaitable of it."""

    @abstractmethod
    def _read(self, answer: Any) -> str:
        """The summary in the answer."""

    def _options(self, max_tokens: str, limit: int | None) -> dict[str, Any]:
        """The arguments that all clients share; ``max_tokens`` is what the limit is called."""
        found: dict[str, Any] = {"model": self.model}
        given = {
            max_tokens: limit,
            "temperature": self.temperature,
            "timeout": self.timeout_seconds,
        }
        found.update((name, value) for name, value in given.items() if value is not None)
        return {**found, **self.extra}

    @property
    def _who(self) -> str:
        return f"{self.name} ({self.model})"


def _check_number(name: str, value: Any, *, zero: bool) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or (number and math.isfinite(value) and (value > 0 or (zero and not value))):
        return
    msg = f"{name}: expected a {'non-negative' if zero else 'positive'} number, got {value!r:.80}"
    raise InvalidOptionError(msg)


def _method(client: Any, path: str, expected: str) -> Callable[..., Any]:
    """The client's method.

    Raises:
        InvalidOptionError: it has none of that name.
    """
    found = client
    for step in path.split("."):
        found = getattr(found, step, None)
    if not callable(found):
        msg = f"client: expected {expected}, with a method {path}; got {type(client).__name__}"
        raise InvalidOptionError(msg)
    method: Callable[..., Any] = found
    return method


@dataclass(frozen=True, slots=True)
class OpenAISummarizer(ModelSummarizer):
    """Asks through an ``openai.OpenAI`` or ``openai.AsyncOpenAI``, or one for a compatible server.

    The transcript is one user message; the rules stand before it as a system message
    (``api="chat"``) or as ``instructions`` (``api="responses"``, with ``store=False``).
    """

    client: Any = field(repr=False)
    api: Literal["chat", "responses"] = field(default="chat", kw_only=True)
    limit_name: str = field(default="max_completion_tokens", kw_only=True)
    """What Chat Completions calls ``max_tokens``; older compatible servers want
    ``"max_tokens"``."""

    name: ClassVar[str] = "OpenAISummarizer"

    def __post_init__(self) -> None:
        super(OpenAISummarizer, self).__post_init__()
        if self.api not in ("chat", "responses"):
            msg = f"api: expected 'chat' or 'responses', got {self.api!r:.80}"
            raise InvalidOptionError(msg)
        self._create()

    def _create(self) -> Callable[..., Any]:
        path = "chat.completions.create" if self.api == "chat" else "responses.create"
        return _method(self.client, path, "an openai.OpenAI or openai.AsyncOpenAI")

    def _send(self, prompt: Prompt) -> Any:
        user = {"role": "user", "content": prompt.user}
        if self.api == "chat":
            system = {"role": "system", "content": prompt.system}
            options = self._options(self.limit_name, self.max_tokens)
            return self._create()(messages=[system, user], **options)
        options = {"store": False, **self._options("max_output_tokens", self.max_tokens)}
        return self._create()(instructions=prompt.system, input=[user], **options)

    def _read(self, answer: Any) -> str:
        read = from_chat if self.api == "chat" else from_responses
        return read(self._who, answer)


@dataclass(frozen=True, slots=True)
class AnthropicSummarizer(ModelSummarizer):
    """Asks through an ``anthropic.Anthropic`` or ``anthropic.AsyncAnthropic``.

    The rules are the ``system`` argument, the transcript is the one user message.
    """

    client: Any = field(repr=False)

    name: ClassVar[str] = "AnthropicSummarizer"

    def __post_init__(self) -> None:
        super(AnthropicSummarizer, self).__post_init__()
        self._create()

    def _create(self) -> Callable[..., Any]:
        expected = "an anthropic.Anthropic or anthropic.AsyncAnthropic"
        return _method(self.client, "messages.create", expected)

    def _send(self, prompt: Prompt) -> Any:
        options = self._options("max_tokens", self.max_tokens or ANTHROPIC_MAX_TOKENS)
        if "temperature" in options:  # no argument of newer clients, but still of the protocol
            body = {"temperature": options.pop("temperature"), **options.get("extra_body", {})}
            options["extra_body"] = body
        messages = [{"role": "user", "content": prompt.user}]
        return self._create()(system=prompt.system, messages=messages, **options)

    def _read(self, answer: Any) -> str:
        return from_anthropic(self._who, answer)


@dataclass(frozen=True, slots=True)
class LiteLLMSummarizer(ModelSummarizer):
    """Asks through ``litellm.completion`` or ``litellm.acompletion``, or those of a router."""

    completion: Callable[..., Any] = field(repr=False)

    name: ClassVar[str] = "LiteLLMSummarizer"

    def __post_init__(self) -> None:
        super(LiteLLMSummarizer, self).__post_init__()
        if not callable(self.completion):
            msg = (
                "completion: expected litellm.completion or litellm.acompletion, got "
                f"{type(self.completion).__name__}"
            )
            raise InvalidOptionError(msg)

    def _send(self, prompt: Prompt) -> Any:
        messages = [
            {"role": "system", "content": prompt.system},
            {"role": "user", "content": prompt.user},
        ]
        return self.completion(messages=messages, **self._options("max_tokens", self.max_tokens))

    def _read(self, answer: Any) -> str:
        return from_chat(self._who, answer)
