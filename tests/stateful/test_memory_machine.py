"""Long-term memory against a dict oracle: what any sequence of changes keeps."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import memcore
from memcore import Memory, Source

ORDER = ("operator", "user", "confirmed", "assistant", "agent", "tool", "import")
ACTIVE = ("operator", "user", "confirmed")
SESSIONS = ("a", "b", "c")
TEXTS = ("Likes tea", "likes  TEA.", "Likes milk")
SLOTS = (None, "drink")
ROLES = ("user", "assistant")


def norm(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .")


def weaker(by: str, than: str) -> bool:
    return ORDER.index(by) > ORDER.index(than)


@dataclass
class Entry:
    """One memory as the oracle knows it."""

    text: str
    slot: str | None
    by: str
    status: str
    version: int = 1
    sources: set[tuple[str, int, str]] = field(default_factory=set)
    """``(session, seq, trust)``"""
    start: int = 0
    stop: int | None = None
    by_next: int | None = None
    promoted: bool = False
    unsourced: str | None = None
    """Trust of who stated it without a source, if it has sources."""
    past: list[Entry] = field(default_factory=list)
    """Its earlier versions that still stand."""

    def stated(self) -> str | None:
        return self.unsourced or (None if self.sources else self.by)

    def trust_left(self) -> str:
        found = {said for _, _, said in self.sources} | {self.unsourced} - {None}
        if self.promoted or not found:
            return self.by
        return max(self.by, min(found, key=ORDER.index), key=ORDER.index)

    def keep(self) -> None:
        """Let what it says become the past, before it changes."""
        self.past.append(replace(self, past=[], sources=set(self.sources)))

    def lose(self, session: str) -> bool:
        """Remove the sources of a session; return True if the statement rested on them alone."""
        had = bool(self.sources)
        self.sources = {each for each in self.sources if each[0] != session}
        return had and not self.sources and self.unsourced is None


class MemoryMachine(RuleBasedStateMachine):
    """Random statements, corrections, decisions and removals, on the engine and on a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "a.memcore"
        self.now_ms = 1_700_000_000_000
        self.db = self.open()
        self.entries: dict[int, Entry] = {}
        self.items: dict[str, list[str]] = {}
        """Roles of the items of each session; undone ones are removed."""
        self.seqs: dict[str, list[int]] = {}
        self.past: list[tuple[int, dict[int, Memory]]] = []
        self.steps = 0
        self.touched: set[int] = set()
        """Memories of which the past was rewritten."""

    def open(self) -> memcore.Database:
        db = memcore.open(self.path, durability="none", allow_unsafe=True)
        db.engine.now_us = lambda: self.now_ms * 1000
        return db

    @property
    def memory(self) -> memcore.Memories:
        return self.db.scope(app="default", user="alice").memory

    def teardown(self) -> None:
        assert self.db.check() == []
        self.db.close()
        self.folder.cleanup()

    # --- oracle -----------------------------------------------------------------------------------

    def place(self, number: int, entry: Entry, *, force: bool = False) -> None:
        """Make an entry active, or leave it in quarantine as a conflict."""
        current = [
            (n, e) for n, e in self.entries.items()
            if n != number and e.slot == entry.slot and entry.slot and e.status == "active"
        ]  # fmt: skip
        if not force and any(weaker(entry.by, e.by) for _, e in current):
            entry.status = "quarantined"
            return
        entry.status = "active"
        if entry.slot is None:
            return
        entry.start = max(self.now_ms, *(
            e.start for n, e in self.entries.items()
            if n != number and e.slot == entry.slot and e.status in ("active", "superseded")
        ), self.now_ms)  # fmt: skip
        for _, e in current:
            e.keep()
            e.status, e.stop, e.by_next = "superseded", entry.start, number
            e.version += 1

    def cited(self, session: str, at: int) -> tuple[Source, int, str]:
        seqs = self.seqs[session]
        at %= len(seqs)
        return Source(session, (seqs[at],)), seqs[at], self.items[session][at]

    # --- rules ------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        for session in SESSIONS:
            for role in ROLES:
                self.append(session, role)

    @rule(session=st.sampled_from(SESSIONS), role=st.sampled_from(ROLES))
    def say(self, session: str, role: str) -> None:
        self.append(session, role)

    def append(self, session: str, role: str) -> None:
        content = " ".join(TEXTS)
        receipt = self.db.session(session, user="alice").append({"role": role, "content": content})
        self.items.setdefault(session, []).append(role)
        self.seqs.setdefault(session, []).append(receipt.seq)

    @precondition(lambda self: any(len(seqs) > 1 for seqs in self.seqs.values()))
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from([s for s, q in self.seqs.items() if len(q) > 1]))
        self.db.session(session, user="alice").undo(1)
        self.items[session].pop()
        self.seqs[session].pop()

    @precondition(lambda self: self.seqs)
    @rule(data=st.data(), text=st.sampled_from(TEXTS), slot=st.sampled_from(SLOTS))
    def say_and_remember(self, data: st.DataObject, text: str, slot: str | None) -> None:
        self.remember(data, text, slot, None)

    @rule(data=st.data(), text=st.sampled_from(TEXTS), slot=st.sampled_from(SLOTS))
    def state_as_operator(self, data: st.DataObject, text: str, slot: str | None) -> None:
        self.remember(data, text, slot, "operator")

    @precondition(lambda self: self.seqs)
    @rule(
        data=st.data(),
        text=st.sampled_from(TEXTS),
        slot=st.sampled_from(SLOTS),
        by=st.sampled_from(("agent", "import", "assistant")),
    )
    def remember_another(self, data: st.DataObject, text: str, slot: str | None, by: str) -> None:
        self.remember(data, text, slot, by)

    def remember(self, data: st.DataObject, text: str, slot: str | None, by: str | None) -> None:
        if not self.seqs:
            self.append("a", "user")
        session = data.draw(st.sampled_from(sorted(self.seqs)))
        source, seq, role = self.cited(session, data.draw(st.integers(0, 9)))
        trust = role if by is None else by
        given: dict[str, Any] = {"by": by} if by else {}
        if by not in ("operator", "import"):
            given["source"] = source
        made = self.memory.remember(text, slot=slot, **given)
        cited = {(session, seq, trust)} if "source" in given else set()
        same = [
            n for n, e in self.entries.items()
            if e.status in ("active", "quarantined") and norm(e.text) == norm(text)
            and e.slot == slot
        ]  # fmt: skip
        stones = [n for n, e in self.entries.items()
                  if e.status == "forgotten" and norm(text) in e.text.split("\n")]  # fmt: skip
        if same:
            self.support(same[-1], cited, trust, text)
            assert made.id == same[-1]
        elif stones and trust != "operator":
            assert made.id == stones[-1]
        else:
            number = len(self.entries) + 1
            entry = Entry(text, slot, trust, "quarantined", sources=cited)
            if trust in ACTIVE:
                self.place(number, entry)
            self.entries[number] = entry
            assert made.id == number

    def support(self, number: int, cited: set[tuple[str, int, str]], trust: str, text: str) -> None:
        entry = self.entries[number]
        stated = [by for by in (entry.stated(), None if cited else trust) if by]
        merged = entry.sources | cited
        unsourced = min(stated, key=ORDER.index) if stated and merged else None
        before = replace(entry, sources=set(entry.sources))
        entry.sources, entry.unsourced = merged, unsourced
        if weaker(before.by, trust):
            entry.text, entry.by, entry.promoted = text, trust, False
        if entry.status == "quarantined" and entry.by == trust and trust in ACTIVE:
            self.place(number, entry)
        if entry != before:
            before.keep()
            entry.past, entry.version = before.past, before.version + 1

    def living(self) -> list[int]:
        return [n for n, e in self.entries.items() if e.status in ("active", "quarantined")]

    @precondition(lambda self: self.seqs and self.living())
    @rule(data=st.data(), text=st.sampled_from(TEXTS), operator=st.booleans())
    def update(self, data: st.DataObject, text: str, operator: bool) -> None:
        number = data.draw(st.sampled_from(self.living()))
        entry = self.entries[number]
        session = data.draw(st.sampled_from(sorted(self.seqs)))
        source, seq, role = self.cited(session, data.draw(st.integers(0, 9)))
        trust = "operator" if operator else role
        given: dict[str, Any] = {"by": "operator"} if operator else {"source": source}
        same = any(
            n != number and norm(e.text) == norm(text) and e.slot == entry.slot
            for n, e in self.entries.items() if e.status in ("active", "quarantined")
        )  # fmt: skip
        stone = trust != "operator" and any(
            norm(text) in e.text.split("\n")
            for e in self.entries.values() if e.status == "forgotten"
        )  # fmt: skip
        before = (entry.text, entry.by, frozenset(entry.sources), entry.promoted, entry.unsourced)
        sources = frozenset() if operator else frozenset({(session, seq, trust)})
        is_equal = before == (text, trust, sources, False, None)
        is_known = not is_equal and (same or stone)
        if is_known or (entry.status == "active" and weaker(trust, entry.by)):
            try:
                self.memory.update(number, text=text, **given)
            except memcore.InvalidOptionError:
                return
            raise AssertionError("a text was taken that is weaker, forgotten or known")
        self.memory.update(number, text=text, expected_version=entry.version, **given)
        if is_equal:
            return
        entry.keep()
        entry.text, entry.by, entry.sources, entry.promoted = text, trust, set(sources), False
        entry.unsourced = None
        entry.version += 1
        if entry.status == "quarantined" and trust in ACTIVE:
            self.place(number, entry)

    @precondition(lambda self: any(e.status == "quarantined" for e in self.entries.values()))
    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        waiting = [n for n, e in self.entries.items() if e.status == "quarantined"]
        number = data.draw(st.sampled_from(waiting))
        entry = self.entries[number]
        self.memory.promote(number, by="root")
        entry.keep()
        entry.by = "confirmed" if weaker(entry.by, "confirmed") else entry.by
        entry.version, entry.promoted = entry.version + 1, True
        self.place(number, entry, force=True)

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.entries)))
        entry = self.entries[number]
        if entry.status != "forgotten":
            texts = {norm(each.text) for each in self.memory.history(number)}
            self.bury(number, "\n".join(sorted(texts)))
        self.memory.forget(number)

    def bury(self, number: int, texts: str) -> None:
        entry = self.entries[number]
        self.entries[number] = Entry(texts, None, entry.by, "forgotten", entry.version + 1)
        self.touched.add(number)

    @precondition(lambda self: self.seqs)
    @rule(data=st.data())
    def delete_session(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.seqs)))
        for number, entry in list(self.entries.items()):
            history = self.memory.history(number)
            if any(source.session == session for each in history for source in each.sources):
                self.touched.add(number)
            if entry.lose(session):
                self.bury(number, "")
                continue
            entry.past = [
                each for each in entry.past
                if not each.lose(session) and not weaker(each.trust_left(), each.by)
            ]  # fmt: skip
            if weaker(entry.trust_left(), entry.by):
                self.fall(entry)
        self.db.scope(app="default", user="alice").delete_session(session)
        del self.seqs[session], self.items[session]

    def fall(self, entry: Entry) -> None:
        """Let an entry say what the strongest statement says that is left."""
        by, said = entry.trust_left(), None
        for each in entry.past:
            same = norm(each.text) == norm(entry.text)
            if same and weaker(each.by, entry.by) and not weaker(each.by, by):
                by, said = each.by, each
        entry.by, entry.promoted = by, False
        if said is not None:
            entry.text, entry.promoted = said.text, said.promoted
        if entry.status == "active" and by not in ACTIVE:
            entry.status = "quarantined"
        entry.version += 1

    @rule(ms=st.sampled_from((1, 1000, 86_400_000)))
    def wait(self, ms: int) -> None:
        found = {each.id: each for each in self.memory.list()}
        self.past.append((self.now_ms, found))
        self.now_ms += ms

    @rule()
    def reopen(self) -> None:
        self.db.close()
        self.db = self.open()

    # --- invariants -------------------------------------------------------------------------------

    @invariant()
    def equals_the_oracle(self) -> None:
        found = {each.id: each for each in self.memory.list()}
        found |= {each.id: each for each in self.memory.list(status="forgotten")}
        assert found.keys() == self.entries.keys()
        for number, entry in self.entries.items():
            its = found[number]
            assert (its.status, its.by, its.version) == (entry.status, entry.by, entry.version)
            if entry.status == "forgotten":
                assert its.text == ""
                continue
            assert (its.text, its.slot) == (entry.text, entry.slot)
            cited = {(s.session, seq) for s in its.sources for seq in s.seqs}
            assert cited == {each[:2] for each in entry.sources}
            assert its.support == len({each[0] for each in entry.sources})
            if entry.status == "active":
                assert its.by in ACTIVE
                assert its.sources or its.by == "operator" or its.promoted_by
            if entry.slot and entry.status in ("active", "superseded"):
                assert its.valid_from == entry.start / 1000
                assert its.superseded_by == entry.by_next
        self.is_acyclic(found)
        self.has_one_value()

    def is_acyclic(self, found: dict[int, Memory]) -> None:
        for number, its in found.items():
            seen, at = {number}, its.superseded_by
            while at is not None:
                assert at not in seen
                seen.add(at)
                at = found[at].superseded_by

    def has_one_value(self) -> None:
        instants = {e.start for e in self.entries.values() if e.start} | {self.now_ms}
        for instant in instants:
            for slot in SLOTS[1:]:
                assert len(self.memory.list(slot=slot, valid_at=instant / 1000)) <= 1

    @invariant()
    def answers_as_the_past_did(self) -> None:
        for at_ms, known in self.past[-3:]:
            now = {each.id: each for each in self.memory.list(as_of=at_ms / 1000)}
            for number, its in known.items():
                if number not in self.touched:
                    assert now[number] == its
            assert now.keys() - self.touched == known.keys() - self.touched

    @invariant()
    def is_sound(self) -> None:
        self.steps += 1
        if self.steps % 4 == 0:
            assert self.db.check() == []


MemoryMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, print_blob=True
)
TestMemoryMachine = MemoryMachine.TestCase
