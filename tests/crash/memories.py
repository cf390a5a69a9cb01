"""Long-term memories that are stated, corrected and forgotten while the power fails: verbs.

A state has ``r/name``: the values of a slot that were superseded, and the versions of the one in
force; and ``y/name``: what was learned from a session's items, which goes with the session.
"""

from __future__ import annotations

from unittest.mock import patch

from memcore import Candidate, Extraction, Source
from memcore.memory import jobs

from .verbs import VERBS, Place, State, Step, WrongValueError, content, tag_in, verb

_SLOT = "r/"
_LEARNED = "y/"


def _slot(state: State, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found: tuple[tuple[str, ...], tuple[str, ...]] = state.get(f"{_SLOT}{name}", ((), ()))
    return found


def _settle(state: State, name: str, past: tuple[str, ...], now: tuple[str, ...]) -> None:
    if past or now:
        state[f"{_SLOT}{name}"] = (past, now)
    else:
        state.pop(f"{_SLOT}{name}", None)


def _stated(state: State, step: Step) -> None:
    name, size = step.arguments
    past, now = _slot(state, name)
    _settle(state, name, (*past, *now[-1:]), tuple(step.tags([size])))


@verb(_stated)
def state_fact(place: Place, step: Step) -> None:
    """``state_fact name size``: the value of a slot, which supersedes the one before."""
    name, size = step.arguments
    (tag,) = step.tags([size])
    place.scope.memory.remember(content(tag), slot=name, by="operator")


def _corrected(state: State, step: Step) -> None:
    name, size = step.arguments
    past, now = _slot(state, name)
    _settle(state, name, past, (*now, *step.tags([size])))


@verb(_corrected)
def correct(place: Place, step: Step) -> None:
    """``correct name size``: a new version of the value in force."""
    name, size = step.arguments
    (tag,) = step.tags([size])
    memory = place.scope.memory
    (found,) = memory.list(slot=name, status="active")
    memory.update(found.id, text=content(tag), by="operator")


def _forgotten(state: State, step: Step) -> None:
    (name,) = step.arguments
    _settle(state, name, _slot(state, name)[0], ())


@verb(_forgotten)
def forget_fact(place: Place, step: Step) -> None:
    """``forget_fact name``: the value in force goes with its versions."""
    (name,) = step.arguments
    memory = place.scope.memory
    (found,) = memory.list(slot=name, status="active")
    memory.forget(found.id)


def _learned(state: State, step: Step) -> None:
    name, size = step.arguments
    state[f"{_LEARNED}{name}"] = (*state.get(f"{_LEARNED}{name}", ()), *step.tags([size]))


@verb(_learned)
def learn(place: Place, step: Step) -> None:
    """``learn name size``: a statement that rests on the last item of a session."""
    name, size = step.arguments
    (tag,) = step.tags([size])
    (last,) = place.session(name).tail(1)
    place.scope.memory.remember(content(tag), kind="note", source=Source(name, (last.seq,)))


class _Everything:
    """An extractor that proposes each item, word for word."""

    name, version = "everything", "1"

    def __call__(self, extraction: Extraction) -> list[Candidate]:
        return [Candidate(each.text, (each.number,), "note") for each in extraction.items]


def _extracted(state: State, step: Step) -> None:
    (name,) = step.arguments
    state[f"{_LEARNED}{name}"] = state[f"s/{name}"]


@verb(_extracted)
def extract(place: Place, step: Step) -> None:
    """``extract name``: all items of a session that were not read before, by a job."""
    (name,) = step.arguments
    memory = place.scope.memory
    with patch.object(jobs, "LEASE_MS", 0):  # that of a killed process has ended
        report = memory.extract(name, _Everything())
    if report.error is not None or memory.jobs():
        raise WrongValueError(f"not extracted: {report}")


def _unlearned(state: State, step: Step) -> None:
    VERBS["delete"].then(state, step)
    state.pop(f"{_LEARNED}{step.arguments[0]}", None)


@verb(_unlearned)
def unlearn(place: Place, step: Step) -> None:
    """``unlearn name``: a session is deleted, and what was learned from it goes."""
    VERBS["delete"].act(place, step)


def memories_of(place: Place) -> State:
    """What is remembered in the lane's scope, as a state has it."""
    state: State = {}
    memory = place.scope.memory
    for found in memory.list():
        tag = tag_in(found.text)
        if found.slot is None:
            name = f"{_LEARNED}{found.sources[0].session}"
            state[name] = (*state.get(name, ()), tag)
            continue
        past, now = _slot(state, found.slot)
        if found.status == "active":
            versions = memory.history(found.id)
            _settle(state, found.slot, past, tuple(tag_in(each.text) for each in versions))
        else:
            _settle(state, found.slot, (*past, tag), now)
    return state
