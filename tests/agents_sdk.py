"""The OpenAI Agents SDK in tests: sessions, items, and a Runner with a scripted model."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from agents import Agent, RunConfig, Runner, function_tool
    from agents.testing import ScriptedModel, assistant_message

Item = dict[str, Any]


class ListSession:
    """A session in memory that keeps a log of what is asked of it."""

    def __init__(self, items: Sequence[Item] = (), *, trim: int | None = None) -> None:
        self.session_id = "list"
        self.session_settings = None
        self.items = [dict(item) for item in items]
        self.added: list[list[Item]] = []
        self.trim = trim

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """The end of the list; with ``trim`` never more than that."""
        found = json.loads(json.dumps(self.items))
        most = self.trim if limit is None else limit
        return found if most is None else found[-most:]

    async def add_items(self, items: list[Item]) -> None:
        """Append."""
        self.added.append(items)
        self.items += items

    async def pop_item(self) -> Item | None:
        """Take the last off."""
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        """Forget all."""
        self.items.clear()


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"18 degrees in {city}"


def agent_of(model: ScriptedModel, *tools: Any) -> Agent[Any]:
    """An agent with a scripted model."""
    return Agent(name="a", instructions="be kind", model=model, tools=list(tools or (weather,)))


def quiet(**options: Any) -> RunConfig:
    """A RunConfig that traces nothing."""
    return RunConfig(tracing_disabled=True, **options)


def sent(
    session: Any, question: Any = "and now?", *, answer: str = "well", **options: Any
) -> list[Item]:
    """What the model receives in a run of one answer."""
    model = ScriptedModel([[assistant_message(answer)]])
    asyncio.run(Runner.run(agent_of(model), question, session=session, run_config=quiet(**options)))
    return list(model.calls[-1].input)


def user(text: str = "hi") -> Item:
    """A message of the user."""
    return {"role": "user", "content": text}


def said(text: str = "ok", *, item_id: str | None = None) -> Item:
    """A message of the model."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    found = {"type": "message", "role": "assistant", "status": "completed", "content": content}
    return found if item_id is None else {"id": item_id, **found}


def call(call_id: str, *, item_id: str | None = None, **more: Any) -> Item:
    """A call of a function."""
    found = {"type": "function_call", "call_id": call_id, "name": "weather", "arguments": "{}"}
    return {**found, **({} if item_id is None else {"id": item_id}), **more}


def output(call_id: str, text: str = "18 degrees") -> Item:
    """What the function returned."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def thought(item_id: str) -> Item:
    """A reasoning item."""
    return {"type": "reasoning", "id": item_id, "summary": []}


def responder(check: Callable[[list[Item]], None], steps: Sequence[Any]) -> ScriptedModel:
    """A model that looks at what it gets before it says the next step."""
    left = list(steps)

    def respond(call: Any) -> Any:
        check(call.input)
        return left.pop(0)

    from agents.testing import ModelStep

    return ScriptedModel([ModelStep.respond(respond) for _ in steps])
