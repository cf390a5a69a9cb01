"""Usage reports against a model that remembers whole requests: which anchor applies, and to what.

The model keeps the seqs that a reported request showed. An anchor applies if and only if what is
sent now begins with them under the same view and policy; then the estimate is what was billed and
the factor for what came behind. Changes go through two handles of one file, which is reopened.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

import memcore
from memcore.session.engine import SessionRef
from messages import assistant, user

POLICIES = ("openai_chat", "langchain")
MODELS = (None, "m1")


@dataclass(frozen=True)
class Request:
    """What was sent and billed."""

    seqs: tuple[int, ...]
    views: tuple[int, ...]
    policy: str
    tokens: int
    billed: int


@dataclass
class Told:
    """What is known of a model."""

    reports: int = 0
    anchor: Request | None = None


@dataclass
class Model:
    """One session: the views that were recorded, and what was reported."""

    views: tuple[int, ...] = ()
    known: dict[str | None, Told] = field(default_factory=dict)
    sent: dict[bool, Request] = field(default_factory=dict)
    """The last context of each handle."""


class Reports(RuleBasedStateMachine):
    """Rules over the sessions of one file."""

    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="memcore-usage-"))
        self.models: dict[str, Model] = {}
        self.handles: dict[tuple[str, bool], memcore.Session] = {}
        self.fresh_view = 0
        self.second = False
        self.open()

    def open(self) -> None:
        path = self.folder / "agent.memcore"
        self.dbs = [memcore.open(path, durability="none", allow_unsafe=True) for _ in range(2)]
        self.handles.clear()
        for model in self.models.values():
            model.sent.clear()

    def close(self) -> None:
        for db in self.dbs:
            db.close()

    def teardown(self) -> None:
        try:
            assert self.dbs[0].check() == []
        finally:
            self.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def session(self, name: str, second: bool) -> memcore.Session:
        key = (name, second)
        if key not in self.handles:
            self.handles[key] = self.dbs[second].session(name)
        return self.handles[key]

    def request(self, name: str, tokens: int, billed: int = 0) -> Request:
        """What a context without a budget shows now."""
        session = self.session(name, False)
        seqs = tuple(item.seq for item in session)
        return Request(seqs, self.models[name].views, session.policy, tokens, billed)

    @staticmethod
    def begins(anchor: Request, now: Request) -> bool:
        """Whether the anchor's messages begin what is sent now."""
        return (anchor.views, anchor.policy) == (now.views, now.policy) and (
            now.seqs[: len(anchor.seqs)] == anchor.seqs
        )

    # --- rules

    @initialize(target=names)
    def first(self) -> str:
        return self.begin("s0")

    def begin(self, name: str) -> str:
        self.models[name] = Model()
        self.session(name, False).append(user(name))
        return name

    @rule(name=names, second=st.booleans(), sizes=st.lists(st.integers(1, 900), max_size=4))
    def talk(self, name: str, second: bool, sizes: list[int]) -> None:
        for at, size in enumerate(sizes):
            self.session(name, second).append((user, assistant)[at % 2]("x" * size))

    @rule(name=names, second=st.booleans())
    def ask(self, name: str, second: bool) -> None:
        context = self.session(name, second).context()
        self.models[name].sent[second] = self.request(name, context.tokens)

    @rule(name=names, second=st.booleans(), size=st.integers(1, 400))
    def exchange(self, name: str, second: bool, size: int) -> None:
        """A turn as most agents make it."""
        self.talk(name, second, [size, size])
        self.ask(name, second)
        self.tell(name, second, None, 2_000 + 2 * size)

    @rule(name=names, size=st.integers(1, 400))
    def overtaken(self, name: str, size: int) -> None:
        """A report that comes after one on a later request."""
        self.ask(name, True)
        self.exchange(name, False, size)
        self.tell(name, True, None, 2_000)

    @rule(
        name=names,
        second=st.booleans(),
        label=st.sampled_from(MODELS),
        factor=st.sampled_from((0.5, 1.0, 1.3, 3.0)),
        fixed=st.sampled_from((0, 2_000)),
    )
    def report(self, name: str, second: bool, label: str | None, factor: float, fixed: int) -> None:
        sent = self.models[name].sent.get(second)
        tokens = shown_tokens(self.session(name, second)) if sent is None else sent.tokens
        self.tell(name, second, label, fixed + round(factor * tokens) + 1)

    def tell(self, name: str, second: bool, label: str | None, billed: int) -> None:
        model, session = self.models[name], self.session(name, second)
        sent = model.sent.get(second)
        if sent is None:
            sent = self.request(name, shown_tokens(session))
        sent = replace(sent, billed=billed)
        found = session.report_usage(sent.billed, model=label)
        told = model.known.pop(label, Told())
        now = self.request(name, 0)
        late = (
            told.anchor is not None
            and self.begins(told.anchor, now)
            and len(told.anchor.seqs) > len(sent.seqs)
        )
        if self.begins(sent, now) and not late:
            told.anchor = sent
        told.reports += 1
        model.known = {label: told, **model.known}
        assert found.reports == told.reports

    @rule(name=names, second=st.booleans(), count=st.integers(1, 5))
    def undo(self, name: str, second: bool, count: int) -> None:
        self.session(name, second).undo(count)

    @rule(name=names, second=st.booleans(), share=st.integers(0, 100))
    def rewind(self, name: str, second: bool, share: int) -> None:
        seqs = [0, *self.request(name, 0).seqs]
        self.session(name, second).rewind(seqs[len(seqs) * share // 101])

    @rule(name=names, second=st.booleans(), keep=st.integers(0, 3))
    def compact(self, name: str, second: bool, keep: int) -> None:
        done = self.session(name, second).compact(lambda _: "so far", keep_last=keep)
        if done.view is not None:
            self.fresh_view += 1
            self.models[name].views += (self.fresh_view,)

    @rule(name=names, second=st.booleans())
    def uncompact(self, name: str, second: bool) -> None:
        self.session(name, second).uncompact()
        self.models[name].views = self.models[name].views[:-1]

    @rule(name=names, second=st.booleans(), policy=st.sampled_from(POLICIES))
    def set_policy(self, name: str, second: bool, policy: str) -> None:
        self.session(name, second).set_policy(policy)

    @rule(target=names, name=names, second=st.booleans(), share=st.integers(0, 100))
    def fork(self, name: str, second: bool, share: int) -> Any:
        if len(self.models) > 2:
            return multiple()
        seqs = [0, *self.request(name, 0).seqs]
        child = f"s{len(self.models)}"
        count = len(seqs) * share // 101
        self.session(name, second).fork(child, at=seqs[count])
        mine = self.models[name]
        self.models[child] = Model(mine.views)
        for label, told in mine.known.items():
            anchor = told.anchor
            if anchor is not None and anchor.seqs and anchor.seqs[-1] not in seqs[1 : count + 1]:
                anchor = None
            self.models[child].known[label] = Told(told.reports, anchor)
        return child

    @rule()
    def reopen(self) -> None:
        self.close()
        self.open()

    @invariant()
    def they_agree(self) -> None:
        for name in self.models:
            self.second = not self.second
            self.agree(name, self.second)

    def agree(self, name: str, second: bool) -> None:
        """What the session says, against the requests that the model remembers."""
        model, session = self.models[name], self.session(name, second)
        found = session.calibrations()
        assert [(c.model, c.reports) for c in found] == [
            (label, told.reports) for label, told in model.known.items()
        ]
        now = self.request(name, 0)
        for calibration in found:
            assert 0.8 <= calibration.factor <= 2.0
            anchor = model.known[calibration.model].anchor
            applies = anchor is not None and self.begins(anchor, now)
            assert calibration.anchored == applies
            if anchor is not None and applies:
                assert calibration.input_tokens == anchor.billed
                assert calibration.counted_tokens == anchor.tokens
        self.estimate(session, found)

    def estimate(self, session: memcore.Session, found: list[memcore.Calibration]) -> None:
        shown = shown_tokens(session)
        expected = float(shown)
        if found:
            first = found[0]
            expected = first.factor * shown
            if first.anchored:
                since = sum(item.tokens for item in session if item.seq > first.seq)
                expected = first.input_tokens + first.factor * since
                expected = max(expected, 0.8 * (first.counted_tokens + since))
        assert expected - 0.01 <= session.estimated_tokens <= expected + 1.01
        for budget in (300, 2_500, 9_000):
            try:
                context = unwatched(session).context(budget, calibrated=True)
            except memcore.ContextOverflowError:
                continue
            assert context.tokens <= budget
            assert (context.estimated_tokens or 0) <= budget


def unwatched(session: memcore.Session) -> memcore.Session:
    """Another handle, whose contexts nobody reports on."""
    ref = session._ref
    return memcore.Session(SessionRef(ref.engine, ref.app, ref.user, ref.name, ref.options))


def shown_tokens(session: memcore.Session) -> int:
    """What the context without a budget counts."""
    return unwatched(session).context().tokens


Reports.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
TestReports = Reports.TestCase
