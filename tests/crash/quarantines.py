"""Items that a guard puts aside while the power fails: verbs, as in ``verbs``.

A state has ``q/name``: the places and tags of the originals of a session that wait for an operator.
In the log a placeholder stands for each (``HELD``), until it is released.
"""

from __future__ import annotations

import memcore

from .verbs import HELD, SUSPICIOUS, Place, State, Step, messages, tag_in, verb

GUARD = memcore.SecretGuard(verdict="quarantine", policy={"classes": ["email"]})
"""Judges by what the file can record, so that whoever opens it has it, too."""


def _held(state: State, step: Step) -> None:
    name, *sizes = step.arguments
    there = state.get(f"s/{name}", ())
    waiting = tuple(enumerate(step.tags(sizes), len(there)))
    state[f"q/{name}"] = state.get(f"q/{name}", ()) + waiting
    state[f"s/{name}"] = there + (HELD,) * len(sizes)


@verb(_held)
def suspect(place: Place, step: Step) -> None:
    """``suspect name size...``: items in one commit, all of which the guard puts aside."""
    name, *sizes = step.arguments
    found = [
        {**message, "content": message["content"] + SUSPICIOUS} for message in messages(step, sizes)
    ]
    place.session(name).extend(found)


def _taken(state: State, step: Step) -> tuple[int, str]:
    name, at = step.arguments
    waiting = list(state[f"q/{name}"])
    found = waiting.pop(at)
    state[f"q/{name}"] = tuple(waiting)
    if not waiting:
        del state[f"q/{name}"]
    return found


def _released(state: State, step: Step) -> None:
    place, tag = _taken(state, step)
    origin = f"s/{step.arguments[0]}"
    for name in [each for each in state if each == origin or each.startswith(f"{origin}-")]:
        if place < len(state[name]):
            state[name] = (*state[name][:place], tag, *state[name][place + 1 :])


@verb(_released)
def release(place: Place, step: Step) -> None:
    """``release name at``: the original of what waits there comes in its place.

    Forks show it, too; they are named after their origin.
    """
    name, at = step.arguments
    with memcore.as_operator():
        quarantine = place.scope.quarantine
        quarantine.release(name, quarantine.list(name)[at].seq)


def _discarded(state: State, step: Step) -> None:
    _taken(state, step)


@verb(_discarded)
def discard(place: Place, step: Step) -> None:
    """``discard name at``: the original is dropped, its placeholder stays."""
    name, at = step.arguments
    with memcore.as_operator():
        quarantine = place.scope.quarantine
        quarantine.drop(name, quarantine.list(name)[at].seq)


def held_of(place: Place) -> State:
    """What is put aside in the lane's scope, as a state has it."""
    state: State = {}
    for held in place.scope.quarantine:
        seqs = [item.seq for item in place.session(held.session_id)]
        tag = tag_in(held.message["content"].removesuffix(SUSPICIOUS))
        name = f"q/{held.session_id}"
        state[name] = (*state.get(name, ()), (seqs.index(held.seq), tag))
    return state
