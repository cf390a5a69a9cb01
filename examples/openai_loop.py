"""A plain loop with the OpenAI SDK: memory, tools and 40 turns under a budget of 600 tokens.

The model is scripted: no key, no network. Run it: ``python examples/openai_loop.py``.
It prints:

    Take a coat, Ann.
    40 turns are 160 items; the last request has 37 messages in 480 tokens, and the memory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import openai
from scripted.server import ScriptedServer

import memcore

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def ask(client: openai.OpenAI, session: memcore.Session, text: str) -> tuple[str, int]:
    """One turn: the model is called until it calls no tool; its answer, and the tokens sent."""
    session.append({"role": "user", "content": text})
    while True:
        payload = memcore.Payload(600)
        payload.instructions("You are a guide.")
        payload.tools(TOOLS)
        payload.memories(session.memory, query=text)
        payload.history(session)
        made = payload.assemble("openai_chat")
        answered = client.chat.completions.create(model="gpt-5", **made.request())
        reply = answered.choices[0].message
        session.append(reply)  # the SDK's own object
        if not reply.tool_calls:
            return reply.content or "", made.tokens
        for call in reply.tool_calls:
            session.append({"role": "tool", "tool_call_id": call.id, "content": "18 °C"})


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """Wrap a message as the API does."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
    return {"id": "r", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def main() -> None:
    """Run the turns, and look at the last request."""
    turns = 40
    answers = []
    for turn in range(turns):
        function = {"name": "weather", "arguments": '{"city": "Paris"}'}
        call = {"id": f"c{turn}", "type": "function", "function": function}
        answers.append(answer({"content": None, "tool_calls": [call]}))
        answers.append(answer({"content": "Take a coat, Ann."}))
    with (
        tempfile.TemporaryDirectory() as home,
        ScriptedServer(answers) as server,
        memcore.open(Path(home) / "agent.memcore") as db,
        openai.OpenAI(api_key="none", base_url=server.url) as client,
    ):
        before = db.session("last year", user="ann")
        before.append({"role": "user", "content": "I am Ann, and always cold in Paris."})
        before.memory.remember("Is always cold in Paris", source=1)
        session = db.session("trip", user="ann")
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
