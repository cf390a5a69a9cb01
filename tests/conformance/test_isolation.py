"""No name, however hostile, leads to what was stored under another one.

``MEMCORE_ISOLATION_PAIRS=10000 pytest -s`` of this file runs it at length and
prints how many pairs of places were compared.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from langgraph.checkpoint.base import empty_checkpoint

import memcore
from memcore.adapters.adk import MemcoreArtifactService, MemcoreMemoryService, MemcoreSessionService
from memcore.adapters.deepagents import MemcoreBackend
from memcore.adapters.langgraph import MemcoreSaver, MemcoreStore
from memcore.adapters.openai_agents import MemcoreSession
from memcore.store import environment
from memcore.store.transaction import Snapshot
from tests.conformance import isolation
from tests.conformance.isolation import ALL_SEEN, FEATURES, FIRST_SEEN, Feature, Place

PAIRS = int(os.environ.get("MEMCORE_ISOLATION_PAIRS", "104"))
COUNT = isolation.SECRETS
EXAMPLES = -(-PAIRS // (COUNT * (COUNT - 1) // 2))
compared: Counter[str] = Counter()


async def leaks_of(feature: Feature, found: list[Place]) -> list[tuple[Place, Any, Any]]:
    """Write at every place, then look from every place; what is not as it should be."""
    model: dict[Any, list[str]] = {}
    leaks: list[tuple[Place, Any, Any]] = []
    for number, place in enumerate(found):
        secret, identity = isolation.secret_of(number), feature.identity(place)
        seen = await feature.read(place)
        if seen != model.get(identity, []):
            leaks.append((place, seen, model.get(identity)))
        try:
            await feature.write(place, secret)
        except isolation.REFUSED:
            compared["refused"] += 1
            continue
        if isinstance(feature, ALL_SEEN):
            model.setdefault(identity, []).append(secret)
        elif isinstance(feature, FIRST_SEEN):
            model.setdefault(identity, [secret] if await feature.read(place) else [])
        else:
            model[identity] = [secret]
        compared["places"] += 1
    for place in found:
        seen, expected = await feature.read(place), model.get(feature.identity(place), [])
        if seen != expected:
            leaks.append((place, seen, expected))
    return leaks


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(found=isolation.places(COUNT))
def test_every_place_sees_its_own_and_nothing_else(found: list[Place]) -> None:
    async def run() -> None:
        for kind in FEATURES:  # two of them may mean the same session
            with memcore.open(":memory:", counter="bytes/4") as db:
                assert (kind.__name__, await leaks_of(kind(db), found)) == (kind.__name__, [])
                assert db.check() == []

    asyncio.run(run())
    compared["pairs"] += COUNT * (COUNT - 1) // 2


def test_the_count_is_told() -> None:
    print(f"\n{dict(compared)} over {len(FEATURES)} features")  # noqa: T201 - it is to be told
    assert compared["pairs"] >= PAIRS


@pytest.mark.parametrize("kind", FEATURES)
def test_a_leak_would_be_found(kind: type[Feature]) -> None:
    """All names of the second place are taken for those of the first."""
    one = Place("app", "user", "session", "space", "key")
    other = Place("app2", "user2", "session2", "space2", "key2")

    class Leaking(kind):  # type: ignore[misc, valid-type]
        async def read(self, place: Place) -> list[str]:
            return list(await super().read(one if place == other else place))

        async def write(self, place: Place, secret: str) -> None:
            await super().write(one if place == other else place, secret)

    async def run() -> None:
        with memcore.open(":memory:", counter="bytes/4") as db:
            assert await leaks_of(kind(db), [one, other]) == []
        with memcore.open(":memory:", counter="bytes/4") as db:
            try:
                leaks = bool(await leaks_of(Leaking(db), [one, other]))
            except AssertionError:  # what is seen contradicts itself
                leaks = True
            assert leaks

    asyncio.run(run())


# --- what a lookup costs --------------------------------------------------------------------------


def looks_of(db: memcore.Database, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Which calls of the store each lookup of bob's makes, for things that are not his."""
    calls: list[str] = []

    class Watched(Snapshot):
        """Notes what is read through it."""

        def _set(self, get: Callable[[bytes], bytes | None]) -> None:
            self._read = get

        get = property(lambda self: self._look, _set)

        def _look(self, key: bytes) -> bytes | None:
            calls.append("get")
            return self._read(key)

        def scan(self, *args: Any, **options: Any) -> Any:
            for row in super().scan(*args, **options):
                calls.append("row")
                yield row
            calls.append("scan")

        def take(self, *args: Any) -> Any:
            rows = super().take(*args)
            calls.extend(["row"] * len(rows) + ["take"])
            return rows

    monkeypatch.setattr(environment, "Snapshot", Watched)
    scope = db.as_user("bob")
    backend = MemcoreBackend(scope)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    ways: dict[str, Callable[[], Any]] = {
        "session": lambda: scope.session("secret").exists(),
        "call": lambda: scope.session("mine").find_call("c"),
        "sessions": lambda: list(scope.sessions()),
        "kv": lambda: scope.kv("n").get("secret"),
        "scan": lambda: list(scope.kv("n").scan()),
        "blob": lambda: scope.blobs.get(isolation.address_of("secret")),
        "state": lambda: scope.state.get("secret"),
        "thread": lambda: MemcoreSaver(scope).get_tuple(config),
        "store": lambda: MemcoreStore(scope).search(("a",), filter={"s": 1}),
        "file": lambda: backend.read("/secret"),
        "grep": lambda: backend.grep("secret", "/"),
    }
    found: dict[str, list[str]] = {}
    for name, way in ways.items():
        calls.clear()
        with suppress(memcore.NotFoundError):
            way()
        found[name] = calls.copy()
    monkeypatch.undo()
    return found


def test_a_lookup_touches_as_much_whatever_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    isolation.address_of("secret")
    looks = []
    for has in (False, True):
        with memcore.open(":memory:", counter="bytes/4") as db:
            bob = db.as_user("bob")
            bob.session("mine").append({"role": "user", "content": "x"})
            bob.kv("n").put("mine", 1)
            if has:
                ann = db.as_user("ann")
                call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
                ann.session("secret").append({"role": "assistant", "tool_calls": [call]})
                ann.kv("n").put("secret", 1)
                ann.blobs.put(b"secret")
                ann.state.update({"secret": 1})
                MemcoreStore(ann).put(("a",), "k", {"s": 1})
                MemcoreBackend(ann).write("/secret", "secret")
                checkpoint: Any = {**empty_checkpoint(), "id": "1"}
                MemcoreSaver(ann).put(
                    {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, checkpoint, {}, {}
                )
            looks.append(looks_of(db, monkeypatch))
    assert looks[0] == looks[1]
    assert all(looks[0].values())


# --- adapters and the authorizer ------------------------------------------------------------------


def test_adapters_of_many_users_ask_at_each_call() -> None:
    allowed = [True]
    asked: list[tuple[Any, ...]] = []

    def authorizer(request: memcore.AccessRequest) -> bool:
        asked.append((request.actor, request.user, request.action, request.name))
        return allowed[0]

    async def run() -> None:
        with memcore.open(":memory:", authorizer=authorizer, actor="runner") as db:
            at = {"app_name": "shop", "user_id": "ann"}
            sessions, memory = MemcoreSessionService(db), MemcoreMemoryService(db)
            artifacts = MemcoreArtifactService(db)
            made = await sessions.create_session(**at, session_id="s")
            told = isolation.said("x")
            openai = MemcoreSession("of openai", db, user="ann", app="shop")
            ways: dict[str, Callable[[], Any]] = {
                "append": lambda: sessions.append_event(made, told),
                "get": lambda: sessions.get_session(**at, session_id="s"),
                "list": lambda: sessions.list_sessions(**at),
                "delete": lambda: sessions.delete_session(**at, session_id="gone"),
                "search": lambda: memory.search_memory(**at, query="x"),
                "keys": lambda: artifacts.list_artifact_keys(**at),
                "items": openai.get_items,
            }
            for way in ways.values():
                await way()
            asked.clear()
            for name, way in ways.items():
                await way()
                assert asked, name
                assert {each[:2] for each in asked} == {("runner", "ann")}
                asked.clear()
            allowed[0] = False
            for way in ways.values():
                with pytest.raises(memcore.AccessDeniedError):
                    await way()

    asyncio.run(run())


def test_adapters_of_one_scope_lead_nowhere_else() -> None:
    with memcore.open(":memory:", counter="bytes/4") as db:
        scope = db.as_user("ann")
        made = [
            MemcoreSession("s", scope),
            MemcoreSaver(scope),
            MemcoreStore(scope),
            MemcoreBackend(scope),
        ]
        forbidden = (memcore.Database, type(db.engine), type(db.engine.store))
        for adapter in made:
            for name in dir(adapter):
                if not name.startswith("_"):
                    with suppress(AttributeError, NotImplementedError, RuntimeError):
                        assert not isinstance(getattr(adapter, name), forbidden), name
