"""An MCP client asks ``memcore mcp`` why something is remembered, and remembers something itself.

The server is a process of its own, as a desktop assistant starts it. Run it:
``python examples/mcp_client.py``. It prints:

    tools of memory: memory_get, memory_list, memory_remember, memory_search, memory_update
    found: Prefers window seats
    why: Remembered because the user said it; it rests on 1 item of 1 session.
    proof: "I always take a window seat."
    remembered: Plans a trip to Oslo (quarantined)
    another user: Error (invalid_arguments): unknown argument 'user'; known are query, limit
    after promotion: Plans a trip to Oslo (confirmed)
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from mcp import Client, StdioServerParameters, stdio_client

import memcore


def prepare(path: Path) -> None:
    """What an agent has stored before."""
    with memcore.open(path) as db:
        chat = db.session("chat-1", user="alice")
        chat.append({"role": "user", "content": "I always take a window seat."})
        chat.memory.remember("Prefers window seats", source=1)


async def talk(path: Path) -> None:
    """One client, connected to a server that may also write."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "memcore", "mcp", "--store", str(path), "--user", "alice", "--write"],
        env=dict(os.environ),
    )
    async with Client(stdio_client(server)) as client:
        tools = (await client.list_tools()).tools
        names = sorted(tool.name for tool in tools if tool.name.startswith("memory_"))
        print("tools of memory:", ", ".join(names))

        found = await client.call_tool("memory_search", {"query": "which seat?"})
        (hit,) = found.structured_content["memories"]
        print("found:", hit["memory"]["text"])
        found = await client.call_tool("memory_get", {"id": hit["memory"]["id"]})
        print("why:", found.structured_content["why"])
        print(f'proof: "{found.structured_content["sources"][0]["excerpt"]}"')

        text = "Plans a trip to Oslo"
        made = await client.call_tool("memory_remember", {"text": text})
        print(f"remembered: {text} ({made.structured_content['status']})")
        asked = await client.call_tool("memory_search", {"query": "seat", "user": "bob"})
        print("another user:", asked.content[0].text)


def main() -> None:
    """A client, and the user who confirms what it has remembered."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.memcore"
        prepare(path)
        asyncio.run(talk(path))
        with memcore.open(path) as db:
            memory = db.scope(user="alice").memory
            (waiting,) = memory.quarantined()
            kept = memory.promote(waiting.id, by="alice")
            print(f"after promotion: {kept.text} ({kept.by})")


if __name__ == "__main__":
    main()
