"""A plain loop with the Anthropic SDK: memory, tools and 40 turns under a budget of 600 tokens.

The model is scripted: no key, no network. Run it: ``python examples/anthropic_loop.py``.
It prints:

    Take a coat, Ann.
    40 turns are 160 items; the last request has 32 messages in 453 tokens, and the memory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import anthropic
from scripted.server import ScriptedServer

import memcore

TOOLS: Any = [
    {
        "name": "weather",
        "description": "The weather in a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]


def ask(client: anthropic.Anthropic, session: memcore.Session, text: str) -> tuple[str, int]:
    """One turn: the model is called until it calls no tool; its answer, and the tokens sent."""
    session.append({"role": "user", "content": text})
    while True:
        payload = memcore.Payload(600)
        payload.instructions("You are a guide.")
        payload.tools(TOOLS)
        payload.memories(session.memory, query=text)
        payload.history(session)
        made = payload.assemble("anthropic", cache_marks=True)
        reply = client.messages.create(model="claude", max_tokens=300, **made.request())
        session.append({"role": "assistant", "content": reply.content})  # the SDK's own blocks
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            said = "".join(block.text for block in reply.content if block.type == "text")
            return said, made.tokens
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "18 °C"} for call in calls
        ]
        session.append({"role": "user", "content": results})


def answer(*content: dict[str, Any]) -> dict[str, Any]:
    """Wrap blocks as the API does."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "usage": usage}
    return {**message, "content": content, "stop_reason": "end_turn", "stop_sequence": None}


def main() -> None:
    """Run the turns, and look at the last request."""
    turns = 40
    answers = []
    for turn in range(turns):
        call = {"type": "tool_use", "id": f"c{turn}", "name": "weather", "input": {"city": "Paris"}}
        answers.append(answer(call))
        answers.append(answer({"type": "text", "text": "Take a coat, Ann."}))
    with (
        tempfile.TemporaryDirectory() as home,
        ScriptedServer(answers) as server,
        memcore.open(Path(home) / "agent.memcore") as db,
        anthropic.Anthropic(api_key="none", base_url=server.url) as client,
    ):
        before = db.session("last year", user="ann", policy="anthropic")
        before.append({"role": "user", "content": "I am Ann, and always cold in Paris."})
        before.memory.remember("Is always cold in Paris", source=1)
        session = db.session("trip", user="ann", policy="anthropic")
        for _ in range(turns):
            said, tokens = ask(client, session, "What shall I wear in Paris?")
        print(said)
        last = server.asked[-1]
        has_memory = "always cold" in str(last["messages"])
        print(
            f"{turns} turns are {len(session)} items; the last request has {len(last['messages'])} "
            f"messages in {tokens} tokens" + (", and the memory." if has_memory else ".")
        )


if __name__ == "__main__":
    main()
