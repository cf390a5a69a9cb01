"""A Pydantic AI agent whose conversation is in a memcore file, with a fork and a legal window.

It prints:
first run: It is 18 °C in Paris.
stored 4 messages
a window of 2 begins at a response and has 1
the fork begins anew after 1 message: It is 18 °C in Rome.
found again: 18 °C in Paris
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from memcore.adapters.pydantic_ai import MemcoreConversationStore


def model(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """Call the tool, then say what it returned; a script stands for a model."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse([TextPart(f"It is {last.content}.")])
    city = "Rome" if "Rome" in str(last) else "Paris"
    return ModelResponse([ToolCallPart("weather", {"city": city})])


agent = Agent(FunctionModel(model))


@agent.tool_plain
def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"18 °C in {city}"


async def main() -> None:
    """Run the agent, read its conversation, and go on from its beginning in a fork."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.memcore"
        with MemcoreConversationStore(path, user="ann") as store:
            started = Conversation(conversation_id="chat")
            result = await agent.run("Weather in Paris?", conversation=started)
            entries = await store.save(result)
            print("first run:", result.output)
        with MemcoreConversationStore(path, user="ann") as store:
            whole = await store.load("chat")
            window = await store.load("chat", limit=2)
            if whole is None or window is None:
                raise LookupError(path)
            print(f"stored {len(whole.messages)} messages")
            kind = "request" if isinstance(window.messages[0], ModelRequest) else "response"
            print(f"a window of 2 begins at a {kind} and has {len(window.messages)}")
            fork = await store.fork("chat", at=1)
            result = await agent.run("I mean Rome", conversation=fork)
            await store.save(result)
            print("the fork begins anew after 1 message:", result.output)
            hit = store.session(entries[0].id).search("Paris", kinds=["result"])[0]
            print("found again:", hit.item.message["content"][0]["content"])


asyncio.run(main())
