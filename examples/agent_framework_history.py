"""An agent of Microsoft's Agent Framework whose history is in a memcore file.

It prints:
first answer: It is 18 °C in Paris.
after the restart the model sees 5 messages
the same again is stored: 8 messages
the last 3: assistant, user, assistant
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    tool,
)

from memcore.adapters.agent_framework import MemcoreHistoryProvider


@tool(approval_mode="never_require")
def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"18 °C in {city}"


class Scripted(FunctionInvocationLayer, BaseChatClient):
    """A script in the place of a model."""

    async def _inner_get_response(
        self,
        *,
        messages: Sequence[Message],
        stream: bool,
        options: Mapping[str, Any],
        **kwargs: Any,
    ) -> ChatResponse:
        last = messages[-1].contents[-1]
        if last.type == "function_result":
            reply = Content.from_text(f"It is {last.result}.")
        elif "Paris" in messages[-1].text:
            reply = Content.from_function_call("c1", "weather", arguments={"city": "Paris"})
        else:
            reply = Content.from_text(f"the model sees {len(messages)} messages")
            if messages[-1].text == "Thanks":
                reply = Content.from_text("Welcome")
        return ChatResponse(messages=[Message("assistant", [reply])])


async def main() -> None:
    """Ask, restart, ask again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.memcore"

        async def run(*questions: str) -> str:
            answer = ""
            with MemcoreHistoryProvider(path, user="ann") as provider:
                agent = Agent(client=Scripted(), tools=[weather], context_providers=[provider])
                for question in questions:
                    session = AgentSession(session_id="chat")
                    answer = (await agent.run(question, session=session)).text
            return answer

        print("first answer:", await run("Weather in Paris?"))
        print("after the restart", await run("And now?"))
        with MemcoreHistoryProvider(path, user="ann") as provider:
            turn = [
                Message("user", ["And now?"]),
                Message("assistant", ["the model sees 5 messages"]),
            ]
            await provider.save_messages("chat", turn)
            stored = await provider.get_messages("chat")
            print(f"the same again is stored: {len(stored)} messages")
            last = MemcoreHistoryProvider(provider.scope, limit=3)
            window = await last.get_messages("chat")
            print("the last 3:", ", ".join(str(each.role) for each in window))


asyncio.run(main())
