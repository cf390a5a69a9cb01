"""``memcore memory``: list, search, show, extract, promote, forget, consolidate; evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

import memcore
from memcore.cli.options import (
    REDACTIONS,
    ExitCode,
    FiniteRange,
    InOrder,
    dry_run_option,
    find_session,
    json_option,
    need_choice,
    reading,
    store_option,
    verb,
    warn_of_stranger,
    writing,
    yes_option,
)
from memcore.cli.output import complain, emit_json, escape, print_table, timestamp, warn
from memcore.errors import InvalidItemError, InvalidOptionError, NotFoundError, SourceError
from memcore.memory.trust import KINDS, STATUSES
from memcore.options import counted

__all__ = [
    "verbs",
]


verbs = InOrder(
    "memory",
    help="Look at what is remembered of a user, and decide what waits in quarantine.",
    no_args_is_help=True,
)

_TIMES = ("recorded_at", "observed_at", "valid_from", "valid_to", "expires_at")
user_option = click.option("--user", default="default", metavar="USER", help="Whose memory.")
app_option = click.option("--app", default="default", metavar="APP", help="In which application.")
number_argument = click.argument("number", type=int, metavar="ID", help="The number of the memory.")


@contextmanager
def _memory(store: str, app: str, user: str, *, writes: bool = False) -> Iterator[memcore.Memories]:
    opened = writing(store) if writes else reading(store)
    with opened as db:
        _warn_of_stranger(db, user, app)
        yield db.scope(app=app, user=user).memory


def _warn_of_stranger(db: memcore.Database, user: str, app: str) -> None:
    """Warn of a user or an application that was named, and of which nothing is stored."""
    if (user, app) != ("default", "default"):
        warn_of_stranger(db, user, app)


def _mapping(memory: memcore.Memory) -> dict[str, Any]:
    """Return a memory in JSON types."""
    found = asdict(memory)
    found["sources"] = [{"session": each.session, "seqs": each.seqs} for each in memory.sources]
    return found


def _table(memories: list[memcore.Memory]) -> None:
    headings = ("id", "version", "status", "by", "kind", "slot", "recorded", "text")
    rows = [
        (
            str(each.id), str(each.version), each.status, each.by, each.kind, each.slot or "",
            timestamp(each.recorded_at), each.text,
        )
        for each in memories
    ]  # fmt: skip
    print_table(headings, rows, flexible=-1)


@verb("list", of=verbs)
@store_option
@user_option
@app_option
@click.option(
    "--status",
    type=click.Choice(STATUSES),
    metavar="STATUS",
    help="Only those that are active, quarantined, ...",
)
@click.option("--kind", type=click.Choice(KINDS), metavar="KIND", help="Only facts, ...")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="At most this many.")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    default=0,
    metavar="ID",
    help="Only ids larger than this one.",
)
@json_option
def list_memories(
    store: str,
    *,
    user: str,
    app: str,
    status: str | None,
    kind: str | None,
    limit: int | None,
    after: int,
    as_json: bool,
) -> None:
    """List the memories of a user.

    Forgotten ones are listed with --status forgotten alone.
    """
    with _memory(store, app, user) as memory:
        found = memory.list(status=status, kind=kind, limit=limit, after=after)
    if as_json:
        emit_json("memory list", {"memories": [_mapping(each) for each in found]})
    else:
        _table(found)


@verb("search", of=verbs)
@store_option
@click.argument("query", metavar="QUERY", help="Words in any order.")
@user_option
@app_option
@click.option("-k", type=click.IntRange(min=1, max=1000), default=10, metavar="N", help="Results.")
@click.option(
    "--mode",
    type=click.Choice(("auto", "lexical", "hybrid", "vector")),
    default="lexical",
    metavar="MODE",
    help="lexical, or auto, the same here; hybrid or vector, by the model WordLlama.",
)
@click.option("--index", is_flag=True, help="Index and embed what is missing first; this writes.")
@json_option
def search_memories(
    store: str, query: str, *, user: str, app: str, k: int, mode: str, index: bool, as_json: bool
) -> None:
    """Find the active memories that best match some words.

    With --mode, by their meaning.
    """
    embedder = None
    if mode in ("hybrid", "vector"):
        from memcore.search import WordLlama

        embedder = WordLlama()
    with (writing if index else reading)(store, embedder=embedder) as db:
        _warn_of_stranger(db, user, app)
        hits = db.scope(app=app, user=user).memory.search(query, k=k, mode=mode)
    if as_json:
        found = [{"score": hit.score, **_mapping(hit.memory)} for hit in hits]
        emit_json("memory search", {"memories": found})
    else:
        _table([hit.memory for hit in hits])


@verb("eval", of=verbs)
@store_option
@click.option(
    "--questions",
    type=click.Path(path_type=Path),
    required=True,
    metavar="PATH",
    help="Questions with what they should find: JSON lines.",
)
@user_option
@app_option
@click.option("-k", type=click.IntRange(min=1, max=1000), default=10, metavar="N", help="Results.")
@click.option("--memories", is_flag=True, help="Search memories: they count for their sources.")
@json_option
def evaluate_search(
    store: str, *, questions: Path, user: str, app: str, k: int, memories: bool, as_json: bool
) -> None:
    """Measure a search by questions: recall, nDCG, MRR.

    Each question says what it should find.
    """
    from memcore import search
    from memcore.session import unsearched_items

    with questions.open("rb") as file:
        lines = iter(partial(file.readline, search.LINE_BYTES_MAX + 1), b"")
        try:
            asked = search.read_questions(lines)
        except InvalidItemError as error:
            raise SourceError(f"{questions}: {error}", place=str(questions)) from error
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
            f"{counted(left_out, 'item is', 'items are')} not indexed and not searched: run "
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


@verb("show", of=verbs)
@store_option
@number_argument
@user_option
@app_option
@json_option
def show_memory(store: str, number: int, *, user: str, app: str, as_json: bool) -> None:
    """Show one memory with all its fields."""
    with _memory(store, app, user) as memory:
        found = memory.get(number)
    _show(found, f"memory {number}", command="memory show" if as_json else None)


def _show(found: memcore.Memory | None, what: str, *, command: str | None) -> None:
    """Print one memory with all its fields, as JSON for a ``command``."""
    if found is None:
        complain(f"there is no {what}")
        raise SystemExit(ExitCode.NOT_FOUND)
    if command is not None:
        emit_json(command, _mapping(found))
        return
    for name, value in _mapping(found).items():
        if value not in (None, [], {}, ()):
            print(escape(f"{name}: {_said(name, value)}"))


def _said(name: str, value: Any) -> str:
    """Return the value of a field as people write it: times as dates, sources as SESSION@SEQ."""
    if name in _TIMES and isinstance(value, int | float):
        return timestamp(value)
    if name == "sources":
        return ", ".join(f"{each['session']}@{seq}" for each in value for seq in each["seqs"])
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


@verb("history", of=verbs)
@store_option
@number_argument
@user_option
@app_option
@json_option
def show_history(store: str, number: int, *, user: str, app: str, as_json: bool) -> None:
    """Show all versions of a memory, oldest first."""
    with _memory(store, app, user) as memory:
        found = memory.history(number)
    if as_json:
        emit_json("memory history", {"versions": [_mapping(each) for each in found]})
    else:
        _table(found)


@verb("promote", of=verbs)
@store_option
@number_argument
@click.option("--by", required=True, metavar="NAME", help="Who decides it.")
@user_option
@app_option
@json_option
def promote_memory(store: str, number: int, *, by: str, user: str, app: str, as_json: bool) -> None:
    """Release a memory from quarantine.

    Models are given it from then on.
    """
    with _memory(store, app, user, writes=True) as memory:
        found = memory.promote(number, by=by)
    if as_json:
        emit_json("memory promote", _mapping(found))
    else:
        print(f"memory {found.id} is {found.status}")


@verb("forget", of=verbs)
@store_option
@number_argument
@user_option
@app_option
@click.option("--reason", metavar="TEXT", help="Why; it is kept.")
@dry_run_option
@yes_option
@json_option
def forget_memory(
    store: str,
    number: int,
    *,
    user: str,
    app: str,
    reason: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove a memory's text from all its versions.

    It is not learned again.
    """
    need_choice(dry_run, yes, see="what would be forgotten", do="forget it for good")
    with _memory(store, app, user, writes=not dry_run) as memory:
        found = memory.get(number) if dry_run else memory.forget(number, reason=reason)
    if found is None:
        raise NotFoundError(f"there is no memory {number}")
    if as_json:
        emit_json("memory forget", {"dry_run": dry_run, **_mapping(found)})
    elif dry_run:
        print(escape(f"memory {found.id} would be forgotten: {found.text}"))
        print("nothing was written")
    else:
        print(f"memory {found.id} is {found.status}")


@verb("extract", of=verbs)
@store_option
@click.argument(
    "session", required=False, metavar="[SESSION]", help="A session; else those of yesterday."
)
@user_option
@app_option
@json_option
def extract_memories(
    store: str, session: str | None, *, user: str, app: str, as_json: bool
) -> None:
    """Learn from a session, or from those of yesterday.

    Items that were not read yet are read by rules that need no model.
    """
    with writing(store) as db:
        if session is None:
            _warn_of_stranger(db, user, app)
        else:
            find_session(db, session, user=user, app=app)
        memory = db.scope(app=app, user=user).memory
        reports = (
            memcore.MemoryWorker().daily(memory) if session is None else [memory.extract(session)]
        )
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
        raise SystemExit(ExitCode.FINDINGS)


@verb("jobs", of=verbs)
@store_option
@user_option
@app_option
@json_option
def show_jobs(store: str, *, user: str, app: str, as_json: bool) -> None:
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


@verb("playbooks", of=verbs)
@store_option
@click.argument("scenario", required=False, metavar="[SCENARIO]", help="Only of this scenario.")
@user_option
@app_option
@json_option
def show_playbooks(store: str, scenario: str | None, *, user: str, app: str, as_json: bool) -> None:
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


@verb("consolidate", of=verbs)
@store_option
@user_option
@app_option
@click.option(
    "--archive-below",
    type=FiniteRange(),
    metavar="SCORE",
    help="Archive what scores less: importance, fading with age, + uses + sessions that say it.",
)
@dry_run_option
@json_option
def consolidate_memories(
    store: str, *, user: str, app: str, archive_below: float | None, dry_run: bool, as_json: bool
) -> None:
    """Unite memories that say the same; archive what has faded.

    Nothing is deleted.
    """
    policy = memcore.ConsolidationPolicy(archive_below=archive_below)
    with _memory(store, app, user, writes=not dry_run) as memory:
        found = memory.consolidate(policy, dry_run=dry_run)
    if as_json:
        steps = [asdict(step) for step in found.steps]
        emit_json("memory consolidate", {"dry_run": dry_run, "steps": steps})
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


@verb("profile", of=verbs)
@store_option
@click.option(
    "--schema",
    type=click.Path(path_type=Path),
    required=True,
    metavar="PATH",
    help="JSON schema of the profile.",
)
@user_option
@app_option
@json_option
def show_profile(store: str, *, schema: Path, user: str, app: str, as_json: bool) -> None:
    """Show a user's profile: the values of its fields.

    Values that do not fit the schema are listed, too.
    """
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


@verb("summary", of=verbs)
@store_option
@click.option("--name", default="sessions", metavar="NAME", help="Name of the summary.")
@user_option
@app_option
@json_option
def show_summary(store: str, *, name: str, user: str, app: str, as_json: bool) -> None:
    """Show a rolling summary over a user's sessions."""
    with _memory(store, app, user) as memory:
        found = memory.summary(name).get()
    _show(found, f"summary {name!r}", command="memory summary" if as_json else None)


def _grant_table(grants: list[memcore.Grant]) -> None:
    headings = ("id", "from", "to", "kinds", "labels", "redact", "until")
    rows = [
        (
            str(each.id), f"{each.user} in {each.app}", f"{each.to_user} in {each.to_app}",
            "all" if each.kinds is None else ", ".join(each.kinds),
            ", ".join(f"{name}={text}" for name, text in each.labels.items()),
            each.redact or "", "" if each.until is None else timestamp(each.until),
        )
        for each in grants
    ]  # fmt: skip
    print_table(headings, rows, flexible=2)


@verb("grants", of=verbs)
@store_option
@user_option
@app_option
@json_option
def show_grants(store: str, *, user: str, app: str, as_json: bool) -> None:
    """List the grants that a user gave or was given."""
    with _memory(store, app, user) as memory:
        found = [*memory.grants.list(), *memory.grants.received()]
    if as_json:
        emit_json("memory grants", {"grants": [asdict(each) for each in found]})
    else:
        _grant_table(found)


@verb("grant", of=verbs)
@store_option
@click.option("--to-user", required=True, metavar="USER", help="Who may read.")
@click.option("--to-app", default="default", metavar="APP", help="In which application.")
@user_option
@app_option
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    multiple=True,
    metavar="KIND",
    help="Only facts, ...; may be repeated.",
)
@click.option(
    "--redact",
    default="default",
    metavar="PRESET",
    help=f"Readers see placeholders for what it finds: {REDACTIONS}; empty: nothing.",
)
@click.option("--until", type=FiniteRange(), metavar="SECONDS", help="When it ends, since 1970.")
@json_option
def give_grant(
    store: str,
    *,
    to_user: str,
    to_app: str,
    user: str,
    app: str,
    kind: tuple[str, ...],
    redact: str,
    until: float | None,
    as_json: bool,
) -> None:
    """Let another user read a user's active memories.

    They are redacted, and can be read until the grant is revoked.
    """
    with _memory(store, app, user, writes=True) as memory:
        found = memory.grants.give(
            to=(to_app, to_user), kinds=kind or None, redact=redact or None, until=until
        )
    if as_json:
        emit_json("memory grant", asdict(found))
    else:
        print(f"grant {found.id} is given")


@verb("revoke", of=verbs)
@store_option
@click.argument("number", type=int, metavar="ID", help="The number of the grant.")
@user_option
@app_option
@json_option
def revoke_grant(store: str, number: int, *, user: str, app: str, as_json: bool) -> None:
    """End a grant that a user gave, at once."""
    with _memory(store, app, user, writes=True) as memory:
        found = memory.grants.revoke(number)
    if not found:
        complain(f"there is no grant {number}")
        raise SystemExit(ExitCode.NOT_FOUND)
    if as_json:
        emit_json("memory revoke", {"id": number})
    else:
        print(f"grant {number} is revoked")
