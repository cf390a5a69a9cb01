"""Hostile places, and all that is stored under their names: what ``test_isolation`` compares.

A feature writes a secret at a place and tells what can be seen from a place. What is seen must be
what was written under exactly these names, and nothing else.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple

from google.adk.events.event import Event
from google.adk.sessions.session import Session as AdkSession
from google.genai import types
from hypothesis import strategies as st
from langgraph.checkpoint.base import empty_checkpoint

import memcore
from memcore.adapters.adk import MemcoreArtifactService, MemcoreMemoryService, MemcoreSessionService
from memcore.adapters.deepagents import MemcoreBackend
from memcore.adapters.langgraph import MemcoreSaver, MemcoreStore
from memcore.adapters.openai_agents import MemcoreSession


class Place(NamedTuple):
    """Names of all sorts."""

    app: str
    user: str
    session: str
    space: str
    key: str

    def __repr__(self) -> str:
        told = (ascii(n) if len(n) < 80 else f"{n[:20]!a} * {len(n)}" for n in self)
        return f"Place({', '.join(told)})"


LONG = "x" * 5_000
SPECIAL = [
    *("a", "b", "ab", "a\0", "a\0b", "\0", "\0\0", "\0a", "a\xff", "\xff", "\0\xff", "\x01"),
    *("user:", "user:a", "app:", "app:a", "temp:a", "../", "..", "../a", "/", "/a", "a/b", "\\"),
    *("é", "e\u0301", "\u212b", "\xc5", "A\u030a", "\ufb01", "fi", "\u1100\u1161", "\uac00"),
    *("\ud800", "\udfff", "\ud83d", "\ud83d\ude00", "\U0001f600", "\u202ea", "a\u202e", "\u2066"),
    *(" ", "  ", "\u200b", "\ufeff", "\u3000", "\n", "\t", "\r\n", "a ", " a"),
    *("0", "00", "1", "-1", "1.0", "1e0", "01", "None", "null", "true", "default", "__proto__"),
    *(LONG, LONG + "y", LONG + "\0", "y" + LONG, "\0" + LONG, "é" * 5_000, "e\u0301" * 2_500),
    *("x" * 240, "x" * 480, "x" * 481, "x" * 482, "x" * 511, "x" * 512, "\0" * 240, "\0" * 500),
    *('["a", "b"]', 'default ["a", "b"]', "\0requests", "\0@", "\0#", "langgraph.store", "a.b"),
    *("adk.memory", "adk.artifacts", "deepagents:files", "%00", "'; drop table", "${jndi}", "*"),
]
names = st.one_of(
    st.sampled_from(SPECIAL),
    st.text(min_size=1, max_size=8),
    st.text(st.sampled_from("a\0\xff/:.\u0301\ud800\udc00"), min_size=1, max_size=6),
)


def mutated(name: str, how: int, other: str) -> str:
    """A name that is easily taken for this one."""
    ways: list[Callable[[], str]] = [
        lambda: name + "\0",
        lambda: name[:-1] or "a",
        lambda: name + other,
        lambda: other + name,
        lambda: unicodedata.normalize("NFC", name),
        lambda: unicodedata.normalize("NFD", name),
        lambda: unicodedata.normalize("NFKC", name),
        name.swapcase,
        lambda: "\0" + name,
        lambda: name + " ",
        lambda: "user:" + name,
        lambda: name.replace("\0", "\0\xff"),
        lambda: other,
        lambda: name.encode("utf-8", "surrogatepass").decode("latin-1"),
    ]
    return ways[how % len(ways)]() or "a"


@st.composite
def places(draw: Any, count: int = 8) -> list[Place]:
    """Places that are alike: each a few changes away from another one."""
    found = [Place(*(draw(names) for _ in Place._fields))]
    while len(found) < count:
        parts = list(draw(st.sampled_from(found)))
        if draw(st.integers(0, 4)) == 0:  # the same bytes, with the border elsewhere
            at = draw(st.integers(0, 3))
            joined = parts[at] + parts[at + 1]
            cut = draw(st.integers(1, max(len(joined) - 1, 1)))
            parts[at], parts[at + 1] = joined[:cut] or "a", joined[cut:] or "a"
        else:
            for at in draw(st.sets(st.integers(0, 4), min_size=1, max_size=2)):
                parts[at] = mutated(parts[at], draw(st.integers(0, 20)), draw(names))
        made = Place(*parts)
        found.append(made if made not in found else made._replace(key=f"{made.key}{len(found)}"))
    return found


REFUSED = (memcore.MemcoreError, ValueError, TypeError)
"""What a name that is not legal may raise: then nothing is stored."""


class Feature:
    """One surface of the database."""

    def __init__(self, db: memcore.Database) -> None:
        self.db = db

    def identity(self, place: Place) -> Any:
        """What must be the same for two places to share what is stored."""
        raise NotImplementedError

    async def write(self, place: Place, secret: str) -> None:
        """Store a secret."""
        raise NotImplementedError

    async def read(self, place: Place) -> list[str]:
        """The secrets that are seen there, in any way."""
        raise NotImplementedError

    def scope(self, place: Place) -> memcore.Scope:
        """The scope of a place."""
        return self.db.as_user(place.user, app=place.app)


class Log(Feature):
    """Items of a session, under the same idempotency key everywhere."""

    def identity(self, place: Place) -> Any:
        return place[:3]

    async def write(self, place: Place, secret: str) -> None:
        session = self.scope(place).session(place.session)
        if not session.exists():
            call = {"id": "c", "type": "function", "function": {"name": secret, "arguments": "{}"}}
            session.append({"role": "user", "content": secret}, idempotency_key="k")
            session.append({"role": "assistant", "tool_calls": [call]}, idempotency_key=place.key)
            session.state.update({f"of {place.key[:100]}": secret})
            session.checkpoint(secret)

    async def read(self, place: Place) -> list[str]:
        scope = self.scope(place)
        entries = {entry.session_id: entry for entry in scope.sessions()}
        session = scope.session(place.session)
        assert session.exists() == (place.session in entries)
        if not session.exists():
            assert not session.state.all(shared=False)
            return []
        content = session.tail(2)[0].message["content"]
        assert secret_in(session.find_call("c"), session) == content
        assert list(session.state.all(shared=False).values()) == [content]
        assert [found.name for found in session.checkpoints()] == [content]
        return [content]


def secret_in(call: memcore.CallRecord, session: memcore.Session) -> Any:
    """The name of a call's function."""
    return session.get(call.seq).message["tool_calls"][0]["function"]["name"]


class Listing(Feature):
    """The names of the sessions of a scope, and its export."""

    def identity(self, place: Place) -> Any:
        return place[:2]

    async def write(self, place: Place, secret: str) -> None:
        self.scope(place).session(f"listed {secret}").append({"role": "user", "content": secret})

    async def read(self, place: Place) -> list[str]:
        names = [entry.session_id for entry in self.scope(place).sessions()]
        found = [name[7:] for name in names if name.startswith("listed ")]
        lines = b"".join(self.db.export(user=place.user, app=place.app))
        told = [secret for secret in found if f'"listed {secret}"'.encode() in lines]
        assert told == found
        assert lines.count(b'"listed ') == len(found)
        return found


class Map(Feature):
    """Entries of a namespace."""

    def identity(self, place: Place) -> Any:
        return place.app, place.user, place.space, place.key

    async def write(self, place: Place, secret: str) -> None:
        space = self.scope(place).kv(place.space)
        count = f"count\0{blake2b(place.key.encode('utf-8', 'surrogatepass')).hexdigest()}"
        assert space.increment(count, idempotency_key=f"{place.key}k") == (space.get(count) or 1)
        space.put(place.key, secret, content=b"same everywhere")

    async def read(self, place: Place) -> list[str]:
        try:
            space = self.scope(place).kv(place.space)
            found = space.get(place.key)
        except REFUSED:
            return []
        listed = dict(space.scan())
        assert listed.get(place.key) == found
        assert (space.content(place.key) is None) == (found is None)
        return [] if found is None else [found]


class Blobs(Feature):
    """Contents by their address: who did not store one does not learn that another did."""

    def identity(self, place: Place) -> Any:
        return place[:2]

    async def write(self, place: Place, secret: str) -> None:
        self.scope(place).blobs.put(secret.encode())
        self.scope(place).kv("known").put(secret, 1)

    async def read(self, place: Place) -> list[str]:
        found = []
        for number in range(SECRETS):
            secret = secret_of(number)
            blobs = self.scope(place).blobs
            try:
                assert blobs.get(address_of(secret)) == secret.encode()
            except memcore.NotFoundError:
                continue
            found.append(secret)
        return found


class Shared(Feature):
    """The state of a user, as its handle and all sessions see it."""

    def identity(self, place: Place) -> Any:
        return place.app, place.user, place.key

    async def write(self, place: Place, secret: str) -> None:
        self.scope(place).state.update({place.key: secret}, idempotency_key=secret)

    async def read(self, place: Place) -> list[str]:
        try:
            found = self.scope(place).state.get(place.key)
        except REFUSED:
            return []
        session = self.scope(place).session("any")
        assert session.state.get(f"user:{place.key}") == found
        return [] if found is None else [found]


class AppState(Feature):
    """The state of an application: all that its users share."""

    def identity(self, place: Place) -> Any:
        return place.app, place.key

    async def write(self, place: Place, secret: str) -> None:
        self.scope(place).app_state.update({place.key: secret})

    async def read(self, place: Place) -> list[str]:
        try:
            found = self.scope(place).app_state.get(place.key)
        except REFUSED:
            return []
        return [] if found is None else [found]


class Graph(Feature):
    """Threads of LangGraph; the namespace of a checkpoint is the space, its values are equal."""

    def identity(self, place: Place) -> Any:
        return place.app, place.user, place.session, place.space

    async def write(self, place: Place, secret: str) -> None:
        saver = MemcoreSaver(self.scope(place))
        config: Any = {"configurable": {"thread_id": place.session, "checkpoint_ns": place.space}}
        checkpoint: Any = {
            **empty_checkpoint(),
            "id": "1",
            "channel_values": {"c": [secret], "d": "same " * 30},
            "channel_versions": {"c": "1", "d": "1"},
        }
        at = saver.put(config, checkpoint, {"source": "input"}, checkpoint["channel_versions"])
        saver.put_writes(at, [("c", secret)], secret)

    async def read(self, place: Place) -> list[str]:
        saver = MemcoreSaver(self.scope(place))
        config: Any = {"configurable": {"thread_id": place.session, "checkpoint_ns": place.space}}
        found = saver.get_tuple(config)
        threads = [entry.thread for entry in saver.threads()]
        if found is None:
            return []
        assert place.session in threads
        seen: list[str] = found.checkpoint["channel_values"]["c"]
        assert seen[0] in [write[2] for write in found.pending_writes or ()]
        return seen


class Store(Feature):
    """LangGraph's store: labels of a namespace, keys, searches by prefix and filter."""

    def identity(self, place: Place) -> Any:
        return place.app, place.user, place.space, place.key

    async def write(self, place: Place, secret: str) -> None:
        MemcoreStore(self.scope(place)).put((place.space,), place.key, {"s": secret})

    async def read(self, place: Place) -> list[str]:
        store = MemcoreStore(self.scope(place))
        try:
            found = store.get((place.space,), place.key)
            listed = {(item.namespace, item.key): item for item in store.search((), limit=100)}
        except REFUSED:
            return []
        assert ((place.space,), place.key) in listed or found is None
        return [] if found is None else [found.value["s"]]


class OpenAI(Feature):
    """Sessions of the Agents SDK; the space names their tables."""

    def identity(self, place: Place) -> Any:
        return place.app, place.user, place.session, place.space

    def session(self, place: Place) -> MemcoreSession:
        return MemcoreSession(
            place.session,
            self.db,
            place.space,
            user=place.user,
            app=place.app,
        )

    async def write(self, place: Place, secret: str) -> None:
        session = self.session(place)
        if not await session.get_items():
            item: Any = {"role": "user", "content": secret}
            await session.add_items([item], idempotency_key="k")

    async def read(self, place: Place) -> list[str]:
        session = self.session(place)
        return [item["content"] for item in await session.get_items()]


def said(secret: str) -> Event:
    """An event of one text."""
    content = types.Content(role="user", parts=[types.Part(text=f"word {secret}")])
    return Event(id=f"e{secret}", author="user", invocation_id="i", content=content)


class Adk(Feature):
    """Sessions of ADK: ids are stripped."""

    def identity(self, place: Place) -> Any:
        return place.app, place.user, place.session.strip()

    async def write(self, place: Place, secret: str) -> None:
        service = MemcoreSessionService(self.db)
        if not place.session.strip() or await self.read(place):
            return
        at = {"app_name": place.app, "user_id": place.user}
        made = await service.create_session(**at, session_id=place.session, state={"s": secret})
        await service.append_event(made, said(secret))

    async def read(self, place: Place) -> list[str]:
        service = MemcoreSessionService(self.db)
        at = {"app_name": place.app, "user_id": place.user}
        found = await service.get_session(**at, session_id=place.session)
        listed = await service.list_sessions(**at)
        assert {each.user_id for each in listed.sessions} <= {place.user}
        if found is None or "s" not in found.state:
            return []
        return [str(found.state["s"]), *(each.id[1:] for each in found.events)][:1]


class Memory(Feature):
    """ADK's memory: found by words, in all that its user said."""

    def identity(self, place: Place) -> Any:
        return place[:2]

    async def write(self, place: Place, secret: str) -> None:
        session = AdkSession(
            id=place.session, app_name=place.app, user_id=place.user, events=[said(secret)]
        )
        await MemcoreMemoryService(self.db).add_session_to_memory(session)

    async def read(self, place: Place) -> list[str]:
        service = MemcoreMemoryService(self.db, max_results=100)
        at = {"app_name": place.app, "user_id": place.user}
        found = await service.search_memory(**at, query="word")
        texts = [part.text or "" for each in found.memories for part in each.content.parts or []]
        return sorted({text.removeprefix("word ") for text in texts})


class Artifacts(Feature):
    """ADK's artifacts: those of a user begin with ``user:``."""

    def identity(self, place: Place) -> Any:
        session = None if place.key.startswith("user:") else place.session.strip()
        return place.app, place.user, session, place.key

    def at(self, place: Place) -> dict[str, Any]:
        return {
            "app_name": place.app,
            "user_id": place.user,
            "session_id": place.session,
            "filename": place.key,
        }

    async def write(self, place: Place, secret: str) -> None:
        service = MemcoreArtifactService(self.db)
        part = types.Part.from_bytes(data=secret.encode(), mime_type="a/b")
        await service.save_artifact(**self.at(place), artifact=part)

    async def read(self, place: Place) -> list[str]:
        service = MemcoreArtifactService(self.db)
        try:
            part = await service.load_artifact(**self.at(place))
        except Exception:  # noqa: BLE001 - not legal: nothing is seen
            return []
        if part is None:
            return []
        at = {key: value for key, value in self.at(place).items() if key != "filename"}
        if place.key.startswith("user:"):
            at["session_id"] = None  # it is found whatever the session, even if that is not legal
        assert place.key in await service.list_artifact_keys(**at)
        assert part.inline_data is not None
        return [(part.inline_data.data or b"").decode()]


class Files(Feature):
    """Files of DeepAgents, by paths and by what they hold."""

    def identity(self, place: Place) -> Any:
        return place.app, place.user, place.key

    def backend(self, place: Place) -> MemcoreBackend:
        return MemcoreBackend(self.scope(place))

    async def write(self, place: Place, secret: str) -> None:
        error = self.backend(place).write("/" + place.key, f"held {secret}").error
        if error:
            raise ValueError(error)

    async def read(self, place: Place) -> list[str]:
        found = self.backend(place).download_files(["/" + place.key])[0].content
        matches = self.backend(place).grep("held ", "/").matches or []
        told = None if found is None else found.decode().removeprefix("held ")
        assert told is None or any(match["text"] == f"held {told}" for match in matches)
        return [] if told is None else [told]


FEATURES: list[type[Feature]] = [
    *(Log, Listing, Map, Blobs, Shared, AppState, Graph, Store, OpenAI, Adk, Memory),
    *(Artifacts, Files),
]
ALL_SEEN = (Listing, Blobs, Memory)
"""Features in which all that was written under an identity is seen, and not the last alone."""
FIRST_SEEN = (Log, OpenAI, Adk)
"""Features in which the first stays."""
SECRETS = 8


def secret_of(number: int) -> str:
    """A secret that is part of no other."""
    return f"secret{number:04}"


@cache
def address_of(secret: str) -> str:
    """The address of a secret's blob."""
    with memcore.open(":memory:") as db:
        return str(db.scope().blobs.put(secret.encode()))
