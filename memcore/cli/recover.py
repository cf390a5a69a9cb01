"""``memcore recover``: make a session with damaged rows usable again."""

from __future__ import annotations

from dataclasses import asdict

import click

import memcore
from memcore.cli.options import (
    ExitCode,
    app_option,
    dry_run_option,
    find_session,
    graphs_of,
    json_option,
    need_choice,
    reading,
    session_argument,
    store_option,
    user_option,
    verb,
    writing,
    yes_option,
)
from memcore.cli.output import emit_json, escape, print_table
from memcore.codec.values import DAMAGE_ADVICE
from memcore.graph import RecoveredNamespace, StoredCoder
from memcore.limits import RECOVERY_STEPS
from memcore.options import counted

__all__ = [
    "recover_session",
]


_SHOWN = 20


@verb("recover")
@store_option
@session_argument
@user_option
@app_option
@click.option(
    "--step",
    type=click.Choice(RECOVERY_STEPS),
    multiple=True,
    metavar="|".join(RECOVERY_STEPS),
    help="A step that may be taken; may be given several times. Without it: all, in order.",
)
@click.option("--thread", is_flag=True, help="The name is that of a thread of a graph.")
@dry_run_option
@yes_option
@json_option
def recover_session(
    store: str,
    session_id: str,
    *,
    user: str | None,
    app: str | None,
    step: tuple[str, ...],
    thread: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Make a session usable again: from its last valid checkpoint, from its log, or empty.

    If all its items can be read, everything derived from them is rebuilt and nothing is lost. No
    item is removed; if the session's position is known, it is saved as the checkpoint 'before
    recovery'. The exit code is 1 if items were lost or left out, 5 if no step succeeds.

    With --thread, a graph thread is reset to its newest complete checkpoint; the broken ones after
    it are removed. No stored object is constructed or imported.
    """
    need_choice(dry_run, yes, see="what would be recovered", do="recover")
    if thread:
        if step:
            msg = "--step: a thread has none; leave it out"
            raise memcore.InvalidOptionError(msg)
        with reading(store) if dry_run else writing(store) as db:
            spaces = _recovered_thread(db, session_id, user=user, app=app, dry_run=dry_run)
        _tell_thread(session_id, spaces, dry_run=dry_run, as_json=as_json)
        return
    with reading(store) if dry_run else writing(store) as db:
        session = find_session(db, session_id, user=user, app=app)
        found = session.recover(plan=dry_run, steps=list(step) or RECOVERY_STEPS)
    if as_json:
        emit_json("recover", {"dry_run": dry_run, **asdict(found)})
    else:
        _print(found)
    if found.status == "failed":
        raise SystemExit(ExitCode.CORRUPT)
    if found.lost or found.left_out:
        raise SystemExit(ExitCode.FINDINGS)


def _recovered_thread(
    db: memcore.Database, name: str, *, user: str | None, app: str | None, dry_run: bool
) -> list[RecoveredNamespace]:
    there = [graph for _, _, graph in graphs_of(db, user, app) if name in graph]
    if len(there) != 1:
        what = "several users have a" if there else "there is no"
        msg = f"{what} thread {name!r:.60} in {db.path}; say --user and --app, see 'memcore prune'"
        raise memcore.NotFoundError(msg)
    return there[0].recover(name, StoredCoder(), dry_run=dry_run) or []


def _tell_thread(
    name: str, spaces: list[RecoveredNamespace], *, dry_run: bool, as_json: bool
) -> None:
    if as_json:
        told = [asdict(each) for each in spaces]
        emit_json("recover", {"dry_run": dry_run, "thread": name, "namespaces": told})
    else:
        for each in spaces:
            for lost in each.lost:
                print(escape(f"lost: {lost.checkpoint}: {lost.reason}"))
            what = "none is whole, nothing was removed" if each.kept is None else each.kept
            print(escape(f"namespace {each.namespace!r}: the newest whole checkpoint: {what}"))
        if dry_run:
            print("nothing was written")
    if any(each.kept is None and each.lost for each in spaces):
        raise SystemExit(ExitCode.CORRUPT)
    if any(each.lost for each in spaces):
        raise SystemExit(ExitCode.FINDINGS)


def _print(found: memcore.Recovery) -> None:
    if found.status == "sound":
        print(f"nothing is wrong: {counted(found.items, 'item')}")
        return
    for text in found.findings[:_SHOWN]:
        print(escape(f"found: {text.replace(DAMAGE_ADVICE, '')}"))
    if len(found.findings) > _SHOWN:
        print(f"found: {len(found.findings) - _SHOWN:,} more")
    print_table(
        ("step", "looked at", "serves", "because"),
        (
            (step.name, step.target, step.serves, step.reason.replace(DAMAGE_ADVICE, ""))
            for step in found.steps
        ),
        wrap=True,
    )
    for note in found.notes:
        print(escape(f"note: {note}"))
    if found.status == "failed":
        print("no step serves: nothing was written")
        return
    print(
        f"{counted(found.items, 'item is', 'items are')} live, {found.moved:,} of them appended "
        f"once more; {len(found.lost):,} lost, {found.left_out:,} not live any more"
    )
    if found.before is not None:
        print(f"checkpoint {found.before.number} says where the session was")
    if found.status == "planned":
        print("nothing was written")
