"""``memcore restore``: replace a database with a backup."""

from __future__ import annotations

import os
import time

import click

import memcore
from memcore.cli.options import (
    ExitCode,
    dry_run_option,
    file_option,
    json_option,
    key_options,
    need_choice,
    need_directory,
    verb,
)
from memcore.cli.output import complain, emit_json, escape, progress
from memcore.options import checked_file, checked_path, counted

__all__ = [
    "restore_backup",
]


@verb("restore")
@click.argument("backup", metavar="BACKUP", help="The file to restore from.")
@file_option
@click.option("--replace", is_flag=True, help="The store exists: put the backup in its place.")
@dry_run_option
@click.option("--yes", is_flag=True, help="Consent to --replace.")
@click.option("--discard", is_flag=True, help="Keep no copy of the store that is replaced.")
@click.option("--force", is_flag=True, help="Take a backup with findings, if it can be opened.")
@json_option
def restore_backup(
    backup: str,
    store: str,
    *,
    replace: bool,
    dry_run: bool,
    yes: bool,
    discard: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Create the store from a backup that passes the check. No process may have the store open.

    A replaced file is kept next to it: only that file has the changes since the backup.
    """
    given = checked_path("BACKUP", backup)
    need_directory(given)
    if not os.path.lexists(given):
        msg = f"{backup}: there is no such file to restore from"
        raise memcore.NotFoundError(msg)
    need_directory(checked_file("--store", store))
    if os.path.lexists(store):
        if not (replace and (yes or dry_run)):
            complain(f"{store} exists; --replace --yes puts the backup in its place")
            raise SystemExit(ExitCode.REFUSED)
        need_choice(dry_run, yes, see="whether it can be restored", do="restore it")
    started = time.perf_counter()
    with progress("checking the copy") as report:
        done = memcore.restore(
            backup,
            store,
            replace=replace,
            keep=not discard,
            force=force,
            dry_run=dry_run,
            progress=report,
            **key_options(),
        )
    seconds = time.perf_counter() - started
    if as_json:
        fields = {"dry_run": dry_run, "target": store, "bytes": done.bytes, "kept": done.kept}
        found = {"findings": list(done.findings), "unsure": list(done.unsure)}
        emit_json("restore", fields | {"seconds": seconds} | found)
        return
    for finding in (*done.findings, *done.unsure):
        print(escape(finding))
    if dry_run:
        print(escape(f"{store}: {counted(done.bytes, 'byte')} would be restored"))
    else:
        print(escape(f"{store}: {counted(done.bytes, 'byte')} in {seconds:.2f} s"))
    if done.kept is not None:
        print(escape(f"the file before: {done.kept}"))
    if dry_run:
        print("nothing was written")
