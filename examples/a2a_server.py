"""An A2A server whose tasks survive a restart, and its client, in one process.

The writer asks back, is restarted, and goes on with the same task.

It prints:
input required: Which poet?
after the restart: 2 messages
completed: A poem about tea. By Basho.
asked 2 times, the second caller sees None
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import httpx
from a2a.auth.user import User
from a2a.client import ClientConfig, create_client
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.tasks import TaskUpdater
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskState,
    TaskStatus,
)
from starlette.applications import Starlette
from starlette.requests import Request

from memcore.adapters.a2a import MemcoreTaskStore

CARD = AgentCard(
    name="writer",
    version="1",
    description="Writes poems",
    skills=[AgentSkill(id="poem", name="Poem", description="Writes a poem", tags=["text"])],
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text"],
    default_output_modes=["text"],
    supported_interfaces=[
        AgentInterface(url="http://writer/", protocol_binding="JSONRPC", protocol_version="1.0")
    ],
)


class Caller(User):
    """A user that the server authenticated; a real one checks a token."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        """Return whether the user is authenticated."""
        return True

    @property
    def user_name(self) -> str:
        """Return the user's name."""
        return self._name


class ByHeader(DefaultServerCallContextBuilder):
    """Takes the caller from a header, never from the message."""

    def build_user(self, request: Request) -> User:
        """Return the caller of a request."""
        return Caller(request.headers["x-user"])


class Writer(AgentExecutor):
    """Asks for the poet, then streams a poem."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Work on a message."""
        work = TaskUpdater(event_queue, context.task_id, context.context_id)
        if context.current_task is None:
            await event_queue.enqueue_event(
                Task(
                    id=context.task_id,
                    context_id=context.context_id,
                    status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED),
                    history=[context.message],
                )
            )
            await work.requires_input(work.new_agent_message([Part(text="Which poet?")]))
            return
        for at, line in enumerate(("A poem about tea. ", f"By {context.get_user_input()}.")):
            await work.add_artifact([Part(text=line)], artifact_id="poem", append=at > 0)
        await work.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancel a task."""
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


async def ask(path: Path, text: str, task: Task | None) -> Task:
    """Start a server, send one message, and stop the server again."""
    with MemcoreTaskStore(path, agent="client") as store:
        handler = DefaultRequestHandler(Writer(), store, CARD)
        app = Starlette(routes=create_jsonrpc_routes(handler, "/", context_builder=ByHeader()))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, headers={"x-user": "ann"}) as http:
            client = await create_client(CARD, ClientConfig(httpx_client=http))
            task_id = "" if task is None else task.id
            message = Message(message_id=text, role=Role.ROLE_USER, parts=[Part(text=text)])
            if task is not None:
                message.task_id, message.context_id = task.id, task.context_id
            async for event in client.send_message(SendMessageRequest(message=message)):
                task_id = event.task.id or event.status_update.task_id or task_id
        await handler.aclose()
        found = await store.get(task_id, ServerCallContext(user=Caller("ann")))
        if found is None:
            raise LookupError(task_id)
        return found


async def main() -> None:
    """Run the conversation."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "writer.memcore"
        task = await ask(path, "About tea", None)
        print(f"input required: {task.status.message.parts[0].text}")
        with MemcoreTaskStore(path) as store:
            call = ServerCallContext(user=Caller("ann"))
            print(f"after the restart: {len(await store.history(task.context_id, call))} messages")
        task = await ask(path, "Basho", task)
        said = "".join(part.text for part in task.artifacts[0].parts)
        print(f"completed: {said}")
        with MemcoreTaskStore(path) as store:
            other = await store.get(task.id, ServerCallContext(user=Caller("bob")))
            asked = [each for each in task.history if each.role == Role.ROLE_USER]
            print(f"asked {len(asked)} times, the second caller sees {other}")


asyncio.run(main())
