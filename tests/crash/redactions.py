"""What is there is redacted while the power fails: verbs, as in ``verbs``.

A state has ``t/name``: items of a session were written anew, and its tokens not counted anew yet.
Both are commits of their own: whoever comes after a cut between them counts what was left.
"""

from __future__ import annotations

from typing import Any

import memcore
from memcore.database.redact import (
    SessionPlace,
    recount_rewritten,
    redact_all,
    redact_session,
    sessions_in,
)

from .verbs import Place, State, Step, content, observe, tag_in, tag_of, verb

_MORE = 512
"""Bytes by which an item grows that is written anew: its tokens are not what they were."""


class _Anew:
    """Finds something in every item and entry, and gives it the next tag of a step."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._at = 0

    def value(self, value: Any) -> tuple[Any, dict[str, int]]:
        if isinstance(value, dict) and value.get("role"):
            return value | {"content": self._next(value["content"], _MORE)}, {"any": 1}
        if isinstance(value, dict) and len(value) == 1:
            ((key, text),) = value.items()
            return {key: self._next(text, 0)}, {"any": 1}
        return value, {}

    def _next(self, text: str, more: int) -> str:
        tag = _renewed(tag_in(text), self._step, self._at, more)
        self._at += 1
        return content(tag)


def _renewed(tag: str, step: Step, at: int, more: int) -> str:
    return tag_of(step.lane, step.number, at, int(tag.rpartition("|")[2]) + more)


def _redone(state: State, step: Step) -> None:
    for at, key in enumerate(sorted(key for key in state if key.startswith("k/"))):
        state[key] = _renewed(state[key], step, at, 0)


@verb(_redone)
def redo(place: Place, step: Step) -> None:
    """``redo``: the values of all keys are written anew in their place, all in one commit."""
    anew: Any = _Anew(step)
    for _ in redact_all(place.db.engine, lambda *_: anew, user=place.lane, write=True):
        pass


def _redacted(state: State, step: Step) -> None:
    origin = f"s/{step.arguments[0]}"
    anew = {tag: _renewed(tag, step, at, _MORE) for at, tag in enumerate(state[origin])}
    for name in [each for each in state if each == origin or each.startswith(f"{origin}-")]:
        if not anew.keys().isdisjoint(state[name]):
            state[name] = tuple(anew.get(tag, tag) for tag in state[name])
            state[f"t/{name[2:]}"] = True


@verb(_redacted)
def redact(place: Place, step: Step) -> None:
    """``redact name``: all items of a session that is no fork, for its forks, too, in one commit.

    Forks are named after their origin.
    """
    anew: Any = _Anew(step)
    for told in redact_session(place.db.engine, _place_of(place, step), anew):
        assert not told.is_left, told


def _counted(state: State, step: Step) -> None:
    state.pop(f"t/{step.arguments[0]}", None)


@verb(_counted)
def count_anew(place: Place, step: Step) -> None:
    """``count_anew name``: the tokens of a session, if anything of it was written anew."""
    assert not list(recount_rewritten(place.db.engine, _place_of(place, step)))


def counts_finished(db: memcore.Database, states: dict[str, State]) -> list[str]:
    """Count what redactions left that were cut short; nothing may count more than it says."""
    if not any(name.startswith("t/") for state in states.values() for name in state):
        return []
    for app, user in db.scopes():
        found = db.engine.store.read(lambda txn, a=app, u=user: sessions_in(txn, a, u))  # type: ignore[misc]
        for each in found:
            for told in recount_rewritten(db.engine, each):
                raise AssertionError(told)
    left = observe(db, {lane: [] for lane in states})
    return [
        f"{lane}: {name[2:]} is not counted anew"
        for lane, state in left.items()
        for name in state
        if name.startswith("t/")
    ]


def _place_of(place: Place, step: Step) -> SessionPlace:
    found = place.db.engine.store.read(lambda txn: sessions_in(txn, "default", place.lane))
    return next(each for each in found if each.session == step.arguments[0])
