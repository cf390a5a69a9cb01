"""Long-term memories that are stated, corrected and forgotten while the power fails: verbs.

A state has ``r/name``: the values of a slot that were superseded, and the versions of the one in
force; ``y/name``: what was learned from a session's items, which goes with the session; ``z/name``:
the items that the rolling summary of a session tells of; and ``v/name``: the grant that another
user has, as both sides know it.
"""

from __future__ import annotations

import math
from unittest.mock import patch

from memcore import Candidate, Extraction, Memory, Source, SummaryRequest
from memcore.memory import jobs
from memcore.memory.coverage import SUMMARIZED
from memcore.rows import names
from memcore.search import embed, read_vector_head
from memcore.search.vectors import EMBED_CHARS, VECTOR_SCALE
from memcore.store.interface import ReadTxn

from .verbs import VERBS, Place, State, Step, WrongValueError, content, tag_in, verb

_SLOT = "r/"
_LEARNED = "y/"
_GRANTED = "v/"
_TOLD = "z/"
_ARTICLE = "the "


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


def _restated(state: State, step: Step) -> None:
    name = f"{_LEARNED}{step.arguments[0]}"
    state[name] = (*state[name], state[name][-1])


@verb(_restated)
def restate(place: Place, step: Step) -> None:
    """``restate name``: what was learned last of a session is said once more, with an article."""
    (name,) = step.arguments
    memory = place.scope.memory
    last = [each for each in _standing(memory.list(kind="note")) if _session_of(each) == name][-1]
    memory.remember(f"{_ARTICLE}{last.text}", kind="note", source=last.sources)


def _united(state: State, step: Step) -> None:
    name = f"{_LEARNED}{step.arguments[0]}"
    state[name] = state[name][:-1]


@verb(_united)
def unite(place: Place, step: Step) -> None:
    """``unite name``: what a session says twice becomes one memory."""
    done = place.scope.memory.consolidate()
    assert [each.outcome for each in done.steps] == ["done"], step


def _standing(found: list[Memory]) -> list[Memory]:
    return [each for each in found if each.status != "superseded" and not _is_summary(each)]


def _is_summary(found: Memory) -> bool:
    return found.extractor == SUMMARIZED


def _session_of(found: Memory) -> str:
    return found.sources[0].session


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


def _summarized(state: State, step: Step) -> None:
    (name,) = step.arguments
    state[f"{_TOLD}{name}"] = state[f"s/{name}"]


def _joined(request: SummaryRequest) -> str:
    """The tags of all items so far."""
    tags = [tag_in(each["content"]) for each in request.messages[1:]]  # the first is the date
    return " ".join(filter(None, [request.previous_summary, *tags]))


@verb(_summarized)
def summarize(place: Place, step: Step) -> None:
    """``summarize name``: the rolling summary of a session reads what it has not read."""
    (name,) = step.arguments
    place.scope.memory.summary(name).extend(_joined, sessions=[name])


class Letters:
    """An embedder that counts letters."""

    id, dimensions = "letters-1", 16

    def __call__(self, texts: list[str], /) -> list[list[float]]:
        return [self.vector(text) for text in texts]

    def vector(self, text: str) -> list[float]:
        """The counts of a text."""
        found = [1.0] * self.dimensions
        for letter in text[:EMBED_CHARS]:
            found[ord(letter) % self.dimensions] += 1
        return found


@verb()
def embed_all(place: Place, step: Step) -> None:
    """``embed_all``: what was stored is indexed and embedded, memories and items."""
    place.db.engine.embedder = Letters()  # for good: other threads share it
    place.scope.index_sessions()
    _check_vectors(place)


def _check_vectors(place: Place) -> None:
    """Compare the vectors of memories with what the embedder says of their texts."""
    model, engine = Letters(), place.db.engine

    def has_vectors(txn: ReadTxn) -> bool:
        scope = names.scope_of(txn, place.scope.app, place.scope.user)
        return scope is not None and read_vector_head(txn, scope) is not None

    if not engine.store.read(has_vectors):
        return
    engine.embedder = model  # for good: other threads share it
    wanted = embed(model, ["letters"])[0]
    for hit in place.scope.memory.search("letters", mode="vector", k=1000, explain=True):
        subject = f"{hit.memory.subject}: " if hit.memory.subject else ""
        exact = _cosine(embed(model, [subject + hit.memory.text])[0], wanted)
        if abs(hit.similarity - exact) > 1e-6:
            raise WrongValueError(f"memory {hit.memory.id} has the vector of another text")


def _cosine(one: bytes, other: bytes) -> float:
    a, b = (memoryview(each[VECTOR_SCALE:]).cast("b").tolist() for each in (one, other))
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def _unlearned(state: State, step: Step) -> None:
    VERBS["delete"].then(state, step)
    for prefix in (_LEARNED, _TOLD):
        state.pop(f"{prefix}{step.arguments[0]}", None)


@verb(_unlearned)
def unlearn(place: Place, step: Step) -> None:
    """``unlearn name``: a session is deleted, and what was learned from it goes."""
    VERBS["delete"].act(place, step)


def _receiver(place: Place, name: str) -> tuple[str, str]:
    return place.scope.app, f"{place.lane}~{name}"


def _granted(state: State, step: Step) -> None:
    name, kind = step.arguments
    state[f"{_GRANTED}{name}"] = (kind,)


@verb(_granted)
def give_grant(place: Place, step: Step) -> None:
    """``give_grant name kind``: another user may read memories of a kind."""
    name, kind = step.arguments
    place.scope.memory.grants.give(to=_receiver(place, name), kinds=(kind,), redact=None)


def _ungranted(state: State, step: Step) -> None:
    state.pop(f"{_GRANTED}{step.arguments[0]}", None)


@verb(_ungranted)
def end_grant(place: Place, step: Step) -> None:
    """``end_grant name``: the giver revokes it, or the other declines it."""
    (name,) = step.arguments
    app, user = _receiver(place, name)
    grants = place.scope.memory.grants
    (found,) = [each for each in grants.list() if each.to_user == user]
    if step.number % 2:
        grants = place.db.scope(app=app, user=user).memory.grants
    assert grants.revoke(found)


def grants_of(place: Place) -> State:
    """The grants of the lane's user, as a state has them; one that one side knows has its side."""
    given = {(each.id, each.to_user): each for each in place.scope.memory.grants.list()}
    state: State = {}
    for (number, user), grant in given.items():
        received = place.db.scope(app=grant.to_app, user=user).memory.grants.received()
        sides = [each for each in received if each.id == number]
        name = user.partition("~")[2]
        agree = sides == [grant]
        state[f"{_GRANTED}{name}"] = grant.kinds if agree else (*(grant.kinds or ()), "one side")
    return state


def memories_of(place: Place) -> State:
    """What is remembered in the lane's scope, as a state has it."""
    state = grants_of(place)
    memory = place.scope.memory
    _check_vectors(place)
    for found in memory.list():
        if _is_summary(found):
            state[f"{_TOLD}{found.subject}"] = tuple(found.text.split())
            continue
        tag = tag_in(found.text.removeprefix(_ARTICLE))
        if found.slot is None:
            if found.status == "superseded":
                continue
            name = f"{_LEARNED}{_session_of(found)}"
            state[name] = (*state.get(name, ()), tag)
            continue
        past, now = _slot(state, found.slot)
        if found.status == "active":
            versions = memory.history(found.id)
            _settle(state, found.slot, past, tuple(tag_in(each.text) for each in versions))
        else:
            _settle(state, found.slot, (*past, tag), now)
    return state
