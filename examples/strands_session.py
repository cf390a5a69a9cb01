"""A Strands agent whose messages are in a memcore file, redaction included.

It prints:
first answer: It is 18 °C in Paris.
after the restart it saw 5 messages
redacted: [User input redacted.]
found again: It is 18 °C in Paris.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.models.model import Model

from memcore.adapters.strands import MemcoreSessionManager

warnings.filterwarnings("ignore", message="context_window_limit")


@tool
def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"18 °C in {city}"


class Scripted(Model):
    """Call the tool for the first question, and count the messages for the second."""

    stateful = False

    def update_config(self, **model_config: Any) -> None:
        """Ignore the configuration."""

    def get_config(self) -> dict[str, Any]:
        """Return no configuration."""
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: the script has none."""
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Answer as a model would, in pieces."""
        last = messages[-1]["content"][0]
        yield {"messageStart": {"role": "assistant"}}
        if len(messages) == 1:
            use = {"toolUseId": "c1", "name": "weather"}
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"city": "Paris"}'}}}}
        else:
            text = f"it saw {len(messages)} messages"
            if "toolResult" in last:
                text = f"It is {last['toolResult']['content'][0]['text']}."
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": text}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if len(messages) == 1 else "end_turn"}}


def agent(manager: MemcoreSessionManager) -> Agent:
    """Return the agent, as it would be made in each process."""
    return Agent(
        model=Scripted(),
        agent_id="a",
        tools=[weather],
        session_manager=manager,
        callback_handler=None,
    )


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "agent.memcore"
    with MemcoreSessionManager("chat", path, user="ann") as manager:
        print("first answer:", str(agent(manager)("Weather in Paris?")).strip())
    with MemcoreSessionManager("chat", path, user="ann") as manager:
        restarted = agent(manager)
        print("after the restart", str(restarted("My number is 0123.")).strip())
        manager.redact_latest_message(
            {"role": "user", "content": [{"text": "[User input redacted.]"}]}, restarted
        )
    with MemcoreSessionManager("chat", path, user="ann") as manager:
        repository = manager.session_repository
        print("redacted:", repository.list_messages("chat", "a")[-1].message["content"][0]["text"])
        hit = repository.session("chat", "a").search("Paris", kinds=["assistant"], k=5)
        said = [each.item.message["content"][0].get("text") for each in hit]
        print("found again:", next(text for text in said if text))
