"""What any sequence of statements, removals and consolidations keeps."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore import Memory, Source
from memcore.errors import InvalidOptionError
from memcore.memory.consolidate import wording
from messages import user

TEXTS = (
    "Likes the seat", "liked seats", "Likes a seat", "Likes 2 seats", "Does not like seats",
    "Visits Rome", "visited Rome", "Visits Paris",
)  # fmt: skip
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(0, 3), st.sampled_from(TEXTS)),
        st.tuples(st.just("say"), st.integers(0, 3), st.sampled_from(TEXTS[:3])),
        st.tuples(st.just("state"), st.just(0), st.sampled_from(TEXTS[6:])),
        st.tuples(st.just("correct"), st.integers(0, 9), st.sampled_from(TEXTS)),
        st.tuples(st.just("delete"), st.integers(0, 3), st.just("")),
        st.tuples(st.just("forget"), st.integers(0, 9), st.just("")),
        st.tuples(st.sampled_from(["consolidate", "delete"]), st.integers(0, 3), st.just("")),
        st.tuples(st.just("judge"), st.just(0), st.just("")),
    ),
    min_size=5,
    max_size=30,
)


def judge(one: Memory, other: Memory) -> str | None:
    """Call texts with a common word the same, or contradictory."""
    return "same" if len(one.text) % 2 == len(other.text) % 2 else "contradicts"


class Model:
    """What was said and by whom, while it still stands."""

    def __init__(self, db: Any) -> None:
        self.db = db
        self.scope = db.scope(user="alice")
        self.memory = self.scope.memory
        self.said: dict[str, set[str]] = {}
        """Texts by session; an operator's under the empty name."""

    def take(self, step: str, at: int, text: str) -> None:
        if step == "say":
            session = self.scope.session(f"s{at}")
            session.append(user(f"Please note: {text}"))
            seq = session.tail(1)[0].seq
            if self.memory.remember(text, source=Source(f"s{at}", seqs=(seq,))).text:
                self.said.setdefault(f"s{at}", set()).add(text)
        elif step == "state":
            self.memory.remember(text, by="operator")
            self.said.setdefault("", set()).add(text)
        elif step == "correct":
            self.correct(at, text)
        elif step == "delete":
            self.scope.delete_session(f"s{at}")
            self.said.pop(f"s{at}", None)
        elif step == "forget":
            living = [each.id for each in self.memory.list(status="active")]
            if living:
                self.memory.forget(living[at % len(living)])
        else:
            asked = judge if step == "judge" else None
            plan = self.memory.consolidate(consolidator=asked, dry_run=True)
            self.memory.apply(plan)
            before = self.memory.list()
            again = self.memory.apply(plan)
            assert all(each.outcome == "changed" for each in again.steps)
            assert self.memory.list() == before
            assert all(
                each.action != "unite" for each in self.memory.consolidate(dry_run=True).steps
            )

    def correct(self, at: int, text: str) -> None:
        living = [each.id for each in self.memory.list(status="active")]
        if living:
            session = self.scope.session(f"s{at % 4}")
            session.append(user(f"Please note: {text}"))
            seq = session.tail(1)[0].seq
            with suppress(InvalidOptionError):  # weaker, known already, or forgotten
                self.memory.update(
                    living[at % len(living)], text=text, source=Source(f"s{at % 4}", seqs=(seq,))
                )
                self.said.setdefault(f"s{at % 4}", set()).add(text)

    def check(self) -> None:
        assert self.db.check() == []
        texts = {text for found in self.said.values() for text in found}
        known = {each.id: each for each in self.memory.list()}
        active = [each for each in known.values() if each.status == "active"]
        for each in known.values():
            assert each.text in texts, "the words of somebody who is gone"
            assert all(number < each.id for number in each.derived_from)
            assert each.superseded_by is None or each.superseded_by != each.id
        for each in active:
            assert each.sources or each.by == "operator"


@settings(max_examples=120, deadline=None)
@given(STEPS)
def test_nothing_is_lost_invented_or_kept_too_long(steps: list[tuple[str, int, str]]) -> None:
    with memcore.open(":memory:") as db:
        model = Model(db)
        for step in steps:
            model.take(*step)
            model.check()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("say"), st.integers(0, 3), st.sampled_from(TEXTS)),
            st.tuples(st.sampled_from(["consolidate", "delete"]), st.integers(0, 3), st.just("")),
        ),
        min_size=5,
        max_size=30,
    )
)
def test_what_a_session_said_is_known_as_long_as_the_session(
    steps: list[tuple[str, int, str]],
) -> None:
    with memcore.open(":memory:") as db:
        model = Model(db)
        for step in steps:
            model.take(*step)
            model.check()
            known = {
                (source.session, wording(each.text))
                for each in model.memory.list(status="active")
                for source in each.sources
            }
            for session, texts in model.said.items():
                assert {(session, wording(text)) for text in texts} <= known


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(TEXTS), min_size=2, max_size=12))
def test_each_wording_is_left_once_and_all_sources_with_it(texts: list[str]) -> None:
    with memcore.open(":memory:") as db:
        model = Model(db)
        for at, text in enumerate(texts):
            model.take("say", at, text)
        model.memory.consolidate()
        active = model.memory.list(status="active")
        found = {wording(each.text): each.support for each in active}
        assert len(found) == len(active)
        expected: dict[tuple[str, ...], int] = {}
        for text in texts:
            expected[wording(text)] = expected.get(wording(text), 0) + 1
        assert found == expected
