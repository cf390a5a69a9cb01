"""What adapters of agent frameworks commit in one piece: verbs, as in ``verbs``, and how it looks.

Events of ADK whose invocations are deleted (``i/name``: invocation and tag of each; ``y/name``:
what they left in the state), items of the OpenAI Agents SDK with the run that waits behind them
(``j/name``: the tags of each commit; ``z/name``), and sessions of it that are written anew without
what is too old. Tasks of A2A (``e/name``: tags of its messages, and of its artifact's parts), and
calls that another agent answers (``h/name``: of each call, how far it is). They lie in applications
of their own, and are looked at without the frameworks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import memcore
from memcore.session.read import read_log
from memcore.session.session import ref_of
from memcore.session.tail import marked

from .verbs import Place, State, Step, WrongValueError, content, messages, tag_in, verb

EVENTS, RUNS, TASKS, TEAMS = "adk", "agents", "a2a", "teams"
"""The applications."""
_LAST = "last"
_RUN = "openai_agents.run_state"


# --- events of ADK --------------------------------------------------------------------------------


def _served(place: Place, work: Callable[[Any, dict[str, str]], Awaitable[Any]]) -> Any:
    from memcore.adapters.adk import MemcoreSessionService

    async def main() -> Any:
        at = {"app_name": EVENTS, "user_id": place.lane}
        return await work(MemcoreSessionService(place.db), at)

    return asyncio.run(main())


def _uttered(state: State, step: Step) -> None:
    name, invocation, size = step.arguments
    tag = step.tags([size])[0]
    state[f"i/{name}"] = (*state.get(f"i/{name}", ()), (invocation, tag))
    state[f"y/{name}"] = tag


@verb(_uttered)
def utter(place: Place, step: Step) -> None:
    """``utter name invocation size``: an event that changes the state, and lies in two rows."""
    from google.adk.events import Event, EventActions
    from google.genai import types

    name, invocation, size = step.arguments
    text = content(step.tags([size])[0])

    async def work(service: Any, at: dict[str, str]) -> None:
        session = await service.get_session(**at, session_id=name)
        if session is None:
            session = await service.create_session(**at, session_id=name)
        event = Event(
            author="user",
            invocation_id=invocation,
            content=types.Content(role="user", parts=[types.Part(text=text)]),
            actions=EventActions(state_delta={_LAST: text}),
            custom_metadata={"large": text * (1 + 70_000 // size)},
        )
        await service.append_event(session, event)

    _served(place, work)


def _retracted(state: State, step: Step) -> None:
    name, invocation = step.arguments
    left = tuple(each for each in state[f"i/{name}"] if each[0] != invocation)
    del state[f"i/{name}"], state[f"y/{name}"]
    if left:
        state[f"i/{name}"], state[f"y/{name}"] = left, left[-1][1]


@verb(_retracted)
def retract(place: Place, step: Step) -> None:
    """``retract name invocation``: the events of an invocation, and what they left in the state."""
    name, invocation = step.arguments

    async def work(service: Any, at: dict[str, str]) -> None:
        asked = {"session_id": name, "invocation_id": invocation, "rewind_state": True}
        await service.delete_invocation(**at, **asked)

    _served(place, work)


# --- sessions of the OpenAI Agents SDK ------------------------------------------------------------


class Waiting:
    """Stands for a run that waits: all that is asked of one is how it is written."""

    def __init__(self, tag: str) -> None:
        self._tag = tag

    def to_json(self) -> dict[str, str]:
        return {"is": content(self._tag)}


def _held(place: Place, name: str, **options: Any) -> Any:
    from memcore.adapters.openai_agents import MemcoreSession

    return MemcoreSession(name, place.db.scope(app=RUNS, user=place.lane), **options)


def _converses(state: State, step: Step) -> None:
    name, *sizes = step.arguments
    state[f"j/{name}"] = (*state.get(f"j/{name}", ()), tuple(step.tags(sizes)))
    state.pop(f"z/{name}", None)


@verb(_converses)
def converse(place: Place, step: Step) -> None:
    """``converse name size...``: items in one commit; no run waits any more."""
    name, *sizes = step.arguments
    asyncio.run(_held(place, name).add_items(messages(step, sizes)))


def _awaits(state: State, step: Step) -> None:
    _converses(state, step)
    name, *sizes = step.arguments
    state[f"z/{name}"] = step.tags(sizes)[0]


@verb(_awaits)
def wait_for(place: Place, step: Step) -> None:
    """``wait_for name size...``: items, and a run that waits behind them."""
    name, *sizes = step.arguments
    run = Waiting(step.tags(sizes)[0])
    asyncio.run(_held(place, name).save_run_state(run, items=messages(step, sizes)))


def _aged(state: State, step: Step) -> None:
    name, keep = step.arguments
    state[f"j/{name}"] = state[f"j/{name}"][-keep:]


@verb(_aged)
def age(place: Place, step: Step) -> None:
    """``age name keep``: all but the last ``keep`` batches are too old; a run goes on waiting."""
    name, keep = step.arguments
    native = place.db.session(name, app=RUNS, user=place.lane)
    moments = sorted({item.created_at for item in native})
    asyncio.run(removed(_held(place, name, ttl_seconds=1), round(moments[-keep] * 1e6)))


async def removed(session: Any, since_us: int) -> None:
    """Write a session anew without the items that are older than a moment."""
    session.since_us = lambda: since_us
    await session.remove_expired()


# --- tasks of A2A ---------------------------------------------------------------------------------


def _kept(place: Place, work: Callable[[Any, Any], Awaitable[Any]]) -> Any:
    from a2a.server.context import ServerCallContext

    from memcore.adapters.a2a import MemcoreTaskStore

    store = MemcoreTaskStore(place.db, app=TASKS, owner_resolver=lambda _: place.lane)
    return asyncio.run(work(store, ServerCallContext()))


def _task_saved(state: State, step: Step) -> None:
    name, *sizes = step.arguments
    said, parts = state.get(f"e/{name}", ((), ()))
    first, *others = step.tags(sizes)
    state[f"e/{name}"] = (*said, first), (*parts, *others)


@verb(_task_saved)
def save_task(place: Place, step: Step) -> None:
    """``save_task name size...``: a message of a task, and parts of its artifact, in one commit."""
    from a2a.types.a2a_pb2 import Message, Part, Task

    name, *sizes = step.arguments
    first, *others = map(content, step.tags(sizes))

    async def work(store: Any, call: Any) -> None:
        task = await store.get(name, call) or Task(id=name)
        task.history.append(Message(message_id=str(step.number), parts=[Part(text=first)]))
        if not task.artifacts:
            task.artifacts.add(artifact_id="a")
        task.artifacts[0].parts.extend(Part(text=each) for each in others)
        await store.save(task, call)

    _kept(place, work)


def _task_dropped(state: State, step: Step) -> None:
    state.pop(f"e/{step.arguments[0]}", None)


@verb(_task_dropped)
def drop_task(place: Place, step: Step) -> None:
    """``drop_task name``: a task is deleted."""
    _kept(place, lambda store, call: store.delete(step.arguments[0], call))


# --- calls that another agent answers -------------------------------------------------------------


def _asked(state: State, step: Step) -> None:
    name = step.arguments[0]
    state[f"h/{name}"] = (*state.get(f"h/{name}", ()), "asked")


@verb(_asked)
def ask(place: Place, step: Step) -> None:
    """``ask name``: a call."""
    session = _team(place, step.arguments[0])
    function = {"name": "write", "arguments": "{}"}
    call = {"id": f"c{len(session)}", "type": "function", "function": function}
    session.append({"role": "assistant", "tool_calls": [call]})


def _entrusted(state: State, step: Step) -> None:
    name = step.arguments[0]
    state[f"h/{name}"] = (*state[f"h/{name}"][:-1], "entrusted")


@verb(_entrusted)
def entrust(place: Place, step: Step) -> None:
    """``entrust name``: the last call is given to another agent."""
    _delegation(place, step.arguments[0])


def _answered(state: State, step: Step) -> None:
    name, size = step.arguments
    state[f"h/{name}"] = (*state[f"h/{name}"][:-1], step.tags([size])[0])


@verb(_answered)
def answer(place: Place, step: Step) -> None:
    """``answer name size``: the agent's result."""
    name, size = step.arguments
    _delegation(place, name).finish(content(step.tags([size])[0]))


def _team(place: Place, name: str) -> memcore.Session:
    return place.db.session(name, app=TEAMS, user=place.lane)


def _delegation(place: Place, name: str) -> Any:
    session = _team(place, name)
    return session.delegate(session.open_calls[-1].call_id, agent="writer")


# --- looking --------------------------------------------------------------------------------------


def frameworks_of(place: Place) -> State:
    """What the lane's user has in both applications, as states have it."""
    found: State = {}
    events = place.db.scope(app=EVENTS, user=place.lane)
    for entry in events.sessions():
        session = events.session(entry.session_id)
        if told := tuple(_told_in(session)):
            found[f"i/{entry.session_id}"] = told
        last = session.state.get(_LAST)
        if last is not None:
            found[f"y/{entry.session_id}"] = tag_in(last)
    runs = place.db.scope(app=RUNS, user=place.lane)
    for entry in runs.sessions():
        session = runs.session(entry.session_id)
        batches: dict[str, tuple[str, ...]] = {}
        for item in session:
            tag = tag_in(item.message["content"])
            number = tag.split("|")[1]
            batches[number] = (*batches.get(number, ()), tag)
        found[f"j/{entry.session_id}"] = tuple(batches.values())
        run = session.state.get(_RUN)
        if run is not None and run["end"]["value"]["mark"] == read_log(ref_of(session), marked, ""):
            found[f"z/{entry.session_id}"] = tag_in(run["run"]["value"]["is"])
    return found | _tasks_of(place) | _teams_of(place)


def _tasks_of(place: Place) -> State:
    """Tasks as states have them; a commit has all of a save or nothing."""
    found: State = {}
    for entry in place.db.scope(app=TASKS, user=place.lane).sessions():
        said, parts, messages, streamed = [], [], None, []
        for item in place.db.session(entry.session_id, app=TASKS, user=place.lane):
            if item.type == "a2a.task":
                frame = item.message["payload"]
                messages = frame["history"]["runs"]
                streamed = frame["changed"].get("0", {"runs": streamed})["runs"]
            elif item.type == "a2a.part":
                parts.append(tag_in(item.message["payload"]["row"]["text"]))
            else:
                said.append(tag_in(item.message["content"]))
        if (messages, streamed) != (_runs(said), _runs(parts)):
            raise WrongValueError(
                f"{entry.session_id}: {messages}, {streamed}: {len(said)} and {len(parts)} found"
            )
        found[f"e/{entry.session_id[4:]}"] = tuple(said), tuple(parts)
    return found


def _runs(tags: list[str]) -> list[list[int]]:
    return [[0, len(tags) - 1]] if tags else []


def _teams_of(place: Place) -> State:
    """Calls as states have them; a call has a result only if an agent's session has begun."""
    found: State = {}
    names = {each.session_id for each in place.db.scope(app=TEAMS, user=place.lane).sessions()}
    for name in names:
        if "::" in name:
            continue
        calls: dict[str, str] = {}
        for item in _team(place, name):
            if "tool_calls" in item.message:
                call_id = item.message["tool_calls"][0]["id"]
                is_given = f"{name}::{item.seq}-{call_id}" in names
                calls[call_id] = "entrusted" if is_given else "asked"
            else:
                call_id = item.message["tool_call_id"]
                if calls.get(call_id) != "entrusted":
                    raise WrongValueError(f"{name}: {call_id} is {calls.get(call_id)}")
                calls[call_id] = tag_in(item.message["content"])
        found[f"h/{name}"] = tuple(calls.values())
    return found


def _told_in(session: memcore.Session) -> Iterator[tuple[str, str]]:
    """Invocation and tag of every event that is there; each is whole, or nothing is left of it."""
    rest: Any = None
    for item in session:
        if item.type == "adk.rest":
            rest = item.message["payload"]
        elif "parts" in item.message:
            text = item.message["parts"][0]["text"]
            if (text == ".") != (rest is None) or (text == ".") == ("adk" in (item.meta or {})):
                raise WrongValueError(
                    f"item {item.seq}: {text:.40}, {rest!r:.40}, {item.meta!r:.40}"
                )
            if rest is not None:
                yield rest["invocationId"], tag_in(text)
            rest = None
