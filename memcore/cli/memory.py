"""``memcore memory``: list, search, show, extract, promote and forget long-term memories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from memcore import Memories, Memory, MemoryWorker
from memcore.cli.options import AsJson, ExitCode, StorePath, Yes, reading, writing
from memcore.cli.output import complain, emit_json, escape, print_table, timestamp

__all__ = [
    "verbs",
]


verbs = typer.Typer(
    help="Look at what is remembered of a user, and decide what waits in quarantine.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_EPILOG = "Exit codes: memcore --help."
User = Annotated[str, typer.Option(metavar="NAME", help="Whose memory.")]
App = Annotated[str, typer.Option(metavar="NAME", help="In which application.")]
Number = Annotated[int, typer.Argument(metavar="ID", help="The number of the memory.")]


@contextmanager
def _memory(store: str, app: str, user: str, *, writes: bool = False) -> Iterator[Memories]:
    opened = writing(store) if writes else reading(store)
    with opened as db:
        yield db.scope(app=app, user=user).memory


def _mapping(memory: Memory) -> dict[str, Any]:
    """Return a memory in JSON types."""
    found = asdict(memory)
    found["sources"] = [{"session": each.session, "seqs": each.seqs} for each in memory.sources]
    return found


def _table(memories: list[Memory]) -> None:
    headings = ("id", "version", "status", "by", "kind", "slot", "recorded", "text")
    rows = [
        (
            str(each.id), str(each.version), each.status, each.by, each.kind, each.slot or "",
            timestamp(each.recorded_at), each.text,
        )
        for each in memories
    ]  # fmt: skip
    print_table(headings, rows, flexible=-1)


@verbs.command("list", epilog=_EPILOG)
def list_memories(
    store: StorePath,
    *,
    user: User = "default",
    app: App = "default",
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Only active, quarantined, ... ones.")
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only facts, ...")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="Most of them.")] = None,
    after: Annotated[int, typer.Option(metavar="ID", min=0, help="With larger numbers.")] = 0,
    as_json: AsJson = False,
) -> None:
    """List the memories of a user; forgotten ones only with --status forgotten."""
    with _memory(store, app, user) as memory:
        found = memory.list(status=status, kind=kind, limit=limit, after=after)
    if as_json:
        emit_json("memory list", {"memories": [_mapping(each) for each in found]})
    else:
        _table(found)


@verbs.command("search", epilog=_EPILOG)
def search_memories(
    store: StorePath,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words in any order.")],
    *,
    user: User = "default",
    app: App = "default",
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, help="Most of them.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Find the active memories that best match some words."""
    with _memory(store, app, user) as memory:
        hits = memory.search(query, k=k)
    if as_json:
        found = [{"score": hit.score, **_mapping(hit.memory)} for hit in hits]
        emit_json("memory search", {"memories": found})
    else:
        _table([hit.memory for hit in hits])


@verbs.command("show", epilog=_EPILOG)
def show_memory(
    store: StorePath,
    number: Number,
    *,
    user: User = "default",
    app: App = "default",
    as_json: AsJson = False,
) -> None:
    """Show one memory with all its fields."""
    with _memory(store, app, user) as memory:
        found = memory.get(number)
    if found is None:
        complain(f"there is no memory {number}")
        raise typer.Exit(ExitCode.NOT_FOUND)
    if as_json:
        emit_json("memory show", _mapping(found))
        return
    for name, value in _mapping(found).items():
        if value not in (None, [], {}, ()):
            print(escape(f"{name}: {value}"))


@verbs.command("history", epilog=_EPILOG)
def show_history(
    store: StorePath,
    number: Number,
    *,
    user: User = "default",
    app: App = "default",
    as_json: AsJson = False,
) -> None:
    """Show all versions of a memory, oldest first."""
    with _memory(store, app, user) as memory:
        found = memory.history(number)
    if as_json:
        emit_json("memory history", {"versions": [_mapping(each) for each in found]})
    else:
        _table(found)


@verbs.command("promote", epilog=_EPILOG)
def promote_memory(
    store: StorePath,
    number: Number,
    *,
    by: Annotated[str, typer.Option(metavar="NAME", help="Who decides it.")],
    user: User = "default",
    app: App = "default",
    as_json: AsJson = False,
) -> None:
    """Release a memory from quarantine: models are given it from then on."""
    with _memory(store, app, user, writes=True) as memory:
        found = memory.promote(number, by=by)
    if as_json:
        emit_json("memory promote", _mapping(found))
    else:
        print(f"memory {found.id} is {found.status}")


@verbs.command("forget", epilog=_EPILOG)
def forget_memory(
    store: StorePath,
    number: Number,
    *,
    user: User = "default",
    app: App = "default",
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; it is kept.")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove a memory's text from all its versions; it is not learned again."""
    if not yes:
        complain("what is forgotten cannot be had back: say --yes")
        raise typer.Exit(ExitCode.REFUSED)
    with _memory(store, app, user, writes=True) as memory:
        found = memory.forget(number, reason=reason)
    if as_json:
        emit_json("memory forget", _mapping(found))
    else:
        print(f"memory {found.id} is {found.status}")


@verbs.command("extract", epilog=_EPILOG)
def extract_memories(
    store: StorePath,
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="A session; else those of yesterday.")
    ] = None,
    *,
    user: User = "default",
    app: App = "default",
    as_json: AsJson = False,
) -> None:
    """Read what was not read of a session, or of yesterday's, by rules that need no model."""
    with _memory(store, app, user, writes=True) as memory:
        reports = MemoryWorker().daily(memory) if session is None else [memory.extract(session)]
    if as_json:
        found = [
            asdict(each) | {"outcomes": [of._asdict() for of in each.outcomes]} for each in reports
        ]
        emit_json("memory extract", {"reports": found})
    else:
        rows = [
            (each.session, of.status, str(of.memory or ""), of.reason or "", of.text)
            for each in reports
            for of in each.outcomes
        ]
        print_table(("session", "outcome", "id", "reason", "text"), rows, flexible=-1)
    for each in reports:
        if each.error is not None:
            complain(f"session {each.session}: {each.error}")
    if any(each.error is not None for each in reports):
        raise typer.Exit(ExitCode.FINDINGS)


@verbs.command("jobs", epilog=_EPILOG)
def show_jobs(
    store: StorePath,
    *,
    user: User = "default",
    app: App = "default",
    as_json: AsJson = False,
) -> None:
    """List what extractors have still to read, or have given up."""
    with _memory(store, app, user) as memory:
        found = memory.jobs()
    if as_json:
        emit_json("memory jobs", {"jobs": [asdict(each) for each in found]})
        return
    rows = [
        (
            each.session, f"{each.first}-{each.last}", each.extractor, each.state,
            str(each.attempts), timestamp(each.due_at), each.reason or "",
        )
        for each in found
    ]  # fmt: skip
    headings = ("session", "items", "extractor", "state", "attempts", "due", "reason")
    print_table(headings, rows, flexible=-1)


@verbs.command("playbooks", epilog=_EPILOG)
def show_playbooks(
    store: StorePath,
    scenario: Annotated[
        str | None, typer.Argument(metavar="[SCENARIO]", help="Only of this scenario.")
    ] = None,
    *,
    user: User = "default",
    app: App = "default",
    as_json: AsJson = False,
) -> None:
    """List the playbooks of a user, the best first."""
    with _memory(store, app, user) as memory:
        found = memory.playbooks(scenario)
    if as_json:
        rows = [asdict(each) | {"patches": [p._asdict() for p in each.patches]} for each in found]
        emit_json("memory playbooks", {"playbooks": rows})
        return
    headings = ("scenario", "status", "score", "passed", "failed", "steps")
    table = [
        (
            each.scenario, each.status, f"{each.score:.2f}", str(each.successes),
            str(each.failures), " > ".join(each.steps),
        )
        for each in found
    ]  # fmt: skip
    print_table(headings, table, flexible=-1)
