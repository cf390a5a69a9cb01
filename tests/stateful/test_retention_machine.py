"""Sweeps against a dict model: rules, appends, undo, forks, checkpoints, keys, reopening.

The model knows of every item of every session what it says, when it was appended and whether it has
expired. ``check`` is clean after every step.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import memcore
from messages import assistant, call, result, user

START = 1_700_000_000.0
NAMES = ("a", "b", "c")
GONE = ("[expired]", ".")


@dataclass(eq=False)
class Item:
    """One item; forks share the object as they share the row."""

    text: str
    at: float
    gone: bool = False


@dataclass
class Model:
    """One session."""

    live: list[Item] = field(default_factory=list)
    owned: list[Item] = field(default_factory=list)
    """What it wrote itself, undone items too, in the order of their seqs."""
    saved: dict[str, list[Item]] = field(default_factory=dict)
    expires: float | None = None
    used: float = 0.0


class Sweeps(RuleBasedStateMachine):
    """Rules over the sessions of one file."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="memcore-retention-"))
        self.models: dict[str, Model] = {}
        self.hidden: list[Model] = []
        """Deleted sessions: what forks share of them expires all the same."""
        self.keys: dict[str, float] = {}
        self.rules: list[dict[str, object]] = []
        self.now, self.written = START, 0
        self.open()

    @initialize()
    def begin(self) -> None:
        self.append("a", 3)

    def open(self) -> None:
        path = self.folder / "agent.memcore"
        self.db = memcore.open(path, counter="bytes/4", durability="none", allow_unsafe=True)
        self.db.engine.now_us = lambda: int(self.now * 1e6)

    def teardown(self) -> None:
        self.db.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- changes ----------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 4))
    def append(self, name: str, count: int) -> None:
        model = self.models.setdefault(name, Model())
        new = []
        for _ in range(count):
            self.written += 1
            new.append(Item(f"item {self.written} says something of its own", self.now))
        kinds = (user, assistant)
        self.db.session(name).extend([kinds[at % 2](item.text) for at, item in enumerate(new)])
        model.live += new
        model.owned += new
        model.used = self.now

    @rule(name=st.sampled_from(NAMES))
    def answer(self, name: str) -> None:
        model = self.models.setdefault(name, Model())
        self.written += 1
        text = f"item {self.written} is what a tool returned"
        made, item = Item("", self.now), Item(text, self.now)
        key = f"c{self.written}"
        self.db.session(name).extend([call(key), result(key, text)])
        model.live += [made, item]
        model.owned += [made, item]
        model.used = self.now

    @precondition(lambda self: self.models)
    @rule(data=st.data(), count=st.integers(1, 3))
    def undo(self, data: st.DataObject, count: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.models)))
        model = self.models[name]
        if model.live:
            self.db.session(name).undo(count)
            del model.live[-count:]
            model.used = self.now

    @precondition(lambda self: self.models)
    @rule(data=st.data(), branch=st.sampled_from(("f", "g")))
    def fork(self, data: st.DataObject, branch: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.models)))
        if branch not in self.models:
            self.db.session(name).fork(branch)
            self.models[branch] = Model(self.models[name].live.copy(), used=self.now)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), label=st.sampled_from(("x", "y")))
    def save(self, data: st.DataObject, label: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.models)))
        self.db.session(name).checkpoint(label)
        self.models[name].saved[label] = self.models[name].live.copy()
        self.models[name].used = self.now

    @precondition(lambda self: any(model.saved for model in self.models.values()))
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        places = [(n, label) for n, model in self.models.items() for label in model.saved]
        name, label = data.draw(st.sampled_from(sorted(places)))
        self.db.session(name).rewind(label)
        self.models[name].live = self.models[name].saved[label].copy()
        self.models[name].used = self.now

    @rule(key=st.sampled_from("kl"), ttl=st.integers(1, 50))
    def put(self, key: str, ttl: int) -> None:
        self.db.scope().kv("n").put(key, key, ttl_seconds=ttl)
        self.keys[key] = self.now + ttl

    # --- retention --------------------------------------------------------------------------------

    @precondition(lambda self: self.models)
    @rule(data=st.data(), ttl=st.one_of(st.none(), st.integers(1, 50)))
    def expire(self, data: st.DataObject, ttl: int | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.models)))
        self.db.retention.expire_session(name, ttl)
        self.models[name].expires = None if ttl is None else self.now + ttl

    @rule(
        age=st.one_of(st.none(), st.integers(0, 40)),
        last=st.one_of(st.none(), st.integers(0, 6)),
    )
    def set_rules(self, age: int | None, last: int | None) -> None:
        limits = {"max_age_seconds": age, "keep_last": last}
        told = {name: limit for name, limit in limits.items() if limit is not None}
        self.rules = [{"what": "items", **told}] if told else []
        self.db.retention.set(self.rules or None)

    @rule(seconds=st.integers(1, 30))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(back=st.sampled_from((0, 0, 0, 5)), limit=st.sampled_from((1, 3, 1000)))
    def sweep(self, back: int, limit: int) -> None:
        """A clock that went back sweeps less; a bound ends it earlier, and it is gone on with."""
        now = self.now - back
        while not self.db.sweep(now=now, limit=limit).complete:
            pass
        for name, model in list(self.models.items()):
            if model.expires is not None and model.expires <= now:
                self.hidden.append(self.models.pop(name))
        for model in (*self.models.values(), *self.hidden):
            for limits in self.rules:
                self.expire_items(model, limits, now)
        self.keys = {key: at for key, at in self.keys.items() if at > now}

    def expire_items(self, model: Model, limits: dict[str, object], now: float) -> None:
        last, age = limits.get("keep_last"), limits.get("max_age_seconds")
        count = len(model.live) - last if last is not None else 0
        beyond = {id(item) for item in model.live[: max(count, 0)]}
        for at, item in enumerate(model.owned):
            is_before = any(id(each) in beyond for each in model.owned[at:])
            if not is_before and not (age is not None and item.at < now - age):
                return  # what follows was not appended earlier
            item.gone = True

    # --- what must hold ---------------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        self.db.close()
        self.open()

    @invariant()
    def it_is_what_the_model_says(self) -> None:
        assert self.db.check() == []
        assert {entry.session_id for entry in self.db.sessions()} == set(self.models)
        for name, model in self.models.items():
            session = self.db.session(name)
            for found, item in zip(session, model.live, strict=True):
                text = found.message["content"]
                assert text == (item.text or None) or (item.gone and text in GONE)
                if item.gone and item.text:
                    assert text in GONE
            # An answer may have been undone; nothing else is ever to be mended.
            assert {each.action for each in session.context().repairs} <= {"synthesized"}
            assert {c.name for c in session.checkpoints()} == set(model.saved)
        visible = {key for key, at in self.keys.items() if at > self.now}
        assert {key for key, _ in self.db.scope().kv("n").scan()} == visible


TestSweeps = Sweeps.TestCase
TestSweeps.settings = settings(
    max_examples=int(os.environ.get("MEMCORE_RETENTION_EXAMPLES", "6")),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
