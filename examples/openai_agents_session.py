"""An OpenAI agent whose session survives a restart, whatever the window cuts off.

The model is scripted: no key, no network. Run it: ``python examples/openai_agents_session.py``.
It prints:

    Take a coat to Paris. 4 items are stored, the model saw 3.
    Take a coat to Rome. 8 items are stored, the model saw 7.
    Take a coat to Oslo. 12 items are stored, the model saw 7.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from memcore.adapters.openai_agents import MemcoreSession, safe_session_input_callback


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"18 °C in {city}"


async def ask(path: Path, city: str) -> None:
    """One run of the program: it opens the session, goes on with it and closes it."""
    model = ScriptedModel(
        [
            [function_call("weather", {"city": city}, call_id=f"call-{city}")],
            [assistant_message(f"Take a coat to {city}.")],
        ]
    )
    agent = Agent(name="Guide", model=model, tools=[weather])
    window = RunConfig(session_input_callback=safe_session_input_callback(budget_tokens=60))
    with MemcoreSession("trip", path) as session:
        result = await Runner.run(agent, f"{city}?", session=session, run_config=window)
        stored = await session.get_items()
    seen = model.calls[-1].input
    print(f"{result.final_output} {len(stored)} items are stored, the model saw {len(seen)}.")


async def main() -> None:
    """Three questions, each as if the program had been started anew."""
    set_tracing_disabled(disabled=True)
    with tempfile.TemporaryDirectory() as home:
        for city in ("Paris", "Rome", "Oslo"):
            await ask(Path(home) / "agent.memcore", city)


if __name__ == "__main__":
    asyncio.run(main())
