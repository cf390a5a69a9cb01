"""No name, however hostile, leads to what was stored under another one.

``MEMCORE_ISOLATION_PAIRS=10000 pytest -s`` of this file runs it at length and
prints how many pairs of places were compared.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import memcore
from tests.conformance import isolation
from tests.conformance.isolation import ALL_SEEN, FEATURES, FIRST_SEEN, Feature, Place

PAIRS = int(os.environ.get("MEMCORE_ISOLATION_PAIRS", "200"))
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
