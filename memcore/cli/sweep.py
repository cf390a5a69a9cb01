"""``memcore sweep``: delete data that has expired or that retention rules remove."""

from __future__ import annotations

import os
from typing import Any

import click

import memcore
from memcore.cli.archive import archive_of
from memcore.cli.options import (
    ExitCode,
    dry_run_option,
    json_option,
    need_choice,
    need_directory,
    reading,
    store_option,
    verb,
    writing,
    yes_option,
)
from memcore.cli.output import complain, emit_json, print_pairs
from memcore.options import checked_file, counted

__all__ = [
    "show_report",
    "sweep_store",
]


@verb("sweep")
@store_option
@click.option(
    "--archive", metavar="ARCHIVE", help="Add what leaves to this file, directory or bucket first."
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=100_000, help="Remove at most this many objects."
)
@dry_run_option
@yes_option
@json_option
def sweep_store(
    store: str, *, archive: str | None, limit: int, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete data that has expired or that retention rules remove.

    Memories that rest on what is removed, and on nothing else, are forgotten with it. ARCHIVE is a
    file that lines are added to, a directory that exists, or a URL: s3://bucket/prefix, gs://, az://.
    """
    need_choice(dry_run, yes, see="what would go", do="remove it")
    target: str | memcore.Archive | None = None
    if archive is not None and ("://" in archive or os.path.isdir(archive)):
        target = archive_of(archive)
    elif archive is not None:
        target = checked_file("--archive", archive)
        if target == "-":
            complain("--archive -: name a file; 'memcore export --to -' writes to standard output")
            raise SystemExit(ExitCode.USAGE)
        need_directory(target)
    with reading(store) if dry_run else writing(store) as db:
        report = db.sweep(limit=limit, archive=target, dry_run=dry_run)
    show_report(report.mapping(), verb="sweep", as_json=as_json)


def show_report(found: dict[str, Any], *, verb: str, as_json: bool) -> None:
    """Print the report of a sweep."""
    if as_json:
        emit_json(verb, {"dry_run": found["dry_run"], "report": found})
        return
    told = {"dry_run", "complete", "total"}
    print_pairs(
        (name.replace("_", " "), count) for name, count in found.items() if name not in told
    )
    what = "would be removed; nothing was written" if found["dry_run"] else "removed"
    rest = "" if found["complete"] else "; more is due: run it again"
    print(f"\n{counted(found['total'], 'object')} {what}{rest}")
