"""Input filter of the OpenAI Agents SDK that fills a payload."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import Any

from agents.run_config import CallModelData, ModelInputData

from memcore._fast import classify
from memcore.adapters.openai_agents.legal_input import Terms, legal_window, plain_items
from memcore.adapters.request import PayloadOf, SentObjects, fill_payload, query_in
from memcore.model import ItemKind

__all__ = [
    "payload_call_model_input_filter",
]


def payload_call_model_input_filter(
    payload: PayloadOf,
) -> Callable[[CallModelData[Any]], Awaitable[ModelInputData]]:
    """Return a filter for ``RunConfig`` that sends each call of the model as a payload.

    The input of the call is the payload's history, behind the agent's instructions; what is added
    is never stored. Legal, as that of ``safe_call_model_input_filter``. The SDK sends the tools
    itself: give them to the payload too, or reserve tokens for them. Results alone are passed
    unchanged: they continue a conversation that a server stores.

    Args:
        payload: function of the text of the last user message and of the SDK's ``CallModelData``
            that returns a new ``memcore.Payload``, or an awaitable of one, with every section but
            the history.
    """
    return partial(_filled, payload)


async def _filled(payload: PayloadOf, data: CallModelData[Any]) -> ModelInputData:
    """Send one call.

    Raises:
        ContextOverflowError: what must be shown does not fit.
        InvalidOptionError, InvalidItemError
    """
    asked = data.model_data
    items = plain_items(asked.input)
    if items and all(classify(item)[0] == ItemKind.RESULT for item in items):
        return asked  # the server holds the conversation, with the calls that these answer
    made = payload(query_in(items), data)
    filled = await made if isawaitable(made) else made
    found = await asyncio.to_thread(
        fill_payload, filled, items, asked.instructions or "", "openai_responses"
    )
    given: SentObjects[Any] = SentObjects()
    for item, of in zip(items, asked.input, strict=True):
        given.keep(item, of)
    # What the cut separated from its reasoning loses its id, which the provider would refuse.
    shown = [each.item for each in legal_window(found.messages, None, Terms())]
    return ModelInputData([given.found(item) or item for item in shown], found.system)
