"""What workloads do to threads of graphs: verbs, as in ``verbs``, and how a thread is looked at.

The state of a thread is under ``g/name``: its checkpoints, oldest first, each with its id, the
tags of its messages, the tag of its other channel, and those of its pending writes.
"""

from __future__ import annotations

from typing import Any

import memcore
from memcore.graph import GraphStore, JsonCoder, NewCheckpoint, NewWrites

from .verbs import Place, State, Step, WrongValueError, content, tag_in, verb

CODER = JsonCoder()
Point = tuple[str, tuple[str, ...], str, tuple[str, ...]]


def id_of(step: Step) -> str:
    """The id of the checkpoint that an operation puts."""
    return f"{step.number:06}"


def _latest(state: State, name: str) -> Point | None:
    points: tuple[Point, ...] = state.get(f"g/{name}", ())
    return points[-1] if points else None


def put_next(graph: GraphStore, name: str, checkpoint: str, change: Any, other: Any) -> None:
    """Read the newest checkpoint, change its messages, put the result behind it."""
    found = graph.get(name, "", None, CODER)
    values = {} if found is None else found.values
    messages = change(values.get("messages", []))
    versions = {} if found is None else dict(found.body["channel_versions"])
    versions |= {"messages": checkpoint, "other": checkpoint}
    new = {"messages": (checkpoint, messages), "other": (checkpoint, other)}
    parent = None if found is None else found.checkpoint
    body = {"channel_versions": versions}
    graph.put(name, "", NewCheckpoint(checkpoint, parent, body, {}, new), CODER)


# --- verbs ----------------------------------------------------------------------------------------


def _stepped(state: State, step: Step) -> None:
    name, *sizes = step.arguments
    before = _latest(state, name)
    tags = step.tags(sizes)
    point = (id_of(step), (before[1] if before else ()) + tuple(tags), tags[0], ())
    state[f"g/{name}"] = (*state.get(f"g/{name}", ()), point)


@verb(_stepped)
def advance(place: Place, step: Step) -> None:
    """``advance thread size...``: a checkpoint with more messages; the first is also ``other``."""
    name, *sizes = step.arguments
    more = [content(tag) for tag in step.tags(sizes)]
    put_next(place.scope.graph, name, id_of(step), lambda before: before + more, {"is": more[0]})


def _shortened(state: State, step: Step) -> None:
    name, keep = step.arguments
    before = _latest(state, name)
    assert before is not None
    point = (id_of(step), before[1][-keep:], step.tags([50])[0], ())
    state[f"g/{name}"] = (*state[f"g/{name}"], point)


@verb(_shortened)
def shorten(place: Place, step: Step) -> None:
    """``shorten thread keep``: a checkpoint with the last messages only."""
    name, keep = step.arguments
    other = {"is": content(step.tags([50])[0])}
    put_next(place.scope.graph, name, id_of(step), lambda before: before[-keep:], other)


def _pending(state: State, step: Step) -> None:
    name, *sizes = step.arguments
    *points, last = state[f"g/{name}"]
    told = (*last[:3], last[3] + tuple(step.tags(sizes)))
    state[f"g/{name}"] = (*points, told)


@verb(_pending)
def pend(place: Place, step: Step) -> None:
    """``pend thread size...``: writes of a task at the newest checkpoint."""
    name, *sizes = step.arguments
    graph = place.scope.graph
    found = graph.get(name, "", None, CODER)
    assert found is not None
    writes = [(at, "messages", content(tag)) for at, tag in enumerate(step.tags(sizes))]
    task = f"t{step.number:06}"
    graph.put_writes(name, "", NewWrites(found.checkpoint, task, "", writes), CODER)


def _pruned(state: State, step: Step) -> None:
    name, keep = step.arguments
    state[f"g/{name}"] = state[f"g/{name}"][-keep:]


@verb(_pruned)
def prune(place: Place, step: Step) -> None:
    """``prune thread keep``: all but the newest checkpoints go."""
    name, keep = step.arguments
    place.scope.graph.prune(name, rule_of(keep), CODER)


def rule_of(keep: int) -> Any:
    """A rule: the newest stay."""
    return lambda found: {one.checkpoint for one in found[:-keep]}


def _copied(state: State, step: Step) -> None:
    source, target = step.arguments
    state[f"g/{target}"] = state[f"g/{source}"]


@verb(_copied)
def copy(place: Place, step: Step) -> None:
    """``copy source target``: a thread, its values shared."""
    place.scope.graph.copy_thread(*step.arguments)


def _gone(state: State, step: Step) -> None:
    state.pop(f"g/{step.arguments[0]}", None)


@verb(_gone)
def forget(place: Place, step: Step) -> None:
    """``forget thread``: delete it."""
    place.scope.graph.delete_thread(step.arguments[0], CODER)


# --- looking --------------------------------------------------------------------------------------


def threads_of(graph: GraphStore) -> State:
    """The threads of a scope that hold checkpoints, as states have them."""
    found: State = {}
    for entry in graph.threads():
        points = [_point(one) for one in graph.checkpoints(entry.thread, "", CODER)]
        if points:
            found[f"g/{entry.thread}"] = tuple(reversed(points))
    return found


def _point(found: Any) -> Point:
    versions = found.body["channel_versions"]
    if found.values.keys() != versions.keys() or set(versions.values()) != {found.checkpoint}:
        raise WrongValueError(f"{found.checkpoint}: values {sorted(found.values)}, {versions}")
    messages = tuple(map(tag_in, found.values["messages"]))
    writes = tuple(tag_in(value) for _, _, value in found.writes)
    return found.checkpoint, messages, tag_in(found.values["other"]["is"]), writes


def go_on(db: memcore.Database) -> list[str]:
    """Put and prune on every thread: what a crash left must not be in the way of it."""
    findings = []
    for app, user in db.scopes():
        graph = db.scope(user=user, app=app).graph
        for name in sorted(threads_of(graph)):
            thread = name[2:]
            more = content(f"{user}|0|0|300")
            put_next(graph, thread, "x1", lambda before, more=more: [*before, more], {"is": more})
            graph.prune(thread, rule_of(2), CODER)
            put_next(graph, thread, "x2", lambda before: before[1:], {"is": more})
            points = threads_of(graph)[name]
            if points[-1][1] != points[-2][1][1:]:
                findings.append(f"{name}: what was put reads otherwise")
    return findings + [f"after going on: {what}" for what in db.check()]
