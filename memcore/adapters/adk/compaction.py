"""Compaction of ADK's events: ranges by seq, summaries, and calls that still await a result.

ADK omits an event from a prompt if its timestamp is within the range of a summary, and sorts the
other events by timestamp. A clock that stalls or goes backwards would therefore lose events that no
summary covers, or separate pairs. A summary is stored with the seqs that it covers. In a session
with a summary, events are presented with timestamps that never decrease and that differ at the
edges of a covered run, and each summary with the range from its first to its last event. If the
clock was correct, as it nearly always is, these are the original timestamps. The file keeps the
originals.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from math import inf, nextafter
from typing import Any, Final, TypeAlias

from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.sessions.session import Session
from google.adk.utils._function_call_names import AF_FUNCTION_CALL_ID_PREFIX
from google.genai import types
from typing_extensions import override

from memcore.adapters.adk.history import Entry
from memcore.compaction.summarizers import checked_language, checked_summary, make_prompt
from memcore.compaction.transcript import extractive
from memcore.errors import InvalidOptionError, SummarizerError
from memcore.faces import logger
from memcore.model import Message, SummaryRequest
from memcore.options import checked_int
from memcore.records import record
from memcore.tokens import get_counter
from memcore.wire import WireItem as Paired
from memcore.wire import bind
from memcore.wire.message import BY_NAME, CallSlot

__all__ = [
    "COVERS",
    "HEADING",
    "MemcoreEventSummarizer",
    "covered_now",
    "covered_once",
    "mark_covered",
    "present",
    "presented",
    "safe_prefix",
    "show_event",
]


# --- The events that a compaction covers: in the log by seq; for ADK by timestamps ----------------

COVERS: Final = "memcore_covers"
"""Key of a compaction event's custom metadata: the ids of the first and last event it covers."""
Span = tuple[int, int]
"""The first and last index covered by a summary."""


def mark_covered(compaction: Event, events: Sequence[Event]) -> Event:
    """Record in a compaction event which events it covers; for summarizers.

    Otherwise, of several events with its end timestamp only the first one counts as covered: the
    others are shown in addition to the summary.
    """
    told = {COVERS: [events[0].id, events[-1].id]}
    compaction.custom_metadata = {**(compaction.custom_metadata or {}), **told}
    return compaction


def covered_once(events: Sequence[Event], compaction: Event) -> Span | None:
    """The index span of the events that a new compaction covers, from its timestamps.

    Ambiguous timestamps resolve to as few events as possible: an event wrongly counted as covered
    is lost, one wrongly left uncovered is shown in addition to the summary.
    """
    told = compaction.actions.compaction
    if told is None:
        return None
    marked = _marked(events, compaction)
    mine = [at for at, event in enumerate(events) if _concerns(event, compaction)]
    first = marked[0]
    if first is None:
        first = next((at for at in mine if events[at].timestamp == told.start_timestamp), None)
    if first is None:
        first = next((at for at in mine if events[at].timestamp >= told.start_timestamp), None)
    if first is None:
        return None
    last = marked[1]
    if last is None:
        run = [at for at in mine if at >= first]
        ends = [at for at in run if events[at].timestamp == told.end_timestamp]
        last = _first_balanced(events, run, ends) if ends else _run_until(events, run, told)
    return None if last is None or last < first else (first, last)


def _marked(events: Sequence[Event], compaction: Event) -> tuple[int | None, int | None]:
    told = (compaction.custom_metadata or {}).get(COVERS)
    if not isinstance(told, list) or len(told) != 2:  # noqa: PLR2004 - first and last
        return None, None
    places = {event.id: at for at, event in enumerate(events)}
    return places.get(told[0]), places.get(told[1])


def _concerns(event: Event, compaction: Event) -> bool:
    same = event.isolation_scope == compaction.isolation_scope
    return event.actions.compaction is None and same


def _run_until(events: Sequence[Event], run: list[int], told: Any) -> int | None:
    last = None
    for at in run:
        if events[at].timestamp > told.end_timestamp:
            break
        last = at
    return last


def _first_balanced(events: Sequence[Event], run: list[int], ends: list[int]) -> int:
    """The first of the candidate ends at which no call of the run is open."""
    possible, waiting = set(ends), set[str | None]()
    for at in run:
        for response in events[at].get_function_responses():
            waiting.discard(response.id)
        waiting |= {call.id for call in events[at].get_function_calls()}
        if at in possible and not waiting:
            return at
    return ends[0]


def covered_now(events: Sequence[Event], at: int) -> Span | None:
    """The events that the compaction at an index covers, among ``presented`` events."""
    told = events[at].actions.compaction
    if told is None:
        return None
    mine = [
        index
        for index, event in enumerate(events[:at])
        if event.actions.compaction is None
        and told.start_timestamp <= event.timestamp <= told.end_timestamp
    ]
    return (mine[0], mine[-1]) if mine else None


def presented(events: Sequence[Event], covers: Mapping[int, Span]) -> dict[int, Event]:
    """Changed copies, by index, of the events that must be presented differently than stored.

    Args:
        events: a session's events in log order, or the last ones of them.
        covers: for the index of each compaction event, the indexes that it covers; negative indexes
            are before the first event.
    """
    shown: dict[int, Event] = {}
    edges = {lo for lo, _ in covers.values()} | {hi + 1 for _, hi in covers.values()}
    times: dict[int, float] = {}
    high, is_edge = -inf, False
    for at, event in enumerate(events):
        is_edge = is_edge or at in edges
        if event.actions.compaction is not None:
            continue
        time = event.timestamp
        if time < high or (time == high and is_edge):
            time = nextafter(high, inf)  # lets a later summary's range separate the two
            shown[at] = event.model_copy(update={"timestamp": time})
        times[at] = high = time
        is_edge = False
    first = next(iter(times.values()), inf)
    for at, (lo, hi) in covers.items():
        _present_range(events[at], at, (_time(times, lo, first), _last_time(times, lo, hi)), shown)
    return shown


def _time(times: Mapping[int, float], lo: int, first: float) -> float:
    return times.get(lo, first)


def _last_time(times: Mapping[int, float], lo: int, hi: int) -> float | None:
    for at in range(hi, max(lo, 0) - 1, -1):
        if at in times:
            return times[at]
    return None


def _present_range(
    event: Event, at: int, span: tuple[float, float | None], shown: dict[int, Event]
) -> None:
    told = event.actions.compaction
    assert told is not None  # noqa: S101 - covers only has compactions
    start, end = span
    if end is None:  # everything it covers precedes the first event shown
        end = min(told.end_timestamp, nextafter(start, -inf))
        start = min(told.start_timestamp, end)
    if (start, end) == (told.start_timestamp, told.end_timestamp):
        return
    new = told.model_copy(update={"start_timestamp": start, "end_timestamp": end})
    actions = event.actions.model_copy(update={"compaction": new})
    shown[at] = event.model_copy(update={"actions": actions})


# --- Events in the form in which they are shown together, some of them covered by summaries -------


def present(events: list[Event], entries: list[Entry], *, mend: bool) -> None:
    """Replace events by changed copies where ADK would build an illegal prompt from them.

    Args:
        events: the events to return; modified in place.
        entries: the entries of the same events.
        mend: correct not only timestamps: also give ids to calls without ids, and attribute
            summaries to the user.
    """
    if mend:
        _name_calls(events, entries)
    covers: dict[int, Span] = {}
    for at, entry in enumerate(entries):
        if entry.is_compaction:
            told = entry.covers
            if told is None:
                span = covered_once(events[:at], events[at])
            else:
                span = (
                    bisect_left(entries, told[0], key=_seq) if told[0] >= entries[0].seq else -1,
                    bisect_right(entries, told[1], key=_seq) - 1,
                )
            if span is not None:
                covers[at] = span
            if mend:
                events[at] = _of_user(events[at])
    _put(events, covers)


def _of_user(event: Event) -> Event:
    """A compaction event whose summary a prompt can begin with."""
    told = event.actions.compaction
    if told is None or (content := told.compacted_content).role != "model":
        return event
    new = told.model_copy(update={"compacted_content": content.model_copy(update={"role": "user"})})
    actions = event.actions.model_copy(update={"compaction": new})
    return event.model_copy(update={"actions": actions})


def _name_calls(events: list[Event], entries: list[Entry]) -> None:
    """Give ids to calls without ids and to the responses that answer them.

    ADK pairs, summarizes and cuts by id, and does not recognize pairs without one. The ids have the
    form of those that ADK itself assigns, which are never sent to Gemini. They are derived from
    seqs, so that a call has the same id in every window.
    """
    if not any(entry.lacks_ids for entry in entries):
        return
    binding = bind(Paired(at, _paired(event)) for at, event in enumerate(events))
    names: dict[int, str] = {}
    for at, entry in enumerate(entries):
        for number, slot in enumerate(binding.calls[at]):
            names[id(slot)] = f"{AF_FUNCTION_CALL_ID_PREFIX}{entry.seq}-{number}"
    for at, entry in enumerate(entries):
        if not entry.lacks_ids:
            continue
        calls = iter([slot for slot in binding.calls[at] if slot.key[0] & BY_NAME])
        answers = iter([slot for key, slot in binding.answers[at] if key[0] & BY_NAME])
        events[at] = _named(events[at], calls, answers, names)


def _paired(event: Event) -> Message:
    """An event's content reduced to its calls and responses, for pairing."""
    content = event.content
    parts: list[Message] = []
    for part in (content and content.parts) or ():
        for key, told in (
            ("functionCall", part.function_call),
            ("functionResponse", part.function_response),
        ):
            if told is not None:
                parts.append({key: {"name": told.name, **({"id": told.id} if told.id else {})}})
    is_model = any("functionCall" in part for part in parts)
    return {"role": "model" if is_model else "user", "parts": parts or [{"text": "."}]}


def _named(
    event: Event,
    calls: Iterator[CallSlot],
    answers: Iterator[CallSlot | None],
    names: Mapping[int, str],
) -> Event:
    """The event, with ids from ``names`` for parts without one."""
    assert event.content is not None  # noqa: S101 - it has calls
    parts = list(event.content.parts or ())
    for at, part in enumerate(parts):
        for key, slots in (("function_call", calls), ("function_response", answers)):
            told = getattr(part, key)
            if told is None or told.id or not told.name:
                continue
            slot = next(slots, None)
            if slot is not None:
                named = told.model_copy(update={"id": names[id(slot)]})
                parts[at] = part.model_copy(update={key: named})
    content = event.content.model_copy(update={"parts": parts})
    return event.model_copy(update={"content": content})


def _seq(entry: Entry) -> int:
    return entry.seq


def _put(events: list[Event], covers: Mapping[int, Span]) -> None:
    if covers:
        for at, shown in presented(events, covers).items():
            events[at] = shown


def show_event(session: Session, event: Event, covered: Span | None, *, mend: bool) -> None:
    """Append an event to a session object, presented consistently with its other events.

    Args:
        session: the caller's object.
        event: the stored event.
        covered: for a compaction, the indexes of the object's events that it covers.
        mend: as in ``present``.
    """
    events = session.events
    events.append(_of_user(event) if mend else event)
    if event.actions.compaction is None and _is_later(events):
        return
    last = len(events) - 1
    covers: dict[int, Span] = {}
    for at, each in enumerate(events):
        if each.actions.compaction is None:
            continue
        span = covered if at == last else covered_now(events, at)
        if span is not None:
            covers[at] = span
    _put(events, covers)


def _is_later(events: list[Event]) -> bool:
    """Return whether the last event's timestamp is later than that of the event before it."""
    for at in range(len(events) - 2, -1, -1):
        if events[at].actions.compaction is None:
            return events[-1].timestamp > events[at].timestamp
    return True


# --- Cuts of a run of events that separate no obligation from its answer --------------------------
# An obligation is a call, or a request for a tool confirmation or credentials. It is answered by
# the response with its id, the last one if there are several. Calls without an id are answered by
# responses without one, matched by name and in order.
#
# An open obligation keeps its events out of a summary, unless it is dead: a call of an earlier
# invocation that was never answered, or one without an id after which the conversation continued.
# ADK, which sees the whole session, passes no call whose response came later.

_ASKS_PEOPLE: Final = "adk_request_"
"""The prefix of ADK's own calls, which are answered by people, once."""


@record(slots=True)
class _Obligation:
    """A call or request that needs an answer."""

    at: int
    """The index of its event."""
    named: str
    is_request: bool = False
    """True if it waits for a person or a long-running tool."""
    is_begun: bool = False
    """True if its first answer only reports that it has started."""
    answers: int = 0
    last: int = -1
    """The index of its last answer."""


def safe_prefix(events: Sequence[Event]) -> int:
    """The length of the longest prefix of the events that can be summarized together.

    No later event answers one in the prefix, none in it awaits an answer, and all its timestamps
    are earlier than those of the later events.
    """
    limit = [False] * (len(events) + 1)
    for held in _obligations(events):
        until = len(events) + 1 if _is_open(held, events) else held.last + 1
        for cut in range(held.at + 1, min(until, len(limit))):
            limit[cut] = True
    lowest = inf
    highest = [-inf]
    for event in events:
        highest.append(max(highest[-1], event.timestamp))
    for cut in range(len(events), 0, -1):
        if not limit[cut] and highest[cut] < lowest:
            return cut
        lowest = min(lowest, events[cut - 1].timestamp)
    return 0


def _obligations(events: Sequence[Event]) -> list[_Obligation]:
    found: list[_Obligation] = []
    by_id: dict[str, _Obligation] = {}
    nameless: defaultdict[str, list[_Obligation]] = defaultdict(list)
    for at, event in enumerate(events):
        requests = {*event.actions.requested_tool_confirmations}
        requests |= {*event.actions.requested_auth_configs}
        for response in event.get_function_responses():
            if response.id:
                held = by_id.get(response.id)
            else:
                waiting = nameless[response.name or ""]
                held = waiting.pop(0) if waiting else None
            if held is not None:
                # A response that accompanies a request for confirmation is not yet an answer.
                held.answers += response.id not in requests
                held.last = at
        for call in event.get_function_calls():
            is_long = call.id in (event.long_running_tool_ids or ())
            is_asked = (call.name or "").startswith(_ASKS_PEOPLE)
            held = _Obligation(at, call.id or "", is_long, is_begun=is_long and not is_asked)
            found.append(held)
            if call.id:
                by_id[call.id] = held
            else:
                nameless[call.name or ""].append(held)
        for id_ in requests:
            held = by_id.get(id_)
            if held is None or held.answers:
                held = _Obligation(at, id_, is_request=True)
                found.append(held)
                by_id[id_] = held
            held.is_request, held.last = True, at
    return found


def _is_open(held: _Obligation, events: Sequence[Event]) -> bool:
    """Return whether an answer may still arrive after the events."""
    mine, newest = events[held.at].invocation_id, events[-1].invocation_id
    is_newest = mine == newest
    if held.is_request:
        return held.answers <= held.is_begun and is_newest
    if held.answers:
        return False
    if held.named:
        return is_newest
    return not any(_is_turn(event) for event in events[held.at + 1 :]) and is_newest


def _is_turn(event: Event) -> bool:
    """Return whether the event is text from the user."""
    parts = (event.content.parts if event.content else None) or ()
    return event.author == "user" and any(part.text for part in parts)


# --- MemcoreEventSummarizer: summaries for ADK's own compaction that keep every pair --------------

_log = logger("memcore.adk")

HEADING: Final = "Summary of the conversation so far:\n"
"""The first line of a summary, by which the next one recognizes a summary to continue."""
_COUNTER: Final = "o200k_base"
_INPUT_TOKENS_MAX: Final = 32_000
_SUMMARY_TOKENS: Final = 1024
_CREDENTIALS: Final = "adk_request_credential"
"""The call by which ADK requests credentials; its answers contain them, so no summary may."""

Summarize: TypeAlias = Callable[[SummaryRequest], str | Awaitable[str]]


class MemcoreEventSummarizer(BaseEventsSummarizer):
    """Summarizes events for ``EventsCompactionConfig(summarizer=...)``.

    The events that ADK selects are cut back so that no call, confirmation or credential request is
    separated from its answer, including calls without ids; with MemcoreSessionService, ranges
    follow log order. A summary continues the previous one.

    Args:
        summarize: an ADK model; a memcore summarizer, or any function of a SummaryRequest; None:
            extract the summary without a model.
        max_tokens: the length requested from the model.
        language: ``"en"`` or ``"zh"``; None: that of the conversation.
        instructions: further instructions.

    Raises:
        InvalidOptionError: an option has the wrong type or is out of range.
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
        """Summarize the longest safe prefix of the events in one event; None if it is empty.

        Raises:
            Exception: as raised by the model or function; ADK logs it and continues without a
                summary.
        """
        covered = events[: safe_prefix(events)]
        request = self._request(covered)
        if not request.messages:
            return None
        try:
            text, usage = await self._asked(request)
        except SummarizerError as error:
            cause = type(error.__cause__ or error).__name__  # the message may contain content
            _log.warning("%d events are not summarized: %s", len(covered), cause)
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
        """Return the summary and its token usage."""
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
    """The content of an event as a Gemini message.

    None if it is empty or contains credentials.
    """
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
    """The summary in a message, if this summarizer produced it."""
    parts = message["parts"]
    text = parts[0].get("text") if len(parts) == 1 else None
    return text.removeprefix(HEADING) if text and text.startswith(HEADING) else None
