"""Everything that a database says about itself, and how it differs from the truth."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import memcore
from memcore.errors import CallerError, InternalError, MemcoreError
from memcore.graph import JsonCoder

Place = tuple[str, str, str]
"""``(app, user, name)`` of a session or a namespace."""
Question = tuple[Any, ...]
SAID_MAX = 5


@dataclass(slots=True)
class Atlas:
    """The names to ask for: those of every time, for one that is gone must not come back."""

    sessions: list[Place] = field(default_factory=list)
    spaces: list[Place] = field(default_factory=list)
    blobs: list[str] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)

    def learn(self, db: memcore.Database) -> None:
        """Add what the database holds now."""
        for entry in db.sessions():
            place = (entry.app, entry.user, entry.session_id)
            if place not in self.sessions:
                self.sessions.append(place)
        for entry in db.scope().graph.threads():
            if entry.thread not in self.threads:
                self.threads.append(entry.thread)
        for app, user in db.scopes():
            for name in ("state", "n" * 700):
                if (app, user, name) not in self.spaces:
                    self.spaces.append((app, user, name))


@dataclass(slots=True)
class Observed:
    """The answers; ``errors`` are the typed refusals, ``crashes`` what nobody may raise."""

    answers: dict[Question, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)

    def ask(self, question: Question, fn: Callable[[], Any]) -> bool:
        """Note the answer or the error of ``fn``; whether there was an answer."""
        try:
            self.answers[question] = fn()
        except InternalError as error:
            self.crashes.append(f"{question[:4]}: InternalError: {error}")
        except CallerError as error:  # "there is none" is an answer, not a report of damage
            self.answers[question] = type(error).__name__
        except MemcoreError as error:
            self.errors.append(f"{question[:4]}: {type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - finding these is what this is for
            self.crashes.append(f"{question[:4]}: {type(error).__name__}: {error}")
        else:
            return True
        return False


def observe(db: memcore.Database, atlas: Atlas) -> Observed:
    """Ask every read of the public surface about everything in the atlas."""
    found = Observed()
    found.ask(("scopes",), lambda: sorted(db.scopes()))
    found.ask(("listing",), lambda: sorted((e.app, e.user, e.session_id) for e in db.sessions()))
    for place in atlas.sessions:
        _session(found, db, place)
    for place in atlas.spaces:
        _space(found, db, place)
    for app, user in sorted({place[:2] for place in atlas.sessions}):
        scope = db.scope(app=app, user=user)
        found.ask(("search", app, user), lambda scope=scope: _hits(scope))
    for app, user in sorted({(app, user) for app, user, _ in atlas.spaces}):
        _memories(found, db, app, user)
    for thread in atlas.threads:
        _thread(found, db, thread)
    for address in atlas.blobs:
        found.ask(
            ("blob", address),
            lambda address=address: hashlib.sha256(db.scope().blobs.get(address)).hexdigest(),
        )
    return found


def _session(found: Observed, db: memcore.Database, place: Place) -> None:
    app, user, name = place
    made: list[memcore.Session] = []
    if not found.ask(
        ("session", *place),
        lambda: made.append(db.session(name, user=user, app=app, orphans="keep")),
    ):
        return
    session = made[0]
    found.ask(
        ("totals", *place),
        lambda: (session.exists(), len(session), session.revision, session.tokens, session.policy),
    )
    items: list[Any] = []

    def read(*, skip: bool) -> list[int]:
        items.clear()
        for item in session.items(skip_corrupt=skip):
            items.append(item.seq)
            found.answers["item", *place, item.seq] = _plain(item)
        return items.copy()

    question = ("items", *place)
    if not found.ask(question, lambda: read(skip=False)):
        found.ask(question, lambda: read(skip=True))
    found.ask(("tail", *place), lambda: [_plain(item) for item in session.tail(4)])
    for seq in (items[0], items[len(items) // 2]) if items else ():
        found.ask(("item", *place, seq), lambda seq=seq: _plain(session.get(seq)))
    for budget in (None, 900):
        found.ask(("context", *place, budget), lambda budget=budget: _context(session, budget))
    found.ask(("views", *place), lambda: [repr(view) for view in session.views()])
    found.ask(("usage", *place), lambda: [repr(known) for known in session.calibrations()])
    found.ask(("state", *place), lambda: repr(session.state.all()))
    found.ask(("estimate", *place), lambda: session.estimated_tokens)
    found.ask(("waiting", *place), lambda: [repr(call) for call in session.open_calls])
    found.ask(("call", *place), lambda: repr(session.find_call("call-2")))


def _hits(scope: memcore.Scope) -> list[tuple[str, int]]:
    hits = scope.search("the user asks what the last tool result was", k=50, explain=True)
    return [(hit.session_id, hit.seq) for hit in hits]


def _context(session: memcore.Session, budget: int | None) -> Any:
    found = session.context(budget)
    return (repr(found.messages), found.tokens)


def _plain(item: memcore.Item) -> str:
    return repr(item)


def _thread(found: Observed, db: memcore.Database, name: str) -> None:
    graph = db.scope().graph

    def newest() -> str:
        one = graph.get(name, "", None, JsonCoder())
        return "" if one is None else repr((one.checkpoint, one.parent, one.writes))

    def read() -> list[str]:
        ids = []
        for one in graph.checkpoints(name, None, JsonCoder()):
            ids.append(one.checkpoint)
            for channel, value in one.values.items():
                found.answers["channel", name, one.checkpoint, channel] = repr(value)
        return ids

    found.ask(("newest", name), newest)
    found.ask(("checkpoints", name), read)


def _space(found: Observed, db: memcore.Database, place: Place) -> None:
    app, user, name = place
    space = db.scope(app=app, user=user).kv(name)
    keys: list[str] = []

    def scan() -> list[str]:
        for key, value in space.scan():
            keys.append(key)
            found.answers["value", *place, key] = repr(value)
        return keys

    found.ask(("keys", *place), scan)
    for key in ("key7", "raw", "lasting3", "early", "late"):
        found.ask(("value", *place, key), lambda key=key: _value(space, key))
        found.ask(("expires", *place, key), lambda key=key: space.expires(key))


def _memories(found: Observed, db: memcore.Database, app: str, user: str) -> None:
    memory = db.scope(app=app, user=user).memory
    found.ask(("memories", app, user), lambda: [repr(each) for each in memory.list()])
    for number in range(1, 9):
        question = ("value", app, user, "memory", number)
        found.ask(question, lambda number=number: _memory(memory, number))
        found.ask(("past", app, user, number), lambda number=number: repr(memory.history(number)))
    found.ask(("playbooks", app, user), lambda: repr(memory.playbooks()))
    found.ask(("grants", app, user), lambda: repr([memory.grants.list(), memory.grants.received()]))
    found.ask(("shared", app, user), lambda: repr(memory.list(shared=True)))
    found.ask(("jobs", app, user), lambda: repr(memory.jobs()))


def _memory(memory: Any, number: int) -> str | None:
    found = memory.get(number)
    return None if found is None else repr(found)


def _value(space: Any, key: str) -> str | None:
    missing = object()
    value = space.get(key, missing)
    return None if value is missing else repr(value)


def differences(found: Observed, truth: Observed, past: list[Observed]) -> tuple[list[str], int]:
    """What was answered wrongly, in words, and how many answers are missing or of another time.

    An item, value or blob is *wrong* if nothing that was ever stored under its name reads so. A
    listing, total or context that differs is counted only: a damaged row may be behind it.
    """
    wrong: list[str] = []
    other = 0
    for question, answer in found.answers.items():
        if question in truth.answers and truth.answers[question] == answer:
            continue
        if answer in (None, "NotFoundError"):
            other += question in truth.answers
            continue
        if question[0] in ("item", "value", "blob", "channel") and not any(
            state.answers.get(question) == answer for state in (truth, *past)
        ):
            wrong.append(f"{question}: {str(answer)[:200]}")
        else:
            other += 1
    other += sum(question not in found.answers for question in truth.answers)
    return wrong[:SAID_MAX], other
