"""A plain loop with the Google GenAI SDK: memory, tools and 40 turns under a budget of 600 tokens.

The model is scripted: no key, no network. Run it: ``python examples/genai_loop.py``.
It prints:

    Take a coat, Ann.
    40 turns are 160 items; the last request has 28 messages in 462 tokens, and the memory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from google import genai
from google.genai import types
from scripted.server import ScriptedServer

import memcore

TOOLS: Any = [
    {
        "function_declarations": [
            {
                "name": "weather",
                "description": "The weather in a city",
                "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}},
            }
        ]
    }
]


def ask(client: genai.Client, session: memcore.Session, text: str) -> tuple[str, int]:
    """One turn: the model is called until it calls no tool; its answer, and the tokens sent."""
    session.append({"role": "user", "parts": [{"text": text}]})
    while True:
        payload = memcore.Payload(600)
        payload.instructions("You are a guide.")
        payload.tools(TOOLS)
        payload.memories(session.memory, query=text)
        payload.history(session)
        made = payload.assemble("gemini")
        reply = client.models.generate_content(model="gemini", **made.request())
        session.append(reply.candidates[0].content)  # the SDK's own object
        if not reply.function_calls:
            return reply.text or "", made.tokens
        results = [
            {"function_response": {"id": call.id, "name": call.name, "response": {"t": "18 °C"}}}
            for call in reply.function_calls
        ]
        session.append({"role": "user", "parts": results})


def answer(*parts: dict[str, Any]) -> dict[str, Any]:
    """Wrap parts as the API does."""
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}


def main() -> None:
    """Run the turns, and look at the last request."""
    turns = 40
    answers = []
    for turn in range(turns):
        call = {"id": f"c{turn}", "name": "weather", "args": {"city": "Paris"}}
        answers.append(answer({"functionCall": call}))
        answers.append(answer({"text": "Take a coat, Ann."}))
    with (
        tempfile.TemporaryDirectory() as home,
        ScriptedServer(answers) as server,
        memcore.open(Path(home) / "agent.memcore") as db,
        genai.Client(api_key="none", http_options=types.HttpOptions(base_url=server.url)) as client,
    ):
        before = db.session("last year", user="ann", policy="gemini")
        before.append({"role": "user", "parts": [{"text": "I am Ann, and always cold in Paris."}]})
        before.memory.remember("Is always cold in Paris", source=1)
        session = db.session("trip", user="ann", policy="gemini")
        for _ in range(turns):
            said, tokens = ask(client, session, "What shall I wear in Paris?")
        print(said)
        last = server.asked[-1]
        has_memory = "always cold" in str(last["contents"])
        print(
            f"{turns} turns are {len(session)} items; the last request has {len(last['contents'])} "
            f"messages in {tokens} tokens" + (", and the memory." if has_memory else ".")
        )


if __name__ == "__main__":
    main()
