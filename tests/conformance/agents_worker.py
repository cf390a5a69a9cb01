"""An agent of the OpenAI Agents SDK with a scripted model; as a program, one run of it.

``python -m tests.conformance.agents_worker PATH QUESTION`` asks in the session ``chat`` of a file
and prints as JSON what is stored, and the state of a run that waits for an approval.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from memcore.adapters.openai_agents import (
    MemcoreSession,
    safe_call_model_input_filter,
    safe_session_input_callback,
)

SAFE: dict[str, Any] = {
    "session_input_callback": safe_session_input_callback,
    "call_model_input_filter": safe_call_model_input_filter,
}


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"18 degrees in {city}"


@function_tool(needs_approval=True)
def refund(amount: int) -> str:
    """Give money back."""
    return f"{amount} paid back"


def agent_of(model: ScriptedModel, *tools: Any) -> Agent[Any]:
    """An agent with both tools, or with others."""
    given = list(tools or (weather, refund))
    return Agent(name="a", instructions="be kind", model=model, tools=given)


def config(**options: Any) -> RunConfig:
    """Nothing is traced; inputs are safe."""
    return RunConfig(tracing_disabled=True, **{**SAFE, **options})


def asks(name: str, call_id: str, **arguments: Any) -> Any:
    """The model calls a tool."""
    return function_call(name, arguments, call_id=call_id)


def script(question: str) -> ScriptedModel:
    """The model's side of one question: ``refund ...`` calls the tool that waits."""
    if question.startswith("refund"):
        return ScriptedModel([[asks("refund", "r1", amount=5)], [assistant_message("done")]])
    call = asks("weather", f"w-{question}", city=question)
    return ScriptedModel([[call], [assistant_message(f"so it is in {question}")]])


async def main(path: str, question: str) -> dict[str, Any]:
    """One run in the session ``chat`` of a file."""
    with MemcoreSession("chat", path) as session:
        agent = agent_of(script(question))
        result = await Runner.run(agent, question, session=session, run_config=config())
        state = result.to_state().to_string() if result.interruptions else None
        return {"stored": await session.get_items(), "state": state}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(*sys.argv[1:]))))
