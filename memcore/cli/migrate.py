"""``memcore migrate``: upgrade a file of an older format."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

import memcore
from memcore.cli.options import AsJson, DryRun, StorePath, Yes, need_choice
from memcore.cli.output import emit_json, escape, progress
from memcore.limits import FORMAT_VERSION

__all__ = [
    "migrate_file",
]


def migrate_file(
    store: StorePath,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Keep no copy of the file as it was.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Upgrade a file of an older format to the current one. No process may have it open.

    The old file is kept next to it, with its format appended to its name.
    """
    need_choice(dry_run, yes, see="which format the file has", do="migrate it")
    with progress("checking the copy") as report:
        done = memcore.migrate(store, keep=not discard, dry_run=dry_run, progress=report)
    if as_json:
        emit_json("migrate", dataclasses.asdict(done))
        return
    if dry_run and done.version < FORMAT_VERSION:
        print(escape(f"{done.path}: format {done.version}; --yes migrates it to {FORMAT_VERSION}"))
        return
    print(escape(f"{done.path}: format {done.version_before}, now {done.version}"))
    if done.kept is not None:
        print(escape(f"the file before: {done.kept}"))
