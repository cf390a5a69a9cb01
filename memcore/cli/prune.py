"""``memcore prune``: delete old checkpoints of graph threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

import memcore
from memcore.cli.options import (
    DAYS_MAX,
    FiniteRange,
    app_option,
    dry_run_option,
    json_option,
    need_choice,
    reading,
    store_option,
    threads_of,
    user_option,
    verb,
    warn_of_stranger,
    writing,
    yes_option,
)
from memcore.cli.output import emit_json, escape, print_table
from memcore.graph import GraphStore, Rule, StoredCoder, keep_rule
from memcore.options import counted

__all__ = [
    "prune_threads",
]


_DAY_SECONDS = 24 * 3600


@verb("prune")
@store_option
@click.argument("thread_ids", nargs=-1, metavar="[THREAD]...", help="Which threads; without: all.")
@user_option
@app_option
@click.option(
    "--keep-last",
    type=click.IntRange(min=1),
    default=1,
    help="The newest checkpoints to keep in each namespace.",
)
@click.option(
    "--max-age-days",
    type=FiniteRange(min=0, max=DAYS_MAX),
    help="Also keep those younger than this.",
)
@dry_run_option
@yes_option
@json_option
def prune_threads(
    store: str,
    thread_ids: tuple[str, ...],
    *,
    user: str | None,
    app: str | None,
    keep_last: int,
    max_age_days: float | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove old checkpoints of graph threads, and the data referred to only by them.

    Those from which delta channels of later ones are rebuilt are hidden instead. Stored content is
    read as bytes: nothing named in it is imported or called.
    """
    need_choice(dry_run, yes, see="what would go", do="prune")
    age = None if max_age_days is None else max_age_days * _DAY_SECONDS
    rule = keep_rule(keep_last=keep_last, max_age_seconds=age)
    done: list[dict[str, Any]] = []
    refused: list[dict[str, str]] = []
    first: memcore.MemcoreError | None = None
    with reading(store) if dry_run else writing(store) as db:
        warn_of_stranger(db, user, app)
        for graph, name in _chosen(db, thread_ids, user=user, app=app):
            try:
                done.append(_pruned(graph, name, rule, dry_run=dry_run))
            except (memcore.CorruptValueError, memcore.HeldError) as exc:
                refused.append({"thread": name, "reason": str(exc)})
                first = first or exc
    if as_json:
        emit_json("prune", {"dry_run": dry_run, "threads": done, "refused": refused})
    else:
        _print(done, refused, dry_run=dry_run)
    if first is not None:
        raise first


def _print(done: list[dict[str, Any]], refused: list[dict[str, str]], *, dry_run: bool) -> None:
    shown = [(each["thread"], each["kept"], each["removed"], each["needed"]) for each in done]
    print_table(("thread", "kept", "would go" if dry_run else "removed", "needed by others"), shown)
    total = sum(each["removed"] for each in done)
    what = "would be removed; nothing was written" if dry_run else "removed"
    print(f"\n{counted(total, 'checkpoint')} of {counted(len(done), 'thread')} {what}")
    strays, abandoned = (sum(each[name] for each in done) for name in ("strays", "abandoned"))
    if strays or abandoned:
        print(
            f"late writes of {counted(strays, 'checkpoint')}, and {counted(abandoned, 'thread')} "
            f"gone before, {what}"
        )
    for each in refused:
        print(escape(f"not pruned: {each['thread']}: {each['reason']}"))


def _chosen(
    db: memcore.Database, wanted: tuple[str, ...], *, user: str | None, app: str | None
) -> Iterator[tuple[GraphStore, str]]:
    missing = set(wanted)
    for its_app, its_user, entry in list(threads_of(db, user, app)):
        if not wanted or entry.thread in wanted:
            missing.discard(entry.thread)
            yield db.scope(app=its_app, user=its_user).graph, entry.thread
    if missing:
        msg = f"there is no thread {min(missing)!r} in {db.path}; 'memcore ls --threads' lists them"
        raise memcore.NotFoundError(msg)


def _pruned(graph: GraphStore, name: str, rule: Rule, *, dry_run: bool) -> dict[str, Any]:
    coder = StoredCoder()
    plan = graph.would_prune(name, rule, coder)
    found = {
        "thread": name,
        "kept": 0 if plan is None else sum(map(len, plan.kept.values())),
        "removed": 0 if plan is None else sum(map(len, plan.doomed.values())),
        "needed": 0 if plan is None else sum(map(len, plan.needed.values())),
        "strays": 0 if plan is None else len(plan.strays),
        "abandoned": plan is not None and plan.abandoned,
    }
    if not dry_run:
        done = graph.prune(name, rule, coder)
        found |= {"removed": done.checkpoints, "strays": done.strays, "abandoned": done.abandoned}
    return found
