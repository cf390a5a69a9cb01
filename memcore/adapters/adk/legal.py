"""Legal model requests: a plugin and a callback that repair contents right before the model.

Summaries, windows and cancelled turns leave behind calls without responses, responses without calls
and histories that begin with the model. The request is rendered by the rules of memcore's own
contexts (``gemini``) and changed only where it violates them; the stored events do not change.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from inspect import isawaitable
from itertools import count
from typing import Any, Final

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types
from typing_extensions import override

from memcore.adapters.request import PayloadOf, SentObjects, fill_payload, query_in
from memcore.errors import InvalidOptionError
from memcore.faces import logger
from memcore.model import Message
from memcore.wire import WireItem, get_policy, lead_in_message, render

__all__ = [
    "MemcorePlugin",
    "mend_contents",
    "mend_request",
]


_log = logger("memcore.adk")

_POLICY: Final = get_policy("gemini")
_PART: Final = "memcore_part"
"""The key under which a rendered part holds the ADK part it represents."""
_NAMELESS: Final = "\0"
_PENDING: Final = {"status": "pending"}
_ASKS_PEOPLE: Final = "adk_request_"
_END: Final[Message] = {"role": "user", "parts": [{"text": "."}]}
"""Appended to every request for rendering, so that a call at its end is answered, too."""


class MemcorePlugin(BasePlugin):
    """Repairs each request right before the model call: ``App(plugins=[MemcorePlugin()])``.

    Works with any session service and any compaction. List it last, so that it sees the requests as
    modified by other plugins.

    Args:
        name: the plugin's name in the app.
        payload: function of the text of the last user message and of ADK's ``LlmRequest`` that
            returns a new ``memcore.Payload``, or an awaitable of one, with every section but the
            history: the request's contents become its history, behind the agent's instructions.
            ADK sends the tools itself: give them to the payload too, or reserve tokens for them.
            None: requests are only repaired.
    """

    def __init__(self, name: str = "memcore", *, payload: PayloadOf | None = None) -> None:
        super().__init__(name)
        self._payload = payload

    @override
    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Fill the payload, if there is one, and repair the request's contents.

        Returns:
            None, so that the model is called.

        Raises:
            ContextOverflowError: what must be shown does not fit.
            InvalidOptionError, InvalidItemError
        """
        if self._payload is not None and not llm_request.previous_interaction_id:
            await _fill(llm_request, self._payload)
        return mend_request(callback_context, llm_request)


async def _fill(request: LlmRequest, payload: PayloadOf) -> None:
    """Put a payload in place of a request's contents and instructions."""
    config = request.config
    instructions = "\n\n".join(_texts_in(config.system_instruction))
    given: SentObjects[types.Part] = SentObjects()
    messages = []
    # Calls without a response are answered first, as ADK would have it: that counts, too.
    for content in mend_contents(request.contents, pending=_slow(request)):
        parts = [part.model_dump(mode="json", exclude_none=True) for part in content.parts or ()]
        for part, of in zip(parts, content.parts or (), strict=True):
            given.keep(part, of)
        messages.append({"role": content.role or "user", "parts": parts})
    made = payload(query_in(messages), request)
    filled = await made if isawaitable(made) else made
    found = await asyncio.to_thread(fill_payload, filled, messages, instructions, "gemini")
    request.contents = []
    for message in found.messages:
        shown = [given.found(part) or types.Part.model_validate(part) for part in message["parts"]]
        request.contents.append(types.Content(role=message["role"], parts=shown))
    if found.system:
        config.system_instruction = "\n\n".join(part["text"] for part in found.system["parts"])


def _texts_in(instruction: Any) -> Iterator[str]:
    """Yield the texts of a system instruction, in any of its forms.

    Raises:
        InvalidOptionError: it holds more than text, which has no place in a payload.
    """
    if instruction is None:
        return
    if isinstance(instruction, str):
        yield instruction
    elif isinstance(instruction, list):
        for each in instruction:
            yield from _texts_in(each)
    elif isinstance(instruction, types.Content):
        yield from _texts_in(instruction.parts)
    elif isinstance(instruction, types.Part) and instruction.text is not None:
        yield instruction.text
    else:
        msg = f"system_instruction: expected texts, got {type(instruction).__name__}"
        raise InvalidOptionError(msg)


def _slow(request: LlmRequest) -> list[str]:
    """Return the names of long-running tools."""
    return [name for name, tool in request.tools_dict.items() if tool.is_long_running]


def mend_request(callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
    """Repair the contents of a request in place: ``LlmAgent(before_model_callback=mend_request)``.

    Args:
        callback_context: unused; ADK passes it to every callback.
        llm_request: the request. It is not changed if it is legal, or if it continues an
            interaction: the calls that it answers are then stored by the server, not in the
            request.

    Returns:
        None, so that the model is called.
    """
    del callback_context
    if llm_request.previous_interaction_id:
        return None
    llm_request.contents = mend_contents(llm_request.contents, pending=_slow(llm_request))
    return None


def mend_contents(
    contents: list[types.Content], *, pending: Collection[str] = ()
) -> list[types.Content]:
    """Return contents that Gemini accepts: the given list itself if it is legal.

    They begin with the user. The responses to all calls of a content are together in the next
    content, one per call. Responses without a call, and those superseded by newer ones, are
    dropped; calls without a response are answered with a note. Consecutive contents of the model
    are joined. Parts stay unchanged, except that an id shared by several calls of one content is
    made unique.

    Args:
        contents: a history, complete or partial.
        pending: names of long-running tools: the note for a call of one reports it as pending.
    """
    given, entries = _entries(contents)
    rendered = render([*entries, WireItem(len(entries), _END)], _POLICY)
    made = []
    for message, source in zip(rendered.messages[:-1], rendered.sources, strict=False):
        kept = None if source is None else given[source]
        made.append(kept or _content(message, pending))
    shown = _joined(made)
    if shown and shown[0].role == "model":
        shown.insert(0, types.Content.model_validate(lead_in_message(_POLICY)))
    if len(shown) == len(contents) and all(map(_is, shown, contents)):
        return contents
    actions = Counter(repair.action for repair in rendered.repairs)
    _log.info("a request was mended before it went to the model: %s", dict(actions) or "order")
    return shown


def _entries(
    contents: Sequence[types.Content],
) -> tuple[list[types.Content | None], list[WireItem]]:
    """The contents as entries for rendering, with the original of each, or None if it is changed.

    Parts are represented only by the fields that pair them, so nothing large is copied or encoded.
    """
    given: list[types.Content | None] = []
    entries: list[WireItem] = []
    several: dict[str, list[str]] = {}
    taken = {told.id for content in contents for told in _told_in(content.parts or ()) if told.id}
    for content in contents:
        parts = content.parts or []
        results = [part for part in parts if part.function_response is not None]
        others = [part for part in parts if part.function_response is None]
        is_split = bool(results) and (
            content.role == "model" or any(part.function_call is not None for part in others)
        )
        runs = [("user", results), ("model", others)] if is_split else [(content.role, parts)]
        for role, run in runs:
            if run:
                known = "model" if role == "model" else "user"
                stubs, is_renamed = _stubs(run, (several, taken), known)
                entries.append(WireItem(len(entries), {"role": known, "parts": stubs}))
                given.append(None if is_split or is_renamed else content)
    return given, entries


def _told_in(
    parts: Sequence[types.Part],
) -> Iterator[types.FunctionCall | types.FunctionResponse]:
    for part in parts:
        told = part.function_call or part.function_response
        if told is not None:
            yield told


def _stubs(
    parts: Sequence[types.Part], known: tuple[dict[str, list[str]], set[str]], role: str
) -> tuple[list[Message], bool]:
    """Parts reduced to the fields that pair them, and whether an id was changed for uniqueness.

    Args:
        parts: the parts of one content.
        known: the new ids of calls that shared an id within a content, and all ids in use.
        role: the role of the content.
    """
    several, taken = known
    seen: defaultdict[str, list[str]] = defaultdict(list)
    found: list[Message] = []
    is_renamed = False
    for part in parts:
        told = part.function_call or part.function_response
        if told is None or (part.function_call is not None and role == "user"):
            found.append({_PART: part, "text": "."})
            continue
        name = "functionResponse" if part.function_call is None else "functionCall"
        stub = {"name": told.name or _NAMELESS}
        if told.id:
            number = len(seen[told.id])
            if part.function_call is None:
                names = several.get(told.id, [told.id])
                stub["id"] = names[number] if number < len(names) else names[-1]
            else:
                stub["id"] = _free(told.id, taken) if number else told.id
            seen[told.id].append(stub["id"])
            if stub["id"] != told.id:
                is_renamed = True
                field = "function_response" if part.function_call is None else "function_call"
                renamed = told.model_copy(update={"id": stub["id"]})
                part = part.model_copy(update={field: renamed})  # noqa: PLW2901 - the part to show
        found.append({_PART: part, name: stub})
    if role == "model":
        several.update(seen)
    return found, is_renamed


def _free(id_: str, taken: set[str]) -> str:
    """A new unused id, derived from one that several calls share."""
    made = next(name for at in count(2) if (name := f"{id_}-{at}") not in taken)
    taken.add(made)
    return made


def _content(message: Message, pending: Collection[str]) -> types.Content:
    """A content produced by rendering, from original parts and notes."""
    parts = [part.get(_PART) or _note(part, pending) for part in message["parts"]]
    return types.Content(role=message["role"], parts=parts)


def _note(part: Message, pending: Collection[str]) -> types.Part:
    told: dict[str, Any] = part["functionResponse"]
    name = told["name"]
    is_pending = name in pending or name.startswith(_ASKS_PEOPLE)
    response = types.FunctionResponse(
        id=told.get("id"),
        name=name,
        response=dict(_PENDING) if is_pending else told["response"],
    )
    return types.Part(function_response=response)


def _joined(contents: Sequence[types.Content]) -> list[types.Content]:
    """The contents with consecutive ones of the model joined."""
    found: list[types.Content] = []
    for content in contents:
        if found and content.role == found[-1].role == "model":
            parts = [*(found[-1].parts or ()), *(content.parts or ())]
            found[-1] = types.Content(role="model", parts=parts)
        else:
            found.append(content)
    return found


def _is(one: object, other: object) -> bool:
    return one is other
