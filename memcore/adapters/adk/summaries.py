"""MemcoreEventSummarizer: summaries for ADK's own compaction that keep every pair."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.genai import types
from typing_extensions import override

from memcore.adapters.adk.obligations import safe_prefix
from memcore.adapters.adk.ranges import mark_covered
from memcore.compaction.answers import checked_summary
from memcore.compaction.extract import extractive
from memcore.compaction.prompts import checked_language, make_prompt
from memcore.errors import InvalidOptionError, SummarizerError
from memcore.model import Message, SummaryRequest
from memcore.options import checked_int
from memcore.tokens import get_counter

__all__ = ["HEADING", "MemcoreEventSummarizer"]

logger = logging.getLogger("memcore.adk")

HEADING: Final = "Summary of the conversation so far:\n"
"""The first line of a summary: so the next one knows what it has to carry on."""
_COUNTER: Final = "o200k_base"
_INPUT_TOKENS_MAX: Final = 32_000
_SUMMARY_TOKENS: Final = 1024
_CREDENTIALS: Final = "adk_request_credential"
"""The call by which ADK asks for credentials: they are in its answers, and in no summary."""

Summarize: TypeAlias = Callable[[SummaryRequest], str | Awaitable[str]]


class MemcoreEventSummarizer(BaseEventsSummarizer):
    """Summarizes events for ``EventsCompactionConfig(summarizer=...)``.

    What ADK chooses to summarize is cut back to where no call, confirmation or request for
    credentials is torn from its answer, calls without ids included; with MemcoreSessionService the
    range counts by the order of the log. A summary carries on the one before.

    Args:
        summarize: a model of ADK, which is asked; a summarizer of memcore, or any function of a
            SummaryRequest; None: the summary is extracted without a model.
        max_tokens: what a summary is asked to stay within.
        language: ``"en"`` or ``"zh"``; None: that of the conversation.
        instructions: what is asked for beside the usual.

    Raises:
        InvalidOptionError: an option is of a wrong type or out of range.
    """

    def __init__(
        self,
        summarize: BaseLlm | Summarize | None = None,
        *,
        max_tokens: int = _SUMMARY_TOKENS,
        language: str | None = None,
        instructions: str | None = None,
    ) -> None:
        if summarize is not None and not isinstance(summarize, BaseLlm) and not callable(summarize):
            msg = f"summarize: expected a BaseLlm or a function, got {type(summarize).__name__}"
            raise InvalidOptionError(msg)
        self._summarize = summarize
        self._max_tokens = checked_int("max_tokens", max_tokens, least=1)
        self._language = checked_language(language)
        self._instructions = instructions

    @override
    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        """An event that stands for the first of the events, as many as can be; None if none can.

        Raises:
            Exception: what the model or function raises; ADK logs it and goes on without a summary.
        """
        covered = events[: safe_prefix(events)]
        request = self._request(covered)
        if not request.messages:
            return None
        try:
            text, usage = await self._asked(request)
        except SummarizerError as error:
            cause = type(error.__cause__ or error).__name__  # its text may hold content
            logger.warning("%d events are not summarized: %s", len(covered), cause)
            return None
        times = [event.timestamp for event in covered]
        compaction = EventCompaction(
            start_timestamp=min(times),
            end_timestamp=max(times),
            compacted_content=types.Content(role="user", parts=[types.Part(text=HEADING + text)]),
        )
        made = Event(
            author="user",
            invocation_id=Event.new_id(),
            actions=EventActions(compaction=compaction),
            usage_metadata=usage,
        )
        return mark_covered(made, covered)

    def _request(self, events: Sequence[Event]) -> SummaryRequest:
        previous, messages = None, [_message_of(event) for event in events]
        if messages and messages[0] is not None:
            previous = _previous_in(messages[0])
        return SummaryRequest(
            messages=[each for each in messages[previous is not None :] if each is not None],
            previous_summary=previous,
            max_tokens=self._max_tokens,
            language=self._language,
            instructions=self._instructions,
        )

    async def _asked(self, request: SummaryRequest) -> tuple[str, Any]:
        """The summary, and what it cost."""
        summarize = self._summarize
        if isinstance(summarize, BaseLlm):
            return await _from_model(summarize, request)
        answer = (extractive if summarize is None else summarize)(request)
        text = await answer if inspect.isawaitable(answer) else answer
        return checked_summary("the summarizer", text), None


async def _from_model(
    llm: BaseLlm, request: SummaryRequest
) -> tuple[str, types.GenerateContentResponseUsageMetadata | None]:
    prompt = make_prompt(
        request,
        counter=get_counter(_COUNTER),
        summary_tokens=request.max_tokens or _SUMMARY_TOKENS,
        input_tokens_max=_INPUT_TOKENS_MAX,
    )
    asked = LlmRequest(
        model=llm.model,
        contents=[types.Content(role="user", parts=[types.Part(text=prompt.user)])],
        config=types.GenerateContentConfig(system_instruction=prompt.system),
    )
    said, usage = "", None
    async for response in llm.generate_content_async(asked, stream=False):
        usage = response.usage_metadata or usage
        for part in (response.content.parts if response.content else None) or ():
            if part.text and not part.thought:
                said += part.text
    return checked_summary(f"the model {llm.model}", said), usage


def _message_of(event: Event) -> Message | None:
    """What an event says as a message of Gemini's; None: nothing, or what stays a secret."""
    content = event.content
    for told, role in (
        (event.input_transcription, "user"),
        (event.output_transcription, "model"),
    ):
        if (content is None or not content.parts) and told is not None and told.text:
            content = types.Content(role=role, parts=[types.Part(text=told.text)])
    if content is None or not content.parts:
        return None
    calls = (part.function_call or part.function_response for part in content.parts)
    if any(call is not None and call.name == _CREDENTIALS for call in calls):
        return None
    return content.model_dump(mode="json", by_alias=True, exclude_none=True)


def _previous_in(message: Message) -> str | None:
    """The summary that a message is, if it is one of this summarizer's."""
    parts = message["parts"]
    text = parts[0].get("text") if len(parts) == 1 else None
    return text.removeprefix(HEADING) if text and text.startswith(HEADING) else None
