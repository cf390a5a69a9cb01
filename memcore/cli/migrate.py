"""``memcore migrate``: upgrade a file of an older format."""

from __future__ import annotations

import dataclasses

import click

import memcore
from memcore.cli.options import (
    dry_run_option,
    file_option,
    json_option,
    need_choice,
    need_directory,
    verb,
    yes_option,
)
from memcore.cli.output import emit_json, escape, progress
from memcore.limits import FORMAT_VERSION

__all__ = [
    "migrate_file",
]


@verb("migrate")
@file_option
@dry_run_option
@yes_option
@click.option("--discard", is_flag=True, help="Keep no copy of the file as it was.")
@json_option
def migrate_file(store: str, *, dry_run: bool, yes: bool, discard: bool, as_json: bool) -> None:
    """Upgrade a file of an older format to the current one. No process may have it open.

    The old file is kept next to it, with its format appended to its name.
    """
    need_choice(dry_run, yes, see="which format the file has", do="migrate it")
    need_directory(store)
    with progress("checking the copy") as report:
        done = memcore.migrate(store, keep=not discard, dry_run=dry_run, progress=report)
    if as_json:
        emit_json("migrate", {"dry_run": dry_run} | dataclasses.asdict(done))
        return
    if dry_run and done.version < FORMAT_VERSION:
        print(escape(f"{done.path}: format {done.version}; --yes migrates it to {FORMAT_VERSION}"))
        return
    if done.version_before == done.version:
        print(escape(f"{done.path}: format {done.version}; there is nothing to migrate"))
        return
    print(escape(f"{done.path}: format {done.version_before}, now {done.version}"))
    if done.kept is not None:
        print(escape(f"the file before: {done.kept}"))
