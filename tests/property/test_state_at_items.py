"""The state at every item, against a model in which each item remembers it."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

import memcore

SEEDS = int(os.environ.get("MEMCORE_STATE_SEEDS", "8"))
ITEM = {"role": "user", "content": "hi"}


class Model:
    """A session: its items with the state that each was appended on, and the state of now."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.now: dict[str, Any] = {}
        self.saved: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {}

    def at(self, count: int) -> dict[str, Any]:
        return self.items[count] if count < len(self.items) else self.now

    def go_to(self, count: int) -> None:
        self.now = self.at(count)
        self.items = self.items[:count]


class Run:
    """Random changes of a session and its forks."""

    def __init__(self, db: memcore.Database, seed: int) -> None:
        self.rng = random.Random(seed)
        self.db = db
        self.models = {"s0": Model()}

    def step(self) -> None:
        name = self.rng.choice(sorted(self.models))
        session, model = self.db.session(name), self.models[name]
        steps = (self.append, self.change, self.both, self.undo, self.rewind, self.fork)
        steps += (self.save, self.go_back, self.fork_at, self.delete)
        self.rng.choices(steps, (6, 6, 6, 2, 2, 2, 2, 2, 1, 0.5))[0](name, session, model)

    def delta(self) -> dict[str, Any]:
        names = self.rng.sample("abcd", self.rng.randint(1, 2))
        return {name: self.rng.choice((None, 1, 2, memcore.Delete)) for name in names}

    def applied(self, model: Model, delta: dict[str, Any]) -> None:
        model.now = {k: v for k, v in (model.now | delta).items() if v is not memcore.Delete}

    def append(self, _: str, session: memcore.Session, model: Model) -> None:
        count = self.rng.randint(1, 3)
        session.extend([ITEM] * count)
        model.items += [model.now] * count

    def change(self, _: str, session: memcore.Session, model: Model) -> None:
        delta = self.delta()
        session.state.update(delta)
        self.applied(model, delta)

    def both(self, _: str, session: memcore.Session, model: Model) -> None:
        delta, count = self.delta(), self.rng.randint(1, 2)
        with session.batch() as batch:
            batch.update_state(delta)
            batch.extend([ITEM] * count)
        model.items += [model.now] * count
        self.applied(model, delta)

    def undo(self, _: str, session: memcore.Session, model: Model) -> None:
        count = self.rng.randint(1, 2)
        session.undo(count)
        model.items = model.items[: max(len(model.items) - count, 0)]

    def rewind(self, _: str, session: memcore.Session, model: Model) -> None:
        count = self.rng.randint(0, len(model.items))
        if session.exists():
            session.rewind([0, *(item.seq for item in session)][count])
            model.go_to(count)

    def fork(self, _: str, session: memcore.Session, model: Model) -> None:
        count, name = self.rng.randint(0, len(model.items)), f"s{len(self.models)}"
        if session.exists() and len(self.models) < 5:
            session.fork(name, at=[0, *(item.seq for item in session)][count])
            twin = self.models[name] = Model()
            twin.items, twin.now = model.items[:], model.now
            twin.go_to(count)

    def save(self, _: str, session: memcore.Session, model: Model) -> None:
        label = self.rng.choice("xy")
        session.checkpoint(label)
        model.saved[label] = (model.items[:], model.now)

    def go_back(self, _: str, session: memcore.Session, model: Model) -> None:
        for label, (items, now) in model.saved.items():
            session.rewind(label)
            model.items, model.now = items[:], now
            return

    def fork_at(self, _: str, session: memcore.Session, model: Model) -> None:
        for label, (items, now) in model.saved.items():
            name = f"s{len(self.models)}"
            if len(self.models) < 5:
                session.fork(name, at=label)
                twin = self.models[name] = Model()
                twin.items, twin.now = items[:], now
            return

    def delete(self, name: str, session: memcore.Session, _: Model) -> None:
        if len(self.models) > 2:
            self.db.delete_session(name)
            self.models[name] = Model()

    def look(self) -> None:
        for name, model in self.models.items():
            session = self.db.session(name)
            seqs = [item.seq for item in session]
            state = session.state
            assert state.all() == model.now
            assert [state.before(seq) for seq in seqs] == model.items
            found = [state.at_seq(seq) for seq in (0, *seqs)]
            assert found == [model.at(count) for count in range(len(model.items) + 1)]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_item_knows_the_state_that_it_was_appended_on(tmp_path, seed):
    path = tmp_path / "agent.memcore"
    with memcore.open(path, durability="none", allow_unsafe=True) as db:
        run = Run(db, seed)
        for _ in range(60):
            run.step()
            run.look()
        assert db.check() == []
