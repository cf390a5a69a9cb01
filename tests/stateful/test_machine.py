"""A session and its forks against a list model: every kind of change, in any order, with kills.

Changes go through any of: the handle, a second handle of the same file, a child process that is
killed with SIGKILL once it has acknowledged. Whatever was acknowledged must be there, and nothing
else; the file must be sound at the end of every run. ``MEMCORE_LONG_TESTS=1`` runs it for long.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

import memcore
from memcore.log import history as log_history
from messages import assistant, attempt, call, count, failing, illegal, recount, result, user

LONG = bool(os.environ.get("MEMCORE_LONG_TESTS"))
WHOLE = ("user", "assistant")
ids = st.sampled_from(("c0", "c1", "c2"))
counts = st.integers(1, 40)
COUNTERS = ("o200k_base", "bytes/4", "bytes/3", "bytes/7")


@dataclass
class Model:
    """What a session must hold: live items as (seq, message) and its counters."""

    items: list[tuple[int, Any]] = field(default_factory=list)
    next_seq: int = 1
    revision: int = 0
    requests: dict[str, tuple[Any, tuple[int, ...], int]] = field(default_factory=dict)
    counter: str = COUNTERS[0]
    recounts: int = 0
    saved: list[tuple[memcore.Checkpoint, list[tuple[int, Any]]]] = field(default_factory=list)
    """Checkpoints, each with the items that were live."""

    def append(self, *messages: Any) -> None:
        for message in messages:
            self.items.append((self.next_seq, message))
            self.next_seq += 1
        self.revision += 1

    def cut(self, count: int) -> None:
        if count < len(self.items):
            del self.items[count:]
            self.revision += 1

    def move_to(self, items: list[tuple[int, Any]], *, viewed: bool) -> None:
        """Back to a checkpoint; ``viewed``: whether another view came in force."""
        if items != self.items or viewed:
            self.items = list(items)
            self.revision += 1

    def open_ids(self) -> list[str]:
        """Every call of every message that no later result or abandon took."""
        waiting: list[tuple[str, int]] = []
        latest: dict[str, int] = {}
        for at, (_, message) in enumerate(self.items):
            if isinstance(message, tuple):
                # A result is the latest call's, answered or not; an abandon the latest open one's.
                given_up = [each for each in waiting if message == ("abandon", each[0])]
                if given_up:
                    waiting.remove(given_up[-1])
            elif message["role"] == "tool":
                key = message["tool_call_id"]
                if (key, latest.get(key)) in waiting:
                    waiting.remove((key, latest[key]))
            else:
                for made in message.get("tool_calls", ()):
                    latest[made["id"]] = at
                    waiting.append((made["id"], at))
        return [key for key, _ in waiting]

    def calls(self) -> set[str]:
        return {
            made["id"]
            for _, m in self.items
            if not isinstance(m, tuple)
            for made in m.get("tool_calls", ())
        }

    def forked(self, count: int) -> Model:
        kept = self.items[:count]
        seq = kept[-1][0] if kept else 0
        return Model(list(kept), seq + 1, 1, counter=self.counter)


CHILD = """
import json, os, signal, sys, memcore
db = memcore.open(sys.argv[1])
session = db.session(sys.argv[2])
for message in json.loads(sys.argv[3]):
    session.append(message)
print("acknowledged", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Sessions(RuleBasedStateMachine):
    """Rules over the sessions of one file."""

    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.level = logging.getLogger("memcore").level
        logging.getLogger("memcore").setLevel(logging.ERROR)  # failing summarizers are meant
        self.folder = Path(tempfile.mkdtemp(prefix="memcore-machine-"))
        self.path = self.folder / "agent.memcore"
        self.db = self.open()
        self.other = self.open()
        self.models: dict[str, Model] = {}
        self.fresh = 0
        self.text = 0

    def open(self) -> memcore.Database:
        return memcore.open(self.path, durability="none", allow_unsafe=True)

    def teardown(self) -> None:
        self.loading.stop()
        logging.getLogger("memcore").setLevel(self.level)
        try:
            self.compare(self.other)
            assert self.db.check() == []
            self.db.close()
            self.other.close()
            with memcore.open(self.path) as db:
                self.compare(db)
                assert db.check() == []
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def compare(self, db: memcore.Database) -> None:
        """Everything that can be read, against the model."""
        assert {e.session_id for e in db.sessions()} == set(self.models)
        for name, model in self.models.items():
            session = db.session(name)
            assert [(i.seq, self.seen(i)) for i in session] == model.items
            assert (len(session), session.revision) == (len(model.items), model.revision)
            assert session.tokens == sum(i.tokens for i in session)
            assert session.counter == model.counter
            for item in session:
                if item.kind != memcore.ItemKind.EVENT:
                    assert item.tokens == count(item.message, model.counter)

    @staticmethod
    def seen(item: memcore.Item) -> Any:
        if item.kind != memcore.ItemKind.EVENT:
            return item.message
        if item.message["type"] == "abandon":
            return "abandon", item.message["payload"]["id"]
        return "event", item.message["payload"]

    def handle(self, name: str, second: bool) -> memcore.Session:
        return (self.other if second else self.db).session(name)

    def line(self) -> str:
        self.text += 1
        return f"t{self.text}"

    def new_name(self) -> str:
        self.fresh += 1
        return f"s{self.fresh}"

    # --- rules

    @initialize(target=names, records=st.sampled_from((1, 4, 2_048)))
    def first(self, records: int) -> Any:
        """Handles load so many records of a history at first."""
        self.loading = mock.patch.object(log_history, "RECENT_RECORDS", records)
        self.loading.start()
        return self.begin()

    @rule(target=names)
    def begin(self) -> str:
        name = self.new_name()
        self.models[name] = Model()
        message = user(self.line())
        assert self.db.session(name).append(message).seq == 1
        self.models[name].append(message)
        return name

    @rule(name=names, second=st.booleans(), role=st.sampled_from(WHOLE))
    def append(self, name: str, second: bool, role: str) -> None:
        message = {"role": role, "content": self.line()}
        model = self.models[name]
        receipt = self.handle(name, second).append(message)
        model.append(message)
        assert (receipt.seq, receipt.revision) == (model.next_seq - 1, model.revision)
        assert receipt.open_calls == len(model.open_ids())

    @rule(name=names, second=st.booleans(), count=counts)
    def extend(self, name: str, second: bool, count: int) -> None:
        messages = [user(self.line()) for _ in range(count)]
        self.handle(name, second).extend(messages)
        self.models[name].append(*messages)

    @rule(name=names, made=st.lists(ids, min_size=1, max_size=3, unique=True))
    def make_calls(self, name: str, made: list[str]) -> None:
        message = call(*made)
        self.db.session(name).append(message)
        self.models[name].append(message)

    @rule(name=names, second=st.booleans(), call_id=ids)
    def answer(self, name: str, second: bool, call_id: str) -> None:
        model, message = self.models[name], result(call_id, self.line())
        if call_id in model.calls():
            receipt = self.handle(name, second).append(message)
            model.append(message)
            assert receipt.open_calls == len(model.open_ids())
        else:
            with pytest.raises(memcore.OrphanResultError):
                self.handle(name, second).append(message)

    @rule(name=names, second=st.booleans())
    def abandon(self, name: str, second: bool) -> None:
        model, session = self.models[name], self.handle(name, second)
        waiting = [c.call_id for c in session.open_calls]
        assert sorted(waiting) == sorted(model.open_ids())
        unique = [key for key in waiting if waiting.count(key) == 1]
        if unique:
            receipt = session.abandon(unique[0])
            before = len(model.open_ids())
            model.append(("abandon", unique[0]))
            assert receipt.open_calls == before - 1

    @rule(name=names, second=st.booleans())
    def record(self, name: str, second: bool) -> None:
        payload = self.line()
        self.handle(name, second).record("note", payload)
        self.models[name].append(("event", payload))

    @rule(name=names, second=st.booleans(), count=counts)
    def undo(self, name: str, second: bool, count: int) -> None:
        model = self.models[name]
        taken = self.handle(name, second).undo(count)
        assert [(i.seq, self.seen(i)) for i in taken] == model.items[-count:]
        model.cut(max(len(model.items) - count, 0))

    @rule(name=names, second=st.booleans(), share=st.integers(0, 100))
    def rewind(self, name: str, second: bool, share: int) -> None:
        model = self.models[name]
        count = len(model.items) * share // 100
        seq = model.items[count - 1][0] if count else 0
        receipt = self.handle(name, second).rewind(seq)
        model.cut(count)
        assert (receipt.seq, receipt.revision) == (seq, model.revision)

    @rule(name=names, second=st.booleans(), label=st.sampled_from((None, "x", "y")))
    def checkpoint(self, name: str, second: bool, label: str | None) -> None:
        model = self.models[name]
        found = self.handle(name, second).checkpoint(label)
        assert (found.items, found.revision) == (len(model.items), model.revision)
        assert found.number == 1 + max([each.number for each, _ in model.saved], default=0)
        model.saved.append((found, list(model.items)))
        assert list(self.handle(name, not second).checkpoints()) == [
            each for each, _ in model.saved
        ]

    @rule(name=names, second=st.booleans(), pick=st.integers(0, 99))
    def rewind_to(self, name: str, second: bool, pick: int) -> None:
        model = self.models[name]
        if not model.saved:
            return
        session = self.handle(name, second)
        saved, items = model.saved[pick % len(model.saved)]
        views = session.views()
        receipt = session.rewind(saved)
        model.move_to(items, viewed=session.views() != views)
        assert (receipt.seq, receipt.revision) == (saved.seq, model.revision)
        assert receipt.tokens == sum(i.tokens for i in self.handle(name, not second))

    @rule(target=names, name=names, second=st.booleans(), pick=st.integers(0, 99))
    def fork_at(self, name: str, second: bool, pick: int) -> Any:
        model = self.models[name]
        if len(self.models) > 6 or not model.saved:
            return multiple()
        saved, items = model.saved[pick % len(model.saved)]
        child = self.new_name()
        self.handle(name, second).fork(child, at=saved)
        self.models[child] = Model(list(items), saved.seq + 1, 1, counter=model.counter)
        return child

    @rule(
        name=names,
        count=st.integers(0, 5),
        more=st.integers(0, 5),
        wrong=st.booleans(),
        fails=st.booleans(),
    )
    def batch(self, name: str, count: int, more: int, wrong: bool, fails: bool) -> None:
        model, session = self.models[name], self.db.session(name)
        expected = model.revision + wrong
        messages = [assistant(self.line()) for _ in range(more)]

        def change() -> None:
            with session.batch(expected_revision=expected) as batch:
                if count:
                    batch.undo(count)
                batch.extend(messages)
                if fails:
                    batch.append(result("never made"))

        if wrong or fails:
            kind = memcore.RevisionConflict if wrong else memcore.OrphanResultError
            with pytest.raises(kind):
                change()
            return
        change()
        before = model.revision
        model.cut(max(len(model.items) - count, 0))
        if messages:
            model.append(*messages)
        changed = model.revision != before
        model.revision = before + changed

    @rule(name=names, second=st.booleans(), key=ids, other=st.booleans())
    def request(self, name: str, second: bool, key: str, other: bool) -> None:
        """An idempotent append: done once while its item is live."""
        model, session = self.models[name], self.handle(name, second)
        content = f"{key}-{'b' if other else 'a'}"
        known = model.requests.get(key)
        live = known is not None and known[1][0] in dict(model.items)
        if live and known[0] != content:
            with pytest.raises(memcore.DuplicateRequestError):
                session.append(user(content), idempotency_key=key)
            return
        receipt = session.append(user(content), idempotency_key=key)
        if live:
            same = known[2] == model.recounts
            tokens = known[1][2] if same else session.tokens
            assert tuple(receipt) == (*known[1][:2], tokens, *known[1][3:])
        else:
            model.append(user(content))
            model.requests[key] = (content, tuple(receipt), model.recounts)

    @rule(name=names, second=st.booleans(), keep=st.integers(0, 6), fails=st.booleans())
    def compact(self, name: str, second: bool, keep: int, fails: bool) -> None:
        summarize = failing if fails else (lambda _: "so far")
        done = self.handle(name, second).compact(summarize, keep_last=keep)
        assert done.status != "nothing" or done.view is None

    @rule(name=names, second=st.booleans())
    def uncompact(self, name: str, second: bool) -> None:
        self.handle(name, second).uncompact()

    @rule(name=names, budget=st.integers(1, 300))
    def context(self, name: str, budget: int) -> None:
        """Both handles give the same legal context."""
        outcomes = []
        for second in (False, True):
            session = self.handle(name, second)
            found = attempt(session.context, budget)
            if isinstance(found, memcore.ContextOverflowError):
                assert found.needed_tokens > budget
                found = session.context(found.needed_tokens)
            else:
                by = self.models[name].counter
                assert recount(found.messages, by) == found.tokens <= budget
            assert illegal(found.messages, "openai_chat") == []
            outcomes.append(found)
        assert outcomes[0] == outcomes[1]

    @rule(target=names, name=names, second=st.booleans(), share=st.integers(0, 100))
    def fork(self, name: str, second: bool, share: int) -> Any:
        model = self.models[name]
        if len(self.models) > 6:
            return multiple()
        count = len(model.items) * share // 100
        seq = model.items[count - 1][0] if count else 0
        child = self.new_name()
        forked = self.handle(name, second).fork(child, at=seq)
        self.models[child] = model.forked(count)
        assert len(forked) == count
        return child

    @precondition(lambda self: len(self.models) > 1)
    @rule(name=consumes(names), second=st.booleans())
    def delete(self, name: str, second: bool) -> None:
        assert (self.other if second else self.db).delete_session(name)
        assert not self.db.session(name).exists()
        del self.models[name]

    @rule(name=names, second=st.booleans(), policy=st.sampled_from(("langchain", "openai_chat")))
    def set_policy(self, name: str, second: bool, policy: str) -> None:
        session = self.handle(name, second)
        before = session.policy
        session.set_policy(policy)
        after = self.handle(name, not second)
        assert after.policy == policy
        model = self.models[name]
        assert after.revision - model.revision in ({0, 1} if before == policy else {1})
        model.revision = after.revision

    @rule(name=names, second=st.booleans(), counter=st.sampled_from(COUNTERS), lazily=st.booleans())
    def recount(self, name: str, second: bool, counter: str, lazily: bool) -> None:
        model, db = self.models[name], self.other if second else self.db
        if lazily:
            session = db.session(name, counter=counter, recount=True)
        else:
            session = db.session(name)
            done = session.recount(counter)
            assert done.items == (len(model.items) if counter != model.counter else 0)
        assert session.tokens == sum(i.tokens for i in session)
        model.recounts += counter != model.counter
        model.counter = counter
        assert self.handle(name, not second).counter == counter

    @rule()
    def reopen(self) -> None:
        self.db.close()
        self.db = self.open()

    @rule()
    def reopen_everything(self) -> None:
        self.db.close()
        self.other.close()
        self.db, self.other = self.open(), self.open()

    @rule(name=names, count=st.integers(1, 4))
    def killed_writer(self, name: str, count: int) -> None:
        """Another process appends, acknowledges and is killed."""
        messages = [user(self.line()) for _ in range(count)]
        child = subprocess.run(
            [sys.executable, "-c", CHILD, str(self.path), name, json.dumps(messages)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert (child.stdout, child.returncode) == ("acknowledged\n", -9), child.stderr
        for message in messages:
            self.models[name].append(message)

    @rule(name=names, count=st.integers(1, 4))
    def killed_fork(self, name: str, count: int) -> None:
        """A forked child of this process does the same, through the handle that it inherited."""
        messages = [user(self.line()) for _ in range(count)]
        pid = os.fork()
        if pid == 0:
            try:
                session = self.db.session(name)
                for message in messages:
                    session.append(message)
                os.kill(os.getpid(), 9)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 9
        for message in messages:
            self.models[name].append(message)

    @invariant()
    def totals_agree(self) -> None:
        for entry in self.db.sessions():
            model = self.models[entry.session_id]
            assert (entry.items, entry.revision) == (len(model.items), model.revision)
            assert entry.open_calls == len(model.open_ids())


Sessions.TestCase.settings = settings(
    max_examples=120 if LONG else 25,
    stateful_step_count=80 if LONG else 30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
TestSessions = Sessions.TestCase
