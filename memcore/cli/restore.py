"""``memcore restore``: replace a database with a backup."""

from __future__ import annotations

import os
import time

import click

import memcore
from memcore.cli.options import (
    ExitCode,
    file_option,
    json_option,
    key_options,
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
@click.option("--yes", is_flag=True, help="Consent to --replace.")
@click.option("--discard", is_flag=True, help="Keep no copy of the store that is replaced.")
@click.option("--force", is_flag=True, help="Take a backup with findings, if it can be opened.")
@json_option
def restore_backup(
    backup: str, store: str, *, replace: bool, yes: bool, discard: bool, force: bool, as_json: bool
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
    if os.path.lexists(store) and not (replace and yes):
        complain(f"{store}: exists; --replace --yes puts the backup in its place")
        raise SystemExit(ExitCode.REFUSED)
    started = time.perf_counter()
    with progress("checking the copy") as report:
        done = memcore.restore(
            backup,
            store,
            replace=replace,
            keep=not discard,
            force=force,
            progress=report,
            **key_options(),
        )
    seconds = time.perf_counter() - started
    if as_json:
        fields = {"target": store, "bytes": done.bytes, "kept": done.kept, "seconds": seconds}
        emit_json(
            "restore", fields | {"findings": list(done.findings), "unsure": list(done.unsure)}
        )
        return
    for finding in (*done.findings, *done.unsure):
        print(escape(finding))
    print(escape(f"{store}: {counted(done.bytes, 'byte')} in {seconds:.2f} s"))
    if done.kept is not None:
        print(escape(f"the file before: {done.kept}"))
