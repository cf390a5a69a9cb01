"""What the adapters of lines commit in one piece: verbs, as in ``verbs``, and how it looks.

Lines with the row that counts their commits (``l/name``: the tags of each commit), lines that are
amended in place, and sessions that are written anew without their first lines. It needs no
framework, and lies in an application of its own.
"""

from __future__ import annotations

from typing import Any

from memcore.adapters.lines import Lines, Rows
from memcore.database.scope import engine_of
from memcore.session import resume_removals

from .verbs import Place, State, Step, WrongValueError, content, tag_in, verb

LINES = "lines"
"""The application, the namespace and the field."""


def _lines(place: Place, name: str) -> Lines:
    scope = place.db.scope(app=LINES, user=place.lane)
    session = scope.session(name, policy="anthropic", orphans="keep", shape="keep")
    return Lines(session, LINES, _view)


def _rows(place: Place) -> Rows:
    return Rows(place.db.scope(app=LINES, user=place.lane), LINES)


def _view(line: dict[str, Any]) -> dict[str, Any] | None:
    if line["n"] % 4 == 3:
        return None  # an event
    return {"role": "user", "content": line["text"]}


def _line(number: int, tag: str) -> dict[str, Any]:
    """Return a line whose rest is as large as its item; above 16 KiB it is an event of its own."""
    text = content(tag)
    return {"n": number, "text": text, "again": [text, text[::-1]]}


def _jotted(state: State, step: Step) -> None:
    name, *sizes = step.arguments
    state[f"l/{name}"] = (*state.get(f"l/{name}", ()), tuple(step.tags(sizes)))


@verb(_jotted)
def jot(place: Place, step: Step) -> None:
    """``jot name size...``: lines, and the row with the number of their commit."""
    name, *sizes = step.arguments
    rows = _rows(place)
    number = 1 + (rows.read(lambda view: view.get(name)) or 0)
    writing = _lines(place, name).writing(_line(number, tag) for tag in step.tags(sizes))

    def change(txn: Any, rows: Any) -> None:
        writing.run(txn)
        rows.put(name, number)

    rows.commit(change, writings=[writing])


def _struck(state: State, step: Step) -> None:
    name, keep = step.arguments
    state[f"l/{name}"] = state[f"l/{name}"][-keep:]


@verb(_struck)
def strike(place: Place, step: Step) -> None:
    """``strike name keep``: the lines of all but the last ``keep`` commits are removed."""
    name, keep = step.arguments
    lines = _lines(place, name)
    kept = sorted({line.value["n"] for line in lines.read()})[-keep:]
    lines.replace(lambda line: line.value["n"] not in kept)
    resume_removals(engine_of(place.scope).store)


def _amended(state: State, step: Step) -> None:
    name, size = step.arguments
    *others, last = state[f"l/{name}"]
    state[f"l/{name}"] = (*others, (*last[:-1], step.tags([size])[0]))


@verb(_amended)
def amend(place: Place, step: Step) -> None:
    """``amend name size``: the last line is rewritten, in the row where it is."""
    name, size = step.arguments
    lines = _lines(place, name)
    *_, last = lines.read()
    lines.rewrite(last, _line(last.value["n"], step.tags([size])[0]))


def lines_of(place: Place) -> State:
    """Lines as states have them; each is whole, and the row has the number of the last commit."""
    found: State = {}
    for entry in place.db.scope(app=LINES, user=place.lane).sessions():
        name = entry.session_id
        commits: dict[int, tuple[str, ...]] = {}
        for line in _lines(place, name).read():
            number, tag = line.value["n"], tag_in(line.value["text"])
            if line.value != _line(number, tag):
                raise WrongValueError(f"{name}: line {line.seq} is {line.value!r:.80}")
            commits[number] = (*commits.get(number, ()), tag)
        counted = _rows(place).read(lambda view, name=name: view.get(name))
        if counted != max(commits, default=None):
            raise WrongValueError(f"{name}: commit {max(commits, default=None)}, row {counted}")
        found[f"l/{name}"] = tuple(commits.values())
    return found
