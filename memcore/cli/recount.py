"""``memcore recount``: recount existing sessions with another token counter."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

import click

import memcore
from memcore.cli.options import (
    ExitCode,
    app_option,
    dry_run_option,
    json_option,
    reading,
    store_option,
    user_option,
    verb,
    warn_of_stranger,
    writing,
)
from memcore.cli.output import Progress, emit_json, print_pairs, print_table, progress, warn
from memcore.options import counted
from memcore.records import record
from memcore.session import recount
from memcore.session.session import ref_of
from memcore.tokens import get_counter

__all__ = [
    "recount_sessions",
]


_HEADINGS = ("session", "user", "app", "items", "counted by", "tokens before", "tokens")


@record(frozen=True, slots=True)
class Recounted:
    """One session with its token counts before and after."""

    session_id: str
    user: str
    app: str
    items: int
    counter_before: str
    tokens_before: int
    tokens: int


@verb("recount")
@store_option
@click.option(
    "--counter", required=True, metavar="NAME", help="What counts from now on, as bytes/4."
)
@click.argument("sessions", nargs=-1, metavar="[SESSION]...", help="The sessions' names.")
@click.option("--all", "every", is_flag=True, help="All sessions (of --user, --app).")
@user_option
@app_option
@dry_run_option
@json_option
def recount_sessions(
    store: str,
    counter: str,
    sessions: tuple[str, ...],
    *,
    every: bool,
    user: str | None,
    app: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Recount the tokens of sessions with another counter; their items stay as they are.

    One commit per session: other processes can use the file meanwhile, and an interrupted run can
    be repeated. Sessions that already have the counter are left alone (except that a named one with
    damaged counts is repaired). Sessions that cannot be counted are reported, the others are
    counted, and the exit code is 1.
    """
    if every == bool(sessions):
        msg = "say which sessions to count anew, or --all" + (", not both" if every else "")
        raise memcore.InvalidOptionError(msg)
    by = get_counter(counter)
    started = time.perf_counter()
    with reading(store) if dry_run else writing(store) as db:
        warn_of_stranger(db, user, app)
        listed = list(db.sessions(user=user, app=app))
        if every:
            chosen = [entry for entry in listed if entry.counter != by.id]
        else:
            chosen = [_named(name, listed, db.path) for name in dict.fromkeys(sessions)]
        with progress("counting") as report:
            done, failed = _recount_all(db, chosen, by, report, dry_run=dry_run)
    considered = len(listed) if every else len(chosen)
    fields = {
        "counter": by.id,
        "recounted": len(done),
        "unchanged": considered - len(done) - failed,
        "failed": failed,
        "items": sum(session.items for session in done),
        "seconds": time.perf_counter() - started,
    }
    if as_json:
        told = [asdict(session) for session in done]
        emit_json("recount", {"dry_run": dry_run, **fields, "sessions": told})
    else:
        if done:
            print_table(
                _HEADINGS, (tuple(asdict(session).values()) for session in done), flexible=0
            )
        print_pairs((fields | {"seconds": f"{fields['seconds']:.2f}"}).items())
        if dry_run:
            print("\nnothing was written")
    if failed:
        raise SystemExit(ExitCode.FINDINGS)


def _named(name: str, listed: Sequence[memcore.SessionEntry], path: str) -> memcore.SessionEntry:
    """The session of that name; its current counter need not be available."""
    found = [entry for entry in listed if entry.session_id == name]
    if len(found) == 1:
        return found[0]
    if not found:
        msg = f"there is no session {name!r} in {path}; 'memcore ls' lists them"
        raise memcore.NotFoundError(msg)
    owners = ", ".join(f"--user {entry.user!r} --app {entry.app!r}" for entry in found[:3])
    msg = f"{counted(len(found), 'session')} are named {name!r}; say which: {owners}"
    raise memcore.InvalidOptionError(msg)


def _recount_all(
    db: memcore.Database,
    chosen: Sequence[memcore.SessionEntry],
    counter: memcore.TokenCounter,
    report: Progress | None,
    *,
    dry_run: bool,
) -> tuple[list[Recounted], int]:
    """Recount the sessions; return the results and the number of sessions that failed."""
    total, before, failed = sum(entry.items for entry in chosen), 0, 0
    done: list[Recounted] = []

    def tell(items: int, _: int) -> None:
        if report is not None:
            report(min(before + items, total), total)

    for entry in chosen:
        place = entry.session_id, entry.user, entry.app
        try:
            if dry_run:
                ref = ref_of(db.session(place[0], user=place[1], app=place[2]))
                found = recount.recount(ref, counter, tell, dry_run=True)
            else:
                session = db.session(
                    place[0], user=place[1], app=place[2], counter=counter, recount=True
                )
                found = session.recount(counter, progress=tell)
        except (memcore.CallerError, memcore.CorruptValueError) as error:
            failed += 1
            warn(f"session {entry.session_id!r}: {error}")
            continue
        finally:
            before += entry.items
        if found.items or found.counter_before != found.counter:
            tokens = found.tokens_before, found.tokens
            done.append(Recounted(*place, found.items, found.counter_before, *tokens))
    return done, failed
