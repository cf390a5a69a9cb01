"""``memcore memory``: list, search, show, extract, promote, forget, consolidate; evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from memcore import ConsolidationPolicy, Grant, Memories, Memory, MemoryWorker, search
from memcore.cli.options import AsJson, ExitCode, StorePath, Yes, reading, writing
from memcore.cli.output import complain, emit_json, escape, print_table, timestamp, warn
from memcore.errors import InvalidOptionError
from memcore.session import unsearched_items

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
    mode: Annotated[
        str,
        typer.Option(metavar="MODE", help="lexical; or hybrid or vector, by the model WordLlama."),
    ] = "lexical",
    index: Annotated[
        bool, typer.Option("--index", help="Index and embed what is missing first; this writes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the active memories that best match some words, or with ``--mode`` their meaning."""
    embedder = search.WordLlama() if mode in ("hybrid", "vector") else None
    with (writing if index else reading)(store, embedder=embedder) as db:
        hits = db.scope(app=app, user=user).memory.search(query, k=k, mode=mode)
    if as_json:
        found = [{"score": hit.score, **_mapping(hit.memory)} for hit in hits]
        emit_json("memory search", {"memories": found})
    else:
        _table([hit.memory for hit in hits])


@verbs.command("eval", epilog=_EPILOG)
def evaluate_search(
    store: StorePath,
    *,
    questions: Annotated[
        Path, typer.Option(metavar="PATH", help="Questions with what they should find: JSON lines.")
    ],
    user: User = "default",
    app: App = "default",
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, max=1000, help="Results.")] = 10,
    memories: Annotated[
        bool, typer.Option("--memories", help="Search memories: they count for their sources.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure how much of what questions expect a search finds: recall, nDCG, MRR."""
    with questions.open("rb") as file:
        asked = search.read_questions(iter(partial(file.readline, search.LINE_BYTES_MAX + 1), b""))
    with reading(store) as db:
        scope = db.scope(app=app, user=user)

        def find(query: str, most: int) -> list[list[tuple[str, int]]]:
            if not memories:
                return [[(hit.session_id, hit.seq)] for hit in scope.search(query, k=most)]
            found = (hit.memory.sources for hit in scope.memory.search(query, k=most))
            return [[(each.session, seq) for each in of for seq in each.seqs] for of in found]

        groups = search.measure(asked, find, k=k)
        left_out = 0 if memories else unsearched_items(db.engine, app, user)
    if left_out:
        warn(
            f"{left_out} items are not indexed and were not searched: index them with "
            "'memcore search --index' first"
        )
    if as_json:
        figures = {group: quality._asdict() for group, quality in groups.items()}
        emit_json("memory eval", {"k": k, **figures.pop(""), "groups": figures})
        return
    headings = ("group", "questions", f"recall@{k}", f"hits@{k}", f"nDCG@{k}", f"MRR@{k}")
    shares = [
        (group or "all", n, *(round(100 * each, 1) for each in rest))
        for group, (n, *rest) in groups.items()
    ]
    print_table(headings, shares)


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
    _show(found, f"memory {number}", command="memory show" if as_json else None)


def _show(found: Memory | None, what: str, *, command: str | None) -> None:
    """Print one memory with all its fields, as JSON for a ``command``."""
    if found is None:
        complain(f"there is no {what}")
        raise typer.Exit(ExitCode.NOT_FOUND)
    if command is not None:
        emit_json(command, _mapping(found))
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


@verbs.command("consolidate", epilog=_EPILOG)
def consolidate_memories(
    store: StorePath,
    *,
    user: User = "default",
    app: App = "default",
    archive_below: Annotated[
        float | None,
        typer.Option(metavar="SCORE", help="Archive what has faded below; see the documentation."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    as_json: AsJson = False,
) -> None:
    """Unite memories that say the same, and archive what has faded; nothing is deleted."""
    policy = ConsolidationPolicy(archive_below=archive_below)
    with _memory(store, app, user, writes=not dry_run) as memory:
        found = memory.consolidate(policy, dry_run=dry_run)
    if as_json:
        emit_json("memory consolidate", {"steps": [asdict(step) for step in found.steps]})
        return
    headings = ("action", "memories", "outcome", "made", "reason")
    rows = [
        (
            step.action, ", ".join(map(str, step.memories)), step.outcome,
            "" if step.made is None else str(step.made), step.reason,
        )
        for step in found.steps
    ]  # fmt: skip
    print_table(headings, rows, flexible=-1)


@verbs.command("profile", epilog=_EPILOG)
def show_profile(
    store: StorePath,
    *,
    schema: Annotated[Path, typer.Option(metavar="PATH", help="JSON schema of the profile.")],
    user: User = "default",
    app: App = "default",
    as_json: AsJson = False,
) -> None:
    """Show a user's profile: the values of its fields, and those that do not fit the schema."""
    try:
        said = json.loads(schema.read_bytes())
    except (ValueError, RecursionError) as exc:
        msg = f"schema: {schema} is no JSON: {exc}"
        raise InvalidOptionError(msg) from exc
    with _memory(store, app, user) as memory:
        profile = memory.profile(said)
        known, odd = profile.values(), profile.misfits()
    if as_json:
        misfits = [_mapping(each) for each in odd]
        emit_json("memory profile", {"values": known, "misfits": misfits})
        return
    rows = [(name, json.dumps(value, ensure_ascii=False), "") for name, value in known.items()]
    rows += [(each.slot or "", each.text, "does not fit") for each in odd]
    print_table(("field", "value", "note"), rows, flexible=1)


@verbs.command("summary", epilog=_EPILOG)
def show_summary(
    store: StorePath,
    *,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the summary.")] = "sessions",
    user: User = "default",
    app: App = "default",
    as_json: AsJson = False,
) -> None:
    """Show a rolling summary over a user's sessions."""
    with _memory(store, app, user) as memory:
        found = memory.summary(name).get()
    _show(found, f"summary {name!r}", command="memory summary" if as_json else None)


def _grant_table(grants: list[Grant]) -> None:
    headings = ("id", "from", "to", "kinds", "labels", "redact", "until")
    rows = [
        (
            str(each.id), f"{each.app}/{each.user}", f"{each.to_app}/{each.to_user}",
            "all" if each.kinds is None else ", ".join(each.kinds),
            ", ".join(f"{name}={text}" for name, text in each.labels.items()),
            each.redact or "", "" if each.until is None else timestamp(each.until),
        )
        for each in grants
    ]  # fmt: skip
    print_table(headings, rows, flexible=2)


@verbs.command("grants", epilog=_EPILOG)
def show_grants(
    store: StorePath,
    *,
    user: User = "default",
    app: App = "default",
    as_json: AsJson = False,
) -> None:
    """List the grants that a user gave, and those that the user has."""
    with _memory(store, app, user) as memory:
        found = [*memory.grants.list(), *memory.grants.received()]
    if as_json:
        emit_json("memory grants", {"grants": [asdict(each) for each in found]})
    else:
        _grant_table(found)


@verbs.command("grant", epilog=_EPILOG)
def give_grant(
    store: StorePath,
    *,
    to_user: Annotated[str, typer.Option(metavar="NAME", help="Who may read.")],
    to_app: Annotated[str, typer.Option(metavar="NAME", help="In which application.")] = "default",
    user: User = "default",
    app: App = "default",
    kind: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Only facts, ...; may be repeated.")
    ] = None,
    redact: Annotated[
        str, typer.Option(metavar="POLICY", help="Redaction policy; empty: none.")
    ] = "default",
    until: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="When it ends, since 1970.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let another user read a user's active memories, redacted, until it is revoked."""
    with _memory(store, app, user, writes=True) as memory:
        found = memory.grants.give(
            to=(to_app, to_user), kinds=kind, redact=redact or None, until=until
        )
    if as_json:
        emit_json("memory grant", asdict(found))
    else:
        print(f"grant {found.id} is given")


@verbs.command("revoke", epilog=_EPILOG)
def revoke_grant(
    store: StorePath,
    number: Annotated[int, typer.Argument(metavar="ID", help="The number of the grant.")],
    *,
    user: User = "default",
    app: App = "default",
    as_json: AsJson = False,
) -> None:
    """End a grant that a user gave, at once."""
    with _memory(store, app, user, writes=True) as memory:
        found = memory.grants.revoke(number)
    if not found:
        complain(f"there is no grant {number}")
        raise typer.Exit(ExitCode.NOT_FOUND)
    if as_json:
        emit_json("memory revoke", {"id": number})
    else:
        print(f"grant {number} is revoked")
